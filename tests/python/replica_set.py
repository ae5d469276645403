"""A replica set of several real processes on loopback."""

import contextlib
import time

import pymongo
from harness import Server, until
from pymongo.errors import ConnectionFailure, PyMongoError


class ReplicaSet:
    """Members by number; `kill` and `start` of a member are those of its server."""

    def __init__(self, path, size=3, name="rs", options=()):
        self.name = name
        self.members = [Server(path / f"m{n}", "--replSet", name, *options) for n in range(size)]

    def __enter__(self):
        for member in self.members:
            member.start()
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.kill()

    def config(self, **settings):
        members = [{"_id": n, "host": m.address, **settings.get(f"m{n}", {})} for n, m in enumerate(self.members)]
        out = {"_id": self.name, "members": members}
        if "settings" in settings:
            out["settings"] = settings["settings"]
        return out

    def initiate(self, **settings):
        with self.members[0].client() as client:
            client.admin.command("replSetInitiate", self.config(**settings))
        until("all members are secondaries or primary", self.is_whole, 60)
        return self

    def states(self):
        out = []
        for member in self.members:
            hello = {}
            if member.running():
                with contextlib.suppress(PyMongoError, OSError), member.client(serverSelectionTimeoutMS=500) as client:
                    hello = client.admin.command("hello")
            out.append("primary" if hello.get("isWritablePrimary") else "secondary" if hello.get("secondary") else "none")
        return out

    def is_whole(self):
        states = self.states()
        if states.count("primary") != 1 or "none" in states:
            return False
        with self.members[states.index("primary")].client() as client:
            status = client.admin.command("replSetGetStatus")
            return status["votingMembersCount"] == len(states) and all(m["state"] in (1, 2) for m in status["members"])

    def primary(self, timeout_s=30):
        states = until("a member is primary", lambda: (s := self.states()).count("primary") and s, timeout_s)
        return self.members[states.index("primary")]

    def secondaries(self):
        return [m for m, s in zip(self.members, self.states()) if s == "secondary"]

    def uri(self):
        return "mongodb://" + ",".join(m.address for m in self.members) + f"/?replicaSet={self.name}"

    def client(self, **options):
        options.setdefault("serverSelectionTimeoutMS", 30_000)
        return pymongo.MongoClient(self.uri(), **options)


def sees(member, query, wanted, timeout_s=20):
    """Waits until a member has so many documents of `t.c`. While it has no data yet it refuses to be read."""
    def has():
        with contextlib.suppress(ConnectionFailure):
            return coll.count_documents(query) == wanted

    with member.client() as client:
        coll = client.t.c
        until(f"{wanted} documents on {member.address}", has, timeout_s)


def seconds_since(began):
    return time.monotonic() - began
