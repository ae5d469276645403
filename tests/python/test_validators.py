"""Validators: what they refuse and what they let through, on every way into a collection."""

import pymongo
import pytest
from pymongo.errors import BulkWriteError, OperationFailure, WriteError

SCHEMA = {
    "$jsonSchema": {
        "required": ["name"],
        "properties": {"age": {"bsonType": "int", "minimum": 0, "description": "in years"}},
    }
}


def refused(call, *args, **kwargs):
    """The `errInfo` of a refusal."""
    with pytest.raises(OperationFailure) as e:
        call(*args, **kwargs)
    assert e.value.code == 121, e.value
    details = e.value.details
    return details["errInfo"] if "errInfo" in details else details["writeErrors"][0]["errInfo"]


def test_every_way_in(db):
    c = db.create_collection("c", validator={"a": {"$gt": 0}})
    c.insert_one({"_id": 1, "a": 1})
    refused(c.insert_one, {"_id": 2, "a": 0})
    refused(c.update_one, {"_id": 1}, {"$set": {"a": -1}})
    refused(c.update_many, {}, {"$inc": {"a": -5}})
    refused(c.replace_one, {"_id": 1}, {"b": 1})
    refused(c.update_one, {"_id": 1}, [{"$set": {"a": {"$subtract": ["$a", 9]}}}])
    refused(c.update_one, {"_id": 3}, {"$set": {"b": 1}}, upsert=True)
    refused(c.find_one_and_update, {"_id": 1}, {"$set": {"a": 0}})
    refused(c.find_one_and_replace, {"_id": 1}, {})
    db.source.insert_many([{"_id": 5, "a": 5}, {"_id": 6, "a": 0}])
    refused(db.source.aggregate, [{"$merge": "c"}])
    refused(db.source.aggregate, [{"$out": "c"}])
    assert list(c.find({"_id": {"$lt": 5}})) == [{"_id": 1, "a": 1}]
    with pytest.raises(BulkWriteError) as e:
        c.insert_many([{"_id": 10, "a": 1}, {"_id": 11}, {"_id": 12, "a": 2}], ordered=False)
    assert [(w["index"], w["code"]) for w in e.value.details["writeErrors"]] == [(1, 121)]
    assert c.count_documents({"_id": {"$gte": 10}}) == 2


def test_why(db):
    c = db.create_collection("c", validator=SCHEMA)
    assert refused(c.insert_one, {"_id": 7, "age": "old"}) == {
        "failingDocumentId": 7,
        "details": {
            "operatorName": "$jsonSchema",
            "schemaRulesNotSatisfied": [
                {
                    "operatorName": "properties",
                    "propertiesNotSatisfied": [
                        {
                            "propertyName": "age",
                            "description": "in years",
                            "details": [
                                {
                                    "operatorName": "bsonType",
                                    "specifiedAs": {"bsonType": "int"},
                                    "reason": "type did not match",
                                    "consideredValue": "old",
                                    "consideredType": "string",
                                }
                            ],
                        }
                    ],
                },
                {"operatorName": "required", "specifiedAs": {"required": ["name"]}, "missingProperties": ["name"]},
            ],
        },
    }
    db.command("collMod", "c", validator={"$expr": {"$lt": ["$low", "$high"]}})
    with pytest.raises(WriteError) as e:
        c.insert_one({"low": 2, "high": 1})
    assert e.value.details["errInfo"]["details"]["operatorName"] == "$expr"
    c.insert_one({"low": 1, "high": 2})


def test_levels_and_actions(db):
    c = db.create_collection("c")
    c.insert_many([{"_id": 1, "a": "bad"}, {"_id": 2, "a": 1}])
    db.command("collMod", "c", validator={"a": {"$type": "number"}}, validationLevel="moderate")
    c.update_one({"_id": 1}, {"$set": {"b": 1}})
    refused(c.update_one, {"_id": 2}, {"$set": {"a": "x"}})
    refused(c.insert_one, {"a": "x"})
    db.command("collMod", "c", validationLevel="strict")
    refused(c.update_one, {"_id": 1}, {"$set": {"b": 2}})
    # Nothing changes, nothing is tested.
    assert c.update_one({"_id": 1}, {"$set": {"b": 1}}).matched_count == 1
    db.command("collMod", "c", validationAction="warn")
    c.insert_one({"_id": 3, "a": "x"})
    db.command("collMod", "c", validationAction="errorAndLog")
    refused(c.insert_one, {"a": "x"})
    db.command("collMod", "c", validationLevel="off")
    c.insert_one({"_id": 4, "a": "x"})
    options = next(db.list_collections(filter={"name": "c"}))["options"]
    assert options == {
        "validator": {"a": {"$type": "number"}},
        "validationLevel": "off",
        "validationAction": "errorAndLog",
    }
    db.command("collMod", "c", validationLevel="strict", validationAction="error", validator={})
    c.insert_one({"_id": 5, "a": "x"})


def test_a_warning_is_logged(new_server):
    server = new_server()
    with server.client() as client:
        c = client.d.create_collection("c", validator={"a": 1}, validationAction="warn")
        c.insert_one({"_id": "odd one"})
    assert "would fail validation" in server.tail(100) and "odd one" in server.tail(100)


def test_bypass(db):
    c = db.create_collection("c", validator={"a": 1})
    c.insert_one({"_id": 1}, bypass_document_validation=True)
    c.update_one({"_id": 1}, {"$set": {"b": 1}}, bypass_document_validation=True)
    c.insert_many([{"_id": 2}, {"_id": 3}], bypass_document_validation=True)
    c.find_one_and_update({"_id": 1}, {"$set": {"b": 2}}, bypassDocumentValidation=True)
    many = {"ops": [{"insert": 0, "document": {"_id": 7}}], "nsInfo": [{"ns": c.full_name}]}
    assert db.client.admin.command("bulkWrite", 1, **many)["cursor"]["firstBatch"][0]["code"] == 121
    assert db.client.admin.command("bulkWrite", 1, **many, bypassDocumentValidation=True)["nInserted"] == 1
    db.s.insert_one({"_id": 9})
    db.s.aggregate([{"$merge": "c"}], bypassDocumentValidation=True)
    assert c.count_documents({}) == 5
    refused(c.insert_one, {"_id": 5})


def test_what_is_no_validator(db):
    for validator, code in [
        ({"$where": "true"}, 2),
        ({"$text": {"$search": "x"}}, 2),
        ({"a": {"$near": [0, 0]}}, 5626500),
        ({"$nope": 1}, 2),
        ({"$expr": {"$nope": 1}}, 168),
        ({"$jsonSchema": {"nope": 1}}, 9),
        ("x", 14),
    ]:
        with pytest.raises(OperationFailure) as e:
            db.command("create", "c", validator=validator)
        assert e.value.code == code, validator
    with pytest.raises(OperationFailure) as e:
        db.client.admin.command("create", "checked", validator={"a": 1})
    assert e.value.code == 72
    assert db.list_collection_names() == []


def test_they_survive_a_restart_and_go_with_a_rename(new_server):
    server = new_server()
    with server.client() as client:
        client.d.create_collection("c", validator=SCHEMA)
    server.kill()
    server.start()
    with server.client() as client:
        refused(client.d.c.insert_one, {"age": 1})
        client.admin.command("renameCollection", "d.c", to="e.c")
        refused(client.e.c.insert_one, {"age": 1})
        client.e.c.insert_one({"name": "x", "age": 1}, bypass_document_validation=False)
        assert client.e.c.find_one(sort=[("_id", pymongo.ASCENDING)])["name"] == "x"
