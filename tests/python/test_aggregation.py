"""aggregate: each stage with what it must give."""

import datetime

import pytest
from bson import Decimal128, Int64

from exact import ids, same
from harness import refuses

ORDERS = [
    {"_id": 1, "item": "pen", "price": 2, "qty": 10, "tags": ["blue", "ink"], "cust": "a"},
    {"_id": 2, "item": "book", "price": 12.5, "qty": 1, "tags": [], "cust": "b"},
    {"_id": 3, "item": "pen", "price": 2, "qty": 5, "tags": ["red"], "cust": "a"},
    {"_id": 4, "item": "lamp", "price": 40, "qty": 2, "cust": "c"},
    {"_id": 5, "item": "book", "price": 12.5, "qty": 3, "tags": ["ink"], "cust": None},
]


@pytest.fixture
def orders(coll):
    coll.insert_many(ORDERS)
    return coll


def same_set(found, expected):
    key = lambda d: repr(d)  # noqa: E731
    same(sorted(found, key=key), sorted(expected, key=key))


# name, pipeline, result (in order), or a frozenset's list when the order is free
CASES = [
    ("match", [{"$match": {"price": {"$gt": 10}}}, {"$sort": {"_id": 1}}, {"$project": {"item": 1}}], [{"_id": 2, "item": "book"}, {"_id": 4, "item": "lamp"}, {"_id": 5, "item": "book"}]),
    ("project", [{"$match": {"_id": 1}}, {"$project": {"_id": 0, "total": {"$multiply": ["$price", "$qty"]}, "item": 1}}], [{"item": "pen", "total": 20}]),
    ("project exclusion", [{"$match": {"_id": 4}}, {"$project": {"price": 0, "cust": 0}}], [{"_id": 4, "item": "lamp", "qty": 2}]),
    ("addFields", [{"$match": {"_id": 4}}, {"$addFields": {"qty": {"$add": ["$qty", 1]}, "n.m": 1}}], [{"_id": 4, "item": "lamp", "price": 40, "qty": 3, "cust": "c", "n": {"m": 1}}]),
    ("set and unset", [{"$match": {"_id": 4}}, {"$set": {"x": "$item"}}, {"$unset": ["price", "qty", "cust"]}], [{"_id": 4, "item": "lamp", "x": "lamp"}]),
    ("unset one", [{"$match": {"_id": 4}}, {"$unset": "price"}], [{"_id": 4, "item": "lamp", "qty": 2, "cust": "c"}]),
    ("group", [{"$group": {"_id": "$item", "n": {"$sum": 1}, "qty": {"$sum": "$qty"}, "avg": {"$avg": "$price"}}}, {"$sort": {"_id": 1}}], [{"_id": "book", "n": 2, "qty": 4, "avg": 12.5}, {"_id": "lamp", "n": 1, "qty": 2, "avg": 40.0}, {"_id": "pen", "n": 2, "qty": 15, "avg": 2.0}]),
    ("group all", [{"$group": {"_id": None, "max": {"$max": "$price"}, "min": {"$min": "$qty"}}}], [{"_id": None, "max": 40, "min": 1}]),
    ("group first and last", [{"$sort": {"_id": 1}}, {"$group": {"_id": "$item", "f": {"$first": "$_id"}, "l": {"$last": "$_id"}}}, {"$sort": {"_id": 1}}], [{"_id": "book", "f": 2, "l": 5}, {"_id": "lamp", "f": 4, "l": 4}, {"_id": "pen", "f": 1, "l": 3}]),
    ("group push", [{"$sort": {"_id": 1}}, {"$group": {"_id": "$item", "all": {"$push": {"i": "$_id", "q": "$qty"}}}}, {"$match": {"_id": "pen"}}], [{"_id": "pen", "all": [{"i": 1, "q": 10}, {"i": 3, "q": 5}]}]),
    ("group by an object", [{"$group": {"_id": {"i": "$item", "c": "$cust"}, "n": {"$sum": 1}}}, {"$match": {"n": 2}}], [{"_id": {"i": "pen", "c": "a"}, "n": 2}]),
    ("group by an expression", [{"$group": {"_id": {"$gt": ["$price", 10]}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}], [{"_id": False, "n": 2}, {"_id": True, "n": 3}]),
    ("group deviations", [{"$group": {"_id": None, "p": {"$stdDevPop": "$qty"}}}, {"$project": {"p": {"$trunc": {"$multiply": ["$p", 1000]}}}}], [{"_id": None, "p": 3187.0}]),
    ("group mergeObjects", [{"$sort": {"_id": 1}}, {"$match": {"item": "pen"}}, {"$group": {"_id": 1, "m": {"$mergeObjects": {"q": "$qty", "c": "$cust"}}}}], [{"_id": 1, "m": {"q": 5, "c": "a"}}]),
    ("sort", [{"$sort": {"price": -1, "_id": 1}}, {"$project": {"_id": 1}}], [{"_id": i} for i in (4, 2, 5, 1, 3)]),
    ("sort, skip, limit", [{"$sort": {"qty": 1}}, {"$skip": 1}, {"$limit": 2}, {"$project": {"qty": 1}}], [{"_id": 4, "qty": 2}, {"_id": 5, "qty": 3}]),
    ("limit, then sort", [{"$sort": {"_id": 1}}, {"$limit": 2}, {"$sort": {"_id": -1}}, {"$project": {"_id": 1}}], [{"_id": 2}, {"_id": 1}]),
    ("unwind", [{"$sort": {"_id": 1}}, {"$unwind": "$tags"}, {"$project": {"tags": 1}}], [{"_id": 1, "tags": "blue"}, {"_id": 1, "tags": "ink"}, {"_id": 3, "tags": "red"}, {"_id": 5, "tags": "ink"}]),
    ("unwind with index and empties", [{"$sort": {"_id": 1}}, {"$unwind": {"path": "$tags", "includeArrayIndex": "at", "preserveNullAndEmptyArrays": True}}, {"$match": {"_id": {"$lte": 4}}}, {"$project": {"tags": 1, "at": 1}}], [{"_id": 1, "tags": "blue", "at": Int64(0)}, {"_id": 1, "tags": "ink", "at": Int64(1)}, {"_id": 2, "at": None}, {"_id": 3, "tags": "red", "at": Int64(0)}, {"_id": 4, "at": None}]),
    ("unwind a scalar", [{"$match": {"_id": 4}}, {"$unwind": "$qty"}, {"$project": {"qty": 1}}], [{"_id": 4, "qty": 2}]),
    ("count", [{"$match": {"item": "pen"}}, {"$count": "pens"}], [{"pens": 2}]),
    ("count of none", [{"$match": {"item": "nope"}}, {"$count": "n"}], []),
    ("sortByCount", [{"$match": {"item": {"$ne": "lamp"}, "_id": {"$ne": 5}}}, {"$sortByCount": "$item"}], [{"_id": "pen", "count": 2}, {"_id": "book", "count": 1}]),
    ("sortByCount after unwind", [{"$unwind": "$tags"}, {"$match": {"tags": {"$ne": "blue"}}}, {"$sortByCount": "$tags"}], [{"_id": "ink", "count": 2}, {"_id": "red", "count": 1}]),
    ("replaceRoot", [{"$match": {"_id": 1}}, {"$replaceRoot": {"newRoot": {"n": "$item", "t": {"$arrayElemAt": ["$tags", 0]}}}}], [{"n": "pen", "t": "blue"}]),
    ("replaceWith", [{"$match": {"_id": 1}}, {"$replaceWith": {"$mergeObjects": [{"x": 1}, {"item": "$item"}]}}], [{"x": 1, "item": "pen"}]),
    ("empty pipeline", [{"$match": {}}, {"$match": {"_id": 2}}, {"$project": {"_id": 1}}], [{"_id": 2}]),
    ("match on a computed field", [{"$project": {"t": {"$multiply": ["$price", "$qty"]}}}, {"$match": {"t": {"$gte": 37}}}, {"$sort": {"t": 1}}], [{"_id": 5, "t": 37.5}, {"_id": 4, "t": 80}]),
]


@pytest.mark.parametrize("pipeline, expected", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_stages(orders, pipeline, expected):
    same(orders.aggregate(pipeline), expected)
    same(orders.aggregate(pipeline, batchSize=1), expected)


def test_add_to_set(orders):
    (found,) = orders.aggregate([{"$group": {"_id": None, "items": {"$addToSet": "$item"}}}])
    assert sorted(found["items"]) == ["book", "lamp", "pen"]


def test_sample(orders):
    assert len(set(ids(orders.aggregate([{"$sample": {"size": 3}}])))) == 3
    assert sorted(ids(orders.aggregate([{"$sample": {"size": 100}}]))) == [1, 2, 3, 4, 5]
    orders.insert_many([{"_id": i} for i in range(1000, 3000)])
    assert len(set(ids(orders.aggregate([{"$sample": {"size": 20}}])))) == 20
    assert ids(orders.aggregate([{"$sample": {"size": 50}}])) != ids(orders.aggregate([{"$sample": {"size": 50}}]))


@pytest.mark.parametrize("indexed", [False, True])
def test_lookup(db, orders, indexed):
    db.customers.insert_many([{"_id": "a", "name": "Ann"}, {"_id": "b", "name": "Bob", "also": "a"}, {"_id": "z", "name": "Zoe"}])
    if indexed:
        db.customers.create_index("also")
    found = orders.aggregate(
        [
            {"$sort": {"_id": 1}},
            {"$lookup": {"from": "customers", "localField": "cust", "foreignField": "_id", "as": "c"}},
            {"$project": {"c": 1}},
        ]
    )
    same(
        found,
        [
            {"_id": 1, "c": [{"_id": "a", "name": "Ann"}]},
            {"_id": 2, "c": [{"_id": "b", "name": "Bob", "also": "a"}]},
            {"_id": 3, "c": [{"_id": "a", "name": "Ann"}]},
            {"_id": 4, "c": []},
            {"_id": 5, "c": []},
        ],
    )
    # An order without a customer joins those without the field: null equals missing.
    (nobody,) = orders.aggregate(
        [{"$match": {"_id": 5}}, {"$lookup": {"from": "customers", "localField": "cust", "foreignField": "also", "as": "c"}}]
    )
    assert sorted(ids(nobody["c"])) == ["a", "z"]


def test_lookup_with_a_pipeline(db, orders):
    db.stock.insert_many([{"_id": 1, "item": "pen", "n": 7}, {"_id": 2, "item": "pen", "n": 70}, {"_id": 3, "item": "book", "n": 0}])
    found = orders.aggregate(
        [
            {"$sort": {"_id": 1}},
            {
                "$lookup": {
                    "from": "stock",
                    "let": {"i": "$item", "q": "$qty"},
                    "pipeline": [
                        {"$match": {"$expr": {"$and": [{"$eq": ["$item", "$$i"]}, {"$gte": ["$n", "$$q"]}]}}},
                        {"$project": {"_id": 0, "n": 1}},
                    ],
                    "as": "s",
                }
            },
            {"$project": {"s": 1}},
        ]
    )
    same(found, [{"_id": 1, "s": [{"n": 70}]}, {"_id": 2, "s": []}, {"_id": 3, "s": [{"n": 7}, {"n": 70}]}, {"_id": 4, "s": []}, {"_id": 5, "s": []}])
    (joined,) = orders.aggregate(
        [
            {"$match": {"_id": 1}},
            {"$lookup": {"from": "stock", "localField": "item", "foreignField": "item", "pipeline": [{"$match": {"n": {"$gt": 10}}}], "as": "s"}},
        ]
    )
    assert ids(joined["s"]) == [2]


def test_lookup_through_arrays(db):
    db.a.insert_one({"_id": 1, "refs": [1, 3, 9]})
    db.b.insert_many([{"_id": i, "x": [i * 10]} for i in range(1, 5)])
    (found,) = db.a.aggregate([{"$lookup": {"from": "b", "localField": "refs", "foreignField": "_id", "as": "r"}}])
    assert sorted(ids(found["r"])) == [1, 3]
    (unwound,) = db.a.aggregate(
        [{"$lookup": {"from": "b", "localField": "refs", "foreignField": "_id", "as": "r"}}, {"$unwind": "$r"}, {"$match": {"r._id": 3}}]
    )
    assert unwound["r"] == {"_id": 3, "x": [30]}
    (none,) = db.a.aggregate([{"$lookup": {"from": "no_such", "localField": "refs", "foreignField": "_id", "as": "r"}}])
    assert none["r"] == []


def test_out(db, orders):
    db.target.insert_one({"_id": "old"})
    assert list(orders.aggregate([{"$match": {"item": "pen"}}, {"$project": {"qty": 1}}, {"$out": "target"}])) == []
    same(db.target.find().sort("_id"), [{"_id": 1, "qty": 10}, {"_id": 3, "qty": 5}])
    list(orders.aggregate([{"$match": {"none": 1}}, {"$out": "target"}]))
    assert db.target.count_documents({}) == 0


def test_out_keeps_indexes_and_is_atomic(db, orders):
    db.target.create_index("qty", unique=True)
    db.target.insert_one({"_id": "old", "qty": 99})
    with refuses(11000):
        orders.aggregate([{"$project": {"qty": {"$literal": 1}}}, {"$out": "target"}])
    same(db.target.find(), [{"_id": "old", "qty": 99}])
    orders.aggregate([{"$project": {"qty": 1}}, {"$out": "target"}])
    assert "qty_1" in db.target.index_information() and db.target.count_documents({}) == 5


def test_out_to_another_database(client, db, orders):
    orders.aggregate([{"$project": {"_id": 1}}, {"$out": {"db": db.name + "_out", "coll": "t"}}])
    assert client[db.name + "_out"].t.count_documents({}) == 5
    client.drop_database(db.name + "_out")


def test_coll_stats_and_index_stats_and_current_op(client, orders):
    (stats,) = orders.aggregate([{"$collStats": {"count": {}, "storageStats": {}}}])
    assert stats["ns"] == orders.full_name and stats["count"] == 5 and stats["storageStats"]["count"] == 5
    names = {s["name"] for s in orders.aggregate([{"$indexStats": {}}])}
    assert names == {"_id_"}
    assert any(op["active"] for op in client.admin.aggregate([{"$currentOp": {}}]))


def test_without_a_collection(client, db):
    assert list(db.no_such.aggregate([{"$match": {}}])) == []
    assert list(db.no_such.aggregate([{"$count": "n"}])) == []
    assert list(db.no_such.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}])) == []


def test_let(orders):
    found = orders.aggregate([{"$match": {"$expr": {"$gt": ["$qty", "$$least"]}}}, {"$project": {"x": "$$least"}}], let={"least": 4})
    assert sorted((d["_id"], d["x"]) for d in found) == [(1, 4), (3, 4)]


def test_sums_of_all_number_types(coll):
    coll.insert_many([{"v": 1}, {"v": Int64(2)}, {"v": "not a number"}, {"v": None}, {"v": [100]}, {}])
    same(coll.aggregate([{"$group": {"_id": None, "s": {"$sum": "$v"}}}]), [{"_id": None, "s": Int64(3)}])
    coll.insert_one({"v": 0.5})
    same(coll.aggregate([{"$group": {"_id": None, "s": {"$sum": "$v"}}}]), [{"_id": None, "s": 3.5}])
    coll.insert_one({"v": Decimal128("0.1")})
    same(coll.aggregate([{"$group": {"_id": None, "s": {"$sum": "$v"}}}]), [{"_id": None, "s": Decimal128("3.6")}])


def test_sum_grows_past_an_int(coll):
    coll.insert_many([{"v": 2**31 - 1}, {"v": 1}])
    same(coll.aggregate([{"$group": {"_id": None, "s": {"$sum": "$v"}}}]), [{"_id": None, "s": Int64(2**31)}])


def test_groups_of_missing_and_null(coll):
    coll.insert_many([{"k": None}, {}, {"k": 1}, {"k": 1.0}])
    found = {repr(d["_id"]): d["n"] for d in coll.aggregate([{"$group": {"_id": "$k", "n": {"$sum": 1}}}])}
    assert found == {"None": 2, "1": 2}


def test_a_pipeline_of_much_data(coll):
    coll.insert_many([{"_id": i, "k": i % 1000, "pad": "x" * 100} for i in range(20_000)])
    found = list(coll.aggregate([{"$group": {"_id": "$k", "n": {"$sum": 1}, "s": {"$sum": "$_id"}}}, {"$sort": {"_id": 1}}]))
    assert found == [{"_id": k, "n": 20, "s": sum(range(k, 20_000, 1000))} for k in range(1000)]
    assert ids(coll.aggregate([{"$sort": {"k": -1, "_id": 1}}, {"$limit": 3}])) == [999, 1999, 2999]
    assert len(list(coll.aggregate([{"$sort": {"pad": 1, "k": 1}}], allowDiskUse=True))) == 20_000


ERRORS = [
    ([{"$nope": 1}], 40324, "Location40324", "Unrecognized pipeline stage name"),
    ([{"$match": 1}], 15959, None, None),
    ([{"$match": {"$nope": 1}}], 2, "BadValue", None),
    ([{"$project": {}}], 51272, None, None),
    ([{"$project": {"a": {"$nope": 1}}}], 31325, None, None),
    ([{"$addFields": {"a": {"$nope": 1}}}], 168, "InvalidPipelineOperator", "Unrecognized expression"),
    ([{"$addFields": 1}], 40272, None, None),
    ([{"$unset": 1}], 31002, None, None),
    ([{"$group": {"n": {"$sum": 1}}}], 15955, None, None),
    ([{"$group": 1}], 15947, None, None),
    ([{"$group": {"_id": 1, "n": {"$nope": 1}}}], 15952, None, None),
    ([{"$group": {"_id": 1, "n": 5}}], 40234, None, None),
    ([{"$sort": {}}], 15976, None, None),
    ([{"$sort": {"a": 5}}], 15975, None, None),
    ([{"$sort": 1}], 15973, None, None),
    ([{"$limit": 0}], 15958, None, None),
    ([{"$limit": -1}], 5107201, None, None),
    ([{"$skip": -1}], 5107200, None, None),
    ([{"$unwind": "tags"}], 28818, None, None),
    ([{"$unwind": {}}], 28812, None, None),
    ([{"$unwind": 1}], 15981, None, None),
    ([{"$count": ""}], 40157, None, None),
    ([{"$count": "$a"}], 40158, None, None),
    ([{"$count": "a.b"}], 40160, None, None),
    ([{"$count": 1}], 40156, None, None),
    ([{"$replaceRoot": {"newRoot": "$item"}}], 40228, None, None),
    ([{"$replaceRoot": 1}], 40229, None, None),
    ([{"$sample": 1}], 28745, None, None),
    ([{"$sample": {}}], 28749, None, None),
    ([{"$out": "x"}, {"$match": {}}], 40601, None, None),
    ([{"$collStats": {}}, {"$collStats": {}}], 40602, None, None),
    ([{"$match": {}, "$limit": 1}], 40323, None, None),
    ([{}], 40323, None, None),
    ([{"$project": {"x": {"$divide": [1, 0]}}}], 2, None, None),
    ([{"$project": {"x": {"$add": ["$item", 1]}}}], 14, None, None),
    ([{"$project": {"x": "$$nope"}}], 17276, None, None),
]


@pytest.mark.parametrize("pipeline, code, name, words", ERRORS, ids=[str(e[0]) for e in ERRORS])
def test_errors(orders, client, pipeline, code, name, words):
    with refuses(code, name, words):
        list(orders.aggregate(pipeline))
    assert client.admin.command("ping")["ok"] == 1


@pytest.mark.parametrize(
    "arguments, code",
    [
        ({"pipeline": []}, 9),
        ({"cursor": {}}, 40414),
        ({"pipeline": 1, "cursor": {}}, 14),
        ({"pipeline": [1], "cursor": {}}, 14),
        ({"pipeline": [], "cursor": 1}, 14),
        ({"pipeline": [], "cursor": {}, "nonsense": 1}, 40415),
        ({"pipeline": [], "cursor": {"batchSize": -1}}, 2),
    ],
)
def test_bad_arguments(orders, arguments, code):
    with refuses(code):
        orders.database.command("aggregate", orders.name, **arguments)


def test_dates_of_now(orders):
    (found,) = orders.aggregate([{"$limit": 1}, {"$project": {"_id": 0, "now": "$$NOW", "root": "$$ROOT._id"}}])
    assert abs((datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - found["now"]).total_seconds()) < 60


def merge(coll, docs, **stage):
    """Merges documents, in their order, into the collection."""
    return list(coll.database.aggregate([{"$documents": docs}, {"$merge": {"into": coll.name, **stage}}]))


def test_merge_on_another_field_needs_no_id(coll):
    coll.create_index("key", unique=True)
    coll.insert_one({"_id": 1, "key": "x", "old": True})
    merge(coll, [{"key": "x", "n": 1}, {"key": "x", "n": 2}], on="key", whenMatched="replace")
    assert list(coll.find()) == [{"_id": 1, "key": "x", "n": 2}], "it keeps its _id, and the last one wins"
    merge(coll, [{"key": "x", "m": 3}, {"key": "y"}], on="key", whenMatched="merge")
    assert coll.find_one({"_id": 1}) == {"_id": 1, "key": "x", "n": 2, "m": 3}
    assert coll.count_documents({"key": "y"}) == 1
    for mode in ["replace", "merge"]:
        with refuses(66):
            merge(coll, [{"_id": 9, "key": "x"}], on="key", whenMatched=mode)


def test_merge_on_nulls(coll):
    coll.create_index("key", unique=True)
    coll.insert_one({"_id": 1, "old": True})
    merge(coll, [{"key": None, "n": 1}], on="key")
    merge(coll, [{"n": 2}], on="key")
    assert list(coll.find()) == [{"_id": 1, "old": True, "key": None, "n": 2}]
    with refuses(51185):
        merge(coll, [{"key": [1]}], on="key")
    coll.drop_indexes()
    coll.create_index("key", unique=True, sparse=True)
    for doc in [{"key": None}, {"n": 1}]:
        with refuses(51132):
            merge(coll, [doc], on="key")


def test_merge_writes_what_it_can(coll):
    coll.insert_one({"_id": 2, "old": True})
    with refuses(11000):
        merge(coll, [{"_id": 1}, {"_id": 2}, {"_id": 3}], whenMatched="fail")
    assert list(coll.find()) == [{"_id": 1}, {"_id": 2, "old": True}, {"_id": 3}]
    with refuses(13113):
        merge(coll, [{"_id": 7}, {"_id": 3, "n": 1}], whenNotMatched="fail")
    assert list(coll.find({"n": 1})) == [{"_id": 3, "n": 1}]


def test_merge_inserts_as_an_upsert_does(coll):
    merge(coll, [{"_id": 1, "z": 1, "a": 2}], whenMatched="merge")
    merge(coll, [{"_id": 2, "z": 1, "a": 2}], whenMatched="replace")
    assert [list(d) for d in coll.find()] == [["_id", "a", "z"], ["_id", "z", "a"]]


def test_explain_of_merge_looks_at_its_key(coll):
    coll.insert_one({"_id": 1})
    with refuses(51183):
        coll.database.command("aggregate", coll.name, pipeline=[{"$merge": {"into": "t", "on": "x"}}], cursor={}, explain=True)


def test_list_cluster_catalog(db):
    db.create_collection("c", validator={"x": 1})
    db.create_collection("v", viewOn="c", pipeline=[])
    found = {d["ns"]: d for d in db.aggregate([{"$listClusterCatalog": {"shards": True}}])}
    c, v = found[f"{db.name}.c"], found[f"{db.name}.v"]
    assert set(found) == {c["ns"], v["ns"], f"{db.name}.system.views"} and c["db"] == db.name
    assert (c["type"], c["options"], c["sharded"], c["shards"]) == ("collection", {"validator": {"x": 1}}, False, [])
    assert c["idIndex"]["name"] == "_id_" and c["info"]["readOnly"] is False
    assert v["type"] == "view" and v["options"]["viewOn"] == "c" and "idIndex" not in v
    everywhere = [d["ns"] for d in db.client.admin.aggregate([{"$listClusterCatalog": {}}, {"$match": {"db": db.name}}])]
    assert set(everywhere) == set(found)
    for stage, code in [({"x": 1}, 40415), ({"shards": 1}, 14), (None, 9621302)]:
        with refuses(code):
            db.aggregate([{"$listClusterCatalog": stage}])
    with refuses(9621301):
        db.c.aggregate([{"$listClusterCatalog": {}}])


def test_options_of_stages_that_tell(coll):
    coll.insert_one({"_id": 1})
    assert list(coll.aggregate([{"$planCacheStats": {"allHosts": False}}])) == []
    for stage, code in [({"x": 1}, 9), ({"allHosts": 1}, 13111), ({"allHosts": True}, 4503200)]:
        with refuses(code):
            coll.aggregate([{"$planCacheStats": stage}])
    with refuses(50933):
        coll.database.no_such.aggregate([{"$planCacheStats": {}}])
    (stats,) = coll.aggregate([{"$collStats": {"storageStats": {"later": 1}, "count": None}}])
    assert "storageStats" in stats and "count" not in stats
    with refuses(14):
        coll.aggregate([{"$collStats": {"latencyStats": {"histograms": None}}}])


def test_let_is_computed_before_anything_is_read(orders):
    for value, code in [("$qty", 4890500), ("$$ROOT", 4890500), ("$$NOW", 51144), ({"$year": "$$NOW"}, 51144), ("$$CLUSTER_TIME", 51144)]:
        with refuses(code):
            orders.aggregate([], let={"v": value})
        with refuses(code):
            orders.database.command("find", orders.name, let={"v": value})
    first = {"$arrayElemAt": [[4, 5], 0]}
    assert len(list(orders.aggregate([{"$match": {"$expr": {"$gt": ["$qty", "$$v"]}}}], let={"v": first}))) == 2


def window(coll, function, documents, bounds):
    coll.drop()
    coll.insert_many([{"_id": i, "x": x, "y": y} for i, (x, y) in enumerate(documents)])
    spec = {"sortBy": {"_id": 1}, "output": {"r": {function: ["$x", "$y"] if "cov" in function else "$x", "window": {"documents": bounds}}}}
    return [d["r"] for d in coll.aggregate([{"$setWindowFields": spec}])]


def test_covariance_and_deviation_at_the_edges(coll):
    whole = ["unbounded", "unbounded"]
    decimals = [(Decimal128(str(n)), Decimal128(str(2 * n))) for n in (1, 2, 3)]
    # The digits are those of MongoDB's own arithmetic.
    assert [str(r) for r in window(coll, "$covarianceSamp", decimals, whole)] == ["2"] * 3
    same = [(Decimal128("42.5"), Decimal128("99.9"))] * 3
    assert [str(r) for r in window(coll, "$covariancePop", same, whole)] == ["0E+12"] * 3
    huge = 1e308
    assert window(coll, "$covariancePop", [(huge, 1.0), (huge, 2.0)], whole) == [0.0, 0.0]
    infinite = float("inf")
    assert all(r != r for r in window(coll, "$covariancePop", [(infinite, -infinite), (2, 20), (3, 30)], whole))
    assert window(coll, "$stdDevPop", [(huge, 0)] * 3, whole) == [0.0] * 3


def test_facets_of_groups_are_the_groups_by_themselves(coll):
    coll.insert_many([{"_id": i, "a": i % 7, "b": {"c": f"x{i % 3}"}, "t": [i % 2, "y", [i]], "z": None} for i in range(60)])
    parts = {
        "one": [{"$group": {"_id": "$a", "n": {"$sum": 1}, "all": {"$push": "$_id"}}}, {"$sort": {"_id": 1}}],
        "two": [{"$group": {"_id": "$b.c", "last": {"$last": "$t"}}}, {"$match": {"_id": {"$ne": "x1"}}}, {"$sort": {"_id": 1}}],
        "none": [{"$group": {"_id": None, "m": {"$max": "$_id"}}}],
    }
    alone = {name: list(coll.aggregate(stages)) for name, stages in parts.items()}
    assert list(coll.aggregate([{"$facet": parts}])) == [alone]
    # A part that begins with something else has all of them look at the same documents.
    more = dict(parts, few=[{"$match": {"a": 3}}, {"$count": "n"}])
    assert list(coll.aggregate([{"$facet": more}])) == [{**alone, "few": [{"n": 9}]}]
    empty = [{"$match": {"a": 99}}, {"$facet": parts}]
    assert list(coll.aggregate(empty)) == [{"one": [], "two": [], "none": []}]


def test_an_unwound_element_takes_the_place_of_the_array(coll):
    coll.insert_many([{"_id": 1, "a": 1, "t": [5, {"x": 1}, [2], "s", None], "z": "end"}, {"_id": 2, "t": [], "z": 1}, {"_id": 3, "t": 7}])
    rest = [{"_id": 1, "a": 1, "t": t, "z": "end"} for t in (5, {"x": 1}, [2], "s", None)]
    found = list(coll.aggregate([{"$unwind": "$t"}]))
    assert found == [*rest, {"_id": 3, "t": 7}]
    assert [list(d) for d in found] == [["_id", "a", "t", "z"]] * 5 + [["_id", "t"]]
    kept = list(coll.aggregate([{"$unwind": {"path": "$t", "preserveNullAndEmptyArrays": True}}]))
    assert kept == [*rest, {"_id": 2, "z": 1}, {"_id": 3, "t": 7}]
    # In batches, which begin in the middle of an array.
    assert list(coll.aggregate([{"$unwind": "$t"}], batchSize=2)) == found
    groups = [{"$unwind": "$t"}, {"$group": {"_id": {"$type": "$t"}, "n": {"$sum": 1}}}, {"$sort": {"n": -1, "_id": 1}}]
    assert [(d["_id"], d["n"]) for d in coll.aggregate(groups)][0] == ("int", 2)
