#!/usr/bin/env python3
"""Whether clients with retryable writes on, and all else at its default, see an error while primaries of a set of three die.

    scripts/check_retries.py target/release/pando [failovers, 20] [writers, 4]

Writers insert, update and read without a pause; each turn kills the primary, starts it again, and waits for the set. Every second turn
has it step down instead. Each error is printed; each acknowledged write must be there at the end, once. The exit code is 1 if not.
"""

import os
import pathlib
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ["PANDO_BIN"] = str(pathlib.Path(sys.argv[1]).resolve())
sys.path.insert(0, str(ROOT / "tests" / "python"))

from harness import until  # noqa: E402
from pymongo import MongoClient  # noqa: E402
from pymongo.errors import PyMongoError  # noqa: E402
from replica_set import ReplicaSet  # noqa: E402

FAILOVERS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
WRITERS = int(sys.argv[3]) if len(sys.argv) > 3 else 4


class Writer(threading.Thread):
    def __init__(self, uri, number):
        super().__init__(daemon=True)
        self.uri, self.number, self.done, self.longest, self.errors = uri, number, 0, 0.0, []

    def run(self):
        # w: "majority" is what a set's default write concern is.
        with MongoClient(self.uri) as client:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    client.t.c.insert_one({"_id": f"{self.number}-{self.done}"})
                    client.t.sums.update_one({"_id": self.number}, {"$inc": {"n": 1}}, upsert=True)
                    client.t.sums.find_one({"_id": self.number})
                    self.done += 1
                except PyMongoError as e:
                    self.errors.append(repr(e))
                    return
                self.longest = max(self.longest, time.monotonic() - began)


stop = threading.Event()
with tempfile.TemporaryDirectory() as path, ReplicaSet(pathlib.Path(path)) as members:
    members.initiate()
    writers = [Writer(members.uri(), n) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    for turn in range(FAILOVERS):
        time.sleep(1)
        old = members.primary()
        if turn % 2:
            with old.client() as client:
                client.admin.command("replSetStepDown", 11)
        else:
            old.kill()
            until("another is primary", lambda: members.states().count("primary") == 1)
            old.start()
        until("the set is whole", members.is_whole, 60)
    stop.set()
    for writer in writers:
        writer.join(60)
    with members.client() as client:
        there = {d["_id"] for d in client.t.c.find({}, {"_id": 1})}
        sums = {d["_id"]: d["n"] for d in client.t.sums.find()}
errors = [e for writer in writers for e in writer.errors]
for error in errors:
    print(error)
lost = sum(f"{w.number}-{n}" not in there for w in writers for n in range(w.done))
twice = sum(sums[w.number] not in (w.done, w.done + bool(w.errors)) for w in writers)
done, longest = sum(w.done for w in writers), max(w.longest for w in writers)
print(f"{FAILOVERS} failovers, {done} rounds of an insert, an update and a read: {len(errors)} errors, {lost} lost, {twice} sums wrong, longest {longest:.2f} s")
sys.exit(1 if errors or lost or twice else 0)
