"""Searches a second and their CPU, through the server's socket and in libraries in process: tantivy, Lucene, SQLite's FTS5; and index builds.

    scripts/measure.py search target/release/pando [TEXTS, 100000] [ROUNDS, 5] [SECONDS, 2] [FILE]

TEXTS are made of a seed, or are the lines of FILE. Each engine gives the ten best texts of searches for a word, for both of two words, for
either, and for a phrase, one search at a time. Before that each answer is checked: its texts have the words, and are as many as there are, up to
ten. The server is asked on one connection with requests made before, so a search has a socket's way in it, which those in process have not; these
are called from Python but for Lucene, which runs in a process of its own. CPU is that of the engine's process. A column `ratio` has the server's
rate against the engine's, the median of rounds in which they take turns. Builds: texts a second; the server reads them from its collection, and
is done when the index is ready.

Needs the packages tantivy and, for Lucene, java and mvn; what is not there is left out.
"""

import itertools
import random
import re
import sqlite3
import subprocess
import time

from searches import indexed

from .common import InProcess, Requests, compared, cpu, folder, running, settled, shown

KINDS = ("word", "both", "either", "phrase")
EACH, PAGE = 200, 10


def made(count, seed=1):
    """Texts of 5 to 15 words out of 100,000, drawn by Zipf's law."""
    rng = random.Random(seed)
    syllables = [a + b for a in "bcdfghjklmnpqrstvwxz" for b in "aeiou"]
    words = rng.sample(["".join(word) for word in itertools.product(syllables, repeat=3)], 100_000)
    weights = list(itertools.accumulate(rank**-0.99 for rank in range(1, len(words) + 1)))
    return [" ".join(rng.choices(words, cum_weights=weights, k=rng.randint(5, 15))) for _ in range(count)]


def lines(path, count):
    with open(path, encoding="utf-8") as file:
        return list(itertools.islice(filter(None, (line.strip() for line in file)), count))


def plain(text):
    """The words that all engines take for words."""
    return [word for word in text.split(" ") if re.fullmatch("[a-z]{3,}", word)]


def has(kind, words, text):
    text = text.lower()
    return (any if kind == "either" else all)(word in text for word in words)


def drawn(texts, seed=1):
    """Searches by kind: words of the texts that are in at most a twentieth of them, and how many texts there must be."""
    rng, places = random.Random(seed), {}
    for n, text in enumerate(texts):
        for word in set(plain(text)):
            places.setdefault(word, set()).add(n)
    rare = lambda text: [word for word in plain(text) if len(places[word]) <= max(1, len(texts) // 20)]

    def draw(kind):
        while True:
            text, other = rare(rng.choice(texts)), rare(rng.choice(texts))
            if kind == "phrase":
                whole = rng.choice(texts)
                found = [pair for pair in itertools.pairwise(whole.split(" ")) if set(pair) <= set(rare(whole))]
            else:
                found = {"word": itertools.product(text), "both": itertools.combinations(text, 2), "either": itertools.product(text, other)}[kind]
            if found := [words for words in found if len(set(words)) == len(words)]:
                return rng.choice(found)

    def due(kind, words):
        of = [places[word] for word in words]
        among = set.union(*of) if kind == "either" else set.intersection(*of)
        if kind == "phrase":
            among = [n for n in among if f" {' '.join(words)} " in f" {texts[n]} "]
        return min(PAGE, len(among))

    drawn = {kind: [draw(kind) for _ in range(EACH)] for kind in KINDS}
    return {kind: [(words, due(kind, words)) for words in all] for kind, all in drawn.items()}


def check(engine, searches, found):
    """`found` gives the texts of all answers of a kind."""
    for kind, all in searches.items():
        for (words, due), texts in zip(all, found(kind), strict=True):
            assert due <= len(texts) <= PAGE, f"{engine.name}: {len(texts)} texts with {words}, not {due} ({kind})"
            assert all_have(kind, words, texts), f"{engine.name}: {texts} for {words} ({kind})"


def all_have(kind, words, texts):
    return all(has(kind, words, text) for text in texts)


def operator(kind, words):
    query = {"query": " ".join(words), "path": "text"}
    if kind == "phrase":
        return {"phrase": query}
    return {"text": query | ({"matchCriteria": "all"} if kind == "both" else {})}


def pando(server, texts, searches):
    with server.client() as client:
        coll = client.measured.texts
        for at in range(0, len(texts), 10_000):
            coll.insert_many([{"_id": n, "text": text} for n, text in enumerate(texts[at : at + 10_000], at)])
        settled(server)
        used, began = cpu(server), time.perf_counter()
        indexed(coll, {"mappings": {"dynamic": False, "fields": {"text": {"type": "string"}}}})
        built = time.perf_counter() - began, cpu(server) - used
        settled(server)
    pipeline = lambda kind, words: [{"$search": operator(kind, words)}, {"$limit": PAGE}]
    command = lambda kind, words: {"aggregate": "texts", "pipeline": pipeline(kind, words), "cursor": {}, "$db": "measured"}
    engine = Requests(server, {kind: [command(kind, words) for words, _ in all] for kind, all in searches.items()})
    engine.built = built
    check(engine, searches, lambda kind: [[d["text"] for d in docs] for docs in engine.found(kind)])
    return engine


class Tantivy(InProcess):
    name = "tantivy"

    def __init__(self, place, texts, searches):
        import tantivy

        schema = tantivy.SchemaBuilder().add_text_field("text", stored=True).build()
        place.mkdir()
        index = tantivy.Index(schema, path=str(place))
        used, began = time.process_time(), time.perf_counter()
        writer = index.writer(heap_size=128_000_000)
        for text in texts:
            writer.add_document(tantivy.Document(text=text))
        writer.commit()
        writer.wait_merging_threads()
        self.built = time.perf_counter() - began, time.process_time() - used
        index.reload()
        self.searcher = index.searcher()
        self.ready = {kind: [index.parse_query(self.query(kind, words), ["text"]) for words, _ in all] for kind, all in searches.items()}
        check(self, searches, lambda kind: map(self.answer, self.ready[kind]))

    def query(self, kind, words):
        marks = {"both": "+", "phrase": ""}
        text = " ".join(marks.get(kind, "") + word for word in words)
        return f'"{text}"' if kind == "phrase" else text

    def answer(self, query):
        return [self.searcher.doc(place)["text"][0] for _, place in self.searcher.search(query, PAGE, count=False).hits]


class Fts5(InProcess):
    name = "SQLite FTS5"

    def __init__(self, place, texts, searches):
        self.db = sqlite3.connect(place)
        self.db.execute("CREATE VIRTUAL TABLE texts USING fts5(text)")
        used, began = time.process_time(), time.perf_counter()
        with self.db:
            self.db.executemany("INSERT INTO texts VALUES (?)", ((text,) for text in texts))
        self.built = time.perf_counter() - began, time.process_time() - used
        between = {"word": " ", "both": " AND ", "either": " OR ", "phrase": " + "}
        self.ready = {kind: [between[kind].join(words) for words, _ in all] for kind, all in searches.items()}
        check(self, searches, lambda kind: map(self.answer, self.ready[kind]))

    def answer(self, query):
        return [text for (text,) in self.db.execute(f"SELECT text FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT {PAGE}", (query,))]


class Lucene:
    """A process of its own, told on its input what to do for how long."""

    name = "Lucene"

    def __init__(self, place, texts, searches):
        import compare_lucene

        place.mkdir()
        (place / "texts").write_text("\n".join(re.sub(r"\s+", " ", text) for text in texts), encoding="utf-8")
        rows = [f"{kind}\t{' '.join(words)}\t{due}" for kind, all in searches.items() for words, due in all]
        (place / "searches").write_text("\n".join(rows), encoding="utf-8")
        source = compare_lucene.ROOT / "scripts/measurements/Lucene.java"
        command = [*compare_lucene.lucene(), source, place / "texts", place / "searches", place / "index"]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.built = tuple(map(float, self.line().split()))

    def line(self):
        line = self.process.stdout.readline()
        assert line, "Lucene has ended"
        return line

    def ask(self, kind, seconds):
        used = cpu(self.process)
        print(kind, seconds, file=self.process.stdin, flush=True)
        count, took = map(float, self.line().split())
        return count, took, cpu(self.process) - used


def others(place, texts, searches):
    for kind in (Tantivy, Lucene, Fts5):
        try:
            yield kind(place / kind.__name__, texts, searches)
        except (ImportError, OSError, subprocess.CalledProcessError) as why:
            print(f"{kind.name}: left out ({why})")


def main(given):
    count, rounds, seconds, file = [*given[1:], *["100000", "5", "2", ""][len(given) - 1 :]]
    texts = lines(file, int(count)) if file else made(int(count))
    searches = drawn(texts)
    with folder() as place, running() as server:
        engines = [pando(server, texts, searches), *others(place, texts, searches)]
        rate = lambda engine: len(texts) / engine.built[0]
        builds = [{"kind": "index build", "engine": e.name, "a_second": round(rate(e), 1)} for e in engines]
        for row, engine in zip(builds, engines):
            row |= {"cpu_us": round(engine.built[1] / len(texts) * 1e6, 1), "ratio": round(rate(engines[0]) / rate(engine), 2)}
        shown(builds + compared(engines, KINDS, int(rounds), float(seconds)), texts=len(texts), rounds=int(rounds))
