"""Index filters: which indexes queries of one shape may use."""

import pytest

from harness import leaf, refuses, used


@pytest.fixture
def things(coll):
    coll.insert_many([{"a": i % 5, "b": i, "c": i} for i in range(50)])
    coll.create_index([("a", 1), ("b", 1)])
    coll.create_index([("a", 1), ("c", 1)])
    return coll


def test_a_filter_is_stronger_than_a_hint(things):
    command = things.database.command
    for index, name in [({"a": 1, "c": 1}, "a_1_c_1"), ({"a": 1, "b": 1}, "a_1_b_1"), ("a_1_c_1", "a_1_c_1")]:
        command("planCacheSetFilter", things.name, query={"a": 7}, indexes=[index])
        assert used(things, {"a": 1}) == name
        assert used(things, {"a": 1}, hint="a_1_b_1") == name
        assert things.count_documents({"a": 1}) == 10
    explained = command("explain", {"find": things.name, "filter": {"a": 1}}, verbosity="queryPlanner")
    assert explained["queryPlanner"]["indexFilterSet"] is True
    # Another shape is not concerned.
    assert used(things, {"a": {"$gt": 3}}, hint="a_1_b_1") == "a_1_b_1"
    command("planCacheSetFilter", things.name, query={"a": 7}, indexes=[{"nowhere": 1}])
    assert used(things, {"a": 1}) == "COLLSCAN"


@pytest.mark.parametrize("index", ["a_1_b_1", "a_1_c_1"])
def test_it_holds_for_distinct(things, index):
    things.database.command("planCacheSetFilter", things.name, query={"a": 7}, indexes=[index])
    distinct = {"distinct": things.name, "key": "a", "query": {"a": 1}}
    plan = things.database.command("explain", distinct, verbosity="queryPlanner")["queryPlanner"]
    assert plan["indexFilterSet"] is True
    assert leaf(plan["winningPlan"])["indexName"] == index
    assert things.distinct("a", {"a": 1}) == [1]


def test_list_and_clear(things):
    command = things.database.command
    command("planCacheSetFilter", things.name, query={"a": 1}, sort={"b": 1}, indexes=[{"a": 1, "b": 1}])
    command("planCacheSetFilter", things.name, query={"b": 1}, indexes=["a_1_c_1"], collation={"locale": "en"})
    listed = command("planCacheListFilters", things.name)["filters"]
    assert [(f["query"], f["sort"], f["projection"], f["indexes"]) for f in listed] == [
        ({"a": 1}, {"b": 1}, {}, [{"a": 1, "b": 1}]),
        ({"b": 1}, {}, {}, ["a_1_c_1"]),
    ]
    assert listed[1]["collation"]["locale"] == "en" and "collation" not in listed[0]
    command("planCacheClearFilters", things.name, query={"a": 5}, sort={"b": 1})
    assert len(command("planCacheListFilters", things.name)["filters"]) == 1
    command("planCacheClearFilters", things.name)
    assert command("planCacheListFilters", things.name)["filters"] == []


def test_what_is_refused(things):
    command = things.database.command
    for arguments in [
        {"indexes": [{"a": 1}]},
        {"query": 1, "indexes": [{"a": 1}]},
        {"query": {}, "indexes": []},
        {"query": {}, "indexes": [1]},
        {"query": {}},
        {"query": {}, "sort": 1, "indexes": [{"a": 1}]},
    ]:
        with refuses(2):
            command("planCacheSetFilter", things.name, **arguments)
    with refuses(2):
        command("planCacheSetFilter", "missing", query={}, indexes=[{"a": 1}])


def test_plans_are_not_cached(things):
    """Every query is planned anew: the cache is always empty, and clearing it (whole or one shape) does nothing."""
    for i in range(5):
        assert things.count_documents({"a": i}) == 10
    explained = things.database.command("explain", {"find": things.name, "filter": {"a": 1}}, verbosity="queryPlanner")
    assert explained["queryPlanner"]["winningPlan"]["isCached"] is False
    assert list(things.aggregate([{"$planCacheStats": {}}, {"$match": {"isActive": True}}])) == []
    command = things.database.command
    for arguments in {}, {"query": {"a": 1}}, {"query": {"a": 1}, "sort": {"b": 1}}:
        assert command("planCacheClear", things.name, **arguments)["ok"] == 1
    with refuses(2):
        command("planCacheClear", things.name, sort={"b": 1})
    with refuses(40602):
        list(things.aggregate([{"$match": {}}, {"$planCacheStats": {}}]))


def test_the_winner_of_a_race_is_kept(coll):
    """An order with a limit against a narrow filter: only running both can tell."""
    coll.create_index("a")
    coll.create_index("e")
    coll.insert_many([{"a": i % 10, "e": i, "d": i % 977} for i in range(5000)])
    query = {"a": 1, "d": 531}
    assert [d["e"] for d in coll.find(query).sort("e", 1).limit(1)] == [531]
    [row] = coll.aggregate([{"$planCacheStats": {}}])
    assert row["isActive"] and row["works"] > 0 and row["cachedPlan"]["stage"]
    assert row["createdFromQuery"] == {"query": {"$and": [{"a": {"$eq": 1}}, {"d": {"$eq": 531}}]}, "sort": {"e": 1}, "projection": {}}
    told = coll.database.command("explain", {"find": coll.name, "filter": query, "sort": {"e": 1}, "limit": 1}, verbosity="executionStats")
    assert told["queryPlanner"]["planCacheShapeHash"] == row["planCacheShapeHash"]
    # The other plan, and what it was thought to cost.
    [rejected] = told["queryPlanner"]["rejectedPlans"]
    assert rejected["costEstimate"] > 0 and rejected["keysEstimate"] > 0
    # Ten times what the best reads, at most.
    assert told["executionStats"]["totalKeysExamined"] <= 5000
    coll.database.command("planCacheClear", coll.name, query={"a": 5, "d": 5}, sort={"e": -1})
    assert len(list(coll.aggregate([{"$planCacheStats": {}}]))) == 1
    coll.database.command("planCacheClear", coll.name, query={"a": 5, "d": 5}, sort={"e": 1})
    assert list(coll.aggregate([{"$planCacheStats": {}}])) == []
