"""GridFS: files of many chunks, through PyMongo and mongofiles. `scripts/check_gridfs.py` does the same with gigabytes."""

import os
import pathlib
import subprocess
import sys

import pytest

from harness import ROOT

MEGABYTES = 20


def check(server, *options):
    uri = f"mongodb://127.0.0.1:{server.port}/?directConnection=true"
    command = [sys.executable, ROOT / "scripts" / "check_gridfs.py", "--uri", uri, "--megabytes", MEGABYTES, *options]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pymongo(server):
    assert "What was read is what was stored" in check(server)


def test_mongofiles(server):
    program = pathlib.Path(os.environ.get("PANDO_TOOLS", ROOT / ".tools" / "bin")) / "mongofiles"
    if not program.exists():
        pytest.skip("mongofiles is not here: scripts/test.sh builds it where there is Go")
    said = check(server, "--mongofiles", program)
    assert "mongofiles put" in said and "mongofiles get" in said
