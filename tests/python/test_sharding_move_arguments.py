"""What moves of ranges are told by their arguments and by the balancer's settings. Each shard has two members, of which
one votes: a majority is fulfilled while the other stands still."""

import itertools

import pytest
from harness import refuses
from sharded_cluster import at_rest
from test_sharding import shard

numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    silent = {1: {"priority": 0, "votes": 0}}
    with at_rest(tmp_path_factory.mktemp("arguments"), replicas=2, settings=silent) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster):
    with cluster.client() as connected:
        yield connected


@pytest.fixture
def coll(client):
    """100 documents; those from 50 on are on another shard than the others."""
    database = client[f"arguments{next(numbers)}"]
    made = shard(database, "c", {"k": 1}, at=[50])
    made.insert_many([{"_id": n, "k": n} for n in range(100)])
    yield made
    client.drop_database(database.name)


def owner(coll, key):
    config = coll.database.client.config
    uuid = config.collections.find_one({"_id": coll.full_name})["uuid"]
    [chunk] = [c for c in config.chunks.find({"uuid": uuid}) if c["min"]["k"] == key]
    return chunk["shard"]


def other(shard):
    return "s1" if shard == "s0" else "s0"


def move(coll, **arguments):
    """Moves the documents from 50 on to the other shard."""
    to = other(owner(coll, 50))
    coll.database.client.admin.command("moveChunk", coll.full_name, find={"k": 50}, to=to, **arguments)
    return to


def test_what_a_deposed_primary_has_not_kept_fails_the_move(cluster, coll):
    """It says so in the reply to the documents that it was sent: the next primary may not have them."""
    before = owner(coll, 50)
    deposed = {"code": 189, "errmsg": "Primary stepped down while waiting for replication"}
    with cluster.on_shard(other(before)) as direct:
        point = {"configureFailPoint": "failCommand", "mode": {"times": 1}}
        data = {"failCommands": ["insert"], "failInternalCommands": True, "writeConcernError": deposed}
        direct.admin.command({**point, "data": data})
        try:
            with refuses(6):
                move(coll)
        finally:
            direct.admin.command({**point, "mode": "off"})
    assert owner(coll, 50) == before and coll.count_documents({}) == 100
    move(coll)
    assert coll.count_documents({}) == 100
