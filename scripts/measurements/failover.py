"""How long writes fail when the primary of a set of three dies, and when it steps down.

    scripts/measure.py failover target/release/pando [kills, 20] [step-downs, 10]

Each turn kills the primary (SIGKILL) and counts the time until one insert with majority succeeds, by a driver that is
given the error and tries again; then the member is started again and the set waited for. All that was acknowledged
must be there at the end. Prints the seconds of each turn, then median and worst.
"""

import statistics
import time

from harness import until
from pymongo import MongoClient, WriteConcern
from pymongo.errors import PyMongoError
from replica_set import ReplicaSet

from .common import folder, numbers

acknowledged = []


def write(coll):
    """Seconds until an insert succeeds."""
    began = time.monotonic()
    while True:
        try:
            acknowledged.append(coll.insert_one({}).inserted_id)
            return time.monotonic() - began
        except PyMongoError:
            time.sleep(0.005)


def report(what, seconds):
    print(what, " ".join(f"{s:.2f}" for s in seconds))
    print(f"{what}: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s of {len(seconds)}")


def main(given):
    kills, step_downs = numbers(given, 20, 10)
    with folder() as place, ReplicaSet(place) as members:
        members.initiate()
        with MongoClient(members.uri(), retryWrites=False, serverSelectionTimeoutMS=10_000) as client:
            coll = client.t.get_collection("c", write_concern=WriteConcern("majority"))
            write(coll)
            killed = []
            for _ in range(kills):
                old = members.primary()
                old.kill()
                killed.append(write(coll))
                old.start()
                until("the set is whole", members.is_whole, 60)
            stepped = []
            for _ in range(step_downs):
                with members.primary().client() as admin:
                    admin.admin.command("replSetStepDown", 15, secondaryCatchUpPeriodSecs=10)
                stepped.append(write(coll))
                until("the set is whole", members.is_whole, 60)
            there = {d["_id"] for d in coll.find({}, {"_id": 1})}
            assert there >= set(acknowledged), f"{len(set(acknowledged) - there)} acknowledged writes are lost"
        report("kill", killed)
        report("stepDown", stepped)
