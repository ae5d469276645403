"""`pando backup` of a whole sharded cluster, by its router: one moment for all shards and the configuration set."""

import threading

import pytest
from harness import run_pando, until
from pymongo import WriteConcern
from pymongo.errors import OperationFailure
from sharded_cluster import ShardedCluster, answers, initiate


@pytest.fixture
def cluster(tmp_path):
    with ShardedCluster(tmp_path) as running:
        with running.client() as client:
            client.admin.command("shardCollection", "t.c", key={"_id": "hashed"})
        yield running


class Writer(threading.Thread):
    """Inserts 0, 1, 2, … each after the one before was acknowledged by a majority, and pairs in transactions over shards."""

    def __init__(self, cluster):
        super().__init__()
        self.cluster, self.ended, self.written, self.failure = cluster, threading.Event(), 0, None

    def run(self):
        try:
            with self.cluster.client() as client:
                things = client.t.get_collection("c", write_concern=WriteConcern("majority"))
                while not self.ended.is_set():
                    with client.start_session() as session, session.start_transaction(write_concern=WriteConcern("majority")):
                        pair = [{"_id": f"{self.written}-{half}", "pair": self.written} for half in range(4)]
                        things.insert_many(pair, session=session)
                    things.insert_one({"_id": self.written})
                    self.written += 1
        except Exception as e:  # noqa: BLE001
            self.failure = e

    def __enter__(self):
        self.start()
        until("it has written", lambda: self.written > 20 or self.failure)
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()
        assert self.failure is None, self.failure


def start_from(cluster, backup):
    """The same servers, at the same addresses, from a backup."""
    for server in cluster.servers():
        server.kill()
    cluster.config.path = backup / "config"
    for name, server in cluster.shards.items():
        server.path = backup / name
    for server in [cluster.config, *cluster.shards.values()]:
        server.launch()
    for server in [cluster.config, *cluster.shards.values()]:
        until("it answers", lambda s=server: answers(s), 60)
    initiate(cluster.config, "csrs")
    for name, server in cluster.shards.items():
        initiate(server, name)
    for router in cluster.routers:
        router.start()


def test_a_backup_under_writes_is_one_moment_of_all_shards(cluster, tmp_path):
    backup = tmp_path / "deep" / "backup"
    with Writer(cluster) as writer:
        before = writer.written
        made = run_pando("backup", f"mongodb://{cluster.routers[0].address}/", backup, "--in-place")
        after = writer.written
    assert made.returncode == 0, made.stderr
    assert "was read whole" in made.stdout and str(backup / "s1") in made.stdout, made.stdout
    assert oct(backup.stat().st_mode)[-3:] == "700"
    for name in ("config", "s0", "s1"):
        checked = run_pando("check", backup / name)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    start_from(cluster, backup)
    with cluster.client() as client:
        things = client.t.c
        # A prepared transaction is decided when the cluster has come up.
        singles = until("all can be read", lambda: sorted(d["_id"] for d in things.find({"pair": None})))
        assert singles == list(range(len(singles))), "each is there whose successor is"
        assert before <= len(singles) <= after + 1
        shards = client.t.command("collStats", "c")["shards"]
        assert all(shards[name]["count"] > 0 for name in ("s0", "s1"))

        def halves():
            found = {}
            for d in things.find({"pair": {"$ne": None}}):
                found[d["pair"]] = found.get(d["pair"], 0) + 1
            return found if set(found.values()) == {4} else None

        found = until("no transaction is there in part", halves)
        assert set(singles) <= set(found)
        things.insert_one({"_id": "new"})
    print(f"{len(singles)} of {after} documents were written when the backup was made")


def test_what_cannot_be_backed_up_is_an_error_and_nothing_stays_locked(cluster, tmp_path):
    backup = tmp_path / "backup"
    (backup / "s1").mkdir(parents=True)
    uri = f"mongodb://{cluster.routers[0].address}/"
    refused = run_pando("backup", uri, backup, "--in-place")
    assert refused.returncode == 1 and "s1" in refused.stderr and "exists already" in refused.stderr, refused.stderr
    cluster.shards["s1"].kill()
    # The router would wait for a primary: it has none to lock.
    with cluster.on_shard("s0") as client, pytest.raises(OperationFailure, match="the lock against writes is gone"):
        client.admin.command({"pandoBackup": 1, "step": "stage", "hold": 1})
    down = run_pando("backup", uri, tmp_path / "other", "--in-place")
    assert down.returncode == 1 and "no backup was made" in down.stderr, down.stdout
    assert not (tmp_path / "other").exists()
    cluster.shards["s1"].start()
    with cluster.client() as client:
        until("s1 has a primary", lambda: cluster.on_shard("s1").admin.command("hello")["isWritablePrimary"])
        client.t.c.insert_many([{"_id": n} for n in range(100)])
        assert client.t.c.count_documents({}) == 100
