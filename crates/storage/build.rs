//! Compiles our parts of the engine, its file system (`cpp/files.cc`), its block cache
//! (`cpp/cache.cc`), its counters (`cpp/perf.cc`), the reader of a whole file (`cpp/scrub.cc`) and its environment in an
//! encrypted directory (`cpp/encrypted.cc`), against the headers that RocksDB was built with.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=cpp");
    // Given by librocksdb-sys, on which this crate depends.
    let Some(rocksdb) = std::env::var_os("DEP_ROCKSDB_CARGO_MANIFEST_DIR") else {
        panic!("librocksdb-sys does not say where its headers are");
    };
    let mut build = cc::Build::new();
    build.cpp(true).std("c++20").warnings(false);
    build.include(Path::new(&rocksdb).join("rocksdb/include"));
    build.define("NDEBUG", None).define("OS_LINUX", None);
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
