"""Stages past their 100 MB: refused without leave to use the disk, right with it, and the server stays small."""

import os
import pathlib

import pytest
from pymongo.errors import OperationFailure

COUNT, PAD = 11_500, 10_000
NO_DISK_USE, TOO_MUCH_MEMORY = 292, 146
LIMIT_MB = 700


def peak_mb(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) >> 10


@pytest.fixture
def much(new_server):
    server = new_server("--cache", "64MB", "--oplogSize", "16")
    with server.client() as client:
        things = client.spill.things
        for at in range(0, COUNT, 500):
            things.insert_many([{"_id": i, "k": os.urandom(8), "pad": "x" * PAD} for i in range(at, at + 500)])
        yield server, things


# Sorted by a field that is computed: the query below cannot bring the order.
COMPUTED = {"$addFields": {"z": {"$concat": ["$pad", "y"]}, "kk": {"$ifNull": ["$k", 0]}}}
PIPELINES = {
    "sort": [COMPUTED, {"$sort": {"kk": 1}}, {"$project": {"k": 1, "n": {"$strLenBytes": "$z"}}}],
    "sample": [{"$sample": {"size": COUNT}}, {"$project": {"n": {"$strLenBytes": "$pad"}}}],
    "window": [
        {
            "$setWindowFields": {
                "partitionBy": {"$mod": ["$_id", 10]},
                "sortBy": {"k": 1},
                "output": {"at": {"$documentNumber": {}}, "some": {"$push": "$k", "window": {"documents": [-1, 1]}}},
            }
        },
        {"$project": {"k": 1, "at": 1, "some": 1, "n": {"$strLenBytes": "$pad"}}},
    ],
}


def test_past_100_mb(much):
    server, things = much
    for name, pipeline in PIPELINES.items():
        with pytest.raises(OperationFailure) as refused:
            list(things.aggregate(pipeline, allowDiskUse=False))
        assert refused.value.code == NO_DISK_USE, name
        found = list(things.aggregate(pipeline, allowDiskUse=True))
        assert len({d["_id"] for d in found}) == COUNT, name
        assert len(found) == COUNT and all(d["n"] in (PAD, PAD + 1) for d in found), name
        if name == "sort":
            assert [d["k"] for d in found] == sorted(d["k"] for d in found)
        if name == "window":
            check_windows(found)
    assert peak_mb(server) < LIMIT_MB


def check_windows(found):
    for part in range(10):
        rows = [d for d in found if d["_id"] % 10 == part]
        keys = [d["k"] for d in rows]
        assert keys == sorted(keys)
        assert [d["at"] for d in rows] == list(range(1, len(rows) + 1))
        assert all(d["some"] == keys[max(i - 1, 0) : i + 2] for i, d in enumerate(rows))


def test_sort_of_a_find(much):
    """No index brings the order, and the keys alone are more than 100 MB."""
    server, things = much
    order = [("pad", 1), ("k", -1)]
    with pytest.raises(OperationFailure) as refused:
        list(things.find({}, {"k": 1}).sort(order).allow_disk_use(False))
    assert refused.value.code == NO_DISK_USE
    expected = sorted((d["k"] for d in things.find({}, {"k": 1})), reverse=True)
    assert [d["k"] for d in things.find({}, {"k": 1}).sort(order)] == expected
    # Small batches, and a start behind some runs' first rows.
    found = [d["k"] for d in things.find({}, {"k": 1}).sort(order).skip(5000).batch_size(500)]
    assert found == expected[5000:]
    found = [d["k"] for d in things.find({}, {"k": 1}).sort(order).limit(COUNT - 3)]
    assert found == expected[:-3]
    # What MongoDB would hold is what counts without leave: documents, not keys.
    with pytest.raises(OperationFailure) as refused:
        list(things.aggregate([{"$sort": {"k": 1}}], allowDiskUse=False))
    assert refused.value.code == NO_DISK_USE
    assert len(list(things.find({}, {"_id": 1}).sort("k", 1).limit(100).allow_disk_use(False))) == 100
    assert peak_mb(server) < LIMIT_MB
    assert not list(server.path.glob("*.new")), "temporary files have no name"


def test_facets_over_more_than_100_mb(much):
    server, things = much
    length = {"k": 1, "n": {"$strLenBytes": "$pad"}}
    facets = {"$facet": {"n": [{"$count": "n"}], "first": [{"$sort": {"k": 1}}, {"$limit": 1}, {"$project": length}]}}
    with pytest.raises(OperationFailure) as refused:
        list(things.aggregate([facets], allowDiskUse=False))
    assert refused.value.code == NO_DISK_USE
    (found,) = things.aggregate([facets])
    assert found["n"] == [{"n": COUNT}]
    assert [d["k"] for d in found["first"]] == [min(d["k"] for d in things.find({}, {"k": 1}))]
    # What no stage reads is not held.
    narrow = {"$facet": {"n": [{"$count": "n"}], "first": [{"$sort": {"k": 1}}, {"$limit": 1}, {"$project": {"k": 1}}]}}
    (again,) = things.aggregate([narrow], allowDiskUse=False)
    assert again["n"] == found["n"] and again["first"][0]["k"] == found["first"][0]["k"]
    assert peak_mb(server) < LIMIT_MB


@pytest.mark.parametrize(
    ("stage", "code"),
    [
        ({"$group": {"_id": None, "all": {"$push": "$$ROOT"}}}, TOO_MUCH_MEMORY),
        ({"$group": {"_id": None, "all": {"$addToSet": {"p": "$pad", "k": "$k"}}}}, TOO_MUCH_MEMORY),
        ({"$setWindowFields": {"sortBy": {"k": 1}, "output": {"all": {"$push": "$$ROOT"}}}}, 5414201),
    ],
    ids=["push", "addToSet", "window"],
)
def test_what_cannot_be_spilled(much, stage, code):
    """One value that alone is too much."""
    server, things = much
    with pytest.raises(OperationFailure) as refused:
        list(things.aggregate([stage, {"$project": {"_id": 1}}]))
    assert refused.value.code == code
    assert peak_mb(server) < LIMIT_MB


def test_one_partition_past_100_mb(much):
    """It goes to a file, and is read there by functions that look ahead, back and over all of it."""
    server, things = much
    window = {
        "$setWindowFields": {
            "sortBy": {"k": 1},
            "output": {
                "at": {"$documentNumber": {}},
                "some": {"$push": "$k", "window": {"documents": [-1, 1]}},
                "far": {"$shift": {"output": "$k", "by": 9000}},
                "sum": {"$sum": "$_id"},
                "running": {"$sum": "$_id", "window": {"documents": ["unbounded", "current"]}},
            },
        }
    }
    pipeline = [window, {"$project": {"pad": 0}}]
    with pytest.raises(OperationFailure) as refused:
        list(things.aggregate(pipeline, allowDiskUse=False))
    assert refused.value.code == NO_DISK_USE
    found = list(things.aggregate(pipeline, allowDiskUse=True))
    keys = [d["k"] for d in found]
    assert keys == sorted(keys) and len(found) == COUNT
    assert [d["at"] for d in found] == list(range(1, COUNT + 1))
    assert all(d["some"] == keys[max(i - 1, 0) : i + 2] for i, d in enumerate(found))
    assert [d["far"] for d in found] == keys[9000:] + [None] * 9000
    running = 0
    for d in found:
        running += d["_id"]
        assert d["running"] == running
    assert {d["sum"] for d in found} == {running}
    assert peak_mb(server) < LIMIT_MB


def test_joins_of_more_than_100_mb_are_unwound_as_they_come(much):
    server, things = much
    spill = things.database
    spill.one.insert_many([{"_id": 1, "pad": "x" * PAD}, {"_id": 2, "pad": "none"}])
    join = {"from": "things", "localField": "pad", "foreignField": "pad", "as": "all"}
    with pytest.raises(OperationFailure) as refused:
        list(spill.one.aggregate([{"$lookup": join}, {"$project": {"n": {"$size": "$all"}}}]))
    assert refused.value.code == 4568
    for lookup in (join, {"from": "things", "pipeline": [], "as": "all"}):
        unwound = [{"$lookup": lookup}, {"$unwind": "$all"}]
        joined = 1 if lookup is join else 2
        assert list(spill.one.aggregate([*unwound, {"$count": "n"}])) == [{"n": joined * COUNT}]
        wanted = [{"$match": {"all._id": {"$gte": COUNT - 3}}}, {"$project": {"pad": 0, "all.pad": 0, "all.k": 0}}]
        found = [(d["_id"], d["all"]["_id"]) for d in spill.one.aggregate(unwound + wanted)]
        assert found == [(i + 1, COUNT - 3 + n) for i in range(joined) for n in range(3)]
    assert peak_mb(server) < LIMIT_MB


def test_disk_use_by_default(much):
    """What the commands do not say a parameter does."""
    server, things = much
    admin = things.database.client.admin
    order = [("pad", 1), ("k", -1)]
    stages = PIPELINES["sort"]

    def code(run):
        try:
            return run() and 0
        except OperationFailure as e:
            return e.code

    def found(**allowed):
        return code(lambda: list(things.aggregate(stages, **allowed)))

    def sorted_find(allowed=None):
        cursor = things.find({}, {"k": 1}).sort(order)
        return code(lambda: list(cursor if allowed is None else cursor.allow_disk_use(allowed)))

    assert (found(), sorted_find()) == (0, 0)
    admin.command("setParameter", 1, allowDiskUseByDefault=False)
    assert (found(), sorted_find()) == (NO_DISK_USE, NO_DISK_USE)
    assert (found(allowDiskUse=True), sorted_find(True)) == (0, 0)
    things.database.command("create", "seen", viewOn="things", pipeline=[])
    view = things.database.seen
    assert code(lambda: list(view.find({}, {"k": 1}).sort(order))) == NO_DISK_USE
    assert code(lambda: list(view.find({}, {"k": 1}).sort(order).allow_disk_use(True))) == 0
    find = {"find": "things", "sort": dict(order)}
    explained = things.database.command("explain", find, verbosity="executionStats")["executionStats"]
    assert (explained["executionSuccess"], explained["errorCode"]) == (False, NO_DISK_USE)
    admin.command("setParameter", 1, allowDiskUseByDefault=True)
    assert (found(), sorted_find()) == (0, 0)
    assert (found(allowDiskUse=False), sorted_find(False)) == (NO_DISK_USE, NO_DISK_USE)
