#!/usr/bin/env python3
"""The console in a real browser: servers with planted trouble, looked at by scripts/console_browser.mjs.

    scripts/console_browser.py [--out DIR] [SCENE...]

Scenes: node (logins, a planted slow query, names that are scripts, a backup, writes that are locked), many (1,000
collections), set (three members: one that lags, one that is stopped), cluster (logins, chunks on two shards, moves), load
(10,000 connections and writers), full (a disk that is nearly full; needs root for its file system). Each says what has to
be seen on which view. It needs Chromium (`apt install chromium`) and Node.js; playwright-core comes from npm.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import bson
from pymongo import WriteConcern

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

from harness import BINARY, Server, free_port  # noqa: E402
from replica_set import ReplicaSet  # noqa: E402
from sharded_cluster import ShardedCluster  # noqa: E402

SCRIPT = "<img src=x onerror=alert(1)>"
ROOT_USER = {"user": "root", "password": "s3cret"}
MODULES = ROOT / ".tools" / "browser"


def scene(name, port, **more):
    return {"name": name, "url": f"http://127.0.0.1:{port}/", **more}


def plant_slow(db):
    """5,000 orders, and queries that no index serves."""
    db.orders.insert_many({"city": f"city {n % 100}", "at": n, "total": n * 7 % 1000, "tags": ["a", SCRIPT], SCRIPT: SCRIPT} for n in range(5000))
    db.orders.create_index("tags")
    db.client.admin.command("profile", 0, slowms=-1)
    for n in range(20):
        list(db.orders.find({"city": f"city {n}", "total": {"$gt": 100}}).sort("at", -1).limit(3))
    list(db.orders.aggregate([{"$match": {"total": 7}}, {"$group": {"_id": "$city", "n": {"$sum": 1}}}]))
    db.orders.update_many({"total": 14}, {"$set": {"seen": True}})
    db.client.admin.command("profile", 0, slowms=10_000)


def node(path):
    port = free_port()
    with Server(path / "data", "--auth", "--console", str(port)) as server:
        with server.client() as client:
            client.admin.command("createUser", "root", pwd=ROOT_USER["password"], roles=["root"])
        with server.client(username="root", password=ROOT_USER["password"]) as client:
            client.admin.command("createUser", "reader", pwd="r", roles=[{"role": "read", "db": "shop"}])
            plant_slow(client.shop)
            client.shop[SCRIPT].insert_one({SCRIPT: 1})
            uri = f"mongodb://root:{ROOT_USER['password']}@127.0.0.1:{server.port}/?authSource=admin"
            subprocess.run([BINARY, "backup", uri, path / "archive"], check=True, stdout=subprocess.DEVNULL)
            ended = threading.Event()

            def hold():
                while not ended.is_set():
                    with contextlib.suppress(Exception):
                        client.shop.orders.find_one({"$where": "sleep(20000) || false"}, comment="planted")

            threading.Thread(target=hold, daemon=True).start()
            data = ["data/shop", "data/shop/orders", "data/shop/" + SCRIPT.replace(" ", "%20")]
            query = '{ city: "city 3", total: {$gt: 100}, }'
            views = ["now", "running", "slow", "data", "members", "log"]
            yield [
                scene("node", port, **ROOT_USER, views=views, more=data, filter=query, kill=True, wait=12_000, expect={
                    "now": r"Slow: find on shop\.orders .*The index .*city.*at.*total.* would serve it",
                    "running": r"COLLSCAN.*to read: Global, Database, Collection",
                    "slow": r'Index \{"city":1,"at":-1,"total":1\}',
                    "log": r"The last backup is this old",
                    "data/shop/orders": r"tags_1.*unused",
                }),
                scene("reader", port, user="reader", password="r", views=["running", "data"], more=data[:2], shapes=1),
            ]
            ended.set()


def many(path):
    port = free_port()
    with Server(path / "data", "--console", str(port)) as server, server.client() as client:
        for n in range(1000):
            client.shop.create_collection(f"collection_with_a_rather_long_name_{n:04}")
        yield [scene("many", port, more=["data/shop"], shapes=2, expect={"data/shop": r"1 to 50 of 1,000"})]


def replica_set(path):
    port = free_port()
    with ReplicaSet(path, size=3) as rs:
        rs.members[0].options += ["--console", str(port)]
        rs.members[0].restart()
        rs.initiate(m0={"priority": 5})
        client = rs.client()
        client.shop.things.insert_many({"a": n} for n in range(1000))
        lagging = rs.members[1].client()
        lagging.admin.command("configureFailPoint", "stopReplProducer", mode="alwaysOn")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            client.shop.things.with_options(write_concern=WriteConcern(1)).insert_one({"a": 1})
            time.sleep(0.2)
        yield [scene("lag", port, wait=8000, shapes=2, expect={
            "now": r"A member is [\d.]+ (s|min) behind the primary",
            "members": r"SECONDARY.*States and elections|States and elections.*SECONDARY",
        })]
        lagging.admin.command("configureFailPoint", "stopReplProducer", mode="off")
        stopped = rs.members[2].process
        stopped.send_signal(signal.SIGSTOP)
        end = time.monotonic() + 15
        while time.monotonic() < end:
            client.shop.things.insert_one({"a": 1})
            time.sleep(0.2)
        yield [scene("set", port, wait=8000, expect={"now": r"1 members of the set are not reached", "members": r"not reachable/healthy"})]
        stopped.send_signal(signal.SIGCONT)


def cluster(path):
    port = free_port()
    key = path / "key"
    key.write_text("k" * 64)
    key.chmod(0o600)
    with ShardedCluster(path, options=("--keyFile", str(key)), router_options=("--console", str(port))) as made:
        with made.routers[0].client() as client:
            client.admin.command("createUser", "root", pwd=ROOT_USER["password"], roles=["root"])
        with made.routers[0].client(username="root", password=ROOT_USER["password"]) as client:
            client.admin.command("shardCollection", "shop.things", key={"_id": "hashed"})
            client.shop.things.insert_many({"_id": n, "a": n % 5} for n in range(2000))
            client.admin.command("shardCollection", "shop.moved", key={"_id": 1})
            client.shop.moved.insert_many({"_id": n, "text": "x" * 2000} for n in range(5000))
            home = client.config.databases.find_one({"_id": "shop"})["primary"]
            ended = threading.Event()

            def move():
                there, here = "s0" if home == "s1" else "s1", home
                while not ended.is_set():
                    with contextlib.suppress(Exception):
                        client.admin.command("moveRange", "shop.moved", min={"_id": bson.MinKey()}, toShard=there)
                    there, here = here, there

            mover = threading.Thread(target=move)
            mover.start()
            time.sleep(8)
            views = ["now", "running", "slow", "data", "shards", "log"]
            yield [scene("cluster", port, **ROOT_USER, views=views, more=["data/shop", "data/shop/things"], wait=8000, expect={
                "shards": r"Members of the shards.*s0.*PRIMARY.*s1.*PRIMARY.*moveChunk",
                "data/shop/things": r"2,000 were looked at|1,000 were looked at",
            })]
            ended.set()
            mover.join()


def load(path):
    port = free_port()
    with Server(path / "data", "--console", str(port)) as server:
        ended = threading.Event()

        def work():
            with server.client() as client:
                n = 0
                while not ended.is_set():
                    client.shop.things.insert_many({"a": n + i} for i in range(20))
                    client.shop.things.find_one({"a": n})
                    n += 20

        held = []
        for _ in range(10_000):
            held.append(socket.create_connection(("127.0.0.1", server.port)))
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        yield [scene("load", port, wait=15_000, shapes=2, more=["data/shop", "data/shop/things"], expect={"now": r"Connections\s*10,0\d\d"})]
        ended.set()
        [t.join() for t in threads]
        [s.close() for s in held]


def full(path):
    port = free_port()
    disk = path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", disk], check=True)
    try:
        with Server(disk / "data", "--console", str(port)) as server:
            free = shutil.disk_usage(disk).free
            (disk / "ballast").write_bytes(bytes(free - (15 << 20)))
            with server.client() as client:
                client.shop.things.insert_one({})
            yield [scene("full", port, wait=8000, shapes=2, expect={"now": r"The disk is nearly full"})]
    finally:
        subprocess.run(["umount", disk], check=True)


# Each gives lists of views, one after the other, while its servers are up.
SCENES = {"node": node, "many": many, "set": replica_set, "cluster": cluster, "load": load, "full": full}


def browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    sys.exit("there is no Chromium: apt install chromium")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("scenes", nargs="*", choices=[*SCENES, []], help="which of them; all")
    options.add_argument("--out", default=ROOT / "target" / "console", type=pathlib.Path, help="where the pictures go")
    given = options.parse_args()
    executable = browser()
    if not (MODULES / "node_modules" / "playwright-core").exists():
        MODULES.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", MODULES, "playwright-core@1.65.1"], check=True)
    failed = []
    for name in given.scenes or SCENES:
        if name == "full" and os.geteuid() != 0:
            print("SKIPPED full: a file system needs root")
            continue
        with tempfile.TemporaryDirectory() as place:
            for scenes in SCENES[name](pathlib.Path(place)):
                asked = pathlib.Path(place) / "asked.json"
                asked.write_text(json.dumps({"executable": executable, "modules": str(MODULES), "out": str(given.out), "scenes": scenes}))
                print(f"{name}:", flush=True)
                if subprocess.run(["node", ROOT / "scripts" / "console_browser.mjs", asked]).returncode:
                    failed.append(name)
    sys.exit(f"faults in {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
