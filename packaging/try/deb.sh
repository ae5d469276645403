#!/usr/bin/env bash
# Installs a .deb into a fresh Debian, starts the server as its unit would, asks it a first query
# on loopback, and purges it. Needs root and debootstrap; PANDO_ROOT may name a Debian that is there already.
#
#     deb.sh FILE.deb WORKDIR
set -euo pipefail
deb=$(realpath "$1") work=$2
here=$(dirname "$(realpath "$0")")
mkdir -p "$work"
root=$work/root
if [ -n "${PANDO_ROOT:-}" ]; then
    cp -a "$PANDO_ROOT" "$root"
else
    command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq debootstrap; }
    debootstrap --variant=minbase bookworm "$root" >"$work/debootstrap.log"
fi
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
}
trap cleanup EXIT
cp "$deb" "$root/tmp/pando.deb"
cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
inside() { chroot "$root" /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check pymongo
# Fills the package lists of the root, as a machine has them.
inside apt-get update -qq
began=$SECONDS
inside apt-get install -y -qq --no-install-recommends /tmp/pando.deb >"$work/install.log" 2>&1 || { cat "$work/install.log"; exit 1; }
inside pando --version
for file in /etc/pando.conf /etc/logrotate.d/pando /lib/systemd/system/pando.service /usr/share/man/man1/pando-serve.1.gz \
    /usr/share/bash-completion/completions/pando; do
    [ -e "$root$file" ] || { echo "the package has no $file"; exit 1; }
done
[ "$(inside stat -c '%U %a' /var/lib/pando)" = "pando 700" ]

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
sed -i "s/port: 27017/port: $port/" "$root/etc/pando.conf"
# As the unit does it: this user, this command.
chroot --userspec=pando:pando "$root" /usr/bin/pando serve --config /etc/pando.conf </dev/null >/dev/null 2>&1 &
server=$!
"$work/venv/bin/python" - "$port" <<-'END'
	import sys
	from pymongo import MongoClient
	with MongoClient("127.0.0.1", int(sys.argv[1]), directConnection=True, serverSelectionTimeoutMS=30000) as client:
	    client.shop.things.insert_one({"name": "oak"})
	    assert client.shop.things.find_one()["name"] == "oak"
	    assert client.admin.command("getCmdLineOpts")["parsed"]["storage"]["dbPath"] == "/var/lib/pando"
	print("first query answered")
END
echo "from the package to a first query: $((SECONDS - began)) s"
grep -q 'Waiting for connections' "$root/var/log/pando/pando.log"
# Rotated by hand, with the signal that the unit's rotation sends: the server writes to the new file.
inside apt-get install -y -qq --no-install-recommends logrotate >>"$work/install.log" 2>&1
inside logrotate --force /etc/logrotate.d/pando 2>"$work/rotate.log" || { cat "$work/rotate.log"; exit 1; }
[ -e "$root/var/log/pando/pando.log.1" ] && [ ! -s "$root/var/log/pando/pando.log" ]
kill -USR1 "$server"
for ((tries = 0; tries < 100; tries++)); do
    [ ! -s "$root/var/log/pando/pando.log" ] || break
    "$work/venv/bin/python" -c 'import sys, pymongo; pymongo.MongoClient("127.0.0.1", int(sys.argv[1])).admin.command("ping")' "$port"
done
[ -s "$root/var/log/pando/pando.log" ] || { echo "the server did not open its log anew"; exit 1; }
kill "$server"
wait "$server" || true
server=
inside apt-get purge -y -qq pando >"$work/purge.log" 2>&1
[ ! -e "$root/var/lib/pando" ] && [ ! -e "$root/usr/bin/pando" ] && [ ! -e "$root/etc/pando.conf" ]
