"""Kills, stops and starts the processes of a sharded cluster under load while ranges move, and looks for acknowledged
writes that are lost, doubled or undone.

    python scripts/torture_cluster.py target/debug/pando [--seeds 5] [--seed N] [--seconds 12] [--shards 2] [--replicas 1]

Writers go through two routers: inserts, counted `$inc` by shard key and by `_id`, deletes, all retryable. Meanwhile chunks
move and are cut without pause, and processes of every kind are killed or stopped for a while. In the end each document is
there with at least what was acknowledged and at most what was sent, once; what was acknowledged as deleted is gone; the
chunks leave no gap and do not overlap; no shard has a document that is not its own. A failing seed is printed.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("binary", type=pathlib.Path)
parser.add_argument("--seeds", type=int, default=5)
parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
parser.add_argument("--seconds", type=float, default=12)
parser.add_argument("--shards", type=int, default=2)
parser.add_argument("--replicas", type=int, default=1)
parser.add_argument("--keep", type=pathlib.Path, help="a directory for data and logs that stays")
given = parser.parse_args()
os.environ["PANDO_BIN"] = str(given.binary.resolve())
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))

from harness import BINARY, Server, until  # noqa: E402
from pymongo.errors import (  # noqa: E402
    AutoReconnect,
    ConfigurationError,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
)
from pymongo import WriteConcern  # noqa: E402

WRITERS = 4
KEYS = 1000
# What a driver's user may see while servers go: the driver has retried once.
PASSING = {6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436, 64}


class Group:
    """The members of a set: `members[0]` is asked for addresses."""

    def __init__(self, path, name, role, size):
        options = ("--replSet", name, role, "--cache", "32MB")
        self.name = name
        self.members = [Server(path / f"{name}-{n}", *options) for n in range(size)]

    def initiate(self):
        config = {"_id": self.name, "members": [{"_id": n, "host": m.address} for n, m in enumerate(self.members)]}
        with self.members[0].client() as client:
            client.admin.command("replSetInitiate", config)
        until(f"{self.name} has a primary", self.primary, 60)

    def primary(self):
        for member in self.members:
            with contextlib.suppress(PyMongoError, OSError):
                if member.running():
                    with member.client(serverSelectionTimeoutMS=1000, socketTimeoutMS=2000) as client:
                        if client.admin.command("hello")["isWritablePrimary"]:
                            return member
        return None

    def address(self):
        return f"{self.name}/" + ",".join(m.address for m in self.members)


class Cluster:
    def __init__(self, path):
        self.config = Group(path, "csrs", "--configsvr", given.replicas)
        self.shards = [Group(path, f"s{n}", "--shardsvr", given.replicas) for n in range(given.shards)]
        uri = self.config.address()
        self.routers = [Server(path / f"r{n}", "--configdb", uri, program=[BINARY, "route"]) for n in range(2)]

    def servers(self):
        return [m for g in [self.config, *self.shards] for m in g.members] + self.routers

    def __enter__(self):
        for server in self.servers():
            server.launch()
        for server in self.servers()[: -len(self.routers)]:
            until("it answers", lambda s=server: answers(s), 60)
        for group in [self.config, *self.shards]:
            group.initiate()
        for router in self.routers:
            until("the router answers", lambda r=router: answers(r), 60)
        with self.routers[0].client(directConnection=False) as client:
            for group in self.shards:
                client.admin.command("addShard", group.address())
            client.admin.command("balancerStop")
        return self

    def __exit__(self, *_):
        for server in self.servers():
            if server.running():
                server.process.send_signal(signal.SIGCONT)
            server.kill()


def answers(server):
    try:
        with server.wire(timeout_s=2) as wire:
            return wire.command({"hello": 1, "$db": "admin"})["ok"] == 1
    except (OSError, EOFError):
        return False


class Writer(threading.Thread):
    """`sent` and `sure`: how often a document's counter was to grow, and was acknowledged to."""

    def __init__(self, cluster, number, stop):
        super().__init__(daemon=True)
        self.cluster, self.number, self.stop = cluster, number, stop
        self.rng = random.Random(number)
        self.inserted, self.maybe, self.gone, self.maybe_gone = {}, set(), set(), set()
        self.sent, self.sure = collections.Counter(), collections.Counter()
        self.wrong, self.unsure, self.done, self.slowest = [], 0, 0, 0.0

    def run(self):
        n = 0
        while not self.stop.is_set():
            router = self.cluster.routers[self.rng.randrange(2)]
            options = dict(directConnection=False, serverSelectionTimeoutMS=3000, socketTimeoutMS=40_000)
            with contextlib.suppress(AutoReconnect), router.client(**options) as client:
                coll = client.t.get_collection("c", write_concern=WriteConcern("majority"))
                for _ in range(self.rng.randrange(20, 200)):
                    if self.stop.is_set():
                        return
                    n += 1
                    self.step(coll, n)

    def attempt(self, what, run):
        began = time.monotonic()
        try:
            result = run()
            self.done += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            return result
        except (AutoReconnect, ConfigurationError) as e:
            self.unsure += 1
            if not self.stop.is_set():
                time.sleep(0.05)
            if isinstance(e, ConfigurationError):
                self.wrong.append(f"{what}: {e}")
            return None
        except OperationFailure as e:
            self.unsure += 1
            if isinstance(e, DuplicateKeyError) or e.code not in PASSING:
                self.wrong.append(f"{what}: {e.code} {str(e)[:300]}")
            return None

    def step(self, coll, n):
        name, key = f"{self.number}.{n}", self.rng.randrange(KEYS)
        if self.attempt("insert", lambda: coll.insert_one({"_id": name, "k": key, "v": 0})):
            self.inserted[name] = key
        else:
            self.maybe.add(name)
        if not self.inserted:
            return
        old = self.rng.choice(list(self.inserted)[-300:])
        where = {"_id": old} if n % 4 == 0 else {"_id": old, "k": self.inserted[old]}
        if old not in self.gone | self.maybe_gone:
            self.sent[old] += 1
            done = self.attempt("update", lambda: coll.update_one(where, {"$inc": {"v": 1}}))
            if done:
                if done.modified_count != 1:
                    self.wrong.append(f"update of {old}: {done.raw_result}")
                self.sure[old] += 1
        if n % 7 == 0:
            last = self.rng.choice(list(self.inserted))
            if last not in self.gone | self.maybe_gone:
                self.maybe_gone.add(last)
                done = self.attempt("delete", lambda: coll.delete_one({"_id": last, "k": self.inserted[last]}))
                if done:
                    self.maybe_gone.discard(last)
                    self.gone.add(last)
                    if done.deleted_count != 1:
                        self.wrong.append(f"delete of {last}: {done.raw_result}")


class Mover(threading.Thread):
    """Moves and cuts chunks without pause."""

    def __init__(self, cluster, seed, stop):
        super().__init__(daemon=True)
        self.cluster, self.stop, self.rng = cluster, stop, random.Random(seed)
        self.moved, self.failed = 0, collections.Counter()

    def run(self):
        while not self.stop.is_set():
            router = self.cluster.routers[self.rng.randrange(2)]
            options = dict(directConnection=False, serverSelectionTimeoutMS=2000, socketTimeoutMS=40_000)
            try:
                with router.client(**options) as client:
                    for _ in range(5):
                        self.step(client.admin)
            except PyMongoError as e:
                self.failed[getattr(e, "code", None) or type(e).__name__] += 1

    def step(self, admin):
        key = self.rng.randrange(KEYS)
        if self.rng.random() < 0.2:
            admin.command("split", "t.c", middle={"k": key})
        elif self.rng.random() < 0.2:
            to = f"s{self.rng.randrange(given.shards)}"
            admin.command("moveRange", "t.c", min={"k": key}, toShard=to)
        else:
            admin.command("moveChunk", "t.c", find={"k": key}, to=f"s{self.rng.randrange(given.shards)}")
        self.moved += 1


def harm(rng, cluster, until_time):
    harms = collections.Counter()
    while time.monotonic() < until_time:
        time.sleep(rng.uniform(0.1, 1.5))
        server = rng.choice(cluster.servers())
        kind = "router" if server in cluster.routers else "config" if server in cluster.config.members else "shard"
        if rng.random() < 0.6:
            server.kill()
            time.sleep(rng.choice((0, rng.uniform(0, 1.5))))
            server.launch()
            harms[f"{kind} killed"] += 1
        else:
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(rng.choice((rng.uniform(0.05, 0.5), rng.uniform(0.5, 4))))
            server.process.send_signal(signal.SIGCONT)
            harms[f"{kind} stopped"] += 1
    return harms


def check_documents(client, writers):
    found = collections.Counter()
    values = {}
    for d in client.t.c.find():
        found[d["_id"]] += 1
        values[d["_id"]] = d["v"]
    twice = [d for d, n in found.items() if n > 1]
    assert not twice, f"{len(twice)} documents are there twice: {twice[:5]}"
    for w in writers:
        assert not w.wrong, f"{len(w.wrong)} answers are wrong: {w.wrong[:3]}"
        lost = [d for d in w.inserted if d not in values and d not in w.gone | w.maybe_gone]
        assert not lost, f"{len(lost)} acknowledged inserts are lost: {lost[:5]}"
        back = [d for d in w.gone if d in values]
        assert not back, f"{len(back)} acknowledged deletes are undone: {back[:5]}"
        for d in w.inserted:
            if d in values and not w.sure[d] <= values[d] <= w.sent[d]:
                raise AssertionError(f"{d} has {values[d]}: {w.sure[d]} acknowledged, {w.sent[d]} sent")


def check_chunks(client, cluster):
    uuid = client.config.collections.find_one({"_id": "t.c"})["uuid"]
    chunks = sorted(client.config.chunks.find({"uuid": uuid}), key=lambda c: place(c["min"]["k"]))
    assert place(chunks[0]["min"]["k"]) == -1 and place(chunks[-1]["max"]["k"]) == KEYS * 10, "the table has no ends"
    for a, b in zip(chunks, chunks[1:]):
        assert a["max"] == b["min"], f"chunks do not meet: {a} {b}"
    for group in cluster.shards:
        primary = until("the shard has a primary", group.primary, 60)
        with primary.client() as direct:
            for d in direct.t.c.find({}, {"k": 1}):
                owner = next(c["shard"] for c in chunks if place(c["min"]["k"]) <= d["k"] < place(c["max"]["k"]))
                assert owner == group.name, f"{d} is on {group.name} and belongs to {owner}"


def place(bound):
    return bound if isinstance(bound, int) else -1 if "MinKey" in type(bound).__name__ else KEYS * 10


def settle(client):
    """Ends what is left under way: a move of each chunk's own place does nothing else."""
    def moved():
        with contextlib.suppress(PyMongoError):
            for chunk in [*client.config.chunks.find()][:1]:
                client.admin.command("moveRange", "t.c", min=chunk["min"], max=chunk["max"], toShard=chunk["shard"])
            return client.config.migrations.count_documents({}) == 0
        return False

    until("nothing is left under way", moved, 60)


def run(seed, path):
    rng = random.Random(seed)
    with Cluster(path) as cluster:
        with cluster.routers[0].client(directConnection=False) as client:
            client.admin.command("shardCollection", "t.c", key={"k": 1})
            for key in range(200, KEYS, 200):
                client.admin.command("split", "t.c", middle={"k": key})
        stop = threading.Event()
        mover = Mover(cluster, seed, stop)
        writers = [Writer(cluster, n, stop) for n in range(WRITERS)]
        for thread in [mover, *writers]:
            thread.start()
        harms = harm(rng, cluster, time.monotonic() + given.seconds)
        stop.set()
        for thread in [mover, *writers]:
            thread.join(90)
            assert not thread.is_alive(), f"{thread} hangs"
        for group in [cluster.config, *cluster.shards]:
            until(f"{group.name} has a primary", group.primary, 60)
        with cluster.routers[0].client(directConnection=False) as client:
            settle(client)
            check_documents(client, writers)
            check_chunks(client, cluster)
        done, unsure = sum(w.done for w in writers), sum(w.unsure for w in writers)
        slowest = max(w.slowest for w in writers)
        return (
            f"{done} writes, {unsure} in doubt, slowest {slowest:.1f} s, {mover.moved} moves and cuts "
            f"(failed: {dict(mover.failed)}), {dict(harms)}"
        )


for seed in range(given.seed, given.seed + given.seeds):
    with tempfile.TemporaryDirectory() if not given.keep else contextlib.nullcontext(given.keep / str(seed)) as where:
        pathlib.Path(where).mkdir(parents=True, exist_ok=True)
        try:
            print(f"seed {seed}: {run(seed, pathlib.Path(where))}", flush=True)
        except BaseException:
            print(f"seed {seed} fails", flush=True)
            raise
