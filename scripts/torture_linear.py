"""A set of three in network namespaces under kills, pauses, partitions, clock jumps, slow and failing disks; histories are checked
for linearizability.

    python scripts/torture_linear.py target/debug/pando [seeds, 5] [seconds a seed, 20] [first seed, random]

Needs root, `ip`, a C compiler and Go (for the checker in tests/linear). The members and the clients live in namespaces with a network of their own, which is not reached from outside.

Clients read with read concern linearizable, and write and swap with majority, each on one of a few registers; each operation is
recorded with its call and its return. One whose outcome is an error may have happened at any time after. Two more clients write with
majority and then read with afterClusterTime from any member: each must see what it wrote, and never less than it saw (causal order).
A failing seed's history is kept, and the exit code is 1.
"""

import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))
from harness import until  # noqa: E402
from pymongo import MongoClient, ReadPreference, ReturnDocument, WriteConcern  # noqa: E402
from pymongo.errors import PyMongoError  # noqa: E402
from pymongo.read_concern import ReadConcern  # noqa: E402
from shim import Shim, build  # noqa: E402

HERE = pathlib.Path(__file__).resolve()
REGISTERS, CLIENTS, SIZE, PORT = 4, 4, 3, 27017
HUB = f"pando{os.environ.get('PANDO_NET', os.getpid())}"


def run(*words):
    subprocess.run([str(w) for w in words], check=True)


def namespace(n):
    return f"{HUB}m{n}"


def address(n):
    return f"10.77.0.{n + 1}"


@contextlib.contextmanager
def network():
    """A namespace for each member, on a bridge in one for the clients."""
    names = [HUB] + [namespace(n) for n in range(SIZE)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", HUB, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", HUB, "addr", "add", "10.77.0.254/24", "dev", "br0")
        run("ip", "-n", HUB, "link", "set", "br0", "up")
        for n in range(SIZE):
            run("ip", "-n", HUB, "link", "add", f"to{n}", "type", "veth", "peer", "name", "eth0", "netns", namespace(n))
            run("ip", "-n", HUB, "link", "set", f"to{n}", "master", "br0", "up")
            run("ip", "-n", namespace(n), "addr", "add", f"{address(n)}/24", "dev", "eth0")
            run("ip", "-n", namespace(n), "link", "set", "eth0", "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


class Member:
    def __init__(self, place, binary, n):
        self.n, self.place, self.process = n, place, None
        self.command = ["ip", "netns", "exec", namespace(n), binary, "serve", "--replSet", "rs", "--dbpath", place / f"m{n}", "--port", PORT]
        self.command += ["--bind_ip", address(n), "--allow-insecure-bind"]
        self.shim = Shim(place / f"shim{n}")

    def restart(self):
        self.kill()
        self.shim.fail_sync(False)
        self.start()

    def start(self):
        env = os.environ | self.shim.env(os.environ["PANDO_SHIM_LIBRARY"])
        with open(self.place / f"m{self.n}.log", "ab") as log:
            self.process = subprocess.Popen([str(w) for w in self.command], stdout=log, stderr=log, env=env)

    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        if self.running():
            self.process.kill()
            self.process.wait()

    def unhear(self, other, deaf):
        """Has no packet go from this member to another, or has them go again."""
        words = ["ip", "-n", namespace(self.n), "route", "add" if deaf else "del", "blackhole", f"{address(other)}/32"]
        subprocess.run(words, stderr=subprocess.DEVNULL)


URI = "mongodb://" + ",".join(f"{address(n)}:{PORT}" for n in range(SIZE)) + "/?replicaSet=rs"


def connected(**options):
    return MongoClient(URI, serverSelectionTimeoutMS=3000, socketTimeoutMS=6000, connectTimeoutMS=2000, retryReads=False, **options)


class Load:
    """What clients do, and its history."""

    def __init__(self, seed):
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.history, self.faults, self.causal = [], [], 0
        self.values = itertools.count(1)
        work = [(self.use_registers, n) for n in range(CLIENTS)] + [(self.write_and_read, n) for n in range(2)]
        self.threads = [threading.Thread(target=f, args=(n, random.Random(seed * 100 + i)), daemon=True) for i, (f, n) in enumerate(work)]
        for thread in self.threads:
            thread.start()

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)

    def use_registers(self, process, rng):
        # A write that is tried again by the driver is one operation: retryable writes are left on.
        with connected() as client:
            reads = client.t.get_collection("r", read_concern=ReadConcern("linearizable"))
            writes = client.t.get_collection("r", write_concern=WriteConcern("majority"))
            old = 0
            while not self.stop.is_set():
                op = {"key": rng.randrange(REGISTERS), "kind": rng.choice(["read", "read", "write", "swap"]), "value": 0, "old": 0, "ok": True}
                op["process"], op["return"] = process, None
                if op["kind"] != "read":
                    op["value"] = next(self.values)
                op["old"] = old
                op["call"] = time.monotonic_ns()
                try:
                    old = self.operate(op, reads, writes)
                    op["return"] = time.monotonic_ns()
                except PyMongoError:
                    pass
                # An operation without a known outcome goes on for ever: its process begins anew, as
                # another.
                process += 0 if op["return"] else 1000
                with self.lock:
                    self.history.append(op)

    @staticmethod
    def operate(op, reads, writes):
        """Does it, and gives the value that is there then, as far as it tells."""
        here = {"_id": op["key"]}
        if op["kind"] == "read":
            op["value"] = reads.find_one(here)["v"]
            return op["value"]
        if op["kind"] == "write":
            writes.update_one(here, {"$set": {"v": op["value"]}})
            return op["value"]
        found = writes.find_one_and_update(here | {"v": op["old"]}, {"$set": {"v": op["value"]}}, return_document=ReturnDocument.AFTER)
        op["ok"] = found is not None
        return op["value"] if found else op["old"]

    def write_and_read(self, n, rng):
        with connected() as client:
            coll = client.t.get_collection("causal", write_concern=WriteConcern("majority"), read_concern=ReadConcern("majority"))
            anywhere = coll.with_options(read_preference=ReadPreference.NEAREST)
            least, number = 0, 0
            while not self.stop.is_set():
                with contextlib.suppress(PyMongoError), client.start_session(causal_consistency=True) as session:
                    for _ in range(rng.randrange(1, 20)):
                        number += 1
                        coll.update_one({"_id": n}, {"$max": {"v": number}}, upsert=True, session=session)
                        least = number
                        seen = anywhere.find_one({"_id": n}, session=session)
                        if seen is None or seen["v"] < least:
                            self.faults.append(f"client {n} had written {least}, and then read {seen}")
                        self.causal += 1


def harm(rng, members, until_time):
    told = {"kill": 0, "pause": 0, "partition": 0, "clock": 0, "slow disk": 0, "failing sync": 0}
    while time.monotonic() < until_time:
        time.sleep(rng.uniform(0.2, 2.0))
        member = rng.choice(members)
        kind = rng.choice(list(told))
        told[kind] += 1
        if kind == "kill":
            member.kill()
            time.sleep(rng.uniform(0, 2))
            member.start()
        elif kind == "pause":
            member.process.send_signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.2, 4))
            member.process.send_signal(signal.SIGCONT)
        elif kind == "partition":
            part(rng, members, member)
        elif kind == "slow disk":
            member.shim.slow_disk(rng.choice([0.02, 0.2, 1.0]))
            time.sleep(rng.uniform(0.5, 4))
            member.shim.slow_disk(0)
        elif kind == "failing sync":
            # It leaves the set by itself, and comes back when it is started again.
            member.shim.fail_sync(True)
            time.sleep(rng.uniform(0.5, 3))
            member.restart()
        else:
            member.shim.set_clock(rng.choice([-30, -2, 0, 2, 30]))
    return told


def part(rng, members, member):
    """Parts a member from one or all of the others, in one direction or both, for a while."""
    others = [m for m in members if m is not member]
    if rng.random() < 0.4:
        others = [rng.choice(others)]
    ways = rng.choice([(True, True), (True, False), (False, True)])
    pairs = [p for o in others for p, there in zip([(member, o), (o, member)], ways) if there]
    for a, b in pairs:
        a.unhear(b.n, True)
    time.sleep(rng.uniform(0.5, 5))
    for a, b in pairs:
        a.unhear(b.n, False)


def torture(binary, seed, seconds, place):
    rng = random.Random(seed)
    members = [Member(place, binary, n) for n in range(SIZE)]
    try:
        for member in members:
            member.start()
        begin()
        load = Load(seed)
        told = harm(rng, members, time.monotonic() + seconds)
        for member in members:
            if not member.running():
                member.start()
        time.sleep(3)
        load.end()
    finally:
        for member in members:
            member.kill()
    path = place / f"history-{seed}.jsonl"
    path.write_text("".join(json.dumps(op) + "\n" for op in load.history))
    known = sum(op["return"] is not None for op in load.history)
    print(f"seed {seed}: {told}; {known} of {len(load.history)} operations answered, {load.causal} causal reads", flush=True)
    assert known > 100, "hardly anything was answered"
    assert not load.faults, load.faults[:3]
    return path


def begin():
    """Founds the set, with registers that hold 0."""
    def founded():
        with contextlib.suppress(PyMongoError), MongoClient(address(0), PORT, directConnection=True, serverSelectionTimeoutMS=1000) as client:
            hosts = [{"_id": n, "host": f"{address(n)}:{PORT}"} for n in range(SIZE)]
            return client.admin.command("replSetInitiate", {"_id": "rs", "members": hosts})

    until("the set is founded", founded, 30)

    def filled():
        with contextlib.suppress(PyMongoError), connected() as client:
            coll = client.t.get_collection("r", write_concern=WriteConcern(SIZE, wtimeout=5000))
            for key in range(REGISTERS):
                coll.update_one({"_id": key}, {"$set": {"v": 0}}, upsert=True)
            return True

    until("the registers are there", filled, 60)


def inside():
    binary = pathlib.Path(sys.argv[1]).resolve()
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 20
    first = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1_000_000)
    failed = 0
    for seed in range(first, first + seeds):
        with tempfile.TemporaryDirectory() as place:
            place = pathlib.Path(place)
            try:
                history = torture(binary, seed, seconds, place)
                subprocess.run([os.environ["PANDO_CHECKER"], history], check=True)
            except (AssertionError, subprocess.CalledProcessError) as e:
                failed += 1
                kept = pathlib.Path(tempfile.mkdtemp(prefix=f"torture-{seed}-"))
                for file in [*place.glob("*.jsonl"), *place.glob("*.log")]:
                    file.rename(kept / file.name)
                print(f"seed {seed} fails: {e}; its history and logs are in {kept}", flush=True)
    print(f"{seeds} seeds, {failed} failed")
    sys.exit(1 if failed else 0)


def main():
    with tempfile.TemporaryDirectory() as tools, network():
        checker = pathlib.Path(tools) / "linear"
        subprocess.run(["go", "build", "-o", checker, "."], cwd=HERE.parents[1] / "tests" / "linear", check=True)
        shim = build(tools)
        env = os.environ | {"PANDO_SHIM_LIBRARY": str(shim)} | {"PANDO_NET": HUB.removeprefix("pando"), "PANDO_CHECKER": str(checker)}
        sys.exit(subprocess.run(["ip", "netns", "exec", HUB, sys.executable, HERE, *sys.argv[1:]], env=env).returncode)


if __name__ == "__main__":
    inside() if "PANDO_CHECKER" in os.environ else main()
