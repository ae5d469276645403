"""`readConcern: snapshot` outside of transactions: a session whose reads all show one moment."""

import pytest
from bson import Timestamp
from pymongo import InsertOne

from harness import expect_error, refuses


@pytest.fixture
def filled(coll):
    coll.insert_many([{"_id": i, "n": i % 3} for i in range(300)])
    coll.create_index("n")
    return coll


def test_a_session_reads_one_moment(client, filled):
    with client.start_session(snapshot=True) as session:
        assert filled.find_one({"_id": 1}, session=session)["n"] == 1
        filled.update_one({"_id": 1}, {"$set": {"n": 7}})
        filled.delete_one({"_id": 2})
        filled.insert_one({"_id": 1000, "n": 9})
        filled.database.late.insert_one({"_id": 1})
        assert filled.find_one({"_id": 1}, session=session) == {"_id": 1, "n": 1}
        assert filled.find_one({"_id": 2}, session=session) == {"_id": 2, "n": 2}
        assert [d["_id"] for d in filled.find({"n": 1}, session=session).sort("_id").limit(3)] == [1, 4, 7]
        assert sorted(filled.distinct("n", session=session)) == [0, 1, 2]
        assert list(filled.aggregate([{"$count": "n"}], session=session)) == [{"n": 300}]
        assert list(filled.aggregate([{"$group": {"_id": "$n"}}, {"$sort": {"_id": 1}}], session=session)) == [
            {"_id": 0},
            {"_id": 1},
            {"_id": 2},
        ]
        assert list(filled.database.late.find({}, session=session)) == []
    with client.start_session(snapshot=True) as session:
        assert filled.find_one({"_id": 1}, session=session)["n"] == 7
        assert list(filled.aggregate([{"$count": "n"}], session=session)) == [{"n": 300}]
        assert list(filled.database.late.find({}, session=session)) == [{"_id": 1}]


def test_a_session_that_has_read_sees_its_own_writes_only_in_the_next(client, coll):
    for i in range(20):
        coll.insert_one({"_id": i})
        with client.start_session(snapshot=True) as session:
            assert coll.find_one({"_id": i}, session=session) == {"_id": i}
            coll.bulk_write([InsertOne({"_id": f"later {i}"})])
            assert list(coll.aggregate([{"$match": {"_id": f"later {i}"}}], session=session)) == []


def test_joins_in_later_batches_read_the_same_moment(client, filled):
    other = filled.database.other
    other.insert_many([{"_id": i, "word": "old"} for i in range(300)])
    join = {"$lookup": {"from": "other", "localField": "_id", "foreignField": "_id", "as": "o"}}
    with client.start_session(snapshot=True) as session:
        rows = filled.aggregate([{"$sort": {"_id": 1}}, join], batchSize=2, session=session)
        assert next(rows)["o"][0]["word"] == "old"
        other.update_many({}, {"$set": {"word": "new"}})
        assert {r["o"][0]["word"] for r in rows} == {"old"}
    assert filled.aggregate([{"$match": {"_id": 9}}, join]).next()["o"][0]["word"] == "new"


def test_views_and_cursors(client, filled):
    db = filled.database
    db.create_collection("ones", viewOn=filled.name, pipeline=[{"$match": {"n": 1}}])
    with client.start_session(snapshot=True) as session:
        assert len(list(db.ones.find({}, session=session))) == 100
        rows = filled.find({"n": 1}, batch_size=10, session=session)
        next(rows)
        filled.update_many({"n": 1}, {"$set": {"n": 5}})
        assert len(list(rows)) == 99
        assert len(list(db.ones.find({}, session=session))) == 100
        assert db.ones.distinct("n", session=session) == [1]
    assert len(list(db.ones.find({}))) == 0


def test_replies_tell_the_time(wire, filled):
    db, snapshot = filled.database.name, {"level": "snapshot"}
    first = wire.command({"find": filled.name, "batchSize": 2, "readConcern": snapshot, "$db": db})["cursor"]
    at = first["atClusterTime"]
    assert isinstance(at, Timestamp)
    filled.delete_many({})
    more = wire.command({"getMore": first["id"], "collection": filled.name, "batchSize": 2, "$db": db})["cursor"]
    assert more["atClusterTime"] == at and len(more["nextBatch"]) == 2
    again = {"level": "snapshot", "atClusterTime": at}
    counted = wire.command({"aggregate": filled.name, "pipeline": [{"$count": "n"}], "cursor": {}, "readConcern": again, "$db": db})
    assert counted["cursor"]["firstBatch"] == [{"n": 300}] and counted["cursor"]["atClusterTime"] == at
    values = wire.command({"distinct": filled.name, "key": "n", "readConcern": again, "$db": db})
    assert values["values"] == [0, 1, 2] and values["atClusterTime"] == at
    nothing = wire.command({"find": "nowhere", "readConcern": again, "$db": db})["cursor"]
    assert nothing["firstBatch"] == [] and nothing["atClusterTime"] == at
    assert "atClusterTime" not in wire.command({"find": filled.name, "$db": db})["cursor"]


def test_moments_that_cannot_be_read(wire, filled):
    db = filled.database.name

    def find(at):
        return wire.command({"find": filled.name, "readConcern": {"level": "snapshot", "atClusterTime": at}, "$db": db})

    expect_error(find(Timestamp(1, 1)), 239, "SnapshotTooOld")
    expect_error(find(Timestamp(2**32 - 1, 1)), 72, "InvalidOptions")


def test_what_was_dropped_since(client, filled):
    with client.start_session(snapshot=True) as session:
        assert filled.find_one({"n": 1}, session=session)
        filled.drop_index("n_1")
        with refuses(246, "SnapshotUnavailable"):
            filled.find_one({"n": 1}, session=session)
    with client.start_session(snapshot=True) as session:
        assert filled.find_one({"n": 1}, session=session)
        filled.drop()
        with refuses(246, "SnapshotUnavailable"):
            list(filled.find({}, session=session))


def test_out_writes_to_what_is_there(client, filled):
    with client.start_session(snapshot=True) as session:
        filled.find_one({}, session=session)
    concern = {"level": "snapshot"}
    filled.database.command("aggregate", filled.name, pipeline=[{"$out": "copy"}], cursor={}, readConcern=concern)
    assert filled.database["copy"].count_documents({}) == 300
