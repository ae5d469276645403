"""Random transactions by several clients, with conflicts, aborts and kills: what they read is checked afterwards.

`PANDO_SEED` begins the seeds, `PANDO_SEEDS` says how many; each failure prints its seed.
"""

import os
import random
import threading

import pytest
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

import histories
from harness import until

# Processes that share the tests must name them alike.
CHANCE = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
FIRST = int(os.environ.get("PANDO_SEED", CHANCE.randrange(1_000_000)))
SEEDS = range(FIRST, FIRST + int(os.environ.get("PANDO_SEEDS", "3")))


def test_the_checker_finds_what_is_forbidden():
    a = lambda k, v: ("append", k, v)
    r = lambda k, *v: ("read", k, list(v))
    ok = [[a("x", 1)], [r("x", 1), a("x", 2)]]
    assert histories.check(ok, {"x": [1, 2]}) == []
    # Write skew: each reads what the other writes. Snapshot isolation allows it.
    skew = [[r("y"), a("x", 1)], [r("x"), a("y", 2)]]
    assert histories.check(skew, {"x": [1], "y": [2]}) == []
    # A lost update: both read the empty list, and both have appended.
    assert histories.check([[r("x"), a("x", 1)], [r("x"), a("x", 2)]], {"x": [1, 2]})
    # A snapshot that moves: x before and y after the other.
    assert histories.check([[a("x", 1), a("y", 2)], [r("x"), r("y", 2)]], {"x": [1], "y": [2]})
    assert histories.check([[a("x", 1)]], {"x": []})
    assert histories.check([[a("x", 1)]], {"x": [1, 7]}, aborted={7})
    assert histories.check([[a("x", 1), a("x", 2)], [r("x", 1)]], {"x": [1, 2]})
    assert histories.check([[a("x", 1), r("x")]], {"x": [1]})


def run_one(client, rng, values, out):
    """One random transaction; `out` gets (outcome, operations)."""
    lists = client.test.lists
    ops, outcome = [], "unknown"
    with client.start_session() as s:
        try:
            s.start_transaction()
            for _ in range(rng.randint(1, 4)):
                key = rng.randrange(5)
                if rng.random() < 0.5:
                    value = next(values)
                    # Noted before it is sent: it may be there, whatever is answered.
                    ops.append(("append", key, value))
                    lists.update_one({"_id": key}, {"$push": {"l": value}}, upsert=True, session=s)
                else:
                    found = lists.find_one({"_id": key}, session=s)
                    ops.append(("read", key, found["l"] if found else []))
            if rng.random() < 0.1:
                s.abort_transaction()
                outcome = "aborted"
            else:
                outcome = "unknown"
                s.commit_transaction()
                outcome = "committed"
        except OperationFailure as e:
            outcome = "unknown" if e.has_error_label("UnknownTransactionCommitResult") else "aborted"
        except ConnectionFailure:
            outcome = "unknown"
    out.append((outcome, ops))


@pytest.mark.parametrize("seed", SEEDS)
def test_lists(new_server, seed):
    """Six clients append to five lists and read them; in every third run the server is killed half-way."""
    server = new_server()
    rng = random.Random(seed)
    kills = seed % 3 == 0
    out, values = [], iter(range(1, 1_000_000))
    lock = threading.Lock()

    def numbers():
        while True:
            with lock:
                n = next(values)
            yield n

    stop = threading.Event()

    def work(client, seed):
        rng, mine = random.Random(seed), numbers()
        for _ in range(25):
            if stop.is_set():
                return
            try:
                run_one(client, rng, mine, out)
            except PyMongoError:
                pass

    with server.client(retryWrites=True, serverSelectionTimeoutMS=20_000) as client:
        threads = [threading.Thread(target=work, args=(client, rng.random())) for _ in range(6)]
        [t.start() for t in threads]
        if kills:
            threads[0].join(rng.uniform(0.1, 0.6))
            server.kill()
            server.start()
        [t.join(60) for t in threads]
        stop.set()
        final = {d["_id"]: d["l"] for d in client.test.lists.find()}
    there = {v for values in final.values() for v in values}
    settled = []
    for outcome, ops in out:
        mine = {v for kind, _, v in ops if kind == "append"}
        if outcome == "unknown" and mine and mine <= there:
            outcome = "committed"
        if outcome == "committed":
            settled.append(ops)
    aborted = {v for outcome, ops in out if outcome == "aborted" for kind, _, v in ops if kind == "append"}
    # Of a transaction with unknown outcome, all is there or nothing.
    for outcome, ops in out:
        mine = {v for kind, _, v in ops if kind == "append"}
        assert not (outcome == "unknown" and mine & there and not mine <= there), f"seed {seed}: half of {ops}"
    assert sum(o == "committed" for o, _ in out) > 10, f"seed {seed}: hardly anything was committed"
    wrong = histories.check(settled, final, aborted)
    assert not wrong, f"seed {seed}: " + "\n".join(wrong[:5])


@pytest.mark.parametrize("seed", SEEDS)
def test_money(new_server, seed):
    """64 connections move money between 1,000 accounts: its sum is the same in every snapshot, and after a kill."""
    server = new_server()
    rng = random.Random(seed)
    accounts, each, connections = 1000, 100, 64
    with server.client(serverSelectionTimeoutMS=20_000, maxPoolSize=None) as client:
        bank = client.test.accounts
        bank.insert_many([{"_id": i, "n": each} for i in range(accounts)])
        stop, sums = threading.Event(), []

        def move(seed):
            rng = random.Random(seed)
            with client.start_session() as s:
                while not stop.is_set():
                    a, b = rng.sample(range(accounts), 2)
                    try:
                        with s.start_transaction():
                            bank.update_one({"_id": a}, {"$inc": {"n": -1}}, session=s)
                            bank.update_one({"_id": b}, {"$inc": {"n": 1}}, session=s)
                    except PyMongoError:
                        pass

        def look():
            with client.start_session() as s:
                while not stop.is_set():
                    try:
                        with s.start_transaction():
                            group = {"$group": {"_id": None, "n": {"$sum": "$n"}, "docs": {"$sum": 1}}}
                            sums.extend((d["n"], d["docs"]) for d in bank.aggregate([group], session=s))
                    except PyMongoError:
                        pass

        threads = [threading.Thread(target=move, args=(rng.random(),)) for _ in range(connections)] + [threading.Thread(target=look)]
        [t.start() for t in threads]
        threads[0].join(rng.uniform(0.5, 1.5))
        until("a sum was read", lambda: sums)
        if seed % 2:
            server.kill()
            server.start()
            threads[0].join(0.5)
        stop.set()
        [t.join(60) for t in threads]
        assert set(sums) == {(accounts * each, accounts)}, f"seed {seed}: {set(sums)}"
        assert sum(d["n"] for d in bank.find()) == accounts * each, f"seed {seed}"
