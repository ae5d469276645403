"""maxTimeMS: whatever takes longer ends with MaxTimeMSExpired, and leaves a server that goes on."""

import re
import time

import pytest
from pymongo.errors import ExecutionTimeout

N = 20_000
SLOW = {"$expr": {"$gt": [{"$reduce": {"input": {"$range": [0, 200]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}, -1]}}
NEVER = {"$expr": {"$lt": SLOW["$expr"]["$gt"]}}


@pytest.fixture(scope="module")
def big(client):
    db = client["max_time"]
    db.c.insert_many([{"_id": i, "a": i % 100, "s": f"{i:08}"} for i in range(N)])
    yield db
    client.drop_database(db.name)


CASES = {
    "find": {"find": "c", "filter": NEVER},
    "sorted find": {"find": "c", "filter": SLOW, "sort": {"s": -1}},
    "count": {"count": "c", "query": SLOW},
    "distinct": {"distinct": "c", "key": "a", "query": SLOW},
    "group": {"aggregate": "c", "pipeline": [{"$match": SLOW}, {"$group": {"_id": "$s"}}], "cursor": {}},
    "sort stage": {"aggregate": "c", "pipeline": [{"$match": SLOW}, {"$sort": {"a": 1, "s": -1}}], "cursor": {}},
    "join": {
        "aggregate": "c",
        "pipeline": [{"$lookup": {"from": "c", "localField": "a", "foreignField": "a", "as": "j"}}, {"$match": {"j.s": "none"}}, {"$count": "n"}],
        "cursor": {},
    },
    "facet": {"aggregate": "c", "pipeline": [{"$facet": {"a": [{"$match": SLOW}, {"$count": "n"}]}}], "cursor": {}},
    "out": {"aggregate": "c", "pipeline": [{"$match": SLOW}, {"$out": "d"}], "cursor": {}},
    "update": {"update": "c", "updates": [{"q": NEVER, "u": {"$set": {"x": 1}}, "multi": True}]},
    "delete": {"delete": "c", "deletes": [{"q": NEVER, "limit": 0}]},
    "findAndModify": {"findAndModify": "c", "query": NEVER, "update": {"$set": {"x": 1}}},
    "validate": {"validate": "c", "full": True},
    "dbHash": {"dbHash": 1},
    "pandoSchema": {"pandoSchema": "c", "sampleSize": 100_000},
    "createIndexes": {"createIndexes": "c", "indexes": [{"key": {"s": 1, "a": 1}, "name": "late"}]},
    "convertToCapped": {"convertToCapped": "c", "size": 1 << 20},
    "cloneCollectionAsCapped": {"cloneCollectionAsCapped": "c", "toCollection": "d", "size": 1 << 20},
}


@pytest.mark.parametrize("name", CASES)
def test_expires(big, name):
    with pytest.raises(ExecutionTimeout) as raised:
        big.command({**CASES[name], "maxTimeMS": 1})
    assert raised.value.code == 50
    assert "d" not in big.list_collection_names()
    assert "late" not in big.c.index_information()
    assert not big.c.options().get("capped")
    assert big.c.count_documents({}) == N


def test_bulk_write_expires(big):
    ops = [{"update": 0, "filter": NEVER, "updateMods": {"$set": {"x": 1}}, "multi": True}]
    with pytest.raises(ExecutionTimeout):
        big.client.admin.command("bulkWrite", 1, ops=ops, nsInfo=[{"ns": f"{big.name}.c"}], maxTimeMS=1)


def test_get_more_goes_on_with_what_is_left(big):
    cursor = big.command("find", "c", filter={"$or": [{"_id": {"$lt": 2}}, NEVER]}, batchSize=2, maxTimeMS=20)["cursor"]
    with pytest.raises(ExecutionTimeout):
        big.command("getMore", cursor["id"], collection="c")


def test_enough_time_is_enough(big):
    assert big.command("count", "c", query={"a": {"$gte": 0}}, maxTimeMS=60_000)["n"] == N
    assert big.c.count_documents({"x": {"$exists": True}}) == 0


LONG = {
    "find": {"find": "long", "filter": {"a": {"$in": [re.compile(f"z{i}|y") for i in range(5_000)]}}},
    "or": {"count": "long", "query": {"$or": [{"a": {"$lt": f"n{i}"}} for i in range(10_000)]}},
    "regex": {"find": "long", "filter": {"a": re.compile("(x+x+)+[yz]")}},
    "elemMatch": {"distinct": "long", "key": "b", "query": {"o": {"$elemMatch": {"$or": [{"x": {"$lt": -i}} for i in range(1, 20_000)]}}}},
    "schema": {"count": "long", "query": {"$jsonSchema": {"properties": {"a": {"items": {"allOf": [{"minLength": i % 9} for i in range(20_000)]}}}}}},
    "delete": {"delete": "long", "deletes": [{"q": {"$and": [{"a": {"$ne": f"n{i}"}} for i in range(10_000)]}, "limit": 1}]},
    "array filters": {
        "update": "long",
        "updates": [
            {
                "q": {},
                "u": {"$set": {f"o.$[e{i}].x": 1 for i in range(5_000)}},
                "arrayFilters": [{f"e{i}.x": -1} for i in range(5_000)],
            }
        ],
    },
    "pull": {"findAndModify": "long", "query": {}, "update": {"$pull": {"o": {"$or": [{"x": {"$lt": -i}} for i in range(1, 20_000)]}}}},
    "aggregate": {
        "aggregate": "long",
        "pipeline": [{"$match": {"$nor": [{"a": {"$gt": f"y{i}"}} for i in range(10_000)]}}, {"$count": "n"}],
        "cursor": {},
    },
}


@pytest.mark.parametrize("name", LONG)
def test_one_long_document_expires(big, name):
    """What would take from half a minute to hours on a single document."""
    if not big.long.find_one({}, {"_id": 1}):
        texts = ["x" * 28 + str(i) for i in range(100_000)]
        big.long.insert_one({"a": texts, "o": [{"x": i} for i in range(100_000)]})
    start = time.monotonic()
    with pytest.raises(ExecutionTimeout):
        big.command({**LONG[name], "maxTimeMS": 300})
    assert time.monotonic() - start < 10
    assert big.long.count_documents({"o.x": 0}) == 1
