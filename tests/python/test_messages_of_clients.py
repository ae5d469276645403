"""Errors on which drivers, object mappers and tools match: each pattern, with who has it, against the real server's reply.

A row names what fails, its code and code name, and who looks for what in its message. Where a client acts on the code name
alone, the pattern is empty. Patterns are as the clients have them, in Python's spelling.
"""

import re
import threading

import bson
import pytest
from harness import Server, Wire, until
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError

EXISTS = "E11000 duplicate key error"


def failure(run):
    """What the server said: code, codeName (of commands) and errmsg."""
    try:
        run()
    except BulkWriteError as error:
        return error.details["writeErrors"][0]
    except OperationFailure as error:
        return error.details
    raise AssertionError("it did not fail")


def check(details, code, name, patterns):
    assert details["code"] == code, details
    if name is not None:
        assert details["codeName"] == name, details
    for who, pattern in patterns:
        assert re.search(pattern, details["errmsg"]), f"{who} looks for {pattern} in {details['errmsg']}"


def twice(coll, **fields):
    for _ in range(2):
        coll.insert_one(dict(fields))


def unique(coll, name="username_1"):
    coll.create_index(name.rsplit("_", 1)[0], name=name, unique=True)
    twice(coll, username="Ann", emails={"address": "a@b"}, n=1)


def indexed_twice(coll):
    coll.insert_many([{"email": "a@b"}, {"email": "a@b"}])
    coll.create_index("email", unique=True)


def with_index(coll, *again, **options):
    coll.create_index("a", name="a_1", expireAfterSeconds=10)
    coll.create_index(*again, **options)


def transaction_conflict(coll):
    coll.insert_one({"_id": 1})
    client = coll.database.client
    with client.start_session() as first, client.start_session() as second, first.start_transaction(), second.start_transaction():
        coll.update_one({"_id": 1}, {"$set": {"a": 1}}, session=first)
        coll.update_one({"_id": 1}, {"$set": {"a": 2}}, session=second)


def aborted_transaction(coll):
    coll.insert_one({"_id": 1})
    with coll.database.client.start_session() as session:
        with session.start_transaction():
            coll.insert_one({"_id": 2}, session=session)
            try:
                coll.insert_one({"_id": 1}, session=session)
            except PyMongoError:
                coll.insert_one({"_id": 3}, session=session)


def view(coll, run):
    coll.insert_one({})
    coll.database.create_collection("v", viewOn=coll.name, pipeline=[])
    run(coll.database)


def validated(coll):
    coll.database.create_collection(coll.name, validator={"a": {"$type": "string"}})
    coll.insert_one({"a": 1})


def renamed_to_another(coll):
    coll.insert_one({})
    coll.database.other.insert_one({})
    coll.rename("other")


def update(coll, filter, change, document):
    coll.insert_one(document)
    coll.update_one(filter, change)


def user(coll, *names):
    for name in names:
        coll.database.command("createUser", name, pwd="secret", roles=[])


def role(coll, *names):
    for name in names:
        coll.database.command("createRole", name, privileges=[], roles=[])


def command(name, value=1, **more):
    return lambda coll: coll.database.command(name, value, **more)


def of_collection(name, **more):
    return lambda coll: coll.database.command(name, coll.name, **more)


def of_collection_that_is_there(name, **more):
    return lambda coll: (coll.insert_one({}), coll.database.command(name, coll.name, **more))


def pipeline(*stages):
    return lambda coll: list(coll.aggregate(list(stages)))


ROWS = {
    "a duplicate _id": (lambda c: twice(c, _id=1), 11000, None, [
        ("MongoEngine", "^E1100[01] duplicate key"), ("NodeBB, Java's driver", EXISTS), ("qmgo", "E11000"), ("Apostrophe", "E11000"),
        ("create-apostrophe", r"(?i)duplicate\s+key"), ("an application's handler", "^E11000 duplicate key error collection: (.*) index: (.*) dup key: (.*)$"),
        ("Prisma", r"duplicate\skey\serror\scollection:\s.*\sindex:\s_id_\sdup\skey"),
    ]),
    "a duplicate name": (unique, 11000, None, [
        ("Parse Server", r"index:[\sa-zA-Z0-9_\-\.]+\$?([a-zA-Z_-]+)_1"), ("Meteor accounts", "username"),
        ("mongoose-beautiful-unique-validation", "index: (.+) dup key:"), ("Payload", r"index:\s*username_"),
        ("handlers of Mongoose applications", r"""(["'])(\\?.)*?\1"""), ("a mapper in Python", r"(?i)index: (.*[\.\$])?(?P<key>username?)(_\d)? dup key"),
        ("mgo, in write errors", "E11000 "),
    ]),
    "a duplicate address": (lambda c: unique(c, "emails.address_1"), 11000, None, [("Meteor accounts", r"emails\.address")]),
    "duplicates at the build of an index": (indexed_twice, 11000, "DuplicateKey", [("Apostrophe", "E11000"), ("Spring Data, by the code", "dup key: { email: \"a@b\" }")]),
    "an index with other options": (lambda c: with_index(c, "a", name="a_1", expireAfterSeconds=20), 85, "IndexOptionsConflict", [
        ("Meteor, Apostrophe", r"An equivalent index already exists with the same name but different options\."), ("Parse Server, by the code", ""),
    ]),
    "an index with another key": (lambda c: with_index(c, "b", name="a_1"), 86, "IndexKeySpecsConflict", [
        ("applications", "An existing index has the same name as the requested index"),
    ]),
    "an index with another name": (lambda c: with_index(c, "a", name="other", expireAfterSeconds=10), 85, "IndexOptionsConflict", [
        ("applications", "(?i)index already exists with a different name: a_1"),
    ]),
    "no index of that name": (lambda c: (c.insert_one({}), c.drop_index("none")), 27, "IndexNotFound", [
        ("mongosh, by the name", ""), ("applications in Go and Python", r"index not found with name \[none\]"),
    ]),
    "two kinds of hash": (lambda c: c.create_index([("a", "hashed"), ("b", "hashed")]), 31303, None, [("applications", r"but found 2 for 'key' \{ a: \"hashed\", b: \"hashed\" \}")]),
    "a locale that is none": (lambda c: list(c.find().collation({"locale": "none"})), 2, "BadValue", [("applications", r"Field 'locale' is invalid in: \{ locale: \"none\" \}")]),
    "no index to change": (of_collection_that_is_there("collMod", index={"keyPattern": {"a": 1}, "hidden": True}), 27, "IndexNotFound", [
        ("applications", r"cannot find index \{ a: 1 \} for ns test_\d+\.things"),
    ]),
    "no index of that key": (lambda c: (c.insert_one({}), c.database.command("dropIndexes", c.name, index={"a": 1})), 27, "IndexNotFound", [
        ("Mongoose, by the name", "can't find index with key: { a: 1 }"),
    ]),
    "indexes of nothing": (of_collection("dropIndexes", index="*"), 26, "NamespaceNotFound", [
        ("C#'s driver, Java's, Ruby's", "ns not found"), ("Mongoose, mongosh, by the name", ""),
    ]),
    "indexes of nothing are listed": (of_collection("listIndexes"), 26, "NamespaceNotFound", [("Mongoose's syncIndexes, by the name", "ns does not exist")]),
    "a collection that is there": (lambda c: (c.insert_one({}), c.database.command("create", c.name, capped=True, size=4096)), 48, "NamespaceExists", [
        ("MikroORM", r"Collection test_\d+\.things already exists\."), ("Percona's backup", "already exists"), ("Java's examples, by the name", ""),
    ]),
    "a name that is taken": (renamed_to_another, 48, "NamespaceExists", [("Compass", "(?i)target namespace exists")]),
    "a view's statistics": (lambda c: view(c, lambda db: list(db.v.aggregate([{"$collStats": {"storageStats": {}}}]))), 166, "CommandNotSupportedOnView", [
        ("Compass", "is a view, not a collection"),
    ]),
    "statistics of nothing": (pipeline({"$collStats": {"storageStats": {}}}), 26, "NamespaceNotFound", [
        ("Compass", r"(Database \[test_\d+\]|Collection \[test_\d+\.things\]) not found"), ("Mongoid", "not found"),
    ]),
    "an unknown command": (command("noSuchCommand"), 59, "CommandNotFound", [
        ("mgo", "^no such c(md|ommand):"), ("mongosh, by the name", ""),
    ]),
    "an unknown stage": (pipeline({"$none": 1}), 40324, None, [("Doctrine", r"Unrecognized pipeline stage name: '\$none'")]),
    "$near in a count": (pipeline({"$match": {"a": {"$near": [0, 0]}}}, {"$count": "n"}), 5626500, None, [
        ("MongoEngine", r"\$geoNear, \$near, and \$nearSphere are not allowed in this context"),
    ]),
    "$where in a facet": (lambda c: list(c.aggregate([{"$match": {"$where": "true"}}, {"$count": "n"}])), 2, "BadValue", [
        ("MongoEngine", r"\$where is not allowed in this context"),
    ]),
    "$near without an index": (lambda c: (c.insert_one({}), list(c.find({"loc": {"$nearSphere": [0, 0]}}))), 291, None, [
        ("Parse Server", "unable to find index for .geoNear"), ("Parse Server", "field=([A-Za-z_0-9]+) "),
    ]),
    "$text without an index": (lambda c: (c.insert_one({}), list(c.find({"$text": {"$search": "a"}}))), 27, "IndexNotFound", [
        ("applications", r"text index required for \$text query"),
    ]),
    "an unknown operator": (lambda c: list(c.find({"a": {"$none": 1}})), 2, "BadValue", [("applications", r"unknown operator: \$none")]),
    "an unknown operator at the top": (lambda c: list(c.find({"$none": 1})), 2, "BadValue", [("applications", r"unknown top level operator: \$none")]),
    "a pattern that is none": (lambda c: list(c.find({"a": {"$regex": "("}})), 51091, None, [("applications", "Regular expression is invalid")]),
    "a field below no document": (lambda c: update(c, {}, {"$set": {"a.b": 1}}, {"a": 1}), 28, None, [("applications", r"Cannot create field 'b' in element \{a: 1\}")]),
    "a position that is not known": (lambda c: update(c, {}, {"$set": {"a.$": 1}}, {"a": [1]}), 2, None, [
        ("Parse Server, Meteor", "The positional operator did not find the match needed from the query"),
    ]),
    "two changes of one field": (lambda c: update(c, {}, {"$set": {"a": 1}, "$inc": {"a": 1}}, {}), 40, None, [
        ("Mongoose's documentation", "Updating the path 'a' would create a conflict at 'a'"),
    ]),
    "another _id": (lambda c: update(c, {}, {"$set": {"_id": 2}}, {"_id": 1}), 66, None, [
        ("Mongoose, Spring Data, by the code", "Performing an update on the path '_id' would modify the immutable field '_id'"),
    ]),
    "what a validator refuses": (validated, 121, None, [("Mongoose, Prisma", "Document failed validation")]),
    "an increment of text": (lambda c: update(c, {}, {"$inc": {"a": 1}}, {"a": "x"}), 14, None, [("applications", r"Cannot apply \$inc to a value of non-numeric type")]),
    "a conflict of transactions": (transaction_conflict, 112, "WriteConflict", [("applications", "(?i)write ?conflict")]),
    "a transaction that was aborted": (aborted_transaction, 251, "NoSuchTransaction", [("Compass, by the name", "has been aborted")]),
    "a cursor that is gone": (lambda c: c.database.command("getMore", bson.Int64(12345), collection=c.name), 43, "CursorNotFound", [
        ("many", r"cursor id 12345 not found"),
    ]),
    "no time left": (lambda c: (c.insert_one({}), list(c.find({"$where": "sleep(300) || true"}).max_time_ms(20))), 50, "MaxTimeMSExpired", [
        ("C#'s driver", "exceeded time limit"), ("Compass, Go's driver, by the name", ""),
    ]),
    "a user twice": (lambda c: user(c, "u", "u"), 51003, None, [("Percona's backup, Ansible", "already exists")]),
    "no such user": (command("dropUser", "nobody"), 11, "UserNotFound", [("mgo, Ansible, by the code", "(?i)user 'nobody@")]),
    "a role twice": (lambda c: role(c, "r", "r"), 51002, None, [("Percona's backup", "already exists")]),
    "no such role": (command("dropRole", "nothing"), 31, "RoleNotFound", [("Ansible, by the code", "")]),
    "two databases that differ by case": (lambda c: (c.insert_one({}), c.database.client[c.database.name.upper()].c.insert_one({})), 13297, "DatabaseDifferCase", [
        ("Mongoose applications", "db already exists with different case"),
    ]),
    "a strict client's other command": (command("collStats", "c", apiVersion="1", apiStrict=True), 323, "APIStrictError", [
        ("PyMongo's documentation", "Provided apiStrict:true, but the command collStats is not in API Version 1"), ("mongosh, by the name", ""),
    ]),
    "a set that is there": (lambda c: c.database.client.admin.command("replSetInitiate"), 23, "AlreadyInitialized", [("scripts that make sets", "(?i)already initialized")]),
}


@pytest.mark.parametrize("row", ROWS)
def test_on_a_server(coll, row):
    run, code, name, patterns = ROWS[row]
    try:
        check(failure(lambda: run(coll)), code, name, patterns)
    finally:
        for named in coll.database.command("usersInfo")["users"]:
            coll.database.command("dropUser", named["user"])
        for named in coll.database.command("rolesInfo")["roles"] if row.startswith("a role") else []:
            coll.database.command("dropRole", named["role"])


def test_change_streams_that_cannot_go_on(new_server):
    """Readers of change streams begin anew if the log no longer has what they ask for."""
    with new_server("--log-retain", 1).client() as client:
        coll = client.d.c
        with coll.watch() as stream:
            coll.insert_one({})
            token = stream.next()["_id"]
        for _ in range(150):
            coll.insert_one({"fill": "x" * 30_000})
        client.admin.command("fsync")
        until("the log's past goes", lambda: client.admin.command("serverStatus")["oplogTruncation"]["truncateCount"])
        for begins in ({"resume_after": token}, {"start_at_operation_time": bson.Timestamp(1, 1)}):
            details = failure(lambda b=begins: coll.watch(**b))
            check(details, 286, "ChangeStreamHistoryLost", [
                ("readers of change streams", "resume point may no longer be in the oplog"), ("others", "(?i)resume of change stream was not possible"),
            ])
            # Kafka's connector wants a word of each of two lists.
            message = details["errmsg"].lower()
            assert "resume token" in message or "resume point" in message
            assert any(words in message for words in ("not found", "does not exist", "invalid resume token", "no longer be in the oplog"))


def test_a_cursor_that_is_killed_while_it_waits(server, coll):
    """Node's driver ends the stream where it reads this, others throw."""
    coll.database.create_collection(coll.name, capped=True, size=4096)
    coll.insert_one({})
    with Wire(server.port) as waiting, server.client() as other:
        found = waiting.command({"find": coll.name, "tailable": True, "awaitData": True, "batchSize": 1, "$db": coll.database.name})
        cursor = found["cursor"]["id"]
        reply = {}

        def wait():
            reply.update(waiting.command({"getMore": cursor, "collection": coll.name, "maxTimeMS": 20_000, "$db": coll.database.name}))

        reader = threading.Thread(target=wait)
        reader.start()
        until("it waits", lambda: [o for o in other.admin.command("currentOp")["inprog"] if "getMore" in o.get("command", {}) and o["command"]["getMore"] == cursor])
        other[coll.database.name].command("killCursors", coll.name, cursors=[cursor])
        reader.join()
    check(reply, 237, "CursorKilled", [("Node's driver", "operation was interrupted")])


class TestOtherServers:
    def test_one_that_is_no_set(self, new_server):
        server = new_server("--standalone")
        with server.client(retryWrites=False) as client:
            check(failure(lambda: client.admin.command("replSetGetStatus")), 76, "NoReplicationEnabled", [
                ("Zabbix's agent, a plugin of Nagios", "not running with --replSet"), ("Percona's exporter, by the code", ""),
            ])
            check(failure(lambda: client.d.c.watch()), 40573, None, [("applications", r"The \$changeStream stage is only supported on replica sets")])
            with client.start_session() as session:
                session.start_transaction()
                check(failure(lambda: client.d.c.insert_one({}, session=session)), 20, "IllegalOperation", [
                    ("Rust's driver, Python's, C's, C#'s, Go's", "^Transaction numbers"),
                    ("applications", "Transaction numbers are only allowed on a replica set member or mongos"), ("Mongoid", "Transaction"),
                ])

    def test_a_member_without_a_set(self, tmp_path):
        with Server(tmp_path / "m", "--replSet", "rs") as server, server.client() as client:
            check(failure(lambda: client.admin.command("replSetGetStatus")), 94, "NotYetInitialized", [
                ("scripts that make sets", "no replset config has been received"), ("Percona's exporter, sidecars, by the code", ""),
            ])

    def test_one_with_logins(self, new_server):
        server = new_server("--auth")
        with server.client() as client:
            client.admin.command("createUser", "root", pwd="secret", roles=["root"])
        with server.client() as nobody:
            check(failure(lambda: nobody.d.c.find_one()), 13, "Unauthorized", [
                ("applications", "requires authentication"), ("NodeBB, mongosh, by the name", ""), ("Debezium, by the code", ""),
            ])
        with server.client(username="root", password="secret") as root:
            root.d.command("createUser", "reader", pwd="secret", roles=["read"])
        with server.client(username="reader", password="secret", authSource="d") as reader:
            check(failure(lambda: reader.admin.command("serverStatus")), 13, "Unauthorized", [
                ("Telegraf", "not authorized"), ("applications", r"^not authorized on admin to execute command \{ serverStatus: 1"),
            ])
        with server.client(username="root", password="wrong") as wrong:
            check(failure(lambda: wrong.admin.command("ping")), 18, "AuthenticationFailed", [("Mongoose", r"Authentication failed\.?"), ("create-apostrophe, by the name", "")])
