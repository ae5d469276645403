"""A server in a control group, as containers have: what clients ask for does not have the system end it."""

import threading

import pytest
from harness import Server
from memory_group import memory_group
from pymongo.errors import OperationFailure


@pytest.fixture
def program():
    with memory_group(256 << 20) as program:
        if program is None:
            pytest.skip("no control group can be made here")
        yield program


def value_of(elements):
    """A command that builds an array of so many documents, of 40 bytes each."""
    element = {"$map": {"input": {"$range": [0, elements]}, "in": {"x": "$$this", "y": "abcdefghijklmnop"}}}
    return [{"$documents": [{}]}, {"$project": {"a": {"$size": element}}}]


def test_large_values_are_refused_before_the_group_is_full(program, tmp_path):
    outcomes = []
    with Server(tmp_path / "data", program=program) as server, server.client() as client:
        pad = "x" * 1000
        for first in range(0, 100_000, 10_000):
            client.d.c.insert_many(({"n": i, "pad": f"{i}{pad}"} for i in range(first, first + 10_000)), ordered=False)
        client.d.c.count_documents({"pad": "none"})

        def ask(pipeline):
            try:
                client.d.aggregate(pipeline) if "$documents" in pipeline[0] else list(client.d.c.aggregate(pipeline))
                outcomes.append("done")
            except OperationFailure as e:
                outcomes.append(e.code)

        sort = [{"$sort": {"pad": 1}}, {"$skip": 99_990}]
        asked = [value_of(3_500_000), value_of(2_500_000), sort, sort]
        threads = [threading.Thread(target=ask, args=(pipeline,)) for pipeline in asked]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(outcomes) == len(asked) and set(outcomes) <= {"done", 146}, outcomes
        client.d.aggregate(value_of(100_000))
        assert client.d.c.estimated_document_count() == 100_000
