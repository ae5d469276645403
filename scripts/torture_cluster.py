"""Kills, stops and starts the processes of a sharded cluster under load while ranges move, and looks for acknowledged
writes that are lost, doubled or undone, and for transactions of which a part is there.

    python scripts/torture_cluster.py target/debug/pando [--seeds 5] [--seed N] [--seconds 12] [--shards 2] [--replicas 3] [--auth]
                                      [--writers 4] [--payers 2] [--readers 6] [--adders 2] [--appenders 4] [--calm]
                                      [--batchers 3 --fill 500 --megabytes 64] [--balance] [--movers 1]

Writers go through two routers: inserts, counted `$inc` by shard key and by `_id`, deletes, all retryable. Payers move money
between accounts on several shards in transactions, and readers add all accounts up in snapshots: in transactions, in finds, and
once more at the time that a find has told. Adders have a router add them up, or find them, in one message after the other, so that
there are many sums. Appenders append to lists on several shards and read them, in transactions through
either router; of their history `tests/python/list_append.py` tells whether snapshots can have made it. With
`--calm` that is all: nothing moves and no process is harmed. Batchers insert 50 documents of `--fill` bytes
in one command, in order or not, into a collection of four chunks of `--megabytes` each. With `--balance` the
balancer moves too, between several pairs of shards at once where there are four, and its ranges are of 1 MB.
Otherwise chunks of all collections move and are cut meanwhile without pause, by so many `--movers`, whose
moves go on at once where they have no shard in common, and processes of every kind are killed or stopped for
a while; with `--replicas` mostly primaries, so that elections come while commits are under way. With `--auth`
all of it is logged in. In the end each document is there with at least the acknowledged and at most the sent
updates, once; a document acknowledged as deleted is gone; each sum was whole, and payers were told the truth;
nothing is prepared or undecided; the chunks leave no gap and do not overlap; no shard has a document that is
not its own. A failing seed is printed.
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
parser.add_argument("--auth", action="store_true")
parser.add_argument("--writers", type=int, default=4)
parser.add_argument("--payers", type=int, default=2)
parser.add_argument("--readers", type=int, default=6)
parser.add_argument("--adders", type=int, default=2)
parser.add_argument("--appenders", type=int, default=4)
parser.add_argument("--batchers", type=int, default=0)
parser.add_argument("--fill", type=int, default=500)
parser.add_argument("--megabytes", type=int, default=0)
parser.add_argument("--movers", type=int, default=1)
parser.add_argument("--balance", action="store_true")
parser.add_argument("--calm", action="store_true")
parser.add_argument("--keep", type=pathlib.Path, help="a directory for data and logs that stays")
given = parser.parse_args()
os.environ["PANDO_BIN"] = str(given.binary.resolve())
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))

import bson  # noqa: E402
from auth_client import log_in  # noqa: E402
from harness import BINARY, Server, Wire, until  # noqa: E402
from list_append import faults  # noqa: E402
from pymongo.errors import (  # noqa: E402
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
)
from pymongo import MongoClient, WriteConcern  # noqa: E402
from pymongo.read_concern import ReadConcern  # noqa: E402

WRITERS, PAYERS = given.writers, given.payers
KEYS = 1000
ACCOUNTS, EACH = 40, 100
LISTS = 8
BATCH = 50
ALL = ("t.c", "t.a", "t.l", *(["t.b"] if given.batchers else []))
SNAPSHOT = dict(read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority"))
LOGIN = dict(username="root", password="torture", authSource="admin") if given.auth else {}
# What a driver's user may see while servers go: the driver has retried once.
PASSING = {6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436, 64}


def key_options(path):
    """What all servers share, where clients log in."""
    if not given.auth:
        return ()
    key = path / "key"
    if not key.exists():
        key.write_text("torture" * 8)
        key.chmod(0o600)
    return ("--keyFile", key)


def make_root(client):
    """The first user; all clients log in as this one."""
    if given.auth:
        client.admin.command("createUser", LOGIN["username"], pwd=LOGIN["password"], roles=["root"])


class Group:
    """The members of a set: `members[0]` is asked for addresses."""

    def __init__(self, path, name, role, size):
        options = ("--replSet", name, role, "--cache", "32MB", *key_options(path))
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
        told = ("--configdb", uri, *key_options(path))
        self.routers = [Server(path / f"r{n}", *told, program=[BINARY, "route"]) for n in range(2)]

    def servers(self):
        return [m for g in [self.config, *self.shards] for m in g.members] + self.routers

    def __enter__(self):
        for server in self.servers():
            server.launch()
        for server in self.servers()[: -len(self.routers)]:
            until("it answers", lambda s=server: answers(s), 60)
        for group in [self.config, *self.shards]:
            group.initiate()
        for group in self.shards:
            with group.primary().client() as client:
                make_root(client)
        for router in self.routers:
            until("the router answers", lambda r=router: answers(r), 60)
        with self.routers[0].client(directConnection=False) as client:
            make_root(client)
        with self.routers[0].client(directConnection=False, **LOGIN) as client:
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
            options = dict(directConnection=False, serverSelectionTimeoutMS=3000, socketTimeoutMS=40_000, **LOGIN)
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


class Batcher(Writer):
    """Inserts many documents in one command. `inserted`: those that were acknowledged, by their keys."""

    def step(self, coll, n):
        batch = [
            {"_id": f"b{self.number}.{n}.{i}", "k": self.rng.randrange(KEYS), "v": 0, "fill": "x" * given.fill}
            for i in range(BATCH)
        ]
        coll = coll.database.get_collection("b", write_concern=coll.write_concern)
        if self.attempt("batch", lambda: self.insert(coll, batch, ordered=n % 2 == 0)):
            self.inserted.update((d["_id"], d["k"]) for d in batch)

    def insert(self, coll, batch, ordered):
        try:
            return coll.insert_many(batch, ordered=ordered)
        except BulkWriteError as e:
            passes = {w["code"] for w in e.details["writeErrors"]} <= PASSING
            raise AutoReconnect(str(e)[:300]) if passes else e


class Payer(threading.Thread):
    """Moves money in transactions; `sent` and `sure`: how often its tally was to grow, and was told to have grown. A reader
    adds all accounts up in snapshots; each router has some of its own, which choose the same times."""

    def __init__(self, cluster, number, stop, reads=False):
        super().__init__(daemon=True)
        of = number % len(cluster.routers)
        hosts = ",".join(r.address for r in ([cluster.routers[of]] if reads else cluster.routers))
        self.uri, self.number, self.stop, self.reads = f"mongodb://{hosts}/", number, stop, reads
        self.rng = random.Random(number)
        self.sent = self.sure = self.read = self.unsure = 0
        self.wrong = []

    def run(self):
        while not self.stop.is_set():
            try:
                with MongoClient(self.uri, serverSelectionTimeoutMS=5000, socketTimeoutMS=25_000, **LOGIN) as client:
                    while not self.stop.is_set():
                        self.add_up(client) if self.reads else self.pay(client)
            except PyMongoError:
                self.unsure += 1

    def pay(self, client):
        a, b = self.rng.sample(range(ACCOUNTS), 2)

        def transfer(session):
            for account, n in ((a, -1), (b, 1)):
                client.t.a.update_one({"_id": account, "k": key_of(account)}, {"$inc": {"n": n}}, session=session)
            tally = ACCOUNTS + self.number
            client.t.a.update_one({"_id": tally, "k": key_of(tally)}, {"$inc": {"n": 1}}, session=session)

        self.sent += 1
        with client.start_session() as session:
            session.with_transaction(transfer, **(SNAPSHOT if self.rng.random() < 0.5 else {}))
        self.sure += 1

    def add_up(self, client):
        where = {"_id": {"$lt": ACCOUNTS}}
        if self.rng.random() < 0.5:
            with client.start_session() as session:
                self.see(session.with_transaction(lambda s: list(client.t.a.find(where, session=s)), **SNAPSHOT))
            return
        concern = {"level": "snapshot"}
        first = client.t.command("find", "a", filter=where, batchSize=1000, readConcern=concern)["cursor"]
        self.see(first["firstBatch"])
        concern["atClusterTime"] = first["atClusterTime"]
        try:
            again = client.t.command("find", "a", filter=where, batchSize=1000, readConcern=concern)["cursor"]["firstBatch"]
        except OperationFailure as e:
            # A shard has another primary since, or other ranges.
            if e.code not in (239, 246, 272):
                raise
            return
        if sorted(again, key=lambda d: d["_id"]) != sorted(first["firstBatch"], key=lambda d: d["_id"]):
            self.wrong.append(("another state", first["atClusterTime"]))

    def see(self, found):
        self.read += 1
        total = sum(d["n"] for d in found)
        if (len(found), total) != (ACCOUNTS, ACCOUNTS * EACH):
            self.wrong.append((len(found), total))


class Adder(threading.Thread):
    """Has a router add all accounts up, or finds them, in one snapshot after the other, without waiting for the last."""

    AT_ONCE = 32
    FAILED_AT_ONCE = 0.05

    def __init__(self, cluster, number, stop):
        super().__init__(daemon=True)
        self.router, self.stop = cluster.routers[number % len(cluster.routers)], stop
        self.read, self.wrong = 0, []
        group = {"$group": {"_id": None, "n": {"$sum": "$n"}, "accounts": {"$sum": 1}}}
        where, at = {"_id": {"$lt": ACCOUNTS}}, {"readConcern": {"level": "snapshot"}, "$db": "t"}
        # Those of one router take turns: one has it add up, the next adds up what it finds.
        self.finds = number // len(cluster.routers) % 2 == 1
        self.ask = bson.encode(
            {"find": "a", "filter": where, "projection": {"_id": 0, "n": 1}, **at} if self.finds
            else {"aggregate": "a", "pipeline": [{"$match": where}, group], "cursor": {}, **at}
        )

    def run(self):
        while not self.stop.is_set():
            try:
                with Wire(self.router.port) as wire:
                    if given.auth:
                        log_in(wire, LOGIN["username"], LOGIN["password"], LOGIN["authSource"])
                    while not self.stop.is_set():
                        self.add_up(wire)
            except (OSError, EOFError):
                time.sleep(self.FAILED_AT_ONCE)

    def add_up(self, wire):
        for _ in range(self.AT_ONCE):
            wire.send_body(self.ask)
        for _ in range(self.AT_ONCE):
            _, _, payload = wire.receive()
            reply = bson.decode(payload[5:])
            if reply["ok"]:
                batch = reply["cursor"]["firstBatch"]
                total = {"accounts": len(batch), "n": sum(d["n"] for d in batch)} if self.finds else batch[0]
                self.read += 1
                if (total["accounts"], total["n"]) != (ACCOUNTS, ACCOUNTS * EACH):
                    self.wrong.append(total)
            elif reply["code"] not in PASSING and reply["code"] not in (239, 246, 272):
                self.wrong.append(reply)


class Appender(threading.Thread):
    """Appends to lists and reads them, in transactions. Each transaction goes through a router of its own."""

    def __init__(self, cluster, number, stop):
        super().__init__(daemon=True)
        self.cluster, self.number, self.stop = cluster, number, stop
        self.rng = random.Random(number)
        self.committed, self.doubtful, self.failed, self.last = [], [], 0, 0

    def run(self):
        uris = [f"mongodb://{r.address}/" for r in self.cluster.routers]
        options = dict(serverSelectionTimeoutMS=5000, socketTimeoutMS=25_000, **LOGIN)
        clients = [MongoClient(uri, **options) for uri in uris]
        while not self.stop.is_set():
            self.step(self.rng.choice(clients))
        for client in clients:
            client.close()

    def step(self, client):
        done = []
        with contextlib.suppress(PyMongoError), client.start_session() as session:
            session.start_transaction(**SNAPSHOT)
            try:
                for key in self.rng.choices(range(LISTS), k=self.rng.randint(1, 5)):
                    done.append(self.touch(client.t.l, session, key))
            except PyMongoError:
                self.failed += 1
                session.abort_transaction()
                return
            self.commit(session, done)

    def touch(self, coll, session, key):
        where = {"_id": key, "k": list_key_of(key)}
        if self.rng.random() < 0.5:
            return ("read", key, coll.find_one(where, session=session)["v"])
        self.last += 1
        value = self.last * given.appenders + self.number
        coll.update_one(where, {"$push": {"v": value}}, session=session)
        return ("append", key, value)

    def commit(self, session, done):
        for _ in range(20):
            try:
                session.commit_transaction()
                self.committed.append(done)
                return
            except PyMongoError as e:
                if not e.has_error_label("UnknownTransactionCommitResult"):
                    # Only what the server says of itself is certain.
                    certain = e.has_error_label("TransientTransactionError") and not isinstance(e, AutoReconnect)
                    if certain:
                        self.failed += 1
                        return
                    break
        self.doubtful.append(done)


def check_lists(client, appenders):
    final = {d["_id"]: d["v"] for d in client.t.l.find()}
    committed = [t for a in appenders for t in a.committed]
    wrong = faults(committed, [t for a in appenders for t in a.doubtful], final)
    assert not wrong, f"of {len(committed)} transactions on lists: {wrong[:3]}"


def key_of(account):
    return account * 389 % KEYS


def list_key_of(number):
    return number * KEYS // LISTS


# Of moves: servers that are away, or took a cursor with them; a lock that another holds; a fence that
# would stand for too long; a cut where there is a bound already.
EXPECTED = (6, 24, 43, 72, 262, "AutoReconnect", "NotPrimaryError")


class Mover(threading.Thread):
    """Moves and cuts chunks without pause."""

    def __init__(self, cluster, seed, stop):
        super().__init__(daemon=True)
        self.cluster, self.stop, self.rng = cluster, stop, random.Random(seed)
        self.moved, self.failed = 0, collections.Counter()

    def run(self):
        while not self.stop.is_set():
            router = self.cluster.routers[self.rng.randrange(2)]
            options = dict(directConnection=False, serverSelectionTimeoutMS=2000, socketTimeoutMS=40_000, **LOGIN)
            try:
                with router.client(**options) as client:
                    for _ in range(5):
                        self.step(client.admin)
            except PyMongoError as e:
                code = getattr(e, "code", None) or type(e).__name__
                self.failed[code if code in EXPECTED else f"{code}: {str(e)[:200]}"] += 1

    def step(self, admin):
        key, ns = self.rng.randrange(KEYS), self.rng.choice(("t.c", "t.c", *ALL[1:], *ALL[3:]))
        if self.rng.random() < 0.2:
            admin.command("split", ns, middle={"k": key})
        elif self.rng.random() < 0.2:
            to = f"s{self.rng.randrange(given.shards)}"
            admin.command("moveRange", ns, min={"k": key}, toShard=to)
        else:
            admin.command("moveChunk", ns, find={"k": key}, to=f"s{self.rng.randrange(given.shards)}")
        self.moved += 1


def harm(rng, cluster, until_time):
    harms = collections.Counter()
    while time.monotonic() < until_time:
        time.sleep(rng.uniform(0.1, 1.5))
        server = rng.choice(cluster.servers())
        if given.replicas > 1 and rng.random() < 0.5:
            server = rng.choice([cluster.config, *cluster.shards]).primary() or server
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


def check_batches(client, batchers):
    found = collections.Counter(d["_id"] for d in client.t.b.find({}, {"_id": 1}))
    twice = [d for d, n in found.items() if n > 1]
    assert not twice, f"{len(twice)} documents of batches are there twice: {twice[:5]}"
    for b in batchers:
        assert not b.wrong, f"{len(b.wrong)} answers to batches are wrong: {b.wrong[:3]}"
        lost = [d for d in b.inserted if d not in found]
        assert not lost, f"{len(lost)} acknowledged documents of batches are lost: {lost[:5]}"
    filled = sum(1 for d in found if str(d).startswith("f"))
    assert filled == documents_before(), f"{filled} of {documents_before()} documents are left of those before"


def documents_before():
    return given.megabytes * 4 * (1 << 20) // (given.fill + 60)


def check_accounts(client, cluster, payers):
    def nothing_left():
        for group in cluster.shards:
            with until("the shard has a primary", group.primary, 60).client(**LOGIN) as direct:
                with contextlib.suppress(PyMongoError):
                    if given.auth:
                        # Only members are told which transaction waits for which shard.
                        if direct.admin.command("serverStatus")["transactions"]["currentPrepared"] == 0:
                            continue
                        return False
                    left = direct.admin.command("_pandoPrepared")
                    if not left["prepared"] and not left["decisions"]:
                        continue
                return False
        return True

    until("nothing is prepared or undecided", nothing_left, 60)
    for payer in payers:
        assert not payer.wrong, f"sums in snapshots: {payer.wrong[:5]}"
    found = {d["_id"]: d["n"] for d in client.t.a.find()}
    total = sum(n for account, n in found.items() if account < ACCOUNTS)
    assert (len(found), total) == (ACCOUNTS + PAYERS, ACCOUNTS * EACH), f"{len(found)} accounts have {total}"
    for payer in payers:
        if isinstance(payer, Payer) and not payer.reads:
            # `with_transaction` tries again by itself; what it cannot know was sent once each time.
            counted = found[ACCOUNTS + payer.number]
            assert payer.sure <= counted, f"{payer.sure} payments were acknowledged, and {counted} are there"


def check_chunks(client, cluster, ns):
    uuid = client.config.collections.find_one({"_id": ns})["uuid"]
    chunks = sorted(client.config.chunks.find({"uuid": uuid}), key=lambda c: place(c["min"]["k"]))
    assert place(chunks[0]["min"]["k"]) == -1 and place(chunks[-1]["max"]["k"]) == KEYS * 10, "the table has no ends"
    for a, b in zip(chunks, chunks[1:]):
        assert a["max"] == b["min"], f"chunks do not meet: {a} {b}"
    for group in cluster.shards:
        primary = until("the shard has a primary", group.primary, 60)
        with primary.client(**LOGIN) as direct:
            for d in direct.t[ns.split(".")[1]].find({}, {"k": 1}):
                owner = next(c["shard"] for c in chunks if place(c["min"]["k"]) <= d["k"] < place(c["max"]["k"]))
                assert owner == group.name, f"{d} is on {group.name} and belongs to {owner}"


def place(bound):
    return bound if isinstance(bound, int) else -1 if "MinKey" in type(bound).__name__ else KEYS * 10


def settle(client):
    """Ends pending moves: a move of a chunk to its own shard does nothing else."""
    def moved():
        with contextlib.suppress(PyMongoError):
            for ns in ALL:
                uuid = client.config.collections.find_one({"_id": ns})["uuid"]
                chunk = client.config.chunks.find_one({"uuid": uuid})
                client.admin.command("moveRange", ns, min=chunk["min"], max=chunk["max"], toShard=chunk["shard"])
            return client.config.migrations.count_documents({}) == 0
        return False

    until("nothing is left under way", moved, 60)


def moved(client, ns, key, to):
    """On a machine that is busy a fence may stand for too long."""
    with contextlib.suppress(OperationFailure):
        return client.admin.command("moveChunk", ns, find={"k": key}, to=to)["ok"]


def is_sharded(client, ns):
    """On a machine that is busy there are elections before anybody is killed."""
    with contextlib.suppress(PyMongoError):
        return client.admin.command("shardCollection", ns, key={"k": 1})["ok"]


def prepare(client):
    for ns in ALL:
        until("it is sharded", lambda ns=ns: is_sharded(client, ns), 60)
        for n, key in enumerate(range(200, KEYS, 200)):
            client.admin.command("split", ns, middle={"k": key})
            if ns != "t.c":
                to = f"s{n % given.shards}"
                until("it has moved", lambda key=key, to=to: moved(client, ns, key, to), 60)
    accounts = [{"_id": n, "k": key_of(n), "n": EACH if n < ACCOUNTS else 0} for n in range(ACCOUNTS + PAYERS)]
    client.t.a.insert_many(accounts)
    client.t.l.insert_many([{"_id": n, "k": list_key_of(n), "v": []} for n in range(LISTS)])
    if given.batchers:
        many = documents_before()
        for begin in range(0, many, 1000):
            part = range(begin, min(begin + 1000, many))
            client.t.b.insert_many([{"_id": f"f{n}", "k": n % KEYS, "v": 0, "fill": "x" * given.fill} for n in part], ordered=False)
    if given.balance:
        client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 1}}, upsert=True)
        client.admin.command("balancerStart")


def run(seed, path):
    rng = random.Random(seed)
    with Cluster(path) as cluster:
        with cluster.routers[0].client(directConnection=False, **LOGIN) as client:
            prepare(client)
        stop = threading.Event()
        # A seed's first mover does as it did before there were several.
        movers = [Mover(cluster, seed + 1_000_000 * n, stop) for n in range(given.movers)]
        writers = [Writer(cluster, n, stop) for n in range(WRITERS)]
        payers = [Payer(cluster, n, stop) for n in range(PAYERS)]
        payers += [Payer(cluster, n, stop, reads=True) for n in range(given.readers)]
        payers_and_adders = [*payers, *(Adder(cluster, n, stop) for n in range(given.adders))]
        appenders = [Appender(cluster, n, stop) for n in range(given.appenders)]
        batchers = [Batcher(cluster, n, stop) for n in range(given.batchers)]
        threads = [*([] if given.calm else movers), *writers, *batchers, *payers_and_adders, *appenders]
        for thread in threads:
            thread.start()
        if given.calm:
            harms = time.sleep(given.seconds) or {}
        else:
            harms = harm(rng, cluster, time.monotonic() + given.seconds)
        stop.set()
        for thread in threads:
            thread.join(150)
            assert not thread.is_alive(), f"{thread} hangs"
        for group in [cluster.config, *cluster.shards]:
            until(f"{group.name} has a primary", group.primary, 60)
        with cluster.routers[0].client(directConnection=False, **LOGIN) as client:
            if given.balance:
                client.admin.command("balancerStop")
            settle(client)
            check_documents(client, writers)
            if batchers:
                check_batches(client, batchers)
            check_accounts(client, cluster, payers_and_adders)
            check_lists(client, appenders)
            for ns in ALL:
                check_chunks(client, cluster, ns)
        done, unsure = sum(w.done for w in writers), sum(w.unsure for w in writers)
        slowest = max((w.slowest for w in writers), default=0)
        batches = f"{sum(b.done for b in batchers)} batches, " if batchers else ""
        return (
            f"{batches}{done} writes, {unsure} in doubt, slowest {slowest:.1f} s, {sum(p.sure for p in payers)} payments, "
            f"{sum(p.read for p in payers_and_adders)} sums, {sum(len(a.committed) for a in appenders)} transactions on lists "
            f"(in doubt: {sum(len(a.doubtful) for a in appenders)}, failed: {sum(a.failed for a in appenders)}), "
            f"{sum(m.moved for m in movers)} moves and cuts (failed: {dict(sum((m.failed for m in movers), collections.Counter()))}), "
            f"{dict(harms)}"
        )


for seed in range(given.seed, given.seed + given.seeds):
    with tempfile.TemporaryDirectory() if not given.keep else contextlib.nullcontext(given.keep / str(seed)) as where:
        pathlib.Path(where).mkdir(parents=True, exist_ok=True)
        try:
            print(f"seed {seed}: {run(seed, pathlib.Path(where))}", flush=True)
        except BaseException:
            print(f"seed {seed} fails", flush=True)
            raise
