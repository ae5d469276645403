"""Time series over shards: their buckets lie by meta value, clients see measurements."""

import datetime
import threading

import pytest
from bson import MaxKey, MinKey
from harness import refuses
from sharded_cluster import client_fixture, cluster_fixture

BEGAN = datetime.datetime(2026, 1, 1)
SERIES = {"timeField": "t", "metaField": "m"}


cluster = cluster_fixture(routers=2)
client = client_fixture()


def at(seconds):
    return BEGAN + datetime.timedelta(seconds=seconds)


def measured(devices, each, first=0):
    """`each` measurements of every device, a second apart."""
    return [{"t": at(n), "m": device, "n": n, "v": device * n} for n in range(first, first + each) for device in devices]


def buckets(coll):
    return f"{coll.database.name}.system.buckets.{coll.name}"


def other(db):
    return "s1" if db.client.config.databases.find_one({"_id": db.name})["primary"] == "s0" else "s0"


def spread(db, key=None, cut=5, **options):
    """Devices below `cut` are on the primary shard, the others on the other."""
    coll, admin, key = db.s, db.client.admin, key or {"m": 1}
    admin.command("shardCollection", coll.full_name, key=key, timeseries=SERIES, **options)
    time = {"control.min.t": MinKey()} if "t" in key else {}
    admin.command("split", buckets(coll), middle={"meta": cut, **time})
    admin.command("moveRange", buckets(coll), min={"meta": cut, **time}, toShard=other(db))
    return coll


def counts(cluster, coll):
    found = {}
    for name in cluster.shards:
        with cluster.on_shard(name) as direct:
            found[name] = direct[coll.database.name][coll.name].count_documents({})
    return found


@pytest.mark.parametrize("key", [{"m": 1}, {"m": 1, "t": 1}])
def test_measurements_lie_by_their_meta_value(cluster, db, key):
    coll = spread(db, key)
    entry = db.client.config.collections.find_one({"_id": buckets(coll)})
    assert entry["timeseriesFields"]["metaField"] == "m"
    assert list(entry["key"]) == (["meta", "control.min.t"] if "t" in key else ["meta"])
    docs = measured(range(10), 50)
    coll.insert_many(docs)
    there = other(db)
    assert counts(cluster, coll) == {there: 250, "s0" if there == "s1" else "s1": 250}
    assert coll.count_documents({}) == 500 and coll.count_documents({"m": 7}) == 50
    assert [d["n"] for d in coll.find({"m": 7}).sort("t", -1).skip(2).limit(3)] == [47, 46, 45]
    assert [(d["n"], d["m"]) for d in coll.find({"t": {"$gte": at(48)}}).sort([("t", 1), ("m", 1)])] == [
        (n, m) for n in (48, 49) for m in range(10)
    ]
    grouped = coll.aggregate([{"$group": {"_id": "$m", "v": {"$sum": "$v"}}}, {"$sort": {"_id": 1}}])
    assert [d["v"] for d in grouped] == [m * sum(range(50)) for m in range(10)]
    assert coll.distinct("m", {"n": {"$lt": 3}}) == list(range(10))
    assert coll.aggregate([{"$match": {"m": {"$gte": 4, "$lte": 5}}}, {"$count": "n"}]).next() == {"n": 100}
    # What names a device asks one shard.
    explained = db.command("explain", {"find": "s", "filter": {"m": 2}})
    assert explained["queryPlanner"]["winningPlan"]["stage"] == "SINGLE_SHARD"
    assert len(db.command("explain", {"find": "s", "filter": {}})["queryPlanner"]["winningPlan"]["shards"]) == 2
    joined = coll.aggregate([{"$limit": 1}, {"$lookup": {"from": "s", "localField": "m", "foreignField": "m", "as": "same"}}])
    assert len(joined.next()["same"]) == 50


def test_devices_with_many_measurements(cluster, db):
    coll = spread(db, {"m": 1, "t": 1})
    # So many are packed, some batches at once, others later.
    for first in range(0, 600, 50):
        coll.insert_many(measured((1, 8), 50, first))
    assert coll.count_documents({}) == 1200
    assert sum(d["n"] for d in coll.find({"m": 8, "t": {"$gte": at(290), "$lt": at(310)}})) == sum(range(290, 310))
    db.client.admin.command("moveRange", buckets(coll), max={"meta": 5, "control.min.t": MinKey()}, toShard=other(db))
    assert counts(cluster, coll)[other(db)] == 1200 == coll.count_documents({})
    assert coll.delete_many({"m": 1, "n": {"$lt": 500}}).deleted_count == 500
    assert coll.count_documents({"m": 1}) == 100


@pytest.mark.parametrize("key", [{"m": 1}, {"m": 1, "t": 1}])
def test_the_last_of_each_device_reads_few_buckets(db, key):
    coll = spread(db, key)
    hours = 12
    coll.insert_many([{"t": at(s), "m": device, "n": s} for device in range(10) for s in range(0, hours * 3600, 20)])
    for pipeline, want in [
        ([{"$sort": {"m": 1, "t": -1}}, {"$group": {"_id": "$m", "n": {"$first": "$n"}}}], hours * 3600 - 20),
        ([{"$sort": {"t": 1}}, {"$group": {"_id": "$m", "n": {"$last": "$n"}}}], hours * 3600 - 20),
        ([{"$group": {"_id": "$m", "n": {"$top": {"output": "$n", "sortBy": {"t": -1}}}}}], hours * 3600 - 20),
        ([{"$sort": {"t": 1}}, {"$group": {"_id": "$m", "n": {"$first": "$n"}}}], 0),
    ]:
        found = {g["_id"]: g["n"] for g in coll.aggregate(pipeline)}
        assert found == dict.fromkeys(range(10), want), pipeline
        said = db.command("explain", {"aggregate": "s", "pipeline": pipeline, "cursor": {}}, verbosity="executionStats")
        read = [one["stages"][0]["$cursor"]["executionStats"]["totalDocsExamined"] for one in said["shards"].values()]
        assert len(read) == 2 and 10 <= sum(read) <= 24, (pipeline, read)


def test_deletes_and_updates(db):
    coll = spread_by_part(db)
    coll.insert_many([{"t": at(n), "m": {"id": device, "place": "hall"}, "n": n} for n in range(20) for device in range(10)])
    assert coll.delete_many({"n": {"$gte": 18}}).deleted_count == 20
    assert coll.delete_many({"m.id": 3}).deleted_count == 18
    assert coll.delete_one({"m.id": 7, "n": 4}).deleted_count == 1
    assert coll.delete_one({"n": 4}).deleted_count == 1
    assert coll.update_many({"m.place": "hall"}, {"$set": {"m.place": "yard"}}).modified_count == 160
    assert coll.count_documents({"m.place": "yard"}) == 160
    assert coll.update_many({"m.id": 8}, {"$set": {"m.place": "roof"}}).modified_count == 18
    gone = coll.find_one_and_delete({"n": 11})
    assert gone["n"] == 11 and coll.count_documents({"n": 11}) == 8
    assert coll.find_one_and_delete({"n": 100}) is None
    for refused in ({"$set": {"m.id": 1}}, {"$set": {"m": {"id": 1}}}):
        with refuses(72):
            coll.update_many({"m.id": 2}, refused)
    with refuses(72):
        coll.update_many({"m.id": 2}, {"$set": {"n": 1}})
    with refuses(72):
        coll.update_one({"m.id": 2}, {"$set": {"m.place": "x"}})
    with refuses(2):
        coll.insert_one({"m": {"id": 1}})


def spread_by_part(db):
    """Sharded by a part of the meta field."""
    coll, admin = db.s, db.client.admin
    db.create_collection("s", timeseries=SERIES)
    admin.command("shardCollection", coll.full_name, key={"m.id": 1})
    admin.command("split", buckets(coll), middle={"meta.id": 5})
    admin.command("moveRange", buckets(coll), min={"meta.id": 5}, toShard=other(db))
    return coll


def test_a_router_that_does_not_know_yet(cluster, db):
    with cluster.client(1) as late:
        db.create_collection("s", timeseries=SERIES)
        behind = late[db.name].s
        behind.insert_many(measured(range(10), 5))
        assert behind.count_documents({}) == 50
        db.client.admin.command("shardCollection", db.s.full_name, key={"m": 1})
        db.client.admin.command("split", buckets(db.s), middle={"meta": 5})
        db.client.admin.command("moveRange", buckets(db.s), min={"meta": 5}, toShard=other(db))
        behind.insert_many(measured(range(10), 5, 5))
        assert behind.count_documents({}) == 100 == db.s.count_documents({})
        assert counts(cluster, db.s)[other(db)] == 50
        db.s.drop()
        assert behind.count_documents({}) == 0
        behind.insert_one({"t": at(0), "m": 1})
        assert late[db.name].command("listCollections")["cursor"]["firstBatch"][0]["type"] == "collection"


def test_hashed_devices_are_on_all_shards(cluster, db):
    db.client.admin.command("shardCollection", f"{db.name}.s", key={"m": "hashed"}, timeseries=SERIES)
    db.s.insert_many(measured(range(40), 3))
    found = counts(cluster, db.s)
    assert sum(found.values()) == 120 and min(found.values()) > 20
    assert db.s.count_documents({"m": 17}) == 3


def test_moves_under_writes(cluster, db):
    coll = spread(db)
    stop, inserted, failures = threading.Event(), [0], []

    def write():
        try:
            with cluster.client(1) as via:
                while not stop.is_set():
                    via[db.name].s.insert_many(measured(range(10), 4, inserted[0]))
                    inserted[0] += 4
                    assert via[db.name].s.count_documents({"m": 7}) == inserted[0]
        except Exception as failure:
            failures.append(failure)

    writing = threading.Thread(target=write)
    writing.start()
    for n in range(6):
        db.client.admin.command("moveRange", buckets(coll), min={"meta": 5}, max={"meta": MaxKey()}, toShard=f"s{n % 2}")
        found = [d["n"] for d in coll.find({"m": 9}).sort("t", 1)]
        assert found == list(range(len(found)))
    stop.set()
    writing.join(60)
    assert not failures, failures
    assert coll.count_documents({}) == inserted[0] * 10 > 0
    assert sum(counts(cluster, coll).values()) == inserted[0] * 10


def test_a_mover_hears_of_buckets_that_are_packed(cluster, db):
    db.create_collection("s", timeseries=SERIES)
    home = db.client.config.databases.find_one({"_id": db.name})["primary"]
    for n in range(127):
        db.s.insert_one({"t": at(n), "m": {"device": 5, "at": "x"}, "n": n})
    with cluster.on_shard(home) as direct:
        found = {str(d["_id"]["o"]) for d in direct[db.name]["system.buckets.s"].find()}
        asked = {"_pandoChanges": 1, "ns": buckets(db.s)}
        end = direct.admin.command(asked)
        db.s.insert_one({"t": at(127), "m": {"device": 5, "at": "x"}, "n": 127})
        told = direct.admin.command({**asked, "after": end["upTo"], "term": end["term"]})
        left = {str(d["_id"]["o"]) for d in direct[db.name]["system.buckets.s"].find()}
    gone = found - left
    assert len(gone) > 100
    assert gone | left <= {str(i["o"]) for i in told["ids"]}


def test_indexes_statistics_and_options(db):
    coll = spread(db)
    coll.insert_many(measured(range(10), 20))
    assert coll.create_index([("m", 1), ("n", 1)]) == "m_1_n_1"
    assert "m_1_n_1" in coll.index_information()
    stats = db.command("collStats", "s")
    assert stats["sharded"] and set(stats["shards"]) == {"s0", "s1"} and "timeseries" in stats["shards"]["s0"]
    told = list(coll.aggregate([{"$collStats": {"storageStats": {}}}]))
    assert {d["shard"] for d in told} == {"s0", "s1"} and all("timeseries" in d["storageStats"] for d in told)
    coll.drop_index("m_1_n_1")
    db.command("collMod", "s", timeseries={"granularity": "minutes"})
    assert coll.options()["timeseries"]["granularity"] == "minutes"
    coll.insert_many(measured(range(10), 20, 20))
    assert coll.count_documents({}) == 400
    pipeline = db.command("explain", {"aggregate": "s", "pipeline": [{"$match": {"m": 1}}], "cursor": {}})
    assert pipeline["ok"] == 1
    distribution = db.client.admin.aggregate([{"$shardedDataDistribution": {}}, {"$match": {"ns": buckets(coll)}}])
    assert len(distribution.next()["shards"]) == 2


def test_what_is_refused(db):
    admin = db.client.admin
    for code, key in [(5914000, {"t": 1, "m": 1}), (5914001, {"x": 1}), (5914001, {"_id": 1}), (238, {"t": 1})]:
        with refuses(code):
            admin.command("shardCollection", f"{db.name}.s", key=key, timeseries=SERIES)
    db.plain.insert_one({})
    with refuses(5731500):
        admin.command("shardCollection", f"{db.name}.plain", key={"m": 1}, timeseries=SERIES)
    coll = spread(db, {"m": 1, "t": 1})
    admin.command("shardCollection", coll.full_name, key={"m": 1, "t": 1})
    with refuses(23):
        admin.command("shardCollection", coll.full_name, key={"m": 1})
    with refuses(72):
        admin.command("shardCollection", f"{db.name}.other", key={"m": 1}, timeseries=SERIES, unique=True)
    # The measurements of one device stay together.
    with refuses(238):
        admin.command("split", buckets(coll), middle={"meta": 7, "control.min.t": at(5)})
    coll.insert_many(measured(range(6, 10), 30))
    admin.command("split", buckets(coll), find={"meta": 8, "control.min.t": at(0)})
    bounds = [c["min"] for c in db.client.config.chunks.find({"uuid": db.client.config.collections.find_one({"_id": buckets(coll)})["uuid"]})]
    assert len(bounds) == 3 and all(b["control.min.t"] == MinKey() for b in bounds)
    with refuses(238):
        admin.command("reshardCollection", buckets(coll), key={"meta": "hashed"})
    with refuses(118):
        admin.command("split", coll.full_name, middle={"meta": 7})


def test_whole_series_move(cluster, db):
    admin = db.client.admin
    db.create_collection("s", timeseries=SERIES)
    db.s.insert_many(measured(range(4), 200))
    db.s.create_index([("m", 1), ("n", 1)])
    db.plain.insert_one({"_id": 1})
    there = other(db)
    admin.command("moveCollection", db.s.full_name, toShard=there)
    assert counts(cluster, db.s)[there] == 800 == db.s.count_documents({})
    db.s.insert_many(measured(range(4), 10, 200))
    assert db.s.count_documents({"m": 3}) == 210 and "m_1_n_1" in db.s.index_information()
    db.create_collection("second", timeseries=SERIES)
    db.second.insert_many(measured(range(4), 50))
    admin.command("movePrimary", db.name, to=there)
    for router in (0, 1):
        with cluster.client(router) as via:
            assert via[db.name].second.count_documents({}) == 200 and via[db.name].s.count_documents({}) == 840
            assert via[db.name].plain.count_documents({}) == 1
    db.second.insert_many(measured(range(4), 1, 50))
    assert counts(cluster, db.second)[there] == 204
    assert {c["name"] for c in db.list_collections(filter={"type": "timeseries"})} == {"s", "second"}
    db.second.drop()
    assert db.second.count_documents({}) == 0
