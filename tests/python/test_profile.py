"""The profiler (`profile`, `system.profile`) and the lines of slow operations in the log."""

import json

import pytest
from pymongo import UpdateOne

from harness import refuses


@pytest.fixture
def profiled(db):
    yield db
    db.command("profile", 0, slowms=100, sampleRate=1.0, filter="unset")


def profiles(db, **query):
    return list(db["system.profile"].find(query).sort("ts", 1))


def test_everything_is_profiled(profiled):
    db = profiled
    db.c.create_index("a")
    assert db.command("profile", 2)["was"] == 0
    db.c.insert_many([{"_id": i, "a": i} for i in range(10)])
    list(db.c.find({"a": {"$gte": 5}}).comment("by index"))
    list(db.c.find({"b": 1}))
    db.c.update_many({"a": {"$lt": 3}}, {"$set": {"b": 1}})
    db.c.delete_one({"_id": 9})
    assert db.command("profile", 0)["was"] == 2
    db.c.find_one()
    seen = profiles(db, ns=f"{db.name}.c")
    assert [p["op"] for p in seen] == ["insert", "query", "query", "update", "remove"]
    insert, by_index, scan, update, remove = seen
    assert insert["ninserted"] == 10
    assert (by_index["planSummary"], by_index["keysExamined"], by_index["docsExamined"]) == ("IXSCAN { a: 1 }", 5, 5)
    assert by_index["nreturned"] == 5 and by_index["cursorExhausted"] is True
    assert by_index["command"]["comment"] == "by index"
    assert (scan["planSummary"], scan["docsExamined"], scan["nreturned"]) == ("COLLSCAN", 10, 0)
    assert (update["nMatched"], update["nModified"], remove["ndeleted"]) == (3, 3, 1)
    for p in seen:
        assert p["responseLength"] > 0 and p["millis"] >= 0 and p["client"].startswith("127.0.0.1")


def test_hints_of_updates_and_deletes(profiled):
    db = profiled
    db.c.create_index("a")
    db.command("profile", 2)
    for hint in ("a_1", [("a", 1)]):
        db.c.update_one({"a": 1}, {"$set": {"b": 1}}, hint=hint)
        db.c.delete_many({"a": 1}, hint=hint)
    db.command("profile", 0)
    seen = profiles(db, ns=f"{db.name}.c")
    assert [p["op"] for p in seen] == ["update", "remove"] * 2
    assert [p["command"]["hint"] for p in seen] == [{"$hint": "a_1"}] * 2 + [{"a": 1}] * 2


def test_only_what_is_slow_or_matches(profiled):
    db = profiled
    db.command("profile", 1, slowms=1_000_000)
    db.c.insert_one({"_id": 1})
    assert profiles(db) == []
    db.command("profile", 1, slowms=-1)
    db.c.find_one()
    assert [p["op"] for p in profiles(db)] == ["query"]
    db.command("profile", 1, slowms=-1, sampleRate=0.0)
    db.c.find_one()
    assert len(profiles(db, ns=f"{db.name}.c")) == 1
    reply = db.command("profile", 1, filter={"op": "insert", "ninserted": {"$gt": 1}})
    assert "filter" not in reply
    db.c.insert_one({})
    db.c.insert_many([{}, {}])
    assert [p["ninserted"] for p in profiles(db, op="insert")] == [2]
    reply = db.command("profile", -1)
    assert reply["was"] == 1 and reply["filter"] == {"$and": [{"op": {"$eq": "insert"}}, {"ninserted": {"$gt": 1}}]}


def test_errors_are_profiled(profiled):
    db = profiled
    db.command("profile", 2)
    with refuses(2):
        db.command("find", "c", filter={"$nope": 1})
    (p,) = profiles(db, errCode=2)
    assert p["ok"] is False and p["errName"] == "BadValue"


def test_databases_have_their_own_level(client, profiled):
    other = client[f"{profiled.name}_other"]
    profiled.command("profile", 2)
    other.c.insert_one({})
    assert other.command("profile", -1)["was"] == 0
    assert "system.profile" not in other.list_collection_names()
    client.drop_database(other.name)


def test_slow_operations_are_logged(new_server, tmp_path):
    log = tmp_path / "server.log"
    server = new_server("--logpath", log)
    with server.client(appname="slow tester") as client:
        db = client.t
        db.c.insert_many([{"a": i} for i in range(20)])
        db.command("profile", 0, slowms=-1)
        list(db.c.find({"a": {"$lt": 5}}))
        db.c.update_one({"a": 3}, {"$set": {"b": 1}})
        db.command("profile", 0, slowms=100)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (line,) = [l for l in lines if l["msg"] == "Slow query" and l["attr"].get("command", {}).get("find") == "c"]
    assert (line["c"], line["id"], line["s"]) == ("COMMAND", 51803, "I") and line["ctx"].startswith("conn")
    attr = line["attr"]
    assert attr["ns"] == "t.c" and attr["appName"] == "slow tester" and attr["planSummary"] == "COLLSCAN"
    assert (attr["docsExamined"], attr["nreturned"]) == (20, 5)
    assert attr["type"] == "command" and attr["durationMillis"] >= 0 and attr["remote"].startswith("127.0.0.1")
    (line,) = [l for l in lines if l["msg"] == "Slow query" and l["attr"]["type"] == "update"]
    assert line["c"] == "WRITE" and line["attr"]["command"]["q"] == {"a": 3} and line["attr"]["nModified"] == 1


def test_how_a_plan_was_chosen_is_profiled(profiled):
    db = profiled
    # A range without a limit on either side of which the other index is better: only a race can tell.
    db.c.insert_many([{"_id": i, "a": i % 500, "b": i % 7, "c": i} for i in range(20_000)])
    db.c.create_index("a")
    db.c.create_index([("b", 1), ("c", 1)])
    db.command("profile", 2)
    for low in (1, 2):
        list(db.c.find({"a": {"$gte": low}, "b": 3, "c": {"$gte": 15_000}}).limit(20))
    list(db.c.find({"c": 5, "a": 7}))
    db.c.update_one({"a": 7, "b": 1}, {"$set": {"d": 1}})
    db.c.count_documents({"a": 7})
    db.c.distinct("a", {"b": 3})
    db.command("profile", 0)
    first, second, other, update, counted, distinct = profiles(db, ns=f"{db.name}.c")
    for p in (first, second, other, update, counted, distinct):
        assert len(p["planCacheShapeHash"]) == 8 and p["planCacheShapeHash"] == p["planCacheKey"]
        assert p["planningTimeMicros"] >= 0
    for p in (first, second, other, counted, distinct):
        assert len(p["queryShapeHash"]) == 64
    assert first["planningTimeMicros"] > 0
    assert first["queryShapeHash"] == second["queryShapeHash"] != other["queryShapeHash"]
    assert first["planCacheShapeHash"] == second["planCacheShapeHash"] != other["planCacheShapeHash"]
    told = db.command("explain", {"find": "c", "filter": {"c": 6, "a": 8}}, verbosity="queryPlanner")
    assert told["queryShapeHash"] == other["queryShapeHash"]
    assert told["queryPlanner"]["planCacheShapeHash"] == other["planCacheShapeHash"]
    pipeline = [{"$match": {"a": 9}}, {"$group": {"_id": 1, "n": {"$sum": 1}}}]
    told = db.command("explain", {"aggregate": "c", "pipeline": pipeline, "cursor": {}}, verbosity="queryPlanner")
    assert told["queryShapeHash"] == counted["queryShapeHash"]
    assert told["queryPlanner"]["planCacheShapeHash"] == counted["planCacheShapeHash"]


def test_a_getmore_inherits_the_comment(profiled):
    db = profiled
    db.c.insert_many([{"_id": i} for i in range(6)])
    db.command("profile", 2)
    assert len(list(db.c.find(comment="mine", batch_size=2))) == 6
    assert len(list(db.c.find(batch_size=4))) == 6
    db.command("profile", 0)
    comments = [p["command"].get("comment") for p in profiles(db, op="getmore")]
    assert len(comments) >= 3 and comments[:2] == ["mine", "mine"] and comments[-1] is None


def test_updates_and_deletes_tell_their_statements(profiled):
    db = profiled
    db.c.insert_many([{"_id": i, "secret": i} for i in range(4)])
    db.command("profile", 2)
    db.c.insert_one({"_id": 9, "secret": 9})
    db.c.update_many({"secret": {"$gt": 1}}, {"$set": {"b": 1}}, comment="why")
    db.c.delete_one({"_id": 0})
    db.c.bulk_write([UpdateOne({"_id": 1}, {"$set": {"b": 1}}), UpdateOne({"_id": 2}, {"$set": {"b": 2}})])
    db.command("profile", 0)
    insert, update, remove, several = [p["command"] for p in profiles(db, ns=f"{db.name}.c")]
    # Of an insert the documents are left out.
    assert insert["insert"] == "c" and "secret" not in str(insert)
    wanted = {"q": {"secret": {"$gt": 1}}, "u": {"$set": {"b": 1}}, "multi": True, "upsert": False, "comment": "why"}
    assert update == wanted
    assert remove == {"q": {"_id": 0}, "limit": 1}
    assert several["update"] == "c" and [u["q"] for u in several["updates"]] == [{"_id": 1}, {"_id": 2}]


def test_long_statements_are_cut_off(profiled):
    db = profiled
    db.command("profile", 2)
    db.c.update_one({"_id": 1}, {"$set": {"a": "x" * 50_000}})
    db.c.bulk_write([UpdateOne({"_id": i}, {"$set": {"a": "x" * 5000}}) for i in range(9)])
    db.command("profile", 0)
    one, many = [p["command"] for p in profiles(db, ns=f"{db.name}.c")]
    assert "$truncated" in one
    assert many["updates"][0]["q"] == {"_id": 0} and many["updates"][-1] == "..." and len(many["updates"]) < 9


def test_its_collection_stays_while_it_runs(profiled):
    db = profiled
    db.command("profile", 2)
    db.c.find_one()
    with refuses(20):
        db["system.profile"].drop()
    db.command("profile", 0)
    db["system.profile"].drop()
    assert "system.profile" not in db.list_collection_names()


def test_a_filter_of_all_databases(profiled, client):
    db, admin, knob = profiled, client.admin, "internalQueryGlobalProfilingFilter"
    change = "setProfilingFilterGlobally"
    with refuses(7283301):
        admin.command(change, 1, filter={})
    admin.command("setParameter", 1, **{knob: True})
    try:
        other = client[db.name + "_other"]
        other.command("profile", 1, filter={"nreturned": 7})
        assert admin.command(change, 1, filter={"nreturned": 3})["was"] == "none"
        # Those that are profiled and those to come have it.
        assert other.command("profile", -1)["filter"] == {"nreturned": {"$eq": 3}}
        assert db.command("profile", 1)["filter"] == {"nreturned": {"$eq": 3}}
        db.c.insert_many([{"_id": i} for i in range(3)])
        for n in (1, 3):
            assert len(list(db.c.find().limit(n))) == n
        assert [p["nreturned"] for p in profiles(db, ns=f"{db.name}.c")] == [3]
        # One may have its own all the same, or none.
        db.command("profile", 0, filter="unset")
        assert "filter" not in db.command("profile", -1)
        for bad in (1, "none"):
            with refuses(2):
                admin.command(change, 1, filter=bad)
        assert admin.command(change, 1, filter="unset")["was"] == {"nreturned": {"$eq": 3}}
        assert admin.command(change, 1, filter="unset")["was"] == "none"
        assert "filter" not in other.command("profile", 0)
    finally:
        admin.command("setParameter", 1, **{knob: False})
