"""Random documents, updates and filters: find, count and sort must agree with the model, whatever indexes there are.

PANDO_SEED replays a failure, PANDO_MODEL_ROUNDS makes more of them.
"""

import copy
import os
import random

import pytest
from pymongo.errors import OperationFailure

import model
from agreement import assert_indexes_agree

SEED = int(os.environ.get("PANDO_SEED", random.randrange(1 << 32)))
ROUNDS = int(os.environ.get("PANDO_MODEL_ROUNDS", 3))
PATHS = ["a", "b", "o.x", "o.y", "l"]
INDEXES = [
    ([("a", 1)], {}),
    ([("a", -1), ("b", 1)], {}),
    ([("b", 1), ("a", 1)], {}),
    ([("o.x", 1)], {}),
    ([("o.x", 1), ("a", -1)], {}),
    ([("o.x", 1), ("o.y", 1)], {}),
    ([("l", 1)], {"sparse": True}),
    ([("a", 1), ("l", 1)], {}),
    ([("b", -1)], {"partialFilterExpression": {"a": {"$gt": 2}}, "name": "partial"}),
]


def test_the_model_itself():
    assert model.matches({"a": [1, 2]}, {"a": 2}) and not model.matches({"a": [1, 2]}, {"a": {"$ne": 2}})
    assert model.matches({}, {"a": None}) and model.matches({"o": 1}, {"o.x": None}) and not model.matches({"o": []}, {"o.x": None})
    assert model.matches({"a": 1}, {"a": {"$not": {"$gt": 1}}}) and not model.matches({"a": "x"}, {"a": {"$gt": 1}})
    assert [model.sort_key({"l": v}, "l", 1) for v in ([], None, [5, 1])] == [(0,), (1,), (2, 1)]


class Maker:
    def __init__(self, rng):
        self.rng = rng

    def scalar(self):
        rng = self.rng
        return rng.choice([None, True, False, rng.randrange(6), rng.randrange(6), rng.randrange(6), rng.randrange(12) / 2, rng.choice("xyz"), ""])

    def array(self):
        return [self.scalar() for _ in range(self.rng.randrange(4))]

    def inner(self, arrays):
        d = {}
        for name in "xy":
            if self.rng.random() < 0.7:
                d[name] = self.array() if arrays and name == "x" and self.rng.random() < 0.2 else self.scalar()
        return d

    def document(self, i):
        rng, d = self.rng, {"_id": i}
        # At most one field with arrays: two in one compound index are an error, and another test.
        arrays = rng.choice(["a", "b", "o", "l", "", ""])
        for name in "abl":
            if rng.random() < 0.85:
                d[name] = self.array() if name == arrays else self.scalar()
        if rng.random() < 0.85:
            if arrays == "o":
                d["o"] = [self.inner(False) if rng.random() < 0.9 else self.scalar() for _ in range(rng.randrange(4))]
            else:
                d["o"] = self.inner(False) if rng.random() < 0.9 else self.scalar()
        return d

    def condition(self):
        rng = self.rng
        op = rng.choice("$eq $eq $ne $gt $gte $lt $lte $in $nin $exists $size $all $elemMatch $not $mod range".split())
        if op == "range":
            low = rng.randrange(6)
            return {"$gte": low, rng.choice(["$lt", "$lte"]): low + rng.randrange(3)}
        if op in ("$in", "$nin"):
            return {op: [self.scalar() for _ in range(rng.randrange(4))]}
        if op == "$exists":
            return {op: rng.random() < 0.5}
        if op == "$size":
            return {op: rng.randrange(4)}
        if op == "$all":
            return {op: [self.scalar() for _ in range(rng.randrange(1, 3))]}
        if op == "$mod":
            return {op: [rng.randrange(2, 4), rng.randrange(2)]}
        if op == "$elemMatch":
            return {op: {"$gte": rng.randrange(4), "$lt": rng.randrange(2, 7)}}
        if op == "$not":
            inner = rng.choice("$eq $gt $gte $lt $in".split())
            return {op: {inner: [self.scalar() for _ in range(2)] if inner == "$in" else self.scalar()}}
        return {op: self.array() if op == "$eq" and rng.random() < 0.1 else self.scalar()}

    def query(self, depth=2):
        rng, query = self.rng, {}
        for _ in range(rng.randrange(0 if depth == 2 else 1, 3)):
            if depth and rng.random() < 0.3:
                query[rng.choice(["$and", "$or", "$or", "$nor"])] = [self.query(depth - 1) for _ in range(rng.randrange(1, 4))]
            else:
                query[rng.choice(PATHS)] = self.scalar() if rng.random() < 0.3 else self.condition()
        return query

    def change(self, documents, coll):
        """One random write, to both."""
        rng = self.rng
        i = rng.choice(list(documents))
        kind = rng.random()
        if kind < 0.4:
            d = self.document(i)
            documents[i] = d
            coll.replace_one({"_id": i}, d)
        elif kind < 0.6:
            value = self.scalar()
            d = documents[i] = copy.deepcopy(documents[i])
            for name in ("a", "b"):
                if not isinstance(d.get(name), list):
                    d[name] = value
                    coll.update_one({"_id": i}, {"$set": {name: value}})
                    break
        elif kind < 0.7:
            documents[i].pop("l", None)
            coll.update_one({"_id": i}, {"$unset": {"l": 1}})
        elif kind < 0.8 and isinstance(documents[i].get("l"), list):
            documents[i]["l"].append(3)
            coll.update_one({"_id": i}, {"$push": {"l": 3}})
        elif kind < 0.9:
            del documents[i]
            coll.delete_one({"_id": i})
        else:
            query = {rng.choice(["a", "b"]): rng.randrange(6)}
            for d in documents.values():
                if model.matches(d, query):
                    d["n"] = d.get("n", 0) + 1
            coll.update_many(query, {"$inc": {"n": 1}})

    def churn(self, documents, coll, ids):
        """Deletes in the majority, whole ranges of them, and some that come back."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            first = rng.randrange(len(ids))
            low, high = ids[first], ids[min(first + rng.randrange(20, 300), len(ids) - 1)]
            for i in [i for i in documents if low <= i < high]:
                del documents[i]
            coll.delete_many({"_id": {"$gte": low, "$lt": high}})
        elif kind < 0.6:
            query = {rng.choice(["a", "b", "o.x", "l"]): rng.choice([rng.randrange(6), "x", None])}
            for i in [i for i, d in documents.items() if model.matches(d, query)]:
                del documents[i]
            coll.delete_many(query)
        elif kind < 0.75 and documents:
            i = rng.choice([min(documents), max(documents), rng.choice(list(documents))])
            del documents[i]
            coll.delete_one({"_id": i})
        else:
            gone = [i for i in ids if i not in documents]
            # One, some that lie scattered, or nearly all when nearly all are gone.
            back = rng.sample(gone, min(len(gone), rng.choice([1, 1, 20, 200]) if len(documents) > 30 else len(gone)))
            new = [self.document(i) for i in back]
            documents.update((d["_id"], d) for d in copy.deepcopy(new))
            if new:
                coll.insert_many(new, ordered=False)


@pytest.mark.parametrize("writes", ["mixed", "mostly deletes"])
@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_agrees_with_the_model(coll, round_number, writes):
    seed = SEED + round_number
    print(f"PANDO_SEED={seed}")
    compare(coll, seed, writes)


def test_a_dead_range_that_no_write_ends_is_found(new_server):
    """A planted fault: puts in a dead range stay hidden from later scans."""
    server = new_server("--engine-options", "dead_ranges=unended")
    with server.client() as client:
        for seed in range(SEED, SEED + 5):
            coll = client.planted[f"c{seed}"]
            try:
                compare(coll, seed, "mostly deletes")
            except (AssertionError, OperationFailure):
                return
    pytest.fail(f"the seeds {SEED} to {SEED + 4} do not find it")


def compare(coll, seed, writes):
    rng = random.Random(seed)
    make = Maker(rng)
    chosen = rng.sample(INDEXES, rng.randrange(1, len(INDEXES)))
    early = [c for c in chosen if rng.random() < 0.5]
    for keys, options in early:
        coll.create_index(keys, **options)
    # Long strings as ids have the records lie elsewhere than under them.
    count = 400 if writes == "mixed" else 1200
    ids = range(count) if rng.random() < 0.5 else [f"{i:040}" for i in range(count)]
    documents = {i: make.document(i) for i in ids}
    coll.insert_many(copy.deepcopy(list(documents.values())))
    for keys, options in [c for c in chosen if c not in early]:
        coll.create_index(keys, **options)
    for step in range(120):
        for _ in range(rng.randrange(4)):
            if writes == "mixed":
                make.change(documents, coll)
            else:
                make.churn(documents, coll, ids)
        query = make.query()
        everything = [documents[i] for i in sorted(documents)]
        expected = {d["_id"] for d in model.find(everything, query)}
        where = f"seed {seed}, step {step}, filter {query!r}, indexes {[c[0] for c in chosen]}"
        for hint in (None, [("$natural", 1)]):
            cursor = coll.find(query)
            if hint:
                cursor = cursor.hint(hint)
            found = [d["_id"] for d in cursor]
            assert len(found) == len(set(found)), f"a document came twice: {where}, hint {hint}"
            wrong = set(found) ^ expected
            assert not wrong, f"{where}, hint {hint}: {[documents.get(i) for i in sorted(wrong)[:3]]}"
        assert coll.count_documents(query) == len(expected), where
        assert coll.database.command("count", coll.name, query=query)["n"] == len(expected), where
        sort = [(rng.choice(PATHS), rng.choice([1, -1])), ("_id", rng.choice([1, -1]))]
        skip, limit = rng.choice([0, 0, 3]), rng.choice([0, 5, 50])
        ordered = [d["_id"] for d in model.find(everything, query, sort, skip, limit)]
        cursor = coll.find(query).sort(sort).skip(skip).limit(limit)
        assert [d["_id"] for d in cursor] == ordered, f"{where}, sort {sort} skip {skip} limit {limit}"
    whole = {d["_id"]: d for d in coll.find()}
    assert whole == documents
    assert_indexes_agree(coll)
