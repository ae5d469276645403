// A first query through the package `pandodb` and the driver; says how long the server took to be ready.
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const { MongoClient } = require('mongodb');
const { start } = require('pandodb');

(async () => {
  const times = [];
  for (let round = 0; round < 5; round++) {
    const began = performance.now();
    const server = await start();
    times.push(performance.now() - began);
    const client = new MongoClient(server.uri);
    const things = client.db('shop').collection('things');
    await things.insertOne({ _id: 1, name: 'oak' });
    assert.deepStrictEqual(await things.findOne({ name: 'oak' }), { _id: 1, name: 'oak' });
    await client.close();
    await server.stop();
    assert.throws(() => process.kill(server.pid, 0));
  }
  await assert.rejects(start({ args: ['--no-such-option'] }), /did not start/);
  console.log(`first query answered; ready in ${Math.min(...times).toFixed(0)} to ${Math.max(...times).toFixed(0)} ms`);
})().catch((error) => { console.error(error); process.exit(1); });
