#!/usr/bin/env bash
# Fuzzing guided by coverage (libFuzzer, on stable Rust): see tests/fuzz/README.md.
#
#     scripts/fuzz.sh TARGET [SECONDS [libFuzzer's options]]     for so long, in processor time (600)
#     scripts/fuzz.sh TARGET replay FILE…                        runs inputs once
#     scripts/fuzz.sh cost [SECONDS [NAME…]]                     what a command's work grows by (scripts/fuzz_cost.py)
#     scripts/fuzz.sh memory [SECONDS [NAME…]]                   what many clients make it hold (scripts/fuzz_memory.py)
#     scripts/fuzz.sh TARGET save                                the smallest corpus that covers as much, into tests/fuzz/corpus
#
# Targets: pipelines expressions updates filters shapes projections wire sasl certificates text log bson keys json entries (which
# links RocksDB).
# The corpus grows, and findings are kept, in $FUZZ_DIR (target/fuzz-work), with a line for each run in its ledger.tsv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/provision.sh
if [ "${1-}" = cost ] || [ "${1-}" = memory ]; then
    kind=$1
    shift
    python=.venv/bin/python
    [ -x "$python" ] || python=python3
    exec "$python" "scripts/fuzz_$kind.py" "$@"
fi
need_compilers
need_rust

target=${1:?which target?}
shift
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export FUZZ_DIR=${FUZZ_DIR:-$CARGO_TARGET_DIR/fuzz-work}
mkdir -p "$FUZZ_DIR"

# Counters in everything that is compiled for the target; build scripts and macros are compiled for the host, without.
host=$(rustc -vV | sed -n 's/^host: //p')
features=()
[ "$target" != entries ] || features=(--features entries)
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing" \
    cargo build --release --manifest-path tests/fuzz/guided/Cargo.toml --target "$host" \
    --target-dir "$CARGO_TARGET_DIR/fuzz" "${features[@]}"
# A copy, so that a run goes on while the next is built.
binary=$FUZZ_DIR/guided-$target
cp -f "$CARGO_TARGET_DIR/fuzz/$host/release/guided" "$binary.new"
mv -f "$binary.new" "$binary"

exec python3 scripts/fuzz.py "$target" "$binary" "$@"
