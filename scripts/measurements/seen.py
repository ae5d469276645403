"""How long until a change stream shows a document that was inserted with `w: 1`, in milliseconds.

    scripts/measure.py seen target/release/pando [INSERTS, 300] [PAUSE_MS, 20]

From before the insert is sent until the event has come, on the client's clock. Between two there is a pause, so that each meets a server that
has nothing to do; with a pause of 0 each follows the event of the one before it.
"""

import statistics
import time

from .common import Stream, Writer, numbers, running


def main(given):
    inserts, pause_ms = numbers(given, 300, 20)
    with running() as server:
        writer, took = Writer(server.port), []
        writer.insert(["first"])
        stream = Stream(server.port, "counted")
        for i in range(inserts):
            time.sleep(pause_ms / 1000)
            began = time.monotonic()
            writer.insert([i])
            stream.follow(1)
            took.append((time.monotonic() - began) * 1000)
        took.sort()
        print(f"seen after {statistics.median(took):.2f} ms at the median, {took[len(took) * 9 // 10]:.2f} in nine of ten")
