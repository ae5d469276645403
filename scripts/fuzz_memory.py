#!/usr/bin/env python3
"""Has many clients send the largest commands at once, and looks at the server's memory.

    scripts/fuzz.sh memory [SECONDS [NAME…]]       PANDO_BIN names the server (target/debug/pando)
    GROUP_MB=512 scripts/fuzz.sh memory …          the server in a control group with so much memory, and a quarter of that as its cache

The commands are the shapes of `fuzz_cost.py`, each as long as it may be: doubled until it takes the server LONG_S, comes
to MOST_BYTES or is refused. CLIENTS connections send what chance gives. Cursors are left open. What is measured is what
the process holds of the machine's memory, twenty times a second.

Fails where that passes the cache and MOST_MB; where the server does not give it back within GIVEN_BACK_S after the last
command, but for what it held before and KEPT_MB; and where a short read beside takes longer than LATE_S.
"""

import contextlib
import os
import pathlib
import random
import socket
import struct
import sys
import tempfile
import threading
import time

import bson
import fuzz_cost
from harness import Server
from memory_group import memory_group

GROUP_MB = int(os.environ.get("GROUP_MB", 0))
CACHE_MB = GROUP_MB // 4 or 256
MOST_MB = 512
CLIENTS = 32
LONG_S = 1.0
MOST_BYTES = 6 << 20
GIVEN_BACK_S = 15
KEPT_MB = 64
LATE_S = 5.0
# They last, and so take what they take for good.
LASTING = {"create with a validator", "privileges", "partial filter", "createIndexes", "insert documents"}


def message(command):
    body = bson.encode({**command, "$db": "cost"})
    return struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(120)

    def read(self, n):
        parts = []
        while n:
            part = self.socket.recv(min(n, 1 << 20))
            if not part:
                raise ConnectionError("closed")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def ask(self, sent):
        self.socket.sendall(sent)
        (length,) = struct.unpack("<i", self.read(4))
        reply = bson.decode(self.read(length - 4)[17:])
        return reply.get("code", 0)


def held(fuzzed):
    """What the server says that it holds, in MB."""
    said = fuzzed.db.client.admin.command("serverStatus")["pandodb"]
    parts = {"messages": said["inFlight"], "stages": said["stages"], "operations": said["operationMemory"], "cursors": said["cursors"]}
    return {name: part["bytes"] >> 20 for name, part in parts.items()} | {"cursors themselves": said["cursors"]["ownBytes"] >> 20}


def longest(fuzzed, name, make):
    """The command of a shape that takes the server about LONG_S."""
    n, command = 1000, None
    while True:
        longer = make(n)
        try:
            size = len(bson.encode(longer))
        except Exception:  # noqa: BLE001 - too long for one message
            return command
        if size > MOST_BYTES:
            return command
        ended, cpu, _ = fuzzed.run(longer)
        if command and ended not in ("ok", None) and cpu < 0.01:
            return command
        if command and size == len(bson.encode(command)):
            return longer
        command = longer
        if cpu > LONG_S:
            return command
        n *= 4


class Mix:
    def __init__(self, server, commands):
        self.server, self.commands = server, commands
        self.end = False
        self.sent, self.codes, self.slowest, self.most = 0, {}, 0.0, (0, [])
        self.running = {}

    def client(self, number, seed):
        chance = random.Random(seed)
        c = Client(self.server.port)
        names = list(self.commands)
        while not self.end:
            name = chance.choice(names)
            self.running[number] = name
            try:
                code = c.ask(self.commands[name])
            except (OSError, ConnectionError):
                code = "closed"
                c = Client(self.server.port)
            self.running.pop(number, None)
            self.sent += 1
            self.codes[code] = self.codes.get(code, 0) + 1

    def short_reads(self):
        c = Client(self.server.port)
        short = message({"find": "c", "filter": {"_id": 1}})
        while not self.end:
            began = time.monotonic()
            c.ask(short)
            self.slowest = max(self.slowest, time.monotonic() - began)
            time.sleep(0.05)

    def watch(self, fuzzed):
        while not self.end:
            mb = fuzzed.resident_mb()
            if mb > self.most[0]:
                self.most = (mb, sorted(self.running.values()))
                if mb > CACHE_MB + MOST_MB or os.environ.get("PANDO_TELL"):
                    print(f"{mb} MB: {held(fuzzed)}", flush=True)
            time.sleep(0.05)


def prepared(fuzzed, names):
    commands = {}
    for name in names:
        command = longest(fuzzed, name, fuzz_cost.SHAPES[name])
        if command is not None:
            commands[name] = message(command)
    return commands


def findings(fuzzed, mix, before, seconds):
    others = [threading.Thread(target=mix.client, args=(i, random.random())) for i in range(CLIENTS)]
    others += [threading.Thread(target=mix.short_reads), threading.Thread(target=mix.watch, args=(fuzzed,))]
    for t in others:
        t.start()
    time.sleep(seconds)
    mix.end = True
    for t in others:
        t.join()
    most, running = mix.most
    print(f"{mix.sent} commands, {mix.codes}; {before} MB before, at most {most} MB; a short read took {mix.slowest:.2f} s")
    if not fuzzed.server.running():
        yield f"the server ended:\n{fuzzed.server.tail(20)}"
        return
    if most > CACHE_MB + MOST_MB:
        yield f"{most} MB of memory with {running}"
    if mix.slowest > LATE_S:
        yield f"a short read took {mix.slowest:.1f} s"
    end = time.monotonic() + GIVEN_BACK_S
    while fuzzed.resident_mb() > max(before, CACHE_MB) + KEPT_MB and time.monotonic() < end:
        time.sleep(0.2)
    kept = fuzzed.resident_mb()
    print(f"{kept} MB are left: {fuzzed.db.client.admin.command('serverStatus')['pandodb']['operationMemory']}")
    if kept > max(before, CACHE_MB) + KEPT_MB:
        yield f"{kept} MB are not given back"


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300
    names = sys.argv[2:] or [n for n in fuzz_cost.SHAPES if n not in LASTING]
    seed = int(os.environ.get("PANDO_SEED", time.time_ns() % 10**6))
    print(f"seed {seed}", flush=True)
    random.seed(seed)
    group = memory_group(GROUP_MB << 20) if GROUP_MB else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as directory, group as program:
        if GROUP_MB and program is None:
            raise SystemExit("no control group can be made here")
        server = Server(pathlib.Path(directory) / "data", "--cache", f"{CACHE_MB}m", program=program)
        server.start()
        with contextlib.ExitStack() as stack:
            stack.callback(server.kill)
            fuzzed = fuzz_cost.Fuzzed(server)
            fuzz_cost.filled(fuzzed.db)
            commands = prepared(fuzzed, names)
            print(f"{len(commands)} commands, {sum(map(len, commands.values())) >> 20} MB", flush=True)
            time.sleep(3)
            found = list(findings(fuzzed, Mix(server, commands), fuzzed.resident_mb(), seconds))
    for what in found:
        print(f"FOUND  {what}")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
