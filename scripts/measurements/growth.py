"""What costs more the more there are: the curve of each, and the exponent that fits it (0: as much however many there are).

    scripts/measure.py growth target/release/pando [NAME, all] [MOST, 16000]

collections   the server's processor time for a `create`, when its database has so many collections already
streams       the same for an insert, beside so many change streams on other collections, each of which waits for news
cursors       the same for a transaction of one insert, and for the end of a session, beside so many open cursors of other sessions
sharded       an idle cluster of two shards with an eighth of so many sharded collections: the processor time of all its servers in a second,
              and how long it takes to drop their database
"""

import math
import threading
import time
import uuid

from bson import Binary
from sharded_cluster import ShardedCluster

from .common import cpu, folder, numbers, running

FIRST = 1000
CREATES, INSERTS = 1000, 4000
IDLE_S = 30


def tell(name, unit, curve):
    """`curve`: pairs of how many there are and what it costs."""
    points = [(math.log(many), math.log(max(cost, 1e-9))) for many, cost in curve if many]
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / max(sum((x - mean_x) ** 2 for x, _ in points), 1e-9)
    print(f"{name}: " + ", ".join(f"{cost:.4g} {unit} at {many}" for many, cost in curve) + f"; exponent {slope:.2f}", flush=True)


def steps(most):
    """1,000, and ever twice as many."""
    many = FIRST
    while many <= most:
        yield many
        many *= 2


def collections(most):
    with running() as server, server.client() as client:
        made, curve = 0, []

        def make(until):
            nonlocal made
            for made in range(made, until):
                client.d.create_collection(f"c{made}", check_exists=False)
            made = until

        for many in steps(most):
            make(many)
            before = cpu(server)
            make(many + CREATES)
            curve.append((many, (cpu(server) - before) / CREATES * 1e6))
        tell("create", "µs", curve)


def streams(_most):
    with running() as server, server.client(maxPoolSize=None) as client:
        stop, threads, curve = threading.Event(), [], []

        def wait(n):
            with client.d[f"other{n}"].watch(max_await_time_ms=1000) as stream:
                while not stop.is_set():
                    stream.try_next()

        for many in (0, 100, 200, 400):
            for n in range(len(threads), many):
                threads.append(threading.Thread(target=wait, args=(n,)))
                threads[-1].start()
            time.sleep(3)
            before, began = cpu(server), time.monotonic()
            time.sleep(5)
            idle = (cpu(server) - before) / (time.monotonic() - began)
            before, began = cpu(server), time.monotonic()
            for n in range(INSERTS):
                client.d.own.insert_one({"n": n})
            used = cpu(server) - before - idle * (time.monotonic() - began)
            curve.append((many, used / INSERTS * 1e6))
            print(f"{many} streams: idle at {idle:.1%} of a core", flush=True)
        tell("insert beside streams on other collections", "µs", curve)
        stop.set()
        for thread in threads:
            thread.join()


def cursors(most):
    with running() as server, server.client() as client:
        client.d.c.insert_many([{"_id": n} for n in range(3)])
        curves = {"transaction": [], "endSessions": []}
        # Each has one cursor.
        sessions = []
        for many in steps(most):
            while len(sessions) < many:
                sessions.append(client.start_session())
                client.d.command("find", "c", batchSize=1, session=sessions[-1])
            before = cpu(server)
            with client.start_session() as session:
                for _ in range(INSERTS):
                    with session.start_transaction():
                        client.d.own.insert_one({}, session=session)
            curves["transaction"].append((many, (cpu(server) - before) / INSERTS * 1e6))
            ended = [{"id": Binary(uuid.uuid4().bytes, 4)} for _ in range(INSERTS)]
            before = cpu(server)
            client.admin.command("endSessions", ended)
            curves["endSessions"].append((many, (cpu(server) - before) / INSERTS * 1e6))
        for name, curve in curves.items():
            tell(f"{name} beside open cursors", "µs", curve)


def sharded(most):
    with folder() as place, ShardedCluster(place) as cluster, cluster.client() as client:
        made, curve = 0, []
        for many in (many // 8 for many in steps(most)):
            for made in range(made, many):
                client.admin.command("shardCollection", f"d.c{made}", key={"_id": 1})
            made = many
            time.sleep(12)
            before = sum(map(cpu, cluster.servers()))
            time.sleep(IDLE_S)
            curve.append((many, (sum(map(cpu, cluster.servers())) - before) / IDLE_S * 1e3))
        tell("an idle cluster with sharded collections", "ms a second", curve)
        began = time.monotonic()
        client.drop_database("d")
        print(f"a database of {made} sharded collections is dropped in {time.monotonic() - began:.1f} s")


def main(given):
    name, most = numbers(given, "all", 16_000)
    curves = {"collections": collections, "streams": streams, "cursors": cursors, "sharded": sharded}
    for curve in curves.values() if name == "all" else [curves[name]]:
        curve(most)
