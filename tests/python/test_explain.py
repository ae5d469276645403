"""explain tells the truth: which plan, and what it examined."""

import pytest

from harness import execution, leaf, refuses, stages, winning


@pytest.fixture(scope="module")
def things(client):
    coll = client.test_explain.things
    coll.drop()
    coll.insert_many([{"_id": i, "a": i % 100, "b": i, "c": f"name {i:05}", "l": [i, i + 1]} for i in range(2000)])
    coll.create_index("a")
    coll.create_index([("b", 1), ("c", -1)])
    coll.create_index("l")
    yield coll
    coll.drop()


def find(things, **arguments):
    return execution(things, {"find": things.name, **arguments})


def examined(stats):
    return stats["totalKeysExamined"], stats["totalDocsExamined"], stats["nReturned"]


def test_collection_scan(things):
    plan, stats = find(things, filter={"x": 1})
    assert stages(plan) == ["COLLSCAN"] and plan["direction"] == "forward"
    assert examined(stats) == (0, 2000, 0)


def test_by_id(things):
    plan, stats = find(things, filter={"_id": 5})
    assert stages(plan)[0] in ("IDHACK", "EXPRESS_IXSCAN")
    assert examined(stats) == (1, 1, 1)


def test_index_scan(things):
    plan, stats = find(things, filter={"a": 5})
    assert stages(plan) == ["FETCH", "IXSCAN"]
    scan = leaf(plan)
    assert scan["indexName"] == "a_1" and scan["keyPattern"] == {"a": 1} and scan["isMultiKey"] is False
    assert scan["indexBounds"] == {"a": ["[5, 5]"]} and scan["direction"] == "forward"
    assert examined(stats) == (20, 20, 20)


def test_range_bounds(things):
    plan, stats = find(things, filter={"b": {"$gte": 10, "$lt": 20}})
    assert leaf(plan)["indexBounds"]["b"] == ["[10, 20)"]
    assert leaf(plan)["indexBounds"]["c"] == ["[MaxKey, MinKey]"]
    keys, docs, returned = examined(stats)
    assert docs == returned == 10 and keys in (10, 11)


def test_in_bounds(things):
    plan, stats = find(things, filter={"b": {"$in": [3, 1, 700]}})
    assert leaf(plan)["indexBounds"]["b"] == ["[1, 1]", "[3, 3]", "[700, 700]"]
    keys, docs, returned = examined(stats)
    assert docs == returned == 3 and keys <= 6


def test_covered(things):
    plan, stats = find(things, filter={"b": {"$lt": 10}}, projection={"_id": 0, "b": 1, "c": 1})
    assert stages(plan) == ["PROJECTION_COVERED", "IXSCAN"]
    keys, docs, returned = examined(stats)
    assert docs == 0 and returned == 10 and keys in (10, 11)


def test_not_covered_when_an_index_has_arrays(things):
    plan, stats = find(things, filter={"l": 5}, projection={"_id": 0, "l": 1})
    assert "FETCH" in stages(plan) and leaf(plan)["isMultiKey"] is True
    assert stats["totalDocsExamined"] == 2


def test_order_from_an_index(things):
    plan, stats = find(things, sort={"b": 1, "c": -1}, limit=5)
    assert "SORT" not in stages(plan) and leaf(plan)["indexName"] == "b_1_c_-1"
    assert examined(stats) == (5, 5, 5)
    plan, stats = find(things, sort={"b": -1, "c": 1}, limit=5)
    assert "SORT" not in stages(plan) and leaf(plan)["direction"] == "backward"


def test_order_in_memory(things):
    plan, stats = find(things, filter={"a": {"$lt": 3}}, sort={"c": 1}, limit=5)
    assert "SORT" in stages(plan)
    sort = plan
    while sort["stage"] != "SORT":
        sort = sort["inputStage"]
    assert sort["sortPattern"] == {"c": 1} and sort["limitAmount"] == 5
    assert stats["nReturned"] == 5 and stats["totalDocsExamined"] == 60


def test_skipped_entries_are_not_fetched(things):
    """Where the index decides order and filter, only what is returned is fetched."""
    plan, stats = find(things, filter={"b": {"$gte": 100, "$lt": 1100}}, sort={"b": -1}, skip=100, limit=10)
    assert {"FETCH", "SKIP", "IXSCAN", "LIMIT"} >= set(stages(plan)) and "SKIP" in stages(plan)
    assert stages(plan).index("FETCH") < stages(plan).index("SKIP"), "the skip stands below the fetch"
    keys, docs, returned = examined(stats)
    assert (docs, returned) == (10, 10) and keys <= 112


def test_or(things):
    plan, stats = find(things, filter={"$or": [{"a": 5}, {"b": 7}]})
    names = str(stages(plan))
    assert "OR" in names and names.count("IXSCAN") == 2 and "COLLSCAN" not in names
    assert stats["nReturned"] == 21


def test_a_residual_filter_is_shown(things):
    plan, stats = find(things, filter={"a": 5, "c": "name 00105"})
    assert plan["stage"] == "FETCH" and plan["filter"] == {"c": {"$eq": "name 00105"}}
    assert examined(stats) == (20, 20, 1)


def test_hint_is_obeyed(things):
    plan, _ = find(things, filter={"a": 5}, hint={"$natural": 1})
    assert stages(plan) == ["COLLSCAN"]
    plan, _ = find(things, filter={"a": 5}, hint="b_1_c_-1")
    assert leaf(plan)["indexName"] == "b_1_c_-1"


def test_nothing_there(client):
    reply = client.test_explain.command("explain", {"find": "no_such", "filter": {"a": 1}})
    assert winning(reply)["stage"] == "EOF"


def test_verbosities(things):
    command = {"find": things.name, "filter": {"a": 5}}
    planner = things.database.command("explain", command, verbosity="queryPlanner")
    assert "executionStats" not in planner and planner["queryPlanner"]["namespace"] == things.full_name
    assert planner["queryPlanner"]["parsedQuery"] == {"a": {"$eq": 5}}
    assert planner["queryPlanner"]["rejectedPlans"] == [] or isinstance(planner["queryPlanner"]["rejectedPlans"], list)
    assert {"host", "port", "version"} <= set(planner["serverInfo"])
    whole = things.database.command("explain", command, verbosity="allPlansExecution")
    assert "allPlansExecution" in whole["executionStats"]
    with refuses(2):
        things.database.command("explain", command, verbosity="nope")


def test_execution_stages(things):
    reply = things.database.command("explain", {"find": things.name, "filter": {"a": 5}}, verbosity="executionStats")
    stats = reply["executionStats"]
    assert stats["executionSuccess"] is True and isinstance(stats["executionTimeMillis"], int)
    top = stats["executionStages"]
    assert top["stage"] == "FETCH" and top["nReturned"] == 20 and top["docsExamined"] == 20
    assert top["inputStage"]["stage"] == "IXSCAN" and top["inputStage"]["keysExamined"] == 20


def test_count(things):
    plan, stats = execution(things, {"count": things.name, "query": {"b": {"$gte": 100, "$lt": 1100}}})
    assert stats["totalDocsExamined"] == 0, "counting over an index fetches nothing"
    assert stats["totalKeysExamined"] in (1000, 1001)
    assert "COUNT_SCAN" in stages(plan)
    plan, stats = execution(things, {"count": things.name})
    assert stages(plan) == ["RECORD_STORE_FAST_COUNT"]


def test_writes_are_not_done(things):
    for command in (
        {"delete": things.name, "deletes": [{"q": {"a": 5}, "limit": 0}]},
        {"update": things.name, "updates": [{"q": {"a": 5}, "u": {"$set": {"z": 1}}, "multi": True}]},
        {"findAndModify": things.name, "query": {"a": 5}, "remove": True},
    ):
        reply = things.database.command("explain", command, verbosity="executionStats")
        assert leaf(winning(reply))["indexName"] == "a_1", command
    assert things.count_documents({"a": 5, "z": {"$exists": False}}) == 20


def test_distinct(things):
    plan, _ = execution(things, {"distinct": things.name, "key": "a", "query": {"a": {"$gt": 50}}})
    assert leaf(plan)["stage"] in ("DISTINCT_SCAN", "IXSCAN")


def test_aggregate(things):
    def planner(pipeline):
        reply = things.database.command("explain", {"aggregate": things.name, "pipeline": pipeline, "cursor": {}})
        return winning(reply["stages"][0]["$cursor"] if "stages" in reply else reply)

    assert leaf(planner([{"$match": {"a": 5}}, {"$group": {"_id": "$b"}}]))["indexName"] == "a_1"
    assert leaf(planner([{"$sort": {"b": 1, "c": -1}}, {"$limit": 5}]))["indexName"] == "b_1_c_-1"
    assert leaf(planner([{"$match": {"x": 5}}]))["stage"] == "COLLSCAN"


def test_helper_of_the_driver(things):
    assert winning(things.find({"a": 5}).explain())["stage"] == "FETCH"
