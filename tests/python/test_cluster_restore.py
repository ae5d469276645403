"""`pando cluster up --from ARCHIVE`: a deployment from a backup, at other addresses and with another number of members."""

import subprocess

import pymongo
import pytest
from harness import BINARY, until
from test_backup_archive import newest, pando, uri
from test_cluster import cluster, free_ports, members


@pytest.fixture
def places(tmp_path):
    made = [tmp_path / "old", tmp_path / "new"]
    yield made
    for place in made:
        if (place / "cluster.json").exists():
            cluster("down", "--dir", place)


def connected(port, **options):
    return pymongo.MongoClient("localhost", port, w="majority", **options)


def test_a_cluster_comes_back_beside_the_one_of_before(places, tmp_path):
    old, new = places
    archive = tmp_path / "archive"
    ports = free_ports(8)
    cluster("up", "--shards", 2, "--dir", old, "--port", ports, "--", "--cache", "16MB")
    with connected(ports) as client:
        client.admin.command("shardCollection", "t.c", key={"_id": "hashed"})
        client.t.c.insert_many([{"_id": n} for n in range(200)], ordered=False)
        pando("backup", f"mongodb://localhost:{ports}/", archive)
        client.t.c.insert_one({"_id": "behind it"})
        shards = list(client.config.shards.find().sort("_id"))
    command = ["up", "--from", archive, "--dir", new, "--port", ports + 4, "--", "--cache", "16MB"]
    for seconds in (0.05, 0.4, 0.8, 1.6):
        killed = subprocess.Popen([BINARY, "cluster", *map(str, command)], stdout=subprocess.DEVNULL)
        try:
            killed.wait(seconds)
        except subprocess.TimeoutExpired:
            killed.kill()
            killed.wait()
    assert "A cluster of 2 shards is ready" in cluster(*command)
    assert "not made of this archive" in cluster(*command[:2], tmp_path / "other", *command[3:], fails=True)
    with connected(ports + 4) as client, connected(ports) as before:
        assert sorted(d["_id"] for d in client.t.c.find()) == list(range(200))
        client.t.c.insert_many([{"_id": f"new {n}"} for n in range(50)], ordered=False)
        chunk = client.config.chunks.find_one({"shard": "s0"})
        client.admin.command("moveRange", "t.c", min=chunk["min"], max=chunk["max"], toShard="s1")
        assert client.t.c.count_documents({}) == 250
        # The one of before serves on, and was told nothing.
        assert before.t.c.count_documents({}) == 201 and before.t.c.find_one({"_id": "behind it"})
        assert list(before.config.shards.find().sort("_id")) == shards
        assert before.config.chunks.find_one({"_id": chunk["_id"]})["shard"] == "s0"
        own = {f"localhost:{m['port']}" for m in members(new)}
        assert all(s["host"].split("/")[1] in own for s in client.config.shards.find())
    cluster("down", "--dir", new)
    cluster("up", "--dir", new)
    with connected(ports + 4) as client:
        assert client.t.c.count_documents({}) == 250


def test_a_server_alone_comes_back_as_a_set_of_three(new_server, places, tmp_path):
    server, archive, new = new_server(), tmp_path / "archive", places[1]
    with server.client(w="majority") as client:
        client.t.c.insert_many([{"_id": n} for n in range(100)])
        pando("backup", uri(server), archive)
        then = newest(client)
        client.t.c.drop()
        pando("backup", uri(server), archive)
    server.kill()
    port = free_ports(3)
    said = cluster("up", "--from", archive, "--until", then, "--replicas", 3, "--dir", new, "--port", port, "--", "--cache", "16MB")
    assert "A replica set of 3 members is ready" in said
    with pymongo.MongoClient(f"mongodb://localhost:{port}/?replicaSet=rs0") as client:
        status = client.admin.command("replSetGetStatus")
        assert len(status["members"]) == 3 and status["votingMembersCount"] == 3
        assert client.t.get_collection("c", write_concern=pymongo.WriteConcern(3)).insert_one({"_id": "new"})
    for n in range(3):
        with connected(port + n, directConnection=True, readPreference="secondaryPreferred") as client:
            until("it has all", lambda c=client: c.t.c.count_documents({}) == 101)
