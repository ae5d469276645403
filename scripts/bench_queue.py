#!/usr/bin/env python3
"""What a queue, a window by age, a state and a mass delete cost as time goes by: the server's CPU and the hidden keys stepped over.

    scripts/bench_queue.py target/release/pando [jobs, 1000000] [takers, 1]

queue   1,000 jobs wait; each take (`findOneAndDelete` by state in the order of time) is followed by a new job. Prints the CPU
        of a take and its insert, by parts of the jobs; with more takers than one each has a maker beside it.
window  a thousand in, the oldest thousand out, jobs in all: the CPU of the poll for the oldest.
state   jobs / 10 documents pass from "ready" to "done": the CPU of a poll of the empty state, a second later.
mass    `deleteMany` of all but the last thousand of the window: the CPU of the first by index, a second later.

CPU is all of the server's process, its threads in the background included. The client is Python's. Needs PyMongo.
"""

import os
import pathlib
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ["PANDO_BIN"] = str(pathlib.Path(sys.argv[1]).resolve())
sys.path.insert(0, str(ROOT / "tests" / "python"))

from harness import Server  # noqa: E402

JOBS, TAKERS = (int(given) for given in (*sys.argv[2:], *("1000000", "1")[len(sys.argv) - 2 :]))
WAITING, PARTS = 1000, 20
TICKS = os.sysconf("SC_CLK_TCK")


def cpu(server):
    """Seconds of the process, without what reading them costs."""
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def hidden(client):
    return client.admin.command("serverStatus")["metrics"]["queryExecutor"]["hiddenKeysSkipped"]


def measured(server, client, work, count):
    """Microseconds of CPU and hidden keys for each of `count` operations."""
    before, keys = cpu(server), hidden(client)
    work()
    return (cpu(server) - before) / count * 1e6, (hidden(client) - keys) / count


def fill(coll, begin, count):
    for at in range(begin, begin + count, 1000):
        coll.insert_many([{"st": "ready", "at": n} for n in range(at, min(at + 1000, begin + count))])


def queue(server, client):
    q = client.bench.queue
    q.create_index([("st", 1), ("at", 1)])
    fill(q, 0, WAITING)
    part, made = JOBS // PARTS, iter(range(WAITING, 10 * JOBS))
    lock = threading.Lock()

    def run(jobs):
        with server.client() as own:
            mine = own.bench.queue
            for _ in range(jobs):
                assert mine.find_one_and_delete({"st": "ready"}, sort=[("at", 1)]) or TAKERS > 1

    def make(jobs):
        with server.client() as own:
            mine = own.bench.queue
            for _ in range(jobs):
                with lock:
                    at = next(made)
                mine.insert_one({"st": "ready", "at": at})

    def both():
        if TAKERS == 1:
            for _ in range(part):
                assert q.find_one_and_delete({"st": "ready"}, sort=[("at", 1)])
                q.insert_one({"st": "ready", "at": next(made)})
            return
        threads = [threading.Thread(target=work, args=(part // TAKERS,)) for work in (run, make) for _ in range(TAKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    figures = []
    # The first part warms up and is not compared.
    for n in range(PARTS + 1):
        figures.append(measured(server, client, both, part))
        print(f"queue  after {n * part:>9,} jobs: {figures[-1][0]:7.0f} µs, {figures[-1][1]:6.1f} hidden keys a job", flush=True)
    print(f"queue  last part against the second: {figures[-1][0] / figures[1][0]:.2f}")
    q.drop()


def polls(server, client, what, poll, wanted):
    def many():
        for _ in range(1000):
            assert poll() == wanted, poll()

    figure = measured(server, client, many, 1000)
    print(f"{what}: {figure[0]:7.0f} µs, {figure[1]:6.1f} hidden keys a poll", flush=True)
    return figure[0]


def window(server, client):
    w = client.bench.window
    w.create_index("at")
    oldest = lambda: (w.find_one(sort=[("at", 1)]) or {}).get("at")
    fill(w, 0, WAITING)
    first = polls(server, client, "window before a delete", oldest, 0)
    for begin in range(0, JOBS, WAITING):
        fill(w, begin + WAITING, WAITING)
        w.delete_many({"at": {"$lt": begin + WAITING}})
    time.sleep(1)
    last = polls(server, client, f"window after {JOBS:,}", oldest, JOBS // WAITING * WAITING)
    print(f"window after against before: {last / first:.2f}")
    fill(w, JOBS + WAITING, JOBS)
    w.delete_many({"at": {"$lt": 2 * JOBS}})
    time.sleep(1)
    last = polls(server, client, "first after the mass delete", oldest, 2 * JOBS)
    print(f"mass   after against before: {last / first:.2f}")
    w.drop()


def state(server, client):
    s = client.bench.state
    s.create_index([("st", 1), ("at", 1)])
    poll = lambda: s.find_one({"st": "ready"})
    first = polls(server, client, "state  that was never full", poll, None)
    fill(s, 0, JOBS // 10)
    s.update_many({}, {"$set": {"st": "done"}})
    time.sleep(1)
    last = polls(server, client, f"state  that {JOBS // 10:,} have left", poll, None)
    print(f"state  after against before: {last / first:.2f}")
    s.drop()


def main():
    with tempfile.TemporaryDirectory() as folder, Server(pathlib.Path(folder) / "data") as server, server.client() as client:
        queue(server, client)
        window(server, client)
        state(server, client)


if __name__ == "__main__":
    main()
