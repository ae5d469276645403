#!/usr/bin/env bash
# Builds the program for another system or processor, on any Linux, with zig as C and C++ compiler and linker.
#
#     scripts/cross.sh TARGET [cargo's options, as --release]        prints where the binary is
#
#     x86_64, aarch64                 Linux with glibc 2.28 and later
#     x86_64-macos, aarch64-macos     macOS 11 and later
#
# Installs zig and cargo-zigbuild from PyPI into target/cross. The Rust compiler needs the standard library of the target: from
# `rustup target add`, or of Debian's rustc-web and libstd-rust-web-dev:arm64, where RUSTC names that compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/provision.sh
case ${1:?x86_64, aarch64, x86_64-macos or aarch64-macos} in
    x86_64 | aarch64) target=$1-unknown-linux-gnu glibc=.2.28 zig=$1-linux-gnu.2.28 ;;
    x86_64-macos | aarch64-macos) target=${1%-macos}-apple-darwin glibc='' zig=$1-none ;;
    *) die "no such target: $1; see the head of this file" ;;
esac
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
# The oldest macOS on Apple's own processors.
export MACOSX_DEPLOYMENT_TARGET=11.0
# What zig's headers of macOS lack: two names of its C library that the allocator asks random bytes of.
case $target in
    *-darwin)
        headers=$CARGO_TARGET_DIR/macos-headers
        mkdir -p "$headers/CommonCrypto"
        printf '#pragma once\nenum { kCCSuccess = 0 };\n' >"$headers/CommonCrypto/CommonCryptoError.h"
        printf '#pragma once\n#include <stddef.h>\nint CCRandomGenerateBytes(void *bytes, size_t count);\n' >"$headers/CommonCrypto/CommonRandom.h"
        export "CFLAGS_${target//-/_}=-I$headers"
        ;;
esac
# RocksDB's sources, many at a time, as in every build (scripts/cxx), by zig.
export "CXX_${target//-/_}=$PWD/scripts/cxx" PANDO_CXX="cargo-zigbuild zig c++ -- -target $zig"
need_compilers
cargo-zigbuild zigbuild --target "$target$glibc" --locked --package pando "$@" >&2
profile=debug
[[ " $* " != *" --release "* ]] || profile=release
[[ " $* " =~ \ --profile\ ([a-z]+)\  ]] && profile=${BASH_REMATCH[1]}
echo "$CARGO_TARGET_DIR/$target/$profile/pando"
