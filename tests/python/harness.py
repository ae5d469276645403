"""A real server, started and stopped as a user would, and a client that speaks to it in bytes.

Invariant: every server is the built binary (PANDO_BIN), on a loopback port and a directory of its own, and is gone when
its test is.
"""

import collections
import contextlib
import datetime
import fcntl
import itertools
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time

import bson
import pymongo
import pytest
from bson.codec_options import CodecOptions
from pymongo.errors import OperationFailure

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The console of a server would take a port that another test finds free a moment before. Tests of it ask for one.
os.environ.setdefault("PANDO_CONSOLE", "off")
BINARY = pathlib.Path(os.environ.get("PANDO_BIN", ROOT / "target" / "debug" / "pando"))
OP_REPLY, OP_QUERY, OP_COMPRESSED, OP_MSG = 1, 2004, 2012, 2013
CHECKSUM_PRESENT, MORE_TO_COME = 1, 2


def ports_of_this_process():
    """Ports of a range below those that connections leave from; each process that runs tests has its own range."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    first, count = 20_000 + worker % 3 * 4_000, 4_000
    begin = random.randrange(count)
    return itertools.cycle(first + (begin + n) % count for n in range(count))


ports = ports_of_this_process()


# One for each of the last ports that this process has been given: another one that runs tests is not given it, even while its
# server is down.
held_ports = collections.deque(maxlen=256)


def free_port():
    place = pathlib.Path(tempfile.gettempdir()) / "pando-test-ports"
    place.mkdir(exist_ok=True)
    for port in ports:
        with contextlib.suppress(OSError), socket.socket() as s:
            held = open(place / str(port), "w")
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            s.bind(("127.0.0.1", port))
            held_ports.append(held)
            return port


def until(what, holds, timeout_s=30):
    """Asks `holds` until it answers something true, and gives that; fails in the name of `what` after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not (answer := holds()):
        assert time.monotonic() < end, f"in vain for {timeout_s} s: {what}"
        time.sleep(0.02)
    return answer


def ask_until_they_wait(client, cursors, ask):
    """`ask` sends a getMore of each of these cursors over the log; returns when all of them wait. They do so without a thread and are
    no operation that is shown: that a cursor was used again its dates tell, which are exact to a few milliseconds."""
    def ages():
        idle = client.admin.aggregate([{"$currentOp": {"idleCursors": True}}, {"$match": {"cursor.cursorId": {"$in": cursors}}}])
        dates = [(c["cursor"]["createdDate"], c["cursor"]["lastAccessDate"]) for c in idle]
        return dates if len(dates) == len(cursors) else []

    few = datetime.timedelta(milliseconds=10)
    last = max(created for created, _ in ages())
    until("a use is later than its cursor", lambda: datetime.datetime.utcnow() - last > 2 * few)
    ask()
    until("all wait", lambda: (dates := ages()) and all(used - created > few for created, used in dates))


def run_pando(*words, timeout_s=300, env=None):
    """Runs the program to its end: what `subprocess.run` gives."""
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=timeout_s, env=env)


def pando(*words, code=0, env=None):
    """What the program writes: its output, or what it says of its failure, where it has to end with another code."""
    done = run_pando(*words, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@contextlib.contextmanager
def small_disk(path, megabytes):
    """A file system of its own at `path`. The test is skipped where none may be mounted."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


# What one turn of an event loop may work at most in a test, in processor time: what else the machine does has no part in it.
MOST_WORK_OF_TURN_MS = int(os.environ.get("PANDO_MOST_WORK_OF_TURN_MS", "4000"))
# Turns that have worked for longer: the test, and the line of the server's log.
held_loops = []


class Server:
    """One process. `launch` returns at once, `start` when it answers; `kill` is SIGKILL; `stop` is what an operator does."""

    def __init__(self, path, *options, port=None, program=None, env=None):
        self.path = pathlib.Path(path)
        self.port = port or free_port()
        self.options = [str(o) for o in options]
        self.program = program or [BINARY, "serve"]
        self.env = env
        self.process = None
        self.log = self.path.parent / f"{self.path.name}.{self.port}.out"
        self.looked = 0

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def command(self):
        return [str(c) for c in [*self.program, "--dbpath", self.path, "--port", self.port, *self.options]]

    def launch(self):
        assert not self.running(), "one process at a time"
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                self.command(), stdout=out, stderr=out, stdin=subprocess.DEVNULL, env={**os.environ, **(self.env or {})}
            )

    def start(self, timeout_s=60):
        self.launch()
        try:
            until("the server answers", self.answers, timeout_s)
        except AssertionError as late:
            self.kill()
            raise RuntimeError(f"{late}\n{self.tail()}") from None
        return self

    def answers(self):
        """Whether it answers yet; an error where it has ended."""
        if not self.running():
            raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.tail()}")
        with contextlib.suppress(OSError, EOFError), Wire(self.port, timeout_s=5) as wire:
            return wire.command({"hello": 1, "$db": "admin"})["ok"] == 1
        return False

    def tail(self, lines=40):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def client(self, **options):
        options.setdefault("serverSelectionTimeoutMS", 20_000)
        options.setdefault("directConnection", True)
        return pymongo.MongoClient("127.0.0.1", self.port, **options)

    def wire(self, **options):
        return Wire(self.port, **options)

    def running(self):
        return self.process is not None and self.process.poll() is None

    def stand_still(self):
        """SIGSTOP; its threads stop one after another, and it returns when all have."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
        until("it stands still", lambda: all(t.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "T" for t in tasks.iterdir()))

    def kill(self):
        if self.running():
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.look_for_held_loops()

    def look_for_held_loops(self):
        """Notes the turns of event loops that have worked for longer than tests allow."""
        if not self.log.exists():
            return
        with open(self.log, "rb") as log:
            log.seek(self.looked)
            text = log.read()
        self.looked += len(text)
        for line in text.splitlines():
            worked = b"An event loop is held" in line and re.search(rb"workedMillis\D*(\d+)", line)
            if worked and int(worked[1]) >= MOST_WORK_OF_TURN_MS:
                held_loops.append((os.environ.get("PYTEST_CURRENT_TEST"), line.decode(errors="replace")))

    def stop(self, timeout_s=30):
        """Ends it with SIGTERM and returns its exit code."""
        if self.running():
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        self.look_for_held_loops()
        return code

    def restart(self):
        self.stop()
        return self.start()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()


class Wire:
    """A connection without a driver, for what drivers do not let one send."""

    def __init__(self, port, timeout_s=30):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request_id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, raw):
        self.socket.sendall(raw)

    def _read(self, size):
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError("the server closed the connection")
            data += part
        return bytes(data)

    def message(self, op_code, payload):
        self.request_id += 1
        return struct.pack("<iiii", 16 + len(payload), self.request_id, 0, op_code) + payload

    def receive(self):
        """The next message: (opcode, responseTo, payload)."""
        length, _, response_to, op_code = struct.unpack("<iiii", self._read(16))
        return op_code, response_to, self._read(length - 16)

    def receive_msg(self):
        op_code, response_to, payload = self.receive()
        assert op_code == OP_MSG, f"opcode {op_code}"
        assert response_to == self.request_id
        (flags,) = struct.unpack_from("<I", payload)
        assert payload[4] == 0, "a reply is one body section"
        end = len(payload) - (4 if flags & CHECKSUM_PRESENT else 0)
        return bson.decode(payload[5:end], CodecOptions(tz_aware=False))

    def send_body(self, body, flags=0, sequences=()):
        """Sends an OP_MSG whose body is given as BSON bytes."""
        payload = struct.pack("<I", flags) + b"\0" + body
        for name, documents in sequences:
            content = name.encode() + b"\0" + b"".join(documents)
            payload += b"\1" + struct.pack("<i", 4 + len(content)) + content
        self.send(self.message(OP_MSG, payload))

    def command(self, command, flags=0, sequences=()):
        """Runs a command; the reply as it came, errors included. Gives None where MORE_TO_COME asks for no reply."""
        self.send_body(bson.encode(command), flags, sequences)
        return None if flags & MORE_TO_COME else self.receive_msg()

    def raw_command(self, body):
        self.send_body(body)
        return self.receive_msg()

    def query(self, collection, query, limit=-1):
        """A legacy OP_QUERY: the one document of its OP_REPLY."""
        payload = struct.pack("<i", 0) + collection.encode() + b"\0" + struct.pack("<ii", 0, limit) + bson.encode(query)
        self.send(self.message(OP_QUERY, payload))
        op_code, response_to, reply = self.receive()
        assert op_code == OP_REPLY and response_to == self.request_id
        _, _, _, count = struct.unpack_from("<iqii", reply)
        assert count == 1
        return bson.decode(reply[20:])

    def ping(self):
        assert self.command({"ping": 1, "$db": "admin"})["ok"] == 1


@contextlib.contextmanager
def refuses(code, name=None, containing=None):
    """The block must fail with this code (and code name, and these words)."""
    with pytest.raises(OperationFailure) as caught:
        yield caught
    error = caught.value
    assert error.code == code, f"code {error.code} instead of {code}: {error}"
    if name is not None:
        assert error.details.get("codeName") == name, error.details
    if containing is not None:
        assert containing in str(error), str(error)


def expect_error(reply, code, name=None):
    """The same for a reply that Wire read."""
    assert reply.get("ok") == 0, reply
    assert reply.get("code") == code, reply
    if name is not None:
        assert reply.get("codeName") == name, reply
    assert isinstance(reply.get("errmsg"), str) and reply["errmsg"], reply


def stages(plan):
    """Names of a plan's stages, from the top down, of an explain's plan or of executionStats."""
    found = []
    while plan:
        found.append(plan["stage"])
        if "inputStages" in plan:
            found.append([stages(p) for p in plan["inputStages"]])
        plan = plan.get("inputStage")
    return found


def winning(explain):
    plan = explain["queryPlanner"]["winningPlan"]
    return plan.get("queryPlan", plan)


def leaf(plan):
    while "inputStage" in plan:
        plan = plan["inputStage"]
    return plan


def used(collection, query, **more):
    """The index that a find uses, or the stage at the bottom of its plan."""
    plan, _ = execution(collection, {"find": collection.name, "filter": query, **more})
    bottom = leaf(plan)
    return bottom.get("indexName", bottom["stage"])


def execution(collection, command):
    """Explains at executionStats and gives (winning plan, executionStats)."""
    reply = collection.database.command("explain", command, verbosity="executionStats")
    return winning(reply), reply["executionStats"]
