"""Collations over shards: of commands, and a collection's own."""


from harness import refuses
from pymongo import DESCENDING
from pymongo.collation import Collation
from sharded_cluster import client_fixture, cluster_fixture, on_shards

ANY_CASE = Collation("en", strength=2)
BY_CASE = Collation("en", strength=3)
SIMPLE = {"locale": "simple"}
# By bytes all that is upper case comes first; by a collation "a" and "A" lie side by side.
LETTERS = ["a", "B", "c", "D", "e", "F", "A", "b", "C", "d", "E", "f"]


cluster = cluster_fixture()
client = client_fixture()


def spread(db, collation=None):
    """`k` is the shard key: "a" and later values lie on another shard than earlier ones. `v` is the same."""
    coll = db.create_collection("c", **({"collation": collation} if collation else {}))
    admin = db.client.admin
    admin.command("shardCollection", coll.full_name, key={"k": 1}, collation=SIMPLE)
    admin.command("split", coll.full_name, middle={"k": "a"})
    here = db.client.config.databases.find_one({"_id": db.name})["primary"]
    admin.command("moveChunk", coll.full_name, find={"k": "b"}, to="s1" if here == "s0" else "s0")
    coll.insert_many([{"_id": n, "k": s, "v": s} for n, s in enumerate(LETTERS)])
    return coll


def folded(docs, field="v"):
    return "".join(d[field].lower() for d in docs)


def test_sorts_by_the_collation_of_the_command(db, cluster):
    coll = spread(db)
    assert sorted(on_shards(cluster, coll).values()) == [6, 6]
    assert "".join(d["v"] for d in coll.find().sort("v")) == "ABCDEFabcdef"
    assert folded(coll.find(collation=ANY_CASE).sort("v")) == "aabbccddeeff"
    assert "".join(d["v"] for d in coll.find(collation=BY_CASE).sort("v")) == "aAbBcCdDeEfF"
    assert "".join(d["v"] for d in coll.find(collation=BY_CASE).sort("v", DESCENDING).skip(3).limit(5)) == "eDdCc"
    sort = [{"$sort": {"v": 1}}, {"$skip": 3}, {"$limit": 5}]
    assert "".join(d["v"] for d in coll.aggregate(sort, collation=BY_CASE)) == "BcCdD"


def test_distinct_and_groups_by_the_collation_of_the_command(db):
    coll = spread(db)
    assert len(coll.distinct("v")) == 12
    assert sorted(v.lower() for v in coll.distinct("v", collation=ANY_CASE)) == list("abcdef")
    assert len(coll.distinct("v", {"v": {"$gte": "c"}}, collation=ANY_CASE)) == 4
    grouped = list(coll.aggregate([{"$group": {"_id": "$v", "n": {"$sum": 1}}}], collation=ANY_CASE))
    assert sorted((d["_id"].lower(), d["n"]) for d in grouped) == [(s, 2) for s in "abcdef"]


def test_a_collection_with_a_collation_of_its_own(db, cluster):
    coll = spread(db, ANY_CASE)
    assert sorted(on_shards(cluster, coll).values()) == [6, 6]
    entry = db.client.config.collections.find_one({"_id": coll.full_name})
    assert (entry["defaultCollation"]["locale"], entry["defaultCollation"]["strength"]) == ("en", 2)
    # One value of the shard key, as the collection compares it, lies on two shards.
    assert folded(coll.find({"k": "a"}), "k") == "aa" and coll.count_documents({"k": {"$in": ["B", "c"]}}) == 4
    assert [d["_id"] for d in coll.find({"k": "a"}, collation=SIMPLE)] == [0]
    assert folded(coll.find().sort("v")) == "aabbccddeeff"
    assert folded(coll.find().sort("v", DESCENDING).skip(3).limit(5)) == "eddcc"
    assert folded(coll.find({}, {"v": 1, "_id": 0}).sort("v").batch_size(2)) == "aabbccddeeff"
    assert sorted(v.lower() for v in coll.distinct("v")) == list("abcdef")
    assert len(coll.distinct("v", collation=SIMPLE)) == 12
    grouped = list(coll.aggregate([{"$group": {"_id": "$v", "ids": {"$push": "$_id"}}}, {"$sort": {"_id": -1}}]))
    assert folded(grouped, "_id") == "fedcba" and {len(d["ids"]) for d in grouped} == {2}
    # The router's part compares in the same way.
    assert coll.aggregate([{"$limit": 20}, {"$match": {"v": "F"}}, {"$count": "n"}]).next() == {"n": 2}
    picked = coll.find({}, {"same": {"$eq": ["$v", "d"]}}).sort("v")
    assert [d["same"] for d in picked] == [n in (6, 7) for n in range(12)]


def test_writes_under_a_collation(db):
    coll = spread(db, ANY_CASE)
    assert coll.update_many({"k": "a"}, {"$set": {"x": 1}}).modified_count == 2
    assert coll.count_documents({"x": 1}) == 2
    # Whichever it finds keeps its shard key, or goes where the new one belongs.
    assert coll.update_one({"k": "b"}, {"$set": {"k": "b", "x": 2}}).matched_count == 1
    assert coll.count_documents({"k": "b"}) == 2 and coll.count_documents({"x": 2}) == 1
    found = coll.find_one_and_update({"v": "C"}, {"$set": {"x": 3}}, sort=[("_id", 1)])
    assert found["_id"] == 2
    found = coll.find_one_and_delete({"v": "d"}, sort=[("_id", -1)], collation=BY_CASE)
    assert found["_id"] == 9
    assert coll.delete_many({"k": {"$gt": "c"}}).deleted_count == 5
    assert coll.delete_one({"k": "A"}, collation=SIMPLE).deleted_count == 1
    assert [d["_id"] for d in coll.find({"k": "A"})] == [0]


def test_ranges_move_by_bytes(db, cluster):
    coll = spread(db, ANY_CASE)
    db.client.admin.command("split", coll.full_name, middle={"k": "C"})
    db.client.admin.command("split", coll.full_name, middle={"k": "d"})
    for find, to in [("A", "s0"), ("D", "s1"), ("a", "s0"), ("e", "s1"), ("A", "s1"), ("D", "s0")]:
        db.client.admin.command("moveChunk", coll.full_name, find={"k": find}, to=to)
        assert coll.count_documents({}) == 12 and sum(on_shards(cluster, coll).values()) == 12
        assert folded(coll.find().sort("v")) == "aabbccddeeff"
    assert on_shards(cluster, coll) == {"s0": 7, "s1": 5}


def test_who_shards_says_that_places_are_simple(db):
    db.create_collection("c", collation=ANY_CASE)
    for options in ({}, {"collation": {"locale": "en"}}):
        with refuses(2):
            db.client.admin.command("shardCollection", f"{db.name}.c", key={"k": 1}, **options)
    with refuses(2):
        db.client.admin.command("shardCollection", f"{db.name}.new", key={"k": 1}, collation={"locale": "de"})
    db.client.admin.command("shardCollection", f"{db.name}.c", key={"k": 1}, collation=SIMPLE)
    assert db.c.index_information()["k_1"]["key"] == [("k", 1)]
