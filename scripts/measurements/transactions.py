"""Instructions that the server spends on one read and two updates, alone and in a transaction.

    scripts/measure.py transactions target/debug/pando [TRANSACTIONS, 600]

Needs valgrind. The commit's own command is counted with the transaction.
"""

import pymongo

from .common import counted, numbers


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


def count(n, inside):
    """Instructions of a server's whole life."""
    with counted() as server:
        with server.client() as client:
            work(client, n, inside)
        return server.instructions()


def main(given):
    [n] = numbers(given, 600)
    idle = count(0, False)
    alone, inside = ((count(n, way) - idle) / n for way in (False, True))
    print(f"alone {alone:,.0f}, in a transaction {inside:,.0f} instructions: x{inside / alone:.2f}")
