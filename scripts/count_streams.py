"""Instructions that the server spends on inserts while nobody, one and many change streams follow, and the memory of the many.

    .venv/bin/python scripts/count_streams.py target/debug/pando [INSERTS, 1000] [STREAMS, 1000]

The one follows the collection that is written to; the many follow others, and wait in a getMore. Needs valgrind and PyMongo. Counts carry
no noise of the machine. Opening the streams is counted apart. Memory is measured on a server of its own, without valgrind.
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
        """Reads until so many events have come."""
        while n > 0:
            n -= len(self.receive()["cursor"]["nextBatch"])
            self.send(self.more)


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


def count(binary, inserts, on_it, idle):
    """Instructions of a server's whole life."""
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file={place}/out", "--log-file={place}/valgrind.txt"]
    with server(binary, *valgrind) as (port, process, said):
        client = connected(port)
        coll = client.test.get_collection("counted", write_concern=pymongo.WriteConcern(w=1))
        coll.insert_one({"_id": "first"})
        streams = [Stream(port, f"other{i}") for i in range(idle)]
        follower = Stream(port, "counted") if on_it else None
        for i in range(inserts):
            coll.insert_one({"_id": i, "fill": "x" * 500})
        if follower:
            follower.follow(inserts)
        for stream in streams:
            stream.socket.close()
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(300)
        return int(re.search(r"Collected : (\d+)", said.read_text())[1])


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
    inserts, many = (int(sys.argv[i]) if len(sys.argv) > i else 1000 for i in (2, 3))
    print(f"{many} idle streams: {memory(binary, many) / (1 << 20):.1f} MB with their connections")
    alone = None
    for name, on_it, idle in (("none", False, 0), ("one", True, 0), (f"{many} idle", False, many)):
        each = (count(binary, inserts, on_it, idle) - count(binary, 0, on_it, idle)) / inserts
        alone = alone or each
        print(f"{name}: {each:,.0f} instructions an insert, {100 * (each / alone - 1):+.1f}%")
