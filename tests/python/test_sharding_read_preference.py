"""Reads at a router from members that are not the primary, and a shard's primary that fails."""

import threading

import bson
import pytest
from harness import expect_error, until
from pymongo import ReadPreference, WriteConcern
from pymongo.errors import PyMongoError
from pymongo.read_preferences import Nearest, Primary, PrimaryPreferred, Secondary, SecondaryPreferred
from sharded_cluster import client_fixture, cluster_fixture

TAGS = {0: {"tags": {"dc": "east"}, "priority": 2}, 1: {"tags": {"dc": "west"}}, 2: {"tags": {"dc": "south"}}}


cluster = cluster_fixture(replicas=3, settings=TAGS)
client = client_fixture()


@pytest.fixture(scope="module")
def coll(client):
    admin = client.admin
    admin.command("shardCollection", "d.c", key={"k": 1})
    admin.command("split", "d.c", middle={"k": 100})
    admin.command("moveChunk", "d.c", find={"k": 150}, to="s1")
    admin.command("moveChunk", "d.c", find={"k": 50}, to="s0")
    coll = client.d.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=60_000))
    coll.insert_many([{"_id": n, "k": n} for n in range(200)])
    return coll


def reads(cluster):
    """How many queries each member of s0 has answered, by its number."""
    counts = []
    for server in cluster.sets["s0"]:
        with server.client() as direct:
            counts.append(direct.admin.command("serverStatus")["opcounters"]["query"])
    return counts


def readers(cluster, read, times=20):
    """The members of s0 that answer a read."""
    before = reads(cluster)
    for _ in range(times):
        read()
    return {n for n, (a, b) in enumerate(zip(before, reads(cluster))) if b > a}


def test_who_answers(cluster, coll):
    def by(preference, query=None):
        chosen = coll.with_options(read_preference=preference)
        return readers(cluster, lambda: chosen.find_one(query or {"k": 5}))

    assert by(Primary()) == {0}
    assert by(PrimaryPreferred()) == {0}
    assert by(Secondary()) <= {1, 2} and by(SecondaryPreferred()) <= {1, 2}
    assert by(Nearest()) <= {0, 1, 2}
    assert by(Secondary(tag_sets=[{"dc": "west"}])) == {1}
    assert by(Secondary(tag_sets=[{"dc": "mars"}, {"dc": "south"}])) == {2}
    assert by(Nearest(tag_sets=[{"dc": "east"}])) == {0}
    assert by(SecondaryPreferred(tag_sets=[{"dc": "mars"}])) == {0}
    assert by(Secondary(max_staleness=120)) <= {1, 2}
    # Where several shards are asked, too.
    assert by(Secondary(), {"k": {"$gte": 0}}) <= {1, 2}


def test_every_kind_of_read(coll):
    secondary = coll.with_options(read_preference=ReadPreference.SECONDARY)
    assert secondary.count_documents({}) == 200 and secondary.estimated_document_count() == 200
    assert sorted(secondary.distinct("k")) == list(range(200))
    assert [d["k"] for d in secondary.find().sort("k", -1).batch_size(7)] == list(range(199, -1, -1))
    assert [d["n"] for d in secondary.aggregate([{"$group": {"_id": None, "n": {"$sum": 1}}}])] == [200]
    assert len(list(secondary.aggregate([{"$match": {"k": {"$gte": 0}}}], batchSize=11))) == 200
    assert set(secondary.index_information()) == {"_id_", "k_1"}
    db = coll.database.with_options(read_preference=ReadPreference.SECONDARY)
    assert "c" in db.list_collection_names()
    assert db.command("collStats", "c", read_preference=ReadPreference.SECONDARY)["count"] == 200
    assert db.command("explain", {"find": "c", "filter": {"k": 3}}, read_preference=ReadPreference.SECONDARY)["ok"] == 1


def test_a_cursor_stays_where_it_was_opened(cluster, coll):
    chosen = coll.with_options(read_preference=Secondary())
    cursors = [chosen.find({"k": {"$lt": 100}}, batch_size=3) for _ in range(6)]
    firsts = [next(c)["k"] for c in cursors]
    assert firsts == [0] * 6
    assert [len(list(c)) for c in cursors] == [99] * 6
    closed = chosen.find({"k": {"$lt": 100}}, batch_size=3)
    next(closed)
    closed.close()


def test_what_is_written_is_seen_in_a_session(client, coll):
    """Another shard's secondary has to come to the time of one shard's write."""
    chosen = coll.with_options(read_preference=Secondary(), write_concern=WriteConcern(1))
    with client.start_session(causal_consistency=True) as session:
        for n in range(300, 330):
            chosen.insert_one({"_id": n, "k": n}, session=session)
            assert chosen.find_one({"k": n}, session=session)["_id"] == n
            assert chosen.find_one({"k": 5}, session=session)["_id"] == 5
    chosen.delete_many({"k": {"$gte": 300}})


def test_a_moved_range_is_read_right_from_secondaries(client, coll):
    chosen = coll.with_options(read_preference=Secondary())
    for shard in ("s1", "s0"):
        client.admin.command("moveChunk", "d.c", find={"k": 50}, to=shard)
        with client.start_session(causal_consistency=True) as session:
            coll.find_one({"k": 1}, session=session)
            assert [d["k"] for d in chosen.find({}, session=session).sort("k", 1)] == list(range(200))
            assert chosen.count_documents({}, session=session) == 200


def test_a_secondary_that_lags_behind_a_move_is_waited_for(cluster, client, coll):
    """It does not know its ranges yet: the router asks until it does."""
    chosen = coll.with_options(read_preference=Secondary())
    client.admin.command("moveChunk", "d.c", find={"k": 150}, to="s0")
    assert chosen.count_documents({"k": {"$gte": 100}}) == 100
    client.admin.command("moveChunk", "d.c", find={"k": 150}, to="s1")
    assert chosen.count_documents({"k": {"$gte": 100}}) == 100


def test_errors(cluster, client, coll):
    with cluster.routers[0].wire() as wire:
        def find(**preference):
            return wire.command({"find": "c", "filter": {"k": 1}, "$db": "d", "$readPreference": preference})

        expect_error(find(mode="first"), 2)
        expect_error(find(), 40414)
        expect_error(find(mode="secondary", maxStalenessSeconds=1), 160, "MaxStalenessOutOfRange")
        expect_error(find(mode="primary", tags=[{"a": "b"}]), 2)
        assert find(mode="nearest", hedge={"enabled": True})["ok"] == 1
        assert find(mode="primary", tags=[{}])["ok"] == 1
        lsid = {"id": bson.Binary(b"r" * 16, 4)}
        statement = {"lsid": lsid, "txnNumber": bson.Int64(1), "startTransaction": True, "autocommit": False}
        expect_error(wire.command({"find": "c", "$db": "d", "$readPreference": {"mode": "nearest"}, **statement}), 72)
        # Of a write it says nothing.
        written = wire.command({"insert": "w", "documents": [{}], "$db": "d", "$readPreference": {"mode": "secondary"}})
        assert written["n"] == 1
    with pytest.raises(PyMongoError) as failure:
        nobody = coll.with_options(read_preference=Secondary(tag_sets=[{"dc": "mars"}]))
        nobody.find_one({"k": 1}, max_time_ms=1500)
    assert failure.value.code in (133, 50)
    if failure.value.code == 133:
        assert "Could not find host matching read preference" in str(failure.value)


def test_a_change_stream_of_secondaries(coll):
    chosen = coll.with_options(read_preference=Secondary())
    with chosen.watch() as stream:
        coll.insert_many([{"_id": n, "k": n % 200} for n in range(1000, 1020)])
        assert sorted(stream.next()["documentKey"]["_id"] for _ in range(20)) == list(range(1000, 1020))
    coll.delete_many({"_id": {"$gte": 1000}})


def test_drivers_see_nothing_of_a_primary_that_fails(cluster, client, coll):
    """Reads and writes of one attempt each go on over the end of a shard's primary."""
    stop, failures, done = threading.Event(), [], []

    def work(kind):
        with cluster.client(serverSelectionTimeoutMS=30_000) as own:
            c = own.d.get_collection("c", write_concern=WriteConcern("majority", wtimeout=60_000))
            n = 0
            while not stop.is_set():
                n += 1
                try:
                    if kind == "write":
                        c.insert_one({"_id": f"{kind}{n}", "k": n % 100})
                    elif kind == "read":
                        assert c.find_one({"k": n % 100}) is not None
                    else:
                        assert c.with_options(read_preference=SecondaryPreferred()).count_documents({"k": {"$lt": 50}}) >= 50
                    done.append(kind)
                except Exception as failure:  # noqa: BLE001: whatever it is, it counts
                    failures.append((kind, n, repr(failure)))
                stop.wait(0.01)

    threads = [threading.Thread(target=work, args=(kind,)) for kind in ("write", "read", "secondary")]
    for thread in threads:
        thread.start()
    until("they work", lambda: len(done) > 30)
    primary = cluster.sets["s0"][0]
    primary.kill()

    def another():
        for server in cluster.sets["s0"][1:]:
            with server.client() as direct:
                if direct.admin.command("hello")["isWritablePrimary"]:
                    return True
        return False

    until("another is primary", another, 30)
    before = len(done)
    until("all go on", lambda: len(done) > before + 30, 60)
    primary.start()
    before = len(done)
    until("they go on beside it", lambda: len(done) > before + 30, 60)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert failures == []
    written = coll.count_documents({"_id": {"$regex": "^write"}})
    assert written == done.count("write")
    for kind in ("write", "read", "secondary"):
        assert done.count(kind) > 10
