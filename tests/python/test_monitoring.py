"""What monitoring agents read: latencies, documents and scans counted, by server and by collection; `getDiagnosticData`; slow
`getMore`s in log and profile."""

import json

import pytest

from harness import refuses


def status(client, *path):
    value = client.admin.command("serverStatus")
    for name in path:
        value = value[name]
    return value


def test_documents_are_counted(client, coll):
    before = status(client, "metrics", "document")
    coll.insert_many([{"_id": i, "a": i % 4} for i in range(20)])
    coll.update_many({"a": 1}, {"$set": {"b": 1}})
    coll.update_one({"_id": 100}, {"$set": {"b": 1}}, upsert=True)
    coll.find_one_and_update({"_id": 2}, {"$set": {"b": 2}})
    coll.find_one_and_delete({"_id": 100})
    coll.delete_many({"a": 2})
    assert len(list(coll.find(batch_size=4))) == 15
    assert len(list(coll.aggregate([{"$limit": 3}]))) == 3
    after = status(client, "metrics", "document")
    grown = {name: after[name] - before[name] for name in after}
    # Others may have read meanwhile (monitoring does not, it counts no documents).
    assert grown == {"inserted": 21, "updated": 6, "deleted": 6, "returned": 18}


def test_a_bulk_write_and_errors_are_counted(client, db):
    before = status(client, "metrics", "document")
    ops = [
        {"insert": 0, "document": {"_id": 1}},
        {"insert": 0, "document": {"_id": 1}},
        {"update": 0, "filter": {"_id": 1}, "updateMods": {"$set": {"a": 1}}},
        {"delete": 0, "filter": {}, "multi": True},
    ]
    client.admin.command("bulkWrite", 1, ops=ops, nsInfo=[{"ns": f"{db.name}.c"}], ordered=False)
    after = status(client, "metrics", "document")
    grown = {name: after[name] - before[name] for name in ("inserted", "updated", "deleted")}
    assert grown == {"inserted": 1, "updated": 1, "deleted": 1}


def test_what_plans_examined(client, coll):
    coll.insert_many([{"a": i} for i in range(10)])
    coll.create_index("a")
    before = status(client, "metrics", "queryExecutor")
    sorts = status(client, "metrics", "operation", "scanAndOrder")
    list(coll.find({"a": {"$gte": 6}}))
    list(coll.find({"b": 1}).sort("c"))
    after = status(client, "metrics", "queryExecutor")
    assert after["scanned"] - before["scanned"] == 4
    assert after["scannedObjects"] - before["scannedObjects"] == 14
    assert after["collectionScans"]["total"] - before["collectionScans"]["total"] == 1
    assert status(client, "metrics", "operation", "scanAndOrder") - sorts == 1


def stats(coll, **what):
    return next(coll.aggregate([{"$collStats": what}]))


def test_latencies_of_a_collection(coll):
    coll.insert_many([{"_id": i} for i in range(10)])
    for _ in range(3):
        coll.find_one()
    coll.delete_one({"_id": 1})
    coll.create_index("a")
    latencies = stats(coll, latencyStats={"histograms": True})["latencyStats"]
    assert {k: v["ops"] for k, v in latencies.items()} == {"reads": 3, "writes": 2, "commands": 1, "transactions": 0}
    for v in latencies.values():
        assert sum(b["count"] for b in v["histogram"]) == v["ops"]
        assert (v["latency"] > 0) == (v["ops"] > 0)
        assert all(b["micros"] <= v["latency"] for b in v["histogram"])
    assert "histogram" not in stats(coll, latencyStats={})["latencyStats"]["reads"]
    # The three finds, and the aggregation itself has not looked at documents.
    assert stats(coll, queryExecStats={})["queryExecStats"]["collectionScans"]["total"] == 3
    coll.drop()
    assert stats(coll, latencyStats={})["latencyStats"]["writes"]["ops"] == 0


def test_latencies_of_the_server(client, coll):
    before = status(client, "opLatencies")
    assert set(before) == {"reads", "writes", "commands", "transactions"}
    coll.insert_one({})
    coll.find_one()
    coll.find_one()
    asked = client.admin.command("serverStatus", opLatencies={"histograms": True})["opLatencies"]
    assert asked["writes"]["ops"] == before["writes"]["ops"] + 1
    assert asked["reads"]["ops"] == before["reads"]["ops"] + 2
    assert asked["reads"]["latency"] >= before["reads"]["latency"]
    assert sum(b["count"] for b in asked["reads"]["histogram"]) == asked["reads"]["ops"]


def test_top_tells_reads_and_writes_apart(client, coll):
    coll.insert_many([{"_id": i} for i in range(10)])
    assert len(list(coll.find(batch_size=4))) == 10
    coll.find_one_and_update({"_id": 1}, {"$set": {"a": 1}})
    row = client.admin.command("top")["totals"][coll.full_name]
    assert (row["insert"]["count"], row["queries"]["count"], row["getmore"]["count"]) == (1, 1, 2)
    assert row["commands"]["count"] == 1
    assert (row["writeLock"]["count"], row["readLock"]["count"], row["total"]["count"]) == (2, 3, 5)


def test_top_lists_collections_alone(client, coll):
    coll.insert_one({})
    client.admin.command("getLog", "global")
    client.admin.command("getParameter", "*")
    client.admin.command("ping", "x")
    client.admin.command("dataSize", coll.full_name)
    client.admin.command("renameCollection", coll.full_name, to=f"{coll.full_name}2")
    coll.database[f"{coll.name}2"].insert_one({})
    totals = client.admin.command("top")["totals"]
    assert f"{coll.full_name}2" in totals
    foreign = {"admin.global", "admin.*", "admin.x", f"admin.{coll.full_name}"}
    assert not foreign & set(totals)


def test_diagnostic_data(client, coll):
    coll.insert_one({})
    data = client.admin.command("getDiagnosticData")["data"]
    assert {"start", "serverStatus", "replSetGetStatus", "systemMetrics", "end"} <= set(data)
    assert data["serverStatus"]["opcounters"]["insert"] > 0
    assert data["serverStatus"]["start"] <= data["serverStatus"]["end"]
    assert data["replSetGetStatus"]["myState"] == 1
    assert data["systemMetrics"]["memory"]["MemTotal_kb"] > 0 and "user_ms" in data["systemMetrics"]["cpu"]
    with refuses(13):
        coll.database.command("getDiagnosticData")


@pytest.fixture
def logged(new_server, tmp_path):
    server = new_server("--logpath", tmp_path / "server.log")
    with server.client() as client:
        yield client, tmp_path / "server.log"


def test_slow_get_mores_are_logged_and_profiled(logged):
    client, log = logged
    db = client.t
    db.c.insert_many([{"_id": i} for i in range(6)])
    db.command("profile", 1, slowms=-1)
    assert len(list(db.c.find({"_id": {"$gte": 0}}, batch_size=4, comment="paged"))) == 6
    db.command("profile", 0, slowms=100)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    slow = [l["attr"] for l in lines if l["msg"] == "Slow query" and "getMore" in l["attr"].get("command", {})]
    assert len(slow) == 1
    assert slow[0]["ns"] == "t.c" and slow[0]["nreturned"] == 2 and slow[0]["workingMillis"] >= 0
    assert slow[0]["originatingCommand"]["filter"] == {"_id": {"$gte": 0}}
    (profile,) = db["system.profile"].find({"op": "getmore"})
    assert profile["originatingCommand"]["find"] == "c" and profile["command"]["comment"] == "paged"


def test_compact_checks_what_it_is_told(db):
    db.c.insert_one({})
    for target in (0, -1):
        with refuses(2):
            db.command("compact", "c", freeSpaceTargetMB=target)
    with refuses(14):
        db.command("compact", "c", freeSpaceTargetMB="1")
