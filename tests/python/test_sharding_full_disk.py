"""A shard whose disk fills up: writes to it are refused with the reason, others go on, and it comes back when there is room."""

import os
import time

import pytest
from harness import Server, refuses, small_disk, until
from pymongo import WriteConcern
from pymongo.errors import OperationFailure
from sharded_cluster import ShardedCluster, client_fixture, shard
from test_set_full_disk import OUT_OF_DISK_SPACE, fill


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    with small_disk(tmp_path_factory.mktemp("disk"), 96) as disk:
        yield disk


@pytest.fixture(scope="module")
def cluster(disk, tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster")
    made = ShardedCluster(path)
    small = Server(disk / "data", "--replSet", "s1", "--shardsvr", "--cache", "16MB", "--oplogSize", "16")
    # What it says must find room.
    small.log = path / "small.out"
    made.sets["s1"], made.shards["s1"] = [small], small
    with made as running:
        with running.client() as client:
            client.admin.command("balancerStop")
        yield running


client = client_fixture()


def write_until_refused(coll, key):
    with pytest.raises(OperationFailure) as failed:
        for n in range(10_000):
            coll.insert_one({"k": key, "pad": os.urandom(20_000)})
    assert failed.value.code == OUT_OF_DISK_SPACE and "space" in str(failed.value), failed.value
    return n


def accepts(coll, key):
    try:
        return coll.insert_one({"k": key}).acknowledged
    except OperationFailure as e:
        assert e.code == OUT_OF_DISK_SPACE, e
        return False


def does(coll, command, **fields):
    """How many documents a command writes that is not tried again: its entry in the log is the smallest there is."""
    reply = coll.database.command(command, coll.name, check=False, **fields)
    refusals = reply.get("writeErrors", []) if reply["ok"] else [reply]
    assert all(e["code"] == OUT_OF_DISK_SPACE for e in refusals), reply
    return reply.get("n", 0)


def use_up(coll):
    """Writes little until not even that finds room in the rest of the log's last page. How many documents of `k: 90` there
    are more, and how many of those behind are gone."""
    more, gone = 0, 0
    for n in range(40):
        inserted = accepts(coll, 90) + does(coll, "insert", documents=[{"k": 90}])
        updated = does(coll, "update", updates=[{"q": {"k": 99}, "u": {"$inc": {"x": 1}}}])
        deleted = does(coll, "delete", deletes=[{"q": {"k": 61 + n}, "limit": 1}]) if n < 29 else 0
        more, gone = more + inserted, gone + deleted
        if not (inserted or updated or deleted):
            return more, gone
    raise AssertionError("the disk does not fill up")


def refused(coll, write):
    """Has `write(n)`, where n counts the tries, refused with the disk's reason: how often it was done before. The server may
    replace a file of its own between two writes, and a page becomes free."""
    for n in range(5):
        try:
            write(n)
        except OperationFailure as e:
            assert e.code == OUT_OF_DISK_SPACE, e
            return n
        does(coll, "insert", documents=[{"k": 92}])
    raise AssertionError("nothing is refused")


def write_to_both(coll):
    """What the reply says of a batch for both shards, of which one is full. Raises its error as a driver does."""
    batch = [{"k": 11}, {"k": 91}, {"k": 12}]
    reply = coll.database.command("insert", coll.name, documents=batch, ordered=False)
    for refusal in reply.get("writeErrors", []):
        assert reply["n"] == 2, reply
        raise OperationFailure(refusal["errmsg"], refusal["code"], reply)


def failures(cluster):
    """How often the balancer, which the configuration set runs, has failed."""
    log = cluster.config.log.read_text()
    return log.count("The balancer's move failed") + log.count("A round of the balancer is skipped")


def test_writes_to_it_are_refused_and_others_go_on(cluster, client):
    coll = shard(client.full, "c", {"k": 1}, at=[50])
    coll.insert_many([{"k": n} for n in range(100)])
    client.full.c2.insert_one({"k": 1})
    ballast = fill(cluster.shards["s1"])
    written = write_until_refused(coll, 90)
    more, gone = use_up(coll)
    written += more
    # Writes for the others are done, and those for both in part.
    assert accepts(coll, 10)
    written += refused(coll, lambda _: coll.insert_one({"k": 90}))
    whole = refused(coll, lambda _: write_to_both(coll))
    refused(coll, lambda _: coll.find_one_and_update({"k": 60}, {"$set": {"x": 1}}))
    gone += refused(coll, lambda n: coll.delete_one({"k": 60 - n}))
    # It is read.
    assert coll.count_documents({"k": 90}) == 1 + written
    assert coll.count_documents({"k": {"$lt": 90}}) == 90 + 1 + 2 * (1 + whole) - gone
    assert coll.count_documents({"k": 91}) == 1 + whole
    # Over both shards: nothing is done.
    with client.start_session() as session:
        session.start_transaction()
        with pytest.raises(OperationFailure):
            coll.insert_one({"k": 20, "t": 1}, session=session)
            coll.insert_one({"k": 80, "t": 1}, session=session)
            session.commit_transaction()
    assert coll.count_documents({"t": 1}) == 0
    ballast.unlink()
    until("writes succeed again", lambda: accepts(coll, 90), 40)
    with client.start_session() as session, session.start_transaction():
        coll.insert_one({"k": 20, "t": 1}, session=session)
        coll.insert_one({"k": 80, "t": 1}, session=session)
    assert coll.count_documents({"t": 1}) == 2 and coll.count_documents({"k": 90}) == 2 + written


def test_moves_to_it_fail_with_the_reason_and_not_all_the_time(cluster, client):
    coll = shard(client.moved, "c", {"k": 1})
    ns = coll.full_name
    client.admin.command("moveChunk", ns, find={"k": 0}, to="s0")
    coll.insert_many([{"k": n, "pad": os.urandom(2000)} for n in range(2000)])
    majority = coll.with_options(write_concern=WriteConcern("majority"))
    client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 0.2}}, upsert=True)
    ballast = fill(cluster.shards["s1"])
    try:
        with refuses(OUT_OF_DISK_SPACE):
            for _ in range(3):
                client.admin.command("moveRange", ns, min={"k": 1000}, toShard="s1")
                client.admin.command("moveRange", ns, min={"k": 1000}, toShard="s0")
        # The collection is read and written, the move is not.
        assert majority.count_documents({}) == 2000 and accepts(majority, 1500)
        before = failures(cluster)
        client.admin.command("balancerStart")
        until("the balancer fails", lambda: failures(cluster) > before)
        # As long as it may take to fail again at once.
        time.sleep(3)
        assert failures(cluster) - before == 1, "it tries again in its next round, ten seconds later"
        assert majority.count_documents({}) == 2001 and accepts(majority, 1500)
    finally:
        ballast.unlink()
    until("it has some", lambda: cluster_has(cluster, coll), 60)
    client.admin.command("balancerStop")
    client.config.settings.delete_one({"_id": "chunksize"})
    assert coll.count_documents({}) == 2002
    until("nothing is under way", lambda: client.config.migrations.count_documents({"ns": ns}) == 0)


def cluster_has(cluster, coll):
    with cluster.on_shard("s1") as direct:
        return direct[coll.database.name][coll.name].count_documents({}) > 100
