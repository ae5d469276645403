"""What a read sees of ranges that come and go between its version's comparison and its view, and of orphans that are removed
while a transaction is open. Each shard has a second member that is three seconds behind."""

import bson
import pytest
from harness import until
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from sharded_cluster import ShardedCluster

DELAY = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    late = {1: {"priority": 0, "hidden": True, "votes": 0, "secondaryDelaySecs": DELAY}}
    with ShardedCluster(tmp_path_factory.mktemp("views"), shards=2, replicas=2, settings=late) as cluster:
        with cluster.client() as client:
            client.admin.command("balancerStop")
        yield cluster


def spread(client, ns):
    """Documents with keys from 0 to 9 on the first shard, from 10 to 19 on the second."""
    db, name = ns.split(".")
    client.admin.command("enableSharding", db, primaryShard="s0")
    client.admin.command("shardCollection", ns, key={"k": 1})
    client.admin.command("split", ns, middle={"k": 10})
    client.admin.command("moveChunk", ns, find={"k": 15}, to="s1")
    client[db][name].insert_many([{"_id": n, "k": n} for n in range(20)])


def known(client, ns):
    return client.config.ownership.find_one({"_id": ns})


def test_a_read_that_waits_past_a_move_is_asked_again(cluster):
    ns = "views.waits"
    primary, late = cluster.sets["s0"]
    with cluster.client() as client, primary.client() as direct, late.client() as behind:
        spread(client, ns)
        before = known(direct, ns)
        behind = behind.get_database("views", read_preference=ReadPreference.SECONDARY_PREFERRED)
        config = behind.client.get_database("config", read_preference=ReadPreference.SECONDARY_PREFERRED)
        until("the late member knows as much", lambda: config.ownership.find_one({"_id": ns}) == before)
        client.admin.command("moveChunk", ns, find={"k": 5}, to="s1")
        time = direct.admin.command("_pandoTime")["time"]
        assert known(direct, ns)["version"] != before["version"]
        # It comes with the version of before, and waits for what is after the move.
        read = {
            "find": "waits",
            "filter": {},
            "shardVersion": before["version"],
            "readConcern": {"level": "local", "afterClusterTime": time},
        }
        with pytest.raises(OperationFailure) as refused:
            found = behind.command(bson.SON(read))["cursor"]["firstBatch"]
            pytest.fail(f"{len(found)} documents were found")
        assert refused.value.code == 13388
        assert client.views.waits.count_documents({}) == 20


def test_a_transaction_does_not_see_orphans_that_are_removed_meanwhile(cluster):
    ns = "views.orphans"
    with cluster.client() as client, cluster.shards["s0"].client() as donor, cluster.shards["s1"].client() as recipient:
        spread(client, ns)
        given, own = known(donor, ns), known(recipient, ns)
        [incoming] = given["owned"]
        move = {"ns": ns, "range": incoming, "turn": own["turn"]}
        # A move that will fail brings its documents.
        recipient.admin.command("_pandoReceive", 1, key={"k": 1}, version=own["version"], **move)
        recipient.views.orphans.insert_many([{"_id": n, "k": n} for n in range(10)])
        with client.start_session() as session:
            session.start_transaction(read_concern=ReadConcern("snapshot"))
            keys = lambda: sorted(d["k"] for d in client.views.orphans.find(session=session))  # noqa: E731
            assert keys() == list(range(20))
            assert recipient.admin.command("_pandoClean", 1, **move)["n"] == 10
            with pytest.raises(OperationFailure) as refused:
                pytest.fail(f"the transaction sees {keys()}")
            assert refused.value.code == 272 and refused.value.has_error_label("TransientTransactionError")
            session.abort_transaction()
        assert client.views.orphans.count_documents({}) == 20
