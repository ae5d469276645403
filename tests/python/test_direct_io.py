"""`--direct-io`: the engine's files are read and written around the page cache."""

import os

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
