"""Commands of operators, and the fields that shells and tools read of them."""

import datetime
import threading
import time

import pytest
from bson import Binary
from pymongo.errors import AutoReconnect, OperationFailure

from harness import expect_error, refuses, until


@pytest.fixture
def stocked(coll):
    coll.insert_many([{"_id": i, "a": i, "pad": "x" * 500} for i in range(1000)])
    coll.create_index("a")
    return coll


def test_list_databases(client, stocked):
    name = stocked.database.name
    listed = {d["name"]: d for d in client.list_databases()}
    assert listed[name]["sizeOnDisk"] > 0 and listed[name]["empty"] is False
    reply = client.admin.command("listDatabases")
    assert reply["totalSize"] >= sum(d["sizeOnDisk"] for d in reply["databases"]) and "totalSizeMb" in reply
    assert client.admin.command("listDatabases", nameOnly=True, filter={"name": name})["databases"] == [{"name": name}]
    with refuses(13, "Unauthorized"):
        client.other.command("listDatabases")


def test_list_collections(db):
    db.create_collection("a")
    db.b.insert_one({})
    assert sorted(db.list_collection_names()) == ["a", "b"]
    described = {c["name"]: c for c in db.list_collections()}
    assert described["a"]["type"] == "collection" and described["a"]["options"] == {}
    assert isinstance(described["a"]["info"]["uuid"], Binary) or described["a"]["info"]["uuid"]
    assert described["a"]["info"]["readOnly"] is False and described["a"]["idIndex"] == {"v": 2, "key": {"_id": 1}, "name": "_id_"}
    assert db.list_collection_names(filter={"name": "a"}) == ["a"]
    only = db.command("listCollections", nameOnly=True)["cursor"]["firstBatch"]
    assert sorted(c["name"] for c in only) == ["a", "b"] and "info" not in only[0]
    many = db.client[db.name]
    for i in range(150):
        many.create_collection(f"c{i}")
    assert len(db.list_collection_names()) == 152


def test_create_and_drop(db):
    db.create_collection("a")
    assert db.command("create", "a")["ok"] == 1, "with the same options it is no error"
    with refuses(73, "InvalidNamespace"):
        db.command("create", "")
    with refuses(73, "InvalidNamespace"):
        db.command("create", "a$b")
    with refuses(40415):
        db.command("create", "b", nonsense=1)
    reply = db.command("drop", "a")
    assert reply["nIndexesWas"] == 1 and reply["ns"] == f"{db.name}.a"
    assert db.command("drop", "no_such")["ok"] == 1


def test_drop_database(client, db):
    db.a.insert_one({})
    db.b.insert_one({})
    assert db.command("dropDatabase")["ok"] == 1
    assert db.list_collection_names() == [] and db.name not in client.list_database_names()
    assert db.command("dropDatabase")["ok"] == 1


def test_coll_stats(stocked):
    stats = stocked.database.command("collStats", stocked.name)
    assert stats["ns"] == stocked.full_name and stats["count"] == 1000 and stats["ok"] == 1
    assert 500_000 < stats["size"] < 600_000 and 500 < stats["avgObjSize"] < 600
    assert stats["nindexes"] == 2 and set(stats["indexSizes"]) == {"_id_", "a_1"}
    assert all(size >= 0 for size in stats["indexSizes"].values())
    assert stats["totalIndexSize"] == sum(stats["indexSizes"].values())
    assert stats["totalSize"] == stats["storageSize"] + stats["totalIndexSize"]
    assert stats["capped"] is False and stats["scaleFactor"] == 1
    scaled = stocked.database.command("collStats", stocked.name, scale=1024)
    assert scaled["size"] == stats["size"] // 1024 and scaled["scaleFactor"] == 1024
    nothing = stocked.database.command("collStats", "no_such")
    assert nothing["count"] == 0 and nothing["size"] == 0 and nothing["nindexes"] == 0


def test_db_stats(stocked):
    stats = stocked.database.command("dbStats")
    assert stats["db"] == stocked.database.name and stats["collections"] == 1 and stats["objects"] == 1000
    assert stats["indexes"] == 2 and 500_000 < stats["dataSize"] < 600_000 and 500 < stats["avgObjSize"] < 600
    for field in ("views", "storageSize", "indexSize", "totalSize", "scaleFactor", "fsUsedSize", "fsTotalSize"):
        assert field in stats
    assert stocked.database.client["no_such_db"].command("dbStats")["objects"] == 0


def test_validate(stocked):
    result = stocked.database.command("validate", stocked.name, full=True)
    assert result["valid"] is True and result["nrecords"] == 1000 and result["nIndexes"] == 2
    assert result["keysPerIndex"] == {"_id_": 1000, "a_1": 1000}
    assert result["errors"] == [] and result["ns"] == stocked.full_name
    assert set(result["indexDetails"]) == {"_id_", "a_1"}
    with refuses(26, "NamespaceNotFound"):
        stocked.database.command("validate", "no_such")


def test_rows_in_the_cache_are_counted(coll):
    def engine():
        return coll.database.client.admin.command("serverStatus")["pandodb"]["engine"]

    coll.insert_many([{"_id": i, "x": "x" * 1000} for i in range(100)])
    before = engine()["rowBytes"]
    for i in range(100):
        assert coll.find_one({"_id": i})["_id"] == i
    after = engine()
    assert before + 100_000 <= after["rowBytes"] <= after["rowShareBytes"]


def test_server_status(client, server):
    status = client.admin.command("serverStatus")
    assert status["host"] and status["version"] and status["process"] and status["pid"] == server.process.pid
    assert status["uptime"] >= 0 and status["uptimeMillis"] > 0 and isinstance(status["localTime"], datetime.datetime)
    assert status["connections"]["current"] >= 1 and status["connections"]["available"] > 0
    assert status["connections"]["totalCreated"] >= status["connections"]["current"]
    assert status["mem"]["resident"] > 0 and status["mem"]["bits"] == 64
    assert {"bytesIn", "bytesOut", "numRequests"} <= set(status["network"])
    assert {"insert", "query", "update", "delete", "getmore", "command"} <= set(status["opcounters"])
    assert {"insert", "query", "update", "delete", "getmore", "command"} <= set(status["opcountersRepl"])
    assert {"readers", "writers", "total"} <= set(status["globalLock"]["activeClients"])
    assert {"readers", "writers", "total"} <= set(status["globalLock"]["currentQueue"])
    assert status["storageEngine"]["name"] and status["repl"]["setName"] and status["repl"]["isWritablePrimary"] is True
    assert {"regular", "warning", "msg", "user", "rollovers"} <= set(status["asserts"])
    assert "note" in status["extra_info"]
    cache = status["wiredTiger"]["cache"]
    for field in ("maximum bytes configured", "bytes currently in the cache", "tracked dirty bytes in the cache"):
        assert cache[field] >= 0
    assert "network" not in client.admin.command("serverStatus", network=0)


def test_op_counters_count(client, coll):
    counters = lambda: client.admin.command("serverStatus")["opcounters"]  # noqa: E731
    before = counters()
    coll.insert_many([{"_id": i} for i in range(10)])
    coll.update_many({}, {"$set": {"a": 1}})
    coll.delete_one({"_id": 1})
    list(coll.find().batch_size(3))
    after = counters()
    assert after["insert"] - before["insert"] == 10
    assert after["update"] - before["update"] == 1
    assert after["delete"] - before["delete"] == 1
    assert after["query"] - before["query"] == 1
    assert after["getmore"] - before["getmore"] >= 2


SLOW = {"$expr": {"$eq": [{"$reduce": {"input": {"$range": [0, 2000]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}, -1]}}


def test_current_op_and_kill_op(client, server, coll):
    coll.insert_many([{"_id": i} for i in range(20_000)])
    outcome = []

    def slow():
        with server.client() as other:
            try:
                list(other[coll.database.name][coll.name].find(SLOW, comment="the slow one"))
                outcome.append("finished")
            except OperationFailure as error:
                outcome.append(error.code)

    thread = threading.Thread(target=slow)
    thread.start()

    def running():
        shown = client.admin.command("currentOp")["inprog"]
        return next((op for op in shown if op.get("command", {}).get("comment") == "the slow one"), None)

    operation = until("the running operation is shown", running)
    assert operation["ns"] == coll.full_name and operation["op"] == "query" and operation["active"] is True
    assert "secs_running" in operation and "microsecs_running" in operation and operation["client"].startswith("127.0.0.1:")
    assert client.admin.command("killOp", op=operation["opid"])["info"] == "attempting to kill op"
    thread.join(20)
    assert outcome == [11601], outcome
    with refuses(13, "Unauthorized"):
        coll.database.command("currentOp")


def test_a_client_that_vanishes_ends_its_operation(client, server, coll):
    import bson

    coll.insert_many([{"_id": i} for i in range(20_000)])
    wire = server.wire()
    wire.send_body(bson.encode({"find": coll.name, "$db": coll.database.name, "filter": SLOW, "comment": "vanishing"}))

    def runs():
        return any(op.get("command", {}).get("comment") == "vanishing" for op in client.admin.command("currentOp")["inprog"])

    until("it runs", runs)
    wire.close()
    until("it ends", lambda: not runs(), timeout_s=10)


@pytest.fixture
def fail(client):
    def arm(mode, **data):
        client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)

    yield arm
    client.admin.command("configureFailPoint", "failCommand", mode="off")


def test_fail_command_with_a_code(coll, fail):
    fail({"times": 2}, failCommands=["find"], errorCode=26)
    for _ in range(2):
        with refuses(26, "NamespaceNotFound"):
            coll.database.command("find", coll.name)
    assert coll.database.command("find", coll.name)["ok"] == 1


def test_fail_command_closes_the_connection(server, fail):
    fail({"times": 1}, failCommands=["ping"], closeConnection=True)
    with server.client(retryReads=False) as other, pytest.raises(AutoReconnect):
        other.admin.command("ping")


def test_fail_command_blocks(server, coll, fail):
    fail({"times": 1}, failCommands=["count"], blockConnection=True, blockTimeMS=1500)
    started = time.monotonic()
    coll.database.command("count", coll.name)
    assert time.monotonic() - started >= 1.5
    started = time.monotonic()
    coll.database.command("count", coll.name)
    assert time.monotonic() - started < 1.5


def test_the_time_that_fail_command_blocks_is_not_the_commands_own(coll, fail):
    fail({"times": 1}, failCommands=["count"], blockConnection=True, blockTimeMS=400)
    assert coll.database.command("count", coll.name, maxTimeMS=300)["n"] == 0


def test_fail_command_by_app_name(server, coll, fail):
    fail("alwaysOn", failCommands=["count"], errorCode=2, appName="unlucky")
    coll.database.command("count", coll.name)
    with server.client(appname="unlucky") as other, refuses(2, "BadValue"):
        other[coll.database.name].command("count", coll.name)


def test_fail_command_with_labels(coll, fail):
    fail({"times": 1}, failCommands=["insert"], errorCode=2, errorLabels=["Custom", "Another"])
    with refuses(2) as caught:
        coll.database.command("insert", coll.name, documents=[{}])
    assert caught.value.details["errorLabels"] == ["Custom", "Another"]


def test_fail_command_is_retried_by_drivers(coll, fail):
    fail({"times": 1}, failCommands=["insert"], errorCode=91, errorLabels=["RetryableWriteError"])
    assert coll.insert_one({"_id": 1}).inserted_id == 1
    fail({"times": 1}, failCommands=["find"], errorCode=91)
    assert coll.find_one() == {"_id": 1}
    fail({"times": 1}, failCommands=["insert"], closeConnection=True)
    coll.insert_one({"_id": 2})
    assert coll.count_documents({}) == 2


def test_retryable_errors_carry_their_label(wire, fail):
    import bson

    fail({"times": 1}, failCommands=["insert"], errorCode=91)
    reply = wire.command(
        {"insert": "x", "$db": "test_labels", "documents": [{}], "lsid": {"id": Binary(b"b" * 16, 4)}, "txnNumber": bson.Int64(1)}
    )
    assert reply["code"] == 91 and "RetryableWriteError" in reply["errorLabels"]
    assert wire.command({"insert": "x", "$db": "test_labels", "documents": [{}]})["ok"] == 1
    wire.command({"dropDatabase": 1, "$db": "test_labels"})


def test_fail_command_with_a_write_concern_error(coll, fail):
    fail({"times": 1}, failCommands=["insert"], writeConcernError={"code": 64, "errmsg": "waited"})
    reply = coll.database.command("insert", coll.name, documents=[{"_id": 1}], check=False)
    assert reply["n"] == 1 and reply["writeConcernError"]["code"] == 64
    assert coll.count_documents({}) == 1


@pytest.mark.parametrize(
    "command, code, name",
    [
        ({"noSuchCommand": 1}, 59, "CommandNotFound"),
        ({"": 1}, 59, "CommandNotFound"),
        ({"$ping": 1}, 59, "CommandNotFound"),
        ({"killOp": 1}, 4, "NoSuchKey"),
        ({"getParameter": 1}, 72, "InvalidOptions"),
        ({"setParameter": 1}, 72, "InvalidOptions"),
        ({"renameCollection": "a.b"}, 40414, None),
        ({"renameCollection": "nodot", "to": "x.y"}, 73, "InvalidNamespace"),
        ({"explain": 1}, 14, "TypeMismatch"),
        ({"ping": 1, "maxTimeMS": -1}, 2, "BadValue"),
        ({"ping": 1, "lsid": 1}, 14, "TypeMismatch"),
        ({"ping": 1, "lsid": {}}, 40414, None),
    ],
)
def test_bad_commands(wire, command, code, name):
    expect_error(wire.command({**command, "$db": "admin"}), code, name)
    wire.ping()


@pytest.mark.parametrize("command", ["listDatabases", "getParameter", "renameCollection", "configureFailPoint", "killOp"])
def test_commands_of_admin_only(client, command):
    with refuses(13, "Unauthorized", "may only be run against the admin database"):
        client.not_admin.command(command, 1)


def test_old_shells_last_error(client):
    reply = client.test.command("getLastError", check=False)
    assert "ok" in reply


def test_compact_dry_run(stocked):
    reply = stocked.database.command("compact", stocked.name, dryRun=True)
    assert reply["estimatedBytesFreed"] >= 0 and "bytesFreed" not in reply
    assert stocked.count_documents({}) == 1000


def test_re_index(stocked, new_server, tmp_path):
    with refuses(20, "IllegalOperation", "standalone"):
        stocked.database.command("reIndex", stocked.name)
    server = new_server("--standalone", path=tmp_path / "alone")
    with server.client() as client:
        coll = client.t.things
        coll.insert_many([{"_id": i, "a": i % 50, "b": [i, i + 1]} for i in range(2000)])
        coll.create_index("a")
        coll.create_index([("b", -1)], name="by_b")
        before = list(coll.list_indexes())
        reply = client.t.command("reIndex", "things")
        assert (reply["nIndexesWas"], reply["nIndexes"]) == (3, 3)
        assert [i["name"] for i in reply["indexes"]] == ["_id_", "a_1", "by_b"]
        assert list(coll.list_indexes()) == before
        assert coll.count_documents({"a": 7}) == 40 and coll.count_documents({"b": 100}) == 2
        checked = client.t.command("validate", "things", full=True)
        assert checked["valid"] and checked["keysPerIndex"] == {"_id_": 2000, "a_1": 2000, "by_b": 4000}
        with refuses(26):
            client.t.command("reIndex", "no_such")
    server.kill()
    server.start()
    with server.client() as client:
        assert client.t.command("validate", "things", full=True)["valid"]
        assert client.t.things.count_documents({"b": 100}) == 2


def test_top_forgets_what_is_dropped(client, db):
    def counted():
        return {ns for ns in client.admin.command("top")["totals"] if ns.startswith(f"{db.name}.")}

    db.a.insert_one({})
    db.b.insert_one({})
    db.c.insert_one({})
    assert counted() == {f"{db.name}.{name}" for name in "abc"}
    db.a.drop()
    assert counted() == {f"{db.name}.b", f"{db.name}.c"}
    db.b.rename("d")
    db.d.find_one()
    assert counted() == {f"{db.name}.c", f"{db.name}.d"}
    client.drop_database(db.name)
    assert counted() == set()
    db.a.insert_one({})
    assert counted() == {f"{db.name}.a"}


def test_top_counts_collections_only(client, db):
    """Commands whose first value is a word that names none leave nothing there, and are of no collection while they run."""
    db.there.insert_one({})
    client.admin.command("getLog", "global")
    client.admin.command("getLog", "*")
    client.admin.command("getParameter", "*")
    db.command("ping", "pong")
    db.command("buildInfo", "please")
    with pytest.raises(OperationFailure):
        db.command("dataSize", "nowhere")
    db.command("dataSize", f"{db.name}.there")
    counted = set(client.admin.command("top")["totals"])
    assert {ns for ns in counted if ns.startswith((f"{db.name}.", "admin."))} == {f"{db.name}.there"}
