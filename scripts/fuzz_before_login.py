"""Bent messages to a server without a login: it answers or hangs up, and gives nothing away.

    .venv/bin/python scripts/fuzz_before_login.py target/release/pando [--seconds 3600] [--seed N] [--clients 2]

Starts from what drivers send first (hello as OP_MSG and OP_QUERY, compressed too, SASL steps, a TLS ClientHello) and from
commands that need a login, and bends their documents and bytes. Fails where the server ends, does not answer within 20 seconds,
panics, shows a document, lets a command through that needs a login, takes more than 100 MB beyond what it had, or has other users
or documents afterwards.
"""

import argparse
import pathlib
import random
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib

import bson

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/python"))
import harness  # noqa: E402
from attack_logins import client_hello, resident  # noqa: E402
from certificates import Authority  # noqa: E402

SECRET = "kept-from-strangers"
# What may be answered with ok: 1 before a login, as MongoDB has it.
OPEN = {
    "hello", "ismaster", "ping", "buildinfo", "saslstart", "saslcontinue", "logout", "authenticate", "getnonce", "whatsmyuri",
    "connectionstatus", "listcommands", "features", "isdbgrid", "endsessions", "killcursors",
}  # fmt: skip
FIRST = b"n,,n=admin,r=abcdefghijklmnop"
STARTS = [
    {"hello": 1, "helloOk": True, "client": {"driver": {"name": "x", "version": "1"}, "os": {"type": "Linux"}}, "compression": ["zlib", "zstd"]},
    {"hello": 1, "saslSupportedMechs": "admin.admin", "speculativeAuthenticate": {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": FIRST, "db": "admin"}},
    {"hello": 1, "topologyVersion": {"processId": bson.ObjectId(), "counter": bson.Int64(0)}, "maxAwaitTimeMS": 10},
    {"saslStart": 1, "mechanism": "SCRAM-SHA-1", "payload": FIRST, "options": {"skipEmptyExchange": True}},
    {"saslStart": 1, "mechanism": "MONGODB-X509", "payload": b""},
    {"saslStart": 1, "mechanism": "PLAIN", "payload": b"\0admin\0secret"},
    {"saslContinue": 1, "conversationId": 1, "payload": b"c=biws,r=abc,p=AAAA"},
    {"authenticate": 1, "mechanism": "MONGODB-X509", "user": "CN=x"},
    {"find": "things", "filter": {}},
    {"find": "system.users", "filter": {}},
    {"aggregate": "things", "pipeline": [{"$match": {}}], "cursor": {}},
    {"insert": "things", "documents": [{"a": 1}]},
    {"createUser": "me", "pwd": "x", "roles": ["root"]},
    {"explain": {"find": "things"}},
    {"getMore": bson.Int64(1), "collection": "things"},
    {"shutdown": 1},
    {"listDatabases": 1},
    {"serverStatus": 1},
    {"getParameter": "*"},
    {"connectionStatus": 1, "showPrivileges": True},
    {"buildInfo": 1},
    {"endSessions": [{"id": bson.Binary(b"0" * 16, 4)}]},
]
VALUES = [None, 0, 1, -1, 2.5, True, "", "admin", "x" * 300, b"", b"\0" * 40, [], {}, [1, {"a": []}], bson.Int64(2**63 - 1), bson.MinKey(), bson.Regex("("),
          bson.Timestamp(1, 1), bson.Code("while (true) {}"), bson.ObjectId(), float("nan"), {"$db": "local"}, SECRET[:4]]  # fmt: skip


def bend(rng, document):
    """The document with one thing changed: a value, a name, a field more or fewer, or the same further down."""
    fields = list(document.items())
    at = rng.randrange(len(fields)) if fields else 0
    match rng.randrange(7):
        case 0 if fields:
            fields[at] = (fields[at][0], rng.choice(VALUES))
        case 1 if fields and isinstance(fields[at][1], dict):
            fields[at] = (fields[at][0], bend(rng, fields[at][1]))
        case 2 if fields:
            del fields[at]
        case 3:
            fields.insert(at, rng.choice(list(rng.choice(STARTS).items())))
        case 4 if fields:
            fields[at] = (rng.choice(["$db", "lsid", "$readPreference", "txnNumber", "db", "mechanism", "payload", "a.b", "$"]), fields[at][1])
        case 5:
            deep = {}
            for _ in range(rng.choice([3, 90, 250])):
                deep = {"a": deep}
            fields.insert(at, ("deep", deep))
        case _:
            rng.shuffle(fields)
    return dict(fields)


def damage(rng, raw):
    raw = bytearray(raw)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 3, 20])):
        if raw:
            at = rng.randrange(len(raw))
            match rng.randrange(3):
                case 0:
                    raw[at] = rng.randrange(256)
                case 1:
                    del raw[at : at + rng.randrange(1, 9)]
                case _:
                    raw[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(raw)


def framed(rng, body):
    """The bytes of a document as a message: OP_MSG, OP_QUERY or compressed; its length is as it should be, mostly."""
    kind = rng.randrange(6)
    if kind == 0:
        code, payload = harness.OP_QUERY, struct.pack("<i", 0) + b"admin.$cmd\0" + struct.pack("<ii", 0, -1) + body
    else:
        code, payload = harness.OP_MSG, struct.pack("<I", rng.choice([0, 0, 0, 0, 1, 2, 1 << 16])) + b"\0" + body
    if kind == 1:
        code, payload = harness.OP_COMPRESSED, struct.pack("<iiB", code, len(payload), 2) + zlib.compress(payload)
    length = 16 + len(payload)
    if rng.randrange(30) == 0:
        length = rng.choice([0, 15, 16, length - 1, length + 1, 2**31 - 1, -1])
    return struct.pack("<iiii", length, 7, 0, code) + payload


PING = struct.pack("<I", 0) + b"\0" + bson.encode({"ping": 1, "$db": "admin"})
PING = struct.pack("<iiii", 16 + len(PING), 9, 0, harness.OP_MSG) + PING


def command_name(body):
    """What the bytes ask for, as far as they are a document."""
    try:
        return next(iter(bson.decode(body)), "").lower()
    except Exception:  # noqa: BLE001
        return None


class Attack:
    def __init__(self, server, hello, seed):
        self.server, self.hello, self.rng = server, hello, random.Random(seed)
        self.sent = self.answered = self.closed = 0
        self.wrong = None
        self.last = b""

    def run(self, until):
        while time.monotonic() < until and not self.wrong:
            try:
                self.converse()
            except TimeoutError:
                self.wrong = f"no answer within 20 seconds to {self.last!r}"
            except ConnectionError:
                self.closed += 1

    def converse(self):
        """One connection: a broken TLS handshake, or messages until it is closed."""
        rng = self.rng
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as s:
            if rng.randrange(20) == 0:
                self.sent += 1
                self.last = damage(rng, self.hello)
                s.sendall(self.last)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
                return
            for _ in range(rng.randrange(1, 12)):
                document = dict(rng.choice(STARTS))
                for _ in range(rng.randrange(5)):
                    document = bend(rng, document)
                document.setdefault("$db", rng.choice(["admin", "shop", "local", "$external"]))
                body = damage(rng, bson.encode(document))
                if b"\x10maxAwaitTimeMS\0\x0a\0\0\0" not in body:
                    # It would wait for as long as it says.
                    body = body.replace(b"maxAwaitTimeMS", b"maxAwaitTimeXX")
                self.sent += 1
                self.last = message = framed(rng, body)
                # Some messages ask for no answer: the ping behind them does.
                s.sendall(message + PING)
                if struct.unpack_from("<i", message)[0] != len(message):
                    # The server may wait for the rest of it.
                    s.shutdown(socket.SHUT_WR)
                if not self.replies(s, body):
                    self.closed += 1
                    return

    def replies(self, s, body):
        """Reads until the ping's answer; false where the connection is closed, or waits for more of a message."""
        data, most = b"", self.answered + 20
        # An exhaust hello is answered until the connection is closed.
        while self.answered < most:
            while len(data) >= 16 and len(data) >= struct.unpack_from("<i", data)[0]:
                length, _, to, code = struct.unpack_from("<iiii", data)
                message, data = data[16:length], data[length:]
                if to == 9:
                    return True
                self.answered += 1
                self.check(body, message, code)
            part = s.recv(65536)
            if not part:
                return False
            data += part
        return False

    def check(self, body, message, code):
        if SECRET.encode() in message:
            self.wrong = f"a document was shown for {body!r}"
        name = command_name(body)
        if code != harness.OP_MSG or name is None or name in OPEN:
            return
        reply = bson.decode(message[5:])
        if reply.get("ok") == 1:
            self.wrong = f"{name} was let through: {body!r} got {reply}"


def state(client):
    return list(client.shop.things.find()), client.admin.system.users.count_documents({}), sorted(client.list_database_names())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--clients", type=int, default=2)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        authority = Authority(place)
        given = ["--auth", "--tlsMode", "preferTLS", "--tlsCertificateKeyFile", authority.issue("server")]
        with harness.Server(place / "data", *given, program=[options.binary, "serve"]) as server:
            server.client().admin.command("createUser", "admin", pwd="secret", roles=["root"])
            client = server.client(username="admin", password="secret")
            client.shop.things.insert_one({"_id": 1, "secret": SECRET})
            before, memory = state(client), resident(server.process.pid)
            attacks = [Attack(server, client_hello(), f"{options.seed}/{n}") for n in range(options.clients)]
            until = time.monotonic() + options.seconds
            threads = [threading.Thread(target=a.run, args=(until,)) for a in attacks]
            [t.start() for t in threads]
            [t.join() for t in threads]
            wrong = [a.wrong for a in attacks if a.wrong]
            if server.process.poll() is not None:
                wrong.append(f"the server ended with {server.process.returncode}")
            else:
                more = resident(server.process.pid) - memory
                print(f"{more} MB more")
                if more > 100:
                    wrong.append(f"{more} MB more")
                if state(client) != before:
                    wrong.append("users or documents have changed")
            if "panicked" in server.log.read_text(errors="replace"):
                wrong.append("the server panicked")
        print(*(f"{sum(getattr(a, what) for a in attacks)} {what}" for what in ("sent", "answered", "closed")), sep=", ")
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
