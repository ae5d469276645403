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
    """Where the index decides order and filter, only returned documents are fetched."""
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


@pytest.fixture(scope="module")
def shops(client):
    db = client.test_explain_stages
    client.drop_database(db.name)
    db.orders.insert_many([{"_id": i, "shop": i % 10, "sum": i, "day": i % 7} for i in range(500)])
    db.orders.create_index("day")
    db.shops.insert_many([{"_id": i, "code": i, "name": f"shop {i}"} for i in range(20)])
    yield db
    client.drop_database(db.name)


def run(db, pipeline, verbosity="executionStats", collection="orders"):
    command = {"aggregate": collection, "pipeline": pipeline, "cursor": {}}
    return db.command("explain", command, verbosity=verbosity)


@pytest.mark.parametrize("verbosity", ["executionStats", "allPlansExecution"])
def test_aggregate_counts_every_stage(shops, verbosity):
    pipeline = [
        {"$match": {"day": 3}},
        {"$set": {"half": {"$divide": ["$sum", 2]}}},
        {"$match": {"half": {"$gte": 100}}},
        {"$group": {"_id": "$shop", "total": {"$sum": "$half"}, "days": {"$push": "$day"}}},
        {"$sort": {"total": -1}},
        {"$limit": 4},
    ]
    reply = run(shops, pipeline, verbosity)
    matching = list(shops.orders.aggregate(pipeline[:1]))
    late = list(shops.orders.aggregate(pipeline[:3]))
    cursor, *rest = reply["stages"]
    stats = cursor["$cursor"]["executionStats"]
    assert examined(stats) == (len(matching),) * 3 and stats["executionSuccess"] is True
    assert leaf(stats["executionStages"])["indexName"] == "day_1"
    assert cursor["nReturned"] == len(matching)
    assert [list(s)[0] for s in rest] == ["$set", "$match", "$group", "$sort"]
    assert [s["nReturned"] for s in rest] == [len(matching), len(late), 10, 4]
    times = [s["executionTimeMillisEstimate"] for s in [cursor, *rest]]
    assert times == sorted(times), "a stage's time has that of the stages below in it"
    group, sort = rest[2:]
    memory = group["maxAccumulatorMemoryUsageBytes"]
    assert set(memory) == {"total", "days"} and memory["days"] > memory["total"] > 0
    assert group["totalOutputDataSizeBytes"] > 10 * 20
    assert (group["usedDisk"], group["spills"], group["spilledRecords"]) == (False, 0, 0)
    assert sort["$sort"] == {"sortKey": {"total": -1}, "limit": 4}
    assert sort["totalDataSizeSortedBytesEstimate"] > 0 and sort["usedDisk"] is False


def test_aggregate_says_nothing_of_a_run_that_was_not_asked_for(shops):
    pipeline = [{"$match": {"day": 3}}, {"$group": {"_id": "$shop"}}]
    planner = run(shops, pipeline, "queryPlanner")
    by_option = shops.command("aggregate", "orders", pipeline=pipeline, explain=True)
    for reply in planner, by_option:
        assert "stages" not in reply and "executionStats" not in reply
        assert stages(reply["queryPlanner"]["winningPlan"]["queryPlan"]) == ["GROUP", "FETCH", "IXSCAN"]
    unwound = run(shops, [pipeline[0], {"$unwind": "$shop"}, pipeline[1]], "queryPlanner")["stages"]
    assert set(unwound[0]) == {"$cursor"} and set(unwound[0]["$cursor"]) == {"queryPlanner"}
    assert unwound[2] == {"$group": {"_id": "$shop"}}


def test_a_group_after_the_query_is_the_top_of_its_plan(shops):
    pipeline = [{"$match": {"day": 3}}, {"$group": {"_id": "$shop", "n": {"$sum": 1}}}]
    reply = run(shops, pipeline)
    planner, stats = reply["queryPlanner"], reply["executionStats"]
    plan = planner["winningPlan"]
    assert reply["explainVersion"] == "2" and plan["isCached"] is False and planner["rejectedPlans"] == []
    group = plan["queryPlan"]
    assert stages(group) == ["GROUP", "FETCH", "IXSCAN"]
    assert [group["planNodeId"], group["inputStage"]["planNodeId"]] == [3, 2]
    assert stats["nReturned"] == 10 and stats["totalDocsExamined"] == 71
    ran = stats["executionStages"]
    assert (ran["stage"], ran["nReturned"], ran["inputStage"]["nReturned"]) == ("GROUP", 10, 71)
    assert stages(run(shops, pipeline[1:])["queryPlanner"]["winningPlan"]["queryPlan"]) == ["GROUP", "COLLSCAN"]

    reply = run(shops, [*pipeline, {"$sort": {"n": -1}}, {"$limit": 2}])
    cursor, sort = reply["stages"]
    assert cursor["nReturned"] == 10 and sort["nReturned"] == 2
    assert stages(cursor["$cursor"]["queryPlanner"]["winningPlan"]["queryPlan"])[0] == "GROUP"


@pytest.mark.parametrize(
    "pipeline",
    [
        [{"$match": {"_id": 3}}, {"$group": {"_id": "$shop"}}],
        [{"$group": {"_id": None, "m": {"$median": {"input": "$sum", "method": "approximate"}}}}],
        [{"$unwind": "$shop"}, {"$group": {"_id": "$shop"}}],
    ],
    ids=["one document", "a median", "not the first stage"],
)
def test_a_group_that_another_engine_does_is_a_stage(shops, pipeline):
    reply = run(shops, pipeline)
    assert reply["explainVersion"] == "1" and "$group" in reply["stages"][-1]


def test_the_classic_engine_has_a_group_as_a_stage(shops):
    admin = shops.client.admin
    admin.command("setParameter", 1, internalQueryFrameworkControl="forceClassicEngine")
    try:
        assert run(shops, [{"$group": {"_id": "$shop"}}])["stages"][1]["$group"] == {"_id": "$shop"}
    finally:
        admin.command("setParameter", 1, internalQueryFrameworkControl="trySbeRestricted")


def test_aggregate_that_a_query_answers(shops):
    reply = run(shops, [{"$match": {"day": 3}}, {"$sort": {"sum": 1}}, {"$limit": 3}])
    assert "stages" not in reply
    assert reply["executionStats"]["nReturned"] == 3 and reply["executionStats"]["totalDocsExamined"] == 71


def test_lookup_says_what_it_examined(shops):
    def lookup(**spec):
        spec = {"from": "shops", "as": "found", **spec}
        stages = run(shops, [{"$match": {"_id": {"$lt": 5}}}, {"$lookup": spec}])["stages"]
        stage = stages[1]
        assert stage["nReturned"] == 5
        return [stage[n] for n in ("totalDocsExamined", "totalKeysExamined", "collectionScans", "indexesUsed")]

    assert lookup(localField="shop", foreignField="code") == [100, 0, 5, []]
    assert lookup(localField="shop", foreignField="_id") == [5, 5, 0, ["_id_"]]
    shops.shops.create_index("code")
    try:
        assert lookup(localField="shop", foreignField="code") == [5, 5, 0, ["code_1"]]
        inner = [{"$match": {"code": {"$lt": 3}, "$expr": {"$ne": ["$code", "$$s"]}}}, {"$project": {"name": 1}}]
        docs, _, scans, indexes = lookup(let={"s": "$shop"}, pipeline=inner)
        assert (docs, scans, indexes) == (15, 0, ["code_1"])
    finally:
        shops.shops.drop_index("code_1")


def test_facet_shows_its_stages(shops):
    stage = run(shops, [{"$facet": {"n": [{"$count": "n"}], "late": [{"$match": {"sum": {"$gte": 490}}}]}}])["stages"][1]
    assert stage["$facet"]["n"][0]["nReturned"] == 1 and stage["$facet"]["late"][0]["nReturned"] == 10
    assert stage["nReturned"] == 1


def test_a_pipeline_that_writes_does_not_when_it_is_explained(shops):
    for last in {"$out": "copied"}, {"$merge": {"into": "shops"}}:
        before = list(shops.shops.find().sort("_id", 1))
        stages = run(shops, [{"$match": {"day": 3}}, last])["stages"]
        assert stages[0]["nReturned"] == 71 and stages[1]["nReturned"] == 0
        assert "copied" not in shops.list_collection_names()
        assert list(shops.shops.find().sort("_id", 1)) == before


def test_aggregate_counting_a_collection_looks_at_nothing(shops):
    stages = run(shops, [{"$count": "n"}])["stages"]
    stats = stages[0]["$cursor"]["executionStats"]
    assert stats["executionStages"]["stage"] == "RECORD_STORE_FAST_COUNT" and examined(stats) == (0, 0, 0)
    assert stages[1]["$count"] == "n" and stages[1]["nReturned"] == 1


def test_aggregate_covered_by_an_index(shops):
    reply = run(shops, [{"$match": {"day": {"$gte": 5}}}, {"$group": {"_id": "$day", "n": {"$sum": 1}}}])
    assert stages(reply["queryPlanner"]["winningPlan"]["queryPlan"])[:2] == ["GROUP", "PROJECTION_COVERED"]
    assert reply["executionStats"]["totalDocsExamined"] == 0 and reply["executionStats"]["nReturned"] == 2


def test_a_run_that_fails_fails_explain(shops):
    with refuses(2, containing="divide by zero"):
        run(shops, [{"$project": {"x": {"$divide": [1, 0]}}}])


def test_all_plans_run_against_each_other(coll):
    coll.insert_many([{"a": i % 7, "b": i, "d": i % 50} for i in range(5000)])
    for key in ("a", "d"):
        coll.create_index(key)

    def explained(verbosity, command, query):
        pipeline = [{"$match": query}, {"$group": {"_id": "$b"}}]
        command = {"find": coll.name, "filter": query} if command == "find" else {"aggregate": coll.name, "pipeline": pipeline, "cursor": {}}
        return coll.database.command("explain", command, verbosity=verbosity)

    query = {"a": 3, "d": {"$gt": 10}}
    assert "allPlansExecution" not in explained("executionStats", "find", query)["executionStats"]
    for command in ("find", "aggregate"):
        reply = explained("allPlansExecution", command, query)
        won, lost = reply["executionStats"]["allPlansExecution"]
        assert leaf(won["executionStages"])["indexName"] == "a_1" and leaf(lost["executionStages"])["indexName"] == "d_1"
        # A trial ends with a first batch, and none reads much more than the one that has it.
        assert (won["nReturned"], won["executionStages"]["isEOF"]) == (101, 0) and won["totalDocsExamined"] < 200
        assert lost["nReturned"] < 101 and lost["totalDocsExamined"] < 2 * won["totalDocsExamined"]
        assert won["score"] > lost["score"] > 1
        # 714, if it was counted to its end: that depends on what the sizes of the engine say of the other.
        assert 300 < won["docsEstimate"] < 2000 and lost["costEstimate"] > won["costEstimate"]
        (rejected,) = reply["queryPlanner"]["rejectedPlans"]
        assert rejected["costEstimate"] == lost["costEstimate"] and leaf(rejected)["indexName"] == "d_1"
        assert reply["executionStats"]["executionSuccess"]
    (won, lost) = explained("allPlansExecution", "find", {"a": 3, "d": 60})["executionStats"]["allPlansExecution"]
    assert (won["nReturned"], won["executionStages"]["isEOF"], lost["executionStages"]["isEOF"]) == (0, 1, 0)
    for query in ({"c": 1}, {"a": 3}):
        assert explained("allPlansExecution", "find", query)["executionStats"]["allPlansExecution"] == [], "nothing to choose"
    with refuses(40414):
        coll.database.command("explain", None)


@pytest.mark.parametrize("verbosity", ["queryPlanner", "executionStats"])
def test_an_explained_aggregate_takes_no_write_concern(db, verbosity):
    aggregate = {"aggregate": "c", "pipeline": [], "cursor": {}, "writeConcern": {"w": 1}}
    with refuses(9, "FailedToParse", "does not support the 'writeConcern' option"):
        db.command("explain", aggregate, verbosity=verbosity)
    with refuses(9, "FailedToParse", "does not support the 'writeConcern' option"):
        db.command({**aggregate, "explain": True})


def test_express_plans(db):
    """An equality that finds at most one document by one key: on a unique index, or with a limit of one."""
    db.c.create_index("u", unique=True)
    db.c.create_index("n")
    db.c.create_index([("p", 1), ("q", 1)], unique=True)
    db.c.create_index("l", unique=True, sparse=True)
    db.c.insert_many([{"_id": i, "u": i, "n": i % 3, "p": i, "q": i} for i in range(30)])
    db.c.insert_one({"_id": 99, "u": 99, "p": 99, "l": [1, 2]})

    def of(**find):
        plan, stats = execution(db.c, {"find": "c", **find})
        assert stats["nReturned"] == stats["totalDocsExamined"] or plan["stage"] != "EXPRESS_IXSCAN"
        return plan

    plan = of(filter={"u": 5})
    assert (plan["stage"], plan["keyPattern"], plan["indexName"]) == ("EXPRESS_IXSCAN", "{ u: 1 }", "u_1")
    assert of(filter={"u": {"$eq": 5}}, limit=7)["stage"] == "EXPRESS_IXSCAN"
    assert of(filter={"n": 1}, limit=1)["indexName"] == "n_1"
    plan = of(filter={"p": 1}, limit=1)
    assert (plan["stage"], plan["keyPattern"]) == ("EXPRESS_IXSCAN", "{ p: 1, q: 1 }")
    plan = of(filter={"u": 5}, projection={"n": 1})
    assert (plan["stage"], plan["projectionCovered"]) == ("EXPRESS_IXSCAN", False)
    pipeline = {"aggregate": "c", "pipeline": [{"$match": {"u": 5}}], "cursor": {}}
    assert winning(db.command("explain", pipeline, verbosity="queryPlanner"))["stage"] == "EXPRESS_IXSCAN"
    for find in [
        {"filter": {"n": 1}},
        {"filter": {"p": 1}},
        {"filter": {"u": 5, "n": 2}},
        {"filter": {"u": {"$gt": 5}}},
        {"filter": {"u": {"$in": [5, 6]}}},
        {"filter": {"u": None}},
        {"filter": {"u": 5}, "skip": 1},
        {"filter": {"u": 5}, "hint": "u_1"},
        {"filter": {"l": 1}},
    ]:
        assert "EXPRESS_IXSCAN" not in stages(of(**find)), find
    update = {"update": "c", "updates": [{"q": {"u": 5}, "u": {"$set": {"x": 1}}}]}
    assert leaf(winning(db.command("explain", update, verbosity="queryPlanner")))["stage"] == "IXSCAN"


def test_map_reduce_is_explained_as_the_pipeline_that_it_is(coll):
    coll.insert_many([{"k": i % 3, "v": i} for i in range(9)])
    coll.create_index("k")
    command = {
        "mapReduce": coll.name,
        "map": "function() { emit(this.k, this.v); }",
        "reduce": "function(k, vs) { return Array.sum(vs) + more; }",
        "query": {"k": 1},
        "scope": {"more": 1},
        "out": "written",
    }
    for verbosity in ("queryPlanner", "executionStats"):
        explained = coll.database.command("explain", command, verbosity=verbosity)
        stages = explained["stages"]
        assert [next(iter(s)) for s in stages] == ["$cursor", "$project", "$unwind", "$group", "$out"]
        plan = stages[0]["$cursor"]["queryPlanner"]["winningPlan"]
        assert leaf(plan)["indexName"] == "k_1"
    assert stages[0]["$cursor"]["executionStats"]["totalDocsExamined"] == 3
    assert "written" not in coll.database.list_collection_names()
    with refuses(40414, "IDLFailedToParse"):
        coll.database.command("explain", {"mapReduce": coll.name, "map": "function() {}"})


@pytest.mark.parametrize("change", [{"update": {"$set": {"x": 1}}}, {"remove": True}], ids=["update", "remove"])
def test_find_and_modify_reads_the_first_of_an_order(coll, change):
    coll.insert_many([{"k": 1, "at": n} for n in range(200)])
    coll.create_index([("k", 1), ("at", -1)])
    command = {"findAndModify": coll.name, "query": {"k": 1}, "sort": {"at": -1}, **change}
    plan, stats = execution(coll, command)
    assert plan["stage"] == ("UPDATE" if "update" in change else "DELETE")
    assert leaf(plan)["indexName"] == "k_1_at_-1"
    assert (stats["totalKeysExamined"], stats["totalDocsExamined"]) == (1, 1)
    assert coll.count_documents({"x": {"$exists": False}}) == 200
