"""Kills the server under load, again and again, and looks for every acknowledged write.

Each writer owns its documents, so what they must look like is known exactly, except for what the one request did that was
under way: of that, each document is as before or as after. PANDO_SEED replays the choices of a failure, PANDO_CRASH_ROUNDS
makes more of them.
"""

import contextlib
import copy
import os
import random
import threading
import time

import pytest
from pymongo import WriteConcern
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError

from agreement import assert_indexes_agree

SEED = int(os.environ.get("PANDO_SEED", random.randrange(1 << 32)))
ROUNDS = int(os.environ.get("PANDO_CRASH_ROUNDS", 4))
CONCERNS = [WriteConcern(w=1), WriteConcern(w="majority"), WriteConcern(w=1, j=True)]
INDEXES = [[("a", 1)], [("tags", 1), ("a", -1)], [("owner", 1), ("b", 1)]]


class Writer(threading.Thread):
    """Writes at random. `known` is the acknowledged state; `doubt` the one that the last request may have
    left."""

    def __init__(self, server, number, rng, known):
        super().__init__()
        self.server, self.number, self.rng = server, number, rng
        self.known, self.doubt = known, {}
        self.stop, self.acknowledged, self.fault = threading.Event(), 0, None
        self.next_id = max((int(i.split("-")[1]) for i in known), default=-1) + 1

    def document(self):
        rng, self.next_id = self.rng, self.next_id + 1
        return {
            # Long ids have the records of a collection lie elsewhere than under them, if one of them is the first.
            "_id": f"{self.number}-{self.next_id - 1}" + "-long" * 8 * (self.number % 2),
            "owner": self.number,
            "a": rng.randrange(100),
            "b": rng.random(),
            "tags": [rng.randrange(20) for _ in range(rng.randrange(4))],
            "pad": "x" * rng.choice([0, 10, 1000]),
        }

    def choose(self):
        """A request: what it does to documents as {id: after or None}, and how to send it."""
        rng, known = self.rng, self.known
        kind = rng.random()
        if kind < 0.35 or not known:
            d = self.document()
            return {d["_id"]: d}, lambda c: c.insert_one(d)
        if kind < 0.5:
            batch = [self.document() for _ in range(rng.randrange(2, 30))]
            return {d["_id"]: d for d in batch}, lambda c: c.insert_many(batch, ordered=rng.random() < 0.5)
        some = rng.choice(list(known))
        after = copy.deepcopy(known[some])
        if kind < 0.7:
            after["a"] += 1
            after["tags"].append(7)
            return {some: after}, lambda c: c.update_one({"_id": some}, {"$inc": {"a": 1}, "$push": {"tags": 7}})
        if kind < 0.8:
            after = {**self.document(), "_id": some}
            return {some: after}, lambda c: c.replace_one({"_id": some}, after)
        if kind < 0.87:
            after["a"] = -1
            return {some: after}, lambda c: c.find_one_and_update({"_id": some}, {"$set": {"a": -1}})
        if kind < 0.92:
            a = after["a"]
            changed = {i: {**d, "b": 0.5} for i, d in known.items() if d["a"] == a}
            return changed, lambda c: c.update_many({"owner": self.number, "a": a}, {"$set": {"b": 0.5}})
        if kind < 0.98:
            return {some: None}, lambda c: c.delete_one({"_id": some})
        a = after["a"]
        return {i: None for i, d in known.items() if d["a"] == a}, lambda c: c.delete_many({"owner": self.number, "a": a})

    def look(self, _things):
        """Faults while the server runs."""

    def settle(self, effects):
        for i, after in effects.items():
            if after is None:
                self.known.pop(i, None)
            else:
                self.known[i] = after

    def run(self):
        with self.server.client(retryWrites=False, serverSelectionTimeoutMS=300) as client:
            things = client.crash.things
            while not self.stop.is_set():
                effects, send = self.choose()
                try:
                    send(things.with_options(write_concern=self.rng.choice(CONCERNS)))
                except (BulkWriteError, OperationFailure) as error:
                    if error.code in (91, 11600, 189):  # shutting down
                        self.doubt = effects
                        return
                    self.fault = error
                    return
                except PyMongoError:
                    self.doubt = effects
                    return
                self.settle(effects)
                self.acknowledged += 1
                with contextlib.suppress(PyMongoError):
                    self.fault = self.look(things)
                if self.fault:
                    return

    def verify(self, things):
        found = {d["_id"]: d for d in things.find({"owner": self.number})}
        for i in self.known.keys() | found.keys():
            allowed = [self.known.get(i)]
            if i in self.doubt:
                allowed.append(self.doubt[i])
            assert found.get(i) in allowed, f"seed {SEED}: {i} is {found.get(i)} and not one of {allowed}"
        self.known = found


class Churn:
    """A writer, most of whose writes are deletes, runs of them, of documents that come back later."""

    NUMBERS = 600

    def id_of(self, n):
        return f"{self.number}-{n:05}" + "-long" * 8 * (self.number % 2)

    def some_that_are_gone(self):
        rng = self.rng
        gone = [i for i in map(self.id_of, range(self.NUMBERS)) if i not in self.known]
        few = len(self.known) < 60
        return [{**self.document(), "_id": i} for i in rng.sample(gone, min(len(gone), 400 if few else rng.choice([1, 1, 20])))]

    def choose(self):
        rng, known = self.rng, self.known
        kind = rng.random()
        if len(known) < 60 or kind < 0.3 and len(known) < self.NUMBERS:
            back = self.some_that_are_gone()
            return {d["_id"]: d for d in back}, lambda c: c.insert_many(back, ordered=False)
        if kind < 0.6:
            first = rng.randrange(self.NUMBERS)
            low, high = self.id_of(first), self.id_of(first + rng.randrange(20, 200))
            return {i: None for i in known if low <= i < high}, lambda c: c.delete_many({"_id": {"$gte": low, "$lt": high}})
        if kind < 0.8:
            # As from a queue.
            first = min(known.values(), key=lambda d: d["b"])["_id"]
            return {first: None}, lambda c: c.find_one_and_delete({"owner": self.number}, sort=[("b", 1)])
        a = rng.choice(list(known.values()))["a"]
        those = [i for i, d in known.items() if d["a"] == a]
        if kind < 0.9:
            return {i: None for i in those}, lambda c: c.delete_many({"owner": self.number, "a": a})
        # No two are alike in it, or the first one would be unknown.
        after = {i: {**known[i], "b": known[i]["b"] + 1} for i in those}
        return after, lambda c: c.update_many({"owner": self.number, "a": a}, {"$inc": {"b": 1}})

    def look(self, things):
        if self.rng.random() < 0.7:
            return None
        for query, hint in (({"owner": self.number}, None), ({"_id": {"$gte": f"{self.number}-", "$lt": f"{self.number}."}}, "_id_")):
            found = {d["_id"] for d in things.find(query, {"_id": 1}, hint=hint)}
            if wrong := found ^ self.known.keys():
                return f"seed {SEED}: {sorted(wrong)[:3]} of {query}, {len(wrong)} in all"
        return None


class Churner(Churn, Writer):
    pass


@pytest.mark.parametrize("kind", [Writer, Churner], ids=["mixed", "mostly deletes"])
def test_every_acknowledged_write_survives_kills(new_server, kind):
    survive(new_server(), kind, ROUNDS if kind is Writer else max(2, ROUNDS // 2))


def test_a_dead_range_that_no_write_ends_is_found(new_server):
    """A planted fault: puts in a dead range stay hidden from later scans."""
    server = new_server("--engine-options", "dead_ranges=unended")
    with pytest.raises(AssertionError, match="seed"):
        survive(server, Churner, 20)


def assert_all_is_there(server, writers):
    """What the writers know is what the server has, and its indexes and counts agree."""
    with server.client() as client:
        things = client.crash.things
        for w in writers:
            w.verify(things)
        assert things.estimated_document_count() == sum(len(w.known) for w in writers)
        assert_indexes_agree(things)


def survive(server, kind, rounds):
    print(f"PANDO_SEED={SEED}")
    rng = random.Random(SEED)
    with server.client() as client:
        for keys in INDEXES:
            client.crash.things.create_index(keys)
    states, total = [{} for _ in range(6)], 0
    for round_number in range(rounds):
        writers = [kind(server, n, random.Random(rng.randrange(1 << 32)), states[n]) for n in range(len(states))]
        for w in writers:
            w.start()
        # A kill comes at any time, whatever the server does then.
        time.sleep(rng.uniform(0.3, 2.5))
        server.kill()
        for w in writers:
            w.stop.set()
        for w in writers:
            w.join()
            assert w.fault is None, f"seed {SEED}: {w.fault}"
        if rng.random() < 0.5:  # and once more, in the middle of recovery
            server.launch()
            # At any time of it, as above.
            time.sleep(rng.uniform(0, 0.3))
            server.kill()
        started = time.monotonic()
        server.start()
        took = time.monotonic() - started
        assert_all_is_there(server, writers)
        states = [w.known for w in writers]
        acknowledged = sum(w.acknowledged for w in writers)
        total += acknowledged
        print(f"round {round_number}: {acknowledged} acknowledged requests survive; started in {took:.2f} s")
    assert total > (50 if kind is Writer else 5) * rounds, "the load was hardly one"


def test_ddl_survives_kills(new_server):
    """Collections and indexes are what the last acknowledged command left."""
    print(f"PANDO_SEED={SEED}")
    rng = random.Random(SEED)
    server = new_server()
    model = {}
    for _ in range(max(2, ROUNDS)):
        with server.client() as client:
            db = client.ddl
            for _ in range(25):
                name = f"c{rng.randrange(5)}"
                kind = rng.random()
                if name not in model:
                    db.create_collection(name)
                    model[name] = {"_id_"}
                elif kind < 0.5:
                    field = f"f{rng.randrange(6)}"
                    db[name].insert_one({field: rng.randrange(100)})
                    db[name].create_index(field)
                    model[name].add(f"{field}_1")
                elif kind < 0.7 and len(model[name]) > 1:
                    index = rng.choice(sorted(model[name] - {"_id_"}))
                    db[name].drop_index(index)
                    model[name].discard(index)
                elif kind < 0.8:
                    db[name].drop()
                    del model[name]
                else:
                    target = f"c{rng.randrange(5)}"
                    if target != name:
                        db[name].rename(target, dropTarget=True)
                        model[target] = model.pop(name)
        server.kill()
        server.start()
        with server.client() as client:
            found = {n: set(client.ddl[n].index_information()) for n in client.ddl.list_collection_names()}
            assert found == model, f"seed {SEED}"
            for name in found:
                assert_indexes_agree(client.ddl[name])


def test_what_killed_operations_leave_is_dropped(new_server):
    """`$out` and convertToCapped fill a collection of their own first; a kill may leave it there."""
    left = ["tmp.agg_out.0123456789abcdef", "tmp0123456789abcdef.convertToCapped"]
    own = ["things", "tmp.agg_out.mine", "tmp.convertToCapped"]
    server = new_server()
    with server.client() as client:
        for name in left + own:
            client.d[name].insert_many([{"_id": i} for i in range(50)])
            client.d[name].create_index("a")
    server.kill()
    server.start()
    with server.client() as client:
        assert sorted(client.d.list_collection_names()) == sorted(own)
        assert all(client.d[name].count_documents({}) == 50 for name in own)


def test_killed_while_idle_many_times(new_server):
    server = new_server()
    for i in range(5):
        with server.client() as client:
            client.test.things.insert_one({"_id": i})
        server.kill()
        server.start()
    with server.client() as client:
        assert client.test.things.count_documents({}) == 5
