"""Expressions that take long end with maxTimeMS and with killOp, wherever they are evaluated."""

import threading
import time

import pytest
from harness import until
from pymongo.errors import ExecutionTimeout, OperationFailure

# A document at a time this goes on for minutes; no stage and no scan gets a say in between.
RANGE = {"$range": [0, {"$add": ["$n", 3000]}]}
LONG = {
    "$reduce": {
        "input": RANGE,
        "initialValue": 0,
        "in": {"$add": ["$$value", {"$size": {"$filter": {"input": RANGE, "cond": {"$ne": ["$$this", -1]}}}}]},
    }
}
FOREVER = {"$reduce": {"input": RANGE, "initialValue": 0, "in": {"$add": ["$$value", LONG]}}}


@pytest.fixture
def one(db):
    db.c.insert_one({"_id": 1, "n": 3000})
    return db


@pytest.mark.parametrize(
    "command",
    [
        {"find": "c", "filter": {"$expr": {"$gt": [FOREVER, 0]}}},
        {"find": "c", "projection": {"x": FOREVER}},
        {"count": "c", "query": {"$expr": {"$gt": [FOREVER, 0]}}},
        {"distinct": "c", "key": "n", "query": {"$expr": {"$gt": [FOREVER, 0]}}},
        {"aggregate": "c", "pipeline": [{"$project": {"x": FOREVER}}], "cursor": {}},
        {"aggregate": "c", "pipeline": [{"$match": {"$expr": {"$gt": [FOREVER, 0]}}}], "cursor": {}},
        {"update": "c", "updates": [{"q": {}, "u": [{"$set": {"x": FOREVER}}]}]},
        {"update": "c", "updates": [{"q": {"$expr": {"$gt": [FOREVER, 0]}}, "u": {"$set": {"x": 1}}}]},
        {"delete": "c", "deletes": [{"q": {"$expr": {"$gt": [FOREVER, 0]}}, "limit": 1}]},
        {"findAndModify": "c", "query": {"$expr": {"$gt": [FOREVER, 0]}}, "remove": True},
    ],
    ids=lambda c: next(iter(c)),
)
def test_time_limit(one, command):
    started = time.monotonic()
    with pytest.raises(ExecutionTimeout):
        one.command({**command, "maxTimeMS": 200})
    assert time.monotonic() - started < 5
    # The event loops are free meanwhile and afterwards.
    assert one.c.find_one() == {"_id": 1, "n": 3000}


def test_later_batches_have_the_limit_of_their_own(one):
    one.c.insert_many([{"_id": i, "n": -3000} for i in range(2, 300)])
    one.c.insert_one({"_id": 300, "n": 3000})
    with one.c.aggregate(
        [{"$match": {"_id": {"$gt": 1}}}, {"$project": {"x": FOREVER}}], maxTimeMS=1000, batchSize=10
    ) as cursor:
        with pytest.raises(ExecutionTimeout):
            list(cursor)


EXPLAINED = [
    {"find": "c", "filter": {"$expr": {"$gt": [FOREVER, 0]}}},
    {"count": "c", "query": {"$expr": {"$gt": [FOREVER, 0]}}},
    {"distinct": "c", "key": "n", "query": {"$expr": {"$gt": [FOREVER, 0]}}},
    {"aggregate": "c", "pipeline": [{"$project": {"x": FOREVER}}], "cursor": {}},
    {"update": "c", "updates": [{"q": {"$expr": {"$gt": [FOREVER, 0]}}, "u": {"$set": {"x": 1}}}]},
]


@pytest.mark.parametrize("command", EXPLAINED, ids=lambda c: next(iter(c)))
def test_time_limit_of_an_explanation(one, command):
    for explain in ({"explain": command, "maxTimeMS": 100}, {"explain": {**command, "maxTimeMS": 100}}):
        with pytest.raises(ExecutionTimeout):
            one.command({**explain, "verbosity": "executionStats"})
    # Planning alone evaluates nothing.
    assert one.command("explain", command, verbosity="queryPlanner", maxTimeMS=60_000)["ok"] == 1


def kill(db, comment):
    """Kills the operations with this comment that run now."""
    for op in db.client.admin.command("currentOp")["inprog"]:
        if op.get("command", {}).get("comment") == comment:
            db.client.admin.command("killOp", op=op["opid"])


@pytest.mark.parametrize("command", [{"aggregate": "c", "pipeline": [{"$project": {"x": FOREVER}}], "cursor": {}}, *(
    {"explain": c, "verbosity": "executionStats"} for c in EXPLAINED
)], ids=lambda c: "_".join([next(iter(c)), *(c["explain"] if "explain" in c else [])][:2]))
def test_kill(one, command):
    failed = []

    def run():
        try:
            one.command({**command, "comment": "the one to kill"})
        except OperationFailure as e:
            failed.append(e.code)

    thread = threading.Thread(target=run)
    thread.start()
    until("it ends", lambda: kill(one, "the one to kill") or not thread.is_alive(), 15)
    assert failed == [11601]


def test_ddl_waits_for_a_write_no_longer_than_it_may(one):
    ended = []

    def scan():
        scanning = {"q": {"$expr": {"$gt": [FOREVER, 0]}}, "u": {"$set": {"x": 1}}}
        try:
            # The limit is for a server that fails this test.
            one.command({"update": "c", "updates": [scanning], "comment": "scans", "maxTimeMS": 20_000})
        except OperationFailure as e:
            ended.append(e.code)

    thread = threading.Thread(target=scan)
    thread.start()
    # Until the update has come to its scan there is nothing to wait for.
    with pytest.raises(ExecutionTimeout):
        until("it waits", lambda: not one.command("collMod", "c", validationLevel="strict", maxTimeMS=200), 15)
    one.c.insert_one({"_id": 2, "n": 0})
    until("the update ends", lambda: kill(one, "scans") or not thread.is_alive())
    assert ended == [11601]
    assert one.command("collMod", "c", validationLevel="strict", maxTimeMS=20_000)["ok"] == 1
