"""Deleted documents cost nothing: queues, states, windows by age, mass deletes, expiry. Tests count the
hidden keys that queries step over, never time."""

import datetime
import json
import threading

import pytest
from harness import Server, execution, free_port, until
from hidden_keys import FEW, fill, first, skipped, steps, until_few
from replica_set import ReplicaSet
from test_metrics import figures

@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A server without other clients: its counters are the test's."""
    path = tmp_path_factory.mktemp("dead") / "data"
    with Server(path, "--setParameter", "ttlMonitorSleepSecs=1") as server:
        yield server


@pytest.fixture
def q(own, request):
    with own.client() as client:
        coll = client.dead[request.node.name]
        yield coll
        coll.drop()


def test_a_queue(q):
    q.create_index([("st", 1), ("at", 1)])
    fill(q, 0, 1000, st="ready")
    spent = []
    for done in range(0, 6000, 500):
        fill(q, done + 1000, done + 1500, st="ready")

        def take():
            for at in range(done, done + 500):
                assert q.find_one_and_delete({"st": "ready"}, sort=[("at", 1)])["at"] == at

        spent.append(steps(q, take)[1])
    assert max(spent) < 500 * 60, spent
    for look in (
        lambda: first(q, {"st": "ready"}, "at"),
        lambda: q.find_one()["at"],
        lambda: first(q, {}, "_id") and 6000,
    ):
        until_few(q, look, 6000)
    # Jobs that come back to the head, and one that waits there.
    fill(q, 17, 18, st="ready")
    fill(q, -1, 0, st="ready")
    assert [d["at"] for d in q.find({"st": "ready"}).sort("at").limit(3)] == [-1, 17, 6000]
    assert q.count_documents({"st": "ready"}) == 1002


def test_takers_and_makers_at_once(own, q):
    q.create_index([("st", 1), ("at", 1)])
    fill(q, 0, 500, st="ready")
    taken, made, left = [], iter(range(500, 4000)), threading.Lock()

    def take():
        with own.client() as client:
            mine = client.dead[q.name]
            while (job := mine.find_one_and_delete({"st": "ready"}, sort=[("at", 1)])) is not None:
                taken.append(job["at"])
                with left:
                    at = next(made, None)
                if at is not None:
                    mine.insert_one({"st": "ready", "at": at})

    def run():
        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    stepped = steps(q, run)[1]
    assert sorted(taken) == list(range(4000))
    assert stepped < 4000 * 200, stepped
    until_few(q, lambda: q.find_one({"st": "ready"}), None)


def test_a_state_that_has_become_empty_beside_an_open_cursor(q):
    q.create_index([("st", 1), ("at", 1)])
    fill(q, 0, 8000, st="ready")
    opened = q.find(batch_size=10).sort("at", 1).hint([("st", 1), ("at", 1)])
    assert next(opened)["at"] == 0
    q.update_many({}, {"$set": {"st": "done"}})
    until_few(q, lambda: q.find_one({"st": "ready"}), None)
    until_few(q, lambda: q.count_documents({"st": "ready"}), 0)
    until_few(q, lambda: q.distinct("st"), ["done"])
    opened.close()
    q.update_one({"at": 4711}, {"$set": {"st": "ready"}})
    assert q.find_one({"st": "ready"})["at"] == 4711
    assert q.count_documents({"st": "ready"}) == 1


def test_a_window_by_age(q):
    q.create_index("at")
    fill(q, 0, 500)
    for begin in range(0, 10_000, 500):
        fill(q, begin + 500, begin + 1000)
        assert q.delete_many({"at": {"$lt": begin + 500}}).deleted_count == 500
        _, stepped = steps(q, lambda: q.find_one(sort=[("at", 1)]))
        # At most over keys that were just deleted, never over those deleted before.
        assert stepped < 500 * 4, begin
    until_few(q, lambda: first(q, {}, "at"), 10_000)
    until_few(q, lambda: q.find_one()["at"], 10_000)


def test_the_first_query_behind_a_mass_delete(own, q):
    q.create_index("at")
    for begin in range(0, 30_000, 10_000):
        fill(q, begin, begin + 10_000)
    q.delete_many({"at": {"$gte": 20, "$lt": 29_990}})
    ranges = lambda: q.database.client.admin.command("serverStatus")["pandodb"]["engine"]["deadRanges"]
    until("the server has looked around", lambda: ranges() >= 2)
    for look, wanted in [
        (lambda: first(q, {"at": {"$gte": 100}}, "at"), 29_990),
        (lambda: first(q, {"at": {"$lt": 25_000}}, "at", -1), 19),
        (lambda: sum(1 for _ in q.find()), 30),
        (lambda: q.count_documents({"at": {"$gte": 0}}), 30),
        (lambda: len(q.distinct("at")), 30),
        (lambda: sum(1 for _ in q.aggregate([{"$sort": {"at": -1}}])), 30),
    ]:
        until_few(q, look, wanted, 400)
    own.restart()
    with own.client() as client:
        again = client.dead[q.name]
        until_few(again, lambda: first(again, {"at": {"$gte": 100}}, "at"), 29_990)
        until_few(again, lambda: sum(1 for _ in again.find()), 30)
        fill(again, 500, 501)
        assert first(again, {"at": {"$gte": 100}}, "at") == 500


def test_what_has_expired(q):
    q.create_index("when", expireAfterSeconds=1)
    then = datetime.datetime(2001, 1, 1)
    q.insert_many([{"when": then + datetime.timedelta(seconds=n)} for n in range(6000)])
    q.insert_one({"when": "never"})
    until("all have expired", lambda: q.estimated_document_count() == 1, 60)
    until_few(q, lambda: q.find_one({"when": {"$lt": datetime.datetime(2020, 1, 1)}}), None)
    until_few(q, lambda: q.find_one()["when"], "never")
    engine = lambda: q.database.client.admin.command("serverStatus")["pandodb"]["engine"]["hiddenKeysSkipped"]
    passes = lambda: q.database.client.admin.command("serverStatus")["metrics"]["ttl"]["passes"]
    before, begun = engine(), passes()
    until("some passes", lambda: passes() >= begun + 3, 30)
    assert engine() - before < 10 * FEW


def test_an_old_snapshot_is_told_of(q):
    fill(q, 0, 100)
    engine = lambda: q.database.client.admin.command("serverStatus")["pandodb"]["engine"]
    until("nobody holds one", lambda: engine()["snapshots"] == 0)
    assert engine()["oldestSnapshotSecs"] == 0
    opened = q.find(batch_size=2)
    next(opened)
    assert engine()["snapshots"] >= 1
    until("it is old", lambda: engine()["oldestSnapshotSecs"] >= 1)
    opened.close()
    until("it is gone", lambda: engine()["snapshots"] == 0)


def test_what_is_stepped_over_is_told(new_server, tmp_path):
    log, metrics = tmp_path / "server.log", free_port()
    server = new_server("--logpath", log, "--metrics", metrics)
    with server.client() as client:
        db = client.t
        fill(db.c, 0, 50)
        db.c.delete_many({"at": {"$lt": 5}})
        # Too few to be noted: each look steps over them.
        _, stats = execution(db.c, {"find": "c"})
        assert (stats["nReturned"], stats["totalDocsExamined"]) == (45, 45)
        assert stats["totalHiddenKeysSkipped"] == 10, "five markers, and what they hide"
        for stage in ({"$group": {"_id": "$at"}}, {"$bucketAuto": {"groupBy": "$at", "buckets": 2}}):
            pipeline = {"aggregate": "c", "pipeline": [stage], "cursor": {}}
            explained = db.command("explain", pipeline, verbosity="executionStats")
            stats = explained.get("executionStats") or explained["stages"][0]["$cursor"]["executionStats"]
            assert stats["totalHiddenKeysSkipped"] == 10, stage
        _, stats = execution(db.c, {"find": "nothing"})
        assert "totalHiddenKeysSkipped" not in stats
        before = skipped(db.c)
        db.command("profile", 2, slowms=-1)
        assert db.c.find_one()["at"] == 5
        db.command("profile", 0, slowms=100)
        assert skipped(db.c) - before == 10
        (profile,) = db["system.profile"].find({"op": "query", "ns": "t.c"})
        assert profile["hiddenKeysSkipped"] == 10
        engine = client.admin.command("serverStatus")["pandodb"]["engine"]
        assert engine["hiddenKeysSkipped"] >= 30 and engine["deadRanges"] >= 0
        told = figures(metrics)
        assert told["pando_metrics_queryExecutor_hiddenKeysSkipped"] >= 30
        assert told["pando_pandodb_engine_hiddenKeysSkipped"] >= 30
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (line,) = [l for l in lines if l["msg"] == "Slow query" and l["attr"].get("command", {}).get("find") == "c"]
    assert line["attr"]["hiddenKeysSkipped"] == 10


COMMANDS = {
    "find": {"filter": {}},
    "aggregate": {"pipeline": [{"$group": {"_id": "$g"}}], "cursor": {}},
    "count": {"query": {"at": {"$gte": 0}}},
    "distinct": {"key": "g"},
    "findAndModify": {"query": {"at": {"$gte": 0}}, "update": {"$set": {"g": 1}}},
    "update": {"updates": [{"q": {"at": {"$gte": 0}}, "u": {"$set": {"g": 1}}}]},
    "delete": {"deletes": [{"q": {"at": {"$gte": 0}}, "limit": 1}]},
}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_tells_of_it(q, name):
    fill(q, 0, 50, g=0)
    q.delete_many({"at": {"$lt": 5}})
    db, command = q.database, {name: q.name, **COMMANDS[name]}
    explained = db.command("explain", command, verbosity="executionStats")
    stats = explained.get("executionStats") or explained["stages"][0]["$cursor"]["executionStats"]
    assert stats["totalHiddenKeysSkipped"] == 10
    before = skipped(q)
    db.command("profile", 2, slowms=-1)
    db.command(command)
    db.command("profile", 0, slowms=100)
    (profile,) = db["system.profile"].find({"ns": q.full_name, "op": {"$ne": "insert"}})
    assert (profile["hiddenKeysSkipped"], skipped(q) - before) == (10, 10)
    db["system.profile"].drop()


def test_secondaries_pass_over_the_same(tmp_path):
    with ReplicaSet(tmp_path, 2) as members:
        members.initiate()
        with members.client(w=2) as client, members.secondaries()[0].client() as other:
            c, copy = client.t.c, other.t.c
            c.create_index("at")
            fill(c, 0, 6000)
            c.delete_many({"at": {"$lt": 5990}})
            until("it is applied there", lambda: first(copy, {}, "at") == 5990)
            until_few(copy, lambda: first(copy, {}, "at"), 5990)
            until_few(copy, lambda: copy.find_one()["at"], 5990)
            # A later entry that is applied there ends the range there.
            fill(c, 100, 101)
            until("it is applied there", lambda: first(copy, {}, "at") == 100)
            assert copy.count_documents({"at": {"$lt": 5990}}) == 1
