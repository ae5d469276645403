"""Tailable cursors: a capped collection followed as it grows."""

import threading
import time

import pytest
from pymongo import CursorType

from harness import refuses, until


@pytest.fixture
def log(db):
    coll = db.create_collection("log", capped=True, size=1 << 20, max=1000)
    coll.insert_one({"_id": 0})
    return coll


def take(cursor, n, timeout_s=20):
    """The next n documents, as users wait for them."""
    got, end = [], time.monotonic() + timeout_s
    while len(got) < n and time.monotonic() < end and cursor.alive:
        for d in cursor:
            got.append(d["_id"])
            if len(got) == n:
                break
    return got


def test_it_goes_on_where_it_was(log):
    cursor = log.find(cursor_type=CursorType.TAILABLE)
    assert next(cursor)["_id"] == 0
    with pytest.raises(StopIteration):
        next(cursor)
    assert cursor.alive
    log.insert_many([{"_id": i} for i in range(1, 4)])
    assert take(cursor, 3) == [1, 2, 3]
    cursor.close()


def test_await_data_wakes_with_an_insert(log):
    cursor = log.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(20_000)
    assert next(cursor)["_id"] == 0
    arrived = []

    def follow():
        for d in cursor:
            arrived.append((d["_id"], time.monotonic()))
            if d["_id"] == 3:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    sent = []
    for i in range(1, 4):
        until("its cursor waits", lambda: log.database.client.admin.command("currentOp", {"command.getMore": {"$exists": True}})["inprog"])
        sent.append(time.monotonic())
        log.insert_one({"_id": i})
    thread.join(10)
    assert [i for i, _ in arrived] == [1, 2, 3]
    # It does not depend on how often the server looks: much faster than the longest wait.
    assert all(at - then < 2 for (_, at), then in zip(arrived, sent, strict=True))


def test_await_data_gives_an_empty_batch_in_time(db, log):
    first = db.command("find", "log", tailable=True, awaitData=True)["cursor"]
    assert [d["_id"] for d in first["firstBatch"]] == [0] and first["id"] != 0
    for ms in [0, 100, 600]:
        begun = time.monotonic()
        reply = db.command("getMore", first["id"], collection="log", maxTimeMS=ms)
        assert reply["cursor"] == {"nextBatch": [], "id": first["id"], "ns": f"{db.name}.log"}
        assert ms / 1000 * 0.9 <= time.monotonic() - begun < ms / 1000 + 2


def test_filter_projection_skip_and_limit(log):
    log.insert_many([{"_id": i, "x": i % 2} for i in range(1, 7)])
    cursor = log.find({"x": 1}, {"_id": 1}, cursor_type=CursorType.TAILABLE, skip=1, limit=4)
    assert take(cursor, 2) == [3, 5]
    log.insert_many([{"_id": i, "x": i % 2} for i in range(7, 20)])
    assert take(cursor, 3, timeout_s=1) == [7, 9]


def test_a_cursor_that_was_overrun_says_so(db):
    coll = db.create_collection("few", capped=True, size=4096, max=3)
    coll.insert_many([{"_id": i} for i in range(3)])
    cursor = coll.find(cursor_type=CursorType.TAILABLE)
    assert take(cursor, 3) == [0, 1, 2]
    coll.insert_many([{"_id": i} for i in range(3, 5)])
    assert take(cursor, 2) == [3, 4]
    raw = db.command("find", "few", tailable=True)["cursor"]["id"]
    coll.insert_many([{"_id": i} for i in range(5, 8)])
    with refuses(136, "CappedPositionLost"):
        db.command("getMore", raw, collection="few")
    # The driver takes this error for the end.
    assert take(cursor, 1) == [] and not cursor.alive


def test_drop_and_kill_end_it(db, log):
    for end, code in [(lambda c: log.drop(), 175), (lambda c: db.command("killCursors", "log", cursors=[c]), 237)]:
        if "log" not in db.list_collection_names():
            db.create_collection("log", capped=True, size=4096)
            log.insert_one({"_id": 0})
        cursor = db.command("find", "log", tailable=True, awaitData=True)["cursor"]["id"]
        thread = threading.Timer(0.4, end, [cursor])
        thread.start()
        begun = time.monotonic()
        with refuses(code):
            db.command("getMore", cursor, collection="log", maxTimeMS=20_000)
        assert time.monotonic() - begun < 5
        thread.join()


def test_what_is_refused(db, log):
    db.plain.insert_one({"_id": 1})
    with refuses(2, containing="tailable cursor requested on non capped collection"):
        list(db.plain.find(cursor_type=CursorType.TAILABLE))
    db.command("create", "view", viewOn="log")
    with refuses(168):
        list(db.view.find(cursor_type=CursorType.TAILABLE))
    with refuses(9):
        db.command("find", "log", awaitData=True)
    with refuses(2):
        db.command("find", "log", tailable=True, sort={"$natural": -1})
    with refuses(2):
        db.command("find", "log", tailable=True, singleBatch=True)
    cursor = db.command("find", "log", tailable=True)["cursor"]["id"]
    for ms in [0, 100]:
        with refuses(2, containing="non-awaitData"):
            db.command("getMore", cursor, collection="log", maxTimeMS=ms)
    assert db.command("getMore", cursor, collection="log")["cursor"]["id"] == cursor


def test_an_empty_collection_gives_a_dead_cursor(db):
    db.create_collection("empty", capped=True, size=4096)
    cursor = db.empty.find(cursor_type=CursorType.TAILABLE_AWAIT)
    assert list(cursor) == [] and not cursor.alive
    assert not db.command("find", "missing", tailable=True)["cursor"]["id"]


def test_followers_miss_nothing_while_many_write(log):
    """Several writers on several connections; each follower sees every document once, in natural order."""
    total, writers = 600, 4
    seen = [[] for _ in range(3)]

    def follow(into):
        cursor = log.find({"_id": {"$ne": 0}}, cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(500)
        into.extend(take(cursor, total, timeout_s=60))

    def write(w):
        for i in range(0, total // writers, 2):
            log.insert_many([{"_id": f"{w}-{i}"}, {"_id": f"{w}-{i + 1}"}])

    threads = [threading.Thread(target=follow, args=[s]) for s in seen]
    threads += [threading.Thread(target=write, args=[w]) for w in range(writers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    order = [d["_id"] for d in log.find()][1:]
    assert len(order) == total
    assert all(s == order for s in seen)


def test_waiting_cursors_leave_room_for_work(new_server):
    """More cursors wait than there are worker threads; everything else goes on."""
    server = new_server()
    with server.client(maxPoolSize=400) as client:
        log = client.t.create_collection("log", capped=True, size=1 << 20)
        log.insert_one({"_id": 0})
        got = []

        def wait():
            cursor = log.find({"_id": 1}, cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(10_000)
            got.extend(take(cursor, 1, timeout_s=60))

        threads = [threading.Thread(target=wait) for _ in range(300)]
        for t in threads:
            t.start()
        open_cursors = lambda: client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
        until("all wait", lambda: open_cursors() == 300)
        begun = time.monotonic()
        client.t.other.insert_many([{"x": i} for i in range(1000)])
        assert client.t.other.count_documents({"x": {"$gte": 0}}) == 1000
        client.t.other.create_index("x")
        assert time.monotonic() - begun < 8
        log.insert_one({"_id": 1})
        for t in threads:
            t.join()
        assert got == [1] * 300


def test_a_hint_changes_nothing(log):
    log.insert_one({"_id": -1})
    for hint in [[("_id", 1)], [("$natural", -1)]]:
        assert take(log.find(cursor_type=CursorType.TAILABLE, hint=hint), 2) == [0, -1]
