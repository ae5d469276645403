"""Explain of `$search`, `$searchMeta` and `$vectorSearch`."""

import pytest
from pymongo.errors import OperationFailure
from searches import indexed, text

FIELDS = [
    {"type": "vector", "path": "v", "numDimensions": 2, "similarity": "euclidean"},
    {"type": "filter", "path": "n"},
]


@pytest.fixture
def filled(coll):
    coll.insert_many([{"_id": i, "title": f"word {'odd' if i % 2 else 'even'}", "n": i, "v": [i, 1]} for i in range(10)])
    indexed(coll)
    return indexed(coll, {"fields": FIELDS}, "vectors", "vectorSearch")


def explained(coll, *pipeline, verbosity="queryPlanner"):
    command = {"aggregate": coll.name, "pipeline": list(pipeline), "cursor": {}}
    return coll.database.command("explain", command, verbosity=verbosity)["stages"]


def test_the_queries_of_operators_are_told(filled):
    spec = text("Odd", "title")
    stages = explained(filled, {"$search": spec}, {"$limit": 3})
    assert [next(iter(s)) for s in stages] == ["$_internalSearchMongotRemote", "$_internalSearchIdLookup", "$limit"]
    remote = stages[0]["$_internalSearchMongotRemote"]
    assert remote["mongotQuery"] == spec
    told = remote["explain"]
    assert told["query"] == {"type": "TermQuery", "args": {"path": "title", "value": "odd"}}
    assert told["metadata"] == {"indexName": "default", "totalLuceneDocs": 10}
    assert "nReturned" not in stages[0]
    both = {
        "compound": {
            "must": [text("odd"), {"phrase": {"query": "word odd", "path": "title"}}],
            "filter": {"range": {"path": "n", "gt": 3}},
        }
    }
    [remote, *_] = explained(filled, {"$search": both})
    args = remote["$_internalSearchMongotRemote"]["explain"]["query"]["args"]
    assert [(c["path"], c["type"]) for c in args["must"]] == [
        ("compound.must[0]", "TermQuery"),
        ("compound.must[1]", "PhraseQuery"),
    ]
    assert [(c["path"], c["type"]) for c in args["filter"]] == [("compound.filter", "IndexOrDocValuesQuery")]


def test_a_run_is_counted(filled):
    stages = explained(filled, {"$search": text("odd")}, {"$limit": 3}, verbosity="executionStats")
    told = stages[0]["$_internalSearchMongotRemote"]["explain"]
    assert told["query"]["stats"]["match"]["invocationCounts"] == {"nextDoc": 5}
    assert told["collectors"]["allCollectorStats"]["invocationCounts"] == {"collect": 5}
    assert [s["nReturned"] for s in stages[-1:]] == [3]
    [meta] = explained(filled, {"$searchMeta": text("odd")}, verbosity="executionStats")
    assert meta["$searchMeta"]["explain"]["query"]["type"] == "TermQuery"


def test_searches_by_vectors_are_told(filled):
    near = {"index": "vectors", "path": "v", "queryVector": [1.0, 1.0], "limit": 3}
    traced = {**near, "numCandidates": 10, "explainOptions": {"traceDocumentIds": [1]}}
    for verbosity in ["queryPlanner", "executionStats"]:
        stages = explained(filled, {"$vectorSearch": traced}, verbosity=verbosity)
        told = stages[0]["$vectorSearch"]
        assert told["explainOptions"] == {"traceDocumentIds": [1]}
        assert told["explain"]["query"]["type"] == "KnnFloatVectorQuery"
        assert told["explain"]["query"]["args"] == {"path": "v", "k": 3, "numCandidates": 10}
        assert next(iter(stages[1])) == "$_internalSearchIdLookup"
    exact = {**near, "exact": True, "filter": {"n": {"$gt": 2}}}
    [stage, _] = explained(filled, {"$vectorSearch": exact})
    query = stage["$vectorSearch"]["explain"]["query"]
    assert (query["type"], query["args"]["filter"]["type"]) == ("ExactVectorSearchQuery", "BooleanQuery")
    for wrong in [{}, {"traceDocumentIds": [None]}]:
        with pytest.raises(OperationFailure) as e:
            explained(filled, {"$vectorSearch": {**traced, "explainOptions": wrong}})
        assert e.value.code == 8
    with pytest.raises(OperationFailure):
        list(filled.aggregate([{"$vectorSearch": traced}]))
