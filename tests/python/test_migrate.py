"""`pando migrate`: a running server comes over to another while clients write."""

import contextlib
import datetime
import random
import signal
import subprocess
import threading

import bson
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex

from harness import BINARY, Server, run_pando, until
from sharded_cluster import at_rest

ODD_IDS = [None, True, 1, 2.5, "x", "", {"a": 1}, Binary(b"ab"), ObjectId(), MinKey(), MaxKey(), Decimal128("7"), Int64(1 << 40)]


class Migration:
    """A running `pando migrate`."""

    def __init__(self, source, target, state, *options):
        self.state = state
        self.words = [BINARY, "migrate", source, target, "--state", str(state), *options]
        self.lines = []
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.reader = threading.Thread(target=self.read, args=(self.process,))
        self.reader.start()

    def read(self, process):
        for line in process.stdout:
            self.lines.append(line.rstrip())

    def has_said(self, words):
        return any(words in line for line in self.lines)

    def wait_for(self, words):
        until(f"it says {words}: {self.lines}", lambda: self.has_said(words) or self.process.poll() is not None, 60)
        assert self.has_said(words), self.lines

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.reader.join()

    def end(self, timeout_s=60):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        assert self.process.poll() is not None, self.lines
        self.reader.join()
        return self.process.returncode


def migrate(*words):
    return run_pando("migrate", *words)


@contextlib.contextmanager
def pair(tmp_path):
    with Server(tmp_path / "from") as source, Server(tmp_path / "to") as target:
        with source.client() as old, target.client() as new:
            yield (source, old), (target, new)


def uri(server):
    return f"mongodb://127.0.0.1:{server.port}/"


def fill(old):
    shop = old.shop
    shop.orders.insert_many([{"_id": i, "n": i, "status": "open" if i % 3 else "paid", "tags": [i % 5, "t"]} for i in range(3000)])
    shop.odd.insert_many([{"_id": i, "n": n} for n, i in enumerate(ODD_IDS)])
    shop.orders.create_index([("status", 1), ("n", -1)])
    shop.orders.create_index("n", unique=True)
    shop.orders.create_index("tags", partialFilterExpression={"n": {"$gt": 5}}, name="some")
    shop.create_collection("window", viewOn="orders", pipeline=[{"$match": {"n": {"$lt": 10}}}])
    shop.create_collection("last", capped=True, size=100_000, max=50)
    shop.last.insert_many([{"n": n} for n in range(60)])
    shop.create_collection("measured", timeseries={"timeField": "at", "metaField": "device"})
    start = datetime.datetime(2024, 1, 1)
    shop.measured.insert_many([{"at": start + datetime.timedelta(seconds=n), "device": n % 3, "v": n} for n in range(200)])
    shop.create_collection("checked", validator={"v": {"$type": "int"}}, collation={"locale": "de", "strength": 2})
    shop.checked.insert_many([{"v": n, "name": f"N{n}"} for n in range(20)])
    shop["with.dots"].insert_one({"a b": {"": 1, "c.d": Regex("x", "i")}})
    old.blog.posts.insert_many([{"_id": f"p{n}", "body": "words " * n} for n in range(100)])
    old.blog.posts.create_index([("body", "text")])
    old.admin.command("createUser", "mo", pwd="p", roles=[{"role": "readWrite", "db": "shop"}])


def content(client):
    """All that users have: documents in order, options and indexes."""
    found = {}
    for db in sorted(set(client.list_database_names()) - {"admin", "config", "local"}):
        for info in client[db].list_collections():
            name = info["name"]
            if name.startswith("system."):
                continue
            documents = list(client[db][name].find())
            if info["type"] == "collection" and not info["options"].get("capped"):
                documents.sort(key=lambda d: repr(d["_id"]))
            indexes = {} if info["type"] == "view" else {k: v for k, v in client[db][name].index_information().items()}
            found[f"{db}.{name}"] = (info["type"], info["options"], indexes, documents)
    return found


def test_everything_comes_over_while_clients_write(tmp_path):
    with pair(tmp_path) as ((source, old), (target, new)):
        fill(old)
        running = Migration(uri(source), uri(target), tmp_path / "state")
        running.wait_for("Following the changes")
        orders = old.shop.orders
        orders.insert_many([{"_id": n, "n": n} for n in range(10_000, 10_500)])
        orders.update_many({"status": "paid"}, {"$set": {"status": "sent", "deep": {"a": [1, {"b": 2}]}}, "$unset": {"tags": ""}})
        orders.delete_many({"n": {"$lt": 50}})
        # Two documents change places under a unique index.
        orders.update_one({"_id": 100}, {"$set": {"n": -1}})
        orders.update_one({"_id": 101}, {"$set": {"n": 100}})
        orders.update_one({"_id": 100}, {"$set": {"n": 101}})
        old.shop.made.insert_one({"_id": "made"})
        old.shop.made.update_one({"_id": "made"}, [{"$replaceWith": {"$setField": {"field": {"$literal": "$odd"}, "input": "$$ROOT", "value": 1}}}])
        old.shop.made.create_index("x", sparse=True)
        old.blog.posts.rename("articles")
        old.shop["with.dots"].drop()
        old.shop.command("collMod", "checked", validator={"v": {"$gte": 0}})
        old.shop.orders.drop_index("some")
        old.shop.last.insert_many([{"n": n} for n in range(60, 70)])
        old.shop.measured.delete_many({"device": 1})
        assert "following" in migrate("status", tmp_path / "state").stdout
        assert migrate("cut-over", tmp_path / "state").returncode == 0
        assert running.end() == 0, "\n".join(running.lines)
        assert running.has_said("Both sides are the same"), running.lines
        assert content(new) == content(old)
        with target.client(username="mo", password="p", authSource="admin") as mo:
            assert mo.shop.orders.count_documents({}) == orders.count_documents({})
        assert "done" in migrate("status", tmp_path / "state").stdout


def test_a_migration_that_is_killed_goes_on(tmp_path):
    r = random.Random(7)
    with pair(tmp_path) as ((source, old), (target, new)):
        fill(old)
        stop = threading.Event()

        def write():
            n = 0
            while not stop.is_set():
                n += 1
                old.shop.orders.update_one({"_id": r.randrange(4000)}, {"$set": {"w": n}}, upsert=True) if n % 3 else None
                old.shop.orders.delete_one({"_id": r.randrange(4000)})

        writer = threading.Thread(target=write)
        # Upserts without n would meet in its unique index.
        old.shop.orders.drop_index("n_1")
        writer.start()
        running = Migration(uri(source), uri(target), tmp_path / "state")
        try:
            for _ in range(8):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.process.wait(r.random() * 0.6)
                assert running.process.poll() is None, running.lines
                running.kill()
                running.start()
        finally:
            stop.set()
            writer.join()
        running.wait_for("Following the changes")
        assert migrate("cut-over", tmp_path / "state").returncode == 0
        assert running.end() == 0, "\n".join(running.lines)
        assert content(new) == content(old)


def test_a_cluster_comes_over_into_a_server_and_back(tmp_path):
    with at_rest(tmp_path, shards=2) as cluster, Server(tmp_path / "alone") as alone:
        with cluster.client() as many, alone.client() as one:
            many.admin.command("shardCollection", "app.c", key={"k": "hashed"})
            many.app.c.insert_many([{"_id": n, "k": n % 50, "v": n} for n in range(2000)])
            many.app.c.create_index("v")
            done = migrate(uri(cluster.routers[0]), uri(alone), "--state", tmp_path / "s1", "--once")
            assert done.returncode == 0, done.stdout + done.stderr
            assert one.app.c.count_documents({}) == 2000 and "v_1" in one.app.c.index_information()
            many.drop_database("app")
            running = Migration(uri(alone), uri(cluster.routers[0]), tmp_path / "s2")
            running.wait_for("Following the changes")
            one.app.c.update_many({"v": {"$lt": 100}}, {"$inc": {"k": 1}})
            one.app.c.delete_many({"v": {"$gte": 1900}})
            migrate("cut-over", tmp_path / "s2")
            assert running.end() == 0, "\n".join(running.lines)
            assert content(many)["app.c"][3] == content(one)["app.c"][3]


def test_only_what_is_named(tmp_path):
    with pair(tmp_path) as ((source, old), (target, new)):
        fill(old)
        new.other.kept.insert_one({"_id": 1})
        done = migrate(uri(source), uri(target), "--state", tmp_path / "state", "--only", "shop.orders", "--only=blog", "--once")
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(content(new)) == ["blog.posts", "other.kept", "shop.orders"]
        same = migrate("verify", uri(source), uri(target), "--only", "shop.orders")
        assert same.returncode == 0 and "3000 documents" in same.stdout
        new.shop.orders.update_one({"_id": 5}, {"$set": {"n": 5.0}})
        other = migrate("verify", uri(source), uri(target), "--only", "shop.orders")
        assert other.returncode == 1 and "shop.orders differs" in other.stdout


def test_what_is_refused(tmp_path):
    with pair(tmp_path) as ((source, old), (target, new)):
        old.shop.a.insert_one({"_id": 1})
        new.shop.a.insert_one({"_id": 2})
        taken = migrate(uri(source), uri(target), "--state", tmp_path / "state")
        assert taken.returncode == 1 and "has a collection shop.a already" in taken.stderr
        done = migrate(uri(source), uri(target), "--state", tmp_path / "state", "--only", "blog", "--once")
        assert done.returncode == 0, "a refusal has left nothing"
        other = migrate(uri(source), uri(target), "--state", tmp_path / "state", "--only", "shop")
        assert other.returncode == 1 and "is of another migration" in other.stderr
        assert new.shop.a.find_one() == {"_id": 2}
        wrong = migrate(f"mongodb://u:secret@127.0.0.1:{source.port}/", uri(target), "--state", tmp_path / "other")
        assert wrong.returncode == 1 and "uthentication failed" in wrong.stderr and "secret" not in wrong.stderr
        assert migrate(uri(source), uri(target)).returncode == 1, "no state"
        assert migrate("status", tmp_path / "nothing").returncode == 1


def test_of_several_hosts_the_primary_is_found(tmp_path):
    with pair(tmp_path) as ((source, old), (target, new)):
        old.shop.a.insert_one({"_id": 1})
        hosts = f"mongodb://127.0.0.1:1,127.0.0.1:{source.port}/?replicaSet=rs0"
        done = migrate(hosts, uri(target), "--state", tmp_path / "state", "--once")
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(new.shop.a.find()) == [{"_id": 1}]


def test_a_large_collection_is_copied_in_pieces(tmp_path):
    """Bounds of pieces are values of all types: nothing lies between two of them."""
    with pair(tmp_path) as ((source, old), (target, new)):
        old.big.c.insert_many([{"_id": n if n % 3 else f"s{n}", "p": "x" * 1000} for n in range(9000)])
        done = migrate(uri(source), uri(target), "--state", tmp_path / "state", "--once", "--piece-mb", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert new.big.c.count_documents({}) == 9000
        pieces = bson.decode((tmp_path / "state" / "state.bson").read_bytes())["pieces"]["big.c"]
        assert len(pieces) > 5 and sum(p["documents"] for p in pieces) == 9000, pieces
