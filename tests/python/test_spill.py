"""Sorts past their 100 MB: refused without leave to use the disk, right with it, and the server stays small."""

import os
import pathlib

import pytest
from pymongo.errors import OperationFailure

COUNT, PAD = 11_500, 10_000
NO_DISK_USE = 292
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
}


def test_past_100_mb(much):
    server, things = much
    for name, pipeline in PIPELINES.items():
        with pytest.raises(OperationFailure) as refused:
            list(things.aggregate(pipeline, allowDiskUse=False))
        assert refused.value.code == NO_DISK_USE, name
        found = list(things.aggregate(pipeline, allowDiskUse=True))
        assert len(found) == COUNT and all(d["n"] in (PAD, PAD + 1) for d in found), name
        if name == "sort":
            assert [d["k"] for d in found] == sorted(d["k"] for d in found)
    assert peak_mb(server) < LIMIT_MB
