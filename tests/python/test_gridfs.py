"""GridFS: files of many chunks, through PyMongo and mongofiles. `scripts/check_gridfs.py` does the same with gigabytes."""

import hashlib
import os
import pathlib
import subprocess
import sys

import gridfs
import pytest

from harness import ROOT, refuses

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


def test_file_md5(db):
    bucket = gridfs.GridFSBucket(db, bucket_name="pictures", chunk_size_bytes=1000)
    content = os.urandom(3500)
    file = bucket.upload_from_stream("a", content)
    reply = db.command("filemd5", file, root="pictures")
    assert reply["numChunks"] == 4 and reply["md5"] == hashlib.md5(content).hexdigest()
    empty = db.command("filemd5", "no such file")
    assert empty["numChunks"] == 0 and empty["md5"] == hashlib.md5(b"").hexdigest()
    db.pictures.chunks.delete_one({"files_id": file, "n": 1})
    with refuses(50846):
        db.command("filemd5", file, root="pictures")
    assert db.command("filemd5", file, root="pictures", partialOk=True)["numChunks"] == 1
