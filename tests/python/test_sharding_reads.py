"""Reads over a sharded cluster that need more than one shard's documents at once: joins, views, results written to
collections, change streams, what administrators look at."""

import itertools
import threading
import time

import bson
import pytest
from bson import Decimal128, MinKey
from harness import refuses, until
from pymongo.errors import OperationFailure
from sharded_cluster import answers, client_fixture, cluster_fixture, initiate, member, on_shards, shard


cluster = cluster_fixture()
client = client_fixture()


def on_the_other(db):
    """A database whose primary is not `db`'s."""
    db.client.admin.command("enableSharding", db.name)
    mine = db.client.config.databases.find_one({"_id": db.name})["primary"]
    other = db.client[f"{db.name}other"]
    db.client.admin.command("enableSharding", other.name, primaryShard="s1" if mine == "s0" else "s0")
    return other


@pytest.fixture
def joined(db):
    """`orders` and `customers` are sharded, `rates` is not; a customer's orders are on other shards than the
    customer."""
    orders = shard(db, "orders", {"n": 1}, at=[50])
    customers = shard(db, "customers", {"_id": 1}, at=[5])
    orders.insert_many([{"_id": n, "n": n, "customer": n % 10, "lines": [n % 3, 7]} for n in range(100)])
    customers.insert_many([{"_id": n, "name": f"c{n}", "boss": (n + 1 if n < 9 else None)} for n in range(10)])
    db.rates.insert_many([{"_id": n, "rate": n * 10} for n in range(3)])
    return db


LOOKUP = {"from": "customers", "localField": "customer", "foreignField": "_id", "as": "c"}


def test_lookup(joined):
    orders, rates = joined.orders, joined.rates
    found = list(orders.aggregate([{"$lookup": LOOKUP}, {"$sort": {"_id": 1}}]))
    assert [(d["_id"], [c["name"] for c in d["c"]]) for d in found] == [(n, [f"c{n % 10}"]) for n in range(100)]
    # From a sharded collection to one that is not, and back.
    to_plain = {"from": "rates", "localField": "lines", "foreignField": "_id", "as": "r"}
    found = list(orders.aggregate([{"$lookup": to_plain}, {"$sort": {"_id": 1}}]))
    assert [[r["rate"] for r in d["r"]] for d in found] == [[n % 3 * 10] for n in range(100)]
    to_sharded = {"from": "orders", "localField": "_id", "foreignField": "lines", "as": "o"}
    found = list(rates.aggregate([{"$lookup": to_sharded}, {"$sort": {"_id": 1}}]))
    assert [len(d["o"]) for d in found] == [34, 33, 33]
    # One document, which one shard has; its customer is on the other.
    found = list(orders.aggregate([{"$match": {"n": 9}}, {"$lookup": LOOKUP}, {"$unwind": "$c"}]))
    assert found == [{"_id": 9, "n": 9, "customer": 9, "lines": [0, 7], "c": {"_id": 9, "name": "c9", "boss": None}}]


def test_lookup_with_a_pipeline_and_variables(joined):
    inner = [
        {"$match": {"$expr": {"$and": [{"$eq": ["$customer", "$$id"]}, {"$gte": ["$n", "$$least"]}]}}},
        {"$sort": {"n": -1}},
        {"$limit": 2},
        {"$project": {"_id": 0, "n": 1}},
    ]
    stage = {"from": "orders", "let": {"id": "$_id", "least": 40}, "pipeline": inner, "as": "last"}
    found = list(joined.customers.aggregate([{"$lookup": stage}, {"$sort": {"_id": 1}}]))
    assert [[o["n"] for o in d["last"]] for d in found] == [[90 + n, 80 + n] for n in range(10)]
    # A string that looks like a path stays a string, and joins may lie inside of one another.
    joined.marks.insert_one({"_id": "$n"})
    nested = [{"$match": {"$expr": {"$eq": ["$_id", "$$m"]}}}]
    stages = [
        {"$match": {"_id": 3}},
        {"$set": {"m": {"$literal": "$n"}}},
        {"$lookup": {"from": "marks", "let": {"m": "$m"}, "pipeline": nested, "as": "marks"}},
        {"$lookup": {"from": "orders", "localField": "_id", "foreignField": "customer", "as": "o", "pipeline": [{"$lookup": LOOKUP}, {"$match": {"n": {"$lt": 20}}}]}},
    ]
    (found,) = joined.customers.aggregate(stages)
    assert found["marks"] == [{"_id": "$n"}]
    assert sorted((o["n"], o["c"][0]["name"]) for o in found["o"]) == [(3, "c3"), (13, "c3")]


def test_graph_lookup(joined):
    stage = {"from": "customers", "startWith": "$boss", "connectFromField": "boss", "connectToField": "_id", "as": "over", "depthField": "d"}
    found = list(joined.customers.aggregate([{"$graphLookup": stage}, {"$sort": {"_id": 1}}]))
    assert [sorted(c["_id"] for c in d["over"]) for d in found] == [list(range(n + 1, 10)) for n in range(10)]
    limited = {**stage, "maxDepth": 1, "restrictSearchWithMatch": {"name": {"$ne": "c5"}}}
    found = {d["_id"]: sorted(c["_id"] for c in d["over"]) for d in joined.customers.aggregate([{"$graphLookup": limited}])}
    assert found[2] == [3, 4] and found[3] == [4] and found[4] == []


def test_union_and_facet(joined):
    union = {"coll": "customers", "pipeline": [{"$match": {"_id": {"$gte": 8}}}]}
    found = list(joined.rates.aggregate([{"$unionWith": union}, {"$unionWith": "orders"}, {"$count": "n"}]))
    assert found == [{"n": 3 + 2 + 100}]
    facets = {
        "joined": [{"$match": {"n": {"$lt": 3}}}, {"$lookup": LOOKUP}, {"$unwind": "$c"}, {"$sort": {"n": 1}}],
        "all": [{"$unionWith": "customers"}, {"$count": "n"}],
    }
    (found,) = joined.orders.aggregate([{"$facet": facets}])
    assert [d["c"]["name"] for d in found["joined"]] == ["c0", "c1", "c2"] and found["all"] == [{"n": 110}]
    batches = list(joined.orders.aggregate([{"$lookup": LOOKUP}, {"$unionWith": "customers"}], batchSize=7))
    assert len(batches) == 110
    assert list(joined.orders.aggregate([{"$lookup": {**LOOKUP, "from": "nothing"}}, {"$match": {"c": {"$ne": []}}}])) == []


def test_joins_compare_as_the_pipeline_does(joined):
    joined.names.insert_many([{"_id": "C3"}, {"_id": "c4"}])
    stage = {"from": "customers", "localField": "_id", "foreignField": "name", "as": "c"}
    run = lambda **options: [len(d["c"]) for d in joined.names.aggregate([{"$lookup": stage}, {"$sort": {"_id": 1}}], **options)]
    assert run() == [0, 1] and run(collation={"locale": "en", "strength": 2}) == [1, 1]


def test_views(joined):
    joined.command("create", "late", viewOn="orders", pipeline=[{"$match": {"n": {"$gte": 40}}}, {"$set": {"twice": {"$add": ["$n", "$n"]}}}])
    joined.command("create", "named", viewOn="late", pipeline=[{"$lookup": LOOKUP}, {"$unwind": "$c"}])
    late, named = joined.late, joined.named
    assert late.count_documents({}) == 60 and late.estimated_document_count() == 60
    assert [d["twice"] for d in late.find({"n": {"$lt": 60}}, {"twice": 1}).sort("n", -1).limit(2)] == [118, 116]
    assert sorted(late.distinct("lines")) == [0, 1, 2, 7]
    assert len(list(late.find(batch_size=7))) == 60
    assert late.find_one({"n": 10}) is None
    assert [d["c"]["name"] for d in named.find({"n": {"$in": [49, 50]}}).sort("n", 1)] == ["c9", "c0"]
    assert list(named.aggregate([{"$group": {"_id": "$c.name", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}, {"$limit": 1}])) == [{"_id": "c0", "n": 6}]
    stage = {"from": "late", "localField": "_id", "foreignField": "customer", "as": "late"}
    assert [len(d["late"]) for d in joined.customers.aggregate([{"$lookup": stage}])] == [6] * 10
    cursor = late.find(batch_size=2)
    next(cursor)
    cursor.close()


def test_out(joined, cluster):
    orders = joined.orders
    joined.target.insert_one({"_id": "old"})
    joined.target.create_index("n")
    assert list(orders.aggregate([{"$lookup": LOOKUP}, {"$out": "target"}])) == []
    assert joined.target.count_documents({}) == 100 and joined.target.find_one({"_id": 77})["c"][0]["name"] == "c7"
    assert "n_1" in joined.target.index_information()
    other = on_the_other(joined)
    orders.aggregate([{"$match": {"n": {"$lt": 0}}}, {"$out": {"db": other.name, "coll": "t"}}])
    assert other.list_collection_names() == ["t"] and other.t.count_documents({}) == 0
    joined.rates.aggregate([{"$out": {"db": other.name, "coll": "t"}}])
    assert other.t.count_documents({}) == 3
    with refuses(28769):
        joined.rates.aggregate([{"$out": "customers"}])
    # A pipeline that fails leaves its target as it was, and nothing beside it.
    with refuses(2):
        orders.aggregate([{"$set": {"x": {"$divide": [1, {"$subtract": ["$n", 99]}]}}}, {"$out": "target"}])
    assert joined.target.count_documents({}) == 100
    assert not [n for n in joined.list_collection_names() if n.startswith("tmp")]
    joined.client.drop_database(other.name)


def test_merge(joined, cluster):
    target = shard(joined, "target", {"k": 1}, at=[50])
    target.insert_many([{"_id": n, "k": n, "old": True} for n in (10, 60)])
    source = [{"$project": {"k": "$n", "customer": 1}}]
    assert list(joined.orders.aggregate([*source, {"$merge": "target"}])) == []
    assert target.count_documents({}) == 100 and target.count_documents({"old": True, "customer": 0}) == 2
    counts = on_shards(cluster, target)
    assert min(counts.values()) == 50
    # Over existing documents: replaced, kept, refused, thrown away.
    joined.orders.aggregate([*source, {"$match": {"k": {"$lt": 20}}}, {"$merge": {"into": "target", "whenMatched": "replace"}}])
    assert target.count_documents({"old": True}) == 1
    joined.rates.aggregate([{"$project": {"k": "$_id"}}, {"$merge": {"into": "target", "whenMatched": [{"$set": {"r": "$$new.k"}}]}}])
    assert target.count_documents({"r": {"$exists": True}}) == 3 and target.count_documents({}) == 100
    joined.rates.aggregate([{"$project": {"k": {"$add": ["$_id", 500]}}}, {"$merge": {"into": "target", "whenNotMatched": "discard", "whenMatched": "merge"}}])
    assert target.count_documents({}) == 100
    with refuses(13113):
        joined.rates.aggregate([{"$project": {"k": {"$add": ["$_id", 500]}}}, {"$merge": {"into": "target", "whenNotMatched": "fail"}}])
    with refuses(11000):
        joined.rates.aggregate([{"$project": {"k": "$_id"}}, {"$merge": {"into": "target", "whenMatched": "fail"}}])
    with refuses(51183):
        joined.rates.aggregate([{"$merge": {"into": "target", "on": "rate"}}])
    # Into a collection that is not sharded, on another shard, which there is not yet.
    other = on_the_other(joined)
    joined.orders.aggregate([{"$group": {"_id": "$customer", "n": {"$sum": 1}}}, {"$merge": {"into": {"db": other.name, "coll": "sums"}}}])
    assert {d["_id"]: d["n"] for d in other.sums.find()} == {n: 10 for n in range(10)}
    joined.client.drop_database(other.name)


def test_more_than_a_batch_of_one_shard_is_merged(joined):
    """The cursor on the source's shard is of the client's session."""
    target = shard(joined, "target", {"_id": 1}, at=[1000])
    joined.many.insert_many([{"_id": n} for n in range(2500)])
    joined.many.aggregate([{"$merge": "target"}])
    assert target.count_documents({}) == 2500


def test_merge_finds_its_shards_while_ranges_move(joined, cluster):
    target = shard(joined, "target", {"k": 1}, at=[50])
    with cluster.routers[0].client() as other:
        for n in range(4):
            joined.client.admin.command("moveChunk", target.full_name, find={"k": 75}, to=f"s{n % 2}")
            other[joined.name].orders.aggregate([{"$project": {"k": "$n", "round": {"$literal": n}}}, {"$merge": "target"}])
            assert target.count_documents({"round": n}) == 100 == target.count_documents({})


def test_each_document_is_merged_once_while_ranges_move(joined, cluster):
    """The shard that has the target writes its own documents, in the versions that the others' were read in."""
    orders, add = joined.orders, [{"$set": {"rounds": {"$add": ["$rounds", 1]}}}]
    merge = {"$merge": {"into": "counted", "whenMatched": add}}
    orders.aggregate([{"$project": {"rounds": {"$literal": 0}}}, merge])
    assert joined.counted.count_documents({"rounds": 0}) == 100
    stop, moved = threading.Event(), []

    def move():
        with cluster.routers[0].client() as other:
            while not stop.is_set():
                other.admin.command("moveChunk", orders.full_name, find={"n": 75}, to=f"s{len(moved) % 2}")
                moved.append(1)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for n in range(1, 41):
            orders.aggregate([{"$match": {"n": {"$gte": 0}}}, merge])
            found = {d["rounds"] for d in joined.counted.find()}
            assert found == {n}, (n, found, len(moved))
    finally:
        stop.set()
        mover.join()
    assert len(moved) > 1 and joined.counted.count_documents({}) == 100


def test_each_document_is_merged_once_while_its_target_moves(joined, cluster):
    """A shard says of each document whether it has written it, while nothing of the target can move."""
    target = shard(joined, "parted", {"k": 1}, at=[50])
    merge = {"$merge": {"into": "parted", "whenMatched": [{"$set": {"rounds": {"$add": ["$rounds", 1]}}}]}}
    first = {"$project": {"k": "$n", "rounds": {"$literal": 0}}}
    joined.orders.aggregate([first, merge])
    assert target.count_documents({"rounds": 0}) == 100
    stop, moved = threading.Event(), []

    def move():
        with cluster.routers[0].client() as other:
            while not stop.is_set():
                other.admin.command("moveChunk", target.full_name, find={"k": 75 - 50 * (len(moved) // 2 % 2)}, to=f"s{len(moved) % 2}")
                moved.append(1)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for n in range(1, 41):
            joined.orders.aggregate([first, merge])
            found = {d["rounds"] for d in target.find()}
            assert found == {n}, (n, found, len(moved))
    finally:
        stop.set()
        mover.join()
    assert len(moved) > 1 and target.count_documents({}) == 100


def read(stream, n):
    """So many events, which must be all there are."""
    events = []

    def more():
        event = stream.try_next()
        events.extend([event] if event else [])
        return len(events) == n

    until(f"{n} events come", more, 60)
    assert stream.try_next() is None
    return events


def test_a_change_stream_over_shards(db):
    coll = shard(db, "c", {"k": 1}, at=[50])
    with coll.watch(full_document="updateLookup", max_await_time_ms=50) as stream, db.watch(max_await_time_ms=50) as whole:
        for n in range(0, 100, 5):
            coll.insert_one({"_id": n, "k": n})
        coll.update_many({}, {"$set": {"x": 1}})
        coll.delete_one({"k": 5})
        db.plain.insert_one({"_id": 1})
        events = read(stream, 41)
        assert [e["fullDocument"]["k"] for e in events[:20]] == list(range(0, 100, 5))
        assert all((e["fullDocument"] or {"x": 1})["x"] == 1 for e in events[20:40])
        assert list(events[40]["documentKey"].items()) == [("k", 5), ("_id", 5)]
        assert sorted(e["documentKey"]["_id"] for e in events[20:40]) == list(range(0, 100, 5))
        seen = read(whole, 42)
        assert [e["operationType"] for e in seen] == ["insert"] * 20 + ["update"] * 20 + ["delete", "insert"]
    times = [e["clusterTime"] for e in events]
    assert times == sorted(times)
    # From every token on comes what came after it.
    for at in (0, 7, 19, 25, 39):
        with coll.watch(resume_after=events[at]["_id"], max_await_time_ms=50) as again:
            assert [e["_id"] for e in read(again, 40 - at)] == [e["_id"] for e in events[at + 1 :]]
    with coll.watch(start_at_operation_time=events[20]["clusterTime"], max_await_time_ms=50) as again:
        assert {e["_id"]["_data"] for e in events[21:]} <= {e["_id"]["_data"] for e in [again.next() for _ in range(21)]}


def test_a_change_stream_goes_on_behind_a_token_of_a_shard(db, cluster):
    """A client that moves from a shard's own stream to the router's has each event once."""
    coll = shard(db, "c", {"k": 1}, at=[50])
    for name in cluster.sets:
        with cluster.on_shard(name) as direct, direct[db.name].c.watch(max_await_time_ms=50) as own:
            coll.insert_many([{"k": k} for k in (1, 99, 2, 98, 3, 97)])
            told = [own.next() for _ in range(2)]
        for event in told:
            with coll.watch(resume_after=event["_id"], max_await_time_ms=50) as stream:
                following = stream.next()
            assert following["documentKey"] != event["documentKey"]
            assert following["clusterTime"] >= event["clusterTime"]


def test_the_router_tells_the_time(db):
    coll = shard(db, "c", {"k": 1}, at=[50])
    coll.insert_one({"k": 1})
    ping = db.client.admin.command("ping")
    assert ping["$clusterTime"]["clusterTime"] >= ping["operationTime"]
    coll.insert_many([{"_id": n, "k": n} for n in (99, 2, 98)])
    with coll.watch(start_at_operation_time=ping["operationTime"], max_await_time_ms=50) as stream:
        seen = [stream.next()["fullDocument"]["k"] for _ in range(3)]
    assert [k for k in seen if k != 1] == [99, 2, 98][: len(seen) - seen.count(1)]


def test_a_session_reads_on_one_shard_after_it_wrote_on_another(db):
    coll = shard(db, "c", {"k": 1}, at=[50])
    with db.client.start_session(causal_consistency=True) as session:
        for n in range(20):
            coll.insert_one({"k": 49 - n if n % 2 else 51 + n}, session=session)
            other = {"$gt": 50} if n % 2 else {"$lt": 50}
            assert len(list(coll.find({"k": other}, session=session).max_time_ms(20000))) == (n + 1) // 2


def test_a_change_stream_does_not_show_moves(db, cluster):
    coll = shard(db, "c", {"k": 1}, at=[50])
    coll.insert_many([{"_id": n, "k": n} for n in range(100)])
    with coll.watch([{"$match": {"operationType": {"$ne": "noop"}}}], full_document="updateLookup", max_await_time_ms=50) as stream:
        for n in range(4):
            coll.update_one({"k": 75}, {"$set": {"n": n}})
            db.client.admin.command("moveChunk", coll.full_name, find={"k": 75}, to=f"s{n % 2}")
        events = read(stream, 4)
        assert [e["updateDescription"]["updatedFields"] for e in events] == [{"n": n} for n in range(4)]
        assert events[0]["fullDocument"] == {"_id": 75, "k": 75, "n": 3}


def test_a_change_stream_begins_where_its_aggregate_was_read(db, cluster):
    """However long it waits for a thread: what others write meanwhile is behind its beginning, what they wrote before is not."""
    coll = shard(db, "c", {"n": 1}, at=[50])
    coll.insert_many([{"_id": -n, "n": n} for n in (1, 60)])
    held = {"failCommands": ["aggregate"], "blockConnection": True, "blockTimeMS": 700}
    with cluster.routers[0].wire() as watcher:
        coll.insert_many([{"_id": -n, "n": n} for n in (2, 61)])
        db.client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=held)
        opening = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": db.name}
        watcher.send_body(bson.encode(opening))
        until("it is held", lambda: db.client.admin.command("currentOp", {"command.aggregate": "c"})["inprog"])
        # How long ago the command was read is told to each shard, and takes some time to get there.
        time.sleep(0.3)
        coll.insert_many([{"_id": n, "n": n} for n in (3, 62)])
        cursor = watcher.receive_msg()["cursor"]
        found = [e["documentKey"]["_id"] for e in cursor["firstBatch"]]
        more = {"getMore": cursor["id"], "collection": "c", "maxTimeMS": 5000, "$db": db.name}
        for _ in range(4):
            if len(found) < 2:
                found += [e["documentKey"]["_id"] for e in watcher.command(more)["cursor"]["nextBatch"]]
        assert sorted(found) == [3, 62]


def test_a_change_stream_that_fails_is_resumed(db):
    coll = shard(db, "c", {"n": 1}, at=[50])
    failure = {"configureFailPoint": "failGetMoreAfterCursorCheckout", "mode": {"times": 1}, "data": {"errorCode": 262}}
    with coll.watch(max_await_time_ms=50) as stream:
        db.client.admin.command(failure)
        coll.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 60}])
        assert [stream.next()["documentKey"]["_id"] for _ in range(2)] == [1, 2]
    opened = db.command("aggregate", "c", pipeline=[{"$changeStream": {}}], cursor={})["cursor"]["id"]
    db.client.admin.command(failure)
    with refuses(262) as refused:
        db.command("getMore", opened, collection="c")
    assert refused.value.has_error_label("ResumableChangeStreamError")


def test_a_change_stream_ends_once(db):
    coll = shard(db, "c", {"k": 1}, at=[50])
    with coll.watch(max_await_time_ms=50) as stream, db.watch(max_await_time_ms=50) as whole:
        coll.insert_many([{"k": 1}, {"k": 99}])
        coll.drop()
        events = list(itertools.takewhile(lambda e: e is not None, (stream.next() for _ in range(4))))
        assert [e["operationType"] for e in events] == ["insert", "insert", "drop", "invalidate"]
        assert stream.try_next() is None and not stream.alive
        assert [e["operationType"] for e in read(whole, 3)] == ["insert", "insert", "drop"]
    again = shard(db, "c", {"k": 1}, at=[50])
    with again.watch(start_after=events[-1]["_id"], max_await_time_ms=50) as stream:
        again.insert_many([{"_id": n, "k": n} for n in (1, 99)])
        assert [e["documentKey"]["_id"] for e in read(stream, 2)] == [1, 99]
    with refuses(260):
        again.watch(resume_after=events[-1]["_id"])


def test_a_change_stream_of_the_deployment(client, db):
    other = on_the_other(db)
    with client.watch(max_await_time_ms=50) as stream:
        for n in range(5):
            db.a.insert_one({"_id": n})
            other.a.insert_one({"_id": n})
        events = read(stream, 10)
    assert [(e["ns"]["db"], e["documentKey"]["_id"]) for e in events] == [(d.name, n) for n in range(5) for d in (db, other)]
    client.drop_database(other.name)


def test_the_document_key_of_events(db):
    coll = shard(db, "c", {"a.b": 1, "k": 1}, at=[50])
    plain = db.plain
    whole = {"full_document": "updateLookup", "max_await_time_ms": 50}
    with coll.watch(**whole) as stream, plain.watch(max_await_time_ms=50) as other, coll.watch([{"$match": {"documentKey.k": 2}}], max_await_time_ms=50) as matched:
        coll.insert_many([{"_id": n, "a": {"b": n * 60}, "k": n} for n in (1, 2)])
        coll.update_one({"_id": 1}, {"$set": {"x": 1}})
        coll.replace_one({"a.b": 120, "k": 2}, {"a": {"b": 120}, "k": 2, "y": 1})
        with db.client.start_session() as session, session.start_transaction():
            coll.delete_one({"_id": 1}, session=session)
        coll.delete_many({})
        plain.insert_one({"_id": 7})
        plain.delete_one({"_id": 7})
        events = read(stream, 6)
        keys = [("a.b", 60), ("k", 1), ("_id", 1)], [("a.b", 120), ("k", 2), ("_id", 2)]
        assert [list(e["documentKey"].items()) for e in events] == [keys[n] for n in (0, 1, 0, 1, 0, 1)]
        assert [e["operationType"] for e in events] == ["insert", "insert", "update", "replace", "delete", "delete"]
        assert [e["documentKey"] for e in read(other, 2)] == [{"_id": 7}] * 2
        assert [e["operationType"] for e in read(matched, 3)] == ["insert", "replace", "delete"]


def test_explain_by_shard(db):
    coll = shard(db, "c", {"k": 1}, at=[50])
    coll.insert_many([{"k": n, "g": n % 3} for n in range(100)])
    explained = db.command("explain", {"find": "c", "filter": {"g": 1}}, verbosity="executionStats")
    plan = explained["queryPlanner"]["winningPlan"]
    assert plan["stage"] == "SHARD_MERGE" and {s["shardName"] for s in plan["shards"]} == {"s0", "s1"}
    assert explained["executionStats"]["nReturned"] == 33 and explained["executionStats"]["totalDocsExamined"] == 100
    one = db.command("explain", {"find": "c", "filter": {"k": 7}}, verbosity="queryPlanner")
    assert one["queryPlanner"]["winningPlan"]["stage"] == "SINGLE_SHARD"
    pipeline = [{"$match": {"g": 1}}, {"$group": {"_id": "$g", "n": {"$sum": 1}}}, {"$sort": {"n": 1}}]
    explained = db.command("explain", {"aggregate": "c", "pipeline": pipeline, "cursor": {}}, verbosity="queryPlanner")
    assert set(explained["shards"]) == {"s0", "s1"}
    assert [next(iter(s)) for s in explained["splitPipeline"]["shardsPart"]] == ["$match", "$group"]
    assert [next(iter(s)) for s in explained["splitPipeline"]["mergerPart"]] == ["$group", "$sort"]
    stats = db.command("collStats", "c")
    assert stats["nchunks"] == 2 and sum(s["count"] for s in stats["shards"].values()) == 100
    rows = list(coll.aggregate([{"$collStats": {"storageStats": {}}}]))
    assert sum(r["storageStats"]["count"] for r in rows) == 100


def test_operations_of_the_cluster(cluster, client, db):
    coll = shard(db, "c", {"k": 1}, at=[50])
    coll.insert_many([{"k": n} for n in range(100)])
    done = []

    def slow():
        with pytest.raises(OperationFailure) as failure:
            coll.find_one({"k": {"$lt": 10}, "$where": "sleep(20000); return true"})
        done.append(failure.value.code)

    thread = threading.Thread(target=slow)
    thread.start()
    mine = {"ns": coll.full_name, "op": "query", "active": True}
    until("the find runs", lambda: client.admin.command("currentOp", **mine)["inprog"])
    (op,) = client.admin.command("currentOp", **mine)["inprog"]
    assert op["shard"] in cluster.shards and op["opid"].startswith(f"{op['shard']}:")
    with client.admin.aggregate([{"$currentOp": {}}, {"$match": mine}]) as found:
        assert [o["opid"] for o in found] == [op["opid"]]
    client.admin.command("killOp", op=op["opid"])
    thread.join(30)
    assert done == [11601]
    with refuses(9):
        client.admin.command("killOp", op="nothing")
    with refuses(70):
        client.admin.command("killOp", op="nowhere:1")


def test_zones_hold_ranges_and_hashed_ranges_move(client, db, cluster):
    admin = client.admin
    coll = shard(db, "c", {"k": 1}, at=[50])
    admin.command("addShardToZone", "s0", zone="low")
    with refuses(9):
        admin.command("updateZoneKeyRange", coll.full_name, min={"k": 50}, max={"k": 0}, zone="low")
    admin.command("updateZoneKeyRange", coll.full_name, min={"k": MinKey()}, max={"k": 50}, zone="low")
    with refuses(178):
        admin.command("updateZoneKeyRange", coll.full_name, min={"k": 10}, max={"k": 60}, zone="low")
    with refuses(163):
        admin.command("removeShardFromZone", "s0", zone="low")
    admin.command("updateZoneKeyRange", coll.full_name, min={"k": MinKey()}, max={"k": 50}, zone=None)
    admin.command("removeShardFromZone", "s0", zone="low")
    hashed = shard(db, "h", {"_id": "hashed"}, numInitialChunks=4)
    hashed.insert_many([{"_id": n} for n in range(200)])
    uuid = client.config.collections.find_one({"_id": hashed.full_name})["uuid"]
    chunk = client.config.chunks.find_one({"uuid": uuid, "shard": "s0"})
    admin.command("moveRange", hashed.full_name, min=chunk["min"], max=chunk["max"], toShard="s1")
    assert client.config.chunks.count_documents({"uuid": uuid, "shard": "s0"}) == 1
    assert hashed.count_documents({}) == 200 and {d["_id"] for d in hashed.find()} == set(range(200))
    # Bounds that are long, or not whole.
    for bound in (2**40, 0.5, Decimal128("1.1"), "text"):
        coll = shard(db, f"b{type(bound).__name__}", {"k": 1}, at=[bound])
        values = [bound, -1, MinKey()]
        coll.insert_many([{"k": v} for v in values])
        admin.command("moveChunk", coll.full_name, find={"k": bound}, to="s0")
        admin.command("moveChunk", coll.full_name, find={"k": bound}, to="s1")
        assert coll.count_documents({}) == 3 and coll.find_one({"k": bound})
    assert admin.command("balancerCollectionStatus", hashed.full_name)["ok"] == 1


def test_a_shard_is_drained_and_removed(cluster, client, db, tmp_path):
    """The last test of the file: the shard is one more, and its documents go to the others."""
    extra = member(tmp_path, "s2", "--shardsvr")
    extra.launch()
    try:
        until("it answers", lambda: answers(extra), 60)
        initiate(extra, "s2")
        admin = client.admin
        assert admin.command("addShard", f"s2/{extra.address}")["shardAdded"] == "s2"
        coll = shard(db, "c", {"k": 1}, at=[50])
        coll.insert_many([{"_id": n, "k": n} for n in range(100)])
        with coll.watch(max_await_time_ms=50) as stream:
            admin.command("moveChunk", coll.full_name, find={"k": 75}, to="s2")
            with extra.client() as direct:
                assert direct[db.name].c.count_documents({}) == 50
            assert stream.try_next() is None
            coll.update_one({"k": 80}, {"$set": {"x": 1}})
            assert admin.command("removeShard", "s2")["state"] == "started"
            assert [s["_id"] for s in admin.command("listShards")["shards"] if s.get("draining")] == ["s2"]
            admin.command("balancerStart")
            until("it is drained", lambda: admin.command("removeShard", "s2")["state"] == "completed", 60)
            admin.command("balancerStop")
            assert {s["_id"] for s in admin.command("listShards")["shards"]} == {"s0", "s1"}
            assert coll.count_documents({}) == 100 and coll.find_one({"k": 80})["x"] == 1
            coll.update_one({"k": 81}, {"$set": {"x": 2}})
            assert [e["documentKey"]["_id"] for e in read(stream, 2)] == [80, 81]
    finally:
        extra.kill()
