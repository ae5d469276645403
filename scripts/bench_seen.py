"""How long until a change stream shows a document that was inserted with `w: 1`, in milliseconds.

    .venv/bin/python scripts/bench_seen.py target/release/pando [INSERTS, 300] [PAUSE_MS, 20]

From before the insert is sent until the event has come, on the client's clock. Between two there is a pause, so that each meets a server that
has nothing to do; with a pause of 0 each follows the event of the one before it.
"""

import statistics
import sys
import time

from count_streams import Stream, Writer, connected, server

if __name__ == "__main__":
    binary = sys.argv[1]
    inserts, pause_ms = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((2, 300), (3, 20)))
    with server(binary) as (port, process, _):
        connected(port).test.counted.insert_one({"_id": "first"})
        stream, writer, took = Stream(port, "counted"), Writer(port), []
        for i in range(inserts):
            time.sleep(pause_ms / 1000)
            began = time.monotonic()
            writer.insert([i])
            stream.follow(1)
            took.append((time.monotonic() - began) * 1000)
        took.sort()
        print(f"seen after {statistics.median(took):.2f} ms at the median, {took[len(took) * 9 // 10]:.2f} in nine of ten")
