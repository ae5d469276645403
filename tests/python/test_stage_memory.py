"""Stages that look at all of their input before they give anything hold little of it, or are refused without leave to use files."""

import pytest
from harness import Server
from pymongo.errors import OperationFailure
from watch import Watch

CACHE, OVERHEAD = 64, 300
COUNT, PAD = 30_000, 10_000
NO_DISK_USE = 292
LENGTH = {"$strLenBytes": {"$ifNull": ["$pad", ""]}}


@pytest.fixture(scope="module")
def much(tmp_path_factory):
    """300 MB, in no order of `k`, which are the even numbers below 60,000; a third of them to each `p`."""
    with Server(tmp_path_factory.mktemp("stages") / "data", "--cache", f"{CACHE}m") as server, server.client() as client:
        things = client.stages.things
        for at in range(0, COUNT, 1000):
            some = range(at, at + 1000)
            things.insert_many([{"_id": i, "k": i * 7 % COUNT * 2, "p": i % 3, "pad": "x" * PAD} for i in some])
        yield server, things


def buckets(things, **options):
    output = {"n": {"$sum": 1}, "bytes": {"$sum": LENGTH}, "first": {"$first": "$k"}}
    found = list(things.aggregate([{"$bucketAuto": {"groupBy": "$k", "buckets": 10, "output": output}}], **options))
    each, last = COUNT // 10, 2 * COUNT - 2
    starts = range(0, 2 * COUNT, 2 * each)
    ends = [*starts[1:], last]
    assert found == [
        {"_id": {"min": start, "max": end}, "n": each, "bytes": each * PAD, "first": start} for start, end in zip(starts, ends)
    ]


def steps(things, **options):
    fill = {"field": "k", "range": {"step": 1, "bounds": "full"}}
    found = list(things.aggregate([{"$densify": fill}, {"$project": {"k": 1, "n": LENGTH}}], batchSize=5000, **options))
    assert [d["k"] for d in found] == list(range(2 * COUNT - 1))
    assert all((d["n"] == PAD) == ("_id" in d) == (d["k"] % 2 == 0) for d in found)


def steps_of_partitions(things, **options):
    fill = {"field": "k", "partitionByFields": ["p"], "range": {"step": 1, "bounds": "full"}}
    group = {"_id": "$p", "n": {"$sum": 1}, "keys": {"$sum": "$k"}, "bytes": {"$sum": LENGTH}}
    found = list(things.aggregate([{"$densify": fill}, {"$group": group}], **options))
    n = 2 * COUNT - 1
    assert found == [{"_id": p, "n": n, "keys": n * (n - 1) // 2, "bytes": COUNT // 3 * PAD} for p in range(3)]


@pytest.mark.parametrize("run", [buckets, steps, steps_of_partitions])
def test_holds_little_of_300_mb(much, run):
    server, things = much
    with Watch(server.process.pid) as watch:
        run(things)
    assert watch.most < CACHE + OVERHEAD
    with pytest.raises(OperationFailure) as refused:
        run(things, allowDiskUse=False)
    assert refused.value.code == NO_DISK_USE
    assert things.database.client.admin.command("serverStatus")["pandodb"]["stages"]["bytes"] == 0
