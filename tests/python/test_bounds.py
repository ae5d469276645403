"""What one command may take: it ends with maxTimeMS, and the server's memory stays near what it was.

Each case took minutes, or gigabytes, where a step had no bound of its own.
"""

import re
import threading
import time

import pytest
from bson import Regex
from pymongo.errors import ExecutionTimeout, OperationFailure

MB = 1 << 20
# A server that is not optimized, on a busy machine; unbounded work takes a minute and more.
LATE_S = 10


def resident(server):
    with open(f"/proc/{server.process.pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


class Peak:
    """The most memory of the server while the block runs, beyond what it had."""

    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.before = self.most = resident(self.server)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.ended.wait(0.02):
            self.most = max(self.most, resident(self.server))

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    @property
    def grown(self):
        return self.most - self.before


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A server of its own: its memory tells something."""
    from harness import Server

    server = Server(tmp_path_factory.mktemp("bounds") / "data", "--cache", "64m")
    server.start()
    yield server
    held = server.client().admin.command("serverStatus")["pandodb"]["eventLoops"]
    server.kill()
    assert held["longestHeldMs"] < 20_000, held


@pytest.fixture
def things(own):
    client = own.client()
    client.drop_database("bounds")
    yield client.bounds
    client.close()


ENDLESS = r"^(a|a)*$"


@pytest.mark.parametrize(
    "filter",
    [
        {"s": Regex(ENDLESS)},
        {"s": {"$in": [Regex(ENDLESS)]}},
        {"$jsonSchema": {"properties": {"s": {"pattern": ENDLESS}}}},
        {"$expr": {"$regexMatch": {"input": "$s", "regex": r"(?:(?=[a-z]*+\d)a|[a-z])*$"}}},
        {"$expr": {"$regexFindAll": {"input": "$s", "regex": r"(a*)\1\d"}}},
    ],
    ids=["regex", "in", "schema", "match", "all"],
)
def test_regular_expressions(own, things, filter):
    things.c.insert_one({"_id": 1, "s": "a" * 10_000_000 + "b"})
    with Peak(own) as peak:
        started = time.monotonic()
        try:
            things.command({"count": "c", "query": filter, "maxTimeMS": 500})
        except OperationFailure as e:
            assert e.code in (50, 51156), e
        assert time.monotonic() - started < LATE_S
    assert peak.grown < 200 * MB, peak.grown // MB


def test_a_match_at_its_bound_is_none_in_a_filter_and_an_error_in_an_expression(things):
    things.c.insert_one({"_id": 1, "s": "a" * 1_000_000 + "b"})
    # Always the same answer, however often the pattern was used.
    assert [things.c.count_documents({"s": Regex(ENDLESS)}) for _ in range(3)] == [0, 0, 0]
    with pytest.raises(OperationFailure) as e:
        things.c.aggregate([{"$project": {"m": {"$regexMatch": {"input": "$s", "regex": ENDLESS}}}}])
    assert e.value.code == 51156


def test_kill_op_ends_a_regular_expression(own, things):
    things.c.insert_one({"_id": 1, "s": "a" * 3_000_000 + "b"})
    ended = []

    def run():
        try:
            with own.client() as client:
                client.bounds.command({"count": "c", "query": {"s": Regex(r"(?=[a-z]*+\d)a")}, "comment": "mine"})
        except OperationFailure as e:
            ended.append(e.code)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and thread.is_alive():
        for op in things.client.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.comment": "mine"}}]):
            things.client.admin.command("killOp", op=op["opid"])
        thread.join(0.2)
    thread.join(LATE_S)
    assert not thread.is_alive() and ended == [11601]


def test_text_of_many_phrases(own, things):
    things.c.create_index([("s", "text")])
    things.c.insert_one({"_id": 1, "s": "one two"})
    search = " ".join(f'-w{i}x "q{i} z"' for i in range(200_000))
    with Peak(own) as peak:
        started = time.monotonic()
        try:
            things.command({"find": "c", "filter": {"$text": {"$search": search}}, "maxTimeMS": 1000})
        except ExecutionTimeout:
            pass
        assert time.monotonic() - started < 2 * LATE_S
    assert peak.grown < 350 * MB, peak.grown // MB


def test_every_phrase_is_asked_of_a_document(things):
    things.c.create_index([("s", "text")])
    words = [f"w{i}x y{i}" for i in range(100)]
    things.c.insert_many([{"_id": 1, "s": " ".join(words)}, {"_id": 2, "s": " ".join(words[:99])}])

    def found(phrases):
        search = " ".join(f'"{p}"' for p in phrases)
        return [d["_id"] for d in things.c.find({"$text": {"$search": search}}).sort("_id")]

    assert found(words) == [1]
    assert found(words[:99]) == [1, 2]


@pytest.mark.parametrize("late", [False, True], ids=["constant", "computed"])
def test_values_that_are_alive_together(own, things, late):
    things.c.insert_one({"_id": 1, "n": 100_000})
    names = [f"v{i}" for i in range(1000)]
    end = "$n" if late else 100_000
    expr = {"$let": {"vars": {n: {"$range": [0, end]} for n in names}, "in": {"$size": [f"$${names[-1]}"]}}}
    with Peak(own) as peak:
        try:
            things.c.aggregate([{"$project": {"x": expr}}], maxTimeMS=60_000).to_list()
        except OperationFailure as e:
            assert e.code == 146, e
    assert peak.grown < 700 * MB, peak.grown // MB


def line(n, at):
    return {"type": "LineString", "coordinates": [at(i) for i in range(n)]}


@pytest.mark.parametrize("built", [False, True], ids=["insert", "build"])
def test_long_lines(own, things, built):
    # Edges that lie upon one another are all measured for each cell that is tried.
    doc = {"_id": 1, "s": line(150_000, lambda i: [i % 2 * 1.0, i // 2 % 2 * 1.0])}
    if built:
        things.c.insert_one(doc)
    else:
        things.c.create_index([("s", "2dsphere")])
    started = time.monotonic()
    with pytest.raises(ExecutionTimeout):
        if built:
            spec = {"key": {"s": "2dsphere"}, "name": "s"}
            things.command({"createIndexes": "c", "indexes": [spec], "maxTimeMS": 500})
        else:
            things.command({"insert": "c", "documents": [doc], "maxTimeMS": 500})
    assert time.monotonic() - started < 2 * LATE_S


def test_long_texts(own, things):
    things.c.create_index([("s", "text")])
    for text in ("y" * 15_000_000, " ".join(f"w{i % 200_000}ing" for i in range(1_500_000))):
        started = time.monotonic()
        try:
            things.command({"insert": "c", "documents": [{"s": text}], "maxTimeMS": 500})
        except ExecutionTimeout:
            pass
        assert time.monotonic() - started < 2 * LATE_S
    # So many terms no document has, as in MongoDB.
    with pytest.raises(OperationFailure) as e:
        things.c.insert_one({"s": " ".join(f"{i}" for i in range(400_100))})
    assert e.value.code == 16732
    assert re.search("400000", str(e.value))


def test_as_many_variables_as_fit(own, things):
    """They were scopes of one another, each with a frame of the stack: the server ended."""
    things.c.insert_one({"_id": 1, "a": 1})
    names = {f"v{i}": "$a" for i in range(200_000)}
    [found] = things.c.aggregate([{"$project": {"x": {"$let": {"vars": names, "in": {"$add": ["$$v0", "$$v199999"]}}}}}])
    assert found["x"] == 2
    # Each of a command's was looked for among all, and had all copied.
    values = {f"v{i}": i for i in range(200_000)}
    reply = things.command("find", "c", filter={"$expr": {"$eq": ["$a", {"$subtract": ["$$v199999", "$$v199998"]}]}}, let=values)
    assert [d["_id"] for d in reply["cursor"]["firstBatch"]] == [1]
    assert own.running()


def test_a_long_command_is_not_read_on_an_event_loop(own, things):
    def offloaded():
        return things.client.admin.command("serverStatus")["pandodb"]["loops"]["offloaded"]

    things.c.insert_one({"_id": 1})
    before = offloaded()
    for _ in range(5):
        assert things.c.count_documents({"_id": {"$in": ["x" * 300_000, 1]}}) == 1
        assert things.c.find_one({"_id": {"$in": ["x" * 300_000, 1]}}) == {"_id": 1}
    assert offloaded() - before >= 10
