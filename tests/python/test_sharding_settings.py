"""Settings of the whole cluster: at every router, on every shard, kept by the configuration set."""

import pymongo
import pytest
from bson import Timestamp
from harness import BINARY, Server, refuses, until
from pymongo import WriteConcern
from pymongo.read_concern import ReadConcern
from sharded_cluster import ShardedCluster, answers, initiate, member, shard
from test_sharding_login import ROOT, key_file

SOON = ("--setParameter", "clusterServerParameterRefreshIntervalSecs=1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ShardedCluster(tmp_path_factory.mktemp("settings"), routers=2, router_options=SOON) as running:
        with running.client() as client:
            client.admin.command("balancerStop")
        yield running


@pytest.fixture
def admin(cluster):
    with cluster.client() as client:
        yield client.admin


@pytest.fixture
def second(cluster):
    """A client of the other router, which hears of changes within a second or so."""
    with cluster.client(1) as client:
        yield client


@pytest.fixture
def unblocked(admin):
    yield
    admin.command("setUserWriteBlockMode", 1, **{"global": False})


def on_each_shard(cluster, see):
    found = []
    for name in cluster.shards:
        with cluster.on_shard(name) as client:
            found.append(see(client))
    return found


def version(client):
    shown = client.admin.command("getParameter", 1, featureCompatibilityVersion=1)
    return shown["featureCompatibilityVersion"]["version"]


def test_feature_compatibility_version(cluster, admin, second):
    with refuses(7369100):
        admin.command("setFeatureCompatibilityVersion", "8.2")
    with refuses(4926900):
        admin.command("setFeatureCompatibilityVersion", "6.0", confirm=True)
    admin.command("setFeatureCompatibilityVersion", "8.2", confirm=True)
    assert version(admin.client) == "8.2" and on_each_shard(cluster, version) == ["8.2", "8.2"]
    with cluster.config.client() as config:
        assert version(config) == "8.2"
    until("the other router has heard", lambda: version(second) == "8.2")
    admin.command("setFeatureCompatibilityVersion", "8.0", confirm=True)
    assert on_each_shard(cluster, version) == ["8.0", "8.0"]
    # One shard writes what programs of before do not read: none goes back, nor does the cluster.
    admin.command("setFeatureCompatibilityVersion", "8.2", confirm=True)
    with cluster.on_shard("s1") as one:
        one.admin.command("appendOplogNote", 1, data={"msg": "new"})
    with refuses(332, containing="data format 5"):
        admin.command("setFeatureCompatibilityVersion", "8.0", confirm=True)
    assert on_each_shard(cluster, version) == ["8.2", "8.2"] and version(admin.client) == "8.2"


def test_user_writes_are_blocked_on_all_shards(cluster, admin, second, unblocked):
    coll = shard(admin.client["blocked"], "c", {"n": 1}, at=[50])
    coll.insert_many([{"_id": n, "n": n} for n in range(100)])
    admin.client.blocked.plain.insert_one({"_id": 1})
    admin.command("setUserWriteBlockMode", 1, **{"global": True})
    for client in (admin.client, second):
        db = client.blocked
        for write in (
            lambda: db.c.insert_one({"n": 1}),
            lambda: db.c.update_many({}, {"$set": {"x": 1}}),
            lambda: db.c.delete_one({"n": 3}),
            lambda: db.plain.insert_one({}),
            lambda: db.c.create_index("x"),
            lambda: db.new.insert_one({}),
            lambda: db.c.drop(),
            lambda: client.drop_database("blocked"),
            lambda: list(db.c.aggregate([{"$out": "other"}])),
            lambda: client.admin.command("renameCollection", "blocked.plain", to="blocked.other"),
        ):
            with refuses(371):
                write()
        assert db.c.count_documents({}) == 100 and db.c.count_documents({"x": 1}) == 0
        assert sorted(db.list_collection_names()) == ["c", "plain"]
    with refuses(20):
        admin.command("setUserWriteBlockMode", 1, reason="DiskUseThresholdExceeded", **{"global": False})
    # Data moves nevertheless: no user's write is in it. The receiver makes indexes too.
    for target in ("s1", "s0"):
        admin.command("moveChunk", "blocked.c", find={"n": 7}, to=target)
    home = admin.client.config.databases.find_one({"_id": "blocked"})["primary"]
    admin.command("movePrimary", "blocked", to="s1" if home == "s0" else "s0")
    assert coll.count_documents({}) == 100 and admin.client.blocked.plain.count_documents({}) == 1
    admin.command("setUserWriteBlockMode", 1, **{"global": False})
    admin.client.blocked.c.insert_one({"n": 200})
    until("the other router writes again", lambda: takes_write(second.blocked.plain))
    admin.client.drop_database("blocked")


def takes_write(coll):
    try:
        return coll.insert_one({}).acknowledged
    except pymongo.errors.PyMongoError as e:
        # It is not there yet, or refuses.
        return False if getattr(e, "code", None) == 371 else None


def test_default_concerns(cluster, admin, second):
    try:
        before = admin.command("getDefaultRWConcern")
        assert before["defaultWriteConcernSource"] == "implicit"
        reply = admin.command("setDefaultRWConcern", 1, defaultReadConcern={"level": "majority"}, defaultWriteConcern={"w": 1})
        assert reply["defaultWriteConcern"]["w"] == 1 and reply["defaultReadConcernSource"] == "global"
        with refuses(2):
            admin.command("setDefaultRWConcern", 1, defaultWriteConcern={"w": 0})
        with refuses(79):
            admin.command("setDefaultRWConcern", 1, defaultWriteConcern={"w": "nobody"})
        shown = second.admin.command("getDefaultRWConcern")
        assert shown["defaultReadConcern"] == {"level": "majority"} and shown["updateOpTime"] == reply["updateOpTime"]
        # The routers say what holds, and no server of the cluster has defaults of its own.
        heard = []
        with cluster.on_shard("s0") as s0, cluster.on_shard("s1") as s1:
            for one in (s0, s1):
                one.admin.command("profile", 2) and heard.append(one)
                for command in ("getDefaultRWConcern", "setDefaultRWConcern"):
                    with refuses(51301):
                        one.admin.command(command, 1)
                one.concerns.command("profile", 2)
            for client in (admin.client, second):
                def concerns():
                    client.concerns.c.insert_one({})
                    client.concerns.c.find_one({})
                    client.concerns.with_options(write_concern=WriteConcern("majority"), read_concern=ReadConcern("local")).c.insert_one({})
                    client.concerns.get_collection("c", read_concern=ReadConcern("local")).find_one({})
                    seen = [d for s in (s0, s1) for d in s.concerns["system.profile"].find({"ns": "concerns.c"}).sort("ts", 1)]
                    said = [c.get("writeConcern", c.get("readConcern")) for c in (d["command"] for d in seen[-4:])]
                    return said == [{"w": 1, "wtimeout": 0}, {"level": "majority"}, {"w": "majority"}, {"level": "local"}]

                until("the router says them", concerns)
            for one in (s0, s1):
                one.concerns.command("profile", 0)
                one.admin.command("profile", 0)
        # Transactions have their own.
        with admin.client.start_session() as session, session.start_transaction():
            admin.client.concerns.c.insert_one({}, session=session)
    finally:
        admin.command("setDefaultRWConcern", 1, defaultReadConcern={}, defaultWriteConcern={"w": "majority"})
        admin.client.drop_database("concerns")


def test_cluster_parameters(cluster, admin, second):
    admin.command("setClusterParameter", {"changeStreamOptions": {"preAndPostImages": {"expireAfterSeconds": 100}}})
    with refuses(4):
        admin.command("setClusterParameter", {"nope": {}})

    def expiry(client):
        (shown,) = client.admin.command("getClusterParameter", "changeStreamOptions")["clusterParameters"]
        assert isinstance(shown["clusterParameterTime"], Timestamp)
        return shown["preAndPostImages"]["expireAfterSeconds"]

    assert expiry(second) == expiry(admin.client) == 100 and on_each_shard(cluster, expiry) == [100, 100]


def find(coll, query, **more):
    return {"find": coll.name, "filter": query, **more, "$db": coll.database.name}


def test_query_settings(cluster, admin, second):
    coll = shard(admin.client["shapes"], "c", {"n": 1}, at=[50])
    coll.insert_many([{"n": n, "a": n % 5, "b": n} for n in range(100)])
    coll.create_index([("a", 1), ("b", 1)])
    coll.create_index([("a", 1), ("n", 1)])
    other = second.shapes.c
    reply = admin.command("setQuerySettings", find(coll, {"a": 1}, skip=1, limit=5), settings={"reject": True})
    for c in (coll, other):
        until("it is rejected", lambda c=c: rejected(lambda: list(c.find({"a": 2}).skip(3).limit(2))))
        # The router sends shards a limit of both; that is the shape of nothing that was set.
        assert len(list(c.find({"a": 2}).limit(6))) == 6
    explained = admin.client.shapes.command("explain", find(coll, {"a": 4}, skip=1, limit=5))
    assert explained["ok"] == 1
    rows = list(second.admin.aggregate([{"$querySettings": {}}]))
    assert [r["queryShapeHash"] for r in rows] == [reply["queryShapeHash"]]
    admin.command("removeQuerySettings", reply["queryShapeHash"])
    assert len(list(coll.find({"a": 2}).skip(3).limit(2))) == 2

    def index(c):
        shards = c.database.command("explain", {"find": "c", "filter": {"a": 1}})["queryPlanner"]["winningPlan"]["shards"]
        return {used(s["winningPlan"]) for s in shards}

    for name in ("a_1_n_1", "a_1_b_1"):
        hints = {"indexHints": [{"ns": {"db": "shapes", "coll": "c"}, "allowedIndexes": [name]}]}
        admin.command("setQuerySettings", find(coll, {"a": 7}), settings=hints)
        assert index(coll) == {name}
        until("the other router has heard", lambda name=name: index(other) == {name})
        assert coll.count_documents({"a": 1}) == len(list(coll.find({"a": 1}))) == 20
    for query, run in (
        ({"distinct": "c", "key": "b", "query": {"a": 1}, "$db": "shapes"}, lambda: coll.distinct("b", {"a": 2})),
        ({"aggregate": "c", "pipeline": [{"$match": {"a": 1}}, {"$sort": {"b": 1}}], "$db": "shapes"},
         lambda: list(coll.aggregate([{"$match": {"a": 3}}, {"$sort": {"b": 1}}]))),
    ):
        run()
        admin.command("setQuerySettings", query, settings={"reject": True})
        assert rejected(run)
        admin.command("removeQuerySettings", query)
        run()
    for row in admin.aggregate([{"$querySettings": {}}]):
        admin.command("removeQuerySettings", row["queryShapeHash"])
    admin.client.drop_database("shapes")


def used(plan):
    while "inputStage" in plan:
        plan = plan["inputStage"]
    return plan.get("indexName", plan["stage"])


def rejected(run):
    try:
        run()
    except pymongo.errors.OperationFailure as e:
        assert e.code == 411
        return True
    return False


def test_a_shard_that_was_away_hears_of_it(cluster, admin, unblocked):
    """The configuration set has the block; the shard is told when it is back."""
    coll = shard(admin.client["away"], "c", {"n": 1}, at=[50])
    away = cluster.shards["s1"]
    away.kill()
    with pytest.raises(pymongo.errors.OperationFailure):
        admin.command("setUserWriteBlockMode", 1, maxTimeMS=2000, **{"global": True})
    away.start()
    until("the shard blocks writes", lambda: takes_write(away.client().away.other) is False, 60)
    with refuses(371):
        coll.insert_one({"n": 100})
    admin.command("setUserWriteBlockMode", 1, **{"global": False})
    admin.client.drop_database("away")


def test_a_new_shard_has_the_settings(cluster, admin, tmp_path, unblocked):
    admin.command("setUserWriteBlockMode", 1, **{"global": True})
    server = member(tmp_path, "s9", "--shardsvr")
    with server:
        initiate(server, "s9")
        admin.command("addShard", f"s9/{server.address}")
        with server.client() as client:
            assert takes_write(client.t.c) is False
        admin.command("setUserWriteBlockMode", 1, **{"global": False})
        until("it is taken out", lambda: admin.command("removeShard", "s9")["state"] == "completed", 60)


def test_a_router_starts_with_the_settings(cluster, admin, tmp_path, unblocked):
    admin.command("setUserWriteBlockMode", 1, **{"global": True})
    router = Server(tmp_path / "late", "--configdb", f"csrs/{cluster.config.address}", program=[BINARY, "route"])
    with router:
        until("it answers", lambda: answers(router))
        with router.client() as client, refuses(371):
            client.t.c.insert_one({})


def test_who_may_write_nevertheless(tmp_path):
    """`bypassWriteBlockingMode` counts at the router, which tells the shards; no client says so itself."""
    key = ("--keyFile", key_file(tmp_path / "key"))
    with ShardedCluster(tmp_path, shards=1, options=key) as running:
        with running.client() as stranger:
            stranger.admin.command("createUser", ROOT["username"], pwd=ROOT["password"], roles=["root"])
        with running.client(**ROOT) as root:
            root.admin.command("createUser", "w", pwd="w", roles=["readWriteAnyDatabase"])
            root.admin.command("setUserWriteBlockMode", 1, **{"global": True})
            root.t.c.insert_one({"by": "root"})
            with running.client(username="w", password="w", authSource="admin") as user:
                with refuses(371):
                    user.t.c.insert_one({})
                for own in ({"mayBypassWriteBlocking": True}, {"fromMigrate": True}):
                    with refuses(371):
                        user.t.command("insert", "c", documents=[{}], **own)
            root.admin.command("setUserWriteBlockMode", 1, **{"global": False})
            assert root.t.c.count_documents({}) == 1


def test_what_is_no_shard_is_not_added(cluster, admin, tmp_path):
    with Server(tmp_path / "plain", "--replSet", "plain") as plain:
        initiate(plain, "plain")
        with refuses(203, containing="--shardsvr"):
            admin.command("addShard", f"plain/{plain.address}")
    with refuses(96, containing="config server"):
        admin.command("addShard", f"csrs/{cluster.config.address}")
    assert {s["_id"] for s in admin.command("listShards")["shards"]} == set(cluster.shards)
