"""Cursors: batches, getMore, killCursors, time-outs, and ended ones."""


import pytest
from bson import Int64

from exact import ids
from harness import expect_error, refuses, until


@pytest.fixture
def hundreds(coll):
    coll.insert_many([{"_id": i, "a": i % 10} for i in range(500)])
    return coll


def run(coll, command, **arguments):
    return coll.database.command(command, coll.name, **arguments)["cursor"]


def more(coll, cursor_id, **arguments):
    return coll.database.command("getMore", Int64(cursor_id), collection=coll.name, **arguments)["cursor"]


def test_batches(hundreds):
    cursor = run(hundreds, "find", batchSize=100)
    assert len(cursor["firstBatch"]) == 100 and cursor["id"] != 0 and cursor["ns"] == hundreds.full_name
    assert len(run(hundreds, "find")["firstBatch"]) == 101, "the default of the first batch"
    seen = ids(cursor["firstBatch"])
    while cursor["id"]:
        cursor = more(hundreds, cursor["id"], batchSize=150)
        assert len(cursor["nextBatch"]) <= 150
        seen += ids(cursor["nextBatch"])
    assert sorted(seen) == list(range(500))


def test_get_more_without_batch_size_gives_the_rest(hundreds):
    cursor = run(hundreds, "find", batchSize=1)
    cursor = more(hundreds, cursor["id"])
    assert len(cursor["nextBatch"]) == 499 and cursor["id"] == 0


def test_batches_end_at_16_mb(coll):
    coll.insert_many([{"_id": i, "s": "x" * 1_000_000} for i in range(40)])
    cursor = run(coll, "find", batchSize=1)
    cursor = more(coll, cursor["id"])
    assert 10 <= len(cursor["nextBatch"]) <= 17 and cursor["id"]
    assert len(list(coll.find())) == 40


def test_empty_first_batch(hundreds):
    cursor = run(hundreds, "find", batchSize=0)
    assert cursor["firstBatch"] == [] and cursor["id"]
    assert len(more(hundreds, cursor["id"], batchSize=3)["nextBatch"]) == 3


def test_single_batch(hundreds):
    cursor = run(hundreds, "find", batchSize=5, singleBatch=True)
    assert len(cursor["firstBatch"]) == 5 and cursor["id"] == 0


def test_limit_over_batches(hundreds):
    assert len(list(hundreds.find().batch_size(30).limit(100))) == 100
    cursor = run(hundreds, "find", batchSize=30, limit=30)
    assert len(cursor["firstBatch"]) == 30 and cursor["id"] == 0


@pytest.mark.parametrize("pipeline", [[], [{"$sort": {"_id": -1}}], [{"$match": {"a": {"$lt": 5}}}, {"$project": {"a": 1}}]])
def test_aggregation_cursors(hundreds, pipeline):
    cursor = run(hundreds, "aggregate", pipeline=pipeline, cursor={"batchSize": 7})
    assert len(cursor["firstBatch"]) == 7 and cursor["id"]
    seen = ids(cursor["firstBatch"])
    while cursor["id"]:
        cursor = more(hundreds, cursor["id"], batchSize=50)
        seen += ids(cursor["nextBatch"])
    assert sorted(seen) == sorted(ids(hundreds.aggregate(pipeline)))


def test_kill_cursors(hundreds):
    cursor = run(hundreds, "find", batchSize=2)
    reply = hundreds.database.command("killCursors", hundreds.name, cursors=[Int64(cursor["id"]), Int64(4711)])
    assert reply["cursorsKilled"] == [cursor["id"]] and reply["cursorsNotFound"] == [4711]
    assert reply["cursorsAlive"] == [] and reply["cursorsUnknown"] == []
    with refuses(43, "CursorNotFound"):
        more(hundreds, cursor["id"])


def test_get_more_of_another_collection(hundreds):
    cursor = run(hundreds, "find", batchSize=2)
    with refuses(13, "Unauthorized"):
        hundreds.database.command("getMore", Int64(cursor["id"]), collection="other")


def test_a_cursor_that_never_was(hundreds):
    with refuses(43, "CursorNotFound", containing="cursor id 123456789 not found"):
        more(hundreds, 123456789)


def test_a_finished_cursor_is_gone(hundreds):
    cursor = run(hundreds, "find", batchSize=499)
    assert more(hundreds, cursor["id"], batchSize=10)["id"] == 0
    with refuses(43, "CursorNotFound"):
        more(hundreds, cursor["id"])


def test_a_cursor_of_a_dropped_collection(hundreds):
    cursor = run(hundreds, "find", batchSize=2)
    hundreds.drop()
    with refuses(175, "QueryPlanKilled"):
        more(hundreds, cursor["id"])


def test_open_cursors_are_counted(client, hundreds):
    def opened():
        return client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]

    before = opened()
    cursor = run(hundreds, "find", batchSize=2)
    assert opened() == before + 1
    hundreds.database.command("killCursors", hundreds.name, cursors=[Int64(cursor["id"])])
    assert opened() == before


def test_reading_while_writing(hundreds):
    """A cursor ends, and gives every document that was there throughout exactly once."""
    seen = []
    for i, document in enumerate(hundreds.find({"_id": {"$lt": 500}}).batch_size(20)):
        seen.append(document["_id"])
        if i % 5 == 0:
            hundreds.insert_one({"_id": 1000 + i})
            hundreds.update_one({"_id": document["_id"]}, {"$set": {"grown": "x" * 200}})
    assert sorted(seen) == list(range(500))


def test_idle_cursors_time_out(new_server):
    server = new_server("--setParameter", "cursorTimeoutMillis=300", "--setParameter", "clientCursorMonitorFrequencySecs=1")
    with server.client() as client:
        coll = client.test.things
        coll.insert_many([{"_id": i} for i in range(10)])
        cursor = run(coll, "find", batchSize=2)
        kept = run(coll, "find", batchSize=2, noCursorTimeout=True)
        timed_out = lambda: client.admin.command("serverStatus")["metrics"]["cursor"]["timedOut"]
        until("an idle cursor times out", lambda: timed_out() == 1)
        with refuses(43, "CursorNotFound"):
            more(coll, cursor["id"])
        del kept  # sessions end such cursors too, on MongoDB: nothing is promised of it


@pytest.mark.parametrize(
    "command, code, name",
    [
        ({"getMore": "x", "collection": "c"}, 14, "TypeMismatch"),
        ({"getMore": Int64(1)}, 40414, "IDLFailedToParse"),
        ({"getMore": Int64(1), "collection": 1}, 14, "TypeMismatch"),
        ({"getMore": Int64(1), "collection": "c", "batchSize": -1}, 2, "BadValue"),
        ({"getMore": Int64(1), "collection": "c", "nonsense": 1}, 40415, "IDLUnknownField"),
        ({"killCursors": "c"}, 40414, "IDLFailedToParse"),
        ({"killCursors": "c", "cursors": "x"}, 14, "TypeMismatch"),
    ],
)
def test_bad_arguments(wire, command, code, name):
    expect_error(wire.command({**command, "$db": "test_bad"}), code, name)
    wire.ping()


def test_the_order_without_a_sort(coll):
    coll.insert_many([{"_id": i} for i in [3, 1, 2]])
    assert [d["_id"] for d in coll.find()] == [1, 2, 3]


def test_a_cursor_shows_the_moment_it_was_opened(coll):
    coll.insert_many([{"_id": i, "v": i} for i in range(6)])
    cursor = coll.find(batch_size=2)
    assert next(cursor)["_id"] == 0
    coll.update_one({"_id": 4}, {"$set": {"v": "new"}})
    coll.delete_one({"_id": 5})
    coll.insert_one({"_id": 6})
    assert [d["v"] for d in cursor] == [1, 2, 3, 4, 5]
