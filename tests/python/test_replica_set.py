"""Replica sets of three processes: making one, reading from secondaries, failing over, taking back what no majority had."""

import contextlib
import os
import re
import signal
import threading
import time
import uuid

import pytest
from bson import Binary, Int64, ObjectId, decode_all
from harness import Server, until
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from replica_set import ReplicaSet, seconds_since, sees


@pytest.fixture
def three(tmp_path):
    with ReplicaSet(tmp_path) as members:
        yield members


def test_a_server_with_a_set_name_waits_for_its_configuration(three):
    with three.members[0].client() as client:
        hello = client.admin.command("hello")
        assert not hello["isWritablePrimary"] and not hello["secondary"] and hello["isreplicaset"]
        with pytest.raises(OperationFailure) as failure:
            client.admin.command("replSetGetStatus")
        assert failure.value.code == 94
        with pytest.raises(PyMongoError):
            client.t.c.insert_one({})


def test_three_members_have_what_is_written(three):
    three.initiate()
    with three.client() as client:
        assert client.admin.command("hello")["setName"] == "rs"
        coll = client.t.c
        coll.insert_many([{"_id": n, "x": n % 7} for n in range(500)])
        coll.create_index("x")
        coll.update_many({"x": 3}, {"$set": {"y": 1}})
        coll.delete_many({"x": 4})
        assert len(client.nodes) == 3
        wanted = coll.count_documents({})
        coll.with_options(write_concern=WriteConcern(w=3, wtimeout=20_000)).insert_one({"_id": "all"})
    for member in three.members:
        sees(member, {}, wanted + 1)
        with member.client() as client:
            assert {i["name"] for i in client.t.c.list_indexes()} == {"_id_", "x_1"}
            assert client.t.c.count_documents({"x": 3}, hint="x_1") == client.t.c.count_documents({"y": 1})
            assert client.t.command("validate", "c")["valid"]


def test_secondaries_refuse_writes_and_read_where_the_client_allows_it(three):
    three.initiate()
    with three.client() as client:
        client.t.c.with_options(write_concern=WriteConcern(w=3, wtimeout=20_000)).insert_one({"_id": 1})
        there = client.t.c.with_options(read_preference=ReadPreference.SECONDARY)
        # Acknowledged: on the disks of all. Applied a moment later.
        until("a secondary shows the document", lambda: there.find_one() == {"_id": 1})
    secondary = three.secondaries()[0]
    with secondary.wire() as wire:
        reply = wire.command({"insert": "c", "documents": [{"_id": 2}], "$db": "t"})
        assert reply["code"] == 10107 and reply["codeName"] == "NotWritablePrimary"
        version = wire.command({"hello": 1, "$db": "admin"})["topologyVersion"]
        assert reply["topologyVersion"] == version
        # The primary writes; what it wrote is here when the reply comes.
        out = {"aggregate": "c", "pipeline": [{"$out": "o"}], "cursor": {}, "$readPreference": {"mode": "secondary"}, "$db": "t"}
        assert wire.command(out)["cursor"] == {"id": 0, "ns": "t.c", "firstBatch": []}
        reply = wire.command({"find": "o", "$db": "t", "$readPreference": {"mode": "secondary"}})
        assert reply["cursor"]["firstBatch"] == [{"_id": 1}]
        out["pipeline"] = [{"$merge": {"into": "o", "whenMatched": "fail"}}]
        assert wire.command(out)["code"] == 11000
        out["pipeline"] = [{"$set": {"_id": 2}}, {"$merge": {"into": "o"}}]
        reply = wire.command({**out, "writeConcern": {"w": 4}})
        assert reply["ok"] == 1 and reply["writeConcernError"]["code"] == 100, reply
        del out["$readPreference"]
        assert wire.command(out)["code"] == 13435
        reply = wire.command({"find": "c", "$db": "t"})
        assert reply["code"] == 13435 and reply["codeName"] == "NotPrimaryNoSecondaryOk"
        assert reply["topologyVersion"] == version
        for source, code in [(secondary.address, 72), (three.secondaries()[1].address, 119), ("127.0.0.1:1", 74), (three.primary().address, None)]:
            assert wire.command({"replSetSyncFrom": source, "$db": "admin"}).get("code") == code
        reply = wire.command({"find": "c", "$db": "t", "$readPreference": {"mode": "nearest", "hedge": {"enabled": True}}})
        assert reply["cursor"]["firstBatch"] == [{"_id": 1}]
        reply = wire.command({"find": "c", "$db": "t", "$readPreference": {"mode": "secondary"}})
        assert reply["cursor"]["firstBatch"] == [{"_id": 1}]


def test_another_member_is_elected_when_the_primary_dies_and_nothing_is_lost(three):
    three.initiate()
    acknowledged = []
    with three.client() as client:
        coll = client.t.get_collection("c", write_concern=WriteConcern("majority"))
        for n in range(100):
            coll.insert_one({"_id": n})
            acknowledged.append(n)
        old = three.primary()
        old.kill()
        began = time.monotonic()
        coll.insert_one({"_id": 100})
        took = seconds_since(began)
        print(f"a write succeeded {took:.2f} s after the kill")
        assert took < 15
        for n in range(101, 150):
            coll.insert_one({"_id": n})
        old.start()
        sees(old, {}, 150)
        assert {d["_id"] for d in coll.find()} == set(range(150))
    until("the old primary is a secondary", three.is_whole)


def loses(three, write):
    """The primary alone makes writes, and comes back when another was elected. False: it had stepped down already."""
    old = three.primary()
    others = [m for m in three.members if m is not old]
    for other in others:
        other.kill()
    with old.client() as client:
        try:
            write(client.t.get_collection("c", write_concern=WriteConcern(1)))
        except PyMongoError:
            pytest.skip("the primary had stepped down already")
    old.kill()
    for other in others:
        other.start()
    with three.client() as client:
        client.t.c.insert_one({})
        old.start()
        until("the set is whole", three.is_whole)
    return old


def test_what_only_a_deposed_primary_has_is_taken_back_and_saved(three):
    three.initiate()
    with three.client() as client:
        client.t.c.insert_many([{"_id": "kept", "n": 1}, {"_id": "too", "n": 1}])
    old = three.primary()
    with old.client() as client:
        rbid = client.admin.command("replSetGetRBID")["rbid"]
        uuid_of = client.t.command("listCollections")["cursor"]["firstBatch"][0]["info"]["uuid"]

    def write(coll):
        coll.insert_many([{"_id": "lost"}, {"_id": "gone"}])
        coll.update_one({"_id": "kept"}, {"$set": {"n": 2}})
        coll.update_one({"_id": "lost"}, {"$set": {"n": 3}})
        coll.delete_one({"_id": "gone"})

    assert loses(three, write) is old
    for member in three.members:
        sees(member, {}, 3)
        with member.client() as client:
            assert client.t.c.find_one({"_id": "kept"}) == {"_id": "kept", "n": 1} and not client.t.c.find_one({"_id": "lost"})
    [file] = (old.path / "rollback").glob("*/*")
    assert file.parent.name == str(uuid.UUID(bytes=uuid_of)) and re.fullmatch(r"removed\.[-\dT]+\.0\.bson", file.name)
    documents = {d["_id"]: d for d in decode_all(file.read_bytes())}
    assert documents == {"kept": {"_id": "kept", "n": 2}, "lost": {"_id": "lost", "n": 3}}
    with old.client() as client:
        assert client.admin.command("replSetGetRBID")["rbid"] > rbid
        status = client.admin.command("serverStatus")
        assert status["pandodb"]["replication"]["rollbacks"] > 0 and status["repl"]["rbid"] > rbid
    assert any("documents that are taken back are saved" in line and file.name in line for line in old.tail(400).splitlines())


def test_what_is_taken_back_is_not_saved_where_that_is_switched_off(tmp_path):
    with ReplicaSet(tmp_path, options=["--setParameter", "createRollbackDataFiles=false"]) as three:
        three.initiate()
        with three.client() as client:
            client.t.c.insert_one({})
        old = loses(three, lambda coll: coll.insert_one({"_id": "lost"}))
        with old.client() as client:
            assert client.t.c.count_documents({"_id": "lost"}) == 0
            assert client.admin.command("serverStatus")["pandodb"]["replication"]["rollbacks"] > 0
        assert not (old.path / "rollback").exists()


def test_a_primary_steps_down_and_steps_aside(three):
    three.initiate()
    old = three.primary()
    with old.client() as client:
        client.t.c.insert_many([{"_id": n} for n in range(100)])
        known = client.admin.command("hello")["topologyVersion"]["counter"]
        began = time.monotonic()
        client.admin.command("replSetStepDown", 10)
        print(f"stepped down in {seconds_since(began):.2f} s")
    new = three.primary()
    assert new is not old
    with three.client() as client:
        client.t.c.insert_one({"_id": 100})
        assert client.t.c.count_documents({}) == 101
    with old.wire() as wire:
        reply = wire.command({"insert": "c", "documents": [{}], "$db": "t"})
        assert reply["code"] == 10107 and reply["topologyVersion"]["counter"] > known


def test_retryable_writes_go_on_over_an_election(three):
    three.initiate()
    stop, errors, done = threading.Event(), [], []

    def write():
        with three.client(retryWrites=True) as client:
            n = 0
            while not stop.is_set():
                try:
                    client.t.c.insert_one({"_id": n})
                    done.append(n)
                except PyMongoError as e:
                    errors.append(e)
                n += 1

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    until("writes are made", lambda: len(done) > 50)
    with three.primary().client() as client:
        client.admin.command("replSetStepDown", 15)
    before = len(done)
    until("writes are made again", lambda: len(done) > before + 50)
    stop.set()
    writer.join()
    assert not errors, errors[:3]
    with three.client() as client:
        assert {d["_id"] for d in client.t.c.find()} >= set(done)


def test_members_are_added_and_removed(tmp_path):
    with ReplicaSet(tmp_path, size=3) as members:
        with members.members[0].client() as client:
            # A busy machine must not make it lose its part meanwhile.
            settings = {"electionTimeoutMillis": 8_000}
            first = {"_id": "rs", "members": [{"_id": 0, "host": members.members[0].address}], "settings": settings}
            client.admin.command("replSetInitiate", first)
            client.t.c.insert_many([{"_id": n} for n in range(1000)])
            config = client.admin.command("replSetGetConfig")["config"]
            for n in (1, 2):
                config["version"] += 1
                config["members"].append({"_id": n, "host": members.members[n].address})
                client.admin.command("replSetReconfig", config)
                sees(members.members[n], {}, 1000)
                until("the member votes", members.is_whole if n == 2 else lambda: True)
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            # The machine of one is gone for good: another one takes its place.
            members.members[2].kill()
            del config["members"][2]
            client.admin.command("replSetReconfig", config)
            assert len(client.admin.command("hello")["hosts"]) == 2
            with Server(tmp_path / "fresh", "--replSet", "rs", "--cache", "32MB") as fresh:
                config = client.admin.command("replSetGetConfig")["config"]
                config["version"] += 1
                config["members"].append({"_id": 3, "host": fresh.address})
                client.admin.command("replSetReconfig", config)
                sees(fresh, {}, 1000)
                until("the member votes", lambda: client.admin.command("replSetGetStatus")["votingMembersCount"] == 3)
                client.t.get_collection("c", write_concern=WriteConcern(3, wtimeout=30_000)).insert_one({})


def test_a_removed_member_knows_it_and_comes_back(three):
    three.initiate()
    gone, number = (m := three.secondaries()[0]), three.members.index(m)
    with three.client() as client, gone.wire() as wire:
        client.t.c.insert_one({"_id": 1})
        config = client.admin.command("replSetGetConfig")["config"]
        own = config["members"].pop(number)
        config["version"] += 1
        client.admin.command("replSetReconfig", config)
        until("it knows", lambda: "info" in wire.command({"hello": 1, "$db": "admin"}))
        hello = wire.command({"hello": 1, "$db": "admin"})
        assert hello["secondary"] is False and hello["isreplicaset"] is True and "hosts" not in hello
        assert wire.command({"replSetGetStatus": 1, "$db": "admin"})["code"] == 93
        reply = wire.command({"find": "c", "$db": "t", "$readPreference": {"mode": "secondary"}})
        assert reply["code"] == 13436, reply
        client.t.c.insert_one({"_id": 2})
        config["version"] += 1
        config["members"].insert(number, own)
        client.admin.command("replSetReconfig", config)
    until("the set is whole again", three.is_whole, 60)
    sees(gone, {}, 2)


def test_write_concerns_of_several_members(three):
    three.initiate()
    with three.client(serverSelectionTimeoutMS=5000) as client:
        coll = client.t.c
        coll.with_options(write_concern=WriteConcern(w=3, wtimeout=20_000)).insert_one({"_id": 1})
        with pytest.raises(OperationFailure) as failure:
            coll.with_options(write_concern=WriteConcern(w=4)).insert_one({"_id": 2})
        assert failure.value.code == 100
        three.secondaries()[0].kill()
        with pytest.raises(PyMongoError) as failure:
            coll.with_options(write_concern=WriteConcern(w=3, wtimeout=300)).insert_one({"_id": 3})
        assert "timed out" in str(failure.value)
        # A write that fails by what it has seen waits, too.
        upsert = {"findAndModify": "c", "query": {"_id": 1, "x": 1}, "update": {"$set": {"y": 1}}, "upsert": True}
        reply = client.t.command({**upsert, "writeConcern": {"w": 3, "wtimeout": 300}}, check=False)
        assert reply["code"] == 11000 and reply["writeConcernError"]["code"] == 64, reply
        coll.insert_one({"_id": 4})


def test_one_member_and_its_disk_wait_for_no_other(three):
    # How long a primary stays one that hears of no other member.
    three.initiate(settings={"electionTimeoutMillis": 120_000})
    primary = three.primary()
    for secondary in three.secondaries():
        secondary.kill()
    with primary.client() as client:
        coll = client.t.c
        coll.with_options(write_concern=WriteConcern(w=1, j=True)).insert_one({"_id": 1})
        with pytest.raises(PyMongoError) as failure:
            coll.with_options(write_concern=WriteConcern("majority", wtimeout=300)).insert_one({"_id": 2})
        assert "timed out" in str(failure.value)
        last = client.admin.command("hello")["lastWrite"]
        assert last["opTime"]["ts"] > last["majorityOpTime"]["ts"]
        optimes = client.admin.command("replSetGetStatus")["optimes"]
        assert optimes["appliedOpTime"]["ts"] == last["opTime"]["ts"]
        assert optimes["lastCommittedOpTime"]["ts"] == last["majorityOpTime"]["ts"]


def test_the_status_tells_of_each_member_what_it_has(three):
    three.initiate()
    with three.client() as client:
        client.t.c.insert_many([{"_id": n} for n in range(100)])
    stopped = three.secondaries()[0]
    stopped.kill()
    with three.client() as client:
        client.t.c.insert_many([{"_id": n} for n in range(100, 200)])
        behind = three.members.index(stopped)

        def reported():
            status = client.admin.command("replSetGetStatus")
            members = {m["_id"]: m for m in status["members"]}
            there = [m["optime"]["ts"] for m in members.values() if m["health"] == 1]
            return members if there.count(max(there)) == 2 and members[behind]["health"] == 0 else None

        members = until("the other two have all", reported)
        newest = max(m["optime"]["ts"] for m in members.values())
        assert members[behind]["optime"]["ts"] < newest
        for member in members.values():
            primary = member["stateStr"] == "PRIMARY"
            assert ("lastHeartbeat" in member) != primary
            assert (member["syncSourceHost"] == "") == primary
        metrics = client.admin.command("replSetGetStatus")["electionCandidateMetrics"]
        assert metrics["lastElectionReason"] == "electionTimeout"
    secondary = next(m for m in three.secondaries())
    with secondary.client() as client:
        counts = client.admin.command("serverStatus")["opcountersRepl"]
        assert counts["insert"] >= 200, counts
    step_down(three.primary())
    with three.client() as client:
        metrics = client.admin.command("replSetGetStatus")["electionCandidateMetrics"]
        assert metrics["lastElectionReason"] == "stepUpRequestSkipDryRun"


def test_a_causal_session_sees_its_writes_on_a_secondary(three):
    three.initiate()
    with three.client() as client, client.start_session(causal_consistency=True) as session:
        write = client.t.get_collection("c", write_concern=WriteConcern("majority"))
        read = client.t.get_collection("c", read_preference=ReadPreference.SECONDARY, read_concern=ReadConcern("majority"))
        for n in range(50):
            write.insert_one({"_id": n}, session=session)
            assert read.find_one({"_id": n}, session=session) == {"_id": n}


def test_linearizable_reads_ask_a_majority(three):
    three.initiate()
    with three.client(serverSelectionTimeoutMS=5000) as client:
        coll = client.t.get_collection("c", read_concern=ReadConcern("linearizable"))
        coll.insert_one({"_id": 1})
        assert coll.find_one() == {"_id": 1}
        primary = three.primary()
        for secondary in three.secondaries():
            secondary.kill()
        with primary.wire() as wire:
            reply = wire.command({"find": "c", "readConcern": {"level": "linearizable"}, "maxTimeMS": 5000, "$db": "t"})
            assert reply["ok"] == 0, reply


def test_change_streams_go_on_after_an_election(three):
    three.initiate()
    # The driver waits this long for the member that it had the cursor of.
    with three.client(serverSelectionTimeoutMS=10_000) as client:
        coll = client.t.c
        with coll.watch() as stream:
            coll.insert_one({"_id": 1})
            assert next(stream)["documentKey"] == {"_id": 1}
            three.primary().kill()
            coll.insert_one({"_id": 2})
            assert next(stream)["documentKey"] == {"_id": 2}


def test_transactions_commit_on_a_majority(three):
    three.initiate()
    with three.client() as client:
        coll = client.t.c
        coll.insert_one({"_id": 0, "n": 0})
        with client.start_session() as session:
            def work(s):
                coll.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=s)
                coll.insert_one({"n": 1}, session=s)
            session.with_transaction(work)
        assert coll.find_one({"_id": 0})["n"] == 1
        three.primary().kill()
        with client.start_session() as session:
            session.with_transaction(work)
        assert coll.find_one({"_id": 0})["n"] == 2 and coll.count_documents({}) == 3


def test_wrong_configurations_are_refused(three):
    with three.members[0].client() as client:
        for config, code in [
            ({"_id": "other", "members": [{"_id": 0, "host": three.members[0].address}]}, 93),
            ({"_id": "rs", "members": [{"_id": 0, "host": "127.0.0.1:1"}]}, 93),
            ({"_id": "rs", "members": []}, 93),
            (three.config(m1={"arbiterOnly": True, "priority": 0}), 93),
            (three.config(m1={"secondaryDelaySecs": 60}), 93),
        ]:
            with pytest.raises(OperationFailure) as failure:
                client.admin.command("replSetInitiate", config)
            assert failure.value.code == code, config
    three.initiate(m1={"priority": 0}, m2={"priority": 0})
    with three.members[0].client() as client:
        with pytest.raises(OperationFailure) as failure:
            client.admin.command("replSetInitiate", three.config())
        assert failure.value.code == 23
        config = client.admin.command("replSetGetConfig")["config"]
        members, other = config["members"], ObjectId()
        # As rs.addArb writes it.
        arbiter = {"_id": 3, "host": "127.0.0.1:1", "arbiterOnly": True, "priority": 0}
        for change, code, says in [
            ({"members": [*members, arbiter]}, 103, "give the set another member with data"),
            ({"members": members[1:]}, 103, "priority > 0"),
            ({"members": [{**members[0], "priority": 0}, {**members[1], "priority": 1}, members[2]]}, 104, "not electable"),
            ({"members": [{**members[1], "priority": 1}, members[2]]}, 74, "maps to this node"),
            ({"settings": {**config["settings"], "replicaSetId": other}}, 103, "differ in replica set ID"),
            ({"version": config["version"]}, 103, "must be greater"),
        ]:
            with pytest.raises(OperationFailure) as failure:
                client.admin.command("replSetReconfig", {**config, "version": config["version"] + 1, **change})
            assert failure.value.code == code and says in failure.value.details["errmsg"], (change, failure.value)
        assert len(client.admin.command("replSetGetConfig")["config"]["members"]) == 3
    # Another set of the same name, and another member's part.
    for to, set_id in [(2, other), (1, config["settings"]["replicaSetId"])]:
        with three.members[1].wire() as wire:
            batch = {"pandoReplicate": 1, "version": 1, "set": "rs", "setId": set_id, "founder": Int64(1), "to": Int64(to), "$db": "admin"}
            reply = wire.command(batch)
            assert reply["code"] == 93 and "another replica set of the name rs" in reply["errmsg"], reply


def test_a_member_of_higher_priority_takes_over(three):
    """Also while others write all the time, so that it always lacks the newest entries."""
    three.initiate()
    favourite = three.secondaries()[0]
    written, ends = [], threading.Event()

    def write():
        with three.client(w=1) as client:
            while not ends.is_set():
                written.append(client.t.c.insert_many([{} for _ in range(50)]).inserted_ids)

    with three.client() as client:
        client.t.c.insert_one({"_id": "first"})
        config = client.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        config["members"][three.members.index(favourite)]["priority"] = 2
        writers = [threading.Thread(target=write) for _ in range(3)]
        for writer in writers:
            writer.start()
        try:
            client.admin.command("replSetReconfig", config)
            began, before = time.monotonic(), len(written)
            until("the member of higher priority is primary", lambda: three.primary() is favourite, timeout_s=12)
            print(f"it took over after {seconds_since(began):.1f} s")
            until("writes go on", lambda: len(written) > before + 100)
        finally:
            ends.set()
            for writer in writers:
                writer.join()
    with favourite.client() as client:
        metrics = client.admin.command("replSetGetStatus")["electionCandidateMetrics"]
        assert metrics["lastElectionReason"] == "priorityTakeover" and metrics["priorityAtElection"] == 2
        assert client.t.c.count_documents({}) == 1 + sum(len(ids) for ids in written)


def test_a_server_without_a_set_name_says_how_it_becomes_one_of_three(tmp_path):
    first = Server(tmp_path / "m0").start()
    others = [Server(tmp_path / f"m{n}", "--replSet", "rs0").start() for n in (1, 2)]
    try:
        with first.client() as client:
            client.t.c.insert_many([{"_id": n} for n in range(100)])
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            config["members"].append({"_id": 1, "host": others[0].address})
            with pytest.raises(OperationFailure) as failure:
                client.admin.command("replSetReconfig", config)
            assert failure.value.code == 103 and "--replSet rs0" in failure.value.details["errmsg"]
        first.stop()
        first.options += ["--replSet", "rs0"]
        first.start()
        with first.client() as client:
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": first.address}]})
            for n, other in enumerate(others, 1):
                config = client.admin.command("replSetGetConfig")["config"]
                config["version"] += 1
                config["members"].append({"_id": n, "host": other.address})
                client.admin.command("replSetReconfig", config)
            client.t.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=20_000)).insert_one({"_id": 100})
        for server in others:
            sees(server, {}, 101)
    finally:
        for server in (first, *others):
            server.kill()


def test_members_that_do_not_stand_vote_for_others(three):
    three.initiate(m2={"priority": 0})
    members = three.members
    primary = three.primary()
    primary.kill()
    other = members[1] if primary is members[0] else members[0]
    with other.client() as client:
        until("the third votes for it", lambda: client.admin.command("hello")["isWritablePrimary"])


def test_what_only_a_member_that_may_not_be_primary_has_is_brought_to_the_others(three):
    """No member is elected without its vote, and it cannot vote for one that has less."""
    three.initiate(m0={"priority": 2}, m2={"priority": 0})
    first, behind, keeper = three.members
    until("the first is primary", lambda: three.primary() is first)
    behind.kill()
    with first.client() as client:
        client.t.get_collection("c", write_concern=WriteConcern(2, wtimeout=20_000)).insert_one({"_id": "kept"})
    first.kill()
    behind.start()
    until("one that may be primary is", lambda: three.states() == ["none", "primary", "secondary"], timeout_s=20)
    sees(behind, {}, 1)
    with keeper.client() as client:
        said = client.admin.command("replSetGetStatus")
        assert said["myState"] == 2 and said["term"] > 2


def test_a_delayed_member_has_entries_at_once_and_applies_them_late(three):
    three.initiate(m2={"priority": 0, "hidden": True, "secondaryDelaySecs": 3600})
    delayed = three.members[2]
    with three.client() as client:
        # What it has on its disk counts.
        client.t.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=20_000)).insert_many([{"_id": n} for n in range(10)])

        def behind():
            member = client.admin.command("replSetGetStatus")["members"][2]
            return member["optime"]["ts"] < member["optimeDurable"]["ts"] and member["stateStr"] == "SECONDARY"

        until("the primary tells that it is behind", behind)
    sees(delayed, {}, 0)
    with delayed.client() as client:
        hello = client.admin.command("hello")
        assert hello["hidden"] and hello["passive"] and hello["secondaryDelaySecs"] == 3600
        optimes = client.admin.command("replSetGetStatus")["optimes"]
        assert optimes["appliedOpTime"]["ts"] < optimes["durableOpTime"]["ts"]
        assert client.local["oplog.rs"].count_documents({"ns": "t.c"}) == 0
    # A start applies no more than that.
    delayed.restart()
    sees(delayed, {}, 0)
    for delay in (1, 0):
        with three.client() as client:
            client.t.c.insert_one({"delay": delay})
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            config["members"][2]["secondaryDelaySecs"] = delay
            client.admin.command("replSetReconfig", config)
        sees(delayed, {}, 12 - delay)


def test_a_member_whose_program_is_too_old_says_so(three):
    three.initiate()
    with three.secondaries()[0].wire() as wire:
        reply = wire.command({"pandoReplicate": 1, "version": 99, "set": "rs", "$db": "admin"})
        assert reply["codeName"] == "IncompatibleServerVersion", reply
        assert "too old" in reply["errmsg"] and "99" in reply["errmsg"]


def test_the_feature_version_is_that_of_the_set(three):
    three.initiate()

    def versions():
        out = []
        for member in three.members:
            with member.client() as client:
                out.append(client.admin.command("getParameter", 1, featureCompatibilityVersion=1)["featureCompatibilityVersion"]["version"])
        return out

    first = versions()
    assert first == [first[0]] * 3 and first[0] != "8.2"
    with three.client() as client:
        client.admin.command("setFeatureCompatibilityVersion", "8.2", confirm=True)
    until("all members have it", lambda: versions() == ["8.2"] * 3)
    with three.secondaries()[0].wire() as wire:
        other = {"setFeatureCompatibilityVersion": first[0], "confirm": True, "$db": "admin"}
        assert wire.command(other)["code"] == 10107
    # A member learns of it on the way, whatever it was started with.
    behind = three.secondaries()[0]
    behind.kill()
    with three.client() as client:
        client.admin.command("setFeatureCompatibilityVersion", first[0], confirm=True)
    behind.start()
    until("the member that was away has it too", lambda: versions() == first)


def test_the_configuration_is_a_collection_too(three):
    three.initiate()
    with three.client() as client:
        config = client.admin.command("replSetGetConfig")["config"]
        stored = client.local["system.replset"]
        assert stored.find_one() == config == stored.find_one({"_id": "rs"})
        assert stored.find_one({"_id": "other"}) is None
        assert stored.count_documents({}) == 1 and client.local.command("count", "system.replset")["n"] == 1
        assert list(stored.aggregate([{"$unwind": "$members"}, {"$count": "n"}])) == [{"n": 3}]


def changes_hands(three, member):
    """Another member becomes primary."""
    step_down(member)
    new = three.primary()
    assert new is not member
    return new


def test_a_primary_that_is_elected_again_goes_on_behind_what_others_wrote(three):
    three.initiate(m2={"priority": 0})
    first = three.primary()
    with three.client() as client:
        client.t.create_collection("capped", capped=True, size=1 << 20)

    def write(part):
        with three.client() as client:
            # Such `_id`s lie under numbers, as records of capped collections do.
            client.t.c.insert_many([{"_id": f"{part}-{n:060}"} for n in range(20)])
            client.t.capped.insert_many([{"_id": f"{part}-{n}"} for n in range(20)])

    write(1)
    second = changes_hands(three, first)
    write(2)
    assert changes_hands(three, second) is first
    write(3)
    for member in three.members:
        sees(member, {}, 60)
        with member.client() as client:
            until("the capped collection is there", lambda: client.t.capped.count_documents({}) == 60)
            assert [d["_id"] for d in client.t.capped.find()] == [f"{p}-{n}" for p in (1, 2, 3) for n in range(20)]
            for coll in ("c", "capped"):
                assert client.t.command("validate", coll)["valid"]


def test_a_write_decided_under_one_term_is_not_made_in_another(three):
    three.initiate(m2={"priority": 0})
    first = three.primary()
    with three.client() as client:
        client.t.c.insert_one({"_id": 1, "n": 0})
    outcome = []

    def slow():
        script = "function(n) { const end = Date.now() + 4000; while (Date.now() < end) {} return n + 1 }"
        n = {"$function": {"body": script, "args": ["$n"], "lang": "js"}}
        with first.client(retryWrites=False) as client:
            try:
                outcome.append(client.t.c.update_one({"_id": 1}, [{"$set": {"n": n}}]).modified_count)
            except PyMongoError as e:
                outcome.append(e)

    writer = threading.Thread(target=slow, daemon=True)
    with first.client() as client:
        writer.start()
        until("the update runs", lambda: client.admin.command("currentOp", {"command.update": "c"})["inprog"])
    second = changes_hands(three, first)
    with three.client() as client:
        client.t.c.update_one({"_id": 1}, {"$inc": {"n": 1}})
    assert changes_hands(three, second) is first
    writer.join(60)
    acknowledged = 1 + (outcome == [1])
    with three.client() as client:
        assert client.t.c.find_one()["n"] == acknowledged, outcome


def test_a_transaction_ends_with_its_primary(three):
    three.initiate(m2={"priority": 0})
    first = three.primary()
    with three.client() as client:
        client.t.c.insert_one({"_id": 1, "n": 0})
    with first.wire() as wire:
        transaction = {"lsid": {"id": Binary(uuid.uuid4().bytes, 4)}, "txnNumber": Int64(1), "autocommit": False}
        update = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}], "$db": "t"}
        assert wire.command({**update, **transaction, "startTransaction": True})["ok"] == 1
        second = changes_hands(three, first)
        reply = wire.command({**update, **transaction})
        assert reply["code"] == 10107 and reply["errorLabels"] == ["TransientTransactionError"], reply
        with three.client() as client:
            # Its locks are gone.
            client.t.c.update_one({"_id": 1}, {"$inc": {"n": 1}})
        assert changes_hands(three, second) is first
        with three.client() as client:
            client.t.c.update_one({"_id": 1}, {"$inc": {"n": 1}})
        reply = wire.command({"commitTransaction": 1, **transaction, "$db": "admin"})
        assert reply["code"] == 251 and reply["errorLabels"] == ["TransientTransactionError"], reply
    with three.client() as client:
        assert client.t.c.find_one()["n"] == 2


def test_a_primary_whose_memory_tables_wait_for_a_majority_steps_down(tmp_path):
    """Writes stall while no majority has what fills the memory tables. Stepping down waits for those
    writes, and has to let the acknowledgements in that they wait for."""
    with ReplicaSet(tmp_path, options=["--cache", "32MB"]) as members:
        # How long a primary stays one that hears of no other member.
        members.initiate(settings={"electionTimeoutMillis": 120_000})
        primary = members.primary()
        others = [m for m in members.members if m is not primary]
        for other in others:
            other.process.send_signal(signal.SIGSTOP)
        written, stop = [], threading.Event()

        def write():
            with contextlib.suppress(PyMongoError), primary.client(socketTimeoutMS=60_000) as client:
                coll = client.t.get_collection("c", write_concern=WriteConcern(1))
                while not stop.is_set():
                    coll.insert_one({"fill": os.urandom(200_000)})
                    written.append(time.monotonic())

        writer = threading.Thread(target=write)
        writer.start()

        until("writes stall", lambda: len(written) > 50 and time.monotonic() - written[-1] > 1.5, 60)
        down = threading.Thread(target=step_down, args=(primary,))
        down.start()
        with primary.client() as client:
            until("it is stepping down", lambda: client.admin.command("currentOp", {"command.replSetStepDown": 5})["inprog"])
        for other in others:
            other.process.send_signal(signal.SIGCONT)
        until("there is a primary that takes writes", lambda: takes_a_write(members), 60)
        stop.set()
        writer.join(60)
        down.join(60)


def step_down(member):
    with contextlib.suppress(PyMongoError), member.client(socketTimeoutMS=40_000) as client:
        client.admin.command("replSetStepDown", 5, force=True, secondaryCatchUpPeriodSecs=1)


def takes_a_write(members):
    with contextlib.suppress(PyMongoError), members.client(serverSelectionTimeoutMS=3000) as client:
        client.t.get_collection("d", write_concern=WriteConcern("majority", wtimeout=10_000)).insert_one({})
        return True
