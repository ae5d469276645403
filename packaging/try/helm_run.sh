#!/usr/bin/env bash
# Runs what the chart's pods run, on loopback at ports of their own: `start.sh` as the chart has it, with the program and pando-ask.
# The set and the cluster have to come to be by themselves; a second start finds all done.
#
#     packaging/try/helm_run.sh CHART.tgz WORK BIN        PYTHON names an interpreter that has pymongo
set -euo pipefail
chart=$1 work=$2 bin=$(realpath "$3")
here=$(dirname "$(realpath "$0")")
mkdir -p "$work/bin" "$work/chart" "$work/secrets"
tar -xzf "$chart" -C "$work/chart" --strip-components=1
cp "$here/../container/pando-ask" "$work/bin"
chmod 0755 "$work/bin/pando-ask"
for name in pando mongod mongos; do ln -sf "$bin/pando" "$work/bin/$name"; done
export PATH=$work/bin:$PATH
head -c 384 /dev/urandom | base64 -w 0 >"$work/secrets/keyfile"
printf 'a word of passage' >"$work/secrets/password"

pids=()
trap '[ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null; wait' EXIT

# pod NAME PORT ROLE SET HOSTS [SHARDS]
pod() {
    mkdir -p "$work/$1/own" "$work/$1/db"
    PANDO_POD=$1 PANDO_PORT=$2 PANDO_ROLE=$3 PANDO_SET=$4 PANDO_HOSTS=$5 PANDO_SHARDS=${6:-} PANDO_ROOT_USER=root PANDO_TLS_MODE=disabled \
        PANDO_METRICS='' PANDO_OWN=$work/$1/own PANDO_SECRETS=$work/secrets PANDO_DATA=$work/$1/db \
        bash "$work/chart/files/start.sh" --cache 32MB >>"$work/$1.log" 2>&1 &
    pids+=($!)
}

# first_query URI [SHARD…]: waits for the first user, writes and reads; a cluster has to have these shards.
first_query() {
    timeout 120 "${PYTHON:-python3}" - "$@" <<-'END'
	import sys, time
	from pymongo import MongoClient
	from pymongo.errors import PyMongoError
	with MongoClient(sys.argv[1], username="root", password="a word of passage", serverSelectionTimeoutMS=2000) as client:
	    while True:
	        try:
	            client.shop.things.replace_one({"_id": 1}, {"_id": 1, "name": "oak"}, upsert=True)
	            break
	        except PyMongoError:
	            time.sleep(0.5)
	    assert client.shop.things.find_one({"name": "oak"}) == {"_id": 1, "name": "oak"}
	    shards = client.admin.command("listShards")["shards"] if client.is_mongos else []
	    assert sorted(shard["_id"] for shard in shards) == sys.argv[2:], shards
	    print("first query answered", *sys.argv[2:])
	END
}

end() {
    kill "${pids[@]}"
    wait "${pids[@]}" || true
    pids=()
}

port=${PANDO_TRY_PORT:-42017}
h() { echo "localhost:$((port + $1))"; }
set_hosts=$(h 0),$(h 1),$(h 2)
members() { for n in 0 1 2; do pod "rs-$n" $((port + n)) member rs0 "$set_hosts"; done; }
members
first_query "mongodb://$set_hosts/?replicaSet=rs0"
end
members
first_query "mongodb://$set_hosts/?replicaSet=rs0"
end
grep -h '^chart:' "$work"/rs-*.log

cluster() {
    pod config-0 $((port + 10)) config config "$(h 10)"
    pod s0-0 $((port + 11)) shard s0 "$(h 11)"
    pod s1-0 $((port + 12)) shard s1 "$(h 12)"
    pod router-a $((port + 13)) router config "$(h 10)" "s0/$(h 11) s1/$(h 12)"
    pod router-b $((port + 14)) router config "$(h 10)" "s0/$(h 11) s1/$(h 12)"
}
for turn in 1 2; do
    cluster
    first_query "mongodb://$(h 13)/" s0 s1
    first_query "mongodb://$(h 14)/" s0 s1
    end
done
grep -h '^chart:' "$work"/*-?.log | sort | uniq -c
echo "the chart's pods come to be"
