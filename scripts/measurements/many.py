"""Many small documents in one collection: how fast they come in, queries afterwards, and a restart after a kill.

    scripts/measure.py many target/release/pando                  100 million documents (about 150 bytes, one secondary index)
    scripts/measure.py many target/release/pando --docs 1000000 --dir /somewhere --cache 1GB

Needs free disk of about 200 bytes a document. Two processes
load in batches of 1,000, four ask, one question at a time each; what the server itself spends on an operation is its processor
time. Prints the table of docs/scale.md and a line of JSON.
"""

import argparse
import json
import multiprocessing
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

import bson
import pymongo
from harness import BINARY

from .common import TICKS

LOADERS, ASKERS, BATCH = 2, 4, 1000
NAMESPACE = ("many", "docs")


def mix(n):
    """A permutation of the 64-bit numbers (splitmix64): values at random of which no list is needed."""
    n = (n + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    n = ((n ^ (n >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    n = ((n ^ (n >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return n ^ (n >> 31)


def number(n):
    return mix(n) >> 1


def identity(n):
    return bson.ObjectId(struct.pack(">II", 0x65000000 + (n >> 24), 0x6C61622E) + struct.pack(">I", n & 0xFFFFFF))


def document(n, text):
    return {"_id": identity(n), "number": number(n), "user": n % 1_000_003, "state": "active", "text": text}


def message(body, sequence=b""):
    payload = struct.pack("<I", 0) + b"\0" + body
    if sequence:
        payload += b"\1" + struct.pack("<i", len(sequence) + 4) + sequence
    return struct.pack("<iiii", 16 + len(payload), 1, 0, 2013) + payload


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request):
        self.socket.sendall(request)
        head = self.exactly(4)
        return self.exactly(struct.unpack("<i", head)[0] - 4)[17:]

    def exactly(self, size):
        parts = bytearray()
        while len(parts) < size:
            part = self.socket.recv(size - len(parts))
            if not part:
                raise ConnectionError("the server closed the connection")
            parts += part
        return bytes(parts)


def loader(port, docs, counter, queue):
    connection = Connection(port)
    body = bson.encode({"insert": NAMESPACE[1], "ordered": True, "writeConcern": {"w": 1}, "$db": NAMESPACE[0]})
    # One document as bytes, into which the fields of each are written.
    words = "".join(random.Random(1).choices("etaoinshrdlu ", k=4000))
    template = bytearray(bson.encode(document(0, words[:70])))
    at_id = template.index(b"\x07_id\0") + 5
    at_number = template.index(b"\x12number\0") + 8
    at_user = template.index(b"\x10user\0") + 6
    at_text = template.index(words[:70].encode())
    words, slow = words.encode(), []
    while True:
        with counter.get_lock():
            first = counter.value
            counter.value += BATCH
        if first >= docs:
            break
        parts = []
        for n in range(first, min(first + BATCH, docs)):
            struct.pack_into(">III", template, at_id, 0x65000000 + (n >> 24), 0x6C61622E, n & 0xFFFFFF)
            struct.pack_into("<q", template, at_number, number(n))
            struct.pack_into("<i", template, at_user, n % 1_000_003)
            start = n % 3900
            template[at_text : at_text + 70] = words[start : start + 70]
            parts.append(bytes(template))
        begun = time.perf_counter()
        reply = bson.decode(connection.ask(message(body, b"documents\0" + b"".join(parts))))
        slow.append(time.perf_counter() - begun)
        if reply.get("n") != len(parts):
            raise RuntimeError(f"{len(parts)} were sent, the answer was {reply}")
    slow.sort()
    queue.put({"batches": len(slow), "p50": slow[len(slow) // 2], "p999": slow[int(len(slow) * 0.999)], "worst": slow[-1]})


def asker(port, docs, kind, seconds, seed, queue):
    connection, rng, asked = Connection(port), random.Random(seed), 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        n = rng.randrange(docs)
        by = {"_id": identity(n)} if kind == "point" else {"number": number(n)}
        body = bson.encode({"find": NAMESPACE[1], "filter": by, "limit": 10, "singleBatch": True, "$db": NAMESPACE[0]})
        found = bson.decode(connection.ask(message(body)))["cursor"]["firstBatch"]
        if [d["_id"] for d in found] != [identity(n)]:
            raise RuntimeError(f"asked for document {n}, got {found}")
        asked += 1
    queue.put(asked)


class Server:
    def __init__(self, binary, directory, cache):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.command = [binary, "serve", "--dbpath", str(directory), "--port", str(self.port)] + (["--cache", cache] if cache else [])
        self.directory = directory
        self.start()

    def start(self):
        begun = time.perf_counter()
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                Connection(self.port).ask(message(bson.encode({"ping": 1, "$db": "admin"})))
                return time.perf_counter() - begun
            except OSError:
                if self.process.poll() is not None:
                    raise RuntimeError("the server ended")
                time.sleep(0.005)

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self, name="VmRSS"):
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(l.split()[1]) << 10 for l in lines if l.startswith(name))

    def disk(self, part=""):
        return sum(f.stat().st_size for f in (self.directory / part).rglob("*") if f.is_file())

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(600)


def load(server, docs):
    counter, queue = multiprocessing.Value("q", 0), multiprocessing.Queue()
    some = [multiprocessing.Process(target=loader, args=(server.port, docs, counter, queue)) for _ in range(LOADERS)]
    began, spent = time.perf_counter(), server.cpu()
    for p in some:
        p.start()
    tenths, last = [], began
    while len(tenths) < 10:
        time.sleep(0.05)
        if any(p.exitcode not in (None, 0) for p in some):
            raise RuntimeError("a loader failed")
        if min(counter.value, docs) >= docs * (len(tenths) + 1) // 10:
            now = time.perf_counter()
            tenths.append(round(docs / 10 / (now - last)))
            last = now
            print(f"  {len(tenths) * 10}%  {tenths[-1]:,}/s  memory {server.memory() >> 20} MB  disk {server.disk() >> 20} MB", flush=True)
    slow = [queue.get() for _ in some]
    for p in some:
        p.join()
    seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 1),
        "rate": round(docs / seconds),
        "tenths": tenths,
        "cpu_us_per_doc": round((server.cpu() - spent) / docs * 1e6, 2),
        "batch_ms": {k: round(max(s[k] for s in slow) * 1e3, 1) for k in ("p50", "p999", "worst")},
    }


def ask(server, docs, kind, seconds):
    queue = multiprocessing.Queue()
    spent = server.cpu()
    some = [
        multiprocessing.Process(target=asker, args=(server.port, docs, kind, seconds, random.random(), queue)) for _ in range(ASKERS)
    ]
    for p in some:
        p.start()
    asked = 0
    for p in some:
        p.join()
        if p.exitcode:
            raise RuntimeError("an asker failed")
        asked += queue.get()
    return {"rate": round(asked / seconds), "cpu_us": round((server.cpu() - spent) / asked * 1e6, 1)}


def main(words):
    parser = argparse.ArgumentParser(prog="measure.py many")
    parser.add_argument("pando")
    parser.add_argument("--docs", type=int, default=100_000_000)
    parser.add_argument("--dir", help="where the data goes for a while [default: a temporary directory]")
    parser.add_argument("--cache", help="as for pando serve [default: its default]")
    parser.add_argument("--seconds", type=int, default=10, help="of each kind of question")
    parser.add_argument("--wait", type=int, default=60, help="seconds from the restart to the second round of questions")
    args = parser.parse_args(words)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="bench-many.", dir=args.dir))
    figures = {"docs": args.docs}
    server = Server(BINARY, directory / "data", args.cache)
    try:
        collection = pymongo.MongoClient("127.0.0.1", server.port, directConnection=True)[NAMESPACE[0]][NAMESPACE[1]]
        collection.create_index("number")
        figures["load"] = load(server, args.docs)
        figures["raw_bytes"] = collection.database.command("collStats", NAMESPACE[1])["size"]
        begun = time.perf_counter()
        counted = collection.count_documents({})
        figures["count_ms"] = round((time.perf_counter() - begun) * 1e3, 2)
        assert counted == args.docs, f"{counted} documents are there"
        for kind in ("point", "index"):
            ask(server, args.docs, kind, args.seconds)
            figures[kind] = ask(server, args.docs, kind, args.seconds)
        # Merging has come to rest, so sizes are those that stay.
        stats = lambda: collection.database.command("serverStatus")["pandodb"]["engine"]
        while stats()["pendingCompactionBytes"] > 0:
            time.sleep(1)
        figures["memory"], figures["memory_peak"] = server.memory(), server.memory("VmHWM")
        figures["disk"], figures["disk_log"] = server.disk("engine"), server.disk("log")
        server.end(signal.SIGKILL)
        figures["restart_s"] = round(server.start(), 2)
        restarted = time.perf_counter()
        figures["first_after_restart"] = ask(server, args.docs, "point", 2)
        time.sleep(max(0, args.wait - args.seconds - (time.perf_counter() - restarted)))
        for kind in ("point", "index"):
            figures[kind + "_after_restart"] = ask(server, args.docs, kind, args.seconds)
        assert collection.count_documents({}) == args.docs
    finally:
        server.end()
        shutil.rmtree(directory)
    loaded, gb = figures["load"], 1 << 30
    rows = [
        ("load", f"{loaded['rate']:,}/s, {loaded['cpu_us_per_doc']} µs of the server's CPU a document"),
        ("load by tenths, thousands a second", ", ".join(f"{t / 1000:.0f}" for t in loaded["tenths"])),
        ("batch of 1,000: median, 99.9%, worst", " / ".join(f"{loaded['batch_ms'][k]} ms" for k in ("p50", "p999", "worst"))),
        ("point read by `_id`", f"{figures['point']['rate']:,}/s, {figures['point']['cpu_us']} µs"),
        ("query by the secondary index", f"{figures['index']['rate']:,}/s, {figures['index']['cpu_us']} µs"),
        ("count without a filter", f"{figures['count_ms']} ms"),
        ("raw documents", f"{figures['raw_bytes'] / gb:.1f} GB"),
        ("data files, index included", f"{figures['disk'] / gb:.1f} GB"),
        ("log kept", f"{figures['disk_log'] / gb:.1f} GB"),
        ("memory after it, at the peak", f"{figures['memory'] / gb:.1f} GB, {figures['memory_peak'] / gb:.1f} GB"),
        ("ready after kill -9", f"{figures['restart_s']} s"),
        ("point reads in the first 2 s after it", f"{figures['first_after_restart']['rate']:,}/s"),
        ("a minute after it: point read, index", " / ".join(f"{figures[k + '_after_restart']['rate']:,}/s" for k in ("point", "index"))),
    ]
    print("\n| | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")
    print(json.dumps(figures))

