"""The check of list-append histories finds what snapshot isolation forbids, and lets pass what it allows."""

import pytest

from list_append import faults


def append(key, value):
    return ("append", key, value)


def read(key, *values):
    return ("read", key, list(values))


FINAL = {"x": [1, 2], "y": [1, 2]}


@pytest.mark.parametrize(
    "name, committed, doubtful, final",
    [
        ("one after the other", [[append("x", 1), append("y", 1)], [read("x", 1), append("x", 2), append("y", 2)]], [], FINAL),
        ("own writes", [[append("x", 1), append("y", 1)], [append("x", 2), read("x", 1, 2), append("y", 2)]], [], FINAL),
        ("write skew", [[read("x"), append("y", 1)], [read("y"), append("x", 1)]], [], {"x": [1], "y": [1]}),
        ("a doubtful one that happened", [[append("x", 1), append("y", 1)]], [[append("x", 2), append("y", 2)]], FINAL),
        ("a doubtful one that did not", [[append("x", 1)]], [[append("x", 9), append("y", 9)]], {"x": [1]}),
    ],
)
def test_snapshot_isolation_allows(name, committed, doubtful, final):
    assert faults(committed, doubtful, final) == [], name


@pytest.mark.parametrize(
    "what, committed, doubtful, final",
    [
        ("is lost", [[append("x", 1)]], [], {"x": []}),
        ("a value twice", [[append("x", 1)]], [], {"x": [1, 1]}),
        ("nobody who committed", [[append("x", 1)]], [], {"x": [1, 7]}),
        ("never its state", [[append("x", 1)], [append("x", 2)], [read("x", 2)]], [], {"x": [1, 2]}),
        ("does not see", [[append("x", 1), read("x")]], [], {"x": [1]}),
        ("a part is there", [], [[append("x", 1), append("y", 1)]], {"x": [1], "y": []}),
        # Half of a transaction over two shards in a snapshot.
        ("no write skew", [[append("x", 1), append("y", 1)], [read("x", 1), read("y")]], [], {"x": [1], "y": [1]}),
        # Two shards that order two transactions each in its own way.
        ("no write skew", [[append("x", 1), append("y", 1)], [append("x", 2), append("y", 2)]], [], {"x": [1, 2], "y": [2, 1]}),
        # A lost update.
        ("no write skew", [[read("x"), append("x", 1)], [read("x"), append("x", 2)]], [], {"x": [1, 2]}),
        # Two readers see two writers in different orders.
        (
            "no write skew",
            [[append("x", 1)], [append("y", 1)], [read("x", 1), read("y")], [read("x"), read("y", 1)]],
            [],
            {"x": [1], "y": [1]},
        ),
    ],
)
def test_what_it_forbids_is_found(what, committed, doubtful, final):
    found = faults(committed, doubtful, final)
    assert found and what in found[0], found
