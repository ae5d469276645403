"""Change streams as applications follow them, over restarts and to their ends."""

import threading
import time

import pytest
from bson import Timestamp
from harness import ask_until_they_wait
from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern


def take(stream, n, seconds=10):
    """The next `n` events."""
    events, end = [], time.time() + seconds
    while len(events) < n:
        event = stream.try_next()
        if event is not None:
            events.append(event)
        assert time.time() < end, f"only {events}"
    return events


def quiet(stream, seconds=0.3):
    end = time.time() + seconds
    while time.time() < end:
        assert stream.try_next() is None


def test_events_of_documents(coll):
    with coll.watch(max_await_time_ms=200) as stream:
        coll.insert_one({"_id": 1, "a": 1, "list": [1, 2, 3]})
        coll.update_one({"_id": 1}, {"$set": {"a": 2, "b.c": 1}, "$unset": {"x": 1}})
        coll.update_one({"_id": 1}, {"$unset": {"a": 1}})
        coll.update_one({"_id": 1}, [{"$set": {"list": [1, 2]}}])
        coll.replace_one({"_id": 1}, {"r": 1})
        coll.delete_one({"_id": 1})
        insert, update, unset, cut, replace, delete = take(stream, 6)
    name = {"db": coll.database.name, "coll": coll.name}
    assert insert["operationType"] == "insert" and insert["ns"] == name
    assert insert["fullDocument"] == {"_id": 1, "a": 1, "list": [1, 2, 3]}
    assert list(insert) == ["_id", "operationType", "clusterTime", "wallTime", "fullDocument", "ns", "documentKey"]
    assert isinstance(insert["clusterTime"], Timestamp)
    assert update["updateDescription"] == {
        "updatedFields": {"a": 2, "b": {"c": 1}},
        "removedFields": [],
        "truncatedArrays": [],
    }
    assert "fullDocument" not in update and update["documentKey"] == {"_id": 1}
    assert unset["updateDescription"]["removedFields"] == ["a"]
    assert cut["updateDescription"]["truncatedArrays"] in ([], [{"field": "list", "newSize": 2}])
    assert replace["operationType"] == "replace" and replace["fullDocument"] == {"_id": 1, "r": 1}
    assert delete["operationType"] == "delete" and delete["documentKey"] == {"_id": 1}
    tokens = [e["_id"]["_data"] for e in (insert, update, unset, cut, replace, delete)]
    assert tokens == sorted(tokens) and len(set(tokens)) == 6


def test_a_batch_ends_with_the_token_of_its_last_event(coll):
    """Until there is more to tell: then it is of what came behind."""
    db = coll.database
    stream = db.command("aggregate", coll.name, pipeline=[{"$changeStream": {}}], cursor={})["cursor"]

    def more():
        return db.command("getMore", stream["id"], collection=coll.name, maxTimeMS=200)["cursor"]

    coll.insert_many([{"_id": 1}, {"_id": 2}])
    batch = more()
    assert batch["postBatchResumeToken"] == batch["nextBatch"][-1]["_id"]
    after = batch["postBatchResumeToken"]
    with db.client.start_session() as session, session.start_transaction():
        coll.insert_many([{"_id": n} for n in range(3, 6)], session=session)
    batch = more()
    assert [e["documentKey"]["_id"] for e in batch["nextBatch"]] == [3, 4, 5]
    assert batch["postBatchResumeToken"] == batch["nextBatch"][-1]["_id"]
    db.other.insert_one({})
    batch = more()
    assert not batch["nextBatch"] and batch["postBatchResumeToken"]["_data"] > after["_data"]
    with coll.watch(resume_after=after, max_await_time_ms=200) as again:
        assert [e["documentKey"]["_id"] for e in take(again, 3)] == [3, 4, 5]


def test_a_batch_comes_as_one_event_for_each_document(coll):
    with coll.watch(max_await_time_ms=200, batch_size=7) as stream:
        coll.insert_many([{"_id": i} for i in range(50)])
        events = take(stream, 50)
    assert [e["documentKey"]["_id"] for e in events] == list(range(50))
    # From the middle of the batch on.
    with coll.watch(resume_after=events[20]["_id"], max_await_time_ms=200) as stream:
        assert [e["documentKey"]["_id"] for e in take(stream, 29)] == list(range(21, 50))
        quiet(stream)


def test_databases_and_the_deployment(client, db):
    with db.watch(max_await_time_ms=200) as of_db, client.watch(max_await_time_ms=200) as of_all:
        db.one.insert_one({"_id": 1})
        db.two.insert_one({"_id": 2})
        client[db.name + "x"].three.insert_one({"_id": 3})
        client.drop_database(db.name + "x")
        assert [e["ns"]["coll"] for e in take(of_db, 2)] == ["one", "two"]
        quiet(of_db)
        kinds = [e["operationType"] for e in take(of_all, 5)]
        assert kinds == ["insert", "insert", "insert", "drop", "dropDatabase"]


def test_what_ends_a_stream(client, coll):
    db = coll.database
    coll.insert_one({"_id": 1})
    with coll.watch(max_await_time_ms=200) as stream:
        coll.drop()
        drop, invalidate = take(stream, 2)
        assert (drop["operationType"], invalidate["operationType"]) == ("drop", "invalidate")
        assert not stream.alive
    with pytest.raises(OperationFailure) as e:
        coll.watch(resume_after=invalidate["_id"])
    assert e.value.code == 260
    with coll.watch(start_after=invalidate["_id"], max_await_time_ms=200) as stream:
        coll.insert_one({"_id": 2})
        assert take(stream, 1)[0]["documentKey"] == {"_id": 2}
    with coll.watch(max_await_time_ms=200) as stream:
        coll.rename("renamed")
        rename, invalidate = take(stream, 2)
        assert rename["to"] == {"db": db.name, "coll": "renamed"}
        assert invalidate["operationType"] == "invalidate"
    with db.watch(max_await_time_ms=200) as stream:
        client.drop_database(db.name)
        kinds = [e["operationType"] for e in take(stream, 3)]
        assert kinds == ["drop", "dropDatabase", "invalidate"]


def test_expanded_events(coll):
    with coll.database.watch(max_await_time_ms=200, show_expanded_events=True) as stream:
        coll.database.create_collection(coll.name)
        coll.create_index("a")
        coll.drop_index("a_1")
        coll.database.command("collMod", coll.name, validator={"a": 1})
        coll.insert_one({"_id": 1, "a": 1, "b": [{"0": 1}]})
        coll.update_one({"_id": 1}, {"$set": {"b.0.0": 2}})
        events = take(stream, 6)
    kinds = [e["operationType"] for e in events]
    assert kinds == ["create", "createIndexes", "dropIndexes", "modify", "insert", "update"]
    assert all("collectionUUID" in e for e in events)
    assert events[1]["operationDescription"]["indexes"][0]["name"] == "a_1"
    assert events[2]["operationDescription"]["indexes"] == [{"v": 2, "key": {"a": 1}, "name": "a_1"}]
    assert events[5]["updateDescription"]["disambiguatedPaths"] == {"b.0.0": ["b", 0, "0"]}


def test_a_modification_tells_what_has_changed_and_what_was(coll):
    db = coll.database
    db.create_collection(coll.name, validationLevel="moderate")
    coll.create_index("a", expireAfterSeconds=1800)
    changes = [
        {"validator": {"a": {"$gt": 0}}},
        {"validator": {}},
        {"index": {"name": "a_1", "hidden": True}},
        {"index": {"name": "a_1", "hidden": False, "expireAfterSeconds": 3600}},
    ]
    with db.watch(max_await_time_ms=200, show_expanded_events=True) as stream:
        for change in changes:
            db.command("collMod", coll.name, **change)
        events = take(stream, len(changes))
    said = [e["operationDescription"] for e in events]
    assert said == [
        {"validator": {"a": {"$gt": 0}}},
        {"validator": {}},
        {"index": {"name": "a_1", "hidden": True}},
        {"index": {"name": "a_1", "expireAfterSeconds": 3600, "hidden": False}},
    ]
    was = [e["stateBeforeChange"] for e in events]
    assert all(w["collectionOptions"]["uuid"] == events[0]["collectionUUID"] for w in was)
    assert "validator" not in was[0]["collectionOptions"] and was[0]["collectionOptions"]["validationLevel"] == "moderate"
    assert was[1]["collectionOptions"]["validator"] == {"a": {"$gt": 0}}
    assert [w.get("indexOptions") for w in was] == [None, None, {"hidden": False}, {"expireAfterSeconds": 1800, "hidden": True}]


def test_whole_documents(coll):
    db = coll.database
    with pytest.raises(OperationFailure):
        coll.watch(full_document="nonsense")
    coll.insert_one({"_id": 1, "a": 1})
    with coll.watch(full_document="updateLookup", max_await_time_ms=200) as stream:
        coll.update_one({"_id": 1}, {"$set": {"a": 2}})
        assert take(stream, 1)[0]["fullDocument"] == {"_id": 1, "a": 2}
    options = {"full_document": "whenAvailable", "full_document_before_change": "whenAvailable"}
    with coll.watch(max_await_time_ms=200, **options) as stream:
        coll.update_one({"_id": 1}, {"$set": {"a": 3}})
        event = take(stream, 1)[0]
        assert event["fullDocument"] is None and event["fullDocumentBeforeChange"] is None
    with coll.watch(full_document_before_change="required", max_await_time_ms=200) as stream:
        coll.update_one({"_id": 1}, {"$set": {"a": 4}})
        with pytest.raises(OperationFailure) as e:
            take(stream, 1)
        assert e.value.code == 47
    db.command("collMod", coll.name, changeStreamPreAndPostImages={"enabled": True})
    options = {"full_document": "required", "full_document_before_change": "required"}
    with coll.watch(max_await_time_ms=200, **options) as stream:
        coll.update_one({"_id": 1}, {"$set": {"a": 5}})
        coll.replace_one({"_id": 1}, {"a": 6})
        coll.delete_one({"_id": 1})
        update, replace, delete = take(stream, 3)
    assert update["fullDocument"]["a"] == 5 and update["fullDocumentBeforeChange"]["a"] == 4
    assert replace["fullDocument"]["a"] == 6 and replace["fullDocumentBeforeChange"]["a"] == 5
    assert delete["fullDocumentBeforeChange"] == {"_id": 1, "a": 6}


def test_stages_after_it(coll):
    pipeline = [
        {"$match": {"operationType": "insert", "fullDocument.n": {"$gte": 5}}},
        {"$project": {"n": "$fullDocument.n"}},
    ]
    with coll.watch(pipeline, max_await_time_ms=200) as stream:
        coll.insert_many([{"n": n} for n in range(8)])
        assert [e["n"] for e in take(stream, 3)] == [5, 6, 7]
    for stage, code in [({"$group": {"_id": 1}}, 20), ({"$nonsense": 1}, 40324)]:
        with pytest.raises(OperationFailure) as e:
            coll.watch([stage])
        assert e.value.code == code
    with coll.watch([{"$project": {"_id": 0}}], max_await_time_ms=200) as stream:
        coll.insert_one({})
        with pytest.raises(Exception, match="resume token|_id"):
            take(stream, 1)


def test_what_is_refused(client, coll):
    db = coll.database

    def code(database, target, spec, **more):
        with pytest.raises(OperationFailure) as e:
            database.command("aggregate", target, pipeline=[{"$changeStream": spec}], cursor={}, **more)
        return e.value.code

    assert code(client.admin, 1, {}) == 73
    assert code(db, 1, {"allChangesForCluster": True}) == 72
    assert code(db, "c", {"nonsense": 1}) == 40415
    assert code(db, "c", {"resumeAfter": {}}) == 40647
    assert code(db, "c", {"resumeAfter": {"_data": "zz"}}) == 9
    assert code(db, "c", {"resumeAfter": {"_data": "82"}}) == 15
    assert code(db, "c", {"showExpandedEvents": None}) == 14
    assert code(db, "c", {}, readConcern={"level": "local"}) == 72
    with pytest.raises(OperationFailure) as e:
        db.command("aggregate", "c", pipeline=[{"$match": {}}, {"$changeStream": {}}], cursor={})
    assert e.value.code == 40602
    # The token of another stream.
    coll.insert_one({})
    with db.other.watch(max_await_time_ms=200) as stream:
        db.other.insert_one({})
        token = take(stream, 1)[0]["_id"]
    with coll.watch(resume_after=token, max_await_time_ms=200) as stream:
        coll.insert_one({})
        with pytest.raises(OperationFailure) as e:
            take(stream, 1)
    assert e.value.code == 280


def test_starting_at_a_time(client, coll):
    coll.insert_one({"_id": 1})
    with client.start_session() as session:
        coll.insert_one({"_id": 2}, session=session)
        at = session.operation_time
    coll.insert_one({"_id": 3})
    with coll.watch(start_at_operation_time=at, max_await_time_ms=200) as stream:
        assert [e["documentKey"]["_id"] for e in take(stream, 2)] == [2, 3]


def test_a_getmore_waits_and_is_woken(coll):
    coll.insert_one({"_id": 0})
    with coll.watch(max_await_time_ms=5000) as stream:
        threading.Timer(0.5, lambda: coll.insert_one({"_id": 1})).start()
        start = time.time()
        assert stream.next()["documentKey"] == {"_id": 1}
        assert 0.4 < time.time() - start < 2
    with coll.watch(max_await_time_ms=500) as stream:
        start = time.time()
        assert stream.try_next() is None
        assert 0.4 < time.time() - start < 3


def test_a_written_document_is_seen_without_waiting_for_the_next_sync(new_server):
    server = new_server("--durability", "10s")
    with server.client() as client:
        coll = client.test.get_collection("c", write_concern=WriteConcern(w=1))
        coll.insert_one({})
        with coll.watch(max_await_time_ms=4000) as stream:
            coll.insert_one({"_id": 1})
            start = time.time()
            assert stream.next()["documentKey"] == {"_id": 1}
            assert time.time() - start < 2


def test_tokens_survive_a_kill(new_server, tmp_path):
    server = new_server()
    with server.client() as client:
        coll = client.test.c
        with coll.watch(max_await_time_ms=200) as stream:
            coll.insert_many([{"_id": i} for i in range(10)])
            events = take(stream, 10)
            mark = stream.resume_token
    server.kill()
    server.start()
    with server.client() as client:
        coll = client.test.c
        coll.insert_one({"_id": 10})
        with coll.watch(resume_after=events[3]["_id"], max_await_time_ms=200) as stream:
            again = take(stream, 7)
            assert [e["documentKey"]["_id"] for e in again] == list(range(4, 11))
            assert [e["_id"] for e in again[:6]] == [e["_id"] for e in events[4:]]
        with coll.watch(resume_after=mark, max_await_time_ms=200) as stream:
            assert take(stream, 1)[0]["documentKey"] == {"_id": 10}


def test_many_idle_streams_hold_no_thread(new_server):
    server = new_server()
    with server.client(maxPoolSize=None) as client:
        client.test.busy.insert_one({})
        streams = [client.test[f"c{i}"].watch(max_await_time_ms=50) for i in range(40)]
        assert all(s.try_next() is None for s in streams)
        client.test.busy.insert_many([{} for _ in range(1000)])
        client.test.c7.insert_one({"_id": 7})
        assert take(streams[7], 1)[0]["documentKey"] == {"_id": 7}
        assert all(s.try_next() is None for i, s in enumerate(streams) if i != 7)
        for s in streams:
            s.close()


def test_a_transaction_comes_at_its_commit(client, db):
    """Its events appear together and in order, with its session and number, and not before the commit."""
    db.create_collection("a")
    db.create_collection("b")
    with db.watch(max_await_time_ms=200) as stream, client.start_session() as s:
        s.start_transaction()
        db.a.insert_one({"_id": 1}, session=s)
        db.b.insert_many([{"_id": 1}, {"_id": 2}], session=s)
        db.a.update_one({"_id": 1}, {"$set": {"x": 1}}, session=s)
        db.b.delete_one({"_id": 2}, session=s)
        db.a.insert_one({"_id": 9})
        assert take(stream, 1)[0]["documentKey"] == {"_id": 9}
        quiet(stream)
        s.commit_transaction()
        events = take(stream, 5)
        told = [(e["operationType"], e["ns"]["coll"], e["documentKey"]["_id"]) for e in events]
        assert told == [("insert", "a", 1), ("insert", "b", 1), ("insert", "b", 2), ("update", "a", 1), ("delete", "b", 2)]
        assert events[0]["fullDocument"] == {"_id": 1}
        assert events[3]["updateDescription"]["updatedFields"] == {"x": 1}
        assert len({e["clusterTime"] for e in events}) == 1 and len({e["_id"]["_data"] for e in events}) == 5
        assert all(e["lsid"]["id"] == s.session_id["id"] for e in events)
        assert len({e["txnNumber"] for e in events}) == 1
        # A token in the middle goes on in the middle.
        with db.watch(resume_after=events[2]["_id"]) as again:
            assert take(again, 1)[0]["operationType"] == "update"
        s.start_transaction()
        db.a.insert_one({"_id": 5}, session=s)
        s.abort_transaction()
        db.a.insert_one({"_id": 6})
        assert take(stream, 1)[0]["documentKey"] == {"_id": 6}


@pytest.mark.parametrize("kind", ["change stream", "oplog"])
def test_a_kill_ends_a_getmore_that_waits(client, coll, kind):
    """At once, and it says that the cursor was killed: it does not wait for `maxTimeMS`."""
    coll.insert_one({"_id": 1})
    if kind == "oplog":
        at = client.admin.command("ping")["operationTime"]
        db, name = client.local, "oplog.rs"
        opened = db.command("find", name, filter={"ts": {"$gt": at}}, tailable=True, awaitData=True)
    else:
        db, name = coll.database, coll.name
        opened = db.command("aggregate", name, pipeline=[{"$changeStream": {}}], cursor={})
    cursor = opened["cursor"]["id"]
    outcome = []

    def wait():
        try:
            outcome.append(db.command("getMore", cursor, collection=name, maxTimeMS=60_000))
        except OperationFailure as e:
            outcome.append((e.code, e.details["codeName"], e.details.get("errorLabels")))

    waiting = threading.Thread(target=wait)
    ask_until_they_wait(client, [cursor], waiting.start)
    started = time.monotonic()
    assert db.command("killCursors", name, cursors=[cursor])["cursorsKilled"] == [cursor]
    waiting.join()
    assert outcome == [(237, "CursorKilled", None)] and time.monotonic() - started < 20
