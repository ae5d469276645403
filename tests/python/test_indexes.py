"""Indexes: kinds, options, listing, dropping, and that they agree with the documents."""

import pytest
from bson import Decimal128, Int64
from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.errors import DuplicateKeyError, OperationFailure

from exact import ids
from harness import execution, refuses, stages, used


def test_create_and_list(coll):
    assert coll.create_index("a") == "a_1"
    assert coll.create_indexes([IndexModel([("b", DESCENDING), ("c.d", ASCENDING)]), IndexModel("e", name="by e", sparse=True)]) == ["b_-1_c.d_1", "by e"]
    listed = {i["name"]: i for i in coll.list_indexes()}
    assert list(listed) == ["_id_", "a_1", "b_-1_c.d_1", "by e"]
    assert listed["_id_"] == {"v": 2, "key": {"_id": 1}, "name": "_id_"}
    assert listed["b_-1_c.d_1"]["key"] == {"b": -1, "c.d": 1} and list(listed["b_-1_c.d_1"]["key"]) == ["b", "c.d"]
    assert listed["by e"]["sparse"] is True
    assert coll.index_information()["a_1"]["key"] == [("a", 1)]


def test_reply_of_create(coll):
    reply = coll.database.command("createIndexes", coll.name, indexes=[{"key": {"a": 1}, "name": "a_1"}])
    assert reply["numIndexesBefore"] == 1 and reply["numIndexesAfter"] == 2 and reply["createdCollectionAutomatically"] is True
    reply = coll.database.command("createIndexes", coll.name, indexes=[{"key": {"a": 1}, "name": "a_1"}])
    assert reply["numIndexesBefore"] == reply["numIndexesAfter"] == 2 and reply["note"] == "all indexes already exist"


def test_drop(coll):
    coll.insert_one({"a": 1, "b": 1})
    for field in "abcd":
        coll.create_index(field)
    coll.drop_index("a_1")
    coll.drop_index([("b", 1)])
    assert set(coll.index_information()) == {"_id_", "c_1", "d_1"}
    assert coll.database.command("dropIndexes", coll.name, index=["c_1"])["nIndexesWas"] == 3
    coll.drop_indexes()
    assert set(coll.index_information()) == {"_id_"}
    with refuses(27, "IndexNotFound"):
        coll.database.command("dropIndexes", coll.name, index="a_1")
    with refuses(72, "InvalidOptions"):
        coll.database.command("dropIndexes", coll.name, index="_id_")
    with refuses(26, "NamespaceNotFound"):
        coll.database.command("dropIndexes", "no_such", index="a_1")
    assert used(coll, {"a": 1}) == "COLLSCAN"


def test_rebuilt_after_drop_without_old_entries(coll):
    coll.create_index("a")
    coll.insert_many([{"_id": i, "a": i} for i in range(50)])
    coll.drop_index("a_1")
    coll.update_many({}, {"$inc": {"a": 1000}})
    coll.create_index("a")
    assert ids(coll.find({"a": {"$lt": 1000}}).hint("a_1")) == []
    assert len(ids(coll.find({"a": {"$gte": 1000}}).hint("a_1"))) == 50


def test_multikey(coll):
    coll.create_index("a")
    coll.create_index([("o.x", 1), ("o.y", 1)])
    coll.insert_many([{"_id": 1, "a": [1, 2, 2]}, {"_id": 2, "a": [[3]]}, {"_id": 3, "o": [{"x": 1, "y": 2}, {"x": 3, "y": 4}]}])
    assert ids(coll.find({"a": 2}).hint("a_1")) == [1]
    assert ids(coll.find({"a": [3]}).hint("a_1")) == [2]
    assert ids(coll.find({"o.x": 1, "o.y": 4}).hint("o.x_1_o.y_1")) == [3]
    assert ids(coll.find({"o": {"$elemMatch": {"x": 1, "y": 4}}}).hint("o.x_1_o.y_1")) == []
    coll.update_one({"_id": 1}, {"$pull": {"a": 2}})
    assert ids(coll.find({"a": 2}).hint("a_1")) == []
    # One document comes once, however many of its keys are in the range.
    assert ids(coll.find({"o.x": {"$gte": 0}}).hint("o.x_1_o.y_1")) == [3]


def test_two_arrays_in_one_key(coll):
    coll.create_index([("a", 1), ("b", 1)])
    coll.insert_one({"_id": 1, "a": [1], "b": 1})
    coll.insert_one({"_id": 2, "a": 1, "b": [1]})
    with refuses(171):
        coll.insert_one({"_id": 3, "a": [1], "b": [1]})
    with refuses(171):
        coll.update_one({"_id": 1}, {"$set": {"b": [2]}})
    assert coll.count_documents({}) == 2


def test_unique(coll):
    coll.create_index("u", unique=True)
    coll.insert_many([{"_id": 1, "u": 1}, {"_id": 2, "u": "1"}])
    for value in (1, 1.0, Int64(1), Decimal128("1")):
        with refuses(11000, containing="index: u_1 dup key: { u:"):
            coll.insert_one({"u": value})
    coll.insert_one({"_id": 3})  # one document may lack it
    with refuses(11000):
        coll.insert_one({"u": None})
    coll.delete_one({"_id": 3})
    coll.insert_one({"_id": 4, "u": None})


def test_unique_on_arrays_binds_documents_to_each_other_not_to_themselves(coll):
    coll.create_index("u", unique=True)
    coll.insert_one({"_id": 1, "u": [1, 1, 2]})
    with refuses(11000):
        coll.insert_one({"_id": 2, "u": [2, 3]})
    coll.insert_one({"_id": 2, "u": [3]})


def test_unique_compound(coll):
    coll.create_index([("a", 1), ("b", -1)], unique=True)
    coll.insert_many([{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}])
    with refuses(11000):
        coll.insert_one({"b": 2, "a": 1})


def test_unique_over_duplicates(coll):
    coll.insert_many([{"_id": 1, "u": 1}, {"_id": 2, "u": 1}])
    with refuses(11000, "DuplicateKey"):
        coll.create_index("u", unique=True)
    assert set(coll.index_information()) == {"_id_"}
    coll.insert_one({"_id": 3, "u": 1})


def test_unique_under_concurrent_inserts(server, coll):
    import threading

    coll.create_index("u", unique=True)
    won = []

    def worker(name):
        for value in range(100):
            try:
                coll.insert_one({"u": value, "by": name})
                won.append(value)
            except Exception as error:
                assert getattr(error, "code", None) == 11000, error

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(won) == list(range(100))
    assert coll.count_documents({}) == 100


def test_sparse(coll):
    coll.create_index("s", sparse=True, unique=True)
    coll.insert_many([{"_id": 1}, {"_id": 2}, {"_id": 3, "s": None}, {"_id": 4, "s": 1}])
    assert ids(coll.find().hint("s_1")) == [3, 4]
    assert sorted(ids(coll.find().sort("s", 1))) == [1, 2, 3, 4], "a sparse index must not lose documents"
    assert sorted(ids(coll.find({"s": None}))) == [1, 2, 3]
    assert ids(coll.find({"s": {"$exists": True}}).sort("_id")) == [3, 4]


def test_partial(coll):
    coll.create_index("a", partialFilterExpression={"active": True, "n": {"$gt": 5}}, unique=True)
    coll.insert_many([{"_id": 1, "a": 1, "active": True, "n": 6}, {"_id": 2, "a": 1, "active": False, "n": 6}, {"_id": 3, "a": 1}])
    with refuses(11000):
        coll.insert_one({"a": 1, "active": True, "n": 7})
    assert used(coll, {"a": 1}) == "COLLSCAN"
    assert used(coll, {"a": 1, "active": True}) == "COLLSCAN"
    assert used(coll, {"a": 1, "active": True, "n": {"$gt": 8}}) == "a_1"
    assert sorted(ids(coll.find({"a": 1}))) == [1, 2, 3]
    coll.update_one({"_id": 1}, {"$set": {"active": False}})
    coll.insert_one({"_id": 4, "a": 1, "active": True, "n": 7})
    assert ids(coll.find({"a": 1, "active": True, "n": {"$gt": 5}})) == [4]
    with refuses(67, "CannotCreateIndex"):
        coll.create_index("b", partialFilterExpression={"x": {"$not": {"$gt": 1}}})


def test_hidden(coll):
    coll.create_index("h")
    coll.insert_many([{"_id": i, "h": i} for i in range(10)])
    coll.database.command("collMod", coll.name, index={"name": "h_1", "hidden": True})
    assert coll.index_information()["h_1"]["hidden"] is True
    assert used(coll, {"h": 1}) == "COLLSCAN"
    with refuses(2):
        list(coll.find({"h": 1}).hint("h_1"))
    coll.insert_one({"_id": 10, "h": 10})
    coll.database.command("collMod", coll.name, index={"name": "h_1", "hidden": False})
    assert used(coll, {"h": 1}) == "h_1" and ids(coll.find({"h": 10}).hint("h_1")) == [10]
    coll.create_index("i", hidden=True)
    assert used(coll, {"i": 1}) == "COLLSCAN"


def test_planner_chooses(coll):
    coll.insert_many([{"_id": i, "few": i % 2, "many": i, "x": i % 10} for i in range(1000)])
    coll.create_index("few")
    coll.create_index("many")
    assert used(coll, {"few": 1, "many": 77}) == "many_1"
    coll.create_index([("x", 1), ("many", 1)])
    assert used(coll, {"x": 3, "many": {"$gt": 500}}) in ("x_1_many_1", "many_1")
    plan, stats = execution(coll, {"find": coll.name, "filter": {"x": 3}, "sort": {"many": -1}, "limit": 5})
    assert "SORT" not in stages(plan) and stats["totalKeysExamined"] == 5


def test_conflicts(coll):
    coll.create_index("a")
    with refuses(85, "IndexOptionsConflict"):
        coll.create_index("a", name="another")
    with refuses(86, "IndexKeySpecsConflict"):
        coll.create_index("b", name="a_1")
    with refuses(86, "IndexKeySpecsConflict"):
        coll.create_index("a", unique=True)


@pytest.mark.parametrize(
    "index, code",
    [
        ({"key": {"a": 1}}, 9),
        ({"name": "x"}, 9),
        ({"key": {}, "name": "x"}, 67),
        ({"key": {"a": 0}, "name": "x"}, 67),
        ({"key": {"a": "nope"}, "name": "x"}, 67),
        ({"key": {"": 1}, "name": "x"}, 67),
        ({"key": {"a..b": 1}, "name": "x"}, 67),
        ({"key": {"$a": 1}, "name": "x"}, 67),
        ({"key": {"a": 1}, "name": ""}, 67),
        ({"key": {"a": 1}, "name": "*"}, 2),
        ({"key": {"a": 1}, "name": "x", "nonsense": 1}, 197),
        ({"key": {"a": 1}, "name": 5}, 14),
        ({"key": {"a": 1}, "name": "x", "unique": "yes"}, 14),
        ({"key": {"a": 1}, "name": "x", "sparse": True, "partialFilterExpression": {"b": 1}}, 67),
        ({"key": {"_id": 1}, "name": "x", "sparse": True}, 197),
    ],
)
def test_bad_specifications(coll, index, code):
    coll.insert_one({"a": 1})
    with refuses(code):
        coll.database.command("createIndexes", coll.name, indexes=[index])
    assert set(coll.index_information()) == {"_id_"}


def test_rename_collection_keeps_indexes(client, db, coll):
    coll.create_index("a", unique=True)
    coll.insert_many([{"_id": i, "a": i} for i in range(10)])
    coll.rename("renamed")
    assert "a_1" in db.renamed.index_information() and coll.name not in db.list_collection_names()
    assert ids(db.renamed.find({"a": 5}).hint("a_1")) == [5]
    with refuses(11000):
        db.renamed.insert_one({"a": 5})
    db.other.insert_one({"_id": 1})
    with refuses(48, "NamespaceExists"):
        db.other.rename("renamed")
    db.other.rename("renamed", dropTarget=True)
    assert db.renamed.count_documents({}) == 1
    with refuses(26, "NamespaceNotFound"):
        db.nothing.rename("x")


def test_index_survives_a_restart(new_server):
    server = new_server()
    with server.client() as client:
        client.test.things.create_index([("a", 1), ("b", -1)], unique=True, name="named")
        client.test.things.insert_many([{"_id": i, "a": i % 5, "b": i} for i in range(100)])
    server.kill()
    server.start()
    with server.client() as client:
        things = client.test.things
        assert things.index_information()["named"] == {"v": 2, "key": [("a", 1), ("b", -1)], "unique": True}
        assert ids(things.find({"a": 3}).sort("b", -1).limit(2)) == [98, 93]
        with refuses(11000):
            things.insert_one({"a": 3, "b": 98})
        assert client.test.validate_collection("things", full=True)["valid"]


def test_an_index_becomes_unique(db):
    c = db.c
    c.insert_many([{"_id": 1, "a": 1, "b": 1}, {"_id": 2, "a": 1, "b": 2}, {"_id": 3, "a": 2, "b": 2}])
    c.create_index([("a", 1), ("b", -1)], name="i")
    c.create_index("a", name="a")

    def change(name, dry=False, **what):
        return db.command("collMod", "c", index={"name": name, **what}, dryRun=dry)

    with pytest.raises(OperationFailure) as e:
        change("a", unique=True)
    assert e.value.code == 72
    assert change("a", prepareUnique=True)["prepareUnique_new"] is True
    # From now on there are no new duplicates; the old ones stay, and may be changed elsewhere.
    with pytest.raises(DuplicateKeyError):
        c.insert_one({"a": 2})
    c.update_one({"_id": 1}, {"$set": {"b": 9}})
    for dry in [True, False]:
        with pytest.raises(OperationFailure) as e:
            change("a", dry, unique=True)
        assert e.value.code == 359 and e.value.details["violations"] == [{"ids": [1, 2]}]
    c.delete_one({"_id": 2})
    assert "unique_new" not in change("a", True, unique=True)
    assert change("a", unique=True)["unique_new"] is True
    spec = c.index_information()["a"]
    assert spec["unique"] is True and "prepareUnique" not in spec
    with pytest.raises(DuplicateKeyError):
        c.insert_one({"a": 1})
    change("i", prepareUnique=True)
    assert change("i", unique=True)["unique_new"] is True


def test_each_use_of_an_index_counts_once(db):
    db.c.create_index("a")
    db.c.insert_many([{"_id": i, "a": i} for i in range(5000)])

    def uses(run):
        before, _, after = counts(), run(), counts()
        return {name: n - before[name] for name, n in after.items() if n != before[name]}

    def counts():
        return {s["name"]: s["accesses"]["ops"] for s in db.c.aggregate([{"$indexStats": {}}])}

    # Short ones are done where they are read, long ones are handed over.
    assert uses(lambda: list(db.c.find({"a": 5}))) == {"a_1": 1}
    assert uses(lambda: list(db.c.find({"a": {"$gte": 0}}, batch_size=5000))) == {"a_1": 1}
    assert uses(lambda: db.command("count", "c", query={"a": {"$gt": 5}})) == {"a_1": 1}
    assert uses(lambda: db.c.distinct("a", {"a": {"$gt": 5}})) == {"a_1": 1}
    assert uses(lambda: list(db.c.find({"$or": [{"a": 5}, {"a": {"$gt": 4990}}]}))) == {"a_1": 1}
    assert uses(lambda: list(db.c.find({"$or": [{"a": 5}, {"_id": {"$gt": 4990}}]}))) == {"_id_": 1, "a_1": 1}
    assert uses(lambda: list(db.c.find({"_id": {"$gt": 4000}}))) == {"_id_": 1}
    assert uses(lambda: db.c.update_many({"a": {"$lt": 3000}}, {"$set": {"x": 1}})) == {"a_1": 1}
    assert uses(lambda: list(db.c.find({"x": 7}))) == {}
