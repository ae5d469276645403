"""findAndModify in all its variants."""

import pytest
from pymongo import ReturnDocument

from exact import same
from harness import expect_error, refuses


@pytest.fixture
def queue(coll):
    coll.insert_many([{"_id": i, "rank": -i, "tags": [i, i + 1]} for i in range(5)])
    return coll


def test_update_before_and_after(queue):
    same([queue.find_one_and_update({"_id": 1}, {"$set": {"x": 1}})], [{"_id": 1, "rank": -1, "tags": [1, 2]}])
    after = queue.find_one_and_update({"_id": 1}, {"$inc": {"x": 1}}, return_document=ReturnDocument.AFTER)
    same([after], [{"_id": 1, "rank": -1, "tags": [1, 2], "x": 2}])


def test_sort_decides_which(queue):
    found = queue.find_one_and_update({}, {"$set": {"x": 1}}, sort=[("rank", 1)])
    assert found["_id"] == 4
    assert queue.find_one_and_delete({}, sort=[("rank", -1)])["_id"] == 0


def test_projection(queue):
    found = queue.find_one_and_update({"_id": 2}, {"$set": {"x": 1}}, projection={"x": 1, "_id": 0}, return_document=True)
    assert found == {"x": 1}


def test_remove(queue):
    assert queue.find_one_and_delete({"_id": 3})["rank"] == -3
    assert queue.find_one_and_delete({"_id": 3}) is None
    assert queue.count_documents({}) == 4


def test_replace(queue):
    after = queue.find_one_and_replace({"_id": 3}, {"new": True}, return_document=ReturnDocument.AFTER)
    same([after], [{"_id": 3, "new": True}])


def test_upsert(coll):
    reply = coll.database.command("findAndModify", coll.name, query={"a": 1}, update={"$set": {"b": 2}}, upsert=True)
    assert reply["value"] is None
    last = reply["lastErrorObject"]
    assert last["n"] == 1 and last["updatedExisting"] is False and "upserted" in last
    reply = coll.database.command("findAndModify", coll.name, query={"_id": 7}, update={"n": 1}, upsert=True, new=True)
    assert reply["value"] == {"_id": 7, "n": 1} and reply["lastErrorObject"]["upserted"] == 7


def test_last_error_object(queue):
    reply = queue.database.command("findAndModify", queue.name, query={"_id": 1}, update={"$set": {"x": 1}})
    assert reply["lastErrorObject"] == {"n": 1, "updatedExisting": True}
    reply = queue.database.command("findAndModify", queue.name, query={"_id": 99}, update={"$set": {"x": 1}})
    assert reply["lastErrorObject"] == {"n": 0, "updatedExisting": False} and reply["value"] is None
    reply = queue.database.command("findAndModify", queue.name, query={"_id": 1}, remove=True)
    assert reply["lastErrorObject"] == {"n": 1} and reply["value"]["_id"] == 1


def test_array_filters_pipeline_positional(queue):
    after = queue.find_one_and_update({"_id": 1}, {"$set": {"tags.$[t]": 0}}, array_filters=[{"t": 2}], return_document=True)
    assert after["tags"] == [1, 0]
    after = queue.find_one_and_update({"_id": 2}, [{"$set": {"sum": {"$sum": "$tags"}}}], return_document=True)
    assert after["sum"] == 5
    after = queue.find_one_and_update({"_id": 3, "tags": 4}, {"$set": {"tags.$": 0}}, return_document=True)
    assert after["tags"] == [3, 0]


def test_old_spelling(queue):
    assert queue.database.command("findandmodify", queue.name, query={"_id": 1}, remove=True)["value"]["_id"] == 1


def test_duplicate_key(coll):
    coll.create_index("u", unique=True)
    coll.insert_many([{"_id": 1, "u": 1}, {"_id": 2, "u": 2}])
    with refuses(11000, "DuplicateKey"):
        coll.find_one_and_update({"_id": 2}, {"$set": {"u": 1}})


def test_a_queue_gives_each_job_once(server, coll):
    import threading

    coll.insert_many([{"_id": i, "taken": False} for i in range(200)])
    taken, lock = [], threading.Lock()

    def worker():
        while True:
            job = coll.find_one_and_update({"taken": False}, {"$set": {"taken": True}})
            if job is None:
                return
            with lock:
                taken.append(job["_id"])

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(taken) == list(range(200))


@pytest.mark.parametrize(
    "arguments, code, name",
    [
        ({}, 9, "FailedToParse"),
        ({"update": {}, "remove": True}, 9, "FailedToParse"),
        ({"remove": True, "new": True}, 9, "FailedToParse"),
        ({"remove": True, "upsert": True}, 9, "FailedToParse"),
        ({"update": {"$nope": {"a": 1}}}, 9, "FailedToParse"),
        ({"update": {"$set": {"_id": 5}}}, 66, "ImmutableField"),
        ({"update": {}, "nonsense": 1}, 40415, "IDLUnknownField"),
        ({"query": 1, "update": {}}, 14, "TypeMismatch"),
        ({"query": {"$nope": 1}, "update": {}}, 2, "BadValue"),
    ],
)
def test_bad_arguments(wire, coll, arguments, code, name):
    coll.insert_one({"_id": 1})
    expect_error(wire.command({"findAndModify": coll.name, **arguments, "$db": coll.database.name}), code, name)
    wire.ping()
