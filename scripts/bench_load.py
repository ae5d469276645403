"""The server's side of scripts/bench-load.sh: loads a collection with three random secondary indexes and prints its figures.

Four processes, so that the client is not what is measured; messages are built as bytes. The line of JSON has the names that the
storage room's example `engine_fill load=…` gives. With a file named after the data directory, the ids go there, one a line, and
the end waits until the server has merged what was loaded.
"""

import hashlib
import json
import multiprocessing
import os
import pathlib
import socket
import struct
import sys
import time

import bson
import pymongo

BATCH, THREADS, DOC_BYTES = 100, 4, 1024


def stolen():
    return int(open("/proc/stat").readline().split()[8]) / os.sysconf("SC_CLK_TCK")


def cpu(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def written(pid):
    return next(int(l.split()[1]) for l in open(f"/proc/{pid}/io") if l.startswith("write_bytes"))


def peak(pid):
    return next(int(l.split()[1]) << 10 for l in open(f"/proc/{pid}/status") if l.startswith("VmHWM"))


def settle(client, seconds=120):
    """Waits until the server has nothing left to flush or merge, or not for longer."""
    quiet, end = 0, time.time() + seconds
    while quiet < 3 and time.time() < end:
        time.sleep(0.5)
        engine = client.admin.command("serverStatus")["pandodb"]["engine"]
        busy = [engine[name] for name in ("pendingCompactionBytes", "fullMemtables", "runningFlushes", "runningCompactions")]
        quiet = 0 if any(busy) else quiet + 1


def loader(port, docs, ids, keep, counter, queue):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = bson.encode({"insert": "things", "ordered": True, "writeConcern": {"w": 1}, "$db": "load"})
    latencies, kept = [], []
    while True:
        with counter.get_lock():
            first = counter.value
            counter.value += BATCH
        if first >= docs:
            break
        parts = []
        for n in range(first, min(first + BATCH, docs)):
            a, b, c = struct.unpack("<qqq", os.urandom(24))
            key = hashlib.md5(str(n).encode()).hexdigest() if ids == "md5" else bson.ObjectId()
            if keep:
                kept.append(key)
            parts.append(bson.encode({"_id": key, "a": a, "b": b, "c": c, "pad": os.urandom(DOC_BYTES - 90)}))
        sequence = b"documents\0" + b"".join(parts)
        payload = struct.pack("<I", 0) + b"\0" + body + b"\1" + struct.pack("<i", len(sequence) + 4) + sequence
        message = struct.pack("<iiii", 16 + len(payload), 1, 0, 2013) + payload
        begun = time.perf_counter()
        connection.sendall(message)
        reply = b""
        while len(reply) < 4 or len(reply) < struct.unpack_from("<i", reply)[0]:
            piece = connection.recv(65536)
            if not piece:
                raise RuntimeError("the server has closed the connection")
            reply += piece
        now = time.perf_counter()
        answer = bson.decode(reply[21:])
        if answer["ok"] != 1 or answer.get("writeErrors") or answer["n"] != len(parts):
            raise RuntimeError(f"an insert failed: {answer}")
        latencies.append((now, now - begun, len(parts)))
    queue.put((latencies, "".join(f"{key}\n" for key in kept)))


def main():
    port, docs, ids, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4])
    keep = sys.argv[5] if len(sys.argv) > 5 else None
    client = pymongo.MongoClient("127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=60_000)
    for field in "abc":
        client.load.things.create_index(field)
    pid = client.admin.command("serverStatus")["pid"]
    counter, queue = multiprocessing.Value("q", 0), multiprocessing.Queue()
    cpu_before, io_before, stolen_before = cpu(pid), written(pid), stolen()
    started = time.perf_counter()
    loaders = [multiprocessing.Process(target=loader, args=(port, docs, ids, keep, counter, queue)) for _ in range(THREADS)]
    for l in loaders:
        l.start()
    parts = [queue.get() for _ in loaders]
    done = sorted(x for latencies, _ in parts for x in latencies)
    for l in loaders:
        l.join()
    seconds = done[-1][0] - started
    tenths, each_second, count, since = [], [0] * int(seconds), 0, started
    for at, _, n in done:
        count += n
        if int(at - started) < len(each_second):
            each_second[int(at - started)] += n
        while len(tenths) < 10 and count >= (len(tenths) + 1) * docs // 10:
            tenths.append(int(docs / 10 / max(at - since, 1e-9)))
            since = at
    latencies = sorted(took * 1000 for _, took, _ in done)
    engine = client.admin.command("serverStatus")["pandodb"]["engine"]
    print(
        json.dumps(
            {
                "target": "server",
                "docs": docs,
                "ids": ids,
                "seconds": round(seconds, 2),
                "rate": int(docs / seconds),
                "tenths": tenths,
                "each_second": each_second,
                "p50_ms": round(latencies[len(latencies) // 2], 2),
                "p999_ms": round(latencies[int(len(latencies) * 0.999)], 2),
                "worst_ms": round(latencies[-1], 2),
                "cpu_us_per_doc": round((cpu(pid) - cpu_before) * 1e6 / docs, 2),
                "written_bytes_per_doc": (written(pid) - io_before) // docs,
                "disk_bytes": sum(f.stat().st_size for f in path.rglob("*") if f.is_file()),
                "peak_rss_bytes": peak(pid),
                "pending_compaction_bytes": engine["pendingCompactionBytes"],
                "stolen_seconds": round(stolen() - stolen_before, 2),
            }
        )
    )
    if keep:
        pathlib.Path(keep).write_text("".join(kept for _, kept in parts))
        settle(client)


if __name__ == "__main__":
    main()
