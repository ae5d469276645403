#!/usr/bin/env bash
# Seeded crash runs: kills and injected faults below log and engine, and a look for every acknowledged write after each.
#
#     scripts/crash.sh 1000           the seeds 1 to 1000
#     scripts/crash.sh 50 4711        the seeds 4711 to 4760; a failure says which seed it was: scripts/crash.sh 1 SEED
#
# The binary is PANDO_BIN, or the debug build.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
export PANDO_BIN=${PANDO_BIN:-$target/debug/pando}
export PANDO_CRASH_RUNS=${1:-100} PANDO_CRASH_SEED=${2:-1}
python=${PYTHON:-.venv/bin/python}
exec "$python" -m pytest tests/python/test_crash_faults.py -q -s --timeout 0 -p no:cacheprovider
