//! The example program, which stands for the binary that has the laboratory inside.

use std::path::PathBuf;

/// `cargo test` builds it beside the tests.
pub fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let path = own.parent()?.parent()?.join("examples/lab");
    if path.is_file() {
        return Some(path);
    }
    eprintln!("skipped: the example was not built (run all tests of the crate)");
    None
}
