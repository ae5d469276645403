#!/usr/bin/env bash
# The load of a collection with three random secondary indexes, by tenths: the server, and in the same run the bare engine fed in
# process with the same puts. Documents of 1 KB that do not compress, batches of 100 from 4 connections.
#
#     scripts/bench-load.sh                       3,000,000 documents, 600 MB of memory for each target
#     DOCS=300000 MEMORY_MB=120 IDS=md5 scripts/bench-load.sh
#     READS=1 scripts/bench-load.sh               and then reads of what the server holds, 32 at a time, by `pando lab reads`
#     DIRECT=1 CACHE_MB=330 scripts/bench-load.sh direct I/O for both: the page cache's share of the memory goes to the cache
#
# Each target runs in a memory control group of its own that counts the page cache, where this machine lets us make one; where it
# does not, with direct I/O, and the figures say which it was. Needs release builds: cargo build --release -p pando -p lab, and
# cargo build --release -p storage --example engine_fill. Results: a line of JSON for each
# target in $OUT, and one for each kind of reads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/memory-group.sh

docs=${DOCS:-3000000} memory_mb=${MEMORY_MB:-600} ids=${IDS:-generated} port=${PORT:-27717}
target=${CARGO_TARGET_DIR:-target}
pando=${PANDO_BIN:-$target/release/pando}
engine=${ENGINE_FILL:-$target/release/examples/engine_fill}
python=${PYTHON:-.venv/bin/python}
out=${OUT:-bench-load.json}
reads=${READS:-0} connections=${CONNECTIONS:-32} read_seconds=${READ_SECONDS:-20}
# Beside the cache the process needs room for messages and itself.
cache_mb=${CACHE_MB:-$((memory_mb * 4 / 10))} direct=${DIRECT:-0}
begin bench-load

limit engine "$memory_mb"
[ -n "$group" ] || direct=1
memory="a control group of $memory_mb MB"
[ -n "$group" ] || memory="no control group: direct I/O"
[ "$direct" = 0 ] || [ -z "$group" ] || memory+=", direct I/O"
echo "$docs documents, $ids ids, cache of $cache_mb MB, $memory" >&2
check=1
# The same puts as the server's: records under numbers where ids are long.
numbered=0
[ "$ids" != md5 ] || numbered=1
(within "$engine" "load=$ids" "check=$check" "numbered=$numbered" "docs=$docs" "cache_mb=$cache_mb" "direct=$direct" row_percent=25 "dir=$work") | tee "$out"
no_limit

limit server "$memory_mb"
flags=()
[ "$direct" = 0 ] || flags=(--direct-io)
(within "$pando" serve --dbpath "$work/data" --port "$port" --cache "${cache_mb}MB" "${flags[@]}" >"$work/server.out" 2>&1) &
server=$!
keep=''
[ "$reads" = 0 ] || keep=$work/ids
"$python" scripts/measure.py load "$port" "$docs" "$ids" "$work/data" ${keep:+"$keep"} | tee -a "$out"
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
[ "$reads" != 0 ] || exit 0

# The client shares the cores with the server; what it takes is in its table.
"$pando" lab reads --url "mongodb://127.0.0.1:$port" --ids "$keep" --connections "$connections" --duration "${read_seconds}s" \
    --quiet --out "$work/reads.json"
"$python" - "$work/reads.json" "$memory_mb" <<'PY' | tee -a "$out"
import json, sys
report = json.load(open(sys.argv[1]))
for step in report["steps"]:
    row = {"target": "server", "reads": step["name"], "connections": step["connections"], "rate": int(step["per_second"])}
    row |= {"cpu_us": round(step["server_cpu_us"], 1), "client_cpu_us": round(step["client_cpu_us"], 1)}
    row |= {"memory_mb": int(sys.argv[2]), "storage_bytes": step["sizes"][0]["storage_bytes"] + step["sizes"][0]["index_bytes"]}
    row |= {kind: {q: round(of[q], 1) for q in ("p50_us", "p99_us", "p999_us")} for kind, of in step["latency"].items()}
    print(json.dumps(row))
PY
echo "bars for cpu_us: 60 a point read, 300 a range (MongoDB 4.0: 102 and 436); client_cpu_us is spent on the same cores"
