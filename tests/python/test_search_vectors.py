"""`$vectorSearch` by a graph, over bytes and bits, and over vectors in the elements of arrays."""

import random

import pytest
from bson.binary import Binary, BinaryVectorDtype
from harness import refuses, until
from pymongo.operations import SearchIndexModel
from searches import found, ids, indexed, is_ready, text

DIMENSIONS = 8
COUNT = 2600


def random_vector(rnd):
    return [rnd.uniform(-1, 1) for _ in range(DIMENSIONS)]


def vector_field(path="v", **more):
    return {"type": "vector", "path": path, "numDimensions": DIMENSIONS, "similarity": "cosine", **more}


def nearest(coll, query, limit=10, path="v", **more):
    how = {} if more.get("exact") else {"numCandidates": max(100, limit)}
    stage = {"index": "default", "path": path, "queryVector": query, "limit": limit, **how, **more}
    score = {"$project": {"score": {"$meta": "vectorSearchScore"}}}
    return [(d["_id"], d["score"]) for d in coll.aggregate([{"$vectorSearch": stage}, score])]


def keys(found):
    return [i for i, _ in found]


def recall(coll, rnd, **more):
    """The part of the nearest that a search by the graph finds, and its scores, which are those of all."""
    hit = wanted = 0
    for _ in range(10):
        query = random_vector(rnd)
        exact = dict(nearest(coll, query, exact=True, **more))
        near = dict(nearest(coll, query, **more))
        assert all(near[i] == exact[i] for i in near.keys() & exact.keys())
        hit += len(near.keys() & exact.keys())
        wanted += len(exact)
    return hit / wanted


def lent(client):
    return client.admin.command("serverStatus")["pandodb"]["engine"]["lentBytes"]


def test_a_graph_is_there_after_a_kill(new_server):
    rnd = random.Random(11)
    server = new_server()
    with server.client() as client:
        coll = client.t.c
        coll.insert_many({"_id": i, "v": random_vector(rnd), "n": i % 100} for i in range(COUNT))
        fields = [vector_field(quantization="scalar"), {"type": "filter", "path": "n"}]
        indexed(coll, {"fields": fields}, kind="vectorSearch")
        folder = server.path / "search"
        assert list(folder.glob("*/graph-0.links")), "the graph is grown before the index is ready"
        assert lent(client) > 0
        assert recall(coll, rnd) >= 0.95
        assert recall(coll, rnd, filter={"n": 3}) == 1
        coll.delete_many({"_id": {"$lt": COUNT // 4}})
        coll.insert_one({"_id": "new", "v": [0.5] * DIMENSIONS, "n": 1})
    server.kill()
    server.start()
    with server.client() as client:
        coll = client.t.c
        until("the index is open", lambda: is_ready(coll))
        until("it has all", lambda: "new" in keys(nearest(coll, [0.5] * DIMENSIONS)), 60)
        assert recall(coll, rnd) >= 0.95
        assert all(i == "new" or i >= COUNT // 4 for i in keys(nearest(coll, random_vector(rnd), 50)))
        coll.drop()
        until("the graph's memory is the cache's again", lambda: lent(client) == 0)


def test_vectors_of_bytes_and_bits(coll):
    def of(numbers, kind):
        return Binary.from_vector(numbers, kind)

    byte, bit = BinaryVectorDtype.INT8, BinaryVectorDtype.PACKED_BIT
    coll.insert_many(
        [
            {"_id": 1, "v": of([100] * 7 + [-100], byte), "e": of([0b11110000], bit)},
            {"_id": 2, "v": of([100] * 4 + [-100] * 4, byte), "e": of([0b11110011], bit)},
            {"_id": 3, "v": [1.0] * 8, "e": [1.0] * 8},
        ]
    )
    fields = [vector_field(), vector_field("e", similarity="euclidean")]
    indexed(coll, {"fields": fields}, kind="vectorSearch")
    found = nearest(coll, of([100] * 8, byte))
    assert keys(found) == [1, 2], "vectors of numbers are not among those of bytes"
    assert [s for _, s in found] == pytest.approx([(1 + 0.75) / 2, 0.5], rel=1e-5)
    found = nearest(coll, of([0b11110001], bit), path="e")
    assert keys(found) == [1, 2]
    assert [s for _, s in found] == pytest.approx([1 / 2, 1 / 2], rel=1e-5)
    assert keys(nearest(coll, [1.0] * 8)) == [3]
    with refuses(8):
        nearest(coll, of([1], bit))


def test_vectors_in_elements_of_arrays(coll):
    def padded(*numbers):
        return [*numbers, *[0.0] * (DIMENSIONS - len(numbers))]

    coll.insert_many(
        [
            {"_id": 1, "c": "US", "r": [{"n": 5, "v": padded(1.0)}, {"n": 3, "v": padded(0.6, 0.8)}]},
            {"_id": 2, "c": "US", "r": [{"n": 2, "v": padded(0.0, 1.0)}]},
            {"_id": 3, "c": "CA", "r": [{"n": 5, "v": padded(0.8, 0.6)}, {"n": 1}]},
            {"_id": 4, "c": "CA", "r": "none"},
        ]
    )
    fields = [vector_field("r.v"), {"type": "filter", "path": "r.n"}, {"type": "filter", "path": "c"}]
    with refuses(125):
        coll.database.command(
            "createSearchIndexes",
            coll.name,
            indexes=[{"name": "x", "type": "vectorSearch", "definition": {"fields": fields, "nestedRoot": "other"}}],
        )
    indexed(coll, {"fields": fields, "nestedRoot": "r"}, kind="vectorSearch")

    def near(**more):
        return nearest(coll, padded(1.0), path="r.v", **more)

    assert near() == [(1, pytest.approx(1.0)), (3, pytest.approx(0.9)), (2, pytest.approx(0.5))]
    averages = dict(near(nestedOptions={"scoreMode": "avg"}))
    assert averages == {1: pytest.approx(0.9), 3: pytest.approx(0.9), 2: pytest.approx(0.5)}
    assert keys(near(filter={"r.n": 5})) == [1, 3]
    assert keys(near(parentFilter={"c": "US"})) == [1, 2]
    assert keys(near(filter={"r.n": 5}, parentFilter={"c": "US"})) == [1]
    assert near(filter={"c": "US"}) == near(parentFilter={"r.n": 5}) == []
    coll.update_one({"_id": 1}, {"$set": {"r": [{"n": 5, "v": padded(-1.0)}]}})
    until("the change is seen", lambda: keys(near(exact=True)) == [3, 2, 1])
    coll.delete_one({"_id": 3})
    until("the deletion is seen", lambda: keys(near()) == [2, 1])
    for bad in [{"nestedOptions": {"scoreMode": "median"}}, {"nestedOptions": {"x": 1}}, {"parentFilter": {"$bad": 1}}]:
        with refuses(8):
            near(**bad)


def incomplete(coll, name="default"):
    """How many documents an index lacks something of, and those that it names, by path."""
    [row] = coll.list_search_indexes(name)
    fields = row["statusDetail"][0].get("incompleteDocs", [])
    return row["numIncompleteDocs"], sorted((f["path"], f["reason"], f["count"], f["ids"]) for f in fields)


def test_documents_that_lack_something_are_named(db):
    coll = db.c
    good = [1.0] + [0.0] * (DIMENSIONS - 1)
    coll.insert_many(
        [
            {"_id": 1, "v": good},
            {"_id": 2, "v": [1.0]},
            {"_id": 3, "v": [float("nan")] * DIMENSIONS},
            {"_id": 4, "v": [0] * DIMENSIONS},
            {"_id": 5, "v": "no vector"},
            {"_id": 6},
            {"_id": 7, "v": None},
            {"_id": 8, "v": [2.0], "w": "x"},
        ]
    )
    indexed(coll, {"fields": [vector_field(), vector_field("w")]}, kind="vectorSearch")
    assert keys(nearest(coll, good, exact=True)) == [1]
    assert incomplete(coll) == (
        5,
        [
            ("v", "a zero vector has no cosine", 1, [4]),
            ("v", "the value is no vector", 1, [5]),
            ("v", "the vector has an element that is no finite number", 1, [3]),
            ("v", "the vector has another number of dimensions", 2, [2, 8]),
            ("w", "the value is no vector", 1, [8]),
        ],
    )
    coll.delete_many({"_id": {"$in": [3, 4]}})
    coll.update_many({"_id": {"$in": [2, 5]}}, {"$set": {"v": good}})
    rest = [("v", "the vector has another number of dimensions", 1, [8]), ("w", "the value is no vector", 1, [8])]
    until("the others are mended", lambda: incomplete(coll) == (1, rest))


def test_a_long_value_is_named_and_the_rest_is_found(db):
    db.c.insert_many([{"_id": 1, "title": "red", "code": "x" * 9000}, {"_id": 2, "title": "red", "code": "x"}])
    fields = {"title": {"type": "string"}, "code": {"type": "token"}}
    indexed(db.c, {"mappings": {"fields": fields}})
    assert ids(db.c, text("red")) == [1, 2]
    assert incomplete(db.c) == (1, [("code", "the value is longer than 8,192 bytes", 1, [1])])


SHOP = {
    "mappings": {
        "dynamic": True,
        "fields": {
            "v": {"type": "vector", "numDimensions": 2, "similarity": "euclidean"},
            "old": {"type": "knnVector", "dimensions": 2, "similarity": "euclidean"},
            "in": {"type": "document", "fields": {"v": {"type": "vector", "numDimensions": 2, "similarity": "cosine"}}},
        },
    }
}


def by_vector(at, limit=3, path="v", **more):
    how = {} if "exact" in more else {"numCandidates": max(limit, 10)}
    return {"vectorSearch": {"path": path, "queryVector": at, "limit": limit, **how, **more}}


def scored(coll, operator, **options):
    score = {"$project": {"score": {"$meta": "searchScore"}}}
    return [(d["_id"], round(d["score"], 5)) for d in found(coll, operator, score, **options)]


@pytest.fixture
def shop(db):
    db.c.insert_many(
        {"_id": i, "v": [i, 0], "old": [0, i], "in": {"v": [i + 1, 1]}, "title": f"{'red' if i % 2 else 'blue'} shoes", "n": i}
        for i in range(10)
    )
    return indexed(db.c, SHOP)


def test_vectors_within_search(shop):
    near = [(3, 1.0), (2, 0.5), (4, 0.5)]
    assert scored(shop, by_vector([3, 0])) == near
    assert scored(shop, by_vector([3, 0], exact=True)) == near
    red = {"text": {"query": "red", "path": "title"}}
    assert [i for i, _ in scored(shop, by_vector([3, 0], filter=red))] == [3, 1, 5]
    both = {"compound": {"must": [red], "mustNot": [{"range": {"path": "n", "lt": 4}}]}}
    assert [i for i, _ in scored(shop, by_vector([3, 0], filter=both))] == [5, 7, 9]
    assert scored(shop, by_vector([3, 0], 1, score={"boost": {"value": 3}})) == [(3, 3.0)]
    assert scored(shop, by_vector([3, 0], 1, score={"constant": {"value": 7}})) == [(3, 7.0)]
    assert scored(shop, by_vector([1, 1], 1, "in.v")) == [(0, 1.0)]
    [meta] = shop.aggregate([{"$searchMeta": {**by_vector([3, 0], 4), "count": {"type": "total"}}}])
    assert meta["count"]["total"] == 4
    [first] = found(shop, by_vector([3, 0]), {"$limit": 1}, {"$project": {"d": {"$meta": "scoreDetails"}}}, scoreDetails=True)
    assert first["d"]["value"] == 1.0
    shop.delete_one({"_id": 3})
    until("it is gone", lambda: [i for i, _ in scored(shop, by_vector([3, 0]))] == [2, 4, 1])


def test_knn_beta_and_the_stage_over_knn_vectors(shop):
    knn = {"knnBeta": {"path": "old", "vector": [0, 8], "k": 2, "filter": {"range": {"path": "n", "lte": 7}}}}
    assert [i for i, _ in scored(shop, knn)] == [7, 6]
    assert keys(nearest(shop, [0, 8], 2, "old")) == [8, 7]
    with refuses(8):
        nearest(shop, [3, 0], 2, "v")
    with refuses(8):
        scored(shop, {"knnBeta": {"path": "v", "vector": [0, 8], "k": 2}})
    with refuses(8):
        scored(shop, by_vector([0, 1], path="old"))


def test_wrong_vectors_within_search_are_refused(shop):
    near = by_vector([3, 0])
    wrong = [
        {"compound": {"must": [near]}},
        by_vector([3, 0], filter=near),
        by_vector([3, 0], filter=[]),
        by_vector([3, 0, 0]),
        by_vector([float("nan"), 0]),
        by_vector("x"),
        by_vector([3, 0], 0),
        by_vector([3, 0], path="title"),
        by_vector([3, 0], numCandidates=20_000),
        by_vector([3, 0], other=1),
        by_vector([3, 0], exact=False),
        {"knnBeta": {"path": "old", "vector": [0, 8]}},
    ]
    for operator in wrong:
        with refuses(8):
            scored(shop, operator)
    for options in [{"sort": {"n": 1}}, {"highlight": {"path": "title"}}, {"tracking": {"searchTerms": "x"}}]:
        with refuses(8):
            scored(shop, near, **options)
    faceted = {"facet": {"operator": near, "facets": {"n": {"type": "number", "path": "n", "boundaries": [0, 5]}}}}
    with refuses(8):
        list(shop.aggregate([{"$searchMeta": faceted}]))
    fields = {"v": {"type": "vector", "numDimensions": 2, "similarity": "cosine"}}
    for definition in [
        {"mappings": {"fields": {"v": {"type": "vector", "similarity": "cosine"}}}},
        {"mappings": {"fields": {"v": {"type": "vector", "numDimensions": 9000, "similarity": "cosine"}}}},
        {"mappings": {"fields": {"v": {"type": "vector", "numDimensions": 2, "similarity": "other"}}}},
        {"mappings": {"fields": {"e": {"type": "embeddedDocuments", "fields": fields}}}},
        {"mappings": {"fields": fields}, "storedSource": True},
    ]:
        with refuses(8):
            shop.create_search_index(SearchIndexModel(definition, "other"))


def test_vectors_within_search_by_a_graph(db):
    rnd = random.Random(5)
    db.c.insert_many({"_id": i, "v": random_vector(rnd), "title": "red" if i % 10 == 0 else "blue"} for i in range(COUNT))
    field = {"type": "vector", "numDimensions": DIMENSIONS, "similarity": "cosine"}
    indexed(db.c, {"mappings": {"dynamic": True, "fields": {"v": field}}})
    red = {"text": {"query": "red", "path": "title"}}
    for more in [{}, {"filter": red}]:
        hit = 0
        for _ in range(10):
            query = random_vector(rnd)
            exact = dict(scored(db.c, by_vector(query, 10, exact=True, **more)))
            near = dict(scored(db.c, by_vector(query, 10, numCandidates=100, **more)))
            assert len(near) == 10 and all(near[i] == exact[i] for i in near.keys() & exact.keys())
            hit += len(near.keys() & exact.keys())
        assert hit >= 90, more
