"""States that shards keep for snapshots: it is one state, however often a time is pinned, and under every
primary."""

import itertools
import time

import bson
import pytest
from harness import until
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from sharded_cluster import cluster_fixture, fail

numbers = itertools.count(1)
MAJORITY = {"w": "majority"}


cluster = cluster_fixture(shards=2)


@pytest.fixture
def coll(cluster):
    """A collection with a document on each of two shards."""
    with cluster.client() as client:
        database = client[f"sn{next(numbers)}"]
        ns = f"{database.name}.c"
        client.admin.command("enableSharding", database.name, primaryShard="s0")
        client.admin.command("shardCollection", ns, key={"_id": 1})
        client.admin.command("split", ns, middle={"_id": 10})
        client.admin.command("moveChunk", ns, find={"_id": 10}, to="s1")
        database.c.insert_many([{"_id": n * 10, "v": 0} for n in range(2)])
        yield database.c


def heal(cluster):
    for shard in cluster.shards.values():
        with shard.client() as direct:
            direct.admin.command("configureFailPoint", "failCommand", mode="off")


class Pinned:
    """A state of one shard at a time that is a little ahead of its log."""

    def __init__(self, direct, ahead_s=0):
        self.direct = direct
        now = direct.admin.command("_pandoTime", 1)["time"]
        self.at = bson.Timestamp(now.time + ahead_s, now.inc + 64)
        self.first = self.pin()

    def ask(self, **fields):
        return self.direct.admin.command("_pandoSnapshot", 1, at=self.at, writeConcern=MAJORITY, **fields)

    def pin(self):
        return self.ask()

    def include(self, *transactions):
        named = [{"session": t["session"], "number": t["number"]} for t in transactions]
        return self.ask(include=named)

    def read(self, coll, _id):
        concern = {"level": "snapshot", "atClusterTime": self.at}
        reply = self.direct[coll.database.name].command("find", "c", filter={"_id": _id}, readConcern=concern)
        return reply["cursor"]["firstBatch"][0]["v"]


def transfer(coll):
    with coll.database.client.start_session() as session, session.start_transaction():
        coll.update_one({"_id": 0}, {"$inc": {"v": -1}}, session=session)
        coll.update_one({"_id": 10}, {"$inc": {"v": 1}}, session=session)


def test_a_state_that_is_pinned_again_shows_what_it_showed(cluster, coll):
    """Routers that choose the same time do not undo each other's parts."""
    try:
        fail(cluster, "s1", failCommands=["_pandoDecide"], errorCode=91)
        transfer(coll)
        with cluster.on_shard("s1") as direct:
            state = Pinned(direct)
            assert state.first["pinned"] and len(state.first["prepared"]) == 1, state.first
            [left] = state.first["prepared"]
            # It is not known yet which of its prepared transactions it shows.
            with pytest.raises(OperationFailure) as error:
                state.read(coll, 10)
            assert error.value.code == 239
            state.include(left)
            assert state.read(coll, 10) == 1
            again = state.pin()
            assert again["pinned"] and again["prepared"] == state.first["prepared"]
            assert state.read(coll, 10) == 1
            state.include(left)
            direct[coll.database.name].other.insert_one({})
            assert state.pin()["pinned"] and state.read(coll, 10) == 1
            # Another says that it had not committed: that is not the state.
            with pytest.raises(OperationFailure):
                state.include()
            assert state.read(coll, 10) == 1
            late = Pinned(direct)
            late.include()
            assert late.read(coll, 10) == 0
    finally:
        heal(cluster)


def test_a_later_primary_has_no_other_state_of_a_time(cluster, coll):
    """Its clock may be behind the time that was pinned: it writes nothing before, and pins nothing there."""
    server = cluster.shards["s1"]
    with server.client() as direct:
        left = lambda: direct.admin.command("serverStatus")["transactions"]["currentPrepared"]  # noqa: E731
        until("nothing is prepared", lambda: left() == 0, 60)
        state = Pinned(direct, ahead_s=3)
        assert state.first["pinned"] and state.read(coll, 10) == 0
        end = direct.admin.command("_pandoTime", 1)["time"]
        # That is said once for many.
        Pinned(direct)
        assert direct.admin.command("_pandoTime", 1)["time"] == end
    server.kill()
    server.launch()
    with server.client() as direct:
        until("it leads again", lambda: is_primary(direct), 60)
        done = direct[coll.database.name].command("insert", "other", documents=[{}], writeConcern=MAJORITY)
        assert done["operationTime"] > state.at, (done, state.at)
        state.direct = direct
        assert not state.pin()["pinned"]
        with pytest.raises(OperationFailure) as error:
            state.read(coll, 10)
        assert error.value.code == 239


def is_primary(direct):
    try:
        return direct.admin.command("hello")["isWritablePrimary"]
    except PyMongoError:
        return False


@pytest.mark.parametrize("code", [91, 189, 239, 246, 11602])
def test_a_snapshot_that_cannot_be_pinned_is_tried_again_and_told(cluster, coll, code):
    def read():
        with coll.database.client.start_session() as session:
            with session.start_transaction(read_concern=ReadConcern("snapshot")):
                return coll.find_one({"_id": 10}, session=session)["v"]

    try:
        fail(cluster, "s1", mode={"times": 1}, failCommands=["_pandoSnapshot"], errorCode=code)
        assert read() == 0
        if code in (91, 189, 11602):
            # The shard is waited for: another member may be its primary soon.
            return
        fail(cluster, "s1", failCommands=["_pandoSnapshot"], errorCode=code)
        with pytest.raises(OperationFailure) as error:
            read()
        assert error.value.code == code and error.value.has_error_label("TransientTransactionError")
    finally:
        heal(cluster)


def test_unused_databases_are_dropped(cluster):
    """It still knows of the database that had the name before."""
    with cluster.client() as client:
        for n in range(6):
            client.admin.command("shardCollection", "dropped.c", key={"_id": 1})
            client.dropped.c.insert_one({"_id": n})
            assert client.dropped.command("dropDatabase")["ok"] == 1
            assert client.config.databases.find_one({"_id": "dropped"}) is None
            assert client.dropped.c.count_documents({}) == 0


def test_a_client_does_not_set_the_clock(cluster, coll):
    """Nothing proves the time that a client names: it moves the logs no further than clocks differ."""
    now = int(time.time())
    told = {"clusterTime": bson.Timestamp(now + 3000, 1), "signature": {"hash": bson.Binary(bytes(20)), "keyId": bson.Int64(0)}}
    with cluster.routers[0].wire() as wire:
        insert = {"insert": "c", "documents": [{"_id": 5}], "$db": coll.database.name}
        done = wire.command({**insert, "$clusterTime": told})
        assert done["ok"] == 1 and done["operationTime"].time < now + 600, done
        soon = {**told, "clusterTime": bson.Timestamp(int(time.time()) + 5, 1)}
        done = wire.command({**insert, "documents": [{"_id": 6}], "$clusterTime": soon})
        assert done["operationTime"] > soon["clusterTime"], done
