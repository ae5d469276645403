// mongosh at a router: each helper of `sh`, and what collections tell of their shards.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { startCluster } from './harness.js';

const shell = path.join(path.dirname(fileURLToPath(import.meta.url)), 'node_modules/.bin/mongosh');
const home = mkdtempSync(path.join(tmpdir(), 'pando-mongosh-'));
let cluster;
before(async () => {
  cluster = await startCluster();
  await run('--eval', 'sh.stopBalancer()');
});
after(async () => {
  await cluster?.stop();
  rmSync(home, { recursive: true, force: true });
});

function run(...args) {
  return new Promise((resolve, reject) => {
    const options = { timeout: 60_000, env: { ...process.env, HOME: home } };
    execFile(shell, [`${cluster.uri}shop`, '--norc', '--quiet', ...args], options, (error, stdout, stderr) =>
      error ? reject(new Error(`${error.message}\n${stdout}\n${stderr}`)) : resolve(stdout),
    );
  });
}

/// What expressions give, as JSON; warnings of the shell come before it.
async function evaluate(...expressions) {
  const said = await run('--json=relaxed', '--eval', `[${expressions.join(',\n')}]`);
  return JSON.parse(said.slice(said.indexOf('[')));
}

test('collections are sharded, cut and moved', async () => {
  const given = await evaluate(
    'sh.enableSharding("shop")',
    'sh.enableSharding("second", "s1")',
    'sh.shardCollection("shop.orders", {k: 1})',
    'sh.shardCollection("shop.users", {_id: "hashed"}, false, {numInitialChunks: 4})',
    'db.orders.insertMany([...Array(100).keys()].map((k) => ({_id: k, k}))).acknowledged',
    'sh.splitAt("shop.orders", {k: 50})',
    'sh.splitFind("shop.orders", {k: 60})',
    'sh.moveChunk("shop.orders", {k: 10}, "s0")',
    'sh.moveRange("shop.orders", "s1", {k: 75})',
    'db.orders.countDocuments()',
    'sh.balancerCollectionStatus("shop.orders")',
    'db.getSiblingDB("config").databases.findOne({_id: "second"}).primary',
  );
  for (const n of [0, 1, 2, 3, 5, 6, 7, 8, 10]) assert.equal(given[n].ok, 1, JSON.stringify(given[n]));
  assert.equal(given[2].collectionsharded, 'shop.orders');
  assert.equal(given[9], 100);
  assert.equal(given[11], 's1');
});

test('sh.status() and what it is made of', async () => {
  const [status, verbose, shards, list, configShard] = await evaluate(
    'sh.status().value',
    'sh.status(true).value',
    'db.adminCommand({listShards: 1}).shards',
    'sh.listShards()',
    'sh.isConfigShardEnabled()',
  );
  assert.ok(status.shardingVersion.clusterId);
  assert.deepEqual(status.shards.map((s) => s._id), ['s0', 's1']);
  const orders = status.databases.find((d) => d.database._id === 'shop').collections['shop.orders'];
  assert.deepEqual(orders.shardKey, { k: 1 });
  assert.equal(orders.chunkMetadata.reduce((n, c) => n + c.nChunks, 0), 3);
  assert.ok(verbose['active mongoses'].length >= 1);
  assert.deepEqual(list, shards);
  assert.deepEqual(configShard, { enabled: false });
});

test('how data is distributed', async () => {
  const [distribution, data, version, location, stats] = await evaluate(
    'db.orders.getShardDistribution().value',
    'sh.getShardedDataDistribution().toArray()',
    'db.orders.getShardVersion()',
    'db.aggregate([{$listClusterCatalog: {shards: true}}, {$match: {ns: "shop.orders"}}]).toArray()',
    'db.orders.stats()',
  );
  assert.equal(distribution.Totals.docs, 100);
  assert.equal(distribution.Totals.chunks, 3);
  assert.equal(Object.keys(distribution).filter((k) => /^Shard s[01] at s[01]\//.test(k)).length, 2);
  const orders = data.find((d) => d.ns === 'shop.orders');
  assert.deepEqual(orders.shards.map((s) => s.shardName).sort(), ['s0', 's1']);
  assert.equal(orders.shards.reduce((n, s) => n + s.numOwnedDocuments, 0), 100);
  assert.equal(version.ok, 1);
  assert.deepEqual(location[0].shards.sort(), ['s0', 's1']);
  assert.equal(stats.sharded, true);
  assert.equal(stats.count, 100);
  // A collection that is not sharded.
  await assert.rejects(run('--eval', 'db.plain.insertOne({}); db.plain.getShardDistribution()'), /is not sharded/);
});

test('the balancer', async () => {
  const given = await evaluate(
    'sh.getBalancerState()',
    'sh.startBalancer().ok',
    'sh.getBalancerState()',
    'sh.isBalancerRunning().mode',
    'sh.setBalancerState(false).ok',
    'sh.isBalancerRunning().mode',
    'sh.disableBalancing("shop.orders").modifiedCount',
    'sh.enableBalancing("shop.orders").modifiedCount',
    'sh.stopBalancer().ok',
  );
  assert.deepEqual(given, [false, 1, true, 'full', 1, 'off', 1, 1, 1]);
});

test('settings that have no effect on MongoDB 8 either, and migrations', async () => {
  const given = await evaluate(
    'sh.enableAutoSplit().acknowledged',
    'sh.disableAutoSplit().acknowledged',
    'sh.stopAutoMerger().acknowledged',
    'sh.isAutoMergerEnabled()',
    'sh.startAutoMerger().acknowledged',
    'sh.isAutoMergerEnabled()',
    'sh.disableAutoMerger("shop.orders").acknowledged',
    'sh.enableAutoMerger("shop.orders").acknowledged',
    'sh.disableMigrations("shop.orders").ok',
  );
  assert.deepEqual(given, [true, true, true, false, true, true, true, true, 1]);
  await assert.rejects(run('--eval', 'sh.moveChunk("shop.orders", {k: 10}, "s1")'), /migrations|not allowed/i);
  assert.deepEqual(await evaluate('sh.enableMigrations("shop.orders").ok', 'sh.moveChunk("shop.orders", {k: 10}, "s1").ok'), [1, 1]);
});

test('zones', async () => {
  const given = await evaluate(
    'sh.addShardToZone("s0", "east").ok',
    'sh.addShardTag("s1", "west").ok',
    'sh.updateZoneKeyRange("shop.orders", {k: MinKey()}, {k: 0}, "east").ok',
    'sh.addTagRange("shop.orders", {k: 1000}, {k: MaxKey()}, "west").ok',
    'db.getSiblingDB("config").tags.countDocuments()',
    'sh.status().value.databases.find((d) => d.database._id === "shop").collections["shop.orders"].tags.length',
    'sh.removeRangeFromZone("shop.orders", {k: MinKey()}, {k: 0}).ok',
    'sh.removeTagRange("shop.orders", {k: 1000}, {k: MaxKey()}).ok',
    'sh.removeShardFromZone("s0", "east").ok',
    'sh.removeShardTag("s1", "west").ok',
    'db.getSiblingDB("config").tags.countDocuments()',
  );
  assert.deepEqual(given, [1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 0]);
});

test('metadata is consistent', async () => {
  assert.deepEqual(await evaluate('sh.checkMetadataConsistency().toArray()'), [[]]);
  assert.deepEqual(await evaluate('db.checkMetadataConsistency().toArray()', 'db.orders.checkMetadataConsistency().toArray()'), [[], []]);
});

test('addShard of a shard that is there', async () => {
  const [again] = await evaluate('sh.addShard(db.getSiblingDB("config").shards.findOne({_id: "s0"}).host)');
  assert.equal(again.shardAdded, 's0');
});
