"""Arguments of reading commands that MongoDB refuses."""

import pytest
from bson import Timestamp

from harness import refuses


@pytest.fixture
def run(coll):
    coll.insert_one({"_id": 1, "x": 1})

    def run(name, value=None, **more):
        return coll.database.command(name, coll.name if value is None else value, **more)

    return run


def commands():
    return [("count", {}), ("distinct", {"key": "x"}), ("aggregate", {"pipeline": [], "cursor": {}})]


@pytest.mark.parametrize("name, more", commands())
def test_hints(run, name, more):
    run(name, **more, hint={"$natural": 1})
    run(name, **more, hint="_id_")
    for hint, code in [(None, 9), (1, 9), ({"$natural": 1, "x": 1}, 2), ({"$natural": 2}, 2)]:
        with refuses(code):
            run(name, **more, hint=hint)
    run("find", hint=None)
    with refuses(2):
        run("find", hint={"$natural": 1, "x": 1})


def test_names_with_a_null_byte(run):
    for key in ["x\0y", "\0"]:
        with refuses(31032):
            run("distinct", key=key)


def test_let_does_not_take_names_of_the_server(run):
    for name in ["NOW", "CLUSTER_TIME"]:
        with refuses(4738901):
            run("aggregate", pipeline=[], cursor={}, let={name: 1})
    run("aggregate", pipeline=[], cursor={}, let={"now": 1})


def test_read_concerns(run, coll):
    for stage, level in [
        ({"$out": "other"}, "linearizable"),
        ({"$merge": "other"}, "linearizable"),
        ({"$planCacheStats": {}}, "majority"),
    ]:
        with refuses(72):
            run("aggregate", pipeline=[stage], cursor={}, readConcern={"level": level})
    for level in ["available", "majority", "snapshot"]:
        with refuses(72):
            run("aggregate", 1, pipeline=[{"$listLocalSessions": {}}], cursor={}, readConcern={"level": level})
    run("aggregate", 1, pipeline=[{"$listLocalSessions": {}}], cursor={}, readConcern={"level": "local"})
    with refuses(72):
        run("count", readConcern={"level": "snapshot"})
    with refuses(72):
        run("find", readConcern={"afterClusterTime": Timestamp(0, 0)})
    assert "other" not in coll.database.list_collection_names()


def test_options_of_the_storage_engine(db):
    good = {"wiredTiger": {"configString": "block_compressor=zstd,log=(enabled=true)"}}
    db.create_collection("a", storageEngine=good, indexOptionDefaults={"storageEngine": good})
    db.a.create_index("x", storageEngine=good)
    for options, code in [
        ({"wiredTiger": {"configString": "invalid=bad"}}, 2),
        ({"wiredTiger": {"configString": "a\0b"}}, 9),
        ({"wiredTiger": {"compressor": "zstd"}}, 72),
        ({"rocks": {}}, 72),
    ]:
        with refuses(code):
            db.create_collection("b", storageEngine=options)
        with refuses(code):
            db.create_collection("b", indexOptionDefaults={"storageEngine": options})
        with refuses(code):
            db.a.create_index("y", storageEngine=options)


def test_the_id_index_has_the_collation_of_its_collection(db):
    key = {"key": {"_id": 1}, "name": "_id_"}
    db.create_collection("a", collation={"locale": "fr"}, idIndex={**key, "collation": {"locale": "fr"}})
    db.create_collection("b", idIndex={**key, "collation": {"locale": "simple"}})
    for more in [{}, {"collation": {"locale": "en"}}]:
        with refuses(2):
            db.create_collection("c", idIndex={**key, "collation": {"locale": "fr"}}, **more)


def test_quorum_of_a_build_that_is_not_there(coll):
    coll.create_index("x")
    for names in [["x_1"], ["nope"], []]:
        with refuses(27):
            coll.database.command("setIndexCommitQuorum", coll.name, indexNames=names, commitQuorum="majority")
    with refuses(40414):
        coll.database.command("setIndexCommitQuorum", coll.name, indexNames=["x_1"])


def test_a_filter_of_what_is_no_collection(client):
    for filter, code in [({"$where": "1"}, 2), ({"$text": {"$search": "a"}}, 2), ({"name": {"$near": [0, 0]}}, 5626500)]:
        with refuses(code):
            client.admin.command("listDatabases", filter=filter)


def test_values_that_begin_with_a_dollar_under_all(coll):
    coll.database.create_collection("v", viewOn=coll.name, pipeline=[{"$match": {"x": 1}}])
    found = coll.database.list_collections(filter={"options.pipeline": {"$all": [{"$match": {"x": 1}}]}})
    assert [c["name"] for c in found] == ["v"]
    with refuses(2):
        coll.find_one({"x": {"$all": [{"$gt": 1}]}})


def test_nulls_that_are_not_left_out(run):
    for name, more, code in [
        ("find", {"filter": None}, 14),
        ("count", {"limit": None}, 2),
        ("aggregate", {"pipeline": [], "cursor": None}, 14),
        ("findAndModify", {"remove": True, "hint": None}, 9),
        ("aggregate", {"pipeline": [{"$lookup": {"from": "c", "as": "j", "pipeline": None}}], "cursor": {}}, 14),
    ]:
        with refuses(code):
            run(name, **more)
    with refuses(73):
        run("find", "$x")


def test_let_names_what_stands_before(run):
    reply = run("aggregate", pipeline=[{"$set": {"y": "$$b"}}], cursor={}, let={"a": 10, "b": {"$add": ["$$a", 1]}})
    assert reply["cursor"]["firstBatch"] == [{"_id": 1, "x": 1, "y": 11}]
    with refuses(17276):
        run("aggregate", pipeline=[], cursor={}, let={"b": "$$a", "a": 10})


def test_empty_names_of_fields_in_lookup(coll):
    coll.insert_many([{"_id": 1}, {"_id": 2}])
    join = {"from": coll.name, "as": "j", "localField": "", "foreignField": ""}
    joined = list(coll.aggregate([{"$lookup": {**join, "pipeline": [{"$match": {"_id": 2}}]}}]))
    assert [d["j"] for d in joined] == [[{"_id": 2}]] * 2
    with refuses(9):
        coll.aggregate([{"$lookup": {**join, "foreignField": "x"}}])


def test_what_the_strict_api_has_not(run):
    strict = {"cursor": {}, "apiVersion": "1", "apiStrict": True}
    run("aggregate", pipeline=[{"$collStats": {"count": {}}}], **strict)
    for more in [{"pipeline": [{"$collStats": {"storageStats": {}}}]}, {"pipeline": [], "explain": True}]:
        with refuses(323):
            run("aggregate", **more, **strict)


def test_commands_without_a_plan(run, coll):
    for command, code in [({"insert": coll.name, "documents": [{}]}, 20), ({"nope": 1}, 59)]:
        with refuses(code):
            coll.database.command("explain", command)


def test_data_size_of_a_range_needs_an_index(coll):
    coll.insert_many([{"_id": i, "x": i} for i in range(10)])
    name = f"{coll.database.name}.{coll.name}"
    for key in [{"keyPattern": {"x": 1}}, {}]:
        with refuses(96):
            coll.database.command("dataSize", name, min={"x": 0}, max={"x": 5}, **key)
    coll.create_index([("x", 1), ("y", 1)])
    for key in [{"keyPattern": {"x": 1}}, {}]:
        assert coll.database.command("dataSize", name, min={"x": 0}, max={"x": 5}, **key)["numObjects"] == 5
    assert coll.database.command("dataSize", name, keyPattern={"_id": 1}, min={"_id": 0}, max={"_id": 5})["numObjects"] == 5
