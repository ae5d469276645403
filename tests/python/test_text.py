"""Text indexes and `$text`. Answers and scores are compared with a model that knows each word's stem from a table."""

import itertools
import os
import random
import unicodedata
from collections import Counter

import pytest
from pymongo.errors import OperationFailure

from harness import execution, leaf, refuses, stages

SCORE = {"$meta": "textScore"}


def search(text, **more):
    return {"$text": {"$search": text, **{f"${name}": v for name, v in more.items()}}}


def ids(documents):
    return sorted(d["_id"] for d in documents)


# Language: its words with their stems (those of Snowball's published vocabularies), and some of its stop words.
LANGUAGES = {
    "english": (
        {"running": "run", "runs": "run", "cats": "cat", "cat": "cat", "generously": "generous", "consoled": "consol",
         "consoling": "consol", "knight": "knight", "knights": "knight", "tea": "tea"},
        ["the", "and", "of", "don't"],
    ),
    "french": (
        {"chevaux": "cheval", "cheval": "cheval", "continuer": "continu", "continuait": "continu", "maison": "maison",
         "maisons": "maison", "été": None, "naître": "naitr", "main": "main"},
        ["les", "et", "de"],
    ),
    "german": (
        {"katzen": "katz", "katze": "katz", "häuser": "haus", "haus": "haus", "aufgeben": "aufgeb", "aufgegeben": "aufgegeb",
         "straße": "strass", "tee": "tee"},
        ["die", "und", "nicht"],
    ),
    "spanish": (
        {"gatos": "gat", "gato": "gat", "cheques": "chequ", "cheque": "chequ", "torneo": "torne", "torneos": "torne",
         "niños": "nin", "niño": "nin"},
        ["los", "de", "y"],
    ),
    "russian": (
        {"кошки": "кошк", "кошка": "кошк", "книги": "книг", "книга": "книг", "важная": "важн", "важный": "важн",
         "чаю": "ча"},
        ["и", "не", "на"],
    ),
}


def folded(text):
    """Without case and diacritics."""
    apart = unicodedata.normalize("NFD", text.lower())
    return "".join(c for c in apart if not unicodedata.combining(c))


def words_of(text):
    return text.lower().replace(",", " ").replace("!", " ").split()


class Model:
    """MongoDB's rules, word by word: terms that are stems, a score for each, phrases as parts of the text."""

    def __init__(self, language, weights):
        stems, stop = LANGUAGES[language]
        self.stems = {w: s for w, s in stems.items() if s is not None}
        self.stop, self.weights = set(stop), weights

    def terms(self, text):
        return [self.stems[w] for w in words_of(text) if w not in self.stop]

    def scores(self, doc):
        out = Counter()
        for field, weight in self.weights.items():
            text = doc.get(field, "")
            terms = self.terms(text)
            for term, n in Counter(terms).items():
                frequency = sum(0.5**i for i in range(n))
                whole = 1.1 if text.lower() == term else 1.0
                out[term] += weight * frequency * (0.5 + 0.5 * n / len(terms)) * whole
        return out

    def find(self, docs, terms, negated, phrases):
        """The ids that match with their scores."""
        wanted = sorted({self.stems[w] for w in itertools.chain(terms, *(p.split() for p in phrases)) if w not in self.stop})
        unwanted = {self.stems[w] for w in negated if w not in self.stop}
        out = {}
        for doc in docs:
            scores = self.scores(doc)
            texts = [folded(doc.get(f, "")) for f in self.weights]
            if (any(t in scores for t in wanted) and not any(t in scores for t in unwanted)
                    and all(any(folded(p) in text for text in texts) for p in phrases)):
                out[doc["_id"]] = sum(scores[t] for t in wanted if t in scores)
        return out


@pytest.mark.parametrize("language", LANGUAGES)
def test_answers_and_scores_are_the_models(coll, language):
    seed = int(os.environ.get("PANDO_SEED", random.randrange(2**32)))
    print("PANDO_SEED", seed)
    rng = random.Random(seed)
    model = Model(language, {"title": 10, "body": 1})
    words = [*model.stems, *model.stop]

    def text(most):
        some = [rng.choice(words) for _ in range(rng.randrange(most))]
        return "".join(w.capitalize() + rng.choice([" ", ", ", "! "]) if rng.random() < 0.3 else w + " " for w in some).strip()

    docs = [{"_id": i, "title": text(3), "body": text(12)} for i in range(150)]
    coll.create_index([("title", "text"), ("body", "text")], weights={"title": 10}, default_language=language)
    coll.insert_many(docs)
    found_any = 0
    for _ in range(60):
        terms = [rng.choice(words) for _ in range(rng.randrange(4))]
        negated = [rng.choice(words) for _ in range(rng.choice([0, 0, 1]))]
        phrases = [" ".join(rng.choice(words) for _ in range(2)) for _ in range(rng.choice([0, 0, 1]))]
        asked = " ".join([*terms, *(f"-{n}" for n in negated), *(f'"{p}"' for p in phrases)])
        want = model.find(docs, terms, negated, phrases)
        got = {d["_id"]: d["score"] for d in coll.find(search(asked), {"score": SCORE})}
        assert got == pytest.approx(want, rel=1e-12), asked
        found_any += len(want)
        by_score = [d["_id"] for d in coll.find(search(asked), {"_id": 1}).sort([("s", SCORE), ("_id", 1)])]
        assert by_score == sorted(got, key=lambda i: (-got[i], i))
        assert coll.count_documents(search(asked)) == len(want)
    assert found_any > 100


def test_index(coll):
    assert coll.create_index([("a", 1), ("t", "text"), ("u", "text"), ("b", -1)], weights={"u": 5}) == "a_1_t_text_u_text_b_-1"
    index = coll.index_information()["a_1_t_text_u_text_b_-1"]
    assert index["key"] == [("a", 1), ("_fts", "text"), ("_ftsx", 1), ("b", -1)]
    assert {name: index[name] for name in ["weights", "default_language", "language_override", "textIndexVersion"]} == {
        "weights": {"t": 1, "u": 5}, "default_language": "english", "language_override": "language", "textIndexVersion": 3}
    # The same again is nothing new; another one is one too many.
    coll.create_index([("a", 1), ("t", "text"), ("u", "text"), ("b", -1)], weights={"u": 5})
    refuses(85, lambda: coll.create_index([("x", "text")]))
    assert len(coll.index_information()) == 2


@pytest.mark.parametrize("key, options, code", [
    ([("a", "text"), ("b", 1), ("c", "text")], {}, 67),
    ([("a", "text"), ("b", "2dsphere")], {}, 67),
    ([("a", "text")], {"weights": {"a": 0}}, 67),
    ([("a", "text")], {"weights": {"a": 100_000}}, 67),
    ([("a", "text")], {"weights": "a"}, 67),
    ([("a", "text")], {"weights": {"a": "b"}}, 67),
    ([("a", "text")], {"default_language": "klingon"}, 67),
    ([("a", "text")], {"default_language": 1}, 14),
    ([("a", "text")], {"language_override": "a.b"}, 67),
    ([("a", "text")], {"textIndexVersion": 4}, 67),
    ([("a", "text")], {"collation": {"locale": "fr"}}, 67),
    ([("a", 1)], {"default_language": "english"}, 67),
])
def test_index_errors(coll, key, options, code):
    refuses(code, lambda: coll.create_index(key, **options))


@pytest.mark.parametrize("version, asked, want", [
    (1, "cakes", [1]), (1, "CAKES", [1]), (1, "café", [2]), (1, "cafe", []), (1, "Über", [3]), (1, "über", []),
    (2, "cafe", []), (2, "über", []), (3, "cafe", [2]), (3, "über", [3]), (3, "UBER", [3]), (3, "pies", [4]), (2, "pies", []),
])
def test_versions(coll, version, asked, want):
    coll.create_index([("a", "text")], textIndexVersion=version)
    coll.insert_many([{"_id": 1, "a": "cake"}, {"_id": 2, "a": "café"}, {"_id": 3, "a": "Über"}, {"_id": 4, "a": "tarts—pies"}])
    assert ids(coll.find(search(asked))) == want


def test_languages_of_documents(coll):
    coll.create_index([("a.b", "text"), ("c", "text")], language_override="lang")
    coll.insert_many([
        {"_id": 1, "c": "los perros", "lang": "spanish"},
        {"_id": 2, "c": "los perros"},
        {"_id": 3, "a": [{"b": "perros", "lang": "es"}, {"b": "cakes"}]},
    ])
    assert ids(coll.find(search("perro", language="es"))) == [1, 3]
    assert ids(coll.find(search("perros", language="none"))) == []
    assert ids(coll.find(search("perros"))) == [2]
    assert ids(coll.find(search("los"))) == [2]
    assert ids(coll.find(search("cake"))) == [3]
    # A change of the language alone changes the entries.
    coll.update_one({"_id": 2}, {"$set": {"lang": "es"}})
    coll.update_one({"_id": 3}, {"$set": {"a.0.lang": "en"}})
    assert ids(coll.find(search("perro", language="es"))) == [1, 2]
    refuses(17262, lambda: coll.insert_one({"c": "x", "lang": "klingon"}))
    refuses(17261, lambda: coll.insert_one({"c": "x", "lang": 5}))
    assert coll.database.command("validate", coll.name)["valid"]


def test_all_fields_and_compound(coll):
    coll.create_index([("k", 1), ("$**", "text"), ("z", 1)])
    coll.insert_many([{"_id": i, "k": i % 2, "z": i, "deep": {"er": ["fox", {"x": "tea"}]}} for i in range(20)])
    both = {"k": 1, **search("fox"), "z": {"$gt": 14}}
    assert ids(coll.find(both)) == [15, 17, 19]
    plan, stats = execution(coll, {"find": coll.name, "filter": both})
    assert stats["totalDocsExamined"] == 3
    refuses(291, lambda: list(coll.find(search("fox"))))
    refuses(291, lambda: list(coll.find({"k": {"$gt": 0}, **search("fox")})))
    refuses(201, lambda: coll.insert_one({"k": [1, 2], "a": "x"}))
    assert ids(coll.find({"k": 0, **search("tea"), "z": 4})) == [4]


def test_partial_and_or(coll):
    coll.create_index([("a", "text")], partialFilterExpression={"live": True})
    coll.create_index("n")
    coll.insert_many([{"_id": 1, "a": "fox", "live": True, "n": 1}, {"_id": 2, "a": "fox", "n": 2}, {"_id": 3, "a": "tea", "n": 3}])
    assert ids(coll.find({"live": True, **search("fox")})) == [1]
    refuses(291, lambda: list(coll.find(search("fox"))))
    both = {"live": True, "$or": [search("fox"), {"n": 3, "live": True}]}
    assert ids(coll.find(both)) == [1]
    refuses(291, lambda: list(coll.find({"$or": [{"live": True, **search("fox")}, {"other": 1}]})))


def test_a_phrase_reads_what_holds_its_rarest_word(coll):
    coll.create_index([("a", "text")])
    coll.insert_many([{"_id": i, "a": "common words" + (" rare" if i % 100 == 0 else "")} for i in range(1000)])
    coll.insert_one({"_id": 5000, "a": "common rare"})
    _, stats = execution(coll, {"find": coll.name, "filter": search('"common rare" words')})
    assert stats["nReturned"] == 1 and stats["totalDocsExamined"] == 11
    # As MongoDB's phrases these are parts of texts, but a document has the words of a phrase as words.
    assert ids(coll.find(search('"mon rare"'))) == []
    assert ids(coll.find(search('"common rare"'))) == [5000]


def test_explain(coll):
    coll.create_index([("a", "text")])
    coll.insert_many([{"_id": 1, "a": "coffee cake"}, {"_id": 2, "a": "tea"}])
    plan, stats = execution(coll, {"find": coll.name, "filter": search('coffee tea -sugar "tea"')})
    assert stages(plan)[:2] == ["TEXT_MATCH", "FETCH"] and leaf(plan)["indexName"] == "a_text"
    text = plan if plan["stage"] == "TEXT_MATCH" else plan["inputStage"]
    assert text["parsedTextQuery"] == {"terms": ["coffe", "tea"], "negatedTerms": ["sugar"], "phrases": ["tea"], "negatedPhrases": []}
    assert text["textIndexVersion"] == 3 and text["indexPrefix"] == {}
    plan, _ = execution(coll, {"find": coll.name, "filter": search("tea"), "projection": {"s": SCORE}})
    assert "TEXT_OR" in stages(plan) and "TEXT_MATCH" in stages(plan)


def test_pipelines(coll):
    coll.create_index([("a", "text")])
    coll.insert_many([{"_id": 1, "a": "fox fox", "n": [1, 2]}, {"_id": 2, "a": "fox", "n": [3]}, {"_id": 3, "a": "fox cake"}])
    match = {"$match": search("fox")}
    want = {1: 1.5, 2: 1.1, 3: 0.75}

    def run(*more):
        return list(coll.aggregate([match, *more]))

    assert {d["_id"]: d["s"] for d in run({"$project": {"s": SCORE}})} == pytest.approx(want)
    # The score stays with its document when the text is gone.
    by_score = run({"$project": {"n": 1}}, {"$sort": {"x": SCORE}}, {"$unwind": "$n"}, {"$set": {"s": SCORE}})
    assert [(d["_id"], d["n"], round(d["s"], 6)) for d in by_score] == [(1, 1, 1.5), (1, 2, 1.5), (2, 3, 1.1)]
    assert run({"$group": {"_id": None, "most": {"$max": SCORE}}}) == [{"_id": None, "most": 1.5}]
    assert run({"$sort": {"s": SCORE}}, {"$limit": 1}, {"$project": {"_id": 1}}) == [{"_id": 1}]
    assert run({"$count": "n"}) == [{"n": 3}]
    refuses(40218, lambda: run({"$group": {"_id": 1}}, {"$project": {"s": SCORE}}))
    refuses(40218, lambda: list(coll.aggregate([{"$project": {"s": SCORE}}])))
    refuses(17313, lambda: list(coll.aggregate([{"$limit": 1}, match])))
    refuses(17313, lambda: run(match))
    refuses(40218, lambda: run({"$facet": {"a": [{"$project": {"s": SCORE}}]}}))
    other = coll.database["others"]
    other.insert_one({"_id": 1})
    joined = list(other.aggregate([{"$lookup": {"from": coll.name, "pipeline": [match, {"$project": {"s": SCORE}}], "as": "t"}}]))
    assert {d["_id"]: d["s"] for d in joined[0]["t"]} == pytest.approx(want)
    coll.database.command("create", "seen", viewOn=coll.name, pipeline=[{"$project": {"a": 1}}])
    refuses(17313, lambda: list(coll.database["seen"].find(search("fox"))))


def test_writes(coll):
    coll.create_index([("a", "text")])
    coll.insert_many([{"_id": 1, "a": "fox fox"}, {"_id": 2, "a": "fox"}, {"_id": 3, "a": "cake"}])
    assert coll.update_many(search("fox"), {"$set": {"seen": 1}}).modified_count == 2
    assert coll.update_one(search('"fox fox"'), {"$set": {"a": "tea"}}).modified_count == 1
    assert ids(coll.find(search("fox"))) == [2]
    assert coll.find_one_and_update(search("tea cake"), {"$set": {"b": 1}}, sort=[("s", SCORE)])["_id"] in (1, 3)
    assert coll.delete_many(search("tea cake")).deleted_count == 2
    assert coll.distinct("a", search("fox")) == ["fox"]
    assert coll.database.command("validate", coll.name)["valid"]


@pytest.mark.parametrize("query, code", [
    ({"$text": 1}, 14),
    ({"$text": {}}, 4),
    (search(1), 14),
    (search("x", language="klingon"), 2),
    (search("x", caseSensitive=1), 14),
    (search("x", unknown=True), 2),
    ({"$and": [search("x"), search("y")]}, 2),
    ({"$nor": [search("x")]}, 2),
    ({"a": {"$elemMatch": search("x")}}, 2),
    ({"a": search("x")}, 2),
])
def test_errors(coll, query, code):
    coll.create_index([("a", "text")])
    refuses(code, lambda: list(coll.find(query)))


def test_errors_around(coll):
    for run in [coll.count_documents, coll.delete_many, lambda q: coll.update_many(q, {"$set": {"x": 1}}), lambda q: list(coll.find(q))]:
        refuses(27, lambda: run(search("x")))
    coll.insert_one({"a": "x"})
    refuses(27, lambda: list(coll.find(search("x"))))
    coll.create_index([("a", "text")])
    refuses(2, lambda: list(coll.find(search("x")).hint("a_text")))
    refuses(2, lambda: list(coll.find(search("x")).sort("$natural", 1)))
    refuses(40218, lambda: list(coll.find({}, {"s": SCORE})))
    refuses(40218, lambda: list(coll.find({}).sort([("s", SCORE)])))
    assert ids(coll.find({"a": "x"}, {"_id": 1}))  # by nothing but a scan


def test_case_and_diacritics(coll):
    coll.create_index([("a", "text")])
    coll.insert_many([{"_id": i, "a": a} for i, a in enumerate(["Café", "café", "Cafe", "cafe"])])
    for more, asked, want in [
        ({}, "CAFE", [0, 1, 2, 3]),
        ({"caseSensitive": True}, "Cafe", [0, 2]),
        ({"diacriticSensitive": True}, "café", [0, 1]),
        ({"caseSensitive": True, "diacriticSensitive": True}, "Café", [0]),
        ({"caseSensitive": True}, "x -Cafe cafe", [1, 3]),
        ({"diacriticSensitive": True}, '"cafe"', [2, 3]),
    ]:
        assert ids(coll.find(search(asked, **more))) == want, (more, asked)


def test_a_built_index_is_the_same(coll):
    docs = [{"_id": i, "a": f"word{i % 7} tea" * (i % 3 + 1), "b": [f"x{i % 5}", "cake"]} for i in range(300)]
    coll.insert_many(docs)
    coll.create_index([("a", "text"), ("b", "text")], weights={"b": 2})
    other = coll.database["others"]
    other.create_index([("a", "text"), ("b", "text")], weights={"b": 2})
    other.insert_many(docs)
    for asked in ["tea", "word3 x2", "cake -word1"]:
        answers = [[(d["_id"], d["s"]) for d in c.find(search(asked), {"s": SCORE}).sort("_id")] for c in (coll, other)]
        assert answers[0] == answers[1] and answers[0]
    long = "word " * 200_000
    coll.insert_one({"_id": "long", "a": long + "needle"})
    assert ids(coll.find(search("needle"))) == ["long"]
    with pytest.raises(OperationFailure):
        list(coll.find(search("x" * 10), {"s": SCORE}).hint([("a", 1)]))
