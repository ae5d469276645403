"""Pipelines over two shards: what the shards read for them and what they send, counted by the shards' profilers, and
that the results are those of the same documents in one place."""

import os
import random
import threading
from datetime import datetime
from itertools import count

import pytest
from bson import ObjectId
from harness import until
from pymongo.errors import OperationFailure
from sharded_cluster import cluster_fixture, shard
from test_pipeline_optimizer import INHIBIT, SHAPES, Generator, inhibited

SEED = int(os.environ.get("PANDO_SEED", random.randrange(1 << 32)))
PIPELINES = int(os.environ.get("PANDO_PIPELINES", 150))
DOCUMENTS = 1000
PAD = "x" * 250
numbers = count()


cluster = cluster_fixture()


@pytest.fixture(scope="module")
def db(cluster):
    """`t` on two shards, half on each; the same documents in `plain` on one. `u` is little, `big` is not; both on one."""
    with cluster.client() as client:
        database = client.pipes
        client.admin.command("enableSharding", "pipes", primaryShard="s0")
        t = shard(database, "t", {"k": 1}, at=[DOCUMENTS // 2])
        documents = [
            {"_id": i, "k": i, "g": i % 20, "h": i * 7 % 100, "o": {"k": i}, "a": [{"x": i % 100}, {"x": (i + 1) % 100}], "p": i - 1, "pad": PAD}
            for i in range(DOCUMENTS)
        ]
        for coll in [t, database.plain]:
            coll.insert_many(documents)
            for field in ["k", "g", "o.k", "a.x"]:
                coll.create_index(field)
        database.u.insert_many([{"_id": i, "k": i, "up": i - 1, "name": f"n{i}"} for i in range(300)])
        database.u.create_index("k")
        database.big.insert_many([{"_id": i, "k": i, "pad": PAD} for i in range(1500)])
        yield database


@pytest.fixture
def read(cluster, db):
    """What a pipeline over `t` gives, and what the shards examined and sent for it: documents and bytes, by shard."""

    def run(pipeline, name="t", **options):
        comment = f"read {next(numbers)}"
        directs = {name: cluster.on_shard(name) for name in cluster.shards}
        for direct in directs.values():
            direct.pipes.command("profile", 2)
        given = list(db[name].aggregate(pipeline, comment=comment, **options))
        examined, sent = 0, {}
        for at, direct in directs.items():
            direct.pipes.command("profile", 0)
            entries = [e for e in direct.pipes["system.profile"].find({"command.comment": comment}) if "docsExamined" in e]
            examined += sum(e["docsExamined"] for e in entries)
            sent[at] = (sum(e["nreturned"] for e in entries), sum(e["responseLength"] for e in entries))
            direct.close()
        return given, examined, sent

    return run


def same(found, wanted):
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


@pytest.mark.parametrize("shape", SHAPES)
def test_shards_read_no_more_than_they_must(read, db, shape):
    pipeline, most = SHAPES[shape]
    given, documents, _ = read(pipeline)
    # Values of `g` are on both shards, and each has its own first ones.
    more = {"$group": 50, "$group, document": 50, "$setWindowFields": 50, "$densify": 50, "$fill": 50, "$facet of filters": 51}
    most = {**more, "$limit": 6, "$skip": 10}.get(shape, most)
    assert documents <= most, shape
    same(given, db.plain.aggregate(inhibited(pipeline)))


JOIN = {"$lookup": {"from": "u", "localField": "h", "foreignField": "k", "as": "j"}}
ACCUMULATORS = {
    "n": {"$sum": 1},
    "c": {"$count": {}},
    "avg": {"$avg": "$k"},
    "dev": {"$stdDevPop": "$h"},
    "least": {"$minN": {"n": 2, "input": "$h"}},
    "top": {"$top": {"output": "$k", "sortBy": {"h": 1, "k": 1}}},
    "last": {"$bottomN": {"n": 2, "output": "$k", "sortBy": {"k": 1}}},
    "set": {"$addToSet": "$g"},
    "merged": {"$mergeObjects": {"g": "$g"}},
    "half": {"$median": {"input": "$h", "method": "approximate"}},
}
# Each shard may send so many documents, of so many bytes in all.
TRAVELS = {
    "$count": ([{"$count": "n"}], 1, 300),
    "$match, $count": ([{"$match": {"g": {"$lt": 5}}}, {"$count": "n"}], 1, 300),
    "a driver's count": ([{"$match": {"g": 3}}, {"$group": {"_id": 1, "n": {"$sum": 1}}}], 1, 400),
    "$sortByCount": ([{"$sortByCount": "$g"}], 20, 4000),
    "$bucket": ([{"$bucket": {"groupBy": "$g", "boundaries": [0, 7, 20]}}], 2, 600),
    "$group of all kinds": ([{"$group": {"_id": {"$mod": ["$g", 4]}, **ACCUMULATORS}}], 4, 30_000),
    "$sort, $group": ([{"$sort": {"h": 1, "k": 1}}, {"$group": {"_id": "$g", "first": {"$first": "$k"}, "few": {"$lastN": {"n": 2, "input": "$k"}}}}], 20, 12_000),
    "$sort, $group without order": ([{"$sort": {"h": 1}}, {"$group": {"_id": "$g", "n": {"$sum": "$k"}}}], 20, 4000),
    "$facet": (
        [{"$facet": {"n": [{"$count": "n"}], "by": [{"$sortByCount": "$g"}, {"$limit": 3}], "top": [{"$sort": {"p": -1}}, {"$limit": 2}, {"$project": {"p": 1}}]}}],
        23,
        6000,
    ),
    "$facet of all": ([{"$facet": {"a": [{"$match": {"g": 3}}], "n": [{"$count": "n"}]}}, {"$project": {"n": 1}}], 500, 220_000),
    "$bucketAuto": ([{"$bucketAuto": {"groupBy": "$h", "buckets": 4}}], 500, 12_000),
    "$setWindowFields": (
        [
            {"$setWindowFields": {"partitionBy": "$g", "sortBy": {"k": 1}, "output": {"s": {"$sum": "$h", "window": {"documents": [-1, 0]}}}}},
            {"$group": {"_id": "$g", "m": {"$max": "$s"}}},
        ],
        500,
        25_000,
    ),
    "$fill": ([{"$fill": {"sortBy": {"k": 1}, "output": {"h": {"method": "locf"}}}}, {"$project": {"h": 1}}], 500, 25_000),
    "$unionWith": ([{"$unionWith": "u"}, {"$group": {"_id": None, "n": {"$sum": "$k"}}}], 500, 12_000),
    "$lookup, $count": ([JOIN, {"$match": {"j.name": "n7"}}, {"$count": "n"}], 1, 300),
    "$lookup, $unwind, $group": ([JOIN, {"$unwind": "$j"}, {"$group": {"_id": "$j.name", "n": {"$sum": 1}}}], 100, 12_000),
    "$lookup in what is not little": (
        [{"$lookup": {"from": "big", "localField": "h", "foreignField": "k", "as": "j"}}, {"$group": {"_id": {"$size": "$j"}, "n": {"$sum": 1}}}],
        5,
        1000,
    ),
    "$lookup in what is sharded": (
        [
            {"$lookup": {"from": "t", "localField": "p", "foreignField": "k", "as": "j"}},
            {"$unwind": "$j"},
            {"$group": {"_id": {"$subtract": ["$k", "$j.k"]}, "n": {"$sum": 1}, "a": {"$max": {"$size": "$j.a"}}}},
        ],
        5,
        1000,
    ),
    "$lookup with a pipeline, $match, $count": (
        [
            {"$match": {"k": {"$gte": 460, "$lt": 540}}},
            {"$lookup": {
                "from": "big", "localField": "h", "foreignField": "k", "let": {"g": "$g"}, "as": "j",
                "pipeline": [{"$match": {"$expr": {"$gt": ["$k", {"$multiply": [2, "$$g"]}]}}}, {"$project": {"k": 1}}],
            }},
            {"$match": {"j.k": {"$gte": 0}}},
            {"$count": "n"},
        ],
        5,
        1000,
    ),
    "$graphLookup, $group": (
        [
            {"$graphLookup": {"from": "u", "startWith": "$h", "connectFromField": "up", "connectToField": "k", "as": "j", "maxDepth": 3, "restrictSearchWithMatch": {"k": {"$lt": 90}}}},
            {"$group": {"_id": {"$size": "$j"}, "n": {"$sum": 1}}},
        ],
        5,
        1000,
    ),
    "$graphLookup in what is not little": (
        [
            {"$graphLookup": {"from": "big", "startWith": "$k", "connectFromField": "k", "connectToField": "k", "as": "j"}},
            {"$group": {"_id": {"$size": "$j"}, "n": {"$sum": 1}}},
        ],
        5,
        1000,
    ),
    "$project behind $sort": ([{"$sort": {"h": 1, "k": 1}}, {"$project": {"k": 1, "y": {"$add": ["$k", 1]}}}, {"$limit": 3}], 3, 1200),
    "$match behind $setWindowFields": (
        [{"$setWindowFields": {"partitionBy": "$g", "sortBy": {"k": 1}, "output": {"r": {"$rank": {}}}}}, {"$match": {"g": 3}}],
        25,
        12_000,
    ),
}


@pytest.mark.parametrize("name", TRAVELS)
def test_shards_send_no_more_than_they_must(read, db, name):
    pipeline, most, most_bytes = TRAVELS[name]
    given, _, sent = read(pipeline)
    assert set(sent) == {"s0", "s1"}
    for documents, size in sent.values():
        assert 0 < documents <= most and size <= most_bytes, (name, sent)
    found, wanted = [list(map(normal, docs)) for docs in (given, db.plain.aggregate(pipeline))]
    assert found == wanted if name.startswith(("$facet", "$project")) else sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_what_a_view_asks_for_is_divided_too(read, db):
    db.create_collection("v", viewOn="t", pipeline=[{"$addFields": {"y": {"$add": ["$h", 1]}}}])
    given, _, sent = read([{"$group": {"_id": "$y", "avg": {"$avg": "$k"}}}], name="v")
    assert len(given) == 100 and all(0 < documents <= 101 for documents, _ in sent.values())
    explained = db.command("explain", {"aggregate": "t", "pipeline": [{"$sort": {"h": 1}}, {"$match": {"k": 700}}, {"$count": "n"}], "cursor": {}})
    assert list(explained["shards"]) == ["s1"]


def test_what_lies_beside_a_target_is_written_where_it_is(read, cluster, db):
    """The target is on the first shard, which writes its own documents; those of the second come through the router."""
    few = [{"$match": {"g": {"$lt": 10}}}, {"$set": {"w": 1}}]
    want = sorted((d["_id"] for d in db.plain.find({"g": {"$lt": 10}})))
    add = {"$merge": {"into": "added", "whenMatched": [{"$set": {"w": {"$add": ["$w", "$$new.w"]}}}]}}
    db.added.create_index("w")
    for last, times in [(add, 1), (add, 2), (add, 3), ({"$out": "added"}, 1), ({"$out": "made"}, 1), ({"$merge": {"into": "made", "whenMatched": "merge"}}, 1)]:
        given, documents, sent = read([*few, last])
        assert given == [] and documents >= 500, (last, documents)
        assert sent["s0"][0] == 0 and sent["s0"][1] < 3000, (last, sent)
        assert sent["s1"][0] == 250, (last, sent)
        target = db[last["$out"] if "$out" in last else last["$merge"]["into"]]
        assert sorted(d["_id"] for d in target.find({"w": times, "pad": PAD})) == want == sorted(target.distinct("_id")), last
    assert [i["name"] for i in db.added.list_indexes()] == ["_id_", "w_1"], "$out keeps the target's indexes"
    # Each shard has documents that fail, whichever comes first.
    for last, code in [
        ({"$merge": {"into": "made", "whenMatched": "fail"}}, 11000),
        ({"$merge": {"into": "none", "whenNotMatched": "fail"}}, 13113),
        ({"$merge": {"into": "none", "on": "w"}}, 51183),
    ]:
        with pytest.raises(OperationFailure) as refused:
            db.t.aggregate([*few, last])
        assert refused.value.code == code
    with pytest.raises(OperationFailure) as refused:
        db.t.aggregate([{"$set": {"_id": 1}}, {"$out": "made"}])
    assert refused.value.code == 11000 and db.made.count_documents({}) == 500
    # Stages that need all documents, or another collection, run as before.
    for stages, n in [([{"$sort": {"k": 1}}, {"$limit": 700}], 700), ([{"$group": {"_id": "$g"}}], 20), ([{"$unionWith": "u"}, {"$project": {"k": 1}}], 1000)]:
        db.t.aggregate([*stages, {"$out": "all"}] if "$unionWith" not in stages[0] else [*stages, {"$merge": {"into": "all", "whenMatched": "keepExisting"}}])
        assert db["all"].count_documents({}) in (n, 1000)
    assert not [n for n in db.list_collection_names() if n.startswith("tmp")]
    assert all(open_cursors(cluster, name) == 0 for name in cluster.shards)


@pytest.fixture
def handed_on(cluster):
    """Runs a pipeline that merges, and counts the documents that came through the router."""

    def run(coll, pipeline, **options):
        directs = [cluster.on_shard(name) for name in cluster.shards]
        for direct in directs:
            direct.pipes.command("profile", 0)
            direct.pipes.drop_collection("system.profile")
            direct.pipes.command("profile", 2)
        assert list(coll.aggregate(pipeline, **options)) == []
        documents = 0
        for direct in directs:
            direct.pipes.command("profile", 0)
            # A long command is cut.
            for entry in direct.pipes["system.profile"].find({"command.pipeline.$documents": {"$exists": True}}):
                documents += len(entry["command"]["pipeline"][0]["$documents"]["$literal"])
            direct.close()
        return documents

    return run


def test_shards_write_what_belongs_to_them_of_a_sharded_target(handed_on, cluster, db):
    add = [{"$set": {"w": {"$add": ["$w", "$$new.w"]}}}]
    # The profiler shows no longer commands. Half of them are on each shard.
    some, n = {"$match": {"k": {"$gte": 350, "$lt": 650}}}, 300
    target = shard(db, "parted", {"k": 1}, at=[DOCUMENTS // 2])
    merge = {"$merge": {"into": "parted", "on": ["_id", "k"], "whenMatched": add}}
    for times in (1, 2, 3):
        # What lies as its source does has no way to go.
        assert handed_on(db.t, [some, {"$project": {"k": 1, "w": {"$literal": 1}}}, merge]) == 0
        assert target.count_documents({"w": times}) == n == target.count_documents({})
    # A source that is whole has half of it where it is; its stages may need all documents.
    assert handed_on(db.plain, [some, {"$sort": {"k": 1}}, {"$limit": 240}, {"$project": {"k": 1, "w": {"$literal": 1}}}, merge]) == 90
    assert [d["of"] for d in target.aggregate([{"$group": {"_id": "$w", "of": {"$sum": 1}}}, {"$sort": {"_id": 1}}])] == [60, 240]
    # Turned round, everything goes to the other shard. Of values that are moved on by a quarter, a
    # quarter does.
    turned = shard(db, "parted_turned", {"k": 1}, at=[DOCUMENTS // 2])
    assert handed_on(db.t, [some, {"$project": {"k": {"$subtract": [DOCUMENTS - 1, "$k"]}}}, {"$merge": "parted_turned"}]) == n
    assert handed_on(db.t, [some, {"$project": {"k": {"$add": ["$k", 75]}, "_id": {"$add": ["$_id", 5000]}}}, {"$merge": "parted_turned"}]) == n // 4
    assert turned.count_documents({}) == 2 * n
    # Where documents are made of all the router makes them.
    sums = shard(db, "parted_sums", {"_id": 1}, at=[10])
    assert handed_on(db.t, [{"$group": {"_id": "$g", "n": {"$sum": 1}}}, {"$merge": "parted_sums"}]) == 20
    assert sums.count_documents({"n": DOCUMENTS // 20}) == 20
    for last, code in [
        ({"$merge": {"into": "parted", "whenMatched": "fail"}}, 11000),
        ({"$merge": {"into": "parted", "whenNotMatched": "fail"}}, 13113),
    ]:
        with pytest.raises(OperationFailure) as refused:
            db.t.aggregate([{"$set": {"_id": {"$cond": [{"$eq": ["$k", 600]}, -1 if code == 13113 else 600, {"$add": ["$_id", 0 if code == 13113 else 9000]}]}}}, last])
        assert refused.value.code == code
    assert all(open_cursors(cluster, name) == 0 for name in cluster.shards)


def test_what_is_merged_by_other_fields_needs_no_id(db):
    """Only what looks for documents by `_id` gives them one: another one would change a document that is there."""
    db.parted_named.create_index("k", unique=True)
    target = shard(db, "parted_named", {"k": 1}, at=[DOCUMENTS // 2])
    merge = {"$merge": {"into": "parted_named", "on": ["k"], "whenMatched": "merge"}}
    for source in (db.t, db.plain):
        for turn in range(2):
            source.aggregate([{"$project": {"_id": 0, "k": 1, "turn": {"$literal": turn}}}, merge])
            assert target.count_documents({"turn": turn}) == DOCUMENTS == target.count_documents({})


def test_long_parts_pause(handed_on, db):
    """A shard does not hold its target for longer than ten thousand writes take."""
    target = shard(db, "paused", {"k": 1}, at=[0])
    big = shard(db, "paused_source", {"k": 1}, at=[0])
    big.insert_many([{"_id": i, "k": i} for i in range(-12_000, 12_000)])
    assert handed_on(big, [{"$merge": "paused"}], batchSize=0) == 0
    assert target.count_documents({}) == 24_000


def test_explain_tells_what_each_shard_gets(db):
    def parts(*pipeline):
        split = db.command("explain", {"aggregate": "t", "pipeline": list(pipeline), "cursor": {}}, verbosity="queryPlanner")["splitPipeline"]
        return split["shardsPart"], split["mergerPart"]

    each, rest = parts({"$setWindowFields": {"partitionBy": "$g", "output": {"n": {"$sum": 1}}}}, {"$match": {"g": 3}}, {"$project": {"n": 1}})
    assert each == [{"$match": {"g": 3}}, {"$project": {"g": 1, "n": 1, "_id": 1}}]
    assert [next(iter(s)) for s in rest] == ["$setWindowFields", "$project"]
    each, rest = parts({"$match": {"g": 3}}, {"$group": {"_id": "$h", "m": {"$avg": "$k"}}}, {"$limit": 1})
    assert each[1] == {"$group": {"_id": "$h", "m": {"$avg": "$k"}, "$willBeMerged": True}}
    assert rest == [{"$group": {"_id": "$h", "m": {"$avg": "$k"}, "$doingMerge": True}}, {"$limit": 1}]


def test_explain_of_a_view_tells_what_each_shard_gets(db):
    db.create_collection("later", viewOn="t", pipeline=[{"$addFields": {"y": {"$add": ["$h", 1]}}}])
    db.create_collection("beside_it", viewOn="u", pipeline=[{"$addFields": {"y": 1}}])

    def explain(command):
        return db.command("explain", command, verbosity="executionStats")

    found = explain({"find": "later", "filter": {"k": 700}})
    assert list(found["shards"]) == ["s1"] and found["splitPipeline"] is None
    (cursor, *_) = found["shards"]["s1"]["stages"]
    assert cursor["$cursor"]["executionStats"]["totalDocsExamined"] == 1
    found = explain({"aggregate": "later", "pipeline": [{"$match": {"g": 3}}, {"$group": {"_id": "$y", "n": {"$sum": 1}}}], "cursor": {}})
    assert set(found["shards"]) == {"s0", "s1"}
    each, rest = found["splitPipeline"]["shardsPart"], found["splitPipeline"]["mergerPart"]
    assert each[0] == {"$match": {"g": 3}} and each[-1]["$group"]["$willBeMerged"] is True
    assert rest[0]["$group"]["$doingMerge"] is True
    assert list(explain({"count": "later", "query": {"k": 3}})["shards"]) == ["s0"]
    # All of it is in one place: that explains it.
    found = explain({"find": "beside_it", "filter": {"k": 7}})
    assert "shards" not in found and found["stages"][0]["$cursor"]["queryPlanner"]["namespace"] == "pipes.u"


def test_explain_of_a_view_on_views_goes_down_to_what_is_stored(db):
    """All views are on the first shard, and so are those that they are on; what they are of is on both."""
    db.create_collection("first", viewOn="t", pipeline=[{"$addFields": {"y": {"$add": ["$h", 1]}}}])
    db.create_collection("second", viewOn="first", pipeline=[{"$project": {"k": 1, "g": 1, "y": 1}}])
    db.create_collection("third", viewOn="second", pipeline=[{"$match": {"y": {"$gt": 0}}}])

    def explain(command):
        return db.command("explain", command, verbosity="executionStats")

    def examined(explained):
        return {at: told["stages"][0]["$cursor"]["executionStats"]["totalDocsExamined"] for at, told in explained["shards"].items()}

    for name in ["second", "third"]:
        assert examined(explain({"find": name, "filter": {"k": 700}})) == {"s1": 1}
        assert examined(explain({"find": name, "filter": {"g": 3}})) == {"s0": 25, "s1": 25}
        assert examined(explain({"count": name, "query": {"k": 3}})) == {"s0": 1}
        assert examined(explain({"distinct": name, "key": "y", "query": {"k": 3}})) == {"s0": 1}
        found = explain({"aggregate": name, "pipeline": [{"$match": {"g": 3}}, {"$group": {"_id": "$y", "n": {"$sum": 1}}}], "cursor": {}})
        assert examined(found) == {"s0": 25, "s1": 25}
        assert found["splitPipeline"]["mergerPart"][0]["$group"]["$doingMerge"] is True
    with pytest.raises(OperationFailure) as refused:
        explain({"find": "third", "filter": {}, "returnKey": True})
    assert refused.value.code == 168
    # A collection on one shard, joined with one on both: the join is not explained as if all were there.
    found = explain({"aggregate": "u", "pipeline": [{"$match": {"k": 7}}, {"$lookup": {"from": "t", "localField": "k", "foreignField": "k", "as": "j"}}], "cursor": {}})
    assert list(found["shards"]) == ["s0"] and "$lookup" in found["splitPipeline"]["mergerPart"][0]


def test_explain_shows_a_pipeline_whole_that_one_shard_runs(db):
    pipeline = [{"$match": {"k": 7}}, {"$lookup": {"from": "u", "localField": "k", "foreignField": "k", "as": "j"}}, {"$count": "n"}]
    found = db.command("explain", {"aggregate": "t", "pipeline": pipeline, "cursor": {}}, verbosity="queryPlanner")
    assert list(found["shards"]) == ["s0"] and found["splitPipeline"] is None


def counting_finds(cluster, db, name):
    """Runs pipelines over `t`: what each gives, and how often each shard was asked for documents of a collection."""

    def finds(pipeline):
        directs = [cluster.on_shard(shard) for shard in cluster.shards]
        for direct in directs:
            direct.pipes.command("profile", 2)
        given = list(db.t.aggregate(pipeline))
        counted = []
        for direct in directs:
            direct.pipes.command("profile", 0)
            asked = {"ns": f"pipes.{name}", "op": {"$in": ["query", "command"]}, "$or": [{"command.find": name}, {"command.aggregate": name}]}
            counted.append(direct.pipes["system.profile"].count_documents(asked))
            direct.pipes.drop_collection("system.profile")
            direct.close()
        return given, counted

    return finds


def test_a_join_with_what_is_sharded_asks_for_many_at_once(cluster, db):
    """Of each batch of documents one query goes to the shards that have the values that are joined."""
    beside = shard(db, "beside", {"k": 1}, at=[DOCUMENTS // 2])
    documents = [{"_id": i, "k": i, "name": f"n{i}"} for i in range(DOCUMENTS)]
    beside.insert_many(documents)
    db.beside_plain.insert_many(documents)
    finds = counting_finds(cluster, db, "beside")

    def joined(name, local, *more):
        return [{"$lookup": {"from": name, "localField": local, "foreignField": "k", "as": "j"}}, *more]

    for more in [[{"$project": {"n": {"$size": "$j"}}}], [{"$unwind": "$j"}, {"$project": {"j": 1}}], [{"$unwind": "$j"}, {"$match": {"j.name": "n7"}}]]:
        for local in ["k", "h"]:
            given, counted = finds(joined("beside", local, *more))
            same(given, db.t.aggregate(joined("beside_plain", local, *more)))
            assert sum(counted) <= 30, (local, more, counted)
    # Values of one shard go to that one.
    given, counted = finds([{"$match": {"g": {"$gte": 0}}}, *joined("beside", "h", {"$count": "n"})])
    assert given == [{"n": DOCUMENTS}]
    given, counted = finds([{"$match": {"k": {"$gte": 100, "$lt": 900}}}, *joined("beside", "h", {"$project": {"j.name": 1}})])
    assert len(given) == 800 and counted[1] == 0 and 0 < counted[0] <= 15


def test_a_search_in_what_is_sharded_asks_for_many_at_once(cluster, db):
    """Of each batch of documents one query for each step goes to the shards that have the values it leads to."""
    tree = shard(db, "tree", {"k": 1}, at=[DOCUMENTS // 2])
    # Ten steps up from each leaf, within one hundred, so on one shard.
    # They are too long to be sent along.
    documents = [{"_id": i, "k": i, "up": i - 10 if i % 100 >= 10 else None, "pad": PAD} for i in range(DOCUMENTS)]
    tree.insert_many(documents)
    db.tree_plain.insert_many(documents)
    finds = counting_finds(cluster, db, "tree")

    def searched(name, *more, **options):
        return [{"$graphLookup": {"from": name, "startWith": "$k", "connectFromField": "up", "connectToField": "k", "as": "j", **options}}, *more]

    sizes = {"$group": {"_id": {"$size": "$j"}, "n": {"$sum": 1}, "far": {"$sum": {"$max": "$j.d"}}}}
    for options in [{"depthField": "d"}, {"depthField": "d", "maxDepth": 2}, {"restrictSearchWithMatch": {"_id": {"$gt": 250}}}]:
        given, counted = finds(searched("tree", sizes, **options))
        same(given, db.t.aggregate(searched("tree_plain", sizes, **options)))
        steps = options.get("maxDepth", 10) + 1
        # Four by themselves, then batches of 16, 32, … 512; each step may go to both shards.
        assert 0 < sum(counted) <= (4 + 7) * 2 * steps, (options, counted)
    # Where all that they lead to is on one shard it alone is asked.
    low = [{"$match": {"k": {"$gte": 100, "$lt": 400}}}]
    given, counted = finds([*low, *searched("tree", sizes)])
    same(given, db.t.aggregate([*low, *searched("tree_plain", sizes)]))
    assert counted[1] == 0 and 0 < counted[0] <= (4 + 6) * 11, counted
    # A view on it is searched as well.
    db.create_collection("tree_view", viewOn="tree", pipeline=[{"$addFields": {"w": 1}}])
    given, counted = finds([*low, *searched("tree_view", sizes)])
    same(given, db.t.aggregate([*low, *searched("tree_plain", sizes)]))


def test_states_that_are_too_long_to_send(db):
    """Each shard's list would be a document of more than 16 MB, and the final result is a number."""
    long = shard(db, "long", {"_id": 1}, at=[20])
    for n in range(40):
        long.insert_one({"_id": n, "v": str(n) + "y" * (1 << 20)})
    pipeline = [{"$group": {"_id": None, "all": {"$push": "$v"}}}, {"$project": {"n": {"$size": "$all"}}}]
    assert list(long.aggregate(pipeline)) == [{"_id": None, "n": 40}]


def test_a_find_with_variables_is_projected_behind_its_merge(db):
    """A sort's keys are of whole documents, so it is the router that makes the projection."""
    options = {"filter": {"$expr": {"$gte": ["$k", "$$least"]}}, "sort": {"k": 1}, "limit": 2, "let": {"least": 498, "more": {"$add": [1, 2]}}}
    projection = {"_id": 0, "k": 1, "sum": {"$add": ["$k", "$$more"]}, "late": {"$gt": ["$$NOW", datetime(2020, 1, 1)]}}
    found = db.command("find", "t", projection=projection, **options)["cursor"]["firstBatch"]
    assert found == [{"k": n, "sum": n + 3, "late": True} for n in (498, 499)]


def test_a_merge_is_read_as_it_is_needed(cluster, db):
    """The rest of a pipeline begins before the shards have given all, and their cursors end with it."""
    wide = shard(db, "wide", {"_id": 1}, at=[5000])
    wide.insert_many([{"_id": i, "k": i} for i in range(10_000)])
    pipeline = [{"$unionWith": "u"}, {"$addFields": {"z": 1}}]
    found = wide.aggregate(pipeline, batchSize=5)
    assert [next(found)["z"] for _ in range(5)] == [1] * 5
    opened = lambda: sum(open_cursors(cluster, name) for name in cluster.shards)  # noqa: E731
    assert opened() == 2
    found.close()
    assert opened() == 0
    assert len(list(wide.aggregate(pipeline, batchSize=1000))) == 10_300 and opened() == 0
    assert wide.aggregate([*pipeline, {"$limit": 10}]).next()["z"] == 1 and opened() == 0
    with wide.aggregate(pipeline, batchSize=0) as unread:
        assert unread.alive
    assert opened() == 0


def open_cursors(cluster, name):
    with cluster.on_shard(name) as direct:
        return direct.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]


def test_the_router_keeps_what_it_merges_itself(cluster, db):
    """Between two batches the rest of a pipeline is a value among the router's cursors: the server that it embeds has opened none besides."""
    counted = lambda: db.client.admin.command("serverStatus")["metrics"]["cursor"]  # noqa: E731
    before = counted()
    merged = db.t.aggregate([{"$group": {"_id": "$k"}}, {"$sort": {"_id": 1}}], batchSize=3, comment="merged")
    made = db.aggregate([{"$documents": [{"a": n} for n in range(300)]}], batchSize=2)
    ops = [{"insert": 0, "document": {"_id": n}} for n in range(5)]
    bulk = db.client.admin.command("bulkWrite", 1, ops=ops, nsInfo=[{"ns": "pipes.written"}], cursor={"batchSize": 2})["cursor"]
    assert [next(merged)["_id"] for _ in range(3)] == [0, 1, 2] and next(made)["a"] == 0
    assert [d["idx"] for d in bulk["firstBatch"]] == [0, 1] and bulk["id"] and bulk["ns"] == "admin.$cmd.bulkWrite"
    now = counted()
    assert now["open"]["total"] == before["open"]["total"] + 3 and now["totalOpened"] == before["totalOpened"] + 3
    assert [d["_id"] for d in merged] == list(range(3, DOCUMENTS)) and len(list(made)) == 299
    more = db.client.admin.command("getMore", bulk["id"], collection="$cmd.bulkWrite")["cursor"]
    assert [d["idx"] for d in more["nextBatch"]] == [2, 3, 4] and more["id"] == 0


def test_a_merge_is_shown_and_ended_at_the_router(db):
    """The router's part is an operation of the router, under a number without a shard."""
    slow = [{"$group": {"_id": "$k"}}, {"$set": {"x": {"$function": {"body": "function() { sleep(100); return 1; }", "args": [], "lang": "js"}}}}]
    ended = []

    def run():
        try:
            list(db.t.aggregate(slow, comment="slow merge"))
        except OperationFailure as failure:
            ended.append(failure.code)

    thread = threading.Thread(target=run)
    thread.start()
    mine = lambda: [o for o in db.client.admin.command("currentOp", **{"command.comment": "slow merge"})["inprog"] if "shard" not in o]  # noqa: E731
    [op] = until("the merge runs", mine)
    assert op["ns"] == "pipes.t" and isinstance(op["opid"], int)
    db.client.admin.command("killOp", op=op["opid"])
    thread.join(30)
    assert ended == [11601]
    with pytest.raises(OperationFailure) as failure:
        list(db.t.aggregate(slow, maxTimeMS=500))
    assert failure.value.code == 50


@pytest.mark.parametrize("target", ["of_documents", "of_documents_in_parts"])
def test_documents_of_a_command_are_written_where_they_belong(db, target):
    """A pipeline on no collection writes to the cluster as any other does."""
    if target == "of_documents_in_parts":
        shard(db, target, {"k": 1}, at=[5])
    stages = [{"$documents": [{"_id": n, "k": n} for n in range(10)]}, {"$set": {"x": "$$x"}}]
    for last in [{"$merge": target}, *([{"$out": target}] if target == "of_documents" else [])]:
        assert list(db.aggregate([*stages, last], let={"x": 7})) == []
        assert [d["x"] for d in db[target].find()] == [7] * 10


class Divided(Generator):
    """Pipelines divided between shards and router, in all ways."""

    def stage(self):
        r = self.r
        if r.random() < 0.85:
            return super().stage()
        by = {"connectFromField": r.choice(["a", "b", "a.b", "_id"]), "connectToField": r.choice(["_id", "a", "b"])}
        more = r.choice([{}, {"maxDepth": r.randint(0, 2)}, {"restrictSearchWithMatch": {"_id": {"$lt": r.randint(5, 30)}}}])
        return r.choice(
            [
                {"$graphLookup": {"from": r.choice(["kin", "much"]), "startWith": r.choice(["$a", "$b", "$_id", "$a.b"]), **by, **more, "as": "w"}},
                {"$lookup": {"from": r.choice(["kin", "much"]), "localField": r.choice(["a", "b", "_id"]), "foreignField": r.choice(["_id", "a"]), "as": "w"}},
            ]
        )

    def reduced(self):
        r = self.r
        by = r.choice(["$a", "$b", "$c", {"x": "$b"}, None])
        value = r.choice(["$a", "$b", "$c", "$a.b", "$_id"])
        kinds = {
            "n": {"$sum": value},
            "avg": {"$avg": value},
            "set": {"$addToSet": value},
            "all": {"$push": value},
            "most": {"$max": value},
            "least": {"$minN": {"n": 2, "input": value}},
            "dev": {"$stdDevSamp": value},
            "top": {"$top": {"output": value, "sortBy": {"_id": 1}}},
            "count": {"$count": {}},
        }
        chosen = dict(r.sample(sorted(kinds.items()), r.randint(1, 3)))
        ordered = {"first": {"$first": value}, "end": {"$lastN": {"n": 2, "input": value}}, "all": {"$push": value}}
        key = r.choice(["b", "a.b", "c"])
        return r.choice(
            [
                [{"$group": {"_id": by, **chosen}}],
                [{"$sort": {key: r.choice([1, -1]), "_id": 1}}, {"$group": {"_id": by, **dict(r.sample(sorted(ordered.items()), 2))}}],
                [{"$count": "n"}],
                [{"$sortByCount": value}],
                [{"$sort": {"_id": r.choice([1, -1])}}, {"$limit": r.randint(1, 9)}],
                [{"$sort": {key: 1, "_id": -1}}, {"$skip": 2}, {"$limit": 5}, {"$addFields": {"w": 1}}],
                [{"$bucket": {"groupBy": {"$ifNull": ["$b", 0]}, "boundaries": [0, 1, 2], "default": "other", "output": {"avg": {"$avg": "$c"}}}}],
            ]
        )

    def stages(self):
        r = self.r
        fields = [f for f in "abcd" if r.random() < 0.8]
        first = [{"$project": {**{f: 1 for f in fields}, "_id": 1}}] if r.random() < 0.2 else []
        inner = [self.stage() for _ in range(r.randint(0, 2))]
        if any("$unwind" in s or "$group" in s or "$unionWith" in s or "$replaceWith" in s for s in inner):
            # An order that is promised needs an `_id` that is not shared.
            return [*first, *inner]
        if r.random() < 0.3:
            parts = {name: self.reduced() for name in ["x", "y"][: r.randint(1, 2)]}
            return [*first, *inner, {"$facet": parts}]
        return [*first, *inner, *self.reduced(), *([self.stage()] if r.random() < 0.3 else [])]


def normal(v):
    """The same for values that are equal: of these a group may have any; and for sets."""
    if isinstance(v, dict):
        return {k: sorted(map(normal, x), key=repr) if k in ("set", "all", "w", "x", "y") and isinstance(x, list) else normal(x) for k, x in v.items()}
    if isinstance(v, list):
        return [normal(x) for x in v]
    return round(float(v), 9) if isinstance(v, (int, float)) and not isinstance(v, bool) else v


def outcome(coll, pipeline):
    try:
        return sorted(repr(normal(d)) for d in coll.aggregate(pipeline))
    except OperationFailure as e:
        return e.code


def together(v):
    """The pipeline with the other sides of its joins in one place."""
    if isinstance(v, dict):
        return {k: together(x) for k, x in v.items()}
    if isinstance(v, list):
        return [together(x) for x in v]
    return f"{v}_together" if v in ("kin", "much") else v


def written(db, coll, pipeline):
    """What a pipeline leaves in a collection, or why it does not. An `_id` that is made up is not compared."""
    db.drop_collection("made_by")
    try:
        coll.aggregate([*pipeline, {"$out": "made_by"}])
    except OperationFailure as e:
        return e.code
    found = [normal({k: None if isinstance(v, ObjectId) else v for k, v in d.items()}) for d in db.made_by.find()]
    return sorted(repr(sorted(d.items())) for d in found)


def test_random_pipelines_give_the_same(cluster, db):
    r = random.Random(SEED)
    g = Divided(r)
    spread = shard(db, "spread", {"_id": 1}, at=[15])
    documents = [g.document(i) for i in range(30)]
    for coll in [spread, db.together]:
        coll.insert_many(documents)
        for field in ["a", "a.b", "b"]:
            coll.create_index(field)
    db.other.insert_many([g.document(i) for i in range(30)])
    kin = shard(db, "kin", {"_id": 1}, at=[12])
    documents = [g.document(i) for i in range(30)]
    # Too many to be sent along: shards read them of each other.
    much = shard(db, "much", {"_id": 1}, at=[17])
    nobodys = [{"_id": 1000 + i, "a": -999, "b": -999} for i in range(1001)]
    for coll, more in [(kin, []), (db.kin_together, []), (much, nobodys), (db.much_together, nobodys)]:
        coll.insert_many(documents + more)
        coll.create_index("a")
    first = {"$addFields": {"d": "$a"}}
    db.create_collection("view", viewOn="other", pipeline=[first])
    db.create_collection("on", viewOn="spread", pipeline=[first])
    compared = 0
    for i in range(PIPELINES):
        pipeline = g.stages()
        whole = [first, *pipeline]
        alone = inhibited(together(whole))
        want = outcome(db.together, alone)
        if isinstance(want, int):
            continue
        compared += 1
        for found in [outcome(spread, whole), outcome(db.on, pipeline), outcome(spread, [first, INHIBIT, *pipeline])]:
            assert found == want, f"PANDO_SEED={SEED} ({i}): {whole}"
        if i % 4 == 0:
            assert written(db, spread, whole) == written(db, db.together, alone), f"PANDO_SEED={SEED} ({i}), $out: {whole}"
    assert compared > PIPELINES // 2
