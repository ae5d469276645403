"""The server's side of scripts/bench-load.sh: loads a collection with three random secondary indexes and prints its figures.

Four processes, which share the cores with the server: they are cheap, so that they distort little, and their
own time is in the figures. Messages are put together from bytes. The line of JSON has the names that the
storage room's example `engine_fill load=…` gives. With a file named after the data directory, the ids go
there, one a line, and the end waits until the server has merged the loaded documents.
"""

import hashlib
import json
import multiprocessing
import os
import pathlib
import resource
import socket
import struct
import time

import bson
import pymongo

BATCH, THREADS, DOC_BYTES = 100, 4, 1024
PAD_BYTES = DOC_BYTES - 90
# Pads are cut from it one after the other, from a new place for each batch: no compressor looks back as far as where they repeat.
RANDOM_BYTES = 16 << 20


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


def message_maker(ids):
    """A function that makes the insert of the documents with these numbers, and tells their ids as text."""
    body = bson.encode({"insert": "things", "ordered": True, "writeConcern": {"w": 1}, "$db": "load"})
    # What stands around the values of a document {_id, a, b, c, pad}: an int64 each, then binary.
    model = {"_id": "0" * 32 if ids == "md5" else bson.ObjectId(), "a": 1 << 40, "b": 1 << 40, "c": 1 << 40, "pad": bytes(PAD_BYTES)}
    length = len(bson.encode(model)).to_bytes(4, "little")
    # A string is framed by its length, and a zero that is the next piece's.
    key_end, head = (b"\0", length + b"\2_id\0" + (33).to_bytes(4, "little")) if ids == "md5" else (b"", length + b"\7_id\0")
    a, b, c, end = key_end + b"\x12a\0", b"\x12b\0", b"\x12c\0", b"\0"
    pad = b"\5pad\0" + PAD_BYTES.to_bytes(4, "little") + b"\0"
    pads, process, count = memoryview(os.urandom(RANDOM_BYTES)), os.urandom(5), int.from_bytes(os.urandom(2), "big")

    def make(numbers):
        nonlocal count
        if ids == "md5":
            keys = [hashlib.md5(b"%d" % n).hexdigest().encode() for n in numbers]
        else:
            # As a driver generates them: seconds, this process, a counter.
            start = int(time.time()).to_bytes(4, "big") + process
            keys = [start + (count + i & 0xFFFFFF).to_bytes(3, "big") for i in range(len(numbers))]
            count += len(numbers)
        values = os.urandom(24 * len(numbers))
        at = int.from_bytes(os.urandom(4), "big") % (RANDOM_BYTES - PAD_BYTES * len(numbers))
        parts, v = [], 0
        for key in keys:
            parts += (head, key, a, values[v : v + 8], b, values[v + 8 : v + 16], c, values[v + 16 : v + 24], pad, pads[at : at + PAD_BYTES], end)
            v += 24
            at += PAD_BYTES
        size = int.from_bytes(length, "little") * len(numbers)
        sequence = b"\1" + struct.pack("<i", size + 14) + b"documents\0"
        flags = struct.pack("<I", 0) + b"\0"
        header = struct.pack("<iiii", 16 + len(flags) + len(body) + len(sequence) + size, 1, 0, 2013)
        return b"".join([header, flags, body, sequence, *parts]), keys

    return make


def loader(port, docs, ids, keep, counter, queue):
    # As the laboratory's own clients do: a reply does not interrupt the server's threads on the same cores.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    make = message_maker(ids)
    latencies, kept = [], []
    while True:
        with counter.get_lock():
            first = counter.value
            counter.value += BATCH
        if first >= docs:
            break
        numbers = range(first, min(first + BATCH, docs))
        message, keys = make(numbers)
        if keep:
            kept += [key.decode() if ids == "md5" else key.hex() for key in keys]
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
        if answer["ok"] != 1 or answer.get("writeErrors") or answer["n"] != len(numbers):
            raise RuntimeError(f"an insert failed: {answer}")
        latencies.append((now, now - begun, len(numbers)))
    queue.put((latencies, "".join(f"{key}\n" for key in kept)))


def main(given):
    port, docs, ids, path, keep = int(given[0]), int(given[1]), given[2], pathlib.Path(given[3]), next(iter(given[4:]), None)
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
    clients = resource.getrusage(resource.RUSAGE_CHILDREN)
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
                "client_cpu_us_per_doc": round((clients.ru_utime + clients.ru_stime) * 1e6 / docs, 2),
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

