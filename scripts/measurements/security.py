"""Instructions that the server spends on one point read: plain, for a user with checked rights, and over TLS.

    scripts/measure.py security target/debug/pando [READS, 2000]

Needs valgrind. What a login and a handshake cost
is left out: each figure is the difference of two runs that differ in their number of reads.
"""

import pymongo
from certificates import Authority

from .common import counted, folder, numbers

ROLE = {"role": "readWrite", "db": "test"}


def connected(port, **more):
    return pymongo.MongoClient("localhost", port, directConnection=True, serverSelectionTimeoutMS=60_000, maxPoolSize=1, **more)


def count(kind, reads):
    """Instructions of a server's whole life, in which a client reads that often by `_id`."""
    options, client = [], {}
    with folder() as place:
        if kind == "authorized":
            options = ["--auth"]
        if kind == "tls":
            authority = Authority(place)
            options = ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", authority.issue("server")]
            client = {"tls": True, "tlsCAFile": str(authority.file)}
        with counted("--event-loops", "1", *options) as server:
            if kind == "authorized":
                with connected(server.port) as c:
                    c.admin.command("createUser", "root", pwd="p", roles=["root"])
                    c.close()
                with connected(server.port, username="root", password="p") as c:
                    c.test.command("createUser", "u", pwd="p", roles=[ROLE])
                client = {"username": "u", "password": "p", "authSource": "test"}
            with connected(server.port, **client) as c:
                c.test.counted.insert_many([{"_id": i, "fill": "x" * 500} for i in range(1000)])
                for i in range(reads):
                    assert c.test.counted.find_one({"_id": i % 1000})
            return server.instructions()


def main(given):
    [reads] = numbers(given, 2000)
    plain = None
    for kind in ("plain", "authorized", "tls"):
        each = (count(kind, reads + 200) - count(kind, 200)) / reads
        plain = plain or each
        print(f"{kind:12} {each:9.0f} instructions a read, {each / plain:.3f} of a plain one", flush=True)
