"""What drivers and shells ask when they connect."""

import datetime

import bson
import bson.json_util
import pymongo
import pytest
from bson import Int64, Timestamp

from harness import expect_error, refuses


def test_hello_describes_a_primary(client, server):
    hello = client.admin.command("hello")
    assert hello["isWritablePrimary"] is True
    assert hello["readOnly"] is False
    assert hello["maxBsonObjectSize"] == 16 * 1024 * 1024
    assert hello["maxMessageSizeBytes"] == 48_000_000
    assert hello["maxWriteBatchSize"] == 100_000
    assert hello["logicalSessionTimeoutMinutes"] == 30
    assert hello["minWireVersion"] == 0
    assert hello["maxWireVersion"] >= 21
    assert isinstance(hello["connectionId"], int)
    assert isinstance(hello["localTime"], datetime.datetime)
    assert hello["ok"] == 1.0


def test_hello_describes_a_replica_set_of_one(client, server):
    hello = client.admin.command("hello")
    assert hello["setName"]
    address = f"localhost:{server.port}"
    assert hello["hosts"] == [address] and hello["me"] == hello["primary"] == address
    assert hello["secondary"] is False
    assert isinstance(hello["setVersion"], int)
    assert isinstance(hello["electionId"], bson.ObjectId)
    assert isinstance(hello["lastWrite"]["lastWriteDate"], datetime.datetime)
    assert isinstance(hello["operationTime"], Timestamp)
    assert isinstance(hello["$clusterTime"]["clusterTime"], Timestamp)


def test_topology_of_a_replica_set_uri(server):
    set_name = server.client().admin.command("hello")["setName"]
    with pymongo.MongoClient(f"mongodb://{server.address}/?replicaSet={set_name}&serverSelectionTimeoutMS=10000") as client:
        assert client.admin.command("ping")["ok"] == 1
        assert client.topology_description.topology_type_name == "ReplicaSetWithPrimary"
        assert client.primary == ("localhost", server.port)


def test_hosts_are_where_the_client_came_in(new_server):
    import socket

    from harness import Wire

    server = new_server("--bind", "127.0.0.1")
    wire = Wire(server.port)
    assert wire.command({"hello": 1, "$db": "admin"})["hosts"] == [f"127.0.0.1:{server.port}"]
    assert wire.socket.family == socket.AF_INET


@pytest.mark.parametrize("name", ["isMaster", "ismaster"])
def test_legacy_hello(wire, name):
    reply = wire.command({name: 1, "$db": "admin", "helloOk": True})
    assert reply["ismaster"] is True and reply["helloOk"] is True


@pytest.mark.parametrize("name", ["isMaster", "ismaster"])
def test_legacy_hello_over_op_query(wire, name):
    reply = wire.query("admin.$cmd", {name: 1, "helloOk": True, "backpressure": True, "maxTimeMS": 3000})
    assert reply["ismaster"] is True and reply["maxWireVersion"] >= 21 and reply["ok"] == 1
    wire.ping()


def test_build_info_over_op_query(wire):
    assert wire.query("admin.$cmd", {"buildinfo": 1})["ok"] == 1


def test_removed_op_query_is_refused(wire):
    reply = wire.query("test.things", {})
    assert reply.get("code") == 352 or "$err" in reply, reply


@pytest.mark.parametrize(
    "asked, agreed",
    [
        (["snappy", "zlib", "zstd"], {"snappy", "zlib", "zstd"}),
        (["zstd", "nonsense"], {"zstd"}),
        (["nonsense"], set()),
        (["none"], set()),
    ],
)
def test_compressors_are_the_intersection(wire, asked, agreed):
    reply = wire.command({"hello": 1, "$db": "admin", "compression": asked})
    assert set(reply.get("compression", [])) == agreed


def test_build_info(client):
    info = client.admin.command("buildInfo")
    assert len(info["versionArray"]) == 4
    assert info["version"].startswith(f"{info['versionArray'][0]}.{info['versionArray'][1]}")
    assert info["maxBsonObjectSize"] == 16 * 1024 * 1024 and info["bits"] == 64
    assert isinstance(info["modules"], list)
    assert client.admin.command("buildinfo")["version"] == info["version"] == client.server_info()["version"]


def test_whatsmyuri(wire):
    host, port = wire.socket.getsockname()
    assert wire.command({"whatsmyuri": 1, "$db": "admin"})["you"] == f"{host}:{port}"


def test_connection_status(client):
    status = client.admin.command("connectionStatus", showPrivileges=True)
    assert status["authInfo"]["authenticatedUsers"] == []
    assert status["authInfo"]["authenticatedUserRoles"] == []
    assert isinstance(status["authInfo"]["authenticatedUserPrivileges"], list)


def test_get_parameter(client):
    assert client.admin.command("getParameter", 1, featureCompatibilityVersion=1)["featureCompatibilityVersion"]["version"]
    assert len(client.admin.command("getParameter", "*")) > 2
    with refuses(72, "InvalidOptions"):
        client.admin.command("getParameter", 1, noSuchParameter=1)
    with refuses(13, "Unauthorized"):
        client.other.command("getParameter", 1, featureCompatibilityVersion=1)


def test_set_parameter(client):
    was = client.admin.command("setParameter", 1, cursorTimeoutMillis=600_000)["was"]
    assert client.admin.command("getParameter", 1, cursorTimeoutMillis=1)["cursorTimeoutMillis"] == 600_000
    client.admin.command("setParameter", 1, cursorTimeoutMillis=was)
    with refuses(72, "InvalidOptions"):
        client.admin.command("setParameter", 1, noSuchParameter=1)


def test_probes_of_shells(client):
    with refuses(59, "CommandNotFound"):
        client.admin.command("atlasVersion")
    assert client.admin.command("count", "atlascli")["n"] == 0
    log = client.admin.command("getLog", "startupWarnings")
    assert isinstance(log["log"], list) and log["totalLinesWritten"] >= len(log["log"])
    assert set(client.admin.command("getLog", "*")["names"]) >= {"global", "startupWarnings"}
    assert len(client.admin.command("getLog", "global")["log"]) > 0
    line = bson.json_util.loads(client.admin.command("getLog", "global")["log"][0])
    assert {"t", "s", "c", "id", "ctx", "msg"} <= set(line)
    with refuses(96, "OperationFailed"):
        client.admin.command("getLog", "noSuchLog")


def test_host_info_and_command_line(client, server):
    host = client.admin.command("hostInfo")
    assert host["system"]["numCores"] >= 1 and host["system"]["memSizeMB"] > 0 and host["os"]["type"] == "Linux"
    line = client.admin.command("getCmdLineOpts")
    assert "--port" in line["argv"] and str(server.port) in line["argv"]
    assert line["parsed"]["net"]["port"] == server.port
    assert line["parsed"]["storage"]["dbPath"] == str(server.path)


def test_list_commands(client):
    commands = client.admin.command("listCommands")["commands"]
    assert {"find", "insert", "update", "delete", "aggregate", "createIndexes", "hello"} <= set(commands)
    assert "help" in commands["find"]


def test_replica_set_status(client, server):
    status = client.admin.command("replSetGetStatus")
    assert status["myState"] == 1 and status["ok"] == 1
    assert [m["stateStr"] for m in status["members"]] == ["PRIMARY"]
    config = client.admin.command("replSetGetConfig")["config"]
    assert config["_id"] == status["set"] and len(config["members"]) == 1


def test_generic_arguments_never_break_a_command(wire):
    wire.command({"insert": "generic", "documents": [{"_id": 1}], "$db": "handshake", "ordered": True})
    reply = wire.command(
        {
            "find": "generic",
            "$db": "handshake",
            "lsid": {"id": bson.Binary(b"0123456789abcdef", 4)},
            "$clusterTime": {
                "clusterTime": Timestamp(1, 1),
                "signature": {"hash": bson.Binary(b"\0" * 20), "keyId": Int64(0)},
            },
            "apiVersion": "1",
            "comment": {"why": "because"},
            "maxTimeMS": 10_000,
            "readConcern": {"level": "local"},
            "$readPreference": {"mode": "primaryPreferred"},
            "backpressure": "2",
        }
    )
    assert reply["ok"] == 1, reply
    assert reply["cursor"]["firstBatch"] == [{"_id": 1}]
    wire.command({"dropDatabase": 1, "$db": "handshake"})


@pytest.mark.parametrize(
    "arguments, code, name",
    [
        ({"apiVersion": "2"}, 322, "APIVersionError"),
        ({"apiVersion": "1", "apiStrict": True, "getLog": "global"}, 323, "APIStrictError"),
        ({"apiVersion": "1", "apiStrict": True, "distinct": "c", "key": "a"}, 323, "APIStrictError"),
    ],
)
def test_stable_api(wire, arguments, code, name):
    named = {name: arguments[name] for name in ("getLog", "distinct") if name in arguments} or {"ping": 1}
    command = {**named, **arguments}
    expect_error(wire.command({**command, "$db": "admin"}), code, name)
    wire.ping()


def test_standalone_personality(new_server):
    server = new_server("--standalone")
    with server.client() as client:
        hello = client.admin.command("hello")
        assert hello["isWritablePrimary"] is True and "setName" not in hello and "$clusterTime" not in hello
        assert client.topology_description.topology_type_name == "Single"
        client.test.things.insert_one({"_id": 1})
        assert client.test.things.find_one() == {"_id": 1}


def test_advertised_address(new_server):
    server = new_server("--advertise", "db.example.net:4711")
    with server.client() as client:
        hello = client.admin.command("hello")
        assert hello["hosts"] == ["db.example.net:4711"] and hello["me"] == "db.example.net:4711"


@pytest.mark.parametrize(
    "cluster_time, code, name, containing",
    [
        ({"clusterTime": 5}, 14, "TypeMismatch", "'ping.$clusterTime.clusterTime' is the wrong type 'int', expected type 'timestamp'"),
        ({"clusterTime": None}, 14, "TypeMismatch", "expected type 'timestamp'"),
        ({}, 40414, "IDLFailedToParse", "'ping.$clusterTime.clusterTime' is missing but a required field"),
        ({"signature": {}}, 40414, "IDLFailedToParse", "is missing but a required field"),
        (5, 14, "TypeMismatch", "'ping.$clusterTime' is the wrong type 'int', expected type 'object'"),
        ([], 14, "TypeMismatch", "expected type 'object'"),
    ],
)
def test_cluster_times_are_timestamps(wire, cluster_time, code, name, containing):
    reply = wire.command({"ping": 1, "$clusterTime": cluster_time, "$db": "admin"})
    expect_error(reply, code, name)
    assert containing in reply["errmsg"]
    wire.ping()


def test_stepping_down_a_set_of_one(wire, new_server):
    def step_down(**more):
        return wire.command({"replSetStepDown": 60, "$db": "admin"} | more)

    reply = step_down()
    expect_error(reply, 262, "ExceededTimeLimit")
    assert reply["errmsg"].startswith("No electable secondaries caught up")
    for wrong in [{"replSetStepDown": -1}, {"replSetStepDown": 5}, {"secondaryCatchUpPeriodSecs": -1}]:
        expect_error(step_down(**wrong), 2, "BadValue")
    assert step_down(force=True)["ok"] == 1
    assert step_down(replSetStepDown=1, force=True)["ok"] == 1
    hello = wire.command({"hello": 1, "$db": "admin"})
    assert hello["isWritablePrimary"] is True and hello["primary"] == hello["me"]
    for seconds in (0, 10):
        reply = wire.command({"replSetFreeze": seconds, "$db": "admin"})
        expect_error(reply, 95, "NotSecondary")
        assert reply["errmsg"].endswith("state: Primary")
    reply = wire.command({"replSetAbortPrimaryCatchUp": 1, "$db": "admin"})
    expect_error(reply, 20, "IllegalOperation")
    assert reply["errmsg"] == "The node is not in catch-up mode."
    with new_server("--standalone").client() as client:
        for command in ("replSetStepDown", "replSetFreeze", "replSetAbortPrimaryCatchUp"):
            with refuses(76, "NoReplicationEnabled"):
                client.admin.command(command, 60)


def test_a_server_that_listens_on_localhost_says_so(new_server):
    """A client that was given `localhost` compares that name with what it hears: the server listens there unless told."""
    server = new_server()
    with pymongo.MongoClient("localhost", server.port) as client:
        hello = client.admin.command("hello")
        assert hello["hosts"] == [f"localhost:{server.port}"] and hello["me"] == hello["primary"] == hello["hosts"][0]
        assert client.primary == client.address == ("localhost", server.port)
        assert client.admin.command("replSetGetConfig")["config"]["members"][0]["host"] == hello["me"]


def test_a_server_that_listens_on_an_address_says_that(new_server):
    server = new_server("--bind", "127.0.0.1")
    with server.client() as client:
        assert client.admin.command("hello")["me"] == f"127.0.0.1:{server.port}"
