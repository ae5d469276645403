#!/usr/bin/env python3
"""Asks the same in two ways, at random, and compares what comes: whatever differs is a mistake of one of the two.

    scripts/differential.py target/debug/pando KIND [seconds, 60] [seed]

KIND is one of those in `KINDS`, or `all`. Prints how many were compared; the first difference is printed with its seed, and the exit
code is 1. A seed stands for one round: a collection, and some hundred questions about it.
"""

import os
import pathlib
import random
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
os.environ["PANDO_BIN"] = str(pathlib.Path(sys.argv[1]).resolve()) if __name__ == "__main__" else os.environ.get("PANDO_BIN", "")
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "scripts")]

from differential_kinds import KINDS  # noqa: E402


def main():
    kind = sys.argv[2]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 60
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 32)
    for name in KINDS if kind == "all" else [kind]:
        if not run(name, seconds, seed):
            sys.exit(1)


def run(name, seconds, seed):
    """Rounds of one kind until the time is over, of `seed` and those that follow it."""
    with tempfile.TemporaryDirectory(prefix="pando-differential-") as path, KINDS[name](pathlib.Path(path)) as kind:
        end, rounds = time.monotonic() + seconds, 0
        while rounds == 0 or time.monotonic() < end:
            try:
                kind.round(random.Random(f"{name} {seed + rounds}"))
            except AssertionError as difference:
                print(f"{name}: a difference, seed {seed + rounds}, after {kind.compared} comparisons:\n{difference}", flush=True)
                return False
            rounds += 1
        print(f"{name}: {kind.compared} compared, {kind.refused} refused by both, in {rounds} rounds from seed {seed}: no difference", flush=True)
    return True


if __name__ == "__main__":
    main()
