#!/usr/bin/env bash
# Tests 4 and 6 of study A (ten documents of one number; a range of 1,000 by date, 100 skipped, 10 given) while memory holds the data,
# and when it is four times the memory: what each keeps of its rate, and how many documents it examines.
#
#     scripts/bench-grown.sh                      600 MB of memory, 100,000 and then 2,400,000 documents of 1 KB; 2 minutes
#     MEMORY_MB=300 TEST_SECONDS=5 scripts/bench-grown.sh
#     DATES=scattered scripts/bench-grown.sh      dates that do not follow the order of insertion, as they do in the study
#
# The server runs in a memory control group that counts the page cache, where this machine lets us make one (see bench-load.sh). Needs a
# release builds: cargo build --release -p pando -p lab. Results: two files of the laboratory in $OUT-memory.json and $OUT-grown.json, a table.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/memory-group.sh

memory_mb=${MEMORY_MB:-600} port=${PORT:-27719} connections=${CONNECTIONS:-32}
seconds=${TEST_SECONDS:-15} settle=${SETTLE_SECONDS:-30}
small=${SMALL:-$((memory_mb * 1000 / 6))} large=${LARGE:-$((memory_mb * 4000))}
target=${CARGO_TARGET_DIR:-target}
pando=${PANDO_BIN:-$target/release/pando}
python=${PYTHON:-.venv/bin/python}
out=${OUT:-bench-grown}
cache_mb=${CACHE_MB:-$((memory_mb * 4 / 10))}
begin bench-grown

limit grown "$memory_mb"
flags=() memory="a control group of $memory_mb MB"
[ -n "$group" ] || flags=(--direct-io) memory="no control group: direct I/O"
echo "$small and $large documents, cache of $cache_mb MB, $memory, $connections connections" >&2
(within "$pando" serve --dbpath "$work/data" --port "$port" --cache "${cache_mb}MB" "${flags[@]}" >"$work/server.out" 2>&1) &
server=$!
url=mongodb://127.0.0.1:$port
"$python" -c "import pymongo, sys; pymongo.MongoClient(sys.argv[1], serverSelectionTimeoutMS=60000).admin.command('ping')" "$url"
for step in memory:$small grown:$large; do
    rm -f "$out-${step%:*}.json"
    "$pando" lab study single --url "$url" --only 2,4,6 --records "${step#*:}" --payload random --dates "${DATES:-follow}" --connections "$connections" \
        --duration "${seconds}s" --settle "${settle}s" --keep --quiet --out "$out-${step%:*}.json" >/dev/null
done
"$python" - "$url" "$out" "$server" <<'PY'
import json, sys
import pymongo

url, out, pid = sys.argv[1:]
steps = [{s["name"].split(":")[0]: s for s in json.load(open(f"{out}-{which}.json"))["steps"]} for which in ("memory", "grown")]
kept = {}
print(f"{'':<8}{'in memory/s':>13}{'grown/s':>10}{'keeps':>8}{'CPU us':>10}{'grown':>10}{'p99 ms':>9}{'grown':>9}")
for test in ("test 4", "test 6"):
    a, b = (s[test] for s in steps)
    kept[test] = b["per_second"] / a["per_second"]
    p99 = [next(iter(s["latency"].values()))["p99_us"] / 1000 for s in (a, b)]
    cpu = [s["server_cpu_us"] for s in (a, b)]
    rates = f"{a['per_second']:>13,.0f}{b['per_second']:>10,.0f}{100 * kept[test]:>7.1f}%"
    print(f"{test:<8}{rates}{cpu[0]:>10,.0f}{cpu[1]:>10,.0f}{p99[0]:>9.1f}{p99[1]:>9.1f}")
print(f"test 6 keeps {100 * kept['test 6'] / kept['test 4']:.0f}% of the share that test 4 keeps (bar: 80%)")
things = pymongo.MongoClient(url).studya.single
for name, find in (
    ("test 4", things.find({"Number": 5})),
    ("test 6", things.find({"Number": {"$gte": 5, "$lt": 105}}).sort("Date", -1).skip(100).limit(10)),
):
    did = find.explain()["executionStats"]
    print(f"{name}: {did['totalKeysExamined']} keys and {did['totalDocsExamined']} documents examined, {did['nReturned']} given")
peak = next(line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("VmHWM"))
print(f"most memory of the process: {int(peak) >> 10} MB")
PY
