#!/usr/bin/env bash
# Study C's scenarios C.S2 to C.S5 with data four times the memory, zipfian keys: the server, and in the same run the bare engine fed
# in process with the same options, cache, keys, sizes and as many operations in flight. The bar: 75% of the engine.
#
#     scripts/bench-beyond.sh                      600 MB of memory for each target, 2.5 GB of data, about 8 minutes
#     MEMORY_MB=200 PHASE_SECONDS=5 scripts/bench-beyond.sh
#     ENGINE_ROWS=50 scripts/bench-beyond.sh       the engine with the server's rows in front of its blocks
#     SOCKET=1 scripts/bench-beyond.sh             clients come by the server's Unix socket instead of TCP
#
# Loaded once; then read-only first, the scenario with the most updates last, each after WARMUP seconds unmeasured. Control groups as in
# scripts/bench-load.sh. Needs release builds: cargo build --release -p pando -p lab, and cargo build --release -p storage --example
# engine_ycsb. Results: a line of JSON for each target and scenario in $OUT, and a table.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/memory-group.sh

memory_mb=${MEMORY_MB:-600} port=${PORT:-27718} connections=${CONNECTIONS:-32}
seconds=${PHASE_SECONDS:-30} warmup=${WARMUP:-10} scenarios=${SCENARIOS:-C.S5 C.S2 C.S3 C.S4}
# A record: its key and ten fields of 100 bytes, as BSON.
record_bytes=1168
records=${RECORDS:-$((memory_mb * 4 * 1048576 / record_bytes))}
target=${CARGO_TARGET_DIR:-target}
pando=${PANDO_BIN:-$target/release/pando}
engine=${ENGINE_YCSB:-$target/release/examples/engine_ycsb}
python=${PYTHON:-.venv/bin/python}
out=${OUT:-bench-beyond.json}
# Beside the cache the process needs room for messages and itself.
cache_mb=${CACHE_MB:-$((memory_mb * 4 / 10))}
begin bench-beyond

declare -A reads=([C.S2]=90 [C.S3]=50 [C.S4]=10 [C.S5]=100)
phases=''
for scenario in $scenarios; do
    phases+=${phases:+,}$scenario:${reads[$scenario]}
done

limit server "$memory_mb"
flags=() direct=0 memory="a control group of $memory_mb MB"
[ -n "$group" ] || flags=(--direct-io) direct=1 memory="no control group: direct I/O"
host=127.0.0.1:$port
if [ -n "${SOCKET:-}" ]; then
    host=${work//\//%2F}%2Fmongodb-$port.sock
    flags+=(--unix-socket-dir "$work")
fi
echo "$records records of $record_bytes bytes, cache of $cache_mb MB, $memory, $connections operations in flight" >&2
(within "$pando" serve --dbpath "$work/data" --port "$port" --cache "${cache_mb}MB" "${flags[@]}" >"$work/server.out" 2>&1) &
server=$!
"$python" scripts/measure.py beyond "$pando" "$host" "$records" "$connections" "$seconds" "$warmup" "$work" "$scenarios" | tee "$out"
stop_server
rm -rf "$work/data"
no_limit

limit engine "$memory_mb"
(within "$engine" "phases=$phases" "records=$records" "doc=$record_bytes" "threads=$connections" "seconds=$seconds" "warmup=$warmup" \
    "cache_mb=$cache_mb" "row_percent=${ENGINE_ROWS:-0}" "direct=$direct" "dir=$work") | tee -a "$out"
"$python" - "$out" "$memory_mb" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
server, engine = ({r["scenario"]: r for r in rows if r["target"] == t} for t in ("server", "engine"))
for name, of in (("server", server), ("engine", engine)):
    load = of["load"]
    print(f"{name}: {load['data_bytes'] / (int(sys.argv[2]) << 20):.1f} times the memory in data files, loaded at {load['rate']:.0f}/s")
wide = "{:<9}" + "{:>10}" * 5 + "{:>18}" * 2
print(wide.format("", "server/s", "engine/s", "share", "µs/op", "engine's", "reads p50, p99 µs", "engine's"))
for name in sorted(set(server) - {"load"}):
    s, e = server[name], engine[name]
    reads = [f"{r['read_p50_us']:.0f}, {r['read_p99_us']:.0f}" for r in (s, e)]
    share = f"{100 * s['rate'] / e['rate']:.0f}%"
    print(wide.format(name, f"{s['rate']:.0f}", f"{e['rate']:.0f}", share, f"{s['cpu_us_per_op']:.1f}", f"{e['cpu_us_per_op']:.1f}", *reads))
clients = ", ".join(f"{server[n]['client_cpu_us_per_op']:.0f}" for n in sorted(set(server) - {"load"}))
print(f"The server's clients share its cores and take {clients} µs of CPU an operation; the engine has no clients.")
PY
