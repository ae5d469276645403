"""delete, and the mixed batches of bulk_write."""

import pytest
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError

from exact import ids, same
from harness import expect_error, refuses


def test_one_many_all(coll):
    coll.insert_many([{"_id": i, "a": i % 3} for i in range(12)])
    assert coll.delete_one({"a": 1}).deleted_count == 1
    assert coll.delete_many({"a": 1}).deleted_count == 3
    assert coll.delete_one({"_id": 777}).deleted_count == 0
    assert coll.delete_many({}).deleted_count == 8
    assert coll.estimated_document_count() == 0


def test_deleted_by_index_and_gone_from_it(coll):
    coll.create_index("a")
    coll.insert_many([{"_id": i, "a": i} for i in range(100)])
    assert coll.delete_many({"a": {"$gte": 50}}).deleted_count == 50
    assert coll.count_documents({"a": {"$gte": 40}}, hint="a_1") == 10
    coll.insert_one({"_id": 60, "a": 60})
    assert ids(coll.find({"a": {"$gte": 49}}).hint("a_1")) == [49, 60]


def test_hint_and_let(coll):
    coll.create_index("a")
    coll.insert_many([{"_id": i, "a": i} for i in range(5)])
    assert coll.delete_one({"a": 2}, hint="a_1").deleted_count == 1
    assert coll.delete_many({"$expr": {"$gt": ["$a", "$$x"]}}, let={"x": 2}).deleted_count == 2
    with refuses(2):
        coll.delete_one({"a": 0}, hint="nosuch")


@pytest.mark.parametrize(
    "arguments, code, name",
    [
        ({}, 40414, "IDLFailedToParse"),
        ({"deletes": []}, 16, "InvalidLength"),
        ({"deletes": [{"q": {}}]}, 40414, "IDLFailedToParse"),
        ({"deletes": [{"limit": 1}]}, 40414, "IDLFailedToParse"),
        ({"deletes": [{"q": {}, "limit": 2}]}, 9, "FailedToParse"),
        ({"deletes": [{"q": 1, "limit": 1}]}, 14, "TypeMismatch"),
        ({"deletes": [{"q": {}, "limit": 1, "nonsense": 1}]}, 40415, "IDLUnknownField"),
    ],
)
def test_bad_arguments(wire, arguments, code, name):
    expect_error(wire.command({"delete": "things", **arguments, "$db": "test_bad"}), code, name)
    wire.ping()


def test_bulk_write(coll):
    result = coll.bulk_write(
        [
            InsertOne({"_id": 1, "a": 1}),
            InsertOne({"_id": 2, "a": 1}),
            UpdateOne({"_id": 1}, {"$set": {"b": 1}}),
            UpdateMany({"a": 1}, {"$inc": {"a": 1}}),
            ReplaceOne({"_id": 2}, {"c": 1}),
            UpdateOne({"_id": 9}, {"$set": {"up": True}}, upsert=True),
            DeleteOne({"_id": 1}),
            DeleteMany({"none": 1}),
        ]
    )
    assert result.bulk_api_result | {"writeErrors": []} == {
        "nInserted": 2,
        "nMatched": 4,
        "nModified": 4,
        "nRemoved": 1,
        "nUpserted": 1,
        "upserted": [{"index": 5, "_id": 9}],
        "writeErrors": [],
        "writeConcernErrors": [],
    }
    same(coll.find().sort("_id"), [{"_id": 2, "c": 1}, {"_id": 9, "up": True}])


def test_bulk_write_ordered_stops(coll):
    with pytest.raises(BulkWriteError) as caught:
        coll.bulk_write([InsertOne({"_id": 1}), InsertOne({"_id": 1}), InsertOne({"_id": 2})])
    assert [e["index"] for e in caught.value.details["writeErrors"]] == [1]
    assert coll.distinct("_id") == [1]


def test_bulk_write_unordered_goes_on(coll):
    with pytest.raises(BulkWriteError) as caught:
        coll.bulk_write([InsertOne({"_id": 1}), InsertOne({"_id": 1}), DeleteOne({"_id": 5}), InsertOne({"_id": 2})], ordered=False)
    assert len(caught.value.details["writeErrors"]) == 1
    assert coll.distinct("_id") == [1, 2]


def test_client_bulk_write(client, db):
    result = client.bulk_write(
        [InsertOne({"_id": 1}, namespace=f"{db.name}.x"), InsertOne({"_id": 1}, namespace=f"{db.name}.y")]
    )
    assert result.inserted_count == 2
