"""Logging in at a router: users and roles of the configuration set, members by their key or certificates."""

import hashlib
import itertools
import json
import subprocess
import threading

import bson
import pymongo
import pytest
from auth_client import log_in
from certificates import Authority
from harness import BINARY, expect_error, refuses, until
from pymongo.errors import OperationFailure
from searches import indexed
from sharded_cluster import ShardedCluster

KEY = "kGv/HPCbK+fFGd0Zl9l8s0/I2bYZPzY="
ROOT = {"username": "root", "password": "TopSecret", "authSource": "admin"}


def key_file(path, text=KEY, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("locked")


@pytest.fixture(scope="module")
def cluster(place):
    audit = ("--auditDestination", "file", "--auditPath", place / "audit.json")
    key = ("--keyFile", key_file(place / "key"))
    short = ("--setParameter", "userCacheInvalidationIntervalSecs=1")
    with ShardedCluster(place, routers=2, options=key, router_options=short) as running:
        running.routers[0].stop()
        running.routers[0].options += map(str, audit)
        running.routers[0].start()
        with running.client() as stranger:
            with refuses(13):
                stranger.t.c.insert_one({})
            # The localhost exception, as at any server.
            stranger.admin.command("createUser", ROOT["username"], pwd=ROOT["password"], roles=["root"])
            with refuses(13):
                stranger.admin.command("createUser", "second", pwd="x", roles=["root"])
        with running.client(**ROOT) as root:
            root.admin.command("balancerStop")
        yield running


@pytest.fixture(scope="module")
def root(cluster):
    with cluster.client(**ROOT) as client:
        yield client


def user(root, name, *roles, db="admin"):
    root[db].command("createUser", name, pwd="pencil", roles=list(roles))
    return {"username": name, "password": "pencil", "authSource": db}


def sharded(root, name):
    root.admin.command("shardCollection", f"shop.{name}", key={"k": 1})
    root.admin.command("split", f"shop.{name}", middle={"k": 50})
    chunks = root.config.chunks.find({"uuid": root.config.collections.find_one({"_id": f"shop.{name}"})["uuid"]})
    other = {"s0": "s1", "s1": "s0"}[list(chunks)[0]["shard"]]
    root.admin.command("moveChunk", f"shop.{name}", find={"k": 60}, to=other)
    root.shop[name].insert_many([{"_id": n, "k": n} for n in range(100)])
    return root.shop[name]


def test_users_live_on_the_configuration_set(cluster, root):
    ann = user(root, "ann", {"role": "readWrite", "db": "shop"})
    with cluster.config.client(**ROOT) as direct:
        stored = direct.admin.system.users.find_one({"_id": "admin.ann"})
    assert set(stored["credentials"]) == {"SCRAM-SHA-1", "SCRAM-SHA-256"}
    assert root.admin.command("usersInfo", "ann")["users"][0]["user"] == "ann"
    for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
        for router in range(2):
            with cluster.client(router, **ann, authMechanism=mechanism) as client:
                client.shop.plain.insert_one({})
                status = client.admin.command("connectionStatus")["authInfo"]
                assert status["authenticatedUsers"] == [{"user": "ann", "db": "admin"}]
                with refuses(13, containing="not authorized on other"):
                    client.other.plain.insert_one({})
    # Shards have none of it.
    with cluster.on_shard("s0") as direct, refuses(13):
        direct.shop.plain.find_one()
    with pytest.raises(OperationFailure) as failure:
        with cluster.client(username="ann", password="wrong", authSource="admin") as client:
            client.shop.plain.find_one()
    assert failure.value.code == 18


def test_what_each_command_needs_is_checked_at_the_router(cluster, root):
    coll = sharded(root, "checked")
    reader = user(root, "reader", {"role": "read", "db": "shop"})
    with cluster.client(**reader) as client:
        assert client.shop.checked.count_documents({}) == 100
        assert len(list(client.shop.checked.aggregate([{"$match": {"k": {"$gte": 0}}}, {"$sort": {"k": 1}}]))) == 100
        joined = [{"$lookup": {"from": "checked", "localField": "k", "foreignField": "k", "as": "same"}}]
        assert len(list(client.shop.checked.aggregate(joined))) == 100
        for refused in (
            lambda: client.shop.checked.insert_one({"k": 1}),
            lambda: client.shop.checked.update_one({"k": 1}, {"$set": {"x": 1}}),
            lambda: client.shop.checked.delete_many({}),
            lambda: client.shop.checked.find_one_and_delete({"k": 1}),
            lambda: client.shop.checked.drop(),
            lambda: client.shop.checked.create_index("k2"),
            lambda: list(client.shop.checked.aggregate([{"$out": "copy"}])),
            lambda: list(client.shop.checked.aggregate([{"$merge": "copy"}])),
            lambda: list(client.shop.checked.aggregate([{"$unionWith": {"coll": "x", "pipeline": [{"$out": "y"}]}}, {"$out": "z"}])),
            lambda: client.drop_database("shop"),
            lambda: client.admin.command("shardCollection", "shop.other", key={"k": 1}),
            lambda: client.admin.command("moveChunk", "shop.checked", find={"k": 1}, to="s0"),
            lambda: client.admin.command("split", "shop.checked", middle={"k": 10}),
            lambda: client.admin.command("listShards"),
            lambda: client.admin.command("addShard", "x/127.0.0.1:1"),
            lambda: client.admin.command("removeShard", "s0"),
            lambda: client.admin.command("balancerStop"),
            lambda: client.admin.command("flushRouterConfig"),
            lambda: client.admin.command("currentOp"),
            lambda: client.admin.command("serverStatus"),
            lambda: client.admin.command("bulkWrite", 1, ops=[{"insert": 0, "document": {}}], nsInfo=[{"ns": "shop.checked"}]),
            lambda: client.config.chunks.find_one(),
            lambda: client.admin.system.users.find_one(),
            lambda: client.shop.command("createUser", "x", pwd="x", roles=[]),
        ):
            with refuses(13):
                refused()
        assert client.list_database_names() == ["shop"]
        assert "checked" in client.shop.list_collection_names(authorizedCollections=True, nameOnly=True)
        assert client.other.list_collection_names(authorizedCollections=True, nameOnly=True) == []
    manager = user(root, "manager", "clusterManager")
    with cluster.client(**manager) as client:
        client.admin.command("enableSharding", "shop")
        assert client.admin.command("listShards")["shards"]
        assert client.config.chunks.find_one()
        with refuses(13):
            client.shop.checked.find_one()
    assert coll.count_documents({}) == 100


def test_members_commands_are_the_members_alone(cluster, root):
    for name in ("_pandoTime", "_pandoOwnership", "_getUserCacheGeneration"):
        with refuses(13):
            root.admin.command(name, 1)
    # A user of the shard's own, as MongoDB has it.
    with cluster.on_shard("s0") as direct:
        direct.admin.command("createUser", "local", pwd="pencil", roles=["root"])
    with cluster.shards["s0"].wire() as wire:
        unsharded = {"e": bson.ObjectId("0" * 24), "t": bson.Timestamp(0, 0), "v": bson.Timestamp(0, 0)}
        asked = {"find": "checked", "shardVersion": unsharded, "$db": "shop"}
        expect_error(wire.command(asked), 13)
        log_in(wire, "local", "pencil", "admin")
        assert wire.command({"find": "checked", "$db": "shop"})["ok"] == 1
        expect_error(wire.command(asked), 13)
        expect_error(wire.command({"_pandoTime": 1, "$db": "admin"}), 13)
    with cluster.shards["s0"].wire() as wire:
        log_in(wire, "__system", KEY, "local")
        assert wire.command({"_pandoTime": 1, "$db": "admin"})["ok"] == 1


def test_shards_join_each_others_collections_as_members(cluster, root):
    """The user may read; the shards log in to each other. A client that is no member may not have them
    read."""
    for name in ("one", "other"):
        root.admin.command("shardCollection", f"join.{name}", key={"k": "hashed"})
        root.join[name].insert_many([{"_id": n, "k": n % 1500} for n in range(1600)])
    join = [{"$lookup": {"from": "other", "localField": "k", "foreignField": "k", "as": "o"}}, {"$group": {"_id": {"$size": "$o"}, "n": {"$sum": 1}}}]
    explained = root.join.command("explain", {"aggregate": "one", "pipeline": join, "cursor": {}})
    assert list(explained["splitPipeline"]["shardsPart"][0]) == ["$lookup"]
    reader = user(root, "joiner", {"role": "read", "db": "join"})
    with cluster.client(**reader) as client:
        assert sorted((d["_id"], d["n"]) for d in client.join.one.aggregate(join)) == [(1, 1400), (2, 200)]
    of_one = user(root, "half", db="join")
    one = [{"resource": {"db": "join", "collection": "one"}, "actions": ["find"]}]
    root.join.command("createRole", "one", privileges=one, roles=[])
    root.join.command("grantRolesToUser", "half", roles=["one"])
    with cluster.client(**of_one) as client, refuses(13):
        list(client.join.one.aggregate(join))
    with cluster.shards["s0"].wire() as wire:
        # Made above, on the shard.
        log_in(wire, "local", "pencil", "admin")
        expect_error(wire.command({"aggregate": "one", "pipeline": join, "cursor": {}, "joinsElsewhere": [], "$db": "join"}), 13)


def test_changes_of_users_are_heard_of_at_other_routers(cluster, root):
    bob = user(root, "bob", {"role": "read", "db": "shop"})
    with cluster.client(0, **bob) as here, cluster.client(1, **bob) as there:
        for client in (here, there):
            client.shop.plain.find_one()
            with refuses(13):
                client.shop.plain.insert_one({})
        root.admin.command("grantRolesToUser", "bob", roles=[{"role": "readWrite", "db": "shop"}])
        # The router that was asked knows at once.
        here.shop.plain.insert_one({})

        def heard():
            try:
                there.shop.plain.insert_one({})
                return True
            except OperationFailure:
                return False

        until("the other router knows within the interval", heard, 10)
        root.admin.command("dropUser", "bob")
        with pytest.raises(OperationFailure):
            here.shop.plain.find_one()

        def gone():
            try:
                there.shop.plain.find_one()
                return False
            except OperationFailure:
                return True

        until("he is logged out at the other router", gone, 10)
    assert root.admin.command("invalidateUserCache")["ok"] == 1


def test_roles_of_ones_own(cluster, root):
    root.shop.command("createRole", "teller", privileges=[{"resource": {"db": "shop", "collection": "till"}, "actions": ["find", "insert"]}], roles=[])
    teller = user(root, "tess", {"role": "teller", "db": "shop"})
    with cluster.client(1, **teller) as client:
        client.shop.till.insert_one({"_id": 1})
        assert client.shop.till.find_one() == {"_id": 1}
        with refuses(13):
            client.shop.till.delete_one({})
    assert root.shop.command("rolesInfo", "teller", showPrivileges=True)["roles"][0]["role"] == "teller"


def test_sessions_and_cursors_are_their_users(cluster, root):
    coll = sharded(root, "owned")
    people = [user(root, name, {"role": "readWrite", "db": "shop"}) for name in ("carol", "dave")]
    with cluster.routers[0].wire() as carol, cluster.routers[0].wire() as dave:
        log_in(carol, "carol", "pencil", "admin")
        log_in(dave, "dave", "pencil", "admin")
        opened = carol.command({"find": "owned", "batchSize": 5, "$db": "shop"})
        more = {"getMore": bson.Int64(opened["cursor"]["id"]), "collection": "owned", "batchSize": 5, "$db": "shop"}
        expect_error(dave.command(more), 13)
        expect_error(dave.command({"killCursors": "owned", "cursors": [opened["cursor"]["id"]], "$db": "shop"}), 13)
        assert len(carol.command(more)["cursor"]["nextBatch"]) == 5
        # The same session id is another session.
        lsid = {"id": bson.Binary(b"s" * 16, 4)}
        insert = {"lsid": lsid, "txnNumber": bson.Int64(1), "$db": "shop"}
        assert carol.command({"insert": "plain", "documents": [{"_id": "c"}], **insert})["n"] == 1
        assert dave.command({"insert": "plain", "documents": [{"_id": "d"}], **insert})["n"] == 1
        assert root.shop.plain.count_documents({"_id": {"$in": ["c", "d"]}}) == 2
        # Nor may a user name another as the session's owner.
        foreign = {"lsid": {**lsid, "uid": bson.Binary(b"u" * 32)}}
        expect_error(dave.command({"find": "plain", **foreign, "$db": "shop"}), 13)
    for person in people:
        with cluster.client(**person) as client, client.start_session() as session, session.start_transaction():
            client.shop.plain.insert_one({"by": person["username"]}, session=session)
    assert root.shop.plain.count_documents({"by": {"$in": ["carol", "dave"]}}) == 2
    coll.drop()


def test_a_command_is_of_the_database_that_it_was_checked_for(cluster, root):
    root.open.things.insert_one({"_id": 1})
    root.closed.things.insert_one({"_id": 2})
    root.closed.create_collection("shown", viewOn="things", pipeline=[{"$match": {"hidden": 7}}])
    user(root, "neighbour", {"role": "readWrite", "db": "open"})
    with cluster.routers[0].wire() as wire:
        log_in(wire, "neighbour", "pencil", "admin")
        # Old drivers name the database beside the command: it does not name another.
        for command in (
            {"find": "things"},
            {"count": "things"},
            {"aggregate": "things", "pipeline": [], "cursor": {}},
            {"listCollections": 1},
            {"insert": "things", "documents": [{"_id": 3}]},
            {"delete": "things", "deletes": [{"q": {}, "limit": 0}]},
            {"drop": "things"},
            {"explain": {"find": "things"}},
            {"collStats": "things"},
        ):
            assert wire.query("open.$cmd", {**command, "$db": "open"})["ok"] == 1 or "drop" in command
            expect_error(wire.query("open.$cmd", {**command, "$db": "closed"}), 73)
        # Nor does what is explained.
        for explained in ({"find": "shown"}, {"aggregate": "shown", "pipeline": [], "cursor": {}}, {"count": "nowhere"}):
            for inner in ({**explained, "$db": "closed"}, {"$db": "closed", **explained}):
                reply = wire.command({"explain": inner, "$db": "open"})
                assert reply["ok"] == 0 and "hidden" not in str(reply)
            reply = wire.command({"explain": {**explained, "$db": "closed"}, "$db": "open"})
            expect_error(reply, 73)
            assert "Mismatched $db in explain command. Expected open but got closed" in reply["errmsg"]
        assert wire.command({"explain": {"find": "things", "$db": "open"}, "$db": "open"})["ok"] == 1
    assert list(root.closed.things.find()) == [{"_id": 2}]


def test_sessions_are_ended_under_the_users_name_on_shards_too(cluster, root):
    coll = sharded(root, "kept")
    user(root, "one", {"role": "readWrite", "db": "shop"})
    user(root, "two", {"role": "readWrite", "db": "shop"})
    lsid = {"id": bson.Binary(b"k" * 16, 4)}
    uid = bson.Binary(hashlib.sha256(b"one@admin").digest(), 0)
    number = itertools.count(1)

    def begun(wire):
        statement = {"insert": "kept", "documents": [{"k": 10}, {"k": 60}], "$db": "shop"}
        within = {"lsid": lsid, "txnNumber": bson.Int64(next(number)), "autocommit": False}
        assert wire.command({**statement, **within, "startTransaction": True})["n"] == 2
        return within

    def goes_on(wire, within):
        return wire.command({"find": "kept", "filter": {"k": 10}, "$db": "shop", **within})["ok"] == 1

    def open_on_shards():
        return [direct_status(name)["transactions"]["currentOpen"] for name in cluster.shards]

    def direct_status(name):
        with cluster.shards[name].wire() as direct:
            log_in(direct, "__system", KEY, "local")
            return direct.command({"serverStatus": 1, "$db": "admin"})

    with cluster.routers[0].wire() as one, cluster.routers[0].wire() as two, cluster.routers[0].wire() as stranger:
        log_in(one, "one", "pencil", "admin")
        log_in(two, "two", "pencil", "admin")
        within = begun(one)
        # A session of the same id is another one for another user, and without a login none is ended.
        for end in ({"endSessions": [lsid]}, {"killSessions": [lsid]}, {"killSessions": []}):
            assert two.command({**end, "$db": "admin"})["ok"] == 1
            expect_error(stranger.command({**end, "$db": "admin"}), 13)
        for end in ({"endSessions": [{**lsid, "uid": uid}]}, {"killSessions": [{**lsid, "uid": uid}]}, {"killAllSessions": []}):
            expect_error(two.command({**end, "$db": "admin"}), 13)
        assert goes_on(one, within)
        for end in ({"endSessions": [lsid]}, {"killSessions": [lsid]}, {"killSessions": []}):
            assert one.command({**end, "$db": "admin"})["ok"] == 1
            until("shards have ended it", lambda: open_on_shards() == [0, 0])
            within = begun(one)
        # An operator ends others' by whatever names them.
        for end in (
            {"killSessions": [{**lsid, "uid": uid}]},
            {"killAllSessions": [{"user": "one", "db": "admin"}]},
            {"killAllSessionsByPattern": [{"lsid": {**lsid, "uid": uid}}]},
            {"killAllSessionsByPattern": [{"uid": uid}]},
            {"killAllSessionsByPattern": [{"users": [{"user": "one", "db": "admin"}]}]},
        ):
            root.admin.command(end)
            until("shards have ended it", lambda: open_on_shards() == [0, 0])
            within = begun(one)
        # A pattern that names no session ends none.
        root.admin.command({"killAllSessionsByPattern": [{}]})
        assert goes_on(one, within) and open_on_shards() == [1, 1]
        root.admin.command({"killAllSessions": []})
        until("shards have ended it", lambda: open_on_shards() == [0, 0])
    assert coll.count_documents({}) == 100


def test_operations_of_others(cluster, root):
    sleeper = user(root, "sleeper", {"role": "readWrite", "db": "shop"})
    root.shop.slow.insert_one({"_id": 1})
    other = user(root, "other", {"role": "readWrite", "db": "shop"})
    ended = []

    def sleep():
        with cluster.client(**sleeper) as client:
            try:
                client.shop.slow.find_one({"$where": "sleep(60000) || true"})
            except OperationFailure as failure:
                ended.append(failure.code)

    thread = threading.Thread(target=sleep)
    thread.start()

    def found(client, **options):
        running = client.admin.command("currentOp", **options)["inprog"]
        return [o["opid"] for o in running if "sleep(60000)" in str(o.get("command")) and ":" in str(o["opid"])]

    [opid] = until("it runs", lambda: found(root), 20)
    with cluster.client(**other) as client:
        assert found(client, **{"$ownOps": True}) == []
        with refuses(13):
            client.admin.command("killOp", op=opid)
    with cluster.client(**sleeper) as client:
        assert found(client, **{"$ownOps": True}) == [opid]
        client.admin.command("killOp", op=opid)
    thread.join(30)
    assert ended == [11601]


def test_the_audit_log_of_a_router(cluster, root, place):
    with cluster.client(**user(root, "eve", {"role": "read", "db": "shop"})) as client:
        with refuses(13):
            client.shop.plain.insert_one({})
    root.admin.command("enableSharding", "audited")
    root.admin.command("shardCollection", "audited.c", key={"k": 1})
    root.audited.c.drop()
    lines = [json.loads(line) for line in (place / "audit.json").read_text().splitlines()]
    told = [(line["atype"], line["param"], line["users"]) for line in lines]
    kinds = [kind for kind, *_ in told]
    for kind in ("authenticate", "createUser", "authCheck", "enableSharding", "shardCollection", "dropCollection"):
        assert kind in kinds, kind
    assert ("shardCollection", {"ns": "audited.c", "key": {"k": 1}, "options": {"unique": False}}, [{"user": "root", "db": "admin"}]) in told
    refused = [(p, u) for kind, p, u in told if kind == "authCheck" and u == [{"user": "eve", "db": "admin"}]]
    assert refused[0][0]["command"] == "insert" and refused[0][0]["ns"] == "shop.plain"
    assert "TopSecret" not in (place / "audit.json").read_text()


def test_moves_and_change_streams_go_on_with_logins(cluster, root):
    coll = sharded(root, "moved")
    with coll.watch() as stream:
        coll.insert_one({"_id": 1000, "k": 1000})
        assert stream.next()["documentKey"] == {"k": 1000, "_id": 1000}
    for shard in ("s0", "s1"):
        root.admin.command("moveRange", "shop.moved", min={"k": bson.MinKey()}, toShard=shard)
        assert coll.count_documents({}) == 101


def test_a_router_that_cannot_show_who_it_is(cluster, place):
    configdb = ("--configdb", f"csrs/{cluster.config.address}")
    done = subprocess.run([BINARY, "route", *configdb, "--auth"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--keyFile" in done.stderr


@pytest.mark.parametrize("mode", ["sendX509", "x509"])
def test_members_by_certificates_and_clients_too(tmp_path, mode):
    authority = Authority(tmp_path)
    own = authority.issue("member", unit="Servers")
    tls = ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", own, "--tlsCAFile", authority.file]
    tls += ["--tlsAllowConnectionsWithoutCertificates", "--clusterAuthMode", mode]
    if mode == "sendX509":
        tls += ["--keyFile", key_file(tmp_path / "key")]
    with ShardedCluster(tmp_path, shards=1, options=tls) as cluster:
        with cluster.client() as stranger:
            stranger.admin.command("createUser", "root", pwd="TopSecret", roles=["root"])
        subject = "CN=ann,O=Pando"
        with cluster.client(**ROOT) as root:
            root["$external"].command("createUser", subject, roles=[{"role": "readWrite", "db": "shop"}])
            root.shop.c.insert_one({"_id": 1})
        shown = {"tls": True, "tlsCAFile": str(authority.file), "tlsCertificateKeyFile": str(authority.issue("ann"))}
        with cluster.client(**shown, authMechanism="MONGODB-X509") as ann:
            assert ann.shop.c.find_one() == {"_id": 1}
            with refuses(13):
                ann.other.c.find_one()
            told = ann.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
            assert told == [{"user": subject, "db": "$external"}]


def test_a_cluster_by_one_command_asks_for_logins(tmp_path):
    def run(*words):
        done = subprocess.run([BINARY, "cluster", *map(str, words)], capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout

    place = tmp_path / "c"
    try:
        said = run("up", "--shards", 1, "--auth", "--dir", place, "--port", 32100, "--", "--cache", "32MB")
        assert "createUser" in said and (place / "key").stat().st_mode & 0o077 == 0
        with pymongo.MongoClient("mongodb://localhost:32100/") as stranger:
            with refuses(13):
                stranger.t.c.find_one()
            stranger.admin.command("createUser", "root", pwd="TopSecret", roles=["root"])
        with pymongo.MongoClient("mongodb://localhost:32100/", **ROOT) as root:
            root.t.c.insert_one({"_id": 1})
        run("down", "--dir", place)
        run("up", "--dir", place)
        assert "router" in run("status", "--dir", place) and "primary" in run("status", "--dir", place)
        with pymongo.MongoClient("mongodb://localhost:32100/", **ROOT) as root:
            assert root.t.c.find_one() == {"_id": 1}
    finally:
        run("down", "--dir", place)


def test_a_search_needs_no_rights_to_its_synonyms(cluster, root):
    coll = sharded(root, "words")
    root.shop.same.insert_one({"_id": "secret", "mappingType": "equivalent", "synonyms": ["red", "violet"]})
    coll.update_many({}, [{"$set": {"title": {"$cond": [{"$gte": ["$k", 98]}, "violet", "green"]}}}])
    mapping = {"name": "alike", "analyzer": "lucene.standard", "source": {"collection": "same"}}
    indexed(coll, {"mappings": {"dynamic": True}, "synonyms": [mapping]})
    only = {"resource": {"db": "shop", "collection": "words"}, "actions": ["find"]}
    root.admin.command("createRole", "searcher", privileges=[only], roles=[])
    with cluster.client(**user(root, "sam", "searcher")) as client:
        operator = {"text": {"query": "red", "path": "title", "synonyms": "alike"}}
        found = client.shop.words.aggregate([{"$search": operator}])
        assert sorted(d["_id"] for d in found) == [98, 99]
        with refuses(13):
            client.shop.same.find_one({})
        with refuses(13):
            list(client.shop.words.aggregate([{"$listSearchIndexes": {}}]))
        with refuses(13):
            client.shop.command("_pandoStamp", "same")
