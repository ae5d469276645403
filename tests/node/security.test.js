// Logins and TLS, as applications and people at a shell use them.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { MongoClient } from 'mongodb';
import { startSecureServer } from './harness.js';

const shell = path.join(path.dirname(fileURLToPath(import.meta.url)), 'node_modules/.bin/mongosh');
const home = mkdtempSync(path.join(tmpdir(), 'pando-mongosh-'));
let server;
before(async () => {
  server = await startSecureServer();
});
after(async () => {
  await server?.stop();
  rmSync(home, { recursive: true, force: true });
});

async function as(options, use) {
  const client = new MongoClient(server.uri, { serverSelectionTimeoutMS: 5000, ...options });
  try {
    return await use(client);
  } finally {
    await client.close();
  }
}

const whoAmI = async (client) => (await client.db('admin').command({ connectionStatus: 1 })).authInfo.authenticatedUsers;

for (const authMechanism of [undefined, 'SCRAM-SHA-256', 'SCRAM-SHA-1'])
  test(`a login by ${authMechanism ?? 'what the driver chooses'}`, async () => {
    const auth = { username: 'root', password: 'secret' };
    assert.deepEqual(await as({ auth, authMechanism }, whoAmI), [{ user: 'root', db: 'admin' }]);
    const wrong = { username: 'root', password: 'other' };
    await assert.rejects(as({ auth: wrong, authMechanism }, whoAmI), { code: 18, codeName: 'AuthenticationFailed' });
  });

test('a login by certificate, and what it may do', async () => {
  const options = { authMechanism: 'MONGODB-X509', tlsCertificateKeyFile: server.at('client.pem') };
  await as(options, async (client) => {
    assert.deepEqual(await whoAmI(client), [{ user: 'CN=ann,O=Pando', db: '$external' }]);
    await client.db('shop').collection('things').insertOne({ _id: 'node' });
    await assert.rejects(client.db('other').collection('things').insertOne({}), { code: 13, codeName: 'Unauthorized' });
  });
});

test('nothing without a login, and nothing without TLS', async () => {
  await assert.rejects(as({}, (client) => client.db('shop').collection('things').findOne()), { code: 13 });
  const plain = new MongoClient(`mongodb://127.0.0.1:${server.port}/`, { serverSelectionTimeoutMS: 500 });
  await assert.rejects(plain.db('admin').command({ ping: 1 }));
  await plain.close();
});

const mongosh = (...args) =>
  new Promise((resolve, reject) => {
    const options = { timeout: 60_000, env: { ...process.env, HOME: home } };
    const tls = ['--tls', '--tlsCAFile', server.at('authority.pem')];
    const all = [`mongodb://localhost:${server.port}/shop`, '--norc', '--quiet', ...tls, ...args];
    execFile(shell, all, options, (error, stdout, stderr) => (error ? reject(new Error(`${stdout}${stderr}`)) : resolve(stdout.trim())));
  });

const status = 'db.runCommand({connectionStatus: 1}).authInfo.authenticatedUsers[0].user';

test('mongosh by password', async () => {
  const login = ['--username', 'root', '--authenticationDatabase', 'admin'];
  assert.equal(await mongosh(...login, '--password', 'secret', '--eval', status), 'root');
  await assert.rejects(mongosh(...login, '--password', 'other', '--eval', status), /Authentication failed/);
  const users = await mongosh(...login, '--password', 'secret', '--eval', "db.getSiblingDB('admin').getUsers().users.map((u) => u.user).join()");
  assert.equal(users, 'root');
});

test('mongosh by certificate', async () => {
  const login = ['--tlsCertificateKeyFile', server.at('client.pem'), '--authenticationMechanism', 'MONGODB-X509'];
  assert.equal(await mongosh(...login, '--authenticationDatabase', '$external', '--eval', status), 'CN=ann,O=Pando');
});
