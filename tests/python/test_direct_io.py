"""`--direct-io`: the engine's files are read and written around the page cache."""

import ctypes
import json
import os
import random
import threading

import pytest
from pymongo import IndexModel


def takes_direct_io(directory):
    """Whether the file system opens files with O_DIRECT (tmpfs and some others do not)."""
    path = directory / "probe"
    path.write_bytes(bytes(4096))
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    finally:
        path.unlink()
    return True


def needs_direct_io(directory):
    if not hasattr(os, "O_DIRECT") or not takes_direct_io(directory):
        pytest.skip(f"the file system of {directory} refuses O_DIRECT")


def test_what_is_written_is_read_after_a_restart(new_server, tmp_path):
    needs_direct_io(tmp_path)
    server = new_server("--direct-io", "--cache", "64m")
    pad = os.urandom(2000)
    with server.client() as client:
        things = client.t.things
        things.create_index("n")
        for start in range(0, 20_000, 1000):
            things.insert_many([{"_id": i, "n": i % 100, "pad": pad} for i in range(start, start + 1000)])
        # Writes that only the log holds are replayed; the others are read from files.
        client.admin.command("fsync")
        things.update_many({"n": 7}, {"$set": {"seen": True}})
    assert server.restart().running()
    with server.client() as client:
        things = client.t.things
        assert things.count_documents({}) == 20_000
        assert things.count_documents({"n": 7, "seen": True}) == 200
        assert things.find_one({"_id": 12_345}) == {"_id": 12_345, "n": 45, "pad": pad}
        assert sum(1 for d in things.find({}, {"pad": 1}) if d["pad"] == pad) == 20_000
        assert client.t.command("validate", "things", full=True)["valid"]
    server.kill()
    server.start()
    with server.client() as client:
        assert client.t.things.count_documents({"seen": True}) == 200


def has_ring():
    """Whether the kernel lets this process have an `io_uring`."""
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(425, 8, ctypes.create_string_buffer(256))
    if ring >= 0:
        os.close(ring)
    return ring >= 0


@pytest.mark.parametrize("flags", [["--direct-io"], []], ids=["direct", "page-cache"])
def test_many_clients_read_and_change_what_is_not_in_memory(new_server, tmp_path, flags):
    if flags:
        needs_direct_io(tmp_path)
    server = new_server(*flags, "--cache", "16m")
    count, pads = 30_000, [os.urandom(1500) for _ in range(64)]

    def document(i):
        return {"_id": (i * 7919) % count, "n": i % 3000, "pad": pads[i % 64], "changed": 0}

    with server.client() as client:
        things = client.t.things
        things.create_index("n")
        for start in range(0, count, 1000):
            things.insert_many([document(i) for i in range(start, start + 1000)])
        client.admin.command("fsync")
    server.restart()
    by_id = {d["_id"]: d for d in map(document, range(count))}
    wrong = []

    def one(which):
        dice = random.Random(which)
        with server.client() as client:
            things = client.t.things
            for turn in range(60):
                # Each thread changes documents of its own.
                i = dice.randrange(count // 8) * 8 + which
                found = things.find_one({"_id": i})
                if found["pad"] != by_id[i]["pad"] or found["n"] != by_id[i]["n"]:
                    wrong.append(("by _id", i))
                things.update_one({"_id": i}, {"$inc": {"changed": 1}})
                if things.find_one({"_id": i})["changed"] != found["changed"] + 1:
                    wrong.append(("changed", i))
                n = dice.randrange(3000)
                ids = {d["_id"] for d in things.find({"n": n})}
                if ids != {k for k, d in by_id.items() if d["n"] == n}:
                    wrong.append(("by an index", n))
                if turn % 20 == 0 and things.find_one({"_id": count + i}) is not None:
                    wrong.append(("missing", i))

    threads = [threading.Thread(target=one, args=(k,)) for k in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
    with server.client() as client:
        changed = client.t.things.aggregate([{"$group": {"_id": None, "n": {"$sum": "$changed"}}}]).next()["n"]
        assert changed == 8 * 60
        reads = client.admin.command("serverStatus")["pandodb"]["loops"]["diskReads"]
        if flags:
            assert (reads > 0) == has_ring()
        assert client.t.command("validate", "things", full=True)["valid"]


def test_a_query_by_an_index_goes_on_where_it_lacked_records(new_server, tmp_path):
    needs_direct_io(tmp_path)
    log = tmp_path / "server.log"
    server = new_server("--direct-io", "--cache", "16m", "--logpath", log)
    count, pad = 20_000, os.urandom(1800)
    documents = [{"_id": (i * 7919) % count, "n": i, "m": i % 7, "tags": [i % 5, i % 3]} for i in range(count)]
    with server.client() as client:
        things = client.t.things
        things.create_indexes([IndexModel("n"), IndexModel([("tags", 1), ("n", 1)])])
        for start in range(0, count, 1000):
            things.insert_many([{**d, "pad": pad} for d in documents[start : start + 1000]])
        client.admin.command("fsync")
    server.restart()
    dice = random.Random(4)
    uses = {"n_1": 0, "tags_1_n_1": 0}
    with server.client() as client:
        things = client.t.things
        client.t.command("profile", 0, slowms=-1)
        for turn in range(400):
            low = dice.randrange(count - 4000)
            high = low + dice.choice([1, 5, 10, 15, 16, 17, 30, 60, 90, 300, 1000, 4000])
            skip, limit = dice.choice([0, 0, 3, 20]), dice.choice([0, 0, 1, 4, 50])
            within = [d for d in documents if low <= d["n"] < high]
            kind = dice.randrange(4)
            # In the order of an index; with a test that only documents tell; a sort of their own; several entries a document.
            filter, order, wanted = {"n": {"$gte": low, "$lt": high}}, [("n", 1)], within
            if kind == 1:
                filter["m"], wanted = 3, [d for d in within if d["m"] == 3]
            elif kind == 2:
                order, wanted = [("_id", -1)], sorted(within, key=lambda d: -d["_id"])
            elif kind == 3:
                filter["tags"], wanted = {"$in": [1, 2]}, [d for d in within if {1, 2} & set(d["tags"])]
            index = dice.choice(["n_1", "tags_1_n_1"]) if kind == 3 else "n_1"
            wanted = wanted[skip:][: limit or None]
            found = things.find(filter, {"pad": 0}, hint=index, sort=order, skip=skip, limit=limit, comment=f"turn {turn}")
            assert list(found) == wanted, (filter, order, skip, limit)
            uses[index] += 1
        counted = {s["name"]: s["accesses"]["ops"] for s in things.aggregate([{"$indexStats": {}}])}
        assert {name: counted[name] for name in uses} == uses
        # What one of them examined is told once, however often it was run.
        ten = {"n": {"$gte": 4000, "$lt": 4010}}
        things.find(ten).comment("at last").to_list()
        things.find(ten).sort("m").skip(2).limit(3).comment("at last").to_list()
        lines = [json.loads(line)["attr"] for line in log.read_text().splitlines() if '"at last"' in line]
        told = [(a["keysExamined"], a["docsExamined"], a["nreturned"]) for a in lines]
        # (A sort reads the documents that it gives again.)
        assert [t[:1] + t[2:] for t in told] == [(10, 10), (10, 3)] and told[0][1] == 10 and told[1][1] >= 10
        reads = client.admin.command("serverStatus")["pandodb"]["loops"]["diskReads"]
        assert (reads > 0) == has_ring()


def test_a_list_of_ids_stays_on_the_event_loop(new_server, tmp_path):
    needs_direct_io(tmp_path)
    server = new_server("--direct-io", "--cache", "16m")
    count, pad = 20_000, os.urandom(1800)
    with server.client() as client:
        for start in range(0, count, 1000):
            client.t.things.insert_many([{"_id": i, "pad": pad} for i in range(start, start + 1000)])
        client.admin.command("fsync")
    server.restart()
    dice = random.Random(7)
    with server.client() as client:
        loops = lambda: client.admin.command("serverStatus")["pandodb"]["loops"]
        before = loops()
        # The reads of a list are found one after the other: a run of the command for each.
        for _ in range(50):
            ids = sorted(dice.sample(range(count), 20))
            found = client.t.things.find({"_id": {"$in": ids}}, {"_id": 1}).sort("_id", 1)
            assert [d["_id"] for d in found] == ids
        after = loops()
        if has_ring():
            assert after["diskReads"] - before["diskReads"] > 500
            assert after["offloaded"] - before["offloaded"] < 10
        # One that is too long for a loop ends on a worker, and finds the same.
        ids = list(range(0, count, 4))
        assert client.t.things.count_documents({"_id": {"$in": ids}, "pad": pad}) == len(ids)


def test_a_plan_is_not_made_of_counts_that_lie_on_the_disk(new_server, tmp_path):
    needs_direct_io(tmp_path)
    log = tmp_path / "server.log"
    server = new_server("--direct-io", "--cache", "16m", "--logpath", log)
    count, pad = 20_000, os.urandom(1000)
    with server.client() as client:
        things = client.t.things
        things.create_indexes([IndexModel("n"), IndexModel("day")])
        for start in range(0, count, 1000):
            things.insert_many([{"n": i, "day": i * 7919 % 5000, "pad": pad} for i in range(start, start + 1000)])
        client.admin.command("fsync")
    for turn in range(4):
        # Nothing of the indexes is in memory: neither how long the range is, nor that the order has all documents.
        server.restart()
        with server.client() as client:
            client.t.command("profile", 0, slowms=-1)
            low = 3000 * turn
            # No more is examined than is wanted, however often it was run.
            first = client.t.things.find({"n": {"$gte": low}}, {"pad": 0}, comment="ten", hint="n_1").sort("n").limit(10)
            assert [d["n"] for d in first] == list(range(low, low + 10))
        server.restart()
        with server.client() as client:
            client.t.command("profile", 0, slowms=-1)
            found = client.t.things.find({"n": {"$gte": low, "$lt": low + 200}}, {"n": 1}, comment="by day")
            found = [d["n"] for d in found.sort("day", -1).skip(20).limit(10)]
        wanted = sorted(range(low, low + 200), key=lambda n: -(n * 7919 % 5000))
        assert found == wanted[20:30]
    lines = [json.loads(line)["attr"] for line in log.read_text().splitlines() if '"by day"' in line]
    assert [a["keysExamined"] for a in lines] == [200] * 4
    lines = [json.loads(line)["attr"] for line in log.read_text().splitlines() if '"ten"' in line]
    assert [(a["keysExamined"], a["docsExamined"]) for a in lines] == [(10, 10)] * 4
