"""The database `local` of a member of a set: each has its own, which it takes writes to in every state."""

import bson
import pytest
from harness import Server, refuses, until
from pymongo import InsertOne
from pymongo.errors import NotPrimaryError
from pymongo.write_concern import WriteConcern
from replica_set import ReplicaSet
from test_sharding_login import key_file


@pytest.fixture
def members(tmp_path):
    with ReplicaSet(tmp_path) as members:
        yield members


def notes(client):
    return client.local.notes


def test_each_member_has_what_was_written_to_it(members):
    """As mongodb-runner does: before there is a set, on each; it reads it again later."""
    for n, member in enumerate(members.members):
        with member.client() as client:
            assert notes(client).find_one() is None
            notes(client).insert_one({"_id": n, "port": member.port})
    members.initiate()
    with members.client() as client:
        client.d.c.with_options(write_concern=WriteConcern(w=3, wtimeout=20_000)).insert_one({})
    for n, member in enumerate(members.members):
        with member.client() as client:
            assert list(notes(client).find()) == [{"_id": n, "port": member.port}]
    with members.client() as client:
        assert client.local["oplog.rs"].count_documents({"ns": "local.notes"}) == 0
        with client.watch() as stream:
            notes(client).insert_one({"_id": "seen by none"})
            client.d.c.insert_one({"_id": "seen"})
            assert stream.next()["documentKey"] == {"_id": "seen"}


def test_on_a_secondary(members):
    members.initiate()
    secondary = members.secondaries()[0]
    with secondary.client() as client:
        coll = notes(client)
        coll.insert_many([{"_id": i, "a": i} for i in range(300)])
        coll.create_index("a", unique=True)
        with refuses(11000):
            coll.insert_one({"a": 1})
        coll.with_options(write_concern=WriteConcern(w=3, wtimeout=1000)).update_one({"_id": 1}, {"$set": {"b": 1}})
        assert coll.find_one_and_delete({"_id": 2})["a"] == 2
        assert client.admin.command("bulkWrite", 1, ops=[{"insert": 0, "document": {"a": 1000}}], nsInfo=[{"ns": "local.notes"}])["nInserted"] == 1
        coll.bulk_write([InsertOne({"a": n}) for n in (2000, 2001)])
        assert len(list(coll.find(batch_size=10))) == coll.count_documents({}) == 302
        assert coll.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}]).next()["n"] == 302
        assert "a_1" in str(coll.find({"a": 5}).explain()["queryPlanner"]["winningPlan"])
        assert {"notes", "oplog.rs"} <= set(client.local.list_collection_names())
        assert client.local.command("collStats", "notes")["count"] == 302
        assert client.local.command("validate", "notes")["valid"]
        # The member's own collections stay as they were.
        assert client.local["system.replset"].find_one()["_id"] == "rs"
        assert client.local["oplog.rs"].find_one()
        with pytest.raises(NotPrimaryError):
            client.d.c.insert_one({})
        client.local.create_collection("log", capped=True, size=4096)
        coll.drop()
        assert "notes" not in client.local.list_collection_names()
        client.local.log.insert_one({"_id": 1})
    # It is there after a crash, and after the member began anew from the others' files.
    secondary.kill()
    secondary.start()
    with secondary.client() as client:
        assert list(client.local.log.find()) == [{"_id": 1}]
    with members.client() as client:
        until("the set is whole again", lambda: len(client.nodes) == 3)
        assert client.local.log.find_one() is None


def test_sessions(members):
    members.initiate()
    with members.secondaries()[0].client() as client, client.start_session() as session:
        notes(client).insert_one({"_id": 1}, session=session)
        assert notes(client).find_one({}, session=session) == {"_id": 1}
        command = {"insert": "notes", "documents": [{"_id": 2}], "txnNumber": bson.Int64(7)}
        for _ in range(2):
            assert client.local.command(command, session=session)["n"] == 1


def test_who_may(tmp_path):
    """Rights are those of the set's users, as they are when a command comes."""
    with Server(tmp_path / "data", "--replSet", "rs", "--keyFile", key_file(tmp_path / "key")) as server:
        with server.client() as guest:
            with refuses(13):
                notes(guest).insert_one({})
            guest.admin.command("replSetInitiate")
            until("it is primary", lambda: guest.admin.command("hello")["isWritablePrimary"])
            guest.admin.command("createUser", "root", pwd="secret", roles=["root"])
        with server.client(username="root", password="secret") as root:
            root.admin.command("createUser", "noter", pwd="secret", roles=[{"role": "readWrite", "db": "local"}])
            root.admin.command("createUser", "other", pwd="secret", roles=["readWriteAnyDatabase"])
            with server.client(username="noter", password="secret") as noter, server.client(username="other", password="secret") as other:
                notes(noter).insert_many([{"_id": 1}, {"_id": 2}])
                cursor = notes(noter).find(batch_size=1)
                assert cursor.next() == {"_id": 1}
                with refuses(13):
                    notes(other).insert_one({})
                root.admin.command("revokeRolesFromUser", "noter", roles=[{"role": "readWrite", "db": "local"}])
                with refuses(13):
                    notes(noter).insert_one({})
                with refuses(13):
                    cursor.next()
