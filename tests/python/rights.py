"""Random commands of malicious users, and the data afterwards.

A case is a command of one user: of a template that names collections, its names drawn from those that there are, and then
bent: fields and options given twice, in another order, beside the body in a sequence, inside explain, in a transaction.
Whether it is answered or refused is the server's affair; only the data that it *touched* counts: the marks in
its replies, and the differences in all databases. Both must be within what the user's privileges say.
"""

import random
import struct

import bson
from bson import Decimal128, Int64

from auth_client import log_in
from harness import Wire

SPACES = ["app.pub", "app.sec", "app.v", "app.hidden", "other.c", "admin.system.users"]
STORED = ["app.pub", "app.sec", "app.hidden", "other.c"]
ADDS = {"insert", "update", "renameCollectionSameDB", "convertToCapped", "createCollection"}
REMOVES = {"remove", "update", "insert", "dropCollection", "dropDatabase", "renameCollectionSameDB", "convertToCapped"}
OPTIONS = {"collMod", "createCollection", "dropCollection", "dropDatabase", "insert", "update", "createIndex", "dropIndex",
           "renameCollectionSameDB", "convertToCapped", "remove", "compact", "reIndex", "enableSharding"}
OF_USERS = {"createUser", "dropUser", "grantRole", "revokeRole", "changePassword", "changeOwnPassword", "changeCustomData",
            "changeOwnCustomData", "createRole", "dropRole", "setAuthenticationRestriction"}
GRANTED = [
    {"resource": {"db": "app", "collection": "v"}, "actions": ["find", "collMod"]},
    {"resource": {"db": "app", "collection": "pub"}, "actions": ["find"]},
]
LOOKS_ANYWAY = 0.003
USERS = ["none", "read", "readWrite", "dbAdmin", "userAdmin", "viewer", "dbOwner"]


class Doc(list):
    """A document as pairs, of which two may have one name."""


def element(name, value):
    if isinstance(value, Doc):
        return b"\3" + name.encode() + b"\0" + encode(value)
    if isinstance(value, list):
        return b"\4" + name.encode() + b"\0" + encode(Doc((str(i), v) for i, v in enumerate(value)))
    return bson.encode({name: value})[4:-1]


def encode(pairs):
    content = b"".join(element(name, value) for name, value in pairs)
    return struct.pack("<i", len(content) + 5) + content + b"\0"


def documents(value):
    """All documents within a value, itself among them."""
    if isinstance(value, Doc):
        yield value
    for inner in value if isinstance(value, list) else []:
        yield from documents(inner[1] if isinstance(value, Doc) else inner)


def pipeline(r, depth=0):
    def name():
        return r.choice(SPACES).partition(".")[2] if r.random() < 0.7 else r.choice(["pub", "sec"])

    def spot():
        db, _, coll = r.choice(SPACES).partition(".")
        return Doc([("db", db), ("coll", coll)])

    def inner():
        return pipeline(r, depth + 1) if depth < 2 else []

    graph = [("startWith", 1), ("connectFromField", "a"), ("connectToField", "a"), ("as", "x")]
    stages = [
        lambda: ("$match", Doc()),
        lambda: ("$lookup", Doc([("from", name()), ("pipeline", inner()), ("as", "x")])),
        lambda: ("$lookup", Doc([("from", name()), ("localField", "a"), ("foreignField", "a"), ("as", "x")])),
        lambda: ("$graphLookup", Doc([("from", name()), *graph])),
        lambda: ("$unionWith", name()),
        lambda: ("$unionWith", Doc([("coll", name()), ("pipeline", inner())])),
        lambda: ("$facet", Doc([("a", inner()), ("b", inner())])),
        lambda: ("$out", r.choice([name(), spot()])),
        lambda: ("$merge", r.choice([name(), Doc([("into", r.choice([name(), spot()]))])])),
        lambda: ("$documents", [Doc([("a", 1)])]),
        lambda: ("$currentOp", Doc([("allUsers", r.random() < 0.5)])),
        lambda: ("$collStats", Doc([("count", Doc())])),
    ]
    return [Doc([r.choice(stages)()]) for _ in range(r.choice([0, 1, 1, 2]))]


def privilege(r):
    db, _, coll = r.choice(SPACES).partition(".")
    where = r.choice([[("db", db), ("collection", coll)], [("cluster", True)], [("anyResource", True)], [("db", ""), ("collection", "")]])
    return Doc([("resource", Doc(where)), ("actions", [r.choice(["find", "insert", "anyAction", "grantRole"])])])


def role(r):
    return r.choice(["root", "read", Doc([("role", r.choice(["root", "read", "dbOwner"])), ("db", r.choice(["admin", "app", "other"]))])])


def templates(r, me):
    """The database and the fields of one command."""
    db, _, coll = r.choice(SPACES).partition(".")
    other = r.choice(SPACES)
    bad = Doc([("_id", f"x{r.randrange(1000)}")])
    out_mode = r.choice(["replace", "merge", "reduce"])
    out = [(out_mode, r.choice(["pub", "sec", "c", "new"])), ("db", r.choice(["app", "other"]))]
    r.shuffle(out)
    operations = r.choice([
        [Doc([("insert", r.choice([0, 1, Int64(1), Decimal128("0.51"), 0.9])), ("document", bad)])],
        [Doc([("update", r.choice([0, 1])), ("filter", bad), ("updateMods", Doc([("$set", Doc([("y", 1)]))])), ("upsert", True)])],
        [Doc([("delete", r.choice([0, 1, Decimal128("0.5")])), ("filter", Doc())])],
    ])
    update = Doc([("q", r.choice([Doc(), bad])), ("u", Doc([("$set", Doc([("y", 1)]))])), ("upsert", r.random() < 0.5), ("multi", True)])
    return r.choice([
        (db, [("find", coll)]),
        (db, [("aggregate", r.choice([coll, 1])), ("pipeline", pipeline(r)), ("cursor", Doc())]),
        (db, [("aggregate", coll), ("pipeline", pipeline(r)), ("cursor", Doc())]),
        (db, [("count", coll)]),
        (db, [("distinct", coll), ("key", "mark")]),
        (db, [("insert", coll), ("documents", [bad])]),
        (db, [("update", coll), ("updates", [update])]),
        (db, [("delete", coll), ("deletes", [Doc([("q", Doc()), ("limit", 0)])])]),
        (db, [("findAndModify", coll), ("query", Doc()), ("remove", r.random() < 0.5)]),
        (db, [("findAndModify", coll), ("query", bad), ("update", Doc([("$set", Doc([("y", 1)]))])), ("upsert", r.random() < 0.5)]),
        ("admin", [("bulkWrite", 1), ("ops", operations), ("nsInfo", [Doc([("ns", other)]), Doc([("ns", r.choice(SPACES))])])]),
        (db, [("create", r.choice(["v2", coll])), ("viewOn", r.choice(["pub", "sec", "hidden"])), ("pipeline", pipeline(r))]),
        (db, [("create", "made")]),
        (db, [("collMod", r.choice(["v", coll])), ("viewOn", r.choice(["pub", "sec"])), ("pipeline", pipeline(r))]),
        (db, [("collMod", "v"), ("pipeline", pipeline(r))]),
        (db, [("drop", coll)]),
        ("admin", [("renameCollection", other), ("to", r.choice(SPACES)), ("dropTarget", r.random() < 0.5)]),
        (db, [("convertToCapped", coll), ("size", 100_000)]),
        (db, [("cloneCollectionAsCapped", coll), ("toCollection", r.choice(["pub", "sec", "clone"])), ("size", 100_000)]),
        (db, [("mapReduce", coll), ("map", "function(){ emit(1, this.mark) }"), ("reduce", "function(k, v){ return v.join() }"),
              ("out", r.choice([Doc(out), Doc([("inline", 1)]), r.choice(["pub", "sec"])]))]),
        (db, [("createIndexes", coll), ("indexes", [Doc([("key", Doc([("y", 1)])), ("name", "y")])])]),
        (db, [("dropIndexes", coll), ("index", "*")]),
        (db, [("listCollections", 1), ("nameOnly", r.random() < 0.5), ("authorizedCollections", r.random() < 0.5)]),
        (db, [("listIndexes", coll)]),
        ("admin", [("currentOp", 1), ("$ownOps", True)]),
        (r.choice(["admin", "app"]), [("usersInfo", r.choice(["root", Doc([("user", "root"), ("db", "admin")])])), ("showCredentials", True)]),
        ("admin", [("usersInfo", Doc([("user", me), ("db", "admin")])), ("showCredentials", True)]),
        ("admin", [("grantRolesToUser", me), ("roles", [role(r)])]),
        ("admin", [("revokeRolesFromUser", r.choice([me, "root"])), ("roles", [role(r)])]),
        (r.choice(["admin", "app"]), [("createUser", "made"), ("pwd", "p"), ("roles", [role(r)])]),
        ("admin", [("updateUser", r.choice([me, "root"])), ("roles", [role(r)])]),
        (r.choice(["admin", "app"]), [("createRole", f"r{r.randrange(1000)}"), ("privileges", [privilege(r)]), ("roles", [role(r)])]),
        ("admin", [("grantPrivilegesToRole", "viewer"), ("privileges", [privilege(r)])]),
        ("admin", [("grantRolesToRole", "viewer"), ("roles", [role(r)])]),
        (db, [("dataSize", other)]),
        (db, [("collStats", coll)]),
        (db, [("validate", coll)]),
    ])


def bend(r, db, fields, me):
    """The command's bytes, and what travels beside them."""
    _, others = templates(r, me)
    spare = dict(others)
    for _ in range(r.choice([0, 1, 1, 2])):
        kind = r.random()
        if kind < 0.4:
            name, value = r.choice(fields)
            another = spare.get(name) or r.choice([[], Doc(), "pub", "sec", False, True, value, [role(r)]])
            fields.insert(r.randrange(1, len(fields) + 1), (name, another))
        elif kind < 0.8:
            inner = [d for d in documents([v for _, v in fields]) if d]
            if inner:
                d = r.choice(inner)
                name, value = r.choice(d)
                another = r.choice(["pub", "sec", "c", "other.c", "root", "other", 0, 1, True, False, [], Doc(), value])
                d.insert(r.randrange(len(d) + 1), (name, another))
        else:
            rest = fields[1:]
            r.shuffle(rest)
            fields[1:] = rest
    sequences = []
    if r.random() < 0.1:
        for name, value in [f for f in fields if isinstance(f[1], list) and not isinstance(f[1], Doc)]:
            if value and all(isinstance(v, Doc) for v in value):
                sequences.append((name, [encode(v) for v in value]))
                if r.random() < 0.7:
                    fields[:] = [f for f in fields if f[0] != name]
    if r.random() < 0.15:
        fields = [("explain", Doc(fields)), ("verbosity", "executionStats")]
    if r.random() < 0.1:
        fields = [*fields, ("lsid", Doc([("id", bson.Binary(bytes(16), 4))])), ("txnNumber", Int64(r.randrange(1, 1000))),
                  ("autocommit", False), ("startTransaction", True)]
    return encode(Doc([*fields, ("$db", db)])), sequences


def roles_of(name):
    return {"none": [], "viewer": ["viewer"]}.get(name, [{"role": name, "db": "app"}])


class Attack:
    """The users, the data with its marks, and the differences.

    `logs` are clients of the members that keep a log. All data is looked at where one of them has gone on, and in one of
    some hundred cases without that.
    """

    def __init__(self, root, port, logs):
        self.root, self.port, self.logs, self.wires = root, port, logs, {}
        for name in ("app", "other"):
            root.drop_database(name)
        root.admin.command("createRole", "viewer", privileges=GRANTED, roles=[])
        for name in USERS:
            root.admin.command("createUser", name, pwd="p", roles=roles_of(name))
        [kept] = root.admin.command("usersInfo", "root", showCredentials=True)["users"]
        self.secret = kept["credentials"]["SCRAM-SHA-256"]["storedKey"].encode()
        self.fill()
        self.first = self.state

    def fill(self):
        for space in STORED:
            db, _, coll = space.partition(".")
            self.root[db][coll].insert_many([{"_id": i, "mark": f"MARK:{space}"} for i in range(3)])
        self.root.app.command("create", "v", viewOn="pub", pipeline=[])
        self.settle()

    def settle(self):
        self.state, self.places = self.look(), self.ends()

    def mend(self):
        """All is as it was; no transaction is open that could write later."""
        self.root.admin.command("killAllSessions", [])
        if any(self.state[part] != self.first[part] for part in ("users", "roles")):
            self.mend_users()
        for name in ("app", "other"):
            self.root.drop_database(name)
        self.fill()

    def mend_users(self):
        for db in ("admin", "app"):
            for user in self.root[db].command("usersInfo")["users"]:
                if user["user"] == "made":
                    self.root[db].command("dropUser", "made")
            for found in self.root[db].command("rolesInfo", 1)["roles"]:
                if found["role"] != "viewer":
                    self.root[db].command("dropRole", found["role"])
        self.root.admin.command("updateRole", "viewer", privileges=GRANTED, roles=[])
        for name in USERS:
            self.root.admin.command("updateUser", name, pwd="p", roles=roles_of(name), mechanisms=["SCRAM-SHA-256"])
        for wire in self.wires.values():
            wire.close()
        self.wires = {}

    def ends(self):
        """The last entry of each log that says more than the time."""
        says = {"op": {"$ne": "n"}, "ns": {"$not": {"$regex": r"^(config|local)\."}}}
        return [log.local["oplog.rs"].find_one(says, {"ts": 1, "t": 1}, sort=[("$natural", -1)]) for log in self.logs]

    def has_changed(self):
        """Whether a log has gone on: without an entry there was no write."""
        return self.ends() != self.places

    def look(self):
        """Documents and options of every collection, users and roles."""
        found = {"users": list(self.root.admin["system.users"].find({}, {"credentials": 0}, sort=[("_id", 1)]))}
        found["roles"] = list(self.root.admin["system.roles"].find(sort=[("_id", 1)])) if self.root.admin["system.roles"].find_one() else []
        for db in ("app", "other"):
            for info in self.root[db].list_collections():
                space = f"{db}.{info['name']}"
                info.get("info", {}).pop("uuid", None)
                listed = None if info["type"] == "view" else list(self.root[db][info["name"]].list_indexes())
                found[f"options {space}"] = [info, listed]
                if info["type"] != "view" and info["name"] != "system.views":
                    found[f"documents {space}"] = list(self.root[db][info["name"]].find(sort=[("_id", 1)]))
        return found

    def privileges(self, name):
        shown = self.root.admin.command("usersInfo", name, showPrivileges=True)["users"][0]
        return [(p["resource"], set(p["actions"])) for p in shown["inheritedPrivileges"]]

    def run(self, name, body, sequences):
        """The reply's bytes."""
        if name not in self.wires:
            self.wires[name] = Wire(self.port)
            log_in(self.wires[name], name, "p", "admin")
        wire = self.wires[name]
        try:
            wire.send_body(body, sequences=sequences)
            return wire.receive()[2]
        except EOFError:
            # Of a message with more sequences than there may be.
            del self.wires[name]
            return b"\0" * 5 + bson.encode({"ok": 0})


def allowed(privileges, space, actions):
    db, _, coll = space.partition(".")
    for resource, granted in privileges:
        any_of = "anyResource" in resource or (
            resource.get("db") in (db, "") and resource.get("collection") in (coll, "") and not coll.startswith("system.")
            or resource.get("db") == db and resource.get("collection") == coll
        )
        if any_of and granted & (actions | {"anyAction"}):
            return True
    return False


def violations(attack, name, privileges, before, after, body, reply):
    """Data that was touched without the right."""
    for space in STORED:
        seen = f"MARK:{space}".encode() in reply
        # A view shows what lies below it.
        through = space == "app.pub" and allowed(privileges, "app.v", {"find"})
        if seen and not through and not allowed(privileges, space, {"find"}):
            yield f"it read {space}"
    if attack.secret in reply:
        yield "it read the credentials of root"
    if before["users"] != after["users"] or before["roles"] != after["roles"]:
        if not any(granted & (OF_USERS | {"anyAction"}) for _, granted in privileges):
            yield "it changed users or roles"
        may_grant = allowed(privileges, "admin.x", {"grantRole"})
        grown = {u["_id"]: u["roles"] for u in after["users"]} != {u["_id"]: u["roles"] for u in before["users"]}
        if grown and not may_grant:
            for u in after["users"]:
                old = next((b["roles"] for b in before["users"] if b["_id"] == u["_id"]), [])
                for given in [x for x in u["roles"] if x not in old]:
                    if not allowed(privileges, f"{given['db']}.x", {"grantRole"}):
                        yield f"it gave {given} to {u['_id']}"
    for key in sorted(set(before) | set(after)):
        kind, _, space = key.partition(" ")
        old, new = before.get(key), after.get(key)
        if kind in ("users", "roles") or old == new:
            continue
        if kind == "options" and not allowed(privileges, space, OPTIONS):
            yield f"it changed options of {space}: {old} to {new}"
        if kind == "documents":
            gone = [d for d in old or [] if d not in (new or [])]
            come = [d for d in new or [] if d not in (old or [])]
            if gone and not allowed(privileges, space, REMOVES):
                yield f"it removed from {space}: {gone}"
            if come and not allowed(privileges, space, ADDS):
                yield f"it added to {space}: {come}"
            if b"MARK" in bson.encode({"a": come}):
                for other in STORED:
                    shown = f"MARK:{other}".encode() in bson.encode({"a": come})
                    if shown and other != space and not allowed(privileges, other, {"find"}):
                        through = other == "app.pub" and allowed(privileges, "app.v", {"find"})
                        # A rename must not show a collection to users that cannot read the new name.
                        renamed = b"renameCollection" in body and not allowed(privileges, space, {"find"})
                        if not through and not renamed:
                            yield f"it copied {other} to {space}"


def attack(root, port, logs, seed, cases):
    """Runs `cases` commands; gives each that touched more than it may, and how many were answered."""
    r = random.Random(seed)
    under = Attack(root, port, logs)
    own = {name: under.privileges(name) for name in USERS}
    found, answered = [], 0
    for _ in range(cases):
        name = r.choice(USERS)
        db, fields = templates(r, name)
        body, sequences = bend(r, db, list(fields), name)
        before = under.state
        reply = under.run(name, body, sequences)
        answered += bson.decode(reply[5:]).get("ok") == 1
        if b"autocommit" in body:
            # What it wrote and did not commit would hold up others.
            root.admin.command("killAllSessions", [])
        changed = under.has_changed()
        after = under.look() if changed or r.random() < LOOKS_ANYWAY else before
        for what in violations(under, name, own[name], before, after, body, reply):
            found.append((name, what, body.hex()))
        if after != before:
            assert changed, f"no log tells of what {body.hex()} did"
            under.state = after
            under.mend()
        elif changed:
            under.settle()
    return found, answered
