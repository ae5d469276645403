"""Index builds: three plain indexes, made one by one and by one command, and a text index.

    scripts/measure.py index_builds target/release/pando [DOCUMENTS, 500000] [ROUNDS, 3]

Documents have about 380 bytes. The text index is of a fifth as many texts of twelve words. Shown are the medians: seconds, and seconds of the
server's CPU.
"""

import random
import time

from .common import cpu, numbers, running

PLAIN = ("a", "b", "c")


def documents(ids, words, rng):
    for i in ids:
        yield {"_id": i, "a": i * 7919 % 100_003, "b": f"name {i % 997}", "c": [i % 31, i % 7], "t": " ".join(rng.choices(words, k=12)), "fill": "x" * 200}


def fill(coll, count):
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(20_000)]
    for at in range(0, count, 5000):
        coll.insert_many(list(documents(range(at, min(count, at + 5000)), words, rng)))


def one_by_one(coll):
    for field in PLAIN:
        coll.create_index(field)


def by_one_command(coll):
    coll.database.command("createIndexes", coll.name, indexes=[{"key": {field: 1}, "name": field} for field in PLAIN])


def of_texts(coll):
    coll.database.few.create_index([("t", "text")])


def main(given):
    count, rounds = numbers(given, 500_000, 3)
    kinds = {"three, one by one": one_by_one, "three by one command": by_one_command, "a text index": of_texts}
    found = {kind: [] for kind in kinds}
    with running("--cache", "1g") as server, server.client() as client:
        coll = client.measured.docs
        fill(coll, count)
        fill(coll.database.few, count // 5)
        for _ in range(rounds):
            for kind, build in kinds.items():
                # The engine merges what the last round has left.
                time.sleep(2)
                used, began = cpu(server), time.perf_counter()
                build(coll)
                found[kind].append((time.perf_counter() - began, cpu(server) - used))
                coll.drop_indexes()
                coll.database.few.drop_indexes()
    for kind, times in found.items():
        took, used = sorted(times)[rounds // 2]
        print(f"{kind}: {took:.2f} s, {used:.2f} s of CPU")
