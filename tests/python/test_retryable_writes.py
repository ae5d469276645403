"""Retryable writes: a statement that is sent again is not done again, whatever happened between."""

import uuid

import pytest
from bson import Binary, Int64

from harness import expect_error


def session():
    return {"id": Binary.from_uuid(uuid.uuid4())}


class Retrying:
    """Commands with a session and a transaction number, over a bare connection."""

    def __init__(self, server, db):
        self.server, self.db, self.lsid = server, db, session()
        self.wire = server.wire()

    def __call__(self, number, command):
        return self.wire.command({**command, "$db": self.db, "lsid": self.lsid, "txnNumber": Int64(number)})

    def reconnect(self):
        self.wire.close()
        self.wire = self.server.wire()


@pytest.fixture
def retrying(server, db):
    return Retrying(server, db.name)


def test_insert_once(retrying, coll):
    command = {"insert": coll.name, "documents": [{"_id": 1}, {"_id": 2}]}
    first, again = retrying(1, command), retrying(1, command)
    assert first["n"] == again["n"] == 2 and "writeErrors" not in again
    assert again["retriedStmtIds"] == [0, 1]
    assert coll.count_documents({}) == 2


def test_update_once(retrying, coll):
    coll.insert_one({"_id": 1, "n": 0})
    command = {"update": coll.name, "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]}
    for _ in range(4):
        reply = retrying(2, command)
        assert (reply["n"], reply["nModified"]) == (1, 1)
    assert coll.find_one()["n"] == 1
    retrying(3, command)
    assert coll.find_one()["n"] == 2


def test_upsert_once(retrying, coll):
    command = {"update": coll.name, "updates": [{"q": {"k": 1}, "u": {"$inc": {"n": 1}}, "upsert": True}]}
    first, again = retrying(1, command), retrying(1, command)
    assert first["upserted"] == again["upserted"] and again["n"] == 1 and again["nModified"] == 0
    assert coll.count_documents({}) == 1 and coll.find_one()["n"] == 1


def test_delete_once(retrying, coll):
    coll.insert_many([{"_id": i, "a": 1} for i in range(3)])
    command = {"delete": coll.name, "deletes": [{"q": {"a": 1}, "limit": 1}]}
    assert [retrying(1, command)["n"] for _ in range(3)] == [1, 1, 1]
    assert coll.count_documents({}) == 2


@pytest.mark.parametrize(
    "arguments, value",
    [
        ({"query": {"_id": 1}, "update": {"$inc": {"n": 1}}}, {"_id": 1, "n": 0}),
        ({"query": {"_id": 1}, "update": {"$inc": {"n": 1}}, "new": True}, {"_id": 1, "n": 1}),
        ({"query": {"_id": 1}, "remove": True}, {"_id": 1, "n": 0}),
        ({"query": {"_id": 2}, "update": {"$set": {"n": 5}}, "upsert": True, "new": True}, {"_id": 2, "n": 5}),
        ({"query": {"_id": 3}, "update": {"$set": {"n": 5}}}, None),
    ],
)
def test_find_and_modify_gives_the_same_again(retrying, coll, arguments, value):
    coll.insert_one({"_id": 1, "n": 0})
    command = {"findAndModify": coll.name, **arguments}
    first, again = retrying(1, command), retrying(1, command)
    assert first["value"] == again["value"] == value
    assert first["lastErrorObject"] == again["lastErrorObject"]
    count = coll.count_documents({})
    retrying(1, command)
    assert coll.count_documents({}) == count


def test_partly_done_batches_are_completed(retrying, coll):
    retrying(1, {"insert": coll.name, "documents": [{"_id": 1}], "stmtIds": [0]})
    reply = retrying(1, {"insert": coll.name, "documents": [{"_id": 1}, {"_id": 2}], "stmtIds": [0, 1]})
    assert reply["n"] == 2 and reply.get("retriedStmtIds") == [0]
    assert coll.count_documents({}) == 2


def test_an_old_number_is_refused(retrying, coll):
    retrying(5, {"insert": coll.name, "documents": [{"_id": 1}]})
    expect_error(retrying(4, {"insert": coll.name, "documents": [{"_id": 2}]}), 225, "TransactionTooOld")
    assert coll.count_documents({}) == 1


def test_an_error_is_not_remembered_as_done(retrying, coll):
    coll.insert_one({"_id": 1})
    command = {"insert": coll.name, "documents": [{"_id": 1}]}
    assert retrying(1, command)["writeErrors"][0]["code"] == 11000
    coll.delete_one({"_id": 1})
    assert retrying(1, command)["n"] == 1
    assert coll.count_documents({}) == 1


def test_sessions_do_not_see_each_others_numbers(server, db, coll):
    a, b = Retrying(server, db.name), Retrying(server, db.name)
    a(1, {"insert": coll.name, "documents": [{"_id": "a"}]})
    b(1, {"insert": coll.name, "documents": [{"_id": "b"}]})
    assert sorted(coll.distinct("_id")) == ["a", "b"]


def test_multi_statements_are_refused_a_number(retrying, coll):
    coll.insert_one({"_id": 1})
    for number, command in enumerate(
        [
            {"update": coll.name, "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "multi": True}]},
            {"delete": coll.name, "deletes": [{"q": {}, "limit": 0}]},
        ],
        1,
    ):
        assert [e["code"] for e in retrying(number, command)["writeErrors"]] == [72]
    assert coll.count_documents({"a": {"$exists": False}}) == 1


def test_a_number_without_a_session(wire, coll):
    reply = wire.command({"insert": coll.name, "documents": [{}], "$db": coll.database.name, "txnNumber": Int64(1)})
    expect_error(reply, 72, "InvalidOptions")


def test_a_number_for_a_command_that_takes_none(retrying, coll):
    expect_error(retrying(1, {"find": coll.name}), 50768)


def test_once_across_kills(new_server):
    """Killed after the acknowledgement, started again, sent again: once."""
    server = new_server()
    writes = [
        {"insert": "things", "documents": [{"_id": "in"}], "writeConcern": {"w": 1}},
        {"update": "things", "updates": [{"q": {"_id": "counter"}, "u": {"$inc": {"n": 1}}}], "writeConcern": {"w": 1}},
        {"update": "things", "updates": [{"q": {"k": "up"}, "u": {"$inc": {"n": 1}}, "upsert": True}], "writeConcern": {"w": 1}},
        {"findAndModify": "things", "query": {"_id": "counter"}, "update": {"$inc": {"m": 1}}, "new": True, "writeConcern": {"w": 1}},
        {"delete": "things", "deletes": [{"q": {"gone": 1}, "limit": 1}], "writeConcern": {"w": 1}},
    ]
    with server.client() as client:
        client.retry.things.insert_one({"_id": "counter", "n": 0, "m": 0})
        client.retry.things.insert_many([{"gone": 1}, {"gone": 1}])
    retrying = Retrying(server, "retry")
    for number, command in enumerate(writes, 1):
        first = retrying(number, command)
        assert first["ok"] == 1, first
        for _ in range(2):
            server.kill()
            server.start()
            retrying.reconnect()
            again = retrying(number, command)
            for field in ("n", "nModified", "upserted", "value", "lastErrorObject"):
                assert first.get(field) == again.get(field), (command, first, again)
    with server.client() as client:
        things = client.retry.things
        assert things.find_one({"_id": "counter"}) == {"_id": "counter", "n": 1, "m": 1}
        assert things.count_documents({"gone": 1}) == 1 and things.count_documents({"k": "up", "n": 1}) == 1
        expect_error(retrying(len(writes) - 1, writes[0]), 225, "TransactionTooOld")


def test_bad_numbers(wire, coll):
    command = {"insert": coll.name, "documents": [{}], "$db": coll.database.name, "lsid": session()}
    expect_error(wire.command({**command, "txnNumber": "x"}), 14, "TypeMismatch")
    expect_error(wire.command({**command, "txnNumber": Int64(-1)}), 72, "InvalidOptions")
