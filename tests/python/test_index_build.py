"""Index builds on a live collection: writers go on, and the index is the documents when it is done."""

import datetime
import random
import threading
import time

import pytest
from pymongo.errors import DuplicateKeyError, PyMongoError

from agreement import assert_indexes_agree
from harness import refuses, until


@pytest.fixture
def load():
    """Threads that write at random until told to stop; gives the longest time that one write took."""
    stop, threads, slowest = threading.Event(), [], [0.0]

    def work(coll, seed):
        rng = random.Random(seed)
        while not stop.is_set():
            started = time.monotonic()
            i = rng.randrange(30_000)
            kind = rng.random()
            if kind < 0.3:
                coll.replace_one({"_id": i}, {"a": rng.randrange(1000), "l": [rng.randrange(50) for _ in range(3)]}, upsert=True)
            elif kind < 0.7:
                coll.update_one({"_id": i}, {"$set": {"a": rng.randrange(1000)}, "$push": {"l": {"$each": [rng.randrange(50)], "$slice": -3}}})
            elif kind < 0.85:
                coll.delete_one({"_id": i})
            else:
                coll.update_many({"_id": {"$gte": i, "$lt": i + 20}}, {"$inc": {"a": 1}})
            slowest[0] = max(slowest[0], time.monotonic() - started)
            start.done[0] += 1

    def start(coll, count=4):
        for n in range(count):
            threads.append(threading.Thread(target=work, args=(coll, n)))
            threads[-1].start()
        return slowest

    def end():
        stop.set()
        for t in threads:
            t.join()
        threads.clear()

    start.end, start.done = end, [0]
    yield start
    end()


def test_built_while_others_write(coll, load):
    coll.insert_many([{"_id": i, "a": i % 1000, "l": [i % 50]} for i in range(20_000)])
    slowest = load(coll)
    coll.create_index("a")
    coll.create_index([("l", 1), ("a", -1)])
    coll.create_index("a", name="partial", partialFilterExpression={"a": {"$gt": 500}})
    coll.create_index("b", sparse=True)
    before = load.done[0]
    until("some more was written", lambda: load.done[0] > before + 100)
    load.end()
    assert_indexes_agree(coll)
    assert slowest[0] < 5, f"a write waited {slowest[0]:.1f} s for an index build"


def test_dropped_while_others_write(coll, load):
    coll.insert_many([{"_id": i, "a": i} for i in range(2000)])
    load(coll)
    for _ in range(5):
        coll.create_index("a")
        coll.drop_index("a_1")
    coll.create_index("a")
    load.end()
    assert_indexes_agree(coll)


def test_unique_build_fails_on_what_is_inserted_meanwhile(coll):
    coll.insert_many([{"_id": i, "u": i} for i in range(20_000)])
    outcome, refused = [], []

    def build():
        try:
            outcome.append(coll.create_index("u", unique=True))
        except PyMongoError as error:
            outcome.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    n = 0
    while thread.is_alive():
        n += 1
        try:
            coll.insert_one({"_id": 100_000 + n, "u": n % 20_000})
        except DuplicateKeyError:
            refused.append(n)
    thread.join()
    values = [d["u"] for d in coll.find({}, {"u": 1})]
    if outcome == ["u_1"]:
        assert len(values) == len(set(values))
        assert_indexes_agree(coll)
    else:
        assert outcome[0].code == 11000
        assert set(coll.index_information()) == {"_id_"}


def test_several_at_once(db):
    names = [f"c{i}" for i in range(4)]
    for name in names:
        db[name].insert_many([{"_id": i, "a": i % 97} for i in range(5000)])
    threads = [threading.Thread(target=db[name].create_index, args=("a",)) for name in names]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for name in names:
        assert_indexes_agree(db[name])


def builds(client):
    """Whether an index is being built."""
    return any("createIndexes" in o.get("command", {}) for o in client.admin.command("currentOp")["inprog"])


@pytest.mark.parametrize("drop", [lambda coll: coll.drop(), lambda coll: coll.database.client.drop_database(coll.database)], ids=["collection", "database"])
def test_collection_dropped_during_its_build(coll, drop):
    """IndexBuildAborted, unless the build ended before or began after; no error of what the drop has taken away."""
    coll.insert_many([{"_id": i, "a": i} for i in range(20_000)])
    outcome = []

    def build():
        try:
            outcome.append(coll.create_index("a"))
        except PyMongoError as error:
            outcome.append(error.code)

    thread = threading.Thread(target=build)
    thread.start()
    until("it builds, or has", lambda: outcome or builds(coll.database.client))
    drop(coll)
    thread.join()
    assert outcome[0] in ("a_1", 276), outcome
    assert coll.count_documents({}) == 0


@pytest.mark.parametrize("kind", ["plain", "time series"])
def test_one_who_asks_for_what_another_builds_waits_for_it(db, kind):
    coll = db.coll
    if kind == "time series":
        db.create_collection("coll", timeseries={"timeField": "t", "metaField": "m"})
    now = datetime.datetime(2026, 1, 1)
    for first in range(0, 60_000, 10_000):
        coll.insert_many([{"t": now, "m": {"k": i % 97, "n": i}} for i in range(first, first + 10_000)])
    wanted = {"key": {"m.k": 1}, "name": "k"}
    thread = threading.Thread(target=lambda: db.command("createIndexes", "coll", indexes=[wanted]))
    thread.start()
    until("it builds, or has", lambda: builds(db.client) or not thread.is_alive())
    reply = db.command("createIndexes", "coll", indexes=[wanted])
    assert not builds(db.client)
    thread.join()
    # One of a time series is listed where it has a meta field.
    assert reply["numIndexesBefore"] == reply["numIndexesAfter"] == 2


def test_killed_during_a_build(new_server):
    """After a kill in the middle, the index is either whole or not there, and the server finishes what it had begun."""
    server = new_server()
    with server.client() as client:
        client.test.things.insert_many([{"_id": i, "a": i % 1000, "pad": "x" * 100} for i in range(60_000)])

        def build():
            try:
                with server.client(retryWrites=False, serverSelectionTimeoutMS=500) as other:
                    other.test.things.create_index("a")
            except PyMongoError:
                pass

        thread = threading.Thread(target=build)
        thread.start()
        until("it builds", lambda: builds(client))
        server.kill()
        thread.join()
        # A client that leaves first waits for a server to end its sessions at.
        server.start()
    with server.client() as client:
        things = client.test.things
        assert things.count_documents({}) == 60_000
        things.create_index("a")  # waits for a build under way, or does it
        assert_indexes_agree(things)
        assert client.test.validate_collection("things", full=True)["valid"]


def test_builds_of_one_command_go_on_after_a_kill(new_server):
    keys = {"a": 1, "tags": 1, "t": "text"}
    server = new_server()
    with server.client() as client:
        coll = client.built.docs
        for first in range(0, 60_000, 10_000):
            coll.insert_many({"_id": i, "a": i % 701, "b": -i, "tags": [i % 31, i % 7], "t": f"green trees and word{i % 997}"} for i in range(first, first + 10_000))

        def build():
            with pytest.raises(PyMongoError), server.client(serverSelectionTimeoutMS=500) as other:
                other.built.command("createIndexes", "docs", indexes=[{"key": {k: v}, "name": k} for k, v in keys.items()])

        building = threading.Thread(target=build)
        building.start()
        shown = [{"$currentOp": {}}, {"$match": {"progress.done": {"$gt": 5000}}}]
        until("all are being built", lambda: len(list(client.admin.aggregate(shown))) == len(keys))
        server.kill()
        building.join()
        server.start()
    with server.client() as client:
        coll = client.built.docs
        coll.insert_one({"_id": -1, "a": 1, "b": 1, "tags": [1]})
        for key, kind in keys.items():
            coll.create_index([(key, kind)], name=key)  # waits for a build under way
        assert {i["name"] for i in coll.list_indexes()} == {"_id_", *keys}
        found = client.built.command("validate", "docs")
        assert found["valid"] and found["keysPerIndex"]["a"] == 60_001


def test_writes_are_refused_by_a_unique_index_at_once_after_its_build(coll):
    coll.insert_many([{"_id": i, "u": i} for i in range(1000)])
    coll.create_index("u", unique=True)
    with refuses(11000):
        coll.insert_one({"u": 500})
