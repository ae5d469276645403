"""What writes cost for knowing where nothing lives: the server's CPU and the bytes that it writes, with and without dead ranges.

    scripts/measure.py dead_ranges target/release/pando [rounds, 5] [--only inserts,updates] [--scale 1] [--instructions]

inserts   100,000 documents of 200 bytes in batches of 100, two indexes.
updates   60,000 updates of an indexed field of 20,000 documents, in random order.
beyond    150,000 documents of 1 KB in random order of `_id`, two indexes, a cache of 32 MB: load beyond memory.
queue     20,000 takes and new jobs, 1,000 waiting: writes while dead ranges are known.

Each runs on an empty directory until the server is at rest again, in turn with (`dead_ranges=on`) and without (`off`). CPU is that of
the process, merging included; bytes are `write_bytes` of /proc/PID/io: log, flushes and merges. Ratios are medians over the rounds of
one pair each, with their quartiles. `--instructions`: in their place, once and under valgrind, the share of all instructions of the
server's life that the functions of dead ranges have, which says more where other processes disturb.
"""

import argparse
import random
import re
import statistics
import time

from .common import counted, running, written


def inserts(db, scale):
    c = db.c
    for key in ("a", "b"):
        c.create_index(key)
    rng = random.Random(1)
    for at in range(0, int(100_000 * scale), 100):
        c.insert_many([{"_id": n, "a": rng.random(), "b": n % 1000, "text": "x" * 150} for n in range(at, at + 100)])


def updates(db, scale):
    c, many = db.c, int(20_000 * scale)
    for key in ("a", "b"):
        c.create_index(key)
    for at in range(0, many, 1000):
        c.insert_many([{"_id": n, "a": 0, "b": n, "text": "x" * 150} for n in range(at, at + 1000)])
    rng = random.Random(1)
    for _ in range(3 * many // 100):
        changes = [{"q": {"_id": rng.randrange(many)}, "u": {"$set": {"a": rng.random()}}} for _ in range(100)]
        db.command("update", "c", updates=changes)


def beyond(db, scale):
    c = db.c
    for key in ("a", "b"):
        c.create_index(key)
    rng = random.Random(1)
    for at in range(0, int(150_000 * scale), 500):
        c.insert_many([{"_id": rng.getrandbits(60), "a": rng.random(), "b": n, "text": rng.randbytes(450).hex()} for n in range(at, at + 500)])


def queue(db, scale):
    c = db.c
    c.create_index([("st", 1), ("at", 1)])
    c.insert_many([{"st": "ready", "at": n} for n in range(1000)])
    for n in range(1000, 1000 + int(20_000 * scale)):
        assert c.find_one_and_delete({"st": "ready"}, sort=[("at", 1)])
        c.insert_one({"st": "ready", "at": n})


WORK = {"inserts": inserts, "updates": updates, "beyond": beyond, "queue": queue}


def at_rest(client, limit_s=60):
    """Waits until everything is in files and nothing is merged."""
    client.admin.command("fsync")
    begun, quiet = time.monotonic(), 0
    while quiet < 8 and time.monotonic() - begun < limit_s:
        engine = client.admin.command("serverStatus")["pandodb"]["engine"]
        busy = engine["runningFlushes"] + engine["runningCompactions"] + engine["pendingCompactionBytes"]
        quiet = 0 if busy else quiet + 1
        time.sleep(0.5)


def spent(name, mode, scale):
    cache = ["--cache", "32MB"] if name == "beyond" else []
    with running("--engine-options", f"dead_ranges={mode}", *cache) as server, server.client() as client:
        WORK[name](client.ab, scale)
        at_rest(client)
        # The clock of a process's CPU time, as clock_getcpuclockid(3) gives it.
        return time.clock_gettime(~server.process.pid << 3 | 2), written(server) / 1e6


# What there would not be without dead ranges; the engine's name for its collector of markers is CompactOnDelete.
OWN = re.compile("dead_ranges|dead_search|DeadRanges|empty_stretches|Engine::write$|each_put|CompactOnDelet")


def instructions(name, scale):
    cache = ["--cache", "8MB"] if name == "beyond" else []
    with counted(*cache) as server:
        with server.client(serverSelectionTimeoutMS=120_000) as client:
            WORK[name](client.ab, scale)
            at_rest(client, 300)
        costs = server.by_function()
    whole, own = sum(costs.values()), {f: n for f, n in costs.items() if OWN.search(f)}
    print(f"{name}: {100 * sum(own.values()) / whole:.3f}% of {whole / 1e6:,.0f} million instructions")
    for function, cost in sorted(own.items(), key=lambda e: -e[1])[:8]:
        print(f"    {100 * cost / whole:.3f}%  {function[:120]}", flush=True)


def main(words):
    given = argparse.ArgumentParser()
    given.add_argument("pando")
    given.add_argument("rounds", type=int, nargs="?", default=5)
    given.add_argument("--only", default=",".join(WORK))
    given.add_argument("--scale", type=float, default=1)
    given.add_argument("--instructions", action="store_true")
    given = given.parse_args(words)
    for name in given.only.split(","):
        if given.instructions:
            instructions(name, given.scale)
            continue
        pairs = []
        for number in range(given.rounds):
            order = ("on", "off") if number % 2 else ("off", "on")
            pair = {mode: spent(name, mode, given.scale) for mode in order}
            pairs.append(pair)
            print(name, ", ".join(f"{mode} {cpu:.2f} s {mb:.1f} MB" for mode, (cpu, mb) in sorted(pair.items())), flush=True)
        for what, at in (("CPU", 0), ("bytes written", 1)):
            ratios = sorted(p["on"][at] / p["off"][at] for p in pairs)
            low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
            print(f"{name}: {what} with against without {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})", flush=True)

