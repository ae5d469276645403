"""An assertion that fails ends the process with its place, before anything is acknowledged, and a start is safe.

`--engine-options commit_fault=FAULT@GROUP` breaks an invariant of the commit in one group on purpose.
"""

import os
import random
import re
import signal
import time

import pytest
from pymongo.errors import PyMongoError
from replica_set import ReplicaSet, sees
from test_crash import INDEXES, Writer, assert_all_is_there

from harness import until

SEED = int(os.environ.get("PANDO_SEED", random.randrange(1 << 32)))
ROUNDS = int(os.environ.get("PANDO_CRASH_ROUNDS", 2))
# Where it is in the way of a group, and which assertion finds it.
FAULTS = {
    "unlogged": "what the engine gets is in the log",
    "lost_place": "a place for each entry of a group",
    "gap": "a group follows on what is applied",
    "unapplied": "the engine is where the group ends",
}


def fault(name, group):
    return ["--engine-options", f"commit_fault={name}@{group}"]


def assert_ended_with_its_place(server, says):
    assert server.process.returncode == -signal.SIGABRT
    log = server.tail(80)
    assert says in log and "An assertion failed: the process ends" in log, log
    assert re.search(r"crates/storage/src/commit(_env)?\.rs:\d+", log), log


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_acknowledged_of_a_group_that_breaks_an_invariant(new_server, name):
    print(f"PANDO_SEED={SEED}")
    rng = random.Random(SEED)
    server = new_server()
    with server.client() as client:
        for keys in INDEXES:
            client.crash.things.create_index(keys)
    states, acknowledged = [{} for _ in range(4)], 0
    for _ in range(ROUNDS):
        server.stop()
        server.options = fault(name, rng.randrange(100, 600))
        server.start()
        writers = [Writer(server, n, random.Random(rng.randrange(1 << 32)), known) for n, known in enumerate(states)]
        for w in writers:
            w.start()
        server.process.wait(60)
        for w in writers:
            w.join()
            # It heard that the connection is gone, and nothing else.
            assert w.fault is None, f"seed {SEED}: {w.fault}"
        assert_ended_with_its_place(server, FAULTS[name])
        server.options = []
        server.start()
        assert_all_is_there(server, writers)
        states = [w.known for w in writers]
        acknowledged += sum(w.acknowledged for w in writers)
    assert acknowledged > 50 * ROUNDS, "the load was hardly one"


def test_a_primary_that_fails_an_assertion_has_a_successor_and_comes_back(tmp_path):
    with ReplicaSet(tmp_path, options=fault("lost_place", 300)) as replica_set:
        replica_set.initiate()
        acknowledged, tried, deaths = set(), 0, 0
        until_then = time.monotonic() + 180
        with replica_set.client(retryWrites=False, w="majority", wTimeoutMS=20_000) as client:
            while deaths < 2 and time.monotonic() < until_then:
                try:
                    client.t.c.insert_one({"_id": tried})
                    acknowledged.add(tried)
                except PyMongoError:
                    pass
                tried += 1
                for member in replica_set.members:
                    if not member.running():
                        assert_ended_with_its_place(member, FAULTS["lost_place"])
                        member.options = member.options[:2]
                        member.start()
                        deaths += 1
        assert deaths == 2 and len(acknowledged) > 400
        until("all members are secondaries or primary", replica_set.is_whole, 60)
        with replica_set.client() as client:
            found = {d["_id"] for d in client.t.c.find()}
        assert acknowledged <= found <= set(range(tried))
        for member in replica_set.members:
            sees(member, {}, len(found))


def test_a_fault_that_is_none_is_refused(new_server):
    with pytest.raises(RuntimeError, match="commit_fault is FAULT@GROUP"):
        new_server("--engine-options", "commit_fault=hole@3")
