"""Searches of the nearest vectors a second, their CPU and their recall, through the server's socket and in libraries in process: hnswlib, usearch.

    scripts/measure.py vectors target/release/pando [VECTORS, 20000] [DIMENSIONS, 256] [ROUNDS, 5] [SECONDS, 2] [FILE [OUT [QUANTIZATION]]]

Vectors are made of a seed, in clusters on a sheet of 24 dimensions; or each is that of a line of FILE: the sum of its words' vectors by their rarity,
and these are the first eigenvectors of how often words stand in one text (of the 4,000 words in most texts, as logarithms of what chance would
not give). OUT keeps them as 32-bit floats, for `pando lab study vectors --vectors`; a FILE whose name ends with `.f32` holds such
floats.
QUANTIZATION is the server's: none, scalar, binary. All engines have M 16 and compare 100 candidates. Recall is counted against
an exact search, with filters of 10%, 1% and 0.1% for the server too. It is asked on one connection with requests made before, and libraries are
called from Python in this process on one thread. CPU is that of the engine's process. `ratio`: the server's rate against the engine's, the median
of rounds in which they take turns. Builds: vectors a second, on all cores; the server's is done when it has nothing to do any more.

Needs the packages numpy, and hnswlib and usearch or those of them that are there.
"""

import collections
import math
import re
import time

import numpy
from bson import Binary
from searches import indexed

from .common import InProcess, Requests, compared, cpu, running, settled, shown

PAGE, CANDIDATES, EDGES, BUILT_WITH, QUERIES, PARTS, WORDS = 10, 100, 16, 100, 200, 1000, 4000
SHARES = {"all": PARTS, "10%": PARTS // 10, "1%": PARTS // 100, "0.1%": PARTS // 1000}


def normalised(rows):
    return (rows / numpy.maximum(numpy.linalg.norm(rows, axis=1, keepdims=True), 1e-9)).astype(numpy.float32)


def made(count, dimensions, seed=1):
    rng = numpy.random.default_rng(seed)
    centres, sheet = rng.normal(size=(max(1, count // 200), 24)), rng.normal(size=(24, dimensions))
    places = centres[rng.integers(len(centres), size=count)] + 0.5 * rng.normal(size=(count, 24))
    return normalised(places.astype(numpy.float32) @ sheet.astype(numpy.float32) + 0.02 * rng.normal(size=(count, dimensions)).astype(numpy.float32))


def of_texts(path, count, dimensions):
    """Vectors of lines that have a known word."""
    with open(path, encoding="utf-8") as file:
        texts = [sorted(set(re.findall("[a-z]{3,}", line.lower()))) for line in file]
    frequent = collections.Counter(word for words in texts for word in words).most_common(WORDS)
    number = {word: n for n, (word, _) in enumerate(frequent)}
    texts = [known for words in texts if (known := [number[word] for word in words if word in number])][:count]
    together = numpy.zeros((len(number), len(number)), numpy.float32)
    for words in texts:
        together[numpy.ix_(words, words)] += 1
    alone = together.diagonal().copy()
    by_chance = numpy.outer(alone, alone) / len(texts)
    unlike = numpy.log(numpy.maximum(together / numpy.maximum(by_chance, 1e-9), 1))
    values, found = numpy.linalg.eigh(unlike)
    assert dimensions <= len(values), f"{len(values)} words have no {dimensions} dimensions"
    best = numpy.argsort(-values)[:dimensions]
    of_word = found[:, best] * numpy.sqrt(numpy.maximum(values[best], 0))
    rarity = numpy.array([math.log(len(texts) / count) for _, count in frequent], numpy.float32)
    return normalised(numpy.stack([rarity[words] @ of_word[words] for words in texts]))


def part(n):
    return n * 7919 % PARTS


def there(path, count, dimensions):
    """Vectors of a file: its numbers, or made of its lines."""
    if path.endswith(".f32"):
        numbers = numpy.fromfile(path, numpy.float32, count * dimensions)
        return normalised(numbers.reshape(-1, dimensions))
    return of_texts(path, count, dimensions)


class Exact:
    """What searches have to find: the products of the last of the best."""

    def __init__(self, vectors, queries):
        self.vectors, self.queries, parts = vectors, queries, part(numpy.arange(len(vectors)))
        self.least = {}
        for name, below in SHARES.items():
            away = -queries @ vectors[parts < below].T
            most = min(PAGE, away.shape[1])
            self.least[name] = -numpy.sort(numpy.partition(away, most - 1, axis=1)[:, :most], axis=1)

    def recall(self, name, found):
        """Of answers to all queries, each a list of numbers of vectors."""
        right = due = 0
        for query, least, numbers in zip(self.queries, self.least[name], found, strict=True):
            assert len(set(numbers)) == len(numbers) <= PAGE and all(part(n) < SHARES[name] for n in numbers), numbers
            right += int((self.vectors[numbers] @ query >= least[-1] - 1e-5).sum()) if len(numbers) else 0
            due += len(least)
        return round(right / due, 4)


def binary(vector):
    return Binary(b"\x27\0" + vector.tobytes(), 9)


def pando(server, vectors, queries, quantization):
    with server.client() as client:
        coll = client.measured.vectors
        for at in range(0, len(vectors), 1000):
            rows = enumerate(vectors[at : at + 1000], at)
            coll.insert_many([{"_id": n, "v": binary(vector), "part": part(n)} for n, vector in rows])
        settled(server)
        used, began = cpu(server), time.perf_counter()
        vector = {"type": "vector", "path": "v", "numDimensions": vectors.shape[1], "similarity": "cosine", "quantization": quantization}
        indexed(coll, {"fields": [vector, {"type": "filter", "path": "part"}]}, kind="vectorSearch", timeout_s=3600)
        settled(server)
        # The last look, of a second, found nothing.
        built = time.perf_counter() - began - 1, cpu(server) - used

    def command(query, below):
        near = {"index": "default", "path": "v", "queryVector": binary(query), "numCandidates": CANDIDATES, "limit": PAGE}
        near |= {"filter": {"part": {"$lt": below}}} if below < PARTS else {}
        return {"aggregate": "vectors", "pipeline": [{"$vectorSearch": near}, {"$project": {"_id": 1}}], "cursor": {}, "$db": "measured"}

    engine = Requests(server, {name: [command(query, below) for query in queries] for name, below in SHARES.items()})
    engine.built = built
    engine.numbers = lambda name: [[d["_id"] for d in docs] for docs in engine.found(name)]
    return engine


class Hnswlib(InProcess):
    name = "hnswlib"

    def __init__(self, vectors, queries):
        import hnswlib

        self.index = hnswlib.Index("cosine", vectors.shape[1])
        self.index.init_index(len(vectors), M=EDGES, ef_construction=BUILT_WITH)
        used, began = time.process_time(), time.perf_counter()
        self.index.add_items(vectors)
        self.built = time.perf_counter() - began, time.process_time() - used
        self.index.set_ef(CANDIDATES)
        self.ready = {"all": list(queries)}

    def answer(self, query):
        return self.index.knn_query(query, PAGE, num_threads=1)[0][0]


class Usearch(InProcess):
    name = "usearch"

    def __init__(self, vectors, queries):
        from usearch.index import Index

        more = {"connectivity": EDGES, "expansion_add": BUILT_WITH, "expansion_search": CANDIDATES}
        self.index = Index(ndim=vectors.shape[1], metric="cos", dtype="f32", **more)
        used, began = time.process_time(), time.perf_counter()
        self.index.add(numpy.arange(len(vectors)), vectors)
        self.built = time.perf_counter() - began, time.process_time() - used
        self.ready = {"all": list(queries)}

    def answer(self, query):
        return self.index.search(query, PAGE, threads=1).keys


def others(vectors, queries):
    for kind in (Hnswlib, Usearch):
        try:
            engine = kind(vectors, queries)
        except ImportError as why:
            print(f"{kind.name}: left out ({why})")
            continue
        engine.numbers = lambda name, engine=engine: [list(map(int, engine.answer(query))) for query in queries]
        yield engine


def main(given):
    defaults = ["20000", "256", "5", "2", "", "", "none"]
    count, dimensions, rounds, seconds, file, out, quantization = [*given[1:], *defaults[len(given) - 1 :]]
    count, dimensions = int(count) + QUERIES, int(dimensions)
    vectors = there(file, count, dimensions) if file else made(count, dimensions)
    if out:
        vectors.tofile(out)
    every = len(vectors) // QUERIES
    queries = vectors[::every][:QUERIES]
    vectors = numpy.delete(vectors, numpy.arange(0, every * QUERIES, every), axis=0)
    exact = Exact(vectors, queries)
    with running() as server:
        first = pando(server, vectors, queries, quantization)
        engines = [first, *others(vectors, queries)]
        rate = lambda engine: len(vectors) / engine.built[0]
        rows = [{"kind": "index build", "engine": e.name, "a_second": round(rate(e), 1)} for e in engines]
        for row, engine in zip(rows, engines):
            row |= {"cpu_us": round(engine.built[1] / len(vectors) * 1e6, 1), "ratio": round(rate(first) / rate(engine), 2), "recall": None}
        named = {engine.name: engine for engine in engines}
        behind_filters = [name for name in SHARES if name != "all"]
        found = compared(engines, ["all"], int(rounds), float(seconds)) + compared([first], behind_filters, int(rounds), float(seconds))
        rows += [row | {"recall": exact.recall(row["kind"], named[row["engine"]].numbers(row["kind"]))} for row in found]
        shown(rows, vectors=len(vectors), dimensions=dimensions, rounds=int(rounds))
