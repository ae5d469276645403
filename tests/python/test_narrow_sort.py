"""A sort with a limit reads only records that can be among its results, where an index tells how they would sort."""

import datetime
import random
import threading
import time

import pytest
from pymongo import DESCENDING, IndexModel

from harness import until

BEGAN = datetime.datetime(2020, 1, 1)


def documents(count, dice, follows=True):
    """Dates that follow the order of insertion by and large, each twice, or that follow nothing."""

    def date(i):
        return BEGAN + datetime.timedelta(seconds=(i + dice.randrange(40)) // 2 if follows else dice.randrange(count))

    numbers = dice.sample(range(count), count)
    return [{"_id": i, "n": numbers[i], "m": i % 7, "at": date(i), "pad": "x" * 100} for i in range(count)]


def put(things, docs):
    for start in range(0, len(docs), 1000):
        things.insert_many(docs[start : start + 1000])


def examined(things, *query, **options):
    stats = things.find(*query, **options).explain()["executionStats"]
    assert "SORT" in str(stats["executionStages"])
    return stats["totalKeysExamined"], stats["totalDocsExamined"]


def sorted_as(docs, order, index=("n",)):
    """By the order; documents of equal order come as the index has them."""
    out = sorted(docs, key=lambda d: tuple(d[f] for f in index) + (d["_id"],))
    for field, direction in reversed(order):
        out.sort(key=lambda d: d[field], reverse=direction < 0)
    return out


def within(docs, low, high):
    return [d for d in docs if low <= d["n"] < high]


def wait_for_map(things, read=150):
    """Sorts until one reads little, as it does when there is a zone map."""
    query = {"n": {"$gte": 100, "$lt": 1100}}

    def reads_little():
        return examined(things, query, hint="n_1", sort=[("at", -1)], limit=10)[1] <= read

    until("there is a zone map", reads_little, timeout_s=60)
    assert things.database.client.admin.command("serverStatus")["pandodb"]["zoneMaps"]["maps"] > 0


def agree(things, docs, dice, turns, hint="n_1"):
    for _ in range(turns):
        low = dice.randrange(len(docs))
        high = low + dice.choice([1, 10, 100, 1000, 1000, 30_000])
        order = dice.choice([[("at", -1)], [("at", 1)], [("at", -1), ("m", 1)], [("at", 1), ("n", -1)], [("_id", -1)]])
        skip, limit = dice.choice([0, 0, 3, 100, 990]), dice.choice([1, 4, 50, 300])
        filter, wanted = {"n": {"$gte": low, "$lt": high}}, within(docs, low, high)
        if dice.random() < 0.3:
            filter["m"], wanted = 3, [d for d in wanted if d["m"] == 3]
        wanted = sorted_as(wanted, order)[skip : skip + limit]
        found = list(things.find(filter, hint=hint, sort=order, skip=skip, limit=limit))
        assert found == wanted, (filter, order, skip, limit)
        stages = [{"$match": filter}, {"$sort": dict(order)}, {"$skip": skip}, {"$limit": limit}]
        assert list(things.aggregate(stages, hint=hint)) == wanted


@pytest.mark.parametrize("direction", [1, -1])
def test_dates_that_follow_the_order_of_insertion(db, direction):
    dice = random.Random(direction)
    docs = documents(20_000, dice)
    things = db.things
    things.create_indexes([IndexModel("n"), IndexModel([("at", direction), ("m", 1)])])
    put(things, docs)
    query = {"n": {"$gte": 5, "$lt": 1005}}
    order = [("at", DESCENDING)]
    assert examined(things, query, hint="n_1", sort=order, skip=100, limit=10) == (1000, 1000)
    agree(things, docs, dice, 20)
    wait_for_map(things)
    keys, read = examined(things, query, hint="n_1", sort=order, skip=100, limit=10)
    assert keys == 1000 and read <= 30
    # Where a test is left that only records tell, more are read, but not all.
    keys, read = examined(things, {**query, "m": 3}, hint="n_1", sort=order, limit=10)
    assert keys == 1000 and read <= 300
    agree(things, docs, dice, 100)


def test_the_map_follows_what_is_written(db):
    dice = random.Random(7)
    docs = documents(10_000, dice)
    things = db.things
    things.create_indexes([IndexModel("n"), IndexModel([("at", -1)])])
    put(things, docs)
    wait_for_map(things)
    # Behind the others; updates to dates that are far from their neighbours'; removals; other types.
    more = documents(30_000, dice)[10_000:]
    for d in more:
        d["n"] += 10_000
    put(things, more)
    docs += more
    agree(things, docs, dice, 30)
    for turn in range(300):
        d = docs[dice.randrange(len(docs))]
        d["at"] = BEGAN + datetime.timedelta(seconds=dice.randrange(40_000))
        things.update_one({"_id": d["_id"]}, {"$set": {"at": d["at"]}})
        if turn % 10 == 0:
            gone = docs.pop(dice.randrange(len(docs)))
            things.delete_one({"_id": gone["_id"]})
            agree(things, docs, dice, 2)
    agree(things, docs, dice, 50)
    # A date that is none sorts as its type says.
    low = within(docs, 100, 1100)
    for d, odd in zip(low[::50], [None, "text", 5, {"a": 1}, True]):
        things.update_one({"_id": d["_id"]}, {"$set": {"at": odd}})
    things.update_one({"_id": low[7]["_id"]}, {"$unset": {"at": ""}})
    query = {"n": {"$gte": 100, "$lt": 1100}}
    for order in ([("at", 1)], [("at", -1)]):
        all_of_them = list(things.find(query, hint="n_1", sort=order))
        for skip, limit in [(0, 1), (0, 3), (2, 7), (5, 40), (940, 20), (999, 5)]:
            some = things.find(query, hint="n_1", sort=order, skip=skip, limit=limit)
            assert list(some) == all_of_them[skip : skip + limit]
    # An array sorts by its least or greatest element: the map says nothing of that.
    things.update_one({"_id": low[3]["_id"]}, {"$set": {"at": [BEGAN, datetime.datetime(2090, 1, 1)]}})
    assert things.find_one(query, hint="n_1", sort=[("at", -1)])["_id"] == low[3]["_id"]
    keys, read = examined(things, query, hint="n_1", sort=[("at", -1)], limit=1)
    assert read == keys > 900


def test_while_others_write(db):
    dice = random.Random(11)
    docs = documents(8_000, dice)
    things = db.things
    things.create_indexes([IndexModel("n"), IndexModel([("at", -1)])])
    put(things, docs)
    stop, failures = threading.Event(), []

    def write(worker):
        try:
            own = random.Random(worker)
            for turn in range(1_000_000):
                if stop.is_set():
                    return
                i = 100_000 + worker * 1_000_000 + turn
                seconds = 4_000 + turn // 2 if own.random() < 0.99 else own.randrange(100_000)
                date = BEGAN + datetime.timedelta(seconds=seconds)
                things.insert_one({"_id": i, "n": own.randrange(8_000), "m": 0, "at": date})
                old = own.randrange(8_000)
                things.update_one({"_id": old}, {"$set": {"at": BEGAN + datetime.timedelta(seconds=old // 2 + 5)}})
        except Exception as e:
            failures.append(e)

    writers = [threading.Thread(target=write, args=(w,)) for w in range(3)]
    for w in writers:
        w.start()
    try:
        # Maps are made, used and widened meanwhile; one snapshot shows both results.
        least, until = 1000, time.monotonic() + 8
        while time.monotonic() < until:
            low, skip = dice.randrange(7_000), dice.choice([0, 5, 100])
            query = {"n": {"$gte": low, "$lt": low + 1000}}
            order = dice.choice([[("at", -1)], [("at", 1)]])
            with db.client.start_session(snapshot=True) as session:
                options = {"hint": "n_1", "sort": order, "session": session}
                some = list(things.find(query, skip=skip, limit=12, **options))
                assert some == list(things.find(query, **options))[skip : skip + 12]
            least = min(least, examined(things, query, hint="n_1", sort=order, limit=12)[1])
        assert least < 200, "there was no zone map"
    finally:
        stop.set()
        for w in writers:
            w.join()
    assert not failures
    docs = list(things.find({}))
    order = [("at", -1)]
    for low in range(0, 8_000, 500):
        wanted = sorted_as([d for d in docs if low <= d["n"] < low + 1000], order)[:30]
        found = things.find({"n": {"$gte": low, "$lt": low + 1000}}, hint="n_1", sort=order, limit=30)
        assert [d["_id"] for d in found] == [d["_id"] for d in wanted]
    assert db.command("validate", "things", full=True)["valid"]


def test_dates_in_no_order(db):
    dice = random.Random(3)
    docs = documents(5_000, dice, follows=False)
    things = db.things
    things.create_indexes([IndexModel("n"), IndexModel([("at", -1)])])
    put(things, docs)
    agree(things, docs, dice, 60)
    query = {"n": {"$gte": 5, "$lt": 1005}}
    assert examined(things, query, hint="n_1", sort=[("at", -1)], limit=10) == (1000, 1000)


def test_an_order_that_the_index_itself_tells(db):
    dice = random.Random(5)
    docs = documents(3_000, dice, follows=False)
    for d in docs:
        d["n"] //= 10
    things = db.things
    things.create_indexes([IndexModel([("n", 1), ("m", -1), ("at", 1)]), IndexModel([("at", 1), ("gone", 1)], sparse=True)])
    put(things, docs)
    name = "n_1_m_-1_at_1"
    query = {"n": {"$gte": 50, "$lt": 150}}
    found = within(docs, 50, 150)
    for order in ([("at", 1)], [("at", -1)], [("_id", -1)], [("_id", 1)], [("at", -1), ("pad", 1), ("_id", 1)]):
        for skip, limit in [(0, 5), (10, 7), (100, 1)]:
            wanted = sorted_as(found, order, ("n",))
            wanted = [(tuple(d[f] for f, _ in order), d["_id"]) for d in wanted][skip : skip + limit]
            got = things.find(query, hint=name, sort=order, skip=skip, limit=limit)
            assert [tuple(d[f] for f, _ in order) for d in got] == [w[0] for w in wanted]
            keys, read = examined(things, query, hint=name, sort=order, skip=skip, limit=limit)
            assert keys == len(found) and read <= limit + 8


def test_strings_in_the_order_of_a_collation(db):
    dice = random.Random(6)
    words = ["a", "B", "c", "D", "é", "E", "z"]
    docs = [{"_id": i, "n": i % 500, "w": dice.choice(words) + str(i)} for i in range(4_000)]
    german = {"locale": "de", "strength": 1}
    things = db.things
    things.create_indexes([IndexModel([("n", 1), ("w", 1)]), IndexModel([("n", 1), ("w", 1)], name="german", collation=german)])
    put(things, docs)
    for index, collation in (("n_1_w_1", None), ("german", german)):
        query = {"n": {"$gte": 100, "$lt": 200}}
        options = {"hint": index, "collation": collation} if collation else {"hint": index}
        whole = [d["w"] for d in things.find(query, sort=[("w", 1)], **options)]
        some = things.find(query, sort=[("w", 1)], skip=20, limit=10, **options)
        assert [d["w"] for d in some] == whole[20:30]
        # The other index has no strings of this collation in it.
        other = things.find(query, sort=[("w", 1)], skip=20, limit=10, hint="n_1_w_1", collation=german)
        assert [d["w"] for d in other] == [d["w"] for d in things.find(query, sort=[("w", 1)], collation=german)][20:30]


def test_a_snapshot_from_before_the_map(db):
    dice = random.Random(8)
    docs = documents(8_000, dice)
    # The latest of their neighbours by far, and removed before the map is made.
    ahead = [d for d in docs if d["_id"] % 97 == 0]
    for d in ahead:
        d["at"] = BEGAN + datetime.timedelta(days=d["_id"] + 1)
    things = db.things
    things.create_indexes([IndexModel("n"), IndexModel([("at", -1)])])
    put(things, docs)
    query = {"n": {"$gte": 100, "$lt": 1100}}
    wanted = sorted_as(within(docs, 100, 1100), [("at", -1)])[:12]
    with db.client.start_session(snapshot=True) as session:
        options = {"hint": "n_1", "sort": [("at", -1)], "limit": 12}
        assert list(things.find(query, session=session, **options)) == wanted
        things.delete_many({"_id": {"$in": [d["_id"] for d in ahead]}})
        wait_for_map(things)
        assert list(things.find(query, session=session, **options)) == wanted
    left = [d for d in within(docs, 100, 1100) if d["_id"] % 97]
    assert list(things.find(query, **options)) == sorted_as(left, [("at", -1)])[:12]
