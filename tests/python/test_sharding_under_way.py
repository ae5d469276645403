"""A removal of a range waits for the movers' writes in flight to it, and no other command does."""

import threading
import time

from harness import until
from sharded_cluster import cluster_fixture, shard


cluster = cluster_fixture()


def in_thread(work):
    """Runs it beside; what it gives, or its failure, comes from `join`."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except Exception as failure:
            outcome.append(failure)

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(60)
        [found] = outcome
        if isinstance(found, Exception):
            raise found
        return found

    return join


def moves_to_s1(client, ns):
    return lambda: client.admin.command("moveChunk", ns, find={"k": 15}, to="s1")


def test_a_write_that_takes_long_holds_up_its_own_range_alone(cluster):
    with cluster.client() as client, cluster.on_shard("s1") as direct:
        admin = client.admin
        for name in ("x", "y"):
            coll = shard(client[name], "c", {"k": 1})
            admin.command("moveChunk", f"{name}.c", find={"k": 15}, to="s0")
            admin.command("split", f"{name}.c", middle={"k": 10})
            admin.command("split", f"{name}.c", middle={"k": 20})
            coll.insert_many([{"_id": n, "k": n} for n in range(30) if n != 12])
        # A part of the range that has no documents, as shards name it.
        admin.command("moveRange", "x.c", min={"k": 12}, max={"k": 13}, toShard="s1")
        [empty] = direct.config.ownership.find_one({"_id": "x.c"})["owned"]
        admin.command("moveChunk", "x.c", find={"k": 12}, to="s0")
        admin.command("mergeChunks", "x.c", bounds=[{"k": 10}, {"k": 20}])
        data = {"failCommands": ["insert"], "failInternalCommands": True, "blockConnection": True, "blockTimeMS": 4000}
        direct.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)
        moved = in_thread(moves_to_s1(client, "x.c"))
        until("the copy has begun", lambda: any(op.get("command", {}).get("insert") for op in direct.admin.aggregate([{"$currentOp": {}}])))
        began = time.monotonic()
        moving = client.config.migrations.find_one({"ns": "x.c"})["range"]
        clean = {"_pandoClean": 1, "ns": "x.c", "keep": True}
        # Another range of the collection.
        direct.admin.command({**clean, "range": {"low": moving["high"]}})
        # Another collection, while a wait for this one's goes on.
        cleaned = in_thread(lambda: direct.admin.command({**clean, "range": empty}) and time.monotonic())
        until("it waits", lambda: direct.admin.command("currentOp", {"command._pandoClean": 1})["inprog"])
        moves_to_s1(client, "y.c")()
        ended = time.monotonic()
        assert max(began + 3, ended) < cleaned()
        moved()
        for name in ("x", "y"):
            assert direct[name].c.count_documents({}) == 9 and client[name].c.count_documents({}) == 29


class TestMovesBesideTransactions:
    """A range is moved while transactions write: the fence waits until those that have begun have ended."""

    def fence(self, direct, ns):
        return direct.config.ownership.find_one({"_id": ns}).get("fence")

    def moved(self, cluster, name):
        with cluster.client() as client:
            return list(client[name].c.find({}, {"_id": 0}).sort("k"))

    def test_one_that_has_written_goes_on(self, cluster):
        """The fence of before let it wait for its own end, and gave up."""
        with cluster.client() as client, cluster.on_shard("s1") as direct:
            client.admin.command("enableSharding", "goes", primaryShard="s1")
            coll = shard(client.goes, "c", {"k": 1})
            coll.insert_many([{"k": 12, "n": 0}, {"k": 15, "n": 0}])
            with client.start_session() as session, session.start_transaction():
                coll.update_one({"k": 12}, {"$inc": {"n": 1}}, session=session)
                join = in_thread(lambda: client.admin.command("moveChunk", "goes.c", find={"k": 15}, to="s0"))
                until("the fence stands", lambda: self.fence(direct, "goes.c"))
                # Neither is refused: an error would end the transaction.
                coll.update_one({"k": 15}, {"$inc": {"n": 1}}, session=session)
                assert coll.find_one({"k": 15}, session=session)["n"] == 1
            join()
        assert self.moved(cluster, "goes") == [{"k": 12, "n": 1}, {"k": 15, "n": 1}]

    def test_it_waits_its_turn(self, cluster):
        """A transaction that is open for longer than the fence waits at first."""
        with cluster.client() as client, cluster.on_shard("s1") as direct:
            client.admin.command("enableSharding", "turns", primaryShard="s1")
            coll = shard(client.turns, "c", {"k": 1})
            coll.insert_many([{"k": 12, "n": 0}, {"k": 15, "n": 0}])
            with client.start_session() as session, session.start_transaction():
                coll.update_one({"k": 12}, {"$inc": {"n": 1}}, session=session)
                join = in_thread(lambda: client.admin.command("moveChunk", "turns.c", find={"k": 15}, to="s0"))
                until("the fence stands", lambda: self.fence(direct, "turns.c"))
                until("it was too early", lambda: not self.fence(direct, "turns.c"))
                coll.update_one({"k": 15}, {"$inc": {"n": 1}}, session=session)
            join()
        assert self.moved(cluster, "turns") == [{"k": 12, "n": 1}, {"k": 15, "n": 1}]
