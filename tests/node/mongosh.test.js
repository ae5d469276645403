// mongosh, run as a person or a script runs it: its helpers ask for more than drivers do.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { startMember, startServer } from './harness.js';

const shell = path.join(path.dirname(fileURLToPath(import.meta.url)), 'node_modules/.bin/mongosh');
const home = mkdtempSync(path.join(tmpdir(), 'pando-mongosh-'));
let server;
before(async () => {
  server = await startServer();
});
after(async () => {
  await server?.stop();
  rmSync(home, { recursive: true, force: true });
});

const run = (...args) => runAt(`${server.uri}shell`, ...args);

function runAt(uri, ...args) {
  return new Promise((resolve, reject) => {
    const options = { timeout: 60_000, env: { ...process.env, HOME: home } };
    execFile(shell, [uri, '--norc', ...args], options, (error, stdout, stderr) =>
      error ? reject(new Error(`${error.message}\n${stdout}\n${stderr}`)) : resolve(stdout),
    );
  });
}

/// A conversation: what is typed, and all that is shown.
function talk(typed) {
  return new Promise((resolve, reject) => {
    const options = { env: { ...process.env, HOME: home }, stdio: 'pipe', timeout: 60_000 };
    const child = spawn(shell, [`${server.uri}shell`, '--norc'], options);
    let out = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (part) => (out += part));
    child.on('error', reject);
    child.on('close', () => resolve(out));
    child.stdin.end(typed);
  });
}

/// What an expression gives, as JSON. Several are joined into one run: a shell takes a second to start.
const evaluate = async (...expressions) => JSON.parse(await run('--quiet', '--json=relaxed', '--eval', `[${expressions.join(',\n')}]`));

test('it connects without an error', async () => {
  assert.equal((await run('--quiet', '--eval', 'db.runCommand({ping: 1}).ok')).trim(), '1');
  // Interactively it asks for more: the banner, warnings of the start, the prompt's topology.
  const out = await talk('db.runCommand({ping: 1})\nexit\n');
  assert.match(out, /Using MongoDB:\s+\d/);
  assert.match(out, /\{\s*ok: 1/);
  assert.doesNotMatch(out, /MongoServerError|MongoNetworkError|Uncaught/);
});

test('show dbs, show collections', async () => {
  await evaluate('db.things.insertMany([{_id: 1, a: 1}, {_id: 2, a: 2}])', 'db.things.createIndex({a: 1})');
  assert.match(await run('--quiet', '--eval', 'show dbs'), /shell\s+[\d.]+ [KMG]iB/);
  assert.match(await run('--quiet', '--eval', 'show collections'), /things/);
});

test('documents', async () => {
  const [inserted, found, updated, count, deleted] = await evaluate(
    'db.docs.insertOne({_id: 1, n: 5})',
    'db.docs.find({n: {$gt: 1}}).toArray()',
    'db.docs.updateOne({_id: 1}, {$inc: {n: 1}})',
    'db.docs.countDocuments()',
    'db.docs.deleteMany({})',
  );
  assert.equal(inserted.acknowledged, true);
  assert.deepEqual(found, [{ _id: 1, n: 5 }]);
  assert.equal(updated.modifiedCount, 1);
  assert.equal(count, 1);
  assert.equal(deleted.deletedCount, 1);
});

test('statistics', async () => {
  await evaluate('db.stats_of.insertMany([{a: 1}, {a: 2}])', 'db.stats_of.createIndex({a: 1})');
  const [stats, coll, size, total, server, indexes, hostInfo, version] = await evaluate(
    'db.stats()',
    'db.stats_of.stats()',
    'db.stats_of.dataSize()',
    'db.stats_of.totalIndexSize()',
    'db.serverStatus()',
    'db.stats_of.aggregate([{$indexStats: {}}]).toArray()',
    'db.hostInfo()',
    'db.version()',
  );
  assert.equal(stats.db, 'shell');
  assert.equal(coll.count, 2);
  assert.equal(coll.nindexes, 2);
  assert.ok(size > 0 && total >= 0);
  assert.equal(server.ok, 1);
  assert.deepEqual(indexes.map((i) => i.name).sort(), ['_id_', 'a_1']);
  assert.ok(hostInfo.system.numCores > 0);
  assert.match(version, /^\d+\.\d+/);
});

test('explain', async () => {
  await evaluate('db.plans.insertMany([{a: 1}, {a: 2}, {a: 3}])', 'db.plans.createIndex({a: 1})');
  const [plain, stats, aggregate] = await evaluate(
    'db.plans.find({a: 2}).explain()',
    'db.plans.explain("executionStats").find({a: 2}).finish()',
    'db.plans.explain().aggregate([{$match: {a: 2}}])',
  );
  assert.ok(plain.queryPlanner.winningPlan);
  assert.equal(stats.executionStats.totalDocsExamined, 1);
  assert.equal(aggregate.ok, 1);
});

test('administration', async () => {
  const [indexes, dropped, ops, rs, conf, status, names, valid, log, commands, params] = await evaluate(
    '(db.admin_.insertOne({a: 1}), db.admin_.createIndex({a: 1}), db.admin_.getIndexes())',
    'db.admin_.dropIndex("a_1")',
    'db.currentOp().inprog.length',
    'rs.status().members.length',
    'rs.conf().members.length',
    'db.hello().isWritablePrimary',
    'db.getCollectionNames()',
    'db.admin_.validate().valid',
    'db.adminCommand({getLog: "startupWarnings"}).ok',
    'Object.keys(db.listCommands().value).length',
    'db.adminCommand({getParameter: 1, featureCompatibilityVersion: 1}).ok',
  );
  assert.deepEqual(indexes.map((i) => i.name), ['_id_', 'a_1']);
  assert.equal(dropped.ok, 1);
  assert.ok(ops >= 1);
  assert.deepEqual([rs, conf, status, valid, log, params], [1, 1, true, true, 1, 1]);
  assert.ok(names.includes('admin_'));
  assert.ok(commands > 20);
});

test('errors are shown with their code names', async () => {
  await assert.rejects(run('--quiet', '--eval', 'db.runCommand({nope: 1})'), /no such command/);
  await assert.rejects(run('--quiet', '--eval', 'db.x.find({$nope: 1}).toArray()'), /unknown top level operator/);
});

test('cursors past the first batch', async () => {
  const [sum] = await evaluate(
    '(db.many.insertMany(Array.from({length: 500}, (_, i) => ({_id: i}))), db.many.find().toArray().reduce((s, d) => s + d._id, 0))',
  );
  assert.equal(sum, 124750);
});

test('the window of the oplog', async () => {
  const [info] = await evaluate('db.getReplicationInfo()');
  assert.equal(info.configuredLogSizeMB, 1024);
  assert.ok(info.usedMB > 0 && info.timeDiff >= 0 && info.tFirst && info.tLast, JSON.stringify(info));
  const printed = await run('--quiet', '--eval', 'rs.printReplicationInfo()');
  assert.match(printed, /configured oplog size/);
  assert.match(printed, /log length start to end/);
});

test('helpers of a replica set', { timeout: 120_000 }, async () => {
  const members = await Promise.all([1, 2, 3].map(() => startMember('rs')));
  try {
    const hosts = members.map((m) => `127.0.0.1:${m.port}`);
    const settled = 'rs.status().members.every((m) => m.state === 1 || m.state === 2) && rs.status().votingMembersCount === 3';
    const made = await runAt(
      members[0].uri,
      '--quiet',
      '--eval',
      `rs.initiate({_id: 'rs', members: [${hosts.map((host, n) => `{_id: ${n}, host: '${host}'}`)}]});
       while (!(${settled})) sleep(100);
       db.getSiblingDB('t').c.insertOne({}, {writeConcern: {w: 3}});
       while (rs.status().members.some((m) => +m.optimeDate !== +rs.status().members[0].optimeDate)) sleep(100);
       print(JSON.stringify(rs.printSecondaryReplicationInfo()));
       print(rs.hello().primary, rs.conf().members.length, rs.isMaster().setName);
       try { rs.addArb('127.0.0.1:1') } catch (e) { print(e.codeName, e.message) }
       print(rs.add({host: '127.0.0.1:1', priority: 0, votes: 0}).ok, rs.remove('127.0.0.1:1').ok);`,
    );
    assert.equal(made.match(/"replLag":"-?[01] secs/g)?.length, 2, made);
    assert.ok(made.includes(`${hosts[0]} 3 rs`), made);
    assert.match(made, /NewReplicaSetConfigurationIncompatible .*priority 0/);
    assert.match(made, /^1 1$/m);
    const set = `mongodb://${hosts}/?replicaSet=rs`;
    const changed = await runAt(
      set,
      '--quiet',
      '--eval',
      `const without = rs.config();
       without.members[1].votes = without.members[1].priority = 0;
       print('without', rs.reconfig(without).ok);
       while (rs.status().votingMembersCount !== 2) sleep(100);
       const again = rs.conf();
       again.members[1].votes = again.members[1].priority = 1;
       print('again', JSON.stringify(rs.reconfigForPSASet(1, again)));
       while (!(${settled})) sleep(100);
       print('priority', rs.conf().members[1].priority);`,
    );
    assert.match(changed, /^without 1$/m);
    assert.match(changed, /^again .*"ok":1/m);
    assert.match(changed, /^priority 1$/m);
    const stepped = await runAt(
      set,
      '--quiet',
      '--eval',
      `const before = rs.hello().primary;
       print(rs.stepDown(5, 2).ok, db.adminCommand({replSetGetRBID: 1}).ok);
       while (!rs.hello().primary || rs.hello().primary === before) sleep(100);
       rs.secondaryOk();
       print(db.getSiblingDB('t').c.find().readPref('nearest', [], {enabled: true}).toArray().length);`,
    );
    assert.match(stepped, /^1 1$/m);
    assert.match(stepped, /^1$/m);
    const secondary = await runAt(members[0].uri, '--quiet', '--eval', 'print(rs.freeze(1).ok, rs.syncFrom(rs.hello().primary).ok); rs.printSecondaryReplicationInfo()');
    assert.match(secondary, /^1 1$/m);
  } finally {
    await Promise.all(members.map((m) => m.stop()));
  }
});
