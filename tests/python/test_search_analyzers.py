"""Custom analyzers and synonyms of search indexes."""

import pytest
from harness import until
from pymongo.errors import OperationFailure
from searches import found, ids, indexed, is_ready, shows, text
from pymongo.operations import SearchIndexModel


def analyzed(db, name, analyzer, docs, **more):
    """A collection whose titles are searched with an analyzer that the definition has."""
    definition = {
        "mappings": {"dynamic": False, "fields": {"title": {"type": "string", "analyzer": "own", **more}}},
        "analyzers": [{"name": "own", **analyzer}],
    }
    db[name].insert_many([{"_id": n, "title": t} for n, t in enumerate(docs)])
    return indexed(db[name], definition)


def parts(tokenizer, *filters, chars=()):
    return {"tokenizer": tokenizer, "tokenFilters": list(filters), "charFilters": list(chars)}


STANDARD = {"type": "standard"}
LOWER = {"type": "lowercase"}


@pytest.mark.parametrize(
    "analyzer, query, wanted",
    [
        (parts(STANDARD, LOWER, {"type": "asciiFolding"}), "resume", [0]),
        (parts(STANDARD, {"type": "icuFolding"}), "RESUME", [0]),
        (parts({"type": "keyword"}, LOWER), "résumé of a dog", [0]),
        (parts(STANDARD, LOWER, {"type": "edgeGram", "minGram": 2, "maxGram": 4}), "ca", [1]),
        (parts({"type": "regexSplit", "pattern": "[, ]+"}), "cats", [1]),
        (parts({"type": "regexCaptureGroup", "pattern": "(\\w+)@(\\w+)", "group": 2}), "you@host", [2]),
        (parts({"type": "uaxUrlEmail"}), "me@host.com", [2]),
        (parts(STANDARD, LOWER, {"type": "porterStemming"}), "cat", [1]),
        (parts(STANDARD, LOWER, {"type": "snowballStemming", "stemmerName": "english"}), "cat", [1]),
        (parts(STANDARD, chars=[{"type": "htmlStrip"}]), "bold", [3]),
        (parts(STANDARD, chars=[{"type": "mapping", "mappings": {"&": " and "}}]), "and", [3]),
        (parts(STANDARD, {"type": "reverse"}), "cats", [1]),
        (parts({"type": "whitespace"}, {"type": "wordDelimiterGraph"}, LOWER), "fi", [4]),
        (parts({"type": "whitespace"}, {"type": "daitchMokotoffSoundex"}), "Moskovitz", [4]),
    ],
)
def test_an_analyzer_of_the_definition_makes_the_words(db, analyzer, query, wanted):
    docs = ["Résumé of a dog", "two cats,three", "me@host.com", "<b>bold</b> & plain", "WiFi Moskowitz"]
    coll = analyzed(db, "words", analyzer, docs)
    assert ids(coll, text(query)) == wanted


def test_analyzers_of_multi(db):
    db.multi.insert_one({"_id": 1, "title": "Running Shoes"})
    own = [{"name": "end", **parts(STANDARD, LOWER, {"type": "reverse"})}]
    string = {"type": "string", "multi": {"back": {"type": "string", "analyzer": "end"}}}
    coll = indexed(db.multi, {"mappings": {"fields": {"title": string}}, "analyzers": own})
    assert ids(coll, text("seohs", path={"value": "title", "multi": "back"})) == []
    assert ids(coll, text("shoes", path={"value": "title", "multi": "back"})) == [1]


@pytest.mark.parametrize(
    "analyzers",
    [
        [{"name": "a"}],
        [{"name": "lucene.a", "tokenizer": STANDARD}],
        [{"name": "a", "tokenizer": {"type": "none"}}],
        [{"name": "a", "tokenizer": STANDARD, "more": 1}],
        [{"name": "a", "tokenizer": STANDARD}, {"name": "a", "tokenizer": STANDARD}],
        [{"name": "a", "tokenizer": {"type": "nGram", "minGram": 3, "maxGram": 2}}],
        [{"name": "a", "tokenizer": {"type": "regexSplit", "pattern": "("}}],
        [{"name": "a", "tokenizer": STANDARD, "tokenFilters": [{"type": "stempel"}]}],
        [{"name": "a", "tokenizer": STANDARD, "tokenFilters": [{"type": "length", "min": "x"}]}],
        [{"name": "a", "tokenizer": STANDARD, "charFilters": [{"type": "mapping"}]}],
    ],
)
def test_a_wrong_analyzer_is_refused(db, analyzers):
    coll = db.wrong
    coll.insert_one({})
    with pytest.raises(OperationFailure) as e:
        coll.create_search_index(SearchIndexModel({"mappings": {"dynamic": True}, "analyzers": analyzers}))
    assert e.value.code == 8 and "analyzers" in str(e.value)


def with_synonyms(db, name="cars"):
    db[name].insert_many(
        [
            {"_id": 1, "title": "a fast car"},
            {"_id": 2, "title": "an old automobile"},
            {"_id": 3, "title": "the motor vehicle"},
            {"_id": 4, "title": "vehicle with a motor"},
            {"_id": 5, "title": "cold beer"},
            {"_id": 6, "title": "cold brew"},
        ]
    )
    db.same.insert_many(
        [
            {"_id": 1, "mappingType": "equivalent", "synonyms": ["car", "automobile", "motor vehicle"]},
            {"_id": 2, "mappingType": "explicit", "input": ["beer"], "synonyms": ["brew"]},
        ]
    )
    mapping = {"name": "words", "analyzer": "lucene.standard", "source": {"collection": "same"}}
    return indexed(db[name], {"mappings": {"dynamic": True}, "synonyms": [mapping]})


def alike(query, **more):
    return text(query, synonyms="words", **more)


def test_synonyms_are_found(db):
    coll = with_synonyms(db)
    assert ids(coll, text("car")) == [1]
    assert ids(coll, alike("car")) == [1, 2, 3]
    assert ids(coll, alike("Motor Vehicle")) == [1, 2, 3]
    assert ids(coll, alike("motor")) == [3, 4]
    # An explicit mapping takes the place of its input.
    assert ids(coll, alike("beer")) == [6]
    assert ids(coll, alike("brew")) == [6]
    assert ids(coll, alike("fast car", matchCriteria="all")) == [1]
    assert ids(coll, {"phrase": {"query": "old car", "path": "title", "synonyms": "words"}}) == [2]
    assert ids(coll, {"phrase": {"query": "the car", "path": "title", "synonyms": "words"}}) == [3]
    [best, *_] = found(
        coll,
        alike("car"),
        {"$match": {"_id": 2}},
        {"$project": {"h": {"$meta": "searchHighlights"}}},
        highlight={"path": "title"},
    )
    assert [t["value"] for t in best["h"][0]["texts"] if t["type"] == "hit"] == ["automobile"]


def test_synonyms_follow_their_collection(db):
    coll = with_synonyms(db)
    db.same.insert_one({"_id": 3, "mappingType": "equivalent", "synonyms": ["old", "fast"]})
    shows(coll, alike("old"), [1, 2])
    with db.client.start_session(causal_consistency=True) as session:
        db.same.delete_one({"_id": 1}, session=session)
        rows = coll.aggregate([{"$search": alike("car")}], session=session)
        assert [d["_id"] for d in rows] == [1]
    db.same.insert_one({"_id": 9, "mappingType": "equivalent"})

    def is_refused():
        try:
            ids(coll, alike("car"))
        except OperationFailure as e:
            return e.code == 8 and "_id 9" in str(e)
        return False

    until("the invalid document is named", is_refused)
    assert ids(coll, text("car")) == [1]
    db.same.drop()
    shows(coll, alike("beer"), [5])


def test_wrong_synonyms_are_refused(db):
    coll = with_synonyms(db)
    for operator in [text("car", synonyms="none"), alike("car", fuzzy={}), text("car", synonyms=""), text("car", synonyms=1)]:
        with pytest.raises(OperationFailure) as e:
            ids(coll, operator)
        assert e.value.code == 8, operator
    mapping = {"name": "words", "analyzer": "lucene.standard", "source": {"collection": "same"}}
    for wrong in [
        [{**mapping, "analyzer": "none"}],
        [{**mapping, "source": {}}],
        [{**mapping, "more": 1}],
        [mapping, mapping],
        [{"analyzer": "lucene.standard", "source": {"collection": "same"}}],
    ]:
        with pytest.raises(OperationFailure) as e:
            coll.create_search_index(SearchIndexModel({"mappings": {"dynamic": True}, "synonyms": wrong}, "other"))
        assert e.value.code == 8
    coll.update_search_index("default", {"mappings": {"dynamic": True}, "analyzer": "lucene.english", "synonyms": [mapping]})
    until("the new version serves", lambda: is_ready(coll) and refuses_analyzer(coll))


def refuses_analyzer(coll):
    try:
        ids(coll, alike("car"))
    except OperationFailure as e:
        return "lucene.english" in str(e)
    return False


def synonym_status(coll):
    """The status of all mappings, and what is told of each; what the one server tells is the same."""
    [row] = coll.list_search_indexes("default")
    [host] = row["statusDetail"]
    main = host["mainIndex"]
    assert main["synonymMappingStatus"] == row["synonymMappingStatus"]
    assert main["synonymMappingStatusDetails"] == row["synonymMappingStatusDetail"]
    return row["synonymMappingStatus"], row["synonymMappingStatusDetail"]


def test_the_status_of_synonyms_is_listed(db):
    coll = with_synonyms(db)
    ready = ("READY", [{"words": {"status": "READY", "queryable": True}}])
    assert synonym_status(coll) == ready, "also before any search has asked for them"
    db.same.insert_one({"_id": "odd", "mappingType": "other"})
    until("what is wrong is told", lambda: synonym_status(coll)[0] == "FAILED")
    [(name, detail)] = [*synonym_status(coll)[1][0].items()]
    assert name == "words" and detail["status"] == "FAILED" and not detail["queryable"]
    assert "odd" in detail["message"]
    [index] = coll.list_search_indexes("default")
    assert index["status"] == "READY", "searches without synonyms go on"
    db.same.delete_one({"_id": "odd"})
    until("it is mended", lambda: synonym_status(coll) == ready)
    [listed] = db.command("listSearchIndexes", "cars")["cursor"]["firstBatch"]
    assert listed["synonymMappingStatus"] == "READY"
    indexed(coll, {"mappings": {"dynamic": True}}, "plain")
    [plain] = coll.list_search_indexes("plain")
    assert "synonymMappingStatus" not in plain
