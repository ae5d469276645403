"""What a search shows beside its documents: `$$SEARCH_META`, pages, highlights, details of scores; and spans."""

import pytest
from harness import refuses
from searches import found, ids, indexed, text

SCORE = {"$project": {"score": {"$meta": "searchScore"}}}
TOKEN = {"$project": {"token": {"$meta": "searchSequenceToken"}}}
HIGHLIGHTS = {"$project": {"_id": 0, "on": {"$meta": "searchHighlights"}}}
KNOWN = {"count": {"lowerBound": 3}}
TEXTS = [
    {"_id": 1, "title": "the quick brown fox", "n": 3},
    {"_id": 2, "title": "slow green turtle", "n": 1},
    {"_id": 3, "title": "a quick quick quick rabbit", "n": 2},
    {"_id": 4, "title": "quick brown fox", "n": 3},
]
QUICK = text("quick")


@pytest.fixture
def texts(coll):
    coll.insert_many(TEXTS)
    return indexed(coll)


def test_what_is_known_of_all_is_a_variable_of_the_stages_behind(texts):
    limited = found(texts, QUICK, {"$limit": 1}, {"$project": {"_id": 0, "m": "$$SEARCH_META", "n": "$$SEARCH_META.count.lowerBound"}})
    assert limited == [{"m": KNOWN, "n": 3}]
    assert found(texts, QUICK, {"$match": {"$expr": {"$lt": ["$n", "$$SEARCH_META.count.lowerBound"]}}}) == [TEXTS[2]]
    # Behind stages that make other documents of them, too.
    grouped = [{"$group": {"_id": None, "n": {"$sum": 1}}}, {"$set": {"of": "$$SEARCH_META.count.lowerBound"}}]
    assert found(texts, QUICK, *grouped) == [{"_id": None, "n": 3, "of": 3}]
    parts = {"docs": [{"$limit": 1}, {"$project": {"_id": 1}}], "meta": [{"$replaceWith": "$$SEARCH_META"}, {"$limit": 1}]}
    assert found(texts, QUICK, {"$facet": parts}) == [{"docs": [{"_id": 3}], "meta": [KNOWN]}]
    none = found(texts, text("none"), {"$facet": {"docs": []}}, {"$set": {"m": "$$SEARCH_META"}}, count={"type": "total"})
    assert none == [{"docs": [], "m": {"count": {"total": 0}}}]
    assert found(texts, QUICK, {"$sort": {"_id": 1}}, {"$limit": 1}, {"$set": {"m": "$$SEARCH_META"}}) == [{**TEXTS[0], "m": KNOWN}]
    meta = {"$searchMeta": QUICK}
    assert list(texts.aggregate([meta, {"$project": {"same": {"$eq": ["$$ROOT", "$$SEARCH_META"]}}}])) == [{"same": True}]
    union = {"$unionWith": {"coll": texts.name, "pipeline": [{"$search": QUICK}, {"$limit": 1}, {"$project": {"m": "$$SEARCH_META"}}]}}
    assert list(texts.aggregate([{"$match": {"_id": 2}}, union])) == [TEXTS[1], {"_id": 3, "m": KNOWN}]
    # More than one batch: it goes with the cursor.
    cursor = texts.aggregate([{"$search": QUICK}, {"$project": {"n": "$$SEARCH_META.count.lowerBound"}}], batchSize=1)
    assert [d["n"] for d in cursor] == [3, 3, 3]


def test_what_is_known_of_a_search_is_not_there_without_it(texts):
    asks = {"$set": {"m": "$$SEARCH_META"}}
    union = {"$unionWith": {"coll": texts.name, "pipeline": [{"$search": QUICK}]}}
    for pipeline, code in [
        ([asks], 6347902),
        ([asks, union], 6347902),
        ([{"$facet": {"a": [asks]}}], 6347902),
        ([{"$search": QUICK}, {"$lookup": {"from": texts.name, "pipeline": [asks], "as": "j"}}], 6347902),
        ([union, asks], 6347901),
        ([{"$search": QUICK}, union, asks], 6347901),
    ]:
        with refuses(code):
            texts.aggregate(pipeline)
    # A find has no search: the variable is missing.
    assert texts.find_one({"_id": 2}, {"m": "$$SEARCH_META"}) == {"_id": 2}


def pages(coll, operator, size, **options):
    """All results, page by page."""
    out, token = [], {}
    while page := found(coll, operator, {"$limit": size}, {"$set": {"token": {"$meta": "searchSequenceToken"}}}, **options, **token):
        out += page
        token = {"searchAfter": page[-1]["token"]}
    return out


@pytest.mark.parametrize("sort", [None, {"n": -1}, {"n": 1, "title": -1}, {"missing": 1}])
def test_pages_follow_one_another(texts, sort):
    options = {"sort": sort} if sort else {}
    everything = {"exists": {"path": "n"}}
    for operator in [QUICK, everything]:
        for size in [1, 2, 10]:
            paged = pages(texts, operator, size, **options)
            order = [d["_id"] for d in paged]
            # No document twice, and none left out.
            assert sorted(order) == ids(texts, operator)
            keys = [[d.get(f) for f in options.get("sort", {})] for d in found(texts, operator, **options)]
            assert [[d.get(f) for f in options.get("sort", {})] for d in paged] == keys
            last = paged[-1]["token"]
            before = found(texts, operator, {"$project": {"_id": 1}}, searchBefore=last, **options)
            assert [d["_id"] for d in before] == order[-2::-1]
    [first] = found(texts, everything, {"$limit": 1}, TOKEN, **options)
    # Its document is gone: the page begins where it was.
    after = [d["_id"] for d in found(texts, everything, searchAfter=first["token"], **options)]
    texts.delete_one({"_id": first["_id"]})
    assert [d["_id"] for d in found(texts, everything, searchAfter=first["token"], **options)] == after


def test_a_token_of_another_order_is_refused(texts):
    [first] = found(texts, QUICK, {"$limit": 1}, TOKEN)
    for options in [
        {"searchAfter": "not_a_token"},
        {"searchAfter": first["token"][:-1]},
        {"searchAfter": first["token"], "sort": {"n": 1}},
        {"searchAfter": first["token"], "searchBefore": first["token"]},
        {"searchBefore": 1},
    ]:
        with refuses(8):
            found(texts, QUICK, **options)
    # A search that gives none says nothing of it.
    assert "token" not in texts.aggregate([{"$match": {}}, TOKEN]).next()


def test_highlights_tell_where_words_were_found(texts):
    texts.insert_one({"_id": 5, "title": "One hen. A rooster crows! Two hens and a hen.", "tags": ["hen house", "barn"]})
    hens = {"compound": {"should": [text("hen"), text("hen", "tags")]}}
    causal = [{"$search": {**hens, "highlight": {"path": ["title", "tags"]}}}, HIGHLIGHTS]
    with texts.database.client.start_session(causal_consistency=True) as session:
        texts.insert_one({"_id": 6, "title": "none"}, session=session)
        [told] = texts.aggregate(causal, session=session)
    texts_of = [(h["path"], "".join(f"<{t['value']}>" if t["type"] == "hit" else t["value"] for t in h["texts"])) for h in told["on"]]
    assert texts_of == [("tags", "<hen> house"), ("title", "One <hen>. "), ("title", "Two hens and a <hen>.")]
    assert all(h["score"] > 0 for h in told["on"])
    assert found(texts, hens, HIGHLIGHTS) == [{}]
    [best] = found(texts, hens, HIGHLIGHTS, highlight={"path": "title", "maxNumPassages": 1})
    assert len(best["on"]) == 1
    by_n = found(texts, text("fox"), {"$limit": 1}, HIGHLIGHTS, highlight={"path": {"wildcard": "*"}}, sort={"_id": -1})
    assert by_n[0]["on"][0]["texts"] == [{"value": "quick brown ", "type": "text"}, {"value": "fox", "type": "hit"}]
    for bad in [{}, {"path": 1}, {"path": "title", "maxNumPassages": 0}, {"path": "title", "other": 1}]:
        with refuses(8):
            found(texts, hens, highlight=bad)


def test_the_details_of_a_score_come_to_it(texts):
    details = {"$project": {"score": {"$meta": "searchScore"}, "details": {"$meta": "scoreDetails"}}}
    both = {"compound": {"must": [text("quick fox")], "should": [{"near": {"path": "n", "origin": 2, "pivot": 1}}]}}
    for d in found(texts, both, details, scoreDetails=True):
        assert d["details"]["value"] == d["score"]
        assert sum(part["value"] for part in d["details"]["details"]) == pytest.approx(d["score"])
        assert d["details"]["description"] == "sum of:"
    [fox, *_] = found(texts, text("fox"), details, scoreDetails=True)
    assert fox["details"]["description"] == "$type:string/title:fox [BM25Similarity], result of:"
    with refuses(40218):
        found(texts, QUICK, details)


def test_spans_lie_to_one_another_as_asked(texts):
    def term(word):
        return {"term": {"path": "title", "query": word}}

    near = {"near": {"clauses": [term("quick"), term("fox")], "slop": 1, "inOrder": True}}
    for spans, wanted in [
        (term("quick"), [1, 3, 4]),
        ({"first": {"operator": term("quick"), "endPositionLte": 1}}, [4]),
        (near, [1, 4]),
        ({"near": {**near["near"], "slop": 0}}, []),
        ({"or": {"clauses": [term("turtle"), near]}}, [1, 2, 4]),
        ({"subtract": {"include": term("quick"), "exclude": near}}, [3]),
        ({"contains": {"spanToReturn": "inner", "big": near, "little": term("brown")}}, [1, 4]),
        ({"contains": {"spanToReturn": "outer", "big": near, "little": term("rabbit")}}, []),
    ]:
        assert ids(texts, {"span": spans}) == wanted, spans
    # Narrow spans are better, and so are short texts.
    scores = {d["_id"]: d["score"] for d in found(texts, {"span": term("quick")}, SCORE)}
    assert scores == {d["_id"]: pytest.approx(d["score"]) for d in found(texts, QUICK, SCORE)}
    with refuses(8):
        found(texts, {"span": {"contains": {"big": near, "little": near}}})


def test_what_a_vector_index_has_stored(coll):
    coll.insert_many([{"_id": i, "v": [i, 1], "name": f"n{i}", "body": "long"} for i in range(3)])
    fields = [{"type": "vector", "path": "v", "numDimensions": 2, "similarity": "euclidean"}]
    indexed(coll, {"fields": fields, "storedSource": {"include": ["name"]}}, "v", "vectorSearch")
    indexed(coll, {"fields": fields}, "none", "vectorSearch")
    near = {"path": "v", "queryVector": [0, 1], "exact": True, "limit": 2, "returnStoredSource": True}
    score = {"$set": {"score": {"$meta": "vectorSearchScore"}}}
    assert list(coll.aggregate([{"$vectorSearch": {**near, "index": "v"}}, score])) == [
        {"_id": 0, "name": "n0", "score": 1.0},
        {"_id": 1, "name": "n1", "score": 0.5},
    ]
    with refuses(8):
        coll.aggregate([{"$vectorSearch": {**near, "index": "none"}}])
    with refuses(51047):
        coll.aggregate([{"$lookup": {"from": coll.name, "pipeline": [{"$vectorSearch": {**near, "index": "v"}}], "as": "j"}}])
