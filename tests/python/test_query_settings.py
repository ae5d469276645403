"""Query settings: what an administrator sets for all queries of one shape."""

import pytest

from harness import refuses, used


@pytest.fixture
def admin(client):
    yield client.admin
    for setting in client.admin.aggregate([{"$querySettings": {}}]):
        client.admin.command("removeQuerySettings", setting["queryShapeHash"])


@pytest.fixture
def things(coll):
    coll.insert_many([{"a": i % 5, "b": i, "c": i} for i in range(50)])
    coll.create_index([("a", 1), ("b", 1)])
    coll.create_index([("a", 1), ("c", 1)])
    return coll


def find(coll, query, **more):
    return {"find": coll.name, "filter": query, **more, "$db": coll.database.name}


def hints(coll, *indexes):
    return {"indexHints": [{"ns": {"db": coll.database.name, "coll": coll.name}, "allowedIndexes": list(indexes)}]}


def test_allowed_indexes_are_stronger_than_a_hint(admin, things):
    for index, name in [("a_1_c_1", "a_1_c_1"), ({"a": 1, "b": 1}, "a_1_b_1"), ("$natural", "COLLSCAN")]:
        admin.command("setQuerySettings", find(things, {"a": 7}), settings=hints(things, index))
        assert used(things, {"a": 1}) == name
        assert used(things, {"a": 3}, hint="a_1_b_1") == name
        assert things.count_documents({"a": 1}) == 10
        assert len(list(things.find({"a": 1}))) == 10
    explained = things.database.command("explain", {"find": things.name, "filter": {"a": 1}})
    assert explained["queryPlanner"]["querySettings"] == hints(things, "$natural")
    # Another shape is not concerned, and what serves no query of the shape is passed over.
    assert used(things, {"a": {"$gt": 3}}, hint="a_1_c_1") == "a_1_c_1"
    for useless in ["nowhere", "_id_"]:
        admin.command("setQuerySettings", find(things, {"a": 7}), settings=hints(things, useless))
        assert used(things, {"a": 1}).startswith("a_1_")


def test_rejected_queries(admin, things):
    rejected = [
        (find(things, {"a": 1}), lambda: list(things.find({"a": 2}))),
        (
            {"distinct": things.name, "key": "b", "query": {"a": 1}, "$db": things.database.name},
            lambda: things.distinct("b", {"a": 2}),
        ),
        (
            {"aggregate": things.name, "pipeline": [{"$match": {"a": 1}}], "$db": things.database.name},
            lambda: list(things.aggregate([{"$match": {"a": 2}}])),
        ),
    ]
    for query, run in rejected:
        before = run()
        admin.command("setQuerySettings", query, settings={"reject": True})
        with refuses(411, "QueryRejectedBySettings"):
            run()
        admin.command("removeQuerySettings", query)
        assert run() == before
    # Other shapes run on: another type, another field, a sort more.
    admin.command("setQuerySettings", find(things, {"a": 1}), settings={"reject": True})
    assert list(things.find({"a": "x"})) == [] and len(list(things.find({"b": 1}))) == 1
    assert len(list(things.find({"a": 1}).sort("b"))) == 10
    # A rejected query can still be explained.
    things.database.command("explain", {"find": things.name, "filter": {"a": 1}})


def test_what_is_told(admin, things):
    query = find(things, {"a": 1}, sort={"b": 1})
    reply = admin.command("setQuerySettings", query, settings={**hints(things, "_id_"), "comment": {"by": "me"}})
    shape = reply["queryShapeHash"]
    assert len(shape) == 64 and reply["representativeQuery"] == query
    explained = things.database.command("explain", {"find": things.name, "filter": {"a": 9}, "sort": {"b": 1}})
    assert explained["queryShapeHash"] == shape
    # A missing field stays, and the hash is enough for a known shape.
    changed = admin.command("setQuerySettings", shape, settings={"queryFramework": "classic"})
    kept = {**hints(things, "_id_"), "queryFramework": "classic", "comment": {"by": "me"}}
    assert changed["settings"] == kept
    row = {"queryShapeHash": shape, "settings": kept, "representativeQuery": query}
    assert list(admin.aggregate([{"$querySettings": {}}])) == [row]
    shown = list(admin.aggregate([{"$querySettings": {"showDebugQueryShape": True}}]))[0]["debugQueryShape"]
    assert shown == {
        "cmdNs": {"db": things.database.name, "coll": things.name},
        "command": "find",
        "filter": {"a": {"$eq": "?number"}},
        "sort": {"b": 1},
    }
    admin.command("removeQuerySettings", shape.lower())
    assert list(admin.aggregate([{"$querySettings": {}}])) == []


def test_they_outlive_the_server(new_server):
    server = new_server()
    with server.client() as client:
        client.db.c.insert_one({"a": 1})
        client.admin.command("setQuerySettings", find(client.db.c, {"a": 1}), settings={"reject": True})
    server.restart()
    with server.client() as client:
        with refuses(411):
            list(client.db.c.find({"a": 5}))
        client.admin.command("removeQuerySettings", find(client.db.c, {"a": 0}))
        assert len(list(client.db.c.find({"a": 1}))) == 1


def test_what_is_refused(admin, things):
    good = hints(things, "_id_")
    shape = find(things, {"a": 1})
    for query, settings, code in [
        (1, good, 14),
        ("ab", good, 16),
        ("x" * 64, good, 2),
        ("0" * 64, good, 7746401),
        ({"find": "c"}, good, 40414),
        ({"insert": "c", "$db": "d"}, good, 7746402),
        ({"find": "c", "$db": ""}, good, 73),
        ({"find": "c", "$db": "local"}, good, 8584900),
        (find(things, {"_id": 1}), good, 7746606),
        (find(things, {"$nothing": 1}), good, 2),
        (shape, {}, 8727502),
        (shape, {"comment": "only"}, 7746604),
        (shape, {"reject": False}, 7746604),
        (shape, {"reject": 1}, 14),
        (shape, hints(things), 7746604),
        (shape, hints(things, 1), 9),
        (shape, {"queryFramework": "none"}, 2),
        (shape, {"nothing": 1}, 40415),
        (shape, {"indexHints": [{"ns": {"db": "d"}, "allowedIndexes": ["x"]}]}, 8727501),
    ]:
        with refuses(code):
            admin.command("setQuerySettings", query, settings=settings)
    with refuses(40414):
        admin.command("setQuerySettings", shape)
    with refuses(7746800):
        list(admin.aggregate([{"$querySettings": 1}]))
    assert list(admin.aggregate([{"$querySettings": {}}])) == []
