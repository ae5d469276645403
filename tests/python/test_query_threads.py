"""Aggregations that several threads run: they give what one gives, and end with their operation."""

import threading
import time

import pytest
from bson import encode
from harness import Server, refuses, until
from pymongo.errors import OperationFailure

DOCUMENTS = 60_000
VIEWS = {"a view": "view", "as many stages as there may be": "longer"}
# As deep as a document may be.
DEEP = "$n"
for _ in range(85):
    DEEP = {"$add": [DEEP, 1]}
PIPELINES = {
    "a filter and a count": [{"$match": {"amount": {"$gt": 400}}}, {"$count": "n"}],
    "few groups": [{"$group": {"_id": "$city", "s": {"$sum": "$n"}, "f": {"$first": "$_id"}, "l": {"$last": "$_id"}}}],
    "many groups": [{"$group": {"_id": "$shop", "m": {"$max": "$amount"}, "p": {"$push": "$n"}, "s": {"$addToSet": "$city"}}}],
    "elements": [{"$unwind": "$tags"}, {"$group": {"_id": "$tags", "n": {"$sum": 1}, "p": {"$push": "$_id"}}}],
    "a join": [
        {"$match": {"n": {"$lt": 30_000}}},
        {"$lookup": {"from": "shops", "localField": "shop", "foreignField": "_id", "as": "x"}},
        {"$unwind": "$x"},
        {"$group": {"_id": "$x.region", "s": {"$sum": "$n"}}},
    ],
    "the first": [{"$sort": {"amount": -1}}, {"$limit": 20}],
    "the first but some": [{"$match": {"n": {"$gt": 7}}}, {"$sort": {"amount": -1}}, {"$skip": 15}, {"$limit": 20}],
    "the first of what is computed": [{"$set": {"x": {"$mod": ["$n", 97]}}}, {"$sort": {"x": 1}}, {"$limit": 50}],
    "a range of _id": [{"$match": {"_id": {"$gte": 1000, "$lt": 59_000}}}, {"$group": {"_id": "$city", "n": {"$sum": 1}}}],
    "a range of an index": [{"$match": {"m": {"$gte": 100, "$lt": 900}}}, {"$group": {"_id": "$city", "n": {"$sum": "$n"}}}],
    "all that an index has": [{"$match": {"m": {"$lt": 800}}}, {"$group": {"_id": "$m", "n": {"$sum": 1}, "f": {"$first": "$m"}}}],
    "the order of an index": [{"$match": {"m": {"$gt": 5}}}, {"$sort": {"m": 1, "n": 1}}, {"$group": {"_id": None, "p": {"$push": "$n"}}}],
    "a bucket": [{"$bucket": {"groupBy": "$amount", "boundaries": [0, 100, 200, 500], "default": "more"}}],
    "facets": [
        {"$facet": {"a": [{"$group": {"_id": "$city", "n": {"$sum": 1}}}], "b": [{"$group": {"_id": "$shop", "p": {"$push": "$n"}}}]}},
        {"$project": {"a": 1, "b": {"$size": "$b"}}},
    ],
    "as many stages as there may be": [*[{"$unwind": "$n"}] * 480, {"$group": {"_id": "$n"}}],
    "deep expressions": [{"$match": {"n": {"$mod": [600, 5]}}}, {"$group": {"_id": DEEP}}],
    "nothing": [{"$match": {"city": "none"}}, {"$group": {"_id": "$city"}}],
    "a view": [{"$group": {"_id": "$city", "n": {"$sum": "$twice"}}}],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("threads"), "--query-threads", "4") as running:
        yield running


@pytest.fixture(scope="module")
def db(server):
    with server.client() as client:
        db = client.threads
        documents = [
            {
                "_id": i,
                "n": i,
                "m": i * 7919 % 1000,
                "city": f"city{i % 50}",
                "shop": i * 104_729 % 20_000,
                "amount": i * 15_485_863 % 49_901 / 100,
                "tags": [f"word{(i * 13 + k) * 7919 % 500}" for k in (1, 3, 7)],
                "pad": "x" * 100,
            }
            for i in range(DOCUMENTS)
        ]
        for at in range(0, DOCUMENTS, 5000):
            db.docs.insert_many(documents[at : at + 5000])
        db.docs.create_index([("m", 1), ("n", 1)])
        db.shops.insert_many([{"_id": i, "region": i % 12} for i in range(20_000)])
        few = {"$match": {"n": {"$mod": [6000, 5]}}}
        db.create_collection("long", viewOn="docs", pipeline=[few, *[{"$unwind": "$n"}] * 990])
        db.create_collection("longer", viewOn="long", pipeline=[{"$unwind": "$n"}] * 990)
        db.create_collection("view", viewOn="docs", pipeline=[{"$set": {"twice": {"$multiply": ["$n", 2]}}}])
        yield db


def divided(db):
    return db.client.admin.command("serverStatus")["pandodb"]["queryThreads"]


@pytest.mark.parametrize("name", PIPELINES)
def test_threads_give_what_one_gives(db, name):
    pipeline = PIPELINES[name]
    coll = db[VIEWS.get(name, "docs")]
    before = divided(db)["dividedPipelines"]
    got = list(coll.aggregate(pipeline))
    assert divided(db)["dividedPipelines"] == before + 1
    # In a transaction one thread reads.
    with db.client.start_session() as session, session.start_transaction():
        want = list(coll.aggregate(pipeline, session=session))
    assert divided(db)["dividedPipelines"] == before + 1
    assert got == want and (got or name == "nothing")


def test_what_threads_examine_counts(db):
    db.command("profile", 2)
    list(db.docs.aggregate(PIPELINES["few groups"], comment="counted"))
    db.command("profile", 0)
    assert db["system.profile"].find_one({"command.comment": "counted"})["docsExamined"] == DOCUMENTS


def test_a_cursor_that_rests_before_it_begins(db):
    reply = db.command("aggregate", "docs", pipeline=PIPELINES["many groups"], cursor={"batchSize": 0})
    before = divided(db)["dividedPipelines"]
    found = []
    cursor = reply["cursor"]["id"]
    while cursor:
        more = db.command("getMore", cursor, collection="docs", batchSize=7000)["cursor"]
        found, cursor = found + more["nextBatch"], more["id"]
    assert divided(db)["dividedPipelines"] == before + 1
    assert found == list(db.docs.aggregate(PIPELINES["many groups"]))


def test_an_error_in_any_part_is_the_answer(db):
    for n in (5, DOCUMENTS - 5):
        bad = {"$group": {"_id": None, "s": {"$sum": {"$divide": [1, {"$subtract": ["$n", n]}]}}}}
        with refuses(4848401):
            list(db.docs.aggregate([bad]))
    until("the threads are given back", lambda: divided(db)["taken"] == 0)


SLOW = [{"$group": {"_id": {"$reduce": {"input": {"$range": [0, 2000]}, "initialValue": "$n", "in": {"$add": ["$$value", "$$this"]}}}}}]


def test_time_ends_all_threads(db):
    began = time.monotonic()
    with pytest.raises(OperationFailure) as late:
        list(db.docs.aggregate(SLOW, maxTimeMS=200))
    assert late.value.code == 50 and time.monotonic() - began < 5
    until("the threads are given back", lambda: divided(db)["taken"] == 0)


def test_what_ends_the_operation_ends_all_threads(server, db):
    command = encode({"aggregate": "docs", "pipeline": SLOW, "cursor": {}, "comment": "slow", "$db": "threads"})
    with server.wire() as wire:
        wire.send_body(command)
        until("it has threads", lambda: divided(db)["taken"] == 3)
        [operation] = db.client.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.comment": "slow"}}])
        db.client.admin.command("killOp", op=operation["opid"])
        assert wire.receive_msg()["code"] == 11601
        until("the threads are given back", lambda: divided(db)["taken"] == 0)
        wire.send_body(command)
        until("it has threads", lambda: divided(db)["taken"] == 3)
    until("they have ended with its client", lambda: divided(db)["taken"] == 0, 5)


def test_a_second_one_goes_on_with_its_own_thread(db):
    def slow():
        with pytest.raises(OperationFailure):
            list(db.docs.aggregate(SLOW, maxTimeMS=3000))

    first = threading.Thread(target=slow)
    first.start()
    until("the first has them", lambda: divided(db)["taken"] == 3)
    before = divided(db)["dividedPipelines"]
    assert list(db.docs.aggregate(PIPELINES["a filter and a count"]))
    assert divided(db)["dividedPipelines"] == before
    first.join()
    until("the threads are given back", lambda: divided(db)["taken"] == 0)
