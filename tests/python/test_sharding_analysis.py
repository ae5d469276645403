"""`analyzeShardKey` and the samples of queries that it asks, on one server and over two shards."""

import itertools

import pytest
from bson import Int64
from harness import Server, refuses, until
from sharded_cluster import cluster_fixture, shard

numbers = itertools.count(1)


cluster = cluster_fixture()


@pytest.fixture(scope="module")
def routed(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("alone") / "data", "--cache", "32MB")
    server.launch()
    with server.client() as connected:
        until("it answers", lambda: connected.admin.command("ping"))
        connected.admin.command("setParameter", clientCursorMonitorFrequencySecs=1)
        yield connected
    server.kill()


@pytest.fixture(params=["alone", "routed"])
def coll(request):
    """100 documents: `k` grows, `g` has few values, `u` is unique. Through a router they lie on both shards."""
    client = request.getfixturevalue(request.param)
    db = client[f"analyzed{next(numbers)}"]
    coll = shard(db, "c", {"k": 1}, at=[50]) if request.param == "routed" else db.c
    coll.insert_many([{"_id": n, "k": n, "g": n % 4 if n > 50 else 0, "u": (n * 37) % 101, "a": {"b": n % 3}} for n in range(100)])
    for key in ("k", "g", "a.b"):
        coll.create_index(key)
    if request.param == "alone":
        coll.create_index("u", unique=True)
    yield coll
    client.drop_database(db.name)


def analyze(coll, key, **options):
    return coll.database.client.admin.command("analyzeShardKey", coll.full_name, key=key, **options)


EMPTY = {
    "readDistribution": {"sampleSize": {"total": 0, "find": 0, "aggregate": 0, "count": 0, "distinct": 0}},
    "writeDistribution": {"sampleSize": {"total": 0, "update": 0, "delete": 0, "findAndModify": 0}},
}


def test_characteristics_of_a_key(coll):
    sharded = "config" in coll.database.client.list_database_names() and coll.database.client.admin.command("hello").get("msg") == "isdbgrid"
    reply = analyze(coll, {"g": 1})
    assert {name: reply[name] for name in EMPTY} == EMPTY
    found = reply["keyCharacteristics"]
    assert found.pop("avgDocSizeBytes") > 30
    assert found.pop("monotonicity")["type"] in ("monotonic", "not monotonic")
    most = found.pop("mostCommonValues")
    assert most[0] == {"value": {"g": 0}, "frequency": 63} and sorted(m["frequency"] for m in most) == [12, 12, 13, 63]
    assert found == {"numDocsTotal": 100, "numDocsSampled": 100, "isUnique": False, "numDistinctValues": 4, **({"numOrphanDocs": 0} if sharded else {})}
    assert list(reply)[:3] == ["keyCharacteristics", "readDistribution", "writeDistribution"]
    grows = analyze(coll, {"k": 1}, readWriteDistribution=False)
    assert "readDistribution" not in grows
    grows = grows["keyCharacteristics"]
    assert grows["numDistinctValues"] == 100 and len(grows["mostCommonValues"]) == 5
    assert grows["monotonicity"] == {"recordIdCorrelationCoefficient": pytest.approx(1.0), "type": "monotonic"}
    inner = analyze(coll, {"a.b": 1}, keyCharacteristics=True)["keyCharacteristics"]
    assert inner["mostCommonValues"][0] == {"value": {"a.b": 0}, "frequency": 34}
    assert inner["monotonicity"]["type"] == "not monotonic"
    few = analyze(coll, {"k": 1}, sampleSize=Int64(10))["keyCharacteristics"]
    assert few["numDocsTotal"] == 100 and few["numDocsSampled"] <= 10
    assert "keyCharacteristics" not in analyze(coll, {"none": 1})
    if not sharded:
        assert analyze(coll, {"u": 1})["keyCharacteristics"]["isUnique"] is True
    assert analyze(coll, {"_id": 1})["keyCharacteristics"]["isUnique"] is True
    coll.create_index([("g", "hashed")])
    assert analyze(coll, {"g": "hashed"})["keyCharacteristics"]["monotonicity"] == {"type": "not monotonic"}


def test_what_is_refused(coll):
    db, admin = coll.database, coll.database.client.admin
    for code, options in [
        (72, {"keyCharacteristics": False, "readWriteDistribution": False}),
        (72, {"keyCharacteristics": False, "sampleRate": 0.5}),
        (72, {"sampleRate": 0.5, "sampleSize": 4}),
        (51024, {"sampleRate": 1.5}),
        (51024, {"sampleSize": 0}),
        (40415, {"unknown": 1}),
    ]:
        with refuses(code):
            analyze(coll, {"k": 1}, **options)
    for key in ({"k": -1}, {"k": "text"}, {}):
        with refuses(2):
            analyze(coll, key)
    db.create_collection("view", viewOn="c", pipeline=[])
    db.create_collection("series", timeseries={"timeField": "t"})
    db.create_collection("empty")
    for code, name in [(166, "view"), (20, "series"), (26, "missing"), (20, "empty")]:
        with refuses(code):
            analyze(db[name], {"_id": 1})
    for code, name in [(166, "view"), (20, "series"), (26, "missing")]:
        with refuses(code):
            admin.command("configureQueryAnalyzer", f"{db.name}.{name}", mode="off")
    for code, options in [
        (72, {"mode": "full"}),
        (72, {"mode": "off", "samplesPerSecond": 1}),
        (72, {"mode": "full", "samplesPerSecond": 0}),
        (72, {"mode": "full", "samplesPerSecond": 51}),
        (2, {"mode": "some", "samplesPerSecond": 1}),
        (40414, {"samplesPerSecond": 1}),
    ]:
        with refuses(code):
            admin.command("configureQueryAnalyzer", coll.full_name, **options)
    for name in ("config.x", "admin.x", "local.x"):
        with refuses(20):
            admin.command("configureQueryAnalyzer", name, mode="off")
    with refuses(13):
        db.command("analyzeShardKey", coll.full_name, key={"k": 1})


def test_queries_are_sampled(coll):
    admin = coll.database.client.admin
    configured = admin.command("configureQueryAnalyzer", coll.full_name, mode="full", samplesPerSecond=50)
    full = {"mode": "full", "samplesPerSecond": 50.0}
    assert configured["newConfiguration"] == full and "oldConfiguration" not in configured
    list(coll.find({"k": 3}))
    coll.count_documents({"k": {"$lt": 20}})
    coll.distinct("g", {"g": 1})
    coll.update_one({"k": 5}, {"$set": {"k": 5}}) if coll.database.client.admin.command("hello").get("msg") != "isdbgrid" else coll.update_one({"k": 5}, {"$set": {"x": 5}})
    coll.update_many({"g": 2}, {"$set": {"x": 1}})
    coll.delete_one({"k": 1000})
    coll.find_one_and_update({"k": 7}, {"$inc": {"x": 1}})
    off = admin.command("configureQueryAnalyzer", coll.full_name, mode="off")
    assert off["oldConfiguration"] == full and off["newConfiguration"] == {"mode": "off"}
    list(coll.find({"k": 4}))
    listed = lambda: list(admin.aggregate([{"$listSampledQueries": {"namespace": coll.full_name}}]))
    until("seven are written", lambda: len(listed()) >= 7, 30)
    assert sorted(s["cmdName"] for s in listed()) == ["aggregate", "delete", "distinct", "find", "findAndModify", "update", "update"]
    [find] = [s for s in listed() if s["cmdName"] == "find"]
    assert set(find) == {"_id", "ns", "collectionUuid", "cmdName", "cmd", "expireAt"} and find["cmd"]["filter"] == {"k": 3}
    assert list(admin.aggregate([{"$listSampledQueries": {"namespace": "no.thing"}}])) == []
    reply = analyze(coll, {"k": 1}, keyCharacteristics=False)
    assert "keyCharacteristics" not in reply
    reads, writes = reply["readDistribution"], reply["writeDistribution"]
    assert reads["sampleSize"] == {"total": 3, "find": 1, "aggregate": 1, "count": 0, "distinct": 1}
    assert [reads[f"percentageOf{n}Reads"] for n in ("SingleShard", "MultiShard", "ScatterGather")] == [pytest.approx(100 / 3)] * 3
    assert len(reads["numReadsByRange"]) == 100 and sum(reads["numReadsByRange"]) >= 1 + 20 + 100 - 1
    assert writes["sampleSize"] == {"total": 4, "update": 2, "delete": 1, "findAndModify": 1}
    assert writes["percentageOfSingleShardWrites"] == 75 and writes["percentageOfScatterGatherWrites"] == 25
    assert writes["percentageOfMultiWritesWithoutShardKey"] == 25 and writes["percentageOfSingleWritesWithoutShardKey"] == 0
    assert writes["percentageOfShardKeyUpdates"] in (0, 25)


def test_a_sample_over_shards(routed):
    db = routed[f"analyzed{next(numbers)}"]
    coll = shard(db, "c", {"k": 1}, at=[90])
    coll.insert_many([{"_id": n, "k": n} for n in range(100)])
    below = 0
    for _ in range(40):
        found = list(coll.aggregate([{"$sample": {"size": 10}}]))
        assert len({d["_id"] for d in found}) == 10 and set(found[0]) == {"_id", "k"}
        below += sum(d["k"] < 90 for d in found)
    # Of 400 about 360 are of the greater shard: each document has the same chance.
    assert 330 < below < 385
    assert len(list(coll.aggregate([{"$sample": {"size": 500}}, {"$match": {"k": {"$gte": 0}}}]))) == 100
    routed.drop_database(db.name)


def test_figures_over_shards(routed):
    db = routed[f"analyzed{next(numbers)}"]
    coll = shard(db, "c", {"k": 1}, at=[50])
    coll.insert_many([{"_id": n, "k": n, "pad": "x" * 100} for n in range(100)])
    for scale in (1, 10):
        stats = db.command("collStats", "c", scale=scale)
        parts = stats["shards"].values()
        assert stats["sharded"] and not stats["capped"] and stats["scaleFactor"] == scale
        assert stats["count"] == 100 and stats["nchunks"] == 2 and stats["size"] == sum(p["size"] for p in parts)
        assert 100 < stats["avgObjSize"] < 200
        assert set(stats["indexSizes"]) == {"_id_", "k_1"}
        whole = db.command("dbStats", scale=scale)
        assert whole["objects"] == 100 and whole["scaleFactor"] == scale and 100 < whole["avgObjSize"] < 200
        assert set(whole["raw"]) == {"s0", "s1"}
    checked = db.command("validate", "c")
    assert checked["valid"] and set(checked["raw"]) == {"s0", "s1"}
    routed.drop_database(db.name)
