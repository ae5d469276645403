"""What operators of a set of three ask its members for, and see of them."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import bson
import pytest
from pymongo import WriteConcern
from pymongo.errors import OperationFailure

from harness import Server, until
from replica_set import ReplicaSet


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    with ReplicaSet(tmp_path_factory.mktemp("operators")) as members:
        yield members.initiate()


def admin(member, command, value=1, **fields):
    with member.wire() as wire:
        return wire.command({command: value, **fields, "$db": "admin"})


def members_of(member):
    return {m["name"]: m for m in admin(member, "replSetGetStatus")["members"]}


def test_a_secondary_tells_what_the_other_has(three):
    with three.client() as client:
        client.t.c.with_options(write_concern=WriteConcern(3, wtimeout=20_000)).insert_one({})
    one, other = three.secondaries()
    last = admin(three.primary(), "replSetGetStatus")["optimes"]["appliedOpTime"]

    def tells():
        member = members_of(one)[other.address]
        fields = ("optime", "optimeDurable")
        return all(member[f]["ts"] >= last["ts"] and member[f]["t"] == last["t"] for f in fields)

    until("the optimes of the other", tells)
    other.kill()
    until("it is seen as away", lambda: members_of(one)[other.address]["health"] == 0.0)
    assert members_of(one)[other.address]["stateStr"] == "(not reachable/healthy)"
    other.start()
    until("it is seen again", lambda: members_of(one)[other.address]["health"] == 1.0)
    until("the set is whole", three.is_whole, 60)


def test_maintenance_keeps_a_member_from_readers_and_elections(three):
    primary, member = three.primary(), three.secondaries()[0]
    assert admin(primary, "replSetMaintenance", True)["code"] == 95
    assert admin(member, "replSetMaintenance", False)["code"] == 96
    assert admin(member, "replSetMaintenance", True)["ok"] == 1
    assert admin(member, "replSetMaintenance", True)["ok"] == 1
    assert admin(member, "replSetGetStatus")["myState"] == 3
    assert not admin(member, "hello")["secondary"]
    with member.wire() as wire:
        assert wire.command({"find": "c", "$db": "t", "$readPreference": {"mode": "nearest"}})["code"] == 13436
    for seen_from in (primary, next(m for m in three.secondaries() if m is not member)):
        until("others see it", lambda: members_of(seen_from)[member.address]["stateStr"] == "RECOVERING")
    assert admin(member, "replSetStepUp")["code"] == 125
    # It has entries nevertheless, and its vote.
    with three.client() as client:
        client.t.c.with_options(write_concern=WriteConcern(3, wtimeout=20_000)).insert_one({})
    assert admin(primary, "replSetStepDown", 15)["ok"] == 1
    assert admin(primary, "replSetFreeze", 0)["ok"] == 1
    assert three.primary() is not member
    for ends in (True, False):
        assert admin(member, "replSetMaintenance", False)["ok"] == 1
        assert (admin(member, "replSetGetStatus")["myState"] == 3) == ends
    until("the set is whole", three.is_whole, 60)


def test_a_member_steps_up(three):
    primary, member = three.primary(), three.secondaries()[0]
    assert admin(primary, "replSetStepUp")["ok"] == 1
    with three.client() as client:
        client.t.c.insert_one({"_id": "before"})
        assert admin(member, "replSetStepUp")["ok"] == 1
        assert three.primary() is member
        metrics = admin(member, "replSetGetStatus")["electionCandidateMetrics"]
        assert metrics["lastElectionReason"] == "stepUpRequest"
        # No write of the old primary is rolled back.
        assert client.t.c.find_one({"_id": "before"})
    assert admin(primary, "replSetGetRBID")["rbid"] == 1
    assert admin(primary, "replSetFreeze", 60)["ok"] == 1
    assert admin(primary, "replSetStepUp")["codeName"] == "CommandFailed"
    assert admin(primary, "replSetFreeze", 0)["ok"] == 1


def test_a_member_that_has_just_started_steps_up(three):
    """It has heard of no primary yet, and no member would vote for it against the present one."""
    for _ in range(3):
        member = three.secondaries()[0]
        member.kill()
        member.start()
        until("it is a member", lambda: admin(member, "hello")["secondary"])
        reply = admin(member, "replSetStepUp")
        assert reply["ok"] == 1, reply
        assert three.primary() is member
        assert admin(member, "serverStatus")["electionMetrics"]["stepUpCmd"] == {"called": 1, "successful": 1}
        until("the set is whole", three.is_whole, 60)


def test_a_member_steps_up_without_a_primary(three):
    primary = three.primary()
    one, other = three.secondaries()
    for member in (one, other):
        assert admin(member, "replSetFreeze", 60)["ok"] == 1
    primary.kill()
    until("both hear of no primary", lambda: three.states().count("primary") == 0)
    # A member that is not frozen is a candidate after two seconds at the latest.
    time.sleep(2.5)
    assert three.states().count("primary") == 0
    assert admin(one, "replSetFreeze", 0)["ok"] == 1
    admin(one, "replSetStepUp")
    until("it is primary", lambda: three.primary() is one)
    assert admin(other, "replSetFreeze", 0)["ok"] == 1
    primary.start()
    until("the set is whole", three.is_whole, 60)


def test_whom_to_sync_from_is_a_string(three):
    member = three.secondaries()[0]
    for value in (1, None, {"host": "a"}):
        assert admin(member, "replSetSyncFrom", value)["codeName"] == "TypeMismatch"


def refused(three, server):
    """The error of a configuration that brings a server in."""
    with three.client() as client:
        config = client.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        config["members"].append({"_id": 9, "host": server.address})
        with pytest.raises(OperationFailure) as error:
            client.admin.command("replSetReconfig", config)
        assert len(client.admin.command("replSetGetConfig")["config"]["members"]) == 3
    assert error.value.code == 103, error.value
    return str(error.value)


def test_members_of_other_sets_are_not_added(three, tmp_path):
    with Server(tmp_path / "named", "--replSet", "other") as server:
        assert "Our set name did not match that of " + server.address in refused(three, server)
    with Server(tmp_path / "same", "--replSet", three.name) as server:
        admin(server, "replSetInitiate", {"_id": three.name, "members": [{"_id": 0, "host": server.address}]})
        assert "belongs to another replica set" in refused(three, server)
        # Nor does a new set take it.
        with Server(tmp_path / "third", "--replSet", three.name) as third:
            hosts = [{"_id": n, "host": s.address} for n, s in enumerate((third, server))]
            assert admin(third, "replSetInitiate", {"_id": three.name, "members": hosts})["code"] == 103


def stamps(three):
    return [(m.path / "PANDO").read_text() for m in three.members]


def test_a_newer_data_format_is_written_once_the_version_allows_it_and_not_taken_back(three):
    """A note in the log is of format 5, which programs of the release before do not read."""
    old, new = ["pando data format 4\n"] * 3, ["pando data format 5\n"] * 3
    with three.client() as client:
        version = client.admin.command("getParameter", 1, featureCompatibilityVersion=1)["featureCompatibilityVersion"]["version"]
        note = {"appendOplogNote": 1, "data": {"msg": "the tide turns"}, "writeConcern": {"w": 3, "wtimeout": 20_000}}
        with pytest.raises(OperationFailure) as error:
            client.admin.command(note)
        assert error.value.code == 188 and 'setFeatureCompatibilityVersion "8.2"' in str(error.value)
        assert stamps(three) == old
        for each in ("8.2", version, "8.2"):
            # Until something of the newer format is there the way back is open.
            client.admin.command("setFeatureCompatibilityVersion", each, confirm=True)
            assert stamps(three) == old
        client.admin.command(note)
        for member in three.members:
            with member.client() as there:
                until("the note is there", lambda: there.local["oplog.rs"].find_one({"op": "n", "o.msg": "the tide turns"}))
        until("all stamps say so", lambda: stamps(three) == new)
        with pytest.raises(OperationFailure) as error:
            client.admin.command("setFeatureCompatibilityVersion", version, confirm=True)
        assert error.value.code == 332 and "data format 5" in str(error.value) and "mongodump" in str(error.value)
        client.admin.command("setFeatureCompatibilityVersion", "8.2", confirm=True)
        assert client.admin.command(note)["ok"] == 1
    member = three.secondaries()[0]
    member.kill()
    # A program that reads up to format 5 says so of format 6, as one that reads format 4 does of 5.
    (member.path / "PANDO").write_text("pando data format 6\n")
    with pytest.raises(RuntimeError, match="has format 6, which a later release has written; this version of PandoDB reads formats 4 and 5"):
        member.start()
    (member.path / "PANDO").write_text(new[0])
    member.start()
    until("the set is whole", three.is_whole, 60)
    assert stamps(three) == new


def test_who_stood_for_election_why_and_who_voted_for_whom(three):
    def elections(member):
        return admin(member, "serverStatus")["electionMetrics"]

    until("the set is whole", three.is_whole, 60)
    primary, other = three.primary(), three.secondaries()[0]
    assert elections(primary)["electionTimeout"]["called"] + elections(primary)["stepUpCmd"]["called"] >= 1
    status = admin(primary, "replSetGetStatus")
    assert "electionParticipantMetrics" not in status and "electionCandidateMetrics" in status
    before = elections(other)
    assert admin(other, "replSetStepUp")["ok"] == 1
    until("it is primary", lambda: three.primary() is other)
    after = elections(other)
    for count in ("called", "successful"):
        assert after["stepUpCmd"][count] == before["stepUpCmd"][count] + 1, (before, after)
    assert after["electionTimeout"] == before["electionTimeout"]
    assert elections(primary)["numStepDownsCausedByHigherTerm"] == 0
    number, votes = three.members.index(other), []
    for member in three.secondaries():
        status = admin(member, "replSetGetStatus")
        vote = status.get("electionParticipantMetrics", {})
        votes.append(vote.get("electionCandidateMemberId") == number and vote["electionTerm"] == status["term"])
    assert any(votes)


def test_a_fail_point_keeps_a_member_from_taking_entries(three):
    until("the set is whole", three.is_whole, 60)
    member = three.secondaries()[0]
    with three.client() as client:
        coll = client.t.stopped
        assert admin(member, "configureFailPoint", "stopReplProducer", mode="alwaysOn")["ok"] == 1
        reply = client.t.command("insert", "stopped", documents=[{}], writeConcern={"w": 3, "wtimeout": 300}, check=False)
        assert reply["n"] == 1 and reply["writeConcernError"]["code"] == 64, reply
        coll.with_options(write_concern=WriteConcern("majority", wtimeout=20_000)).insert_one({})
        assert members_of(member)[member.address]["stateStr"] == "SECONDARY"
        assert admin(member, "configureFailPoint", "stopReplProducer", mode="off")["ok"] == 1
        coll.with_options(write_concern=WriteConcern(3, wtimeout=20_000)).insert_one({})


def test_every_member_knows_the_releases_and_the_last_backup(three):
    until("the set is whole", three.is_whole, 60)
    build = admin(three.primary(), "buildInfo")["pandodb"]["version"]
    for member in three.members:
        until("all releases", lambda m=member: {one.get("pandodb") for one in members_of(m).values()} == {build})
    assert admin(three.secondaries()[0], "pandoBackup", step="kept", backup="b1", to="/x")["ok"] == 1

    def known(member):
        with member.client() as client:
            return client.config.settings.find_one({"_id": "lastBackup"}, {"backup": 1, "to": 1})

    for member in three.members:
        until("it is known", lambda m=member: known(m) == {"_id": "lastBackup", "backup": "b1", "to": "/x"})


def test_a_change_of_voters_takes_no_configuration_back(three):
    """A vote is given because of one configuration when the next is in the log and no majority has it."""
    until("the set is whole", three.is_whole, 60)
    member, other = three.secondaries()
    at = three.members.index(member)
    with three.primary().client() as client:
        def reconfigure(**settings):
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            config["members"][at].update(settings)
            client.admin.command("replSetReconfig", config)
            return config["version"]

        def log_end():
            return next(m for m in client.admin.command("replSetGetStatus")["members"] if m.get("self"))["lastIndexOnDisk"]

        def voters():
            return client.admin.command("replSetGetStatus")["votingMembersCount"]

        reconfigure(votes=0, priority=0)
        until("it has no vote", lambda: voters() == 2)
        os.kill(member.process.pid, signal.SIGSTOP)
        try:
            until("it is away", lambda: client.admin.command("replSetGetStatus")["members"][at]["health"] == 0.0)
            reconfigure(votes=1, priority=0)
            admin(other, "configureFailPoint", "stopReplProducer", mode="alwaysOn")
            with ThreadPoolExecutor() as pool:
                end = log_end()
                last = pool.submit(reconfigure, votes=1, priority=1)
                until("the configuration is in the log", lambda: log_end() == end + 1)
                os.kill(member.process.pid, signal.SIGCONT)
                until("so is the vote", lambda: log_end() == end + 2)
                assert not last.done()
                admin(other, "configureFailPoint", "stopReplProducer", mode="off")
                last = last.result()
        finally:
            os.kill(member.process.pid, signal.SIGCONT)
        until("it has a vote", lambda: voters() == 3)
        config = client.admin.command("replSetGetConfig")["config"]
        assert config["version"] == last and config["members"][at]["priority"] == 1, config


def test_a_default_write_concern_waits_for_the_members_that_it_names(three):
    until("the set is whole", three.is_whole, 60)
    member = three.secondaries()[0]
    with three.client() as client:
        def default(**concern):
            client.admin.command("setDefaultRWConcern", 1, defaultWriteConcern=concern)

        default(w=3, wtimeout=300)
        try:
            assert client.t.command("insert", "defaults", documents=[{}]).get("writeConcernError") is None
            admin(member, "configureFailPoint", "stopReplProducer", mode="alwaysOn")
            reply = client.t.command("insert", "defaults", documents=[{}], check=False)
            assert reply["n"] == 1 and reply["writeConcernError"]["code"] == 64, reply
            # An explicit concern is applied.
            reply = client.t.command("insert", "defaults", documents=[{}], writeConcern={"w": "majority"})
            assert "writeConcernError" not in reply
        finally:
            admin(member, "configureFailPoint", "stopReplProducer", mode="off")
            default(w="majority")


def test_outcomes_of_writes_go_to_another_shard_when_a_majority_has_them(three):
    """A shard that was told of one that is taken back here would say that it was done."""
    until("the set is whole", three.is_whole, 60)
    others, primary = three.secondaries(), three.primary()
    session = {"id": bson.Binary(b"outcomes-of-test", 4)}
    write = {"insert": "outcomes", "documents": [{}], "lsid": session, "txnNumber": bson.Int64(1), "writeConcern": {"w": 1}}
    try:
        for member in others:
            admin(member, "configureFailPoint", "stopReplProducer", mode="alwaysOn")
        with primary.wire() as wire, ThreadPoolExecutor() as pool:
            assert wire.command({**write, "$db": "t"})["n"] == 1
            told = pool.submit(admin, primary, "_pandoSessions")
            with pytest.raises(TimeoutError):
                told.result(timeout=1)
            for member in others:
                admin(member, "configureFailPoint", "stopReplProducer", mode="off")
            assert len(told.result(timeout=20)["records"]) >= 1
    finally:
        for member in others:
            admin(member, "configureFailPoint", "stopReplProducer", mode="off")
