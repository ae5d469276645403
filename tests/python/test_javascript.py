"""Scripts: `$where`, `$function`, `$accumulator`, `mapReduce`, `system.js`; their limits and their ends."""

import threading
import time
from datetime import datetime, timezone

import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from pymongo.errors import ExecutionTimeout, OperationFailure

from harness import refuses

ENDLESS = "function () { while (true) {} }"


def function(body, *args):
    return {"$function": {"body": body, "args": list(args), "lang": "js"}}


def map_reduce(coll, map, reduce, out=None, **options):
    command = {"mapReduce": coll.name, "map": Code(map), "reduce": Code(reduce)}
    return coll.database.command({**command, "out": out or {"inline": 1}, **options})


@pytest.fixture
def words(coll):
    coll.insert_many([{"_id": 1, "t": "a b a"}, {"_id": 2, "t": "b c"}, {"_id": 3, "t": "a"}])
    return coll


COUNT_MAP = "function () { this.t.split(' ').forEach(function (w) { emit(w, 1) }) }"
COUNT_REDUCE = "function (key, values) { return Array.sum(values) }"


def by_key(reply):
    return sorted((r["_id"], r["value"]) for r in reply["results"])


class TestWhere:
    def test_expressions_functions_and_bodies(self, coll):
        coll.insert_many([{"_id": i, "x": i} for i in range(10)])
        for where in ["this.x > 7", "function () { return this.x > 7 }", "return obj.x > 7", Code("() => obj.x > 7")]:
            assert [d["_id"] for d in coll.find({"$where": where})] == [8, 9], where
        assert coll.count_documents({}) == 10
        assert coll.database.command("count", coll.name, query={"$where": "this.x % 2"})["n"] == 5
        assert coll.distinct("x", {"$where": "this.x < 2"}) == [0, 1]
        assert coll.update_many({"$where": "this.x > 7"}, {"$set": {"y": 1}}).modified_count == 2
        assert coll.find_one_and_delete({"$where": "this.y == 1", "x": 9})["_id"] == 9
        assert coll.delete_many({"$or": [{"$where": "this.x == 1"}, {"x": 2}]}).deleted_count == 2

    def test_where_it_may_stand(self, coll):
        coll.insert_one({"a": [1]})
        for refused in [
            lambda: list(coll.aggregate([{"$match": {"$where": "true"}}])),
            lambda: list(coll.find({"a": {"$elemMatch": {"$where": "true"}}})),
            lambda: coll.create_index("a", partialFilterExpression={"$where": "true"}),
            lambda: list(coll.find({"a": {"$not": {"$where": "true"}}})),
            lambda: list(coll.find({"$where": 1})),
            # As since MongoDB 4.4.
            lambda: list(coll.find({"$where": Code("true", {})})),
        ]:
            with pytest.raises(OperationFailure):
                refused()

    def test_truth_is_javascripts(self, coll):
        coll.insert_one({})
        for where, matches in [("''", 0), ("'a'", 1), ("NaN", 0), ("[]", 1), ("null", 0), ("undefined", 0), ("0", 0)]:
            assert len(list(coll.find({"$where": where}))) == matches, where


class TestFunction:
    def test_in_stages_and_queries(self, coll):
        coll.insert_many([{"_id": 1, "v": 5.0}, {"_id": 2, "v": 10.0}])
        double = function("function (x) { return x * 2 }", "$v")
        assert list(coll.aggregate([{"$project": {"d": double}}])) == [{"_id": 1, "d": 10.0}, {"_id": 2, "d": 20.0}]
        assert [d["_id"] for d in coll.find({"$expr": {"$gt": [double, 15]}})] == [2]
        coll.update_one({"_id": 1}, [{"$set": {"v": double}}])
        assert coll.find_one(1)["v"] == 10.0

    def test_types(self, coll):
        values = [
            ObjectId(), Int64(1 << 60), Decimal128("1.50"), datetime(2024, 1, 2, 3, 4, 5, 6000, tzinfo=timezone.utc),
            Timestamp(4_000_000_000, 3), Binary(b"\x00\xff", 128), Regex("^a", "i"), MinKey(), MaxKey(), "é", True,
            None, {"a": {"b": [1.5]}}, [],
        ]
        coll.insert_one({"v": values})
        stage = {"$project": {"_id": 0, "same": function("function (v) { return v }", "$v")}}
        options = coll.codec_options.with_options(tz_aware=True)
        assert coll.with_options(options).aggregate([stage]).next()["same"] == values
        made = function("() => [NumberInt(1), NumberLong(2), NumberDecimal('3'), ISODate('2024-01-01'), 4]")
        [row] = coll.aggregate([{"$project": {"_id": 0, "m": made}}])
        assert row["m"] == [1, Int64(2), Decimal128("3"), datetime(2024, 1, 1), 4.0]

    def test_mistakes(self, coll):
        coll.insert_one({})
        for spec, code in [
            (1, 31260), ({"args": [], "lang": "js"}, 31261), ({"body": "$x", "args": [], "lang": "js"}, 31432),
            ({"body": 1, "args": [], "lang": "js"}, 31262), ({"body": "1", "lang": "js"}, 31263),
            ({"body": "1", "args": []}, 31418), ({"body": "1", "args": [], "lang": "py"}, 31419),
            ({"body": "1", "args": 1, "lang": "js"}, 31266),
        ]:
            with refuses(code):
                list(coll.aggregate([{"$project": {"a": {"$function": spec}}}]))


class TestAccumulator:
    SPEC = {
        "init": "function (n) { return {n: n || 0, all: []} }",
        "accumulate": "function (s, v) { s.n += v; s.all.push(v); return s }",
        "accumulateArgs": ["$v"],
        "merge": "function (a, b) { return {n: a.n + b.n, all: a.all.concat(b.all)} }",
        "finalize": "function (s) { return s.n + s.all.length }",
        "lang": "js",
    }

    def test_groups(self, coll):
        coll.insert_many([{"k": i % 2, "v": i} for i in range(6)])
        rows = coll.aggregate([{"$group": {"_id": "$k", "r": {"$accumulator": self.SPEC}}}, {"$sort": {"_id": 1}}])
        assert list(rows) == [{"_id": 0, "r": 9.0}, {"_id": 1, "r": 12.0}]

    def test_arguments_of_init_see_the_fields_of_the_key(self, coll):
        coll.insert_many([{"k": i % 2, "v": i} for i in range(6)])
        def totals(key, argument):
            spec = {**self.SPEC, "initArgs": [argument]}
            rows = coll.aggregate([{"$group": {"_id": key, "r": {"$accumulator": spec}}}, {"$sort": {"_id": 1}}])
            return [r["r"] for r in rows]

        assert totals({"key": "$k"}, "$key") == [9.0, 13.0]
        assert totals({"key": "$k"}, "$_id.key") == [9.0, 12.0]
        assert totals("$k", "$_id") == [9.0, 12.0]

    @pytest.mark.parametrize("name,code", [("init", 4544707), ("accumulate", 4544708), ("merge", 4544709), ("accumulateArgs", 4544710)])
    def test_what_must_be_given(self, coll, name, code):
        spec = {k: v for k, v in self.SPEC.items() if k != name}
        with refuses(code):
            list(coll.aggregate([{"$group": {"_id": 1, "r": {"$accumulator": spec}}}]))


class TestMapReduce:
    def test_inline(self, words):
        assert by_key(map_reduce(words, COUNT_MAP, COUNT_REDUCE)) == [("a", 3.0), ("b", 2.0), ("c", 1.0)]
        reply = map_reduce(
            words, COUNT_MAP, COUNT_REDUCE, query={"_id": {"$gt": 1}}, sort={"_id": -1}, limit=2,
            scope={"plus": 100}, finalize=Code("function (k, v) { return {k: k, n: v + plus} }"), jsMode=True, verbose=True,
        )
        assert by_key(reply) == [(k, {"k": k, "n": 101.0}) for k in "abc"]

    def test_collections(self, words, db):
        assert map_reduce(words, COUNT_MAP, COUNT_REDUCE, "out")["result"] == "out"
        assert db.out.find_one("a") == {"_id": "a", "value": 3.0}
        db.out.insert_one({"_id": "z", "value": 1.0})
        map_reduce(words, COUNT_MAP, COUNT_REDUCE, {"reduce": "out"})
        assert [d["value"] for d in db.out.find().sort("_id")] == [6.0, 4.0, 2.0, 1.0]
        map_reduce(words, COUNT_MAP, COUNT_REDUCE, {"merge": "out"})
        assert [d["value"] for d in db.out.find().sort("_id")] == [3.0, 2.0, 1.0, 1.0]
        map_reduce(words, COUNT_MAP, COUNT_REDUCE, {"replace": "out"})
        assert db.out.count_documents({}) == 3

    def test_many_values_of_a_key(self, coll):
        coll.insert_many([{"v": 1} for _ in range(5000)])
        reply = map_reduce(coll, "function () { emit(null, {n: this.v}) }", "function (k, vs) { return {n: vs.reduce((s, v) => s + v.n, 0)} }")
        assert reply["results"] == [{"_id": None, "value": {"n": 5000.0}}]

    def test_keys_and_values_of_every_kind(self, coll):
        """As the stages one after another would have them: a stage between them keeps them apart."""
        coll.insert_many([{"_id": i, "s": "é" * (i % 3), "n": i % 4, "d": {"x": i % 2}, "a": [i % 2]} for i in range(40)])
        maps = [
            "function () { emit(this.s, 1); emit(this.n, this.d); emit(this.d, this.a); emit(undefined, undefined) }",
            "function () { emit(this.a, NumberLong(this.n)); emit(new Date(this.n), this.s); emit(ObjectId('65a1b2c3d4e5f60718293a4b'), null) }",
            "function () { for (var i = 0; i < this.n; i++) emit({i: i}, {deep: [this.d, this.s]}) }",
            "function () {}",
        ]
        reduce = "function (k, vs) { return {k: tojson(k), all: tojson(vs)} }"
        for map in maps:
            emits = {"$project": {"_id": 0, "emits": {"$_internalJsEmit": {"this": "$$ROOT", "eval": map}}}}
            group = {"$group": {"_id": "$emits.k", "value": {"$_internalJsReduce": {"data": "$emits", "eval": reduce}}}}
            apart = list(coll.aggregate([emits, {"$set": {"other": 1}}, {"$unwind": "$emits"}, group]))
            assert map_reduce(coll, map, reduce)["results"] == apart
            assert bool(apart) == ("emit" in map)

    def test_groups_that_do_not_fit_into_memory(self, coll):
        coll.insert_many([{"_id": i, "pad": "x" * 2000} for i in range(2000)])
        many = "function () { for (var i = 0; i < 40; i++) emit(i * 2000 + this._id, this.pad); emit('all', 1) }"
        count = "function (k, vs) { return k === 'all' ? Array.sum(vs) : vs.length }"
        coll.database.command("mapReduce", coll.name, map=many, reduce=count, out="spilled")
        out = coll.database.spilled
        assert out.count_documents({}) == 80_001
        assert out.find_one({"_id": "all"})["value"] == 2000

    def test_mistakes(self, words, db):
        for change, code in [
            ({"map": 1}, 2), ({"out": 1}, 2), ({"out": {}}, 2), ({"out": {"replace": "x", "nonAtomic": False}}, 15895),
            ({"limit": -1}, 15958), ({"sort": {}}, 15976), ({"unknown": 1}, 40415), ({"map": "function () { emit(1) }"}, 31220),
        ]:
            command = {"mapReduce": words.name, "map": COUNT_MAP, "reduce": COUNT_REDUCE, "out": {"inline": 1}, **change}
            with refuses(code):
                db.command(command)


def test_stored_functions(coll, db):
    db["system.js"].insert_many([{"_id": "twice", "value": Code("function (x) { return 2 * x }")}, {"_id": "five", "value": 5}])
    coll.insert_many([{"_id": i} for i in range(5)])
    assert [d["_id"] for d in coll.find({"$where": "twice(this._id) > five"})] == [3, 4]
    assert by_key(map_reduce(coll, "function () { emit(1, twice(this._id)) }", COUNT_REDUCE)) == [(1.0, 20.0)]


class TestLimits:
    def test_an_exception_tells_its_line(self, coll):
        coll.insert_one({})
        with pytest.raises(OperationFailure, match=r"ReferenceError: missing is not defined(.|\n)*:2:") as e:
            list(coll.find({"$where": "function () {\n return missing;\n}"}))
        assert e.value.code == 139
        assert e.value.details["codeName"] == "JSInterpreterFailure"

    @pytest.mark.parametrize("body", [
        "() => { var s = 'x'; while (true) s += s }",
        "() => { var a = []; while (true) a.push('x'.repeat(1000) + a.length) }",
        "() => { function f() { return f() + 1 } return f() }",
        "() => { throw 'no' }",
        "function ( {",
    ])
    def test_bombs(self, coll, body):
        coll.insert_one({})
        with refuses(139):
            list(coll.aggregate([{"$project": {"a": function(body)}}]))
        assert coll.count_documents({}) == 1

    def test_max_time(self, coll):
        coll.insert_one({})
        for run in [
            lambda: list(coll.find({"$where": ENDLESS}).max_time_ms(200)),
            lambda: list(coll.aggregate([{"$project": {"a": function(ENDLESS)}}], maxTimeMS=200)),
            lambda: map_reduce(coll, ENDLESS, COUNT_REDUCE, maxTimeMS=200),
            lambda: coll.database.command("update", coll.name, updates=[{"q": {"$where": ENDLESS}, "u": {"$set": {"a": 1}}}], maxTimeMS=200),
        ]:
            begun = time.monotonic()
            with pytest.raises((ExecutionTimeout, OperationFailure)) as e:
                run()
            assert e.value.code == 50
            # A hundred milliseconds are what it may take; the rest is what a busy machine takes.
            assert time.monotonic() - begun < 2

    def test_kill_op(self, client, coll):
        coll.insert_one({})
        seen = []

        def run():
            try:
                list(coll.find({"$where": ENDLESS}, comment="endless"))
            except OperationFailure as e:
                seen.append((e.code, time.monotonic()))

        runner = threading.Thread(target=run)
        runner.start()
        found = []
        deadline = time.monotonic() + 30
        while not found and time.monotonic() < deadline:
            found = [o["opid"] for o in client.admin.aggregate([{"$currentOp": {}}, {"$match": {"command.comment": "endless"}}])]
        client.admin.command("killOp", op=found[0])
        killed = time.monotonic()
        runner.join(30)
        assert seen and seen[0][0] == 11601
        assert seen[0][1] - killed < 2


def test_without_scripts(new_server):
    for options in [["--noscripting"]]:
        server = new_server(*options)
        coll = server.client().db.c
        coll.insert_one({})
        for run in [
            lambda: list(coll.find({"$where": "true"})),
            lambda: list(coll.aggregate([{"$project": {"a": function("1")}}])),
            lambda: map_reduce(coll, COUNT_MAP, COUNT_REDUCE),
        ]:
            with refuses(31264):
                run()
