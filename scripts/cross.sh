#!/usr/bin/env bash
# Builds the program for glibc 2.28 and later, on any Linux, with zig as C and C++ compiler and linker.
#
#     scripts/cross.sh x86_64|aarch64 [cargo's options, as --release]        prints where the binary is
#
# Installs zig and cargo-zigbuild from PyPI into target/cross. The Rust compiler needs the standard library of the processor: from
# `rustup target add`, or of Debian's rustc-web and libstd-rust-web-dev:arm64, where RUSTC names that compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/provision.sh
target=${1:?x86_64 or aarch64}-unknown-linux-gnu
shift
tools=${CARGO_TARGET_DIR:-$PWD/target}/cross/tools
[ -x "$tools/bin/cargo-zigbuild" ] || {
    python3 -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check cargo-zigbuild==0.24.1 ziglang==0.13.0
}
"${RUSTC:-rustc}" --print target-libdir --target "$target" | xargs -I{} sh -c 'ls {}/libstd-*.rlib' >/dev/null 2>&1 ||
    die "${RUSTC:-rustc} has no standard library for $target"
# A directory of its own: another compiler makes other crates.
export PATH=$tools/bin:$PATH CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/cross/build
need_compilers
cargo-zigbuild zigbuild --target "$target.2.28" --locked --package pando "$@" >&2
profile=debug
[[ " $* " != *" --release "* ]] || profile=release
[[ " $* " =~ \ --profile\ ([a-z]+)\  ]] && profile=${BASH_REMATCH[1]}
echo "$CARGO_TARGET_DIR/$target/$profile/pando"
