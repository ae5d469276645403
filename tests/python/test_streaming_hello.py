"""Hellos that wait for news and come in streams, by which drivers watch a server without asking again and again."""

import contextlib
import os
import struct
import time

import bson
import pymongo
import pytest
from bson import Int64, ObjectId
from pymongo import monitoring

from harness import BINARY, MORE_TO_COME, OP_MSG, expect_error, until

EXHAUST_ALLOWED = 1 << 16
HOUR = 3_600_000


def hello(version=None, wait=None, **more):
    command = {"hello": 1, **more, "$db": "admin"}
    if version is not None:
        command["topologyVersion"] = version
    if wait is not None:
        command["maxAwaitTimeMS"] = wait
    return command


def known(wire):
    return wire.command(hello())["topologyVersion"]


class Stream:
    """A hello that allows more than one reply."""

    def __init__(self, wire, version, wait, **more):
        self.wire = wire
        wire.send_body(bson.encode(hello(version, wait, **more)), EXHAUST_ALLOWED)
        self.answers = wire.request_id

    def receive(self):
        """(more to come, reply)"""
        length, request_id, response_to, op_code = struct.unpack("<iiii", self.wire._read(16))
        payload = self.wire._read(length - 16)
        assert op_code == OP_MSG and response_to == self.answers, "each answers the one before it"
        self.answers = request_id
        return bool(payload[0] & MORE_TO_COME), bson.decode(payload[5:])

    def is_quiet(self):
        self.wire.socket.setblocking(False)
        try:
            return self.wire.socket.recv(1) is None
        except BlockingIOError:
            return True
        finally:
            self.wire.socket.settimeout(30)


@pytest.fixture
def alone(new_server):
    return new_server()


@pytest.fixture
def admin(alone):
    """A client that does not watch: what it finds is others'."""
    with alone.client(serverMonitoringMode="poll") as client:
        yield client.admin


def connections(admin):
    return admin.command("serverStatus")["connections"]


def test_every_hello_tells_the_version(server, wire):
    version = known(wire)
    assert isinstance(version["processId"], ObjectId) and isinstance(version["counter"], Int64) and version["counter"] >= 0
    assert wire.command({"isMaster": 1, "$db": "admin"})["topologyVersion"] == version
    assert wire.query("admin.$cmd", {"ismaster": 1})["topologyVersion"] == version
    with server.wire() as other:
        assert known(other) == version


def test_another_process_has_another_version(alone):
    with alone.wire() as wire:
        before = known(wire)
    alone.restart()
    with alone.wire() as wire:
        assert known(wire)["processId"] != before["processId"]
        assert wire.command(hello(before, HOUR))["topologyVersion"] == known(wire), "it does not wait"


@pytest.mark.parametrize("name", ["hello", "ismaster"])
def test_a_hello_waits_while_there_is_no_news(wire, name):
    version = known(wire)
    started = time.monotonic()
    reply = wire.command({name: 1, "topologyVersion": version, "maxAwaitTimeMS": 200, "$db": "admin"})
    assert reply["ok"] == 1 and reply["topologyVersion"] == version and time.monotonic() - started >= 0.2
    assert wire.query("admin.$cmd", {name: 1, "topologyVersion": version, "maxAwaitTimeMS": 50})["ok"] == 1
    assert wire.command(hello(version, 0))["ok"] == 1
    wire.ping()


def test_a_hello_that_needs_a_worker_waits_once(wire):
    """It reads the user's mechanisms: a request on the loop is run again on a worker."""
    version = known(wire)
    assert wire.command(hello(version, 50, saslSupportedMechs="admin.nobody"))["saslSupportedMechs"]
    stream = Stream(wire, version, 50, saslSupportedMechs="admin.nobody")
    for _ in range(3):
        assert stream.receive()[1]["saslSupportedMechs"]


def test_standalone(new_server):
    with new_server("--standalone").wire() as wire:
        version = known(wire)
        assert wire.command(hello(version, 50))["topologyVersion"] == version
        expect_error(wire.command(hello({**version, "counter": Int64(version["counter"] + 1)}, 50)), 51764)


V = {"processId": ObjectId(), "counter": Int64(0)}


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        ({"topologyVersion": V}, 31368, "must include 'maxAwaitTimeMS'"),
        ({"maxAwaitTimeMS": 10}, 31368, "must include a 'topologyVersion'"),
        ({"topologyVersion": {**V, "counter": Int64(-1)}, "maxAwaitTimeMS": 10}, 31372, "non-negative counter"),
        ({"topologyVersion": V, "maxAwaitTimeMS": -1}, 2, "'maxAwaitTimeMS' value must be >= 0"),
        ({"topologyVersion": V, "maxAwaitTimeMS": "x"}, 14, "hello.maxAwaitTimeMS"),
        ({"topologyVersion": 1, "maxAwaitTimeMS": 10}, 14, "hello.topologyVersion"),
        ({"topologyVersion": {**V, "counter": 0}, "maxAwaitTimeMS": 10}, 14, "hello.topologyVersion.counter"),
        ({"topologyVersion": {**V, "processId": 0}, "maxAwaitTimeMS": 10}, 14, "hello.topologyVersion.processId"),
        ({"topologyVersion": {"counter": Int64(0)}, "maxAwaitTimeMS": 10}, 40414, "hello.topologyVersion.processId"),
        ({"topologyVersion": {**V, "more": 1}, "maxAwaitTimeMS": 10}, 40415, "hello.topologyVersion.more"),
    ],
)
def test_wrong_combinations(wire, arguments, code, words):
    reply = wire.command({**hello(), **arguments})
    expect_error(reply, code)
    assert words in reply["errmsg"]
    wire.ping()


def test_versions_from_the_future_and_streams_without_waits(wire):
    version = known(wire)
    expect_error(wire.command(hello({**version, "counter": Int64(version["counter"] + 1)}, HOUR)), 31382)
    expect_error(wire.command(hello(), EXHAUST_ALLOWED), 51756)
    wire.ping()


def test_a_stream_of_replies(wire):
    version = known(wire)
    stream = Stream(wire, version, 20)
    for _ in range(5):
        more, reply = stream.receive()
        assert more and reply["ok"] == 1 and reply["topologyVersion"] == version


def test_a_stream_that_begins_with_an_old_version_waits_after_its_first_reply(alone, admin):
    with alone.wire() as wire:
        stream = Stream(wire, V, HOUR)
        assert stream.receive()[0]
        until("it waits", lambda: connections(admin)["awaitingTopologyChanges"] == 1)
        now = connections(admin)
        assert (now["exhaustHello"], now["exhaustIsMaster"]) == (1, 0) and now["active"] >= 2
        assert stream.is_quiet()


def test_who_hangs_up_is_let_go(alone, admin):
    def threads():
        return len(os.listdir(f"/proc/{alone.process.pid}/task"))

    before, threads_before = connections(admin)["current"], threads()
    with contextlib.ExitStack() as stack:
        for i in range(200):
            wire = stack.enter_context(alone.wire())
            version = known(wire)
            Stream(wire, version, HOUR) if i % 2 else wire.send_body(bson.encode(hello(version, HOUR)))
        until("all wait", lambda: connections(admin)["awaitingTopologyChanges"] == 200)
        assert connections(admin)["current"] == before + 200
        assert threads() < threads_before + 100, "none has a thread of its own"
    until("all are gone", lambda: connections(admin)["current"] == before)
    now = connections(admin)
    assert (now["awaitingTopologyChanges"], now["exhaustHello"], now["exhaustIsMaster"]) == (0, 0, 0)
    assert not [op for op in admin.command("currentOp")["inprog"] if op["command"].get("hello")]


def test_seen_by_current_op_and_ended_by_kill_op(alone, admin):
    def waiting():
        return [op for op in admin.command("currentOp")["inprog"] if "topologyVersion" in op["command"]]

    with alone.wire() as wire:
        stream = Stream(wire, known(wire), HOUR, comment="watching")
        until("seen", waiting)
        (op,) = waiting()
        assert op["active"] and op["ns"] == "admin.$cmd" and op["command"]["comment"] == "watching"
        idle = [d for d in admin.aggregate([{"$currentOp": {"idleConnections": True}}]) if not d.get("active", True)]
        assert op["connectionId"] not in [d["connectionId"] for d in idle]
        admin.command("killOp", 1, op=op["opid"])
        more, reply = stream.receive()
        expect_error(reply, 11601, "Interrupted")
        assert not more
        assert not waiting()
        wire.ping()


def test_a_time_limit_ends_the_wait(wire):
    expect_error(wire.command(hello(known(wire), HOUR, maxTimeMS=50)), 50, "MaxTimeMSExpired")
    wire.ping()


def test_shutdown_does_not_wait(alone):
    with alone.wire() as wire, alone.wire() as other:
        stream = Stream(wire, V, HOUR)
        stream.receive()
        other.send_body(bson.encode(hello(known(other), HOUR)))
        assert alone.stop() == 0
        for w in (wire, other):
            with pytest.raises((EOFError, ConnectionResetError)):
                w.receive()


def test_news_reaches_who_waits(new_server, tmp_path):
    mongod = tmp_path / "mongod"
    mongod.symlink_to(BINARY)
    server = new_server("--replSet", "r", program=[mongod])
    with server.wire() as one, server.wire() as two, server.client(serverMonitoringMode="poll") as client:
        version = known(one)
        one.send_body(bson.encode(hello(version, HOUR)))
        stream = Stream(two, version, HOUR)
        until("both wait", lambda: connections(client.admin)["awaitingTopologyChanges"] == 2)
        host = f"localhost:{server.port}"
        client.admin.command("replSetInitiate", {"_id": "r", "members": [{"_id": 0, "host": host}]})
        for reply in (one.receive_msg(), stream.receive()[1]):
            assert reply["hosts"] == [host]
            told = reply["topologyVersion"]
            assert told["processId"] == version["processId"] and told["counter"] > version["counter"]
        assert one.command(hello(version, HOUR))["hosts"] == [host], "an old version does not wait"
        until("the stream waits again", lambda: connections(client.admin)["awaitingTopologyChanges"] == 1)


class TestFailPoints:
    @pytest.fixture
    def fail(self, alone, admin):
        def fail(mode, **data):
            admin.command("configureFailPoint", "failCommand", mode=mode, data={"failCommands": ["hello"], "appName": "app", **data})

        return fail

    @pytest.fixture
    def app(self, alone):
        with alone.wire() as wire:
            about = {"application": {"name": "app"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"}}
            self.version = wire.command(hello(client=about))["topologyVersion"]
            yield wire

    def test_an_error_ends_a_stream(self, fail, app):
        stream = Stream(app, self.version, 20)
        assert stream.receive()[0]
        fail({"times": 1}, errorCode=91)
        while True:
            more, reply = stream.receive()
            if not more:
                break
        expect_error(reply, 91, "ShutdownInProgress")
        assert app.command(hello(self.version, 10))["ok"] == 1, "once"

    def test_one_that_waits_is_not_counted_twice(self, fail, app):
        fail({"skip": 2}, errorCode=91)
        assert app.command(hello(self.version, 30))["ok"] == 1
        assert app.command(hello(self.version, 30))["ok"] == 1
        expect_error(app.command(hello(self.version, 30)), 91)

    def test_closed_in_the_middle_of_a_stream(self, fail, app):
        stream = Stream(app, self.version, 20)
        fail("alwaysOn", closeConnection=True)
        with pytest.raises((EOFError, ConnectionResetError)):
            while True:
                stream.receive()

    def test_blocked(self, fail, app):
        fail({"times": 1}, blockConnection=True, blockTimeMS=150)
        started = time.monotonic()
        assert app.command(hello(self.version, 50))["ok"] == 1
        assert time.monotonic() - started >= 0.2


class Heartbeats(monitoring.ServerHeartbeatListener):
    def __init__(self):
        self.awaited, self.failed = 0, []

    def started(self, event):
        pass

    def succeeded(self, event):
        self.awaited += event.awaited

    def failed(self, event):
        self.failed.append(event.reply)


@pytest.mark.parametrize("compressors", ["", "zlib"])
def test_a_driver_watches_by_a_stream(alone, admin, compressors):
    beats = Heartbeats()
    more = {"compressors": compressors} if compressors else {}
    with pymongo.MongoClient(
        alone.address, replicaSet="rs0", heartbeatFrequencyMS=500, event_listeners=[beats], serverMonitoringMode="stream", **more
    ) as client:
        client.admin.command("ping")
        until("several", lambda: beats.awaited >= 3)
        assert beats.failed == []
        assert connections(admin)["exhaustHello"] + connections(admin)["exhaustIsMaster"] == 1
    until("gone with the client", lambda: connections(admin)["awaitingTopologyChanges"] == 0)
