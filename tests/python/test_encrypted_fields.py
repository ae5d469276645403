"""Collections whose clients encrypt fields: the option is checked and kept, and nothing is stored in clear by mistake."""

import uuid

import pytest
from bson import Binary

from harness import refuses


def field(path="ssn", **more):
    return {"path": path, "keyId": Binary(uuid.uuid4().bytes, 4), **more}


def test_the_option_is_kept(db):
    fields = {"fields": [field(bsonType="string", queries={"queryType": "equality"}), field("a.b")]}
    db.create_collection("people", encryptedFields=fields)
    db.create_collection("people", check_exists=False, encryptedFields=fields)
    assert db["people"].options()["encryptedFields"] == fields
    with refuses(48):
        db.create_collection("people", check_exists=False, encryptedFields={"fields": [field()]})


def test_fields_in_clear_are_refused(db):
    db.create_collection("people", encryptedFields={"fields": [field()]}, validator={"age": {"$type": "int"}}, validationAction="warn")
    people = db["people"]
    people.insert_one({"_id": 1, "age": 1, "ssn": Binary(b"secret", 6)})
    people.insert_one({"_id": 2, "age": 1})
    for run in [
        lambda: people.insert_one({"age": 1, "ssn": "123"}),
        lambda: people.update_one({"_id": 1}, {"$set": {"ssn": 123}}),
    ]:
        with pytest.raises(Exception) as failure:
            run()
        assert failure.value.code == 121
    assert people.count_documents({}) == 2


def test_the_servers_part_of_encryption_is_refused(db):
    db.create_collection("people", encryptedFields={"fields": [field()]})
    information = {"type": 1, "schema": {}}
    for command in [
        {"insert": "people", "documents": [{}]},
        {"update": "people", "updates": [{"q": {}, "u": {"a": 1}}]},
        {"find": "people"},
        {"count": "people"},
        {"aggregate": "people", "pipeline": [], "cursor": {}},
    ]:
        with refuses(115):
            db.command({**command, "encryptionInformation": information})
    assert db["people"].count_documents({}) == 0


@pytest.mark.parametrize("command,name", [("compactStructuredEncryptionData", "compactionTokens"), ("cleanupStructuredEncryptionData", "cleanupTokens")])
def test_compact_and_cleanup(db, command, name):
    db.create_collection("people", encryptedFields={"fields": [field()]})
    db.create_collection("plain")
    db.create_collection("view", viewOn="plain")
    stats = db.command(command, "people", **{name: {"ssn": Binary(b"t")}})["stats"]
    assert stats["ecoc"] == {"read": 0, "deleted": 0}
    assert stats["esc"] == {"read": 0, "inserted": 0, "updated": 0, "deleted": 0}
    for coll, tokens, code in [("people", {}, 7294900), ("plain", {}, 6346807), ("none", {}, 26), ("view", {}, 166), ("people", 1, 14)]:
        with refuses(code):
            db.command(command, coll, **{name: tokens})
    with refuses(40414):
        db.command(command, "people")


def test_what_is_refused(db):
    def create(code, fields, **more):
        with refuses(code):
            db.create_collection("people", encryptedFields=fields, **more)

    for bad, code in [
        ({"fields": None}, 40414),
        ({"fields": 1}, 14),
        ({"fields": [{"path": "a"}]}, 40414),
        ({"fields": [field("")]}, 6316402),
        ({"fields": [field("_id")]}, 6316403),
        ({"fields": [field("a"), field("a")]}, 6338402),
        ({"fields": [field(bsonType="maxKey")]}, 6338406),
        ({"fields": [field(bsonType="string", queries={"queryType": "range"})]}, 6775201),
        ({"fields": [field()], "nothing": 1}, 40415),
    ]:
        create(code, bad)
    create(6367301, {"fields": [field()]}, capped=True, size=4096)
    create(6346401, {"fields": [field()]}, viewOn="x", pipeline=[])
    assert "people" not in db.list_collection_names()
