"""A shard whose disk fills up: writes to it are refused with the reason, others go on, and it comes back when there is room."""

import os
import subprocess
import time

import pytest
from harness import Server, refuses, until
from pymongo import WriteConcern
from pymongo.errors import OperationFailure
from sharded_cluster import ShardedCluster
from test_set_full_disk import OUT_OF_DISK_SPACE, fill
from test_sharding import shard


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A file system of 96 MB."""
    path = tmp_path_factory.mktemp("disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


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


@pytest.fixture(scope="module")
def client(cluster):
    with cluster.client() as connected:
        yield connected


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


def does(write):
    try:
        return bool(write())
    except OperationFailure as e:
        assert e.code == OUT_OF_DISK_SPACE, e
        return False


def use_up(coll):
    """Writes little until not even that finds room in the rest of the log's last page. How many documents of `k: 90` there
    are more, and how many of those behind are gone."""
    more, gone = 0, 0
    for n in range(20):
        inserted = accepts(coll, 90)
        updated = does(lambda: coll.update_one({"k": 99}, {"$inc": {"x": 1}}).modified_count)
        deleted = does(lambda n=n: coll.delete_one({"k": 61 + n}).deleted_count)
        more, gone = more + inserted, gone + deleted
        if not (inserted or updated or deleted):
            return more, gone
    raise AssertionError("the disk does not fill up")


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
    assert accepts(coll, 10) and not accepts(coll, 90)
    reply = client.full.command("insert", "c", documents=[{"k": 11}, {"k": 91}, {"k": 12}], ordered=False)
    assert reply["n"] == 2 and [e["code"] for e in reply["writeErrors"]] == [OUT_OF_DISK_SPACE]
    with refuses(OUT_OF_DISK_SPACE):
        coll.find_one_and_update({"k": 60}, {"$set": {"x": 1}})
    with refuses(OUT_OF_DISK_SPACE):
        coll.delete_one({"k": 60})
    # It is read.
    assert coll.count_documents({"k": 90}) == 1 + written and coll.count_documents({}) == 103 + written - gone
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
