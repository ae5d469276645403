"""Logical sessions."""

from bson import Binary, Int64

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
