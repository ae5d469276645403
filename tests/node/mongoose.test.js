// Mongoose, as an application uses it.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import mongoose from 'mongoose';
import { startServer } from './harness.js';

let server, Author, Book;
before(async () => {
  server = await startServer();
  await mongoose.connect(`${server.uri}library`);
  const author = new mongoose.Schema({ name: { type: String, required: true, unique: true }, born: Date }, { timestamps: true });
  const book = new mongoose.Schema({
    title: { type: String, index: true },
    author: { type: mongoose.Schema.Types.ObjectId, ref: 'Author' },
    pages: { type: Number, min: 1 },
    price: mongoose.Schema.Types.Decimal128,
    tags: [String],
    reviews: [{ by: String, stars: Number }],
  });
  book.index({ tags: 1, pages: -1 });
  Author = mongoose.model('Author', author);
  Book = mongoose.model('Book', book);
  await Author.init();
  await Book.init();
});
after(async () => {
  await mongoose.disconnect();
  await server?.stop();
});

test('models make their indexes', async () => {
  assert.deepEqual((await Author.listIndexes()).map((i) => i.name), ['_id_', 'name_1']);
  assert.deepEqual((await Book.listIndexes()).map((i) => i.name).sort(), ['_id_', 'tags_1_pages_-1', 'title_1']);
  await Book.syncIndexes();
});

test('documents live and change', async () => {
  const ann = await Author.create({ name: 'Ann', born: new Date('1970-01-01') });
  assert.ok(ann.createdAt instanceof Date);
  const book = await Book.create({ title: 'Trees', author: ann._id, pages: 100, price: '9.90', tags: ['green'] });
  book.tags.push('tall');
  book.reviews.push({ by: 'Bob', stars: 4 });
  book.pages += 1;
  await book.save();
  const found = await Book.findOne({ tags: 'tall' }).populate('author');
  assert.equal(found.author.name, 'Ann');
  assert.equal(found.pages, 101);
  assert.equal(found.price.toString(), '9.90');
  assert.equal(found.reviews[0].stars, 4);
  found.reviews.id(found.reviews[0]._id).stars = 5;
  await found.save();
  assert.equal((await Book.findById(found._id).lean()).reviews[0].stars, 5);
});

test('uniqueness', async () => {
  await Author.create({ name: 'Only' });
  await assert.rejects(Author.create({ name: 'Only' }), { code: 11000 });
});

test('a stale version is refused', async () => {
  const { _id } = await Book.create({ title: 'Versions', tags: ['a', 'b'] });
  const [one, two] = [await Book.findById(_id), await Book.findById(_id)];
  one.tags.shift();
  one.tags = [...one.tags];
  await one.save();
  two.tags.set(1, 'c');
  await assert.rejects(two.save(), { name: 'VersionError' });
});

test('queries and aggregation', async () => {
  await Book.deleteMany({});
  await Book.insertMany(Array.from({ length: 20 }, (_, i) => ({ title: `Book ${i}`, pages: i + 1, tags: [i % 2 ? 'odd' : 'even'] })));
  assert.equal(await Book.countDocuments({ tags: 'odd' }), 10);
  assert.deepEqual((await Book.find({ pages: { $gt: 15 } }).sort('-pages').limit(2).select('title -_id').lean()).map((b) => b.title), ['Book 19', 'Book 18']);
  const [odd] = await Book.aggregate([{ $match: { tags: 'odd' } }, { $group: { _id: null, pages: { $sum: '$pages' } } }]);
  assert.equal(odd.pages, 110);
  await Book.updateMany({ tags: 'odd' }, { $addToSet: { tags: 'strange' } });
  assert.equal((await Book.findOneAndUpdate({ title: 'Book 1' }, { pages: 7 }, { returnDocument: 'after' })).pages, 7);
  assert.deepEqual((await Book.distinct('tags')).sort(), ['even', 'odd', 'strange']);
  let seen = 0;
  for await (const _ of Book.find().cursor({ batchSize: 3 })) seen += 1;
  assert.equal(seen, 20);
  const result = await Book.bulkWrite([{ deleteOne: { filter: { title: 'Book 0' } } }, { insertOne: { document: { title: 'New' } } }]);
  assert.equal(result.deletedCount, 1);
});

test('connection.transaction and withTransaction', async () => {
  await Author.deleteMany({});
  await Book.deleteMany({});
  const bob = new Author({ name: 'Bob' });
  await mongoose.connection.transaction(async (session) => {
    await bob.save({ session });
    await Book.create([{ title: 'Both', author: bob._id, pages: 1 }], { session });
    assert.equal(await Author.countDocuments({}).session(session), 1);
    assert.equal(await Author.countDocuments({}), 0);
  });
  assert.equal((await Book.findOne({ title: 'Both' }).populate('author')).author.name, 'Bob');

  // What fails leaves nothing, in the database and in the document.
  const book = await Book.findOne({ title: 'Both' });
  const failed = mongoose.connection.transaction(async (session) => {
    book.pages = 2;
    await book.save({ session });
    await Author.create([{ name: 'Bob' }], { session });
  });
  await assert.rejects(failed, { code: 11000 });
  assert.equal((await Book.findById(book._id)).pages, 1);
  assert.ok(book.isModified('pages'));

  const session = await mongoose.startSession();
  await session.withTransaction(() => Book.updateOne({ title: 'Both' }, { $inc: { pages: 5 } }, { session }));
  await session.endSession();
  assert.equal((await Book.findById(book._id)).pages, 6);
});

test('a change stream on a model', async () => {
  const stream = Book.watch([{ $match: { operationType: 'insert' } }]);
  // `ready` tells that there is a stream, not that the server has opened it: its first resume token does.
  const opened = new Promise((resolve) => stream.on('ready', () => stream.driverChangeStream.once('resumeTokenChanged', resolve)));
  const seen = new Promise((resolve) => stream.once('change', resolve));
  await opened;
  await Book.create({ title: 'Watched' });
  assert.equal((await seen).fullDocument.title, 'Watched');
  await stream.close();
});
