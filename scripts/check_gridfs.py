#!/usr/bin/env python3
"""Stores a large file in GridFS and reads it back, through PyMongo and, where it is, through mongofiles.

    scripts/check_gridfs.py [--uri URI] [--megabytes N] [--mongofiles PATH]

The content is generated as it is sent (no two pieces are alike) and compared by SHA-256 as it comes back: the file is never
in memory, and on disk only for mongofiles. The database `gridfs_check` is dropped before and after.
"""

import argparse
import hashlib
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import gridfs
import pymongo

MEGABYTE = 1 << 20
DATABASE = "gridfs_check"


class Generated:
    """A readable file of so many bytes, made from a seed, that hashes what it gave."""

    def __init__(self, size, seed):
        self.left, self.random, self.sha256 = size, random.Random(seed), hashlib.sha256()
        self.last = b""

    def read(self, size=-1):
        size = min(self.left, MEGABYTE if size < 0 else size)
        piece = self.random.randbytes(size)
        self.left -= size
        self.sha256.update(piece)
        self.last = piece or self.last
        return piece


class Hashed:
    """A writable file that keeps the hash and the length only."""

    def __init__(self):
        self.size, self.sha256 = 0, hashlib.sha256()

    def write(self, piece):
        self.size += len(piece)
        self.sha256.update(piece)
        return len(piece)


class Timed:
    def __init__(self, what, megabytes):
        self.what, self.megabytes = what, megabytes

    def __enter__(self):
        self.began = time.monotonic()

    def __exit__(self, kind, *_):
        if kind is None:
            seconds = time.monotonic() - self.began
            print(f"{self.what}: {self.megabytes} MB in {seconds:.1f} s, {self.megabytes / seconds:.0f} MB/s", flush=True)


def same(wanted, got, what):
    if wanted != got:
        sys.exit(f"{what}: stored {str(wanted)[:200]}, read {str(got)[:200]}")


def through_pymongo(client, megabytes):
    bucket = gridfs.GridFSBucket(client[DATABASE])
    source, sink = Generated(megabytes * MEGABYTE, 1), Hashed()
    with Timed("PyMongo stores", megabytes):
        stored = bucket.upload_from_stream("pymongo", source)
    with Timed("PyMongo reads", megabytes):
        bucket.download_to_stream(stored, sink)
    same((megabytes * MEGABYTE, source.sha256.hexdigest()), (sink.size, sink.sha256.hexdigest()), "PyMongo")
    # From the middle on, as a player of films does: the last of the pieces that were sent.
    with bucket.open_download_stream(stored) as stream:
        stream.seek(megabytes * MEGABYTE - len(source.last))
        same(source.last, stream.read(), "the end of the file")
    bucket.delete(stored)
    if client[DATABASE].fs.chunks.count_documents({}):
        sys.exit("chunks are left of a file that was deleted")


def through_mongofiles(client, program, megabytes):
    host, port = client.address

    def run(*arguments):
        command = [program, "--host", host, "--port", str(port), "--db", DATABASE, "--quiet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"mongofiles {arguments}: {done.stderr}")
        return done.stdout

    with tempfile.TemporaryDirectory() as directory:
        original, copy = pathlib.Path(directory, "original"), pathlib.Path(directory, "copy")
        source = Generated(megabytes * MEGABYTE, 2)
        with original.open("wb") as out:
            while source.left:
                out.write(source.read())
        with Timed("mongofiles put", megabytes):
            run("--local", str(original), "put", "mongofiles")
        original.unlink()
        if "mongofiles" not in run("list"):
            sys.exit("mongofiles list does not name the file")
        with Timed("mongofiles get", megabytes):
            run("--local", str(copy), "get", "mongofiles")
        sink = Hashed()
        with copy.open("rb") as file:
            while piece := file.read(MEGABYTE):
                sink.write(piece)
        same((megabytes * MEGABYTE, source.sha256.hexdigest()), (sink.size, sink.sha256.hexdigest()), "mongofiles")
        run("delete", "mongofiles")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--uri", default="mongodb://127.0.0.1:27017/?directConnection=true")
    options.add_argument("--megabytes", type=int, default=4096)
    options.add_argument("--mongofiles", type=pathlib.Path)
    given = options.parse_args()
    with pymongo.MongoClient(given.uri, serverSelectionTimeoutMS=10_000) as client:
        client.admin.command("ping")
        client.drop_database(DATABASE)
        through_pymongo(client, given.megabytes)
        if given.mongofiles:
            through_mongofiles(client, given.mongofiles, given.megabytes)
        client.drop_database(DATABASE)
    print("What was read is what was stored.")


if __name__ == "__main__":
    main()
