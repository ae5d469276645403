"""Transactions that write on several shards: all or nothing, whatever process is killed, and locks that are
released."""

import itertools
import threading
import time

import bson
import pytest
from harness import until
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from sharded_cluster import client_fixture, cluster_fixture, fail

sessions = itertools.count(1)


cluster = cluster_fixture(shards=3, routers=2)
# Through the second router: tests kill the first.
client = client_fixture(1)


@pytest.fixture
def coll(db):
    """A collection with a document on each of three shards."""
    admin, ns = db.client.admin, f"{db.name}.c"
    admin.command("enableSharding", db.name, primaryShard="s0")
    admin.command("shardCollection", ns, key={"k": 1})
    for n in (1, 2):
        admin.command("split", ns, middle={"k": n * 10})
        admin.command("moveChunk", ns, find={"k": n * 10}, to=f"s{n}")
    db.c.insert_many([{"_id": n, "k": n * 10 + 1, "v": 0} for n in range(3)])
    return db.c


class Transaction:
    """One of a session of its own, sent without a driver."""

    def __init__(self, cluster, coll, router=0):
        self.cluster, self.coll, self.router = cluster, coll, router
        self.lsid = {"id": bson.Binary(next(sessions).to_bytes(16, "big"), 4)}
        self.started, self.token = False, None

    def send(self, command, router=None, timeout_s=60):
        with self.cluster.routers[self.router if router is None else router].wire(timeout_s=timeout_s) as wire:
            return wire.command({**command, "lsid": self.lsid, "txnNumber": bson.Int64(1), "autocommit": False})

    def statement(self, command, **fields):
        start = {} if self.started else {"startTransaction": True, **fields}
        self.started = True
        reply = self.send({**command, **start, "$db": self.coll.database.name})
        self.token = reply.get("recoveryToken", self.token)
        return reply

    def set(self, *which):
        for n in which:
            update = {"q": {"k": n * 10 + 1}, "u": {"$set": {"v": 1}}}
            reply = self.statement({"update": "c", "updates": [update]})
            assert reply["ok"] == 1 and reply["n"] == 1, reply
        return self

    def end(self, command="commitTransaction", router=None, **fields):
        return self.send({command: 1, "$db": "admin", **fields}, router)


def values(coll):
    return [d["v"] for d in coll.find().sort("_id")]


def free(coll):
    """Nothing holds the documents."""
    def done():
        try:
            update = {"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}
            return coll.database.command("update", coll.name, updates=[update], maxTimeMS=1000)["n"] == 3
        except OperationFailure as e:
            assert e.code in (50, 112), e
            return False

    until("all documents can be written to", done, 40)


def heal(cluster):
    for shard in cluster.shards.values():
        if shard.running():
            with shard.client() as direct:
                direct.admin.command("configureFailPoint", "failCommand", mode="off")


def test_writes_on_several_shards(cluster, client, coll):
    with client.start_session() as session:
        with session.start_transaction():
            assert coll.update_many({}, {"$inc": {"v": 1}}, session=session).modified_count == 3
            coll.insert_many([{"_id": f"n{n}", "k": n * 10 + 5, "v": 7} for n in range(3)], session=session)
            assert coll.delete_one({"k": 21}, session=session).deleted_count == 1
            assert coll.count_documents({}, session=session) == 5
            assert values(coll) == [0, 0, 0]
        assert sorted(values(coll)) == [1, 1, 7, 7, 7]
        session.start_transaction()
        coll.delete_many({}, session=session)
        session.abort_transaction()
        assert coll.count_documents({}) == 5
        # As a driver does it: with a retry after each conflict.
        session.with_transaction(lambda s: coll.update_many({}, {"$set": {"v": 3}}, session=s))
    assert set(values(coll)) == {3}


def test_a_commit_that_comes_again_through_any_router(cluster, coll):
    transaction = Transaction(cluster, coll).set(1, 0, 2)
    assert transaction.token == {"recoveryShardId": "s1"}
    assert transaction.end()["ok"] == 1
    for router in (0, 1, 0, 1):
        assert transaction.end(router=router, recoveryToken=transaction.token)["ok"] == 1
    assert values(coll) == [1, 1, 1]
    assert transaction.end("abortTransaction")["code"] == 256
    assert transaction.statement({"find": "c"})["code"] == 256


def test_a_statement_that_fails_ends_it_everywhere(cluster, coll):
    transaction = Transaction(cluster, coll).set(0, 1)
    assert transaction.statement({"insert": "c", "documents": [{"_id": 2, "k": 21}]})["writeErrors"]
    ended = transaction.end()
    assert ended["code"] == 251 and "TransientTransactionError" in ended["errorLabels"]
    assert values(coll) == [0, 0, 0]
    free(coll)


def test_half_a_transaction_is_not_committed_by_another_router(cluster, coll):
    """Its router is gone, or has not said: one that knows of nothing can only ask the shard that decides."""
    transaction = Transaction(cluster, coll).set(0, 1)
    assert transaction.end(router=1, recoveryToken=transaction.token)["code"] == 251
    ended = transaction.end()
    assert ended["code"] == 251 and "TransientTransactionError" in ended["errorLabels"]
    assert values(coll) == [0, 0, 0]
    free(coll)


@pytest.mark.parametrize("command", ["_pandoPrepare", "commitTransaction", "_pandoDecide"])
@pytest.mark.parametrize("closes", [True, False])
def test_a_message_that_fails(cluster, coll, command, closes):
    """Once each, on the shard that decides or on another."""
    how = {"closeConnection": True} if closes else {"errorCode": 91}
    for shard in ("s0", "s1"):
        fail(cluster, shard, mode={"times": 1}, failCommands=[command], **how)
        transaction = Transaction(cluster, coll).set(0, 1)
        reply = transaction.end()
        heal(cluster)
        found = values(coll)[:2]
        assert found == ([1, 1] if reply["ok"] else [0, 0]), (shard, reply)
        if not reply["ok"]:
            assert reply["code"] == 251 and "TransientTransactionError" in reply["errorLabels"]
        coll.update_many({}, {"$set": {"v": 0}})


@pytest.mark.parametrize("shard,command,committed", [
    ("s1", "_pandoPrepare", False),
    ("s0", "commitTransaction", None),
    ("s1", "_pandoDecide", True),
    ("s0", "_pandoOutcome", True),
])
def test_a_router_that_is_killed_at_each_step(cluster, coll, shard, command, committed):
    """The step's command blocks on the shard while the router is killed; then it has its effect all the same."""
    fail(cluster, shard, failCommands=[command], blockConnection=True, blockTimeMS=1500)
    transaction = Transaction(cluster, coll).set(0, 1, 2)

    def commit():
        try:
            transaction.end()
        except (OSError, EOFError):
            pass

    ends = threading.Thread(target=commit)
    ends.start()
    threading.Event().wait(0.7)
    cluster.routers[0].kill()
    ends.join()
    heal(cluster)
    try:
        free(coll)
        found = values(coll)
        assert found in ([0, 0, 0], [1, 1, 1]), found
        assert committed is None or (found == [1, 1, 1]) == committed
        outcome = transaction.end(router=1, recoveryToken=transaction.token)
        assert (outcome["ok"] == 1) == (found == [1, 1, 1]), outcome
        with cluster.on_shard("s1") as direct:
            left = lambda: direct.admin.command("_pandoPrepared")["prepared"]
            until("nothing is left", lambda: not left(), 20)
    finally:
        cluster.routers[0].start()


@pytest.mark.parametrize("killed", ["s0", "s1"])
@pytest.mark.parametrize("command", ["_pandoPrepare", "commitTransaction", "_pandoDecide"])
def test_a_shard_that_is_killed_at_each_step(cluster, coll, killed, command):
    blocks = "s0" if command == "commitTransaction" else "s1"
    fail(cluster, blocks, failCommands=[command], blockConnection=True, blockTimeMS=800)
    transaction = Transaction(cluster, coll).set(0, 1)
    replies = []
    ends = threading.Thread(target=lambda: replies.append(transaction.end()))
    ends.start()
    threading.Event().wait(0.4)
    cluster.shards[killed].kill()
    cluster.shards[killed].start()
    ends.join()
    heal(cluster)
    reply = replies[0]
    if not reply["ok"] and reply["code"] != 251:
        reply = transaction.end()
    free(coll)
    found = values(coll)
    assert found[:2] == ([1, 1] if reply["ok"] else [0, 0]), (found, reply)
    assert reply["ok"] or reply["code"] == 251, reply


def test_a_new_transaction_of_the_session_waits_for_the_one_before(cluster, coll):
    fail(cluster, "s1", failCommands=["_pandoDecide"], mode={"times": 3}, errorCode=91)
    transaction = Transaction(cluster, coll).set(0, 1)
    assert transaction.end()["ok"] == 1
    heal(cluster)
    with cluster.routers[0].wire() as wire:
        find = {"find": "c", "filter": {"k": 11}, "lsid": transaction.lsid, "txnNumber": bson.Int64(2), "autocommit": False}
        found = wire.command({**find, "startTransaction": True, "$db": coll.database.name})
        assert found["cursor"]["firstBatch"][0]["v"] == 1
    free(coll)
    assert values(coll) == [1, 1, 0]


def test_a_range_that_moves_has_what_was_prepared(cluster, client, coll):
    fail(cluster, "s1", failCommands=["_pandoDecide"], mode={"times": 3}, errorCode=91)
    transaction = Transaction(cluster, coll).set(0, 1)
    assert transaction.end()["ok"] == 1
    heal(cluster)

    def moved():
        try:
            client.admin.command("moveChunk", coll.full_name, find={"k": 11}, to="s2")
            return True
        except OperationFailure as e:
            assert e.code == 24, e
            return False

    until("the range moves", moved, 40)
    assert values(coll) == [1, 1, 0]
    with cluster.on_shard("s2") as direct:
        assert direct[coll.database.name].c.find_one({"k": 11})["v"] == 1


def test_a_decision_is_later_than_what_was_prepared_for_it(cluster, coll):
    """Otherwise a snapshot between the two shows the part of the shard that decides, and no other."""
    transaction = Transaction(cluster, coll).set(0, 1)
    ahead = bson.Timestamp(int(time.time()) + 1000, 1)
    with cluster.on_shard("s1") as other, cluster.on_shard("s0") as deciding:
        assert other.admin.command("_pandoTime", 1, atLeast=ahead)["time"] >= ahead
        assert deciding.admin.command("_pandoTime", 1)["time"] < ahead
        assert transaction.end()["ok"] == 1
        assert deciding.admin.command("_pandoTime", 1)["time"] > ahead
        [committed] = deciding.local["oplog.rs"].find({"o.applyOps.ns": f"{coll.database.name}.c"})
        assert committed["ts"] > ahead
    # What one shard alone commits is later than what the router has seen, too.
    transaction = Transaction(cluster, coll).set(2)
    assert transaction.end()["operationTime"] > ahead
    assert values(coll) == [1, 1, 1]


def test_a_change_stream_shows_all_of_it(client, coll):
    with coll.watch(max_await_time_ms=200) as stream, client.start_session() as session:
        with session.start_transaction():
            coll.update_many({}, {"$inc": {"v": 1}}, session=session)
        events = []
        until("three events", lambda: (e := stream.try_next()) and events.append(e) or len(events) == 3)
        lsid = session.session_id["id"]
    assert {e["documentKey"]["_id"] for e in events} == {0, 1, 2}
    assert {e["txnNumber"] for e in events} == {events[0]["txnNumber"]}
    assert all(e["lsid"]["id"] == lsid for e in events)


def test_a_snapshot_is_one_moment_of_all_shards(cluster, client, coll):
    """Where a shard has not heard of a commit yet, a snapshot shows it all the same; before it, nowhere."""
    snapshot = {"readConcern": {"level": "snapshot"}}
    reads = Transaction(cluster, coll)
    first = reads.statement({"find": "c", "filter": {"k": 1}}, **snapshot)
    assert first["cursor"]["firstBatch"][0]["v"] == 0
    fail(cluster, "s1", failCommands=["_pandoDecide"], mode={"times": 3}, errorCode=91)
    assert Transaction(cluster, coll).set(0, 1, 2).end()["ok"] == 1
    # s1 has not been told: a plain read shows it as it was.
    assert values(coll) == [1, 0, 1]
    assert [d["v"] for d in reads.statement({"find": "c", "sort": {"_id": 1}})["cursor"]["firstBatch"]] == [0, 0, 0]
    late = Transaction(cluster, coll)
    found = late.statement({"find": "c", "sort": {"_id": 1}}, **snapshot)
    assert [d["v"] for d in found["cursor"]["firstBatch"]] == [1, 1, 1]
    update = {"q": {"k": 11}, "u": {"$inc": {"v": 1}}}
    conflict = late.statement({"update": "c", "updates": [update]})
    assert conflict.get("code") == 112 or conflict["writeErrors"][0]["code"] == 112
    with client.start_session(snapshot=True) as session:
        assert [d["v"] for d in coll.find(session=session).sort("_id")] == [1, 1, 1]
        heal(cluster)
        free(coll)
        coll.update_many({}, {"$set": {"v": 9}})
        assert [d["v"] for d in coll.find(session=session).sort("_id")] == [1, 1, 1]
        assert coll.find_one({"k": 11}, session=session)["v"] == 1
    assert values(coll) == [9, 9, 9]


def test_a_snapshot_that_a_shard_has_lost_is_replaced(cluster, client, coll):
    """Its primary has failed since it was pinned. A client that has named a time itself gets the error."""
    try:
        fail(cluster, "s1", mode={"times": 1}, failCommands=["find"], errorCode=239)
        with client.start_session(snapshot=True) as session:
            assert len(list(coll.find({}, session=session))) == 3
        fail(cluster, "s1", mode={"times": 1}, failCommands=["find"], errorCode=239)
        with pytest.raises(OperationFailure) as error, client.start_session() as session:
            with session.start_transaction(read_concern=ReadConcern("snapshot")):
                coll.find_one({"k": 11}, session=session)
        assert error.value.code == 239 and error.value.has_error_label("TransientTransactionError")
    finally:
        heal(cluster)
    ahead = bson.Timestamp(int(time.time()) + 100_000, 1)
    with pytest.raises(OperationFailure) as error:
        coll.database.command("find", "c", readConcern={"level": "snapshot", "atClusterTime": ahead})
    assert error.value.code == 72
