"""A set of three whose members have slow and failing disks."""

import shutil
import time

import pytest
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from harness import until
from replica_set import ReplicaSet, seconds_since, sees
from shim import Shim, build

MAJORITY = WriteConcern("majority", wtimeout=20_000)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("disks")
    library = build(path)
    members = ReplicaSet(path)
    for n, member in enumerate(members.members):
        member.shim = Shim(path / f"shim{n}")
        member.env = member.shim.env(library)
    with members:
        yield members.initiate()


def coll(client, concern=MAJORITY):
    return client.t.get_collection("c", write_concern=concern)


@pytest.mark.parametrize("whose", ["primary", "secondary"])
def test_a_slow_disk_slows_no_majority_write(three, whose):
    primary = three.primary()
    slow = primary if whose == "primary" else three.secondaries()[0]
    with three.client() as client:
        things = coll(client)
        things.insert_one({"warm": 1})
        slow.shim.slow_disk(0.4)
        try:
            began = time.monotonic()
            for n in range(20):
                things.insert_one({"slow": whose})
            took = seconds_since(began)
            # Its own disk is waited for where that is asked for.
            began = time.monotonic()
            coll(client, WriteConcern(3, wtimeout=20_000)).insert_one({"slow": whose})
            all_took = seconds_since(began)
        finally:
            slow.shim.slow_disk(0)
    print(f"20 majority inserts took {took:.2f} s, one on all disks {all_took:.2f} s")
    assert took < 4, "each has waited for the slow disk"
    assert all_took > 0.2
    assert three.primary() is primary


def leaves(member):
    """Waits until a member says that it takes no part in its set, and why."""
    def says():
        with member.client() as client:
            try:
                client.admin.command("replSetGetStatus")
            except OperationFailure as e:
                return e

    error = until("the member says that it has left", says)
    assert error.code == 93 and "fdatasync failed" in str(error), error
    assert "The member leaves its replica set" in member.log.read_text()
    with member.wire() as wire:
        hello = wire.command({"hello": 1, "$db": "admin"})
        assert not hello["isWritablePrimary"] and not hello["secondary"]
        assert wire.command({"find": "c", "$db": "t", "$readPreference": {"mode": "nearest"}})["code"] == 13436


def comes_back(three, member, documents):
    member.kill()
    member.start()
    until("the set is whole again", three.is_whole, 60)
    sees(member, {}, documents)


def test_a_secondary_whose_disk_fails_leaves_and_harms_no_other(three):
    member = three.secondaries()[0]
    with three.client() as client:
        things = coll(client)
        things.delete_many({})
        member.shim.fail_sync()
        for n in range(50):
            things.insert_one({"n": n})
        leaves(member)
        for n in range(50):
            things.insert_one({"n": n})
        status = client.admin.command("replSetGetStatus")
        there = {m["name"]: m["health"] for m in status["members"]}
        until("the primary takes it for away", lambda: not health(client, member))
        assert list(there.values()).count(1.0) >= 2
    comes_back(three, member, 100)


def health(client, member):
    members = client.admin.command("replSetGetStatus")["members"]
    return next(m["health"] for m in members if m["name"] == member.address)


def test_a_primary_whose_disk_fails_leaves_and_another_goes_on(three):
    member = three.primary()
    with three.client() as client:
        things = coll(client)
        things.delete_many({})
        # Retryable writes: the driver sends those in flight to the next primary.
        for n in range(100):
            if n == 50:
                member.shim.fail_sync()
            things.insert_one({"_id": n})
        leaves(member)
        assert three.primary() is not member
        assert [d["_id"] for d in things.find(sort=[("_id", 1)])] == list(range(100))
    comes_back(three, member, 100)


def test_a_wrong_clock_harms_no_write_and_no_order(three):
    """A day ahead, then a day behind: the log goes on from its last entry, and no other member is elected."""
    primary = three.primary()
    with three.client() as client:
        things = client.t.get_collection("clocked", write_concern=MAJORITY)
        try:
            for n, off in enumerate((0, 86_400, -86_400, 0)):
                primary.shim.set_clock(off)
                things.insert_one({"_id": n})
        finally:
            primary.shim.set_clock(0)
        entries = client.local["oplog.rs"].find({"ns": "t.clocked", "op": "i"}).sort("$natural", 1)
        entries = [(e["o"]["_id"], e["ts"]) for e in entries]
        assert [n for n, _ in entries] == [0, 1, 2, 3]
        times = [ts for _, ts in entries]
        assert times == sorted(times) and len(set(times)) == 4
        assert 80_000 < times[3].time - times[0].time, "cluster time is never put back"
    assert three.primary() is primary
