//! Compresses what the page is made of, so that the binary carries it small and sends it as it is.

use flate2::{Compression, GzBuilder};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What all of it may take in the binary.
const MOST_BYTES: u64 = 250_000;

fn main() {
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo gives OUT_DIR"));
    println!("cargo::rerun-if-changed=assets");
    let mut table = String::from("&[\n");
    let mut total = 0;
    for path in files_below(Path::new("assets")) {
        let name = path.strip_prefix("assets").expect("a file below assets");
        let name = name.to_string_lossy().replace('\\', "/");
        let target = out.join(format!("{}.gz", name.replace('/', "_")));
        total += compress(&path, &target);
        table += &format!("    (\"/{name}\", include_bytes!({target:?})),\n");
    }
    assert!(
        total <= MOST_BYTES,
        "the page takes {total} bytes, more than {MOST_BYTES}"
    );
    table += "]\n";
    std::fs::write(out.join("assets.rs"), table).expect("the table is written");
}

/// Gives the bytes that it takes.
fn compress(path: &Path, target: &Path) -> u64 {
    let bytes = std::fs::read(path).expect("an asset");
    let file = std::fs::File::create(target).expect("a file in OUT_DIR");
    // Without a time in it, so that two builds give the same binary.
    let mut gz = GzBuilder::new().mtime(0).write(file, Compression::best());
    gz.write_all(&bytes).expect("an asset is compressed");
    gz.finish().expect("an asset is compressed");
    target.metadata().expect("an asset's size").len()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of assets") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    found
}
