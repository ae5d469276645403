// The Node drivers of old applications: 2.2, which speaks in OP_QUERY, and 3.7.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { startServer } from './harness.js';

const require = createRequire(import.meta.url);
const drivers = {
  2.2: { connect: async (uri) => ((db) => ({ db, close: () => db.close() }))(await require('mongodb2').MongoClient.connect(uri)) },
  3.7: {
    connect: async (uri) => {
      const client = await require('mongodb3').MongoClient.connect(uri, { useUnifiedTopology: true });
      return { db: client.db(), close: () => client.close() };
    },
  },
};

let server;
before(async () => {
  server = await startServer();
});
after(async () => {
  await server?.stop();
});

for (const [version, driver] of Object.entries(drivers)) {
  for (const options of ['', '?replicaSet=rs0']) {
    test(`Node driver ${version} ${options}`, async () => {
      const { db, close } = await driver.connect(`${server.uri}old${options}`);
      try {
        await db.dropDatabase();
        const things = db.collection('things');
        const all = Array.from({ length: 1000 }, (_, i) => ({ _id: i, n: i, g: i % 7 }));
        assert.equal((await things.insertMany(all)).insertedCount, 1000);
        const found = await things.find({ g: 3 }).sort({ n: -1 }).limit(2).toArray();
        assert.deepEqual(found.map((d) => d._id), [997, 990]);
        assert.equal((await things.find({}).batchSize(100).toArray()).length, 1000);
        assert.equal((await things.updateMany({ g: 1 }, { $set: { z: 1 } })).modifiedCount, 143);
        assert.equal((await things.updateOne({ _id: 'new' }, { $set: { z: 1 } }, { upsert: true })).upsertedCount, 1);
        assert.equal((await things.deleteMany({ g: 2 })).deletedCount, 143);
        assert.equal((await things.findOneAndUpdate({ _id: 5 }, { $inc: { n: 1 } }, { returnOriginal: false })).value.n, 6);
        assert.equal(await things.createIndex({ g: 1, n: -1 }), 'g_1_n_-1');
        assert.deepEqual((await things.indexes()).map((i) => i.name), ['_id_', 'g_1_n_-1']);
        const groups = things.aggregate([{ $group: { _id: '$g', n: { $sum: 1 } } }], { cursor: { batchSize: 2 } });
        assert.equal((await groups.toArray()).length, 7);
        assert.equal(await things.count({ g: 3 }), 143);
        assert.equal((await things.find({ g: 3 }).explain()).queryPlanner.winningPlan.stage, 'FETCH');
        await things.insertOne({ _id: 'unacknowledged' }, { w: 0 });
        await assert.rejects(things.insertOne({ _id: 5 }), { code: 11000 });
        assert.equal((await things.findOne({ _id: 'unacknowledged' }))._id, 'unacknowledged');
      } finally {
        await close();
      }
    });
  }
}
