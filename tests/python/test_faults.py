"""What an operator fears: a full disk, a disk that takes no writes, too few files, damaged data; and what helps then.

The data lies on small file systems of the tests' own where one is needed; without the right to mount them such a test is
skipped.
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import time

import bson
import pytest
from pymongo.errors import OperationFailure, PyMongoError

from agreement import assert_indexes_agree
from harness import BINARY, ROOT, Server, run_pando, small_disk, until

TOOLS = pathlib.Path(os.environ.get("PANDO_TOOLS", ROOT / ".tools" / "bin"))
OUT_OF_DISK_SPACE = 14031


@pytest.fixture(name="small_disk")
def disk_of_96_mb(tmp_path):
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", 96) as disk:
        yield disk


def fill(things, number, size, known):
    """Inserts until that fails; returns the error."""
    rng = random.Random(number)
    for n in range(100_000):
        i = f"{number}-{n}"
        try:
            things.insert_many([{"_id": f"{i}-{k}", "a": n, "pad": rng.randbytes(size)} for k in range(20)])
        except OperationFailure as error:
            return error
        known.update(f"{i}-{k}" for k in range(20))
    raise AssertionError("the disk is never full")


def writes_come_back(write):
    """Writes until that does not fail."""
    def succeeds():
        with contextlib.suppress(OperationFailure):
            write()
            return True

    until("writes come back", succeeds, 60)


def test_full_disk(small_disk, new_server):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (30 << 20))
    server = new_server("--cache", "16MB", "--oplogSize", "16", path=small_disk / "data")
    known = set()
    with server.client() as client:
        things = client.full.things
        things.create_index("a")
        error = fill(things, 1, 2000, known)
        details = error.details.get("writeErrors", [error.details])[0]
        assert details.get("code", error.code) == OUT_OF_DISK_SPACE, error.details
        assert "space" in details["errmsg"]
        # Reads go on, and show the acknowledged writes.
        found = {d["_id"] for d in things.find({}, {"_id": 1})}
        assert known <= found
        assert things.find_one({"a": 0}) is not None
        with pytest.raises(PyMongoError):
            for _ in range(50):
                things.insert_many([{"pad": os.urandom(50_000)} for _ in range(20)])
        # Space returns, and so do writes, without a restart.
        ballast.unlink()
        writes_come_back(lambda: things.insert_one({"_id": "after", "a": -1}))
        known.add("after")
        assert_indexes_agree(things)
    server.kill()
    server.start()
    with server.client() as client:
        assert known <= {d["_id"] for d in client.full.things.find({}, {"_id": 1})}
        assert_indexes_agree(client.full.things)
    assert server.stop() == 0
    checked = run_pando("check", small_disk / "data")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def documents(count):
    rng = random.Random(3)
    return ({"_id": i, "a": i % 100, "pad": rng.randbytes(750).hex()} for i in range(count))


@pytest.mark.parametrize("tool", ["mongorestore", "mongoimport"])
def test_tools_that_fill_the_disk(small_disk, new_server, tmp_path, tool):
    """They are told, and end; the server goes on, and takes the rest when there is space."""
    program = TOOLS / tool
    if not program.exists():
        pytest.skip(f"{tool} is not here: scripts/test.sh builds it where there is Go")
    count = 60_000
    if tool == "mongorestore":
        (tmp_path / "dump" / "full").mkdir(parents=True)
        with open(tmp_path / "dump" / "full" / "things.bson", "wb") as out:
            out.writelines(bson.encode(d) for d in documents(count))
        indexes = [{"v": 2, "key": {"_id": 1}, "name": "_id_"}, {"v": 2, "key": {"a": 1}, "name": "a_1"}]
        (tmp_path / "dump" / "full" / "things.metadata.json").write_text(json.dumps({"indexes": indexes}))
        what = [tmp_path / "dump"]
    else:
        with open(tmp_path / "things.json", "w") as out:
            out.writelines(json.dumps(d) + "\n" for d in documents(count))
        what = ["--db", "full", "--collection", "things", "--file", tmp_path / "things.json"]
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (30 << 20))
    server = new_server("--cache", "16MB", "--oplogSize", "16", path=small_disk / "data")

    def run(*more):
        command = [program, "--port", server.port, *more, *what]
        return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)

    with server.client() as client:
        things = client.full.things
        done = run()
        assert done.returncode != 0, "the disk is never full"
        assert "space" in done.stderr, done.stderr
        found = {d["_id"]: d["pad"] for d in things.find({}, {"pad": 1})}
        assert 0 < len(found) < count
        # All of a few, and of each whatever it was.
        assert all(d["pad"] == found.get(d["_id"], d["pad"]) for d in documents(count))
        ballast.unlink()
        writes_come_back(lambda: (things.drop(), things.insert_one({"_id": 0, "a": -1})))
        assert_indexes_agree(things)
    server.kill()
    server.start()
    with server.client() as client:
        assert client.full.things.find_one({"_id": 0})["a"] == -1
        assert_indexes_agree(client.full.things)
    assert server.stop() == 0
    checked = run_pando("check", small_disk / "data")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_disk_that_takes_no_writes(small_disk, new_server):
    server = new_server("--cache", "16MB", path=small_disk / "data")
    with server.client() as client:
        client.ro.things.insert_one({"_id": 1})
    assert server.stop() == 0
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    started = run_pando("serve", "--dbpath", small_disk / "data", "--port", server.port)
    assert started.returncode == 100
    said = started.stderr.strip().splitlines()[-1]
    assert said.startswith("pando: ") and "Read-only file system" in said, started.stderr
    # Looking is allowed.
    checked = run_pando("check", small_disk / "data")
    assert checked.returncode == 0 and "ro.things: 1 records" in checked.stdout, checked.stdout + checked.stderr
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)


def test_too_few_files(new_server):
    limited = ["/bin/sh", "-c", 'ulimit -n 160; exec "$0" "$@"', BINARY, "serve"]
    server = new_server("--cache", "16MB", program=limited)
    with server.client(maxPoolSize=2) as client:
        things = client.few.things
        things.insert_one({"_id": 0})
        crowd = []
        for _ in range(400):
            with contextlib.suppress(OSError):
                crowd.append(socket.create_connection(("127.0.0.1", server.port), timeout=1))
        # Connected clients are served, flushes included.
        for n in range(1, 40):
            things.insert_many([{"_id": f"{n}-{k}", "pad": os.urandom(2000)} for k in range(100)])
        assert things.count_documents({}) == 3901
        for s in crowd:
            s.close()
    deadline = time.monotonic() + 20
    while True:
        try:
            with server.client(serverSelectionTimeoutMS=500) as client:
                assert client.few.things.count_documents({}) == 3901
            break
        except PyMongoError:
            assert time.monotonic() < deadline, "the door stays shut"
    assert server.stop() == 0


def test_log_tells_of_a_full_disk(small_disk, new_server, tmp_path):
    """The operator sees in the log when writes begin to fail, and when they succeed again."""
    log = tmp_path / "server.log"
    server = new_server("--cache", "16MB", "--log-path", log, path=small_disk / "data")
    ballast = small_disk / "ballast"
    with server.client() as client:
        client.d.things.insert_one({"_id": 0})
        with open(ballast, "wb") as out, contextlib.suppress(OSError):
            while True:
                out.write(b"x" * (1 << 20))
                out.flush()
        for i in range(2):
            with pytest.raises(OperationFailure):
                client.d.things.insert_many([{"pad": os.urandom(500_000)} for _ in range(20)])
        ballast.unlink()
        writes_come_back(lambda: client.d.things.insert_one({"_id": "after"}))
    assert server.stop() == 0
    text = log.read_text()
    assert "Writes fail" in text and "no space left" in text
    assert text.index("Writes fail") < text.index("Writes succeed again")


def load(server, count=4000):
    """Documents that a data file holds, the server stopped."""
    rng = random.Random(7)
    with server.client() as client:
        things = client.d.things
        things.create_index("n")
        docs = [{"_id": i, "n": i % 50, "pad": rng.randbytes(500)} for i in range(count)]
        for at in range(0, count, 500):
            things.insert_many(docs[at : at + 500])
    assert server.stop() == 0
    return docs


def damage(path, at=0.5, length=64):
    data = bytearray(path.read_bytes())
    # Behind the log's last entry zeros are reserved.
    middle = int(len(data.rstrip(b"\0")) * at)
    data[middle : middle + length] = bytes(b ^ 0x5A for b in data[middle : middle + length])
    path.write_bytes(bytes(data))


def largest(folder, ending):
    return max(folder.glob(f"*{ending}"), key=lambda p: p.stat().st_size)


def dumped(path):
    return bson.decode_all(path.read_bytes())


def test_damaged_data_file(new_server, tmp_path):
    server = new_server("--cache", "16MB")
    docs = load(server)
    assert run_pando("check", server.path).returncode == 0
    file = largest(server.path / "engine", ".sst")
    damage(file)

    checked = run_pando("check", server.path)
    assert checked.returncode == 1
    assert file.name in checked.stdout and "records of d.things cannot be read in part" in checked.stdout, checked.stdout

    # The server names the file to clients that need it, and serves the rest.
    server.start()
    with server.client() as client:
        with pytest.raises(OperationFailure, match=file.name):
            list(client.d.things.find())
        assert client.d.things.find_one({"_id": 0})["n"] == 0
        assert client.d.things.find_one({"_id": len(docs) - 1}) is not None
    server.kill()

    # What the files lost, the log still has.
    saved = run_pando("salvage", server.path, tmp_path / "out")
    assert saved.returncode == 1 or saved.returncode == 0, saved.stdout + saved.stderr
    got = {d["_id"]: d for d in dumped(tmp_path / "out" / "d" / "things.bson")}
    assert got == {d["_id"]: d for d in docs}, saved.stdout

    # Without the log as much as can be read.
    shutil.rmtree(server.path / "log")
    saved = run_pando("salvage", server.path, tmp_path / "less")
    assert saved.returncode == 1, saved.stdout + saved.stderr
    got = {d["_id"]: d for d in dumped(tmp_path / "less" / "d" / "things.bson")}
    assert len(docs) - 200 < len(got) < len(docs), saved.stdout
    assert all(docs[i] == d for i, d in got.items())
    assert '"n_1"' in (tmp_path / "less" / "d" / "things.metadata.json").read_text()


def test_damaged_books(new_server, tmp_path):
    """The engine's own bookkeeping is gone: it does not open, and is made anew from the data files."""
    server = new_server("--cache", "16MB")
    docs = load(server, 1000)
    for manifest in (server.path / "engine").glob("MANIFEST-*"):
        manifest.unlink()
    checked = run_pando("check", server.path)
    assert checked.returncode == 100 and "pando salvage" in checked.stderr
    saved = run_pando("salvage", server.path, tmp_path / "out")
    got = {d["_id"]: d for d in dumped(tmp_path / "out" / "d" / "things.bson")}
    assert got == {d["_id"]: d for d in docs}, saved.stdout + saved.stderr


@pytest.mark.parametrize("how", ["cut", "empty", "gone", "all empty", "no engine"])
def test_data_files_that_are_gone(new_server, tmp_path, how):
    """The engine does not open; what its files held is in the log."""
    server = new_server("--cache", "16MB")
    docs = load(server)
    server.start()
    with server.client() as client:
        client.d.things.update_many({"n": 3}, {"$set": {"late": 1}})
        client.d.things.delete_many({"n": 4})
        docs = {d["_id"]: {**d, "late": 1} if d["n"] == 3 else d for d in docs if d["n"] != 4}
    assert server.stop() == 0
    engine = server.path / "engine"
    for file in sorted(engine.glob("*.sst"), key=lambda p: -p.stat().st_size):
        match how:
            case "cut":
                os.truncate(file, file.stat().st_size // 2)
            case "empty":
                os.truncate(file, 0)
            case "gone":
                file.unlink()
            case "all empty":
                for each in engine.glob("*.sst"):
                    os.truncate(each, 0)
            case "no engine":
                shutil.rmtree(engine)
        checked = run_pando("check", server.path)
        # A file that a merge has replaced may lie there until the next start: the next one, then.
        if checked.returncode != 0:
            break
    assert checked.returncode == 100 and "pando salvage" in checked.stderr, checked.stdout + checked.stderr
    saved = run_pando("salvage", server.path, tmp_path / "out")
    assert saved.returncode == 1, saved.stdout + saved.stderr
    got = {d["_id"]: d for d in dumped(tmp_path / "out" / "d" / "things.bson")}
    assert got == docs, saved.stdout
    assert '"n_1"' in (tmp_path / "out" / "d" / "things.metadata.json").read_text()
    assert not (tmp_path / "out" / ".rebuilt").exists()


def test_an_older_log_does_not_win_over_the_data_files(new_server, tmp_path):
    """The log's end is gone, and the engine does not open: what the data files have is newer."""
    server = new_server("--cache", "16MB")
    load(server, 1000)
    kept = tmp_path / "kept"
    shutil.copytree(server.path / "log", kept)
    server.start()
    with server.client() as client:
        client.d.things.update_many({}, {"$set": {"n": 77}})
    assert server.stop() == 0
    shutil.rmtree(server.path / "log")
    kept.rename(server.path / "log")
    (server.path / "engine" / "CURRENT").write_bytes(b"")
    saved = run_pando("salvage", server.path, tmp_path / "out")
    got = dumped(tmp_path / "out" / "d" / "things.bson")
    assert len(got) == 1000 and {d["n"] for d in got} == {77}, saved.stdout + saved.stderr


def test_damaged_catalog(new_server, tmp_path):
    """Documents are saved although nothing tells any more what their collection was called."""
    server = new_server("--cache", "16MB")
    docs = load(server, 1000)
    shutil.rmtree(server.path / "log")
    for file in (server.path / "engine").glob("*.sst"):
        if b"d.things" in file.read_bytes():
            damage(file, 0, 64)
    checked = run_pando("check", server.path)
    assert checked.returncode == 1 and "the catalog" in checked.stdout, checked.stdout + checked.stderr
    saved = run_pando("salvage", server.path, tmp_path / "out")
    assert saved.returncode == 1 and "whose name is lost" in saved.stdout, saved.stdout + saved.stderr
    found = [d for file in (tmp_path / "out").rglob("*.bson") for d in dumped(file)]
    assert {d["_id"]: d for d in found} == {d["_id"]: d for d in docs}


def test_lost_bookkeeping_does_not_begin_anew(new_server):
    """Without its file CURRENT the engine would take the directory for a new one and remove its files."""
    server = new_server("--cache", "16MB")
    load(server, 1000)
    engine = server.path / "engine"
    for path in [engine / "CURRENT", *engine.glob("*.log")]:
        path.unlink()
    files = {p.name for p in engine.glob("*.sst")}
    started = run_pando("serve", "--dbpath", server.path, "--port", server.port)
    assert started.returncode == 100 and "CURRENT is missing" in started.stderr, started.stderr
    assert {p.name for p in engine.glob("*.sst")} == files
    (server.path / "PANDO").unlink()
    started = run_pando("serve", "--dbpath", server.path, "--port", server.port)
    assert started.returncode == 100 and "the stamp" in started.stderr and "is missing" in started.stderr, started.stderr


def test_damaged_head_of_the_log(new_server, tmp_path):
    server = new_server()
    with server.client() as client:
        for i in range(50):
            client.d.things.insert_one({"_id": i})
    server.kill()
    segment = largest(server.path / "log", ".log")
    damage(segment, 0, 16)
    started = run_pando("serve", "--dbpath", server.path, "--port", server.port)
    assert started.returncode == 100 and segment.name in started.stderr, started.stderr
    checked = run_pando("check", server.path)
    assert checked.returncode == 1 and segment.name in checked.stdout, checked.stdout
    saved = run_pando("salvage", server.path, tmp_path / "out")
    assert saved.returncode == 1, saved.stdout + saved.stderr
    assert {d["_id"] for d in dumped(tmp_path / "out" / "d" / "things.bson")} == set(range(50)), saved.stdout


def test_damaged_log(new_server, tmp_path):
    server = new_server()
    with server.client() as client:
        for i in range(300):
            client.d.things.insert_one({"_id": i, "pad": "x" * 100})
    server.kill()
    segment = largest(server.path / "log", ".log")
    damage(segment, 0.5, 4)
    started = run_pando("serve", "--dbpath", server.path, "--port", server.port)
    assert started.returncode == 100
    assert segment.name in started.stderr and "damaged at entry" in started.stderr, started.stderr
    checked = run_pando("check", server.path)
    assert checked.returncode == 1 and segment.name in checked.stdout, checked.stdout
    saved = run_pando("salvage", server.path, tmp_path / "out")
    assert saved.returncode == 1, saved.stdout + saved.stderr
    got = [d["_id"] for d in dumped(tmp_path / "out" / "d" / "things.bson")]
    assert 295 <= len(got) < 300 and set(got) <= set(range(300)), saved.stdout


def test_check_leaves_a_running_server_alone(server, tmp_path):
    checked = run_pando("check", server.path)
    assert checked.returncode == 100 and "in use by process" in checked.stderr
    saved = run_pando("salvage", server.path, tmp_path / "out")
    assert saved.returncode == 100 and "in use by process" in saved.stderr


def test_salvaged_data_can_be_restored(new_server, tmp_path):
    restore = pathlib.Path(os.environ.get("PANDO_TOOLS", ".tools/bin")) / "mongorestore"
    if not restore.exists():
        pytest.skip("mongorestore is not here")
    server = new_server()
    with server.client() as client:
        client.shop.orders.insert_many([{"_id": i, "n": i} for i in range(100)])
        client.shop.orders.create_index([("n", -1)], name="by n", unique=True)
        client.shop["odd name/1"].insert_one({"_id": 1})
    server.kill()
    saved = run_pando("salvage", server.path, tmp_path / "out")
    assert saved.returncode == 0 and "Everything was saved" in saved.stdout, saved.stdout + saved.stderr
    other = new_server(path=tmp_path / "other")
    done = subprocess.run([restore, "--port", str(other.port), tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with other.client() as client:
        assert client.shop.orders.count_documents({}) == 100
        assert client.shop.orders.index_information()["by n"]["unique"] is True
        assert client.shop["odd name/1"].find_one() == {"_id": 1}


def test_backup_starts_as_it_is(new_server, tmp_path):
    server = new_server()
    copy = tmp_path / "copy"
    uri = f"mongodb://{server.address}/?directConnection=true"
    with server.client() as client:
        things = client.b.things
        things.create_index("n")
        things.insert_many([{"_id": i, "n": i % 7} for i in range(2000)])
        made = run_pando("backup", uri, copy, "--in-place")
        assert made.returncode == 0, made.stderr
        things.insert_one({"_id": "later"})
    again = run_pando("backup", uri, copy, "--in-place")
    assert again.returncode == 1 and "exists already" in again.stderr
    assert run_pando("check", copy).returncode == 0
    with Server(copy) as started, started.client() as client:
        assert client.b.things.count_documents({}) == 2000
        assert_indexes_agree(client.b.things)
        client.b.things.insert_one({"_id": "own"})
    with server.client() as client:
        assert client.b.things.find_one({"_id": "own"}) is None
    nobody = run_pando("backup", "mongodb://127.0.0.1:1/", tmp_path / "x", "--in-place")
    assert nobody.returncode == 1 and "127.0.0.1:1" in nobody.stderr


def test_a_backup_of_damaged_data_is_an_error_and_is_not_left(new_server, tmp_path):
    server = new_server()
    with server.client() as client:
        client.b.things.insert_many([{"_id": i, "text": "x" * 500 + str(i)} for i in range(5000)])
    server.restart()

    def files_rest():
        with server.client() as client:
            engine = client.admin.command("serverStatus")["pandodb"]["engine"]
        return not (engine["runningCompactions"] or engine["runningFlushes"] or engine["pendingCompactionBytes"])

    # A file that is being merged into another may have been read already: later damage of it is in no
    # backup.
    until("no file is being merged", files_rest)
    [table, *_] = sorted(server.path.glob("engine/*.sst"), key=lambda f: -f.stat().st_size)
    with open(table, "r+b") as file:
        file.seek(table.stat().st_size // 3)
        file.write(b"\xff" * 8)
    made = run_pando("backup", f"mongodb://{server.address}/", tmp_path / "copy", "--in-place")
    assert made.returncode == 1 and "damaged" in made.stderr, made.stdout + made.stderr
    assert not (tmp_path / "copy").exists()


def test_check_of_what_is_not_there(tmp_path):
    checked = run_pando("check", tmp_path / "nowhere")
    assert checked.returncode == 100 and "there is no directory" in checked.stderr
    assert "salvage" not in checked.stderr
