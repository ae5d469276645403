// A program that follows the oplog with mongo-oplog and prints each entry as a line of JSON; ended from outside, since its
// driver never ends by itself. Arguments: URI of `local`, namespace, and the `ts` (as JSON) to go on from.

import MongoOplog from 'mongo-oplog';
import mongodb from 'mongodb2';

const [uri, ns, since] = process.argv.slice(2);
const tailer = MongoOplog(uri, { ns, ...(since && { since: mongodb.Timestamp.fromString(since) }) });
const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
for (const kind of ['insert', 'update', 'delete']) tailer.on(kind, ({ o, ts }) => print({ kind, o, ts: ts.toString() }));
tailer.on('error', (error) => print({ kind: 'error', o: error.message }));
await tailer.tail();
print({ kind: 'ready' });
