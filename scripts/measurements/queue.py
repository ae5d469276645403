"""What a queue, a window by age, a state and a mass delete cost as time goes by: the server's CPU and the hidden keys stepped over.

    scripts/measure.py queue target/release/pando [jobs, 1000000] [takers, 1] [--only queue,mass] [--off]

queue    1,000 jobs wait; each take (`findOneAndDelete` by state in the order of time) is followed by a new job. With more takers
         than one each has a maker beside it. Then the head of the queue by `find`, and the first document of a scan.
window   a thousand in, the oldest thousand out, jobs in all; then the oldest.
state    so many documents as there are jobs pass from "ready" to "done"; then a poll of the empty state, and its count.
mass     `deleteMany` of all but the last thousand; then the first by index, and the first document of a scan.
cursor   the queue beside a cursor that is open since the beginning; then what the cursor still gives, and the head when it is closed.
updates  60,000 updates of one document beside an open cursor; then a scan over it.

Each is set beside what it was in the beginning, or beside a collection of the same documents that never deleted. The first poll comes
a second after the last delete. CPU of operations that write is that of the whole process, merging included; that of polls is of the
threads that serve. The client is Python's. `--off`: no dead range is noted.
"""

import argparse
import pathlib
import threading
import time

from .common import running

WAITING, PARTS, POLLS, UPDATES = 1000, 20, 500, 60_000
SHAPES = ("queue", "window", "state", "mass", "cursor", "updates")
IN_THE_BACKGROUND = ("rocksdb:", "store-keeper")
ROWS = []


def note(what, first, later, unit, hidden=""):
    ROWS.append((what, first, later, unit, hidden))
    print(f"{what}: {first:.0f} {unit} at first, {later:.0f} later, {later / first:.2f} of it{hidden}", flush=True)


class Bench:
    def __init__(self, server, client, jobs, takers):
        self.server, self.client, self.jobs, self.takers = server, client, jobs, takers
        self.db = client.bench
        self.proc = pathlib.Path(f"/proc/{server.process.pid}")
        # The clock of a process's CPU time, as clock_getcpuclockid(3) gives it.
        self.clock = ~server.process.pid << 3 | 2

    def cpu(self):
        """Seconds of the whole process."""
        return time.clock_gettime(self.clock)

    def serving(self):
        """Seconds of the threads that serve, those that have ended included."""
        others = 0
        for task in (self.proc / "task").iterdir():
            if (task / "comm").read_text().startswith(IN_THE_BACKGROUND):
                others += int((task / "schedstat").read_text().split()[0])
        return self.cpu() - others / 1e9

    def hidden(self):
        return self.client.admin.command("serverStatus")["metrics"]["queryExecutor"]["hiddenKeysSkipped"]

    def measured(self, work, count, of=None):
        """Microseconds of CPU and hidden keys for each of `count` operations."""
        of = of or self.cpu
        before, keys = of(), self.hidden()
        work()
        return (of() - before) / count * 1e6, (self.hidden() - keys) / count

    def least(self, work, count):
        """What an operation that only reads costs the threads that serve: the least of five, as other processes disturb it."""
        return min(self.measured(lambda: [work() for _ in range(count)], count, self.serving) for _ in range(5))

    def polls(self, poll, wanted):
        def checked():
            found = poll()
            assert found == wanted, (found, wanted)

        _, first = self.measured(checked, 1)
        cost, hidden = self.least(checked, POLLS)
        return cost, f"; {first:.0f} hidden keys by the first, {hidden:.1f} by each"

    def beside(self, what, poll, never, wanted):
        """A poll, and the same of a collection that never deleted."""
        first, _ = self.polls(never, wanted)
        later, hidden = self.polls(poll, wanted)
        note(what, first, later, "µs", hidden)

    def coll(self, name, *keys):
        coll = self.db[name]
        coll.drop()
        for key in keys:
            coll.create_index(key)
        return coll


def fill(coll, begin, count):
    for at in range(begin, begin + count, 1000):
        coll.insert_many([{"st": "ready", "at": n} for n in range(at, min(at + 1000, begin + count))])


def copied(coll):
    """A collection of the same documents and indexes that never deleted."""
    copy = coll.database[f"never_{coll.name}"]
    copy.drop()
    for index in list(coll.list_indexes())[1:]:
        copy.create_index(list(index["key"].items()))
    if living := list(coll.find()):
        copy.insert_many(living)
    return copy


BY_STATE = [("st", 1), ("at", 1)]


def head(coll):
    return lambda: (coll.find_one({"st": "ready"}, sort=[("at", 1)]) or {}).get("at")


def oldest(coll):
    return lambda: (coll.find_one(sort=[("at", 1)]) or {}).get("at")


def of_scan(coll):
    return lambda: (coll.find_one() or {}).get("at")


def works(b, coll, jobs, made):
    """So many jobs are taken, and as many made."""
    lock = threading.Lock()

    def take(jobs):
        with b.server.client() as own:
            mine = own.bench[coll.name]
            for _ in range(jobs):
                assert mine.find_one_and_delete({"st": "ready"}, sort=[("at", 1)]) or b.takers > 1

    def make(jobs):
        with b.server.client() as own:
            mine = own.bench[coll.name]
            for _ in range(jobs):
                with lock:
                    at = next(made)
                mine.insert_one({"st": "ready", "at": at})

    if b.takers == 1:
        for _ in range(jobs):
            assert coll.find_one_and_delete({"st": "ready"}, sort=[("at", 1)])
            coll.insert_one({"st": "ready", "at": next(made)})
        return
    threads = [threading.Thread(target=work, args=(jobs // b.takers,)) for work in (take, make) for _ in range(b.takers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def queue(b):
    q, part = b.coll("queue", BY_STATE), b.jobs // PARTS
    fill(q, 0, WAITING)
    made, figures = iter(range(WAITING, 10 * b.jobs)), []
    # The first part warms up and is not compared.
    for n in range(PARTS + 1):
        figures.append(b.measured(lambda: works(b, q, part, made), part))
        print(f"queue after {n * part:>9,} jobs: {figures[-1][0]:7.0f} µs, {figures[-1][1]:6.1f} hidden keys a job", flush=True)
    by_each = f"; {figures[1][1]:.1f} hidden keys by each, {figures[-1][1]:.1f} later"
    note(f"queue: a take and a new job after {b.jobs:,}, {b.takers} takers", figures[1][0], figures[-1][0], "µs", by_each)
    time.sleep(1)
    never = copied(q)
    b.beside("queue: its head by find", head(q), head(never), head(never)())
    b.beside("queue: first document of a scan", of_scan(q), of_scan(never), of_scan(never)())


def window(b):
    w, costs = b.coll("window", "at"), []
    fill(w, 0, WAITING)

    def turn(begin):
        fill(w, begin + WAITING, WAITING)
        w.delete_many({"at": {"$lt": begin + WAITING}})

    part = b.jobs // 10
    for begin in range(0, 11 * part, part):
        turns = range(begin, begin + part, WAITING)
        costs.append(b.measured(lambda: [turn(at) for at in turns], len(turns))[0])
    time.sleep(1)
    never = copied(w)
    note(f"window: a thousand in and out, after {b.jobs:,}", costs[1], costs[-1], "µs")
    b.beside("window: the oldest by index", oldest(w), oldest(never), 11 * part)
    b.beside("window: first document of a scan", of_scan(w), of_scan(never), 11 * part)


def state(b):
    s, never = b.coll("state", BY_STATE), b.coll("never_state", BY_STATE)
    fill(s, 0, b.jobs)
    for begin in range(0, b.jobs, 10_000):
        s.update_many({"st": "ready", "at": {"$lt": begin + 10_000}}, {"$set": {"st": "done"}})
    never.insert_many([{"st": "done", "at": n} for n in range(WAITING)])
    time.sleep(1)
    b.beside(f"state: a poll of what {b.jobs:,} have left", head(s), head(never), None)
    count = lambda coll: lambda: coll.count_documents({"st": "ready"})
    b.beside("state: its count", count(s), count(never), 0)


def mass(b):
    m = b.coll("mass", "at")
    fill(m, 0, b.jobs + WAITING)
    m.delete_many({"at": {"$lt": b.jobs}})
    time.sleep(1)
    never = b.coll("never_mass", "at")
    fill(never, b.jobs, WAITING)
    b.beside(f"mass delete of {b.jobs:,}: the first by index", oldest(m), oldest(never), b.jobs)
    b.beside("mass delete: first document of a scan", of_scan(m), of_scan(never), b.jobs)


def cursor(b):
    q, jobs = b.coll("beside", BY_STATE), b.jobs // 10
    fill(q, 0, WAITING)
    made, part, figures = iter(range(WAITING, 10 * b.jobs)), jobs // 10, []
    opened = q.find({"st": "ready"}, batch_size=2, no_cursor_timeout=True).sort("at", 1)
    next(opened)
    for n in range(11):
        figures.append(b.measured(lambda: works(b, q, part, made), part))
    by_each = f"; {figures[1][1]:.1f} hidden keys by each, {figures[-1][1]:.1f} later"
    note(f"queue beside a cursor since the beginning, after {jobs:,}", figures[1][0], figures[-1][0], "µs", by_each)
    never = copied(q)
    b.beside("queue beside that cursor: its head", head(q), head(never), head(never)())
    rest = b.measured(lambda: sum(1 for _ in opened), 1)
    print(f"what that cursor still gives, {WAITING - 1} documents: {rest[0]:.0f} µs, {rest[1]:.0f} hidden keys")
    opened = q.find({"st": "ready"}, batch_size=2, no_cursor_timeout=True).sort("at", 1)
    next(opened)
    works(b, q, part, made)
    opened.close()
    time.sleep(1)
    never = copied(q)
    b.beside("queue a second after it is closed: its head", head(q), head(never), head(never)())


def updates(b):
    u = b.coll("updates")
    fill(u, 0, WAITING)
    scan = lambda: sum(1 for _ in u.find())
    first = b.least(scan, 50)
    opened = u.find(batch_size=2, no_cursor_timeout=True)
    next(opened)
    for _ in range(UPDATES // 1000):
        b.db.command("update", u.name, updates=[{"q": {"at": 500}, "u": {"$inc": {"n": 1}}}] * 1000)
    later = b.least(scan, 50)
    note(f"{UPDATES:,} updates of one document beside an open cursor: a scan", first[0], later[0], "µs", f"; {later[1]:.0f} hidden keys")
    opened.close()


def main(words):
    given = argparse.ArgumentParser()
    given.add_argument("pando")
    given.add_argument("jobs", type=int, nargs="?", default=1_000_000)
    given.add_argument("takers", type=int, nargs="?", default=1)
    given.add_argument("--only", default=",".join(SHAPES))
    given.add_argument("--off", action="store_true")
    given = given.parse_args(words)
    options = ["--engine-options", "dead_ranges=off"] if given.off else []
    with running(*options) as server, server.client() as client:
        bench = Bench(server, client, given.jobs, given.takers)
        for shape in given.only.split(","):
            assert shape in SHAPES, shape
            globals()[shape](bench)
    print(f"\n| what | at first, or never deleted | later | ratio |\n|---|---:|---:|---:|")
    for what, first, later, unit, hidden in ROWS:
        print(f"| {what}{hidden} | {first:,.0f} {unit} | {later:,.0f} | {later / first:.2f} |")

