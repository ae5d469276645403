#!/usr/bin/env bash
# From a fresh clone to a running server: installs missing packages, builds, and serves ./data on
# 127.0.0.1:27017. Arguments are handed to `pando serve` (`scripts/start.sh --port 27018`); `pando serve
# --help` explains them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/provision.sh

port=27017 data=(--dbpath data) previous=
for argument in "$@"; do
    case "$argument" in
        --port=*) port=${argument#*=} ;;
        --dbpath | --dbpath=* | --config | --config=*) data=() ;;
    esac
    [ "$previous" != --port ] || port=$argument
    previous=$argument
done
# Said now, not after ten minutes of compiling.
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    die "port $port is in use on 127.0.0.1 (is a server running?); choose another: scripts/start.sh --port 27018"
fi

need_compilers
need_rust
say "building (the first build compiles RocksDB: some minutes)"
cargo build --profile start --locked --package pando
exec "${CARGO_TARGET_DIR:-target}/start/pando" serve "${data[@]}" "$@"
