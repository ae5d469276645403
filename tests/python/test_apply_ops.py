"""applyOps: entries of an oplog, as tools that replay one send them."""

import pytest
from pymongo.errors import OperationFailure

from harness import refuses


@pytest.fixture
def apply(coll):
    coll.insert_one({"_id": 0})

    def run(*entries, **more):
        return coll.database.client.admin.command("applyOps", list(entries), **more)

    return run


def entry(coll, op, o, **more):
    return {"op": op, "ns": coll.full_name, "o": o, **more}


def everything(coll):
    return list(coll.find().sort("_id"))


def test_documents(apply, coll):
    reply = apply(
        entry(coll, "i", {"_id": 1, "x": 1}),
        entry(coll, "i", {"_id": 2, "a": [1, 2, 3], "s": {"t": 1}, "old": 1}),
        entry(coll, "n", {"msg": "nothing"}),
        entry(coll, "u", {"_id": 1, "y": 2}, o2={"_id": 1}),
        entry(coll, "u", {"$v": 2, "diff": {"d": {"old": False}, "ss": {"u": {"t": 2}}, "sa": {"a": True, "l": 2}}}, o2={"_id": 2}),
        entry(coll, "d", {"_id": 0}),
        entry(coll, "d", {"_id": "never there"}),
    )
    assert reply["applied"] == 6 and reply["results"] == [True] * 6
    assert everything(coll) == [{"_id": 1, "y": 2}, {"_id": 2, "a": [1, 2], "s": {"t": 2}}]


def test_entries_may_be_applied_again(apply, coll):
    entries = [
        entry(coll, "i", {"_id": 1, "x": 1}),
        entry(coll, "u", {"$v": 2, "diff": {"u": {"x": 5}}}, o2={"_id": 1}),
        entry(coll, "d", {"_id": 0}),
    ]
    for _ in range(3):
        apply(*entries)
        assert everything(coll) == [{"_id": 1, "x": 5}]


def test_collections(apply, coll):
    db = coll.database
    command = {"op": "c", "ns": f"{db.name}.$cmd"}
    apply({**command, "o": {"create": "made", "capped": True, "size": 4096}})
    assert db["made"].options()["capped"] is True
    apply({**command, "o": {"drop": "made"}}, entry(coll, "i", {"_id": 9}))
    assert db.list_collection_names() == [coll.name]
    with refuses(62):
        apply({**command, "o": {"find": coll.name}})


def test_what_came_before_a_failure_stays(apply, coll):
    with pytest.raises(OperationFailure) as failure:
        apply(
            entry(coll, "i", {"_id": 1}),
            entry(coll, "u", {"_id": 7, "x": 1}, o2={"_id": 7}),
            entry(coll, "i", {"_id": 2}),
        )
    assert failure.value.code == 8
    assert failure.value.details["applied"] == 2 and failure.value.details["results"] == [True, False]
    assert everything(coll) == [{"_id": 0}, {"_id": 1}]


def test_what_is_refused(apply, coll):
    admin = coll.database.client.admin
    for value in [None, 1, {}, "x"]:
        with refuses(14):
            admin.command({"applyOps": value})
    for options, code in [
        ({"prepare": False}, 2),
        ({"partialTxn": False}, 31056),
        ({"count": True}, 14),
        ({"alwaysUpsert": True}, 6711601),
        ({"alwaysUpsert": 1}, 14),
        ({"preCondition": []}, 6711600),
    ]:
        with refuses(code):
            apply(**options)
    apply(alwaysUpsert=False, allowAtomic="anything", unknown=1)
    good = {"op": "i", "ns": coll.full_name, "o": {"_id": 5}}
    for bad, code in [
        (1, 14),
        ({}, 4),
        ({**good, "op": ""}, 20),
        ({**good, "op": "x"}, 2),
        ({**good, "ns": 1}, 20),
        ({**good, "o": {}}, 4),
        ({**good, "ns": f"{coll.full_name}_none"}, 26),
        ({**good, "op": "u", "o2": {}}, 4),
        ({"op": "i", "ns": coll.full_name}, 40414),
    ]:
        with refuses(code):
            apply(bad)
    assert everything(coll) == [{"_id": 0}]
    # A batch with one bad entry does nothing at all.
    with refuses(2):
        apply(good, {**good, "op": "x"})
    assert everything(coll) == [{"_id": 0}]
