"""A sharded cluster through its router: what the drivers' users do, and where it ends up."""

import itertools

import bson
import pymongo
import pytest
from harness import refuses
from pymongo import ASCENDING, DESCENDING, DeleteOne, InsertOne, UpdateOne
from pymongo.errors import BulkWriteError
from sharded_cluster import client_fixture, cluster_fixture, on_shards, shard

numbers = itertools.count(1)


cluster = cluster_fixture()
client = client_fixture()


def test_a_router_says_what_it_is(client):
    hello = client.admin.command("hello")
    assert hello["msg"] == "isdbgrid" and "setName" not in hello
    assert client.admin.command("isdbgrid")["isdbgrid"] == 1
    assert client.admin.command("ping")["ok"] == 1
    assert client.admin.command("buildInfo")["version"]
    assert client.admin.command("serverStatus")["process"]
    assert {s["_id"] for s in client.admin.command("listShards")["shards"]} == {"s0", "s1"}
    assert set(client.admin.command("getShardMap")["map"]) == {"config", "s0", "s1"}
    assert client.is_mongos
    # What sh.status() begins with.
    assert client.config.version.find_one()["clusterId"]
    assert client.config.mongos.count_documents({}) >= 1
    for command in ("shardingState", "splitVector"):
        with refuses(59):
            client.admin.command(command)


def test_a_shard_says_which_it_is(cluster):
    with cluster.on_shard("s0") as direct:
        told = direct.admin.command("shardingState")
        assert told["enabled"] is True and told["shardName"] == "s0" and told["configServer"].startswith("csrs/")
        shards = direct.admin.command("getShardMap")
        assert set(shards["map"]) == {"config", "s0"}
        assert shards["hosts"][cluster.shards["s0"].address] == "s0"
        assert shards["connStrings"][shards["map"]["s0"]] == "s0"


def test_a_collection_that_is_not_sharded(db, cluster):
    coll = db.plain
    coll.insert_many([{"_id": n, "x": n % 3} for n in range(300)])
    assert coll.count_documents({"x": 1}) == 100
    assert [d["_id"] for d in coll.find().sort("_id", DESCENDING).limit(3)] == [299, 298, 297]
    assert len(list(coll.find({}, batch_size=50))) == 300
    coll.update_many({"x": 2}, {"$set": {"y": 1}})
    assert coll.delete_many({"x": 0}).deleted_count == 100
    assert coll.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}, return_document=True)["n"] == 1
    assert coll.create_index("x") == "x_1"
    assert set(coll.index_information()) == {"_id_", "x_1"}
    assert list(coll.aggregate([{"$group": {"_id": "$x", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}])) == [
        {"_id": 1, "n": 100},
        {"_id": 2, "n": 100},
    ]
    primary = db.client.config.databases.find_one({"_id": db.name})["primary"]
    counts = on_shards(cluster, coll)
    assert counts.pop(primary) == 200 and set(counts.values()) == {0}


def test_ranges_lie_where_the_metadata_says(db, cluster):
    coll = shard(db, "ranged", {"k": 1}, at=[100, 200, 300])
    coll.insert_many([{"_id": n, "k": n} for n in range(400)])
    counts = on_shards(cluster, coll)
    assert sum(counts.values()) == 400 and min(counts.values()) >= 100
    chunks = list(db.client.config.chunks.find({"uuid": db.client.config.collections.find_one({"_id": coll.full_name})["uuid"]}))
    assert len(chunks) == 4
    assert coll.find_one({"k": 250})["_id"] == 250
    assert coll.count_documents({}) == 400
    assert coll.count_documents({"k": {"$gte": 50, "$lt": 350}}) == 300
    assert [d["k"] for d in coll.find().sort("k", DESCENDING).skip(5).limit(5)] == [394, 393, 392, 391, 390]
    assert sorted(coll.distinct("k", {"k": {"$lt": 120}})) == list(range(120))
    assert {d["k"] for d in coll.find({"k": {"$in": [5, 150, 399]}})} == {5, 150, 399}


def test_batches_of_a_merged_cursor(db):
    coll = shard(db, "batches", {"k": 1}, at=[500])
    coll.insert_many([{"k": n, "pad": "x" * 50, "s": -n} for n in range(1000)])
    found = list(coll.find({}, {"_id": 0, "k": 1}).sort("s", ASCENDING).batch_size(77))
    assert found == [{"k": n} for n in range(999, -1, -1)]
    assert len(list(coll.find().batch_size(33))) == 1000
    cursor = coll.find().batch_size(2)
    next(cursor)
    cursor.close()
    with refuses(43):
        db.command("getMore", bson.Int64(12345), collection=coll.name)


def test_hashed_compound_and_unique_keys(db, cluster):
    hashed = shard(db, "hashed", {"_id": "hashed"})
    hashed.insert_many([{"_id": n} for n in range(500)])
    counts = on_shards(cluster, hashed)
    assert sum(counts.values()) == 500 and min(counts.values()) > 150
    assert hashed.find_one({"_id": 77}) == {"_id": 77}
    compound = shard(db, "compound", {"a": 1, "b": 1}, at=[5])
    compound.insert_many([{"a": n % 10, "b": n} for n in range(100)])
    assert compound.count_documents({"a": 7}) == 10
    assert compound.count_documents({"a": 7, "b": 17}) == 1
    unique = shard(db, "unique", {"u": 1}, at=[50], unique=True)
    unique.insert_many([{"u": n} for n in range(100)])
    for n in (10, 90):
        with refuses(11000):
            unique.insert_one({"u": n})
    presplit = shard(db, "presplit", {"h": "hashed"}, numInitialChunks=8)
    uuid = db.client.config.collections.find_one({"_id": presplit.full_name})["uuid"]
    assert db.client.config.chunks.count_documents({"uuid": uuid}) == 8


def test_writes_go_to_one_shard_or_to_all(db):
    coll = shard(db, "writes", {"k": 1}, at=[50])
    coll.insert_many([{"_id": n, "k": n, "v": 0} for n in range(100)])
    assert coll.update_one({"k": 10}, {"$inc": {"v": 1}}).modified_count == 1
    assert coll.update_many({}, {"$inc": {"v": 1}}).modified_count == 100
    assert coll.update_one({"_id": 77}, {"$inc": {"v": 5}}).modified_count == 1
    assert coll.find_one({"_id": 77})["v"] == 6
    assert coll.update_one({"k": 200}, {"$set": {"v": 9}}, upsert=True).upserted_id is not None
    assert coll.find_one({"k": 200})["v"] == 9
    assert coll.replace_one({"k": 20}, {"k": 20, "v": "new"}).modified_count == 1
    assert coll.find_one({"k": 20})["v"] == "new"
    assert coll.delete_one({"_id": 80}).deleted_count == 1
    assert coll.delete_many({"v": 1, "k": {"$lt": 70}}).deleted_count > 50
    assert coll.find_one_and_delete({"k": 90})["_id"] == 90
    assert coll.find_one_and_update({"_id": 91}, {"$set": {"v": 7}}, return_document=True)["v"] == 7
    assert coll.find_one_and_update({}, {"$set": {"v": 8}}, sort=[("k", -1)], return_document=True)["k"] == 200


def test_bulk_writes_keep_their_order_and_their_numbers(db):
    coll = shard(db, "bulk", {"k": 1}, at=[50])
    operations = [InsertOne({"_id": n, "k": n}) for n in range(0, 100, 3)]
    done = coll.bulk_write(operations)
    assert done.inserted_count == len(operations)
    mixed = [UpdateOne({"k": 3}, {"$set": {"x": 1}}), DeleteOne({"k": 99}), UpdateOne({"k": 60}, {"$set": {"x": 2}})]
    assert coll.bulk_write(mixed).modified_count == 2
    with pytest.raises(BulkWriteError) as failure:
        coll.insert_many([{"_id": 1000, "k": 1}, {"_id": 0, "k": 0}, {"_id": 1001, "k": 99}])
    assert failure.value.details["nInserted"] == 1 and failure.value.details["writeErrors"][0]["index"] == 1
    with pytest.raises(BulkWriteError) as failure:
        coll.insert_many([{"_id": 2000, "k": 1}, {"_id": 0, "k": 0}, {"_id": 2001, "k": 99}], ordered=False)
    assert failure.value.details["nInserted"] == 2 and failure.value.details["writeErrors"][0]["index"] == 1


def test_aggregations(db):
    coll = shard(db, "agg", {"k": 1}, at=[50])
    coll.insert_many([{"_id": n, "k": n, "g": n % 4, "list": [n, n + 1]} for n in range(100)])
    grouped = list(coll.aggregate([{"$group": {"_id": "$g", "n": {"$sum": 1}, "top": {"$max": "$k"}}}, {"$sort": {"_id": 1}}]))
    assert grouped == [{"_id": g, "n": 25, "top": 96 + g} for g in range(4)]
    averaged = list(coll.aggregate([{"$group": {"_id": None, "avg": {"$avg": "$k"}}}]))
    assert averaged == [{"_id": None, "avg": 49.5}]
    assert list(coll.aggregate([{"$match": {"k": {"$lt": 60}}}, {"$count": "n"}])) == [{"n": 60}]
    top = list(coll.aggregate([{"$sort": {"k": -1}}, {"$limit": 3}, {"$project": {"_id": 0, "k": 1}}]))
    assert top == [{"k": 99}, {"k": 98}, {"k": 97}]
    assert len(list(coll.aggregate([{"$unwind": "$list"}], batchSize=7))) == 200
    assert len(list(coll.aggregate([{"$unwind": "$list"}, {"$sort": {"list": 1}}], batchSize=7))) == 200
    facets = list(coll.aggregate([{"$facet": {"n": [{"$count": "n"}], "g": [{"$sortByCount": "$g"}, {"$limit": 1}]}}]))
    assert facets[0]["n"] == [{"n": 100}] and facets[0]["g"][0]["count"] == 25
    assert list(coll.aggregate([{"$match": {"k": 7}}, {"$group": {"_id": None, "n": {"$sum": 1}}}])) == [{"_id": None, "n": 1}]


def test_collections_and_indexes_over_shards(db, cluster):
    coll = shard(db, "ddl", {"k": 1}, at=[50])
    coll.insert_many([{"k": n, "x": n} for n in range(100)])
    coll.create_index("x")
    for name in cluster.shards:
        with cluster.on_shard(name) as direct:
            assert "x_1" in direct[db.name].ddl.index_information()
    with refuses(67):
        coll.create_index("x2", unique=True)
    coll.drop_index("x_1")
    for name in cluster.shards:
        with cluster.on_shard(name) as direct:
            assert "x_1" not in direct[db.name].ddl.index_information()
    with refuses(370):
        coll.drop_index("k_1")
    assert db.name in db.client.list_database_names()
    assert "ddl" in db.list_collection_names()
    stats = db.command("collStats", "ddl")
    assert stats["sharded"] and stats["count"] == 100 and set(stats["shards"]) == {"s0", "s1"}
    coll.drop()
    assert db.client.config.collections.find_one({"_id": f"{db.name}.ddl"}) is None
    db.ddl.insert_one({"_id": 1})
    assert sum(on_shards(cluster, db.ddl).values()) == 1


def test_what_is_refused(db):
    admin = db.client.admin
    coll = shard(db, "refused", {"k": 1}, at=[50])
    with refuses(23):
        admin.command("shardCollection", coll.full_name, key={"other": 1})
    with refuses(118):
        admin.command("moveChunk", f"{db.name}.nothing", find={"k": 1}, to="s0")
    with refuses(70):
        admin.command("moveChunk", coll.full_name, find={"k": 1}, to="nowhere")
    with pytest.raises(pymongo.errors.WriteError) as failure:
        coll.insert_one({"k": [1, 2]})
    assert failure.value.code == 61
    coll.insert_one({"_id": 1, "k": 1})
    with pytest.raises(pymongo.errors.WriteError) as failure:
        coll.update_many({"k": 1}, {"$set": {"k": 99}})
    assert failure.value.code == 72
    assert coll.find_one({"k": 1}) == {"_id": 1, "k": 1}


def test_retried_writes_are_done_once(db, cluster):
    coll = shard(db, "retried", {"k": 1}, at=[50])
    coll.insert_many([{"k": n, "v": 0} for n in (1, 99)])
    lsid = {"id": bson.Binary(bytes(range(16)), 4)}
    updates = [{"q": {"k": n}, "u": {"$inc": {"v": 1}}} for n in (1, 99, 1)]
    command = {"update": "retried", "updates": updates, "lsid": lsid, "txnNumber": bson.Int64(1), "$db": db.name}
    with cluster.routers[0].wire() as wire:
        for _ in range(3):
            assert wire.command(command)["n"] == 3
    assert {d["k"]: d["v"] for d in coll.find()} == {1: 2, 99: 1}


def test_a_transaction_on_one_shard(db):
    coll = shard(db, "txn", {"k": 1}, at=[50])
    coll.insert_one({"k": 1, "v": 0})
    with db.client.start_session() as session:
        with session.start_transaction():
            coll.update_one({"k": 1}, {"$inc": {"v": 1}}, session=session)
            coll.insert_one({"k": 2, "v": 5}, session=session)
        assert coll.find_one({"k": 1})["v"] == 1 and coll.find_one({"k": 2})["v"] == 5
        session.start_transaction()
        coll.update_one({"k": 1}, {"$inc": {"v": 1}}, session=session)
        session.abort_transaction()
    assert coll.find_one({"k": 1})["v"] == 1


def test_another_router_learns_of_what_this_one_did(cluster, db):
    coll = shard(db, "stale", {"k": 1}, at=[50])
    coll.insert_many([{"k": n} for n in range(100)])
    with ShardedClusterRouter(cluster) as other:
        theirs = other[db.name].stale
        assert theirs.count_documents({}) == 100
        db.client.admin.command("moveChunk", coll.full_name, find={"k": 75}, to="s0")
        db.client.admin.command("moveChunk", coll.full_name, find={"k": 25}, to="s1")
        assert theirs.count_documents({}) == 100
        theirs.insert_one({"k": 101})
        theirs.update_many({"k": {"$gte": 90}}, {"$set": {"x": 1}})
        assert coll.count_documents({"x": 1}) == 11
        coll.drop()
        assert theirs.count_documents({}) == 0


class ShardedClusterRouter:
    """One more router of a cluster, and its client."""

    def __init__(self, cluster):
        from harness import BINARY, Server

        path = cluster.config.path.parent / f"extra{next(numbers)}"
        self.server = Server(path, "--configdb", f"csrs/{cluster.config.address}", program=[BINARY, "route"])

    def __enter__(self):
        self.server.start()
        self.client = self.server.client()
        return self.client

    def __exit__(self, *_):
        self.client.close()
        assert self.server.stop() == 0
