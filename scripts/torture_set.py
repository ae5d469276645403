"""Kills, stops and starts the members of a set of three under load, and looks for acknowledged writes that are lost.

    python scripts/torture_set.py target/debug/pando [seeds, 5] [seconds a seed, 20] [first seed, random]

Writers insert with majority, delete most of it again, and add to counters in transactions. In the end every acknowledged insert
must be there that was not deleted, and none whose deletion was acknowledged, on every member and in both
orders; the counter must have at least the acknowledged value, and all members must hash alike. A failing seed
is printed.
"""

import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

binary = pathlib.Path(sys.argv[1]).resolve()
seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 20
first = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1_000_000)
os.environ["PANDO_BIN"] = str(binary)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))

from harness import until  # noqa: E402
from pymongo import MongoClient, WriteConcern  # noqa: E402
from pymongo.errors import PyMongoError  # noqa: E402
from replica_set import ReplicaSet  # noqa: E402

WRITERS = 4


class Load:
    def __init__(self, uri):
        self.uri, self.stop = uri, threading.Event()
        self.inserted, self.deleted, self.doubtful, self.added, self.refused = [], set(), set(), 0, 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.write, args=(n,), daemon=True) for n in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def write(self, writer):
        options = dict(serverSelectionTimeoutMS=8000, socketTimeoutMS=8000)
        with MongoClient(self.uri, **options) as client:
            coll = client.t.get_collection("c", write_concern=WriteConcern("majority"))
            n, mine = 0, []
            while not self.stop.is_set():
                n += 1
                key = f"{writer}-{n:07}"
                try:
                    if n % 40 == 7:
                        self.delete(coll, mine)
                    elif n % 5:
                        coll.insert_one({"_id": key})
                        mine.append(key)
                        with self.lock:
                            self.inserted.append(key)
                    else:
                        self.transact(client, key)
                        with self.lock:
                            self.added += 1
                except PyMongoError:
                    with self.lock:
                        self.refused += 1

    def delete(self, coll, mine):
        """All but the newest few, as a queue does."""
        gone, mine[:-3] = mine[:-3], []
        if not gone:
            return
        try:
            coll.delete_many({"_id": {"$gte": gone[0], "$lte": gone[-1]}})
            with self.lock:
                self.deleted.update(gone)
        except PyMongoError:
            with self.lock:
                self.doubtful.update(gone)
            raise

    def transact(self, client, key):
        def work(session):
            client.t.sum.update_one({"_id": key[0]}, {"$inc": {"n": 1}}, upsert=True, session=session)
            client.t.log.insert_one({"_id": key}, session=session)

        with client.start_session() as session:
            session.with_transaction(work)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)


def harm(rng, members, until_time):
    while time.monotonic() < until_time:
        time.sleep(rng.uniform(0.2, 2.5))
        member = rng.choice(members.members)
        if not member.running():
            member.start()
        elif rng.random() < 0.6:
            member.kill()
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 2))
            member.start()
        else:
            member.process.send_signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.2, 3))
            member.process.send_signal(signal.SIGCONT)


def check(members, load):
    with members.client() as client:
        there = {d["_id"] for d in client.t.c.find({}, {"_id": 1})}
        lost = set(load.inserted) - load.deleted - load.doubtful - there
        assert not lost, f"{len(lost)} acknowledged inserts are lost: {sorted(lost)[:5]}"
        back = load.deleted & there
        assert not back, f"{len(back)} acknowledged deletions are undone: {sorted(back)[:5]}"
        # Both in one snapshot: a commit whose client gave up may still be on its way.
        with client.start_session(snapshot=True) as session:
            sums = {d["_id"]: d["n"] for d in client.t.sum.find(session=session)}
            logged = [d["_id"].split("-")[0] for d in client.t.log.find(session=session)]
        counted = {writer: logged.count(writer) for writer in sums}
        assert sums == counted, f"transactions half there: {sums} and {counted}"
        total = sum(sums.values())
        assert total >= load.added, f"{load.added} transactions were acknowledged, {total} are there"

    def hashes():
        out = []
        for member in members.members:
            with member.client() as client:
                out.append(client.t.command("dbHash", read_preference=None)["md5"])
        return out

    until("all members hash alike", lambda: len(set(hashes())) == 1, 60)
    for member in members.members:
        with member.client() as client:
            for way in (1, -1):
                seen = [d["_id"] for d in client.t.c.find().sort("_id", way)]
                assert set(seen) >= there and len(seen) == len(set(seen)), f"{set(seen) ^ there} on {member.address}"


for seed in range(first, first + seeds):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as path, ReplicaSet(pathlib.Path(path)) as members:
        members.initiate()
        load = Load(members.uri())
        harm(rng, members, time.monotonic() + seconds)
        for member in members.members:
            if not member.running():
                member.start()
        until("the set is whole", members.is_whole, 60)
        load.end()
        try:
            check(members, load)
        except AssertionError:
            print(f"seed {seed} fails")
            raise
        print(f"seed {seed}: {len(load.inserted)} inserts, {len(load.deleted)} deletions, {load.added} transactions, {load.refused} refused: all there", flush=True)
