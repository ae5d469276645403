"""Change streams where something ends: images that expire, events that are too large, history that is gone, clients too."""

import time

import bson
import pytest
from bson import Timestamp
from harness import ask_until_they_wait, until
from pymongo.errors import OperationFailure
from pymongo.write_concern import WriteConcern
from test_change_streams import quiet, take

IMAGES = {"enabled": True}


def test_images_expire(new_server):
    server = new_server()
    with server.client() as client:
        coll = client.test.create_collection("c", changeStreamPreAndPostImages=IMAGES)
        options = {"full_document": "whenAvailable", "full_document_before_change": "whenAvailable"}
        coll.insert_one({"_id": 1, "n": 0})
        start = client.local["oplog.rs"].find().sort("$natural", -1)[0]["ts"]
        coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
        coll.delete_one({"_id": 1})

        def events(**how):
            with coll.watch(start_at_operation_time=start, max_await_time_ms=200, **how) as stream:
                found = take(stream, 3)
            return found[1:]

        update, delete = events(**options)
        assert (update["fullDocumentBeforeChange"]["n"], update["fullDocument"]["n"]) == (0, 1)
        assert delete["fullDocumentBeforeChange"]["n"] == 1

        def expire(seconds):
            value = {"preAndPostImages": {"expireAfterSeconds": seconds}}
            client.admin.command("setClusterParameter", {"changeStreamOptions": value})

        expire(1)
        until("the images go", lambda: events(**options)[1]["fullDocumentBeforeChange"] is None)
        update, _ = events(**options)
        assert update["fullDocumentBeforeChange"] is None and update["fullDocument"] is None
        with pytest.raises(OperationFailure) as e:
            events(full_document_before_change="required")
        assert e.value.code == 47 and e.value.has_error_label("NonResumableChangeStreamError")
        coll.insert_one({"_id": 2})
        with coll.watch(max_await_time_ms=200, full_document_before_change="required") as stream:
            coll.update_one({"_id": 2}, {"$set": {"n": 5}})
            assert take(stream, 1)[0]["fullDocumentBeforeChange"] == {"_id": 2}
        server.restart()
    with server.client() as client:
        coll = client.test.c
        assert events(**options)[0]["fullDocument"] is None
        client.admin.command("setClusterParameter", {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": "off"}}})
        assert events(**options)[0]["fullDocument"]["n"] == 1


def test_a_large_event_comes_in_fragments(new_server):
    with new_server().client() as client:
        in_fragments(client.test.c)


def in_fragments(coll):
    coll.database.create_collection(coll.name, changeStreamPreAndPostImages=IMAGES)
    coll.insert_one({"_id": 1, "fill": "x" * (9 << 20)})
    how = {"full_document_before_change": "required", "full_document": "required", "max_await_time_ms": 500}
    with coll.watch(**how) as stream:
        coll.update_one({"_id": 1}, {"$set": {"n": 1}})
        with pytest.raises(OperationFailure) as e:
            take(stream, 1)
        assert e.value.code == 10334
    split = [{"$changeStreamSplitLargeEvent": {}}]
    with coll.watch(split, **how) as stream:
        coll.update_one({"_id": 1}, {"$set": {"n": 2}})
        coll.insert_one({"_id": 2})
        first, second, small = take(stream, 3)
        assert first["splitEvent"] == {"fragment": 1, "of": 2} and second["splitEvent"] == {"fragment": 2, "of": 2}
        whole = {**first, **second}
        assert whole["operationType"] == "update" and whole["documentKey"] == {"_id": 1}
        assert whole["fullDocument"]["n"] == 2 and whole["fullDocumentBeforeChange"]["n"] == 1
        assert not (set(first) & set(second)) - {"_id", "splitEvent"}
        assert "splitEvent" not in small and small["documentKey"] == {"_id": 2}
    # From the middle of an event on.
    with coll.watch(split, resume_after=first["_id"], **how) as stream:
        again, after = take(stream, 2)
        assert again == second and after == small
    with pytest.raises(OperationFailure) as e:
        coll.watch([*split, {"$match": {}}])
    assert e.value.code == 7182802
    with pytest.raises(OperationFailure):
        coll.aggregate(split)


def test_what_is_lost(new_server):
    server = new_server("--log-retain", 1)
    with server.client() as client:
        coll = client.test.c
        with coll.watch(max_await_time_ms=100) as stream:
            coll.insert_one({"_id": "first"})
            token = take(stream, 1)[0]["_id"]
        # One that stands still while the log goes on.
        slow = client.test.command("aggregate", "c", pipeline=[{"$changeStream": {}}], cursor={"batchSize": 0})["cursor"]
        for i in range(150):
            coll.insert_one({"_id": i, "fill": "x" * 30_000})
        client.admin.command("fsync")
        until("the log's past goes", lambda: client.admin.command("serverStatus")["oplogTruncation"]["truncateCount"])
        for resume in ({"resume_after": token}, {"start_after": token}, {"start_at_operation_time": Timestamp(1, 1)}):
            with pytest.raises(OperationFailure) as e:
                coll.watch(**resume)
            assert e.value.code == 286 and e.value.details["codeName"] == "ChangeStreamHistoryLost"
            assert e.value.has_error_label("NonResumableChangeStreamError")
        with pytest.raises(OperationFailure) as e:
            client.test.command("getMore", slow["id"], collection="c")
        assert e.value.code == 286


def test_a_client_that_vanishes(new_server):
    server = new_server()
    with server.client() as client:
        client.test.c.insert_one({"_id": 0})

        def open_cursors():
            return client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]

        before = open_cursors()
        wires = [server.wire() for _ in range(20)]
        opening = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "test"}
        cursors = [wire.command(opening)["cursor"]["id"] for wire in wires]
        assert open_cursors() == before + 20

        def ask():
            for wire, cursor in zip(wires, cursors, strict=True):
                wire.send_body(bson.encode({"getMore": cursor, "collection": "c", "maxTimeMS": 600_000, "$db": "test"}))

        ask_until_they_wait(client, cursors, ask)
        for wire in wires:
            wire.socket.close()
        until("their cursors go", lambda: open_cursors() == before)
        # No stream follows any more, and a new one gets its events.
        with client.test.c.watch(max_await_time_ms=200) as stream:
            client.test.c.insert_one({"_id": 1})
            assert take(stream, 1)[0]["documentKey"] == {"_id": 1}


def test_what_a_match_excludes_is_not_made(client, coll):
    other = coll.database[coll.name + "2"]
    coll.insert_one({"_id": 1})
    # The image that is required is missing, and is not asked for.
    how = {"full_document_before_change": "required", "max_await_time_ms": 200}
    for match in (
        {"operationType": "insert"},
        {"operationType": {"$in": ["insert", "drop"]}, "fullDocument.n": {"$exists": False}},
        {"documentKey._id": {"$gt": 1}},
        {"$or": [{"operationType": "insert"}, {"documentKey": {"_id": 7}}]},
        {"$and": [{"ns.coll": other.name}, {"operationType": {"$ne": "update"}}]},
    ):
        # Of a database, as the collection's own name excludes nothing on one.
        with coll.database.watch([{"$match": match}, {"$match": {"ns.db": coll.database.name}}], **how) as stream:
            coll.update_one({"_id": 1}, {"$inc": {"n": 1}})
            other.insert_one({"_id": 5})
            event = take(stream, 1)[0]
            assert (event["operationType"], event["ns"]["coll"], event["documentKey"]) == ("insert", other.name, {"_id": 5})
            other.delete_many({})
            client.admin.command("ping")
    with coll.database.watch([{"$match": {"ns": {"db": coll.database.name, "coll": coll.name}}}], max_await_time_ms=200) as stream:
        other.insert_one({"_id": 6})
        coll.insert_one({"_id": 6})
        assert take(stream, 1)[0]["ns"]["coll"] == coll.name
        quiet(stream)
    # A match on fields that only the whole event has is applied to that, and a stage before the match is
    # run before.
    with coll.watch([{"$match": {"updateDescription.updatedFields.n": 9}}], max_await_time_ms=200) as stream:
        coll.update_one({"_id": 1}, {"$set": {"n": 8}})
        coll.update_one({"_id": 1}, {"$set": {"n": 9}})
        assert take(stream, 1)[0]["updateDescription"]["updatedFields"] == {"n": 9}
        quiet(stream)
    stages = [{"$set": {"operationType": "mine"}}, {"$match": {"operationType": "mine"}}]
    with coll.watch(stages, max_await_time_ms=200) as stream:
        coll.insert_one({"_id": 10})
        assert take(stream, 1)[0]["operationType"] == "mine"


def test_a_transaction_of_more_than_16_mb(new_server):
    with new_server().client(directConnection=True) as client:
        in_parts(client, client.test.c)


def in_parts(client, coll):
    oplog = client.local["oplog.rs"]
    coll.database.create_collection(coll.name)
    blob = "x" * (5 << 20)
    with coll.watch(max_await_time_ms=1000) as stream:
        with client.start_session() as s, s.start_transaction():
            for i in range(4):
                coll.insert_one({"_id": i, "fill": blob}, session=s)
            coll.update_one({"_id": 0}, {"$set": {"n": 1}}, session=s)
        coll.insert_one({"_id": "after"})
        events = take(stream, 6, 30)
    assert [e["documentKey"]["_id"] for e in events] == [*range(4), 0, "after"]
    assert len({e["clusterTime"] for e in events[:5]}) == 1 and len({str(e["lsid"]) for e in events[:5]}) == 1
    until("it is on disk", lambda: oplog.find_one({"o._id": "after"}))
    found = list(oplog.find({"o.applyOps.ns": coll.full_name}))
    assert len(found) == 2
    assert all(e["op"] == "c" and e["ns"] == "admin.$cmd" for e in found)
    operations = [op for e in found for op in e["o"]["applyOps"]]
    assert [op["op"] for op in operations] == ["i"] * 4 + ["u"]
    assert [op["o2"]["_id"] for op in operations] == [*range(4), 0]
    assert [e["o"].get("partialTxn") for e in found] == [True] * (len(found) - 1) + [None]
    assert found[-1]["o"]["count"] == 5 and all("count" not in e["o"] for e in found[:-1])
    times = [e["ts"] for e in found]
    assert times == sorted(set(times)) and times[-1] == events[0]["clusterTime"]
    assert found[0]["prevOpTime"] == {"ts": Timestamp(0, 0), "t": -1}
    assert [e["prevOpTime"]["ts"] for e in found[1:]] == times[:-1]
    assert len({(str(e["lsid"]), e["txnNumber"]) for e in found}) == 1
    # By their own times, both ways, and in batches.
    for low in range(len(found)):
        some = oplog.find({"ts": {"$gte": times[low], "$lte": times[-1]}}, {"ts": 1}, batch_size=1)
        assert [e["ts"] for e in some] == times[low:]
        some = oplog.find({"ts": {"$gte": times[0], "$lte": times[low]}}, {"ts": 1}).sort("$natural", -1)
        assert [e["ts"] for e in some] == times[low::-1]
    # No other entry has a time of theirs.
    around = [e["ts"] for e in oplog.find({"ts": {"$gte": Timestamp(times[0].time - 1, 0)}}, {"ts": 1})]
    assert around == sorted(set(around))


def test_only_whom_an_entry_concerns_is_woken(new_server):
    server = new_server()
    with server.client() as client:
        client.test.quiet.insert_one({"_id": 0})
        wires = [server.wire() for _ in range(30)]
        for wire in wires:
            reply = wire.command({"aggregate": "quiet", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "test"})
            more = {"getMore": reply["cursor"]["id"], "collection": "quiet", "maxTimeMS": 600_000, "$db": "test"}
            wire.send_body(bson.encode(more))
        status = client.admin.command("serverStatus")
        gets = status["metrics"]["commands"]["getMore"]["total"]
        offloaded = status["pandodb"]
        with client.test.busy.watch(max_await_time_ms=5000) as stream:
            seen = []
            for i in range(50):
                began = time.perf_counter()
                client.test.busy.with_options(write_concern=WriteConcern(w=1)).insert_one({"_id": i})
                seen.append(stream.next()["documentKey"]["_id"])
                assert time.perf_counter() - began < 5
        assert seen == list(range(50))
        after = client.admin.command("serverStatus")["metrics"]["commands"]["getMore"]["total"]
        # The 30 look again at no entry of another collection.
        assert after - gets < 200, (gets, after, offloaded)
        # A transaction concerns the collections that are in it, a renaming both names.
        with client.start_session() as s, s.start_transaction():
            client.test.busy.insert_one({"_id": "t"}, session=s)
            client.test.quiet.insert_one({"_id": "t"}, session=s)
        for wire in wires:
            event = wire.receive_msg()["cursor"]["nextBatch"][0]
            assert event["documentKey"] == {"_id": "t"}
            wire.close()
        name = client.test.renamed
        with name.watch(max_await_time_ms=5000) as stream:
            client.test.busy.rename("renamed")
            assert stream.next()["operationType"] == "rename"
