"""The kinds of comparison of scripts/differential.py. A kind is a context that has servers, and a `round` that takes a random generator.

A round makes its collections anew, so that its seed replays it. What has no one answer (which of equal documents comes first) is asked
for with a total order, or compared as a set.
"""

import datetime
from itertools import count

import bson
from bson import SON
from differential_language import WORDS, Language
from harness import Server
from pymongo.errors import BulkWriteError, OperationFailure
from sharded_cluster import ShardedCluster

QUESTIONS = 60
CASELESS = {"locale": "en", "strength": 2}


def outcome(run, ordered=True):
    """Documents as their bytes, or the code of the refusal."""
    try:
        found = [bson.encode(d) if isinstance(d, dict) else bson.encode({"": d}) for d in run()]
    except BulkWriteError as e:
        return e.details["writeErrors"][0]["code"]
    except OperationFailure as e:
        return e.code
    return found if ordered else sorted(found)


def shown(found, other):
    """What the other has not, at its place."""
    if isinstance(found, int) or isinstance(other, int):
        return found if isinstance(found, int) else f"{len(found)} documents"
    apart = [(n, bson.decode(d)) for n, d in enumerate(found) if n >= len(other) or other[n] != d]
    return f"{len(found)} documents, of them {len(apart)} otherwise: {apart[:3]}"


class Kind:
    OPTIONS = ()

    def __init__(self, path):
        self.server = Server(path / "data", "--cache", "64MB", "--quiet", *self.OPTIONS)
        self.compared = self.refused = 0

    def __enter__(self):
        self.server.start()
        self.client = self.server.client()
        self.db = self.client.differential
        return self

    def __exit__(self, *_):
        self.client.close()
        self.server.kill()

    def agree(self, question, want, found):
        assert want == found, f"{question}\nwanted: {shown(want, found)}\nfound:  {shown(found, want)}"
        self.compared += 1
        self.refused += isinstance(want, int)

    def fill(self, names, language, many=60, options=None):
        """The same documents in each of the collections."""
        documents = [language.document(i) for i in range(many)]
        language.r.shuffle(documents)
        for name in names:
            self.db.drop_collection(name)
            if options:
                self.db.create_collection(name, **options)
            self.db[name].insert_many(documents)
        return documents


class Indexes(Kind):
    """A query by any index against a scan: finds, sorts, counts, distinct values."""

    COLLATION = None
    SETS = [
        [("a", {})], [("b", {})], [("c", {})], [("d.x", {})], [("e.y", {})], [("s", {})], [("d", {})], [("e.x", {"sparse": True})], [("a", {"unique": False, "sparse": True})],
        [(SON(b=1, a=-1), {})], [(SON([("e.x", 1), ("e.y", -1)]), {})], [(SON([("d.x", 1), ("c", 1), ("b", 1)]), {})], [(SON(s=-1, b=1), {}), ("b", {})],
        [("b", {"partialFilterExpression": {"s": {"$gt": "a"}}})], [("a", {"partialFilterExpression": {"b": {"$gte": 2}}})], [("s", {"partialFilterExpression": {"a": {"$exists": True}}})],
        [("d.y", {"partialFilterExpression": {"d.x": {"$type": "number"}}})], [("b", {"partialFilterExpression": {"$or": [{"a": 1}, {"s": {"$lte": "b"}}]}})],
        [("$**", {})], [("d.$**", {})], [(SON([("b", 1), ("e.$**", 1)]), {})], [(SON(a="hashed"), {})], [(SON([("b", 1), ("d.x", "hashed")]), {})],
        [("a", {}), ("b", {}), ("c", {}), ("e.y", {}), ("s", {})],
    ]

    def round(self, r):
        language = Language(r)
        sets = r.sample(self.SETS, 4)
        sets += [[(r.choice(["a", "b", "c", "d.x", "e.y", "s"]), {"partialFilterExpression": language.partial()})] for _ in range(2)]
        names = ["scan", *(f"i{n}" for n in range(len(sets)))]
        collation = self.COLLATION and r.choice(self.COLLATION)
        self.fill(names, language, options={"collation": collation} if collation and r.random() < 0.5 else None)
        for name, indexes in zip(names[1:], sets, strict=True):
            for key, options in indexes:
                keys = list(key.items()) if isinstance(key, dict) else [(key, 1)]
                # Some kinds of index know no collation, and follow a collection's only where they are told to be simple.
                special = any(v == "hashed" for _, v in keys)
                told = {"collation": {"locale": "simple"} if special else collation} if collation else {}
                # A document that the index cannot have, for its arrays, is in none of the collections.
                while (refusal := outcome(lambda c=self.db[name], k=keys, o=options, t=told: [c.create_index(k, **o, **t)])) in (171, 16766):
                    self.drop_arrays(names, keys)
                assert not isinstance(refusal, int), (keys, options, refusal)
        for _ in range(QUESTIONS):
            self.ask(r, language, list(zip(names[1:], sets, strict=True)), {"collation": collation} if collation else {})

    def drop_arrays(self, names, keys):
        heads = [k.split(".")[0] for k, _ in keys]
        for name in names:
            for path in [*heads[1:], *(k for k, way in keys if way == "hashed"), *(k for k, _ in keys[1:])]:
                self.db[name].delete_many({path: {"$type": "array"}})

    def ask(self, r, language, sets, more):
        query = language.filter()
        how = r.choice(["find", "find", "sort", "sort", "count", "distinct", "group"])
        path, way = r.choice(["a", "b", "d.x", "e.y", "s"]), r.choice([1, -1])
        limit, skip = r.choice([0, 1, 5]), r.choice([0, 0, 3])
        projection = r.choice([None, {"_id": 1}, {"b": 1, "s": 1}, {"b": 1, "_id": 0}, language.projection()])
        ordered = how == "sort"

        def run(name):
            coll = self.db[name]
            if how == "count":
                return [coll.count_documents(query, **more)]
            if how == "distinct":
                # Of values that are equal any may come.
                return [len(coll.distinct(path, query, **more))]
            if how == "group":
                return list(coll.aggregate([{"$match": query}, {"$group": {"_id": {"$ifNull": ["$b", -1]}, "n": {"$sum": 1}}}], **more))
            cursor = coll.find(query, projection, **more)
            return cursor.sort([(path, way), ("_id", 1)]).skip(skip).limit(limit) if ordered else cursor

        want = outcome(lambda: run("scan"), ordered)
        for name, indexes in sets:
            self.agree((how, query, (path, way, skip, limit, projection), indexes, more), want, outcome(lambda name=name: run(name), ordered))


class Collations(Indexes):
    """The same under collations, of the command, the indexes and at times the collection."""

    COLLATION = [
        {"locale": "en", "strength": 1}, {"locale": "en", "strength": 2}, {"locale": "de"}, {"locale": "en", "numericOrdering": True}, {"locale": "fr", "backwards": True},
        {"locale": "en", "caseLevel": True, "strength": 1}, {"locale": "en", "alternate": "shifted"}, {"locale": "sv", "caseFirst": "upper"},
    ]
    SETS = [s for s in Indexes.SETS if not any(isinstance(key, str) and key.endswith("$**") or isinstance(key, dict) and any("$**" in k or v == "hashed" for k, v in key.items()) for key, _ in s)]


class Stages(Kind):
    """A pipeline whole against its stages one by one, each over what the one before gave."""

    def round(self, r):
        language = Language(r)
        self.fill(["t", "other"], language)
        for field in r.sample(["a", "b", "d.x", "e.y", "s"], 3):
            self.db.t.create_index(field)
            self.db.other.create_index(field)
        for _ in range(QUESTIONS):
            pipeline = language.pipeline()
            whole = outcome(lambda p=pipeline: self.db.t.aggregate(p))
            parts = outcome(lambda p=pipeline: self.by_stages(p))
            if isinstance(parts, int) and not isinstance(whole, int):
                # Put in a better order, the whole need not compute what would fail.
                self.refused += 1
                continue
            self.agree(pipeline, whole, parts)

    def by_stages(self, pipeline):
        documents = list(self.db.t.find().hint([("$natural", 1)]))
        for stage in pipeline:
            documents = list(self.db.aggregate([{"$documents": [{"$literal": d} for d in documents]}, stage]))
        return documents


def apply_delta(document, change):
    """What an update's change says to do with the document before it."""
    for cut in change.get("truncatedArrays", []):
        at(document, cut["field"].split("."))[cut["newSize"]:] = []
    for path in change["removedFields"]:
        *way, last = path.split(".")
        at(document, way).pop(last)
    for path, value in change["updatedFields"].items():
        *way, last = path.split(".")
        holder = at(document, way)
        if isinstance(holder, list):
            holder += [None] * (int(last) + 1 - len(holder))
            holder[int(last)] = value
        else:
            holder[last] = value
    return document


def at(value, names):
    for name in names:
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


def without_order(value):
    """An update's new fields may come in another order than its change lists them in."""
    if isinstance(value, dict):
        return {k: without_order(value[k]) for k in sorted(value)}
    return [without_order(v) for v in value] if isinstance(value, list) else value


class Deltas(Kind):
    """Documents after random updates against their copies that follow the change stream."""

    def round(self, r):
        language = Language(r)
        self.fill(["t"], language, 20)
        copies = {d["_id"]: d for d in self.db.t.find()}
        with self.db.t.watch(max_await_time_ms=2000) as stream:
            for _ in range(QUESTIONS):
                update, query = language.update(), {"_id": r.randrange(20)}
                try:
                    if isinstance(update, dict) and not next(iter(update), "").startswith("$"):
                        done = self.db.t.replace_one(query, update)
                    else:
                        done = self.db.t.update_one(query, update)
                except OperationFailure:
                    self.refused += 1
                    continue
                if not done.modified_count:
                    continue
                self.follow(stream, copies, query["_id"], update)
        for found in self.db.t.find():
            self.agree("at the end", [bson.encode(without_order(found))], [bson.encode(without_order(copies[found["_id"]]))])

    def follow(self, stream, copies, _id, update):
        event = stream.next()
        assert event["documentKey"]["_id"] == _id, (update, event)
        before = bson.decode(bson.encode(copies[_id]))
        if event["operationType"] == "replace":
            copies[_id] = event["fullDocument"]
        else:
            copies[_id] = apply_delta(copies[_id], event["updateDescription"])
        found = self.db.t.find_one({"_id": _id})
        self.agree((before, update, event.get("updateDescription")), [bson.encode(without_order(found))], [bson.encode(without_order(copies[_id]))])


class Router(Kind):
    """A collection over two shards, by its router, against one on a single node."""

    KEYS = [{"_id": 1}, {"_id": "hashed"}, {"b": 1, "_id": 1}, {"b": "hashed"}]

    def __init__(self, path):
        super().__init__(path)
        self.cluster = ShardedCluster(path, options=("--quiet",))
        self.numbers = count()

    def __enter__(self):
        super().__enter__()
        self.cluster.__enter__()
        self.through = self.cluster.client()
        self.through.admin.command("balancerStop")
        return self

    def __exit__(self, *_):
        self.through.close()
        self.cluster.__exit__()
        super().__exit__()

    def round(self, r):
        language = Language(r)
        self.far = self.through[f"differential{next(self.numbers)}"]
        self.through.admin.command("enableSharding", self.far.name, primaryShard="s0")
        for name in ["t", "other"]:
            self.shard(r, name)
        documents = self.fill(["t", "other"], language)
        for name in ["t", "other"]:
            self.far[name].insert_many(documents)
        for field in r.sample(["a", "b", "d.x", "e.y", "s"], 2):
            self.db.t.create_index(field)
            self.far.t.create_index(field)
        for _ in range(QUESTIONS):
            self.ask(r, language)
        self.through.drop_database(self.far.name)

    def shard(self, r, name):
        key = r.choice(self.KEYS)
        full = f"{self.far.name}.{name}"
        self.through.admin.command("shardCollection", full, key=key)
        if "hashed" not in key.values():
            first = next(iter(key))
            self.through.admin.command("split", full, middle={k: 3 if k == "b" else 30 if first == "_id" else bson.MinKey() for k in key})
            self.through.admin.command("moveChunk", full, find={k: 100 for k in key}, to="s1")

    def ask(self, r, language):
        how = r.choice(["find", "sort", "count", "pipeline", "pipeline", "update", "delete"])
        question = language.pipeline() if how == "pipeline" else language.filter()
        update, path, limit = language.update(), r.choice(["a", "b", "d.x", "e.y", "s"]), r.choice([0, 2, 7])

        def run(db):
            if how == "pipeline":
                return db.t.aggregate(question)
            if how == "find":
                return db.t.find(question)
            if how == "sort":
                return db.t.find(question).sort([(path, -1), ("_id", 1)]).skip(limit // 2).limit(limit)
            if how == "count":
                return [db.t.count_documents(question)]
            return self.write(db, how, question, update)

        # An index that the key has made, and the single node has not, may cover a projection: fields come in its order then, as in MongoDB.
        want, found = (outcome(lambda db=db: (without_order(d) for d in run(db)), how in ("pipeline", "sort")) for db in (self.db, self.far))
        self.agree((how, question, update if how == "update" else None, path, limit), want, found)

    def write(self, db, how, query, update):
        """What a write leaves; one that errs may have changed some, so each side is made the other's again."""
        one = {"$and": [query, {"_id": {"$gte": 20, "$lt": 30}}]}
        if how == "delete":
            return [db.t.delete_many({"$and": [query, {"_id": {"$gte": 55}}]}).deleted_count, *db.t.find().sort("_id")]
        if isinstance(update, dict) and (not next(iter(update), "").startswith("$") or touches(update, "b")) or isinstance(update, list):
            return []
        for _id in sorted(d["_id"] for d in db.t.find(one, {"_id": 1})):
            db.t.update_one({"_id": _id}, update)
        return db.t.find().sort("_id")


class RouterShapes(Router):
    """Shapes, texts and measurements over two shards, against one node."""

    def round(self, r):
        language = Language(r)
        self.far = self.through[f"differential{next(self.numbers)}"]
        self.through.admin.command("enableSharding", self.far.name, primaryShard="s0")
        self.shard(r, "t")
        begin = datetime.datetime(2024, 1, 1)
        documents = [
            {"_id": i, "loc": language.shape(), "flat": language.point(), "txt": language.text(), "b": r.randint(0, 5)} for i in range(60)
        ]
        points = [{"_id": i, "t": begin + datetime.timedelta(seconds=r.randint(0, 100_000)), "m": r.randint(0, 5), "v": r.randint(0, 9)} for i in range(100)]
        options = {"timeField": "t", "metaField": "m"}
        self.through.admin.command("shardCollection", f"{self.far.name}.series", key={"m": 1}, timeseries=options)
        buckets = f"{self.far.name}.system.buckets.series"
        self.through.admin.command("split", buckets, middle={"meta": 3})
        self.through.admin.command("moveChunk", buckets, find={"meta": 4}, to="s1")
        self.db.drop_collection("series")
        self.db.create_collection("series", timeseries=options)
        self.db.drop_collection("t")
        for db in (self.db, self.far):
            db.t.insert_many(documents)
            db.series.insert_many(points)
            db.t.create_index([("loc", "2dsphere")])
            db.t.create_index([("txt", "text")])
        for _ in range(QUESTIONS):
            self.ask(r, language)
        self.through.drop_database(self.far.name)

    def ask(self, r, language):
        score, b = {"$meta": "textScore"}, r.randint(0, 5)
        near = {"near": {"type": "Point", "coordinates": language.point()}, "distanceField": "far", "key": "loc", "maxDistance": r.choice([1e5, 1e6, 1e7])}
        name, pipeline = r.choice([
            lambda: ("t", [{"$match": {"loc": language.around()}}, {"$sort": {"_id": 1}}]),
            lambda: ("t", [{"$geoNear": near}, {"$sort": {"far": 1, "_id": 1}}, {"$limit": r.randint(1, 20)}]),
            lambda: ("t", [{"$geoNear": {**near, "query": {"b": b}}}, {"$group": {"_id": "$b", "n": {"$sum": 1}}}]),
            lambda: ("t", [{"$match": {"$text": {"$search": " ".join(r.choice(WORDS) for _ in range(2))}}}, {"$project": {"s": score}}, {"$sort": {"s": -1, "_id": 1}}, {"$limit": 9}]),
            lambda: ("t", [{"$match": {"$text": {"$search": r.choice(WORDS)}, "b": {"$gte": b}}}, {"$count": "n"}]),
            lambda: ("series", [{"$match": {"m": b}}, {"$sort": {"t": 1, "_id": 1}}]), lambda: ("series", [{"$match": {"v": {"$gte": b}}}, {"$sort": {"_id": 1}}, {"$limit": 20}]),
            lambda: ("series", [{"$group": {"_id": r.choice(["$m", "$v", None]), "n": {"$sum": "$v"}, "last": {"$max": "$t"}}}, {"$sort": {"_id": 1}}]),
        ])()
        want, found = (outcome(lambda db=db: (without_order(d) for d in db[name].aggregate(pipeline))) for db in (self.db, self.far))
        self.agree(pipeline, want, found)


def touches(update, field):
    return any(k == field or v == field for part in update.values() for k, v in part.items())


class Geo(Kind):
    """Shapes by an index against a scan; and searches for the nearest against the content of the same
    circle."""

    def round(self, r):
        language = Language(r)
        documents = [{"_id": i, "loc": language.shape(), "legacy": language.point(), "b": r.randint(0, 3), "s": r.choice(["a", "A", "á", "b"])} for i in range(60)]
        documents += [{"_id": 60, "b": 1}, {"_id": 61, "loc": None}]
        indexes = {"scan": [], "one": [("loc", "2dsphere")], "two": [("b", 1), ("loc", "2dsphere")], "after": [("loc", "2dsphere"), ("b", -1)], "flat": [("legacy", "2d")], "flat2": [("legacy", "2d"), ("b", 1)]}
        for name, keys in indexes.items():
            self.db.drop_collection(name)
            self.db[name].insert_many(documents)
            if keys:
                self.db[name].create_index(keys)
        self.db.drop_collection("strings")
        self.db.strings.insert_many(documents)
        self.db.strings.create_index(r.choice([[("s", 1), ("loc", "2dsphere")], [("loc", "2dsphere"), ("s", 1)]]), collation=CASELESS)
        for _ in range(QUESTIONS):
            self.ask(r, language, list(indexes)[1:])

    def ask(self, r, language, names):
        near = language.point()
        query = r.choice([
            lambda: {"loc": language.around()}, lambda: {"loc": language.around(), "b": r.randint(0, 3)}, lambda: {"$or": [{"loc": language.around()}, {"loc": language.around()}]},
            lambda: {"loc": {"$not": language.around()}}, lambda: {"legacy": {"$geoWithin": {"$center": [language.point(), r.choice([0.5, 3, 50])]}}},
            lambda: {"legacy": {"$geoWithin": {"$box": [language.point(), language.point()]}}}, lambda: {"legacy": {"$geoWithin": {"$polygon": language.ring()}}},
            lambda: {"legacy": {"$geoWithin": {"$centerSphere": [language.point(), r.choice([0.01, 0.3])]}}},
        ])()
        want = outcome(lambda: self.db.scan.find(query), False)
        for name in names:
            self.agree((query, name), want, outcome(lambda n=name: self.db[n].find(query), False))
        strings = {"loc": language.around(), "s": r.choice(["A", "b", {"$gte": "A"}, {"$in": ["á", "B"]}, {"$ne": "a"}])}
        for more in ({}, {"collation": CASELESS}, {"collation": {"locale": "en", "strength": 1}}):
            self.agree((strings, more), *(outcome(lambda c=c, m=more: c.find(strings, **m), False) for c in (self.db.scan, self.db.strings)))
        radius = r.choice([0.005, 0.05, 0.5, 2])
        within = {d["_id"] for d in self.db.scan.find({"legacy": {"$geoWithin": {"$centerSphere": [near, radius]}}})}
        found = list(self.db.flat.aggregate([{"$geoNear": {"near": near, "distanceField": "far", "key": "legacy", "spherical": True, "maxDistance": radius}}]))
        self.agree((near, radius), [bson.encode({"": sorted(within)})], [bson.encode({"": sorted(d["_id"] for d in found)})])
        assert [d["far"] for d in found] == sorted(d["far"] for d in found), (near, radius)
        query = {"loc": {"$near": {"$geometry": {"type": "Point", "coordinates": near}, "$maxDistance": radius * 6378100}}, "b": {"$lt": 3}}
        orders = [outcome(lambda n=n: self.db[n].find(query), False) for n in ("one", "two", "after")]
        self.agree(query, orders[0], orders[1])
        self.agree(query, orders[0], orders[2])


class Text(Kind):
    """Searches by differently built text indexes, and what they have to do with each other."""

    def round(self, r):
        language = Language(r)
        documents = [{"_id": i, "a": language.text(), "t": language.text(), "b": r.randint(0, 2), "l": [language.text()]} for i in range(60)]
        weights = {"a": r.randint(1, 5), "t": r.randint(1, 5), "l": 1}
        for name, keys in {"one": [], "before": [("b", 1)], "after": []}.items():
            self.db.drop_collection(name)
            self.db[name].insert_many(documents)
            end = [("b", 1)] if name == "after" else []
            self.db[name].create_index([*keys, ("a", "text"), ("t", "text"), ("l", "text"), *end], weights=weights, name="text")
        for _ in range(QUESTIONS):
            self.ask(r)

    def ids(self, search, name="one", more=None, **options):
        return sorted(d["_id"] for d in self.db[name].find({"$text": {"$search": search, **options}, **(more or {})}))

    def ask(self, r):
        words = [r.choice(WORDS) for _ in range(r.randint(1, 3))]
        search, b = " ".join(words), r.randint(0, 2)
        options = r.choice([{}, {}, {"$caseSensitive": True}, {"$diacriticSensitive": True}, {"$language": "none"}])

        def scored(name, **more):
            score = {"$meta": "textScore"}
            query = {"$text": {"$search": search, **options}, "b": b, **more}
            return self.db[name].find(query, {"score": score, "b": 1}).sort([("score", score), ("_id", 1)])

        want = outcome(lambda: scored("one"))
        for name in ("before", "after"):
            self.agree((search, options, b, name), want, outcome(lambda n=name: scored(n)))
        each = [set(self.ids(w, **options)) for w in words]
        self.same((search, "any"), set().union(*each), self.ids(search, **options))
        other = r.choice(["tea", "shop", "runner"])
        self.same((search, "but", other), set().union(*each) - set(self.ids(other, **options)), self.ids(f"{search} -{other}", **options))
        phrase = set(self.ids(f'"{search}"', **options))
        assert phrase <= set().union(*each) or len(words) == 1, (search, options)
        shards = self.ids(search, more={"b": {"$lt": 1}}, **options) + self.ids(search, more={"b": {"$gte": 1}}, **options)
        self.same((search, "in parts"), set(shards), self.ids(search, **options))

    def same(self, question, want, found):
        self.agree(question, [bson.encode({"": sorted(want)})], [bson.encode({"": sorted(found)})])


class TimeSeries(Kind):
    """Measurements in buckets against the same documents as they are."""

    def round(self, r):
        language = Language(r)
        begin = datetime.datetime(2024, 1, 1)
        documents = []
        for i in range(200):
            d = {"_id": i, "t": begin + datetime.timedelta(seconds=r.choice([r.randint(0, 60), r.randint(0, 100_000)])), "b": r.randint(0, 5)}
            if r.random() < 0.9:
                d["m"] = r.choice([1, 2, "x", {"k": r.randint(0, 2)}, None])
            for name in ("a", "s", "d"):
                if r.random() < 0.7:
                    d[name] = {"a": language.scalar, "s": lambda: r.choice(["a", "B", "ab"]), "d": lambda: {"x": r.randint(0, 3), "y": r.randint(0, 3)}}[name]()
            documents.append(d)
        self.db.drop_collection("plain")
        self.db.drop_collection("series")
        self.db.create_collection("series", timeseries={"timeField": "t", "metaField": "m", "granularity": r.choice(["seconds", "minutes"])})
        for name in ("plain", "series"):
            for n in range(0, 200, 40):
                self.db[name].insert_many(documents[n:n + 40])
        for key in r.sample([[("m", 1)], [("m.k", 1), ("t", -1)], [("t", 1)], [("b", 1)], [("d.x", 1)]], 2):
            self.db.series.create_index(key)
        for _ in range(QUESTIONS):
            self.ask(r, language, begin)

    def ask(self, r, language, begin):
        time = begin + datetime.timedelta(seconds=r.choice([30, 60, 3600, r.randint(0, 100_000)]))
        query = r.choice([
            lambda: {"t": {r.choice(["$lt", "$lte", "$gt", "$gte", "$eq"]): time}}, lambda: {"m": r.choice([1, "x", None, {"k": 1}])}, lambda: {"m.k": r.randint(0, 2), "t": {"$gte": time}},
            lambda: {r.choice(["a", "b", "d.x", "s"]): language.test()}, lambda: language.filter(1), lambda: {"$or": [{"t": {"$lt": time}}, {"b": r.randint(0, 5)}]}, lambda: {},
        ])()
        group = {"$group": {"_id": r.choice(["$m", "$b", {"$dateTrunc": {"date": "$t", "unit": "hour"}}, None]), "n": {"$sum": 1}, "low": {"$min": "$b"}, "high": {"$max": "$b"}, "all": {"$sum": "$b"}, "first": {"$min": "$t"}, "last": {"$max": "$t"}}}
        pipeline = [{"$match": query}, *r.choice([
            lambda: [{"$sort": {"t": r.choice([1, -1]), "_id": 1}}, {"$limit": r.randint(1, 50)}], lambda: [group, {"$sort": {"_id": 1}}], lambda: [{"$project": {"b": 1, "m": 1}}],
            lambda: [{"$addFields": {"m": "$b"}}, {"$match": {"m": r.randint(0, 5)}}], lambda: [{"$count": "n"}], lambda: [{"$sort": {"m": 1, "t": -1, "_id": 1}}, {"$skip": 3}], lambda: [],
            lambda: [{"$setWindowFields": {"partitionBy": "$b", "sortBy": {"t": 1}, "output": {"w": {"$sum": "$b", "window": {"range": [-1, 0], "unit": "hour"}}}}}],
            lambda: [{"$unset": r.choice(["m", "a", "d.x"])}], lambda: [{"$group": {"_id": "$m", "f": {"$top": {"sortBy": {"t": 1, "_id": 1}, "output": "$_id"}}}}, {"$sort": {"_id": 1}}],
        ])()]
        want, found = (outcome(lambda n=n: (without_order(d) for d in self.db[n].aggregate(pipeline)), False) for n in ("plain", "series"))
        self.agree(pipeline, want, found)
        if r.random() < 0.05:
            gone = {"m": r.choice([1, 2, "x"]), **({"b": r.randint(0, 5)} if r.random() < 0.5 else {})}
            counts = [self.db[n].delete_many(gone).deleted_count for n in ("plain", "series")]
            assert counts[0] == counts[1], (gone, counts)


class Transactions(Kind):
    """Reads and writes in a transaction against the same without one, until it is committed or aborted."""

    def round(self, r):
        language = Language(r)
        self.fill(["plain", "t"], language, 40)
        for field in r.sample(["a", "b", "c", "d.x", "e.y", "s"], 3):
            self.db.plain.create_index(field)
            self.db.t.create_index(field)
        for _ in range(QUESTIONS // 6):
            self.transaction(r, language)

    def written(self):
        """The collection that transactions write, and whose client opens them."""
        return self.db.t

    def transaction(self, r, language):
        t = self.written()
        before = outcome(lambda: t.find().sort("_id"))
        with t.database.client.start_session() as session:
            session.start_transaction()
            for _ in range(r.randint(1, 8)):
                how, query, update, _id = r.choice(["read", "sort", "update", "update", "insert", "delete", "count"]), language.filter(), language.update(), r.randrange(60)
                new = language.document(_id)

                def run(coll, how=how, query=query, update=update, _id=_id, new=new, **more):
                    return self.step(coll, how, query, update, _id, new, **more)

                want = outcome(lambda: run(self.db.plain))
                found = outcome(lambda: run(t, session=session))
                self.agree((how, query, update, _id, new), want, found)
                if isinstance(want, int):
                    # A refusal ends the transaction.
                    break
            else:
                if r.random() < 0.6:
                    session.commit_transaction()
                    return self.agree("committed", outcome(lambda: self.db.plain.find().sort("_id")), outcome(lambda: t.find().sort("_id")))
            session.abort_transaction()
        self.agree("aborted", before, outcome(lambda: t.find().sort("_id")))
        self.db.plain.delete_many({})
        documents = list(t.find())
        if documents:
            self.db.plain.insert_many(documents)

    def step(self, coll, how, query, update, _id, new, **more):
        if how == "count":
            return [coll.count_documents(query, **more)]
        if how == "insert":
            coll.insert_one(new, **more)
        elif how == "delete":
            return [coll.delete_one({"_id": _id}, **more).deleted_count]
        elif how == "update":
            replaces = isinstance(update, dict) and not next(iter(update), "").startswith("$")
            done = (coll.replace_one if replaces else coll.update_one)({"_id": _id}, update, **more)
            return [done.matched_count, done.modified_count]
        found = coll.find(query, **more)
        return list(found.sort([("b", 1), ("s", -1), ("_id", 1)]).limit(7)) if how == "sort" else sorted(found, key=lambda d: d["_id"])


class RouterTransactions(Router):
    """Transactions over two shards, through their router, against the same without one on a single node."""

    # Of another key than `_id` the shards may each have a document of one `_id`.
    KEYS = [{"_id": 1}, {"_id": "hashed"}]
    transaction, step = Transactions.transaction, Transactions.step

    def written(self):
        return self.far.t

    def round(self, r):
        language = Language(r)
        self.far = self.through[f"differential{next(self.numbers)}"]
        self.through.admin.command("enableSharding", self.far.name, primaryShard="s0")
        self.shard(r, "t")
        self.far.t.insert_many(self.fill(["plain"], language, 40))
        for field in r.sample(["a", "b", "c", "d.x", "e.y", "s"], 3):
            self.db.plain.create_index(field)
            self.far.t.create_index(field)
        for _ in range(QUESTIONS // 6):
            self.transaction(r, language)
        self.through.drop_database(self.far.name)


KINDS = {
    "indexes": Indexes, "collations": Collations, "stages": Stages, "deltas": Deltas, "router": Router,
    "router-shapes": RouterShapes, "router-transactions": RouterTransactions,
    "geo": Geo, "text": Text, "series": TimeSeries, "transactions": Transactions,
}
