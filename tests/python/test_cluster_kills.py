"""`pando cluster`, killed at any moment and run again, in any order: the end is always the same.

A sequence is some commands, most of which are killed after a random time, and servers that are killed between them. Then
everything that was begun is gone on with, and the deployment has to be whole. `PANDO_SEQUENCES=500` runs that many, from
`PANDO_SEED` on; each prints its seed and its steps.
"""

import json
import os
import random
import signal
import subprocess
import time

import pymongo
import pytest
from harness import BINARY, until
from test_cluster import free_ports

SEQUENCES = int(os.environ.get("PANDO_SEQUENCES", "2"))
FIRST = int(os.environ.get("PANDO_SEED", "1"))
CACHE = ("--", "--cache", "16MB")
# More members or shards than this are not asked for: each is a process.
MOST_SHARDS, MOST_MEMBERS = 3, 3


def processes(place):
    """The servers that run from directories of the deployment: by their member's name, all their numbers."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{pid}/stat") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z" and b"--dbpath" in words[:-1]:
            path = words[words.index(b"--dbpath") + 1].decode()
            if os.path.dirname(path) == str(place):
                found.setdefault(os.path.basename(path), []).append(int(pid))
    return found


class Sequence:
    def __init__(self, seed, place):
        self.random, self.place, self.steps = random.Random(seed), place, []
        self.sharded = self.random.random() < 0.6
        self.first = ("--shards", 2) if self.sharded else ("--replicas", self.random.choice((1, 3)))
        self.port = free_ports(16)
        self.written = 0
        # How often shards and members were asked for: those that may be there, and those that are.
        self.may, self.sure = {"shard": 0, "member": 0}, {"shard": 0, "member": 0}

    def record(self):
        try:
            return json.loads((self.place / "cluster.json").read_text())
        except FileNotFoundError:
            return {"sets": []}

    def sets(self, role=None):
        return {s["name"]: s["members"] for s in self.record()["sets"] if s["role"] != "router" and role in (None, s["role"])}

    def run(self, *words, kill_after=None):
        words = [str(w) for w in words]
        self.steps.append((*words, kill_after))
        command = [BINARY, "cluster", words[0], "--dir", self.place, *words[1:]]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said, _ = process.communicate(timeout=kill_after or 180)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            assert kill_after, f"{words} does not end"
            process.kill()
            process.communicate()
            return None, ""

    def up(self, **how):
        return self.run("up", *self.first, "--port", self.port, *CACHE, **how)

    def choose(self):
        """A command that makes sense now."""
        sets, shards = self.sets(), self.sets("shard")
        there = [("up",)] * 3 + [("down",)] * 2 + [("status",)]
        if self.sharded and shards:
            if len(shards) < MOST_SHARDS:
                there += [("add-shard",)] * 2
            there += [("remove-shard", name) for name in shards if len(shards) > 1]
        small = [name for name, members in sets.items() if len(members) < MOST_MEMBERS]
        there += [("add-member", name) for name in self.random.sample(small, min(2, len(small)))]
        return self.random.choice(there)

    def step(self):
        command = self.choose()
        # Half of the kills come while processes are started, the others while sets are made and data moves.
        late = self.random.choice((0.3, 1, 4))
        kill_after = self.random.random() * late if self.random.random() < 0.75 else None
        what = {"add-shard": "shard", "add-member": "member"}.get(command[0])
        if what:
            self.may[what] += 1
        if command[0] == "up":
            code, said = self.up(kill_after=kill_after)
        else:
            code, said = self.run(*command, kill_after=kill_after)
        if code == 0 and what:
            self.sure[what] += 1
        assert code in (0, None) or self.is_told(command, said), said
        if code == 0 and command[0] == "up":
            self.write()
        if self.random.random() < 0.2 and (running := processes(self.place)):
            name = self.random.choice(sorted(running))
            self.steps.append(("kill -9", name))
            for pid in running[name]:
                os.kill(pid, signal.SIGKILL)

    def is_told(self, command, said):
        """Whether a command may fail so."""
        nothing_there = "holds no cluster" in said and not self.record()["sets"]
        last = command[0] == "remove-shard" and "is the last shard" in said
        return nothing_there or last or "leaves the cluster" in said

    def uri(self):
        if self.sharded:
            return f"mongodb://localhost:{self.port}/"
        hosts = ",".join(f"localhost:{m['port']}" for m in self.sets()["rs0"])
        return f"mongodb://{hosts}/?replicaSet=rs0"

    def client(self):
        return pymongo.MongoClient(self.uri(), serverSelectionTimeoutMS=60_000, w="majority")

    def write(self):
        with self.client() as client:
            if self.sharded and self.written == 0:
                client.admin.command("shardCollection", "t.c", key={"_id": "hashed"})
            client.t.c.insert_many([{"_id": self.written + n} for n in range(20)], ordered=False)
            self.written += 20
            # Whole databases have to leave a shard too.
            client[f"home{self.written}"].c.insert_one({"_id": 1})

    def finish(self):
        """Goes on with all that was begun."""
        code, said = self.up()
        assert code == 0, said
        for name, members in self.sets("shard").items():
            if members[0]["leaves"]:
                code, said = self.run("remove-shard", name)
                assert code == 0, said

    def check(self):
        record = self.record()
        members = [m for s in record["sets"] for m in s["members"]]
        assert {(m["stage"], m["leaves"], m["ending"]) for m in members} == {("there", False, False)}
        assert processes(self.place) == {m["name"]: [m["pid"]] for m in members}
        assert len({m["port"] for m in members}) == len(members)
        for name, of_set in self.sets().items():
            with pymongo.MongoClient(f"mongodb://localhost:{of_set[0]['port']}/?directConnection=true") as client:
                config = client.admin.command("replSetGetConfig")["config"]
                assert sorted(m["host"] for m in config["members"]) == sorted(f"localhost:{m['port']}" for m in of_set), name
                assert client.admin.command("replSetGetStatus")["votingMembersCount"] == len(of_set), name
                states = ["PRIMARY"] + ["SECONDARY"] * (len(of_set) - 1)
                # Each member has to hear the others once.
                until(name, lambda c=client, s=states: s == sorted(m["stateStr"] for m in c.admin.command("replSetGetStatus")["members"]))
        with self.client() as client:
            if self.written:
                assert client.t.c.count_documents({}) == self.written
                assert len(list(client.t.c.find())) == self.written
                homes = [name for name in client.list_database_names() if name.startswith("home")]
                assert len(homes) == self.written // 20
                assert all(client[name].c.count_documents({}) == 1 for name in homes)
            if self.sharded:
                hosts = {name: f"{name}/" + ",".join(sorted(f"localhost:{m['port']}" for m in of_set)) for name, of_set in self.sets("shard").items()}
                assert {s["_id"]: s["host"] for s in client.admin.command("listShards")["shards"]} == hosts
        made = record["shardsMade"] - (2 if self.sharded else 0)
        assert self.sure["shard"] <= made <= self.may["shard"], (made, self.sure, self.may)

    def whole(self):
        for _ in range(self.random.randint(3, 8)):
            self.step()
        self.finish()
        self.write()
        self.check()
        code, said = self.run("down")
        assert code == 0 and processes(self.place) == {}, said
        self.finish()
        self.check()


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEQUENCES))
def test_whatever_is_killed_the_end_is_the_same(tmp_path, seed):
    place = tmp_path.resolve() / "d"
    sequence = Sequence(seed, place)
    begun = time.monotonic()
    try:
        sequence.whole()
    except Exception as e:
        # Of many sequences pytest tells only at the end why one has failed.
        print(f"seed {seed} failed: {e}")
        raise
    finally:
        print(f"seed {seed}, {time.monotonic() - begun:.0f} s:", *sequence.steps, sep="\n  ")
        for pids in processes(place).values():
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        until("all are gone", lambda: processes(place) == {})
