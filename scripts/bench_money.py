"""Money that moves between a few accounts: the commits a second of many connections against those of one, in turns.

    .venv/bin/python scripts/bench_money.py target/release/pando [ACCOUNTS, 10] [CONNECTIONS, 64] [TURNS, 6] [SECONDS, 3]

Each transaction takes from one account and gives to another, and begins again after a conflict, as drivers do. The clients are processes of
their own, and speak the protocol without a driver, so that they distort little. The sum of all accounts is checked in the end.
"""

import multiprocessing
import os
import pathlib
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time

import bson
import pymongo
from bson import Binary, Int64


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Mover:
    """A connection with a session, and a transaction that is always under way."""

    def __init__(self, port, accounts):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lsid, self.number, self.accounts = {"id": Binary(os.urandom(16), 4)}, 0, accounts

    def send(self, command):
        body = bson.encode(command)
        self.socket.sendall(struct.pack("<iiiiIB", 21 + len(body), 1, 0, 2013, 0, 0) + body)

    def receive(self):
        head = self.socket.recv(4, socket.MSG_WAITALL)
        return bson.decode(self.socket.recv(struct.unpack("<i", head)[0] - 4, socket.MSG_WAITALL)[17:])

    def statements(self):
        """The commands of one transaction; each is given the reply to the one before."""
        self.number += 1
        within = {"lsid": self.lsid, "txnNumber": Int64(self.number), "autocommit": False}
        for i, (account, n) in enumerate(zip(random.sample(range(self.accounts), 2), (-1, 1))):
            update = {"update": "accounts", "updates": [{"q": {"_id": account}, "u": {"$inc": {"n": n}}}], "$db": "test"}
            yield {**update, **within, **({} if i else {"startTransaction": True})}
        yield {"commitTransaction": 1, "$db": "admin", **within, "writeConcern": {"w": 1}}

    def run(self, begin, until):
        """Commits and conflicts between two moments."""
        commits = conflicts = 0
        time.sleep(max(0, begin - time.monotonic()))
        while time.monotonic() < until:
            for command in self.statements():
                self.send(command)
                reply = self.receive()
                if reply["ok"] != 1:
                    assert reply["code"] == 112, reply
                    conflicts += 1
                    break
            else:
                commits += 1
        return commits, conflicts


def client(port, accounts, begin, until, results):
    results.put(Mover(port, accounts).run(begin, until))


def rate(port, accounts, connections, seconds):
    """Commits and conflicts a second."""
    results = multiprocessing.Queue()
    # The clients begin together, when all have started.
    begin = time.monotonic() + 0.3 + connections * 0.02
    args = (port, accounts, begin, begin + seconds, results)
    clients = [multiprocessing.Process(target=client, args=args) for _ in range(connections)]
    [c.start() for c in clients]
    done = [results.get(timeout=seconds + 60) for _ in clients]
    [c.join() for c in clients]
    return [sum(figures) / seconds for figures in zip(*done)]


if __name__ == "__main__":
    binary = sys.argv[1]
    accounts, many, turns, seconds = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((2, 10), (3, 64), (4, 6), (5, 3)))
    multiprocessing.set_start_method("fork")
    with tempfile.TemporaryDirectory() as place:
        port = free_port()
        command = [binary, "serve", "--dbpath", pathlib.Path(place) / "data", "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with pymongo.MongoClient("127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=30_000) as c:
                c.test.accounts.insert_many([{"_id": i, "n": 1000} for i in range(accounts)])
            rates = {1: [], many: []}
            for _ in range(turns):
                for n in rates:
                    rates[n].append(rate(port, accounts, n, seconds))
                    print(f"{n} connections: {rates[n][-1][0]:,.0f} commits a second, {rates[n][-1][1]:,.0f} conflicts", flush=True)
            ratios = sorted(m[0] / o[0] for m, o in zip(rates[many], rates[1]))
            print(f"{many} connections against one, {accounts} accounts: {ratios[len(ratios) // 2]:.2f} times the commits (median of {turns})")
            with pymongo.MongoClient("127.0.0.1", port, directConnection=True) as c:
                assert sum(d["n"] for d in c.test.accounts.find()) == 1000 * accounts
        finally:
            server.kill()
            server.wait()
