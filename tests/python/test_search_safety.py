"""Search indexes in trouble: many of them, killed, damaged, behind, on a full disk. PANDO_SEARCH_KILLS kills more often,
PANDO_SEED replays what a failure said."""

import contextlib
import os
import pathlib
import random
import shutil
import threading
import time

import pytest
from harness import refuses, small_disk, until
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.operations import SearchIndexModel
from searches import DYNAMIC, differences, found, ids, indexed, is_ready, shows, text

SEED = int(os.environ.get("PANDO_SEED", random.randrange(1 << 32)))
KILLS = int(os.environ.get("PANDO_SEARCH_KILLS", 4))
WORDS = ["red", "green", "blue", "amber", "violet"]
VECTORS = {
    "fields": [
        {"type": "vector", "path": "v", "numDimensions": 4, "similarity": "euclidean"},
        {"type": "filter", "path": "n"},
    ]
}
# As the pool has them.
MOST_THREADS, MOST_WRITERS = 4, 6
INDEX_THREAD, WRITER_THREAD = "search-index", "thrd-tantivy"


def threads_of_search(server, *names):
    """The ids of the threads that work for search indexes, or of those whose names begin so."""
    names = names or (INDEX_THREAD, WRITER_THREAD, "segment_upd", "merge_thread")
    found = set()
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        # It may end meanwhile.
        with contextlib.suppress(OSError):
            if task.joinpath("comm").read_text().startswith(names):
                found.add(task.name)
    return found


def status(coll, name="default"):
    return next(iter(coll.list_search_indexes(name)))


def nearest(coll, query, limit=3):
    stage = {"index": "vectors", "path": "v", "queryVector": query, "limit": limit, "exact": True}
    return [d["_id"] for d in coll.aggregate([{"$vectorSearch": stage}, {"$project": {"_id": 1}}])]


def test_many_indexes_share_threads_and_writers(new_server):
    """A thread and 15 MB for each would be too much for an application with an index for each tenant."""
    server = new_server("--cache", "32MB")
    with server.client() as client:
        for c in range(4):
            coll = client.t[f"c{c}"]
            coll.insert_many({"_id": i, "title": WORDS[i % 5], "n": i} for i in range(20))
            indexes = [{"name": f"i{n}", "definition": DYNAMIC} for n in range(64)]
            client.t.command("createSearchIndexes", coll.name, indexes=indexes)
        most_threads = most_writers = 0
        before = set()

        def all_ready():
            # A writer that closes waits for its first thread, and its permit is free after that. Its other threads end
            # when they next run: they are not counted. A new thread has the name of its parent for a moment.
            nonlocal most_threads, most_writers, before
            threads = threads_of_search(server, INDEX_THREAD)
            most_threads = max(most_threads, len(threads & before))
            before = threads
            most_writers = max(most_writers, len(threads_of_search(server, WRITER_THREAD)))
            return all(i["status"] == "READY" for c in range(4) for i in client.t[f"c{c}"].list_search_indexes())

        until("256 indexes are ready", all_ready, 120)
        # One more may look at the catalog.
        assert 0 < most_threads <= MOST_THREADS + 1
        assert 0 < most_writers <= MOST_WRITERS
        coll = client.t.c0
        coll.insert_one({"_id": 100, "title": "violet"})
        for n in range(64):
            until("the document is found", lambda n=n: 100 in ids(coll, text("violet"), index=f"i{n}"), 60)
        until("writers are given back", lambda: len(threads_of_search(server)) <= MOST_THREADS + 1)
        client.drop_database("t")
        until("the files are gone", lambda: not list((server.path / "search").iterdir()))
    assert server.stop() == 0


class Writer(threading.Thread):
    """Changes documents until the server goes."""

    def __init__(self, server, number, rng):
        super().__init__()
        self.server, self.number, self.rng = server, number, rng

    def run(self):
        rng = self.rng
        try:
            with self.server.client(retryWrites=False) as client:
                coll = client.t.c
                while True:
                    i = f"{self.number}-{rng.randrange(200)}"
                    title = " ".join(rng.choices(WORDS, k=rng.randrange(1, 6)))
                    what = rng.random()
                    if what < 0.7:
                        v = [rng.uniform(-1, 1) for _ in range(4)]
                        coll.replace_one({"_id": i}, {"title": title, "n": rng.randrange(5), "v": v}, upsert=True)
                    elif what < 0.8:
                        coll.delete_one({"_id": i})
                    elif what < 0.98:
                        coll.insert_many([{"title": title, "n": 1} for _ in range(rng.randrange(1, 50))])
                    else:
                        coll.delete_many({"n": 1})
        except PyMongoError:
            pass


@pytest.mark.timeout(3600)
def test_kills_in_mid_commit(new_server):
    """Whenever it was killed, an index and its collection agree."""
    rng = random.Random(SEED)
    server = new_server("--cache", "32MB")
    with server.client() as client:
        client.t.c.insert_one({"_id": "0-0", "title": "red", "v": [0, 0, 0, 1]})
        indexed(client.t.c)
        indexed(client.t.c, VECTORS, "vectors", "vectorSearch")
    for kill in range(KILLS):
        writers = [Writer(server, n, random.Random(rng.random())) for n in range(2)]
        for writer in writers:
            writer.start()
        # A kill comes at any time: in a commit, of which there is one each 50 ms, or between two.
        time.sleep(rng.uniform(0.02, 0.6))
        server.kill()
        for writer in writers:
            writer.join()
        server.start()
        with server.client() as client:
            coll = client.t.c
            until("the indexes are open", lambda c=coll: is_ready(c) and is_ready(c, "vectors"))
            until(f"kill {kill} of seed {SEED}: they agree: {server.tail(5)}", lambda c=coll: not differences(c, WORDS), 60)
            message = [i["statusDetail"][0].get("message") for i in coll.list_search_indexes()]
            assert message == [None, None], f"kill {kill} of seed {SEED}"
            query = [rng.uniform(-1, 1) for _ in range(4)]

            def distance(d, q=query):
                return sum((a - b) ** 2 for a, b in zip(d["v"], q))

            stored = sorted(coll.find({"v": {"$exists": True}}), key=distance)
            until(
                f"kill {kill} of seed {SEED}: the nearest are found",
                lambda c=coll, q=query, s=stored: nearest(c, q) == [d["_id"] for d in s[:3]],
            )
            coll.delete_many({"n": 1})


def damage(path, rng):
    """Changes some bytes of a file."""
    content = bytearray(path.read_bytes())
    for _ in range(3):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def filled(client):
    coll = client.t.c
    coll.insert_many({"_id": i, "title": WORDS[i % 5], "v": [i, 0, 0, 1], "n": i % 3} for i in range(1000))
    indexed(coll)
    return indexed(coll, VECTORS, "vectors", "vectorSearch")


def assert_whole(coll):
    until("the indexes are there", lambda: is_ready(coll) and is_ready(coll, "vectors"))
    until("they agree", lambda: not differences(coll, WORDS))
    assert nearest(coll, [500.2, 0, 0, 1]) == [500, 501, 499]


def test_damaged_files_are_found_at_the_start(new_server):
    """Each kind of file: the index is built anew, and the server lives."""
    rng = random.Random(SEED)
    server = new_server("--cache", "32MB")
    with server.client() as client:
        filled(client)
    kinds = set()
    for _ in range(12):
        assert server.stop() == 0
        files = [f for f in (server.path / "search").glob("*/*") if f.stat().st_size and not f.name.endswith(".lock")]
        fresh = [f for f in files if f.suffix + f.name[:5] * (not f.suffix) not in kinds] or files
        chosen = rng.choice(sorted(fresh))
        kinds.add(chosen.suffix + chosen.name[:5] * (not chosen.suffix))
        damage(chosen, rng)
        server.start()
        with server.client() as client:
            assert_whole(client.t.c)
            client.t.c.update_one({"_id": 1}, {"$set": {"title": "red green"}})
            shows(client.t.c, text("green"), sorted(d["_id"] for d in client.t.c.find({"title": {"$regex": "green"}})))
            client.t.c.update_one({"_id": 1}, {"$set": {"title": "green"}})
    assert {".json", ".term", ".store", ".f32"} & kinds, kinds


def wait_for_all(coll, name, search):
    """What a search finds once its index is ready. Until then it is refused: a part would be taken for the whole."""

    def answer():
        ready = is_ready(coll, name)
        try:
            return ready, search()
        except OperationFailure as e:
            assert (e.code, "while in state INITIAL_SYNC" in str(e)) in ((8, True), (301, False)), e
            return ready, None

    answers = []
    until("the index is ready", lambda: answers.append(answer()) or answers[-1][0])
    assert all(found in (None, answers[-1][1]) for _, found in answers), answers
    return answers[-1][1]


def test_an_index_that_is_being_built_refuses_searches(new_server):
    server = new_server("--cache", "32MB")
    with server.client() as client:
        coll = client.t.c
        coll.insert_many({"_id": i, "title": "red", "v": [i, 0, 0, 1], "n": 1} for i in range(5000))
        coll.create_search_index(SearchIndexModel(DYNAMIC, "words"))
        found = wait_for_all(coll, "words", lambda: len(ids(coll, text("red"), index="words")))
        assert found == 5000
        coll.create_search_index(SearchIndexModel(VECTORS, "vectors", "vectorSearch"))
        assert wait_for_all(coll, "vectors", lambda: nearest(coll, [7.2, 0, 0, 1])) == [7, 8, 6]
        assert ids(coll, text("red"), index="no such index") == []


def test_damage_under_a_running_server(new_server):
    """A search says so, and the index is built anew."""
    server = new_server("--cache", "32MB")
    with server.client() as client:
        coll = filled(client)
        [vectors] = (server.path / "search").glob("*/vectors-0.f32")
        with open(vectors, "r+b") as file:
            file.seek(500 * 20)
            file.write(b"\xff" * 40)
        with refuses(301, "DataCorruptionDetected"):
            nearest(coll, [500.2, 0, 0, 1])
        assert wait_for_all(coll, "vectors", lambda: nearest(coll, [500.2, 0, 0, 1])) == [500, 501, 499]
        assert_whole(coll)
        # A file is gone, and so is one that is cut off.
        coll.update_many({}, {"$inc": {"n": 1}})
        for folder in (server.path / "search").iterdir():
            shutil.rmtree(folder, ignore_errors=True)
        coll.update_many({}, {"$inc": {"n": 1}})
        until("they agree", lambda: is_ready(coll) and is_ready(coll, "vectors") and not differences(coll, WORDS), 60)


def test_the_log_no_longer_reaches(new_server):
    """An index that stands where the log has nothing any more is built anew; one without news needs no log."""
    server = new_server("--log-retain", 1, "--cache", "32MB")
    with server.client() as client:
        coll = client.t.c
        coll.insert_many({"_id": i, "title": "red"} for i in range(100))
        indexed(coll)
    assert server.stop() == 0
    kept = server.path.parent / "kept"
    shutil.copytree(server.path / "search", kept)

    def write_much(client):
        for i in range(150):
            client.t.other.insert_one({"fill": "x" * 30_000})
        client.admin.command("fsync")
        until("the log's past goes", lambda: client.admin.command("serverStatus")["oplogTruncation"]["truncateCount"])

    server.start()
    with server.client() as client:
        client.t.c.update_many({"_id": {"$lt": 50}}, {"$set": {"title": "green"}})
        client.t.c.delete_one({"_id": 60})
        write_much(client)
        write_much(client)
        until("it follows", lambda: not differences(client.t.c, WORDS))
    assert server.stop() == 0
    seen = list((server.path / "search").glob("*/seen"))
    assert seen, "it has written down how far it is"
    # Without news for as long as the log reaches, it goes on where it was.
    size = {f: f.stat().st_mtime_ns for f in (server.path / "search").glob("*/*.store")}
    server.start()
    with server.client() as client:
        until("the index is open", lambda: is_ready(client.t.c))
        assert not differences(client.t.c, WORDS)
        assert {f: f.stat().st_mtime_ns for f in (server.path / "search").glob("*/*.store")} == size, "it was built anew"
    assert server.stop() == 0
    shutil.rmtree(server.path / "search")
    shutil.copytree(kept, server.path / "search")
    server.start()
    with server.client() as client:
        until("the index is open", lambda: is_ready(client.t.c))
        until("they agree", lambda: not differences(client.t.c, WORDS))


@pytest.fixture(name="small_disk")
def disk_of_160_mb(tmp_path):
    (tmp_path / "disk").mkdir()
    with small_disk(tmp_path / "disk", 160) as disk:
        yield disk


def test_full_disk(small_disk, new_server):
    """An index leaves the last of the disk to the log, says so, and goes on when there is room."""
    server = new_server("--cache", "16MB", "--oplogSize", "16", path=small_disk / "data")
    ballast = small_disk / "ballast"
    with server.client() as client:
        coll = client.t.c
        coll.insert_many({"_id": i, "title": WORDS[i % 5]} for i in range(100))
        indexed(coll)
        free = shutil.disk_usage(small_disk).free
        ballast.write_bytes(b"x" * (free - (20 << 20)))
        coll.insert_one({"_id": 1000, "title": "red"})
        until("it says so", lambda: "free" in status(coll)["statusDetail"][0].get("message", ""))
        assert 0 in ids(coll, text("red")), "what it has is still found"
        assert coll.find_one({"_id": 1000})
        coll.create_search_index({"name": "second", "definition": DYNAMIC})
        until("it failed", lambda: status(coll, "second")["status"] == "FAILED")
        with refuses(8, "UnknownError"):
            found(coll, text("red"), index="second")
        ballast.unlink()
        until("both go on", lambda: is_ready(coll, "second") and 1000 in ids(coll, text("red")))
        assert 1000 in ids(coll, text("red"), index="second")
        assert "message" not in status(coll)["statusDetail"][0]
    assert server.stop() == 0


def test_an_index_is_built_after_all_have_rested(db):
    many = [db[f"c{i}"] for i in range(6)]
    for coll in many:
        coll.insert_one({"_id": 1, "title": "red"})
        coll.create_search_index(SearchIndexModel(DYNAMIC, "default"))
    until("they are ready", lambda: all(is_ready(coll) for coll in many))
    # Longer than a thread of indexes waits: one that is woken for work after ten seconds ends, and another has to do it. Nothing tells
    # how long a thread has waited.
    time.sleep(12)
    db.late.insert_one({"_id": 1, "title": "red"})
    db.late.create_search_index(SearchIndexModel(DYNAMIC, "default"))
    until("the next one is ready", lambda: is_ready(db.late), 5)
