"""A pipeline goes to the shards that have what it asks for, wherever in it that is said; explain tells which."""

import pytest
from sharded_cluster import at_rest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with at_rest(tmp_path_factory.mktemp("targets")) as running:
        with running.client() as client:
            client.admin.command("enableSharding", "t", primaryShard="s0")
            client.admin.command("shardCollection", "t.c", key={"k": 1})
            client.admin.command("split", "t.c", middle={"k": 50})
            client.admin.command("moveChunk", "t.c", find={"k": 90}, to="s1")
            client.t.c.insert_many([{"_id": n, "k": n, "g": n % 5, "o": {"k": n}} for n in range(100)])
            client.t.command("create", "v", viewOn="c", pipeline=[{"$addFields": {"x": {"$add": ["$k", 1]}}}])
            client.t.command("create", "w", viewOn="v", pipeline=[{"$project": {"k": 1, "x": 1}}])
        yield running


@pytest.fixture
def db(cluster):
    with cluster.client() as client:
        yield client.t


def finds(cluster):
    """How many aggregates each shard has run."""
    counts = {}
    for name in cluster.sets:
        with cluster.on_shard(name) as direct:
            counts[name] = int(direct.admin.command("serverStatus")["metrics"]["commands"]["aggregate"]["total"])
    return counts


MATCH = {"$match": {"k": 70}}
TO_ONE = {
    "a computed field before": [{"$addFields": {"y": {"$multiply": ["$g", 2]}}}, MATCH],
    "a projection before": [{"$project": {"k": 1, "g": 1}}, MATCH],
    "a sort before": [{"$sort": {"g": 1}}, MATCH],
    "a group behind": [{"$set": {"y": 1}}, MATCH, {"$group": {"_id": "$g", "n": {"$sum": 1}}}],
    "one of several": [{"$unset": "o"}, {"$match": {"g": {"$gte": 0}}}, MATCH],
}
TO_ALL = {
    "another field": [{"$set": {"y": 1}}, {"$match": {"g": 0}}],
    "a key that is computed": [{"$set": {"k": {"$add": ["$k", 20]}}}, {"$match": {"k": 70}}],
    "a key of another name": [{"$project": {"k": "$g"}}, {"$match": {"k": 0}}],
    "behind a limit": [{"$limit": 80}, MATCH],
    "behind a group": [{"$group": {"_id": None, "k": {"$max": "$k"}}}, {"$match": {"k": 99}}],
}


@pytest.mark.parametrize("name", [*TO_ONE, *TO_ALL])
def test_of_a_collection(cluster, db, name):
    pipeline = TO_ONE.get(name) or TO_ALL[name]
    before = finds(cluster)
    found = list(db.c.aggregate(pipeline))
    asked = [s for s, n in finds(cluster).items() if n > before[s]]
    # As the same documents in one place answer.
    kept = [{"$_internalInhibitOptimization": {}}, *pipeline]
    if "limit" not in name:
        assert found == list(db.c.aggregate(kept))
    told = db.command("explain", {"aggregate": "c", "pipeline": pipeline, "cursor": {}}, verbosity="queryPlanner")
    assert sorted(told["shards"]) == sorted(asked) == (["s1"] if name in TO_ONE else ["s0", "s1"])
    assert (told["splitPipeline"] is None) == (name in TO_ONE)


@pytest.mark.parametrize("view", ["v", "w"])
def test_of_a_view(cluster, db, view):
    before = finds(cluster)
    assert [d["x"] for d in db[view].find({"k": 70})] == [71]
    counts = finds(cluster)
    # The primary shard is asked what the view is; the documents come from one shard.
    assert counts["s1"] > before["s1"]
    assert [d["x"] for d in db[view].aggregate([{"$match": {"k": 3}}])] == [4]
    assert finds(cluster)["s1"] == counts["s1"]


def test_a_collation_decides_what_is_equal(cluster, db):
    db.client.admin.command("shardCollection", "t.words", key={"k": 1}, collation={"locale": "simple"})
    db.client.admin.command("split", "t.words", middle={"k": "a"})
    db.client.admin.command("moveChunk", "t.words", find={"k": "b"}, to="s1")
    db.words.insert_many([{"k": "A"}, {"k": "a"}])
    pipeline = [{"$set": {"y": 1}}, {"$match": {"k": "a"}}]
    assert [d["k"] for d in db.words.aggregate(pipeline)] == ["a"]
    strength = {"locale": "en", "strength": 1}
    assert sorted(d["k"] for d in db.words.aggregate(pipeline, collation=strength)) == ["A", "a"]
    always = [{"$set": {"y": 1}}, {"$match": {"$expr": {"$eq": ["x", "X"]}}}]
    assert list(db.words.aggregate(always)) == []
    assert len(list(db.words.aggregate(always, collation=strength))) == 2
    named = [{"$set": {"y": 1}}, {"$match": {"$expr": {"$eq": ["$k", "$$w"]}}}]
    assert [d["k"] for d in db.words.aggregate(named, let={"w": "A"})] == ["A"]
