"""What many clients have the server allocate for one operation each is shared out: they wait for each other."""

import threading
import time

import pytest
from bson import encode
from bson.raw_bson import RawBSONDocument
from harness import Server, until
from pymongo.errors import OperationFailure, PyMongoError
from watch import Watch

CACHE = 64
CLIENTS = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("operations") / "data", "--cache", f"{CACHE}m") as server, server.client() as client:
        client.big.c.insert_many([{"_id": i, "a": i, "n": 100} for i in range(20)])
        yield server


def figures(client):
    return client.admin.command("serverStatus")["pandodb"]["operationMemory"]


def lent_bytes(client):
    return client.admin.command("serverStatus")["pandodb"]["engine"]["lentBytes"]


def raw(value):
    """A document that is encoded once."""
    return RawBSONDocument(encode(value)) if isinstance(value, dict) else value


def function(body):
    return {"$function": {"body": body, "args": [], "lang": "js"}}


COMMANDS = {
    "filters": lambda: {"find": "c", "filter": {f"a{i}": i for i in range(150_000)}},
    "plans": lambda: {"count": "c", "query": {"$or": [{"a": i, "b": i} for i in range(30_000)]}},
    "values": lambda: {
        "aggregate": "c",
        "pipeline": [{"$limit": 1}, {"$project": {"x": {"$size": {"$range": [0, {"$multiply": ["$n", 30_000]}]}}}}],
        "cursor": {},
    },
    "scripts": lambda: {
        "aggregate": "c",
        "pipeline": [{"$limit": 1}, {"$project": {"x": function(
            "function() { var a = []; for (var i = 0; i < 60; i++) a.push('x'.repeat(1e6) + i); return a.length; }"
        )}}],
        "cursor": {},
    },
    "updates": lambda: {
        "update": "c", "updates": [{"q": {"_id": 1}, "u": {"$unset": {f"b{i}": 1 for i in range(150_000)}}}],
    },
}


@pytest.mark.parametrize("name", COMMANDS)
def test_many_clients_take_turns(server, name):
    command = {name: raw(value) for name, value in COMMANDS[name]().items()}
    failures = []
    with server.client(maxPoolSize=CLIENTS + 4) as client:
        client.big.command(dict(command))
        before = figures(client)

        def run():
            try:
                client.big.command(dict(command))
            except OperationFailure as e:
                failures.append(e)

        with Watch(server.process.pid) as watch:
            threads = [threading.Thread(target=run) for _ in range(CLIENTS)]
            for t in threads:
                t.start()
            lent = [0]
            until("they are through", lambda: lent.append(lent_bytes(client)) or not any(t.is_alive() for t in threads), 150)
        after = figures(client)
        assert lent_bytes(client) == 0 and (max(lent) > 0 or name != "values"), "the cache lends what one holds past 32 MB"
    assert not failures
    assert after["bytes"] == 0 and after["refused"] == before["refused"]
    assert after["waits"] > before["waits"], "they have to take turns"
    assert watch.most < CACHE + 512, f"{watch.most} MB"


def test_one_operation_takes_no_more_than_its_share(server):
    with server.client() as client:
        ranges = {f"v{i}": {"$range": [0, {"$multiply": ["$n", 1000]}]} for i in range(600)}
        with pytest.raises(OperationFailure) as refused:
            client.big.c.aggregate([{"$project": {"x": {"$let": {"vars": ranges, "in": {"$size": "$$v0"}}}}}])
        assert refused.value.code == 146
        assert client.big.c.count_documents({"a": {"$lt": 5}}) == 5 and figures(client)["bytes"] == 0


def test_very_many_boundaries_of_buckets(server):
    boundaries = list(range(300_000))
    with server.client() as client, Watch(server.process.pid) as watch:
        found = list(client.big.c.aggregate([{"$bucket": {"groupBy": "$a", "boundaries": boundaries}}]))
    assert found == [{"_id": i, "count": 1} for i in range(20)]
    assert watch.most - watch.first < 150, f"{watch.most - watch.first} MB for 4 MB"


def test_a_cursor_that_rests_keeps_nothing_of_its_scripts(server):
    """What a script has put into its global variables goes with the batch."""
    fills = "function() { if (!globalThis.kept) { kept = []; for (var i = 0; i < 20; i++) kept.push('x'.repeat(1e6) + i); } return kept.length; }"
    with server.client() as client, Watch(server.process.pid) as watch:
        cursors = []
        for _ in range(24):
            cursor = client.big.c.aggregate([{"$project": {"x": function(fills)}}], batchSize=10)
            next(cursor)
            cursors.append(cursor)
        assert watch.most - watch.first < 300, f"{watch.most - watch.first} MB"
        assert [sum(d["x"] for d in c) for c in cursors] == [19 * 20] * 24


def test_the_largest_documents_are_written_whatever_their_keys(server):
    with server.client() as client:
        db = client.keys
        db.many.create_index("a")
        db.paths.create_index("$**")
        db.many.insert_one({"_id": 1, "a": list(range(1_000_000))})
        db.many.replace_one({"_id": 1}, {"a": list(range(1, 1_000_001))})
        db.paths.insert_one({"_id": 1, **{f"field{i}": f"value {i}" for i in range(350_000)}})
        assert db.many.count_documents({"a": 1_000_000}) == 1 == db.paths.count_documents({"field7": "value 7"})
        assert db.many.count_documents({"a": {"$in": [f"s{i}" for i in range(500_000)] + [5]}}) == 1
        assert figures(client)["bytes"] == 0


HOLDS_MUCH = function(
    "function() { var a = []; for (var i = 0; i < 80; i++) a.push('x'.repeat(1e6) + i);"
    " while (true) { a[0].length; } }"
)
# More than one operation may hold without counting.
LONG_FILTER = {f"a{i}": i for i in range(150_000)}


@pytest.fixture
def held(server):
    """One operation holds what memory there is for them, until the test ends."""
    with server.client() as client:
        def run():
            pipeline = [{"$limit": 1}, {"$project": {"x": HOLDS_MUCH}}]
            try:
                client.big.command("aggregate", "c", pipeline=pipeline, cursor={}, comment="holds much")
            except PyMongoError:
                pass

        thread = threading.Thread(target=run)
        thread.start()
        until("it holds much", lambda: figures(client)["bytes"] > 70 << 20)
        yield client
        for operation in running(client, "holds much"):
            client.admin.command("killOp", op=operation["opid"])
        thread.join()


def running(client, comment):
    return client.admin.command("currentOp", **{"command.comment": comment})["inprog"]


def test_an_operation_that_waits_ends_with_its_time_its_client_and_by_killing(server, held):
    waits = {"find": "c", "filter": LONG_FILTER, "comment": "waits", "$db": "big"}
    with server.wire() as wire:
        began = time.monotonic()
        assert wire.command({**waits, "maxTimeMS": 500})["code"] == 50
        assert time.monotonic() - began < 5
        wire.send_body(encode(waits))
        [operation] = until("it waits", lambda: running(held, "waits"))
        until("it waits", lambda: figures(held)["waiting"] == 1)
        held.admin.command("killOp", op=operation["opid"])
        assert wire.receive_msg()["code"] == 11601
        wire.send_body(encode(waits))
        until("it waits", lambda: figures(held)["waiting"] == 1)
    until("it has ended with its client", lambda: figures(held)["waiting"] == 0 and not running(held, "waits"), 5)
    assert running(held, "holds much")


def test_writes_that_wait_leave_nothing_when_the_server_is_killed(tmp_path):
    with Server(tmp_path / "data", "--cache", f"{CACHE}m") as server:
        with server.client(serverSelectionTimeoutMS=2000) as client:
            client.big.w.create_index("a")
            big = {"a": list(range(250_000))}
            acknowledged = []

            def write(n):
                try:
                    for i in range(100):
                        client.big.w.insert_one({"_id": n * 100 + i, **big})
                        acknowledged.append(n * 100 + i)
                except PyMongoError:
                    pass

            threads = [threading.Thread(target=write, args=(n,)) for n in range(12)]
            for t in threads:
                t.start()
            until("writes wait", lambda: figures(client)["waiting"] > 4 and len(acknowledged) > 5)
            server.kill()
            for t in threads:
                t.join()
        server.start()
        with server.client() as client:
            there = {d["_id"] for d in client.big.w.find({}, {"_id": 1})}
            assert set(acknowledged) <= there
            assert client.big.w.count_documents({"a": 249_999}) == len(there)
            assert client.big.command("validate", "w")["valid"]
            client.big.w.insert_one({"_id": -1, **big})


def test_transactions_keep_to_the_cache(server):
    fill = "x" * (8 << 20)
    with server.client() as client, Watch(server.process.pid) as watch:
        sessions = {n: client.start_session() for n in range(3)}
        for session in sessions.values():
            session.start_transaction()
        codes = []
        for i in range(20):
            for n, session in list(sessions.items()):
                try:
                    client.big.t.insert_one({"_id": 100 * n + i, "fill": fill}, session=session)
                except OperationFailure as e:
                    codes.append(e.code)
                    sessions.pop(n).end_session()
        assert codes == [112, 112, 388], "what finds no room beside others begins again; the last comes to its own limit"
        assert watch.most - watch.first < 350, f"{watch.most - watch.first} MB"
        assert client.big.t.count_documents({}) == 0
