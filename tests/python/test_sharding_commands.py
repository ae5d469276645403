"""Commands at routers that are not about single documents, and arguments that no server takes."""


import pytest
from bson import Code, Int64
from harness import refuses, until
from pymongo.errors import DocumentTooLarge, OperationFailure
from sharded_cluster import client_fixture, cluster_fixture, shard

MAP = Code("function() { emit(this.g, this.n) }")
REDUCE = Code("function(key, values) { return Array.sum(values) }")


cluster = cluster_fixture()
client = client_fixture()


@pytest.fixture(params=["plain", "sharded"])
def coll(request, db):
    """100 documents, in one place or on both shards."""
    found = db.c if request.param == "plain" else shard(db, "c", {"n": 1}, at=[50])
    found.insert_many([{"_id": n, "n": n, "g": n % 3} for n in range(100)])
    return found


SUMS = {g: sum(n for n in range(100) if n % 3 == g) for g in range(3)}


def test_map_reduce(coll):
    db = coll.database

    def run(out, **more):
        return db.command("mapReduce", "c", map=MAP, reduce=REDUCE, out=out, **more)

    assert {d["_id"]: d["value"] for d in run({"inline": 1})["results"]} == SUMS
    some = run({"inline": 1}, query={"n": {"$gte": 40, "$lt": 60}}, sort={"n": 1}, limit=15)["results"]
    assert sum(d["value"] for d in some) == sum(range(40, 55))
    assert run("totals")["result"] == "totals"
    assert {d["_id"]: d["value"] for d in db.totals.find()} == SUMS
    run({"reduce": "totals"})
    assert {d["_id"]: d["value"] for d in db.totals.find()} == {g: 2 * n for g, n in SUMS.items()}
    finalized = run({"inline": 1}, finalize=Code("function(key, value) { return -value }"))["results"]
    assert {d["_id"]: -d["value"] for d in finalized} == SUMS
    with refuses(2):
        db.command("mapReduce", "c", map=5, reduce=REDUCE, out={"inline": 1})


def test_capped(db):
    db.c.insert_many([{"_id": n} for n in range(10)])
    db.command("convertToCapped", "c", size=100_000)
    assert db.c.options()["capped"] and db.c.count_documents({}) == 10
    db.command("cloneCollectionAsCapped", "c", toCollection="clone", size=100_000)
    assert db.clone.count_documents({}) == 10
    shard(db, "s", {"n": 1})
    with refuses(20):
        db.command("convertToCapped", "s", size=100_000)


def test_what_routers_do_not_have(db):
    for command in ("compact", "reIndex", "dbHash"):
        with refuses(59):
            db.command(command, "c")
    with refuses(59):
        db.client.admin.command("applyOps", [])


def test_arguments_are_checked(coll):
    db = coll.database
    opened = db.command("find", "c", batchSize=2)["cursor"]["id"]
    for code, command in [
        (40415, {"getMore": opened, "collection": "c", "filter": {}}),
        (40414, {"getMore": opened}),
        (40414, {"getMore": opened, "collection": None}),
        (14, {"getMore": opened, "collection": "c", "batchSize": "x"}),
        (14, {"killCursors": "c", "cursors": [opened], "maxTimeMS": "x"}),
        (14, {"killCursors": "c", "cursors": ["x"]}),
        (14, {"listCollections": 1, "authorizedCollections": "x"}),
        (14, {"listCollections": 1, "readConcern": 5}),
        (72, {"listCollections": 1, "readConcern": {"level": "majority"}}),
    ]:
        with refuses(code):
            db.command(command)
    # It is still there.
    assert len(db.command("getMore", Int64(opened), collection="c", batchSize=3)["cursor"]["nextBatch"]) == 3
    db.command("killCursors", "c", cursors=[opened])


def test_a_wrong_type_is_none_of_the_routers_guesses(cluster, coll):
    """What shards see changed the router has to have understood: no filter is all documents, no limit is all of them."""
    db = coll.database
    wrong = [
        (14, {"find": "c", "skip": "x"}),
        (2, {"find": "c", "skip": -1}),
        (14, {"find": "c", "limit": [1]}),
        (2, {"find": "c", "limit": -1}),
        (14, {"find": "c", "batchSize": "x"}),
        (14, {"find": "c", "singleBatch": "x"}),
        (14, {"find": "c", "projection": 1}),
        (14, {"count": "c", "skip": "x"}),
        (2, {"count": "c", "skip": -1}),
        (2, {"count": "c", "limit": "x"}),
        (9, {"count": "c", "limit": 2.5}),
        (14, {"distinct": "c", "key": "g", "query": 1}),
        (14, {"findAndModify": "c", "query": "x", "remove": True}),
        (14, {"findAndModify": "c", "query": 1, "update": {"$set": {"g": 9}}}),
        (14, {"findAndModify": "c", "query": {}, "remove": "x"}),
        (9, {"findAndModify": "c", "query": {}, "remove": True, "upsert": True}),
        (14, {"aggregate": "c", "pipeline": {}, "cursor": {}}),
        (14, {"aggregate": "c", "pipeline": [1], "cursor": {}}),
        (14, {"insert": "c", "documents": {"_id": 1000}}),
        (14, {"insert": "c", "documents": [{"_id": 1000, "n": 1000}, 1]}),
        (40414, {"insert": "c"}),
        (14, {"update": "c", "updates": [1]}),
        (14, {"delete": "c", "deletes": "x"}),
        (40414, {"delete": "c", "deletes": None}),
        (9, {"findAndModify": "c", "query": {}, "update": 1}),
    ]
    with cluster.routers[0].wire() as wire:
        for code, command in wrong:
            reply = wire.command({**command, "$db": db.name})
            assert reply["ok"] == 0 and reply["code"] == code, (command, reply)
    assert coll.count_documents({}) == 100 and coll.count_documents({"g": 9}) == 0
    # Numbers are cut off, as at a server.
    assert len(db.command("find", "c", skip=2.5, limit=3.5)["cursor"]["firstBatch"]) == 3
    assert db.command("count", "c", skip=2.5)["n"] == 98 and db.command("count", "c", skip=1e30)["n"] == 0
    assert db.command("count", "c", skip=90, limit=-20)["n"] == 10
    opened = db.command("find", "c", batchSize=2.5)["cursor"]
    assert len(opened["firstBatch"]) == 2
    db.command("killCursors", "c", cursors=[opened["id"]])


def test_an_aggregate_with_explain_is_shown_and_not_run(coll):
    db = coll.database
    for pipeline in ([{"$match": {"n": 1}}], [{"$group": {"_id": "$g"}}], [{"$lookup": {"from": "c", "as": "x", "pipeline": []}}]):
        for name in ("c", "not_there"):
            shown = db.command("aggregate", name, pipeline=pipeline, explain=True)
            assert "cursor" not in shown and ({"shards", "queryPlanner", "stages"} & set(shown)), shown
    with refuses(14):
        db.command("aggregate", "c", pipeline=1, explain=True)


def test_arguments_that_no_shard_sees_are_checked(db):
    db.c.insert_one({"_id": 1})
    admin = db.client.admin
    ns = f"{db.name}.c"
    both_tokens = {"resumeAfter": {"_data": "00"}, "startAfter": {"_data": "00"}}
    for code, database, command in [
        (14, db, {"explain": 5}),
        (59, db, {"explain": {}}),
        (20, db, {"explain": {"insert": "c", "documents": [{}]}}),
        (2, db, {"explain": {"find": "c"}, "verbosity": "x"}),
        (14, db, {"explain": {"find": "c"}, "verbosity": 1}),
        (125, admin, {"commitTransaction": 1}),
        (125, admin, {"abortTransaction": 1}),
        (40415, admin, {"commitTransaction": 1, "query": {}}),
        (14, admin, {"commitTransaction": 1, "writeConcern": "x"}),
        (14, admin, {"commitTransaction": 1, "txnNumber": "x"}),
        (72, admin, {"abortTransaction": 1, "autocommit": True, "txnNumber": Int64(1)}),
        (13, db, {"abortTransaction": 1}),
        (14, admin, {"listDatabases": 1, "nameOnly": "x"}),
        (40415, admin, {"listDatabases": 1, "nope": 1}),
        (14, admin, {"listDatabases": 1, "readConcern": 5}),
        (14, db, {"dropDatabase": 1, "writeConcern": 5}),
        (5255100, db, {"dropDatabase": 2}),
        (20, admin, {"dropDatabase": 1}),
        (20, db.client.config, {"dropDatabase": 1}),
        (14, admin, {"renameCollection": ns, "to": 5}),
        (20, admin, {"renameCollection": f"{db.name}.system.x", "to": ns}),
        (14, db, {"cloneCollectionAsCapped": "c", "toCollection": 5, "size": 1000}),
        (72, db, {"convertToCapped": "c", "size": "x"}),
        (73, db, {"drop": ".c"}),
        (13, db, {"moveChunk": ns, "find": {}, "to": "s0"}),
        (13, db, {"shardCollection": ns, "key": {"_id": 1}}),
        (14, db, {"aggregate": "c", "pipeline": [], "cursor": {}, "explain": 1}),
        (14, db, {"aggregate": "c", "pipeline": [], "cursor": {}, "collation": 1}),
        (6188500, db, {"aggregate": "c", "pipeline": [{"$changeStream": 1}], "cursor": {}}),
        (14, db, {"aggregate": "c", "pipeline": [{"$changeStream": {"resumeAfter": 1}}], "cursor": {}}),
        (50865, db, {"aggregate": "c", "pipeline": [{"$changeStream": both_tokens}], "cursor": {}}),
        (73, admin, {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}),
    ]:
        with pytest.raises(OperationFailure) as refused:
            database.command(command)
        assert refused.value.code == code, (command, refused.value)
    assert db.c.count_documents({}) == 1
    with db.client.start_session() as session, refuses(263), session.start_transaction():
        admin.command("getParameter", "*", session=session)


def test_what_routers_answer_as_servers_do(db):
    db.c.insert_one({"_id": 1})
    db.c.create_index("a", sparse=True)
    found = db.command("validateDBMetadata", apiParameters={"version": "1", "strict": True}, db=db.name)
    assert [e["ns"] for e in found["apiVersionErrors"]] == [f"{db.name}.c"]
    other = db.client[db.name + "_other"]
    db.client.admin.command("renameCollection", f"{db.name}.c", to=f"{other.name}.c")
    assert other.c.count_documents({}) == 1
    assert "dropped" not in other.command("dropDatabase")
    nowhere = db.client.is_not_there
    assert nowhere.command("dataSize", "is_not_there.c")["size"] == 0
    assert "queryPlanner" in nowhere.command("explain", {"find": "c", "filter": {"a": 1}})
    empty = nowhere.command("dbStats", freeStorage=1)
    assert empty["collections"] == 0 == empty["freeStorageSize"] and isinstance(empty["objects"], Int64)
    assert nowhere.command("planCacheClear", "c")["ok"] == 1
    with refuses(27):
        nowhere.command("setIndexCommitQuorum", "c", indexNames=["a"], commitQuorum=1)
    assert nowhere.command("collStats", "c", scale=1024)["scaleFactor"] == 1024
    assert nowhere.command("planCacheListFilters", "c")["filters"] == []
    for code, command in [
        (2, {"collStats": "c", "scale": 0}),
        (40415, {"collStats": "c", "nope": 1}),
        (73, {"dataSize": "c"}),
        (40415, {"dataSize": "is_not_there.c", "nope": 1}),
        (26, {"validate": "c"}),
        (72, {"validate": "c", "full": True, "background": True}),
        (2, {"planCacheSetFilter": "c", "query": {}, "indexes": []}),
        (2, {"planCacheSetFilter": "c", "query": {}, "indexes": ["a"]}),
        (40414, {"setIndexCommitQuorum": "c", "commitQuorum": 1}),
        (26, {"compactStructuredEncryptionData": "c", "compactionTokens": {}}),
        (40414, {"cleanupStructuredEncryptionData": "c"}),
        (2, {"explain": {"find": "c", "filter": {"$nope": 1}}}),
        (17276, {"explain": {"find": "c", "filter": {"$expr": "$$nope"}}}),
    ]:
        with pytest.raises(OperationFailure) as refused:
            nowhere.command(command)
        assert refused.value.code == code, (command, refused.value)


@pytest.mark.parametrize("name", ["a.b.c", "with space", "äö.☃"])
def test_names_with_dots(db, name):
    coll = shard(db, name, {"k": 1}, at=[5])
    coll.insert_many([{"_id": n, "k": n} for n in range(10)])
    assert coll.count_documents({}) == 10
    coll.aggregate([{"$out": f"{name}.out"}])
    coll.aggregate([{"$merge": f"{name}.merged"}])
    assert db[f"{name}.out"].count_documents({}) == 10 == db[f"{name}.merged"].count_documents({})
    info = [{"ns": coll.full_name}]
    done = db.client.admin.command("bulkWrite", 1, ops=[{"insert": 0, "document": {"k": 11}}], nsInfo=info)
    assert done["nInserted"] == 1
    there = "s1" if db.client.config.databases.find_one({"_id": db.name})["primary"] == "s0" else "s0"
    db.client.admin.command("moveCollection", f"{db.name}.{name}.out", toShard=there)
    assert db[f"{name}.out"].count_documents({}) == 10
    db.client.admin.command("reshardCollection", coll.full_name, key={"k": "hashed"})
    assert coll.count_documents({}) == 11


def test_null_bytes_in_names(db):
    shard(db, "c", {"k": 1}, at=[5])
    admin = db.client.admin
    for command in [
        {"aggregate": "c", "pipeline": [{"$out": "a\0b"}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$merge": "a\0b"}], "cursor": {}},
    ]:
        with pytest.raises(OperationFailure) as refused:
            db.command(command)
        assert refused.value.code == 73, command
    for command in [
        {"shardCollection": f"{db.name}.a\0b", "key": {"k": 1}},
        {"moveCollection": f"{db.name}.a\0b", "toShard": "s0"},
        {"reshardCollection": f"{db.name}.a\0b", "key": {"x": 1}},
        {"analyzeShardKey": f"{db.name}.a\0b", "key": {"x": 1}},
        {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": f"{db.name}.a\0b"}]},
    ]:
        with pytest.raises(OperationFailure) as refused:
            admin.command(command)
        assert refused.value.code == 73, command


def moves(db, **where):
    try:
        return db.client.admin.command("moveChunk", f"{db.name}.c", **where)["ok"]
    except OperationFailure as refused:
        assert refused.code == 262, refused
        return False


def test_large_documents(db, cluster):
    coll = shard(db, "c", {"k": 1}, at=[5])
    most = "x" * (16 * 1024 * 1024 - 60)
    coll.insert_one({"_id": 1, "k": 1, "v": most})
    coll.insert_one({"_id": 9, "k": 9, "v": most})
    with pytest.raises((OperationFailure, DocumentTooLarge)):
        coll.insert_one({"_id": 2, "k": 2, "v": most + "x" * 100})
    sizes = [len(d["v"]) for d in coll.find().sort("k", -1)]
    assert sizes == [len(most)] * 2
    coll.aggregate([{"$out": "out"}])
    shard(db, "merged", {"k": 1}, at=[5])
    coll.aggregate([{"$merge": {"into": "merged", "on": ["_id", "k"]}}])
    assert db.out.count_documents({}) == 2 == db.merged.count_documents({})
    for to in ("s0", "s1"):
        # A machine that is busy may not copy them while routers wait.
        until("it moves", lambda to=to: moves(db, find={"k": 9}, to=to), 60)
    db.client.admin.command("reshardCollection", coll.full_name, key={"_id": "hashed"})
    assert [len(d["v"]) for d in coll.find({"_id": {"$in": [1, 9]}})] == sizes


def test_empty_collections(db):
    coll = shard(db, "c", {"k": 1}, at=[5])
    coll.aggregate([{"$out": "out"}])
    coll.aggregate([{"$merge": "merged"}])
    assert "out" in db.list_collection_names()
    there = "s1" if db.client.config.databases.find_one({"_id": db.name})["primary"] == "s0" else "s0"
    db.client.admin.command("moveCollection", f"{db.name}.out", toShard=there)
    db.client.admin.command("reshardCollection", coll.full_name, key={"k": "hashed"})
    assert coll.count_documents({}) == 0 == db.out.count_documents({})
    with refuses(26):
        db.client.admin.command("moveCollection", f"{db.name}.none", toShard=there)
    with refuses(118):
        db.client.admin.command("reshardCollection", f"{db.name}.out", key={"k": 1})


def test_what_runs_says_where(client, cluster):
    own = client.admin.aggregate([{"$currentOp": {"allUsers": True, "idleConnections": True}}])
    remote = [d for d in own if "shard" in d]
    assert remote and all(d["shard"] in cluster.shards and d["host"] for d in remote)
    assert all("client" not in d for d in remote)
    for d in remote:
        if "opid" in d:
            assert d["opid"].startswith(f"{d['shard']}:")


def test_index_statistics_and_validation_say_where(coll, cluster):
    db = coll.database
    told = list(coll.aggregate([{"$indexStats": {}}]))
    assert told and all(d["shard"] in cluster.shards and d["host"] for d in told)
    valid = db.command("validate", "c")
    assert valid["valid"] and set(valid["raw"]) <= set(cluster.shards)
    assert sum(d["nrecords"] for d in valid["raw"].values()) == 100


def test_map_reduce_with_a_scope(coll, request):
    db = coll.database
    scoped = Code("function() { emit(this.g, factor) }")
    command = {"mapReduce": "c", "map": scoped, "reduce": REDUCE, "scope": {"factor": 2}, "out": {"inline": 1}}
    if "sharded" in request.node.name:
        with refuses(238):
            db.command(command)
    else:
        assert sum(d["value"] for d in db.command(command)["results"]) == 200
    with refuses(238):
        db.command({**command, "out": "totals"})


def test_where_there_is_no_database(client):
    nowhere = client.is_not_there.c
    assert list(nowhere.find()) == [] == nowhere.distinct("x") and nowhere.count_documents({}) == 0
    joined = [{"$unionWith": {"coll": "d", "pipeline": []}}, {"$lookup": {"from": "c", "pipeline": [], "as": "x"}}]
    assert list(nowhere.aggregate(joined)) == []
    with refuses(2):
        nowhere.find_one({"a": {"$geoWithin": {"$box": [["x", 1], [2, 3]]}}})
    with refuses(2):
        nowhere.find_one({"$nonsense": 1})
    assert "is_not_there" not in client.list_database_names()


def test_arguments_of_bulk_writes_are_checked_as_a_shard_checks_them(cluster):
    wrong = [
        {"ops": [{"insert": "x", "document": {}}]},
        {"ops": [{"insert": 3, "document": {}}]},
        {"ops": [{"update": 0, "filter": {}, "updateMods": {"$set": {"a": 1}}, "multi": "x"}]},
        {"ordered": "x"},
        {"let": 3},
        {"errorsOnly": 3},
        {"cursor": 3},
        {"nope": 1},
        {"nsInfo": [{"ns": "bad"}]},
    ]
    with cluster.client() as router, cluster.on_shard("s0") as shard:
        for arguments in wrong:
            command = {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "checked.c"}], **arguments}
            told = []
            for client in (router, shard):
                with pytest.raises(OperationFailure) as refused:
                    client.admin.command(command)
                told.append((refused.value.code, refused.value.details["errmsg"]))
            assert told[0] == told[1], arguments
        assert "checked" not in router.list_database_names()


def test_servers_of_another_release_are_told_so(cluster):
    """A router says in its hello which versions of the cluster's protocol it speaks."""
    for server in (cluster.config, cluster.shards["s0"]):
        with server.wire() as wire:
            reply = wire.command({"hello": 1, "pandoCluster": {"min": 1, "max": 1}, "$db": "admin"})
            assert reply["ok"] == 1 and reply["pandoCluster"] == {"min": 1, "max": 1}
            reply = wire.command({"hello": 1, "pandoCluster": {"min": 7, "max": 9}, "$db": "admin"})
            assert reply["code"] == 188 and "speaks versions 7 to 9" in reply["errmsg"], reply
            assert "pandoCluster" not in wire.command({"hello": 1, "$db": "admin"})


def test_a_set_that_is_a_shard_is_added_before_and_its_address_is_renewed(cluster, client):
    address = f"s1/{cluster.shards['s1'].address}"
    shards = client.config.shards
    try:
        shards.update_one({"_id": "s1"}, {"$set": {"host": f"{address},127.0.0.1:1"}})
        assert client.admin.command("addShard", address)["shardAdded"] == "s1"
        assert shards.find_one({"_id": "s1"})["host"] == address
        with refuses(20, "IllegalOperation", "A shard already exists containing the replica set 's1'"):
            client.admin.command("addShard", address, name="other")
        # Another set of that name is not taken for it.
        shards.update_one({"_id": "s1"}, {"$set": {"host": "s1/127.0.0.1:1"}})
        with refuses(20, "IllegalOperation", "A shard already exists containing the replica set 's1'"):
            client.admin.command("addShard", address)
    finally:
        shards.update_one({"_id": "s1"}, {"$set": {"host": address}})


@pytest.mark.parametrize("level", [None, "local", "majority"])
def test_reads_of_what_is_not_there_are_checked(client, level):
    """A wrong query is refused where there is nothing to read, whatever else the command says."""
    more = {"readConcern": {"level": level}} if level else {}
    nowhere = client.nowhere_at_all
    for wrong in [{"find": "c", "filter": {"$no": 1}}, {"count": "c", "query": {"$no": 1}}, {"distinct": "c", "key": "a", "query": {"$no": 1}}]:
        with refuses(2):
            nowhere.command({**wrong, **more})
    assert nowhere.command({"find": "c", "sort": {"a": 1}, **more})["cursor"]["firstBatch"] == []
    assert nowhere.command({"count": "c", **more})["n"] == 0 and nowhere.command({"distinct": "c", "key": "a", **more})["values"] == []
