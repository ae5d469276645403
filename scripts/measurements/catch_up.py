"""How fast a paused follower of a set of three catches up, to how fast what it lacks was written.

    scripts/measure.py catch_up target/release/pando [entries, 1000000] [connections, 64]

One follower is stopped (SIGSTOP); pando-lab, which lies beside the server, inserts documents of 100 bytes one by one with w: 1, each an
entry of the log, as fast as it can on the same machine; then the follower goes on, and the time is taken until it has all of them on its
disk, and until it has applied them. There are no writes meanwhile. Prints one line.
"""

import signal
import time

from harness import until
from replica_set import ReplicaSet

from .common import folder, lab, numbers


def insert(server, entries, connections):
    words = ["C.S1", "--reload", "--connections", connections, "--client-threads", 1, "--records", 1000, "--operations", entries]
    lab(server, *words, "-p", "fieldcount=1", "-p", "fieldlength=100")


def count(client):
    return client.t.usertable.estimated_document_count()


def main(given):
    entries, connections = numbers(given, 1_000_000, 64)
    with folder() as place, ReplicaSet(place, options=["--cache", "256MB"]) as members:
        members.initiate()
        primary, follower = members.primary(), members.secondaries()[0]
        with primary.client() as client, follower.client() as other:
            insert(primary, 1000, connections)
            until("all is there", lambda: count(other) == count(client), 60)
            before = count(client)
            follower.process.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            insert(primary, entries, connections)
            wrote = time.monotonic() - began
            written = count(client)
            assert written >= before + entries - 2000, "the collection was made anew"

            def known():
                status = client.admin.command("replSetGetStatus")
                last = status["optimes"]["appliedOpTime"]["ts"]
                return last, next(m for m in status["members"] if m["name"] == follower.address)

            follower.process.send_signal(signal.SIGCONT)
            began = time.monotonic()
            until("all is on its disk", lambda: (k := known())[1]["optimeDurable"]["ts"] >= k[0], 600)
            on_disk = time.monotonic() - began
            until("all is applied", lambda: count(other) == written, 600)
            caught_up = time.monotonic() - began
    print(
        f"{entries} entries written in {wrote:.1f} s ({entries / wrote:.0f}/s), on the follower's disk after {on_disk:.1f} s, applied after "
        f"{caught_up:.1f} s ({entries / caught_up:.0f}/s): {wrote / caught_up:.1f} times as fast"
    )
