#!/usr/bin/env bash
# The load of a collection with three random secondary indexes, by tenths: the server, and in the same run the bare engine fed in
# process with the same puts. Documents of 1 KB that do not compress, batches of 100 from 4 connections.
#
#     scripts/bench-load.sh                       3,000,000 documents, 600 MB of memory for each target
#     DOCS=300000 MEMORY_MB=120 IDS=md5 scripts/bench-load.sh
#
# Each target runs in a memory control group of its own that counts the page cache, where this machine lets us make one; where it
# does not, with direct I/O, and the figures say which it was. Needs release builds: cargo build --release -p pando, and
# cargo build --release -p storage --example engine_fill. Results: a line of JSON for each target in $OUT.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

docs=${DOCS:-3000000} memory_mb=${MEMORY_MB:-600} ids=${IDS:-generated} port=${PORT:-27717}
target=${CARGO_TARGET_DIR:-target}
pando=${PANDO_BIN:-$target/release/pando}
engine=${ENGINE_FILL:-$target/release/examples/engine_fill}
python=${PYTHON:-.venv/bin/python}
out=${OUT:-bench-load.json}
# Beside the cache the process needs room for messages and itself.
cache_mb=${CACHE_MB:-$((memory_mb * 4 / 10))}
work=$(mktemp -d "${TMPDIR:-/tmp}/bench-load.XXXXXX")
server='' group=''
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    rm -rf "$work"
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || true
}
trap cleanup EXIT

# A control group with the limit: version 1 or 2, or none.
limit() {
    local root
    for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
        local at=$root/pando-bench-$1-$$
        mkdir "$at" 2>/dev/null || continue
        if echo $((memory_mb << 20)) 2>/dev/null > "$at/memory.limit_in_bytes" ||
            echo $((memory_mb << 20)) 2>/dev/null > "$at/memory.max"; then
            group=$at
            return
        fi
        rmdir "$at" 2>/dev/null || true
    done
    group=''
}
# within COMMAND…: runs it in the group.
within() {
    if [ -n "$group" ]; then
        # The shell that becomes the command puts itself into the group first.
        exec sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$group" "$@"
    fi
    exec "$@"
}

limit engine
direct=0
[ -n "$group" ] || direct=1
memory="a control group of $memory_mb MB"
[ -n "$group" ] || memory="no control group: direct I/O"
echo "$docs documents, $ids ids, cache of $cache_mb MB, $memory" >&2
check=1
(within "$engine" "load=$ids" "check=$check" "docs=$docs" "cache_mb=$cache_mb" "direct=$direct" row_percent=25 "dir=$work") | tee "$out"
[ -z "$group" ] || rmdir "$group" || true

limit server
flags=()
[ -n "$group" ] || flags=(--direct-io)
(within "$pando" serve --dbpath "$work/data" --port "$port" --cache "${cache_mb}MB" "${flags[@]}" >"$work/server.out" 2>&1) &
server=$!
"$python" scripts/bench_load.py "$port" "$docs" "$ids" "$work/data" | tee -a "$out"
"$python" - "$out" <<'PY'
import json, sys
engine, server = [json.loads(line) for line in open(sys.argv[1])][-2:]
median = lambda some: sorted(some)[len(some) // 2]
steady = server["tenths"][3:]
print(f"server {server['rate']}/s, engine {engine['rate']}/s: {100 * server['rate'] / engine['rate']:.0f}%")
print(f"from the fourth tenth on, the slowest has {100 * min(steady) / median(steady):.0f}% of their median")
print(f"the last tenth has {100 * server['tenths'][-1] / server['tenths'][0]:.0f}% of the first")
print(f"slowest second {100 * min(server['each_second'] or [0]) / max(1, median(server['each_second'] or [1])):.0f}% of the median; worst batch {server['worst_ms']} ms")
PY
