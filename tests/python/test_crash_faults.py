"""Seeded crash runs: the server is killed between or within two calls to the kernel, with faults below log and engine.

One run: a server with `tests/faults/faults.c` below it, writers and one that creates and drops indexes and collections; it is
killed at the event that the seed chose, in the middle of a flush, a merge, an index build or a drop as it may
be; some seeds lose unsynced writes, some have the disk full for a while, some have a sync fail. Then `pando
check` reads the directory, a server without faults starts on it, and every acknowledged write must be there,
whole, in records and indexes alike.

    scripts/crash.sh 1000          a thousand seeds; a failure prints its own, and PANDO_CRASH_SEED replays it
"""

import contextlib
import os
import random
import shutil
import subprocess
import threading

import pytest
from pymongo.errors import OperationFailure, PyMongoError

import test_crash
from agreement import assert_indexes_agree
from harness import BINARY, ROOT, Server, until

RUNS = int(os.environ.get("PANDO_CRASH_RUNS", 4))
FIRST = int(os.environ.get("PANDO_CRASH_SEED", 1))
OUT_OF_DISK_SPACE = 14031
# What a server says that cannot write: no space, a log in doubt, an engine that has failed, a shutdown.
REFUSALS = (OUT_OF_DISK_SPACE, 1, 42, 91, 189, 11600)


@pytest.fixture(scope="session")
def faults(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = ROOT / "tests" / "faults" / "faults.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return library


class Plan:
    """What a seed decides."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.seed, self.rng = seed, rng
        self.kind = rng.choices(["kill", "power", "full", "badsync"], [45, 25, 15, 15])[0]
        self.kill = int(10 ** rng.uniform(1.5, 4.3))
        words = [f"seed={seed}"]
        if self.kind in ("kill", "power"):
            words.append(f"kill={self.kill}")
        if self.kind == "power":
            words.append("power=1")
        if self.kind == "full":
            begin = int(10 ** rng.uniform(2, 3.7))
            words.append(f"full={begin}-{begin + int(10 ** rng.uniform(0, 2.5))}")
        if self.kind == "badsync":
            words.append(f"badsync={int(10 ** rng.uniform(1.5, 3.5))}")
        self.words = ",".join(words)
        # After a loss of power only writes whose concern waits for the disk must be there.
        self.concerns = test_crash.CONCERNS[1:] if self.kind == "power" else test_crash.CONCERNS

    def __str__(self):
        return f"PANDO_CRASH_SEED={self.seed} ({self.words})"


class Writer(test_crash.Writer):
    """Stops at the first error; what that request did is in doubt."""

    def __init__(self, server, number, plan, known):
        super().__init__(server, number, random.Random(plan.rng.randrange(1 << 32)), known)
        self.concerns = plan.concerns

    def run(self):
        with self.server.client(retryWrites=False, serverSelectionTimeoutMS=300) as client:
            things = client.crash.things
            while not self.stop.is_set():
                effects, send = self.choose()
                try:
                    send(things.with_options(write_concern=self.rng.choice(self.concerns)))
                except PyMongoError as error:
                    self.doubt = effects
                    code = getattr(error, "code", None)
                    details = getattr(error, "details", None) or {}
                    errors = [e.get("code") for e in details.get("writeErrors", [])] or [code]
                    if isinstance(error, OperationFailure) and not all(c in REFUSALS for c in errors):
                        self.fault = error
                    return
                self.settle(effects)
                self.acknowledged += 1
                with contextlib.suppress(PyMongoError):
                    self.fault = self.look(things)
                if self.fault:
                    return


class Churner(test_crash.Churn, Writer):
    pass


class Changer(threading.Thread):
    """Creates and drops indexes and collections, so that builds and drops are under way when the end comes."""

    def __init__(self, server, rng):
        super().__init__()
        self.server, self.rng, self.stop = server, rng, threading.Event()

    def run(self):
        with self.server.client(retryWrites=False, serverSelectionTimeoutMS=300) as client:
            db, rng = client.crash, self.rng
            while not self.stop.is_set():
                try:
                    kind = rng.random()
                    if kind < 0.5:
                        db.things.create_index([(rng.choice(["a", "b", "pad", "tags"]), 1)], name=f"i{rng.randrange(3)}")
                    elif kind < 0.8:
                        db.things.drop_index(f"i{rng.randrange(3)}")
                    elif kind < 0.9:
                        db[f"t{rng.randrange(2)}"].insert_many([{"a": n, "pad": "x" * 500} for n in range(300)])
                    else:
                        db[f"t{rng.randrange(2)}"].drop()
                except OperationFailure:
                    pass
                except PyMongoError:
                    return


def run(plan, faults, path):
    server = Server(path / "data", "--cache", "16MB", "--oplogSize", "4")
    with server, server.client() as client:
        for keys in test_crash.INDEXES:
            client.crash.things.create_index(keys)
    server.env = {"LD_PRELOAD": str(faults), "FAULTS": plan.words, "FAULTS_DIR": str(server.path)}
    server.launch()
    states = [{} for _ in range(4)]
    # Of half of the seeds most writes are deletes.
    kind = (Writer, Churner)[plan.seed % 2]
    writers = [kind(server, n, plan, states[n]) for n in range(len(states))]
    changer = Changer(server, random.Random(plan.rng.randrange(1 << 32)))
    working_s = plan.rng.uniform(0.8, 2.5)
    for t in [*writers, changer]:
        t.start()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.process.wait(working_s)
    if server.running() and plan.kind == "full":
        with server.client() as client:

            def is_taken():
                try:
                    client.probe.things.insert_one({})
                except OperationFailure as error:
                    assert error.code == OUT_OF_DISK_SPACE, f"{plan}: {error}"
                    return not server.running()
                return True

            until(f"{plan}: writes come back by themselves", is_taken, 60)
    for t in [*writers, changer]:
        t.stop.set()
    server.kill()
    for t in [*writers, changer]:
        t.join()
    for w in writers:
        assert w.fault is None, f"{plan}: {w.fault}"
    checked = subprocess.run([BINARY, "check", server.path], capture_output=True, text=True, timeout=120)
    assert checked.returncode == 0, f"{plan}: {checked.stdout}{checked.stderr}"
    server.env = None
    server.start()
    with server.client() as client:
        things = client.crash.things
        for w in writers:
            w.verify(things)
        found = sum(len(w.known) for w in writers)
        assert things.estimated_document_count() == found == things.count_documents({}), plan
        assert_indexes_agree(things)
        for name in ("t0", "t1"):
            if name in client.crash.list_collection_names():
                assert client.crash.validate_collection(name, full=True)["valid"], f"{plan}: {name}"
    server.kill()
    return sum(w.acknowledged for w in writers)


def test_seeded_crash_runs(faults, tmp_path):
    total, kinds = 0, {}
    for seed in range(FIRST, FIRST + RUNS):
        plan = Plan(seed)
        path = tmp_path / str(seed)
        path.mkdir()
        try:
            total += run(plan, faults, path)
        except BaseException:
            print(f"FAILED: {plan}; what is left is in {path}")
            raise
        kinds[plan.kind] = kinds.get(plan.kind, 0) + 1
        shutil.rmtree(path)
        if seed % 10 == 0:
            print(f"seed {seed}: {total} acknowledged requests, {kinds}", flush=True)
    assert total > 5 * RUNS, "the load was hardly one"
