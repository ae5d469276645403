"""A router as drivers' and shells' only way in: fail points, exhaust cursors, sessions, stages that tell of the cluster."""

import threading
import time

import bson
import pymongo
import pytest
from harness import expect_error, refuses, until
from pymongo import CursorType
from pymongo.errors import AutoReconnect, OperationFailure
from sharded_cluster import client_fixture, cluster_fixture


cluster = cluster_fixture()
client = client_fixture()


@pytest.fixture(scope="module")
def coll(client):
    admin = client.admin
    admin.command("shardCollection", "d.c", key={"k": 1})
    admin.command("split", "d.c", middle={"k": 50})
    admin.command("moveChunk", "d.c", find={"k": 10}, to="s0")
    admin.command("moveChunk", "d.c", find={"k": 60}, to="s1")
    client.d.c.insert_many([{"_id": n, "k": n} for n in range(100)])
    return client.d.c


def fails(client, times=1, **data):
    client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)


def test_a_fail_point_of_the_router_acts_at_the_router(cluster, client, coll):
    fails(client, failCommands=["find"], errorCode=8)
    with refuses(8, containing="failCommand"):
        coll.find_one({"k": 1})
    assert coll.find_one({"k": 1}) is not None
    # Drivers send what fails so again.
    fails(client, failCommands=["insert"], closeConnection=True)
    coll.insert_one({"_id": 1000, "k": 1000})
    fails(client, failCommands=["delete"], writeConcernError={"code": 100, "errmsg": "not there"})
    with pytest.raises(pymongo.errors.WriteConcernError) as failure:
        coll.delete_one({"k": 1000})
    assert failure.value.code == 100 and coll.find_one({"k": 1000}) is None
    with cluster.client(retryReads=False) as once:
        fails(client, failCommands=["aggregate"], closeConnection=True)
        with pytest.raises(AutoReconnect):
            list(once.d.c.aggregate([{"$match": {}}]))
    # A shard's own fail point is the shard's.
    with cluster.on_shard("s0") as direct:
        fails(direct, failCommands=["count"], errorCode=9)
        with refuses(9):
            client.d.command("count", "c")
    client.admin.command("configureFailPoint", "failCommand", mode="off")


def test_exhaust_cursors_are_streamed(cluster, coll):
    with cluster.routers[0].wire() as wire:
        opened = wire.command({"find": "c", "batchSize": 10, "$db": "d"})
        more = {"getMore": bson.Int64(opened["cursor"]["id"]), "collection": "c", "batchSize": 30, "$db": "d"}
        wire.send_body(bson.encode(more), 1 << 16)
        seen = len(opened["cursor"]["firstBatch"])
        for _ in range(10):
            _, _, payload = wire.receive()
            reply = bson.decode(payload[5:])
            seen += len(reply["cursor"]["nextBatch"])
            if not payload[0] & 2:
                break
        assert seen == 100 and reply["cursor"]["id"] == 0
        wire.ping()
    assert len(list(coll.find({}, cursor_type=CursorType.EXHAUST, batch_size=7))) == 100


def test_what_cannot_be_a_statement_of_a_transaction(client, coll):
    db = client.d
    for refused in (
        lambda s: client.drop_database("d", session=s),
        lambda s: coll.drop(session=s),
        lambda s: db.command("collStats", "c", session=s),
        lambda s: db.command("count", "c", session=s),
        lambda s: client.admin.command("listShards", session=s),
        lambda s: list(coll.aggregate([{"$out": "o"}], session=s)),
    ):
        with client.start_session() as session:
            session.start_transaction()
            with refuses(263):
                refused(session)
            session.abort_transaction()
    assert coll.count_documents({}) == 100


def test_end_sessions_reaches_the_shards(cluster, client, coll):
    def open_on_shards():
        return [cluster_open(server) for server in cluster.shards.values()]

    def cluster_open(server):
        with server.client() as direct:
            return direct.admin.command("serverStatus")["transactions"]["currentOpen"]

    lsid = {"id": bson.Binary(b"s" * 16, 4)}
    with cluster.routers[0].wire() as wire:
        for n, (at, start) in enumerate([(10, {"startTransaction": True}), (60, {})]):
            statement = {"insert": "c", "documents": [{"_id": 3000 + n, "k": at}], "$db": "d", "lsid": lsid, "txnNumber": bson.Int64(1), "autocommit": False, **start}
            assert wire.command(statement)["ok"] == 1
        assert open_on_shards() == [1, 1]
        assert wire.command({"endSessions": [lsid], "$db": "admin"})["ok"] == 1
        until("no transaction is open", lambda: open_on_shards() == [0, 0])
        commit = {"commitTransaction": 1, "$db": "admin", "lsid": lsid, "txnNumber": bson.Int64(1), "autocommit": False}
        expect_error(wire.command(commit), 251)
    assert coll.count_documents({"_id": {"$gte": 3000}}) == 0


def test_streams_that_wait_leave_room_for_others(cluster, client):
    """More streams wait than the router has threads."""
    many, ns = 300, {"$db": "waits", "collection": "c"}
    client.admin.command("shardCollection", "waits.c", key={"k": 1})
    wires = [cluster.routers[0].wire(timeout_s=60) for _ in range(many)]
    try:
        for wire in wires:
            opened = wire.command({"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "waits"})
            wire.send_body(bson.encode({"getMore": bson.Int64(opened["cursor"]["id"]), **ns, "maxTimeMS": 50_000}))
        began = time.monotonic()
        for n in range(20):
            client.waits.other.insert_one({"_id": n})
        assert client.waits.other.count_documents({}) == 20
        assert time.monotonic() - began < 10
        client.waits.c.insert_one({"_id": 1, "k": 1})
        for wire in wires:
            (event,) = wire.receive_msg()["cursor"]["nextBatch"]
            assert event["documentKey"] == {"k": 1, "_id": 1}
        # One that sees nothing answers at its time.
        wire = wires[-1]
        wire.send_body(bson.encode({"getMore": bson.Int64(opened["cursor"]["id"]), **ns, "maxTimeMS": 300}))
        assert wire.receive_msg()["cursor"]["nextBatch"] == []
    finally:
        for wire in wires:
            wire.close()
        client.drop_database("waits")


def test_sessions_are_ended_on_all_shards(client, coll):
    with client.start_session() as session:
        session.start_transaction()
        coll.insert_one({"_id": 2000, "k": 60}, session=session)
        client.admin.command("killAllSessions", [])
        with pytest.raises(OperationFailure) as failure:
            coll.insert_one({"_id": 2001, "k": 60}, session=session)
        assert failure.value.code == 251
    assert coll.count_documents({"_id": {"$gte": 2000}}) == 0


def test_stages_that_tell_of_the_cluster(client, coll):
    stats = list(coll.aggregate([{"$collStats": {"storageStats": {}}}]))
    assert {d["shard"]: d["storageStats"]["count"] for d in stats} == {"s0": 50, "s1": 50}
    assert {d["shard"] for d in coll.aggregate([{"$indexStats": {}}])} == {"s0", "s1"}
    [distribution] = client.admin.aggregate([{"$shardedDataDistribution": {}}])
    assert distribution["ns"] == "d.c" and sum(s["numOwnedDocuments"] for s in distribution["shards"]) == 100
    with refuses(73):
        list(client.d.aggregate([{"$shardedDataDistribution": {}}]))
    listed = list(client.d.aggregate([{"$listClusterCatalog": {"shards": True}}]))
    assert [(d["ns"], d["sharded"], sorted(d["shards"])) for d in listed] == [("d.c", True, ["s0", "s1"])]


def test_moves_can_be_forbidden(client, coll):
    client.admin.command("setAllowMigrations", "d.c", allowMigrations=False)
    with refuses(117):
        client.admin.command("moveChunk", "d.c", find={"k": 10}, to="s1")
    client.admin.command("setAllowMigrations", "d.c", allowMigrations=True)
    client.admin.command("moveChunk", "d.c", find={"k": 10}, to="s1")
    client.admin.command("moveChunk", "d.c", find={"k": 10}, to="s0")
    found = client.admin.command("checkMetadataConsistency")
    assert found["cursor"]["firstBatch"] == []


def test_metadata_that_is_not_consistent_is_told(cluster, client, coll):
    with cluster.on_shard("s1") as direct:
        direct.d.c.drop_index("k_1")
    found = client.d.command("checkMetadataConsistency", "c")["cursor"]["firstBatch"]
    assert [(d["type"], d["details"]["shard"]) for d in found] == [("MissingShardKeyIndex", "s1")]
    coll.create_index("k")
    assert client.d.command("checkMetadataConsistency")["cursor"]["firstBatch"] == []


def test_operations_of_the_cluster_are_ended(client, coll):
    ended = []

    def sleep():
        try:
            list(coll.find({"$where": "sleep(20000) || true", "k": 60}))
        except OperationFailure as failure:
            ended.append(failure.code)

    thread = threading.Thread(target=sleep)
    thread.start()

    def running():
        found = client.admin.aggregate([{"$currentOp": {"allUsers": True}}, {"$match": {"command.find": "c"}}])
        return [o["opid"] for o in found if "sleep" in str(o["command"])]

    [opid] = until("it runs", running, 20)
    assert opid.startswith("s1:")
    client.admin.command("killOp", op=opid)
    thread.join(30)
    assert ended == [11601]


def test_messages_that_make_no_sense_for_a_router(cluster):
    with cluster.routers[0].wire() as wire:
        expect_error(wire.command({"find": "c", "$db": "local"}), 73)
        expect_error(wire.command({"noSuchCommand": 1, "$db": "d"}), 59)
        wire.ping()
