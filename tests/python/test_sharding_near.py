"""Searches by distance or score, over several shards: `$geoNear`, `$near`, `$text` by score, fusion
stages, sorts and limits that shards share."""

import itertools

import pytest
from harness import refuses
from sharded_cluster import client_fixture, cluster_fixture, shard

numbers = itertools.count(1)
CENTRE = {"type": "Point", "coordinates": [0.0, 0.0]}


cluster = cluster_fixture()
client = client_fixture()


@pytest.fixture
def places(client):
    """60 places on two shards, the farther the greater their number, even ones on one shard."""
    db = client[f"near{next(numbers)}"]
    coll = shard(db, "places", {"k": 1}, at=[50])
    docs = [{"_id": n, "k": n % 2 * 100 + n // 2, "n": n, "at": {"type": "Point", "coordinates": [n / 100, 0]}} for n in range(60)]
    coll.insert_many([{**d, "flat": [d["n"], 0], "text": " ".join(["tree"] * (d["n"] % 7) + ["house"])} for d in docs])
    coll.create_index([("at", "2dsphere")])
    coll.create_index([("flat", "2d")])
    coll.create_index([("text", "text")])
    yield coll
    client.drop_database(db.name)


def near(**more):
    return {"$geoNear": {"near": CENTRE, "key": "at", "spherical": True, "distanceField": "far", **more}}


def ids(found):
    return [d["_id"] for d in found]


def test_geo_near_is_merged_by_distance(places):
    found = list(places.aggregate([near()], batchSize=7))
    assert ids(found) == list(range(60))
    assert all(a["far"] <= b["far"] for a, b in itertools.pairwise(found))
    assert set(found[0]) == {"_id", "k", "n", "at", "flat", "text", "far"}
    one = places.find_one({"_id": 9})
    (alone,) = places.aggregate([near(query={"k": 104})])
    assert alone == {**one, "far": alone["far"]} and alone["far"] == pytest.approx(10018.75, rel=1e-3)


def test_options_of_geo_near(places):
    metres = [d["far"] for d in places.aggregate([near()])]
    within = near(minDistance=metres[10] - 1, maxDistance=metres[20] + 1)
    assert ids(places.aggregate([within])) == list(range(10, 21))
    scaled = list(places.aggregate([near(distanceMultiplier=0.001, includeLocs="where", query={"n": {"$gte": 30}}), {"$limit": 3}]))
    assert ids(scaled) == [30, 31, 32]
    assert scaled[0]["far"] == pytest.approx(metres[30] / 1000) and scaled[0]["where"] == scaled[0]["at"]
    flat = {"$geoNear": {"near": [3, 0], "key": "flat", "distanceField": "d.e", "maxDistance": 2}}
    assert sorted((d["_id"], d["d"]["e"]) for d in places.aggregate([flat])) == [(1, 2.0), (2, 1.0), (3, 0.0), (4, 1.0), (5, 2.0)]
    for variables in ({"p": [0.5, 0]}, {"p": [0.1, 0]}):
        first = {"$geoNear": {"near": "$$p", "key": "at", "spherical": True, "distanceField": "far"}}
        (found,) = places.aggregate([first, {"$limit": 1}], let=variables)
        assert found["_id"] == round(variables["p"][0] * 100)


def test_stages_behind_geo_near(places):
    stages = [near(), {"$match": {"n": {"$mod": [3, 0]}}}, {"$skip": 2}, {"$limit": 2}, {"$project": {"n": 1, "m": {"$meta": "geoNearDistance"}, "far": 1}}]
    found = list(places.aggregate(stages))
    assert ids(found) == [6, 9] and all(set(d) == {"_id", "n", "far", "m"} and d["m"] == d["far"] for d in found)
    (grouped,) = places.aggregate([near(), {"$group": {"_id": None, "all": {"$push": "$n"}}}])
    assert grouped["all"] == list(range(60))
    places.database.areas.insert_many([{"_id": 0}, {"_id": 1}])
    inner = [near(query={"n": {"$gt": 50}}), {"$limit": 2}, {"$project": {"far": 1}}]
    for area in places.database.areas.aggregate([{"$lookup": {"from": "places", "pipeline": inner, "as": "near"}}]):
        assert ids(area["near"]) == [51, 52] and area["near"][0]["far"] < area["near"][1]["far"]
    places.aggregate([near(), {"$limit": 5}, {"$out": "nearest"}])
    assert sorted(ids(places.database.nearest.find())) == [0, 1, 2, 3, 4]
    with refuses(40603):
        list(places.aggregate([{"$match": {"n": 1}}, near()]))
    with refuses(50858):
        list(places.aggregate([{"$geoNear": {"near": CENTRE, "limit": 3}}]))


def test_near_in_find(places):
    assert ids(places.find({"at": {"$near": {"$geometry": CENTRE}}}).batch_size(9)) == list(range(60))
    assert ids(places.find({"at": {"$nearSphere": {"$geometry": CENTRE}}, "n": {"$gte": 7}}).skip(2).limit(3)) == [9, 10, 11]
    assert ids(places.find({"flat": {"$near": [0, 0], "$maxDistance": 2}})) == [0, 1, 2]
    shown = list(places.find({"at": {"$near": {"$geometry": CENTRE}}}, {"n": 1, "far": {"$meta": "geoNearDistance"}}).limit(3))
    assert [set(d) for d in shown] == [{"_id", "n", "far"}] * 3 and shown[0]["far"] < shown[1]["far"] < shown[2]["far"]
    assert ids(places.find({"at": {"$near": {"$geometry": CENTRE}}}).sort("n", -1).limit(2)) == [59, 58]


def test_text_by_score(places):
    score = {"score": {"$meta": "textScore"}}
    by_score = [("score", {"$meta": "textScore"}), ("n", 1)]
    best = sorted(range(60), key=lambda n: (-(n % 7), n))
    words = {"$text": {"$search": "tree"}}
    best = [n for n in best if n % 7]
    found = list(places.find(words, score).sort(by_score))
    scores = [d["score"] for d in found]
    assert scores == sorted(scores, reverse=True) and {"_id", "n", "k", "at", "text", "score"} <= set(found[0])
    assert {d["n"] % 7 for d in found[:8]} == {found[0]["n"] % 7} and sorted(ids(found)) == sorted(best)
    assert ids(places.find(words, {**score, "n": 1}).sort(by_score).skip(3).limit(4)) == ids(found)[3:7]
    assert set(places.find(words, {**score, "at": 0, "flat": 0}).sort(by_score)[0]) == {"_id", "k", "n", "text", "score"}
    piped = list(places.aggregate([{"$match": words}, {"$sort": dict(by_score)}, {"$limit": 5}, {"$project": {"n": 1, **score}}]))
    assert [(d["n"], d["score"]) for d in piped] == [(d["n"], d["score"]) for d in found[:5]]
    (most,) = places.aggregate([{"$match": words}, {"$group": {"_id": None, "most": {"$max": {"$meta": "textScore"}}}}])
    assert most["most"] == scores[0]


def test_rank_fusion(places):
    pipelines = {
        "near": [{"$geoNear": {"near": CENTRE, "key": "at", "spherical": True}}, {"$limit": 10}],
        "last": [{"$match": {"n": {"$lt": 10}}}, {"$sort": {"n": -1}}, {"$limit": 10}],
    }
    fusion = {"$rankFusion": {"input": {"pipelines": pipelines}, "combination": {"weights": {"near": 2}}, "scoreDetails": True}}
    found = list(places.aggregate([fusion, {"$limit": 4}, {"$project": {"n": 1, "s": {"$meta": "score"}}}]))
    wanted = sorted(((2 / (61 + n) + 1 / (70 - n), n) for n in range(10)), key=lambda p: (-p[0], p[1]))
    assert [(d["n"], pytest.approx(d["s"])) for d in found] == [(n, s) for s, n in wanted[:4]]
    assert ids(places.aggregate([fusion], batchSize=3)) == [n for _, n in wanted]


def test_score_fusion(places):
    words = {"$match": {"$text": {"$search": "tree"}}}
    pipelines = {"words": [words, {"$limit": 60}], "number": [{"$score": {"score": "$n"}}]}
    fusion = {"$scoreFusion": {"input": {"pipelines": pipelines, "normalization": "minMaxScaler"}}}
    found = list(places.aggregate([fusion, {"$set": {"s": {"$meta": "score"}}}]))
    scores = [d["s"] for d in found]
    assert len(found) == 60 and scores == sorted(scores, reverse=True) and found[0]["n"] >= 50


def test_fusion_over_a_view(places):
    db = places.database
    db.create_collection("odd", viewOn="places", pipeline=[{"$match": {"n": {"$mod": [2, 1]}}}])
    pipelines = {"last": [{"$sort": {"n": -1}}, {"$limit": 3}]}
    assert ids(db.odd.aggregate([{"$rankFusion": {"input": {"pipelines": pipelines}}}])) == [59, 57, 55]


def test_sorts_and_limits_are_shared(places):
    assert ids(places.aggregate([{"$sort": {"n": -1}}, {"$skip": 3}, {"$limit": 4}, {"$project": {"n": 1}}])) == [56, 55, 54, 53]
    assert ids(places.aggregate([{"$match": {"n": {"$lt": 20}}}, {"$sort": {"k": -1}}], batchSize=3))[:3] == [19, 17, 15]
    assert len(list(places.aggregate([{"$limit": 5}]))) == 5
    assert len(list(places.aggregate([{"$skip": 58}, {"$limit": 5}]))) == 2
    plan = places.database.command("explain", {"aggregate": "places", "pipeline": [{"$sort": {"n": 1}}, {"$limit": 2}, {"$count": "n"}], "cursor": {}})
    assert [next(iter(s)) for s in plan["splitPipeline"]["shardsPart"]] == ["$sort", "$limit", "$project"]
    with refuses(15958):
        list(places.aggregate([{"$limit": 0}]))
    with refuses(15975):
        list(places.aggregate([{"$sort": {"n": 5}}]))


def test_a_sort_by_a_collation(places):
    words = shard(places.database, "words", {"_id": 1}, at=[50])
    words.insert_many([{"_id": n, "w": w} for n, w in zip((1, 60, 2, 70, 3, 80), "aBcDeF")])
    ignoring = {"locale": "en", "strength": 2}
    assert [d["w"] for d in words.find().sort("w").collation(ignoring)] == list("aBcDeF")
    assert [d["w"] for d in words.aggregate([{"$sort": {"w": 1}}], collation=ignoring)] == list("aBcDeF")
    assert [d["w"] for d in words.find().sort("w")] == list("BDFace")
