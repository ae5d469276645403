"""Instructions that the server spends on inserts while no, one and many change streams follow, and the memory of the many.

    .venv/bin/python scripts/count_streams.py target/debug/pando [INSERTS, 1000] [STREAMS, 1000] [BURST, 40]

The one follows the collection that is written to; the many follow others, and wait in a getMore. Needs valgrind and PyMongo. Counts carry
no noise of the machine, and valgrind makes everything some fifty times slower, also what happens between two syncs. So a writer that is
never idle is played by bursts: as many inserts at once as one would send in the two milliseconds between two syncs (40 are 20,000 a
second), and the next burst when the stream has given all. The stream's own work (events, replies) is in the
count; the part of the thread that runs the inserts is told apart. Opening the streams is counted apart.
Memory is measured on a server of its own, without valgrind.
"""

import contextlib
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import bson
import pymongo


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def connected(port):
    for _ in range(300):
        try:
            client = pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=1000, directConnection=True)
            client.admin.command("ping")
            return client
        except pymongo.errors.PyMongoError:
            time.sleep(0.2)
    sys.exit("the server did not start")


class Stream:
    """A change stream whose getMore waits."""

    def __init__(self, port, coll):
        self.socket = socket.create_connection(("127.0.0.1", port))
        cursor = self.run({"aggregate": coll, "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "test"})["cursor"]
        self.more = {"getMore": cursor["id"], "collection": coll, "maxTimeMS": 3_600_000, "$db": "test"}
        self.send(self.more)

    def send(self, command):
        body = bson.encode(command)
        self.socket.sendall(struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body)

    def receive(self):
        head = self.socket.recv(4, socket.MSG_WAITALL)
        rest = self.socket.recv(struct.unpack("<i", head)[0] - 4, socket.MSG_WAITALL)
        return bson.decode(rest[17:])

    def run(self, command):
        self.send(command)
        return self.receive()

    def follow(self, n):
        """Reads until so many events have come; gives how many batches they came in."""
        batches = 0
        while n > 0:
            n -= len(self.receive()["cursor"]["nextBatch"])
            self.send(self.more)
            batches += 1
        return batches


class Writer(Stream):
    """A client that sends inserts without waiting for one reply before the next."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))

    def insert(self, ids):
        for i in ids:
            document = {"_id": i, "fill": "x" * 500}
            self.send({"insert": "counted", "documents": [document], "writeConcern": {"w": 1}, "$db": "test"})
        for _ in ids:
            reply = self.receive()
            assert reply["ok"] == 1 and reply["n"] == 1, reply


@contextlib.contextmanager
def server(binary, *before):
    """Gives its port, its process and where valgrind says what it counted."""
    with tempfile.TemporaryDirectory() as place:
        place, port = pathlib.Path(place), free_port()
        said = place / "valgrind.txt"
        command = [str(w).format(place=place) for w in before]
        command += [binary, "serve", "--dbpath", place / "data", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield port, process, said
        finally:
            process.kill()
            process.wait()


def count(binary, inserts, on_it, idle, burst):
    """Instructions of a server's whole life, those of the thread that ran the inserts, and the batches of the stream."""
    valgrind = ["valgrind", "--tool=callgrind", "--separate-threads=yes", "--callgrind-out-file={place}/out"]
    with server(binary, *valgrind, "--log-file={place}/valgrind.txt") as (port, process, said):
        client = connected(port)
        coll = client.test.get_collection("counted", write_concern=pymongo.WriteConcern(w=1))
        coll.insert_one({"_id": "first"})
        streams = [Stream(port, f"other{i}") for i in range(idle)]
        follower = Stream(port, "counted") if on_it else None
        writer, batches = Writer(port), 0
        for first in range(0, inserts, burst):
            ids = range(first, min(first + burst, inserts))
            writer.insert(ids)
            batches += follower.follow(len(ids)) if follower else 0
        for stream in streams:
            stream.socket.close()
        writer.socket.close()
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(300)
        total = int(re.search(r"Collected : (\d+)", said.read_text())[1])
        threads = [int(re.search(r"^totals: (\d+)", p.read_text(), re.M)[1]) for p in said.parent.glob("out-*") if p.name != "out-01"]
        return total, max(threads), batches


def memory(binary, idle):
    """Bytes of idle streams."""

    def resident(process):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{process.pid}/status").read_text())[1]) << 10

    with server(binary) as (port, process, _):
        connected(port).test.counted.insert_one({})
        time.sleep(1)
        before = resident(process)
        streams = [Stream(port, f"other{i}") for i in range(idle)]
        time.sleep(1)
        return resident(process) - before + 0 * len(streams)


if __name__ == "__main__":
    binary = sys.argv[1]
    inserts, many, burst = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((2, 1000), (3, 1000), (4, 40)))
    print(f"{many} idle streams: {memory(binary, many) / (1 << 20):.1f} MB with their connections")
    alone = None
    for name, on_it, idle in (("none", False, 0), ("one", True, 0), (f"{many} idle", False, many)):
        (all0, own0, _), (all1, own1, batches) = (count(binary, n, on_it, idle, burst) for n in (0, inserts))
        each = ((all1 - all0) / inserts, (own1 - own0) / inserts)
        alone = alone or each
        (total, loop), more = each, [100 * (e / a - 1) for e, a in zip(each, alone)]
        said = f"{name}: {total:,.0f} instructions an insert, {more[0]:+.1f}%; on its thread {loop:,.0f}, {more[1]:+.1f}%"
        print(said + (f"; {inserts / batches:.1f} events a batch" if batches else ""), flush=True)
