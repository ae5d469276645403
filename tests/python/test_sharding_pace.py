"""How much a move takes from clients that write meanwhile: it pauses while routers are served, and a waiter
for its end asks once."""

import contextlib
import random
import threading
import time

import bson
import pymongo
import pytest
from harness import until
from sharded_cluster import at_rest, cluster_fixture

DOCUMENTS = 4000


cluster = cluster_fixture(routers=2)


@contextlib.contextmanager
def writing(cluster, coll, threads=4):
    """Clients that insert all the time into the lower half of the keys; gives what they have inserted."""
    stop, kept, failures = threading.Event(), [], []

    def write(number):
        try:
            with cluster.client(number % 2) as client:
                n = 0
                while not stop.is_set():
                    client[coll.database.name][coll.name].insert_one({"_id": f"{number}.{n}", "k": n % 500})
                    kept.append(f"{number}.{n}")
                    n += 1
        except Exception as failure:
            failures.append(failure)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
    for writer in writers:
        writer.start()
    try:
        until("all write", lambda: len(kept) > 50)
        yield kept
    finally:
        stop.set()
        for writer in writers:
            writer.join(60)
    assert not failures, failures


def sharded(client, db):
    """A collection with a chunk of documents on one shard, and the name of the other shard."""
    client.admin.command("shardCollection", f"{db}.c", key={"k": 1})
    client.admin.command("split", f"{db}.c", middle={"k": 500})
    client[db].c.insert_many([{"_id": n, "k": n % 500, "pad": "x" * 200} for n in range(DOCUMENTS)])
    here = client.config.databases.find_one({"_id": db})["primary"]
    return client[db].c, here, "s1" if here == "s0" else "s0"


def served(cluster, shard):
    with cluster.on_shard(shard) as direct:
        return direct.admin.command("_pandoServed")["served"]


def test_a_move_under_constant_writes_ends(cluster):
    with cluster.client() as client:
        coll, here, there = sharded(client, "busy")
        with writing(cluster, coll) as kept:
            for to in (there, here, there):
                before = len(kept)
                client.admin.command("moveChunk", "busy.c", find={"k": 1}, to=to)
                until("they go on", lambda b=before: len(kept) > b)
        assert coll.count_documents({}) == DOCUMENTS + len(kept)
        found = {d["_id"] for d in coll.find({"_id": {"$type": "string"}}, {"_id": 1})}
        assert found == set(kept)
        with cluster.on_shard(here) as direct:
            assert direct.busy.c.count_documents({}) == 0


def test_a_move_is_no_load_of_its_own(cluster):
    with cluster.client() as client:
        _, here, there = sharded(client, "idle")
        before = {shard: served(cluster, shard) for shard in (here, there)}
        client.admin.command("moveChunk", "idle.c", find={"k": 1}, to=there)
        for shard, n in before.items():
            assert served(cluster, shard) - n < 5, shard


def test_a_batch_is_the_work_of_several_commands(cluster):
    """A mover gives way to clients that load in batches as to those that insert one by one."""
    with cluster.client() as client:
        coll, here, _ = sharded(client, "loaded")
        before = served(cluster, here)
        for n in range(10):
            coll.insert_many([{"_id": f"{n}.{i}", "k": i, "pad": "x" * 500} for i in range(50)])
        # 270 KB, of which 2 KB are as much as one command.
        assert 130 < served(cluster, here) - before < 200


def test_the_log_gives_the_newest_documents(cluster):
    with cluster.client() as client:
        coll, here, there = sharded(client, "logged")
        coll.insert_one({"_id": "high", "k": 700})
        # The range below 500, as the shard has it.
        client.admin.command("moveChunk", "logged.c", find={"k": 700}, to=there)
        with cluster.on_shard(here) as direct:
            [lower] = direct.config.ownership.find_one({"_id": "logged.c"})["owned"]
        client.admin.command("moveChunk", "logged.c", find={"k": 700}, to=here)
        end = changes(cluster, here, "logged.c")
        coll.insert_one({"_id": "a", "k": 1})
        for n in range(5):
            coll.update_one({"_id": "a", "k": 1}, {"$inc": {"n": 1}})
        coll.insert_one({"_id": "b", "k": 1})
        coll.delete_one({"_id": "b", "k": 1})
        coll.delete_one({"_id": 1, "k": 1})
        coll.insert_one({"_id": 1, "k": 1, "again": True})
        coll.replace_one({"_id": 2, "k": 2}, {"k": 2, "other": True})
        # Of what leaves the range, and of what lies elsewhere.
        coll.update_one({"_id": 3, "k": 3}, {"$set": {"k": 600}})
        coll.update_one({"_id": "high", "k": 700}, {"$set": {"n": 1}})
        since = {"after": end["upTo"], "term": end["term"]}
        ids = changes(cluster, here, "logged.c", **since)
        assert "documents" not in ids and ids["ids"] == ["a", "b", 1, 2, 3, "high"], "as an older router asks"
        documents = changes(cluster, here, "logged.c", documents=True, **since)
        newest = [{"_id": "a", "k": 1, "n": 5}, {"_id": 1, "k": 1, "again": True}, {"_id": 2, "k": 2, "other": True}]
        assert documents["documents"][:3] == newest and documents["ids"] == [] and documents["gone"] == ["b"]
        assert [d["_id"] for d in documents["documents"][3:]] == [3, "high"]
        within = changes(cluster, here, "logged.c", documents=True, range=lower, **since)
        assert within["documents"] == newest and within["gone"] == ["b", 3] and within["ids"] == []


def changes(cluster, shard, ns, **fields):
    fields = {name: bson.Int64(v) if name in ("after", "term") else v for name, v in fields.items()}
    with cluster.on_shard(shard) as direct:
        return direct.admin.command({"_pandoChanges": 1, "ns": ns, **fields})


def test_a_document_that_was_moved_as_it_is_is_not_written_again(cluster):
    with cluster.on_shard("s0") as direct:
        coll = direct.twice.c
        coll.insert_one({"_id": "first"})
        end = changes(cluster, "s0", "twice.c")
        written = lambda: changes(cluster, "s0", "twice.c", after=end["upTo"], term=end["term"])["ids"]
        documents = [{"_id": n, "a": n} for n in range(3)]
        moved = {"insert": "c", "documents": documents, "ordered": False, "fromMigrate": True}
        assert direct.twice.command(moved)["n"] == 3 and written() == [0, 1, 2]
        end = changes(cluster, "s0", "twice.c")
        assert direct.twice.command(moved).get("writeErrors") is None and written() == []
        documents[1]["a"] = "other"
        documents.append({"_id": 3})
        reply = direct.twice.command(moved)
        assert reply["n"] == 3 and [e["code"] for e in reply["writeErrors"]] == [11000] and written() == [3]
        assert coll.find_one({"_id": 1}) == {"_id": 1, "a": 1}
        with pytest.raises(pymongo.errors.BulkWriteError):
            coll.insert_many([{"_id": 0, "a": 0}])


def test_a_catch_up_reads_no_documents(cluster):
    """They come with the log, and of what was written many times the last state goes once."""
    with cluster.client() as client:
        coll, here, there = sharded(client, "caught")

        def counts():
            with cluster.on_shard(here) as donor, cluster.on_shard(there) as recipient:
                metrics = [d.admin.command("serverStatus")["metrics"] for d in (donor, recipient)]
            finds = metrics[0]["commands"]["find"]["total"]
            return finds, metrics[1]["document"]["inserted"], metrics[1]["document"]["deleted"]

        before = counts()
        blocked = {"failCommands": ["insert"], "failInternalCommands": True, "blockConnection": True, "blockTimeMS": 3000}
        with cluster.on_shard(there) as direct:
            direct.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=blocked)
        mover, failures = move_beside(client, "caught", there)
        with cluster.on_shard(there) as direct:
            until("its first batch is held", lambda: direct.admin.command("currentOp", {"command.insert": "c"})["inprog"])
        for n in range(10):
            coll.update_many({"k": {"$lt": 50}}, {"$inc": {"n": 1}})
        mover.join(60)
        assert not failures, failures
        finds, inserted, deleted = (now - then for now, then in zip(counts(), before))
        # 400 were updated, ten times each.
        assert finds == 1 and inserted <= DOCUMENTS + 400 and deleted <= 400, (finds, inserted, deleted)
        assert coll.count_documents({"n": 10}) == 400 and coll.count_documents({}) == DOCUMENTS


def test_pauses_that_are_asked_for(cluster):
    with cluster.client() as client:
        coll, here, there = sharded(client, "paused")

        def move(to):
            began = time.monotonic()
            client.admin.command("moveChunk", "paused.c", find={"k": 1}, to=to)
            return time.monotonic() - began

        def ask(**parameters):
            for shard in (here, there):
                with cluster.on_shard(shard) as direct:
                    direct.admin.command({"setParameter": 1, **parameters})

        ask(migrateCloneInsertionBatchDelayMS=700)
        try:
            assert move(there) > 1.4, "there are two batches at least"
        finally:
            ask(migrateCloneInsertionBatchDelayMS=0)
        ask(rangeDeleterBatchDelayMS=100)
        try:
            assert move(here) > DOCUMENTS / 128 * 0.1 - 0.2
        finally:
            ask(rangeDeleterBatchDelayMS=0)
        assert coll.count_documents({}) == DOCUMENTS


def test_one_of_many_asks_about_a_fence(cluster):
    with cluster.client() as client, cluster.client(0) as writer:
        coll, here, _ = sharded(client, "fenced")
        with cluster.on_shard(here) as direct:
            fence = {"_pandoFence": 1, "ns": "fenced.c", "by": "nobody"}
            turn = direct.config.ownership.find_one({"_id": "fenced.c"})["turn"]
            direct.admin.command({**fence, "range": {"low": bson.Binary(b"")}, "turn": bson.Int64(turn)})
            before = served(cluster, here)
            threads = [threading.Thread(target=writer.fenced.c.insert_one, args=({"k": n},)) for n in range(16)]
            for thread in threads:
                thread.start()
            # How often they ask in a second.
            time.sleep(1)
            # Each of them tries again when one was told that the fence stands still.
            assert served(cluster, here) - before < 16 * 5
            direct.admin.command({**fence, "lift": True, "turn": bson.Int64(turn)})
            for thread in threads:
                thread.join(20)
        assert coll.count_documents({"pad": {"$exists": False}}) == 16


@pytest.fixture
def small_logs(tmp_path):
    """Shards whose logs keep 4 MB."""
    with at_rest(tmp_path, options=("--log-retain", "4")) as running:
        yield running


def paused(cluster, client, db, millis):
    """A collection whose range waits that long between pieces of its copy, and the other shard."""
    coll, here, there = sharded(client, db)
    for shard in (here, there):
        with cluster.on_shard(shard) as direct:
            direct.admin.command("setParameter", 1, migrateCloneInsertionBatchDelayMS=millis)
    return coll, there


def move_beside(client, db, there):
    """A thread that moves the lower range, and what it fails with."""
    failures = []

    def move():
        try:
            client.admin.command("moveChunk", f"{db}.c", find={"k": 1}, to=there)
        except Exception as failure:
            failures.append(failure)

    mover = threading.Thread(target=move)
    mover.start()
    return mover, failures


def test_the_log_waits_for_a_move(small_logs):
    """More is written while a range is copied than the log keeps for others."""
    with small_logs.client() as client:
        coll, there = paused(small_logs, client, "leased", 1000)
        mover, failures = move_beside(client, "leased", there)
        # Into the part that stays; 8 MB in all, two windows.
        for n in range(80):
            coll.insert_one({"_id": f"w{n}", "k": 700 + n, "fill": "x" * 100_000})
        mover.join(120)
        assert not failures, failures
        assert coll.count_documents({}) == DOCUMENTS + 80
        assert client.config.chunks.count_documents({"shard": there}) == 1


def test_a_move_that_the_log_cannot_wait_for_says_what_to_do(small_logs):
    with small_logs.client() as client:
        coll, there = paused(small_logs, client, "lost", 1000)
        mover, failures = move_beside(client, "lost", there)
        until("it has begun", lambda: client.config.migrations.count_documents({"ns": "lost.c"}))
        for n in range(300):
            coll.insert_one({"_id": f"w{n}", "k": 700, "fill": "x" * 100_000})
        mover.join(120)
        assert len(failures) == 1 and "more was written than the log keeps for it (12 MiB)" in str(failures[0])
        assert coll.count_documents({}) == DOCUMENTS + 300, "all is as before"
        assert client.config.chunks.count_documents({"shard": there}) == 0


def test_batches_into_a_range_that_moves(cluster):
    """Writers of batches are faster than a mover that gives way to them: the move ends all the same."""
    with cluster.client() as client:
        coll, here, there = sharded(client, "batches")
        stop, kept, failures = threading.Event(), [0] * 2, []

        def write(number):
            try:
                with cluster.client(number % 2) as own:
                    own = own[coll.database.name].get_collection(coll.name, write_concern=pymongo.WriteConcern(1))
                    while not stop.is_set():
                        own.insert_many([{"k": random.randrange(500), "fill": "y" * 400} for _ in range(50)])
                        kept[number] += 50
            except Exception as failure:
                failures.append(failure)

        writers = [threading.Thread(target=write, args=(n,)) for n in range(2)]
        for writer in writers:
            writer.start()
        def counted(name):
            with cluster.on_shard(there) as direct:
                return direct.admin.command("serverStatus")["metrics"]["commands"][name]["total"]

        try:
            until("all write", lambda: all(kept))
            inserts, deletes = counted("insert"), counted("delete")
            # It would have taken for ever; a busy machine needs some time.
            client.admin.command("moveChunk", "batches.c", find={"k": 1}, to=there)
            inserts, deletes = counted("insert") - inserts, counted("delete") - deletes
            # Documents inserted meanwhile have no older state there that would have to go before.
            assert inserts > 20 and deletes < inserts / 30, (inserts, deletes)
        finally:
            stop.set()
            for writer in writers:
                writer.join(60)
        assert not failures, failures
        assert coll.count_documents({}) == DOCUMENTS + sum(kept)
        with cluster.on_shard(here) as direct:
            until("its old documents go", lambda: direct.batches.c.count_documents({"k": {"$lt": 500}}) == 0)
