"""count and distinct."""

import pytest

from harness import refuses


@pytest.fixture
def numbers(coll):
    coll.insert_many([{"_id": i, "a": i % 7, "l": [i % 3, "x"]} for i in range(100)])
    return coll


def test_count(numbers):
    count = lambda **arguments: numbers.database.command("count", numbers.name, **arguments)["n"]  # noqa: E731
    assert count() == 100
    assert count(query={}) == 100
    assert count(query={"a": 0}) == 15
    assert count(query={"a": 0}, limit=10) == 10
    assert count(query={"a": 0}, limit=-10) == 10
    assert count(query={"a": 0}, skip=10) == 5
    assert count(skip=95) == 5
    assert count(skip=200) == 0
    assert count(limit=0) == 100
    numbers.create_index("a")
    assert count(query={"a": {"$gte": 2, "$lt": 4}}) == 28
    assert count(query={"a": {"$in": [0, 1, 99]}}) == 30
    assert count(query={"a": 0}, hint="a_1") == 15
    assert numbers.database.command("count", "no_such_collection")["n"] == 0


def test_count_follows_writes(coll):
    for i in range(50):
        coll.insert_one({"_id": i})
    coll.delete_many({"_id": {"$gte": 45}})
    coll.update_one({"_id": 99}, {"$set": {"x": 1}}, upsert=True)
    assert coll.estimated_document_count() == coll.count_documents({}) == 46


def test_count_survives_a_restart(new_server):
    server = new_server()
    with server.client() as client:
        client.test.things.insert_many([{"_id": i} for i in range(1000)])
        client.test.things.delete_many({"_id": {"$lt": 300}})
    server.kill()
    server.start()
    with server.client() as client:
        assert client.test.things.estimated_document_count() == 700


def test_distinct(numbers):
    for index in (None, "a"):
        if index:
            numbers.create_index(index)
        assert numbers.distinct("a") == list(range(7))
        assert numbers.distinct("a", {"_id": {"$lt": 3}}) == [0, 1, 2]
    assert sorted(numbers.distinct("l"), key=str) == [0, 1, 2, "x"]
    assert numbers.distinct("l.0") == [0, 1, 2]
    assert numbers.distinct("nope") == []
    assert numbers.database.no_such.distinct("a") == []


def test_distinct_takes_equal_numbers_for_one(coll):
    coll.insert_many([{"a": 1}, {"a": 1.0}, {"a": None}, {"b": 1}, {"a": "1"}, {"a": {"x": 1}}, {"a": []}])
    found = coll.distinct("a")
    assert len(found) == 4 and 1 in found and None in found and "1" in found and {"x": 1} in found


@pytest.mark.parametrize(
    "command, arguments, code",
    [
        ("count", {"query": 1}, 14),
        ("count", {"skip": -1}, 2),
        ("count", {"query": {"$nope": 1}}, 2),
        ("distinct", {}, 40414),
        ("distinct", {"key": 1}, 14),
        ("distinct", {"key": "a", "query": 1}, 14),
        ("distinct", {"key": "a", "nonsense": 1}, 40415),
    ],
)
def test_bad_arguments(coll, command, arguments, code):
    coll.insert_one({"_id": 1})
    with refuses(code):
        coll.database.command(command, coll.name, **arguments)
