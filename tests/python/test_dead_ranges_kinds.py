"""Deleted documents cost nothing, kind by kind: index kinds, ways to scan, transactions, capped and
time-series collections, open cursors, members that came later, chunks that moved. Tests count hidden keys,
never time."""

import datetime

import pytest
from harness import Server, refuses, until
from hidden_keys import FEW, fill, first, steps, until_few
from replica_set import ReplicaSet
from sharded_cluster import at_rest

MANY = 6000
LEFT = 20


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A server without other clients: its counters are the test's."""
    path = tmp_path_factory.mktemp("kinds") / "data"
    with Server(path, "--replSet", "rs") as server:
        with server.client() as client:
            client.admin.command("replSetInitiate", {"_id": "rs", "members": [{"_id": 0, "host": server.address}]})
            until("it is primary", lambda: client.admin.command("hello")["isWritablePrimary"])
        yield server


@pytest.fixture
def q(own):
    with own.client() as client:
        coll = client.kinds.q
        coll.drop()
        yield coll
        coll.drop()


def point(n):
    return {"type": "Point", "coordinates": [n % 360 * 0.1, n // 360 * 0.1]}


# An index, a document's value there, a query that scans the index over deleted keys, and options of the
# index.
KINDS = {
    "ascending": ([("a", 1)], lambda n: n, {"a": {"$gte": 5}}),
    "descending": ([("a", -1)], lambda n: n, {"a": {"$gte": 5}}),
    "compound": ([("b", 1), ("a", -1)], lambda n: n, {"b": None, "a": {"$gte": 5}}),
    "unique": ([("a", 1)], lambda n: n, {"a": {"$gte": 5}}, {"unique": True}),
    "sparse": ([("a", 1)], lambda n: n, {"a": {"$gte": 5}}, {"sparse": True}),
    "partial": ([("a", 1)], lambda n: n, {"a": {"$gte": 5}}, {"partialFilterExpression": {"a": {"$gt": 0}}}),
    "collation": ([("a", 1)], lambda n: f"{n:06}", {"a": {"$gt": "0"}}, {"collation": {"locale": "en", "strength": 2}}),
    "strings": ([("a", 1)], lambda n: f"{n:06}", {"a": {"$gt": "0"}}),
    "of one value": ([("a", 1)], lambda n: "same", {"a": "same"}),
    "multikey": ([("a", 1)], lambda n: [n, -n, f"s{n}"], {"a": {"$gte": 5}}),
    "hashed": ([("a", "hashed")], lambda n: n, {}),
    "text": ([("a", "text")], lambda n: f"words of {n}", {"$text": {"$search": "words"}}),
    "wildcard": ([("$**", 1)], lambda n: {"b": n}, {"a.b": {"$gte": 5}}),
    "2dsphere": ([("a", "2dsphere")], point, {"a": {"$geoWithin": {"$centerSphere": [[10, 1], 1]}}}),
    "2d": ([("a", "2d")], lambda n: point(n)["coordinates"], {"a": {"$geoWithin": {"$box": [[-1, -1], [40, 40]]}}}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_index_kinds(q, kind):
    keys, value, query, *options = KINDS[kind]
    options = options[0] if options else {}
    name = q.create_index(keys, **options)
    q.insert_many([{"_id": n, "a": value(n)} for n in range(MANY)])
    how = {"hint": None if kind == "text" else name}
    if "collation" in options:
        how["collation"] = options["collation"]
    find = lambda: {d["_id"] for d in q.find(query, **how)}
    every = find()
    left = set(range(100, 100 + LEFT))
    assert every >= left
    q.delete_many({"_id": {"$not": {"$gte": 100, "$lt": 100 + LEFT}}})
    # A few cells, or hashes, have a range each.
    most = 20 * LEFT if kind in ("hashed", "2dsphere", "2d") else FEW
    until_few(q, find, left, most)
    if kind != "text":
        until_few(q, lambda: q.count_documents(query, **how), LEFT, most)
    q.insert_many([{"_id": n, "a": value(n)} for n in (3000, 5999)])
    assert find() == left | {3000, 5999}
    q.delete_many({})
    until_few(q, find, set(), most)


@pytest.mark.parametrize("layout", ["by _id", "by numbers", "clustered"])
def test_scans_in_all_layouts(q, layout):
    id_of = (lambda n: f"{n:032x}") if layout == "by numbers" else lambda n: n
    if layout == "clustered":
        q.database.create_collection("q", clusteredIndex={"key": {"_id": 1}, "unique": True})
    q.insert_many([{"_id": id_of(n), "at": n} for n in range(MANY)])
    q.delete_many({"at": {"$gte": LEFT // 2, "$lt": MANY - LEFT // 2}})
    left = [*range(LEFT // 2), *range(MANY - LEFT // 2, MANY)]
    numbers = lambda cursor: [d["at"] for d in cursor]
    for look, wanted in [
        (lambda: numbers(q.find()), left),
        (lambda: numbers(q.find().sort("$natural", -1)), left[::-1]),
        (lambda: numbers(q.find().sort("_id", 1)), left),
        (lambda: numbers(q.find().sort("_id", -1)), left[::-1]),
        (lambda: numbers(q.find({"_id": {"$gte": id_of(100)}}).limit(1)), left[LEFT // 2 : LEFT // 2 + 1]),
        (lambda: numbers(q.find({"_id": {"$lt": id_of(900)}}).sort("_id", -1).limit(1)), left[LEFT // 2 - 1 : LEFT // 2]),
        (lambda: q.count_documents({}), LEFT),
        (lambda: q.count_documents({"_id": {"$gte": id_of(0)}}), LEFT),
        (lambda: len(q.distinct("_id")), LEFT),
        (lambda: numbers(q.aggregate([{"$match": {"at": {"$gte": 0}}}])), left),
    ]:
        until_few(q, look, wanted)
    q.insert_one({"_id": id_of(70), "at": 70})
    assert q.find_one({"_id": {"$gte": id_of(50), "$lt": id_of(80)}})["at"] == 70


def test_states_that_documents_pass_through(q):
    q.create_index([("st", 1), ("at", 1)])
    fill(q, 0, MANY, st="a")
    for before, behind in ["ab", "bc", "ca"]:
        assert q.update_many({"st": before}, {"$set": {"st": behind}}).modified_count == MANY
        until_few(q, lambda: q.find_one({"st": before}), None)
        until_few(q, lambda: q.count_documents({"st": before}), 0)
        until_few(q, lambda: q.distinct("st"), [behind])
        until_few(q, lambda: first(q, {"st": behind}, "at"), 0)
    # One job after the other.
    spent = []
    for part in range(0, 2000, 500):

        def work():
            for n in range(part, part + 500):
                done = q.find_one_and_update({"st": "a"}, {"$set": {"st": "b"}}, sort=[("at", 1)])
                assert done["at"] == n

        spent.append(steps(q, work)[1])
    assert max(spent) < 500 * 60, spent
    assert q.count_documents({"st": "b"}) == 2000


def test_transactions(own, q):
    q.create_index("at")
    fill(q, 0, MANY)
    client = q.database.client
    with client.start_session() as session:
        # An aborted delete never happened.
        session.start_transaction()
        q.delete_many({"at": {"$lt": MANY - LEFT}}, session=session)
        assert q.find_one(sort=[("at", 1)], session=session)["at"] == MANY - LEFT
        session.abort_transaction()
        assert steps(q, lambda: first(q, {}, "at"))[0] == 0
        assert q.count_documents({"at": {"$gte": 0}}) == MANY
        with own.client() as other, other.start_session() as older:
            theirs = other.kinds.q
            older.start_transaction()
            assert theirs.find_one({"at": 17}, session=older)
            with session.start_transaction():
                q.delete_many({"at": {"$lt": MANY - LEFT}}, session=session)
            until_few(q, lambda: first(q, {}, "at"), MANY - LEFT)
            until_few(q, lambda: q.count_documents({"at": {"$gte": 0}}), LEFT)
            # The older transaction's snapshot has all of them.
            count = lambda: sum(1 for _ in theirs.find({"at": {"$gte": 0}}, session=older))
            assert (count(), count()) == (MANY, MANY)
            older.commit_transaction()
        until_few(q, lambda: q.find_one()["at"], MANY - LEFT)
        # A transaction that begins now, and writes into the dead range.
        with session.start_transaction():
            q.insert_one({"at": 3000}, session=session)
            look = lambda: q.find_one(sort=[("at", 1)], session=session)["at"]
            assert steps(q, look)[0] == 3000
            assert steps(q, look)[1] <= FEW
        assert first(q, {}, "at") == 3000


def test_a_snapshot_older_than_very_much(own, q):
    """One step over more than an event loop may take: a worker does it, and gives the same."""
    q.create_index("at")
    fill(q, 0, 5)
    fill(q, 100_000, 100_005)
    client = q.database.client
    left = [*range(5), *range(100_000, 100_005)]
    with client.start_session() as session:
        session.start_transaction()
        assert q.find_one({"at": 3}, session=session)
        with own.client() as other:
            for begin in range(10, 40_010, 10_000):
                fill(other.kinds.q, begin, begin + 10_000)
        read = lambda **options: [d["at"] for d in q.find({"at": {"$gte": 0}}, session=session, **options)]
        for look, wanted in [
            (lambda: read(sort=[("at", 1)]), left),
            (lambda: read(sort=[("at", -1)]), left[::-1]),
            (lambda: read(sort=[("at", 1)], batch_size=3), left),
            (lambda: [d["at"] for d in q.find({"at": {"$gt": 4}}, session=session).sort("at", 1).limit(1)], [100_000]),
            (lambda: [d["at"] for d in q.aggregate([{"$sort": {"at": -1}}], session=session)], left[::-1]),
        ]:
            done, stepped = steps(q, look)
            assert done == wanted
            assert stepped >= 16_384
        with refuses(50):
            list(q.find({"at": {"$gte": 0}}, session=session).sort("at", 1).max_time_ms(1))
        session.abort_transaction()


def test_a_cursor_that_stays_open_and_then_closes(q):
    q.create_index("at")
    fill(q, 0, MANY)
    opened = q.find({"at": {"$gte": 0}}, batch_size=10).sort("at", 1)
    assert next(opened)["at"] == 0
    q.delete_many({"at": {"$lt": MANY - LEFT}})
    # Beside it.
    until_few(q, lambda: first(q, {}, "at"), MANY - LEFT)
    until_few(q, lambda: q.find_one()["at"], MANY - LEFT)
    assert sum(1 for _ in opened) == MANY - 1, "it has what its snapshot has"
    opened = q.find({"at": {"$gte": 0}}, batch_size=2).sort("at", 1)
    next(opened)
    q.delete_many({"at": {"$lt": MANY - 2}})
    opened.close()
    until_few(q, lambda: first(q, {}, "at"), MANY - 2)


def test_many_updates_of_one_document_beside_an_open_cursor(q):
    fill(q, 0, 50)
    opened = q.find(batch_size=2)
    next(opened)
    updates = [{"q": {"at": 25}, "u": {"$inc": {"n": 1}}}] * 1000
    for _ in range(20):
        q.database.command("update", "q", updates=updates)
    # The scan seeks behind the versions of one key after a few.
    for count in (lambda: sum(1 for _ in q.find()), lambda: len(list(q.find().sort("$natural", -1)))):
        assert steps(q, count)[0] == 50
        assert steps(q, count)[1] <= FEW
    assert sum(1 for _ in opened) == 49
    assert q.find_one({"at": 25})["n"] == 20_000


def test_the_end_of_a_capped_collection(q):
    q.database.create_collection("q", capped=True, size=1 << 20, max=100)
    for begin in range(0, MANY, 500):
        fill(q, begin, begin + 500)
        stepped = steps(q, lambda: q.find_one()["at"])[1]
        assert stepped < 500 * 4, begin
    until_few(q, lambda: q.find_one()["at"], MANY - 100)
    until_few(q, lambda: sum(1 for _ in q.find()), 100)
    until_few(q, lambda: q.find().sort("$natural", -1).limit(1)[0]["at"], MANY - 1)


def test_the_profiler_of_a_database(q):
    """A capped collection of the server's own: the oldest go as new ones come."""
    db = q.database
    db.command("profile", 2, slowms=-1)
    for _ in range(6):
        db.command("update", "q", updates=[{"q": {"_id": n}, "u": {"$set": {"n": n}}, "upsert": True} for n in range(1000)])
    db.command("profile", 0, slowms=100)
    told = db["system.profile"]
    kept = told.count_documents({})
    assert 0 < kept < 6000, "the oldest have gone"
    until_few(q, lambda: told.find_one() is not None, True)
    until_few(q, lambda: sum(1 for _ in told.find()), kept)
    told.drop()


def test_time_series(q):
    begin = datetime.datetime(2026, 1, 1)
    q.database.create_collection("q", timeseries={"timeField": "t", "metaField": "m", "granularity": "seconds"})
    # A bucket for each sensor.
    for part in range(4):
        sensors = range(part * 1000, part * 1000 + 1000)
        q.insert_many([{"t": begin + datetime.timedelta(seconds=n % 50), "m": n, "v": 1} for n in sensors])
    q.delete_many({"m": {"$gte": LEFT}})
    until_few(q, lambda: sum(1 for _ in q.find()), LEFT)
    until_few(q, lambda: sum(1 for _ in q.find({"m": {"$gte": LEFT}})), 0)
    until_few(q, lambda: q.count_documents({}), LEFT)
    q.insert_one({"t": begin, "m": 3000, "v": 2})
    assert [d["v"] for d in q.find({"m": {"$gte": LEFT}})] == [2]


def test_members_that_come_later(tmp_path):
    with ReplicaSet(tmp_path, 2) as members:
        config = members.config()
        with members.members[0].client() as client:
            client.admin.command("replSetInitiate", {**config, "members": config["members"][:1]})
            until("it is primary", lambda: client.admin.command("hello")["isWritablePrimary"])
            c = client.t.c
            c.create_index("at")
            fill(c, 0, MANY)
            c.delete_many({"at": {"$lt": MANY - LEFT}})
            client.admin.command("replSetReconfig", {**config, "version": 2})
            until("both are whole", members.is_whole, 60)
            with members.members[1].client() as other:
                copy = other.t.c
                until("it has the copy", lambda: first(copy, {}, "at") == MANY - LEFT)
                # Whether it came as files or as the log that made them.
                until_few(copy, lambda: len([first(copy, {}, "at")]), 1)
                until_few(copy, lambda: sum(1 for _ in copy.find()), LEFT)
                fill(c, 0, MANY - LEFT)
                c.delete_many({"at": {"$lt": MANY - LEFT}})
                fill(c, -1, 0)
                until("it is applied there", lambda: first(copy, {}, "at") == -1)
                until_few(copy, lambda: sum(1 for _ in copy.find({"at": {"$gte": 0}})), LEFT)


def test_chunks_that_moved_away_and_came_back(tmp_path):
    engine = lambda coll: coll.database.client.admin.command("serverStatus")["pandodb"]["engine"]["hiddenKeysSkipped"]
    with at_rest(tmp_path) as cluster, cluster.client() as client:
        client.admin.command("enableSharding", "t", primaryShard="s0")
        client.admin.command("shardCollection", "t.c", key={"at": 1})
        client.admin.command("split", "t.c", middle={"at": 3000})
        c = client.t.c
        fill(c, 0, MANY)
        for to in ("s1", "s0", "s1"):
            client.admin.command("moveChunk", "t.c", find={"at": 1}, to=to, _waitForDelete=True)
            found = lambda: [d["at"] for d in c.find().sort("at", 1)]
            assert found() == list(range(MANY))
            donor = "s0" if to == "s1" else "s1"
            with cluster.on_shard(donor) as direct, cluster.on_shard(to) as holder:
                mine = direct.t.c
                left = MANY - 3000 if donor == "s0" else 0
                until("what moved away is gone", lambda: mine.count_documents({}) == left, 60)
                look = lambda: sum(1 for _ in mine.find({"at": {"$lt": 3000}}))
                until_few(mine, look, 0)
                until_few(mine, lambda: sum(1 for _ in mine.find()), left)
                # What came is whole where it is, through its index too.
                assert holder.t.c.count_documents({"at": {"$lt": 3000}}) == 3000
        c.delete_many({"at": {"$lt": MANY - LEFT}})
        for name in ("s0", "s1"):
            with cluster.on_shard(name) as direct:
                mine = direct.t.c
                left = LEFT if name == "s0" else 0
                until_few(mine, lambda: sum(1 for _ in mine.find({"at": {"$gte": 0}})), left, of=engine)
        assert first(c, {}, "at") == MANY - LEFT
