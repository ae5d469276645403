"""Databases and whole collections that change their shard, and longer shard keys, while they are written."""

import datetime
import threading

import bson
import pytest
from harness import refuses, until
from pymongo.errors import OperationFailure
from sharded_cluster import answers, client_fixture, cluster_fixture, initiate, member


cluster = cluster_fixture(routers=2)
client = client_fixture()


def sides(client, db):
    here = client.config.databases.find_one({"_id": db})["primary"]
    return here, "s1" if here == "s0" else "s0"


def count_on(cluster, shard, coll):
    with cluster.on_shard(shard) as direct:
        return direct[coll.database.name][coll.name].count_documents({})


class Counting(threading.Thread):
    """Inserts and increments through the second router until it is told to stop."""

    def __init__(self, cluster, db, stop):
        super().__init__()
        self.cluster, self.db, self.stop, self.n, self.failure = cluster, db, stop, 0, None

    def run(self):
        try:
            with self.cluster.client(1) as other:
                coll = other[self.db].c
                while not self.stop.is_set():
                    coll.insert_one({"_id": f"w{self.n}", "v": 0})
                    assert coll.update_one({"_id": f"w{self.n}"}, {"$inc": {"v": 1}}).modified_count == 1
                    self.n += 1
        except Exception as failure:
            self.failure = failure


def while_written(cluster, db, work):
    stop = threading.Event()
    counting = Counting(cluster, db, stop)
    counting.start()
    try:
        work()
    finally:
        stop.set()
        counting.join(60)
    assert counting.failure is None, counting.failure
    return counting.n


def test_move_primary_while_it_is_written(cluster, client):
    db = client.goes
    db.create_collection("c", validator={"never": {"$exists": False}})
    db.c.create_index("k", unique=True, sparse=True)
    db.c.insert_many([{"_id": n, "k": n} for n in range(2000)])
    db.other.insert_one({"_id": 1})
    db.create_collection("seen", viewOn="c", pipeline=[{"$match": {"k": {"$lt": 10}}}])
    client.admin.command("shardCollection", "goes.sharded", key={"s": 1})
    db.sharded.insert_one({"s": 1})
    here, there = sides(client, "goes")
    written = while_written(cluster, "goes", lambda: client.admin.command("movePrimary", "goes", to=there))
    assert sides(client, "goes") == (there, here)
    for router in (0, 1):
        with cluster.client(router) as via:
            assert via.goes.c.count_documents({}) == 2000 + written
            assert via.goes.c.count_documents({"v": 1}) == written
            assert via.goes.seen.count_documents({}) == 10
            assert sorted(via.goes.list_collection_names()) == ["c", "other", "seen", "sharded", "system.views"]
            assert via.goes.sharded.count_documents({}) == 1
    assert (count_on(cluster, here, db.c), count_on(cluster, there, db.c)) == (0, 2000 + written)
    assert db.c.index_information()["k_1"]["unique"]
    with refuses(121):
        db.c.insert_one({"never": 1})
    db.new.insert_one({})
    assert count_on(cluster, there, db.new) == 1
    client.admin.command("movePrimary", "goes", to=there)
    # And back, with the new documents.
    client.admin.command("movePrimary", "goes", to=here)
    assert db.c.count_documents({}) == 2000 + written and db.new.count_documents({}) == 1
    client.drop_database("goes")
    with cluster.client(1) as other:
        other.goes.c.insert_one({"_id": 1})
        assert [d["_id"] for d in db.c.find()] == [1]


def test_move_primary_refuses(client):
    client.refusing.c.insert_one({})
    for code, db, to in [(70, "refusing", "nowhere"), (72, "config", "s0"), (72, "admin", "s0"), (26, "unknown", "s0")]:
        with refuses(code):
            client.admin.command("movePrimary", db, to=to)
    with refuses(40414):
        client.admin.command("movePrimary", "refusing")


def test_move_a_collection_while_it_is_written(cluster, client):
    db = client.single
    db.c.insert_many([{"_id": n} for n in range(1000)])
    db.stays.insert_one({"_id": 1, "of": 5})
    here, there = sides(client, "single")
    written = while_written(cluster, "single", lambda: client.admin.command("moveCollection", "single.c", toShard=there))
    for router in (0, 1):
        with cluster.client(router) as via:
            assert via.single.c.count_documents({}) == 1000 + written
    assert (count_on(cluster, here, db.c), count_on(cluster, there, db.c)) == (0, 1000 + written)
    assert sides(client, "single") == (here, there)
    joined = list(db.stays.aggregate([{"$lookup": {"from": "c", "localField": "of", "foreignField": "_id", "as": "x"}}]))
    assert joined[0]["x"] == [{"_id": 5}]
    db.c.create_index("k", unique=True, sparse=True)
    with refuses(118):
        client.admin.command("refineCollectionShardKey", "single.c", key={"_id": 1, "x": 1})
    db.c.drop()
    db.c.insert_one({"_id": 1})
    assert count_on(cluster, here, db.c) == 1
    client.admin.command("shardCollection", "single.sharded", key={"k": 1})
    for code, ns, to in [(26, "single.sharded", there), (26, "single.none", there), (70, "single.c", "nowhere")]:
        with refuses(code):
            client.admin.command("moveCollection", ns, toShard=to)


def test_a_moved_collection_becomes_sharded(cluster, client):
    db = client.becomes
    db.c.insert_many([{"k": n} for n in range(100)])
    db.c.create_index("k")
    here, there = sides(client, "becomes")
    client.admin.command("moveCollection", "becomes.c", toShard=there)
    client.admin.command("shardCollection", "becomes.c", key={"k": 1})
    client.admin.command("moveRange", "becomes.c", min={"k": 50}, toShard=here)
    assert (count_on(cluster, here, db.c), count_on(cluster, there, db.c)) == (50, 50)
    assert db.c.count_documents({}) == 100


def test_refine_a_shard_key(cluster, client):
    db = client.refine
    ns = "refine.c"
    client.admin.command("shardCollection", ns, key={"a": 1})
    client.admin.command("split", ns, middle={"a": 50})
    db.c.insert_many([{"a": n, "b": m} for n in range(100) for m in range(3)])
    here, there = sides(client, "refine")
    client.admin.command("moveChunk", ns, find={"a": 70}, to=there)
    with cluster.client(1) as other:
        assert other.refine.c.count_documents({"a": 70}) == 3
        with refuses(72):
            client.admin.command("refineCollectionShardKey", ns, key={"a": 1, "b": 1})
        db.c.create_index([("a", 1), ("b", 1)])
        for key in ({"b": 1, "a": 1}, {"a": "hashed", "b": 1}):
            with pytest.raises(OperationFailure):
                client.admin.command("refineCollectionShardKey", ns, key=key)
        client.admin.command("refineCollectionShardKey", ns, key={"a": 1, "b": 1})
        entry = client.config.collections.find_one({"_id": ns})
        assert entry["key"] == {"a": 1, "b": 1}
        bounds = [c["min"] for c in client.config.chunks.find({"uuid": entry["uuid"]}).sort("min", 1)]
        assert bounds == [{"a": bson.MinKey(), "b": bson.MinKey()}, {"a": 50, "b": bson.MinKey()}]
        assert other.refine.c.count_documents({}) == 300 and other.refine.c.count_documents({"a": 70}) == 3
        client.admin.command("split", ns, middle={"a": 70, "b": 1})
        client.admin.command("moveChunk", ns, find={"a": 70, "b": 1}, to=here)
        assert other.refine.c.count_documents({}) == 300
        assert count_on(cluster, here, db.c) == 150 + 29 * 3 + 2


def test_a_range_does_not_lose_what_the_receiver_has_no_room_for(cluster, client):
    """Two documents of one `_id` on two shards cannot come together: the move fails, and both stay."""
    db = client.twins
    client.admin.command("shardCollection", "twins.c", key={"k": 1})
    client.admin.command("split", "twins.c", middle={"k": 5})
    here, there = sides(client, "twins")
    client.admin.command("moveChunk", "twins.c", find={"k": 9}, to=there)
    db.c.insert_one({"_id": 1, "k": 1})
    db.c.insert_one({"_id": 1, "k": 9})
    with refuses(11000):
        client.admin.command("moveChunk", "twins.c", find={"k": 9}, to=here)
    assert sorted(d["k"] for d in db.c.find()) == [1, 9]


def test_bounds_that_are_no_cuts(client):
    client.admin.command("shardCollection", "cuts.c", key={"k": 1})
    for middle in (bson.MinKey(), bson.MaxKey()):
        with pytest.raises(OperationFailure):
            client.admin.command("split", "cuts.c", middle={"k": middle})
    client.admin.command("split", "cuts.c", middle={"k": 500})
    here, there = sides(client, "cuts")
    client.admin.command("moveRange", "cuts.c", min={"k": 500.0}, toShard=there)
    client.cuts.c.insert_many([{"k": n} for n in (1, 500, 900)])
    assert client.cuts.c.count_documents({}) == 3


def test_reshard_while_it_is_written(cluster, client):
    db, ns = client.again, "again.c"
    client.admin.command("shardCollection", ns, key={"a": 1})
    client.admin.command("split", ns, middle={"a": 500})
    here, there = sides(client, "again")
    client.admin.command("moveChunk", ns, find={"a": 700}, to=there)
    db.c.insert_many([{"_id": n, "a": n, "b": n % 97} for n in range(1000)])
    with db.c.watch() as stream:
        written = while_written(cluster, "again", lambda: client.admin.command("reshardCollection", ns, key={"b": "hashed"}))
        db.c.insert_one({"_id": "last", "a": 1, "b": 1})
        seen = [next(stream) for _ in range(2 * written + 1)]
    assert seen[-1]["documentKey"]["_id"] == "last" and {e["operationType"] for e in seen} <= {"insert", "update"}
    entry = client.config.collections.find_one({"_id": ns})
    assert entry["key"] == {"b": "hashed"}
    for router in (0, 1):
        with cluster.client(router) as via:
            assert via.again.c.count_documents({}) == 1001 + written
            assert via.again.c.count_documents({"v": 1}) == written
            assert via.again.c.count_documents({"b": 5}) == 11
    parts = [count_on(cluster, shard, db.c) for shard in (here, there)]
    assert sum(parts) == 1001 + written and min(parts) > 100
    assert [c for c in db.list_collection_names() if c.startswith("resharding")] == []
    client.admin.command("reshardCollection", ns, key={"b": "hashed"})
    client.admin.command("reshardCollection", ns, key={"a": 1}, numInitialChunks=4)
    assert client.config.chunks.count_documents({"uuid": client.config.collections.find_one({"_id": ns})["uuid"]}) == 4
    assert db.c.count_documents({}) == 1001 + written
    client.admin.command("unshardCollection", ns, toShard=there)
    assert (count_on(cluster, here, db.c), count_on(cluster, there, db.c)) == (0, 1001 + written)
    assert client.config.collections.find_one({"_id": ns})["unsplittable"]
    with cluster.client(1) as other:
        assert other.again.c.count_documents({}) == 1001 + written
    assert client.config.migrations.count_documents({}) == 0


def test_reshard_refuses(client):
    client.refuse.c.insert_one({"a": 1})
    ns = "refuse.c"
    for code, command in [
        (118, {"reshardCollection": ns, "key": {"b": 1}}),
        (118, {"unshardCollection": ns}),
        (339, {"abortReshardCollection": ns}),
        (339, {"commitReshardCollection": ns}),
    ]:
        with refuses(code):
            client.admin.command(command)
    client.refuse.c.create_index("a")
    client.admin.command("shardCollection", ns, key={"a": 1})
    for code, command in [
        (40414, {"reshardCollection": ns}),
        (2, {"reshardCollection": ns, "key": {"b": 1}, "unique": True}),
        (2, {"reshardCollection": ns, "key": {"b": 1}, "numInitialChunks": 0}),
        (4952606, {"reshardCollection": ns, "key": {"b": 1}, "numInitialChunks": 5}),
    ]:
        with refuses(code):
            client.admin.command(command)
    assert client.refuse.c.count_documents({}) == 1


def test_a_shard_with_data_joins_and_leaves(cluster, client, tmp_path):
    """A set that has databases becomes a shard, and leaves when they and the collections moved to it are
    elsewhere."""
    extra = member(tmp_path, "s2", "--shardsvr")
    extra.launch()
    try:
        until("it answers", lambda: answers(extra), 60)
        initiate(extra, "s2")
        with extra.client() as direct:
            direct.brought.c.insert_many([{"_id": n} for n in range(50)])
        admin = client.admin
        assert admin.command("addShard", f"s2/{extra.address}")["shardAdded"] == "s2"
        assert sides(client, "brought")[0] == "s2" and client.brought.c.count_documents({}) == 50
        admin.command("enableSharding", "stay", primaryShard="s0")
        client.stay.c.insert_one({"_id": 1})
        admin.command("moveCollection", "stay.c", toShard="s2")
        left = admin.command("removeShard", "s2")
        assert (left["state"], left["dbsToMove"], left["collectionsToMove"]) == ("started", ["brought"], ["stay.c"])
        assert admin.command("removeShard", "s2")["state"] == "ongoing"
        admin.command("movePrimary", "brought", to="s0")
        admin.command("moveCollection", "stay.c", toShard="s1")
        assert admin.command("removeShard", "s2")["state"] == "completed"
    finally:
        extra.kill()
    assert client.brought.c.count_documents({}) == 50 and client.stay.c.count_documents({}) == 1
    with cluster.client(1) as other:
        assert other.brought.c.count_documents({}) == 50 and other.stay.c.count_documents({}) == 1


def test_a_dropped_database_is_made_and_moved_again(cluster, client):
    """Its lock stays: shards remember its holders."""
    names = [f"locked{n}" for n in range(3)]
    for _ in range(2):
        for name in names:
            client[name].c.insert_one({"_id": 1})
            here, there = sides(client, name)
            client.admin.command("movePrimary", name, to=there)
            client.drop_database(name)
    locks = names + [f"{name}.c" for name in names]
    turns = [d["turn"] for d in client.config.locks.find({"_id": {"$in": locks}})]
    assert len(turns) == 6 and all(turn > 1 for turn in turns)
    with cluster.client(1) as other:
        other.locked0.c.insert_one({"_id": 2})
        assert [d["_id"] for d in client.locked0.c.find()] == [2]


def test_another_router_makes_a_database_anew_at_once(cluster, client):
    """Shards know which of two lives of a name is the later one, also within a second."""
    with cluster.client(1) as other:
        for n in range(10):
            for via in (client, other):
                via.anew.c.insert_one({"_id": n})
                assert [d["_id"] for d in via.anew.c.find()] == [n]
                here, there = sides(client, "anew")
                via.admin.command("movePrimary", "anew", to=there)
                via.drop_database("anew")


def test_a_collection_that_was_moved_is_renamed_where_its_database_is(cluster, client):
    db, admin = client.named, client.admin
    db.a.insert_many([{"_id": n} for n in range(100)])
    db.a.create_index("k")
    db.b.insert_one({"_id": "of b"})
    here, there = sides(client, "named")
    admin.command("moveCollection", "named.a", toShard=there)
    with cluster.client(1) as other:
        assert other.named.a.count_documents({}) == 100
        # On another shard than its database.
        with refuses(125):
            admin.command("renameCollection", "named.a", to="named.c")
        # All of a database that has moved.
        admin.command("movePrimary", "named", to=there)
        assert client.config.collections.count_documents({"_id": {"$regex": "^named"}}) == 2
        with refuses(48):
            admin.command("renameCollection", "named.a", to="named.b")
        admin.command("renameCollection", "named.a", to="named.b", dropTarget=True)
        for via in (client, other):
            assert sorted(via.named.list_collection_names()) == ["b"]
            assert via.named.b.count_documents({}) == 100 and via.named.a.count_documents({}) == 0
        assert "k_1" in db.b.index_information()
        other.named.a.insert_one({"_id": 1})
        assert client.named.a.count_documents({}) == 1 and count_on(cluster, there, db.a) == 1
        # It moves again, and back, and is renamed then.
        admin.command("moveCollection", "named.b", toShard=here)
        assert (count_on(cluster, here, db.b), count_on(cluster, there, db.b)) == (100, 0)
        admin.command("moveCollection", "named.b", toShard=there)

        def rename():
            for name in ("x", "y"):
                admin.command("renameCollection", "named.b" if name == "x" else "named.x", to=f"named.{name}")

        while_written(cluster, "named", rename)
        assert other.named.y.count_documents({}) == 100 and other.named.b.count_documents({}) == 0
        with cluster.on_shard(here) as direct:
            assert "b" not in direct.named.list_collection_names() and direct.config.ownership.find_one({"_id": "named.b"}) is None


def test_a_rename_whose_router_is_killed_after_the_metadata_was_changed(cluster, client):
    """The collection is untracked; shards hear of that from the next router."""
    db, admin = client.halfway, client.admin
    db.a.insert_many([{"_id": n} for n in range(10)])
    here, there = sides(client, "halfway")
    admin.command("moveCollection", "halfway.a", toShard=there)
    admin.command("moveCollection", "halfway.a", toShard=here)
    entry = client.config.collections.find_one_and_delete({"_id": "halfway.a"})
    assert client.config.chunks.delete_many({"uuid": entry["uuid"]}).deleted_count == 1
    for router in (0, 1):
        with cluster.client(router) as via:
            assert via.halfway.a.count_documents({}) == 10 + router
            via.halfway.a.insert_one({"_id": f"by {router}"})
    admin.command("renameCollection", "halfway.a", to="halfway.b")
    with cluster.client(1) as other:
        assert other.halfway.b.count_documents({}) == 12 == count_on(cluster, here, db.b)
    admin.command("moveCollection", "halfway.b", toShard=there)
    assert db.b.count_documents({}) == 12 == count_on(cluster, there, db.b)


def test_views_are_where_the_primary_is(cluster, client):
    """A definition that was left on the shard that was the primary is neither read nor kept in the place of a newer one."""
    db, old = client.viewed, [{"$match": {"_id": {"$lt": 3}}}]
    db.c.insert_many([{"_id": n} for n in range(10)])
    db.create_collection("seen", viewOn="c", pipeline=old)
    here, there = sides(client, "viewed")
    with cluster.client(1) as other:
        assert len(list(other.viewed.seen.find())) == 3
        client.admin.command("movePrimary", "viewed", to=there)
        db.command("collMod", "seen", viewOn="c", pipeline=[{"$match": {"_id": {"$lt": 5}}}])
        with cluster.on_shard(here) as direct:
            assert "seen" not in direct.viewed.list_collection_names()
            direct.viewed.create_collection("seen", viewOn="c", pipeline=old)
            direct.viewed.create_collection("dropped", viewOn="c", pipeline=old)
        assert len(list(other.viewed.seen.find())) == 5
    client.admin.command("movePrimary", "viewed", to=here)
    assert len(list(db.seen.find())) == 5
    assert sorted(db.list_collection_names()) == ["c", "seen", "system.views"]


def test_a_sharded_time_series_stays_when_the_primary_goes(client):
    series = {"timeField": "t", "metaField": "m"}
    client.admin.command("shardCollection", "series.x", key={"m": 1}, timeseries=series)
    now = datetime.datetime(2026, 1, 1)
    client.series.x.insert_many([{"t": now, "m": n} for n in range(20)])
    here, there = sides(client, "series")
    client.admin.command("movePrimary", "series", to=there)
    assert client.series.x.count_documents({}) == 20
    client.series.x.insert_one({"t": now, "m": 3})
    assert client.series.x.count_documents({"m": 3}) == 2


def test_a_late_fence_of_a_database_is_refused(cluster, client):
    """What a mover sends whose lock another has had since would stand for ever."""
    client.late.c.insert_one({"_id": 1})
    here, there = sides(client, "late")
    for to in (there, here):
        client.admin.command("movePrimary", "late", to=to)
    with cluster.on_shard(here) as direct:
        home = direct.config.homes.find_one({"_id": "late"})
        assert home["primary"] and "fence" not in home
        with refuses(117):
            direct.admin.command("_pandoHome", 1, fence="late", version=home["version"], by="m", turn=bson.Int64(1))
    client.late.new.insert_one({"_id": 2})
    assert client.late.c.count_documents({}) == 1
