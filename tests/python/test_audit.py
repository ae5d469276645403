"""The audit log."""

import json

import pytest
from pymongo.errors import OperationFailure

from harness import Server

ROOT = {"username": "root", "password": "TopSecret", "authSource": "admin"}


def events(path, atype=None):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [e for e in lines if atype is None or e["atype"] == atype]


@pytest.fixture
def audited(new_server, tmp_path):
    path = tmp_path / "audit.json"

    def start(*more):
        server = new_server("--auth", "--auditDestination", "file", "--auditFormat", "JSON", "--auditPath", path, *more)
        server.client().admin.command("createUser", "root", pwd=ROOT["password"], roles=["root"])
        return server, path

    return start


def test_who_did_what(audited):
    server, path = audited()
    assert path.stat().st_mode & 0o077 == 0
    with server.client(**ROOT) as root:
        root.shop.command("createUser", "ann", pwd="TopSecret2", roles=["read"])
        root.shop.create_collection("things")
        root.shop.things.create_index("a", name="by_a")
        root.shop.things.insert_one({})
        root.shop.things.drop_index("by_a")
        root.shop.things.rename("others")
        root.shop.others.drop()
        root.shop.command("createRole", "r", privileges=[], roles=["read"])
        root.shop.command("grantRolesToUser", "ann", roles=["r"])
        root.shop.command("dropUser", "ann")
        root.drop_database("shop")
        with pytest.raises(OperationFailure):
            root.shop.command("dropUser", "nobody")
        root.admin.command("logout")
    seen = [e["atype"] for e in events(path) if e["atype"] != "authenticate"]
    assert seen == [
        "createUser",
        "createUser",
        "createCollection",
        "createIndex",
        "dropIndex",
        "renameCollection",
        "dropCollection",
        "createRole",
        "grantRolesToUser",
        "dropUser",
        "dropDatabase",
        "dropUser",
        "logout",
    ]
    [first, ann] = events(path, "createUser")
    assert first["users"] == [] and ann["users"] == [{"user": "root", "db": "admin"}]
    assert ann["roles"] == [{"role": "root", "db": "admin"}]
    assert ann["param"] == {"user": "ann", "db": "shop", "roles": ["read"]} and ann["result"] == 0
    assert set(ann) == {"atype", "ts", "uuid", "local", "remote", "users", "roles", "param", "result"}
    assert ann["remote"]["ip"] == "127.0.0.1" and ann["local"]["port"] == server.port and "$date" in ann["ts"]
    assert events(path, "dropUser")[1]["result"] == 11
    assert events(path, "createCollection")[0]["param"] == {"ns": "shop.things"}
    assert events(path, "renameCollection")[0]["param"] == {"old": "shop.things", "new": "shop.others"}
    assert "TopSecret" not in path.read_text()


def test_logins_and_refusals(audited):
    server, path = audited()
    with server.client(**ROOT) as root:
        root.shop.command("createUser", "ann", pwd="p", roles=["read"])
    with server.client(username="ann", password="p", authSource="shop") as ann:
        ann.shop.things.find_one()
        with pytest.raises(OperationFailure):
            ann.shop.things.insert_one({"_id": 1})
    with server.client(username="ann", password="wrong", authSource="shop") as ann, pytest.raises(OperationFailure):
        ann.shop.things.find_one()
    logins = [(e["param"]["user"], e["result"]) for e in events(path, "authenticate")]
    assert ("root", 0) in logins and ("ann", 0) in logins and ("ann", 18) in logins
    [refused] = [e for e in events(path, "authCheck") if e["users"]]
    assert refused["param"]["command"] == "insert" and refused["param"]["ns"] == "shop.things" and refused["result"] == 13


def test_a_filter_is_a_query(audited):
    server, path = audited("--auditFilter", '{"atype": {"$in": ["createCollection", "dropCollection"]}, "param.ns": {"$regex": "^shop"}}')
    with server.client(**ROOT) as root:
        root.shop.create_collection("things")
        root.other.create_collection("things")
        root.shop.things.drop()
    assert [e["atype"] for e in events(path)] == ["createCollection", "dropCollection"]


@pytest.mark.parametrize(
    "options, why",
    [
        (["--auditDestination", "file", "--auditPath", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--auditDestination", "console", "--auditFilter", "{nonsense"], "audit filter"),
        (["--auditDestination", "console", "--auditFilter", '{"a": {"$nosuch": 1}}'], "$nosuch"),
    ],
)
def test_a_bad_audit_log_is_no_start(tmp_path, options, why):
    server = Server(tmp_path / "data", *options)
    server.launch()
    assert server.process.wait(20) != 0 and why in server.tail()


def test_collections_that_an_insert_makes(audited):
    server, path = audited()
    with server.client(**ROOT) as root:
        root.shop.implied.insert_one({})
        root.shop.implied.insert_one({})
        root.shop.upserted.update_one({"_id": 1}, {"$set": {"a": 1}}, upsert=True)
        root.shop.updated.update_one({"_id": 1}, {"$set": {"a": 1}})
        with root.start_session() as session, session.start_transaction():
            root.shop.transacted.insert_one({}, session=session)
    made = [e["param"]["ns"] for e in events(path, "createCollection")]
    assert made == ["shop.implied", "shop.upserted", "shop.transacted"]


def test_a_message_of_an_application(audited, new_server, tmp_path):
    server, path = audited()
    with server.client(**ROOT) as root:
        root.admin.command("logApplicationMessage", "the cook is out")
        with pytest.raises(OperationFailure) as refused:
            root.admin.command("logApplicationMessage", 5)
        assert refused.value.code == 14
    [event] = events(path, "applicationMessage")
    assert event["param"] == {"msg": "the cook is out"} and event["result"] == 0
    plain = new_server(path=tmp_path / "plain")
    with plain.client() as client, pytest.raises(OperationFailure) as refused:
        client.admin.command("logApplicationMessage", "nobody hears")
    assert refused.value.code == 59


def test_what_was_made_and_written_another_way(audited):
    server, path = audited()
    with server.client(**ROOT) as root:
        root.shop.things.insert_one({"_id": 1})
        root.shop.things.aggregate([{"$out": "copied"}])
        root.shop.command("mapReduce", "things", map="function(){ emit(1, 1) }", reduce="function(){ return 1 }", out="mapped")
        root.shop.command("convertToCapped", "things", size=100_000)
        root.shop.command("cloneCollectionAsCapped", "things", toCollection="cloned", size=100_000)
        root.admin["system.users"].update_one({"user": "root"}, {"$set": {"customData": {"a": "TopSecret"}}})
        root.admin.command({"bulkWrite": 1, "ops": [{"delete": 0, "filter": {"_id": "nobody"}}], "nsInfo": [{"ns": "admin.system.users"}]})
    made = [e["param"]["ns"] for e in events(path, "createCollection")]
    assert made == ["shop.things", "shop.copied", "shop.mapped", "shop.things", "shop.cloned"]
    written = [e["param"] for e in events(path, "directAuthMutation")]
    assert written == [{"document": {}, "ns": "admin.system.users", "operation": name} for name in ("update", "bulkWrite")]
    assert "TopSecret" not in path.read_text()
