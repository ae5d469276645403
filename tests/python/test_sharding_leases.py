"""What movers read of a log is kept for them on every member, and let go of when they are done; and moves between different
pairs of shards go on at the same time."""

import datetime
import threading

import pymongo
import pytest
from bson import MaxKey, MinKey
from harness import until
from sharded_cluster import ShardedCluster, at_rest
from test_sharding_pace import DOCUMENTS, move_beside, paused, sharded

INTERNAL = {"failInternalCommands": True, "blockConnection": True}


def block(direct, command, millis, times=1):
    data = {**INTERNAL, "failCommands": [command], "blockTimeMS": millis}
    direct.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)


def runs(direct, command, ns):
    """Whether a command on a collection is under way."""
    ops = direct.admin.aggregate([{"$currentOp": {}}])
    db, name = ns.split(".", 1)
    return any(o.get("command", {}).get(command) == name and o["command"].get("$db") == db for o in ops)


def leases(server):
    with server.client() as direct:
        return direct.admin.command("serverStatus")["pandodb"]["log"]["leases"]


@pytest.mark.timeout(240)
def test_the_next_primary_has_what_a_mover_reads(tmp_path):
    """The donor's primary is killed while its mover is in the middle of the catch-up, two windows of the log behind."""
    with at_rest(tmp_path, replicas=3, options=("--log-retain", "4")) as cluster, cluster.client(retryWrites=True) as client:
        coll, here, there = sharded(client, "leased")
        donors = cluster.sets[here]
        assert [leases(g) for g in donors] == [0, 0, 0]
        stop, touched = threading.Event(), []

        def touch():
            while not stop.is_set():
                n = len(touched)
                coll.insert_one({"_id": f"t{n}", "k": n % 500})
                touched.append(n)
                # The receiver has an older state of it, which has to go.
                coll.update_one({"_id": n, "k": n % 500}, {"$set": {"t": n}})

        toucher = threading.Thread(target=touch)
        with cluster.on_shard(there) as direct:
            block(direct, "delete", 12_000)
            toucher.start()
            mover, failures = move_beside(client, "leased", there)
            until("it catches up", lambda: runs(direct, "delete", "leased.c"), 60)
            stop.set()
            toucher.join(60)
            assert [leases(g) for g in donors] == [1, 1, 1]
            # Into the part that stays.
            for n in range(80):
                coll.insert_one({"_id": f"w{n}", "k": 700 + n, "fill": "x" * 100_000})
            donors[0].kill()
            for n in range(80, 90):
                coll.insert_one({"_id": f"w{n}", "k": 700 + n, "fill": "x" * 100_000})
        mover.join(120)
        assert not failures, failures
        assert client.config.chunks.count_documents({"shard": there}) == 1
        assert coll.count_documents({}) == DOCUMENTS + 90 + len(touched)
        until("they let go", lambda: [leases(g) for g in donors[1:]] == [0, 0])


def test_the_progress_of_a_move(tmp_path):
    with at_rest(tmp_path) as cluster, cluster.client() as client:
        coll, there = paused(cluster, client, "seen", 1500)
        # The receiver has a part already, so it is asked for its size.
        client.admin.command("moveChunk", "seen.c", find={"k": 700}, to=there)
        done = client.admin.command("serverStatus")["pandodb"]["moves"]["done"]
        mover, failures = move_beside(client, "seen", there)
        told = until("it tells", lambda: (client.config.migrations.find_one({"ns": "seen.c"}) or {}).get("progress"), 60)
        assert told["phase"] in ("copy", "catchUp") and told["seconds"] >= 1
        assert 0 < told["copiedDocuments"] <= DOCUMENTS and told["copiedBytes"] > 200 * told["copiedDocuments"]
        assert told["backlogDocuments"] == 0
        # One chunk of two, which has all documents.
        assert told["approxDocumentsToCopy"] == DOCUMENTS and told["approxBytesToCopy"] > 200 * DOCUMENTS
        assert 0 < told["workShare"] <= 1 and told["remainingSeconds"] >= 0
        assert told["estimatedEnd"] > datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - datetime.timedelta(minutes=1)
        moves = client.admin.command("serverStatus")["pandodb"]["moves"]
        assert moves["underWay"] == 1 and moves["done"] == done and moves["failed"] == 0
        assert moves["copiedDocuments"] >= told["copiedDocuments"] and moves["copiedBytes"] > 200 * told["copiedDocuments"]
        assert 0 <= moves["leftDocuments"] < DOCUMENTS
        # collStats counts stored documents: copied ones are there twice until the move ends.
        stats = client.seen.command("collStats", "c")
        assert stats["count"] == sum(s["count"] for s in stats["shards"].values()) > DOCUMENTS and stats["numOrphanDocs"] == 0
        assert coll.estimated_document_count() == coll.count_documents({}) == DOCUMENTS
        # As sh.status() asks.
        active = list(client.config.locks.find({"state": 2}))
        assert [lock["_id"] for lock in active] == ["seen.c"] and active[0]["when"]
        assert client.admin.command("balancerStatus")["inBalancerRound"]
        shown = client.admin.command("currentOp", ns="seen.c", desc="MoveCoordinator")["inprog"]
        assert [op["command"]["moveRange"] for op in shown] == ["seen.c"] and shown[0]["command"]["toShard"] == there, shown
        assert shown[0]["progress"]["copiedDocuments"] >= told["copiedDocuments"] and shown[0]["msg"] in ("copy", "catchUp")
        staged = list(client.admin.aggregate([{"$currentOp": {"allUsers": True}}, {"$match": {"desc": "MoveCoordinator"}}]))
        assert [op["ns"] for op in staged] == ["seen.c"]
        assert not client.admin.command("currentOp", ns="none.c", desc="MoveCoordinator")["inprog"]
        mover.join(120)
        assert not failures, failures
        assert client.config.migrations.count_documents({}) == 0 and coll.count_documents({}) == DOCUMENTS
        moves = client.admin.command("serverStatus")["pandodb"]["moves"]
        assert client.seen.command("collStats", "c")["count"] == coll.estimated_document_count() == DOCUMENTS
        assert moves["done"] == done + 1 and not moves["underWay"] and not moves["leftDocuments"] and not moves["leftBytes"]
        assert not client.admin.command("balancerStatus")["inBalancerRound"]
        until("the lock is free", lambda: client.config.locks.count_documents({"state": 2}) == 0)


def test_resharding_lets_go_of_all_logs(tmp_path):
    with at_rest(tmp_path) as cluster, cluster.client() as client:
        coll, here, there = sharded(client, "again")
        client.admin.command("moveChunk", "again.c", find={"k": 1}, to=there)
        servers = [cluster.shards[s] for s in (here, there)]
        with cluster.on_shard(here) as direct:
            block(direct, "insert", 3000)
            failures = []

            def reshard():
                try:
                    client.admin.command("reshardCollection", "again.c", key={"_id": 1, "k": 1}, numInitialChunks=2)
                except Exception as failure:
                    failures.append(failure)

            thread = threading.Thread(target=reshard)
            thread.start()
            until("both logs are kept", lambda: [leases(s) for s in servers] == [1, 1], 60)
            thread.join(120)
        assert not failures, failures
        until("they let go", lambda: [leases(s) for s in servers] == [0, 0])
        assert coll.count_documents({}) == DOCUMENTS


@pytest.mark.timeout(240)
def test_moves_between_different_pairs_at_the_same_time(tmp_path):
    with ShardedCluster(tmp_path, shards=4) as cluster, cluster.client() as client:
        admin = client.admin
        admin.command("balancerStop")
        client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 1}}, upsert=True)
        pairs = {"a": ("s0", "s1"), "b": ("s2", "s3")}
        for zone, (first, second) in pairs.items():
            admin.command("enableSharding", zone, primaryShard=first)
            for shard in (first, second):
                admin.command("addShardToZone", shard, zone=zone)
            admin.command("shardCollection", f"{zone}.c", key={"k": 1})
            admin.command("updateZoneKeyRange", f"{zone}.c", min={"k": MinKey()}, max={"k": MaxKey()}, zone=zone)
            for begin in range(0, 800, 100):
                client[zone].c.insert_many([{"_id": n, "k": n, "fill": "x" * 10_000} for n in range(begin, begin + 100)])
        recipients = [cluster.on_shard("s1"), cluster.on_shard("s3")]
        try:
            for recipient in recipients:
                block(recipient, "insert", 8000)
            admin.command("balancerStart")
            under_way = lambda: {d["_id"] for d in client.config.migrations.find()} == {"a.c", "b.c"}
            until("both are under way", under_way, 60)
            until("both have data", lambda: all(t[z].c.estimated_document_count() for t, z in zip(recipients, "ab")), 60)
        finally:
            for recipient in recipients:
                recipient.close()
        admin.command("balancerStop")
        for zone in pairs:
            assert client[zone].c.count_documents({}) == 800


@pytest.mark.timeout(240)
def test_one_collection_moves_between_different_pairs_at_the_same_time(tmp_path):
    with ShardedCluster(tmp_path, shards=4) as cluster, cluster.client() as client:
        admin, coll = client.admin, client.one.c
        admin.command("balancerStop")
        client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 1}}, upsert=True)
        admin.command("enableSharding", "one", primaryShard="s0")
        admin.command("shardCollection", "one.c", key={"k": 1})
        admin.command("split", "one.c", middle={"k": 800})
        admin.command("moveChunk", "one.c", find={"k": 800}, to="s1")
        for begin in range(0, 1600, 100):
            coll.insert_many([{"_id": n, "k": n, "fill": "x" * 10_000} for n in range(begin, begin + 100)])
        recipients = [cluster.on_shard("s2"), cluster.on_shard("s3")]
        try:
            for recipient in recipients:
                block(recipient, "insert", 5000)
            admin.command("balancerStart")
            until("two are under way", lambda: client.config.migrations.count_documents({"ns": "one.c"}) == 2, 60)
            shown = admin.command("currentOp", ns="one.c", desc="MoveCoordinator")["inprog"]
            sides = [op["command"][side] for op in shown for side in ("fromShard", "toShard")]
            assert sorted(sides) == ["s0", "s1", "s2", "s3"], shown
            # A client that writes beside them loses nothing.
            for n in range(1600, 1800):
                coll.insert_one({"_id": n, "k": n % 800 * 2, "fill": "x"})
            until("it is even", lambda: admin.command("balancerCollectionStatus", "one.c")["balancerCompliant"], 120)
        finally:
            for recipient in recipients:
                recipient.close()
        admin.command("balancerStop")
        until("all have ended", lambda: not client.config.migrations.count_documents({}), 60)
        assert coll.count_documents({}) == 1800 and len(coll.distinct("_id")) == 1800
        at_once, twice = overlaps(client.config.changelog.find({"ns": "one.c", "what": {"$ne": "moveChunk.error"}}))
        assert at_once >= 1 and twice == 0
        counts = [s["count"] for s in client.one.command("collStats", "c")["shards"].values()]
        assert len(counts) == 4 and sum(counts) == 1800, counts


@pytest.mark.timeout(240)
def test_commands_move_ranges_of_one_collection_beside_each_other(tmp_path):
    """Between different pairs of shards. One that has a shard in common with another waits for its end."""
    with ShardedCluster(tmp_path, shards=4) as cluster, cluster.client() as client:
        admin, coll = client.admin, client.one.c
        admin.command("balancerStop")
        admin.command("enableSharding", "one", primaryShard="s0")
        admin.command("shardCollection", "one.c", key={"k": 1})
        for middle in (100, 200):
            admin.command("split", "one.c", middle={"k": middle})
        admin.command("moveChunk", "one.c", find={"k": 100}, to="s1")
        coll.insert_many([{"_id": n, "k": n} for n in range(300)])
        failures = []

        def move(key, to):
            try:
                admin.command("moveChunk", "one.c", find={"k": key}, to=to)
            except Exception as failure:
                failures.append(failure)

        recipients = [cluster.on_shard("s2"), cluster.on_shard("s3")]
        try:
            for recipient in recipients:
                block(recipient, "insert", 6000)
            movers = [threading.Thread(target=move, args=which) for which in ((1, "s2"), (150, "s3"), (250, "s2"))]
            for mover in movers[:2]:
                mover.start()
            until("two are under way", lambda: client.config.migrations.count_documents({"ns": "one.c"}) == 2, 60)
            movers[2].start()
            with pytest.raises(pymongo.errors.ExecutionTimeout):
                admin.command("moveRange", "one.c", min={"k": 200}, toShard="s3", maxTimeMS=300)
            assert client.config.migrations.count_documents({"ns": "one.c"}) == 2, "the third waits"
            for mover in movers:
                mover.join(120)
        finally:
            for recipient in recipients:
                recipient.close()
        assert not failures, failures
        assert [c["shard"] for c in client.config.chunks.find().sort("min", 1)] == ["s2", "s3", "s2"]
        assert coll.count_documents({}) == 300 and not client.config.migrations.count_documents({})
        at_once, twice = overlaps(client.config.changelog.find({"ns": "one.c", "what": {"$ne": "moveChunk.error"}}))
        assert at_once >= 1 and twice == 0
        # A client with its answer finds the lock free.
        assert client.config.locks.count_documents({"_id": "one.c", "state": 2}) == 0


def overlaps(lines):
    """How many moves began while another was under way, and how many of those had a shard in common with it."""
    under_way, at_once, twice = [], 0, 0
    for line in sorted((line for line in lines if line["what"].startswith("moveChunk")), key=lambda line: line["time"]):
        if line["what"] == "moveChunk.start":
            sides = {line["details"]["from"], line["details"]["to"]}
            at_once += bool(under_way)
            twice += any(sides & {other["from"], other["to"]} for other in under_way)
            under_way.append(line["details"])
        else:
            under_way.remove(line["details"])
    return at_once, twice
