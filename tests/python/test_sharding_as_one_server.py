"""What a router answers of collections that shards have, as one server would answer it."""

import hashlib
import threading
import uuid

import bson
import pytest
from bson import Binary, Int64, ObjectId
from harness import refuses, until
from sharded_cluster import client_fixture, cluster_fixture, shard

OTHER = Binary(uuid.uuid4().bytes, 4)


cluster = cluster_fixture()
client = client_fixture()


@pytest.mark.parametrize("key", [None, {"files_id": 1}, {"files_id": 1, "n": 1}])
def test_the_digest_of_a_file(db, key):
    ids = sorted(ObjectId() for _ in range(3))
    if key:
        chunks = shard(db, "fs.chunks", key, at=[ids[1]])
    if key and "n" in key:
        db.client.admin.command("split", chunks.full_name, middle={"files_id": ids[1], "n": 2})
        db.client.admin.command("moveChunk", chunks.full_name, find={"files_id": ids[1], "n": 2}, to="s0")
        assert db.client.config.chunks.count_documents({}) >= 3
    parts = {n: [bytes([n, i]) * 5000 for i in range(4)] for n in range(3)}
    for n, of in parts.items():
        db.fs.chunks.insert_many([{"files_id": ids[n], "n": i, "data": part} for i, part in enumerate(of)])
    for n, of in parts.items():
        told = db.command("filemd5", ids[n])
        assert (told["numChunks"], told["md5"]) == (4, hashlib.md5(b"".join(of)).hexdigest())
    assert db.command("filemd5", ObjectId())["numChunks"] == 0
    db.fs.chunks.delete_one({"files_id": ids[1], "n": 1})
    with refuses(50846):
        db.command("filemd5", ids[1])
    assert db.command("filemd5", ids[1], partialOk=True)["numChunks"] == 1
    with refuses(40415):
        db.command("filemd5", ids[1], nope=1)


def test_the_digest_of_a_file_by_another_key(db):
    shard(db, "fs.chunks", {"files_id": "hashed"})
    with refuses(20):
        db.command("filemd5", 1)
    db.create_collection("seen.chunks", viewOn="fs.chunks")
    with refuses(166):
        db.command("filemd5", 1, root="seen")


@pytest.mark.parametrize("command,name", [("compactStructuredEncryptionData", "compactionTokens"), ("cleanupStructuredEncryptionData", "cleanupTokens")])
def test_encrypted_collections(db, command, name):
    fields = {"fields": [{"path": "ssn", "keyId": OTHER}]}
    db.create_collection("people", encryptedFields=fields)
    shard(db, "spread", {"k": 1}, at=[5])
    db.create_collection("view", viewOn="spread")
    for code, coll, tokens in [
        (None, "people", {"ssn": Binary(b"t")}),
        (7294900, "people", {}),
        (6346807, "spread", {}),
        (166, "view", {}),
        (26, "nowhere", {}),
    ]:
        if code is None:
            assert db.command(command, coll, **{name: tokens})["stats"]["esc"]["read"] == 0
            continue
        with refuses(code):
            db.command(command, coll, **{name: tokens})


def test_names_of_old(db):
    db.c.insert_many([{"_id": n} for n in range(10)])
    assert db.command("dbstats")["objects"] == 10
    assert db.command("collstats", "c")["count"] == 10
    assert db.command("datasize", f"{db.name}.c")["numObjects"] == 10
    for name in ("top", "dbhash"):
        with refuses(59):
            db.client.admin.command(name)


def test_schema(db):
    db.c.insert_many([{"_id": n, "v": str(n)} for n in range(10)])
    assert [f["path"] for f in db.command("pandoSchema", "c")["fields"]] == ["_id", "v"]
    with refuses(26):
        db.command("pandoSchema", "nowhere")
    coll = shard(db, "s", {"k": 1}, at=[100])
    empty = db.command("pandoSchema", "s")
    assert (empty["documents"], empty["sampled"], empty["fields"]) == (0, 0, [])
    coll.create_index("v")
    # A tenth is on the first shard, where v is a number.
    coll.insert_many([{"_id": n, "k": n, "v": n if n < 100 else str(n)} for n in range(1000)])
    told = db.command("pandoSchema", "s", sampleSize=200)
    assert (told["documents"], told["sampled"], told["complete"]) == (1000, 200, False)
    [v] = [f for f in told["fields"] if f["path"] == "v"]
    assert v["types"] == [{"type": "string", "count": 180, "share": 0.9}, {"type": "int", "count": 20, "share": 0.1}]
    assert v["share"] == 1.0 and v["indexes"] == [{"name": "v_1", "position": 0}]
    told = db.command("pandoSchema", "s", sampleSize=5000)
    assert told["complete"] and told["sampled"] == 1000


def test_averages_do_not_know_the_scale(db):
    coll = shard(db, "c", {"k": 1}, at=[5])
    coll.insert_many([{"_id": n, "k": n, "v": "x" * n * 37} for n in range(10)])
    for command in ({"dbStats": 1}, {"collStats": "c"}):
        whole, scaled = db.command(command), db.command({**command, "scale": 1024})
        assert whole["avgObjSize"] == scaled["avgObjSize"] > 100


def test_databases_by_name_only(db):
    db.c.insert_one({})
    names = lambda **asked: {d["name"] for d in db.client.admin.command("listDatabases", nameOnly=True, **asked)["databases"]}  # noqa: E731
    assert db.name in names() and names(filter={"sizeOnDisk": {"$gte": 0}}) == set()
    assert db.name in names(filter={"sizeOnDisk": {"$exists": False}})


def test_the_catalog_of_the_cluster(db):
    shard(db, "c", {"k": 1}, at=[5])
    db.plain.insert_one({})
    told = {d["ns"]: d for d in db.aggregate([{"$listClusterCatalog": {}}])}
    assert told[f"{db.name}.c"]["sharded"] and not told[f"{db.name}.plain"]["sharded"]
    assert all("shards" not in d for d in told.values())
    told = {d["ns"]: d["shards"] for d in db.aggregate([{"$listClusterCatalog": {"shards": True}}])}
    assert sorted(told[f"{db.name}.c"]) == ["s0", "s1"] and len(told[f"{db.name}.plain"]) == 1
    assert any(d["ns"] == "config.chunks" for d in db.client.config.aggregate([{"$listClusterCatalog": {}}]))
    everything = {d["ns"] for d in db.client.admin.aggregate([{"$listClusterCatalog": {}}])}
    assert {f"{db.name}.c", "config.chunks"} <= everything
    for code, stages in [
        (40602, [{"$listClusterCatalog": {}}, {"$listClusterCatalog": {}}]),
        (40323, [{"$listClusterCatalog": {}, "$match": {}}]),
        (14, [{"$listClusterCatalog": {"shards": 1}}]),
    ]:
        with refuses(code):
            db.aggregate(stages)
    with refuses(73):
        db.aggregate([{"$currentOp": {}}])


@pytest.mark.parametrize("on", ["plain", "sharded"])
def test_what_a_view_refuses(db, on):
    coll = shard(db, "c", {"k": 1}, at=[5]) if on == "sharded" else db.c
    coll.insert_many([{"_id": n, "k": n, "s": "ab"[n % 2]} for n in range(10)])
    db.create_collection("view", viewOn="c", pipeline=[{"$match": {"k": {"$gte": 2}}}], collation={"locale": "de"})
    db.create_collection("over", viewOn="view", collation={"locale": "de"})
    db.create_collection("lost", viewOn="nowhere")
    for view in ("view", "over", "lost"):
        for field in ("storageStats", "count", "queryExecStats"):
            with refuses(166):
                db[view].aggregate([{"$collStats": {field: {}}}])
    for asked in [
        {"find": "view", "filter": {}},
        {"count": "view"},
        {"distinct": "view", "key": "s"},
        {"aggregate": "view", "pipeline": [], "cursor": {}},
    ]:
        for other in ({"locale": "fr"}, {"locale": "de", "strength": 1}, {"locale": "simple"}):
            with refuses(167):
                db.command({**asked, "collation": other})
        assert db.command({**asked, "collation": {"locale": "de"}})["ok"] == 1
    for option in ({"tailable": True}, {"showRecordId": True}):
        with refuses(168):
            db.command({"find": "view", "filter": {}, **option})
    told = db.command("distinct", "view", key="s")
    assert sorted(told["values"]) == ["a", "b"] and type(told["ok"]) is int


def test_the_collection_that_is_meant(db):
    coll = shard(db, "c", {"k": 1}, at=[5])
    db.plain.insert_one({"_id": 1})
    known = {c["name"]: c["info"]["uuid"] for c in db.list_collections()}
    known = {name: Binary.from_uuid(u) if isinstance(u, uuid.UUID) else u for name, u in known.items()}
    admin = db.client.admin
    for name in ("c", "plain"):
        other = known["plain" if name == "c" else "c"]
        insert = {"bulkWrite": 1, "ops": [{"insert": 0, "document": {"k": 1}}]}
        failed = admin.command({**insert, "nsInfo": [{"ns": f"{db.name}.{name}", "collectionUUID": other}]})
        [told] = failed["cursor"]["firstBatch"]
        assert (failed["nErrors"], failed["nInserted"], told["code"]) == (1, 0, 361)
        assert told["expectedCollection"] == name != told["actualCollection"]
        done = admin.command({**insert, "nsInfo": [{"ns": f"{db.name}.{name}", "collectionUUID": known[name]}]})
        assert done["nInserted"] == 1
        for wrong in (other, OTHER):
            with refuses(361):
                db.command("drop", name, collectionUUID=wrong)
    assert coll.count_documents({}) == 1 and db.plain.count_documents({}) == 2
    db.target.insert_one({})
    target = next(c["info"]["uuid"] for c in db.list_collections(filter={"name": "target"}))
    with refuses(361):
        admin.command("renameCollection", f"{db.name}.plain", to=f"{db.name}.target", dropTarget=OTHER)
    with refuses(361):
        admin.command("renameCollection", "is_not_there.c", to="is_not_there.d", dropTarget=OTHER)
    admin.command("renameCollection", f"{db.name}.plain", to=f"{db.name}.target", dropTarget=target)
    assert db.target.count_documents({}) == 2
    db.command("drop", "target", collectionUUID=known["plain"])
    db.command("drop", "c", collectionUUID=known["c"])
    assert db.list_collection_names() == []
    with refuses(361):
        db.command("drop", "c", collectionUUID=known["c"])


@pytest.mark.parametrize("target", ["admin", "config", "local"])
def test_what_cannot_be_replaced(db, target):
    db.c.insert_one({})
    with refuses(31321):
        db.c.aggregate([{"$out": {"db": target, "coll": "x"}}])


@pytest.mark.parametrize("on", ["plain", "sharded"])
def test_where_pipelines_write(db, on):
    coll = shard(db, "c", {"k": 1}, at=[5]) if on == "sharded" else db.c
    coll.insert_many([{"_id": n, "k": n} for n in range(10)])
    for code, stage in [
        (17385, {"$out": {"db": "made_for_nothing", "coll": "system.x"}}),
        (73, {"$merge": {"into": {"db": "$$made for nothing", "coll": "x"}}}),
        (40415, {"$merge": {"into": {"db": "made_for_nothing", "coll": "x", "a": 1, "b": 2}}}),
        (40415, {"$merge": {"into": "x", "nope": 1}}),
    ]:
        with refuses(code):
            coll.aggregate([stage])
    assert not [name for name in db.client.list_database_names() if "made" in name]
    assert db.client.config.databases.count_documents({"_id": {"$regex": "made"}}) == 0
    coll.aggregate([{"$merge": {"into": {"db": "", "coll": "merged"}}}])
    assert db.merged.count_documents({}) == 10
    add = [{"$set": {"by": {"$add": ["$$n", "$$new.k"]}}}]
    coll.aggregate([{"$merge": {"into": "merged", "let": {"n": "$$outer", "new": "$$ROOT"}, "whenMatched": add}}], let={"outer": 7})
    assert sorted(d["by"] for d in db.merged.find()) == list(range(7, 17))


def stream(db, **given):
    return db.command("aggregate", "c", pipeline=[{"$changeStream": given}], cursor={})["cursor"]


def test_resume_tokens_that_were_changed(db):
    coll = shard(db, "c", {"k": 1}, at=[5])
    opened = stream(db)
    coll.insert_many([{"_id": n, "k": n} for n in (1, 2, 8, 9)])
    events = []
    while len(events) < 4:
        events += db.command("getMore", opened["id"], collection="c")["cursor"]["nextBatch"]
    assert [e["documentKey"]["_id"] for e in events] == [1, 2, 8, 9]
    for at in (0, 2):
        token = events[at]["_id"]["_data"]
        for same in (token, token.lower(), token[:-2], token + "FF", token + "00"):
            left = stream(db, resumeAfter={"_data": same})["firstBatch"]
            assert [e["_id"] for e in left] == [e["_id"] for e in events[at + 1 :]], same
        for way in ("resumeAfter", "startAfter"):
            with refuses(15):
                stream(db, **{way: {"_data": token[:-4]}})


@pytest.mark.parametrize("way", ["resumeAfter", "startAfter"])
def test_the_first_batch_has_what_has_happened(db, way):
    coll = shard(db, "c", {"k": 1}, at=[5])
    for _ in range(5):
        mark = stream(db)["postBatchResumeToken"]
        coll.insert_many([{"k": k} for k in (1, 2, 3)])
        assert [e["fullDocument"]["k"] for e in stream(db, **{way: mark})["firstBatch"]] == [1, 2, 3]


def test_a_batch_has_all_that_has_happened(db):
    db.c.insert_one({"_id": 0})
    opened = stream(db, showExpandedEvents=True)["id"]
    db.c.insert_one({"_id": 1})
    db.c.create_index("a")
    db.c.drop()
    told = db.command("getMore", Int64(opened), collection="c")["cursor"]["nextBatch"]
    assert [e["operationType"] for e in told] == ["insert", "createIndexes", "drop", "invalidate"]


def test_long_replies_that_the_router_makes_hold_no_memory(db):
    coll = shard(db, "c", {"k": 1}, at=[5])
    long = "x" * (3 << 20)
    coll.insert_many([{"k": k, "v": long} for k in (1, 8)])
    for _ in range(3):
        assert [d["v"] for d in db.aggregate([{"$documents": [{"v": long}]}])] == [long]
        [whole] = coll.aggregate([{"$group": {"_id": None, "all": {"$push": "$v"}}}])
        assert whole["all"] == [long] * 2
        list(coll.aggregate([{"$unionWith": "c"}, {"$sort": {"k": 1}}, {"$limit": 3}]))
    held = lambda: db.client.admin.command("serverStatus")["pandodb"]["inFlight"]["bytes"]  # noqa: E731
    until("nobody holds memory", lambda: held() == 0)


def test_the_lock_against_writes_is_of_the_cluster(db, cluster):
    coll = shard(db, "c", {"k": 1}, at=[5])
    admin = db.client.admin
    flushed = admin.command("fsync")
    assert flushed["numFiles"] == 3 and set(flushed["all"]) == {"s0", "s1", "config"}
    with refuses(40415):
        admin.command("fsync", 1, lock=True, nope=1)
    with refuses(13):
        db.command("fsync", 1, lock=True)
    assert admin.command("fsync", 1, lock=True)["lockCount"] == 1
    done = []
    threads = [threading.Thread(target=lambda k=k: done.append(coll.insert_one({"k": k})), daemon=True) for k in (1, 8)]
    try:
        for thread in threads:
            thread.start()
        locked = lambda name: cluster.shards[name].client().admin.command("currentOp")  # noqa: E731
        for name in ("s0", "s1"):
            until(f"a write waits at {name}", lambda n=name: any(o["waitingForLock"] for o in locked(n)["inprog"]))
        assert not done and coll.count_documents({}) == 0
        # What the router computes itself is not held up.
        assert list(coll.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}])) == []
    finally:
        assert set(admin.command("fsyncUnlock")["all"]) == {"s0", "s1", "config"}
    for thread in threads:
        thread.join(30)
    assert len(done) == 2 == coll.count_documents({})
    with refuses(20):
        admin.command("fsyncUnlock")


def test_the_time_of_the_cluster_in_pipelines(db):
    coll = shard(db, "c", {"k": 1}, at=[5])
    coll.insert_many([{"k": k} for k in (1, 8)])
    wrote = db.client.admin.command("ping")["operationTime"]
    told = [
        next(db.aggregate([{"$documents": [{}]}, {"$set": {"t": "$$CLUSTER_TIME"}}])),
        next(coll.aggregate([{"$group": {"_id": None}}, {"$set": {"t": "$$CLUSTER_TIME"}}])),
        coll.find_one({}, {"t": "$$CLUSTER_TIME"}),
    ]
    assert all(d["t"] >= wrote for d in told[:2]) and all(d["t"].time for d in told)


def test_the_fail_point_of_time(db):
    db.c.insert_one({})
    point = {"configureFailPoint": "maxTimeAlwaysTimeOut"}
    db.client.admin.command({**point, "mode": "alwaysOn"})
    try:
        for asked in ({"find": "c"}, {"aggregate": "c", "pipeline": [], "cursor": {}}, {"count": "c"}):
            with refuses(50):
                db.command({**asked, "maxTimeMS": 60_000})
            assert db.command(asked)["ok"] == 1
    finally:
        db.client.admin.command({**point, "mode": "off"})
    assert db.command({"count": "c", "maxTimeMS": 60_000})["n"] == 1


@pytest.mark.parametrize("less", [200, 250, 300])
def test_a_message_as_long_as_a_client_may_send(db, less):
    docs = [{"_id": n, "v": "x" * 15_990_000} for n in range(3)]
    last = 48_000_000 - sum(len(bson.encode(d)) for d in docs) - less
    docs.append({"_id": 3, "v": "x" * last})
    assert db.c.insert_many(docs).inserted_ids == [0, 1, 2, 3]
    assert db.c.count_documents({}) == 4


def open_cursors(db):
    return db.client.admin.command("serverStatus")["metrics"]["cursor"]


def test_cursors_end_with_their_sessions(cluster, db):
    # A driver uses sessions again: other tests' cursors would be of the same.
    with cluster.client() as own:
        cursors_end_with_their_sessions(own[db.name])


def cursors_end_with_their_sessions(db):
    coll = shard(db, "c", {"k": 1}, at=[5])
    coll.insert_many([{"k": k} for k in range(10)])
    opens = [
        lambda s: coll.find({}, batch_size=2, session=s),
        lambda s: coll.aggregate([{"$group": {"_id": "$k"}}], batchSize=2, session=s),
        lambda s: db.aggregate([{"$documents": [{"k": k} for k in range(10)]}], batchSize=2, session=s),
    ]
    before = open_cursors(db)
    for command in ("killSessions", "endSessions"):
        for opened in opens:
            with db.client.start_session() as session, db.client.start_session() as other:
                cursor, kept = opened(session), opened(other)
                next(cursor), next(kept)
                now = open_cursors(db)
                assert now["open"]["total"] == before["open"]["total"] + 2
                db.client.admin.command(command, [session.session_id])
                assert open_cursors(db)["open"]["total"] == before["open"]["total"] + 1
                with refuses(43):
                    list(cursor)
                assert len(list(kept)) == 9
    after = open_cursors(db)
    assert after["totalOpened"] == before["totalOpened"] + 12 and after["open"]["total"] == before["open"]["total"]


def test_idle_cursors_time_out(db):
    coll = shard(db, "c", {"k": 1}, at=[5])
    coll.insert_many([{"k": k} for k in range(10)])
    admin = db.client.admin
    idle, kept = coll.find({}, batch_size=2), coll.find({}, batch_size=2, no_cursor_timeout=True)
    next(idle), next(kept)
    before = open_cursors(db)
    assert before["open"]["noTimeout"] == 1
    was = admin.command("setParameter", 1, cursorTimeoutMillis=200)["was"]
    try:
        # What other tests have left ends too, and may end first.
        until("only that one is left", lambda: open_cursors(db)["open"]["total"] == 1)
        assert open_cursors(db)["timedOut"] > before["timedOut"]
    finally:
        admin.command("setParameter", 1, cursorTimeoutMillis=was)
    with refuses(43):
        list(idle)
    assert len(list(kept)) == 9
    assert open_cursors(db)["open"]["noTimeout"] == 0
