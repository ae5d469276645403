"""What a shard promises to commit: it survives restarts and elections with its locks, until it is decided."""

import itertools
import threading

import bson
import pytest
from harness import until
from replica_set import ReplicaSet

numbers = itertools.count(1)
SMALL = ("--shardsvr", "--cache", "32MB")


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    with ReplicaSet(tmp_path_factory.mktemp("prepared"), options=SMALL) as running:
        yield running.initiate()


def send(members, command, **fields):
    with members.primary().wire() as wire:
        return wire.command({**command, "$db": "admin", **fields})


class Part:
    """This shard's part in a transaction that another shard decides."""

    def __init__(self, members, coll="c"):
        self.members, self.coll = members, coll
        self.lsid = {"id": bson.Binary(next(numbers).to_bytes(16, "big"), 4)}
        self.started = False

    def statement(self, command):
        start = {} if self.started else {"startTransaction": True}
        self.started = True
        return send(self.members, {**command, **self.within(), **start}, **{"$db": "t"})

    def within(self):
        return {"lsid": self.lsid, "txnNumber": bson.Int64(1), "autocommit": False}

    def insert(self, *docs):
        reply = self.statement({"insert": self.coll, "documents": list(docs)})
        assert reply["ok"] == 1 and reply["n"] == len(docs), reply
        return self

    def increment(self, _id):
        reply = self.statement({"update": self.coll, "updates": [{"q": {"_id": _id}, "u": {"$inc": {"n": 1}}}]})
        assert reply["ok"] == 1 and reply["nModified"] == 1, reply
        return self

    def prepare(self):
        return send(self.members, {"_pandoPrepare": 1, **self.within(), "recoveryShard": "other"})

    def end(self, command):
        return send(self.members, {command: 1, **self.within()})

    def decide(self, commit):
        return send(self.members, {"_pandoDecide": 1, "session": self.lsid, "number": bson.Int64(1), "commit": commit})


@pytest.fixture
def coll(members):
    with members.client() as client:
        client.t.drop_collection("c")
        client.t.c.insert_many([{"_id": n, "n": 0} for n in range(4)])
        yield client.t.c


def is_locked(members, _id):
    update = {"update": "c", "updates": [{"q": {"_id": _id}, "u": {"$set": {"seen": 1}}}], "maxTimeMS": 400}
    return send(members, update, **{"$db": "t"}).get("code") == 50


def listed(members):
    return send(members, {"_pandoPrepared": 1})["prepared"]


def test_a_part_is_seen_when_it_is_committed_and_only_then(members, coll):
    part = Part(members).increment(1).insert({"_id": 9, "n": 9})
    assert part.prepare()["ok"] == 1
    assert part.prepare()["ok"] == 1
    assert [p["recoveryShard"] for p in listed(members)] == ["other"]
    assert coll.find_one({"_id": 1})["n"] == 0 and coll.count_documents({}) == 4
    assert is_locked(members, 1) and not is_locked(members, 2)
    assert part.end("commitTransaction")["code"] == part.end("abortTransaction")["code"] == 267
    assert part.statement({"find": "c"})["code"] == 267
    status = send(members, {"serverStatus": 1})["transactions"]
    assert status["currentPrepared"] == 1
    for _ in range(2):
        assert part.decide(True)["ok"] == 1
    assert coll.find_one({"_id": 1})["n"] == 1 and coll.find_one({"_id": 9})["n"] == 9
    assert coll.count_documents({}) == coll.estimated_document_count() == 5
    assert listed(members) == [] and not is_locked(members, 1)
    assert part.end("commitTransaction")["ok"] == 1 and part.end("abortTransaction")["code"] == 256
    # An abort comes too late.
    assert part.decide(False)["prepared"] is False
    assert coll.find_one({"_id": 1})["n"] == 1


def test_a_part_that_is_aborted_leaves_nothing(members, coll):
    part = Part(members).increment(1).insert({"_id": 9})
    assert part.prepare()["ok"] == 1
    assert part.decide(False)["prepared"] is True
    assert coll.find_one({"_id": 1})["n"] == 0 and coll.count_documents({}) == 4
    assert not is_locked(members, 1)
    assert part.prepare()["code"] == 251
    assert part.decide(True)["prepared"] is False
    # Without a promise too.
    other = Part(members).increment(2)
    assert other.decide(False)["prepared"] is False
    assert not is_locked(members, 2) and other.prepare()["code"] == 251


def test_no_time_ends_a_part_and_no_second_one_gets_its_documents(members, coll):
    part = Part(members).increment(1)
    assert part.prepare()["ok"] == 1
    send(members, {"setParameter": 1, "transactionLifetimeLimitSeconds": 1})
    try:
        threading.Event().wait(3)
        loses = Part(members).statement({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 5}}}]})
        assert loses["code"] == 112 or loses["writeErrors"][0]["code"] == 112, loses
        # DDL waits, as it does for a transaction in progress.
        dropped = send(members, {"drop": "c", "maxTimeMS": 300}, **{"$db": "t"})
        assert dropped["code"] == 50
    finally:
        send(members, {"setParameter": 1, "transactionLifetimeLimitSeconds": 60})
    assert part.decide(True)["prepared"] is True
    assert coll.find_one({"_id": 1})["n"] == 1


def test_a_part_survives_kills_and_elections(members, coll):
    parts = [Part(members).increment(n) for n in range(3)]
    for part in parts:
        assert part.prepare()["ok"] == 1
    first = members.primary()
    first.kill()
    assert members.primary() is not first
    assert len(listed(members)) == 3 and all(is_locked(members, n) for n in range(3))
    assert parts[0].decide(True)["prepared"] is True
    first.start()
    until("the set is whole", members.is_whole, 60)
    # All at once: prepared transactions are on disk.
    for member in members.members:
        member.kill()
    for member in members.members:
        member.start()
    until("the set is whole", members.is_whole, 60)
    assert len(listed(members)) == 2 and is_locked(members, 1) and not is_locked(members, 0)
    until("it steps down", lambda: send(members, {"replSetStepDown": 10, "force": True}).get("ok"), 30)
    members.primary()
    assert parts[1].decide(True)["prepared"] is True
    assert parts[2].decide(False)["prepared"] is True
    assert [coll.find_one({"_id": n})["n"] for n in range(3)] == [1, 1, 0]
    assert not any(is_locked(members, n) for n in range(3))
    for member in members.members:
        with member.client() as client:
            shown = lambda c=client: [d["n"] for d in c.t.c.find({"_id": {"$lt": 3}}).sort("_id")] == [1, 1, 0]
            until(f"{member.address} has it", shown)


def test_numbers_of_records_that_wait_are_not_given_again(members, coll):
    """Long `_id`s lie under numbers: a new primary counts on behind those that are prepared."""
    with members.client() as client:
        client.t.drop_collection("long")
        name = lambda n: f"{n:040d}"
        client.t.long.insert_one({"_id": name(0)})
        part = Part(members, "long").insert({"_id": name(1)}, {"_id": name(2)})
        assert part.prepare()["ok"] == 1
        members.primary().kill()
        members.primary()
        client.t.long.insert_many([{"_id": name(n)} for n in range(3, 8)])
        assert part.decide(True)["prepared"] is True
        assert sorted(d["_id"] for d in client.t.long.find()) == [name(n) for n in range(8)]
        assert client.t.command("validate", "long")["valid"]
    for member in members.members:
        if not member.running():
            member.start()
    until("the set is whole", members.is_whole, 60)


def test_who_asks_for_the_outcome_ends_what_has_not_committed(members, coll):
    def outcome(part):
        reply = send(members, {"_pandoOutcome": 1, "session": part.lsid, "number": bson.Int64(1)})
        assert reply["ok"] == 1, reply
        return reply

    open_one, unknown = Part(members).increment(1), Part(members)
    assert outcome(open_one)["committed"] is False and outcome(unknown)["committed"] is False
    assert open_one.end("commitTransaction")["code"] == 251
    assert unknown.statement({"find": "c"})["code"] == 50911
    done = Part(members).increment(2)
    assert send(members, {"commitTransaction": 1, **done.within(), "participants": ["s7"]})["ok"] == 1
    for _ in range(2):
        told = outcome(done)
        assert told["committed"] is True and told["participants"] == ["s7"]
    assert [d["participants"] for d in send(members, {"_pandoPrepared": 1})["decisions"]] == [["s7"]]
    first = members.primary()
    first.kill()
    members.primary()
    assert outcome(open_one)["committed"] is False and outcome(done)["participants"] == ["s7"]
    assert send(members, {"_pandoOutcome": 1, "session": done.lsid, "number": bson.Int64(1), "told": True})["ok"] == 1
    assert outcome(done)["participants"] == [] and coll.find_one({"_id": 2})["n"] == 1
    first.start()
    until("the set is whole", members.is_whole, 60)


def test_a_change_stream_shows_a_part_at_its_commit(members, coll):
    with coll.watch(max_await_time_ms=100) as stream:
        part = Part(members).increment(1).insert({"_id": 9})
        assert part.prepare()["ok"] == 1
        assert stream.try_next() is None
        part.decide(True)
        events = [stream.next(), stream.next()]
    assert [e["operationType"] for e in events] == ["update", "insert"]
    assert all(e["lsid"]["id"] == part.lsid["id"] and e["txnNumber"] == 1 for e in events)
