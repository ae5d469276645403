"""What measurements share: their arguments, the CPU that processes use, the load client, instructions by valgrind, clients in bytes, and
rounds in which engines take turns."""

import collections
import contextlib
import json
import os
import pathlib
import re
import statistics
import struct
import subprocess
import tempfile
import time

import bson
from harness import BINARY, OP_MSG, Server, Wire

TICKS = os.sysconf("SC_CLK_TCK")


def numbers(given, *defaults):
    """The numbers behind the program, each of its default's kind; the default where there is none."""
    return [type(default)(given[n]) if n < len(given) else default for n, default in enumerate(defaults, 1)]


def cpu(server):
    """Seconds of CPU that a server, or another process, has used."""
    pid = getattr(server, "process", server).pid
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def written(server):
    """Bytes that a server has had written to the disk."""
    text = pathlib.Path(f"/proc/{server.process.pid}/io").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("write_bytes")))


def lab(server, *words, concern=1):
    """Runs pando-lab, which lies beside the server's program, against a server."""
    load = [BINARY.parent / "pando-lab", "run", *words, "--url", f"mongodb://{server.address}/t?w={concern}", "--overwrite"]
    done = subprocess.run([str(word) for word in load], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(dir=os.environ.get("PANDO_LAB_DIR")) as place:
        yield pathlib.Path(place)


@contextlib.contextmanager
def running(*options):
    with folder() as place, Server(place / "data", *options) as server:
        yield server


class Counted(Server):
    """A server under valgrind."""

    def __init__(self, path, *options, by_thread=False):
        self.out = path / "out"
        said = ["--tool=callgrind", f"--callgrind-out-file={self.out}", f"--log-file={path / 'said'}"]
        said += ["--separate-threads=yes"] if by_thread else []
        super().__init__(path / "data", *options, program=["valgrind", *said, BINARY, "serve"])

    def instructions(self):
        """Those of its whole life, which ends."""
        self.stop(300)
        return int(re.search(r"Collected : (\d+)", (self.out.parent / "said").read_text())[1])

    def by_thread(self):
        """The same of each thread but the first."""
        files = self.out.parent.glob("out-*")
        return [int(re.search(r"^totals: (\d+)", f.read_text(), re.M)[1]) for f in files if f.name != "out-01"]

    def by_function(self):
        """The same by function, without those of what it calls."""
        self.stop(300)
        names, costs, function, called = {}, collections.Counter(), None, False
        for line in self.out.read_text(errors="replace").splitlines():
            if line.startswith("fn="):
                number, _, name = line[3:].partition(" ")
                if name:
                    names[number] = name
                function = names[number]
            elif line.startswith("cfn="):
                number, _, name = line[4:].partition(" ")
                if name:
                    names[number] = name
            elif line.startswith("calls="):
                called = True
            elif line and (line[0].isdigit() or line[0] in "+-*"):
                if not called:
                    costs[function] += int(line.split()[1])
                called = False
        return costs


@contextlib.contextmanager
def counted(*options, **more):
    with folder() as place:
        server = Counted(place, *options, **more)
        server.start(300)
        try:
            yield server
        finally:
            server.kill()


class Client(Wire):
    """A connection on which commands are sent without a wait for the reply before."""

    def send_command(self, command):
        self.send_body(bson.encode(command))

    def reply(self):
        return bson.decode(self.receive()[2][5:])

    def run(self, command):
        self.send_command(command)
        return self.reply()


class Stream(Client):
    """A change stream whose getMore waits."""

    def __init__(self, port, coll):
        super().__init__(port, timeout_s=None)
        cursor = self.run({"aggregate": coll, "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "test"})["cursor"]
        self.more = {"getMore": cursor["id"], "collection": coll, "maxTimeMS": 3_600_000, "$db": "test"}
        self.send_command(self.more)

    def follow(self, n):
        """Reads until so many events have come; gives how many batches they came in."""
        batches = 0
        while n > 0:
            n -= len(self.reply()["cursor"]["nextBatch"])
            self.send_command(self.more)
            batches += 1
        return batches


class Writer(Client):
    """A client that sends inserts without waiting for one reply before the next."""

    def __init__(self, port):
        super().__init__(port, timeout_s=None)

    def insert(self, ids):
        for i in ids:
            document = {"_id": i, "fill": "x" * 500}
            self.send_command({"insert": "counted", "documents": [document], "writeConcern": {"w": 1}, "$db": "test"})
        for _ in ids:
            reply = self.reply()
            assert reply["ok"] == 1 and reply["n"] == 1, reply


class Requests(Wire):
    """Commands of several kinds, made ready as bytes, whose replies are only counted: the CPU is the server's, hardly the client's."""

    def __init__(self, server, commands):
        super().__init__(server.port, timeout_s=None)
        self.name, self.server = "PandoDB", server
        self.ready = {kind: [self.message(OP_MSG, b"\0" * 5 + bson.encode(c)) for c in all] for kind, all in commands.items()}

    def answer(self, request):
        self.send(request)
        return self._read(struct.unpack("<i", self._read(4))[0] - 4)

    def found(self, kind):
        """The documents of each answer, decoded, unmeasured."""
        return [bson.decode(self.answer(r)[17:])["cursor"]["firstBatch"] for r in self.ready[kind]]

    def ask(self, kind, seconds):
        before = cpu(self.server)
        return (*timed(self.answer, self.ready[kind], seconds), cpu(self.server) - before)


def timed(ask, questions, seconds):
    """Puts questions for so long: how many, and in which time."""
    count, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        for question in questions[count % len(questions) :][:16]:
            ask(question)
            count += 1
    return count, took


class InProcess:
    """An engine in this process: `ask` takes a question as `ready` has them by kind."""

    def ask(self, kind, seconds):
        before = time.process_time()
        return (*timed(self.answer, self.ready[kind], seconds), time.process_time() - before)


def wanted(server):
    """Seconds of CPU that a server's threads have had or have waited for."""
    tasks = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
    return sum(sum(map(int, (task / "schedstat").read_text().split()[:2])) for task in tasks) / 1e9


def settled(server):
    """Waits until a server has nothing to do any more: on a busy machine it may have little CPU although it wants more."""
    used = wanted(server)
    while time.sleep(1) or wanted(server) - used > 0.1:
        used = wanted(server)


def compared(engines, kinds, rounds, seconds):
    """Rounds in which engines take turns, forth and back: medians of questions a second and of their CPU, and of the first engine's rate
    against that of each other one in the same round."""
    rates, costs = collections.defaultdict(list), collections.defaultdict(list)
    for kind in kinds:
        for turn in range(rounds + 1):
            for engine in engines if turn % 2 else engines[::-1]:
                count, took, used = engine.ask(kind, seconds if turn else seconds / 4)
                # The first turn warms up.
                if turn:
                    rates[kind, engine.name].append(count / took)
                    costs[kind, engine.name].append(used / count * 1e6)
    rows = []
    for kind, name in rates:
        against = [first / other for first, other in zip(rates[kind, engines[0].name], rates[kind, name])]
        row = {"kind": kind, "engine": name, "a_second": round(statistics.median(rates[kind, name]), 1)}
        rows.append(row | {"cpu_us": round(statistics.median(costs[kind, name]), 1), "ratio": round(statistics.median(against), 2)})
    return rows


def shown(rows, **more):
    """Prints rows as a table, and all as one line of JSON."""
    heads = list(rows[0])
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for row in rows:
        print("| " + " | ".join(f"{row.get(head):,}" if isinstance(row.get(head), float) else str(row.get(head)) for head in heads) + " |")
    print(json.dumps({"rows": rows, **more}), flush=True)
