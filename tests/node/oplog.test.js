// A tailer of the oplog from npm (mongo-oplog, on the driver of its time), as an application runs it.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, before, test } from 'node:test';
import { createInterface } from 'node:readline';
import { MongoClient } from 'mongodb';
import { startServer } from './harness.js';

let server, client;
const children = [];
before(async () => {
  server = await startServer();
  client = await new MongoClient(server.uri).connect();
});
after(async () => {
  children.forEach((child) => child.kill('SIGKILL'));
  await client?.close();
  await server?.stop();
});

// Follows shop.things in a process of its own: `next` gives its lines, in order.
async function follow(...since) {
  const program = new URL('tailer.js', import.meta.url).pathname;
  const child = spawn(process.execPath, [program, `${server.uri}local`, 'shop.things', ...since], { stdio: ['ignore', 'pipe', 'inherit'] });
  children.push(child);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => JSON.parse((await lines.next()).value);
  assert.deepEqual(await next(), { kind: 'ready' });
  return { next, kill: () => child.kill('SIGKILL') };
}

test('a tailer sees each write once and in order, and goes on where it ended', { timeout: 60_000 }, async () => {
  const things = client.db('shop').collection('things');
  await things.insertOne({ _id: 'before' });
  const first = await follow();
  await things.insertOne({ _id: 1, a: 1 });
  await things.updateOne({ _id: 1 }, { $set: { a: 2 } });
  await client.db('shop').collection('others').insertOne({ _id: 'of no account' });
  await things.deleteOne({ _id: 1 });
  const seen = [await first.next(), await first.next(), await first.next()];
  assert.deepEqual(seen.map(({ kind, o }) => [kind, o]), [
    ['insert', { _id: 1, a: 1 }],
    ['update', { $v: 2, diff: { u: { a: 2 } } }],
    ['delete', { _id: 1 }],
  ]);
  // By now it waits; the write wakes it.
  await new Promise((r) => setTimeout(r, 1500));
  await things.insertOne({ _id: 2 });
  const last = await first.next();
  assert.deepEqual(last.o, { _id: 2 });
  first.kill();
  await things.insertOne({ _id: 3 });
  const second = await follow(last.ts);
  await things.insertOne({ _id: 4 });
  assert.deepEqual([(await second.next()).o, (await second.next()).o], [{ _id: 3 }, { _id: 4 }]);
});
