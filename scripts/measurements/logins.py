"""The cost of logins to connected clients: the response times of point reads without and with logins over TLS beside them.

    scripts/measure.py logins target/release/pando [--logins 200] [--reads 500] [--seconds 10] [--rounds 3] [--rsa 2048]

`pando-lab` lies beside the server. The laboratory reads in an open loop, over plain connections; processes of this script
log in, each time with a connection, a handshake (RSA on the server's side) and SCRAM-SHA-256 of their own. Clients and servers
share the machine, so what the logins' clients take from the readers is measured too: in a third kind of round the same logins go
to a second server. Rounds without logins, with logins elsewhere and with logins here alternate. Fails where the median of the
99th percentiles is more than twice as high with logins here as with logins elsewhere. It wants a quiet machine.
"""

import argparse
import base64
import contextlib
import hashlib
import hmac
import json
import multiprocessing
import os
import pathlib
import ssl
import statistics
import subprocess
import time

from certificates import Authority
from harness import BINARY, Server, Wire

from .common import TICKS, folder


class Known:
    """A user's password as SCRAM hashes it: drivers keep that too, between connections."""

    def __init__(self, user, password):
        self.user, self.password, self.salted = user, password, {}

    def log_in(self, wire):
        nonce = base64.b64encode(os.urandom(18)).decode()
        bare = f"n={self.user},r={nonce}"
        start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": f"n,,{bare}".encode(), "options": {"skipEmptyExchange": True}, "$db": "admin"}
        first = bytes(wire.command(start)["payload"]).decode()
        parts = dict(part.split("=", 1) for part in first.split(","))
        salt = parts["s"]
        if salt not in self.salted:
            self.salted[salt] = hashlib.pbkdf2_hmac("sha256", self.password.encode(), base64.b64decode(salt), int(parts["i"]))

        def mac(key, text):
            return hmac.new(key, text if isinstance(text, bytes) else text.encode(), hashlib.sha256).digest()

        key = mac(self.salted[salt], "Client Key")
        last = f"c=biws,r={parts['r']}"
        signature = mac(hashlib.sha256(key).digest(), f"{bare},{first},{last}")
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature))).decode()
        reply = wire.command({"saslContinue": 1, "conversationId": 1, "payload": f"{last},p={proof}".encode(), "$db": "admin"})
        assert reply["done"] is True, reply


def log_in_steadily(port, authority, rate, until, counted):
    if multiprocessing.parent_process():
        # What clients compute, they compute on machines of their own.
        os.nice(10)
    context = ssl.create_default_context(cafile=authority)
    known = Known("reader", "geheim")
    due = time.monotonic()
    while time.monotonic() < until:
        wire = Wire(port)
        wire.socket = context.wrap_socket(wire.socket, server_hostname="localhost")
        known.log_in(wire)
        wire.close()
        with counted.get_lock():
            counted.value += 1
        due += 1 / rate
        time.sleep(max(0, due - time.monotonic()))


def cpu_by_thread(pid):
    """Seconds of CPU of a process by the name of its threads."""
    spent = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(") ", 1)
        except OSError:
            continue
        fields = rest.split()
        name = name.rstrip("0123456789-")
        spent[name] = spent.get(name, 0) + (int(fields[11]) + int(fields[12])) / TICKS
    return spent


def percentiles(report):
    """The steps' 50th and 99th percentiles, wherever the laboratory's result has them."""
    found = []

    def look(value):
        if isinstance(value, dict):
            if "p99_us" in value and "p50_us" in value:
                found.append((value["p50_us"], value["p99_us"]))
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(report.get("steps", report))
    return found


def read(options, url, out):
    words = [BINARY.parent / "pando-lab", "run", "C.S5", "--records", 10_000, "--url", url, "--connections", 8, "--client-threads", 1]
    words += ["--rate", options.reads, "--duration", f"{options.seconds}s", "--quiet", "--force", "--out", out]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    p50, p99 = zip(*percentiles(json.loads(pathlib.Path(out).read_text())))
    return statistics.median(p50), statistics.median(p99)


@contextlib.contextmanager
def logins(options, port, authority):
    """So many logins a second to a server, from two processes, for as long as a round of reads takes."""
    counted = multiprocessing.Value("i", 0)
    until = time.monotonic() + options.seconds + 1
    clients = [multiprocessing.Process(target=log_in_steadily, args=(port, authority, options.logins / 2, until, counted)) for _ in range(2)]
    [c.start() for c in clients]
    yield
    [c.join() for c in clients]
    assert counted.value > 0.9 * options.logins * options.seconds, f"only {counted.value} logins"


def main(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("pando")
    for name, default in (("logins", 200), ("reads", 500), ("seconds", 10), ("rounds", 3), ("rsa", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(words)
    with folder() as place:
        authority = Authority(place)
        given = ["--auth", "--tlsMode", "preferTLS", "--tlsCertificateKeyFile", authority.issue("server", rsa_bits=options.rsa)]
        with Server(place / "data", *given) as server, Server(place / "other", *given) as other:
            for each in (server, other):
                each.client().admin.command("createUser", "reader", pwd="geheim", roles=["root"])
            url = f"mongodb://reader:geheim@127.0.0.1:{server.port}/ycsb?authSource=admin"
            read(options, url, place / "warm.json")
            before = cpu_by_thread(server.process.pid)
            counted = multiprocessing.Value("i", 0)
            log_in_steadily(server.port, str(authority.file), options.logins, time.monotonic() + 3, counted)
            after = cpu_by_thread(server.process.pid)
            spent = {name: (seconds - before.get(name, 0)) * 1e6 / counted.value for name, seconds in after.items()}
            print("CPU of a login, µs: " + ", ".join(f"{name} {micros:.0f}" for name, micros in sorted(spent.items()) if micros >= 1))
            found = {"without": [], "elsewhere": [], "here": []}
            for _ in range(options.rounds):
                found["without"].append(read(options, url, place / "r.json"))
                for where, port in (("elsewhere", other.port), ("here", server.port)):
                    with logins(options, port, str(authority.file)):
                        found[where].append(read(options, url, place / "r.json"))
                print(", ".join(f"{where}: p50 {rounds[-1][0]:.0f}, p99 {rounds[-1][1]:.0f} µs" for where, rounds in found.items()))
    without, elsewhere, here = (statistics.median(p99 for _, p99 in rounds) for rounds in found.values())
    print(f"p99 {without:.0f} µs without logins, {elsewhere:.0f} with logins elsewhere, {here:.0f} with logins here: × {here / elsewhere:.2f}")
    return here > 2 * elsewhere

