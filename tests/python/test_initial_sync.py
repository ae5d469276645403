"""Members that the primary's log no longer reaches: they copy the files of a checkpoint, and go on by the log."""

import os

import pytest
from harness import until
from pymongo import WriteConcern
from replica_set import ReplicaSet, sees

# A log of two megabytes, and a reaper that looks every second.
OPTIONS = ["--log-retain", "2", "--setParameter", "clientCursorMonitorFrequencySecs=1"]
LARGE = 60_000


@pytest.fixture
def members(tmp_path):
    with ReplicaSet(tmp_path, options=OPTIONS) as members:
        yield members


def found(members):
    """A set of the first member alone."""
    first = {"_id": "rs", "members": [{"_id": 0, "host": members.members[0].address}]}
    with members.members[0].client() as client:
        client.admin.command("replSetInitiate", first)
        until("it is primary", lambda: client.admin.command("hello")["isWritablePrimary"])


def reconfigure(client, change):
    config = client.admin.command("replSetGetConfig")["config"]
    config["version"] += 1
    change(config["members"])
    client.admin.command("replSetReconfig", config)


def add(client, member, number, **settings):
    reconfigure(client, lambda members: members.append({"_id": number, "host": member.address, **settings}))


def fill(client, count, first=0):
    """Documents that no compression makes smaller."""
    coll = client.t.c
    for n in range(first, first + count):
        coll.insert_one({"_id": n, "x": n % 3, "bytes": os.urandom(LARGE)})


def trimmed(client, behind):
    """Waits until the log begins behind the insert of a document."""
    def first():
        # The log need not keep entries that are flushed.
        client.admin.command("fsync")
        entry = client.local["oplog.rs"].find_one(sort=[("$natural", 1)])
        return entry["o"]["_id"] if entry["op"] == "i" and entry["ns"] == "t.c" else -1

    until("the log is trimmed", lambda: first() > behind)


def checkpoints(member):
    kept = member.path / "initial-sync-source"
    return list(kept.iterdir()) if kept.exists() else []


def bytes_of(member):
    with member.client() as client:
        return {d["_id"]: d["bytes"] for d in client.t.c.find()}


def rate(member, megabytes):
    with member.client() as client:
        client.admin.command("setParameter", 1, initialSyncMaxMBPerSec=megabytes)


def status(member):
    with member.client() as client:
        return client.admin.command("replSetGetStatus")


def is_copying(member):
    with member.client() as client:
        hello = client.admin.command("hello")
        if not hello.get("setName"):
            return False
        return client.admin.command("replSetGetStatus").get("initialSyncStatus", {}).get("approxTotalBytesCopied", 0) > 0


def test_a_new_member_copies_files_and_becomes_primary(members):
    found(members)
    one, two, _ = members.members
    with one.client() as client:
        client.t.c.create_index("x")
        fill(client, 200)
        trimmed(client, 5)
        rate(one, 4)
        add(client, two, 1)
        until("files are copied", lambda: is_copying(two))
        own = status(two)
        assert own["myState"] == 5 and own["members"][1]["stateStr"] == "STARTUP2"
        assert own["initialSyncStatus"]["syncSource"] == one.address
        assert status(one)["members"][1]["state"] == 5
        with two.wire() as wire:
            reply = wire.command({"find": "c", "$db": "t", "$readPreference": {"mode": "secondary"}})
            assert reply["codeName"] == "NotPrimaryOrSecondary", reply
        rate(one, 0)
        fill(client, 10, first=200)
        sees(two, {}, 210)
        until("it votes", lambda: status(one)["votingMembersCount"] == 2)
        assert bytes_of(one) == bytes_of(two)
        until("the checkpoint is gone", lambda: not checkpoints(one))
        assert not (two.path / "initial-sync").exists()
        client.admin.command("replSetStepDown", 30)
    with two.client() as client:
        until("it is primary", lambda: client.admin.command("hello")["isWritablePrimary"])
        client.t.get_collection("c", write_concern=WriteConcern(w=2, wtimeout=20_000)).insert_one({"_id": "new"})
        assert client.t.command("validate", "c")["valid"]
        assert client.t.c.count_documents({"x": 1}, hint="x_1") == 70
    # Files that were put in place are a data directory like any other.
    two.kill()
    two.start()
    sees(two, {}, 211)


def test_a_member_that_was_away_for_long_copies_files(members):
    members.initiate()
    primary = members.primary()
    away = members.secondaries()[0]
    with primary.client() as client:
        fill(client, 2)
        sees(away, {}, 2)
        away.kill()
        fill(client, 200, first=2)
        trimmed(client, 20)
        client.t.c.delete_one({"_id": 0})
    away.start()
    sees(away, {}, 201)
    until("the set is whole", members.is_whole)
    assert bytes_of(primary) == bytes_of(away)


def test_a_copy_goes_on_after_either_side_was_killed(members):
    found(members)
    one, two, _ = members.members
    with one.client() as client:
        fill(client, 200)
        trimmed(client, 5)
        rate(one, 4)
        add(client, two, 1, votes=0, priority=0)
    until("files are copied", lambda: is_copying(two))
    two.kill()
    copied = sum(f.stat().st_size for f in (two.path / "initial-sync" / "engine").iterdir())
    assert copied and not (two.path / "initial-sync" / "COMPLETE").exists()
    two.start()
    with two.client() as client:
        # Half a copy is not opened.
        assert not client.admin.command("hello")["secondary"]
    until("files are copied", lambda: is_copying(two))
    one.kill()
    # A checkpoint without a reader is removed at the start.
    one.start()
    with one.client() as client:
        until("the primary is back", lambda: client.admin.command("hello")["isWritablePrimary"])
    rate(one, 4)
    kept = until("parts are kept", lambda: status(two).get("initialSyncStatus", {}).get("bytesKeptOfAttemptsBefore"))
    assert kept > 0
    rate(one, 0)
    sees(two, {}, 200)
    assert bytes_of(one) == bytes_of(two)


def test_a_checkpoint_goes_when_its_reader_does_not_come_back(members):
    found(members)
    one, two, _ = members.members
    with one.client() as client:
        fill(client, 200)
        trimmed(client, 5)
        rate(one, 2)
        client.admin.command("setParameter", 1, initialSyncSourceIdleSecs=2)
        add(client, two, 1, votes=0, priority=0)
        until("files are copied", lambda: is_copying(two))
        assert len(checkpoints(one)) == 1
        two.kill()
        until("the checkpoint is gone", lambda: not checkpoints(one))
        # Nor does it keep the log.
        fill(client, 200, first=200)
        trimmed(client, 220)


def test_only_members_of_the_set_copy_its_files(members):
    found(members)
    one = members.members[0]
    with one.wire() as wire:
        for fields in [{"member": 1}, {"member": 9, "setId": None}]:
            reply = wire.command({"pandoCopyFiles": "begin", "set": "rs", **fields, "$db": "admin"})
            assert reply["ok"] == 0, reply
        reply = wire.command({"pandoCopyFiles": "read", "$db": "admin"})
        assert reply["ok"] == 0 and "id" in reply["errmsg"], reply
