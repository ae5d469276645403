"""Fail points, as the tests of drivers and applications use them."""

import contextlib

import pymongo
import pytest
from pymongo.errors import ExecutionTimeout, ServerSelectionTimeoutError


@contextlib.contextmanager
def fail_point(client, name, mode="alwaysOn", **data):
    client.admin.command("configureFailPoint", name, mode=mode, data=data)
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", name, mode="off")


@pytest.fixture
def alone(new_server):
    with new_server().client() as client:
        yield client


def test_every_time_limit_is_over(alone):
    coll = alone.db.c
    coll.insert_many([{"_id": i} for i in range(10)])
    limited = coll.find({}, batch_size=2).max_time_ms(60_000)
    next(limited)
    with fail_point(alone, "maxTimeAlwaysTimeOut"):
        with pytest.raises(ExecutionTimeout) as caught:
            coll.find_one({}, max_time_ms=60_000)
        assert caught.value.code == 50 and caught.value.details["codeName"] == "MaxTimeMSExpired"
        with pytest.raises(ExecutionTimeout):
            list(limited)
        with pytest.raises(ExecutionTimeout):
            coll.create_index("a", maxTimeMS=60_000)
        with pytest.raises(ExecutionTimeout):
            coll.aggregate([], maxTimeMS=60_000)
        with pytest.raises(ExecutionTimeout):
            alone.db.command("count", "c", maxTimeMS=60_000)
        assert coll.count_documents({}) == 10, "without a limit nothing is over"
    assert list(coll.index_information()) == ["_id_"]
    assert coll.find_one({"_id": 3}, max_time_ms=60_000) == {"_id": 3}


def test_no_time_limit_is_ever_over(alone):
    alone.db.c.insert_many([{"_id": i} for i in range(2000)])
    slow = [{"$match": {"_id": {"$lt": 1}}}, {"$lookup": {"from": "c", "pipeline": [{"$match": {"$expr": {"$gt": ["$_id", -1]}}}], "as": "all"}}]
    with fail_point(alone, "maxTimeNeverTimeOut"):
        assert len(alone.db.c.aggregate(slow, maxTimeMS=1).next()["all"]) == 2000


def test_mode_counts(alone):
    with fail_point(alone, "maxTimeAlwaysTimeOut", mode={"times": 1}):
        with pytest.raises(ExecutionTimeout):
            alone.db.command("ping", maxTimeMS=60_000)
        assert alone.db.command("ping", maxTimeMS=60_000)["ok"] == 1


def test_the_first_hello_tells_the_application(alone):
    host, port = alone.address
    with fail_point(alone, "failCommand", failCommands=["hello", "ismaster"], appName="refused", closeConnection=True):
        with pymongo.MongoClient(host, port, appName="refused", serverSelectionTimeoutMS=300) as refused:
            with pytest.raises(ServerSelectionTimeoutError):
                refused.admin.command("ping")
        with pymongo.MongoClient(host, port, appName="welcome") as welcome:
            assert welcome.admin.command("ping")["ok"] == 1


def test_a_write_concern_error_is_given_as_it_was_written(alone):
    with fail_point(alone, "failCommand", failCommands=["insert"], writeConcernError={"code": 91}):
        reply = alone.db.command({"insert": "c", "documents": [{"_id": 1}]}, check=False)
        assert reply["writeConcernError"] == {"code": 91} and reply["n"] == 1


def test_a_failed_command_tells_of_its_write_concern_too(alone):
    with fail_point(alone, "failCommand", failCommands=["insert"], errorCode=2, writeConcernError={"code": 64}):
        reply = alone.db.command({"insert": "c", "documents": [{}]}, check=False)
        assert reply["code"] == 2 and reply["writeConcernError"] == {"code": 64}


def test_errors_of_a_changed_state_carry_the_version_of_the_topology(alone):
    version = alone.admin.command("hello")["topologyVersion"]
    for code in (10107, 13435, 13436, 11602, 189):
        with fail_point(alone, "failCommand", failCommands=["insert"], errorCode=code):
            reply = alone.db.command({"insert": "c", "documents": [{}]}, check=False)
            assert reply["code"] == code and reply["topologyVersion"] == version
    with fail_point(alone, "failCommand", failCommands=["insert"], writeConcernError={"code": 189}):
        assert alone.db.command({"insert": "c", "documents": [{}]}, check=False)["topologyVersion"] == version
    # As MongoDB: of a shutdown only when it is one.
    for code in (91, 11600, 50):
        with fail_point(alone, "failCommand", failCommands=["insert"], errorCode=code):
            reply = alone.db.command({"insert": "c", "documents": [{}]}, check=False)
            assert reply["code"] == code and "topologyVersion" not in reply


class TestRetryableWritesThatAreLost:
    @pytest.fixture
    def sent(self, alone):
        """How often the driver sent each command of what it was asked to do."""
        host, port = alone.address
        names = []

        class Listener(pymongo.monitoring.CommandListener):
            def started(self, event):
                names.append(event.command_name)

            def succeeded(self, event):
                pass

            failed = succeeded

        with pymongo.MongoClient(host, port, event_listeners=[Listener()]) as client:
            yield client.db.c, names

    def test_after_they_were_made(self, alone, sent):
        coll, names = sent
        for write, command in [
            (lambda: coll.insert_many([{"_id": 1, "n": 0}, {"_id": 2}]), "insert"),
            (lambda: coll.update_one({"_id": 1}, {"$inc": {"n": 1}}), "update"),
            (lambda: coll.find_one_and_update({"_id": 1}, {"$inc": {"n": 1}}), "findAndModify"),
            (lambda: coll.delete_one({}), "delete"),
        ]:
            names.clear()
            with fail_point(alone, "onPrimaryTransactionalWrite", mode={"times": 1}):
                write()
            assert names == [command, command]
            if command == "findAndModify":
                assert coll.find_one({"_id": 1})["n"] == 2
        assert alone.db.c.count_documents({}) == 1

    def test_before_they_were_made(self, alone, sent):
        coll, names = sent
        with fail_point(alone, "onPrimaryTransactionalWrite", mode={"times": 2}, failBeforeCommitExceptionCode=1):
            with pytest.raises(pymongo.errors.AutoReconnect):
                coll.insert_one({"_id": 1})
            assert coll.insert_one({"_id": 2}).acknowledged
        assert names == ["insert"] * 3
        assert [d["_id"] for d in alone.db.c.find()] == [2]

    def test_statements_are_counted(self, alone, sent):
        coll, _ = sent
        with fail_point(alone, "onPrimaryTransactionalWrite", mode={"skip": 3}, failBeforeCommitExceptionCode=1):
            coll.insert_many([{"_id": i} for i in range(3)])
            with pytest.raises(pymongo.errors.AutoReconnect):
                coll.insert_one({"_id": 3})
        assert alone.db.c.count_documents({}) == 3

    def test_writes_without_a_number_are_not_meant(self, alone):
        with fail_point(alone, "onPrimaryTransactionalWrite"):
            assert alone.db.c.update_many({}, {"$set": {"a": 1}}).matched_count == 0
            assert alone.db.command({"insert": "c", "documents": [{"_id": 1}]})["n"] == 1
