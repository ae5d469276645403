#!/usr/bin/env bash
# mlaunch of mtools, unmodified, makes a replica set of the built server: init, a write on all members, list, stop, start, kill.
# It looks for `mongod` on its path, which is this server under that name.
#
#     scripts/mlaunch.sh
#
# PANDO_BIN names the server (otherwise it is target/debug/pando), MLAUNCH an mlaunch that is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

server=$(realpath "${PANDO_BIN:-target/debug/pando}")
place=$(mktemp -d)
ended() {
    "$mlaunch" kill --signal 9 --dir "$place/data" >/dev/null 2>&1 || true
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
export PATH="$place/bin:$PATH"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(min(s.getsockname()[1], 60000))')

written() {
    .venv/bin/python - "$port" "$1" <<'PYTHON'
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

"$mlaunch" init --replicaset --nodes 3 --port "$port" --dir "$place/data"
written 1
"$mlaunch" list --dir "$place/data"
"$mlaunch" stop --dir "$place/data"
"$mlaunch" start --dir "$place/data"
written 2
echo "mlaunch: passed"
