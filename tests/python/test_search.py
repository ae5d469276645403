"""`$search` and its indexes, through the driver's own helpers."""

import math
import pathlib
import random

import pytest
from bson.binary import Binary, BinaryVectorDtype
from harness import refuses, until
from pymongo import ReadPreference
from pymongo.operations import SearchIndexModel
from replica_set import ReplicaSet
from searches import DYNAMIC, found, ids, indexed, is_ready, shows, text

SCORE = {"$project": {"score": {"$meta": "searchScore"}}}
TEXTS = [
    {"_id": 1, "title": "the quick brown fox", "n": 1},
    {"_id": 2, "title": "slow green turtle", "body": "quick nap", "n": 2},
    {"_id": 3, "title": "a quick quick quick rabbit", "n": 3},
    {"_id": 4, "title": "Résumé", "n": 4},
]


@pytest.fixture
def texts(coll):
    coll.insert_many(TEXTS)
    return indexed(coll)


def test_finds_whole_documents_best_first(texts):
    assert found(texts, text("quick")) == [TEXTS[2], TEXTS[0]]
    scores = {d["_id"]: d["score"] for d in found(texts, text("quick"), SCORE)}
    # Four titles of 4, 3, 5 and 1 words; two of them have the word, once and three times.
    idf = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    want = {i: idf * tf / (tf + 1.2 * (0.25 + 0.75 * n / 3.25)) for i, tf, n in [(1, 1, 4), (3, 3, 5)]}
    assert scores == pytest.approx(want, rel=1e-5)
    assert [d["_id"] for d in found(texts, text("quick"), {"$limit": 1})] == [3]
    assert [d["_id"] for d in found(texts, text("quick"), {"$skip": 1}, {"$limit": 5})] == [1]
    by_n = found(texts, {"exists": {"path": "n"}}, sort={"n": -1})
    assert [d["_id"] for d in by_n] == [4, 3, 2, 1]


def test_operators_over_a_collection(texts):
    def compound(**clauses):
        return {"compound": clauses}

    for operator, wanted in [
        (text("quick", {"wildcard": "*"}), [1, 2, 3]),
        (text("resume", fuzzy={"maxEdits": 2}), [4]),
        (text("quick fox", matchCriteria="all"), [1]),
        ({"phrase": {"query": "quick fox", "path": "title"}}, []),
        ({"phrase": {"query": "quick fox", "path": "title", "slop": 1}}, [1]),
        ({"equals": {"path": "n", "value": 2.0}}, [2]),
        ({"in": {"path": "n", "value": [1, 4]}}, [1, 4]),
        ({"range": {"path": "n", "gt": 1, "lte": 3}}, [2, 3]),
        ({"exists": {"path": "body"}}, [2]),
        ({"wildcard": {"query": "t*", "path": "title", "allowAnalyzedField": True}}, [1, 2]),
        ({"regex": {"query": "f.x", "path": "title", "allowAnalyzedField": True}}, [1]),
        (compound(must=[text("quick")], mustNot=[text("rabbit")]), [1]),
        (compound(filter=[{"range": {"path": "n", "gte": 3}}], should=[text("quick")]), [3, 4]),
        (compound(should=[text("fox"), text("turtle"), text("slow")], minimumShouldMatch=2), [2]),
    ]:
        assert ids(texts, operator) == wanted, operator


def test_counts_and_other_pipelines(texts, db):
    meta = list(texts.aggregate([{"$searchMeta": {**text("quick"), "count": {"type": "total"}}}]))
    assert meta == [{"count": {"total": 2}}]
    search = {"$search": text("turtle")}
    lookup = {"$lookup": {"from": texts.name, "pipeline": [search, {"$project": {"n": 1}}], "as": "j"}}
    assert found(texts, text("fox"), lookup)[0]["j"] == [{"_id": 2, "n": 2}]
    union = {"$unionWith": {"coll": texts.name, "pipeline": [search]}}
    assert [d["_id"] for d in found(texts, text("fox"), union)] == [1, 2]
    ranked = {"$rankFusion": {"input": {"pipelines": {"a": [{"$search": text("quick")}], "b": [search]}}}}
    assert {d["_id"] for d in texts.aggregate([ranked])} == {1, 2, 3}
    db.create_collection("seen", viewOn=texts.name, pipeline=[{"$match": {"n": {"$gt": 1}}}])
    assert ids(db["seen"], text("quick")) == [3]
    with refuses(40602):
        texts.aggregate([{"$match": {}}, search])


def test_query_strings_and_places(coll):
    def at(x, y):
        return {"type": "Point", "coordinates": [x, y]}

    coll.insert_many([{**d, "at": at(d["n"], 0)} for d in TEXTS])
    geo = {"type": "geo", "indexShapes": True}
    indexed(coll, {"mappings": {"dynamic": True, "fields": {"at": geo}}})

    def query(said):
        return {"queryString": {"defaultPath": "title", "query": said}}

    square = {"type": "Polygon", "coordinates": [[[0, -1], [0, 1], [2.5, 1], [2.5, -1], [0, -1]]]}
    for operator, wanted in [
        (query("quick AND brown"), [1]),
        (query("quick OR body:nap"), [1, 2, 3]),
        (query('"green turtle" -quick'), [2]),
        (query("n:[2 TO 3]"), [2, 3]),
        ({"geoWithin": {"path": "at", "circle": {"center": at(3, 0), "radius": 120_000}}}, [2, 3, 4]),
        ({"geoWithin": {"path": "at", "box": {"bottomLeft": at(2, -1), "topRight": at(3, 1)}}}, [2, 3]),
        ({"geoShape": {"path": "at", "relation": "within", "geometry": square}}, [1, 2]),
        ({"geoShape": {"path": "at", "relation": "disjoint", "geometry": square}}, [3, 4]),
    ]:
        assert ids(coll, operator) == wanted, operator
    near = found(coll, {"near": {"path": "at", "origin": at(4, 0), "pivot": 1000}})
    assert [d["_id"] for d in near] == [4, 3, 2, 1]
    refuses(8, lambda: ids(coll, query("quick AND AND")))
    refuses(8, lambda: ids(coll, {"geoShape": {"path": "n", "relation": "within", "geometry": square}}))


def test_what_an_index_has_stored(coll):
    coll.insert_many(TEXTS)
    indexed(coll, {**DYNAMIC, "storedSource": {"include": ["title"]}})
    assert found(coll, text("turtle"), returnStoredSource=True) == [{"_id": 2, "title": TEXTS[1]["title"]}]
    assert found(coll, text("turtle"), SCORE, returnStoredSource=True)[0]["score"] > 0
    assert found(coll, text("turtle"), returnStoredSource=False) == [TEXTS[1]]
    indexed(coll, DYNAMIC, "plain")
    refuses(8, lambda: found(coll, text("turtle"), index="plain", returnStoredSource=True))


def test_writes_are_seen_soon(texts):
    texts.insert_one({"_id": 5, "title": "quick snail"})
    shows(texts, text("quick"), [1, 3, 5])
    texts.update_one({"_id": 5}, {"$set": {"title": "slow snail"}})
    texts.delete_one({"_id": 3})
    shows(texts, text("quick"), [1])
    shows(texts, text("slow"), [2, 5])
    texts.delete_many({})
    shows(texts, {"exists": {"path": "title"}}, [])


def test_a_deleted_document_is_never_given(texts):
    """Also where the index still has it."""
    texts.delete_one({"_id": 3})
    assert 3 not in ids(texts, text("quick"))


def test_definitions_are_changed_listed_and_dropped(texts):
    spec = {"mappings": {"fields": {"title": {"type": "string", "analyzer": "lucene.keyword"}}}}
    indexed(texts, spec, "other")
    names = [i["name"] for i in texts.list_search_indexes()]
    assert names == ["default", "other"]
    one = next(iter(texts.list_search_indexes("other")))
    assert one["latestDefinition"] == spec and one["type"] == "search" and one["numDocs"] == 4
    assert ids(texts, text("quick"), index="other") == []
    assert ids(texts, text("slow green turtle"), index="other") == [2]
    texts.update_search_index("other", DYNAMIC)
    until("the new version serves", lambda: ids(texts, text("quick"), index="other") == [1, 3])
    assert next(iter(texts.list_search_indexes("other")))["latestDefinition"] == DYNAMIC
    texts.drop_search_index("other")
    assert ids(texts, text("quick"), index="other") == []
    with refuses(27):
        texts.drop_search_index("other")
    with refuses(68, None, "already exists"):
        texts.create_search_index(SearchIndexModel(spec, "default"))
    texts.create_search_index(SearchIndexModel(DYNAMIC, "default"))


def test_mistakes_have_mongodbs_codes(texts, db):
    for stage in [{}, {"text": {"path": "a"}}, text("x", bogus=1), {**text("x"), "index": ""}, {"compound": {}}]:
        with refuses(8, "UnknownError"):
            texts.aggregate([{"$search": stage}])
    with refuses(10065):
        texts.aggregate([{"$search": 1}])
    with refuses(9):
        texts.aggregate([{"$search": []}])
    for definition in [{}, {"mappings": {"fields": {"a": {"type": "nothing"}}}}, {**DYNAMIC, "analyzer": "nobody"}]:
        with refuses(8):
            texts.create_search_index(SearchIndexModel(definition, "bad"))
    with refuses(26):
        db["nobody"].create_search_index(SearchIndexModel(DYNAMIC, "x"))
    assert found(db["nobody"], text("x")) == []
    assert found(texts, text("quick"), index="nobody") == []


def test_a_search_heeds_its_time(texts):
    texts.insert_many({"title": f"word{i} common"} for i in range(20_000))
    shows(texts, {"text": {"query": "word19999", "path": "title"}}, [d["_id"] for d in texts.find({"title": "word19999 common"})])
    patterns = [f"*{i}*{i + 1}*{i}*" for i in range(400)]
    slow = {"wildcard": {"query": patterns, "path": "title", "allowAnalyzedField": True}}
    with refuses(50):
        texts.aggregate([{"$search": slow}], maxTimeMS=20)


def test_goes_on_after_a_stop_and_a_kill(new_server):
    server = new_server()
    with server.client() as client:
        coll = client.t.c
        coll.insert_many(TEXTS)
        indexed(coll)
    server.stop()
    server.start()
    with server.client() as client:
        coll = client.t.c
        until("the index is open", lambda: is_ready(coll))
        assert ids(coll, text("quick")) == [1, 3]
        coll.insert_many({"_id": i, "title": "quick again"} for i in range(10, 500))
        coll.delete_one({"_id": 1})
    server.kill()
    server.start()
    with server.client() as client:
        coll = client.t.c
        until("the index is open", lambda: is_ready(coll))
        shows(coll, text("quick"), sorted(d["_id"] for d in coll.find({"title": {"$regex": "quick"}})))


def test_goes_with_its_collection(new_server):
    server = new_server()
    folder = server.path / "search"
    with server.client() as client:
        coll = client.t.c
        coll.insert_many(TEXTS)
        indexed(coll)
        coll.rename("d")
        coll = client.t.d
        assert ids(coll, text("quick")) == [1, 3]
        coll.insert_one({"_id": 9, "title": "quick"})
        shows(coll, text("quick"), [1, 3, 9])
        assert len(list(folder.iterdir())) == 1
        coll.drop()
        assert found(coll, text("quick")) == []
        until("the files are gone", lambda: not list(folder.iterdir()))
        coll.insert_many(TEXTS)
        indexed(coll)
        client.drop_database("t")
        until("the files are gone", lambda: not list(folder.iterdir()))


def test_a_server_without_search_indexes_has_nothing_of_them(new_server):
    server = new_server()
    with server.client() as client:
        client.t.c.insert_many(TEXTS)
        assert found(client.t.c, text("quick")) == []
        threads = [t.joinpath("comm").read_text() for t in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()]
    assert not (server.path / "search").exists()
    assert not [t for t in threads if t.startswith("search")]


def test_every_member_has_its_own_and_sessions_see_their_writes(tmp_path):
    with ReplicaSet(tmp_path, size=3) as members:
        members.initiate()
        with members.client() as client:
            coll = client.t.c
            coll.insert_many(TEXTS)
            indexed(coll)
            for member in members.members:
                with member.client(readPreference="secondaryPreferred") as one:
                    until("the member's index is ready", lambda: is_ready(one.t.c))
                    shows(one.t.c, text("quick"), [1, 3])
            with client.start_session(causal_consistency=True) as session:
                for i in range(20, 30):
                    coll.insert_one({"_id": i, "title": f"causal{i}"}, session=session)
                    pipeline = [{"$search": text(f"causal{i}")}]
                    seen = list(coll.aggregate(pipeline, session=session))
                    assert [d["_id"] for d in seen] == [i]
                    secondary = client.t.get_collection("c", read_preference=ReadPreference.SECONDARY)
                    seen = list(secondary.aggregate(pipeline, session=session))
                    assert [d["_id"] for d in seen] == [i]
        # A new primary goes on.
        members.primary().kill()
        with members.client() as client:
            until("there is a primary", lambda: client.t.c.insert_one({"title": "after"}).acknowledged)
            until("it is found", lambda: found(client.t.c, text("after")))


VECTORS = {
    "fields": [
        {"type": "vector", "path": "v", "numDimensions": 3, "similarity": "cosine"},
        {"type": "vector", "path": "e", "numDimensions": 3, "similarity": "euclidean"},
        {"type": "filter", "path": "n"},
    ]
}


def vectors(coll, count=50):
    rnd = random.Random(7)
    docs = []
    for i in range(count):
        v = [rnd.uniform(-1, 1) for _ in range(3)]
        docs.append({"_id": i, "v": v, "e": v, "n": i % 5})
    coll.insert_many(docs)
    coll.create_search_index(SearchIndexModel(VECTORS, "vectors", "vectorSearch"))
    until("the vector index is ready", lambda: is_ready(coll, "vectors"))
    return docs


def nearest(coll, query, limit=5, path="v", **more):
    given = {"numCandidates": 100} if "exact" not in more else {}
    stage = {"index": "vectors", "path": path, "queryVector": query, "limit": limit, **given, **more}
    score = {"$project": {"score": {"$meta": "vectorSearchScore"}}}
    return [(d["_id"], d["score"]) for d in coll.aggregate([{"$vectorSearch": stage}, score])]


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return (1 + dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))) / 2


def test_vectors_are_found_nearest_first(coll):
    docs = vectors(coll)
    query = [0.3, -0.2, 0.9]
    want = sorted(((d["_id"], cosine(query, d["v"])) for d in docs), key=lambda r: -r[1])
    for found in [nearest(coll, query), nearest(coll, query, exact=True)]:
        assert [i for i, _ in found] == [i for i, _ in want[:5]]
        assert [s for _, s in found] == pytest.approx([s for _, s in want[:5]], rel=1e-5)
    some = [r for r in want if r[0] % 5 in (1, 2)][:5]
    assert [i for i, _ in nearest(coll, query, filter={"n": {"$in": [1, 2]}})] == [i for i, _ in some]
    distance = {d["_id"]: 1 / (1 + sum((x - y) ** 2 for x, y in zip(query, d["e"]))) for d in docs}
    found = nearest(coll, query, 3, "e")
    assert [i for i, _ in found] == sorted(distance, key=lambda i: -distance[i])[:3]
    binary = Binary.from_vector(query, BinaryVectorDtype.FLOAT32)
    assert [i for i, _ in nearest(coll, binary)] == [i for i, _ in want[:5]]
    best = want[0][0]
    coll.update_one({"_id": best}, {"$set": {"v": [-x for x in query]}})
    until("the change is seen", lambda: nearest(coll, query)[0][0] == want[1][0])
    coll.delete_one({"_id": want[1][0]})
    assert nearest(coll, query)[0][0] == want[2][0]
    for bad in [{"path": "n"}, {"filter": {"other": 1}}, {"queryVector": [1.0]}, {"numCandidates": 1}]:
        with refuses(8):
            stage = {"index": "vectors", "path": "v", "queryVector": query, "limit": 5, "numCandidates": 10, **bad}
            coll.aggregate([{"$vectorSearch": stage}])


def test_vectors_are_there_after_a_kill(new_server):
    server = new_server()
    with server.client() as client:
        docs = vectors(client.t.c, 300)
        client.t.c.insert_one({"_id": 1000, "v": [0.5, 0.5, 0.5]})
    server.kill()
    server.start()
    with server.client() as client:
        until("the index is open", lambda: is_ready(client.t.c, "vectors"))
        docs.append({"_id": 1000, "v": [0.5, 0.5, 0.5]})
        for query in ([1.0, 0.0, 0.0], [0.5, 0.5, 0.5]):
            want = sorted(docs, key=lambda d: -cosine(query, d["v"]))[:3]
            until(
                "the nearest are found",
                lambda: [i for i, _ in nearest(client.t.c, query, 3, exact=True)] == [d["_id"] for d in want],
            )
