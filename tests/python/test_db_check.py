"""dbCheck: what the members of a set have is compared while they work, and stands in the health log."""

import signal
import threading
import time

import pytest
from harness import Server, refuses, until
from pymongo import WriteConcern
from pymongo.errors import NotPrimaryError
from replica_set import ReplicaSet

BOTH = "dataConsistencyAndMissingIndexKeysCheck"


def health(client, **query):
    return list(client.local["system.healthlog"].find(query))


def ended(client, runs=1):
    until("the checks end", lambda: len(health(client, operation="dbCheckStop")) == runs, 60)


@pytest.fixture
def fast(new_server):
    with new_server("--setParameter", "maxDbCheckMBperSec=0", "--setParameter", "dbCheckHealthLogEveryNBatches=1").client() as client:
        yield client


class TestOneServer:
    def test_batches(self, fast):
        coll = fast.d.c
        coll.create_index("a")
        coll.insert_many([{"_id": i, "a": i % 7} for i in range(250)])
        assert fast.d.command("dbCheck", "c", validateMode=BOTH, maxDocsPerBatch=100)["ok"] == 1
        ended(fast)
        start, *batches, stop = health(fast)
        assert (start["operation"], stop["operation"]) == ("dbCheckStart", "dbCheckStop")
        assert [b["data"]["count"] for b in batches] == [100, 100, 50]
        assert [b["data"]["batchEnd"] for b in batches[:2]] == [{"_id": 99}, {"_id": 199}]
        for entry in batches:
            assert (entry["severity"], entry["scope"], entry["msg"]) == ("info", "cluster", "dbCheck batch consistent")
            assert entry["namespace"] == "d.c" and entry["operation"] == "dbCheckBatch"
            assert entry["data"]["md5"]["expected"] == entry["data"]["md5"]["found"]
            assert entry["data"]["dbCheckParameters"]["validateMode"] == BOTH
        assert fast.local.command("collStats", "system.healthlog")["capped"]

    def test_entries_of_an_index(self, fast):
        fast.d.c.create_index("a")
        fast.d.c.insert_many([{"a": [i, i + 1]} for i in range(60)])
        fast.d.command("dbCheck", "c", validateMode="extraIndexKeysCheck", secondaryIndex="a_1", maxDocsPerBatch=50)
        ended(fast)
        assert [b["data"]["count"] for b in health(fast, operation="dbCheckBatch")] == [50, 50, 20]
        fast.d.command("dbCheck", "c", validateMode="extraIndexKeysCheck", secondaryIndex="b_1")
        ended(fast, 2)
        [warning] = health(fast, severity="warning")
        assert warning["msg"] == "abandoning dbCheck extra index keys check because index no longer exists"

    def test_bounds(self, fast):
        fast.d.c.insert_many([{"_id": i} for i in range(100)])
        fast.d.command("dbCheck", "c", start={"_id": 10}, end={"_id": 50})
        ended(fast)
        fast.d.command("dbCheck", "c", maxCount=7)
        ended(fast, 2)
        assert [b["data"]["count"] for b in health(fast, operation="dbCheckBatch")] == [40, 7]

    def test_a_database(self, fast):
        fast.d.a.insert_one({})
        fast.d.b.insert_one({"_id": "x" * 40})
        fast.d.create_collection("v", viewOn="a", pipeline=[])
        fast.d.command("dbCheck", 1)
        ended(fast)
        batches = health(fast, operation="dbCheckBatch")
        assert sorted(b["namespace"] for b in batches) == ["d.a", "d.b", "d.system.views"]
        assert [b["data"]["count"] for b in batches] == [1, 1, 1]

    def test_what_is_refused(self, fast):
        fast.d.c.insert_one({})
        fast.d.create_collection("v", viewOn="c", pipeline=[])
        ask = fast.d.command
        for code, name, more in [
            (26, "none", {}), (166, "v", {}), (51024, "c", {"maxDocsPerBatch": 0}), (51024, "c", {"maxDocsPerBatch": 10_001}), (51024, "c", {"maxBatchTimeMillis": 9}),
            (72, "c", {"validateMode": "extraIndexKeysCheck"}), (72, "c", {"secondaryIndex": "a"}), (72, "c", {"skipLookupForExtraKeys": True}), (2, "c", {"validateMode": "all"}),
            (6769500, "c", {"snapshotRead": False}), (40415, "c", {"nothing": 1}), (14, [], {}), (6769501, 1, {"snapshotRead": False}),
        ]:
            with refuses(code):
                ask("dbCheck", name, **more)
        fast.local.c.insert_one({})
        with refuses(40619):
            fast.local.command("dbCheck", "c")
        with refuses(73):
            fast.local.command("dbCheck", 1)


def test_it_rests_is_shown_and_ended(new_server):
    """At 1 MB a second 20 MB take long: killOp ends it, and those that waited go on; more than five do not wait."""
    with new_server().client() as client:
        client.d.c.insert_many([{"pad": "x" * 100_000} for _ in range(200)])
        client.d.small.insert_one({})
        client.d.command("dbCheck", "c", maxDocsPerBatch=20)

        def shown():
            return [o for o in client.admin.command("currentOp")["inprog"] if o["desc"] == "dbCheck"]

        until("it is shown", shown)
        for _ in range(5):
            client.d.command("dbCheck", "small")
        [queue] = health(client, msg="too many dbcheck runs in queue")
        assert len(queue["data"]["dbCheckQueue"]) == 5
        client.admin.command("killOp", op=shown()[0]["opid"])
        ended(client, 5)
        [failed] = health(client, msg="dbCheck failed")
        assert "Interrupted" in failed["data"]["error"]


def test_members_agree_while_they_work(tmp_path):
    options = ("--setParameter", "maxDbCheckMBperSec=0", "--setParameter", "dbCheckHealthLogEveryNBatches=1")
    with ReplicaSet(tmp_path, options=options) as members:
        members.initiate()
        with members.client() as client:
            coll = client.d.c
            coll.create_index("n")
            coll.insert_many([{"_id": i, "n": 0} for i in range(2000)])
            stop = threading.Event()

            def write():
                while not stop.is_set():
                    coll.update_many({}, {"$inc": {"n": 1}})

            writers = [threading.Thread(target=write) for _ in range(2)]
            [w.start() for w in writers]
            try:
                client.d.command("dbCheck", "c", validateMode=BOTH, maxDocsPerBatch=200, maxBatchTimeMillis=20_000)
                ended(client)
            finally:
                stop.set()
                [w.join() for w in writers]
        found = []
        for member in members.members:
            with member.client() as client:
                until("it has read all batches", lambda c=client: len(health(c, operation="dbCheckBatch")) == 10)
                batches = health(client, operation="dbCheckBatch")
                assert {b["severity"] for b in batches} == {"info"}, batches
                assert {b["host"] for b in batches} == {member.address}
                found.append(sorted(b["data"]["md5"]["found"] for b in batches))
        assert found[0] == found[1] == found[2]
        with members.secondaries()[0].client() as secondary, pytest.raises(NotPrimaryError):
            secondary.d.command("dbCheck", "c")


def test_a_member_that_stands_still_for_a_while_reads_all_batches(tmp_path):
    """A member keeps four states: the primary does not run further ahead, though its majority would let it."""
    options = ("--setParameter", "maxDbCheckMBperSec=0", "--setParameter", "dbCheckHealthLogEveryNBatches=1", "--setParameter", "writePeriodicNoops=false")
    with ReplicaSet(tmp_path, options=options) as members:
        members.initiate()
        with members.client() as client:
            coll = client.d.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=30_000))
            coll.insert_many([{"_id": i} for i in range(2000)])
            slow = members.secondaries()[0]
            slow.process.send_signal(signal.SIGSTOP)
            try:
                client.d.command("dbCheck", "c", maxDocsPerBatch=200)
                until("it has begun", lambda: len(health(client, operation="dbCheckBatch")) >= 4)
                # A run that does not wait is through in less.
                time.sleep(2)
            finally:
                slow.process.send_signal(signal.SIGCONT)
            ended(client)
            assert not health(client, msg="dbCheck: members are missing")
        with slow.client() as client:
            assert len(health(client, operation="dbCheckBatch")) == 10


def alone(member, change):
    """Starts a stopped member as a standalone server on its directory. What it writes then takes, in its log, the place of what the
    primary writes meanwhile: nothing tells the two apart, since both are of one term."""
    with Server(member.path, "--standalone") as server:
        with server.client() as client:
            change(client)
        assert server.stop() == 0


class TestMembersThatDiffer:
    OPTIONS = ("--setParameter", "maxDbCheckMBperSec=0", "--setParameter", "writePeriodicNoops=false", "--setParameter", "ttlMonitorEnabled=false")

    @pytest.fixture
    def members(self, tmp_path):
        """A primary, a secondary that agrees with it, and one whose document 123 is another."""
        with ReplicaSet(tmp_path, options=self.OPTIONS) as members:
            members.initiate()
            with members.client() as client:
                coll = client.d.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=30_000))
                coll.create_index("n")
                coll.insert_many([{"_id": i, "n": i} for i in range(300)])
                other = client.d.get_collection("other", write_concern=WriteConcern(w=3, wtimeout=30_000))
                other.insert_one({"_id": "first"})
                agrees, differs = members.secondaries()
                assert differs.stop() == 0
                alone(differs, lambda c: c.d.c.update_one({"_id": 123}, {"$set": {"n": -1}}))
                for i in range(20):
                    client.d.other.insert_one({"_id": i})
                differs.start()
                other.insert_one({"_id": "last"})
            yield members, agrees, differs

    def test_the_member_is_named(self, members):
        members, agrees, differs = members
        with differs.client() as client:
            assert client.d.c.find_one({"_id": 123})["n"] == -1
        with members.client() as client:
            uuid = client.d.command("listCollections", filter={"name": "c"})["cursor"]["firstBatch"][0]["info"]["uuid"]
            client.d.command("dbCheck", "c", validateMode=BOTH, maxDocsPerBatch=100)
            ended(client)
            # On the primary all is well: only batches that are to be logged anyhow stand there.
            assert health(client, severity={"$ne": "info"}) == []
        with differs.client() as client:
            [wrong] = until("it finds the batch", lambda: health(client, severity="error"))
        assert (wrong["operation"], wrong["msg"], wrong["scope"]) == ("dbCheckBatch", "dbCheck batch inconsistent", "cluster")
        assert (wrong["namespace"], wrong["collectionUUID"], wrong["host"]) == ("d.c", uuid, differs.address)
        data = wrong["data"]
        assert data["success"] is True and data["count"] == 100
        assert (data["batchStart"], data["batchEnd"]) == ({"_id": 99}, {"_id": 199})
        assert data["md5"]["expected"] != data["md5"]["found"]
        assert data["dbCheckParameters"]["validateMode"] == BOTH
        with agrees.client() as client:
            assert health(client, severity={"$ne": "info"}) == []

    def test_entries_of_an_index_and_other_collections(self, members):
        members, agrees, differs = members
        with members.client() as client:
            client.d.command("dbCheck", "c", validateMode="extraIndexKeysCheck", secondaryIndex="n_1")
            ended(client)
            client.d.command("dbCheck", 1)
            ended(client, 2)
        with differs.client() as client:
            until("it finds all", lambda: len(health(client, severity="error")) >= 3)
            wrong = health(client, severity="error")
        # The index, then its collection; of the other one it lacks the document whose place the own write took.
        assert [w["namespace"] for w in wrong] == ["d.c", "d.c", "d.other"], wrong
        assert [w["data"]["count"] for w in wrong] == [300, 300, 21]
        with agrees.client() as client:
            assert health(client, severity={"$ne": "info"}) == []
