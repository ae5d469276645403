"""Collations: the order of strings in a language, in commands, collections and indexes."""

import random

import pytest
from pymongo import IndexModel, ReplaceOne, UpdateOne
from pymongo.collation import Collation

from harness import execution, leaf, refuses, stages

CASELESS = Collation("en", strength=2)
ENGLISH = Collation("en")


def found(documents):
    return sorted(d["_id"] for d in documents)


@pytest.fixture
def words(coll):
    coll.insert_many([{"_id": i, "w": w} for i, w in enumerate(["b", "A", "a", "B", "á", "10", "9"])])
    return coll


def test_find_and_sort(words):
    assert found(words.find({"w": "a"})) == [2]
    assert found(words.find({"w": "a"}, collation=CASELESS)) == [1, 2]
    assert found(words.find({"w": "a"}, collation=Collation("en", strength=1))) == [1, 2, 4]
    assert found(words.find({"w": {"$in": ["A", "B"]}}, collation=CASELESS)) == [0, 1, 2, 3]
    assert found(words.find({"w": {"$lt": "b"}}, collation=CASELESS)) == [1, 2, 4, 5, 6]
    assert [d["w"] for d in words.find().sort("w", 1)] == ["10", "9", "A", "B", "a", "b", "á"]
    assert [d["w"] for d in words.find(collation=ENGLISH).sort("w", 1)] == ["10", "9", "a", "A", "á", "b", "B"]
    assert [d["w"] for d in words.find(collation=Collation("en", caseFirst="upper")).sort("w", 1)][2:4] == ["A", "a"]
    assert [d["w"] for d in words.find(collation=Collation("en", numericOrdering=True)).sort("w", 1)][:2] == ["9", "10"]
    assert found(words.find({"$expr": {"$eq": ["$w", "a"]}}, collation=CASELESS)) == [1, 2]
    # Patterns look at characters.
    assert found(words.find({"w": {"$regex": "^a"}}, collation=CASELESS)) == [2]
    assert found(words.find({"w": "a"}, collation=Collation("simple"))) == [2]


def test_other_commands(words):
    assert words.count_documents({"w": "a"}, collation=CASELESS) == 2
    assert len(words.distinct("w", collation=CASELESS)) == 5
    rows = list(words.aggregate([{"$group": {"_id": "$w", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], collation=CASELESS))
    assert [r["n"] for r in rows] == [1, 1, 2, 1, 2]
    [row] = words.aggregate([{"$group": {"_id": None, "least": {"$min": "$w"}, "most": {"$max": "$w"}}}], collation=Collation("en", numericOrdering=True))
    assert row["least"] == "9" and row["most"] in "bB"
    assert words.update_many({"w": "B"}, {"$set": {"x": 1}}, collation=CASELESS).modified_count == 2
    assert words.find_one_and_update({"w": "B"}, {"$inc": {"x": 1}}, sort=[("_id", -1)], collation=CASELESS)["_id"] == 3
    assert words.delete_many({"w": "A"}, collation=CASELESS).deleted_count == 2
    assert words.bulk_write([UpdateOne({"w": "B"}, {"$set": {"y": 1}}, collation=CASELESS), ReplaceOne({"w": "Á"}, {"w": "z"}, collation=CASELESS)]).modified_count == 2


def test_lookup_joins_under_the_collation(db):
    db.left.insert_one({"_id": 1, "k": "X"})
    db.right.insert_many([{"_id": 1, "k": "x"}, {"_id": 2, "k": "y"}])
    join = [{"$lookup": {"from": "right", "localField": "k", "foreignField": "k", "as": "r"}}]
    assert next(db.left.aggregate(join))["r"] == []
    assert next(db.left.aggregate(join, collation=CASELESS))["r"] == [{"_id": 1, "k": "x"}]


def test_update_operators(coll):
    coll.insert_one({"_id": 1, "tags": ["a", "B"], "m": "b"})
    coll.update_one({}, {"$addToSet": {"tags": "b"}}, collation=CASELESS)
    assert coll.find_one()["tags"] == ["a", "B"]
    coll.update_one({}, {"$pull": {"tags": "A"}, "$max": {"m": "A"}}, collation=CASELESS)
    assert coll.find_one() == {"_id": 1, "tags": ["B"], "m": "b"}


def test_index_of_the_same_collation(coll):
    coll.create_index("w", collation=CASELESS, name="caseless")
    coll.insert_many([{"_id": i, "w": w, "n": i} for i, w in enumerate(["x", "X", "y", 5, None, ["Q", "q"]])])

    def used(query, collation=None, **more):
        command = {"find": coll.name, "filter": query, **more}
        if collation:
            command["collation"] = collation.document
        plan, _ = execution(coll, command)
        bottom = leaf(plan)
        return bottom.get("indexName", bottom["stage"])

    assert used({"w": "x"}, CASELESS) == "caseless"
    assert found(coll.find({"w": "x"}, collation=CASELESS)) == [0, 1]
    assert found(coll.find({"w": "q"}, collation=CASELESS)) == [5]
    # Strings need the same collation, numbers do not.
    assert used({"w": "x"}) == used({"w": "x"}, ENGLISH) == "COLLSCAN"
    assert found(coll.find({"w": "x"})) == [0]
    assert used({"w": 5}) == "caseless"
    assert used({"w": "x"}, Collation("en", strength=2, caseLevel=True)) == "COLLSCAN"
    assert coll.index_information()["caseless"]["collation"]["strength"] == 2
    # The index holds sort keys of strings, not the stored strings.
    assert list(coll.find({"w": "x"}, {"_id": 0, "w": 1}, collation=CASELESS).sort("w", 1)) == [{"w": "x"}, {"w": "X"}]


def test_order_from_an_index(coll):
    coll.create_index("w", collation=CASELESS)
    coll.insert_many([{"w": w} for w in ["b", "C", "a", "D"]])
    command = {"find": coll.name, "sort": {"w": 1}, "collation": CASELESS.document}
    plan, _ = execution(coll, command)
    assert "SORT" not in stages(plan)
    assert [d["w"] for d in coll.find(collation=CASELESS).sort("w", 1)] == ["a", "b", "C", "D"]
    plan, _ = execution(coll, {**command, "collation": {"locale": "simple"}})
    assert "SORT" in stages(plan)


def test_unique_under_a_collation(coll):
    coll.create_index("w", unique=True, collation=CASELESS)
    coll.insert_one({"w": "x"})
    with refuses(11000):
        coll.insert_one({"w": "X"})
    coll.insert_one({"w": "y"})


def test_collection_default(db):
    coll = db.create_collection("c", collation=CASELESS)
    coll.insert_many([{"_id": 1, "w": "x"}, {"_id": 2, "w": "X"}])
    assert found(coll.find({"w": "x"})) == [1, 2]
    assert found(coll.find({"w": "x"}, collation=Collation("simple"))) == [1]
    assert coll.count_documents({"w": "X"}) == 2
    assert coll.update_many({"w": "x"}, {"$set": {"n": 1}}).modified_count == 2
    coll.create_index("w")
    assert coll.index_information()["w_1"]["collation"]["locale"] == "en"
    assert found(coll.find({"w": "x"}).hint("w_1")) == [1, 2]
    coll.create_index("n", collation=Collation("simple"))
    assert "collation" not in coll.index_information()["n_1"]
    [listed] = db.list_collections(filter={"name": "c"})
    assert listed["options"]["collation"] == {
        "locale": "en", "caseLevel": False, "caseFirst": "off", "strength": 2, "numericOrdering": False,
        "alternate": "non-ignorable", "maxVariable": "punct", "normalization": False, "backwards": False, "version": "57.1",
    }
    assert coll.delete_many({"w": "x"}).deleted_count == 2
    # Unlike MongoDB's, `_id` is unique as it is written.
    coll.insert_many([{"_id": "a"}, {"_id": "A"}])
    assert len(list(coll.find({"_id": "a"}))) == 2


def test_default_survives_a_restart(new_server):
    server = new_server()
    with server.client() as client:
        client.db.create_collection("c", collation=CASELESS).create_index("w")
        client.db.c.insert_many([{"_id": 1, "w": "x"}, {"_id": 2, "w": "X"}])
    server.stop()
    server.start()
    with server.client() as client:
        assert found(client.db.c.find({"w": "x"})) == [1, 2]
        assert found(client.db.c.find({"w": "x"}).hint("w_1")) == [1, 2]


def test_what_is_refused(coll):
    for collation, code in [
        ({"locale": "nonsense"}, 2),
        ({"locale": "en", "strength": 6}, 2),
        ({"strength": 1}, 40414),
        ({"locale": "en", "caseFirst": "upper", "strength": 1}, 2),
        ({"locale": "en", "other": 1}, 40415),
    ]:
        with refuses(code):
            coll.database.command("find", coll.name, collation=collation)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_agrees_with_a_scan(coll, seed):
    r = random.Random(seed)
    word = lambda: "".join(r.choice("aAáb-1") for _ in range(r.randrange(1, 3)))
    value = lambda: r.choice([word, word, word, lambda: r.randrange(3), lambda: [word(), word()], lambda: {"b": word()}, lambda: None])()
    coll.create_indexes([IndexModel("w", collation=CASELESS), IndexModel([("n", 1), ("w", -1)], collation=ENGLISH), IndexModel("n")])
    coll.insert_many([{"_id": i, "w": value(), "n": r.randrange(4)} for i in range(150)])
    for _ in range(120):
        test = r.choice([value, lambda: {"$gt": word()}, lambda: {"$lte": word()}, lambda: {"$in": [value(), value()]}, lambda: {"$ne": word()}, lambda: {"$regex": "^a"}, lambda: {"$type": "string"}])()
        query = {"w": test, **({"n": r.randrange(4)} if r.random() < 0.5 else {})}
        collation = r.choice([None, CASELESS, ENGLISH, Collation("en", strength=1)])
        by_index = found(coll.find(query, collation=collation))
        assert by_index == found(coll.find(query, collation=collation).hint([("$natural", 1)])), (query, collation)


def test_in_a_constant_list(words):
    """As MongoDB 8: a list in an expression is searched under the collation, but for a field in the condition of a query."""
    inside = {"$in": ["$w", ["A", "B"]]}
    rows = list(words.aggregate([{"$project": {"in": inside}}], collation=CASELESS))
    assert sorted(r["_id"] for r in rows if r["in"]) == [0, 1, 2, 3]
    rows = list(words.aggregate([{"$addFields": {"in": {"$not": [inside]}}}], collation=CASELESS))
    assert sorted(r["_id"] for r in rows if not r["in"]) == [0, 1, 2, 3]
    assert found(words.find({"$expr": {"$not": [{"$not": [inside]}]}}, collation=CASELESS)) == [0, 1, 2, 3]
    assert found(words.find({"$expr": {"$in": [{"$concat": ["$w", ""]}, ["A"]]}}, collation=CASELESS)) == [1, 2]
    assert found(words.find({"$expr": inside}, collation=CASELESS)) == [1, 3]
    assert found(words.find({"$expr": {"$or": [inside, {"$eq": ["$w", "9"]}]}}, collation=CASELESS)) == [1, 3, 6]
    assert found(words.aggregate([{"$match": {"w": {"$in": ["A", "B"]}}}], collation=CASELESS)) == [0, 1, 2, 3]
    assert found(words.find({"w": {"$nin": ["A", "B"]}}, collation=CASELESS)) == [4, 5, 6]


def test_views_of_another_collation_are_not_joined(db):
    db.left.insert_many([{"_id": 1, "k": "X"}, {"_id": 2, "k": "Y"}])
    db.right.insert_one({"_id": 1, "k": "x", "next": "y"})
    db.create_collection("french", viewOn="right", collation=Collation("fr", strength=2))
    db.create_collection("caseless", viewOn="right", collation=CASELESS)
    db.create_collection("caseless_left", viewOn="left", collation=CASELESS)

    def stages_over(name):
        yield {"$lookup": {"from": name, "localField": "k", "foreignField": "k", "as": "r"}}
        yield {"$lookup": {"from": name, "pipeline": [], "as": "r"}}
        yield {"$graphLookup": {"from": name, "startWith": "$k", "connectFromField": "next", "connectToField": "k", "as": "r"}}
        yield {"$unionWith": name}
        yield {"$unionWith": {"coll": "right", "pipeline": [{"$unionWith": name}]}}
        yield {"$facet": {"a": [{"$lookup": {"from": name, "pipeline": [], "as": "r"}}]}}

    for stage in stages_over("french"):
        for source, collation in (db.left, CASELESS), (db.left, None), (db.caseless_left, None):
            with refuses(167, "OptionNotSupportedOnView"):
                source.aggregate([stage], collation=collation)
    for stage in stages_over("caseless"):
        list(db.left.aggregate([stage], collation=CASELESS))
        list(db.caseless_left.aggregate([stage]))
    for stage in stages_over("right"):
        list(db.caseless_left.aggregate([stage]))
    [first, _] = db.caseless_left.aggregate([next(stages_over("caseless")), {"$sort": {"_id": 1}}])
    assert first["r"] == [{"_id": 1, "k": "x", "next": "y"}]
    # Nor do views stand on such views, or join them.
    for arguments in {"viewOn": "french"}, {"viewOn": "left", "pipeline": [{"$unionWith": "french"}]}:
        with refuses(167):
            db.create_collection("v", **arguments)
        with refuses(167):
            db.create_collection("v", collation=CASELESS, **arguments)
        db.create_collection("v", collation=Collation("fr", strength=2), **arguments)
        db.v.drop()
