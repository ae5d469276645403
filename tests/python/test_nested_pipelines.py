"""Pipelines inside of pipelines take of the stack of a thread: past a bound they are refused, and the server lives."""

import pytest
from pymongo.errors import OperationFailure

TOO_DEEP = 232  # MaxSubPipelineDepthExceeded
TOO_NESTED = 15  # Overflow

STAGES = {
    "match": [{"$match": {}}],
    "project": [{"$project": {"a": 1, "x": 1}}],
    "addFields": [{"$addFields": {"z": {"$add": ["$a", 1]}}}],
    "unwind": [{"$unwind": "$x"}, {"$addFields": {"x": [1]}}],
    "limit": [{"$limit": 5}],
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
        inner = [{"$lookup": {"from": "c", "pipeline": inner, "as": "r"}}, *pad]
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
