"""Logical sessions."""

import hashlib

from bson import Binary, Int64

from auth_client import log_in
from harness import expect_error


def test_explicit_session(client, coll):
    with client.start_session() as session:
        coll.insert_one({"_id": 1}, session=session)
        assert coll.find_one({"_id": 1}, session=session) == {"_id": 1}
        coll.update_one({"_id": 1}, {"$set": {"a": 1}}, session=session)
        assert session.operation_time is not None and session.cluster_time is not None


def test_causally_consistent_reads(client, coll):
    with client.start_session(causal_consistency=True) as session:
        for i in range(20):
            coll.insert_one({"_id": i}, session=session)
            assert coll.find_one({"_id": i}, session=session) == {"_id": i}


def test_start_refresh_end(wire):
    started = wire.command({"startSession": 1, "$db": "admin"})
    assert started["timeoutMinutes"] == 30 and isinstance(started["id"]["id"], Binary)
    lsid = {"id": started["id"]["id"]}
    assert wire.command({"refreshSessions": [lsid], "$db": "admin"})["ok"] == 1
    assert wire.command({"ping": 1, "lsid": lsid, "$db": "admin"})["ok"] == 1
    assert wire.command({"endSessions": [lsid], "$db": "admin"})["ok"] == 1
    assert wire.command({"killSessions": [lsid], "$db": "admin"})["ok"] == 1
    expect_error(wire.command({"endSessions": 1, "$db": "admin"}), 14, "TypeMismatch")


def test_killing_a_session_kills_its_cursors(wire, coll):
    coll.insert_many([{"_id": i} for i in range(10)])
    lsid = {"id": Binary(b"killed by tests!", 4)}
    db = coll.database.name
    cursor = wire.command({"find": coll.name, "$db": db, "batchSize": 2, "lsid": lsid})["cursor"]
    wire.command({"killSessions": [lsid], "$db": "admin"})
    expect_error(wire.command({"getMore": Int64(cursor["id"]), "collection": coll.name, "$db": db, "lsid": lsid}), 43, "CursorNotFound")


def test_cursor_of_another_session(wire, coll):
    coll.insert_many([{"_id": i} for i in range(10)])
    mine, other = {"id": Binary(b"m" * 16, 4)}, {"id": Binary(b"o" * 16, 4)}
    db = coll.database.name
    cursor = wire.command({"find": coll.name, "$db": db, "batchSize": 2, "lsid": mine})["cursor"]
    reply = wire.command({"getMore": Int64(cursor["id"]), "collection": coll.name, "$db": db, "lsid": other})
    expect_error(reply, 50738)


def test_cluster_time_moves_on(wire, coll):
    def insert(i):
        return wire.command({"insert": coll.name, "$db": coll.database.name, "documents": [{"_id": i}]})["operationTime"]

    times = [insert(i) for i in range(5)]
    assert times == sorted(times) and len(set(times)) == 5


def two_users(new_server):
    server = new_server("--auth")
    server.client().admin.command("createUser", "root", pwd="p", roles=["root"])
    with server.client(username="root", password="p") as root:
        for user in ("ann", "bob"):
            root.shop.command("createUser", user, pwd="p", roles=["readWrite"])
        root.shop.things.insert_many([{"_id": i} for i in range(10)])
    wires = {}
    for user, db in (("ann", "shop"), ("bob", "shop"), ("root", "admin")):
        wires[user] = server.wire()
        log_in(wires[user], user, "p", db)
    return wires


def test_a_session_is_its_users(new_server):
    wires = two_users(new_server)
    ann, bob, root = wires["ann"], wires["bob"], wires["root"]
    lsid = {"id": Binary(b"the same for all", 4)}
    begin = {"insert": "things", "documents": [{"_id": "ann"}], "lsid": lsid, "txnNumber": Int64(1), "autocommit": False, "startTransaction": True, "$db": "shop"}
    assert ann.command(begin)["ok"] == 1
    commit = {"commitTransaction": 1, "lsid": lsid, "txnNumber": Int64(1), "autocommit": False, "$db": "admin"}
    expect_error(bob.command(commit), 251, "NoSuchTransaction")
    assert bob.command({"find": "things", "filter": {"_id": "ann"}, "$db": "shop"})["cursor"]["firstBatch"] == []
    assert ann.command(commit)["ok"] == 1
    # A retryable write of one is not a retry of the other's.
    for wire, user in ((ann, "a"), (bob, "b"), (ann, "a"), (bob, "b")):
        write = {"insert": "retried", "documents": [{"_id": user}], "lsid": lsid, "txnNumber": Int64(9), "$db": "shop"}
        assert wire.command(write)["n"] == 1
    # No user may name another's session.
    other = {**lsid, "uid": Binary(b"\x07" * 32, 0)}
    for command in ({"ping": 1, "lsid": other}, {"killSessions": [other]}):
        expect_error(bob.command({**command, "$db": "admin"}), 13, "Unauthorized")
    assert root.command({"killSessions": [other], "$db": "admin"})["ok"] == 1


def test_every_user_ends_its_own_sessions(new_server):
    wires = two_users(new_server)
    lsid = {"id": Binary(b"the same for all", 4)}
    find = {"find": "things", "batchSize": 2, "lsid": lsid, "$db": "shop"}
    open_ = {user: wires[user].command(find)["cursor"]["id"] for user in ("ann", "bob")}

    def lives(user):
        more = {"getMore": Int64(open_[user]), "collection": "things", "batchSize": 1, "lsid": lsid, "$db": "shop"}
        return wires[user].command(more)["ok"] == 1

    for kill in ({"killSessions": [lsid]}, {"endSessions": [lsid]}, {"killSessions": []}):
        assert wires["bob"].command({**kill, "$db": "admin"})["ok"] == 1
    assert lives("ann") and not lives("bob")
    open_["bob"] = wires["bob"].command(find)["cursor"]["id"]
    expect_error(wires["bob"].command({"killAllSessions": [{"user": "ann", "db": "shop"}], "$db": "admin"}), 13, "Unauthorized")
    assert wires["root"].command({"killAllSessions": [{"user": "ann", "db": "shop"}], "$db": "admin"})["ok"] == 1
    assert lives("bob") and not lives("ann")
    listed = {"aggregate": 1, "cursor": {}, "$db": "admin"}

    def owners(user, spec):
        rows = wires[user].command({**listed, "pipeline": [{"$listLocalSessions": spec}]})
        return {bytes(r["_id"]["uid"]) for r in rows["cursor"]["firstBatch"]}

    bobs = hashlib.sha256(b"bob@shop").digest()
    assert owners("bob", {}) == {bobs}
    assert owners("root", {"users": [{"user": "bob", "db": "shop"}]}) == {bobs}
    expect_error(wires["bob"].command({**listed, "pipeline": [{"$listLocalSessions": {"allUsers": True}}]}), 13, "Unauthorized")
    assert wires["root"].command({"killAllSessionsByPattern": [{"users": [{"user": "bob", "db": "shop"}]}], "$db": "admin"})["ok"] == 1
    assert not lives("bob")
