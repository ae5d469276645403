#!/usr/bin/env bash
# The programs that live on transactions, change streams and the oplog, or that start a server for tests, unmodified against the
# built server: each step installs what it needs and ends with a verdict. Longer than what belongs into scripts/test.sh, which has the quick ones (mongodump
# --oplog in tests/python/test_tools.py; mongo-oplog and Mongoose in tests/node).
#
#     scripts/consumers.sh                     all of them
#     scripts/consumers.sh monstache debezium  only these (monstache debezium spring flapdoodle)
#
# PANDO_BIN names the server (otherwise it is built), MONSTACHE_BIN a Monstache that is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/provision.sh

all=(monstache debezium spring flapdoodle)
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=("${all[@]}")
for step in "${steps[@]}"; do
    [[ " ${all[*]} " == *" $step "* ]] || die "no such step: $step (there are: ${all[*]})"
done
monstache_wanted=v6.7.9

# consumer_tests FILE: pytest with the fixtures of tests/python.
consumer_tests() {
    PYTHONPATH=tests/python .venv/bin/python -m pytest -c tests/python/pytest.ini -p conftest "tests/consumers/$1"
}

need_maven() {
    local missing=()
    command -v javac >/dev/null || missing+=(default-jdk-headless)
    command -v mvn >/dev/null || missing+=(maven)
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
}

maven() {
    mvn --batch-mode --no-transfer-progress --quiet "$@"
}

# 77 is "skipped", as for other test runners.
step_monstache() {
    if [ -z "${MONSTACHE_BIN:-}" ]; then
        export MONSTACHE_BIN=$PWD/.tools/bin/monstache
        mkdir -p .tools/bin
        [ -x "$MONSTACHE_BIN" ] || { want_go && GOBIN=$PWD/.tools/bin go install "github.com/rwynn/monstache/v6@$monstache_wanted"; } || {
            echo "SKIPPED: Monstache could not be built here; MONSTACHE_BIN may name one"
            return 77
        }
    fi
    consumer_tests test_monstache.py
}

step_debezium() {
    need_maven
    (cd tests/consumers/debezium && maven compile dependency:copy-dependencies)
    consumer_tests test_debezium.py
}

step_spring() {
    need_maven
    (cd tests/consumers/spring && maven test)
}

step_flapdoodle() {
    need_maven
    (cd tests/consumers/flapdoodle && maven test)
}

need_python
if [ -z "${PANDO_BIN:-}" ]; then
    need_compilers
    need_rust
    cargo build --workspace --locked
    target=${CARGO_TARGET_DIR:-target}
    [[ $target == /* ]] || target=$PWD/$target
    export PANDO_BIN=$target/debug/pando
fi

summary=() failed=0
for step in "${steps[@]}"; do
    started=$SECONDS
    say "$step"
    set +e
    (set -e; "step_$step")
    case $? in
        0) verdict=passed ;;
        77) verdict=SKIPPED ;;
        *) verdict=FAILED failed=1 ;;
    esac
    set -e
    summary+=("$(printf '%-10s %-7s %5d s' "$step" "$verdict" $((SECONDS - started)))")
done
say "summary"
printf '%s\n' "${summary[@]}"
exit $failed
