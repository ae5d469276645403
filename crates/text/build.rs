//! Writes down the stop words of the languages that have no list in `stop_words/`, a word a line.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let Some(folder) = std::env::var_os("OUT_DIR") else {
        panic!("cargo does not say where a build script writes");
    };
    for (name, code) in [("romanian", "ro"), ("turkish", "tr")] {
        let Some(words) = stop_words::lookup(code) else {
            panic!("stop-words has no list for {name}");
        };
        let file = Path::new(&folder).join(format!("{name}.txt"));
        std::fs::write(&file, words.join("\n"))
            .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}
