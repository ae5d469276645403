"""What tools, drivers and suites of others rely on, beside what they do with data: messages that they match, lines of the
log that they wait for, the clock of a quiet server."""

import datetime
import json
import math
import re
import socket
import subprocess
import time

import bson
import pymongo
import pytest
from harness import BINARY, Wire, refuses, until
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure
from replica_set import ReplicaSet
from sharded_cluster import ShardedCluster

CASELESS = {"locale": "en", "strength": 2}


@pytest.fixture
def names(coll):
    """A collection where two spellings of a name are one."""
    coll.create_index("name", unique=True, collation=CASELESS)
    coll.insert_one({"_id": 1, "name": "Ann"})
    return coll


class TestStringsThatAreNoText:
    """A driver throws where a string of a reply is not UTF-8."""

    def check(self, details):
        assert re.fullmatch("([0-9a-f]{2})+", details["keyValue"]["name"]), details
        assert details["hexEncoded"] == [True]
        assert details["collation"]["locale"] == "en" and details["collation"]["strength"] == 2
        message = details["errmsg"]
        assert f'dup key: {{ name: "0x{details["keyValue"]["name"]}" }}' in message, message
        assert 'index: name_1 collation: { locale: "en", caseLevel: false' in message, message

    def test_a_duplicate_under_a_collation(self, names):
        with pytest.raises(DuplicateKeyError) as caught:
            names.insert_one({"_id": 2, "name": "ANN"})
        self.check(caught.value.details)
        with pytest.raises(BulkWriteError) as caught:
            names.bulk_write([pymongo.InsertOne({"name": "aNN"})])
        self.check(caught.value.details["writeErrors"][0])
        with pytest.raises(OperationFailure) as caught:
            names.find_one_and_update({"_id": 3}, {"$set": {"name": "ann"}}, upsert=True)
        self.check(caught.value.details)
        with pytest.raises(OperationFailure) as caught:
            names.database.command("aggregate", 1, pipeline=[{"$documents": [{"_id": 4, "name": "ANn"}]}, {"$merge": names.name}], cursor={})
        assert "0x" in str(caught.value)

    def test_an_upsert_that_meets_its_document_updates_it(self, names):
        names.update_one({"name": "ANN"}, {"$set": {"seen": True}}, upsert=True, collation=CASELESS)
        assert names.find_one() == {"_id": 1, "name": "Ann", "seen": True}

    def test_plans(self, names):
        found = names.find({"name": {"$gte": "a", "$lt": "b"}}).collation(CASELESS).explain()
        bounds = json.dumps(found["queryPlanner"]["winningPlan"])
        assert re.search(r"\[CollationKey\(0x[0-9a-f]+\), CollationKey\(0x[0-9a-f]+\)\)", bounds), bounds
        counted = {"count": names.name, "query": {"name": "ANN"}, "collation": CASELESS}
        names.database.command("explain", counted)

    def test_keys_of_an_index(self, coll):
        coll.create_index("a", collation={"locale": "zh"})
        coll.insert_many([{"a": text} for text in ("\u6f22", "\u00f6", "e")])
        for key in coll.find(return_key=True).hint("a_1"):
            assert re.fullmatch("([0-9a-f]{2})+", key["a"]), key
        keys = coll.aggregate([{"$match": {"a": {"$gte": ""}}}, {"$project": {"key": {"$meta": "indexKey"}}}], hint="a_1", collation={"locale": "zh"})
        assert all(re.fullmatch("([0-9a-f]{2})+", d["key"]["a"]) for d in keys)

    def test_a_duplicate_without_a_collation_is_shown_as_it_is(self, coll):
        coll.create_index("name", unique=True)
        coll.insert_one({"name": "Ann"})
        with pytest.raises(DuplicateKeyError) as caught:
            coll.insert_one({"name": "Ann"})
        details = caught.value.details
        assert details["keyValue"] == {"name": "Ann"} and "hexEncoded" not in details and "collation" not in details


class TestDbRefs:
    REF = bson.SON([("$ref", "c"), ("$id", 1)])

    def test_are_pulled(self, coll):
        other = bson.SON([("$ref", "c"), ("$id", 2), ("$db", "d")])
        coll.insert_one({"_id": 1, "a": [self.REF, other, {"x": 1}]})
        for pulled, left in [({"$id": 3}, 3), ({"$db": "d"}, 2), (self.REF, 1)]:
            coll.update_one({"_id": 1}, {"$pull": {"a": pulled}})
            assert len(coll.find_one()["a"]) == left, pulled

    def test_are_values_of_partial_indexes(self, coll):
        coll.create_index("q", partialFilterExpression={"r": self.REF})
        coll.insert_many([{"_id": 1, "r": self.REF, "q": 1}, {"_id": 2, "q": 1}])
        assert [d["_id"] for d in coll.find({"q": 1, "r": self.REF})] == [1]
        assert "IXSCAN" in str(coll.find({"q": 1, "r": self.REF}).explain()["queryPlanner"]["winningPlan"])

    def test_at_the_top_of_a_filter(self, coll):
        coll.insert_one({"_id": 1, "m": [self.REF]})
        assert list(coll.find({"$id": 1})) == []


class TestEncryption:
    """Schemas of client-side encryption, which drivers send to servers too."""

    KEY = bson.Binary(b"k" * 16, 4)

    def encrypted(self, of):
        return bson.Binary(b"\x02" + b"k" * 16 + bytes([of]) + b"cipher", 6)

    def test_values_must_be_encrypted(self, db):
        how = {"keyId": [self.KEY], "algorithm": "AEAD_AES_256_CBC_HMAC_SHA_512-Random", "bsonType": "string"}
        schema = {"encryptMetadata": {"keyId": [self.KEY]}, "properties": {"ssn": {"encrypt": how}, "any": {"encrypt": {}}}}
        people = db.create_collection("people", validator={"$jsonSchema": schema})
        people.insert_many([{"_id": 1, "ssn": self.encrypted(2), "any": self.encrypted(16)}, {"_id": 2}])
        for wrong in ({"ssn": "123"}, {"any": 1}, {"ssn": self.encrypted(16)}, {"any": bson.Binary(b"x", 0)}):
            with refuses(121):
                people.insert_one(wrong)

    def test_what_is_written_wrongly(self, coll):
        for schema, code in [
            ({"properties": {"a": {"encrypt": 1}}}, 14),
            ({"properties": {"a": {"encrypt": {"x": 1}}}}, 40415),
            ({"properties": {"a": {"encrypt": {}, "bsonType": "string"}}}, 9),
        ]:
            with refuses(code):
                list(coll.find({"$jsonSchema": schema}))


def test_numbers_out_of_text(coll):
    coll.insert_one({})
    def convert(text, to="double"):
        spec = {"input": text, "to": to, "onError": "refused"}
        return next(coll.aggregate([{"$project": {"v": {"$convert": spec}}}]))["v"]

    table = [("0x1A", "refused"), ("0x1p3", "refused"), ("0X1A", 26.0), ("-0x1A", -26.0), ("1e3", 1000.0), ("-1.5", -1.5), ("inf", float("inf")),
             (" 1", "refused"), ("1 ", "refused"), ("", "refused"), (".5", 0.5), ("5.", 5.0), ("1_0", "refused")]
    assert [(text, convert(text)) for text, _ in table] == table
    for to in ("int", "long", "decimal"):
        assert convert("0x1A", to) == "refused"
    with refuses(241, containing="Illegal hexadecimal input in $convert with no onError value: 0x1A"):
        list(coll.aggregate([{"$project": {"v": {"$toDouble": "0x1A"}}}]))


def test_a_facet_is_larger_than_a_document_between_stages(coll):
    coll.insert_many([{"_id": i, "pad": "x" * 1_000_000} for i in range(20)])
    stages = [{"$facet": {"all": [{"$match": {}}]}}]
    found = next(coll.aggregate([*stages, {"$project": {"n": {"$size": "$all"}}}]))
    assert found["n"] == 20
    with refuses(10334):
        list(coll.aggregate(stages))


class TestDocumentsPastTheLimit:
    HALF = "x" * (9 << 20)

    def test_updates(self, coll):
        coll.insert_one({"_id": 1, "a": self.HALF})
        grow = {"$set": {"b": self.HALF}}
        for change in (grow, [{"$set": {"b": {"$literal": self.HALF}}}]):
            with refuses(10334, containing="Resulting document after update is larger than 16777216"):
                coll.update_one({"_id": 1}, change)
        with refuses(10334, containing="Resulting document after update is larger than 16777216"):
            coll.find_one_and_update({"_id": 1}, grow)

    def test_upserts(self, coll):
        with refuses(7655103, containing="Document to upsert is larger than 16777216"):
            coll.update_one({"_id": 1, "a": self.HALF}, [{"$set": {"b": "$a"}}], upsert=True)
        assert coll.find_one() is None


class TestIndexes:
    def test_what_a_client_matches_where_the_weights_of_a_text_index_change(self, coll):
        coll.create_index([("a", "text")], name="t", weights={"a": 2})
        with refuses(85, "IndexOptionsConflict", "An equivalent index already exists with the same name but different options."):
            coll.create_index([("a", "text")], name="t", weights={"a": 3})

    def test_specifications_in_messages_are_written_as_the_shell_does(self, coll):
        coll.create_index("a", name="n")
        with refuses(86, containing='existing index: { v: 2, key: { a: 1 }, name: "n" }'):
            coll.create_index("b", name="n")

    def test_options_of_text_indexes_on_others(self, coll):
        coll.create_index("a", default_language="none", language_override="lang", textIndexVersion=3)
        (spec,) = [i for i in coll.list_indexes() if i["name"] == "a_1"]
        assert (spec["default_language"], spec["language_override"], spec["textIndexVersion"]) == ("none", "lang", 3)
        with refuses(67):
            coll.create_index("b", weights={"b": 1})

    def test_a_2d_index_has_no_collation(self, db):
        with refuses(67, containing="Index type '2d' does not support collation"):
            db.c.create_index([("p", "2d")], collation=CASELESS)
        german = db.create_collection("german", collation={"locale": "de"})
        with refuses(67):
            german.create_index([("p", "2d")])
        german.create_index([("p", "2d")], collation={"locale": "simple"})

    def test_false_is_kept_of_sparse(self, coll):
        coll.create_index("a", sparse=False, unique=False)
        (spec,) = [i for i in coll.list_indexes() if i["name"] == "a_1"]
        assert spec["sparse"] is False and "unique" not in spec
        assert coll.create_index("a") == "a_1"

    def test_the_field_that_lacks_a_geospatial_index(self, coll):
        coll.insert_one({"loc": [1, 1]})
        with refuses(291) as caught:
            list(coll.find({"loc": {"$nearSphere": [1, 2], "$maxDistance": 0.5}, "a": 1}).sort("a", 1))
        message = caught.value.details["errmsg"]
        assert message == (
            f"error processing query: ns={coll.full_name}Tree: $and\n    a $eq 1\n    GEONEAR  field=loc maxdist=0.5 isNearSphere=1\n"
            "Sort: { a: 1 }\nProj: {}\n planner returned error :: caused by :: unable to find index for $geoNear query"
        )
        assert re.search("field=([A-Za-z_0-9]+) ", message).group(1) == "loc"


def test_databases_do_not_differ_by_case_only(client):
    client["CaseOne"].a.insert_one({})
    other = client["caseone"]
    makers = [
        lambda: other.a.insert_one({}),
        lambda: other.create_collection("a"),
        lambda: other.command("create", "t", timeseries={"timeField": "t"}),
        lambda: other.create_collection("v", viewOn="a", pipeline=[]),
        lambda: other.a.create_index("a"),
        lambda: other.a.update_one({"a": 1}, {"$set": {"b": 1}}, upsert=True),
        lambda: list(client["CaseOne"].a.aggregate([{"$out": {"db": "caseone", "coll": "o"}}])),
        lambda: client.admin.command("renameCollection", "CaseOne.a", to="caseone.a"),
    ]
    try:
        for make in makers:
            with refuses(13297):
                make()
        with client.start_session() as session, session.start_transaction():
            with refuses(13297):
                other.a.insert_one({}, session=session)
            session.abort_transaction()
        client["CaseOne"].b.insert_one({})
        client.drop_database("CaseOne")
        other.a.insert_one({})
    finally:
        client.drop_database("CaseOne")
        client.drop_database("caseone")


def test_a_set_by_itself_is_among_the_options(client):
    """Suites look there for what they can run."""
    assert client.admin.command("getCmdLineOpts")["parsed"]["replication"]["replSet"] == "rs0"


def test_the_reply_of_an_unacknowledged_bulk_write(client, db):
    reply = client.admin.command({
        "bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": f"{db.name}.c"}], "writeConcern": {"w": 0},
    })
    assert reply["cursor"] == {"id": 0, "firstBatch": [], "ns": "admin.$cmd.bulkWrite"}
    assert [reply[f"n{name}"] for name in ("Errors", "Inserted", "Matched", "Modified", "Upserted", "Deleted")] == [0] * 6
    until("the document", lambda: db.c.count_documents({}) == 1)


class TestHintsInPlans:
    @pytest.fixture
    def things(self, coll):
        coll.create_index("a")
        coll.create_index("b", sparse=True)
        coll.insert_many([{"_id": i, "a": i, "b": i} for i in range(5)])
        return coll

    def plan(self, coll, command):
        return coll.database.command("explain", command)["queryPlanner"]["winningPlan"]

    def test_by_id(self, things):
        for hint in ({"_id": 1}, "_id_"):
            plan = self.plan(things, {"find": things.name, "filter": {}, "hint": hint})
            assert (plan["stage"], plan["inputStage"]["stage"], plan["inputStage"]["indexName"]) == ("FETCH", "IXSCAN", "_id_")
        assert self.plan(things, {"find": things.name, "filter": {}})["stage"] == "COLLSCAN"
        for hint in ({"_id": 1}, "_id_"):
            plan = self.plan(things, {"aggregate": things.name, "pipeline": [{"$match": {"a": 1}}], "cursor": {}, "hint": hint})
            assert (plan["stage"], plan["inputStage"]["stage"], plan["inputStage"]["indexName"]) == ("FETCH", "IXSCAN", "_id_")

    def test_of_counts(self, things):
        plan = self.plan(things, {"count": things.name, "query": {"a": 1}, "hint": "b_1"})
        assert plan["stage"] == "COUNT" and "'indexName': 'b_1'" in str(plan)
        plan = self.plan(things, {"count": things.name, "query": {}, "hint": "b_1"})
        assert "'indexName': 'b_1'" in str(plan), plan
        for hint in ({"_id": 1}, "_id_"):
            plan = self.plan(things, {"count": things.name, "query": {}, "hint": hint})
            scan = plan["inputStage"]
            assert (plan["stage"], scan["stage"], scan["indexName"]) == ("COUNT", "COUNT_SCAN", "_id_"), plan
            assert scan["indexBounds"]["startKeyInclusive"] and list(scan["indexBounds"]["endKey"]) == ["_id"]
        explained = things.database.command("explain", {"count": things.name, "hint": "_id_"}, verbosity="executionStats")
        assert explained["executionStats"]["totalKeysExamined"] == 6
        assert self.plan(things, {"count": things.name, "query": {}})["stage"] == "RECORD_STORE_FAST_COUNT"
        assert "'indexName': 'a_1'" in str(self.plan(things, {"count": things.name, "query": {"a": 1}}))


def test_explain_of_long_lists_fits_into_a_reply(coll):
    coll.create_index("a")
    coll.insert_many([{"a": i} for i in range(10)])
    for query in ({"a": {"$in": list(range(1_000_000))}}, {"b": {"$in": list(range(1_000_000))}}):
        reply = coll.database.command("explain", {"find": coll.name, "filter": query}, verbosity="executionStats")
        assert len(bson.encode(reply)) < 16 << 20
        assert "omitted due to BSON size limit" in reply["queryPlanner"]["warning"]
    few = {"a": {"$in": [1, 2]}}
    reply = coll.database.command("explain", {"find": coll.name, "filter": few})
    assert "warning" not in reply["queryPlanner"] and reply["command"]["filter"] == few


class TestScripts:
    def test_ends_in_semicolons(self, coll):
        coll.insert_many([{"_id": 1, "a": 1}, {"_id": 2, "a": 2}])
        for text in ("function(){ return this.a==1; };", "this.a == 1;", "var x=1; this.a==x", "var x = 1;\nthis.a == x;\n"):
            assert [d["_id"] for d in coll.find({"$where": text})] == [1], text

    def test_functions_that_are_stored(self, db):
        db["system.js"].insert_one({"_id": "twice", "value": bson.Code("function (x) { return 2 * x; };")})
        db.c.insert_many([{"a": 1}, {"a": 2}])
        assert [d["a"] for d in db.c.find({"$where": "twice(this.a) == 4"})] == [2]

    def test_map_and_reduce(self, db):
        db.c.insert_many([{"a": 1}, {"a": 1}])
        reply = db.command("mapReduce", "c", map="function f(x) { return x; }; emit(f(this.a), 1)",
                           reduce="function (k, v) { return Array.sum(v); };", out={"inline": 1})
        assert reply["results"] == [{"_id": 1.0, "value": 2.0}]


def test_how_many_of_a_group(coll):
    coll.insert_many([{"game": g, "score": s} for g in (1, 2) for s in (10, 20, 30)])
    def groups(n):
        top = {"$topN": {"n": n, "sortBy": {"score": -1}, "output": "$score"}}
        return {g["_id"]["n"]: g["top"] for g in coll.aggregate([{"$group": {"_id": {"n": "$game"}, "top": top}}])}

    assert groups("$n") == {1: [30], 2: [30, 20]}
    with refuses(7548606):
        groups("$_id.n")


class TestWindowsOfTime:
    """Differences come before the division by the unit; averages are of decimals."""

    def rows(self, coll, function, **more):
        start = datetime.datetime(2024, 1, 1)
        coll.insert_many([{"_id": i, "t": start + datetime.timedelta(milliseconds=10 * i), "v": i} for i in range(5)])
        stage = {"sortBy": {"t": 1}, "output": {"r": {**function, **more}}}
        return [d["r"] for d in coll.aggregate([{"$setWindowFields": stage}, {"$sort": {"_id": 1}}])]

    def test_derivatives(self, coll):
        function = {"$derivative": {"input": "$v", "unit": "hour"}}
        assert self.rows(coll, function, window={"documents": [-1, 0]}) == [None] + [360000.0] * 4

    def test_integrals(self, coll):
        function = {"$integral": {"input": "$v", "unit": "second"}}
        assert self.rows(coll, function, window={"documents": ["unbounded", "current"]}) == [0.0, 0.005, 0.02, 0.045, 0.08]

    def test_averages(self, coll):
        coll.insert_many([{"_id": i, "v": v} for i, v in enumerate((0.1, 0.2, 0.3))])
        stage = {"sortBy": {"_id": 1}, "output": {"r": {"$expMovingAvg": {"input": "$v", "alpha": 0.3}}}}
        assert [d["r"] for d in coll.aggregate([{"$setWindowFields": stage}])] == [0.1, 0.13, 0.181]


def test_tokens_that_mongodb_made(coll):
    coll.insert_one({})
    event = "8265A0000000000001" "2B022C0100296E5A1004D5B1F1A9C7E64F0FA1E3B1C2D3E4F506463C5F6964003C04"
    for option in ("resumeAfter", "startAfter"):
        with refuses(280, "ChangeStreamFatalError") as caught:
            coll.aggregate([{"$changeStream": {option: {"_data": event}}}])
        assert caught.value.has_error_label("NonResumableChangeStreamError")


class TestLog:
    """mongodb-memory-server and its kin wait for these."""

    SENTENCE = "Transition to primary complete; database writes are now permitted"

    def lines(self, server):
        out = []
        for line in server.log.read_text().splitlines():
            if line.startswith("{"):
                out.append(json.loads(line))
        return out

    def transitions(self, server):
        return [line["msg"] for line in self.lines(server) if line.get("id") == 21331]

    def test_the_build(self, new_server):
        """mongodb-runner takes the version from it."""
        [line] = [line for line in self.lines(new_server()) if line.get("id") == 23403]
        assert (line["c"], line["ctx"], line["msg"]) == ("CONTROL", "initandlisten", "Build Info")
        assert line["attr"]["buildInfo"]["version"].startswith("8.") and line["attr"]["buildInfo"]["modules"] == []

    @pytest.mark.parametrize("routes, number, ctx", [(False, 20568, "initandlisten"), (True, 22856, "mongosMain")])
    def test_a_port_that_is_taken(self, new_server, tmp_path, routes, number, ctx):
        """mongodb-memory-server and mongodb-runner try another one."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            what = ["route", "--configdb", "c/127.0.0.1:1"] if routes else ["serve", "--dbpath", tmp_path / "d"]
            ended = subprocess.run([BINARY, *what, "--port", str(port)], capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0
        lines = [json.loads(line) for line in (ended.stdout + ended.stderr).splitlines() if line.startswith("{")]
        [line] = [line for line in lines if line.get("id") == number]
        assert (line["s"], line["ctx"], line["msg"]) == ("E", ctx, "Error setting up listener")
        assert line["attr"]["error"] == {"code": 9001, "codeName": "SocketException", "errmsg": "Address already in use"}

    def test_a_server_that_is_a_set_by_itself(self, new_server):
        assert self.transitions(new_server()) == [self.SENTENCE]

    def test_a_set_that_is_initiated(self, new_server):
        server = new_server("--replSet", "rs")
        assert self.transitions(server) == []
        assert "member of replica set rs, which replSetInitiate has still to make" in server.log.read_text()
        with server.client() as client:
            client.admin.command("replSetInitiate")
            until("the sentence", lambda: self.transitions(server) == [self.SENTENCE])
            states = [line["attr"]["newState"] for line in self.lines(server) if line.get("id") == 21358]
            assert states[-1] == "PRIMARY", states
        server.restart()
        until("the sentence of the second start", lambda: len(self.transitions(server)) == 2)
        assert server.log.read_text().count("  topology    member of replica set rs\n") == 1


class TestClock:
    OFTEN = ("--setParameter", "periodicNoopIntervalSecs=1")

    def goes_on(self, client):
        def seconds():
            return client.admin.command("ping")["operationTime"].time

        began = seconds()
        until("the clock goes on by itself", lambda: seconds() >= began + 2, 15)

    def test_of_a_quiet_server(self, new_server):
        with new_server(*self.OFTEN).client() as client:
            self.goes_on(client)
            note = client.local["oplog.rs"].find_one({"op": "n", "o.msg": "periodic noop"})
            assert note["ns"] == ""
            # A stream's token goes on though there is nothing to tell.
            with client.d.c.watch(max_await_time_ms=100) as stream:
                stream.try_next()
                first = stream.resume_token["_data"]
                until("the token goes on", lambda: stream.try_next() is None and stream.resume_token["_data"] > first, 15)
            def last_write():
                return client.admin.command("hello")["lastWrite"]["opTime"]["ts"].time

            first = last_write()
            until("lastWrite goes on", lambda: last_write() > first, 15)

    def test_of_a_set(self, tmp_path):
        with ReplicaSet(tmp_path, size=2, options=self.OFTEN) as members:
            members.initiate()
            with members.client() as client:
                self.goes_on(client)
            for member in members.members:
                assert "Writes fail" not in member.log.read_text()

    def test_of_a_cluster(self, tmp_path):
        """Through a router: its clock, and the tokens of a stream over idle shards."""
        with ShardedCluster(tmp_path, options=self.OFTEN, routers=2) as cluster, cluster.client() as client:
            client.admin.command("shardCollection", "d.c", key={"_id": "hashed"})
            self.goes_on(client)
            # A router that reads and writes nothing learns the time from the answers to its hello.
            with cluster.routers[1].wire() as bare:
                times = set()

                def goes_on():
                    times.add(bare.command({"ping": 1, "$db": "admin"})["operationTime"])
                    return len(times) > 1

                until("the clock of the other router goes on", goes_on, 25)
            with client.d.c.watch(max_await_time_ms=100) as stream:
                stream.try_next()
                first = stream.resume_token["_data"]
                until("the token goes on", lambda: stream.try_next() is None and stream.resume_token["_data"] > first, 30)

    def test_can_be_switched_off(self, new_server):
        with new_server(*self.OFTEN, "--setParameter", "writePeriodicNoops=false").client() as client:
            first = client.admin.command("ping")["operationTime"]
            # One would be written each second.
            time.sleep(1.5)
            assert client.admin.command("ping")["operationTime"] == first


def test_a_change_stream_begins_where_its_aggregate_was_read(server):
    """However long it waits for a thread: what others write meanwhile is behind its beginning."""
    with Wire(server.port) as watcher, server.client() as client:
        coll = client.begins.c
        coll.insert_one({})
        held = {"failCommands": ["aggregate"], "blockConnection": True, "blockTimeMS": 700}
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=held)
        opening = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}, "$db": "begins"}
        watcher.send_body(bson.encode(opening))
        until("it is held", lambda: client.admin.command("currentOp", {"command.aggregate": "c"})["inprog"])
        coll.insert_one({"_id": 1})
        cursor = watcher.receive_msg()["cursor"]
        found = [e["documentKey"]["_id"] for e in cursor["firstBatch"]]
        if not found:
            more = watcher.command({"getMore": cursor["id"], "collection": "c", "maxTimeMS": 5000, "$db": "begins"})
            found = [e["documentKey"]["_id"] for e in more["cursor"]["nextBatch"]]
        assert found == [1]
        client.drop_database("begins")


def test_numbers_without_a_value_are_printed_in_errors_as_there(coll):
    for given, printed in ((math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"), (1.5, "1.5")):
        with refuses(2, "BadValue") as refused:
            coll.find_one({"a": {"$type": given}})
        assert refused.value.details["errmsg"] == f"Invalid numerical type code: {printed}"


@pytest.mark.parametrize("bound", [2**31, -(2**31) - 1, 2.0**31, math.inf, 0.5])
def test_bounds_of_windows_are_of_32_bits(coll, bound):
    coll.insert_one({"t": 1})

    def sums(low, high):
        output = {"s": {"$sum": "$t", "window": {"documents": [low, high]}}}
        return list(coll.aggregate([{"$setWindowFields": {"sortBy": {"t": 1}, "output": output}}]))

    assert sums(-(2**31), 2**31 - 1)[0]["s"] == 1
    with refuses(9, "FailedToParse"):
        sums(*sorted([0, bound]))


class TestFiguresThatDashboardsRead:
    def test_of_a_collection(self, coll):
        coll.create_index("a")
        coll.insert_many([{"a": n} for n in range(100)])
        for told in (
            coll.database.command("collStats", coll.name),
            next(coll.aggregate([{"$collStats": {"storageStats": {}}}]))["storageStats"],
        ):
            tables = [told["wiredTiger"], *told["indexDetails"].values()]
            assert len(tables) == 3
            for table in tables:
                assert table["type"] == "file"
                assert table["block-manager"]["file bytes available for reuse"] == 0
            assert told["wiredTiger"]["block-manager"]["file size in bytes"] == told["storageSize"]

    def test_of_transactions(self, client, coll):
        def ended():
            told = client.admin.command("serverStatus")["wiredTiger"]["transaction"]
            return told["transactions committed"], told["transactions rolled back"]

        coll.insert_one({"_id": 0})
        committed, rolled_back = ended()
        with client.start_session() as session:
            with session.start_transaction():
                coll.insert_one({"_id": 1}, session=session)
            session.start_transaction()
            coll.insert_one({"_id": 2}, session=session)
            session.abort_transaction()
        assert ended() == (committed + 1, rolled_back + 1)
        told = client.admin.command("serverStatus")
        assert told["metrics"]["record"] == {"moves": 0}
        assert told["wiredTiger"]["session"]["open session count"] >= 1

    def test_of_waits_for_other_members(self, tmp_path):
        with ReplicaSet(tmp_path, size=2) as members:
            members.initiate()
            with members.client() as client:

                def waits():
                    return client.admin.command("serverStatus")["metrics"]["getLastError"]

                before = waits()
                client.t.c.with_options(write_concern=pymongo.WriteConcern(w=2)).insert_one({})
                assert waits()["wtime"]["num"] > before["wtime"]["num"]
                assert waits()["wtimeouts"] == before["wtimeouts"]
                secondary = next(m for m in members.members if m is not members.primary())
                with secondary.client() as direct:
                    until("it has applied", lambda: direct.admin.command("serverStatus")["metrics"]["repl"]["apply"]["ops"] > 0)

    # What dashboards read of serverStatus, by section: Datadog's check, and of others a part.
    PATHS = {
        "flowControl": "targetRateLimit timeAcquiringMicros isLagged isLaggedCount isLaggedTimeMicros",
        "locks.Global.acquireCount": "r w R W",
        "locks.Database.timeAcquiringMicros": "r w R W",
        "locks.Collection.acquireWaitCount": "r w R W",
        "locks.oplog.acquireCount": "r w",
        "network.compression.snappy.compressor": "bytesIn bytesOut",
        "queues.execution.read": "out available totalTickets",
        "queues.execution.write": "out available totalTickets",
        "tcmalloc.generic": "current_allocated_bytes heap_size",
        "tcmalloc.tcmalloc": "pageheap_free_bytes thread_cache_free_bytes spinlock_total_delay_ns",
        "electionMetrics.electionTimeout": "called successful",
        "electionMetrics": "numCatchUps averageCatchUpOps numStepDownsCausedByHigherTerm",
        "metrics.repl.apply": "ops",
        "metrics.repl.apply.batches": "num totalMillis",
        "metrics.repl.buffer": "count maxSizeBytes sizeBytes",
        "metrics.repl.network": "bytes ops readersCreated",
        "metrics.repl.network.getmores": "num totalMillis",
        "metrics.getLastError.wtime": "num totalMillis",
        "metrics.query.planCache.classic": "hits misses",
        "wiredTiger.data-handle": ["connection data handles currently active"],
        "wiredTiger.connection": ["files currently open", "total read I/Os", "total write I/Os"],
        "wiredTiger.log": ["log bytes written", "log write operations", "log sync operations"],
        "wiredTiger.session": ["open cursor count", "open session count"],
        "wiredTiger.transaction": [
            "transaction begins", "transaction checkpoints", "transaction checkpoint total time (msecs)",
            "transaction checkpoint most recent time (msecs)", "transactions committed", "transactions rolled back",
        ],
        "wiredTiger.cache": [
            "bytes currently in the cache", "maximum bytes configured", "tracked dirty bytes in the cache", "bytes read into cache",
            "bytes written from cache", "pages read into cache", "pages written from cache", "pages currently held in the cache",
            "pages evicted by application threads", "pages queued for eviction", "pages requested from the cache", "modified pages evicted",
            "unmodified pages evicted", "internal pages evicted", "in-memory page splits", "maximum page size at eviction",
            "eviction server evicting pages", "eviction worker thread evicting pages",
            "failed eviction of pages that exceeded the in-memory maximum", "pages evicted because they exceeded the in-memory maximum",
            "application threads page read from disk to cache count", "application threads page write from cache to disk time (usecs)",
        ],
        "wiredTiger.concurrentTransactions.read": "out available totalTickets",
    }

    def test_nothing_is_missing_that_dashboards_read(self, client):
        told = client.admin.command("serverStatus")
        missing = []
        for section, names in self.PATHS.items():
            found = told
            for part in section.split("."):
                found = found.get(part, {})
            names = names.split() if isinstance(names, str) else names
            missing += [f"{section}.{name}" for name in names if not isinstance(found.get(name), (int, float))]
        assert missing == []

    def test_operators_are_counted(self, client, coll):
        coll.insert_one({"a": 1})

        def counted():
            metrics = client.admin.command("serverStatus")["metrics"]
            operators = metrics["operatorCounters"]
            return [
                metrics["aggStageCounters"]["$sortByCount"], operators["match"]["$bitsAnySet"], operators["expressions"]["$atan2"],
                operators["groupAccumulators"]["$stdDevPop"], operators["windowAccumulators"]["$expMovingAvg"],
            ]

        before = counted()
        coll.find_one({"a": {"$bitsAnySet": 1}})
        coll.update_many({"a": {"$not": {"$bitsAnySet": 2}}}, {"$set": {"b": 1}})
        list(coll.aggregate([
            {"$setWindowFields": {"sortBy": {"a": 1}, "output": {"e": {"$expMovingAvg": {"input": "$a", "N": 2}}}}},
            {"$group": {"_id": {"$atan2": ["$a", 1]}, "s": {"$stdDevPop": "$a"}}}, {"$sortByCount": "$s"},
        ]))
        with refuses(40324):
            list(coll.aggregate([{"$sortByCount": "$a"}, {"$nonsense": 1}]))
        assert counted() == [before[0] + 1, before[1] + 2, before[2] + 1, before[3] + 1, before[4] + 1]

    def test_of_plans_that_are_remembered(self, client, coll):
        def figures():
            found = client.admin.command("serverStatus")["metrics"]["query"]["planCache"]
            return found["totalQueryShapes"], found["classic"]["hits"]

        coll.create_index("a")
        coll.create_index("b")
        coll.insert_many([{"a": i % 7, "b": i % 5} for i in range(500)])
        shapes, hits = figures()
        for i in range(20):
            list(coll.find({"a": i % 7, "b": i % 5}).limit(3))
        if len(list(coll.aggregate([{"$planCacheStats": {}}]))):
            assert figures()[0] > shapes and figures()[1] > hits

    def test_of_members(self, client):
        [own] = client.admin.command("replSetGetStatus")["members"]
        for name in ("optime", "optimeDurable", "optimeWritten"):
            assert own[name]["ts"].time > 0
        for name in ("optimeDate", "optimeWrittenDate", "lastAppliedWallTime", "lastWrittenWallTime"):
            assert isinstance(own[name], datetime.datetime)
        elected = client.admin.command("replSetGetStatus")["electionCandidateMetrics"]
        assert {"priorityAtElection", "electionTimeoutMillis", "newTermStartDate", "wMajorityWriteAvailabilityDate"} <= set(elected)

    def test_of_time_series(self, db):
        series = db.create_collection("s", timeseries={"timeField": "t", "metaField": "m"})
        start = datetime.datetime(2024, 1, 1)
        series.insert_many([{"t": start + datetime.timedelta(milliseconds=i), "m": 1} for i in range(1500)])
        series.insert_many([{"t": start + datetime.timedelta(days=i), "m": 2} for i in range(3)])
        found = db.command("collStats", "s")["timeseries"]
        assert found["numMeasurementsCommitted"] == 1503
        assert found["numBucketInserts"] == found["numCommits"] == 5 and found["numBucketUpdates"] == 0
        assert found["numBucketsClosedDueToCount"] == 1 and found["numBucketsClosedDueToTimeForward"] == 2
        for i in range(300):
            series.insert_one({"t": start + datetime.timedelta(milliseconds=i), "m": 3})
        found = db.command("collStats", "s")["timeseries"]
        assert found["numBucketUpdates"] > 0 and found["numMeasurementsCommitted"] == 1803


class TestSplitVector:
    """Readers that work in parts (Hadoop's and Spark's connectors) ask for it."""

    def test_of_parts(self, db):
        db.c.insert_many([{"_id": i, "pad": "x" * 1000} for i in range(4000)])
        found = db.command("splitVector", f"{db.name}.c", keyPattern={"_id": 1}, maxChunkSizeBytes=1 << 20)["splitKeys"]
        cuts = [k["_id"] for k in found]
        assert 6 <= len(cuts) <= 8 and cuts == sorted(set(cuts))
        lengths = [b - a for a, b in zip([0, *cuts], cuts)]
        assert max(lengths) - min(lengths) <= 1
        within = db.command("splitVector", f"{db.name}.c", keyPattern={"_id": 1}, maxChunkSizeBytes=1 << 20, min={"_id": 1000}, max={"_id": 2000})
        assert within["splitKeys"] and all(1000 <= k["_id"] < 2000 for k in within["splitKeys"])
        assert len(db.command("splitVector", f"{db.name}.c", keyPattern={"_id": 1}, force=True)["splitKeys"]) == 1
        assert db.command("splitVector", f"{db.name}.c", keyPattern={"_id": 1}, maxChunkSize=64)["splitKeys"] == []

    def test_equal_keys_lie_together(self, coll):
        coll.create_index("k")
        coll.insert_many([{"k": i // 1000, "pad": "x" * 1000} for i in range(4000)])
        found = coll.database.command("splitVector", coll.full_name, keyPattern={"k": 1}, maxChunkSizeBytes=1 << 20)["splitKeys"]
        assert [k["k"] for k in found] == [1, 2, 3]

    def test_what_is_refused(self, coll):
        coll.insert_one({})
        ask = {"splitVector": coll.full_name, "keyPattern": {"k": 1}, "maxChunkSizeBytes": 1}
        with refuses(27):
            coll.database.command(ask)
        with refuses(72):
            coll.database.command("splitVector", coll.full_name, keyPattern={"_id": 1})
        with refuses(26):
            coll.database.command("splitVector", "no.where", keyPattern={"_id": 1})


def test_a_server_that_is_no_shard(client):
    assert client.admin.command("shardingState")["enabled"] is False
    with refuses(203):
        client.admin.command("getShardMap")
