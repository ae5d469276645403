"""insert: ids, batches, errors, changes on the way in."""

import bson
import bson.raw_bson
import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo import WriteConcern
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure

from exact import same
from harness import expect_error, refuses, until


def test_one_and_many(coll):
    assert coll.insert_one({"_id": 1, "a": "x"}).inserted_id == 1
    generated = coll.insert_many([{"a": i} for i in range(5)]).inserted_ids
    assert all(isinstance(i, ObjectId) for i in generated)
    assert coll.count_documents({}) == 6
    assert coll.find_one({"_id": 1}) == {"_id": 1, "a": "x"}


def test_every_type_comes_back_as_it_went_in(coll):
    document = {
        "_id": ObjectId(),
        "double": 1.5,
        "nan": float("inf"),
        "string": "grüße \0 \U0001f333",
        "object": {"a": {"b": {}}},
        "array": [1, [2, []], {"x": None}],
        "binary": Binary(b"\0\1\2", 128),
        "uuid": Binary(bytes(range(16)), 4),
        "bool": True,
        "date": bson.DatetimeMS(-62135596800001),
        "null": None,
        "regex": Regex("^a.*b$", "imsx"),
        "code": bson.Code("f()"),
        "scoped": bson.Code("f()", {"x": 1}),
        "int": -(2**31),
        "timestamp": Timestamp(7, 9),
        "long": Int64(5),
        "decimal": Decimal128("1.10"),
        "min": MinKey(),
        "max": MaxKey(),
        "": "empty name",
    }
    coll.insert_one(document)
    raw = coll.with_options(bson.codec_options.CodecOptions(document_class=bson.raw_bson.RawBSONDocument))
    assert raw.find_one({}).raw == bson.encode(document)


def test_id_is_generated_and_moved_to_the_front(coll, wire):
    reply = wire.command({"insert": coll.name, "$db": coll.database.name, "documents": [{"a": 1}, {"a": 2, "_id": 7}]})
    assert reply["n"] == 2
    first, second = coll.find().sort("a")
    assert list(first) == ["_id", "a"] and isinstance(first["_id"], ObjectId)
    same([second], [{"_id": 7, "a": 2}])


def test_zero_timestamps_are_set(coll):
    coll.insert_one({"_id": Timestamp(0, 0), "t": Timestamp(0, 0), "inner": {"t": Timestamp(0, 0)}})
    found = coll.find_one()
    assert found["_id"] == Timestamp(0, 0) and found["inner"]["t"] == Timestamp(0, 0)
    assert found["t"] > Timestamp(1_600_000_000, 0)


def test_zero_timestamps_rise(coll):
    zero = Timestamp(0, 0)
    coll.insert_many([{"_id": i, "a": zero, "b": zero} for i in range(200)])
    coll.insert_one({"_id": 200, "a": zero, "b": zero})
    found = [t for d in coll.find().sort("_id", 1) for t in (d["a"], d["b"])]
    assert len(found) == 402 and all(a < b for a, b in zip(found, found[1:]))


def test_duplicate_id(coll):
    coll.insert_one({"_id": 1})
    with pytest.raises(DuplicateKeyError) as caught:
        coll.insert_one({"_id": 1})
    details = caught.value.details
    assert details["code"] == 11000 and details["index"] == 0
    assert details["keyPattern"] == {"_id": 1} and details["keyValue"] == {"_id": 1}
    assert details["errmsg"] == f"E11000 duplicate key error collection: {coll.full_name} index: _id_ dup key: {{ _id: 1 }}"


@pytest.mark.parametrize("same_number", [1, 1.0, Int64(1), Decimal128("1"), Decimal128("1.00")])
def test_equal_numbers_are_one_id(coll, same_number):
    coll.insert_one({"_id": 1})
    with refuses(11000):
        coll.insert_one({"_id": same_number})


def test_ordered_stops_at_the_first_error(coll):
    with pytest.raises(BulkWriteError) as caught:
        coll.insert_many([{"_id": i} for i in (1, 2, 2, 3, 3, 4)])
    assert caught.value.details["nInserted"] == 2
    assert [e["index"] for e in caught.value.details["writeErrors"]] == [2]
    assert coll.distinct("_id") == [1, 2]


def test_unordered_goes_on(coll):
    with pytest.raises(BulkWriteError) as caught:
        coll.insert_many([{"_id": i} for i in (1, 2, 2, 3, 3, 4)], ordered=False)
    assert caught.value.details["nInserted"] == 4
    assert [(e["index"], e["code"]) for e in caught.value.details["writeErrors"]] == [(2, 11000), (4, 11000)]
    assert coll.distinct("_id") == [1, 2, 3, 4]


def test_a_large_batch(coll):
    assert len(coll.insert_many([{"_id": i, "n": i % 10} for i in range(25_000)]).inserted_ids) == 25_000
    assert coll.count_documents({}) == 25_000
    assert coll.estimated_document_count() == 25_000
    assert coll.count_documents({"n": 3}) == 2_500


@pytest.mark.parametrize("bad_id", [[1], Regex("x"), []])
def test_types_that_cannot_be_an_id(coll, bad_id):
    with refuses(53):
        coll.insert_one({"_id": bad_id})
    assert coll.count_documents({}) == 0


def test_dollars_and_dots_in_names(coll):
    coll.insert_one({"_id": 1, "$a": 1, "b.c": 2, "d": {"$e": 3}})
    same(coll.find(), [{"_id": 1, "$a": 1, "b.c": 2, "d": {"$e": 3}}])
    with refuses(52):
        coll.insert_one({"_id": {"$x": 1}})


def test_unacknowledged(coll):
    lax = coll.with_options(write_concern=WriteConcern(w=0))
    assert lax.insert_one({"_id": 1}).acknowledged is False
    lax.insert_many([{"_id": 1}, {"_id": 2}], ordered=False)
    # Whatever connection these went out on: a moment later they are there.
    until("both are there", lambda: coll.count_documents({}) >= 2, timeout_s=10)
    assert coll.distinct("_id") == [1, 2]


@pytest.mark.parametrize(
    "concern", [{"w": 1}, {"w": "majority"}, {"w": 1, "j": True}, {"w": "majority", "j": True, "wtimeout": 1000}, {"j": False}]
)
def test_acknowledged(coll, concern):
    reply = coll.database.command("insert", coll.name, documents=[{"_id": 1}], writeConcern=concern)
    assert reply["n"] == 1 and "writeConcernError" not in reply and reply["ok"] == 1


@pytest.mark.parametrize(
    "concern, code",
    [({"w": -1}, 9), ({"w": 51}, 9), ({"w": 1, "nonsense": 1}, 9), ({"w": 1, "j": "yes"}, 14)],
)
def test_bad_write_concerns(coll, concern, code):
    with pytest.raises(OperationFailure) as caught:
        coll.database.command("insert", coll.name, documents=[{"_id": 1}], writeConcern=concern)
    assert caught.value.code in (code, 9, 40415), caught.value
    assert coll.count_documents({}) == 0


def test_write_concern_that_one_node_cannot_satisfy(coll):
    reply = coll.database.command("insert", coll.name, documents=[{"_id": 1}], writeConcern={"w": 3, "wtimeout": 100}, check=False)
    assert reply["n"] == 1
    assert reply["writeConcernError"]["code"] == 100 and reply["writeConcernError"]["codeName"] == "UnsatisfiableWriteConcern"
    reply = coll.database.command("insert", coll.name, documents=[{"_id": 2}], writeConcern={"w": "nosuchtag"}, check=False)
    assert reply["writeConcernError"]["code"] == 79
    assert coll.count_documents({}) == 2


def test_a_failed_command_also_tells_of_its_write_concern(wire, db):
    db.create_collection("there")
    concern = {"w": 3, "wtimeout": 100}
    reply = wire.command({"create": "there", "capped": True, "size": 4096, "writeConcern": concern, "$db": db.name})
    expect_error(reply, 48, "NamespaceExists")
    assert reply["writeConcernError"]["code"] == 100
    reply = wire.command({"dropIndexes": "nowhere", "index": "a", "writeConcern": concern, "$db": db.name})
    expect_error(reply, 26, "NamespaceNotFound")
    assert reply["writeConcernError"]["code"] == 100
    assert "writeConcernError" not in wire.command({"dropIndexes": "nowhere", "index": "a", "$db": db.name})


@pytest.mark.parametrize(
    "arguments, code, name",
    [
        ({"documents": []}, 16, "InvalidLength"),
        ({}, 40414, "IDLFailedToParse"),
        ({"documents": 1}, 14, "TypeMismatch"),
        ({"documents": [1]}, 14, "TypeMismatch"),
        ({"documents": [{}], "nonsense": 1}, 40415, "IDLUnknownField"),
        ({"documents": [{}], "ordered": "no"}, 14, "TypeMismatch"),
    ],
)
def test_bad_arguments(wire, arguments, code, name):
    expect_error(wire.command({"insert": "things", **arguments, "$db": "test_bad"}), code, name)
    wire.ping()


@pytest.mark.parametrize("name", ["", "a$b", ".a", "a\0b"])
def test_bad_collection_names(wire, name):
    reply = wire.command({"insert": name, "documents": [{}], "$db": "test_bad"})
    expect_error(reply, 73, "InvalidNamespace")


@pytest.mark.parametrize("name", ["a b", "a/b", 'a"b', "a.b", "x" * 64])
def test_bad_database_names(wire, name):
    expect_error(wire.command({"insert": "things", "documents": [{}], "$db": name}), 73, "InvalidNamespace")


def test_null_in_a_name(coll):
    with refuses(73):
        coll.database.command("create", "a\0b")


def test_drop_and_insert_again(coll):
    for _ in range(3):
        coll.insert_many([{"_id": i} for i in range(10)])
        coll.drop()
        assert coll.count_documents({}) == 0 and coll.find_one() is None


def test_same_name_in_two_databases(client, db):
    db.things.insert_one({"_id": 1})
    client[db.name + "x"].things.insert_one({"_id": 1, "other": True})
    assert db.things.find_one() == {"_id": 1}
    client.drop_database(db.name + "x")
    assert db.things.find_one() == {"_id": 1}


def test_system_collections_that_there_are_none_of(db):
    for write in (lambda c: c.insert_one({}), lambda c: c.update_one({}, {"$set": {"a": 1}}, upsert=True)):
        with refuses(73, containing="Invalid system namespace"):
            write(db["system.nothing"])
    assert db.list_collection_names() == []
    db["system.js"].insert_one({"_id": "f", "value": 1})


def test_a_dbref_as_id(coll):
    """`$ref` (a string), `$id`, then maybe `$db` (a string) may stand in an _id; nothing else with a `$`."""
    good = [{"$ref": "c", "$id": 1}, {"$ref": "c", "$id": 1, "$db": "d"}, {"$ref": "c", "$id": 1, "x": 1}]
    for key in good:
        coll.insert_one({"_id": key})
        assert coll.find_one({"_id": {"$eq": key}}) is not None
    bad = [{"$ref": 1, "$id": 1}, {"$ref": "c"}, {"$id": 1, "$ref": "c"}, {"$ref": "c", "$id": 1, "$db": 1}, {"a": 1, "$ref": "c", "$id": 1}]
    for key in bad:
        with refuses(52, containing="is not valid for storage"):
            coll.insert_one({"_id": key})
