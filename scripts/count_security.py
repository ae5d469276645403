"""Instructions that the server spends on one point read: plain, for a user with checked rights, and over TLS.

    .venv/bin/python scripts/count_security.py target/debug/pando [READS, 2000]

Needs valgrind and what tests/requirements.txt names. Counts carry no noise of the machine. What a login and a handshake cost
is left out: each figure is the difference of two runs that differ in their number of reads.
"""

import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import pymongo

from count_transactions import free_port

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/python"))
from certificates import Authority  # noqa: E402

ROLE = {"role": "readWrite", "db": "test"}


def connected(port, **more):
    return pymongo.MongoClient("localhost", port, directConnection=True, serverSelectionTimeoutMS=60_000, maxPoolSize=1, **more)


def count(binary, kind, reads):
    """Instructions of a server's whole life, in which a client reads that often by `_id`."""
    with tempfile.TemporaryDirectory() as place:
        place, port = pathlib.Path(place), free_port()
        options, client = [], {}
        if kind == "authorized":
            options = ["--auth"]
        if kind == "tls":
            authority = Authority(place)
            options = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", authority.issue("server")]
            client = {"tls": True, "tlsCAFile": str(authority.file)}
        said = place / "valgrind.txt"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={place}/out", f"--log-file={said}", binary, "serve"]
        command += ["--dbpath", place / "data", "--port", str(port), "--event-loops", "1", *options]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if kind == "authorized":
            with connected(port) as c:
                c.admin.command("createUser", "root", pwd="p", roles=["root"])
                c.close()
            with connected(port, username="root", password="p") as c:
                c.test.command("createUser", "u", pwd="p", roles=[ROLE])
            client = {"username": "u", "password": "p", "authSource": "test"}
        with connected(port, **client) as c:
            c.test.counted.insert_many([{"_id": i, "fill": "x" * 500} for i in range(1000)])
            for i in range(reads):
                assert c.test.counted.find_one({"_id": i % 1000})
        server.send_signal(signal.SIGTERM)
        server.wait(120)
        return int(re.search(r"Collected : (\d+)", said.read_text()).group(1))


def main():
    binary, reads = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    plain = None
    for kind in ("plain", "authorized", "tls"):
        each = (count(binary, kind, reads + 200) - count(binary, kind, 200)) / reads
        plain = plain or each
        print(f"{kind:12} {each:9.0f} instructions a read, {each / plain:.3f} of a plain one", flush=True)


if __name__ == "__main__":
    main()
