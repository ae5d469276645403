"""Members whose disk was replaced: an empty directory under a known name and port."""

import contextlib
import os
import shutil
import subprocess
import time

import pytest
from harness import BINARY, until
from pymongo import WriteConcern
from pymongo.errors import OperationFailure, PyMongoError
from replica_set import ReplicaSet, sees


@pytest.fixture
def three(tmp_path):
    with ReplicaSet(tmp_path) as members:
        yield members.initiate()


def coll(client, w="majority"):
    return client.t.get_collection("c", write_concern=WriteConcern(w, wtimeout=30_000))


def replace_disk(member):
    member.kill()
    shutil.rmtree(member.path)


@pytest.mark.parametrize("whose", ["secondary", "primary"])
def test_a_member_with_a_new_disk_comes_back_by_itself(three, whose):
    with three.client() as client:
        coll(client, 3).insert_many([{"_id": n} for n in range(500)])
        lost = three.primary() if whose == "primary" else three.secondaries()[0]
        replace_disk(lost)
        lost.start()
        until("the set is whole again", three.is_whole, 60)
        sees(lost, {}, 500)
        coll(client, 3).insert_one({"_id": "after"})
        status = client.admin.command("replSetGetStatus")
        assert [m["lastHeartbeatMessage"] for m in status["members"]] == ["", "", ""]
    assert "panicked" not in lost.log.read_text()


def test_it_has_no_vote_before_it_has_its_copy_and_the_status_says_why(three):
    """Writes that only the primary and the lost disk had stay: a member without them is not elected by the
    vote of an empty one."""
    primary = three.primary()
    lost, behind = three.secondaries()
    with three.client() as client:
        coll(client, 3).insert_many([{"_id": n} for n in range(100)])
        behind.kill()
        coll(client).insert_one({"_id": "acknowledged by two"})
    replace_disk(lost)
    lost.start()

    def why():
        with primary.client() as client:
            members = client.admin.command("replSetGetStatus")["members"]
            return next(m["lastHeartbeatMessage"] for m in members if m["name"] == lost.address)

    until("the primary says why", lambda: "its disk was replaced" in why())
    with lost.client() as client, pytest.raises(OperationFailure, match="no data of its set") as refused:
        client.admin.command("replSetGetStatus")
    assert refused.value.code == 94
    # The member that lacks the write and the one that has forgotten it elect no primary.
    primary.kill()
    behind.start()
    for _ in range(20):
        until("both answer", lambda: three.states().count("none") <= 2)
        assert "primary" not in three.states()
    primary.start()
    until("the set is whole again", three.is_whole, 60)
    with three.client() as client:
        assert coll(client).find_one({"_id": "acknowledged by two"})
    for member in three.members:
        sees(member, {}, 101)


def test_a_disk_that_went_back_in_time_is_told_apart(three, tmp_path):
    """An old copy of a directory is no member that may go on: it has acknowledged what it has not."""
    with three.client() as client:
        coll(client, 3).insert_many([{"_id": n} for n in range(100)])
        lost = three.secondaries()[0]
        lost.stop()
        shutil.copytree(lost.path, tmp_path / "old")
        lost.start()
        until("the set is whole again", three.is_whole, 60)
        coll(client, 3).insert_many([{"_id": 1000 + n} for n in range(100)])
        lost.kill()
        shutil.rmtree(lost.path)
        shutil.move(tmp_path / "old", lost.path)
        lost.start()

        def outcome():
            with lost.client() as own:
                try:
                    own.admin.command("replSetGetStatus")
                except OperationFailure as e:
                    return "an old copy of it was put in place" in str(e)
            # It may as well get what it lacks before the primary speaks of it.
            return three.is_whole()

        until("it says so, or has caught up", outcome, 60)
        coll(client).insert_one({"_id": "after"})
    assert "panicked" not in lost.log.read_text()


def files_rest(member):
    with member.client() as client:
        engine = client.admin.command("serverStatus")["pandodb"]["engine"]
    return not (engine["runningCompactions"] or engine["runningFlushes"] or engine["pendingCompactionBytes"])


def damage(member):
    """Changes eight bytes in many places of the data of each large file."""
    large = [table for table in member.path.glob("engine/*.sst") if table.stat().st_size > 100_000]
    assert large
    for table in large:
        size = table.stat().st_size
        with open(table, "r+b") as file:
            for n in range(1, 40):
                file.seek(size * n // 50)
                file.write(b"\xff" * 8)


@contextlib.contextmanager
def three_with_little_memory(tmp_path, *options):
    """Twenty thousand documents, little of which is in memory."""
    with ReplicaSet(tmp_path, options=("--cache", "16MB", *options)) as members:
        members.initiate()
        with members.client() as client:
            for first in range(0, 20_000, 1000):
                texts = [{"_id": first + n, "text": os.urandom(1000).hex()} for n in range(1000)]
                coll(client, 3).insert_many(texts)
        yield members


def heals(member, three):
    until("it has a copy", lambda: "in place" in member.log.read_text(), 60)
    until("the set is whole again", three.is_whole, 60)
    with three.client() as client:
        coll(client, 3).insert_one({"_id": "behind it"})
    sees(member, {}, 20_001, 60)
    with member.client() as client:
        assert client.t.command("validate", "c")["valid"]
    member.stop()
    checked = subprocess.run([BINARY, "check", member.path], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("whose", ["secondary", "primary"])
def test_a_damaged_member_gets_the_files_of_a_sound_one(tmp_path, whose):
    with three_with_little_memory(tmp_path) as three:
        bad = three.secondaries()[0]
        bad.stop()
        if whose == "primary":
            bad.start()
            until("the set is whole again", three.is_whole, 60)
            until("it leads", lambda: leads(bad, three), 60)
        damage(bad)
        if whose == "secondary":
            bad.start()
            until("the set is whole again", three.is_whole, 60)
        with bad.client() as client, contextlib.suppress(PyMongoError):
            list(client.t.c.find())
        heals(bad, three)


def test_the_scrub_finds_damage_in_unread_data(tmp_path):
    with three_with_little_memory(tmp_path, "--scrub", "1GB") as three:
        bad = three.secondaries()[0]
        bad.stop()
        damage(bad)
        # The last pass was long ago.
        long_ago = time.time() - 8 * 86_400
        os.utime(bad.path / "scrubbed", (long_ago, long_ago))
        bad.start()
        heals(bad, three)
        assert "Scrub: a data file is damaged" in bad.log.read_text()


def leads(member, three):
    with member.client() as client, contextlib.suppress(OperationFailure):
        client.admin.command("replSetStepUp")
    return three.primary() is member


def test_a_damaged_member_gives_the_lead_away_and_says_why(tmp_path):
    with three_with_little_memory(tmp_path, "--no-self-repair") as three:
        gives_the_lead_away(three)


def gives_the_lead_away(three):
    bad = three.secondaries()[0]
    # A clean end has all data in files, and little of it is in memory after a start.
    bad.stop()
    bad.start()
    until("the set is whole again", three.is_whole, 60)

    until("it leads", lambda: leads(bad, three), 60)
    # A merge that meets the damage ends the member's part in its set.
    until("no file is being merged", lambda: files_rest(bad), 60)
    damage(bad)
    with bad.client() as client:
        with pytest.raises(OperationFailure, match="damaged"):
            list(client.t.c.find())
        until("another leads", lambda: three.primary() is not bad, 60)

        def says():
            members = client.admin.command("replSetGetStatus")["members"]
            return next(m for m in members if m.get("self"))

        own = until("it is no candidate", lambda: (m := says())["stateStr"] == "RECOVERING" and m)
        assert "damaged" in own["lastHeartbeatMessage"]
        assert client.admin.command("hello")["secondary"] is False
    with three.primary().client() as client:

        def reported():
            members = client.admin.command("replSetGetStatus")["members"]
            return next(m["lastHeartbeatMessage"] for m in members if m["name"] == bad.address)

        until("the primary says why", lambda: "damaged" in reported())
        with bad.client() as own, pytest.raises(OperationFailure):
            own.admin.command("replSetStepUp")
        assert three.primary() is not bad
        assert client.t.c.count_documents({}) == 20_000
    # The remedy that it names.
    replace_disk(bad)
    bad.start()
    until("the set is whole again", three.is_whole, 60)
    sees(bad, {}, 20_000, 60)


def test_a_set_of_two_has_lost_its_majority_and_goes_on_by_force(tmp_path):
    with ReplicaSet(tmp_path, size=2) as two:
        two.initiate()
        with two.client() as client:
            coll(client, 2).insert_many([{"_id": n} for n in range(100)])
        [lost] = two.secondaries()
        left = next(m for m in two.members if m is not lost)
        replace_disk(lost)
        lost.start()
        with left.client() as client:

            def reported():
                members = client.admin.command("replSetGetStatus")["members"]
                return next(m["lastHeartbeatMessage"] for m in members if m["name"] == lost.address)

            until("it says why", lambda: "its disk was replaced" in reported(), 60)
            until("it leads no more", lambda: "primary" not in two.states())
            config = client.admin.command("replSetGetConfig")["config"]
            [gone] = [m for m in config["members"] if m["host"] == lost.address]
            config["members"].remove(gone)
            config["version"] += 1
            client.admin.command("replSetReconfig", config, force=True)
            until("it leads", lambda: client.admin.command("hello")["isWritablePrimary"], 60)
            config = client.admin.command("replSetGetConfig")["config"]
            config["members"].append(gone)
            config["version"] += 1
            client.admin.command("replSetReconfig", config)
        until("the set is whole again", two.is_whole, 60)
        sees(lost, {}, 100)
