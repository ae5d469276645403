#!/usr/bin/env python3
"""Searches and analyzers beside Lucene's, over the short descriptions of Debian's packages.

    scripts/compare_lucene.py SERVER [--texts N] [--queries N] [--seed N] [--tests BINARY]

Starts SERVER with the texts in a collection, and Lucene (tests/lucene, built with Maven) over the same texts. Each query
of the kinds text, phrase, phrase with words that repeat, compound and fuzzy is put to both: the ten best have to be the same, in the same order but for
equal scores, and scores may differ by 1e-4. With `--tests`, the binary of the unit tests of crates/search, the tokens of
analyzers are compared too, over texts of many scripts. Exits with 1 if anything differs.

Needs: java, mvn, a package list (`apt-get update`), pymongo.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/python"))

MOST = 10
# Lucene gives more, so that ties at the end are whole.
ASKED = 60
TOLERANCE = 1e-4


def lucene():
    """The Java command over the comparison's classes."""
    folder = ROOT / "tests/lucene"
    subprocess.run(["mvn", "-q", "-B", "package", "dependency:copy-dependencies"], cwd=folder, check=True)
    return ["java", "-cp", f"{folder}/target/classes:{folder}/target/dependency/*"]


def descriptions(most):
    out = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    found = dict.fromkeys(re.findall(r"^Description(?:-en)?: (.+)$", out, re.M))
    return list(found)[:most]


def misspelt(rng, word):
    at = rng.randrange(len(word))
    letter = rng.choice("abcdefghijklmnopqrstuvwxyz")
    return rng.choice([word[:at] + word[at + 1 :], word[:at] + letter + word[at:], word[:at] + letter + word[at + 1 :]])


def queries(rng, texts, each):
    """Queries of all kinds: operators without their paths."""
    words = [w for t in texts for w in re.findall(r"[a-z]{3,}", t.lower())]

    def some(n):
        return " ".join(rng.choice(words) for _ in range(n))

    def part(n):
        while True:
            found = re.findall(r"\w+", rng.choice(texts))
            if len(found) >= n:
                at = rng.randrange(len(found) - n + 1)
                return " ".join(found[at : at + n])

    def text(n=None):
        return {"text": {"query": some(n or rng.randint(1, 4))}}

    def fuzzy():
        word = misspelt(rng, rng.choice([w for w in rng.sample(words, 50) if len(w) > 4]))
        return {"text": {"query": word, "fuzzy": {"maxEdits": rng.choice([1, 2]), "prefixLength": rng.choice([0, 1, 2])}}}

    def compound():
        parts = {"must": [text(1)], "should": [text(2), {"phrase": {"query": part(2)}}]}
        if rng.random() < 0.5:
            parts["mustNot"] = [text(1)]
        if rng.random() < 0.3:
            parts["filter"] = [text(2)]
        return {"compound": parts}

    def phrase():
        return {"phrase": {"query": part(rng.randint(2, 3)), **rng.choice([{}, {"slop": 1}, {"slop": 3}])}}

    def repeats():
        words = part(rng.randint(1, 3)).split()
        for _ in range(rng.randint(1, 2)):
            words.insert(rng.randint(0, len(words)), rng.choice(words))
        return {"phrase": {"query": " ".join(words), "slop": rng.randint(1, 6)}}

    every = {"text": text, "phrase": phrase, "repeats": repeats, "compound": compound, "fuzzy": fuzzy}
    return [(kind, make()) for kind, make in every.items() for _ in range(each)]


def with_paths(operator):
    """The same with the path of the texts."""
    [(name, spec)] = operator.items()
    if name == "compound":
        return {name: {k: [with_paths(o) for o in v] for k, v in spec.items()}}
    return {name: {**spec, "path": "text"}}


def difference(own, other):
    """What differs of two lists of (id, score); `None` where nothing does. Equal scores may be in any order."""
    if len(own) != min(MOST, len(other)):
        return f"{len(own)} found, {len(other)} by Lucene"
    for (_, a), (_, b) in zip(own, other):
        if abs(a - b) > TOLERANCE:
            return f"score {a} and {b}"
    scores = dict(other)
    for i, score in own:
        if i not in scores:
            if len(other) < ASKED or score > other[-1][1] + TOLERANCE:
                return f"document {i} is not found by Lucene"
        elif abs(scores[i] - score) > TOLERANCE:
            return f"document {i} has {score} and {scores[i]}"
    return None


def compare_searches(options, java):
    import harness
    from searches import indexed

    rng = random.Random(options.seed)
    texts = descriptions(options.texts)
    asked = queries(rng, texts, options.queries)
    wrong = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        corpus = folder / "texts.jsonl"
        corpus.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
        lines = "".join(json.dumps(q) + "\n" for _, q in asked)
        command = [*java, "pando.Searches", str(corpus), str(folder / "lucene"), str(ASKED)]
        answers = subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
        server = harness.Server(folder / "data", program=[options.server, "serve"])
        server.start()
        try:
            with server.client() as client:
                coll = client.lucene.texts
                coll.insert_many({"_id": i, "text": t} for i, t in enumerate(texts))
                indexed(coll, {"mappings": {"dynamic": False, "fields": {"text": {"type": "string"}}}})
                score = {"$project": {"score": {"$meta": "searchScore"}}}
                for (kind, query), answer in zip(asked, answers):
                    rows = coll.aggregate([{"$search": with_paths(query)}, {"$limit": MOST}, score])
                    told = difference([(d["_id"], d["score"]) for d in rows], [tuple(x) for x in json.loads(answer)])
                    if told:
                        wrong[kind] += 1
                        if wrong[kind] <= 3:
                            print(f"{json.dumps(query)}: {told}")
        finally:
            server.stop()
    for kind, n in collections.Counter(kind for kind, _ in asked).items():
        print(f"{kind}: {n - wrong[kind]} of {n} as Lucene's, over {len(texts):,} texts")
    return sum(wrong.values())


TEXTS = [
    "The quick-brown FOX's jumped over the lazy dogs' O'Neil's can't 3.5 a_b $x",
    "Ærøskøbing résumé naïve “quotes” ﬁne ①② straße İstanbul ΣΊΣΥΦΟΣ ａｂｃ Ⅷ ½",
    "PowerShot500 Wi-Fi wi_fi SD500 j2se XL--42+'Autocoder' Super-Duper-XL500-42-AutoCoder's AB-CD12-ef",
    "日本語 テスト ひらがな カタカナ 한국어 中文字符 ไทยภาษา ລາວ ខ្មែរ မြန်မာ عربي עברית हिन्दी",
    "😀😀 🇩🇪🇫🇷 ✈️ 1️⃣ ©® ™ ☃ ❤️ a😀b",
    "foo@bar.com visit http://www.example.com/path?x=1&y=2#frag or www.test.org mail: a.b+c@sub.domain.co.uk https://localhost:8080/",
    "<p>Hello <b>bold</b> wor<i>l</i>d &amp; &eacute;t&eacute; &#65; &unknown; <br/>new<!-- c --> <script>x<b></script>end</p> 1<2",
    "caresses ponies relational conditional hesitanci vietnamization feudalism hopefulness sensibiliti probate controll running",
    "los albaricoques casas relojes jabalíes voces jerseis clubes crisis leyes bambúes maniquís escáneres abades árboles",
    "Auerbach Moskowitz Peters Schwarzenegger Rosochowaciec Lewinsky Jackson-Jackson Mintz Müller",
    "a  b\tc\u00a0d\u2003e می‌خواهم",
    "",
]


def part(kind, **options):
    return {"type": kind, **options}


def analyzers(rng):
    """Definitions that together have every tokenizer and filter."""
    standard, space, whole, lower = part("standard"), part("whitespace"), part("keyword"), part("lowercase")

    def of(tokenizer, *filters, chars=()):
        return {"name": "x", "charFilters": list(chars), "tokenizer": tokenizer, "tokenFilters": list(filters)}

    flags = [
        *("generateWordParts", "generateNumberParts", "concatenateWords", "concatenateNumbers", "concatenateAll"),
        *("preserveOriginal", "splitOnCaseChange", "splitOnNumerics", "stemEnglishPossessive", "ignoreKeywords"),
    ]
    delimiters = [{f: rng.random() < 0.5 for f in flags} for _ in range(20)]
    return [
        *("lucene.standard", "lucene.simple", "lucene.whitespace", "lucene.keyword", "lucene.english"),
        of(part("edgeGram", minGram=2, maxGram=5)),
        of(part("nGram", minGram=2, maxGram=3)),
        of(part("regexSplit", pattern="[-_. ]+")),
        of(part("regexCaptureGroup", pattern="(\\w+)-(\\w+)", group=1)),
        of(part("uaxUrlEmail")),
        of(space, part("asciiFolding", originalTokens="include"), lower),
        of(space, part("daitchMokotoffSoundex")),
        of(standard, part("edgeGram", minGram=2, maxGram=4, termNotInBounds="include")),
        of(standard, part("nGram", minGram=3, maxGram=4)),
        of(space, part("englishPossessive"), part("trim")),
        of(space, part("icuFolding")),
        *[of(space, part("icuNormalizer", normalizationForm=form)) for form in ("nfc", "nfd", "nfkc", "nfkd")],
        of(standard, part("keywordRepeat"), part("porterStemming"), part("removeDuplicates")),
        of(standard, part("length", min=2, max=4)),
        of(space, part("regex", pattern="([a-z])([a-z])", replacement="$2$1", matches="all")),
        of(standard, part("reverse")),
        of(standard, part("shingle", minShingleSize=2, maxShingleSize=3)),
        *[of(standard, lower, part("snowballStemming", stemmerName=n)) for n in ("english", "spanish", "german", "french")],
        of(standard, lower, part("spanishPluralStemming")),
        of(standard, part("stopword", tokens=["the", "OF", "los"])),
        *[of(space, part("wordDelimiterGraph", delimiterOptions=d)) for d in delimiters],
        of(whole, part("wordDelimiterGraph"), part("flattenGraph")),
        of(standard, chars=[part("htmlStrip", ignoredTags=["b"])]),
        of(whole, chars=[part("icuNormalize")]),
        of(whole, chars=[part("mapping", mappings={"&": " and ", "foo": "f", "fo": "g"})]),
        of(whole, chars=[part("persian")]),
    ]


def compare_tokens(options, java):
    rng = random.Random(options.seed)
    pairs = [{"analyzer": a, "text": t} for a in analyzers(rng) for t in TEXTS + descriptions(40)]
    lines = "".join(json.dumps(p) + "\n" for p in pairs)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "texts"
        path.write_text(lines)
        command = [options.tests, "--ignored", "tokens_of_a_file"]
        subprocess.run(command, env={**os.environ, "LUCENE_TEXTS": str(path)}, check=True, stdout=subprocess.DEVNULL)
        own = pathlib.Path(f"{path}.tokens").read_text().splitlines()
    other = subprocess.run([*java, "pando.Tokens"], input=lines, capture_output=True, text=True, check=True)
    wrong = 0
    for p, a, b in zip(pairs, own, other.stdout.splitlines(), strict=True):
        if json.loads(a) != json.loads(b):
            wrong += 1
            print(f"{json.dumps(p, ensure_ascii=False)}\n  {a}\n  {b}")
    print(f"tokens: {len(pairs) - wrong:,} of {len(pairs):,} texts as Lucene's")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server")
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=250, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests")
    options = parser.parse_args()
    java = lucene()
    wrong = compare_tokens(options, java) if options.tests else 0
    wrong += compare_searches(options, java)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
