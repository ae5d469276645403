"""update: every operator, positional operators, array filters, pipelines, upserts, and refusals."""

import datetime

import bson
import pymongo
import pytest
from bson import Decimal128, Int64, ObjectId, Timestamp

from exact import same
from harness import expect_error, refuses

# name, document (without _id), update, document after (without _id)
CASES = [
    ("set replaces and adds", {"a": 1, "z": 0}, {"$set": {"a": "x", "b": {"c": 1}}}, {"a": "x", "z": 0, "b": {"c": 1}}),
    ("set adds in order of names", {}, {"$set": {"b": 1, "a": 2, "10": 3, "9": 4}}, {"9": 4, "10": 3, "a": 2, "b": 1}),
    ("set makes the path", {}, {"$set": {"a.b.c": 1, "a.b.d": 2}}, {"a": {"b": {"c": 1, "d": 2}}}),
    ("set keeps places", {"a": 1, "b": {"x": 1, "y": 2}, "c": 3}, {"$set": {"b.x": 9}}, {"a": 1, "b": {"x": 9, "y": 2}, "c": 3}),
    ("set in an array", {"a": [1, 2, 3]}, {"$set": {"a.1": 9}}, {"a": [1, 9, 3]}),
    ("set past an array's end", {"a": [1]}, {"$set": {"a.3": 9}}, {"a": [1, None, None, 9]}),
    ("set a number name in an object", {"a": {}}, {"$set": {"a.0": 1}}, {"a": {"0": 1}}),
    ("set in objects in an array", {"a": [{"b": 1}]}, {"$set": {"a.0.b": 2, "a.0.c": 3}}, {"a": [{"b": 2, "c": 3}]}),
    ("set changes a type", {"a": 1}, {"$set": {"a": Int64(1)}}, {"a": Int64(1)}),
    ("unset", {"a": 1, "b": 2}, {"$unset": {"a": "", "zzz": 1}}, {"b": 2}),
    ("unset inside", {"a": {"b": 1, "c": 2}}, {"$unset": {"a.b": 1}}, {"a": {"c": 2}}),
    ("unset the last inside", {"a": {"b": 1}}, {"$unset": {"a.b": 1}}, {"a": {}}),
    ("unset an element leaves null", {"a": [1, 2, 3]}, {"$unset": {"a.1": 1}}, {"a": [1, None, 3]}),
    ("unset through a scalar does nothing", {"a": 1}, {"$unset": {"a.b": 1}}, {"a": 1}),
    ("inc ints", {"a": 1}, {"$inc": {"a": 2, "b": -3}}, {"a": 3, "b": -3}),
    ("inc int by double", {"a": 1}, {"$inc": {"a": 0.5}}, {"a": 1.5}),
    ("inc grows int to long", {"a": 2**31 - 1}, {"$inc": {"a": 1}}, {"a": Int64(2**31)}),
    ("inc long stays long", {"a": Int64(1)}, {"$inc": {"a": 1}}, {"a": Int64(2)}),
    ("inc decimal", {"a": Decimal128("1.5")}, {"$inc": {"a": 1}}, {"a": Decimal128("2.5")}),
    ("inc makes the path", {}, {"$inc": {"a.b": 1}}, {"a": {"b": 1}}),
    ("inc in an array", {"a": [1, 2]}, {"$inc": {"a.0": 10}}, {"a": [11, 2]}),
    ("mul", {"a": 3, "b": 2}, {"$mul": {"a": 2, "b": 1.5}}, {"a": 6, "b": 3.0}),
    ("mul of nothing is zero of the operand's type", {}, {"$mul": {"a": 5, "b": 2.5, "c": Int64(1)}}, {"a": 0, "b": 0.0, "c": Int64(0)}),
    ("mul grows int to long", {"a": 2**30}, {"$mul": {"a": 4}}, {"a": Int64(2**32)}),
    ("min lower", {"a": 5}, {"$min": {"a": 3}}, {"a": 3}),
    ("min higher", {"a": 5}, {"$min": {"a": 7}}, {"a": 5}),
    ("min of nothing", {}, {"$min": {"a": 7}}, {"a": 7}),
    ("min across types", {"a": "x"}, {"$min": {"a": 7}}, {"a": 7}),
    ("max higher", {"a": 5}, {"$max": {"a": 7.5}}, {"a": 7.5}),
    ("max lower", {"a": 5}, {"$max": {"a": 4}}, {"a": 5}),
    ("max across types", {"a": 5}, {"$max": {"a": "x"}}, {"a": "x"}),
    ("max equal keeps the type", {"a": 5}, {"$max": {"a": 5.0}}, {"a": 5}),
    ("rename", {"a": 1, "b": 2}, {"$rename": {"a": "c"}}, {"b": 2, "c": 1}),
    ("rename over another", {"a": 1, "b": 2}, {"$rename": {"a": "b"}}, {"b": 1}),
    ("rename nothing", {"a": 1}, {"$rename": {"x": "y"}}, {"a": 1}),
    ("rename between depths", {"a": {"b": 1, "c": 2}}, {"$rename": {"a.b": "d.e"}}, {"a": {"c": 2}, "d": {"e": 1}}),
    ("bit and", {"a": 13}, {"$bit": {"a": {"and": 10}}}, {"a": 8}),
    ("bit or", {"a": 3}, {"$bit": {"a": {"or": 5}}}, {"a": 7}),
    ("bit xor", {"a": 1}, {"$bit": {"a": {"xor": 5}}}, {"a": 4}),
    ("bit two at once", {"a": 13}, {"$bit": {"a": {"and": 10, "or": 1}}}, {"a": 9}),
    ("bit long", {"a": Int64(1)}, {"$bit": {"a": {"or": 2}}}, {"a": Int64(3)}),
    ("bit of nothing", {}, {"$bit": {"a": {"or": 2}}}, {"a": 2}),
    ("push", {"a": [1]}, {"$push": {"a": 2, "b": "x"}}, {"a": [1, 2], "b": ["x"]}),
    ("push an array is one element", {"a": [1]}, {"$push": {"a": [2, 3]}}, {"a": [1, [2, 3]]}),
    ("push each", {"a": [1]}, {"$push": {"a": {"$each": [2, 3]}}}, {"a": [1, 2, 3]}),
    ("push each of none makes an array", {}, {"$push": {"a": {"$each": []}}}, {"a": []}),
    ("push at the front", {"a": [1]}, {"$push": {"a": {"$each": [8, 9], "$position": 0}}}, {"a": [8, 9, 1]}),
    ("push before the last", {"a": [1, 2]}, {"$push": {"a": {"$each": [9], "$position": -1}}}, {"a": [1, 9, 2]}),
    ("push far beyond", {"a": [1]}, {"$push": {"a": {"$each": [9], "$position": 50}}}, {"a": [1, 9]}),
    ("push slice of the first", {"a": [1, 2]}, {"$push": {"a": {"$each": [3], "$slice": 2}}}, {"a": [1, 2]}),
    ("push slice of the last", {"a": [1, 2]}, {"$push": {"a": {"$each": [3], "$slice": -2}}}, {"a": [2, 3]}),
    ("push slice of none", {"a": [1, 2]}, {"$push": {"a": {"$each": [3], "$slice": 0}}}, {"a": []}),
    ("push sort", {"a": [3, 1]}, {"$push": {"a": {"$each": [2], "$sort": 1}}}, {"a": [1, 2, 3]}),
    ("push sort down", {"a": [3, 1]}, {"$push": {"a": {"$each": [2], "$sort": -1}}}, {"a": [3, 2, 1]}),
    (
        "push sort by a field, then slice",
        {"a": [{"n": 2, "x": "b"}, {"n": 9, "x": "c"}]},
        {"$push": {"a": {"$each": [{"n": 1, "x": "a"}], "$sort": {"n": -1}, "$slice": 2}}},
        {"a": [{"n": 9, "x": "c"}, {"n": 2, "x": "b"}]},
    ),
    ("push position, sort and slice", {"a": [5, 1]}, {"$push": {"a": {"$each": [4], "$position": 0, "$slice": -2}}}, {"a": [5, 1]}),
    ("push only a sort", {"a": [3, 1, 2]}, {"$push": {"a": {"$each": [], "$sort": 1}}}, {"a": [1, 2, 3]}),
    ("addToSet", {"a": [1]}, {"$addToSet": {"a": 2}}, {"a": [1, 2]}),
    ("addToSet what is there", {"a": [1]}, {"$addToSet": {"a": 1.0}}, {"a": [1]}),
    ("addToSet each", {"a": [1]}, {"$addToSet": {"a": {"$each": [1, 2, 2, 3]}}}, {"a": [1, 2, 3]}),
    ("addToSet nothing there", {}, {"$addToSet": {"a": 1}}, {"a": [1]}),
    ("addToSet minds the order of fields", {"a": [{"x": 1, "y": 2}]}, {"$addToSet": {"a": {"y": 2, "x": 1}}}, {"a": [{"x": 1, "y": 2}, {"y": 2, "x": 1}]}),
    ("pop last", {"a": [1, 2, 3]}, {"$pop": {"a": 1}}, {"a": [1, 2]}),
    ("pop first", {"a": [1, 2, 3]}, {"$pop": {"a": -1}}, {"a": [2, 3]}),
    ("pop empty", {"a": []}, {"$pop": {"a": 1}}, {"a": []}),
    ("pull a value", {"a": [1, 2, 1.0, 3]}, {"$pull": {"a": 1}}, {"a": [2, 3]}),
    ("pull by condition", {"a": [1, 5, 9]}, {"$pull": {"a": {"$gte": 5}}}, {"a": [1]}),
    ("pull in", {"a": ["x", "y", "z"]}, {"$pull": {"a": {"$in": ["x", "z"]}}}, {"a": ["y"]}),
    ("pull objects by fields", {"a": [{"n": 1, "m": 1}, {"n": 2}]}, {"$pull": {"a": {"n": 1}}}, {"a": [{"n": 2}]}),
    ("pull objects by conditions", {"a": [{"n": 1}, {"n": 5}]}, {"$pull": {"a": {"n": {"$gt": 3}}}}, {"a": [{"n": 1}]}),
    ("pull an array", {"a": [[1], [2]]}, {"$pull": {"a": [1]}}, {"a": [[2]]}),
    ("pull nothing there", {"b": 1}, {"$pull": {"a": 1}}, {"b": 1}),
    ("pullAll", {"a": [1, 2, 3, 2]}, {"$pullAll": {"a": [2, 3]}}, {"a": [1]}),
    ("all elements", {"a": [1, 2]}, {"$inc": {"a.$[]": 10}}, {"a": [11, 12]}),
    ("all elements of all", {"a": [{"b": [1, 2]}, {"b": [3]}]}, {"$inc": {"a.$[].b.$[]": 1}}, {"a": [{"b": [2, 3]}, {"b": [4]}]}),
    ("setOnInsert does nothing to what exists", {"a": 1}, {"$setOnInsert": {"b": 1}}, {"a": 1}),
    ("many operators at once", {"a": 1, "b": [1], "c": 5}, {"$inc": {"a": 1}, "$push": {"b": 2}, "$unset": {"c": 1}}, {"a": 2, "b": [1, 2]}),
    ("replace", {"a": 1, "b": 2}, {"c": 3}, {"c": 3}),
    ("replace by nothing", {"a": 1}, {}, {}),
    ("pipeline set", {"a": 1, "b": 2}, [{"$set": {"c": {"$add": ["$a", "$b"]}}}], {"a": 1, "b": 2, "c": 3}),
    ("pipeline of stages", {"a": 1, "b": 2}, [{"$set": {"t": "$a"}}, {"$unset": ["a"]}, {"$addFields": {"u": "$t"}}], {"b": 2, "t": 1, "u": 1}),
    ("pipeline project", {"a": 1, "b": 2}, [{"$project": {"a": 1}}], {"a": 1}),
    ("pipeline replaceWith", {"a": {"x": 1}, "b": 2}, [{"$replaceWith": {"$mergeObjects": [{"_id": "$_id"}, "$a"]}}], {"x": 1}),
    ("pipeline conditions", {"n": 7}, [{"$set": {"size": {"$cond": [{"$gt": ["$n", 5]}, "big", "small"]}}}], {"n": 7, "size": "big"}),
    ("pipeline sets inside", {"a": {"b": 1}}, [{"$set": {"a.c": "$a.b"}}], {"a": {"b": 1, "c": 1}}),
]


@pytest.mark.parametrize("before, update, after", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_update(coll, before, update, after):
    coll.insert_one({"_id": 1, **before})
    reply = coll.database.command("update", coll.name, updates=[{"q": {"_id": 1}, "u": update}])
    same(coll.find(), [{"_id": 1, **after}])
    changed = bson.encode(before) != bson.encode(after)
    assert (reply["n"], reply["nModified"]) == (1, int(changed))


# name, document, filter, update, array filters, after
POSITIONAL = [
    ("the element", {"a": [80, 85, 90]}, {"a": 85}, {"$set": {"a.$": 0}}, None, {"a": [80, 0, 90]}),
    ("the first element", {"a": [85, 85]}, {"a": 85}, {"$set": {"a.$": 0}}, None, {"a": [0, 85]}),
    ("by range", {"a": [1, 5, 9]}, {"a": {"$gt": 4}}, {"$inc": {"a.$": 100}}, None, {"a": [1, 105, 9]}),
    ("in an object", {"a": [{"n": 1, "v": 1}, {"n": 2, "v": 1}]}, {"a.n": 2}, {"$set": {"a.$.v": 9}}, None, {"a": [{"n": 1, "v": 1}, {"n": 2, "v": 9}]}),
    ("by elemMatch", {"a": [{"n": 1, "v": 1}, {"n": 1, "v": 2}]}, {"a": {"$elemMatch": {"n": 1, "v": 2}}}, {"$set": {"a.$.v": 9}}, None, {"a": [{"n": 1, "v": 1}, {"n": 1, "v": 9}]}),
    ("unset the element", {"a": [1, 2]}, {"a": 2}, {"$unset": {"a.$": 1}}, None, {"a": [1, None]}),
    ("push into the element", {"a": [{"n": 1, "l": []}]}, {"a.n": 1}, {"$push": {"a.$.l": 5}}, None, {"a": [{"n": 1, "l": [5]}]}),
    ("filtered", {"a": [1, 5, 9]}, {}, {"$set": {"a.$[x]": 0}}, [{"x": {"$gte": 5}}], {"a": [1, 0, 0]}),
    ("filtered objects", {"a": [{"n": 1}, {"n": 2}]}, {}, {"$set": {"a.$[x].v": 1}}, [{"x.n": 2}], {"a": [{"n": 1}, {"n": 2, "v": 1}]}),
    ("filters nested", {"a": [{"t": "q", "s": [1, 9]}, {"t": "r", "s": [9]}]}, {}, {"$set": {"a.$[x].s.$[y]": 0}}, [{"x.t": "q"}, {"y": {"$gt": 5}}], {"a": [{"t": "q", "s": [1, 0]}, {"t": "r", "s": [9]}]}),
    ("filter that matches none", {"a": [1]}, {}, {"$set": {"a.$[x]": 0}}, [{"x": 7}], {"a": [1]}),
    ("filter with or", {"a": [1, 2, 3]}, {}, {"$inc": {"a.$[x]": 10}}, [{"$or": [{"x": 1}, {"x": 3}]}], {"a": [11, 2, 13]}),
]


@pytest.mark.parametrize("before, query, update, filters, after", [c[1:] for c in POSITIONAL], ids=[c[0] for c in POSITIONAL])
def test_positional(coll, before, query, update, filters, after):
    coll.insert_one({"_id": 1, **before})
    assert coll.update_one(query, update, array_filters=filters).matched_count == 1
    same(coll.find(), [{"_id": 1, **after}])


# name, document, update, code
ERRORS = [
    ("unknown operator", {}, {"$foo": {"a": 1}}, 9),
    ("an operator of no object", {}, {"$set": 5}, 9),
    ("a plain name among operators", {}, {"$set": {"a": 1}, "b": 1}, 9),
    ("an operator in a replacement", {}, {"a": 1, "$set": {"b": 1}}, 52),
    ("the same path twice", {}, {"$set": {"a": 1}, "$inc": {"a": 1}}, 40),
    ("a path and its parent", {}, {"$set": {"a.b": 1, "a": 1}}, 40),
    ("rename and its target", {"a": 1}, {"$rename": {"a": "b"}, "$set": {"b": 1}}, 40),
    ("_id changed", {}, {"$set": {"_id": 2}}, 66),
    ("_id removed", {}, {"$unset": {"_id": 1}}, 66),
    ("_id incremented", {}, {"$inc": {"_id": 1}}, 66),
    ("_id replaced", {}, {"_id": 2, "a": 1}, 66),
    ("_id changed by a pipeline", {}, [{"$set": {"_id": 2}}], 66),
    ("an empty name", {}, {"$set": {"": 1}}, 56),
    ("an empty part of a name", {}, {"$set": {"a..b": 1}}, 56),
    ("a trailing dot", {}, {"$set": {"a.": 1}}, 56),
    ("a dollar name", {}, {"$set": {"$a": 1}}, 52),
    ("through a scalar", {"a": 1}, {"$set": {"a.b": 1}}, 28),
    ("into an array by name", {"a": [1]}, {"$set": {"a.b": 1}}, 28),
    ("inc by a string", {"a": 1}, {"$inc": {"a": "1"}}, 14),
    ("inc of a string", {"a": "1"}, {"$inc": {"a": 1}}, 14),
    ("inc of null", {"a": None}, {"$inc": {"a": 1}}, 14),
    ("inc past a long", {"a": Int64(2**63 - 1)}, {"$inc": {"a": 1}}, 2),
    ("mul of a string", {"a": "1"}, {"$mul": {"a": 1}}, 14),
    ("push to a scalar", {"a": 1}, {"$push": {"a": 1}}, 2),
    ("push each of no array", {}, {"$push": {"a": {"$each": 1}}}, 2),
    ("push with an unknown clause", {}, {"$push": {"a": {"$each": [1], "$nope": 1}}}, 2),
    ("push position of a string", {}, {"$push": {"a": {"$each": [1], "$position": "x"}}}, 2),
    ("push slice of a string", {}, {"$push": {"a": {"$each": [1], "$slice": "x"}}}, 2),
    ("push sort of zero", {}, {"$push": {"a": {"$each": [1], "$sort": 0}}}, 2),
    ("addToSet to a scalar", {"a": 1}, {"$addToSet": {"a": 1}}, 2),
    ("addToSet each of no array", {}, {"$addToSet": {"a": {"$each": 1}}}, 14),
    ("pop of a scalar", {"a": 1}, {"$pop": {"a": 1}}, 14),
    ("pop by two", {"a": [1]}, {"$pop": {"a": 2}}, 9),
    ("pull from a scalar", {"a": 1}, {"$pull": {"a": 1}}, 2),
    ("pullAll of no array", {"a": [1]}, {"$pullAll": {"a": 1}}, 2),
    ("pullAll from a scalar", {"a": 1}, {"$pullAll": {"a": [1]}}, 2),
    ("rename to itself", {"a": 1}, {"$rename": {"a": "a"}}, 2),
    ("rename to a number", {"a": 1}, {"$rename": {"a": 5}}, 2),
    ("rename from an array", {"a": [{"b": 1}]}, {"$rename": {"a.0.b": "c"}}, 2),
    ("bit of a double", {"a": 1.5}, {"$bit": {"a": {"or": 1}}}, 2),
    ("bit unknown", {"a": 1}, {"$bit": {"a": {"nand": 1}}}, 2),
    ("currentDate of a wrong type", {}, {"$currentDate": {"a": {"$type": "year"}}}, 2),
    ("positional without a match", {"a": [1]}, {"$set": {"a.$": 1}}, 2),
    ("all elements of what is not there", {}, {"$set": {"a.$[]": 1}}, 2),
    ("all elements of a scalar", {"a": 1}, {"$set": {"a.$[]": 1}}, 2),
    ("an identifier without a filter", {"a": [1]}, {"$set": {"a.$[x]": 1}}, 2),
    ("a stage that updates do not have", {}, [{"$group": {"_id": 1}}], 72),
    ("an unknown stage", {}, [{"$nope": 1}], 40324),
    ("an unknown expression", {}, [{"$set": {"a": {"$nope": 1}}}], 168),
]


@pytest.mark.parametrize("before, update, code", [c[1:] for c in ERRORS], ids=[c[0] for c in ERRORS])
def test_update_errors(coll, wire, before, update, code):
    coll.insert_one({"_id": 1, **before})
    reply = wire.command({"update": coll.name, "$db": coll.database.name, "updates": [{"q": {"_id": 1}, "u": update}]})
    error = reply["writeErrors"][0] if reply["ok"] else reply
    assert error["code"] == code, error
    same(coll.find(), [{"_id": 1, **before}])
    wire.ping()


def test_array_filters_that_are_wrong(coll):
    coll.insert_one({"_id": 1, "a": [1]})
    with refuses(9):
        coll.update_one({}, {"$set": {"a.$[x]": 1}}, array_filters=[{"x": 1}, {"y": 1}])  # y is not used
    with refuses(9):
        coll.update_one({}, {"$set": {"a.$[x]": 1}}, array_filters=[{"x": 1}, {"x": 2}])  # twice
    with refuses(9):
        coll.update_one({}, {"$set": {"a.$[x]": 1}}, array_filters=[{"x": 1, "y": 2}])  # two names in one
    same(coll.find(), [{"_id": 1, "a": [1]}])


def test_nothing_changes_when_nothing_differs(coll):
    coll.insert_one({"_id": 1, "a": 1, "b": [1, 2]})
    for update in ({"$set": {"a": 1}}, {"$max": {"a": 0}}, {"$addToSet": {"b": 2}}, {"$unset": {"zz": 1}}):
        result = coll.update_one({}, update)
        assert (result.matched_count, result.modified_count) == (1, 0), update
    result = coll.replace_one({}, {"_id": 1, "a": 1, "b": [1, 2]})
    assert (result.matched_count, result.modified_count) == (1, 0)


def test_current_date(coll):
    coll.insert_one({"_id": 1})
    coll.update_one({}, {"$currentDate": {"d": True, "e": {"$type": "date"}, "t": {"$type": "timestamp"}}})
    found = coll.find_one()
    assert abs((datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - found["d"]).total_seconds()) < 60
    assert isinstance(found["e"], datetime.datetime) and isinstance(found["t"], Timestamp)


def test_now_in_a_pipeline(coll):
    coll.insert_many([{"_id": i} for i in range(3)])
    coll.update_many({}, [{"$set": {"at": "$$NOW"}}])
    times = coll.distinct("at")
    assert len(times) == 1, "one statement has one $$NOW"
    assert abs((datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - times[0]).total_seconds()) < 60


def test_one_and_many(coll):
    coll.insert_many([{"_id": i, "a": i % 2} for i in range(10)])
    assert coll.update_one({"a": 0}, {"$set": {"b": 1}}).modified_count == 1
    result = coll.update_many({"a": 0}, {"$set": {"b": 1}})
    assert (result.matched_count, result.modified_count) == (5, 4)
    assert coll.count_documents({"b": 1}) == 5
    reply = coll.database.command("update", coll.name, updates=[{"q": {}, "u": {"a": 1}, "multi": True}])
    assert [e["code"] for e in reply["writeErrors"]] == [9]


def test_many_over_the_index_that_it_changes(coll):
    """Every document is changed once, though each change moves it forward in the index that is scanned."""
    coll.create_index("n")
    coll.insert_many([{"_id": i, "n": i} for i in range(2000)])
    assert coll.update_many({"n": {"$gte": 0}}, {"$inc": {"n": 100_000}}).modified_count == 2000
    assert sum(d["n"] for d in coll.find()) == sum(range(2000)) + 2000 * 100_000


@pytest.mark.parametrize(
    "query, update, after",
    [
        ({"a": 1}, {"$set": {"b": 2}}, {"a": 1, "b": 2}),
        ({"a": {"$eq": 1}}, {"$set": {"b": 2}}, {"a": 1, "b": 2}),
        ({"a.b": 1}, {"$set": {"a.c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": {"$gt": 1}}, {"$set": {"b": 2}}, {"b": 2}),
        ({"$and": [{"a": 1}, {"c": 3}]}, {"$set": {"b": 2}}, {"a": 1, "c": 3, "b": 2}),
        ({"$or": [{"a": 1}]}, {"$set": {"b": 2}}, {"a": 1, "b": 2}),
        ({"$or": [{"a": 1}, {"a": 2}]}, {"$set": {"b": 2}}, {"b": 2}),
        ({"a": 1}, {"$setOnInsert": {"b": 2}, "$inc": {"n": 1}}, {"a": 1, "b": 2, "n": 1}),
        ({"a": 1}, {"$push": {"l": 5}}, {"a": 1, "l": [5]}),
        ({"a": 1}, {"b": 2}, {"b": 2}),
        ({"a": 1}, [{"$set": {"b": {"$add": ["$a", 1]}}}], {"a": 1, "b": 2}),
    ],
)
def test_upsert(coll, query, update, after):
    reply = coll.database.command("update", coll.name, updates=[{"q": query, "u": update, "upsert": True}])
    assert reply["n"] == 1 and reply["nModified"] == 0
    (upserted,) = reply["upserted"]
    assert upserted["index"] == 0 and isinstance(upserted["_id"], ObjectId)
    found = coll.find_one()
    assert next(iter(found)) == "_id" and found.pop("_id") == upserted["_id"]
    assert found == after


def test_upsert_of_an_id(coll):
    assert coll.update_one({"_id": "k"}, {"$inc": {"n": 1}}, upsert=True).upserted_id == "k"
    result = coll.update_one({"_id": "k"}, {"$inc": {"n": 1}}, upsert=True)
    assert result.upserted_id is None and result.modified_count == 1
    assert coll.replace_one({"_id": "r"}, {"x": 1}, upsert=True).upserted_id == "r"
    same(coll.find().sort("_id"), [{"_id": "k", "n": 2}, {"_id": "r", "x": 1}])


def test_upsert_that_collides_with_a_document_that_does_not_match(coll):
    """Optimistic locking: the document is there in another revision, so the insert collides and is not tried again."""
    coll.insert_one({"_id": 1, "rev": 1, "email": "a"})
    coll.create_index("email", unique=True)
    coll.create_index([("u", 1), ("v", 1)], unique=True, sparse=True)
    coll.insert_one({"_id": 5, "email": "e", "u": 1, "v": 2, "w": 3})
    db = coll.database

    def update(q, u, **more):
        reply = db.command("update", coll.name, updates=[{"q": q, "u": u, "upsert": True, **more}])
        assert reply["n"] == 0
        return reply["writeErrors"][0]

    def find_and_modify(q, u):
        with pytest.raises(pymongo.errors.OperationFailure) as e:
            db.command("findAndModify", coll.name, query=q, update=u, upsert=True)
        return e.value.details

    def bulk_write(q, u):
        ops = [{"update": 0, "filter": q, "updateMods": u, "upsert": True}]
        reply = db.client.admin.command("bulkWrite", 1, ops=ops, nsInfo=[{"ns": coll.full_name}])
        return reply["cursor"]["firstBatch"][0]

    ways = [update, find_and_modify, bulk_write]
    for filter, change, pattern, value in [
        ({"_id": 1, "rev": 2}, {"$set": {"x": 1}}, {"_id": 1}, {"_id": 1}),
        ({"_id": 1, "rev": 2}, {"x": 1}, {"_id": 1}, {"_id": 1}),
        ({"_id": 1, "rev": {"$gt": 2}}, {"$set": {"x": 1}}, {"_id": 1}, {"_id": 1}),
        ({"email": "a", "rev": 2}, {"$set": {"x": 1}}, {"email": 1}, {"email": "a"}),
        ({"email": "a", "rev": {"$ne": 1}}, [{"$set": {"x": 1}}], {"email": 1}, {"email": "a"}),
        ({"u": 1, "v": 2, "w": 4}, {"$set": {"email": "f"}}, {"u": 1, "v": 1}, {"u": 1, "v": 2}),
        # The filter names the index's field, but the document that is in the way has another value there.
        ({"email": "f"}, {"$set": {"email": "a"}}, {"email": 1}, {"email": "a"}),
    ]:
        for way in ways:
            error = way(filter, change)
            assert error["code"] == 11000, (way.__name__, filter, error)
            assert error["keyPattern"] == pattern and error["keyValue"] == value
    error = update({"_id": 1, "rev": 2}, {"$set": {"x": 1}}, multi=True)
    assert (error["code"], error["keyPattern"]) == (11000, {"_id": 1})
    assert coll.count_documents({}) == 2 and coll.count_documents({"x": {"$exists": True}}) == 0


def test_upsert_that_collides_under_a_collation(coll):
    """The index takes both for one value, the filter does not: nothing that is tried again would match."""
    coll.create_index("name", unique=True, collation={"locale": "en", "strength": 2})
    coll.insert_one({"_id": 1, "name": "Ann"})
    with pytest.raises(pymongo.errors.DuplicateKeyError):
        coll.update_one({"name": "ann"}, {"$set": {"x": 1}}, upsert=True)


def test_upsert_of_a_conflicting_id(coll):
    with refuses(66):
        coll.update_one({"_id": 1}, {"$set": {"_id": 2}}, upsert=True)
    with refuses(66):
        coll.replace_one({"_id": 1}, {"_id": 2}, upsert=True)
    assert coll.count_documents({}) == 0


def test_unique_index_holds_for_updates(coll):
    coll.create_index("u", unique=True)
    coll.insert_many([{"_id": 1, "u": 1}, {"_id": 2, "u": 2}])
    with refuses(11000, containing="dup key: { u: 1 }"):
        coll.update_one({"_id": 2}, {"$set": {"u": 1}})
    coll.update_one({"_id": 1}, {"$set": {"u": 3}})
    coll.update_one({"_id": 2}, {"$set": {"u": 1}})
    same(coll.find().sort("_id"), [{"_id": 1, "u": 3}, {"_id": 2, "u": 1}])


def test_several_statements(coll):
    coll.insert_many([{"_id": i} for i in range(3)])
    reply = coll.database.command(
        "update",
        coll.name,
        updates=[
            {"q": {"_id": 0}, "u": {"$set": {"a": 1}}},
            {"q": {"_id": 1}, "u": {"$set": {"_id": 9}}},
            {"q": {"_id": 2}, "u": {"$set": {"a": 1}}},
        ],
        ordered=False,
    )
    assert reply["n"] == 2 and [e["index"] for e in reply["writeErrors"]] == [1]


def test_hint(coll):
    coll.create_index("a")
    coll.insert_many([{"_id": i, "a": i} for i in range(10)])
    assert coll.update_one({"a": 3}, {"$set": {"x": 1}}, hint="a_1").modified_count == 1
    assert coll.update_many({"a": {"$gt": 7}}, {"$set": {"x": 1}}, hint=[("a", 1)]).modified_count == 2
    with refuses(2):
        coll.update_one({"a": 3}, {"$set": {"x": 2}}, hint="nosuch")


def test_let(coll):
    coll.insert_many([{"_id": 1, "a": 1}, {"_id": 2, "a": 2}])
    coll.update_many({"$expr": {"$eq": ["$a", "$$x"]}}, [{"$set": {"b": "$$y"}}], let={"x": 2, "y": "why"})
    same(coll.find().sort("_id"), [{"_id": 1, "a": 1}, {"_id": 2, "a": 2, "b": "why"}])


@pytest.mark.parametrize(
    "arguments, code, name",
    [
        ({}, 40414, "IDLFailedToParse"),
        ({"updates": []}, 16, "InvalidLength"),
        ({"updates": [{"q": {}}]}, 40414, "IDLFailedToParse"),
        ({"updates": [{"u": {}}]}, 40414, "IDLFailedToParse"),
        ({"updates": [{"q": {}, "u": 1}]}, 9, "FailedToParse"),
        ({"updates": [{"q": 1, "u": {}}]}, 14, "TypeMismatch"),
        ({"updates": [{"q": {}, "u": {}, "nonsense": 1}]}, 40415, "IDLUnknownField"),
        ({"updates": [{"q": {}, "u": {}, "multi": "yes"}]}, 14, "TypeMismatch"),
    ],
)
def test_bad_arguments(wire, arguments, code, name):
    expect_error(wire.command({"update": "things", **arguments, "$db": "test_bad"}), code, name)
    wire.ping()


def test_a_replacement_with_what_is_there(coll):
    coll.insert_one({"_id": 1, "x": 5, "y": 10})
    assert coll.replace_one({"_id": 1}, {"x": 5, "y": 10}).modified_count == 1, "it says nothing of _id"
    assert coll.replace_one({"_id": 1}, {"_id": 1, "x": 5, "y": 10}).modified_count == 0
    assert coll.find_one() == {"_id": 1, "x": 5, "y": 10}


def test_a_hint_beside_an_id(coll):
    coll.insert_one({"_id": 1, "a": 1})
    coll.create_index("a")
    for write in [
        lambda hint: coll.update_one({"_id": 1}, {"$inc": {"n": 1}}, hint=hint),
        lambda hint: coll.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}, hint=hint),
        lambda hint: coll.delete_one({"_id": 1}, hint=hint),
    ]:
        with refuses(2):
            write("nosuch")
        write("a_1")
    assert coll.count_documents({}) == 0


def test_an_unknown_stage_fails_the_command(wire, coll):
    coll.insert_many([{"_id": 1}, {"_id": 2}])

    def update(*stages):
        updates = [{"q": {"_id": i}, "u": [stage]} for i, stage in enumerate(stages, 1)]
        return wire.command({"update": coll.name, "updates": updates, "$db": coll.database.name})

    expect_error(update({"$set": {"a": 1}}, {"$nosuch": 1}), 40324)
    assert list(coll.find()) == [{"_id": 1, "a": 1}, {"_id": 2}], "what came before it was done"
    refused = update({"$match": {}})
    assert refused["ok"] == 1 and refused["writeErrors"][0]["code"] == 72, "one that updates may not have is the statement's"


@pytest.mark.parametrize(
    "pipeline, code",
    [
        ([{"$set": {"x": {"$divide": [1, 0]}}}], 2),
        ([{"$set": {"x": {"$toInt": "no number"}}}], 241),
        ([{"$set": {"x": {"$add": [1, {"$toInt": "no number"}]}}}], 241),
        ([{"$replaceWith": {"$literal": 1}}], 40228),
        ([{"$set": {"x": {"$regexMatch": {"input": "$a", "regex": "("}}}}], 51111),
        ([{"$project": {"x": {"$dateFromString": {"dateString": "soon"}}}}], 241),
    ],
)
def test_a_pipeline_that_matches_nothing_computes_nothing(coll, pipeline, code):
    """An error of a constant expression is the error of the first document that it is computed for."""
    coll.insert_one({"_id": 1, "a": "a"})
    assert coll.update_one({"_id": 2}, pipeline).matched_count == 0
    assert coll.update_many({"_id": 2}, pipeline).matched_count == 0
    assert coll.find_one_and_update({"_id": 2}, pipeline) is None
    with refuses(code):
        coll.update_one({"_id": 1}, pipeline)
    # What cannot be parsed is refused at once.
    with refuses(168):
        coll.update_one({"_id": 2}, [{"$set": {"x": {"$no": 1}}}])
    assert coll.find_one() == {"_id": 1, "a": "a"}


def test_a_pipeline_computes_only_the_branch_that_is_taken(coll):
    coll.insert_one({"_id": 1, "a": 1})
    coll.update_one({"_id": 1}, [{"$set": {"x": {"$cond": [{"$eq": ["$a", 1]}, "ok", {"$divide": [1, 0]}]}}}])
    assert coll.find_one() == {"_id": 1, "a": 1, "x": "ok"}
