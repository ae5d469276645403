"""What bad use of transactions gets: MongoDB's codes and labels; and clients that vanish, which hold up no
other."""

import socket
import struct
import threading

import bson
import pytest
from bson import Int64, Timestamp
from harness import expect_error, until
from test_transactions import TRANSIENT, Raw
from watch import resident_mb

SHORT_LIVED = ("--setParameter", "transactionLifetimeLimitSeconds=1", "--setParameter", "clientCursorMonitorFrequencySecs=1")


@pytest.fixture
def raw(wire, db):
    return lambda name, number=1: Raw(wire, db.name, name, number)


def insert(n):
    return {"insert": "c", "documents": [{"_id": n}]}


def labels(reply):
    return reply.get("errorLabels", [])


def test_numbers_in_the_wrong_order(wire, db, raw):
    t = raw("numbers", 5)
    assert t(insert(1), start=True)["ok"] == 1
    # Of a number that was never begun; the transaction that is open is not touched.
    t.number = 6
    reply = t(insert(2))
    expect_error(reply, 251, "NoSuchTransaction")
    assert labels(reply) == [TRANSIENT]
    t.number = 4
    for start in (True, False):
        reply = t(insert(2), start=start)
        expect_error(reply, 225, "TransactionTooOld")
        assert labels(reply) == []
    expect_error(t.end("commitTransaction"), 225, "TransactionTooOld")
    t.number = 5
    expect_error(t(insert(3), start=True), 50911)
    # A retryable write is of the session's order too.
    plain = {**insert(9), "$db": db.name, "lsid": t.lsid}
    expect_error(wire.command({**plain, "txnNumber": Int64(4)}), 225, "TransactionTooOld")
    expect_error(wire.command({**plain, "txnNumber": Int64(5)}), 50911)
    expect_error(wire.command({**plain, "txnNumber": Int64(-1)}), 72, "InvalidOptions")
    assert t.end("commitTransaction")["ok"] == 1
    assert wire.command({**plain, "txnNumber": Int64(6)})["n"] == 1
    t.number = 6
    expect_error(t(insert(3), start=True), 50911)
    assert [d["_id"] for d in db.c.find()] == [1, 9]


def test_what_makes_a_statement_impossible_ends_the_transaction(db, raw):
    """An operation that is not allowed inside aborts the transaction, and its error says that it is not to be tried again."""
    for n, bad in enumerate([{"count": "c"}, {"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}}, {"drop": "c"}]):
        t = raw("not allowed", n + 1)
        assert t(insert(n), start=True)["ok"] == 1
        reply = t(bad)
        expect_error(reply, 263, "OperationNotSupportedInTransaction")
        assert labels(reply) == []
        t.end("abortTransaction")
    assert db.c.find_one() is None


def test_one_that_is_too_old(new_server):
    """Past its lifetime it is gone, and drivers are told to begin again; so is a snapshot that is too old."""
    server = new_server(*SHORT_LIVED)
    with server.client() as client, server.wire() as wire:
        client.test.c.insert_one({"_id": 0})
        ends = [lambda t: t(insert(2)), lambda t: t({"find": "c"}), lambda t: t.end("commitTransaction"), lambda t: t.end("abortTransaction")]
        transactions = [Raw(wire, "test", f"too old {n}") for n in range(len(ends))]
        for n, t in enumerate(transactions):
            assert t(insert(100 + n), start=True)["ok"] == 1
        until("they are ended", lambda: client.admin.command("serverStatus")["transactions"]["currentOpen"] == 0)
        for t, end in zip(transactions, ends):
            reply = end(t)
            expect_error(reply, 251, "NoSuchTransaction")
            # An abort of an ended transaction is no reason to begin again.
            assert labels(reply) == [TRANSIENT]
        assert client.test.c.count_documents({}) == 1
        t = Raw(wire, "test", "old snapshot")
        reply = t({"find": "c"}, start=True, readConcern={"level": "snapshot", "atClusterTime": Timestamp(5, 1)})
        expect_error(reply, 239, "SnapshotTooOld")
        assert labels(reply) == [TRANSIENT]


def test_too_large_is_not_tried_again(raw, db):
    t = raw("too large")
    fill = "x" * (15 << 20)
    reply = t({"insert": "c", "documents": [{"_id": 0, "fill": fill}]}, start=True)
    for n in range(1, 30):
        if reply["ok"] == 0:
            break
        reply = t({"insert": "c", "documents": [{"_id": n, "fill": fill}]})
    expect_error(reply, 388, "TransactionTooLargeForCache")
    assert labels(reply) == []
    reply = t.end("commitTransaction")
    expect_error(reply, 251)
    # What it held is free again.
    t.number = 2
    assert t({"insert": "c", "documents": [{"_id": 1, "fill": fill}]}, start=True)["n"] == 1
    assert t.end("commitTransaction")["ok"] == 1
    assert db.c.count_documents({}) == 1


def test_a_session_on_two_connections(new_server):
    """A transaction is its session's, not its connection's: another goes on with it, or ends it by a newer number."""
    server = new_server()
    with server.client() as client, server.wire() as one, server.wire() as two:
        client.test.c.insert_one({"_id": 0, "n": 0})
        a, b = Raw(one, "test", "shared"), Raw(two, "test", "shared")
        assert a(insert(1), start=True)["ok"] == 1
        assert b(insert(2))["ok"] == 1
        # To begin what the other has begun is refused, and does no harm.
        expect_error(b(insert(3), start=True), 50911)
        assert len(a({"find": "c"})["cursor"]["firstBatch"]) == 3
        assert b.end("commitTransaction")["ok"] == 1
        assert a.end("commitTransaction")["ok"] == 1
        expect_error(a(insert(4)), 256, "TransactionCommitted")
        assert client.test.c.count_documents({}) == 3
        a.number = b.number = 2
        assert a({"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$set": {"n": 1}}}]}, start=True)["n"] == 1
        b.number = 3
        assert b({"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$set": {"n": 2}}}]}, start=True)["n"] == 1
        for reply in (a(insert(5)), a.end("commitTransaction")):
            expect_error(reply, 225, "TransactionTooOld")
        assert b.end("commitTransaction")["ok"] == 1
        assert client.test.c.find_one({"_id": 0})["n"] == 2


def test_statements_of_one_session_at_once(new_server):
    """Two connections that run statements of one transaction at the same time: one after the other, none is lost."""
    server = new_server()
    with server.client() as client, server.wire() as opener:
        client.test.c.insert_one({"_id": -1})
        opening = Raw(opener, "test", "at once")
        assert opening({"find": "c"}, start=True)["ok"] == 1
        replies = []

        def work(first):
            with server.wire() as wire:
                t = Raw(wire, "test", "at once")
                replies.extend(t(insert(first + i)) for i in range(50))

        threads = [threading.Thread(target=work, args=(i * 100,)) for i in range(6)]
        [t.start() for t in threads]
        [t.join(60) for t in threads]
        assert len(replies) == 300 and all(r["ok"] == 1 and r["n"] == 1 for r in replies)
        assert opening.end("commitTransaction")["ok"] == 1
        assert client.test.c.count_documents({}) == 301


def vanish(wire):
    """The client's machine is gone: no goodbye is said, the connection is reset."""
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.socket.close()


def test_a_thousand_clients_that_vanish(new_server):
    """Each leaves a transaction that holds a document and memory. Others work on meanwhile; when the lifetime is over, all is given back."""
    many, fill = 1000, "x" * 50_000
    server = new_server("--setParameter", "clientCursorMonitorFrequencySecs=1")
    with server.client() as client:
        coll = client.test.c
        coll.insert_many([{"_id": i, "n": 0} for i in range(many + 10)])

        def transactions():
            return client.admin.command("serverStatus")["transactions"]

        def connections():
            return client.admin.command("serverStatus")["connections"]["current"]

        def leave(first, wires):
            """So many open transactions, whose clients are still there."""
            for i, wire in enumerate(wires):
                t = Raw(wire, "test", f"vanishes {first + i}")
                change = {"q": {"_id": first + i}, "u": {"$set": {"n": -1, "fill": fill}}}
                reply = t({"update": "c", "updates": [change]}, start=True)
                assert reply.get("n") == 1, reply

        alone = connections()
        before = resident_mb(server.process.pid)
        for first in range(0, many, 100):
            wires = [server.wire() for _ in range(100)]
            leave(first, wires)
            [vanish(wire) for wire in wires]
        # The client's own monitors may have connected since.
        until("their connections are gone", lambda: connections() < alone + 10)
        status = transactions()
        assert status["currentOpen"] == status["currentInactive"] == many
        held = resident_mb(server.process.pid) - before
        assert held > many * len(fill) / (1 << 20), "they hold what they wrote"
        # Whatever they have not touched is read and written as ever, by plain writes and by transactions.
        for i in range(many, many + 10):
            with client.start_session() as session:
                session.with_transaction(lambda s: coll.update_one({"_id": i}, {"$inc": {"n": 1}}, session=s))
            coll.update_one({"_id": i}, {"$inc": {"n": 1}})
        assert coll.count_documents({"n": 2}) == 10 and coll.count_documents({"n": 0}) == many
        # One that waits for a document of theirs gets it when the lifetime is over.
        waited = []
        waiting = threading.Thread(target=lambda: waited.append(coll.update_one({"_id": 7}, {"$inc": {"n": 5}}).modified_count))
        waiting.start()
        client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=1)
        until("they are aborted", lambda: transactions()["currentOpen"] == 0, 60)
        waiting.join(30)
        assert waited == [1]
        assert transactions()["totalAborted"] == many
        # No latch and no lock is left: every document can be written, at once.
        assert coll.update_many({"_id": {"$lt": many}}, {"$inc": {"n": 1}}, comment="all").modified_count == many
        assert coll.count_documents({"n": 1}) == many - 1 and coll.count_documents({"fill": {"$exists": True}}) == 0
        until("the memory is given back", lambda: resident_mb(server.process.pid) - before < held / 2)


def test_clients_that_vanish_while_their_statement_runs(new_server):
    """Statements that wait for another transaction's document when the client goes: they end, and leave nothing."""
    server = new_server(*SHORT_LIVED)
    with server.client() as client:
        coll = client.test.c
        coll.insert_many([{"_id": i, "n": 0} for i in range(20)])
        wires = [server.wire() for _ in range(20)]
        for n, wire in enumerate(wires):
            t = Raw(wire, "test", f"running {n}")
            assert t({"update": "c", "updates": [{"q": {"_id": n}, "u": {"$inc": {"n": 1}}}]}, start=True)["n"] == 1
            slow = {"find": "c", "filter": {"$where": "sleep(300) || true"}, "lsid": t.lsid, "txnNumber": Int64(1), "autocommit": False, "$db": "test"}
            wire.send_body(bson.encode(slow))
        [vanish(wire) for wire in wires]
        until("all are aborted", lambda: client.admin.command("serverStatus")["transactions"]["currentOpen"] == 0)
        assert coll.update_many({}, {"$inc": {"n": 10}}).modified_count == 20
        assert {d["n"] for d in coll.find()} == {10}
