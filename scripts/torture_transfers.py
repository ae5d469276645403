"""Money that moves between accounts on several shards, in transactions, while processes of every kind are killed.

    python scripts/torture_transfers.py target/debug/pando [seeds, 3] [seconds a seed, 20] [first seed, random]

A cluster of a configuration set, three shards and two routers. Movers take from one account and give to another through
either router, with retries as drivers make them, and write down in a third collection what they have moved. A reader adds
up all accounts in transactions with read concern snapshot: the sum is the same each time. In the end nothing is locked, the
sum is whole, and the accounts are what the book says. A failing seed is printed.
"""

import os
import pathlib
import random
import sys
import tempfile
import threading
import time

binary = pathlib.Path(sys.argv[1]).resolve()
seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 20
first = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1_000_000)
os.environ["PANDO_BIN"] = str(binary)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))

from harness import until  # noqa: E402
from pymongo import MongoClient, WriteConcern  # noqa: E402
from pymongo.errors import PyMongoError  # noqa: E402
from pymongo.read_concern import ReadConcern  # noqa: E402
from sharded_cluster import at_rest  # noqa: E402

SHARDS, MOVERS, ACCOUNTS, EACH = 3, 4, 60, 100
SNAPSHOT = dict(read_concern=ReadConcern("snapshot"), write_concern=WriteConcern("majority"))


def prepare(client):
    admin = client.admin
    admin.command("enableSharding", "bank", primaryShard="s0")
    for name in ("accounts", "book"):
        admin.command("shardCollection", f"bank.{name}", key={"_id": 1})
        for n in range(1, SHARDS):
            middle = {"_id": n * ACCOUNTS // SHARDS}
            admin.command("split", f"bank.{name}", middle=middle)
            admin.command("moveChunk", f"bank.{name}", find=middle, to=f"s{n}")
    client.bank.accounts.insert_many([{"_id": n, "n": EACH} for n in range(ACCOUNTS)])
    client.bank.book.insert_many([{"_id": n, "n": 0} for n in range(ACCOUNTS)])


def page_of(account):
    """Where the book has an account: for most on another shard."""
    return ACCOUNTS - 1 - account


class Bank:
    def __init__(self, cluster, rng):
        hosts = ",".join(r.address for r in cluster.routers)
        self.uri, self.stop, self.lock = f"mongodb://{hosts}/", threading.Event(), threading.Lock()
        self.moved = self.read = self.refused = 0
        self.wrong = []
        self.threads = [threading.Thread(target=self.work, args=(self.move, rng.random()), daemon=True) for _ in range(MOVERS)]
        self.threads.append(threading.Thread(target=self.work, args=(self.add_up, rng.random()), daemon=True))
        for thread in self.threads:
            thread.start()

    def work(self, one, seed):
        rng = random.Random(seed)
        while not self.stop.is_set():
            try:
                with MongoClient(self.uri, serverSelectionTimeoutMS=5000, socketTimeoutMS=25000) as client:
                    while not self.stop.is_set():
                        one(client, rng)
            except PyMongoError:
                with self.lock:
                    self.refused += 1

    def move(self, client, rng):
        a, b = rng.sample(range(ACCOUNTS), 2)

        def transfer(session):
            bank = client.bank
            for account, n in ((a, -1), (b, 1)):
                bank.accounts.update_one({"_id": account}, {"$inc": {"n": n}}, session=session)
                bank.book.update_one({"_id": page_of(account)}, {"$inc": {"n": n}}, session=session)

        with client.start_session() as session:
            session.with_transaction(transfer, **(SNAPSHOT if rng.random() < 0.5 else {}))
        with self.lock:
            self.moved += 1

    def add_up(self, client, _):
        with client.start_session() as session:
            accounts = session.with_transaction(lambda s: list(client.bank.accounts.find(session=s)), **SNAPSHOT)
        total = sum(d["n"] for d in accounts)
        with self.lock:
            self.read += 1
            if (len(accounts), total) != (ACCOUNTS, ACCOUNTS * EACH):
                self.wrong.append(total)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive(), "a client hangs"


def harm(rng, cluster, until_time):
    kinds = [*cluster.shards.values()] * 2 + cluster.routers * 3 + [cluster.config]
    while time.monotonic() < until_time:
        time.sleep(rng.uniform(0.5, 2.5))
        server = rng.choice(kinds)
        server.kill()
        time.sleep(rng.uniform(0, 1))
        server.start()


def check(cluster, bank):
    assert not bank.wrong, f"sums in snapshots: {bank.wrong[:5]} and not {ACCOUNTS * EACH}"

    def nothing_left():
        for shard in cluster.shards.values():
            with shard.client() as direct:
                left = direct.admin.command("_pandoPrepared")
                if left["prepared"] or left["decisions"]:
                    return False
        return True

    until("nothing is left on any shard", nothing_left, 60)
    with cluster.client() as client:
        accounts = {d["_id"]: d["n"] for d in client.bank.accounts.find()}
        book = {page_of(d["_id"]): EACH + d["n"] for d in client.bank.book.find()}
        assert sum(accounts.values()) == ACCOUNTS * EACH, f"the sum is {sum(accounts.values())}"
        assert accounts == book, "accounts and book differ"
        changed = client.bank.command("update", "accounts", updates=[{"q": {}, "u": {"$set": {"end": 1}}, "multi": True}], maxTimeMS=10000)
        assert changed["n"] == ACCOUNTS


for seed in range(first, first + seeds):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as path, at_rest(pathlib.Path(path), shards=SHARDS, routers=2) as cluster:
        with cluster.client() as client:
            prepare(client)
        bank = Bank(cluster, rng)
        try:
            harm(rng, cluster, time.monotonic() + seconds)
            bank.end()
            check(cluster, bank)
        except BaseException:
            print(f"seed {seed} fails", flush=True)
            raise
    print(f"seed {seed}: {bank.moved} transfers, {bank.read} sums in snapshots, {bank.refused} refused; whole", flush=True)
