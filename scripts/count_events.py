"""Reading the log back: the events that a change stream gives for a second of the server's CPU time, and the instructions of each.

    .venv/bin/python scripts/count_events.py target/release/pando [EVENTS, 200000] [READS, 3]

The log is filled with single inserts and updates of documents of some 150 bytes, each an entry of its own. Then a stream begins at the first
of them and reads to the end, without a wait. CPU time is that of the whole process, so the machine need not be quiet. With valgrind on the
machine the instructions of a tenth of the events are counted too.
"""

import os
import pathlib
import re
import shutil
import signal
import sys

import bson
from count_streams import Stream, Writer, connected, server

PIPELINED = 200


class Filler(Writer):
    def fill(self, first, n):
        for start in range(first, first + n, PIPELINED):
            ids = range(start, min(start + PIPELINED, first + n))
            for i in ids:
                if i % 2:
                    update = {"q": {"_id": i - 1}, "u": {"$set": {"n": i, "text": "changed"}}}
                    self.send({"update": "read", "updates": [update], "writeConcern": {"w": 1}, "$db": "test"})
                else:
                    document = {"_id": i, "n": 0, "text": "some words of it", "fill": "x" * 80}
                    self.send({"insert": "read", "documents": [document], "writeConcern": {"w": 1}, "$db": "test"})
            for _ in ids:
                reply = self.receive()
                assert reply["ok"] == 1, reply


class Reader(Stream):
    def __init__(self, port, at):
        Writer.__init__(self, port)
        self.at = at

    def read(self, n):
        """Reads so many events from the beginning on, without decoding them."""
        stage = {"$changeStream": {"startAtOperationTime": self.at}}
        cursor = self.run({"aggregate": "read", "pipeline": [stage], "cursor": {"batchSize": 0}, "$db": "test"})["cursor"]["id"]
        got = 0
        while got < n:
            batch = self.run_raw({"getMore": cursor, "collection": "read", "$db": "test"})
            got += batch.count(b"\x02operationType\0")
        assert got == n, (got, n)
        self.run({"killCursors": "read", "cursors": [cursor], "$db": "test"})

    def run_raw(self, command):
        self.send(command)
        head = self.socket.recv(4, 0x100)
        return self.socket.recv(int.from_bytes(head, "little") - 4, 0x100)


def filled(port, events):
    """Fills the log; gives the reader."""
    client = connected(port)
    client.test.read.insert_one({"_id": -2})
    at = client.admin.command("ping")["operationTime"]
    client.close()
    Filler(port).fill(0, events)
    with connected(port) as client:
        client.admin.command("fsync")
    return Reader(port, bson.Timestamp(at.time, at.inc + 1))


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def instructions(binary, events, reads):
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file={place}/out", "--log-file={place}/valgrind.txt"]
    with server(binary, *valgrind) as (port, process, said):
        reader = filled(port, events)
        for _ in range(reads):
            reader.read(events)
        process.send_signal(signal.SIGTERM)
        process.wait(300)
        return int(re.search(r"Collected : (\d+)", said.read_text())[1])


if __name__ == "__main__":
    binary = sys.argv[1]
    events, reads = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((2, 200_000), (3, 3)))
    with server(binary) as (port, process, _):
        reader = filled(port, events)
        for _ in range(reads):
            before = cpu_seconds(process.pid)
            reader.read(events)
            took = cpu_seconds(process.pid) - before
            print(f"{events} events in {took:.2f} s of CPU: {events / max(took, 0.01):,.0f} a second and core", flush=True)
    if shutil.which("valgrind"):
        few = max(events // 10, 1000)
        each = (instructions(binary, few, 3) - instructions(binary, few, 1)) / 2 / few
        print(f"{each:,.0f} instructions an event")
