"""Instructions that the server spends on inserts while no, one and many change streams follow, and the memory of the many.

    scripts/measure.py streams target/debug/pando [INSERTS, 1000] [STREAMS, 1000] [BURST, 40]

The one follows the collection that is written to; the many follow others, and wait in a getMore. Needs valgrind, which
makes everything some fifty times slower, also what happens between two syncs. So a writer that is
never idle is played by bursts: as many inserts at once as one would send in the two milliseconds between two syncs (40 are 20,000 a
second), and the next burst when the stream has given all. The stream's own work (events, replies) is in the
count; the part of the thread that runs the inserts is told apart. Opening the streams is counted apart.
Memory is measured on a server of its own, without valgrind.
"""

import pathlib
import re
import time

from .common import Stream, Writer, counted, numbers, running


def count(inserts, on_it, idle, burst):
    """Instructions of a server's whole life, those of the thread that ran the inserts, and the batches of the stream."""
    with counted(by_thread=True) as server:
        writer, batches = Writer(server.port), 0
        writer.insert(["first"])
        streams = [Stream(server.port, f"other{i}") for i in range(idle)]
        follower = Stream(server.port, "counted") if on_it else None
        for first in range(0, inserts, burst):
            ids = range(first, min(first + burst, inserts))
            writer.insert(ids)
            batches += follower.follow(len(ids)) if follower else 0
        for connection in (writer, *streams):
            connection.close()
        return server.instructions(), max(server.by_thread()), batches


def memory(idle):
    """Bytes of idle streams."""
    with running() as server:
        def resident():
            return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{server.process.pid}/status").read_text())[1]) << 10

        Writer(server.port).insert([0])
        time.sleep(1)
        before = resident()
        streams = [Stream(server.port, f"other{i}") for i in range(idle)]
        time.sleep(1)
        return resident() - before + 0 * len(streams)


def main(given):
    inserts, many, burst = numbers(given, 1000, 1000, 40)
    print(f"{many} idle streams: {memory(many) / (1 << 20):.1f} MB with their connections")
    alone = None
    for name, on_it, idle in (("none", False, 0), ("one", True, 0), (f"{many} idle", False, many)):
        (all0, own0, _), (all1, own1, batches) = (count(n, on_it, idle, burst) for n in (0, inserts))
        each = ((all1 - all0) / inserts, (own1 - own0) / inserts)
        alone = alone or each
        (total, loop), more = each, [100 * (e / a - 1) for e, a in zip(each, alone)]
        said = f"{name}: {total:,.0f} instructions an insert, {more[0]:+.1f}%; on its thread {loop:,.0f}, {more[1]:+.1f}%"
        print(said + (f"; {inserts / batches:.1f} events a batch" if batches else ""), flush=True)
