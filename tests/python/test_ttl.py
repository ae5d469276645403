"""TTL indexes: their options, and that they expire old documents and no others."""

import datetime
import time

import pytest

from agreement import assert_indexes_agree
from harness import refuses, until

UTC = datetime.timezone.utc


def ago(**by):
    return datetime.datetime.now(UTC) - datetime.timedelta(**by)


def passes(client):
    return client.admin.command("serverStatus")["metrics"]["ttl"]["passes"]


def after_passes(client, n=2):
    """Waits for n whole passes that began after now."""
    start = passes(client)
    until("it happens in time", lambda: passes(client) >= start + n)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A server that expires every second."""
    from harness import Server

    with Server(tmp_path_factory.mktemp("ttl") / "data", "--setParameter", "ttlMonitorSleepSecs=1") as server:
        with server.client() as client:
            yield client


@pytest.fixture
def c(quick, request):
    coll = quick.ttl[request.node.name]
    yield coll
    coll.drop()


def left(coll):
    return sorted(d["_id"] for d in coll.find())


def test_what_expires(quick, c):
    c.insert_many(
        [
            {"_id": "old", "at": ago(hours=2)},
            {"_id": "very old", "at": datetime.datetime(1950, 1, 1, tzinfo=UTC)},
            {"_id": "young", "at": ago(minutes=1)},
            {"_id": "future", "at": ago(days=-1)},
            {"_id": "an old one among others", "at": [ago(minutes=1), "x", ago(hours=2)]},
            {"_id": "young ones", "at": [ago(minutes=1), ago(minutes=2)]},
            {"_id": "a string", "at": "2001-01-01"},
            {"_id": "a number", "at": 5},
            {"_id": "null", "at": None},
            {"_id": "missing"},
        ]
    )
    c.create_index("at", expireAfterSeconds=3600)
    until("it happens in time", lambda: len(left(c)) <= 7)
    after_passes(quick)
    assert left(c) == sorted(["young", "future", "young ones", "a string", "a number", "null", "missing"])
    assert_indexes_agree(c)
    assert c.database.command("validate", c.name, full=True)["valid"]


def test_descending_and_at_a_time(quick, c):
    c.create_index([("when", -1)], expireAfterSeconds=0)
    soon = datetime.datetime.now(UTC) + datetime.timedelta(seconds=4)
    c.insert_many([{"_id": 1, "when": soon}, {"_id": 2, "when": ago(days=-1)}, {"_id": 3, "when": ago(seconds=1)}])
    until("it happens in time", lambda: left(c) == [1, 2])
    assert datetime.datetime.now(UTC) < soon
    until("it happens in time", lambda: left(c) == [2])
    assert datetime.datetime.now(UTC) >= soon


def test_a_partial_one_leaves_the_others(quick, c):
    c.create_index("at", expireAfterSeconds=60, partialFilterExpression={"done": True})
    c.insert_many([{"_id": i, "at": ago(hours=1), "done": i % 2 == 0} for i in range(6)])
    until("it happens in time", lambda: left(c) == [1, 3, 5])
    after_passes(quick)
    assert left(c) == [1, 3, 5]
    c.update_one({"_id": 3}, {"$set": {"done": True}})
    until("it happens in time", lambda: left(c) == [1, 5])


def test_changing_the_time(quick, c):
    c.create_index("at", name="ttl", expireAfterSeconds=1_000_000)
    c.insert_many([{"_id": i, "at": ago(hours=i)} for i in range(5)])
    after_passes(quick)
    assert left(c) == [0, 1, 2, 3, 4]
    reply = c.database.command("collMod", c.name, index={"name": "ttl", "expireAfterSeconds": 9000})
    assert (reply["expireAfterSeconds_old"], reply["expireAfterSeconds_new"]) == (1_000_000, 9000)
    until("it happens in time", lambda: left(c) == [0, 1, 2])
    # An index that was none becomes one.
    c.create_index("also")
    c.insert_one({"_id": 9, "also": ago(days=3)})
    c.database.command("collMod", c.name, index={"keyPattern": {"also": 1}, "expireAfterSeconds": 5})
    until("it happens in time", lambda: left(c) == [0, 1, 2])


def test_many_are_deleted_and_counted(quick, c):
    before = quick.admin.command("serverStatus")["metrics"]["ttl"]["deletedDocuments"]
    c.insert_many([{"at": ago(hours=1), "x": i} for i in range(5000)] + [{"at": ago(hours=-1), "x": -1}])
    c.create_index("x")
    c.create_index("at", expireAfterSeconds=10)
    until("it happens in time", lambda: c.estimated_document_count() == 1)
    assert [d["x"] for d in c.find()] == [-1]
    assert quick.admin.command("serverStatus")["metrics"]["ttl"]["deletedDocuments"] == before + 5000
    assert c.database.command("validate", c.name, full=True)["valid"]


def test_it_can_be_switched_off(quick, c):
    quick.admin.command("setParameter", 1, ttlMonitorEnabled=False)
    try:
        c.create_index("at", expireAfterSeconds=0)
        c.insert_one({"_id": 1, "at": ago(hours=1)})
        # No pass counts while it is off. One would begin each second.
        time.sleep(1.5)
        assert left(c) == [1]
    finally:
        quick.admin.command("setParameter", 1, ttlMonitorEnabled=True)
    until("it happens in time", lambda: left(c) == [])


def test_clustered_collections_expire_by_id(quick):
    c = quick.ttl.create_collection("byid", clusteredIndex={"key": {"_id": 1}, "unique": True}, expireAfterSeconds=60)
    c.insert_many([{"_id": ago(hours=h), "h": h} for h in (2, 1, -1)] + [{"_id": 5, "h": 0}])
    until("it happens in time", lambda: c.count_documents({}) == 2)
    assert sorted(d["h"] for d in c.find()) == [-1, 0]
    quick.ttl.command("collMod", "byid", expireAfterSeconds="off")
    c.insert_one({"_id": ago(days=1), "h": 24})
    after_passes(quick)
    assert c.count_documents({}) == 3
    quick.ttl.command("collMod", "byid", expireAfterSeconds=3600)
    until("it happens in time", lambda: c.count_documents({}) == 2)


def test_what_is_refused(coll):
    for seconds in [-1, 2**31, "10", True, float("inf")]:
        with refuses(67):
            coll.create_index("at", expireAfterSeconds=seconds)
    with refuses(67):
        coll.create_index([("at", 1), ("b", 1)], expireAfterSeconds=1)
    with refuses(197):
        coll.create_index("_id", expireAfterSeconds=1)
    coll.create_index("at", name="ttl", expireAfterSeconds=1.9)
    assert coll.index_information()["ttl"]["expireAfterSeconds"] == 1
    with refuses(85):
        coll.create_index("at", name="other", expireAfterSeconds=2)
