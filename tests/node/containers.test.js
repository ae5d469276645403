// What Testcontainers waits for and runs in a container of MongoDB, with this server under the names mongod and mongos and the
// mongosh of this folder: the lines of the log, and the commands of its modules for Java, Node and Go as they stand there, with
// a port of their own. The module for Python only waits for the line.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { freePort } from './harness.js';

const here = path.dirname(fileURLToPath(import.meta.url));
const place = mkdtempSync(path.join(tmpdir(), 'pando-contained-'));
const binary = path.resolve(process.env.PANDO_BIN ?? path.join(here, '../../target/debug/pando'));
for (const name of ['mongod', 'mongos']) symlinkSync(binary, path.join(place, name));
const env = { ...process.env, HOME: place, PATH: `${place}:${here}/node_modules/.bin:${process.env.PATH}` };
const started = [];
after(async () => {
  await Promise.all(started.map(({ child, ended }) => (child.kill('SIGKILL'), ended)));
  rmSync(place, { recursive: true, force: true });
});

/// Starts one of the two, and waits for what Testcontainers waits for on its output.
async function start(name, port, ...options) {
  const child = spawn(name, ['--bind_ip', '127.0.0.1', '--port', String(port), ...options], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = new Promise((resolve) => child.on('close', resolve));
  started.push({ child, ended });
  let said = '';
  const waits = new Promise((resolve) => {
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (part) => {
        said += part;
        if (said.split('\n').some((line) => /Waiting for connections/.test(line) && /.*waiting for connections.*/i.test(line))) resolve(true);
      });
    }
  });
  assert.ok(await Promise.race([waits, ended.then(() => false)]), `it has ended:\n${said}`);
}

async function mongod(set, ...options) {
  const port = await freePort();
  const data = path.join(place, `data-${port}`);
  mkdirSync(data);
  await start('mongod', port, '--dbpath', data, '--replSet', set, ...options);
  return port;
}

/// A command in the container: its exit code and what it says.
function run(command) {
  return new Promise((resolve) => {
    execFile('sh', ['-c', command], { env, timeout: 60_000 }, (error, stdout, stderr) => resolve({ code: error ? error.code : 0, stdout, said: stdout + stderr }));
  });
}

async function succeeds(command) {
  const { code, stdout, said } = await run(command);
  assert.equal(code, 0, `${command}\n${said}`);
  return stdout.trim();
}

test('the module for Java makes a set of one', async () => {
  const port = await mongod('docker-rs');
  const evaluate = (command) => `mongosh --port ${port} mongo --eval "${command}"`;
  const isInitialized = evaluate("if(db.adminCommand({replSetGetStatus: 1})['myState'] != 1) quit(900)");
  assert.notEqual((await run(isInitialized)).code, 0);
  await succeeds(evaluate('rs.initiate();'));
  const notYet = 'db.runCommand( { isMaster: 1 } ).ismaster==false';
  await succeeds(evaluate(`var attempt = 0; while(${notYet}) { if (attempt > 60) {quit(1);} print('attempt ' + attempt); sleep(100);  attempt++;  }`));
  await succeeds(isInitialized);
});

test('the module for Node makes it by a health check, however often that runs', async () => {
  const port = await mongod('rs0');
  const check = `mongosh --port ${port} --quiet --eval 'try { rs.status(); } catch (e) { rs.initiate(); } while (db.runCommand({isMaster: 1}).ismaster==false) { sleep(100); }'`;
  await succeeds(check);
  await succeeds(check);
  assert.equal(await succeeds(`mongosh --port ${port} --quiet --eval 'db.hello().setName'`), 'rs0');
});

test('the module for Go makes it under a name', async () => {
  const port = await mongod('rs');
  const evaluate = (command) => `mongosh --port ${port} --quiet --eval "${command}"`;
  await succeeds(evaluate(`rs.initiate({ _id: 'rs', members: [ { _id: 0, host: '127.0.0.1:${port}' } ] })`));
  assert.equal(await succeeds(evaluate('rs.status().ok')), '1');
});

test('the module for Java makes a cluster', async () => {
  const config = await mongod('configsvr-rs', '--configsvr');
  const shard = await mongod('shardsvr-rs', '--shardsvr');
  for (const port of [config, shard]) {
    await succeeds(`mongosh --quiet --port ${port} --eval 'rs.initiate();'`);
    await succeeds(`mongosh --quiet --port ${port} --eval "while (db.adminCommand({replSetGetStatus: 1})['myState'] != 1) sleep(100)"`);
  }
  const router = await freePort();
  await start('mongos', router, '--configdb', `configsvr-rs/localhost:${config}`);
  await succeeds(`mongosh --port ${router} --eval 'sh.addShard("shardsvr-rs/localhost:${shard}");'`);
  await succeeds(`mongosh --quiet --port ${router} tctest --eval "db.testcollection.insertOne({});"`);
  assert.equal(await succeeds(`mongosh --quiet --port ${router} tctest --eval "db.testcollection.countDocuments()"`), '1');
});
