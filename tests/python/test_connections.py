"""Many clients, slow clients, clients that vanish, and too many of them."""

import socket
import struct
import threading
import time

import bson
from pymongo.errors import PyMongoError

from harness import OP_MSG, Wire, until


def test_many_at_once(server, coll):
    coll.insert_many([{"_id": i, "v": i} for i in range(100)])
    wires = [server.wire() for _ in range(400)]
    for n, wire in enumerate(wires):
        wire.send_body(bson.encode({"find": coll.name, "$db": coll.database.name, "filter": {"_id": n % 100}}))
    for n, wire in enumerate(wires):
        assert wire.receive_msg()["cursor"]["firstBatch"] == [{"_id": n % 100, "v": n % 100}]
        wire.close()


def test_concurrent_writers(server, coll):
    def work(n):
        for i in range(100):
            coll.insert_one({"_id": f"{n}-{i}"})
            coll.update_one({"_id": "sum"}, {"$inc": {"n": 1}}, upsert=True)

    coll.insert_one({"_id": "sum", "n": 0})
    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert coll.count_documents({}) == 1601
    assert coll.find_one({"_id": "sum"})["n"] == 1600


def test_vanishing_at_every_moment(server, wire):
    raw = wire.message(OP_MSG, struct.pack("<I", 0) + b"\0" + bson.encode({"find": "x", "$db": "vanish"}))
    for cut in range(0, len(raw) + 1):
        other = server.wire()
        other.send(raw[:cut])
        if cut % 2:
            other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        other.close()
    wire.ping()


def test_a_client_that_does_not_read(server, coll, wire):
    """Its replies pile up nowhere without bound, and no other client waits for it."""
    coll.insert_many([{"_id": i, "pad": "x" * 100_000} for i in range(50)])
    deaf = Wire(server.port, timeout_s=1)
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = bson.encode({"find": coll.name, "$db": coll.database.name})
    try:
        for _ in range(200):
            deaf.send_body(request)
    except (TimeoutError, OSError):
        pass
    before = wire.command({"serverStatus": 1, "$db": "admin"})["mem"]["resident"]
    started = time.monotonic()
    for _ in range(50):
        wire.ping()
    assert time.monotonic() - started < 5
    assert wire.command({"serverStatus": 1, "$db": "admin"})["mem"]["resident"] - before < 300
    deaf.close()


def test_connections_are_counted(new_server):
    server = new_server()
    wire = server.wire()

    def current():
        return wire.command({"serverStatus": 1, "$db": "admin"})["connections"]["current"]

    until("the one that asked whether it answers is gone", lambda: current() == 1)
    before = current()
    others = [server.wire() for _ in range(10)]
    for other in others:
        other.ping()
    assert current() == before + 10
    for other in others:
        other.close()
    until("they are counted out", lambda: current() <= before, timeout_s=10)
    assert current() == before


def test_too_many(new_server):
    server = new_server("--max-connections", 10)
    kept = []
    refused = 0
    for _ in range(20):
        try:
            wire = server.wire(timeout_s=5)
            wire.ping()
            kept.append(wire)
        except (OSError, EOFError):
            refused += 1
    assert len(kept) in (9, 10) and refused == 20 - len(kept)
    kept.pop().close()

    def connects():
        try:
            with server.wire(timeout_s=5) as wire:
                wire.ping()
            return True
        except (OSError, EOFError):
            return False

    until("a new connection, since one was closed", connects, timeout_s=10)
    kept[0].ping()


def test_shutdown_by_command(new_server):
    server = new_server()
    with server.client() as client:
        client.test.things.insert_one({"_id": 1})
        try:
            client.admin.command("shutdown")
        except PyMongoError:
            pass
    assert server.process.wait(30) == 0
    server.start()
    with server.client() as client:
        assert client.test.things.find_one() == {"_id": 1}


def test_sigterm_with_clients_connected(new_server):
    server = new_server()
    idle = [server.wire() for _ in range(20)]
    for wire in idle:
        wire.ping()
    stop = threading.Event()

    def work():
        with server.client(serverSelectionTimeoutMS=200) as client:
            i = 0
            while not stop.is_set():
                try:
                    client.test.things.insert_one({"_id": i})
                    acknowledged.append(i)
                    i += 1
                except PyMongoError:
                    return

    acknowledged = []
    thread = threading.Thread(target=work)
    thread.start()
    until("writes are acknowledged", lambda: len(acknowledged) > 100)
    assert server.stop() == 0
    stop.set()
    thread.join()
    server.start()
    with server.client() as client:
        stored = {d["_id"] for d in client.test.things.find()}
        assert set(acknowledged) <= stored


def test_a_cursor_whose_number_was_lost_is_closed(new_server):
    """No client can go on with it, and it holds the document that its batch had no room for."""
    server = new_server()
    with server.client() as client:
        client.t.large.insert_many([{"x": bytes(1 << 20)} for _ in range(40)])
        body = bson.encode({"find": "large", "$db": "t", "batchSize": 100})
        message = struct.pack("<iiiiI", 21 + len(body), 1, 0, 2013, 0) + b"\0" + body
        # The reply of 16 MB does not fit what lies between, and is not read.
        peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
        for peer in peers:
            peer.sendall(message)
            assert peer.recv(1000)

        def open_cursors():
            return client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]

        assert open_cursors() == len(peers)
        for peer in peers:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
        until("cursors that nobody knows of are closed", lambda: not open_cursors())


def test_connections_are_let_in_at_a_rate(new_server):
    name = "ingressConnectionEstablishment"
    server = new_server()
    admin = Wire(server.port)

    def figures():
        connections = admin.command({"serverStatus": 1, "$db": "admin"})["connections"]
        limit = connections["establishmentRateLimit"]
        return connections["queuedForEstablishment"], limit["rejected"], limit["exempted"]

    def limit(**parameters):
        named = {name + k: v for k, v in parameters.items()}
        return admin.command({"setParameter": 1, **named, "$db": "admin"})

    assert limit(RatePerSec=1, BurstCapacitySecs=1, MaxQueueDepth=2, RateLimiterEnabled=True)["ok"] == 1
    others = [Wire(server.port, timeout_s=20) for _ in range(5)]
    until("one is let in, two wait, two are closed", lambda: figures()[:2] == (2, 2))
    served = 0
    for wire in others:
        try:
            wire.ping()
            served += 1
        except (OSError, EOFError):
            pass
    assert served == 3 and figures()[0] == 0, "those who waited are let in, a second after another"

    limit(RateLimiterBypass={"ranges": ["10.0.0.0/8", "127.0.0.0/8"]}, RatePerSec=1)
    for _ in range(4):
        Wire(server.port).ping()
    assert figures()[2] == 4
    wrong = limit(RateLimiterBypass={"ranges": ["10.0.0.0/99"]})
    assert wrong["ok"] == 0 and wrong["code"] == 2
    limit(RateLimiterEnabled=False, RateLimiterBypass={"ranges": []})
    for _ in range(4):
        Wire(server.port).ping()
