"""Views: queries through them, views on views, what cannot be done to them, and what tools see of them."""

import pymongo
import pytest
from pymongo.errors import OperationFailure

from harness import Server


def code(call, *args, **kwargs):
    with pytest.raises(OperationFailure) as e:
        call(*args, **kwargs)
    return e.value.code


@pytest.fixture
def people(db):
    db.people.insert_many(
        [
            {"_id": 1, "name": "Ada", "age": 36, "tags": ["x", "y"], "boss": None},
            {"_id": 2, "name": "Bob", "age": 17, "tags": ["y"], "boss": 1},
            {"_id": 3, "name": "Cid", "age": 50, "tags": [], "boss": 1},
            {"_id": 4, "name": "Dan", "age": 61, "tags": ["z"], "boss": 3},
        ]
    )
    db.create_collection("adults", viewOn="people", pipeline=[{"$match": {"age": {"$gte": 18}}}])
    db.create_collection("names", viewOn="adults", pipeline=[{"$project": {"name": 1}}])
    return db


def test_queries(people):
    db = people
    assert [d["_id"] for d in db.adults.find().sort("_id", 1)] == [1, 3, 4]
    assert list(db.adults.find({"age": {"$lt": 60}}, {"name": 1}).sort("age", -1).skip(1).limit(1)) == [
        {"_id": 1, "name": "Ada"}
    ]
    assert list(db.names.find({"name": "Cid"})) == [{"_id": 3, "name": "Cid"}]
    assert db.adults.find_one({"_id": 2}) is None
    assert db.adults.count_documents({}) == 3
    assert db.command("count", "adults", query={"age": {"$gt": 40}}, limit=1)["n"] == 1
    assert db.command("count", "adults")["n"] == 3 and db.command("count", "adults", query={"x": 1})["n"] == 0
    assert db.adults.estimated_document_count() == 3
    assert db.adults.distinct("tags") == ["x", "y", "z"]
    assert list(db.names.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}])) == [{"_id": None, "n": 3}]


def test_what_is_written_below_shows_at_once(people):
    people.people.update_one({"_id": 2}, {"$set": {"age": 18}})
    assert people.names.count_documents({}) == 4
    people.people.drop()
    assert list(people.names.find()) == []
    people.people.insert_one({"name": "Eve", "age": 20})
    assert people.names.find_one()["name"] == "Eve"


def test_batches(db):
    db.c.insert_many([{"_id": i} for i in range(500)])
    db.create_collection("even", viewOn="c", pipeline=[{"$match": {"$expr": {"$eq": [{"$mod": ["$_id", 2]}, 0]}}}])
    cursor = db.even.find({}, batch_size=20)
    first = next(cursor)
    # The view's cursor keeps its snapshot even when the collection goes.
    db.c.drop()
    assert [first["_id"]] + [d["_id"] for d in cursor] == list(range(0, 500, 2))


def test_joins_from_views(people):
    db = people
    rows = db.people.aggregate(
        [
            {"$match": {"_id": {"$in": [2, 4]}}},
            {"$lookup": {"from": "names", "localField": "boss", "foreignField": "_id", "as": "boss"}},
            {"$sort": {"_id": 1}},
        ]
    )
    assert [[b["name"] for b in r["boss"]] for r in rows] == [["Ada"], ["Cid"]]
    rows = db.adults.aggregate(
        [
            {"$match": {"_id": 4}},
            {
                "$graphLookup": {
                    "from": "adults",
                    "startWith": "$boss",
                    "connectFromField": "boss",
                    "connectToField": "_id",
                    "as": "chain",
                }
            },
        ]
    )
    assert sorted(c["_id"] for c in next(rows)["chain"]) == [1, 3]
    rows = db.people.aggregate([{"$match": {"_id": 2}}, {"$unionWith": "names"}])
    assert sorted(r["_id"] for r in rows) == [1, 2, 3, 4]


def test_nothing_is_written_through_views(people):
    db = people
    assert code(db.adults.insert_one, {"a": 1}) == 166
    assert code(db.adults.update_one, {}, {"$set": {"a": 1}}) == 166
    assert code(db.adults.update_many, {}, {"$set": {"a": 1}}) == 166
    assert code(db.adults.delete_one, {}) == 166
    assert code(db.adults.delete_many, {}) == 166
    assert code(db.adults.find_one_and_delete, {}) == 166
    assert code(db.adults.create_index, "age") == 166
    assert code(db.adults.list_indexes) == 166
    assert code(db.people.aggregate, [{"$out": "adults"}]) == 166
    assert code(db.people.aggregate, [{"$merge": "adults"}]) == 166
    assert code(db.command, "collStats", "adults") == 166
    assert code(db.adults.rename, "other") == 166
    assert code(db.people.rename, "adults", dropTarget=True) == 48
    assert db.people.count_documents({}) == 4


def test_definitions(people):
    db = people

    def create(name, on, pipeline=()):
        return code(db.create_collection, name, check_exists=False, viewOn=on, pipeline=list(pipeline))

    assert create("v", "v") == 5
    assert create("v", "") == 2
    assert create("v", "c", [{"$out": "x"}]) == 167
    assert create("v", "c", [{"$nope": 1}]) == 40324
    assert create("v", "c", [{"$lookup": {"from": "v", "as": "x", "pipeline": []}}]) == 5
    assert create("adults", "other") == 48
    # The same again is no error.
    db.command("create", "adults", viewOn="people", pipeline=[{"$match": {"age": {"$gte": 18}}}])
    assert code(db.command, "collMod", "adults", viewOn="names", pipeline=[]) == 5
    assert code(db.command, "collMod", "people", viewOn="c", pipeline=[]) == 72
    assert code(db.command, "collMod", "adults", validator={"a": 1}) == 72
    db.command("collMod", "adults", viewOn="people", pipeline=[{"$match": {"age": {"$lt": 18}}}])
    assert [d["name"] for d in db.names.find()] == ["Bob"]
    for i in range(19):
        db.create_collection(f"v{i}", viewOn="people" if i == 0 else f"v{i - 1}")
    db.create_collection("v19", viewOn="v18")
    assert create("v20", "v19") == 165
    assert db.v19.count_documents({}) == 4


def test_what_tools_see(people):
    db = people
    listed = {c["name"]: c for c in db.list_collections()}
    assert listed["names"] == {
        "name": "names",
        "type": "view",
        "options": {"viewOn": "adults", "pipeline": [{"$project": {"name": 1}}]},
        "info": {"readOnly": True},
    }
    assert listed["people"]["type"] == listed["system.views"]["type"] == "collection"
    assert list(db["system.views"].find().sort("_id", 1)) == [
        {"_id": f"{db.name}.adults", "viewOn": "people", "pipeline": [{"$match": {"age": {"$gte": 18}}}]},
        {"_id": f"{db.name}.names", "viewOn": "adults", "pipeline": [{"$project": {"name": 1}}]},
    ]
    assert db["system.views"].count_documents({}) == db["system.views"].estimated_document_count() == 2
    assert code(db["system.views"].insert_one, {"_id": f"{db.name}.x", "viewOn": "people", "pipeline": []}) == 73
    assert db.command("dbStats")["views"] == 2
    db.names.drop()
    assert [d["_id"] for d in db["system.views"].find()] == [f"{db.name}.adults"]
    db["system.views"].drop()
    assert db.list_collection_names() == ["people"]


def test_explain(people):
    plan = people.adults.find({"name": "Ada"}).explain()
    text = str(plan)
    assert f"{people.name}.people" in text and "COLLSCAN" in text and "'age'" in text
    people.people.create_index("age")
    assert "IXSCAN" in str(people.adults.find().explain())
    assert "IXSCAN" in str(people.command("explain", {"count": "adults"}))


def test_they_survive_a_crash(new_server):
    server: Server = new_server()
    with server.client() as client:
        client.d.c.insert_many([{"_id": i, "even": i % 2 == 0} for i in range(10)])
        client.d.create_collection("v", viewOn="c", pipeline=[{"$match": {"even": True}}])
    server.kill()
    server.start()
    with server.client() as client:
        assert client.d.v.count_documents({}) == 5
        assert client.d["system.views"].find_one()["_id"] == "d.v"


def test_find_options_that_a_pipeline_does_not_have(people):
    for options in [{"showRecordId": True}, {"noCursorTimeout": True}, {"min": {"_id": 1}}]:
        assert code(people.command, "find", "adults", **options) == 168, options
    assert people.adults.find_one({"_id": {"$gt": 0}}, sort=[("age", pymongo.DESCENDING)])["name"] == "Dan"


def test_the_natural_order_of_a_view_is_that_of_its_collection(people):
    for direction in (1, -1):
        found = [p["name"] for p in people.adults.find().sort("$natural", direction)]
        below = people.people.find({"name": {"$in": found}}).sort("$natural", direction)
        assert found == [p["name"] for p in below] and len(found) > 1


def test_distinct_answers_ok_as_mongodb_does(people):
    db = people
    db.create_collection("all_people", viewOn="people")
    reply = db.command("distinct", "all_people", key="name")
    assert type(reply["ok"]) is int and reply["values"] == people.people.distinct("name")
    assert type(db.command("distinct", "people", key="name")["ok"]) is float
