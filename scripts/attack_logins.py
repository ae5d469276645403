"""Attacks on what comes before a login: what they cost the server in memory, and its clients in time.

    .venv/bin/python scripts/attack_logins.py target/release/pando [--connections 10000] [--seconds 10] [--again] [--only KIND,...]

Kinds: `half` sends half of a ClientHello and no more; `flight` a whole one, and never answers the server's; `garbage` what looks
like a handshake and is none; `renegotiate` asks for a new handshake on a session of TLS 1.2 (with openssl); `guess` tries
passwords on each connection; `mixed` is all but the last two. A logged-in client reads all the while. Attackers, server and
reader share the machine: so each attack is made on a second server first, and the reader's figures of both are told. Fails where the
reader's 99th percentile is more than twice as high as while the other server is attacked, or the server takes
more than 100 MB beyond what it had, tells the log of each failure, dies, or answers an unknown user in
another way than a wrong password: in words, or in time (medians of trials that take turns).
"""

import argparse
import multiprocessing
import os
import pathlib
import resource
import selectors
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import bson

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/python"))
import harness  # noqa: E402
from certificates import Authority  # noqa: E402
from encrypted import Secure  # noqa: E402


def client_hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def attack(kind, port, count, again, until):
    """Opens so many connections, a hundred in a turn, and holds them; with `again` those that are closed are replaced."""
    raise_limit()
    hello = client_hello()
    what = {"half": lambda: hello[: len(hello) // 2], "flight": lambda: hello, "garbage": lambda: b"\x16\x03\x01\x02\x00" + os.urandom(600)}
    kinds = list(what) if kind == "mixed" else [kind]
    poll, made, open_ = selectors.DefaultSelector(), 0, set()
    while time.monotonic() < until:
        for _ in range(min(100, count - (len(open_) if again else made))):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", port))
            # Sent when it is connected.
            poll.register(s, selectors.EVENT_WRITE, what[kinds[made % len(kinds)]]())
            open_.add(s)
            made += 1
        for key, events in poll.select(0.05):
            s = key.fileobj
            try:
                if key.data is not None:
                    s.sendall(key.data)
                    poll.modify(s, selectors.EVENT_READ, None)
                elif not s.recv(1 << 16):
                    raise ConnectionError
            except OSError:
                poll.unregister(s)
                open_.discard(s)
                s.close()
    print(f"    {made} connections, {len(open_)} of them open at the end")


def guess(port, authority, count, until):
    """So many connections over TLS, each of which tries one password after another, all at once."""
    raise_limit()
    context = ssl.create_default_context(cafile=authority)
    wires = []
    while len(wires) < count and time.monotonic() < until:
        wire = harness.Wire(port)
        wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
        wires.append(wire)
    tried = 0
    while time.monotonic() < until:
        nonce = os.urandom(12).hex()
        for wire in wires:
            wire.send_body(bson.encode(sasl_start("reader", nonce)))
        for wire in wires:
            wire.send_body(bson.encode(wrong_proof(wire.receive_msg(), nonce)))
        for wire in wires:
            assert wire.receive_msg()["code"] == 18
        tried += len(wires)
    GUESSED.put((len(wires), tried))


GUESSED = multiprocessing.Queue()


def raise_limit():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    # An attacker computes on a machine of its own.
    os.nice(10)


def sasl_start(user, nonce):
    return {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": f"n,,n={user},r={nonce}".encode(), "$db": "admin"}


def wrong_proof(first, nonce):
    server = bytes(first["payload"]).decode().split(",")[0]
    return {"saslContinue": 1, "conversationId": 1, "payload": f"c=biws,{server},p={'A' * 43}=".encode(), "$db": "admin"}


def log_in_wrongly(wire, user):
    """The two replies, and how long each took."""
    nonce = os.urandom(12).hex()
    begun = time.perf_counter()
    first = wire.command(sasl_start(user, nonce))
    between = time.perf_counter()
    last = wire.command(wrong_proof(first, nonce))
    return first, last, between - begun, time.perf_counter() - between


def renegotiate(port, authority):
    asked = subprocess.run(
        ["openssl", "s_client", "-connect", f"localhost:{port}", "-tls1_2", "-CAfile", authority], input="R\n", capture_output=True, text=True, timeout=20
    )
    return asked.stdout + asked.stderr


class Reader:
    """A client that was logged in before the attack, and reads a document every 5 ms."""

    def __init__(self, server, authority):
        self.times, self.failure, self.ends = [], None, False
        self.arguments = (server.port, str(authority.file))
        self.thread = threading.Thread(target=self.work)
        self.ready = threading.Event()
        self.thread.start()
        assert self.ready.wait(30)

    def work(self):
        import pymongo

        port, file = self.arguments
        with pymongo.MongoClient("localhost", port, directConnection=True, tls=True, tlsCAFile=file, username="reader", password="geheim", maxPoolSize=1) as c:
            things = c.shop.things
            things.find_one()
            self.ready.set()
            while not self.ends:
                begun = time.perf_counter()
                try:
                    assert things.find_one({"_id": 1})
                except Exception as e:  # noqa: BLE001
                    self.failure = e
                    return
                self.times.append(time.perf_counter() - begun)
                time.sleep(0.005)

    def take(self):
        assert self.failure is None, self.failure
        times, self.times = sorted(self.times), []
        return times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3


def resident(pid):
    line = next(x for x in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def compare_answers(port, authority, trials):
    """Whether an unknown user can be told from a wrong password."""
    context = ssl.create_default_context(cafile=str(authority.file))
    replies, times = {}, {"reader": ([], []), "nobody": ([], [])}
    with harness.Wire(port) as wire:
        wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
        for _ in range(trials):
            for user in times:
                first, last, *took = log_in_wrongly(wire, user)
                parts = dict(p.split("=", 1) for p in bytes(first["payload"]).decode().split(","))
                replies[user] = (parts["i"], len(parts["s"]), len(parts["r"]), last["code"], last["errmsg"])
                for one, all_ in zip(took, times[user]):
                    all_.append(one)
    assert replies["reader"] == replies["nobody"], replies
    fault = False
    for step, name in enumerate(("saslStart", "saslContinue")):
        known, unknown = (statistics.median(times[user][step]) * 1e6 for user in ("reader", "nobody"))
        spread = statistics.quantiles(times["reader"][step], n=4)
        between = (spread[2] - spread[0]) * 1e6
        print(f"{name}: {known:.0f} µs for a wrong password, {unknown:.0f} µs for a user who is not there; half of the trials lie within {between:.0f} µs")
        fault |= abs(known - unknown) > max(between, 0.05 * known)
    return fault


def run_attack(kind, server, authority, options):
    """Attacks a server for so many seconds. Returns the most megabytes that it had meanwhile."""
    until = time.monotonic() + options.seconds
    arguments, target, processes = (kind, server.port, options.connections, options.again, until), attack, 1
    if kind == "guess":
        # Opening so many connections takes as long again.
        until += options.seconds
        arguments, target, processes = (server.port, str(authority.file), options.connections // 20, until), guess, 20
    clients = [multiprocessing.Process(target=target, args=arguments) for _ in range(processes)]
    [c.start() for c in clients]
    most = 0
    while any(c.is_alive() for c in clients):
        most = max(most, resident(server.process.pid))
        time.sleep(0.1)
    if kind == "guess":
        opened, tried = (sum(x) for x in zip(*(GUESSED.get(timeout=30) for _ in clients)))
        print(f"    {tried} guesses on {opened} connections")
    return most


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--again", action="store_true", help="connections that the server closes are replaced at once")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--only", type=lambda kinds: kinds.split(","), default=["half", "flight", "garbage", "mixed", "guess"])
    options = parser.parse_args()
    fault = False
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        authority = Authority(place)
        given = ["--auth", "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", authority.issue("server", rsa_bits=2048)]
        server, other = (Secure(place / name, *given, program=[options.binary, "serve"]) for name in ("data", "other"))
        server.start()
        other.start()
        try:
            from encrypted import tls_client

            for each in (server, other):
                with tls_client(each, authority, serverSelectionTimeoutMS=20_000) as c:
                    c.admin.command("createUser", "reader", pwd="geheim", roles=["root"])
                with tls_client(each, authority, username="reader", password="geheim") as c:
                    c.shop.things.insert_many([{"_id": i} for i in range(1000)])
            reader = Reader(server, authority)
            time.sleep(3)
            base = resident(server.process.pid)
            print(f"quiet: {base} MB, p50 %.2f, p99 %.2f ms" % reader.take())
            for kind in options.only:
                run_attack(kind, other, authority, options)
                elsewhere = reader.take()
                most = run_attack(kind, server, authority, options)
                here = reader.take()
                print(f"{kind}: {most - base} MB more; p50 %.2f ms, p99 %.2f ms (the other server attacked: %.2f and %.2f)" % (*here, *elsewhere))
                fault |= most - base > 100 or here[1] > 2 * elsewhere[1] or not server.running()
            said = [renegotiate(server.port, authority.file) for _ in range(20)]
            refused = sum("no renegotiation" in s.lower() for s in said)
            print(f"renegotiate: {refused} of 20 refused")
            lines = sum("Failed to authenticate" in line for line in server.log.read_text(errors="replace").splitlines())
            print(f"log: {lines} lines of failed logins")
            fault |= lines > 10 + options.seconds
            fault |= compare_answers(server.port, authority, options.trials)
            reader.ends = True
            reader.thread.join()
            assert reader.failure is None, reader.failure
        finally:
            server.kill()
            other.kill()
    sys.exit(1 if fault else 0)


if __name__ == "__main__":
    main()
