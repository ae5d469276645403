// mongodb-memory-server, unmodified, with this server as its system binary: what many test suites start MongoDB with. It waits
// for lines of mongod's log ("Waiting for connections", "Transition to primary complete").

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { MongoClient } from 'mongodb';
import { MongoMemoryReplSet, MongoMemoryServer } from 'mongodb-memory-server-core';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..');
const place = mkdtempSync(path.join(tmpdir(), 'pando-as-mongod-'));
symlinkSync(process.env.PANDO_BIN ?? path.join(root, 'target/debug/pando'), path.join(place, 'mongod'));
const binary = { systemBinary: path.join(place, 'mongod'), version: '8.0.0' };
after(() => rmSync(place, { recursive: true, force: true }));

const login = { auth: { username: 'root', password: 'secret' }, authSource: 'admin' };
const auth = { enable: true, customRootName: 'root', customRootPwd: 'secret' };
const cases = {
  'a single server': [() => MongoMemoryServer.create({ binary }), {}],
  'a single server that asks for a login': [() => MongoMemoryServer.create({ binary, auth }), login],
  'a replica set of one': [() => MongoMemoryReplSet.create({ binary, replSet: { count: 1 } }), {}],
  'a replica set of three': [() => MongoMemoryReplSet.create({ binary, replSet: { count: 3 } }), {}],
};

for (const [name, [create, options]] of Object.entries(cases)) {
  test(`mongodb-memory-server: ${name}`, async () => {
    const server = await create();
    const client = new MongoClient(server.getUri(), options);
    try {
      const things = client.db('suite').collection('things');
      await things.insertOne({ _id: 1 });
      if (name.includes('replica set')) {
        await client.withSession((session) => session.withTransaction(() => things.insertOne({ _id: 2 }, { session })));
        assert.equal(await things.countDocuments(), 2);
      }
      assert.deepEqual(await things.findOne({ _id: 1 }), { _id: 1 });
    } finally {
      await client.close();
      await server.stop();
    }
  });
}
