// The Node driver, as an application uses it.

import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import { Binary, Decimal128, Long, MongoBulkWriteError, MongoClient, MongoServerError, ObjectId } from 'mongodb';
import { startServer } from './harness.js';

let server, client, db, things;
before(async () => {
  server = await startServer();
  client = await new MongoClient(server.uri).connect();
});
after(async () => {
  await client?.close();
  await server?.stop();
});
beforeEach(async () => {
  db = client.db('node');
  await db.dropDatabase();
  things = db.collection('things');
});

test('topology is discovered without being told', async () => {
  const hello = await db.admin().command({ hello: 1 });
  assert.equal(hello.isWritablePrimary, true);
  const named = new MongoClient(`${server.uri}?replicaSet=${hello.setName}`, { serverSelectionTimeoutMS: 5000 });
  assert.equal((await named.db('admin').command({ ping: 1 })).ok, 1);
  await named.close();
});

test('documents come back as they went in', async () => {
  const document = {
    _id: new ObjectId(),
    long: Long.fromString('9007199254740993'),
    decimal: Decimal128.fromString('0.10'),
    date: new Date(0),
    bytes: new Binary(Buffer.from([1, 2, 3])),
    nested: { list: [1, 'two', { three: null }] },
    regex: /a.b/i,
  };
  await things.insertOne(document);
  const found = await things.findOne({ _id: document._id }, { promoteLongs: false });
  assert.equal(found.long.toString(), '9007199254740993');
  assert.equal(found.decimal.toString(), '0.10');
  assert.deepEqual(found.nested.list[1], 'two');
  assert.deepEqual(found.regex, /a.b/i);
  assert.deepEqual(found.date, new Date(0));
});

test('create, read, update, delete', async () => {
  const inserted = await things.insertMany([{ _id: 1, n: 1 }, { _id: 2, n: 2 }, { _id: 3, n: 3 }]);
  assert.equal(inserted.insertedCount, 3);
  assert.deepEqual(await things.find({ n: { $gte: 2 } }).sort({ n: -1 }).project({ _id: 1 }).toArray(), [{ _id: 3 }, { _id: 2 }]);
  const updated = await things.updateMany({ n: { $lt: 3 } }, { $inc: { n: 10 } });
  assert.equal(updated.modifiedCount, 2);
  const upserted = await things.updateOne({ _id: 9 }, { $setOnInsert: { fresh: true } }, { upsert: true });
  assert.equal(upserted.upsertedId, 9);
  assert.deepEqual(await things.findOneAndUpdate({ _id: 1 }, { $set: { x: 1 } }, { returnDocument: 'after' }), { _id: 1, n: 11, x: 1 });
  assert.deepEqual(await things.findOneAndReplace({ _id: 1 }, { y: 1 }), { _id: 1, n: 11, x: 1 });
  assert.equal((await things.deleteOne({ _id: 1 })).deletedCount, 1);
  assert.equal(await things.countDocuments(), 3);
  assert.equal(await things.estimatedDocumentCount(), 3);
  assert.deepEqual(await things.distinct('n'), [3, 12]);
});

test('errors have their codes', async () => {
  await things.insertOne({ _id: 1 });
  await assert.rejects(things.insertOne({ _id: 1 }), (e) => e instanceof MongoServerError && e.code === 11000 && e.keyPattern._id === 1);
  await assert.rejects(things.insertMany([{ _id: 2 }, { _id: 1 }, { _id: 3 }]), (e) => e instanceof MongoBulkWriteError && e.result.insertedCount === 1);
  await assert.rejects(things.find({ $nope: 1 }).toArray(), { code: 2, codeName: 'BadValue' });
  await assert.rejects(db.command({ nope: 1 }), { code: 59, codeName: 'CommandNotFound' });
  await assert.rejects(things.aggregate([{ $nope: 1 }]).toArray(), { code: 40324 });
});

test('cursors stream', async () => {
  await things.insertMany(Array.from({ length: 1000 }, (_, i) => ({ _id: i })));
  let sum = 0;
  for await (const document of things.find().batchSize(33)) sum += document._id;
  assert.equal(sum, 499500);
  const cursor = things.find().batchSize(10);
  await cursor.next();
  await cursor.close();
});

test('bulk writes', async () => {
  const result = await things.bulkWrite([
    { insertOne: { document: { _id: 1 } } },
    { updateOne: { filter: { _id: 1 }, update: { $set: { a: 1 } } } },
    { replaceOne: { filter: { _id: 2 }, replacement: { b: 1 }, upsert: true } },
    { deleteOne: { filter: { _id: 1 } } },
  ]);
  assert.deepEqual([result.insertedCount, result.modifiedCount, result.upsertedCount, result.deletedCount], [1, 1, 1, 1]);
  assert.deepEqual(await things.find().toArray(), [{ _id: 2, b: 1 }]);
});

test('aggregation', async () => {
  await things.insertMany([{ k: 'a', v: 1 }, { k: 'b', v: 2 }, { k: 'a', v: 3 }]);
  const sums = await things.aggregate([{ $group: { _id: '$k', sum: { $sum: '$v' } } }, { $sort: { _id: 1 } }]).toArray();
  assert.deepEqual(sums, [{ _id: 'a', sum: 4 }, { _id: 'b', sum: 2 }]);
});

test('indexes', async () => {
  await things.createIndex({ a: 1, b: -1 }, { unique: true, name: 'ab' });
  await things.insertOne({ a: 1, b: 1 });
  await assert.rejects(things.insertOne({ a: 1, b: 1 }), { code: 11000 });
  const listed = await things.listIndexes().toArray();
  assert.deepEqual(listed.map((i) => i.name), ['_id_', 'ab']);
  await things.dropIndex('ab');
  assert.equal(await things.indexExists('ab'), false);
});

test('explain', async () => {
  await things.createIndex({ a: 1 });
  await things.insertMany([{ a: 1 }, { a: 2 }]);
  const explained = await things.find({ a: 1 }).explain('executionStats');
  assert.equal(explained.executionStats.totalDocsExamined, 1);
});

test('sessions and retries', async () => {
  await client.withSession(async (session) => {
    await things.insertOne({ _id: 1 }, { session });
    assert.deepEqual(await things.findOne({ _id: 1 }, { session }), { _id: 1 });
  });
  await client.db('admin').command({
    configureFailPoint: 'failCommand',
    mode: { times: 1 },
    data: { failCommands: ['insert'], closeConnection: true },
  });
  await things.insertOne({ _id: 2 });
  assert.equal(await things.countDocuments(), 2);
});

test('write concerns', async () => {
  for (const writeConcern of [{ w: 0 }, { w: 1 }, { w: 'majority' }, { w: 1, journal: true }]) {
    const result = await things.insertOne({ concern: JSON.stringify(writeConcern) }, { writeConcern });
    assert.equal(result.acknowledged, writeConcern.w !== 0);
  }
  // The unacknowledged one went its own way: ask until it is there.
  for (let i = 0; i < 100 && (await things.countDocuments()) < 4; i++) await new Promise((r) => setTimeout(r, 20));
  assert.equal(await things.countDocuments(), 4);
});

test('compression', async () => {
  const zlib = new MongoClient(server.uri, { compressors: ['zlib'] });
  await zlib.db('node').collection('things').insertMany(Array.from({ length: 100 }, (_, i) => ({ _id: i, text: 'again '.repeat(100) })));
  assert.equal(await zlib.db('node').collection('things').countDocuments(), 100);
  await zlib.close();
});

test('a hundred requests at once', async () => {
  await Promise.all(Array.from({ length: 100 }, (_, i) => things.insertOne({ _id: i })));
  const found = await Promise.all(Array.from({ length: 100 }, (_, i) => things.findOne({ _id: i })));
  assert.ok(found.every((d, i) => d._id === i));
});

test('collections', async () => {
  await db.createCollection('one');
  assert.deepEqual((await db.listCollections().toArray()).map((c) => c.name), ['one']);
  await db.collection('one').rename('two');
  assert.deepEqual((await db.listCollections({}, { nameOnly: true }).toArray()).map((c) => c.name), ['two']);
  assert.equal(await db.dropCollection('two'), true);
  const { databases } = await db.admin().listDatabases();
  assert.ok(Array.isArray(databases));
  assert.ok((await db.stats()).ok);
});

test('a capped collection is followed', async () => {
  const log = await db.createCollection('log', { capped: true, size: 4096, max: 3 });
  assert.equal(await log.isCapped(), true);
  await log.insertOne({ _id: 0 });
  const seen = [];
  const cursor = log.find({}, { tailable: true, awaitData: true, maxAwaitTimeMS: 10_000 });
  const following = (async () => {
    for await (const d of cursor) {
      seen.push(d._id);
      if (d._id === 5) break;
    }
  })();
  for (let i = 1; i <= 5; i++) {
    while (seen.length < i) await new Promise((r) => setTimeout(r, 10));
    await log.insertOne({ _id: i });
  }
  await following;
  assert.deepEqual(seen, [0, 1, 2, 3, 4, 5]);
  assert.deepEqual((await log.find().toArray()).map((d) => d._id), [3, 4, 5]);
});

test('withTransaction over two databases, alone and against another', async () => {
  const others = client.db('node_other').collection('accounts');
  await others.drop();
  await things.insertOne({ _id: 'a', n: 100 });
  await others.insertOne({ _id: 'b', n: 0 });
  const transfer = () =>
    client.withSession((session) =>
      session.withTransaction(async () => {
        const { n } = await things.findOne({ _id: 'a' }, { session });
        await things.updateOne({ _id: 'a' }, { $set: { n: n - 1 } }, { session });
        await others.updateOne({ _id: 'b' }, { $inc: { n: 1 } }, { session });
      }),
    );
  await Promise.all(Array.from({ length: 8 }, transfer));
  assert.deepEqual([(await things.findOne({ _id: 'a' })).n, (await others.findOne({ _id: 'b' })).n], [92, 8]);
  const failed = client.withSession((session) =>
    session.withTransaction(async () => {
      await things.insertOne({ _id: 'never' }, { session });
      throw new Error('mine');
    }),
  );
  await assert.rejects(failed, { message: 'mine' });
  assert.equal(await things.countDocuments({ _id: 'never' }), 0);
});

test('a change stream shows a transaction at its commit, and is resumed', async () => {
  await db.createCollection('things');
  const stream = things.watch([], { fullDocument: 'updateLookup' });
  await stream.tryNext();
  await client.withSession((session) =>
    session.withTransaction(async () => {
      await things.insertOne({ _id: 1 }, { session });
      await things.updateOne({ _id: 1 }, { $set: { a: 1 } }, { session });
    }),
  );
  const seen = [await stream.next(), await stream.next()];
  assert.deepEqual(seen.map((e) => e.operationType), ['insert', 'update']);
  assert.deepEqual(seen[1].fullDocument, { _id: 1, a: 1 });
  assert.ok(seen[0].clusterTime.equals(seen[1].clusterTime));
  await stream.close();
  const resumed = things.watch([], { resumeAfter: seen[0]._id });
  assert.equal((await resumed.next()).operationType, 'update');
  await resumed.close();
});
