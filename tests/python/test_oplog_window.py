"""How much of the oplog is kept, and how shells and tools read that."""

import time

import pytest
from bson import Decimal128
from harness import until
from pymongo.errors import OperationFailure

MB = 1 << 20


def replication_info(client):
    """`db.getReplicationInfo()` as mongosh gathers it."""
    local = client.local
    assert "oplog.rs" in local.list_collection_names()
    oplog = local["oplog.rs"]
    stats = next(oplog.aggregate([{"$collStats": {"storageStats": {"scale": 1}}}]))["storageStats"]
    first = oplog.find({}, {"ts": 1, "wall": 1}).sort("$natural", 1).limit(1)[0]
    last = oplog.find({}, {"ts": 1, "wall": 1}).sort("$natural", -1).limit(1)[0]
    return {
        "logSizeMB": stats["maxSize"] / MB,
        "usedMB": stats["size"] / MB,
        "timeDiff": last["ts"].time - first["ts"].time,
    }


def test_what_the_shell_asks_for(new_server):
    with new_server("--oplogSize", 8).client() as client:
        client.test.c.insert_many([{"fill": "x" * 1000} for _ in range(500)])
        info = replication_info(client)
        assert info["logSizeMB"] == 8 and info["usedMB"] > 0.4 and info["timeDiff"] >= 0
        scaled = client.local.command("collStats", "oplog.rs", scale=MB)
        assert scaled["maxSize"] == 8 and scaled["capped"] and scaled["count"] >= 1


def test_the_size_holds(new_server):
    server = new_server("--log-retain", 4)
    with server.client() as client:
        blob = "x" * 100_000
        for _ in range(150):
            client.test.c.insert_one({"fill": blob})
        used = until("old entries go", lambda: (u := replication_info(client)["usedMB"]) < 6 and u)
        assert used > 1
        truncation = client.admin.command("serverStatus")["oplogTruncation"]
        assert truncation["truncateCount"] > 0 and "oplogMinRetentionHours" not in truncation
        # A stream cannot resume at an entry that is gone.
        oldest = client.local["oplog.rs"].find_one()["ts"]
        with pytest.raises(OperationFailure) as e:
            client.test.c.watch(start_at_operation_time=type(oldest)(oldest.time - 1000, 1))
        assert e.value.code == 286 and e.value.has_error_label("NonResumableChangeStreamError")


def test_what_is_young_stays(new_server):
    server = new_server("--log-retain", 2, "--oplogMinRetentionHours", "0.5")
    with server.client() as client:
        blob = "x" * 100_000
        for _ in range(80):
            client.test.c.insert_one({"fill": blob})
        # The log is cut once a second, and nothing tells of a look that has cut nothing.
        time.sleep(1.5)
        assert replication_info(client)["usedMB"] > 7
        assert client.admin.command("serverStatus")["oplogTruncation"]["oplogMinRetentionHours"] == 0.5
        client.admin.command("replSetResizeOplog", 1, minRetentionHours=0)
        until("old entries go", lambda: replication_info(client)["usedMB"] < 4)


def test_resized(new_server):
    server = new_server()
    with server.client() as client:
        client.admin.command("replSetResizeOplog", 1, size=2000.5, minRetentionHours=1.5)
        assert replication_info(client)["logSizeMB"] == 2000.5
        client.admin.command("replSetResizeOplog", 1, size=Decimal128("1000"))
        for n, code in [("x", 14), (989, 2), (2**40, 2)]:
            with pytest.raises(OperationFailure) as e:
                client.admin.command("replSetResizeOplog", 1, size=n)
            assert e.value.code == code
        with pytest.raises(OperationFailure, match="minRetentionHours' value must be >= 0"):
            client.admin.command("replSetResizeOplog", 1, minRetentionHours=-0.5)
        with pytest.raises(OperationFailure) as e:
            client.admin.command("replSetResizeOplog", 1, sizes=1)
        assert e.value.code == 40415
        with pytest.raises(OperationFailure) as e:
            client.test.command("replSetResizeOplog", 1, size=1000)
        assert e.value.code == 13
    server.kill()
    server.options = ["--oplogSize", "5"]
    server.start()
    with server.client() as client:
        assert replication_info(client)["logSizeMB"] == 1000
        assert client.admin.command("serverStatus")["oplogTruncation"]["oplogMinRetentionHours"] == 1.5


def test_the_configuration_file(new_server, tmp_path):
    conf = tmp_path / "pando.conf"
    conf.write_text("replication:\n  oplogSizeMB: 30\nstorage:\n  oplogMinRetentionHours: 2.5\n")
    with new_server("--config", conf).client() as client:
        assert replication_info(client)["logSizeMB"] == 30
        assert client.admin.command("serverStatus")["oplogTruncation"]["oplogMinRetentionHours"] == 2.5


def test_no_oplog_no_window(new_server):
    with new_server("--standalone").client() as client:
        with pytest.raises(OperationFailure) as e:
            client.admin.command("replSetResizeOplog", 1, size=1000)
        assert e.value.code == 26
        assert "oplogTruncation" not in client.admin.command("serverStatus")
