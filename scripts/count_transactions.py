"""Instructions that the server spends on one read and two updates, alone and in a transaction.

    .venv/bin/python scripts/count_transactions.py target/debug/pando [TRANSACTIONS, 600]

Needs valgrind and PyMongo. Counts carry no noise of the machine; the commit's own command is counted with the transaction.
"""

import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pymongo


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def connected(port):
    for _ in range(300):
        try:
            client = pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=1000)
            client.admin.command("ping")
            return client
        except pymongo.errors.PyMongoError:
            time.sleep(0.2)
    sys.exit("the server did not start under valgrind")


def work(client, n, inside):
    concern = pymongo.WriteConcern(w=1)
    coll = client.test.get_collection("counted", write_concern=concern)
    coll.insert_many([{"_id": i, "n": 0, "fill": "x" * 500} for i in range(1000)])
    with client.start_session() as s:
        for i in range(n):
            a, b = i % 1000, (i * 7 + 1) % 1000
            if inside:
                s.start_transaction(write_concern=concern)
            coll.find_one({"_id": a}, session=s)
            coll.update_one({"_id": a}, {"$inc": {"n": -1}}, session=s)
            coll.update_one({"_id": b}, {"$inc": {"n": 1}}, session=s)
            if inside:
                s.commit_transaction()


def count(binary, n, inside):
    """Instructions of a server's whole life."""
    with tempfile.TemporaryDirectory() as place:
        place, port = pathlib.Path(place), free_port()
        said = place / "valgrind.txt"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={place}/out", f"--log-file={said}"]
        command += [binary, "serve", "--dbpath", place / "data", "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = connected(port)
        work(client, n, inside)
        client.close()
        server.send_signal(signal.SIGTERM)
        server.wait(120)
        return int(re.search(r"Collected : (\d+)", said.read_text())[1])


if __name__ == "__main__":
    binary, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 600
    idle = count(binary, 0, False)
    alone, inside = ((count(binary, n, way) - idle) / n for way in (False, True))
    print(f"alone {alone:,.0f}, in a transaction {inside:,.0f} instructions: x{inside / alone:.2f}")
