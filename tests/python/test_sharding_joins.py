"""Joins of a transaction over several shards, at the transaction's snapshot; results that are written to a collection
while it moves to another shard."""

import itertools
import threading

import bson
import pytest
from harness import refuses, until
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from sharded_cluster import client_fixture, cluster_fixture, shard

numbers = itertools.count(1)


cluster = cluster_fixture(routers=2)
client = client_fixture()


@pytest.fixture
def db(client):
    """`orders` and `customers` are on two shards, `rates` on one; a customer's orders are not where the
    customer is."""
    database = client[f"joins{next(numbers)}"]
    orders = shard(database, "orders", {"n": 1}, at=[50])
    customers = shard(database, "customers", {"_id": 1}, at=[5])
    orders.insert_many([{"_id": n, "n": n, "customer": n % 10} for n in range(100)])
    customers.insert_many([{"_id": n, "name": f"c{n}", "boss": n + 1} for n in range(10)])
    database.rates.insert_one({"_id": 1, "rate": 3})
    yield database
    client.drop_database(database.name)


LOOKUP = {"$lookup": {"from": "customers", "localField": "customer", "foreignField": "_id", "as": "c"}}
ABOVE = {"$graphLookup": {"from": "customers", "startWith": "$boss", "connectFromField": "boss", "connectToField": "_id", "as": "over"}}


def names(found):
    return sorted({d["name"] for o in found for d in o["c"]})


def change(db):
    """What others do after the transaction has begun: none of it shows."""
    db.customers.update_many({}, {"$set": {"name": "changed"}})
    db.customers.delete_one({"_id": 9})
    db.orders.insert_one({"_id": 100, "n": 100, "customer": 1})
    db.rates.insert_one({"_id": 2, "rate": 4})


def test_joins_at_the_snapshot_of_a_transaction(client, db):
    with client.start_session() as session, session.start_transaction(read_concern=ReadConcern("snapshot")):
        assert len(list(db.orders.aggregate([LOOKUP], session=session))) == 100
        change(db)
        found = list(db.orders.aggregate([LOOKUP, {"$sort": {"n": 1}}], session=session, batchSize=7))
        assert len(found) == 100 and names(found) == [f"c{n}" for n in range(10)]
        over = {d["_id"]: len(d["over"]) for d in db.customers.aggregate([ABOVE], session=session)}
        assert over == {n: 9 - n for n in range(10)}
        nested = {"$lookup": {"from": "orders", "pipeline": [{"$match": {"n": {"$lt": 3}}}, LOOKUP], "as": "o"}}
        (rate,) = db.rates.aggregate([nested], session=session)
        assert names(rate["o"]) == ["c0", "c1", "c2"]
    assert names(db.orders.aggregate([LOOKUP])) == ["changed"]
    over = {d["_id"]: len(d["over"]) for d in db.customers.aggregate([ABOVE])}
    assert over == {n: 8 - n for n in range(9)}


MUCH = 2000
SUM = [
    {"$lookup": {"from": "much", "localField": "n", "foreignField": "n", "as": "m"}},
    {"$unwind": "$m"},
    {"$group": {"_id": None, "n": {"$sum": 1}, "paid": {"$sum": "$m.paid"}}},
]


@pytest.fixture
def much(client, db):
    """Too much to be sent along with the stage."""
    much = shard(db, "much", {"n": 1}, at=[50])
    much.insert_many([{"_id": n, "n": n % 100, "paid": n} for n in range(MUCH)])
    return much


def adds_up(db):
    (total,) = db.orders.aggregate(SUM)
    return (total["n"], total["paid"]) == (MUCH, sum(range(MUCH)))


def test_shards_join_what_moves_meanwhile(client, db, much):
    """Each shard reads of the others what it joins, and is told where that is like a router."""
    explained = db.command("explain", {"aggregate": "orders", "pipeline": SUM, "cursor": {}})
    assert list(explained["splitPipeline"]["shardsPart"][0]) == ["$lookup"]
    stop, wrong, ended = threading.Event(), [], []

    def sums():
        while not stop.is_set():
            (ended if adds_up(db) else wrong).append(1)

    threads = [threading.Thread(target=sums) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for to in ["s1", "s0"]:
            client.admin.command("moveChunk", much.full_name, find={"n": 1}, to=to)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong and len(ended) > 2


@pytest.mark.parametrize("code", [365, 166])
def test_the_router_joins_what_a_shard_cannot(cluster, db, much, code):
    """365: too many reads of other shards are under way on it; 166: what it joins is a view now."""
    with cluster.on_shard("s1") as direct:
        data = {"failCommands": ["aggregate"], "errorCode": code}
        direct.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
        assert adds_up(db)
        # It has failed once, and does not any more.
        assert list(direct.admin.aggregate([{"$documents": []}])) == []


def test_a_join_of_a_shard_ends_in_time(db, much):
    """Each document takes a read of its own, which scans."""
    slow = {"$lookup": {
        "from": "much", "let": {"n": "$n"}, "as": "m",
        "pipeline": [{"$match": {"$expr": {"$gt": [{"$add": ["$paid", "$$n"]}, 0]}}}, {"$project": {"n": 1}}],
    }}
    with refuses(50):
        list(db.orders.aggregate([slow, {"$unwind": "$m"}, {"$group": {"_id": "$m.n", "n": {"$sum": 1}}}], maxTimeMS=30))


def test_joins_see_the_writes_of_their_transaction(client, db):
    with client.start_session() as session, session.start_transaction():
        db.customers.update_many({}, {"$set": {"name": "mine"}}, session=session)
        db.orders.insert_one({"_id": 200, "n": 200, "customer": 0}, session=session)
        found = list(db.orders.aggregate([{"$match": {"n": {"$gte": 40}}}, LOOKUP], session=session))
        assert len(found) == 61 and names(found) == ["mine"]
        ranked = {"$rankFusion": {"input": {"pipelines": {"last": [{"$sort": {"n": -1}}, {"$limit": 2}]}}}}
        assert [d["n"] for d in db.orders.aggregate([ranked], session=session)] == [200, 99]
        session.abort_transaction()
    assert names(db.orders.aggregate([LOOKUP])) == [f"c{n}" for n in range(10)]


def test_joins_of_one_moment(client, db):
    with client.start_session(snapshot=True) as session:
        assert db.orders.count_documents({}, session=session) == 100
        change(db)
        found = list(db.orders.aggregate([LOOKUP], session=session))
        assert len(found) == 100 and names(found) == [f"c{n}" for n in range(10)]


def test_what_a_transaction_may_not_write(client, db):
    for last in ({"$out": "o"}, {"$merge": "o"}, {"$unionWith": "customers"}):
        with client.start_session() as session, session.start_transaction():
            with refuses(263):
                db.orders.aggregate([{"$match": {"n": {"$gt": 3}}}, last], session=session)
            session.abort_transaction()


def test_variables_whose_value_is_missing(client, db):
    """What the router computes for shards says that a variable is there, also where it has no value."""
    db.orders.update_one({"_id": 3}, {"$unset": {"customer": 1}})
    def stage(condition, **more):
        inner = [{"$match": {"$expr": condition}}]
        return {"$lookup": {"from": "customers", "let": {"c": "$customer"}, "pipeline": inner, "as": "c", **more}}

    mine = stage({"$eq": ["$_id", "$$c"]})
    found = {d["_id"]: len(d["c"]) for d in db.orders.aggregate([mine])}
    assert found == {n: int(n != 3) for n in range(100)}
    missing = stage({"$eq": [{"$type": "$$c"}, "missing"]})
    assert {d["_id"]: len(d["c"]) for d in db.orders.aggregate([missing, {"$match": {"c": {"$ne": []}}}])} == {3: 10}
    nested = {"$lookup": {"from": "orders", "let": {"c": "$name"}, "pipeline": [{"$match": {"n": 3}}, mine], "as": "o"}}
    assert [d["o"][0]["c"] for d in db.customers.aggregate([nested])] == [[]] * 10
    united = [{"$match": {"n": 3}}, {"$unionWith": {"coll": "orders", "pipeline": [{"$match": {"n": 3}}, mine]}}]
    assert [d.get("c") for d in db.orders.aggregate(united)] == [None, []]
    with client.start_session() as session, session.start_transaction():
        assert len(list(db.orders.aggregate([mine], session=session))) == 100
    # A variable of the outer pipeline is not seen through an inner one of its name.
    assert [d["c"] for d in db.orders.aggregate([{"$match": {"n": 3}}, mine], let={"c": 3})] == [[]]


class Moving(threading.Thread):
    """Moves a database to and fro, through the second router."""

    def __init__(self, cluster, name):
        super().__init__()
        self.cluster, self.name, self.stop, self.moves, self.failure = cluster, name, threading.Event(), 0, None

    def run(self):
        with self.cluster.client(1) as client:
            while not self.stop.is_set():
                try:
                    client.admin.command("movePrimary", self.name, to=f"s{self.moves % 2}")
                    self.moves += 1
                except OperationFailure as failure:
                    self.failure = failure

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.join(60)


def test_results_are_written_while_their_target_moves(cluster, client, db):
    target = client[f"{db.name}target"]
    target.out.insert_one({"old": 1})
    target.merged.insert_one({"_id": -1})
    out = {"$out": {"db": target.name, "coll": "out"}}
    merge = {"$merge": {"into": {"db": target.name, "coll": "merged"}, "on": "_id"}}
    with Moving(cluster, target.name) as moving:
        for turn in range(12):
            # While more than one collection is copied, the moves take longer than the results.
            db.orders.aggregate([{"$set": {"turn": turn}}, out])
            assert target.out.count_documents({"turn": turn}) == 100 and target.out.count_documents({}) == 100
            db.orders.aggregate([{"$set": {"turn": turn}}, merge])
            assert target.merged.count_documents({"turn": turn}) == 100 and target.merged.count_documents({}) == 101
    assert moving.moves > 0, moving.failure
    assert sorted(target.list_collection_names()) == ["merged", "out"]
    client.drop_database(target.name)


def test_results_of_one_shard_are_written_while_it_is_left(cluster, client):
    db = client[f"left{next(numbers)}"]
    db.source.insert_many([{"_id": n} for n in range(50)])
    with Moving(cluster, db.name) as moving:
        for turn in range(20):
            db.source.aggregate([{"$set": {"turn": turn}}, {"$out": "out"}])
            assert db.out.count_documents({"turn": turn}) == 50
            db.source.aggregate([{"$set": {"turn": turn}}, {"$merge": "merged"}])
            assert db.merged.count_documents({"turn": turn}) == 50
    assert moving.moves > 0, moving.failure
    assert sorted(db.list_collection_names()) == ["merged", "out", "source"]
    client.drop_database(db.name)


@pytest.mark.parametrize("into", ["sharded", "whole"])
def test_what_is_written_ends_when_its_client_has_left(cluster, client, db, into):
    count = 60_000
    source = shard(db, "many", {"n": 1}, at=[count // 2])
    source.insert_many([{"_id": n, "n": n} for n in range(count)])
    if into == "sharded":
        shard(db, "sharded", {"n": 1}, at=[count // 3])
    merge = {"$merge": {"into": into, **({"on": ["_id", "n"]} if into == "sharded" else {})}}
    with cluster.routers[0].wire() as wire:
        wire.send_body(bson.encode({"aggregate": "many", "pipeline": [{"$set": {"w": 1}}, merge], "cursor": {}, "$db": db.name}))
        until("it writes", lambda: db[into].find_one())
    counts = []

    def ended():
        counts.append(db[into].count_documents({}))
        return len(counts) > 3 and counts[-1] == counts[-3]

    until("it has ended", ended, 30)
    assert counts[-1] < count


def test_results_replace_a_collection_that_was_moved_by_itself(client, db):
    home = client.config.databases.find_one({"_id": db.name})["primary"]
    db.out.insert_one({"old": 1})
    client.admin.command("moveCollection", f"{db.name}.out", toShard="s1" if home == "s0" else "s0")
    db.orders.aggregate([{"$out": "out"}])
    assert db.out.count_documents({}) == 100 and db.out.count_documents({"old": 1}) == 0


def test_patterns_are_values_of_a_join(db):
    """The looked-up values go to the shards as a filter, where a pattern in a list would match texts."""
    db.orders.insert_one({"_id": 200, "n": 200, "tags": [bson.Regex("c"), 3]})
    db.customers.insert_many([{"_id": 10, "tag": "abc"}, {"_id": 11, "tag": bson.Regex("c")}, {"_id": 12, "tag": 3}, {"_id": 13}])
    lookup = {"from": "customers", "localField": "tags", "foreignField": "tag", "as": "c"}
    [found] = db.orders.aggregate([{"$match": {"_id": 200}}, {"$lookup": lookup}])
    assert sorted(d["_id"] for d in found["c"]) == [11, 12]
    db.orders.update_one({"n": 200}, {"$set": {"tags": [bson.Regex("c")]}})
    [found] = db.orders.aggregate([{"$match": {"_id": 200}}, {"$lookup": lookup}])
    assert [d["_id"] for d in found["c"]] == [11]
