"""Elements of arrays in search indexes: embeddedDocument, hasAncestor, hasRoot, returnScope."""

import pytest
from pymongo.errors import OperationFailure
from searches import found, ids, indexed, shows, text

DOCS = [
    {
        "_id": 1,
        "name": "one",
        "groups": [
            {"gid": "g1", "n": 3, "tags": [{"name": "quick"}, {"name": "slow"}]},
            {"gid": "g2", "n": 1, "tags": [{"name": "lazy"}]},
        ],
    },
    {"_id": 2, "name": "two", "groups": [{"gid": "g3", "n": 2, "tags": [{"name": "quick"}]}]},
    {"_id": 3, "name": "three", "groups": [{"gid": "g4", "n": 4, "tags": [{"name": "lazy"}]}]},
]
DEFINITION = {
    "mappings": {
        "dynamic": True,
        "fields": {
            "groups": {
                "type": "embeddedDocuments",
                "dynamic": True,
                "storedSource": {"include": ["gid", "n"]},
                "fields": {"tags": {"type": "embeddedDocuments", "dynamic": True}},
            }
        },
    }
}
SCOPE = {"returnStoredSource": True, "returnScope": {"path": "groups"}}


@pytest.fixture
def groups(coll):
    coll.insert_many(DOCS)
    return indexed(coll, DEFINITION)


def within(path, operator, **more):
    return {"embeddedDocument": {"path": path, "operator": operator, **more}}


def tagged(name):
    return within("groups.tags", text(name, "groups.tags.name"))


def every(*clauses):
    return {"compound": {"must": list(clauses)}}


def gids(coll, operator, *stages, **options):
    return [d["gid"] for d in found(coll, operator, *stages, **SCOPE, **options)]


def test_one_element_meets_all_conditions(groups):
    assert ids(groups, tagged("quick")) == [1, 2]
    assert ids(groups, every(tagged("slow"), tagged("lazy"))) == [1]
    assert ids(groups, within("groups", every(tagged("slow"), tagged("lazy")))) == []
    small = {"range": {"path": "groups.n", "lte": 2}}
    assert ids(groups, within("groups", every(small, tagged("lazy")))) == [1]
    assert ids(groups, text("lazy", "groups.tags.name")) == []
    [meta] = groups.aggregate([{"$searchMeta": {"exists": {"path": "name"}, "count": {"type": "total"}}}])
    assert meta["count"]["total"] == 3
    [row] = groups.list_search_indexes("default")
    assert row["numDocs"] == 3
    groups.update_one({"_id": 3}, {"$push": {"groups": {"gid": "g5", "tags": [{"name": "quick"}]}}})
    shows(groups, tagged("quick"), [1, 2, 3])
    groups.update_one({"_id": 1}, {"$set": {"groups": []}})
    groups.delete_one({"_id": 2})
    shows(groups, tagged("quick"), [3])


def test_elements_are_given_instead_of_documents(groups):
    assert sorted(gids(groups, tagged("quick"))) == ["g1", "g3"]
    [first] = found(groups, text("g1", "groups.gid"), **SCOPE)
    assert first == {"gid": "g1", "n": 3}
    assert gids(groups, {"hasRoot": {"operator": text("two", "name")}}) == ["g3"]
    assert sorted(gids(groups, {"exists": {"path": "groups.gid"}}, sort={"groups.n": -1})) == ["g1", "g2", "g3", "g4"]
    assert gids(groups, {"exists": {"path": "groups.gid"}}, sort={"groups.n": -1}) == ["g4", "g1", "g3", "g2"]
    lazy = every(
        text("lazy", "groups.tags.name"),
        {"hasAncestor": {"ancestorPath": "groups", "operator": text("g2", "groups.gid")}},
        {"hasRoot": {"operator": text("one", "name")}},
    )
    assert gids(groups, within("groups.tags", lazy)) == ["g2"]
    [meta] = groups.aggregate([{"$searchMeta": {**tagged("quick"), "returnScope": {"path": "groups"}}}])
    assert meta == {"count": {"lowerBound": 2}}
    token = {"$project": {"gid": 1, "token": {"$meta": "searchSequenceToken"}}}
    everything = {"exists": {"path": "groups.gid"}}
    page = found(groups, everything, {"$limit": 2}, token, **SCOPE)
    rest = gids(groups, everything, searchAfter=page[-1]["token"])
    assert sorted(rest + [d["gid"] for d in page]) == ["g1", "g2", "g3", "g4"]
    [shown] = found(
        groups,
        text("g4", "groups.gid"),
        {"$project": {"h": {"$meta": "searchHighlights"}}},
        highlight={"path": "groups.gid"},
        **SCOPE,
    )
    assert [(h["path"], h["texts"][0]["value"]) for h in shown["h"]] == [("groups.gid", "g4")]


def test_scores_of_elements_are_put_together(coll):
    coll.insert_one({"_id": 1, "items": [{"t": "a"}, {"t": "a"}, {"t": "a b"}]})
    indexed(coll, {"mappings": {"fields": {"items": {"type": "embeddedDocuments", "dynamic": True}}}})
    fixed = {"constant": {"value": 2}}
    either = {"compound": {"should": [text(w, "items.t", score=fixed) for w in "ab"]}}

    def score(**score):
        [d] = found(coll, within("items", either, score=score), {"$project": {"s": {"$meta": "searchScore"}}})
        return d["s"]

    got = {name: score(embedded={"aggregate": name}) for name in ["sum", "maximum", "minimum", "mean"]}
    assert got == pytest.approx({"sum": 8, "maximum": 4, "minimum": 2, "mean": 8 / 3})
    assert score(embedded={"aggregate": "maximum", "outerScore": {"boost": {"value": 3}}}) == 12


def test_mistakes_are_refused(groups):
    wrong = [
        (within("name", text("one", "name")), {}),
        ({"embeddedDocument": {"path": "groups"}}, {}),
        ({"hasRoot": {"operator": text("one", "name")}}, {}),
        ({"hasAncestor": {"operator": text("one", "name")}}, SCOPE),
        ({"hasAncestor": {"ancestorPath": "name", "operator": text("one", "name")}}, SCOPE),
        (tagged("quick"), {"returnScope": {"path": "groups"}}),
        (tagged("quick"), {"returnStoredSource": True, "returnScope": {"path": "groups.tags"}}),
        (tagged("quick"), {"returnStoredSource": True, "returnScope": {"path": "name"}}),
        (within("groups", text("g1", "groups.gid"), score={"embedded": {"aggregate": "none"}}), {}),
        (text("one", "name", score={"embedded": {}}), {}),
    ]
    for operator, options in wrong:
        with pytest.raises(OperationFailure) as e:
            found(groups, operator, **options)
        assert e.value.code == 8, operator
