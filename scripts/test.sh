#!/usr/bin/env bash
# The whole proof: formatting, lints, unit and property tests, and then the drivers, shells and tools that users have, against
# the built binary. Installs what it needs. Every step runs even if an earlier one failed; the summary says which did.
#
#     scripts/test.sh                 everything
#     scripts/test.sh python node     only these steps (format lint cargo python node rust go java)
#     scripts/test.sh csharp          the C# driver: not among `everything`, since it asks for Mono
#
# One cargo profile (dev) throughout, and always the whole workspace: so RocksDB's C++ is compiled once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/provision.sh

all=(format lint cargo python node rust go java)
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=("${all[@]}")
for step in "${steps[@]}"; do
    [[ " ${all[*]} csharp " == *" $step "* ]] || die "no such step: $step (there are: ${all[*]} csharp)"
done

target=${CARGO_TARGET_DIR:-target}
[[ $target == /* ]] || target=$PWD/$target
export PANDO_BIN=$target/debug/pando
# A first build gains nothing from files kept for a second one, some ten gigabytes.
[ -d "$target/debug" ] || export CARGO_INCREMENTAL=0
# Its port might be one that another test has just found free. Tests of the console ask for one.
export PANDO_CONSOLE=off
tools=$PWD/.tools/bin

step_format() {
    cargo fmt --all --check && cargo fmt --manifest-path tests/rust/Cargo.toml --check &&
        cargo fmt --manifest-path tests/fuzz/guided/Cargo.toml --check &&
        python3 scripts/check_documents.py && python3 scripts/reference.py --check && python3 scripts/tidy.py
}

step_lint() {
    python3 scripts/check_dependencies.py &&
        # The same rules by the tool that they are written for, where it is there; its advisories want the network.
        { ! command -v cargo-deny >/dev/null || cargo deny check licenses bans sources; } &&
        cargo clippy --workspace --all-targets --locked -- -D warnings
}

step_cargo() {
    cargo test --workspace --locked --no-fail-fast
}

build_server() {
    cargo build --workspace --locked
}

# MongoDB's database tools, built from the Go module proxy, for tests/python/test_tools.py.
build_tools() {
    want_go || { echo "SKIPPED mongodump and its kin: no Go $go_wanted or newer"; return 0; }
    mkdir -p "$tools"
    local tool
    for tool in mongodump mongorestore mongoexport mongoimport mongostat mongotop mongofiles bsondump; do
        [ -x "$tools/$tool" ] || (cd tests/tools && go build -o "$tools/$tool" "github.com/mongodb/mongo-tools/$tool/main") ||
            { echo "SKIPPED $tool: it could not be built"; return 0; }
    done
}

step_python() {
    build_tools
    # Four processes, which take one file after the other: most tests wait more than they compute (two use less than half of two
    # cores).
    PANDO_TOOLS=$tools .venv/bin/python -m pytest tests/python --color=auto -n 4 --dist loadfile
}

step_node() {
    (cd tests/node && npm ci --silent --no-audit --no-fund && npm test)
}

step_rust() {
    CARGO_TARGET_DIR=$target/drivers cargo test --manifest-path tests/rust/Cargo.toml --locked
}

step_go() {
    want_go || { echo "SKIPPED Go driver: no Go $go_wanted or newer"; return 0; }
    (cd tests/go && go vet ./... && go test -count=1 ./...)
}

step_java() {
    { command -v mvn && command -v javac; } >/dev/null || { echo "SKIPPED Java driver: no Maven and JDK here"; return 0; }
    # Both drivers, whatever comes of the first.
    local result=0
    for driver in current old; do
        (cd tests/java && mvn --batch-mode --no-transfer-progress --quiet -P "$driver" test) || result=1
    done
    return $result
}

# The C# driver's assemblies from npm (NuGet's packages are not asked for), compiled against and run by Debian's Mono.
step_csharp() {
    local out=$target/csharp driver=tests/csharp/node_modules/com.adrenak.mongodb.driver.upm/Plugins
    (cd tests/csharp && npm ci --silent --no-audit --no-fund)
    mkdir -p "$out"
    cp "$driver"/*.dll "$out"
    mcs -langversion:latest -target:library -out:"$out/System.Runtime.InteropServices.RuntimeInformation.dll" tests/csharp/Facade.cs
    mcs -langversion:latest -out:"$out/DriverTest.exe" -r:"$out/MongoDB.Bson.dll,$out/MongoDB.Driver.dll,$out/MongoDB.Driver.Core.dll" \
        tests/csharp/DriverTest.cs
    mono "$out/DriverTest.exe"
}

need_compilers
need_rust
need_rust_lints
# What looks at the documents and the dependencies.
command -v python3 >/dev/null || apt_install python3
case " ${steps[*]} " in *" python "* | *" node "* | *" csharp "*) need_python ;; esac
case " ${steps[*]} " in *" node "* | *" csharp "*) need_node ;; esac
case " ${steps[*]} " in *" node "* | *" rust "* | *" go "* | *" java "*) need_openssl ;; esac
case " ${steps[*]} " in *" csharp "*) need_mono ;; esac

# No step takes longer than this, in seconds: what hangs is ended, with all that it started, and has failed.
limit_of() {
    case $1 in
        lint | cargo | build) echo 2700 ;;
        *) echo 1200 ;;
    esac
}

summary=() failed=0 built= verdict=
# run NAME FUNCTION: sets `verdict`. Never to be called in a condition, where bash would switch `set -e` off inside it.
run() {
    local started=$SECONDS group watch
    say "$1"
    set +e
    # With job control each of the two is a process group of its own, which one signal ends whole.
    set -m
    (set -e; "$2") </dev/null &
    group=$!
    (sleep "$(limit_of "$1")"; echo "$1: ended after $(limit_of "$1") s"; kill -KILL -- -"$group") 2>/dev/null &
    watch=$!
    set +m
    trap 'kill -TERM -- -"$group" -"$watch"; exit 130' INT TERM
    wait "$group"
    if [ $? -eq 0 ]; then verdict=passed; else verdict=FAILED failed=1; fi
    kill -- -"$watch" 2>/dev/null
    wait "$watch" 2>/dev/null
    trap - INT TERM
    set -e
    summary+=("$(printf '%-8s %-7s %5d s' "$1" "$verdict" $((SECONDS - started)))")
}

for step in "${steps[@]}"; do
    case $step in
        format | lint | cargo) ;;
        *)
            if [ -z "$built" ]; then
                run build build_server
                built=$verdict
            fi
            [ "$built" = passed ] || continue
            ;;
    esac
    run "$step" "step_$step"
done

say "summary"
printf '%s\n' "${summary[@]}"
exit $failed
