"""`$vectorSearch` by a graph, over bytes and bits, and over vectors in the elements of arrays."""

import random

import pytest
from bson.binary import Binary, BinaryVectorDtype
from harness import refuses, until
from searches import indexed, is_ready

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


def test_a_graph_is_there_after_a_kill(new_server):
    rnd = random.Random(11)
    server = new_server()
    with server.client() as client:
        coll = client.t.c
        coll.insert_many({"_id": i, "v": random_vector(rnd), "n": i % 100} for i in range(COUNT))
        fields = [vector_field(quantization="scalar"), {"type": "filter", "path": "n"}]
        indexed(coll, {"fields": fields}, kind="vectorSearch")
        assert recall(coll, rnd) >= 0.95, "while the graph grows"
        folder = server.path / "search"
        until("the graph is written", lambda: list(folder.glob("*/graph-0.links")), 60)
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
