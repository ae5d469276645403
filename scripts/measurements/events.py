"""Reading the log back: the events that a change stream gives for a second of the server's CPU time, and the instructions of each.

    scripts/measure.py events target/release/pando [EVENTS, 200000] [READS, 3]

The log is filled with single inserts and updates of documents of some 150 bytes, each an entry of its own. Then a stream begins at the first
of them and reads to the end, without a wait. CPU time is that of the whole process, so the machine need not be quiet. With valgrind on the
machine the instructions of a tenth of the events are counted too.
"""

import shutil

import bson

from .common import Client, Writer, counted, cpu, numbers, running

PIPELINED = 200


class Filler(Writer):
    def fill(self, first, n):
        for start in range(first, first + n, PIPELINED):
            ids = range(start, min(start + PIPELINED, first + n))
            for i in ids:
                if i % 2:
                    update = {"q": {"_id": i - 1}, "u": {"$set": {"n": i, "text": "changed"}}}
                    self.send_command({"update": "read", "updates": [update], "writeConcern": {"w": 1}, "$db": "test"})
                else:
                    document = {"_id": i, "n": 0, "text": "some words of it", "fill": "x" * 80}
                    self.send_command({"insert": "read", "documents": [document], "writeConcern": {"w": 1}, "$db": "test"})
            for _ in ids:
                reply = self.reply()
                assert reply["ok"] == 1, reply


class Reader(Client):
    def __init__(self, port, at):
        super().__init__(port, timeout_s=None)
        self.at = at

    def read(self, n):
        """Reads so many events from the beginning on, without decoding them."""
        stage = {"$changeStream": {"startAtOperationTime": self.at}}
        cursor = self.run({"aggregate": "read", "pipeline": [stage], "cursor": {"batchSize": 0}, "$db": "test"})["cursor"]["id"]
        got = 0
        while got < n:
            self.send_command({"getMore": cursor, "collection": "read", "$db": "test"})
            got += self.receive()[2].count(b"\x02operationType\0")
        assert got == n, (got, n)
        self.run({"killCursors": "read", "cursors": [cursor], "$db": "test"})

def filled(server, events):
    """Fills the log; gives the reader."""
    with server.client() as client:
        client.test.read.insert_one({"_id": -2})
        at = client.admin.command("ping")["operationTime"]
        Filler(server.port).fill(0, events)
        client.admin.command("fsync")
    return Reader(server.port, bson.Timestamp(at.time, at.inc + 1))


def instructions(events, reads):
    with counted() as server:
        reader = filled(server, events)
        for _ in range(reads):
            reader.read(events)
        return server.instructions()


def main(given):
    events, reads = numbers(given, 200_000, 3)
    with running() as server:
        reader = filled(server, events)
        for _ in range(reads):
            before = cpu(server)
            reader.read(events)
            took = cpu(server) - before
            print(f"{events} events in {took:.2f} s of CPU: {events / max(took, 0.01):,.0f} a second and core", flush=True)
    if shutil.which("valgrind"):
        few = max(events // 10, 1000)
        each = (instructions(few, 3) - instructions(few, 1)) / 2 / few
        print(f"{each:,.0f} instructions an event")
