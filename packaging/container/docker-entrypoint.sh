#!/usr/bin/env bash
# Starts the server as the `mongo` image does: MONGO_INITDB_ROOT_USERNAME and MONGO_INITDB_ROOT_PASSWORD
# (or …_FILE) make the first user and switch logins on; scripts of /docker-entrypoint-initdb.d run once,
# while no other client reaches the server.
set -euo pipefail

die() {
    echo "docker-entrypoint: $*" >&2
    exit 1
}

# from_file NAME: NAME may be given as a file, as secrets are.
from_file() {
    local name=$1 file=$1_FILE
    [ -z "${!name:-}" ] || [ -z "${!file:-}" ] || die "$name and $file are both set"
    [ -z "${!file:-}" ] || export "$name=$(<"${!file}")"
    unset "$file"
}

# The words after a flag's: `mongod`, `--auth …` and `pando …` are all understood.
[[ ${1:-mongod} != -* ]] || set -- mongod "$@"
[ $# -gt 0 ] || set -- mongod
[ "$1" = mongod ] || exec "$@"
shift

from_file MONGO_INITDB_ROOT_USERNAME
from_file MONGO_INITDB_ROOT_PASSWORD
user=${MONGO_INITDB_ROOT_USERNAME:-} password=${MONGO_INITDB_ROOT_PASSWORD:-}
[ -n "$user" ] && [ -z "$password" ] && die "MONGO_INITDB_ROOT_PASSWORD is missing"
[ -z "$user" ] && [ -n "$password" ] && die "MONGO_INITDB_ROOT_USERNAME is missing"

data=/data/db
words=("$@")
for ((i = 0; i < ${#words[@]}; i++)); do
    case ${words[i]} in
        --dbpath) data=${words[i + 1]:-} ;;
        --dbpath=*) data=${words[i]#*=} ;;
    esac
done
# Beyond loopback, as everything in a container is, the server wants to be told that the network is trusted where it has no TLS.
[[ " $* " == *" --bind"* ]] || set -- --bind_ip_all "$@"
[[ " $* " == *" --allow-insecure-bind"* ]] || set -- --allow-insecure-bind "$@"
[ -z "$user" ] || [[ " $* " == *" --auth "* ]] || set -- --auth "$@"

# Once for a directory, on a port of its own. What an initialization that failed has made is removed by the next start.
initialize() {
    local port=27000 tries=0 file
    touch "$data/.initializing"
    pando serve --dbpath "$data" --port $port --bind 127.0.0.1 ${user:+--auth} &
    server=$!
    # A server without its users must not outlive a failure.
    trap 'kill $server 2>/dev/null || true' EXIT
    export PANDO_ASK_PORT=$port
    until pando-ask ping; do
        kill -0 $server 2>/dev/null || die "the server did not start"
        [ $((tries += 1)) -lt 600 ] || die "the server did not answer"
        sleep 0.1
    done
    [ -z "$user" ] || pando-ask create-root "$user" "$password"
    for file in /docker-entrypoint-initdb.d/*; do
        case $file in
            *.sh) if [ -x "$file" ]; then "$file"; else . "$file"; fi ;;
            *.js)
                command -v mongosh >/dev/null || die "$file needs mongosh, which this image has not: add it, or use a .sh"
                mongosh --quiet --port $port ${user:+-u "$user" -p "$password" --authenticationDatabase admin} \
                    "${MONGO_INITDB_DATABASE:-test}" "$file"
                ;;
        esac
    done
    unset PANDO_ASK_PORT
    kill $server
    wait $server || true
    trap - EXIT
    rm "$data/.initializing"
}

[ ! -e "$data/.initializing" ] || find "$data" -mindepth 1 -delete
if [ -z "$(ls -A "$data" 2>/dev/null)" ]; then
    if [ -n "$user" ] || compgen -G '/docker-entrypoint-initdb.d/*' >/dev/null; then initialize; fi
fi
unset MONGO_INITDB_ROOT_USERNAME MONGO_INITDB_ROOT_PASSWORD
exec mongod "$@"
