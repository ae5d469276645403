"""How long a new member's initial sync takes, to how long cp takes for the same files.

    scripts/measure.py initial_sync target/release/pando [megabytes, 1000] [runs, 3]

A member alone holds so much of what no compression makes smaller; its log no longer reaches back to
the beginning, and it has no merging left to do. Each run copies the files to the same disk with cp
and syncs them, adds a member, and copies the files again. The member's time is from the
reconfiguration until it is a secondary with all documents. All read from the page cache. Prints the
seconds of each, and the median of the ratios to the mean of the two copies.
"""

import os
import shutil
import statistics
import subprocess
import time

from harness import Server, until
from pymongo import InsertOne
from pymongo.errors import PyMongoError

from .common import folder, numbers

OPTIONS = ["--replSet", "rs", "--cache", "256MB", "--log-retain", "16", "--setParameter", "clientCursorMonitorFrequencySecs=1"]
DOC_BYTES = 100_000


def reconfigure(client, change):
    config = client.admin.command("replSetGetConfig")["config"]
    config["version"] += 1
    change(config)
    client.admin.command("replSetReconfig", config)


def is_trimmed(client, behind):
    client.admin.command("fsync")
    return client.local["oplog.rs"].find_one(sort=[("$natural", 1)])["ts"] > behind


def is_settled(server):
    """Whether no file of the engine has come, gone or grown for four seconds."""
    def files():
        return {(f.name, f.stat().st_size) for f in (server.path / "engine").iterdir() if f.name != "LOG"}

    try:
        before = files()
        time.sleep(4)
        return files() == before
    except FileNotFoundError:
        return False


def sync(client, member, number):
    """Seconds until a new member has all documents."""
    began = time.monotonic()
    reconfigure(client, lambda c: c["members"].append({"_id": number, "host": member.address, "priority": 0, "votes": 0}))
    want = client.t.c.estimated_document_count()

    def has_all():
        # Each look costs the machine some milliseconds. While the process begins anew it does not
        # answer, and the driver would look again only after half a second.
        time.sleep(0.05)
        try:
            with member.client(serverSelectionTimeoutMS=100) as there:
                return there.admin.command("hello")["secondary"] and there.t.c.estimated_document_count() == want
        except PyMongoError:
            return False

    until("the member has all documents", has_all, 600)
    return time.monotonic() - began


def copy(source, to):
    """Seconds, and bytes."""
    began = time.monotonic()
    subprocess.run(["cp", "-r", source, to], check=True)
    subprocess.run(["sync", "-f", to], check=True)
    took = time.monotonic() - began
    size = sum(f.stat().st_size for f in to.rglob("*") if f.is_file())
    shutil.rmtree(to)
    return took, size


def main(given):
    megabytes, runs = numbers(given, 1000, 3)
    with folder() as place:
        with Server(place / "m0", *OPTIONS) as first, first.client() as client:
            client.admin.command("replSetInitiate", {"_id": "rs", "members": [{"_id": 0, "host": first.address}]})
            until("it is primary", lambda: client.admin.command("hello")["isWritablePrimary"])
            for n in range(0, megabytes * 10, 20):
                client.t.c.bulk_write([InsertOne({"_id": n + i, "bytes": os.urandom(DOC_BYTES)}) for i in range(20)])
                if n < megabytes * 5:
                    middle = client.local["oplog.rs"].find_one(sort=[("$natural", -1)])["ts"]
            until("the log is trimmed", lambda: is_trimmed(client, middle), 120)
            until("nothing is merged any more", lambda: is_settled(first), 120)
            # Names of their own: an engine that is not idle after all takes none of them away.
            files = place / "files"
            files.mkdir()
            for file in (first.path / "engine").iterdir():
                os.link(file, files / file.name)
            ratios = []
            for run in range(1, runs + 1):
                before, size = copy(files, place / "copy")
                with Server(place / f"m{run}", *OPTIONS) as member:
                    synced = sync(client, member, run)
                    reconfigure(client, lambda c: c["members"].pop())
                shutil.rmtree(member.path)
                after, _ = copy(files, place / "copy")
                copied = (before + after) / 2
                ratios.append(copied / synced)
                print(f"{size / 1e6:.0f} MB: initial sync {synced:.2f} s, cp and sync {before:.2f} and {after:.2f} s: "
                      f"{copied / synced:.2f} of the copy's speed", flush=True)
        print(f"median {statistics.median(ratios):.2f} of {runs}")
