"""`pando cluster`: a replica set on one machine, by one command."""

import json
import os
import shutil
import signal
import socket
import subprocess

import pymongo
import pytest
from harness import BINARY, until


def free_ports(count):
    """The first of that many free ports in a row."""
    for first in range(20000 + os.getpid() % 5000, 32000, count):
        with socket.socket() as probe:
            taken = []
            try:
                for port in range(first, first + count):
                    other = socket.socket()
                    taken.append(other)
                    other.bind(("127.0.0.1", port))
                return first
            except OSError:
                continue
            finally:
                for other in taken:
                    other.close()
    raise AssertionError("no ports")


def cluster(*words, fails=False):
    done = subprocess.run([BINARY, "cluster", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert (done.returncode != 0) == fails, done.stderr + done.stdout
    return done.stderr if fails else done.stdout


@pytest.fixture
def place(tmp_path):
    yield tmp_path / "set"
    if (tmp_path / "set").exists():
        cluster("down", "--dir", tmp_path / "set")


def test_a_set_is_started_told_of_and_ended(place):
    port = free_ports(3)
    said = cluster("up", "--replicas", 3, "--dir", place, "--port", port, "--", "--cache", "64MB")
    uri = next(word for word in said.split() if word.startswith("mongodb://"))
    assert f"localhost:{port + 2}" in uri and "replicaSet=rs0" in uri
    with pymongo.MongoClient(uri) as client:
        client.t.get_collection("c", write_concern=pymongo.WriteConcern(w=3, wtimeout=30_000)).insert_one({"_id": 1})
    status = cluster("status", "--dir", place)
    assert status.count("primary") == 1 and status.count("secondary") == 2
    before = [m["pid"] for m in json.loads((place / "cluster.json").read_text())["sets"][0]["members"]]
    # One that stands still takes connections.
    os.kill(before[1], signal.SIGSTOP)
    try:
        assert "does not answer" in cluster("status", "--dir", place)
    finally:
        os.kill(before[1], signal.SIGCONT)
    # One that died is started again; the others are left alone.
    os.kill(before[1], signal.SIGKILL)
    until("it is gone", lambda: "does not run" in cluster("status", "--dir", place))
    cluster("up", "--dir", place)
    after = [m["pid"] for m in json.loads((place / "cluster.json").read_text())["sets"][0]["members"]]
    assert before[0] == after[0] and before[1] != after[1] and before[2] == after[2]
    assert "3 members" in cluster("up", "--dir", place, "--replicas", 5, fails=True)
    assert "3 of 3" in cluster("down", "--dir", place)
    assert cluster("status", "--dir", place).count("does not run") == 3
    assert "0 of 3" in cluster("down", "--dir", place)


def members(place):
    return [m for s in json.loads((place / "cluster.json").read_text())["sets"] for m in s["members"]]


def test_down_then_up_works_whatever_has_ended_before(place):
    port = free_ports(3)
    cluster("up", "--replicas", 3, "--dir", place, "--port", port)
    uri = f"mongodb://localhost:{port}/?replicaSet=rs0"
    with pymongo.MongoClient(uri) as client:
        client.t.get_collection("c", write_concern=pymongo.WriteConcern(3, wtimeout=30_000)).insert_one({"_id": 1})
    for round, signals in enumerate([(), (signal.SIGKILL,), (signal.SIGTERM, signal.SIGKILL), (signal.SIGKILL,) * 3]):
        for at, how in enumerate(signals):
            gone = members(place)[(round + at) % 3]["pid"]
            os.kill(gone, how)
            until("it is gone", lambda gone=gone: not alive(gone))
        cluster("down", "--dir", place)
        assert "ready" in cluster("up", "--dir", place)
        with pymongo.MongoClient(uri) as client:
            coll = client.t.get_collection("c", write_concern=pymongo.WriteConcern(3, wtimeout=30_000))
            coll.insert_one({"_id": f"round {round}"})
            assert coll.count_documents({}) == round + 2


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_up_finds_what_an_up_that_was_killed_has_started(place):
    port = free_ports(3)
    cluster("up", "--replicas", 3, "--dir", place, "--port", port)
    before = [m["pid"] for m in members(place)]
    record = json.loads((place / "cluster.json").read_text())
    for member in record["sets"][0]["members"]:
        member.update(pid=0, started=0)
    (place / "cluster.json").write_text(json.dumps(record))
    cluster("up", "--dir", place)
    assert [m["pid"] for m in members(place)] == before


def test_a_member_whose_directory_was_emptied_is_no_new_set(place):
    port = free_ports(3)
    cluster("up", "--replicas", 3, "--dir", place, "--port", port)
    with pymongo.MongoClient(f"mongodb://localhost:{port}/?replicaSet=rs0") as client:
        client.t.get_collection("c", write_concern=pymongo.WriteConcern(3, wtimeout=30_000)).insert_one({"_id": 1})
    cluster("down", "--dir", place)
    shutil.rmtree(place / "rs0-0")
    cluster("up", "--dir", place)
    with pymongo.MongoClient("localhost", port, directConnection=True, readPreference="secondaryPreferred") as client:
        until("it has its copy", lambda: client.t.c.count_documents({}) == 1)


def test_servers_share_the_memory_and_keep_their_files_private(place):
    port = free_ports(20)
    figures = port + 10
    cluster("up", "--shards", 1, "--replicas", 3, "--dir", place, "--port", port, "--", "--metrics", figures)
    with open("/proc/meminfo") as meminfo:
        memory = int(meminfo.readline().split()[1]) * 1024
    def started():
        caches, ports = [], []
        for member in members(place):
            with open(f"/proc/{member['pid']}/cmdline") as cmdline:
                words = cmdline.read().split("\0")
            cache = words[words.index("--cache") + 1]
            caches.append(int(cache.removesuffix("MB")) << 20)
            ports.append(int(words[words.index("--metrics") + 1]))
        return caches, ports

    caches, ports = started()
    assert len(caches) == 7 and sum(caches) <= memory // 2
    assert ports == list(range(figures, figures + 7))
    # One more has the share of one of eight; the others have theirs until they start again.
    cluster("add-member", "s0", "--dir", place)
    assert 8 * min(started()[0]) <= memory // 2 and sorted(started()[0])[1:] == caches
    cluster("down", "--dir", place)
    cluster("up", "--dir", place)
    assert len(set(started()[0])) == 1 and sum(started()[0]) <= memory // 2
    readable = [p for p in [place, *place.rglob("*")] if p != place and p.stat().st_mode & 0o077 and not p.is_symlink()]
    assert readable == []


def test_down_ends_only_what_up_has_started(tmp_path):
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        # The number of a process that began at another moment.
        member = {"name": "rs0-0", "port": 1, "pid": bystander.pid, "started": 1}
        record = {"sets": [{"name": "rs0", "members": [member]}], "serverOptions": []}
        (tmp_path / "cluster.json").write_text(json.dumps(record))
        assert "0 of 1" in cluster("down", "--dir", tmp_path)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_set_alone_has_no_shards(place):
    cluster("up", "--replicas", 1, "--dir", place, "--port", free_ports(1), "--", "--cache", "32MB")
    assert "holds a replica set" in cluster("add-shard", "--dir", place, fails=True)


def test_what_cannot_be_done_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        says = cluster("up", "--replicas", 1, "--dir", tmp_path / "a", "--port", taken.getsockname()[1], fails=True)
        assert "give another --port" in says
    assert "holds no cluster" in cluster("down", "--dir", tmp_path / "b", fails=True)
    assert "even number" in cluster("up", "--replicas", 2, fails=True)
    (tmp_path / "cluster.json").write_text("{")
    assert "damaged" in cluster("status", "--dir", tmp_path, fails=True)


def test_a_sharded_cluster_is_started_and_ended(place):
    port = free_ports(4)
    said = cluster("up", "--shards", 2, "--dir", place, "--port", port, "--", "--cache", "32MB")
    assert "A cluster of 2 shards" in said and f"mongodb://localhost:{port}/" in said
    with pymongo.MongoClient("localhost", port) as client:
        assert {s["_id"] for s in client.admin.command("listShards")["shards"]} == {"s0", "s1"}
        client.admin.command("shardCollection", "t.c", key={"_id": "hashed"})
        client.t.c.insert_many([{"_id": n} for n in range(100)])
        assert len(client.t.command("collStats", "c")["shards"]) == 2
    assert "router" in cluster("status", "--dir", place)
    cluster("down", "--dir", place)
    cluster("up", "--dir", place)
    with pymongo.MongoClient("localhost", port) as client:
        assert client.t.c.count_documents({}) == 100
    said = cluster("add-shard", "--dir", place)
    assert "Shard s2 is there" in said and "s2-0" in cluster("status", "--dir", place)
    with pymongo.MongoClient("localhost", port) as client:
        assert {s["_id"] for s in client.admin.command("listShards")["shards"]} == {"s0", "s1", "s2"}
        chunk = client.config.chunks.find_one({"shard": "s0"})
        client.admin.command("moveRange", "t.c", min=chunk["min"], max=chunk["max"], toShard="s2")
        assert client.t.c.count_documents({}) == 100 and "s2" in client.t.command("collStats", "c")["shards"]
    cluster("down", "--dir", place)
    cluster("up", "--dir", place)
    with pymongo.MongoClient("localhost", port) as client:
        assert client.t.c.count_documents({}) == 100
        client.admin.command("balancerStop")
        assert "the balancer is off" in cluster("remove-shard", "s1", "--dir", place, fails=True)
        assert cluster("status", "--dir", place).count("remove-shard goes on with it") == 1
        client.admin.command("balancerStart")
        assert "out of the cluster" in cluster("remove-shard", "s1", "--dir", place)
        assert "removed before" in cluster("remove-shard", "s1", "--dir", place)
        assert {s["_id"] for s in client.admin.command("listShards")["shards"]} == {"s0", "s2"}
        assert client.t.c.count_documents({}) == 100
    assert "there are s0, s2" in cluster("remove-shard", "s9", "--dir", place, fails=True)
    assert "s1-0" not in cluster("status", "--dir", place)
    assert "100" in cluster("up", "--shards", 101, "--dir", place, fails=True)


def test_a_cluster_whose_servers_want_certificates_and_logins(place, authority):
    port = free_ports(3)
    tls = ["--tlsMode", "requireTLS", "--tlsCertificateKeyFile", authority.issue("server"), "--tlsCAFile", authority.file]
    said = cluster("up", "--shards", 1, "--auth", "--dir", place, "--port", port, "--", "--cache", "16MB", *tls)
    assert "tls=true" in said and "createUser" in said
    assert "s0-0" in (status := cluster("status", "--dir", place)) and "primary" in status and "does not answer" not in status
    cluster("down", "--dir", place)
    assert "ready" in cluster("up", "--dir", place)


def test_options_that_were_wrong_may_be_others_the_next_time(place):
    port = free_ports(1)
    assert "does not serve" in cluster("up", "--replicas", 1, "--dir", place, "--port", port, "--", "--cahce", "16MB", fails=True)
    assert "ready" in cluster("up", "--replicas", 1, "--dir", place, "--port", port, "--", "--cache", "16MB")
