"""A shard's primary stands still: its process is there, and takes messages. What waits for it ends in its own time, or goes to
the next primary."""

import os
import signal
import threading
import time

import pytest
from harness import until
from pymongo.errors import ExecutionTimeout, PyMongoError
from sharded_cluster import ShardedCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ShardedCluster(tmp_path_factory.mktemp("cluster"), shards=1, replicas=3) as running:
        with running.on_shard("s0") as direct:
            config = direct.admin.command("replSetGetConfig")["config"]
            settings = {**config["settings"], "electionTimeoutMillis": 2000}
            direct.admin.command("replSetReconfig", {**config, "version": config["version"] + 1, "settings": settings})
        for server in running.sets["s0"]:
            until("it has heard of it", lambda s=server: election_timeout(s) == 2000)
        # A member that has been added votes once it has caught up. With two voters no other member can
        # be elected.
        for server in running.sets["s0"]:
            until("it knows three voters", lambda s=server: voters(s) == 3, 60)
        yield running


def voters(server):
    with server.client() as direct:
        return direct.admin.command("replSetGetStatus")["votingMembersCount"]


def election_timeout(server):
    with server.client() as direct:
        return direct.admin.command("replSetGetConfig")["config"]["settings"]["electionTimeoutMillis"]


def agreed_primary(servers):
    """The primary, where all members say the same one."""
    told = set()
    for server in servers:
        with server.client(serverSelectionTimeoutMS=1000, socketTimeoutMS=2000) as direct:
            hello = direct.admin.command("hello")
            told.add((hello.get("primary"), direct.admin.command("replSetGetStatus")["term"]))
    names = {name for name, _ in told}
    return next(s for s in servers if s.address in names) if len(told) == 1 and None not in names else None


def primary_of(servers):
    for server in servers:
        try:
            with server.client(serverSelectionTimeoutMS=1000, socketTimeoutMS=2000) as direct:
                if direct.admin.command("hello")["isWritablePrimary"]:
                    return server
        except PyMongoError:
            pass
    return None


class InThread(threading.Thread):
    """One operation; `outcome` is what it has given, or its error."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self.operation, self.outcome = run, None
        self.start()

    def run(self):
        try:
            self.outcome = self.operation()
        except PyMongoError as e:
            self.outcome = e


def test_what_waits_for_a_stopped_primary_goes_to_the_next(cluster):
    options = dict(retryReads=False, maxPoolSize=20)
    with cluster.client(**options) as client, cluster.client(retryWrites=False, **options) as once:
        coll = client.st.c
        coll.insert_one({"_id": 0})
        assert once.st.c.find_one() == {"_id": 0}
        old = until("there is a primary", lambda: agreed_primary(cluster.sets["s0"]), 60)
        old.stand_still()
        try:
            began = time.monotonic()
            # Before anybody else is primary.
            with pytest.raises(ExecutionTimeout):
                coll.find_one({}, max_time_ms=700)
            assert time.monotonic() - began < 5
            reads = [InThread(lambda: coll.find_one({"_id": 0})) for _ in range(3)]
            counts = InThread(lambda: coll.count_documents({"_id": 0}))
            numbered = InThread(lambda: coll.insert_one({"_id": 1}).inserted_id)
            single = InThread(lambda: once.st.c.insert_one({"_id": 2}).inserted_id)
            for asked in [*reads, counts, numbered, single]:
                asked.join(60)
                assert not asked.is_alive(), "it waits until the process goes on"
            assert [asked.outcome for asked in reads] == [{"_id": 0}] * 3
            assert counts.outcome == 1 and numbered.outcome == 1
            # It may have been done: that is for the client to find out.
            assert single.outcome == 2 or isinstance(single.outcome, PyMongoError), single.outcome
            rest = [s for s in cluster.sets["s0"] if s is not old]
            assert primary_of(rest)
        finally:
            os.kill(old.process.pid, signal.SIGCONT)
        until("the old one follows", lambda: is_secondary(old), 60)
        assert {d["_id"] for d in coll.find()} >= {0, 1}


def split_over_two(client, cluster):
    """A collection of which each shard has a half."""
    client.admin.command("enableSharding", "two", primaryShard="s0")
    client.admin.command("shardCollection", "two.c", key={"k": 1})
    client.admin.command("split", "two.c", middle={"k": 50})
    client.admin.command("moveChunk", "two.c", find={"k": 50}, to="s1", _waitForDelete=True)
    client.two.c.insert_many([{"_id": i, "k": i, "n": i} for i in range(100)])
    client.two.other.insert_many([{"_id": i} for i in range(3)])


STEPS = {
    "a find of all shards": {"find": "c", "filter": {}, "sort": {"n": 1}},
    "a snapshot": {"find": "c", "filter": {}, "readConcern": {"level": "snapshot"}},
    "parts that are merged": {"aggregate": "c", "pipeline": [{"$group": {"_id": "$n"}}, {"$sort": {"_id": 1}}], "cursor": {}},
    "a join": {"aggregate": "other", "pipeline": [{"$lookup": {"from": "c", "localField": "_id", "foreignField": "n", "as": "x"}}], "cursor": {}},
    "what is written to another collection": {"aggregate": "c", "pipeline": [{"$match": {"k": {"$gt": 40}}}, {"$merge": "into"}], "cursor": {}},
    "distinct": {"distinct": "c", "key": "n"},
    "count": {"count": "c", "query": {"n": {"$gt": 3}}},
    "an update of all": {"update": "c", "updates": [{"q": {}, "u": {"$inc": {"x": 1}}, "multi": True}]},
    "an update without the key": {"update": "c", "updates": [{"q": {"n": 99}, "u": {"$inc": {"x": 1}}}]},
    "a delete": {"delete": "c", "deletes": [{"q": {"n": 70}, "limit": 1}]},
    "a list": {"insert": "c", "documents": [{"_id": f"x{i}", "k": i} for i in range(30, 70)]},
    "many": {"bulkWrite": 1, "ops": [{"insert": 0, "document": {"k": k}} for k in (1, 99)], "nsInfo": [{"ns": "two.c"}]},
    "explain": {"explain": {"find": "c", "filter": {}}},
    "a map-reduce": {"mapReduce": "c", "map": "function() { emit(this.n, 1) }", "reduce": "function(k, v) { return 1 }", "out": {"inline": 1}},
    "collections": {"listIndexes": "c"},
}


def test_every_operation_ends_at_its_time(tmp_path):
    """The one member of a shard stands still: there is no other. `maxTimeMS` holds for all steps of an operation together."""
    with ShardedCluster(tmp_path, shards=2) as cluster, cluster.client(retryReads=False, retryWrites=False) as client:
        split_over_two(client, cluster)
        stopped = cluster.sets["s1"][0]
        stopped.stand_still()
        try:
            outcomes = {name: ended_after(client, command) for name, command in STEPS.items()}
        finally:
            os.kill(stopped.process.pid, signal.SIGCONT)
        # Two shards and their configuration are asked in several steps; a second is what a busy machine may take.
        late = {name: o for name, o in outcomes.items() if o[1] > LIMIT + 1}
        assert not late, late
        reached = {"collections"}
        wrong = {name: o for name, o in outcomes.items() if name not in reached and o[0] != 50}
        assert not wrong, wrong
        until("it is back", lambda: client.two.c.count_documents({"k": {"$gte": 50}}) >= 49, 60)


LIMIT = 1.0


def ended_after(client, command):
    began = time.monotonic()
    db = client.admin if "bulkWrite" in command else client.two
    try:
        code = db.command({**command, "maxTimeMS": int(LIMIT * 1000)}).get("ok")
    except PyMongoError as e:
        code = getattr(e, "code", None) or repr(e)
    return code, time.monotonic() - began


def is_secondary(server):
    try:
        with server.client(serverSelectionTimeoutMS=1000, socketTimeoutMS=2000) as direct:
            return direct.admin.command("hello").get("secondary")
    except PyMongoError:
        return False
