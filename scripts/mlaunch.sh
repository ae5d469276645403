#!/usr/bin/env bash
# mlaunch of mtools, unmodified, makes deployments of the built server: a replica set (init, a write on all members, list,
# stop, start, kill), sharded clusters, and one that asks for logins.
# It looks for `mongod` and `mongos` on its path, which are this server under those names.
#
#     scripts/mlaunch.sh [replicaset|sharded|auth]...
#
# PANDO_BIN names the server (otherwise it is target/debug/pando), MLAUNCH an mlaunch that is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

server=$(realpath "${PANDO_BIN:-target/debug/pando}")
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
place=$(mktemp -d)
ended() {
    for made in "$place"/data-*; do
        "$mlaunch" kill --signal 9 --dir "$made" >/dev/null 2>&1 || true
    done
    rm -rf "$place"
}
mlaunch=${MLAUNCH:-$place/venv/bin/mlaunch}
trap ended EXIT
if [ -z "${MLAUNCH:-}" ]; then
    python3 -m venv "$place/venv"
    "$place/venv/bin/pip" install --quiet 'mtools[mlaunch]==1.7.2'
fi
mkdir "$place/bin"
ln -s "$server" "$place/bin/mongod"
ln -s "$server" "$place/bin/mongos"
export PATH="$place/bin:$PATH"

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(min(s.getsockname()[1], 60000))'
}

# A write that all members of the set have.
written() {
    "$python" - "$port" "$1" <<'PYTHON'
import sys
from pymongo import MongoClient, WriteConcern
port, wanted = int(sys.argv[1]), int(sys.argv[2])
hosts = ",".join(f"localhost:{port + n}" for n in range(3))
with MongoClient(f"mongodb://{hosts}/?replicaSet=replset", serverSelectionTimeoutMS=60_000) as client:
    coll = client.t.get_collection("c", write_concern=WriteConcern(w=3, wtimeout=60_000))
    coll.insert_one({})
    assert coll.count_documents({}) == wanted, coll.count_documents({})
print(f"{wanted} documents are on three members")
PYTHON
}

# Writes through the router, on every shard; how many documents and shards there are then, and the user, if there is one.
routed() {
    "$python" - "$port" "$@" <<'PYTHON'
import sys
from pymongo import MongoClient
port, wanted, shards, *who = sys.argv[1:]
login = dict(zip(("username", "password"), who))
with MongoClient("localhost", int(port), serverSelectionTimeoutMS=60_000, **login) as client:
    assert client.is_mongos
    assert len(client.admin.command("listShards")["shards"]) == int(shards)
    if "c" not in client.t.list_collection_names():
        client.admin.command("shardCollection", "t.c", key={"_id": "hashed"})
    client.t.c.insert_many([{} for _ in range(100)])
    assert client.t.c.count_documents({}) == int(wanted), client.t.c.count_documents({})
    assert len(client.t.command("collStats", "c")["shards"]) == int(shards)
print(f"{wanted} documents are on {shards} shards")
PYTHON
}

replicaset() {
    port=$(free_port)
    local dir=$place/data-replicaset
    "$mlaunch" init --replicaset --nodes 3 --port "$port" --dir "$dir"
    written 1
    "$mlaunch" list --dir "$dir"
    "$mlaunch" stop --dir "$dir"
    "$mlaunch" start --dir "$dir"
    written 2
    "$mlaunch" stop --dir "$dir"
}

# mlaunch itself refuses --sharded with --single (shards are replica sets since MongoDB 3.6): --nodes 1 is its way to say it.
sharded() {
    port=$(free_port)
    local dir=$place/data-small
    "$mlaunch" init --sharded 2 --replicaset --nodes 1 --port "$port" --dir "$dir"
    routed 100 2
    "$mlaunch" stop --dir "$dir"
    "$mlaunch" start --dir "$dir"
    routed 200 2
    "$mlaunch" stop --dir "$dir"
    port=$(free_port)
    dir=$place/data-large
    "$mlaunch" init --sharded 3 --replicaset --port "$port" --dir "$dir"
    routed 100 3
    "$mlaunch" list --dir "$dir"
    "$mlaunch" stop --dir "$dir"
}

auth() {
    port=$(free_port)
    local dir=$place/data-auth
    "$mlaunch" init --sharded 2 --replicaset --nodes 1 --auth --port "$port" --dir "$dir"
    routed 100 2 user password
    if routed 200 2 2>/dev/null; then
        echo "a stranger is let in"
        exit 1
    fi
    "$mlaunch" stop --dir "$dir"
    "$mlaunch" start --dir "$dir"
    routed 200 2 user password
    "$mlaunch" stop --dir "$dir"
}

if [ $# -eq 0 ]; then
    set -- replicaset sharded auth
fi
for what in "$@"; do
    "$what"
done
echo "mlaunch: passed"
