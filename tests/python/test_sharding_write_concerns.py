"""What shards say of a write concern that was not fulfilled, as a client of the router is told it. Each shard has two
members, of which one votes: a majority is fulfilled while the other stands still."""

import contextlib
import signal

import pytest
from harness import refuses
from pymongo import InsertOne, UpdateOne, WriteConcern
from pymongo.errors import BulkWriteError, WriteConcernError, WTimeoutError
from sharded_cluster import client_fixture, cluster_fixture, shard

BOTH = {"w": 2, "wtimeout": 100}


cluster = cluster_fixture(replicas=2, settings={1: {"priority": 0, "votes": 0}})
client = client_fixture()


@contextlib.contextmanager
def alone(cluster, *names):
    """The other members of these shards stand still."""
    others = [server for name in names for server in cluster.sets[name][1:]]
    for server in others:
        server.stand_still()
    try:
        yield
    finally:
        for server in others:
            server.process.send_signal(signal.SIGCONT)


def cut(db, name="c"):
    """Below 50 on one shard, the rest on the other."""
    return shard(db, name, {"k": 1}, at=[50])


def names_shards(error, *shards):
    """It says of these shards that they have waited too long."""
    assert (error["code"], error["codeName"]) == (64, "WriteConcernFailed"), error
    assert error["errInfo"]["wtimeout"] is True, error
    assert all(error["errmsg"].count(f"at {name}") == 1 for name in shards), error
    assert error["errmsg"].count(" at s") == len(shards), error
    return True


def test_batches_on_several_shards(cluster, db):
    coll = cut(db).with_options(write_concern=WriteConcern(**BOTH))
    with alone(cluster, "s0", "s1"):
        with pytest.raises(BulkWriteError) as failed:
            coll.insert_many([{"_id": n, "k": n} for n in range(0, 100, 10)])
        [error] = failed.value.details["writeConcernErrors"]
        assert names_shards(error, "s0", "s1") and failed.value.details["nInserted"] == 10
        reply = db.command("update", "c", updates=[{"q": {}, "u": {"$set": {"x": 1}}, "multi": True}], writeConcern=BOTH, check=False)
        assert (reply["n"], reply["nModified"]) == (10, 10) and names_shards(reply["writeConcernError"], "s0", "s1")
        with pytest.raises(WTimeoutError):
            coll.insert_one({"_id": 7, "k": 7})
        with pytest.raises(WTimeoutError):
            coll.delete_many({"x": 1})
        assert coll.count_documents({}) == 1
    db.c.with_options(write_concern=WriteConcern(w=2, wtimeout=20_000)).insert_one({"_id": 8, "k": 80})


def test_only_the_shard_that_was_late_is_named(cluster, db):
    coll = cut(db).with_options(write_concern=WriteConcern(w=2, wtimeout=3000))
    late = "s1" if db.client.config.databases.find_one({"_id": db.name})["primary"] == "s0" else "s0"
    chunk = db.client.config.chunks.find_one({"min": {"k": 50}}, sort=[("lastmod", -1)])
    late = chunk["shard"] if chunk else late
    with alone(cluster, late):
        reply = db.command("insert", "c", documents=[{"k": 1}, {"k": 99}], writeConcern=BOTH, check=False)
        assert reply["n"] == 2 and reply["writeConcernError"]["errmsg"].count(" at s") == 1
        names_shards(reply["writeConcernError"], late)


def test_bulk_writes(cluster, db):
    cut(db)
    ops = [{"insert": 0, "document": {"_id": n, "k": n}} for n in (1, 99)]
    ops.append({"update": 0, "filter": {"k": 1}, "updateMods": {"$set": {"x": 1}}})
    info = [{"ns": f"{db.name}.c"}]
    with alone(cluster, "s0", "s1"):
        reply = db.client.admin.command("bulkWrite", 1, ops=ops, nsInfo=info, writeConcern=BOTH, check=False)
        assert (reply["nInserted"], reply["nModified"], reply["nErrors"]) == (2, 1, 0)
        names_shards(reply["writeConcernError"], "s0", "s1")
        with pytest.raises(BulkWriteError) as failed:
            db.c.with_options(write_concern=WriteConcern(**BOTH)).bulk_write(
                [InsertOne({"_id": 3, "k": 3}), UpdateOne({"k": 99}, {"$set": {"x": 1}})]
            )
        assert failed.value.details["writeConcernErrors"] and failed.value.details["nModified"] == 1


def test_find_and_modify_and_documents_that_move(cluster, db):
    coll = cut(db).with_options(write_concern=WriteConcern(**BOTH))
    db.c.insert_many([{"_id": n, "k": n} for n in (1, 2, 99)])
    with alone(cluster, "s0", "s1"):
        for query, update in [({"k": 1}, {"$set": {"x": 1}}), ({"_id": 2}, {"$set": {"x": 1}}), ({"k": 1}, {"$set": {"k": 70}})]:
            with pytest.raises(WriteConcernError) as failed:
                coll.find_one_and_update(query, update)
            assert failed.value.code == 64, (query, update)
        with pytest.raises(WTimeoutError):
            coll.update_one({"k": 2}, {"$set": {"k": 71}})
    assert sorted(d["k"] for d in coll.find()) == [70, 71, 99]


def test_commits(cluster, db):
    coll = cut(db)
    client = db.client
    for keys in ([1], [2, 60]):
        with alone(cluster, "s0", "s1"), client.start_session() as session:
            session.start_transaction(write_concern=WriteConcern(**BOTH))
            for k in keys:
                coll.insert_one({"_id": k, "k": k}, session=session)
            with pytest.raises(WTimeoutError):
                session.commit_transaction()
        assert coll.count_documents({"_id": {"$in": keys}}) == len(keys)


def test_pipelines_that_write(cluster, db):
    coll = cut(db)
    cut(db, "into")
    coll.insert_many([{"_id": n, "k": n} for n in range(0, 100, 10)])
    with alone(cluster, "s0", "s1"):
        for stage in ({"$merge": {"into": "into", "on": ["_id", "k"]}}, {"$merge": "plain"}, {"$out": "out"}):
            reply = db.command("aggregate", "c", pipeline=[stage], cursor={}, writeConcern=BOTH, check=False)
            assert reply["ok"] == 1 and reply["writeConcernError"]["code"] == 64, stage
    assert [db[name].count_documents({}) for name in ("into", "plain", "out")] == [10, 10, 10]


def test_definitions(cluster, db):
    coll = cut(db)
    coll.insert_many([{"k": 1}, {"k": 99}])
    index = {"key": {"x": 1}, "name": "x_1"}
    with alone(cluster, "s0", "s1"):

        def late(command, *args, **more):
            reply = db.command(command, *args, writeConcern=BOTH, check=False, **more)
            assert reply["ok"] == 1 and reply["writeConcernError"]["code"] == 64, (command, reply)
            return reply

        names_shards(late("createIndexes", "c", indexes=[index], commitQuorum=1)["writeConcernError"], "s0", "s1")
        names_shards(late("collMod", "c", index={"name": "x_1", "hidden": True})["writeConcernError"], "s0", "s1")
        names_shards(late("dropIndexes", "c", index="x_1")["writeConcernError"], "s0", "s1")
        late("create", "plain")
        late("createIndexes", "plain", indexes=[index], commitQuorum=1)
        late("drop", "plain")
        late("drop", "c")
        late("dropDatabase", 1)
    assert db.list_collection_names() == []


def test_a_concern_that_cannot_be_fulfilled(db):
    cut(db)
    reply = db.command("insert", "c", documents=[{"k": 1}, {"k": 99}], writeConcern={"w": 5}, check=False)
    assert reply["n"] == 2 and reply["writeConcernError"]["code"] == 100
    reply = db.command("insert", "c", documents=[{"k": 1}, {"k": 99}], writeConcern={"w": "nobody"}, check=False)
    assert reply["n"] == 2 and reply["writeConcernError"]["code"] == 79
    with refuses(9):
        db.command("insert", "c", documents=[{"k": 1}], writeConcern={"w": []})
