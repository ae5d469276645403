"""Idle cursors hold next to nothing, however long the documents are, and go on when they are asked to."""

import os

import pytest
from bson import encode
from harness import Server
from pymongo.errors import OperationFailure
from watch import Watch

MB = 1 << 20
CACHE, OVERHEAD = 64, 300
COUNT, LONG = 12, 9 * MB
# So many of each kind are left; of one kind alone they would hold COPIES * LONG, were they to hold a document each.
COPIES = 48


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("idle") / "data", "--cache", f"{CACHE}m") as server, server.client() as client:
        things = client.idle.things
        for i in range(COUNT):
            # Halves, so that $unwind gives two for each.
            halves = [os.urandom(8).hex() * (LONG // 32) for _ in range(2)]
            things.insert_one({"_id": i, "k": -i, "halves": halves})
        things.create_index("k")
        client.idle.command("create", "shown", viewOn="things", pipeline=[{"$set": {"shown": True}}])
        yield server


def wanted(field="_id"):
    return [{"_id": i, "k": -i} for i in range(COUNT)] if field == "_id" else [{"_id": i, "k": -i} for i in reversed(range(COUNT))]


SET = {"$set": {"z": {"$concat": ["z", {"$arrayElemAt": ["$halves", 0]}]}}}
TWICE = [d for d in wanted() for _ in range(2)]
KINDS = {
    "scan": (lambda c: c.things.find(), wanted()),
    "index": (lambda c: c.things.find({"k": {"$gt": -COUNT}}).sort("k", 1), wanted("k")),
    "several ranges": (lambda c: c.things.find({"k": {"$in": [-i for i in range(COUNT)]}}).hint("k_1"), wanted("k")),
    "sort": (lambda c: c.things.find().sort([("k", 1), ("_id", 1)]).hint("_id_"), wanted("k")),
    "merge": (lambda c: c.things.find({"$or": [{"k": -i} for i in range(COUNT)]}).sort("k", 1), wanted("k")),
    "projection": (lambda c: c.things.find({}, {"halves": {"$concatArrays": ["$halves", []]}, "k": 1}), wanted()),
    "aggregate": (lambda c: c.things.aggregate([{"$match": {"_id": {"$gte": 0}}}]), wanted()),
    "computed": (lambda c: c.things.aggregate([SET, {"$unset": "halves"}]), wanted()),
    "unwind": (lambda c: c.things.aggregate([{"$unwind": "$halves"}]), TWICE),
    "view": (lambda c: c.shown.find(), wanted()),
    "union": (lambda c: c.things.aggregate([{"$match": {"k": 1}}, {"$unionWith": "things"}]), wanted()),
}


def leave(cursor):
    """Reads the first document and forgets the cursor without closing it."""
    first = next(cursor)
    address = cursor.address
    left = cursor.cursor_id
    cursor._killed = True
    assert left and address
    return first


@pytest.mark.parametrize("kind", KINDS)
def test_long_documents_are_not_held(server, kind):
    run, want = KINDS[kind]
    keys = lambda d: {"_id": d["_id"], "k": d["k"]}
    with server.client() as client, Watch(server.process.pid) as watch:
        kept = None
        for n in range(COPIES):
            cursor = run(client.idle)
            if n == COPIES // 2:
                first, kept = next(cursor), cursor
                assert cursor.cursor_id
            else:
                assert keys(leave(cursor)) == want[0]
        # Each following document is one of the kept ones, whole.
        assert [keys(d) for d in [first, *kept]] == want
        held = client.admin.command("serverStatus")["pandodb"]["cursors"]
    print(f"\n{kind}: at most {watch.most} MB; {held}")
    assert server.running()
    assert watch.most < CACHE + OVERHEAD
    # A third more is what one may go beyond.
    assert held["bytes"] <= held["limitBytes"] * 4 // 3


def test_what_is_given_later_is_whole(server):
    with server.client() as client:
        found = list(client.idle.things.aggregate([SET, {"$unwind": "$halves"}]))
        plain = {d["_id"]: d for d in client.idle.things.find()}
        assert len(found) == 2 * COUNT
        for n, d in enumerate(found):
            whole = plain[d["_id"]]["halves"]
            assert d["halves"] == whole[n % 2] and d["z"] == "z" + whole[0]


def test_updates_of_long_documents_go_in_small_groups(server):
    with server.client() as client, Watch(server.process.pid) as watch:
        assert client.idle.things.update_many({}, {"$set": {"more": 1}, "$currentDate": {"at": True}}).modified_count == COUNT
        assert client.idle.things.count_documents({"more": 1}) == COUNT
        client.idle.things.create_index("more")
        client.idle.things.drop_index("more_1")
    assert watch.most < CACHE + OVERHEAD


def test_long_commands_count_while_their_cursor_is_open(server):
    """One alone is always served; of many the later ones are refused, and told what to do."""
    with server.client() as client:
        few = client.idle.few
        few.insert_many([{"_id": i} for i in range(10)])
        asked = {"_id": {"$in": [*range(600_000)]}}
        assert 6 * MB < len(encode(asked)) < 11 * MB
        cursors, refused = [], None
        for _ in range(12):
            try:
                cursors.append(few.find(asked, batch_size=2))
                next(cursors[-1])
            except OperationFailure as e:
                refused = e
                break
        # By what cursors may hold, or by what the process may with them.
        assert cursors and refused and refused.code == 146
        assert "open cursors" in str(refused) or "Other operations" in str(refused)
        assert len(list(few.find({}, batch_size=2))) == 10, "small commands are served"
        for cursor in cursors:
            cursor.close()
        assert len(list(few.find(asked))) == 10
        assert len(list(few.find(asked, batch_size=2))) == 10


def status(client):
    return client.admin.command("serverStatus")["pandodb"]


def open_until_refused(client, command, most):
    """The numbers of the cursors that the server has opened, and the error that the next one got."""
    cursors = []
    while len(cursors) < most:
        try:
            cursors.append(client.idle.command(command)["cursor"]["id"])
        except OperationFailure as e:
            return cursors, e
    return cursors, None


def test_many_cursors_of_short_commands_count(tmp_path):
    """A filter of 40 KB is in memory as long as its cursor is open; so are the documents of a small sort."""
    with Server(tmp_path / "data", "--cache", f"{CACHE}m") as server, server.client() as client, Watch(server.process.pid) as watch:
        few = client.idle.few
        few.insert_many([{"_id": i, "x": f"{-i:05}", "y": "y" * 30} for i in range(500)])
        some = {"find": "few", "filter": {"y": {"$in": ["y" * 30, *(f"z{i:07}" for i in range(2000))]}}, "batchSize": 2}
        assert len(encode(some)) < 43 << 10
        cursors, refused = open_until_refused(client, some, 4000)
        own = status(client)["cursors"]
        assert refused and refused.code == 146 and len(cursors) > 1000
        assert 0.9 * own["ownLimitBytes"] < own["ownBytes"] <= own["ownLimitBytes"]
        client.idle.command("killCursors", "few", cursors=cursors)
        assert status(client)["cursors"]["ownBytes"] == 0

        # What it is parsed into takes most.
        branches = {"find": "few", "filter": {"$or": [{"y": "y" * 30}, *({"z": i} for i in range(1500))]}, "batchSize": 2}
        cursors, refused = open_until_refused(client, branches, 4000)
        assert refused.code == 146 and 100 < len(cursors) < 1000
        client.idle.command("killCursors", "few", cursors=cursors)

        sorts, refused = open_until_refused(client, {"find": "few", "sort": {"x": 1, "y": 1}, "batchSize": 2}, 300)
        assert not refused and status(client)["stages"]["bytes"] > 300 * 10_000
        client.idle.command("killCursors", "few", cursors=sorts)
        assert status(client)["stages"]["bytes"] == 0

        for i in range(2000):
            client.idle.create_collection(f"c{i:04}_{'long' * 30}")
        lists, _ = open_until_refused(client, {"listCollections": 1, "cursor": {"batchSize": 1}}, 20)
        assert status(client)["cursors"]["ownBytes"] > 20 * 2000 * 100
        assert len(lists) == 20
    assert watch.most < CACHE + OVERHEAD
