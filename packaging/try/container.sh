#!/usr/bin/env bash
# Tries the container's files in a root as its Dockerfile makes it, without a daemon and a registry: the steps of the Dockerfile
# are done in a fresh Debian, then its entry point runs there as its user. Needs root and debootstrap (or PANDO_ROOT).
#
#     container.sh FILE.tar.gz WORKDIR
set -euo pipefail
context=$(realpath "$1") work=$2
mkdir -p "$work/context"
root=$work/root
if [ -n "${PANDO_ROOT:-}" ]; then cp -a "$PANDO_ROOT" "$root"; else debootstrap --variant=minbase bookworm "$root" >"$work/debootstrap.log"; fi
tar -xzf "$context" -C "$work/context" --strip-components=1
inside() { chroot "$root" /usr/bin/env PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
# The image is Debian slim: what it lacks of minbase is documentation only.
inside sh -ec "$(sed -n '/^RUN groupadd/,/initdb.d$/p' "$work/context/Dockerfile" | sed 's/^RUN //')" >"$work/run.log" 2>&1 || { cat "$work/run.log"; exit 1; }
install -m 0755 "$work/context/pando" "$root/usr/bin/pando"
install -m 0755 "$work/context/docker-entrypoint.sh" "$work/context/pando-ask" "$root/usr/local/bin/"
ln -sf pando "$root/usr/bin/mongod"
[ -e "$root/dev/null" ] || mknod -m 666 "$root/dev/null" c 1 3
printf 'echo "script saw $MONGO_INITDB_DATABASE" >/data/db/script-ran\n' >"$root/docker-entrypoint-initdb.d/one.sh"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true' EXIT
start() {
    chroot --userspec=999:999 "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin MONGO_INITDB_ROOT_USERNAME=root \
        MONGO_INITDB_ROOT_PASSWORD='pa ss/ü' MONGO_INITDB_DATABASE=shop docker-entrypoint.sh --bind_ip 127.0.0.1 --port "$port" \
        </dev/null >>"$work/server.log" 2>&1 &
    server=$!
}
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check pymongo
# A script that fails ends the start, and the next one begins anew.
printf 'exit 7\n' >"$root/docker-entrypoint-initdb.d/two.sh"
start
wait "$server" && { echo "a start whose script failed went on"; exit 1; }
rm "$root/docker-entrypoint-initdb.d/two.sh"
for round in first second; do
    start
    "$work/venv/bin/python" - "$port" "$round" <<-'END' || { tail -n 20 "$work/server.log"; exit 1; }
	import sys
	from pymongo import MongoClient
	from pymongo.errors import OperationFailure
	where = dict(host="127.0.0.1", port=int(sys.argv[1]), directConnection=True, serverSelectionTimeoutMS=60000)
	with MongoClient(**where) as stranger:
	    try:
	        stranger.shop.things.find_one()
	        raise SystemExit("a client without a login was answered")
	    except OperationFailure as error:
	        assert error.code == 13, error
	with MongoClient(**where, username="root", password="pa ss/ü") as client:
	    client.shop.things.insert_one({"round": sys.argv[2]})
	    print("first query answered,", client.shop.things.count_documents({}), "documents")
	END
    inside env PANDO_ASK_PORT="$port" pando-ask ping
    kill "$server"
    wait "$server" || true
    server=
    if inside env PANDO_ASK_PORT="$port" pando-ask ping; then echo "a server that is down was called healthy"; exit 1; fi
done
[ "$(cat "$root/data/db/script-ran")" = "script saw shop" ]
