"""Pipelines inside of pipelines take of the stack of a thread: past a bound they are refused, and the server lives."""

import pytest
from pymongo.errors import OperationFailure

TOO_DEEP = 232  # MaxSubPipelineDepthExceeded
TOO_NESTED = 15  # Overflow

STAGES = {
    # Neighbours become one where nothing keeps them apart.
    "match": [{"$match": {}}, {"$_internalInhibitOptimization": {}}],
    "project": [{"$project": {"a": 1, "x": 1, "z": {"$add": ["$a", 1]}}}],
    "addFields": [{"$addFields": {"z": {"$add": ["$a", 1]}}}],
    "unwind": [{"$unwind": "$x"}, {"$addFields": {"x": [1]}}],
    "limit": [{"$_internalInhibitOptimization": {}}, {"$limit": 5}],
    "sort": [{"$sort": {"a": 1}}],
    "group": [{"$group": {"_id": "$a", "a": {"$first": "$a"}, "x": {"$first": "$x"}}}],
    "redact": [{"$redact": "$$KEEP"}],
    "window": [{"$setWindowFields": {"sortBy": {"a": 1}, "output": {"q": {"$sum": "$a"}}}}],
    "bucketAuto": [{"$bucketAuto": {"groupBy": "$a", "buckets": 1, "output": {"a": {"$first": "$a"}}}}],
    "densify": [{"$densify": {"field": "a", "range": {"step": 1, "bounds": "full"}}}],
    "fill": [{"$fill": {"sortBy": {"a": 1}, "output": {"a": {"method": "locf"}}}}],
    "lookup": [{"$lookup": {"from": "c", "localField": "a", "foreignField": "a", "as": "r"}}],
    "unionWith": [{"$unionWith": "none"}],
    "facet": [{"$facet": {"a": [{"$limit": 1}]}}, {"$unwind": "$a"}, {"$replaceRoot": {"newRoot": "$a"}}],
    "graphLookup": [
        {"$graphLookup": {"from": "none", "startWith": "$a", "connectFromField": "a", "connectToField": "b", "as": "r"}}
    ],
    "sample": [{"$sample": {"size": 1}}],
}


@pytest.fixture
def coll(db):
    db.c.insert_one({"_id": 1, "a": 1, "x": [1]})
    return db.c


def stages(kind, n):
    return (STAGES[kind] * n)[:n]


def nested(depth, pad):
    inner = pad
    for _ in range(depth):
        # A join whose result is unused is not run.
        used = {"$match": {"r": {"$exists": True}}}
        inner = [{"$lookup": {"from": "c", "pipeline": inner, "as": "r"}}, used, *pad]
    return inner


@pytest.mark.parametrize("kind", STAGES)
def test_a_long_pipeline_runs_and_too_many_nested_ones_do_not(coll, kind):
    # The longest that there may be.
    assert len(list(coll.aggregate(stages(kind, 600)))) == 1
    for explained in (False, True):
        with pytest.raises(OperationFailure) as refused:
            if explained:
                coll.database.command(
                    "explain", {"aggregate": "c", "pipeline": nested(19, stages(kind, 600)), "cursor": {}}
                )
            else:
                list(coll.aggregate(nested(19, stages(kind, 600))))
        assert refused.value.code == TOO_DEEP
    assert coll.database.command("ping")["ok"] == 1


def test_nested_pipelines_of_usual_length_run(coll):
    assert len(list(coll.aggregate(nested(19, stages("match", 20))))) == 1


def test_what_nests_ever_deeper_is_refused_before_it_is_sent_or_stored(db, coll):
    push = {"$group": {"_id": None, "a": {"$push": "$$ROOT"}}}
    for end in ([], [{"$out": "deep"}], [{"$merge": "deep"}]):
        with pytest.raises(OperationFailure) as refused:
            list(coll.aggregate([push] * 300 + end))
        assert refused.value.code == TOO_NESTED
    assert "deep" not in db.list_collection_names() or db.deep.count_documents({}) == 0


def test_views_on_views_are_one_long_pipeline(db, coll):
    on = "c"
    for i in range(19):
        db.create_collection(f"v{i}", viewOn=on, pipeline=stages("addFields", 900))
        on = f"v{i}"
    assert list(db.v0.find()) == [{"_id": 1, "a": 1, "x": [1], "z": 2}]
    with pytest.raises(OperationFailure) as refused:
        list(db.v18.find())
    assert refused.value.code == TOO_DEEP
    assert db.command("ping")["ok"] == 1


def nested_by_stages(levels):
    wrap = {"$project": {"x": {"a": "$x"}}}
    return [{"$project": {"x": {"$literal": {"v": 1}}}}, *[wrap] * (levels - 1)]


def refusal(run):
    with pytest.raises(OperationFailure) as refused:
        run()
    details = refused.value.details
    error = details.get("writeErrors", [details])[0]
    return error["code"], error["errmsg"].removeprefix("PlanExecutor error during aggregation :: caused by :: ")


@pytest.mark.parametrize(
    "end",
    [
        {"$out": "deep"},
        {"$merge": {"into": "deep", "whenMatched": "fail"}},
        {"$merge": {"into": "deep", "whenMatched": [{"$set": {"y": "$$new.x"}}]}},
    ],
    ids=["out", "merge", "merge by a pipeline"],
)
def test_what_is_written_nests_as_deep_as_what_is_inserted(db, coll, end):
    document = {"v": 1}
    for _ in range(178):
        document = {"a": document}
    db.deep.insert_one({"_id": 1, "x": document})
    too_deep = refusal(lambda: db.deep.insert_one({"_id": 2, "x": {"a": document}}))
    assert too_deep[0] == TOO_NESTED
    db.deep.drop()
    list(coll.aggregate([*nested_by_stages(179), end]))
    assert db.deep.find_one() == {"_id": 1, "x": document}
    db.deep.drop()
    for levels in (180, 190, 199):
        assert refusal(lambda n=levels: list(coll.aggregate([*nested_by_stages(n), end]))) == too_deep
    assert db.deep.count_documents({}) == 0


@pytest.mark.parametrize("matched", ["merge", "replace", "keepExisting"])
def test_what_is_merged_nests_as_deep_as_what_an_update_makes(db, coll, matched):
    document = {"v": 1}
    for _ in range(180):
        document = {"a": document}
    too_deep = refusal(lambda: db.deep.update_one({"_id": 1}, {"$set": {"x": document}}, upsert=True))
    assert too_deep[0] == TOO_NESTED
    end = {"$merge": {"into": "deep", "whenMatched": matched}}
    assert refusal(lambda: list(coll.aggregate([*nested_by_stages(181), end]))) == too_deep
    assert db.deep.count_documents({}) == 0
    list(coll.aggregate([*nested_by_stages(179), end]))
    assert db.deep.count_documents({}) == 1
