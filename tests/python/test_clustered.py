"""Clustered collections: how they are shown and read, and refusals."""

import pytest
from pymongo.errors import DuplicateKeyError

from harness import leaf, refuses, winning

NAME = "orders by id"


@pytest.fixture
def orders(db):
    coll = db.create_collection("orders", clusteredIndex={"key": {"_id": 1}, "unique": True, "name": NAME})
    coll.insert_many([{"_id": i, "x": i % 3} for i in [5, 2, 8, 1, 9]])
    return coll


def ids(cursor):
    return [d["_id"] for d in cursor]


def test_what_is_shown(db, orders):
    [listed] = db.list_collections()
    assert listed["options"] == {"clusteredIndex": {"v": 2, "key": {"_id": 1}, "name": NAME, "unique": True}}
    assert "idIndex" not in listed
    [index] = orders.list_indexes()
    assert dict(index) == {"v": 2, "key": {"_id": 1}, "name": NAME, "unique": True, "clustered": True}


def test_order_and_hints(orders):
    assert ids(orders.find()) == [1, 2, 5, 8, 9]
    assert ids(orders.find({"x": 2}).sort("$natural", -1)) == [8, 5, 2]
    assert ids(orders.find({"_id": {"$gte": 3}}).hint(NAME)) == [5, 8, 9]
    assert ids(orders.find({"_id": {"$gte": 3}}).hint([("_id", 1)])) == [5, 8, 9]
    assert ids(orders.find().hint(NAME).min([("_id", 2)]).max([("_id", 8)])) == [2, 5]
    with refuses(2):
        list(orders.find().hint("another name"))
    with pytest.raises(DuplicateKeyError):
        orders.insert_one({"_id": 5})


def test_explain(orders):
    assert winning(orders.find({"_id": 5}).explain())["stage"] == "EXPRESS_CLUSTERED_IXSCAN"
    plan = winning(orders.find({"_id": {"$gte": 2, "$lt": 9}, "x": 2}).explain())
    assert (plan["stage"], plan["minRecord"], plan["maxRecord"]) == ("CLUSTERED_IXSCAN", 2, 9)
    assert plan["direction"] == "forward" and "inputStage" not in plan
    assert leaf(winning(orders.find({"x": 1}).explain()))["stage"] == "COLLSCAN"
    orders.create_index("x")
    assert leaf(winning(orders.find({"x": 1}).explain()))["indexName"] == "x_1"


def test_its_index_can_neither_go_nor_hide(db, orders):
    for index in [NAME, {"_id": 1}]:
        with refuses(5979800):
            db.command("dropIndexes", "orders", index=index)
    with refuses(6011800):
        db.command("collMod", "orders", index={"name": NAME, "hidden": True})
    orders.create_index("x")
    db.command("dropIndexes", "orders", index="*")
    assert [i["name"] for i in orders.list_indexes()] == [NAME]
    reply = db.command("createIndexes", "orders", indexes=[{"key": {"_id": 1}, "name": "_id_"}])
    assert (reply["numIndexesBefore"], reply["numIndexesAfter"]) == (0, 0)


def test_what_is_refused(db):
    def create(code, **options):
        with refuses(code):
            db.command("create", "c", **options)

    create(5979700, clusteredIndex={"key": {"_id": 1}, "unique": False})
    create(197, clusteredIndex={"key": {"x": 1}, "unique": True})
    create(6049200, clusteredIndex={"key": {"_id": 1}, "unique": True}, capped=True, size=100)
    create(72, expireAfterSeconds=10)
    create(72, clusteredIndex={"key": {"_id": 1}, "unique": True}, expireAfterSeconds=-1)
    db.c.insert_one({})
    with refuses(72):
        db.command("collMod", "c", expireAfterSeconds=10)
    db.create_collection("d", clusteredIndex={"key": {"_id": 1}, "unique": True})
    for value, code in [("on", 72), (-1, 72), (2**62, 72), (True, 14)]:
        with refuses(code):
            db.command("collMod", "d", expireAfterSeconds=value)
    with refuses(5894900):
        db.d.insert_one({"_id": "x" * (8 << 20)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_a_key_as_any_other(orders, value):
    orders.insert_one({"_id": value})
    with pytest.raises(DuplicateKeyError):
        orders.insert_one({"_id": value})
