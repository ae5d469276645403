"""Time-series collections: definition, inserts, queries, what may be changed, indexes, expiry, $out."""

import datetime
import random
import uuid

import pytest
from bson import Binary, Int64
from harness import until
from pymongo.errors import BulkWriteError, OperationFailure, WriteError

START = datetime.datetime(2025, 3, 1)


def at(seconds):
    return START + datetime.timedelta(seconds=seconds)


def series(db, name="m", meta="d", **options):
    spec = {"timeField": "t"} | ({"metaField": meta} if meta else {})
    db.command("create", name, timeseries=spec | options.pop("timeseries", {}), **options)
    return db[name]


def fails(code, f):
    with pytest.raises((OperationFailure, WriteError)) as e:
        f()
    assert e.value.code == code, e.value
    return e.value


def listed(db, name):
    return next(c for c in db.list_collections() if c["name"] == name)


def test_definition(db):
    series(db)
    shown = listed(db, "m")
    assert shown["type"] == "timeseries"
    assert shown["options"] == {
        "timeseries": {
            "timeField": "t",
            "metaField": "d",
            "granularity": "seconds",
            "bucketMaxSpanSeconds": 3600,
        }
    }
    assert listed(db, "system.buckets.m")["type"] == "collection"
    # The same again is no error, another is.
    series(db)
    fails(48, lambda: series(db, meta="other"))
    series(db, "r", timeseries={"bucketMaxSpanSeconds": 10, "bucketRoundingSeconds": 10})
    assert listed(db, "r")["options"]["timeseries"]["bucketRoundingSeconds"] == 10
    db.drop_collection("m")
    assert db.list_collection_names(filter={"name": {"$regex": "m$"}}) == []


@pytest.mark.parametrize(
    "spec, code",
    [
        ({}, 40414),
        ({"timeField": 1}, 14),
        ({"timeField": "a.b"}, 72),
        ({"timeField": "t", "metaField": "_id"}, 72),
        ({"timeField": "t", "metaField": "t"}, 72),
        ({"timeField": "t", "granularity": "days"}, 2),
        ({"timeField": "t", "bucketMaxSpanSeconds": 10}, 72),
        ({"timeField": "t", "bucketMaxSpanSeconds": 0, "bucketRoundingSeconds": 0}, 2),
        ({"timeField": "t", "more": 1}, 40415),
    ],
)
def test_bad_definitions(db, spec, code):
    fails(code, lambda: db.command("create", "x", timeseries=spec))
    assert db.list_collection_names() == []


def test_a_measurement_needs_its_time(db):
    c = series(db)
    for bad in [{"d": 1}, {"t": 5}, {"t": None, "d": 1}]:
        with pytest.raises(WriteError) as e:
            c.insert_one(dict(bad))
        assert e.value.code == 2
    with pytest.raises(BulkWriteError) as e:
        c.insert_many([{"t": at(0)}, {"x": 1}, {"t": at(1)}], ordered=False)
    assert [w["index"] for w in e.value.details["writeErrors"]] == [1]
    assert c.count_documents({}) == 2
    with pytest.raises(BulkWriteError):
        c.insert_many([{"t": at(2)}, {"x": 1}, {"t": at(3)}])
    assert c.count_documents({}) == 3


def test_queries_against_a_plain_collection(db):
    """Random measurements and random queries, beside the same documents in a plain collection."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    c, plain = series(db), db.plain
    metas = ["a", "b", {"x": 1, "y": "k"}, {"x": 2}, 7, None]
    docs = []
    for i in range(1500):
        d = {"_id": i, "t": at(rng.randrange(20_000)), "v": round(rng.random() * 100, 2)}
        meta = rng.choice(metas)
        if meta is not None or rng.random() < 0.5:
            d["d"] = meta
        if rng.random() < 0.3:
            d["w"] = rng.choice([1, 2.5, "s", [1, 2, 3], {"z": i}, None, Int64(1 << 40)])
        docs.append(d)
    while docs:
        n = rng.choice([1, 3, 50, 400])
        batch, docs = docs[:n], docs[n:]
        c.insert_many([dict(d) for d in batch])
        plain.insert_many(batch)

    def moment():
        return at(rng.randrange(20_000))

    def ids(coll, q):
        return sorted(d["_id"] for d in coll.find(q))

    queries = [{}]
    for _ in range(150):
        a, b = sorted([moment(), moment()])
        queries.append(
            rng.choice(
                [
                    {"d": rng.choice(metas), "t": {"$gte": a, "$lt": b}},
                    {"t": {"$gt": a}, "v": {"$lt": rng.random() * 100}},
                    {"d.x": rng.choice([1, 2])},
                    {"d": {"$in": ["a", 7]}, "t": {"$lte": b}},
                    {"$and": [{"d": "b"}, {"t": {"$gte": a}}, {"t": {"$lte": b}}]},
                    {"$or": [{"d": "a"}, {"t": a}]},
                    {"d": {"$exists": False}},
                    {"d": {"$ne": "a"}, "w": {"$exists": True}},
                    {"w": 2},
                    {"t": a},
                    {"v": {"$gte": rng.random() * 100, "$lt": rng.random() * 100}},
                    {"w": {rng.choice(["$lt", "$lte", "$gt", "$gte", "$eq", "$ne"]): rng.choice([1, 2, "s", 5.5])}},
                    {"w": {"$in": [rng.choice([2.5, "s"]), Int64(1 << 40)]}},
                    {"_id": {"$gt": rng.randrange(1500)}, "d": rng.choice(metas)},
                ]
            )
        )
    for q in queries:
        assert ids(c, q) == ids(plain, q), q
        assert c.count_documents(q) == plain.count_documents(q), q
    group = [{"$group": {"_id": "$d", "n": {"$sum": 1}, "v": {"$max": "$v"}}}]
    key = lambda d: repr(d)
    assert sorted(c.aggregate(group), key=key) == sorted(plain.aggregate(group), key=key)
    assert sorted(map(repr, c.distinct("d.x"))) == sorted(map(repr, plain.distinct("d.x")))
    for d in plain.find().limit(60):
        assert c.find_one({"_id": d["_id"]}) == d
    assert [d["_id"] for d in c.find().sort({"t": 1, "_id": 1}).limit(20)] == [
        d["_id"] for d in plain.find().sort({"t": 1, "_id": 1}).limit(20)
    ]


def test_a_value_of_the_meta_field_may_become_an_array(db):
    c = series(db)
    c.insert_one({"t": at(0), "d": "a"})
    assert c.count_documents({"d": "a"}) == 1
    c.insert_one({"t": at(1), "d": ["a", "b"]})
    assert c.count_documents({"d": "a"}) == 2
    assert c.count_documents({"d": "b"}) == 1


def test_many_small_inserts_are_packed(db):
    c = series(db)
    n = 600
    for i in range(n):
        c.insert_many([{"t": at(i), "d": d, "v": i / 10} for d in "ab"])
    buckets = db["system.buckets.m"].count_documents({})
    assert buckets < 300, buckets
    assert c.count_documents({"d": "a"}) == n
    assert [d["v"] for d in c.find({"d": "b"}).sort("t")] == [i / 10 for i in range(n)]
    stats = db.command("collStats", "m")
    assert stats["timeseries"]["bucketsNs"] == f"{db.name}.system.buckets.m"
    assert stats["timeseries"]["bucketCount"] == buckets


def test_a_device_and_an_hour_read_few_buckets(db):
    c = series(db)
    docs = [{"t": at(s), "d": d, "v": s} for d in range(20) for s in range(0, 36_000, 20)]
    c.insert_many(docs)
    q = {"d": 7, "t": {"$gte": at(7200), "$lt": at(10_800)}}
    explained = c.find(q).explain()
    said = repr(explained)
    assert "$_internalUnpackBucket" in said
    examined = [
        int(s.split(":")[1].split(",")[0].strip(" }"))
        for s in said.replace("'", "").split("totalDocsExamined")[1:]
    ]
    assert examined and max(examined) <= 4, explained
    assert c.count_documents(q) == 180


def examined(explained):
    said = repr(explained).replace("'", "")
    return max(int(s.split(":")[1].split(",")[0].strip(" }")) for s in said.split("totalDocsExamined")[1:])


def last_points(c):
    """Pipelines that want the last, or the first, measurement of each device, and whether it is the last."""
    last, first = {"$last": "$v"}, {"$first": "$v"}
    return [
        ([{"$sort": {"d": 1, "t": -1}}, {"$group": {"_id": "$d", "v": first}}], True),
        ([{"$sort": {"t": 1}}, {"$group": {"_id": "$d", "v": last, "at": {"$max": "$t"}}}], True),
        ([{"$group": {"_id": "$d", "v": {"$top": {"output": "$v", "sortBy": {"t": -1}}}}}], True),
        ([{"$group": {"_id": "$d", "v": {"$max": "$t"}}}], True),
        ([{"$sort": {"t": 1}}, {"$group": {"_id": "$d", "v": first}}], False),
        ([{"$group": {"_id": "$d", "v": {"$min": "$t"}}}], False),
        ([{"$group": {"_id": "$d"}}], False),
    ]


def by_id(groups):
    return sorted(groups, key=lambda g: repr(g["_id"]))


def written(pipeline):
    """The pipeline, run as it is written."""
    return [stage for each in pipeline for stage in (each, {"$_internalInhibitOptimization": {}})][:-1]


def test_the_last_of_each_device_reads_few_buckets(db):
    c = series(db)
    devices, hours = 20, 24
    for d in range(devices):
        c.insert_many([{"t": at(s), "d": d, "v": s} for s in range(0, hours * 3600, 20)])
    assert db["system.buckets.m"].count_documents({}) >= devices * hours
    between = {"d": {"$gt": 3, "$lte": 8}}
    for pipeline, last in last_points(c):
        for filtered, of in [([], devices), ([{"$match": between}], 5), ([{"$match": {"d": 7}}], 1), ([{"$match": {"d": {"$in": [5, 6]}}}], 2)]:
            said = c.database.command("explain", {"aggregate": c.name, "pipeline": filtered + pipeline, "cursor": {}}, verbosity="executionStats")
            # Of each device those that begin within an hour of the last, and the next, which tells that there is no more. Where
            # the device before is left out by the filter, that one's buckets are read.
            assert of <= examined(said) <= 3 * of + (30 if filtered == [{"$match": between}] else 0), (pipeline, filtered, said)
            found = by_id(c.aggregate(filtered + pipeline))
            assert len(found) == of and found == by_id(c.aggregate(written(filtered + pipeline)))
        # From that side on, where the end of a device passes if anything of it does.
        hour = {"t": {"$gte": at(23 * 3600)}} if last else {"t": {"$lt": at(3600)}}
        for filtered in [hour, {**hour, "d": {"$lt": 10}}, {"t": {("$gt" if last else "$lt"): at(-1 if not last else 24 * 3600)}}]:
            found = by_id(c.aggregate([{"$match": filtered}, *pipeline]))
            assert found == by_id(c.aggregate(written([{"$match": filtered}, *pipeline]))), (filtered, pipeline)
            assert len(found) == (10 if "d" in filtered else devices if filtered == hour else 0)
    # Buckets that are filtered by more than that are read.
    for more in [{"$match": {"v": {"$lt": 5000}}}, {"$match": {"t": {"$lt": at(5000)}}}]:
        found = by_id(c.aggregate([more, *last_points(c)[0][0]]))
        assert [g["v"] for g in found] == [4980] * devices


@pytest.mark.parametrize("seed", range(6))
def test_the_ends_of_devices_are_those_of_all_measurements(db, seed):
    rng = random.Random(seed)
    c = series(db, timeseries={"granularity": rng.choice(["seconds", "minutes"])})
    devices = [None, 1, 2.5, "a", "ab", {"room": 1}, {"room": 1, "x": 2}, *([["a"]] if seed % 2 else [])]
    times = iter(rng.sample(range(400_000), 6000))
    for _ in range(30):
        device, n = rng.choice(devices), rng.choice([1, 5, 300])
        # Each batch lies somewhere, within others too; no two measurements have one time.
        of = sorted(next(times) for _ in range(n))
        c.insert_many([{"t": at(t), "v": t} | ({} if device is None and rng.random() < 0.5 else {"d": device}) for t in of])
    if seed == 2:
        c.create_index([("d", 1), ("t", -1)])
    for pipeline, _ in last_points(c):
        some = [at(rng.randrange(400_000)) for _ in range(2)]
        by_time = [[{"$match": {"t": {op: t}}}] for op, t in zip(rng.sample(["$gt", "$gte", "$lt", "$lte"], 2), some)]
        for filtered in [[], [{"$match": {"d": {"$ne": 1}}}], [{"$match": {"d.room": 1}}], *by_time]:
            found = by_id(c.aggregate(filtered + pipeline))
            assert found == by_id(c.aggregate(written(filtered + pipeline))), (seed, filtered, pipeline)


def test_bounds_of_measured_fields_narrow_queries(db):
    c = series(db)
    # Of each device 50 buckets of 200 measurements, whose values rise by 10 from one to the next.
    docs = [{"_id": d * 10_000 + s, "t": at(s), "d": d, "v": s / 20, "s": "abc"[s % 3]} for d in range(4) for s in range(10_000)]
    for i in range(0, len(docs), 200):
        c.insert_many(docs[i : i + 200])
    assert db["system.buckets.m"].find_one()["control"]["max"]["v"] == 9.95
    between = {"v": {"$gte": 100, "$lt": 105}}
    assert c.count_documents(between) == 400
    said = c.find(between).explain()
    assert "COLLSCAN" in repr(said)
    # An index tells which buckets these are, without reading the others.
    c.create_index("v")
    said = c.find(between).explain()
    assert "IXSCAN" in repr(said) and examined(said) == 4, said
    assert c.count_documents(between) == 400
    assert c.count_documents({"v": {"$in": [3, 7.5]}}) == 8
    assert c.count_documents({"v": 7.5, "s": "d"}) == 0
    assert c.count_documents({"v": {"$lt": 1}}) == 80
    assert [d["_id"] for d in c.find({"_id": 20_777})] == [20_777]
    # Young ones say nothing of their values, and are read.
    c.insert_one({"t": at(0), "d": 9, "v": 100})
    assert c.count_documents(between) == 401
    # A kind that comes later is found, and takes the bounds of its bucket.
    c.insert_many([{"t": at(i), "d": 10, "v": i if i != 77 else "x"} for i in range(200)])
    assert c.count_documents({"v": "x"}) == 1
    assert c.count_documents({"v": 78, "d": 10}) == 1
    assert c.count_documents({"v": {"$lt": 2}, "d": 10}) == 2


def test_a_bucket_whose_bounds_do_not_hold_is_refused(db):
    c = series(db)
    c.insert_many([{"t": at(i), "d": 1, "v": i} for i in range(200)])
    buckets, other = db["system.buckets.m"], series(db, "n")
    one = buckets.find_one()
    for bound, value in [("min", 5), ("max", 100), ("max", "x"), ("max", [500]), ("min", None)]:
        bent = {**one, "control": {**one["control"], bound: {**one["control"][bound], "v": value}}}
        fails(121, lambda: db["system.buckets.n"].insert_one(bent))
    db["system.buckets.n"].insert_one(one)
    assert other.count_documents({"v": {"$gte": 150}}) == 50


def test_updates_change_the_meta_value_only(db):
    c = series(db)
    c.insert_many([{"t": at(i), "d": {"s": "ab"[i % 2], "n": i % 2}, "v": i} for i in range(6)])
    r = c.update_many({"d.s": "a"}, {"$set": {"d.s": "x"}})
    assert (r.matched_count, r.modified_count) == (3, 3)
    assert c.update_many({}, {"$inc": {"d.n": 10}}).modified_count == 6
    assert sorted({d["d"]["n"] for d in c.find()}) == [10, 11]
    assert c.count_documents({"d": {"s": "x", "n": 10}}) == 3
    for f in [
        lambda: c.update_one({"d.s": "x"}, {"$set": {"d.s": "y"}}),
        lambda: c.update_many({"v": 1}, {"$set": {"d.s": "y"}}),
        lambda: c.update_many({}, {"$set": {"v": 1}}),
        lambda: c.update_many({}, [{"$set": {"d": 1}}]),
        lambda: c.update_many({"d": 5}, {"$set": {"d": 1}}, upsert=True),
        lambda: c.update_many({}, {"$rename": {"d": "e"}}),
        lambda: c.find_one_and_update({}, {"$set": {"d": 1}}),
        lambda: c.replace_one({}, {"t": at(1)}),
    ]:
        fails(72, f)
    assert c.update_many({}, {"$unset": {"d": ""}}).modified_count == 6
    assert c.count_documents({"d": {"$exists": False}}) == 6


def test_deletes(db):
    c = series(db)
    c.insert_many([{"_id": i, "t": at(i), "d": i % 3, "v": i} for i in range(600)])
    assert c.delete_many({"v": {"$lt": 10}}).deleted_count == 10
    assert c.delete_one({"v": 11}).deleted_count == 1
    assert c.delete_many({"d": 2}).deleted_count == 196
    assert c.find_one_and_delete({"_id": 12})["v"] == 12
    left = [i for i in range(600) if i >= 10 and i % 3 != 2 and i != 12]
    assert sorted(d["_id"] for d in c.find()) == left
    assert c.delete_many({}).deleted_count == len(left)
    assert db["system.buckets.m"].count_documents({}) == 0


def test_indexes(db):
    c = series(db)
    assert [i["name"] for i in c.list_indexes()] == ["d_1_t_1"]
    c.create_index("d.x")
    c.create_index([("t", -1)])
    c.create_index("v", partialFilterExpression={"v": {"$gt": 5}})
    shown = {i["name"]: i for i in c.list_indexes()}
    assert set(shown) == {"d_1_t_1", "d.x_1", "t_-1", "v_1"}
    assert shown["v_1"]["partialFilterExpression"] == {"v": {"$gt": 5}}
    c.insert_many([{"t": at(i), "d": {"x": i % 50}, "v": i} for i in range(1000)])
    said = repr(c.find({"d.x": 3}).explain())
    assert "IXSCAN" in said and "meta.x" in said
    assert c.count_documents({"d.x": 3}) == 20
    assert c.count_documents({"t": {"$gte": at(990)}}) == 10
    assert len(list(c.find({"d.x": 3}).hint("d.x_1"))) == 20
    assert len(list(c.find({"d.x": 3}).hint([("d", 1), ("t", 1)]))) == 20
    for options, code in [
        (dict(keys="v", unique=True), 72),
        (dict(keys="v", sparse=True), 72),
        (dict(keys=[("v", "hashed")]), 67),
        (dict(keys=[("v", "text")]), 72),
        (dict(keys="t", expireAfterSeconds=5), 72),
    ]:
        fails(code, lambda: c.create_index(**options))
    c.drop_index([("t", -1)])
    c.drop_index("v_1")
    assert {i["name"] for i in c.list_indexes()} == {"d_1_t_1", "d.x_1"}


def test_coll_mod(db):
    series(db)
    mod = lambda **o: db.command("collMod", "m", **o)
    mod(timeseries={"granularity": "minutes"})
    assert listed(db, "m")["options"]["timeseries"]["bucketMaxSpanSeconds"] == 86_400
    fails(72, lambda: mod(timeseries={"granularity": "seconds"}))
    fails(40415, lambda: mod(timeseries={"timeField": "x"}))
    fails(72, lambda: mod(validator={"v": 1}))
    mod(expireAfterSeconds=3600)
    assert listed(db, "m")["options"]["expireAfterSeconds"] == 3600
    mod(expireAfterSeconds="off")
    assert "expireAfterSeconds" not in listed(db, "m")["options"]


def test_measurements_expire(new_server):
    db = new_server("--setParameter", "ttlMonitorSleepSecs=1").client().x
    c = series(db, expireAfterSeconds=600)
    now = datetime.datetime.now(datetime.timezone.utc)
    c.insert_many([{"t": now - datetime.timedelta(hours=5), "d": i} for i in range(5)])
    c.insert_many([{"t": now, "d": i} for i in range(5)])
    # Older than ten minutes, in a bucket whose hour ended less than ten minutes ago.
    c.insert_many([{"t": now - datetime.timedelta(minutes=30), "d": i} for i in range(5)])
    until("the old ones expire", lambda: c.count_documents({}) <= 10, 60)
    assert c.count_documents({}) == 10


def test_out(db):
    db.plain.insert_many([{"t": at(i), "d": i % 5, "v": i} for i in range(500)])
    out = {"$out": {"db": db.name, "coll": "o", "timeseries": {"timeField": "t", "metaField": "d"}}}
    db.plain.aggregate([out])
    assert listed(db, "o")["type"] == "timeseries"
    assert db.o.count_documents({"d": 3}) == 100
    db.plain.aggregate([{"$match": {"d": 1}}, {"$out": "o"}])
    assert db.o.count_documents({}) == 100
    fails(7268700, lambda: db.plain.aggregate([out | {"$out": out["$out"] | {"coll": "plain"}}]))
    assert not [n for n in db.list_collection_names() if "tmp" in n]
    fails(2, lambda: db.plain.aggregate([{"$project": {"t": 0}}, out]))
    assert db.o.count_documents({}) == 100


def test_not_in_a_transaction(db):
    c = series(db)
    for f in [lambda s: c.insert_one({"t": at(0)}, session=s), lambda s: c.delete_many({}, session=s)]:
        with db.client.start_session() as s:
            s.start_transaction()
            fails(263, lambda: f(s))
            s.abort_transaction()


def test_buckets_are_read_and_not_changed(db):
    c = series(db)
    c.insert_many([{"t": at(i), "d": 1, "v": i} for i in range(10)])
    buckets = db["system.buckets.m"]
    one = buckets.find_one()
    assert one["meta"] == 1 and one["control"]["count"] == 10
    fails(20, lambda: buckets.update_many({}, {"$set": {"data": b"x"}}))
    fails(121, lambda: buckets.insert_one({"_id": 1, "data": b"\x01\x05"}))
    # A bucket of another collection, as a restored dump brings it.
    other = series(db, "n")
    db["system.buckets.n"].insert_one(one)
    assert sorted(d["v"] for d in other.find()) == list(range(10))


def test_retries_insert_once(server, db):
    c = series(db)
    # A session that no driver keeps.
    command = {
        "insert": "m",
        "documents": [{"_id": i, "t": at(i), "d": 1} for i in range(5)],
        "lsid": {"id": Binary.from_uuid(uuid.uuid4())},
        "txnNumber": Int64(1),
        "$db": db.name,
    }
    with server.wire() as wire:
        for _ in range(2):
            assert wire.command(command)["n"] == 5
    assert c.count_documents({}) == 5


def test_they_outlive_a_restart(new_server):
    s = new_server()
    c = series(s.client().x)
    c.insert_many([{"t": at(i), "d": i % 2, "v": i} for i in range(100)])
    s.restart()
    c = s.client().x.m
    for i in range(128):
        c.insert_one({"t": at(100 + i), "d": 0, "v": i})
    assert c.count_documents({"d": 0}) == 178
    # What lay there from before is packed with what came.
    assert s.client().x["system.buckets.m"].count_documents({}) == 2


def test_stages_that_tell_of_queries_have_nothing_to_tell(client):
    for stage in ["$queryStats", "$listSampledQueries"]:
        assert list(client.admin.aggregate([{stage: {}}])) == []


def test_its_indexes_are_counted(db):
    c = series(db)
    c.create_index("d.x")
    names = [row["name"] for row in c.aggregate([{"$indexStats": {}}])]
    assert names == ["d_1_t_1", "d.x_1"]


def test_a_query_may_have_a_collation_of_its_own(db):
    c = series(db)
    c.insert_many([{"t": at(i), "d": d} for i, d in enumerate(["a", "A", "b"])])
    fold = {"locale": "en", "strength": 2}
    assert len(list(c.find({"d": "a"}))) == 1
    assert len(list(c.find({"d": "a"}).collation(fold))) == 2
    assert c.delete_many({"d": "a"}, collation=fold).deleted_count == 2
