"""Many clients that sort, group and join at once: their stages share what memory there is for them, and all are answered.

    pytest -s tests/python/test_heavy.py            prints the most memory of each kind
    HEAVY_CLIENTS=48 HEAVY_MB=16 …                  all kinds, as docs/memory.md has them
"""

import os
import pathlib
import subprocess
import sys

import heavy
import pytest
from harness import Server
from watch import Watch

CACHE, OVERHEAD, IN_FLIGHT = 64, 300, 96
CLIENTS = int(os.environ.get("HEAVY_CLIENTS", 32))
COUNT = int(os.environ.get("HEAVY_MB", 10)) * 100


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("heavy") / "data", "--cache", f"{CACHE}m") as server, server.client() as client:
        heavy.fill(client.heavy, COUNT)
        yield server, client


# All of them, one by one, where there is time: HEAVY_CLIENTS says that there is.
KINDS = [*heavy.KINDS] if "HEAVY_CLIENTS" in os.environ else ["sort", "group", "idle"]


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
def test_memory_is_shared(target, kind):
    server, client = target
    program = pathlib.Path(__file__).with_name("heavy.py")
    command = ["nice", sys.executable, program, kind, server.port, CLIENTS, 1]
    with Watch(server.process.pid) as watch:
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    stages = client.admin.command("serverStatus")["pandodb"]["stages"]
    print(f"\n{kind}: at most {watch.most} MB resident; {done.stdout.strip()}; {stages}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.running()
    # Requests with long lists are in flight, too.
    assert watch.most < CACHE + OVERHEAD + (IN_FLIGHT if kind in ("listed", "mixed") else 0)
    assert client.admin.command("serverStatus")["pandodb"]["stages"]["bytes"] <= stages["limitBytes"]
