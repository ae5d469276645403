"""Ranges that move while they are written and read: nothing that was acknowledged is lost, doubled or refused."""

import datetime
import threading

import bson
import pytest
from harness import refuses, until
from pymongo.errors import OperationFailure
from sharded_cluster import ShardedCluster, cluster_fixture

ROUNDS = 6
WRITERS = 3


cluster = cluster_fixture(routers=2)


class Writer(threading.Thread):
    """Inserts, increments and deletes through a router, and remembers each acknowledgement."""

    def __init__(self, cluster, number, stop):
        super().__init__()
        self.cluster, self.number, self.stop = cluster, number, stop
        self.kept, self.values, self.failure, self.count = set(), {}, None, 0

    def run(self):
        try:
            with self.cluster.client(self.number % 2) as client:
                coll = client.moves.c
                while not self.stop.is_set():
                    self.step(coll)
        except Exception as failure:
            self.failure = failure

    def step(self, coll):
        n = self.count
        self.count += 1
        key = (n * 37 + self.number) % 1000
        doc = f"{self.number}.{n}"
        coll.insert_one({"_id": doc, "k": key, "v": 0})
        self.kept.add(doc)
        self.values[doc] = 0
        assert coll.update_one({"_id": doc, "k": key}, {"$inc": {"v": 1}}).modified_count == 1
        self.values[doc] += 1
        if n % 5 == 4:
            assert coll.delete_one({"_id": doc, "k": key}).deleted_count == 1
            self.kept.discard(doc)
            del self.values[doc]
        if n % 7 == 0:
            old = f"{self.number}.{n // 2}"
            if old in self.kept:
                found = coll.find_one_and_update({"_id": old}, {"$inc": {"v": 1}})
                assert found is not None, old
                self.values[old] += 1
        if n % 11 == 0:
            assert coll.count_documents({"k": key}) >= 0


def move_at_length(admin, ns, find, to):
    """Moves a chunk. On a busy machine the last changes may take longer than routers are held up for; then it is tried again."""
    for _ in range(10):
        try:
            return admin.command("moveChunk", ns, find=find, to=to)
        except OperationFailure as e:
            if e.code != 262:
                raise
    pytest.fail("no move came to its end")


def test_no_write_is_lost_doubled_or_refused_while_ranges_move(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("shardCollection", "moves.c", key={"k": 1})
        admin.command("split", "moves.c", middle={"k": 500})
        coll = client.moves.c
        coll.insert_many([{"_id": n, "k": n % 1000} for n in range(2000)])
        stop = threading.Event()
        writers = [Writer(cluster, n, stop) for n in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            for n in range(ROUNDS):
                before = {w.number: w.count for w in writers}
                for key in (100, 600):
                    move_at_length(admin, "moves.c", {"k": key}, f"s{(n + key // 500) % 2}")
                    reads = coll.count_documents({"_id": {"$type": "int"}})
                    assert reads == 2000, reads
                until("each writer writes", lambda b=before: all(w.count > b[w.number] or w.failure for w in writers))
        finally:
            stop.set()
            for writer in writers:
                writer.join(60)
        for writer in writers:
            assert writer.failure is None, writer.failure
        wanted = {d: v for w in writers for d, v in w.values.items()}
        assert set().union(*(w.kept for w in writers)) == set(wanted)
        found = list(coll.find({"_id": {"$type": "string"}}))
        assert len(found) == len({d["_id"] for d in found}), "doubled"
        assert {d["_id"]: d["v"] for d in found} == wanted
        assert sum(on_shards(cluster).values()) == 2000 + len(wanted)


def on_shards(cluster):
    counts = {}
    for name in cluster.shards:
        with cluster.on_shard(name) as direct:
            counts[name] = direct.moves.c.count_documents({})
    return counts


def test_cursors_go_on_over_a_move(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("shardCollection", "cursors.c", key={"k": 1})
        admin.command("split", "cursors.c", middle={"k": 100})
        coll = client.cursors.c
        coll.insert_many([{"_id": n, "k": n} for n in range(200)])
        cursor = coll.find().batch_size(10)
        first = [next(cursor) for _ in range(5)]
        for key in (50, 150):
            owner = client.config.chunks.find_one({"min.k": bson.MinKey() if key == 50 else 100})["shard"]
            admin.command("moveChunk", "cursors.c", find={"k": key}, to="s1" if owner == "s0" else "s0")
        assert sorted(d["_id"] for d in [*first, *cursor]) == list(range(200))


def test_split_merge_and_part_of_a_chunk(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("shardCollection", "parts.c", key={"k": 1})
        coll = client.parts.c
        coll.insert_many([{"k": n} for n in range(100)])
        ns = "parts.c"
        here = client.config.databases.find_one({"_id": "parts"})["primary"]
        there = "s1" if here == "s0" else "s0"
        admin.command("split", ns, find={"k": 10})
        admin.command("moveRange", ns, min={"k": 60}, max={"k": 80}, toShard=there)
        assert coll.count_documents({}) == 100
        uuid = client.config.collections.find_one({"_id": ns})["uuid"]
        chunks = list(client.config.chunks.find({"uuid": uuid}).sort("min", 1))
        assert [c["shard"] for c in chunks] == [here, here, there, here]
        with refuses(20):
            admin.command("mergeChunks", ns, bounds=[{"k": 60}, {"k": bson.MaxKey()}])
        admin.command("moveRange", ns, min={"k": 60}, toShard=here)
        admin.command("mergeChunks", ns, bounds=[{"k": bson.MinKey()}, {"k": bson.MaxKey()}])
        assert client.config.chunks.count_documents({"uuid": uuid}) == 1
        assert coll.count_documents({"k": {"$gte": 55, "$lt": 85}}) == 30


def test_the_balancer_moves_data_by_size(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("shardCollection", "balance.c", key={"k": 1})
        client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 0.1}}, upsert=True)
        client.balance.c.insert_many([{"k": n, "pad": "x" * 2000} for n in range(1000)])
        assert not admin.command("balancerCollectionStatus", "balance.c")["balancerCompliant"]
        admin.command("balancerStart")
        assert admin.command("balancerStatus")["mode"] == "full"
        try:
            until("both have some", lambda: admin.command("balancerCollectionStatus", "balance.c")["balancerCompliant"], 120)
        finally:
            admin.command("balancerStop")
        assert client.balance.c.count_documents({}) == 1000
        sizes = client.balance.command("collStats", "c")["shards"]
        assert min(s["count"] for s in sizes.values()) > 100


def test_the_balancer_cuts_hashed_chunks(cluster):
    with cluster.client() as client:
        admin, names = client.admin, {"plain": {"k": "hashed"}, "behind": {"g": 1, "k": "hashed"}}
        client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 0.1}}, upsert=True)
        for name, key in names.items():
            ns, coll = f"hashes.{name}", client.hashes[name]
            options = {"numInitialChunks": 1} if name == "plain" else {}
            admin.command("shardCollection", ns, key=key, **options)
            coll.insert_many([{"k": n, "g": 1, "pad": "x" * 2000} for n in range(1000)])
            assert client.config.chunks.count_documents({"uuid": client.config.collections.find_one({"_id": ns})["uuid"]}) == 1

        def is_balanced(name):
            return admin.command("balancerCollectionStatus", f"hashes.{name}")["balancerCompliant"]

        admin.command("balancerStart")
        try:
            until("both shards have some of both", lambda: all(map(is_balanced, names)), 120)
        finally:
            admin.command("balancerStop")
        for name in names:
            assert client.hashes[name].count_documents({}) == 1000
            sizes = [s["count"] for s in client.hashes.command("collStats", name)["shards"].values()]
            assert len(sizes) == 2 and min(sizes) > 200, sizes


def test_a_hashed_chunk_is_split_in_its_middle(cluster):
    with cluster.client() as client:
        client.admin.command("shardCollection", "middle.c", key={"k": "hashed"}, numInitialChunks=1)
        client.middle.c.insert_many([{"k": n} for n in range(101)])
        client.admin.command("split", "middle.c", find={"k": 5})
        uuid = client.config.collections.find_one({"_id": "middle.c"})["uuid"]
        below, above = client.config.chunks.find({"uuid": uuid}).sort("min", 1)
        assert below["max"] == above["min"]
        hashes = [d["h"] for d in client.middle.c.aggregate([{"$project": {"h": {"$toHashedIndexKey": "$k"}}}])]
        assert sum(h < below["max"]["k"] for h in hashes) == 50


def test_a_retried_write_is_done_once_over_a_move(cluster):
    with cluster.client() as client, cluster.routers[0].wire() as wire:
        admin = client.admin
        admin.command("shardCollection", "retries.c", key={"k": 1})
        here = client.config.databases.find_one({"_id": "retries"})["primary"]
        client.retries.c.insert_many([{"k": n, "v": 0} for n in range(10)])
        command = {
            "update": "c",
            "updates": [{"q": {"k": n}, "u": {"$inc": {"v": 1}}} for n in range(10)],
            "lsid": {"id": bson.Binary(bytes(range(16)), 4)},
            "txnNumber": bson.Int64(5),
            "$db": "retries",
        }
        assert wire.command(command)["nModified"] == 10
        admin.command("moveChunk", "retries.c", find={"k": 1}, to="s1" if here == "s0" else "s0")
        assert wire.command(command)["nModified"] == 10
        assert client.retries.c.distinct("v") == [1]


def test_an_open_transaction_holds_a_move_up_and_loses_nothing(cluster):
    with cluster.client() as client:
        admin = client.admin
        admin.command("shardCollection", "held.c", key={"k": 1})
        here = client.config.databases.find_one({"_id": "held"})["primary"]
        there = "s1" if here == "s0" else "s0"
        coll = client.held.c
        coll.insert_one({"k": 1, "v": 0})
        with client.start_session() as session:
            session.start_transaction()
            coll.update_one({"k": 1}, {"$inc": {"v": 1}}, session=session)
            with refuses(24):
                admin.command("moveChunk", "held.c", find={"k": 1}, to=there)
            coll.update_one({"k": 1}, {"$inc": {"v": 1}}, session=session)
            session.commit_transaction()
        admin.command("moveChunk", "held.c", find={"k": 1}, to=there)
        assert coll.find_one()["v"] == 2


def test_a_move_whose_router_is_killed_is_ended_by_another(tmp_path):
    with ShardedCluster(tmp_path, routers=2) as own, own.client(1) as client:
        admin = client.admin
        admin.command("balancerStop")
        admin.command("shardCollection", "left.c", key={"k": 1})
        here = client.config.databases.find_one({"_id": "left"})["primary"]
        there = "s1" if here == "s0" else "s0"
        coll = client.left.c
        coll.insert_many([{"_id": n, "k": n, "pad": "x" * 200} for n in range(20_000)])
        mover = own.client(0)

        def move():
            try:
                mover.admin.command("moveChunk", "left.c", find={"k": 1}, to=there)
            except Exception:
                pass  # Its router is killed.

        moving = threading.Thread(target=move)
        moving.start()
        until("the move is under way", lambda: client.config.migrations.find_one({"ns": "left.c"}) or not moving.is_alive())
        own.routers[0].kill()
        moving.join(30)
        mover.close()
        assert coll.count_documents({}) == 20_000
        # The lock of the one that was killed is taken over when it is old.
        client.config.locks.update_many({}, {"$set": {"at": datetime.datetime(1970, 1, 1)}})
        owner = client.config.chunks.find_one({})["shard"]
        admin.command("moveChunk", "left.c", find={"k": 1}, to="s1" if owner == "s0" else "s0")
        assert client.config.migrations.count_documents({}) == 0
        assert coll.count_documents({}) == 20_000
        counts = {}
        for name in own.shards:
            with own.on_shard(name) as direct:
                counts[name] = direct.left.c.count_documents({})
        assert sorted(counts.values()) == [0, 20_000], counts


def test_an_index_that_is_made_while_a_range_moves_is_on_all_shards(cluster):
    """The shard that gets its first range was told of the indexes at the beginning: such a move fails, and the next one does not."""
    with cluster.client() as client, cluster.client(1) as other:
        coll, ns = client.indexed.c, "indexed.c"
        client.admin.command("shardCollection", ns, key={"k": 1})
        client.admin.command("split", ns, middle={"k": 10})
        coll.insert_many([{"k": n, "pad": "x" * 300} for n in range(15_000)])
        here = client.config.databases.find_one({"_id": "indexed"})["primary"]
        there = "s1" if here == "s0" else "s0"
        failures = []

        def move():
            try:
                client.admin.command("moveChunk", ns, find={"k": 50}, to=there)
            except OperationFailure as failure:
                failures.append(failure)

        moving = threading.Thread(target=move)
        moving.start()
        until("it has begun", lambda: client.config.migrations.find_one({"ns": ns}) or not moving.is_alive(), 20)
        with cluster.on_shard(there) as direct:
            until("it copies", lambda: direct.indexed.c.find_one() or not moving.is_alive(), 20)
        other.indexed.c.create_index("pad")
        moving.join()
        if failures:
            assert failures[0].code in (24, 117), failures
            client.admin.command("moveChunk", ns, find={"k": 50}, to=there)
        for shard in ("s0", "s1"):
            with cluster.on_shard(shard) as direct:
                assert "pad_1" in direct.indexed.c.index_information()
        assert coll.count_documents({}) == 15_000
