"""`$rankFusion`, `$scoreFusion`, `$score` and `$minMaxScaler`, against sums made here."""

import math
import random

import pytest
from bson import Decimal128
from pymongo.errors import OperationFailure

from harness import refuses

SCORE = {"$project": {"score": {"$meta": "score"}}}


def ranks(pipelines, **more):
    return {"$rankFusion": {"input": {"pipelines": pipelines}, **more}}


def scores(pipelines, normalization="none", **more):
    return {"$scoreFusion": {"input": {"pipelines": pipelines, "normalization": normalization}, **more}}


def ranked(docs, key):
    """The rank of each `_id`: equal keys share one, and the next goes on behind them."""
    order = sorted(docs, key=key)
    return {d["_id"]: 1 + sum(key(o) < key(d) for o in order) for d in docs}


@pytest.fixture
def things(coll):
    rnd = random.Random(5)
    coll.insert_many([{"_id": i, "a": rnd.randrange(6), "b": rnd.randrange(30), "c": i / 4} for i in range(40)])
    return coll


def test_ranks_by_reciprocal_rank(things):
    docs = list(things.find())
    inputs = {
        "by_a": [{"$sort": {"a": -1}}],
        "by_b": [{"$match": {"b": {"$gt": 10}}}, {"$sort": {"b": 1}}],
        "few": [{"$sort": {"c": -1}}, {"$skip": 2}, {"$limit": 5}],
    }
    weights = {"by_a": 2, "few": Decimal128("0.5")}
    a = ranked(docs, lambda d: -d["a"])
    b = ranked([d for d in docs if d["b"] > 10], lambda d: d["b"])
    few = {39 - 2 - i: i + 1 for i in range(5)}
    want = {}
    for d in docs:
        i = d["_id"]
        each = [(1.0, b.get(i)), (2.0, a.get(i)), (0.5, few.get(i))]
        want[i] = sum(w / (60 + r) for w, r in each if r)
    found = list(things.aggregate([ranks(inputs, combination={"weights": weights}), SCORE]))
    assert [d["_id"] for d in found] == sorted(want, key=lambda i: (-round(want[i], 12), i))
    assert all(math.isclose(d["score"], want[d["_id"]]) for d in found)
    # The documents come out whole, in joins, facets and views too.
    one = ranks({"p": [{"$sort": {"c": -1}}, {"$limit": 2}]})
    whole = [things.find_one({"_id": i}) for i in (39, 38)]
    assert list(things.aggregate([one])) == whole
    assert list(things.aggregate([{"$facet": {"f": [one]}}])) == [{"f": whole}]
    join = {"$lookup": {"from": things.name, "pipeline": [one], "as": "j"}}
    assert [d["j"] for d in things.aggregate([join, {"$limit": 1}])] == [whole]
    things.database.create_collection("low", viewOn=things.name, pipeline=[{"$match": {"_id": {"$lt": 10}}}])
    assert [d["_id"] for d in things.database.low.aggregate([one])] == [9, 8]
    both = [{"$limit": 1}, {"$unionWith": {"coll": "low", "pipeline": [one]}}]
    assert [d["_id"] for d in things.aggregate(both)] == [0, 9, 8]


def test_details_tell_what_a_score_is_made_of(things):
    inputs = {"x": [{"$sort": {"c": -1}}, {"$limit": 1}], "a": [{"$match": {"_id": 3}}, {"$sort": {"c": 1}}]}
    show = {"$project": {"s": {"$meta": "score"}, "d": {"$meta": "scoreDetails"}}}
    found = list(things.aggregate([ranks(inputs, scoreDetails=True, combination={"weights": {"x": 3}}), show]))
    assert [d["_id"] for d in found] == [39, 3]
    assert found[0]["d"]["value"] == found[0]["s"] and found[0]["d"]["description"]
    assert found[0]["d"]["details"] == [
        {"inputPipelineName": "a", "rank": "NA"},
        {"inputPipelineName": "x", "rank": 1, "weight": 3.0, "details": []},
    ]
    inputs = {
        "n": [{"$match": {"_id": {"$lte": 1}}}, {"$score": {"score": {"$add": ["$c", 1]}, "scoreDetails": True, "weight": 0.5}}],
        "m": [{"$match": {"_id": 1}}, {"$score": {"score": "$c"}}],
    }
    found = list(things.aggregate([scores(inputs, "sigmoid", scoreDetails=True), show]))
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    d = found[0]["d"]
    assert found[0]["_id"] == 1 and math.isclose(d["value"], (sigmoid(0.625) + sigmoid(0.25)) / 2)
    assert (d["normalization"], d["combination"]) == ("sigmoid", {"method": "average"})
    m, n = d["details"]
    assert (m["inputPipelineName"], m["inputPipelineRawScore"], m["details"]) == ("m", 0.25, [])
    assert n["details"]["rawScore"] == 1.25 and n["details"]["expression"] == "{ string: { $add: [ '$c', 1 ] } }"
    assert n["details"]["weight"] == 0.5 and math.isclose(n["value"], sigmoid(0.625))
    # An input that has not given the document counts as nothing.
    m, n = found[1]["d"]["details"]
    assert found[1]["_id"] == 0 and m == {"inputPipelineName": "m", "inputPipelineRawScore": 0.0, "weight": 1.0, "value": 0.0}


def test_combines_scores(things):
    docs = {d["_id"]: d for d in things.find()}
    inputs = {"one": [{"$score": {"score": "$b"}}], "two": [{"$match": {"_id": {"$lt": 20}}}, {"$score": {"score": "$c"}}]}
    lo, hi = min(d["b"] for d in docs.values()), max(d["b"] for d in docs.values())

    def plain(d):
        return d["b"], d["c"] if d["_id"] < 20 else 0

    def scaled(d):
        return (d["b"] - lo) / (hi - lo), d["c"] / 4.75 if d["_id"] < 20 else 0

    expression = {"method": "expression", "expression": {"$add": [{"$multiply": ["$$one", 2]}, "$$two", "$docs.a", "$$k"]}}
    for normalization, combination, want in [
        ("none", {}, lambda d: sum(plain(d)) / 2),
        ("none", {"weights": {"two": 3}, "method": "avg"}, lambda d: (plain(d)[0] + 3 * plain(d)[1]) / 2),
        ("minMaxScaler", {}, lambda d: sum(scaled(d)) / 2),
        ("minMaxScaler", expression, lambda d: 2 * scaled(d)[0] + scaled(d)[1] + d["a"] + 5),
    ]:
        stages = [scores(inputs, normalization, combination=combination), SCORE]
        found = list(things.aggregate(stages, let={"k": 5, "one": 9}))
        assert len(found) == 40 and all(math.isclose(d["score"], want(docs[d["_id"]])) for d in found)
        order = [(-d["score"], d["_id"]) for d in found]
        assert order == sorted(order)


def test_scores_of_text_and_distance(db):
    db.t.create_index([("w", "text")])
    db.t.create_index([("at", "2d")])
    db.t.insert_many([{"_id": i, "w": "tea " * i + "x", "at": [i, 0]} for i in range(1, 5)])
    by_text = [{"$match": {"$text": {"$search": "tea"}}}]
    want = {d["_id"]: d["s"] for d in db.t.find(by_text[0]["$match"], {"s": {"$meta": "textScore"}})}
    assert [d["s"] for d in db.t.find(by_text[0]["$match"], {"s": {"$meta": "score"}}).sort("_id")] == [
        want[i] for i in sorted(want)
    ]
    found = {d["_id"]: d["score"] for d in db.t.aggregate([scores({"t": by_text}), SCORE])}
    assert found == want
    near = [{"$geoNear": {"near": [0, 0]}}]
    assert [d["_id"] for d in db.t.aggregate([ranks({"n": near})])] == [1, 2, 3, 4]
    assert list(db.t.aggregate([ranks({"n": near}), {"$limit": 1}])) == [db.t.find_one({"_id": 1})]
    by_distance = near + [{"$score": {"score": {"$multiply": [{"$meta": "geoNearDistance"}, 2]}}}]
    found = list(db.t.aggregate([scores({"n": by_distance}), SCORE]))
    assert [(d["_id"], d["score"]) for d in found] == [(4, 8.0), (3, 6.0), (2, 4.0), (1, 2.0)]


def test_score_of_one_pipeline(things):
    show = {"$project": {"v": {"$meta": "score"}}}
    for spec, want in [
        ({"score": {"$multiply": ["$c", 2]}, "weight": 0.5}, lambda d: d["c"]),
        ({"score": "$c", "normalization": "sigmoid"}, lambda d: 1 / (1 + math.exp(-d["c"]))),
        ({"score": "$c", "normalization": "minMaxScaler", "weight": 0.25}, lambda d: d["c"] / 39),
    ]:
        docs = {d["_id"]: d for d in things.find()}
        found = list(things.aggregate([{"$score": spec}, show]))
        assert len(found) == 40 and all(math.isclose(d["v"], want(docs[d["_id"]])) for d in found), spec
    sort = [{"$score": {"score": "$c"}}, {"$sort": {"x": {"$meta": "score"}}}, {"$limit": 2}]
    assert [d["_id"] for d in things.aggregate(sort)] == [39, 38]
    for code, spec in [
        (40414, {}),
        (40415, {"score": 1, "more": 1}),
        (2, {"score": 1, "normalization": "max"}),
        (14, {"score": "$missing"}),
        (14, {"score": "x", "normalization": "minMaxScaler"}),
        (51024, {"score": 1, "weight": 1.5}),
        (14, {"score": 1, "weight": "x"}),
        (9, 5),
    ]:
        with refuses(code):
            list(things.aggregate([{"$score": spec}]))
    for stages in ([show], [{"$score": {"score": 1}}, {"$group": {"_id": 1}}, show]):
        with refuses(40218):
            list(things.aggregate(stages))
    with refuses(40218):
        list(things.aggregate([{"$score": {"score": 1}}, {"$project": {"d": {"$meta": "scoreDetails"}}}]))


def test_min_max_scaler(coll):
    coll.insert_many([{"_id": i, "x": x, "p": i % 2} for i, x in enumerate([5, 1, 9, 5, 3, 7])])

    def run(spec, **more):
        output = {"r": {"$minMaxScaler": spec, **more}}
        stage = {"$setWindowFields": {"sortBy": {"_id": 1}, "output": output}}
        return [d["r"] for d in coll.aggregate([stage])]

    assert run({"input": "$x"}) == [0.5, 0, 1, 0.5, 0.25, 0.75]
    assert run({"input": "$x", "min": -1, "max": 1}) == [0, -1, 1, 0, -0.5, 0.5]
    assert run({"input": "$x"}, window={"documents": ["unbounded", "current"]}) == [0, 0, 1, 0.5, 0.25, 0.75]
    assert run({"input": "$x"}, window={"documents": [-1, 0]}) == [0, 0, 1, 0, 0, 1]
    assert run({"input": 7}) == [0] * 6
    for code, spec, more in [
        (40415, {"input": "$x", "hello": 1}, {}),
        (40414, {"min": 0, "max": 1}, {}),
        (9, {"input": "$x", "min": 0}, {}),
        (9, {"input": "$x", "min": 1, "max": 1}, {}),
        (9, {"input": "$x", "min": "$x", "max": 2}, {}),
        (9, {"input": "$x", "min": "a", "max": 2}, {}),
        (9, {"input": "$x"}, {"window": {"documents": [1, "unbounded"]}}),
        (9, {"input": "$x"}, {"window": {"range": ["unbounded", -0.5]}}),
        (10487001, {"input": "$none"}, {}),
    ]:
        with refuses(code):
            run(spec, **more)


def test_what_is_refused(things):
    sort = [{"$sort": {"a": 1}}]
    for code, stages in [
        (9, [{"$rankFusion": 1}]),
        (40414, [{"$rankFusion": {}}]),
        (2, [ranks({})]),
        (9834300, [ranks({"p": []})]),
        (16410, [ranks({"$p": sort})]),
        (16412, [ranks({"p.q": sort})]),
        (9191100, [ranks({"p": [{"$match": {}}]})]),
        (9191103, [ranks({"p": sort + [{"$set": {"x": 1}}]})]),
        (10473002, [ranks({"p": [ranks({"q": sort})]})]),
        (10170100, [{"$match": {}}, ranks({"p": sort})]),
        (9460300, [ranks({"p": sort}, combination={"weights": {"p": -1}})]),
        (9460301, [ranks({"p": sort}, combination={"weights": {"p": 1, "q": 1}})]),
        (9967500, [ranks({"p": sort}, combination={"weights": {"q": 1}})]),
        (13118, [ranks({"p": sort}, combination={"weights": {"p": "x"}})]),
        (40415, [ranks({"p": sort}, combination={"weights": {}, "method": "avg"})]),
        (40414, [{"$scoreFusion": {"input": {"pipelines": {"p": sort}}}}]),
        (2, [scores({"p": sort}, "max")]),
        (9402503, [scores({"p": []})]),
        (9402500, [scores({"p": sort})]),
        (9402502, [scores({"p": [{"$score": {"score": 1}}, {"$unset": "a"}]})]),
        (10473003, [scores({"p": [ranks({"q": sort})]})]),
        (10017300, [scores({"p": [{"$score": {"score": 1}}]}, combination={"method": "expression"})]),
        (10017300, [scores({"p": [{"$score": {"score": 1}}]}, combination={"method": "avg", "expression": 1})]),
        (10017301, [scores({"p": [{"$score": {"score": 1}}]}, combination={"method": "expression", "expression": 1, "weights": {}})]),
        (14, [scores({"p": [{"$score": {"score": 1}}]}, combination={"method": "expression", "expression": "x"})]),
        (17276, [scores({"p": [{"$score": {"score": 1}}]}, combination={"method": "expression", "expression": "$$none"})]),
    ]:
        with refuses(code):
            list(things.aggregate(stages))
    with refuses(73):
        things.database.command("aggregate", 1, pipeline=[ranks({"p": sort})], cursor={})
    things.database.create_collection("series", timeseries={"timeField": "t"})
    for name in ("series", "system.buckets.series"):
        with refuses(10557301):
            list(things.database[name].aggregate([ranks({"p": sort})]))


def test_goes_to_files_where_it_is_much(coll):
    pad = "x" * 100_000
    for at in range(0, 1200, 100):
        coll.insert_many([{"_id": i, "a": -i, "pad": pad} for i in range(at, at + 100)])
    inputs = {"up": [{"$sort": {"_id": 1}}], "down": [{"$sort": {"a": 1}}]}
    with pytest.raises(OperationFailure) as refused:
        list(coll.aggregate([ranks(inputs)], allowDiskUse=False))
    assert refused.value.code == 292
    found = list(coll.aggregate([ranks(inputs), {"$project": {"n": {"$strLenBytes": "$pad"}}}], allowDiskUse=True))
    assert len(found) == 1200 and {d["n"] for d in found} == {100_000}
    assert {found[0]["_id"], found[1]["_id"]} == {0, 1199}


def test_all_inputs_of_a_facet_read_the_collection(things):
    top = [{"$sort": {"c": -1}}, {"$limit": 2}]
    few = {"$match": {"_id": {"$lt": 10}}}
    facet = {"$facet": {"f": [ranks({"p": top, "q": top}), {"$project": {"_id": 1}}]}}
    assert list(things.aggregate([few, facet])) == [{"f": [{"_id": 39}, {"_id": 38}]}]


@pytest.mark.parametrize(
    "stage", [ranks({"p": [{"$sort": {"c": 1}}]}), scores({"p": [{"$score": {"score": "$c"}}]}), {"$score": {"score": "$c"}}]
)
def test_explain_shows_the_stage_as_it_was_written(things, stage):
    explained = things.database.command("explain", {"aggregate": things.name, "pipeline": [stage], "cursor": {}})
    assert next(iter(stage)) in [name for shown in explained["stages"] for name in shown]


def test_a_score_does_not_pass_a_window(things):
    score, first = {"$score": {"score": "$c", "normalization": "none"}}, {"$match": {"_id": 4}}
    assert list(things.aggregate([score, first, SCORE])) == [{"_id": 4, "score": 1.0}]
    window = {"$setWindowFields": {"sortBy": {"_id": 1}, "output": {"n": {"$max": {"$meta": "score"}}}}}
    found = next(things.aggregate([score, window, first]))
    assert found["n"] is None
    assert list(things.aggregate([score, window, first, SCORE])) == [{"_id": 4}]
