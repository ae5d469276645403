"""Search over two shards, through a router: as one server with the same documents would answer, also while ranges move."""

import random
import threading

import pytest
from harness import refuses, until
from pymongo.errors import OperationFailure
from pymongo.operations import SearchIndexModel
from searches import DYNAMIC, found, ids, indexed, is_ready, shows, text
from sharded_cluster import ShardedCluster, at_rest

COUNT = 400
WORDS = ["red", "green", "blue", "amber", "violet"]
FACETED = {
    "mappings": {"dynamic": True, "fields": {"cat": {"type": "token"}, "title": {"type": "string"}, "n": {"type": "number"}}}
}
VECTORS = {
    "fields": [
        {"type": "vector", "path": "v", "numDimensions": 2, "similarity": "euclidean"},
        {"type": "filter", "path": "cat"},
    ]
}
SCORE = {"$project": {"score": {"$meta": "searchScore"}}}


def documents():
    # Every title has as many words as any other, and each shard as many of each: scores are those of one server.
    return [{"_id": i, "title": f"{WORDS[i % 5]} word", "n": i, "cat": f"c{i % 7}", "v": [i, 1]} for i in range(COUNT)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with at_rest(tmp_path_factory.mktemp("sharded")) as running:
        with running.client() as client:
            client.admin.command("shardCollection", "t.c", key={"_id": 1})
            client.admin.command("split", "t.c", middle={"_id": COUNT // 2})
            owner = client.config.databases.find_one({"_id": "t"})["primary"]
            [other] = {"s0", "s1"} - {owner}
            client.admin.command("moveChunk", "t.c", find={"_id": COUNT // 2}, to=other)
            client.t.c.insert_many(documents())
            indexed(client.t.c, FACETED)
            indexed(client.t.c, VECTORS, "vectors", "vectorSearch")
        yield running


@pytest.fixture
def client(cluster):
    with cluster.client() as client:
        yield client


@pytest.fixture
def coll(client):
    return client.t.c


def nearest(coll, query, limit=5, *stages, **more):
    stage = {"index": "vectors", "path": "v", "queryVector": query, "limit": limit, "exact": True, **more}
    return [d["_id"] for d in coll.aggregate([{"$vectorSearch": stage}, *stages])]


def test_documents_of_both_shards_best_first(cluster, coll):
    for name in cluster.shards:
        with cluster.on_shard(name) as shard:
            assert shard.t.c.count_documents({}) == COUNT // 2
    assert ids(coll, text("red")) == list(range(0, COUNT, 5))
    scored = found(coll, {"near": {"path": "n", "origin": 199.4, "pivot": 10}}, {"$limit": 4}, SCORE)
    assert [d["_id"] for d in scored] == [199, 200, 198, 201]
    assert [d["score"] for d in scored] == pytest.approx([10 / 10.4, 10 / 10.6, 10 / 11.4, 10 / 11.6], rel=1e-5)
    skipped = found(coll, {"near": {"path": "n", "origin": 199.4, "pivot": 10}}, {"$project": {"n": 1}}, {"$skip": 1}, {"$limit": 2})
    assert [d["_id"] for d in skipped] == [200, 198]
    whole = found(coll, text("red"), {"$match": {"n": {"$in": [100, 300, 301]}}})
    assert whole == [d for d in documents() if d["_id"] in (100, 300)]
    by_n = found(coll, text("blue"), {"$limit": 3}, sort={"n": -1})
    assert [d["_id"] for d in by_n] == [397, 392, 387]
    by_cat = found(coll, text("blue"), sort={"cat": 1, "n": 1})
    want = sorted((d for d in documents() if d["n"] % 5 == 2), key=lambda d: (d["cat"], d["n"]))
    assert [d["_id"] for d in by_cat] == [d["_id"] for d in want]
    # Batches come from both, one after the other.
    assert len(list(coll.aggregate([{"$search": {"exists": {"path": "n"}}}], batchSize=7))) == COUNT


def test_the_rest_of_the_pipeline_sees_all(client, coll):
    [grouped] = found(coll, text("green"), {"$group": {"_id": None, "n": {"$sum": "$n"}, "most": {"$max": {"$meta": "searchScore"}}}})
    assert grouped["n"] == sum(range(1, COUNT, 5)) and grouped["most"] > 0
    assert found(coll, text("green"), {"$count": "n"}) == [{"n": COUNT // 5}]
    lookup = {"$lookup": {"from": "c", "pipeline": [{"$search": text("amber")}, {"$count": "n"}], "as": "j"}}
    assert found(coll, text("red"), {"$limit": 1}, lookup)[0]["j"] == [{"n": COUNT // 5}]
    union = [{"$search": text("red")}, {"$project": {"n": 1}}, {"$unionWith": {"coll": "c", "pipeline": [{"$search": text("blue")}]}}]
    assert len(list(coll.aggregate(union))) == 2 * COUNT // 5
    vector = {"$vectorSearch": {"index": "vectors", "path": "v", "queryVector": [250, 1], "limit": 3, "exact": True}}
    inputs = {"text": [{"$search": text("red")}, {"$limit": 5}], "vector": [vector]}
    ranked = list(coll.aggregate([{"$rankFusion": {"input": {"pipelines": inputs}}}]))
    # 250 may be among the first that have the word, which all score alike.
    assert {250, 249, 251} <= {d["_id"] for d in ranked} and len(ranked) in (7, 8)
    client.t.command("create", "seen", viewOn="c", pipeline=[{"$match": {"n": {"$lt": 300}}}, {"$set": {"shown": True}}])
    seen = found(client.t.seen, text("violet"))
    assert sorted(d["_id"] for d in seen) == list(range(4, 300, 5)) and all(d["shown"] for d in seen)
    coll.aggregate([{"$search": text("amber")}, {"$out": "ambers"}])
    assert client.t.ambers.count_documents({}) == COUNT // 5


def test_counts_and_facets_are_summed(coll):
    [meta] = coll.aggregate([{"$searchMeta": {**text("red"), "count": {"type": "total"}}}])
    assert meta == {"count": {"total": COUNT // 5}}
    facets = {
        "cats": {"type": "string", "path": "cat", "numBuckets": 3},
        "ns": {"type": "number", "path": "n", "boundaries": [0, 150, 250], "default": "rest"},
    }
    [meta] = coll.aggregate([{"$searchMeta": {"facet": {"operator": {"exists": {"path": "n"}}, "facets": facets}}}])
    cats = sorted(((-len(range(c, COUNT, 7)), f"c{c}") for c in range(7)))[:3]
    assert meta["count"] == {"lowerBound": COUNT}
    assert meta["facet"]["cats"]["buckets"] == [{"_id": c, "count": -n} for n, c in cats]
    assert meta["facet"]["ns"]["buckets"] == [{"_id": 0, "count": 150}, {"_id": 150, "count": 100}, {"_id": "rest", "count": 150}]
    [told] = coll.aggregate([{"$searchMeta": text("red")}, {"$project": {"n": "$count.lowerBound"}}])
    assert told == {"n": COUNT // 5}
    with refuses(8):
        coll.aggregate([{"$searchMeta": {"facet": {"facets": {"x": {"type": "string", "path": "title"}}}}}])


def test_what_is_known_of_all_is_known_behind_the_search(coll):
    known = {"$project": {"_id": 0, "n": "$$SEARCH_META.count.total"}}
    total = {"count": {"type": "total"}}
    assert found(coll, text("red"), {"$limit": 2}, known, **total) == [{"n": COUNT // 5}] * 2
    among = {"$match": {"$expr": {"$gt": ["$n", {"$add": ["$$SEARCH_META.count.total", 310]}]}}}
    assert [d["_id"] for d in found(coll, text("red"), among, {"$sort": {"_id": 1}}, **total)] == [395]
    parts = {"docs": [{"$count": "n"}], "meta": [{"$replaceWith": "$$SEARCH_META"}, {"$limit": 1}]}
    want = {"docs": [{"n": COUNT // 5}], "meta": [{"count": {"total": COUNT // 5}}]}
    assert found(coll, text("red"), {"$facet": parts}, **total) == [want]
    # In a pipeline whose stages are run by the router.
    inner = [{"$search": {**text("red"), **total}}, {"$limit": 1}, known]
    assert list(coll.aggregate([{"$match": {"_id": 1}}, {"$project": {"_id": 1}}, {"$unionWith": {"coll": "c", "pipeline": inner}}])) == [
        {"_id": 1},
        {"n": COUNT // 5},
    ]
    with refuses(6347902):
        coll.aggregate([{"$set": {"m": "$$SEARCH_META"}}])


@pytest.mark.parametrize("options", [{}, {"sort": {"n": -1}}, {"sort": {"cat": 1}}])
def test_pages_of_both_shards_follow_one_another(coll, options):
    token = {"$set": {"token": {"$meta": "searchSequenceToken"}}}
    out, after = [], {}
    while page := found(coll, text("red"), {"$limit": 7}, token, **options, **after):
        out += page
        after = {"searchAfter": page[-1]["token"]}
    assert sorted(d["_id"] for d in out) == list(range(0, COUNT, 5))
    assert [d["token"] for d in out] == sorted(d["token"] for d in out)
    if options:
        [(field, order)] = options["sort"].items()
        assert [d[field] for d in out] == sorted((d[field] for d in out), reverse=order == -1)
    before = found(coll, text("red"), {"$limit": 9}, searchBefore=out[40]["token"], **options)
    assert [d["_id"] for d in before] == [d["_id"] for d in out[39:30:-1]]


def test_highlights_and_details_come_from_both(coll):
    shown = {"$project": {"on": {"$meta": "searchHighlights"}, "why": {"$meta": "scoreDetails"}, "score": {"$meta": "searchScore"}}}
    for d in found(coll, text("red"), {"$limit": 50}, shown, highlight={"path": "title"}, scoreDetails=True):
        assert d["on"][0]["texts"] == [{"value": "red", "type": "hit"}, {"value": " word", "type": "text"}]
        assert d["why"]["value"] == d["score"]


def test_what_is_stored_comes_in_order_though_it_lacks_what_it_is_sorted_by(coll):
    indexed(coll, {**FACETED, "storedSource": {"include": ["title"]}}, "stored")
    options = {"index": "stored", "returnStoredSource": True, "sort": {"n": -1}}
    given = found(coll, text("red"), {"$limit": 3}, **options)
    assert given == [{"_id": i, "title": "red word"} for i in (395, 390, 385)]
    # Nothing behind it: the router gives what shards have wrapped.
    assert [d["_id"] for d in found(coll, text("red"), **options)] == list(range(COUNT - 5, -1, -5))
    coll.drop_search_index("stored")


def test_the_nearest_of_both_shards(coll):
    assert nearest(coll, [199.6, 1]) == [200, 199, 201, 198, 202]
    assert nearest(coll, [199.6, 1], 2, {"$project": {"n": 1}}) == [200, 199]
    # The stages behind it see no more than the nearest of all.
    assert nearest(coll, [199.6, 1], 5, {"$match": {"n": {"$gt": 200}}}) == [201, 202]
    want = sorted((abs(199.6 - i), i) for i in range(3, COUNT, 7))[:4]
    assert nearest(coll, [199.6, 1], 4, filter={"cat": "c3"}) == [i for _, i in want]


def test_definitions_are_on_all_shards(cluster, client):
    coll = client.t.other
    client.admin.command("shardCollection", "t.other", key={"_id": "hashed"})
    coll.insert_many({"_id": i, "title": WORDS[i % 5]} for i in range(50))
    assert coll.create_search_index(SearchIndexModel(DYNAMIC, "a")) == "a"
    until("it is ready", lambda: is_ready(coll, "a"))
    [listed] = coll.list_search_indexes()
    assert listed["numDocs"] == 50 and len(listed["statusDetail"]) == 2
    own = []
    for name in cluster.shards:
        with cluster.on_shard(name) as shard:
            own += [(i["id"], i["name"]) for i in shard.t.other.list_search_indexes()]
    assert own == [(listed["id"], "a")] * 2
    assert [i["name"] for i in client.t.command("listSearchIndexes", "other")["cursor"]["firstBatch"]] == ["a"]
    fields = {"mappings": {"fields": {"title": {"type": "string", "analyzer": "lucene.keyword"}}}}
    coll.update_search_index("a", fields)
    assert next(iter(coll.list_search_indexes("a")))["latestDefinition"] == fields
    with refuses(68):
        coll.create_search_index(SearchIndexModel(DYNAMIC, "a"))
    for command in [{"createSearchIndexes": "nobody", "indexes": [{"definition": DYNAMIC}]}, {"createSearchIndexes": "nobody", "indexes": []}]:
        with pytest.raises(OperationFailure):
            client.t.command(command)
    coll.drop_search_index("a")
    assert list(coll.list_search_indexes()) == []
    with refuses(27):
        coll.drop_search_index("a")
    # One that no router knows of is on one shard.
    client.t.plain.insert_many({"_id": i, "title": "red"} for i in range(5))
    assert ids(indexed(client.t.plain), text("red")) == [0, 1, 2, 3, 4]


def test_a_session_sees_its_own_writes_on_both(client):
    coll = client.t.c
    with client.start_session(causal_consistency=True) as session:
        for i in (1000, 1001, -1):
            coll.insert_one({"_id": i, "title": f"causal{i}".replace("-", "m")}, session=session)
            search = [{"$search": text(f"causal{i}".replace("-", "m"))}]
            assert [d["_id"] for d in coll.aggregate(search, session=session)] == [i]
        coll.delete_many({"_id": {"$in": [1000, 1001, -1]}}, session=session)


def counted(coll):
    [meta] = coll.aggregate([{"$searchMeta": {"exists": {"path": "n"}, "count": {"type": "total"}}}])
    return meta["count"]["total"]


def test_no_document_twice_while_ranges_move(tmp_path):
    """The donor of a range has orphans, and its recipient has documents that are not its own yet."""
    with ShardedCluster(tmp_path) as cluster, cluster.client() as client:
        client.admin.command("balancerStop")
        client.admin.command("shardCollection", "t.c", key={"n": 1})
        coll = client.t.c
        coll.insert_many(documents())
        indexed(coll, FACETED)
        indexed(coll, VECTORS, "vectors", "vectorSearch")
        for n in range(50, COUNT, 50):
            client.admin.command("split", "t.c", middle={"n": n})
        done, wrong = threading.Event(), []

        def search():
            while True:
                try:
                    return look()
                except OperationFailure as error:
                    # A shard that has just got the collection builds its indexes.
                    if "while in state INITIAL_SYNC" in str(error):
                        continue
                    return wrong.append(error)
                except BaseException as error:
                    return wrong.append(error)

        def look():
            with cluster.client() as own:
                things = own.t.c
                looks = 0
                while not done.is_set() or looks < 5:
                    looks += 1
                    seen = [d["_id"] for d in found(things, {"exists": {"path": "n"}})]
                    if len(seen) != len(set(seen)):
                        wrong.append(f"twice: {len(seen)}")
                    near = nearest(things, [123.2, 1], 4)
                    if len(near) != len(set(near)):
                        wrong.append(f"twice: {near}")
                    # What a shard has just cleaned away its index counts until it has seen that: 100 ms, as of every delete.
                    until("each is counted once", lambda: counted(things) <= COUNT, 5)

        searching = [threading.Thread(target=search) for _ in range(2)]
        for thread in searching:
            thread.start()
        rng = random.Random(5)
        for _ in range(8):
            start = rng.randrange(0, COUNT, 50)
            to = rng.choice(["s0", "s1"])
            client.admin.command("moveChunk", "t.c", find={"n": start}, to=to)
        done.set()
        for thread in searching:
            thread.join()
        assert not wrong, wrong
        # Moved documents are found where they are, and not where they were, before the cleaning and
        # after.
        shows(coll, {"exists": {"path": "n"}}, list(range(COUNT)))
        until("each is counted", lambda: counted(coll) == COUNT)
        until("the nearest are there", lambda: nearest(coll, [123.2, 1], 4) == [123, 124, 122, 125])
        names = {i["name"] for i in coll.list_search_indexes()}
        assert names == {"default", "vectors"}
        for name in cluster.shards:
            with cluster.on_shard(name) as shard:
                assert {i["name"] for i in shard.t.c.list_search_indexes()} == names


def alike(query):
    return text(query, synonyms="words")


def with_synonyms(client, coll):
    """An index whose synonyms are in another collection, which is read so far by this alone."""
    client.t.same.delete_many({})
    client.t.same.insert_one({"_id": 1, "mappingType": "equivalent", "synonyms": ["red", "violet"]})
    mapping = {"name": "words", "analyzer": "lucene.standard", "source": {"collection": "same"}}
    indexed(coll, {"mappings": {"dynamic": True}, "synonyms": [mapping]}, "alike")


def of_words(*words):
    return [d["_id"] for d in documents() if d["title"].split()[0] in words]


def reads(client, name="same"):
    """How often a collection was read, by all commands that read."""
    rows = client.t[name].aggregate([{"$collStats": {"latencyStats": {}}}])
    return sum(row["latencyStats"]["reads"]["ops"] for row in rows)


def reads_by(client, work):
    """How often work reads synonyms, without what the question itself reads."""
    own = -reads(client) + reads(client)
    before = reads(client)
    work()
    return reads(client) - before - own


def test_synonyms_are_read_by_the_router(client, coll):
    with_synonyms(client, coll)
    wanted = of_words("red", "violet")
    assert ids(coll, alike("red"), index="alike") == wanted
    [meta] = coll.aggregate([{"$searchMeta": {"index": "alike", **alike("red"), "count": {"type": "total"}}}])
    assert meta["count"]["total"] == len(wanted)
    with client.start_session(causal_consistency=True) as session:
        client.t.same.delete_many({}, session=session)
        stage = {"$search": {"index": "alike", **alike("red")}}
        assert sorted(d["_id"] for d in coll.aggregate([stage], session=session)) == of_words("red")
    until("others see it too", lambda: ids(coll, alike("red"), index="alike") == of_words("red"))
    coll.drop_search_index("alike")


@pytest.mark.parametrize("spread", [False, True])
def test_synonyms_are_read_again_after_a_write_only(client, coll, spread):
    client.t.same.drop()
    if spread:
        client.admin.command("shardCollection", "t.same", key={"_id": "hashed"})
    with_synonyms(client, coll)
    until("they are there", lambda: ids(coll, alike("red"), index="alike") == of_words("red", "violet"))
    # A stamp may tell of the insert later than the first search came.
    until("a search reads nothing", lambda: reads_by(client, lambda: ids(coll, alike("red"), index="alike")) == 0)

    def search():
        for _ in range(10):
            assert ids(coll, alike("red"), index="alike") == of_words("red", "violet")

    assert reads_by(client, search) == 0
    client.t.same.update_one({"_id": 1}, {"$set": {"synonyms": ["red", "green"]}})
    until("the write is seen", lambda: ids(coll, alike("red"), index="alike") == of_words("red", "green"))
    coll.drop_search_index("alike")
    client.t.same.drop()


def test_the_status_of_synonyms_is_that_of_all_shards(client, coll):
    with_synonyms(client, coll)

    def status():
        [row] = coll.list_search_indexes("alike")
        return row["synonymMappingStatus"], row["synonymMappingStatusDetail"]

    ready = ("READY", [{"words": {"status": "READY", "queryable": True}}])
    until("the mapping is ready", lambda: status() == ready)
    client.t.same.insert_one({"_id": "odd", "mappingType": "other"})
    until("the wrong document is told of", lambda: status()[0] == "FAILED" and "odd" in str(status()[1]))
    client.t.same.delete_one({"_id": "odd"})
    until("it is mended", lambda: status() == ready)
    client.t.command("create", "viewed", viewOn="same", pipeline=[])
    mapping = {"name": "words", "analyzer": "lucene.standard", "source": {"collection": "viewed"}}
    coll.update_search_index("alike", {"mappings": {"dynamic": True}, "synonyms": [mapping]})
    until("a view is refused", lambda: status()[0] == "FAILED" and "t.viewed" in str(status()[1]))
    client.t.viewed.drop()
    coll.drop_search_index("alike")


def test_vectors_within_search(client, coll):
    field = {"type": "vector", "numDimensions": 2, "similarity": "euclidean"}
    indexed(coll, {"mappings": {"dynamic": True, "fields": {"v": field}}}, "within")
    near = {"path": "v", "queryVector": [200, 1], "limit": 5, "exact": True}
    stage = {"$search": {"index": "within", "vectorSearch": near}}
    rows = list(coll.aggregate([stage, {"$limit": 5}, SCORE]))
    assert [d["score"] for d in rows] == [1.0, 0.5, 0.5, pytest.approx(0.2), pytest.approx(0.2)]
    assert {d["_id"] for d in rows} == {198, 199, 200, 201, 202}
    coll.drop_search_index("within")
