"""`currentOp` and `$currentOp`, `killOp`, `$listLocalSessions`, and `dbHash`."""

import threading

import pytest
from pymongo.errors import OperationFailure

from harness import refuses, until

SLOW = [
    {"$unionWith": {"coll": "big"}},
    {"$lookup": {"from": "big", "let": {"n": "$n"}, "pipeline": [{"$match": {"$expr": {"$eq": ["$x", "$$n"]}}}], "as": "j"}},
    {"$group": {"_id": None, "n": {"$sum": {"$size": "$j"}}}},
]


@pytest.fixture
def big(db):
    db.big.insert_many([{"n": i, "x": -i} for i in range(3000)])
    return db


def test_seen_and_killed(client, big):
    failed = []

    def run():
        with pytest.raises(OperationFailure) as raised:
            list(big.big.aggregate(SLOW, comment="to be killed"))
        failed.append(raised.value.code)

    thread = threading.Thread(target=run)
    thread.start()
    stage = [{"$currentOp": {}}, {"$match": {"command.comment": "to be killed"}}]
    op = until("the operation is shown", lambda: next(client.admin.aggregate(stage), None))
    assert op["active"] and op["type"] == "op" and op["op"] == "command" and op["ns"] == f"{big.name}.big"
    assert op["microsecs_running"] >= 0 and op["client"].startswith("127.0.0.1") and "lsid" in op
    by_command = client.admin.command({"currentOp": 1, "command.comment": "to be killed"})["inprog"]
    assert [o["opid"] for o in by_command] == [op["opid"]]
    client.admin.command("killOp", 1, op=op["opid"])
    thread.join(20)
    assert failed == [11601]


def test_idle_connections_and_cursors(client, big):
    cursor = big.big.find({}, batch_size=2)
    next(cursor)
    docs = list(client.admin.aggregate([{"$currentOp": {"idleConnections": True, "idleCursors": True}}]))
    # Other tests of this server may have left cursors of their own.
    idle = [d for d in docs if d["type"] == "idleCursor" and d["ns"] == f"{big.name}.big"]
    assert [d["cursor"]["cursorId"] for d in idle] == [cursor.cursor_id]
    assert idle[0]["cursor"]["originatingCommand"]["find"] == "big"
    assert all("secs_running" not in d for d in docs if d["type"] == "op" and not d["active"])
    cursor.close()
    assert not [d for d in client.admin.aggregate([{"$currentOp": {}}]) if d["type"] == "idleCursor"]


def test_options_are_checked(client):
    for spec, code in [(1, 14), ({"allUsers": 1}, 14), ({"nope": True}, 40415), ({"targetAllNodes": True}, 9)]:
        with refuses(code):
            client.admin.command("aggregate", 1, pipeline=[{"$currentOp": spec}], cursor={})
    with refuses(12):
        spec = {"allUsers": True, "users": [{"user": "a", "db": "b"}]}
        client.admin.command("aggregate", 1, pipeline=[{"$listLocalSessions": spec}], cursor={})


def test_local_sessions(client):
    with client.start_session() as session:
        client.admin.command("ping", session=session)
        ids = [s["_id"]["id"] for s in client.admin.aggregate([{"$listLocalSessions": {}}])]
        assert session.session_id["id"] in ids


def test_db_hash(db):
    db.a.insert_many([{"_id": 1}, {"_id": 2}])
    db.b.insert_one({"_id": 1})
    first = db.command("dbHash")
    assert set(first["collections"]) == {"a", "b"} == set(first["uuids"])
    db.a.insert_one({"_id": 3})
    second = db.command("dbHash")
    assert second["collections"]["a"] != first["collections"]["a"] and second["md5"] != first["md5"]
    assert second["collections"]["b"] == first["collections"]["b"]
    db.a.delete_one({"_id": 3})
    assert db.command("dbHash")["md5"] == first["md5"]
    assert set(db.command("dbHash", collections=["b"])["collections"]) == {"b"}


def test_idle_transactions_can_be_left_out(client, coll):
    coll.insert_one({"_id": 1})
    with client.start_session() as session, session.start_transaction():
        coll.update_one({"_id": 1}, {"$set": {"v": 1}}, session=session)

        def idle_sessions(**options):
            shown = client.admin.aggregate([{"$currentOp": options}, {"$match": {"type": "idleSession"}}])
            return [d["lsid"]["id"] for d in shown]

        own = session.session_id["id"]
        assert own in idle_sessions() and own in idle_sessions(idleSessions=True)
        assert idle_sessions(idleSessions=False) == []
        session.abort_transaction()
