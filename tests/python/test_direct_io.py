"""`--direct-io`: the engine's files are read and written around the page cache."""

import ctypes
import os
import random
import threading

import pytest


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


def test_what_is_written_is_read_after_a_restart(new_server, tmp_path):
    if not hasattr(os, "O_DIRECT") or not takes_direct_io(tmp_path):
        pytest.skip(f"the file system of {tmp_path} refuses O_DIRECT")
    server = new_server("--direct-io", "--cache", "64m")
    pad = os.urandom(2000)
    with server.client() as client:
        things = client.t.things
        things.create_index("n")
        for start in range(0, 20_000, 1000):
            things.insert_many([{"_id": i, "n": i % 100, "pad": pad} for i in range(start, start + 1000)])
        # What the log alone holds is replayed; what is in files is read from them.
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
    if flags and not (hasattr(os, "O_DIRECT") and takes_direct_io(tmp_path)):
        pytest.skip(f"the file system of {tmp_path} refuses O_DIRECT")
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
