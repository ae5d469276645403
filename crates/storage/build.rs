//! Compiles our parts of the engine, its file system (`cpp/files.cc`), its block cache
//! (`cpp/cache.cc`), its counters (`cpp/perf.cc`), the reader of a whole file (`cpp/scrub.cc`) and its environment in an
//! encrypted directory (`cpp/encrypted.cc`), against the headers that RocksDB was built with.

use std::path::Path;

/// RocksDB's name of the system that is built for.
fn system() -> &'static str {
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux") => "OS_LINUX",
        Ok("macos") => {
            check_that_syncs_are_full();
            "OS_MACOSX"
        }
        other => panic!("PandoDB is built for Linux and macOS, not for {other:?}"),
    }
}

/// On macOS fsync(2) leaves the bytes in the disk's own memory. Our files and the log are synced by Rust's library, which asks for
/// more (F_FULLFSYNC); RocksDB does so where it is told at its build, by `.cargo/config.toml`.
fn check_that_syncs_are_full() {
    let target = std::env::var("TARGET")
        .unwrap_or_default()
        .replace('-', "_");
    let flags = std::env::var(format!("CXXFLAGS_{target}")).unwrap_or_default();
    assert!(
        flags.split(' ').any(|flag| flag == "-DHAVE_FULLFSYNC"),
        "CXXFLAGS_{target} lacks -DHAVE_FULLFSYNC: what RocksDB has synced would not survive a loss of power"
    );
}

fn main() {
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed=build.rs");
    // Given by librocksdb-sys, on which this crate depends.
    let Some(rocksdb) = std::env::var_os("DEP_ROCKSDB_CARGO_MANIFEST_DIR") else {
        panic!("librocksdb-sys does not say where its headers are");
    };
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").warnings(false);
    build.include(Path::new(&rocksdb).join("rocksdb/include"));
    build.define("NDEBUG", None).define(system(), None);
    build.define("ROCKSDB_PLATFORM_POSIX", None);
    build.flag("-include").flag("cstdint");
    build.files([
        "cpp/files.cc",
        "cpp/encrypted.cc",
        "cpp/cache.cc",
        "cpp/perf.cc",
        "cpp/scrub.cc",
    ]);
    build.compile("pando_engine");
}
