"""Money that moves between a few accounts: the commits a second of many connections against those of one, in turns.

    scripts/measure.py money target/release/pando [ACCOUNTS, 10] [CONNECTIONS, 64] [TURNS, 6] [SECONDS, 3]

Each transaction takes from one account and gives to another, and begins again after a conflict, as drivers do. The clients are processes of
their own, and speak the protocol without a driver, so that they distort little. The sum of all accounts is checked in the end.
"""

import multiprocessing
import os
import random
import time

from bson import Binary, Int64

from .common import Client, numbers, running


class Mover(Client):
    """A connection with a session, and a transaction that is always under way."""

    def __init__(self, port, accounts):
        super().__init__(port)
        self.lsid, self.number, self.accounts = {"id": Binary(os.urandom(16), 4)}, 0, accounts

    def statements(self):
        """The commands of one transaction; each is given the reply to the one before."""
        self.number += 1
        within = {"lsid": self.lsid, "txnNumber": Int64(self.number), "autocommit": False}
        for i, (account, n) in enumerate(zip(random.sample(range(self.accounts), 2), (-1, 1))):
            update = {"update": "accounts", "updates": [{"q": {"_id": account}, "u": {"$inc": {"n": n}}}], "$db": "test"}
            yield {**update, **within, **({} if i else {"startTransaction": True})}
        yield {"commitTransaction": 1, "$db": "admin", **within, "writeConcern": {"w": 1}}

    def transfer(self, begin, until):
        """Commits and conflicts between two moments."""
        commits = conflicts = 0
        time.sleep(max(0, begin - time.monotonic()))
        while time.monotonic() < until:
            for command in self.statements():
                reply = self.run(command)
                if reply["ok"] != 1:
                    assert reply["code"] == 112, reply
                    conflicts += 1
                    break
            else:
                commits += 1
        return commits, conflicts


def client(port, accounts, begin, until, results):
    results.put(Mover(port, accounts).transfer(begin, until))


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


def main(given):
    accounts, many, turns, seconds = numbers(given, 10, 64, 6, 3)
    multiprocessing.set_start_method("fork")
    with running() as server, server.client() as c:
        c.test.accounts.insert_many([{"_id": i, "n": 1000} for i in range(accounts)])
        rates = {1: [], many: []}
        for _ in range(turns):
            for n in rates:
                rates[n].append(rate(server.port, accounts, n, seconds))
                print(f"{n} connections: {rates[n][-1][0]:,.0f} commits a second, {rates[n][-1][1]:,.0f} conflicts", flush=True)
        ratios = sorted(m[0] / o[0] for m, o in zip(rates[many], rates[1]))
        print(f"{many} connections against one, {accounts} accounts: {ratios[len(ratios) // 2]:.2f} times the commits (median of {turns})")
        assert sum(d["n"] for d in c.test.accounts.find()) == 1000 * accounts
