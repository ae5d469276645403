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
        # It comes with the version from before the move, and waits for a time after it.
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


def test_an_explanation_counts_no_orphans(cluster):
    ns = "views.explained"
    with cluster.client() as client, cluster.shards["s0"].client() as donor, cluster.shards["s1"].client() as recipient:
        spread(client, ns)
        own = known(recipient, ns)
        [incoming] = known(donor, ns)["owned"]
        move = {"ns": ns, "range": incoming, "turn": own["turn"]}
        recipient.admin.command("_pandoReceive", 1, key={"k": 1}, version=own["version"], **move)
        recipient.views.explained.insert_many([{"_id": n, "k": n} for n in range(10)])

        def explained(command):
            return client.views.command("explain", command, verbosity="executionStats")

        found = explained({"find": "explained", "filter": {}})
        assert found["executionStats"]["nReturned"] == 20
        grouped = explained({"aggregate": "explained", "pipeline": [{"$match": {"_id": {"$gte": 0}}}], "cursor": {}})
        stats = [shard.get("executionStats") or shard["stages"][0]["$cursor"]["executionStats"] for shard in grouped["shards"].values()]
        assert sum(s["nReturned"] for s in stats) == 20
        # An explained command goes where it would go by itself.
        for command in (
            {"update": "explained", "updates": [{"q": {"k": 3}, "u": {"$set": {"x": 1}}}]},
            {"delete": "explained", "deletes": [{"q": {"k": 3}, "limit": 0}]},
            {"findAndModify": "explained", "query": {"k": 3}, "remove": True},
            {"count": "explained", "query": {"k": 3}},
            {"distinct": "explained", "key": "x", "query": {"k": 3}},
        ):
            [shard] = explained(command)["queryPlanner"]["winningPlan"]["shards"]
            assert shard["shardName"] == "s0", command
        recipient.admin.command("_pandoClean", 1, **move)


def test_an_explanation_with_what_a_router_believed_before_is_refused(cluster):
    ns = "views.believed"
    with cluster.client() as client, cluster.shards["s0"].client() as donor:
        spread(client, ns)
        before = known(donor, ns)["version"]
        client.admin.command("moveChunk", ns, find={"k": 5}, to="s1")
        with pytest.raises(OperationFailure) as refused:
            donor.views.command("explain", {"find": "believed", "filter": {}}, shardVersion=before)
        assert refused.value.code == 13388
        stats = client.views.command("explain", {"find": "believed", "filter": {}}, verbosity="executionStats")["executionStats"]
        assert stats["nReturned"] == 20
