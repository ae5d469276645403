"""A long value beside an array: each element has it in its key, which would fill any memory, so it is refused."""

import pytest
from pymongo import ASCENDING
from pymongo.errors import OperationFailure, WriteError

CANNOT_BUILD_INDEX_KEYS, EXCEEDED_MEMORY_LIMIT = 201, 146
# 2 GB of keys.
LONG = {"_id": "long", "a": list(range(2000)), "b": "x" * (1 << 20)}
BOTH = [("a", ASCENDING), ("b", ASCENDING)]


def test_an_insertion_and_an_update_are_refused(db):
    db.things.create_index(BOTH)
    with pytest.raises(WriteError) as refused:
        db.things.insert_one(LONG)
    assert refused.value.code == CANNOT_BUILD_INDEX_KEYS
    db.things.insert_one(LONG | {"a": 1})
    with pytest.raises(WriteError) as refused:
        db.things.update_one({}, {"$set": {"a": LONG["a"]}})
    assert refused.value.code == CANNOT_BUILD_INDEX_KEYS
    assert db.things.find_one({}, {"a": 1}) == {"_id": "long", "a": 1}
    assert db.command("validate", "things", full=True)["valid"]


def test_an_index_is_not_built(db):
    db.things.insert_one(LONG)
    for keys in (BOTH, [("b", ASCENDING), ("a", ASCENDING)]):
        with pytest.raises(OperationFailure) as refused:
            db.things.create_index(keys)
        assert refused.value.code == CANNOT_BUILD_INDEX_KEYS
    assert list(db.things.index_information()) == ["_id_"]
    # Where only the array has to be in the keys, all is well.
    db.things.create_index("a")
    assert db.things.count_documents({"a": 1999}) == 1


def test_a_sort_is_refused(db):
    db.things.insert_many([LONG, {"_id": "short", "a": [2, 1], "b": "y"}])
    with pytest.raises(OperationFailure) as refused:
        list(db.things.find().sort(BOTH))
    assert refused.value.code == EXCEEDED_MEMORY_LIMIT
    assert [d["_id"] for d in db.things.find({}, {"_id": 1}).sort("a", -1)] == ["long", "short"]
