"""Everywhere a plan is made, the index that bounds all of the fields is taken: on a server, in a transaction, and through a
router on both shards. The servers' examined keys and documents are counted."""

import contextlib

import pytest
from pymongo import DeleteMany, DeleteOne, UpdateMany, UpdateOne
from sharded_cluster import at_rest

DOCUMENTS = 2000
# The entries and documents that one operation may read, with what choosing reads. The other index has 2,000 of each.
MOST = 150


@pytest.fixture(scope="module", params=["server", "router"])
def place(request, tmp_path_factory):
    """A client, and how to count what its servers have examined."""
    if request.param == "server":
        client = request.getfixturevalue("client")
        yield client, lambda: [contextlib.nullcontext(client)]
        return
    with at_rest(tmp_path_factory.mktemp("choice")) as running, running.client() as client:
        client.admin.command("enableSharding", "choice")
        client.admin.command("shardCollection", "choice.c", key={"_id": "hashed"})
        yield client, lambda: [running.on_shard(s) for s in ("s0", "s1")]


@pytest.fixture(scope="module")
def chosen(place):
    client, servers = place
    db = client.choice
    db.c.delete_many({})
    # The shorter one is the older: it must not matter.
    db.c.create_index("k")
    db.c.create_index([("k", 1), ("v", 1)])
    db.c.insert_many([{"_id": i, "k": 1, "v": i, "n": 0, "to": [i + 1]} for i in range(DOCUMENTS)])
    db.left.delete_many({})
    db.left.insert_many([{"_id": i, "k": 1, "v": i * 7} for i in range(5)])
    yield client, db, servers
    client.drop_database("choice")


def examined(servers):
    total = 0
    for server in servers():
        with server as direct:
            told = direct.admin.command("serverStatus")["metrics"]["queryExecutor"]
            total += told["scanned"] + told["scannedObjects"]
    return total


BOTH = {"k": 1, "v": 77}
WAYS = {
    "find": lambda db, s: list(db.c.find(BOTH, session=s)),
    "find sorted": lambda db, s: list(db.c.find({"k": 1, "v": {"$gte": 1990}}, session=s).sort("n")),
    "count": lambda db, s: db.c.count_documents(BOTH, session=s),
    "count with a rest": lambda db, s: db.c.count_documents({**BOTH, "n": {"$gte": 0}}, session=s),
    "distinct": lambda db, s: db.c.distinct("n", BOTH, session=s),
    "update one": lambda db, s: db.c.update_one(BOTH, {"$inc": {"n": 1}}, session=s),
    "update many": lambda db, s: db.c.update_many({"k": 1, "v": {"$in": [3, 900, 1800]}}, {"$inc": {"n": 1}}, session=s),
    "upsert": lambda db, s: db.c.update_one({"k": 1, "v": 5000}, {"$inc": {"n": 1}}, upsert=True, session=s),
    "replace": lambda db, s: db.c.replace_one({"_id": 77, **BOTH}, {"k": 1, "v": 77, "n": 5, "to": [78]}, session=s),
    "find and modify": lambda db, s: db.c.find_one_and_update(BOTH, {"$inc": {"n": 1}}, session=s),
    "find and remove": lambda db, s: db.c.find_one_and_delete({"k": 1, "v": 78}, session=s),
    "delete one": lambda db, s: db.c.delete_one({"k": 1, "v": 79}, session=s),
    "delete many": lambda db, s: db.c.delete_many({"k": 1, "v": {"$gte": 80, "$lt": 84}}, session=s),
    "bulk write": lambda db, s: db.c.bulk_write(
        [
            UpdateOne({"k": 1, "v": 100}, {"$inc": {"n": 1}}),
            UpdateMany({"k": 1, "v": 101}, {"$inc": {"n": 1}}),
            DeleteOne({"k": 1, "v": 102}),
            DeleteMany({"k": 1, "v": 103}),
        ],
        session=s,
    ),
    "match": lambda db, s: list(db.c.aggregate([{"$match": BOTH}, {"$group": {"_id": "$n"}}], session=s)),
    "match behind a projection": lambda db, s: list(
        db.c.aggregate([{"$project": {"k": 1, "v": 1}}, {"$match": BOTH}], session=s)
    ),
    "or": lambda db, s: list(db.c.find({"$or": [{"k": 1, "v": 5}, {"k": 1, "v": 1500}]}, session=s)),
    "lookup": lambda db, s: list(
        db.left.aggregate(
            [
                {
                    "$lookup": {
                        "from": "c",
                        "localField": "v",
                        "foreignField": "v",
                        "pipeline": [{"$match": {"k": 1}}],
                        "as": "found",
                    }
                }
            ],
            session=s,
        )
    ),
    "lookup by expression": lambda db, s: list(
        db.left.aggregate(
            [
                {
                    "$lookup": {
                        "from": "c",
                        "let": {"v": "$v"},
                        "pipeline": [{"$match": {"$expr": {"$and": [{"$eq": ["$k", 1]}, {"$eq": ["$v", "$$v"]}]}}}],
                        "as": "found",
                    }
                }
            ],
            session=s,
        )
    ),
    "graph lookup": lambda db, s: list(
        db.left.aggregate(
            [
                {
                    "$graphLookup": {
                        "from": "c",
                        "startWith": "$v",
                        "connectFromField": "to",
                        "connectToField": "v",
                        "as": "found",
                        "maxDepth": 2,
                        "restrictSearchWithMatch": {"k": 1},
                    }
                }
            ],
            session=s,
        )
    ),
    "union": lambda db, s: list(
        db.left.aggregate([{"$limit": 1}, {"$unionWith": {"coll": "c", "pipeline": [{"$match": BOTH}]}}], session=s)
    ),
}


# What a transaction takes away is there again afterwards.
@pytest.mark.parametrize("inside", ["transaction", ""])
@pytest.mark.parametrize("name", WAYS)
def test_all_fields_are_bound(chosen, name, inside):
    client, db, servers = chosen
    if name == "union" and inside:
        pytest.skip("MongoDB allows no $unionWith in a transaction")
    with client.start_session() as session:
        within = session.start_transaction() if inside else contextlib.nullcontext()
        with within:
            before = examined(servers)
            WAYS[name](db, session if inside else None)
            read = examined(servers) - before
            if inside:
                session.abort_transaction()
    assert (0 if name == "upsert" else 1) <= read <= MOST, read
    assert db.c.estimated_document_count() > 1900
