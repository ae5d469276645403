"""Logging in: SCRAM, users, the localhost exception, the key file."""

import base64
import os
import time

import bson
import pymongo
import pytest
from pymongo.errors import OperationFailure

from harness import Server, refuses, until

ROOT = {"username": "root", "password": "r00t-pässword", "authSource": "admin"}


@pytest.fixture
def locked(new_server):
    """A server that requires logins, with one user that may do everything."""
    server = new_server("--auth")
    server.client().admin.command("createUser", "root", pwd=ROOT["password"], roles=["root"])
    return server


def user(server, name, pwd, roles, db="admin", **more):
    with server.client(**ROOT) as client:
        client[db].command("createUser", name, pwd=pwd, roles=roles, **more)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256", None])
def test_a_user_logs_in_and_works(locked, mechanism):
    more = {"authMechanism": mechanism} if mechanism else {}
    with locked.client(**ROOT, **more) as client:
        client.shop.things.insert_one({"_id": 1})
        assert client.shop.things.find_one() == {"_id": 1}
        status = client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        assert status["authenticatedUsers"] == [{"user": "root", "db": "admin"}]
        assert status["authenticatedUserRoles"] == [{"role": "root", "db": "admin"}]
        assert any(p["resource"] == {"cluster": True} for p in status["authenticatedUserPrivileges"])


def test_a_uri_as_users_write_it(locked):
    uri = f"mongodb://root:r00t-p%C3%A4ssword@localhost:{locked.port}/?authSource=admin&directConnection=true"
    with pymongo.MongoClient(uri) as client:
        assert client.admin.command("ping")["ok"] == 1
        assert client.shop.things.count_documents({}) == 0


@pytest.mark.parametrize(
    "who",
    [
        {"username": "root", "password": "wrong", "authSource": "admin"},
        {"username": "nobody", "password": "wrong", "authSource": "admin"},
        {"username": "root", "password": ROOT["password"], "authSource": "other"},
    ],
)
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256"])
def test_whatever_is_wrong_is_told_alike(locked, who, mechanism):
    with locked.client(**who, authMechanism=mechanism) as client:
        with pytest.raises(OperationFailure) as caught:
            client.shop.things.find_one()
    assert caught.value.code == 18 and caught.value.details["codeName"] == "AuthenticationFailed"
    assert caught.value.details["errmsg"] == "Authentication failed."


def test_before_a_login_nothing_is_told(locked):
    with locked.client() as client:
        for command in [{"find": "things"}, {"listDatabases": 1}, {"insert": "x", "documents": [{}]}, {"serverStatus": 1}]:
            with refuses(13, "Unauthorized", "requires authentication"):
                client.admin.command(command)
        for command in ["hello", "ping", "buildInfo", "connectionStatus", "listCommands"]:
            assert client.admin.command(command)["ok"] == 1


def test_the_localhost_exception_ends_with_the_first_user(new_server):
    server = new_server("--auth")
    with server.client() as client:
        with refuses(13):
            client.shop.things.insert_one({})
        with refuses(13):
            client.shop.command("createUser", "u", pwd="p", roles=[])
        client.admin.command("createUser", "first", pwd="p", roles=["userAdminAnyDatabase"])
        with refuses(13, containing="requires authentication"):
            client.admin.command("createUser", "second", pwd="p", roles=["root"])
    server.restart()
    with server.client() as client, refuses(13):
        client.admin.command("createUser", "second", pwd="p", roles=["root"])
    with server.client(username="first", password="p") as client:
        client.admin.command("createUser", "second", pwd="p", roles=["root"])
        client.admin.command("dropAllUsersFromDatabase")
    # It does not come back.
    with server.client() as client, refuses(13):
        client.admin.command("createUser", "third", pwd="p", roles=["root"])


def test_a_change_of_roles_holds_for_who_is_logged_in(locked):
    user(locked, "ann", "p", [], db="shop")
    with locked.client(username="ann", password="p", authSource="shop") as ann, locked.client(**ROOT) as root:
        with refuses(13, "Unauthorized", "not authorized on shop to execute command"):
            ann.shop.things.find_one()
        root.shop.command("grantRolesToUser", "ann", roles=["read"])
        assert ann.shop.things.find_one() is None
        with refuses(13):
            ann.shop.things.insert_one({})
        root.shop.command("updateUser", "ann", roles=["readWrite"])
        ann.shop.things.insert_one({"_id": 1})
        root.shop.command("revokeRolesFromUser", "ann", roles=["readWrite"])
        with refuses(13):
            ann.shop.things.find_one()
        root.shop.command("dropUser", "ann")
        with refuses(13, containing="requires authentication"):
            ann.shop.things.find_one()


def test_a_new_password_ends_the_old_one(locked):
    user(locked, "ann", "old", ["read"], db="shop")
    with locked.client(**ROOT) as root:
        root.shop.command("updateUser", "ann", pwd="new")
    with locked.client(username="ann", password="old", authSource="shop") as ann, refuses(18):
        ann.shop.things.find_one()
    with locked.client(username="ann", password="new", authSource="shop") as ann:
        assert ann.shop.things.find_one() is None


def test_logout(locked):
    with locked.client(**ROOT, maxPoolSize=1) as client:
        client.shop.things.find_one()
        client.admin.command("logout")
        with refuses(13):
            client.shop.things.find_one()


def test_a_second_login_takes_the_place_of_the_first(locked):
    from auth_client import log_in

    user(locked, "ann", "p", ["read"], db="shop")
    with locked.wire() as wire:
        log_in(wire, "root", ROOT["password"], "admin")
        assert wire.command({"insert": "c", "documents": [{}], "$db": "shop"})["ok"] == 1
        log_in(wire, "ann", "p", "shop")
        status = wire.command({"connectionStatus": 1, "$db": "admin"})
        assert status["authInfo"]["authenticatedUsers"] == [{"user": "ann", "db": "shop"}]
        assert wire.command({"insert": "c", "documents": [{}], "$db": "shop"})["code"] == 13
        assert wire.command({"find": "c", "$db": "shop"})["ok"] == 1


def test_mechanisms_of_a_user(locked):
    user(locked, "old", "p", ["read"], db="shop", mechanisms=["SCRAM-SHA-1"])
    with locked.client(**ROOT) as root:
        hello = root.admin.command("hello", saslSupportedMechs="shop.old")
        assert hello["saslSupportedMechs"] == ["SCRAM-SHA-1"]
        hello = root.admin.command("hello", saslSupportedMechs="admin.root")
        assert hello["saslSupportedMechs"] == ["SCRAM-SHA-1", "SCRAM-SHA-256"]
    with locked.client(username="old", password="p", authSource="shop") as old:
        assert old.shop.things.find_one() is None
    with locked.client(username="old", password="p", authSource="shop", authMechanism="SCRAM-SHA-256") as old, refuses(18):
        old.shop.things.find_one()


def test_restrictions_by_address(locked):
    here = [{"clientSource": ["127.0.0.0/8", "::1"]}]
    user(locked, "here", "p", ["read"], db="shop", authenticationRestrictions=here)
    user(locked, "away", "p", ["read"], db="shop", authenticationRestrictions=[{"clientSource": ["10.0.0.0/8"]}])
    with locked.client(username="here", password="p", authSource="shop") as client:
        assert client.shop.things.find_one() is None
    with locked.client(username="away", password="p", authSource="shop") as client, refuses(18):
        client.shop.things.find_one()


def test_users_info(locked):
    user(locked, "ann", "secret", ["read", {"role": "readWrite", "db": "other"}], db="shop", customData={"a": 1})
    with locked.client(**ROOT) as root:
        shown = root.shop.command("usersInfo", "ann")["users"]
        [ann] = shown
        assert ann["_id"] == "shop.ann" and ann["user"] == "ann" and ann["db"] == "shop"
        assert ann["roles"] == [{"role": "read", "db": "shop"}, {"role": "readWrite", "db": "other"}]
        assert ann["customData"] == {"a": 1} and sorted(ann["mechanisms"]) == ["SCRAM-SHA-1", "SCRAM-SHA-256"]
        assert "credentials" not in ann and isinstance(ann["userId"], (bytes, bson.Binary))
        for form in [1, {"user": "ann", "db": "shop"}, ["ann"], [{"user": "ann", "db": "shop"}]]:
            assert root.shop.command({"usersInfo": form})["users"] == shown
        assert len(root.shop.command({"usersInfo": {"forAllDBs": True}})["users"]) == 2
        assert root.shop.command({"usersInfo": {"forAllDBs": True}, "filter": {"user": "ann"}})["users"] == shown
        [whole] = root.shop.command("usersInfo", "ann", showCredentials=True, showPrivileges=True)["users"]
        assert whole["credentials"]["SCRAM-SHA-256"]["iterationCount"] == 15000
        assert {"role": "read", "db": "shop"} in whole["inheritedRoles"] and whole["inheritedPrivileges"]
        assert root.shop.command("usersInfo", "nobody")["users"] == []


@pytest.mark.parametrize(
    "command, code",
    [
        ({"createUser": "u", "roles": []}, 2),
        ({"createUser": "u", "pwd": "p"}, 40414),
        ({"createUser": "", "pwd": "p", "roles": []}, 2),
        ({"createUser": "u", "pwd": "", "roles": []}, 2),
        ({"createUser": 1, "pwd": "p", "roles": []}, 14),
        ({"createUser": "u", "pwd": "p", "roles": ["nosuch"]}, 31),
        ({"createUser": "u", "pwd": "p", "roles": [], "mechanisms": []}, 2),
        ({"createUser": "u", "pwd": "p", "roles": [], "mechanisms": ["PLAIN"]}, 2),
        ({"createUser": "u", "pwd": "p", "roles": [], "digestPassword": False}, 2),
        ({"createUser": "u", "pwd": "p", "roles": [], "nosuch": 1}, 40415),
        ({"createUser": "u", "pwd": "p", "roles": [], "authenticationRestrictions": [{"clientSource": ["x"]}]}, 2),
        ({"createUser": "twice", "pwd": "p", "roles": []}, 51003),
        ({"updateUser": "twice"}, 2),
        ({"updateUser": "nobody", "pwd": "p"}, 11),
        ({"dropUser": "nobody"}, 11),
        ({"grantRolesToUser": "nobody", "roles": ["read"]}, 11),
        ({"grantRolesToUser": "twice", "roles": ["nosuch"]}, 31),
    ],
)
def test_what_users_are_refused(locked, command, code):
    user(locked, "twice", "p", [], db="shop")
    with locked.client(**ROOT) as root, refuses(code):
        root.shop.command(command)


def test_a_digested_password(locked):
    import hashlib

    digest = hashlib.md5(b"ann:mongo:p").hexdigest()
    user(locked, "ann", digest, ["read"], db="shop", digestPassword=False, mechanisms=["SCRAM-SHA-1"])
    with locked.client(username="ann", password="p", authSource="shop") as ann:
        assert ann.shop.things.find_one() is None


def key_file(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_file_asks_for_logins_and_lets_members_in(new_server, tmp_path):
    key = base64.b64encode(os.urandom(48)).decode()
    server = new_server("--keyFile", key_file(tmp_path / "key", key + "\n"))
    with server.client() as client, refuses(13):
        client.shop.things.find_one()
    member = {"username": "__system", "password": key, "authSource": "local", "authMechanism": "SCRAM-SHA-256"}
    with server.client(**member) as client:
        client.shop.things.insert_one({"_id": 1})
        assert client.shop.things.find_one() == {"_id": 1}
    other = ("y" if key[0] == "x" else "x") + key[1:]
    with server.client(**{**member, "password": other}) as client, refuses(18):
        client.shop.things.find_one()


@pytest.mark.parametrize(
    "text, mode, why",
    [
        ("abcdef", 0o644, "permissions are too open"),
        ("abc", 0o600, "between 6 and 1024"),
        ("a" * 1025, 0o600, "between 6 and 1024"),
        ("abc%def", 0o600, "no character of base64"),
    ],
)
def test_a_bad_key_file_is_no_start(tmp_path, text, mode, why):
    server = Server(tmp_path / "data", "--keyFile", key_file(tmp_path / "key", text, mode))
    server.launch()
    assert server.process.wait(20) != 0
    assert why in server.tail() and str(tmp_path / "key") in server.tail()


def test_secrets_are_shown_nowhere(locked):
    with locked.client(**ROOT) as root:
        root.admin.command("profile", 2, slowms=0)
        root.admin.command("setParameter", 1, logLevel=1)
        root.admin.command("createUser", "ann", pwd="TopSecret", roles=[])
        root.admin.command("updateUser", "ann", pwd="TopSecret2")
        with refuses(2):
            root.admin.command("updateUser", "ann", pwd="TopSecret3", mechanisms=["X"])
        profiled = list(root.admin["system.profile"].find())
        assert any("createUser" in p["command"] for p in profiled)
        for place in [profiled, root.admin.command("getLog", "global"), root.admin.command("currentOp")]:
            assert "TopSecret" not in str(place)
        entries = str(list(root.local["oplog.rs"].find()))
        assert "storedKey" in entries and "TopSecret" not in entries
    with locked.client(username="ann", password="TopSecret2") as ann, pytest.raises(OperationFailure) as caught:
        ann.admin.command("createUser", "bob", pwd="TopSecret4", roles=[])
    assert caught.value.code == 13 and "TopSecret" not in str(caught.value.details)
    assert "TopSecret" not in locked.log.read_text(errors="replace")


def sasl(wire, payload, mechanism="SCRAM-SHA-256", db="admin"):
    return wire.command({"saslStart": 1, "mechanism": mechanism, "payload": payload, "$db": db})


def test_bent_logins_leave_the_connection_alive(locked):
    with locked.wire() as wire:
        for payload in [b"", b"n,,", b"\xff\xfe", b"n,,n=u", b"y,,n=u,r=", b"p=x,,n=u,r=x", b"n,,n=" + b"u" * 9000 + b",r=x"]:
            reply = sasl(wire, payload)
            assert (reply["ok"], reply["code"]) == (0, 18), payload
        assert sasl(wire, b"n,,n=root,r=x", "PLAIN")["code"] == 334
        assert wire.command({"saslContinue": 1, "conversationId": 1, "payload": b"x", "$db": "admin"})["code"] == 17
        reply = sasl(wire, b"n,,n=root,r=abc")
        assert reply["done"] is False and reply["conversationId"] == 1
        first = bytes(reply["payload"]).decode()
        assert first.startswith("r=abc") and ",i=15000" in first
        for payload in [b"c=biws,r=abc,p=AAAA", b"x"]:
            reply = wire.command({"saslContinue": 1, "conversationId": 1, "payload": payload, "$db": "admin"})
            assert reply["code"] in (17, 18)
        assert wire.command({"ping": 1, "$db": "admin"})["ok"] == 1


def test_an_unknown_user_looks_like_a_known_one(locked):
    """The salt of an unknown user stays the same, as a real one's does."""
    with locked.wire() as wire:
        asked = [bytes(sasl(wire, b"n,,n=%s,r=abc" % name)["payload"]).decode() for name in (b"root", b"ghost", b"ghost")]
    parts = [dict(p.split("=", 1) for p in a.split(",")) for a in asked]
    assert len({len(p["s"]) for p in parts}) == 1 and len({p["i"] for p in parts}) == 1
    assert parts[1]["s"] == parts[2]["s"] != parts[0]["s"]


def test_failures_are_delayed_and_told_once(locked):
    wrong = {"username": "root", "password": "wrong", "authSource": "admin"}
    for _ in range(5):
        began = time.monotonic()
        with locked.client(**wrong) as client, refuses(18):
            client.shop.things.find_one()
        assert time.monotonic() - began > 0.1
    told = [line for line in locked.log.read_text().splitlines() if "Failed to authenticate" in line]
    assert len(told) == 1


def test_users_travel_with_their_credentials(locked, new_server, tmp_path):
    """As mongorestore does: documents of users in a collection of its own, and then taken over."""
    user(locked, "ann", "p", ["read"], db="shop")
    with locked.client(**ROOT) as root:
        users = list(root.admin["system.users"].find({"user": "ann"}))
        assert root.admin["system.version"].find_one({"_id": "authSchema"})["currentVersion"] == 5
    other = new_server("--auth", path=tmp_path / "other")
    other.client().admin.command("createUser", "root", pwd=ROOT["password"], roles=["root"])
    with other.client(**ROOT) as root:
        root.admin.tempusers.insert_many(users)
        root.admin.command("_mergeAuthzCollections", tempUsersCollection="admin.tempusers", drop=False, db="")
    with other.client(username="ann", password="p", authSource="shop") as ann:
        assert ann.shop.things.find_one() is None


def test_after_a_kill_users_are_there(locked):
    locked.kill()
    locked.start()
    with locked.client(**ROOT) as root:
        assert root.shop.things.find_one() is None


def test_without_authorization_users_are_kept_and_not_asked_for(server):
    client = server.client()
    client.admin.command("createUser", "u", pwd="p", roles=["read"])
    try:
        with server.client(username="u", password="p") as u:
            u.shop.things.insert_one({"_id": 1})
        assert client.shop.things.find_one() == {"_id": 1}
        assert [u["user"] for u in client.admin.command("usersInfo", "u")["users"]] == ["u"]
    finally:
        client.admin.command("dropUser", "u")
        client.drop_database("shop")


def test_the_first_start_says_what_to_do(new_server):
    server = new_server("--auth")
    until("the banner", lambda: "createUser" in server.tail(200))
