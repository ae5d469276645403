"""`fsync` with `lock`: writes wait, reads do not, and nothing is lost."""

import threading

import pytest
from pymongo.errors import ExecutionTimeout

from harness import refuses, until


@pytest.fixture
def locked(new_server):
    server = new_server()
    with server.client() as client:
        client.t.c.insert_one({"_id": 0})
        yield client


def lock(client):
    return client.admin.command("fsync", 1, lock=True)


def unlock(client):
    return client.admin.command("fsyncUnlock", 1)


def test_writes_wait_and_reads_do_not(locked):
    reply = lock(locked)
    assert reply["lockCount"] == 1 and "numFiles" not in reply
    writes = [
        lambda c: c.insert_one({"_id": 1}),
        lambda c: c.insert_many([{"_id": i} for i in range(100, 300)]),
        lambda c: c.update_one({"_id": 0}, {"$set": {"x": 1}}),
        lambda c: c.update_many({}, {"$set": {"y": 1}}),
        lambda c: c.delete_one({"_id": 77}),
        lambda c: c.find_one_and_update({"_id": 0}, {"$inc": {"z": 1}}),
        lambda c: c.database.other.insert_one({}),
        lambda c: c.create_index("a"),
        lambda c: c.database.create_collection("made"),
        lambda c: list(c.aggregate([{"$out": "copied"}])),
    ]
    done = []

    def write(number, operation):
        operation(locked.t.c)
        done.append(number)

    threads = [threading.Thread(target=write, args=(n, w), daemon=True) for n, w in enumerate(writes)]
    for t in threads:
        t.start()

    def all_waiting():
        now = locked.admin.command("currentOp")
        waiting = [op for op in now["inprog"] if op["waitingForLock"]]
        return (now, waiting) if len(waiting) == len(writes) else None

    now, waiting = until("all of them wait", all_waiting, 60)
    assert done == [] and now["fsyncLock"] is True
    assert list(locked.t.c.find()) == [{"_id": 0}] and locked.t.list_collection_names() == ["c"]
    (update,) = [op for op in waiting if str(op["command"].get("updates", "")).count("y")]
    assert update["command"]["updates"][0]["u"] == {"$set": {"y": 1}}
    queue = locked.admin.command("serverStatus")["globalLock"]["currentQueue"]
    assert queue == {"total": len(writes), "readers": 0, "writers": len(writes)}
    unlock(locked)
    for t in threads:
        t.join(20)
    assert sorted(done) == list(range(len(writes)))
    assert locked.t.c.count_documents({"_id": {"$gte": 100}}) == 200
    assert set(locked.t.list_collection_names()) == {"c", "other", "made", "copied"}


def test_locks_are_counted(locked):
    assert lock(locked)["lockCount"] == 1
    assert lock(locked)["lockCount"] == 2
    assert locked.admin.command("lockInfo")["lockInfo"][0]["granted"][0]["mode"] == "S"
    assert unlock(locked)["lockCount"] == 1
    with pytest.raises(ExecutionTimeout):
        locked.t.command("insert", "c", documents=[{"_id": 5}], maxTimeMS=200)
    assert unlock(locked)["lockCount"] == 0
    with refuses(20):
        unlock(locked)
    locked.t.c.insert_one({"_id": 5})
    assert locked.admin.command("lockInfo")["lockInfo"] == []


def test_no_write_is_torn_by_the_lock(locked):
    """Locks taken in the middle of a storm: acknowledged writes are there, and the count stands still while locked."""
    stop = threading.Event()
    acknowledged = [0] * 4

    def writer(number):
        coll = locked.t.storm
        while not stop.is_set():
            coll.insert_one({"w": number})
            acknowledged[number] += 1

    threads = [threading.Thread(target=writer, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for _ in range(5):
        before = sum(acknowledged)
        until("they write", lambda: sum(acknowledged) > before + 10)
        lock(locked)
        first = locked.t.storm.count_documents({})
        until("all writers wait", lambda: len([o for o in locked.admin.command("currentOp")["inprog"] if o["waitingForLock"]]) == len(threads))
        assert locked.t.storm.count_documents({}) == first
        unlock(locked)
    stop.set()
    for t in threads:
        t.join(20)
    assert locked.t.storm.count_documents({}) == sum(acknowledged)


def test_without_lock(locked):
    assert locked.admin.command("fsync", 1)["numFiles"] == 1
    locked.t.c.insert_one({"_id": 1})
