#!/usr/bin/env bash
# Starts one server of the chart and, beside it, makes what it is a part of: the first pod of a set makes the set; the primary of a
# set alone makes the first user; in a cluster a router does, when it knows the shards.
#
# All of that goes over loopback, where nobody has to log in until there is a user (the localhost exception). What was done before
# is found done, so every pod may begin again at any moment.
set -euo pipefail

own=${PANDO_OWN:-/run/pando} secrets=${PANDO_SECRETS:-/opt/secrets} tls=${PANDO_TLS:-/opt/tls}
port=${PANDO_PORT:-27017} data=${PANDO_DATA:-/data/db}
pod=${PANDO_POD:-$HOSTNAME}
export PANDO_ASK_PORT=$port

say() { echo "chart: $*"; }

# The server takes this process's number: without it there is nothing to wait for.
await_server() {
    until pando-ask ping; do
        kill -0 $$ 2>/dev/null || exit 0
        sleep 1
    done
}

# Tries until it is done, or is refused because there is a user, who was made when all was done.
until_done() {
    local result
    while kill -0 $$ 2>/dev/null; do
        result=0
        "$@" || result=$?
        [ $result -ne 0 ] || return 0
        [ $result -ne 3 ] || return 3
        sleep 2
    done
    return 1
}

make_root() {
    until_done pando-ask create-root "$PANDO_ROOT_USER" "$(<"$secrets/password")" 2>/dev/null && say "the user $PANDO_ROOT_USER was made" || true
}

make_set() {
    await_server
    if [ "${pod##*-}" = 0 ]; then
        IFS=, read -ra hosts <<<"$PANDO_HOSTS"
        until_done pando-ask initiate "$PANDO_SET" "${hosts[@]}" && say "the set $PANDO_SET is there" || true
    fi
    [ "$PANDO_ROLE" != member ] || make_root
}

make_cluster() {
    local shard
    await_server
    for shard in $PANDO_SHARDS; do
        # Where a user is there the shards of the beginning are too; later ones are added by him.
        until_done pando-ask add-shard "$shard" || return 0
        say "the shard ${shard%%/*} is there"
    done
    make_root
}

umask 077
cp "$secrets/keyfile" "$own/keyfile"
flags=(--port "$port" --bind_ip_all --keyFile "$own/keyfile" --console off)
if [ "${PANDO_TLS_MODE:-disabled}" != disabled ]; then
    cat "$tls/tls.crt" "$tls/tls.key" >"$own/server.pem"
    # Members and clients log in by key and password: no certificate is asked of them.
    flags+=(--tlsMode "$PANDO_TLS_MODE" --tlsCertificateKeyFile "$own/server.pem" --tlsCAFile "$tls/ca.crt"
        --tlsAllowConnectionsWithoutCertificates)
fi
[ -z "${PANDO_METRICS:-}" ] || flags+=(--metrics "$PANDO_METRICS")
# Without requireTLS, and for figures, the server wants somebody's word that the network of pods is trusted.
[ "${PANDO_TLS_MODE:-disabled}${PANDO_METRICS:-}" = requireTLS ] || flags+=(--allow-insecure-bind)

if [ "$PANDO_ROLE" = router ]; then
    [ "${PANDO_TLS_MODE:-disabled}" = requireTLS ] || make_cluster &
    exec mongos --configdb "$PANDO_SET/$PANDO_HOSTS" "${flags[@]}" "$@"
fi
case $PANDO_ROLE in
    config) flags+=(--configsvr) ;;
    shard) flags+=(--shardsvr) ;;
esac
[ "${PANDO_TLS_MODE:-disabled}" = requireTLS ] || make_set &
exec mongod --dbpath "$data" --replSet "$PANDO_SET" "${flags[@]}" "$@"
