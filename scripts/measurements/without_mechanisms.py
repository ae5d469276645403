"""What mechanisms of docs/adaptive.md gain: the same work in turns with each of them and without it.

    scripts/measure.py without_mechanisms build target/without        a server in which each can be left out
    scripts/measure.py without_mechanisms run target/without/release/pando [--only NAME,...] [--rounds 5]

`build` compiles a copy of the tree (in the target directory) with the lines of LEFT_OUT changed: a mechanism is off where the
environment variable PANDO_WITHOUT names it. The server itself has no such switch. `run` prints the median of the rounds without
the mechanism and with it, which take turns, and how many rounds the mechanism won. Needs PyMongo.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import threading
import time

import bson
from bson.raw_bson import RawBSONDocument

from harness import ROOT, Server

from .common import cpu, folder, written

# Mechanism: file, what stands there, and what stands there instead, where OFF tells whether it is left out.
LEFT_OUT = {
    "write-throttle": [
        ("storage/src/write_throttle.rs", "let over = debt.clamp(", "let over = (if OFF { 0 } else { debt }).clamp("),
    ],
    "stall-detection": [("storage/src/commit_env.rs", "if begun.elapsed() > STALL", "if !OFF && begun.elapsed() > STALL")],
    "insert-order": [("storage/src/insert_order.rs", ".then(|| in_order", ".then(|| !OFF && in_order")],
    "load-level": [("storage/src/maintenance.rs", "    match bytes {\n", "    match if OFF { 1 } else { bytes } {\n")],
    "fetch-batch": [
        ("executor/src/read/index_scan.rs", ".clamp(1, FETCH_BATCH)", ".clamp(if OFF { FETCH_BATCH } else { 1 }, FETCH_BATCH)"),
    ],
    "worker-threads": [
        ("server/src/workers.rs", "if queue.threads >= self.max + ", "if queue.threads >= (if OFF { 2 } else { self.max }) + "),
    ],
    "inline-budget": [
        ("executor/src/op/mod.rs", "budget: INLINE_BUDGET,", "budget: if OFF { u32::MAX } else { INLINE_BUDGET },"),
        ("executor/src/interrupt.rs", "then_some(INLINE_CHECKS)", "then_some(if OFF { u32::MAX } else { INLINE_CHECKS })"),
    ],
}


def build(target):
    target = pathlib.Path(target).resolve()
    tree = target / "tree"
    if tree.exists():
        shutil.rmtree(tree)
    files = subprocess.check_output(["git", "ls-files", "crates", "Cargo.toml", "Cargo.lock"], cwd=ROOT, text=True).split("\n")
    for file in filter(None, files):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, tree / file)
    for name, changes in LEFT_OUT.items():
        is_off = (
            "{ static OFF: std::sync::LazyLock<bool> = std::sync::LazyLock::new(||"
            f' std::env::var("PANDO_WITHOUT").is_ok_and(|w| w == "{name}")); *OFF }}'
        )
        for file, old, new in changes:
            path = tree / "crates" / file
            text = path.read_text()
            assert text.count(old) == 1, f"{file}: {old}"
            path.write_text(text.replace(old, new.replace("OFF", is_off, 1)))
    subprocess.check_call(["cargo", "build", "--release", "--locked", "--package", "pando"], cwd=tree, env={**os.environ, "CARGO_TARGET_DIR": str(target)})
    print(target / "release/pando")


@contextlib.contextmanager
def serving(program, without, *options):
    env = {"PANDO_WITHOUT": without} if without else {}
    with folder() as place, Server(place / "data", *options, program=[program, "serve"], env=env) as server:
        yield server


def percentile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def insert_at_random(port, seed, until, told):
    """Batches of documents of 1 KB whose _ids come in no order; the end of each batch and its time."""
    import pymongo

    rng = random.Random(seed)
    coll = pymongo.MongoClient("127.0.0.1", port, directConnection=True).storm.docs
    fill, ends = rng.randbytes(1000), []
    while time.monotonic() < until:
        batch = [RawBSONDocument(bson.encode({"_id": rng.randbytes(12), "fill": fill})) for _ in range(200)]
        begun = time.monotonic()
        coll.insert_many(batch, ordered=False)
        ends.append((time.monotonic(), time.monotonic() - begun))
    told.put(ends)


def storm(program, without, seconds=20):
    """Inserts as fast as two clients can make them, while a third reads: longest insert, slowest second, reader, bytes."""
    with serving(program, without, "--cache", "256MB") as server, server.client() as client:
        client.storm.docs.insert_many([{"_id": i, "fill": b"x" * 1000} for i in range(1000)])
        until, told = time.monotonic() + seconds, multiprocessing.Queue()
        writers = [multiprocessing.Process(target=insert_at_random, args=(server.port, seed, until, told)) for seed in (1, 2)]
        for writer in writers:
            writer.start()
        reads, rng = [], random.Random(3)
        while time.monotonic() < until:
            begun = time.perf_counter()
            client.storm.docs.find_one({"_id": rng.randrange(1000)})
            reads.append(time.perf_counter() - begun)
            time.sleep(0.002)
        ends = [end for _ in writers for end in told.get()]
        for writer in writers:
            writer.join()
        slots = [0] * seconds
        for at, _ in ends:
            slots[min(seconds - 1, int(at - (until - seconds)))] += 200
        return {
            "longest insert, ms": max(took for _, took in ends) * 1e3,
            "slowest second, documents": min(slots[2:-1]),
            "documents": len(ends) * 200,
            "a read's p99, ms": percentile(reads, 0.99) * 1e3,
            "bytes written for one inserted": written(server) / (len(ends) * 200 * 1030),
        }


def in_order(program, without):
    """A load in the order of _id, and what it has had written when it has come to rest."""
    with serving(program, without) as server, server.client() as client:
        rng, count = random.Random(1), 500_000
        words = [rng.randbytes(6).hex() for _ in range(1000)]
        for start in range(0, count, 1000):
            fill = " ".join(rng.choices(words, k=70))
            batch = [RawBSONDocument(bson.encode({"_id": i, "fill": fill})) for i in range(start, start + 1000)]
            client.load.docs.insert_many(batch)
        time.sleep(8)
        return {"bytes written for one inserted": written(server) / (count * 930)}


def few_wanted(program, without):
    """Three documents of an index range that holds many."""
    with serving(program, without, "--event-loops", "1") as server, server.client() as client:
        client.load.docs.insert_many([{"_id": i, "a": (i * 7919) % 50_000, "fill": "x" * 500} for i in range(50_000)])
        client.load.docs.create_index("a")
        rng, used, count = random.Random(2), cpu(server), 10_000
        for _ in range(count):
            list(client.load.docs.find({"a": {"$gte": rng.randrange(40_000)}}).limit(3))
        return {"CPU a query, µs": (cpu(server) - used) / count * 1e6}


def beside(program, without, many, others, *options):
    """The times of a client's point reads, and of its long ones, while `others` clients run a pipeline each."""
    with serving(program, without, *options) as server, server.client() as client:
        docs = client.load.docs
        for start in range(0, many, 10_000):
            docs.insert_many([{"_id": i, "a": i % 977, "fill": "x" * 200} for i in range(start, start + 10_000)])
        until = time.monotonic() + 6

        def scan():
            while time.monotonic() < until:
                list(docs.aggregate([{"$match": {"fill": {"$ne": "y"}}}, {"$group": {"_id": "$a", "n": {"$sum": 1}}}, {"$limit": 1}]))

        scans = [threading.Thread(target=scan) for _ in range(others)]
        for thread in scans:
            thread.start()
        reads, long = [], []
        while time.monotonic() < until:
            at = time.perf_counter()
            docs.find_one({"_id": len(reads) % many})
            reads.append(time.perf_counter() - at)
            if len(reads) % 50 == 0:
                at = time.perf_counter()
                docs.count_documents({"fill": {"$ne": "y"}, "_id": {"$lt": 4000}})
                long.append(time.perf_counter() - at)
        for thread in scans:
            thread.join()
        return reads, long


def scans_beside(program, without):
    reads, _ = beside(program, without, 50_000, 2, "--event-loops", "1")
    return {"a read's p99, ms": percentile(reads, 0.99) * 1e3}


def pipelines_beside(program, without):
    _, long = beside(program, without, 100_000, 12)
    return {"a short scan's median, ms": statistics.median(long) * 1e3}


WORK = {
    "write-throttle": (storm, ["longest insert, ms", "slowest second, documents", "documents"]),
    "stall-detection": (storm, ["a read's p99, ms"]),
    "load-level": (storm, ["bytes written for one inserted", "documents"]),
    "insert-order": (in_order, ["bytes written for one inserted"]),
    "fetch-batch": (few_wanted, ["CPU a query, µs"]),
    "worker-threads": (pipelines_beside, ["a short scan's median, ms"]),
    "inline-budget": (scans_beside, ["a read's p99, ms"]),
}
MORE_IS_BETTER = {"slowest second, documents", "documents"}


def run(program, only, rounds):
    print(f"{'mechanism':16} {'figure':32} {'without':>10} {'with':>10}   won")
    for name in only or WORK:
        work, figures = WORK[name]
        pairs = [(work(program, name), work(program, None)) for _ in range(rounds)]
        for figure in figures:
            without, with_it = ([pair[side][figure] for pair in pairs] for side in (0, 1))
            won = sum((b > a) if figure in MORE_IS_BETTER else (b < a) for a, b in zip(without, with_it))
            print(f"{name:16} {figure:32} {statistics.median(without):10.2f} {statistics.median(with_it):10.2f}   {won} of {rounds}", flush=True)


def main(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build").add_argument("target")
    runs = commands.add_parser("run")
    runs.add_argument("program")
    runs.add_argument("--only", type=lambda names: names.split(","))
    runs.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(words)
    if args.command == "build":
        build(args.target)
    else:
        run(pathlib.Path(args.program).resolve(), args.only, args.rounds)

