"""A set of three whose primary's disk fills up: another member goes on, and the first comes back when there is room."""

import contextlib
import os
import subprocess
import threading
import time

import pytest
from pymongo import WriteConcern
from pymongo.errors import OperationFailure, PyMongoError

from agreement import assert_indexes_agree
from harness import Server, small_disk, until
from replica_set import ReplicaSet, sees

OUT_OF_DISK_SPACE = 14031
# Refused by a member that was deposed meanwhile, or by one whose disk is full.
NOT_WRITTEN = {10107, 11602, 189, 91, OUT_OF_DISK_SPACE}


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """Three file systems of 96 MB."""
    with contextlib.ExitStack() as mounted:
        yield [mounted.enter_context(small_disk(tmp_path_factory.mktemp(f"disk{n}"), 96)) for n in range(3)]


@pytest.fixture(scope="module")
def three(disks, tmp_path_factory):
    path = tmp_path_factory.mktemp("set")
    members = ReplicaSet(path)
    members.members = [Server(disk / "data", "--replSet", "rs", "--cache", "16MB", "--oplogSize", "16") for disk in disks]
    for n, member in enumerate(members.members):
        # What it says must find room.
        member.log = path / f"m{n}.out"
    with members:
        yield members.initiate()


def fill(member):
    """Takes all room on a member's disk."""
    ballast = member.path.parent / "ballast"
    # Without a buffer, whose rest `close` would write once more, and fail.
    with open(ballast, "wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(b"x" * (1 << 16))
    return ballast


def write_until(client, ends, written):
    """Inserts documents one after the other; those that were acknowledged by a majority are in `written`."""
    coll = client.t.get_collection("c", write_concern=WriteConcern("majority", wtimeout=20_000))
    n, refused = len(written), []
    while not ends.is_set():
        n += 1
        try:
            coll.insert_one({"_id": n, "a": n % 7, "pad": os.urandom(20_000)})
            written.append(n)
        except OperationFailure as e:
            refused.append(e)
        except PyMongoError:
            pass
    return refused


@pytest.mark.parametrize("whose", ["primary", "secondary"])
def test_a_full_disk_harms_no_other_and_comes_back(three, whose):
    primary = three.primary()
    full = primary if whose == "primary" else three.secondaries()[0]
    written, refused, ends = [], [], threading.Event()
    with three.client() as client:
        client.t.c.drop()
        client.t.c.create_index("a")
        writer = threading.Thread(target=lambda: refused.extend(write_until(client, ends, written)))
        writer.start()
        try:
            until("writes are under way", lambda: len(written) > 5)
            said = len(full.log.read_text())
            ballast = fill(full)
            if whose == "primary":
                until("another is primary", lambda: "primary" in three.states() and three.primary() is not full, 30)
            else:
                until("it has left", lambda: "leaves its replica set" in full.log.read_text()[said:])
                assert three.primary() is primary
            before = len(written)
            until("writes go on", lambda: len(written) > before + 20)
        finally:
            ends.set()
            writer.join()
        # A refusal says why, with MongoDB's code.
        codes = {e.code for e in refused}
        assert codes <= NOT_WRITTEN, refused
        if whose == "secondary":
            assert not refused
        ballast.unlink()
        # By itself, without an operator's hand.
        until("the set is whole again", three.is_whole, 60)
        wanted = client.t.c.count_documents({})
        assert wanted >= len(written)
        assert {d["_id"] for d in client.t.c.find({}, {"_id": 1})} >= set(written)
        client.t.get_collection("c", write_concern=WriteConcern(3, wtimeout=20_000)).insert_one({"_id": "all", "a": 1})
    for member in three.members:
        sees(member, {}, wanted + 1)
        with member.client() as client:
            assert_indexes_agree(client.t.c)


def test_who_has_no_room_for_his_vote_leaves_and_elects_when_there_is_room(three):
    until("the set is whole", three.is_whole, 60)
    with three.client() as client:
        client.t.get_collection("c", write_concern=WriteConcern(3, wtimeout=20_000)).insert_one({"_id": "before", "a": 0})
        wanted = client.t.c.count_documents({})
    primary, full = three.primary(), three.secondaries()[0]
    said = len(full.log.read_text())
    ballast = fill(full)
    primary.kill()
    # Of three votes one is gone, and one cannot be written: no member may be elected by it.
    until("it has left", lambda: "leaves its replica set" in full.log.read_text()[said:])
    assert three.states().count("primary") == 0 and full.running()
    ballast.unlink()
    elected = three.primary(timeout_s=60)
    assert elected is not primary
    with elected.client() as client:
        client.t.get_collection("c", write_concern=WriteConcern("majority")).insert_one({"_id": "after", "a": 0})
    primary.start()
    until("the set is whole again", three.is_whole, 60)
    for member in three.members:
        sees(member, {}, wanted + 1)


def test_a_member_that_cannot_save_how_far_it_is_stays(tmp_path):
    """What it saves now and then needs room, which the log may have taken."""
    with small_disk(tmp_path, 48):
        members = ReplicaSet(tmp_path)
        [member] = members.members = [Server(tmp_path / "data", "--replSet", "rs", "--cache", "16MB", "--oplogSize", "16")]
        # What it says must find room.
        member.log = tmp_path.parent / "full.out"
        # Ten ticks, after which it looks whether to save, are as long as an election timeout.
        with members, members.initiate(settings={"electionTimeoutMillis": 300}).client() as client:
            coll = client.t.get_collection("c", write_concern=WriteConcern(1))
            ballast = fill(member)
            os.truncate(ballast, os.path.getsize(ballast) - (6 << 20))
            # More entries than it lets come between two times of saving.
            with pytest.raises(OperationFailure) as failure:
                for n in range(100_000):
                    coll.insert_one({"_id": n, "pad": os.urandom(200)})
            assert failure.value.code == OUT_OF_DISK_SPACE and n > 2000
            # For as long as it takes to look three times.
            for _ in range(5):
                assert coll.count_documents({}) >= n, "it serves reads, as primary"
                time.sleep(0.2)
            assert "leaves its replica set" not in member.log.read_text()
            ballast.unlink()
            subprocess.run(["mount", "-o", "remount,size=200m", tmp_path], check=True)

            def writes():
                with contextlib.suppress(OperationFailure):
                    return coll.insert_one({"_id": "after"}).acknowledged

            until("writes succeed again", writes, 40)


def test_a_primary_without_followers_refuses_writes_until_there_is_room(three):
    until("the set is whole", three.is_whole)
    primary = three.primary()
    with three.client() as client:
        client.t.c.drop()
        config = client.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        for n, member in enumerate(three.members):
            config["members"][n]["priority"] = 1 if member is primary else 0
        client.admin.command("replSetReconfig", config)
        coll = client.t.get_collection("c", write_concern=WriteConcern(1))
        ballast = fill(primary)
        written = set()
        with pytest.raises(OperationFailure) as failure:
            for n in range(10_000):
                coll.insert_one({"_id": n, "pad": os.urandom(20_000)})
                written.add(n)
        assert failure.value.code == OUT_OF_DISK_SPACE and "space" in str(failure.value)
        assert three.primary() is primary
        assert {d["_id"] for d in coll.find({}, {"_id": 1})} >= written
        ballast.unlink()

        def writes():
            with contextlib.suppress(OperationFailure):
                return coll.insert_one({"pad": 1}).acknowledged

        until("writes succeed again", writes, 40)
        assert {d["_id"] for d in coll.find({}, {"_id": 1})} >= written
