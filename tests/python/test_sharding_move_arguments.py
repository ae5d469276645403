"""What moves of ranges are told by their arguments and by the balancer's settings. Each shard has two members, of which
one votes: a majority is fulfilled while the other stands still."""

import datetime
import itertools
import threading
import time

import pytest
from harness import refuses, until
from pymongo.errors import WriteError
from sharded_cluster import client_fixture, cluster_fixture, shard
from test_sharding_write_concerns import alone

numbers = itertools.count(1)


cluster = cluster_fixture(replicas=2, settings={1: {"priority": 0, "votes": 0}})
client = client_fixture()


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


def test_unknown_fields_and_wrong_types(client, coll):
    ns, to = coll.full_name, other(owner(coll, 50))
    chunk = {"moveChunk": ns, "find": {"k": 50}, "to": to}
    one = {"moveRange": ns, "min": {"k": 50}, "toShard": to}
    for code, command, given in [
        (40415, chunk, {"waitForDeletes": True}),
        (40415, chunk, {"toShard": to}),
        (40415, one, {"to": to}),
        (14, chunk, {"_waitForDelete": "yes"}),
        (14, chunk, {"forceJumbo": "yes"}),
        (14, chunk, {"_secondaryThrottle": {}}),
        (14, chunk, {"to": 5}),
        (14, chunk, {"find": 5}),
        (14, one, {"min": 5}),
        (14, one, {"waitForDelete": "yes"}),
        (14, one, {"secondaryThrottle": "yes"}),
        (14, one, {"writeConcern": 5}),
        (9, one, {"writeConcern": {"w": -1}}),
        (2, one, {"maxTimeMS": -1}),
        (40414, chunk, {"to": None}),
        (40414, one, {"toShard": None}),
        (72, chunk, {"bounds": [{"k": 50}, {"k": 60}]}),
        (72, {k: v for k, v in chunk.items() if k != "find"}, {"bounds": [{"k": 50}]}),
        (70, chunk, {"to": "nowhere"}),
    ]:
        with refuses(code):
            client.admin.command({**command, **given})
    assert owner(coll, 50) != to


def test_a_move_returns_when_the_donor_has_nothing_left(cluster, client, coll):
    for arguments in ({"_waitForDelete": True}, {"waitForDelete": True, "forceJumbo": True, "maxChunkSizeBytes": 1024}):
        to = move(coll, **arguments)
        with cluster.on_shard(other(to)) as direct:
            assert direct[coll.database.name].c.count_documents({"k": {"$gte": 50}}) == 0
    to = other(owner(coll, 50))
    client.admin.command("moveRange", coll.full_name, min={"k": 50}, toShard=to, waitForDelete=True, forceJumbo=True, comment="x")
    assert owner(coll, 50) == to and coll.count_documents({}) == 100
    reply = client.admin.command("moveChunk", coll.full_name, find={"k": 50}, to=other(to))
    assert reply["millis"] >= 0


def test_the_copy_waits_for_more_members_than_a_majority(cluster, coll):
    before = owner(coll, 50)
    more = {"_secondaryThrottle": True, "writeConcern": {"w": 2}}
    with alone(cluster, other(before)):
        # Without the throttle the write concern has no meaning.
        move(coll, writeConcern={"w": 2})
        move(coll, writeConcern={"w": 2}, secondaryThrottle=False)
        with refuses(50):
            move(coll, **more, maxTimeMS=1500)
        assert owner(coll, 50) == before and coll.count_documents({}) == 100
        # A limited wait goes on after its time.
        move(coll, _secondaryThrottle=True, writeConcern={"w": 2, "wtimeout": 300})
    move(coll, **more)
    with refuses(100):
        move(coll, _secondaryThrottle=True, writeConcern={"w": 7})
    assert owner(coll, 50) == before and coll.count_documents({}) == 100


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


def test_concurrency_has_bounds(cluster):
    with cluster.on_shard("s0") as direct:
        assert direct.admin.command("getParameter", chunkMigrationConcurrency=1)["chunkMigrationConcurrency"] == 1
        direct.admin.command("setParameter", chunkMigrationConcurrency=500)
        for wrong in (0, -1, 501):
            with refuses(72):
                direct.admin.command("setParameter", chunkMigrationConcurrency=wrong)
        assert direct.admin.command("setParameter", chunkMigrationConcurrency=1)["was"] == 500


def inserts_at_once(cluster, client, db, copiers):
    """The most messages of documents that are under way at once to the receiver of a move."""
    admin, coll = client.admin, client[db].c
    admin.command("shardCollection", f"{db}.c", key={"k": 1})
    coll.insert_many([{"_id": n, "k": n, "fill": "x" * 1000} for n in range(3000)])
    here = client.config.databases.find_one({"_id": db})["primary"]
    there = "s1" if here == "s0" else "s0"
    most, failures = 0, []

    def run():
        try:
            admin.command("moveChunk", f"{db}.c", find={"k": 1}, to=there)
        except Exception as failure:
            failures.append(failure)

    with cluster.on_shard(there) as direct:
        direct.admin.command("setParameter", chunkMigrationConcurrency=copiers)
        data = {"failCommands": ["insert"], "failInternalCommands": True, "blockConnection": True, "blockTimeMS": 1000}
        direct.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
        try:
            mover = threading.Thread(target=run)
            mover.start()
            while mover.is_alive():
                ops = direct.admin.aggregate([{"$currentOp": {}}])
                inserts = [o for o in ops if o.get("command", {}).get("insert") == "c" and o["command"]["$db"] == db]
                most = max(most, len(inserts))
                if most >= copiers:
                    direct.admin.command("configureFailPoint", "failCommand", mode="off")
        finally:
            direct.admin.command("configureFailPoint", "failCommand", mode="off")
            direct.admin.command("setParameter", chunkMigrationConcurrency=1)
    assert not failures, failures
    assert coll.count_documents({}) == 3000
    return most


def test_a_receiver_says_how_many_messages_are_put_at_once(cluster, client):
    assert inserts_at_once(cluster, client, "alone", 1) == 1
    assert 2 <= inserts_at_once(cluster, client, "several", 4) <= 4


def test_settings_that_make_no_sense_are_refused(client):
    settings = client.config.settings
    for wrong in (
        {"stopped": "yes"},
        {"mode": "sometimes"},
        {"activeWindow": {"start": "1:00"}},
        {"_secondaryThrottle": 5},
        {"_waitForDelete": "yes"},
        {"attemptToBalanceJumboChunks": 1},
        {"other": 1},
    ):
        with pytest.raises(WriteError) as failed:
            settings.update_one({"_id": "balancer"}, {"$set": wrong}, upsert=True)
        assert failed.value.code == 121, wrong
    right = {"_secondaryThrottle": {"w": 2}, "_waitForDelete": True, "attemptToBalanceJumboChunks": False}
    settings.update_one({"_id": "balancer"}, {"$set": right})
    settings.update_one({"_id": "balancer"}, {"$unset": dict.fromkeys(right, 1)})
    settings.update_one({"_id": "mine"}, {"$set": {"anything": 1}}, upsert=True)
    settings.delete_one({"_id": "mine"})


def test_the_balancer_keeps_to_its_window_and_moves_jumbo_chunks_if_told(cluster, client, coll):
    """A window that is closed; then open, for a chunk that is marked; then it may move."""
    def set_to(**fields):
        client.config.settings.update_one({"_id": "balancer"}, {"$set": fields})

    def window(hours):
        now = datetime.datetime.now()
        times = [now + datetime.timedelta(hours=h) for h in hours]
        return dict(zip(("start", "stop"), (t.strftime("%H:%M") for t in times)))

    def moves(of=coll):
        return client.config.changelog.count_documents({"what": "moveChunk.start", "ns": of.full_name})

    admin = client.admin
    admin.command("moveChunk", coll.full_name, find={"k": 50}, to=owner(coll, 50))
    home = other(owner(coll, 50))
    admin.command("moveChunk", coll.full_name, find={"k": 50}, to=home)
    beside = coll.database.beside
    admin.command("shardCollection", beside.full_name, key={"k": 1})
    for each in (coll, beside):
        each.insert_many([{"k": n % 50, "pad": "x" * 2000} for n in range(1000)])
    uuid = client.config.collections.find_one({"_id": coll.full_name})["uuid"]
    client.config.chunks.update_many({"uuid": uuid}, {"$set": {"jumbo": True}})
    client.config.settings.update_one({"_id": "chunksize"}, {"$set": {"value": 0.1}}, upsert=True)
    before = moves()
    set_to(activeWindow=window((2, 3)), attemptToBalanceJumboChunks=True)
    direct = cluster.config.client()
    direct.config.command("profile", 2)
    admin.command("balancerStart")
    try:
        # A round asks first whether it may, and there is one each ten seconds.
        asks = {"command.find": "settings", "command.filter._id": "balancer", "ts": {"$gt": datetime.datetime.utcnow()}}
        until("a round has asked", lambda: direct.config.system.profile.count_documents(asks))
        assert moves() == before and moves(beside) == 0
        set_to(activeWindow=window((-1, 1)), attemptToBalanceJumboChunks=False)
        # What a round does is decided for all collections before it moves anything.
        until("what is not marked moves", lambda: moves(beside))
        assert moves() == before
        set_to(attemptToBalanceJumboChunks=True)
        until("it moves", lambda: moves() > before, 40)
    finally:
        direct.config.command("profile", 0)
        direct.close()
        admin.command("balancerStop")
        client.config.settings.update_one({"_id": "balancer"}, {"$unset": {"activeWindow": 1, "attemptToBalanceJumboChunks": 1}})
        client.config.settings.delete_one({"_id": "chunksize"})


def test_a_move_does_not_heed_the_default_write_concern(cluster, client, coll):
    """Its documents wait for a majority where clients wait for less."""
    to, name = other(owner(coll, 50)), coll.database.name
    set_to = {"setDefaultRWConcern": 1, "writeConcern": {"w": "majority"}}
    client.admin.command({**set_to, "defaultWriteConcern": {"w": 1}})
    try:
        with cluster.on_shard(to) as direct:
            direct[name].command("profile", 2)
            move(coll)
            direct[name].command("profile", 0)
            puts = list(direct[name]["system.profile"].find({"op": "insert", "command.insert": "c"}))
            assert puts and all(p["command"]["writeConcern"] == {"w": "majority"} for p in puts), puts
    finally:
        client.admin.command({**set_to, "defaultWriteConcern": {"w": "majority"}})
    assert owner(coll, 50) == to and coll.count_documents({}) == 100
