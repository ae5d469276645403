#!/usr/bin/env python3
"""A time series beside a plain collection: bytes on disk, documents examined, and rates.

    scripts/time_series.py SERVER [measurements] [devices] [documents of a batch]

Starts SERVER (a release build for rates; any build for bytes and documents), inserts the same
measurements of all devices, a second apart, in turns into a time series and into a plain collection
with an index on device and time, then reads hours of single devices in turns. Prints one line for
each figure. The bars: bytes at most a third, inserts at least as fast, an hour at least 3 times as
fast, at 10,000,000 measurements of 1,000 devices. The CPU for an insert is that of the server's
threads without those of the engine, which flush and merge for both.
"""

import datetime
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/python"))
import harness  # noqa: E402

START = datetime.datetime(2025, 3, 1)


def measurements(first, n, devices, state):
    """Measurements in the order of time, all devices in turn."""
    docs = []
    for i in range(first, first + n):
        device = i % devices
        state[device] += random.gauss(0, 0.05)
        docs.append(
            {
                "t": START + datetime.timedelta(seconds=i // devices),
                "device": f"device-{device:05}",
                "temperature": round(20 + state[device], 2),
                "humidity": round(55 - 3 * state[device], 1),
                "battery": 100 - i // devices // 3600,
            }
        )
    return docs


def size(db, names):
    stats = [db.command("collStats", n) for n in names]
    return sum(s["totalSize"] for s in stats), sum(s["size"] for s in stats)


def cpu_seconds(pid):
    """What the server has spent, without the threads of the engine."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            if (task / "comm").read_text().startswith("rocksdb"):
                spent -= int((task / "schedstat").read_text().split()[0]) / 1e9
        except FileNotFoundError:
            continue
    return spent


def hour(device, first):
    low = START + datetime.timedelta(seconds=first)
    high = low + datetime.timedelta(hours=1)
    return {"device": f"device-{device:05}", "t": {"$gte": low, "$lt": high}}


def main():
    program = sys.argv[1]
    total, devices, batch = (int(a) for a in (sys.argv[2:] + ["10000000", "1000", "1000"][len(sys.argv) - 2 :]))
    random.seed(7)
    harness.BINARY = pathlib.Path(program)
    with tempfile.TemporaryDirectory() as d, harness.Server(pathlib.Path(d) / "data", program=[program, "serve"]) as server:
        db = server.client().bench
        db.create_collection("series", timeseries={"timeField": "t", "metaField": "device"})
        db.plain.create_index([("device", 1), ("t", 1)])
        spent, cpu = {"series": 0.0, "plain": 0.0}, {"series": 0.0, "plain": 0.0}
        state = [0.0] * devices
        for first in range(0, total, batch):
            docs = measurements(first, min(batch, total - first), devices, state)
            turns = ["series", "plain"] if first // batch % 2 else ["plain", "series"]
            for name in turns:
                mine = [dict(x) for x in docs]
                before, begun = cpu_seconds(server.process.pid), time.perf_counter()
                db[name].insert_many(mine, ordered=False)
                spent[name] += time.perf_counter() - begun
                cpu[name] += cpu_seconds(server.process.pid) - before
        for name, seconds in spent.items():
            print(f"insert {name}: {total / seconds:,.0f} measurements a second, the driver's time included; "
                  f"{cpu[name] / total * 1e6:.2f} us of the server's CPU for each", flush=True)
        server.restart()
        db = server.client().bench
        for name in ["system.buckets.series", "plain"]:
            db.command("compact", name)
        series, plain = size(db, ["series"]), size(db, ["plain"])
        print(f"bytes on disk: series {series[0]:,}, plain {plain[0]:,}: {series[0] / max(plain[0], 1):.3f}")
        print(f"bytes of documents: series {series[1]:,}, plain {plain[1]:,}: {series[1] / max(plain[1], 1):.3f}")
        files = subprocess.run(["du", "-sb", d], capture_output=True, text=True).stdout.split()[0]
        print(f"the whole directory: {int(files):,} bytes")
        times = {"series": [], "plain": []}
        seconds = total // devices
        for _ in range(40):
            q = hour(random.randrange(devices), random.randrange(max(seconds - 3600, 1)))
            for name in times:
                begun = time.perf_counter()
                n = len(list(db[name].find(q, {"_id": 0, "temperature": 1})))
                times[name].append((time.perf_counter() - begun, n))
        assert [n for _, n in times["series"]] == [n for _, n in times["plain"]]
        median = {name: statistics.median(t for t, _ in all_) for name, all_ in times.items()}
        print(f"an hour of a device: series {median['series'] * 1e3:.2f} ms, plain {median['plain'] * 1e3:.2f} ms")
        for name in times:
            said = db.command("explain", {"find": name, "filter": q}, verbosity="executionStats")
            examined = [int(x) for x in find(said, "totalDocsExamined")]
            print(f"documents examined, {name}: {max(examined)} for {times[name][-1][1]} results")


def find(value, name):
    """All values under that name."""
    if isinstance(value, dict):
        for k, v in value.items():
            if k == name:
                yield v
            else:
                yield from find(v, name)
    elif isinstance(value, list):
        for v in value:
            yield from find(v, name)


main()
