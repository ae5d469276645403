"""Many sharded collections: a round of the balancer asks for all of them at once, and a database with them is dropped whole. What a move
costs the configuration set, whatever the number of collections and shards."""

import pytest
from harness import until
from sharded_cluster import ShardedCluster

COLLECTIONS = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ShardedCluster(tmp_path_factory.mktemp("many")) as running:
        yield running


def counts(cluster):
    """How often each shard was asked for the sizes of collections, and for the statistics of one."""
    out = {"_pandoSizes": 0, "collStats": 0}
    for shard in cluster.shards.values():
        with shard.client() as client:
            commands = client.admin.command("serverStatus")["metrics"]["commands"]
        for name in out:
            out[name] += commands.get(name, {}).get("total", 0)
    return out


def test_a_round_asks_each_shard_once(cluster):
    with cluster.client() as client:
        for n in range(COLLECTIONS):
            client.admin.command("shardCollection", f"even.c{n}", key={"_id": "hashed"})
        before = counts(cluster)
        # The second begins after all collections were there.
        until("two rounds", lambda: counts(cluster)["_pandoSizes"] >= before["_pandoSizes"] + 2 * len(cluster.shards), 60)
        assert counts(cluster)["collStats"] == before["collStats"]


def test_a_database_is_dropped_with_all_of_them(cluster):
    with cluster.client() as client:
        for n in range(COLLECTIONS):
            client.admin.command("shardCollection", f"gone.c{n}", key={"_id": "hashed"})
            client.gone[f"c{n}"].insert_many([{"_id": i} for i in range(10)])
        client.drop_database("gone")
        assert client.config.collections.count_documents({"_id": {"$regex": r"^gone\."}}) == 0
        assert "gone" not in client.list_database_names()
    for shard in cluster.shards.values():
        with shard.client() as direct:
            assert direct.gone.list_collection_names() == []


def test_what_a_move_asks_the_configuration_set(cluster):
    """docs/scale-out.md says how many reads and writes it takes."""

    def counts(client):
        commands = client.admin.command("serverStatus")["metrics"]["commands"]
        asked = ("find", "_pandoChange", "findAndModify", "insert", "update")
        return {name: commands.get(name, {}).get("total", 0) for name in asked}

    moves = 10
    with cluster.client() as client, cluster.config.client() as config:
        client.admin.command("balancerStop")
        client.admin.command("shardCollection", "moved.c", key={"k": 1})
        for n in range(1, moves + 2):
            client.admin.command("split", "moved.c", middle={"k": n})
        donor = client.config.databases.find_one({"_id": "moved"})["primary"]
        recipient = next(name for name in cluster.shards if name != donor)
        before = counts(config)
        for n in range(1, moves + 1):
            client.admin.command("moveChunk", "moved.c", find={"k": n}, to=recipient)
        each = {name: (after - before[name]) / moves for name, after in counts(config).items()}
        client.admin.command("balancerStart")
    assert sum(each.values()) - each["find"] <= 9, each
    assert each["find"] <= 20, each


def test_a_shard_of_an_older_release_is_balanced(cluster):
    """It does not know the question for many collections, so each is looked at by itself."""
    older = {"failCommands": ["_pandoSizes"], "failInternalCommands": True, "errorCode": 59}
    with cluster.client() as client, cluster.on_shard("s0") as direct:
        client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 1}}, upsert=True)
        direct.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=older)
        try:
            client.admin.command("shardCollection", "old.c", key={"_id": 1})
            for begin in range(0, 800, 100):
                client.old.c.insert_many([{"_id": n, "fill": "x" * 10_000} for n in range(begin, begin + 100)])
            uuid = client.config.collections.find_one({"_id": "old.c"})["uuid"]
            placed = lambda: {c["shard"] for c in client.config.chunks.find({"uuid": uuid})}
            until("both shards have a part", lambda: len(placed()) == 2, 60)
        finally:
            direct.admin.command("configureFailPoint", "failCommand", mode="off")
        assert client.old.c.count_documents({}) == 800
