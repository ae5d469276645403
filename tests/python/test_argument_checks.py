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
