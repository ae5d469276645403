//! `pando backup URI DIR`: has a running server copy all its data into a directory, which starts as it
//! is; a router has all sets of its cluster do so.
//!
//! Invariant: success is said only of copies that the servers have read whole.

use crate::client::{ServerAddress, refusal};
use bson::{Doc, doc};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Copies all data of a running server, or of a whole sharded cluster, consistent as of one moment,
while it goes on. The copy is read whole, and its checksums are compared, before success is said.

Usage: pando backup URI DIR

  URI   the server, as mongodb://127.0.0.1:27017/ or
        mongodb://user:password@host/?authSource=admin&tls=true&tlsCAFile=ca.pem
  DIR   a directory of the server's machine that does not exist yet; a server starts from it with
        pando serve --dbpath DIR. On the file system of the data it shares the data files, and takes
        little time and space.

Where the URI is that of a router, the primary of each shard makes DIR/SHARD on its machine, and that
of the configuration set DIR/config. Writes wait while all of them are copied: for a moment.
";

pub fn main(args: &[OsString]) -> ExitCode {
    let words: Vec<String> = args
        .iter()
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    let (uri, dir) = match words.as_slice() {
        [help] if help == "--help" || help == "-h" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        [uri, dir] if !uri.starts_with('-') && !dir.starts_with('-') => (uri, dir),
        _ => {
            eprintln!("pando: backup wants a URI and a directory (see pando backup --help)");
            return ExitCode::from(2);
        }
    };
    match run(uri, Path::new(dir)) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(says) => {
            eprintln!("pando: no backup was made: {says}");
            ExitCode::from(1)
        }
    }
}

fn run(uri: &str, dir: &Path) -> Result<String, String> {
    let address = ServerAddress::parse(uri)?;
    let path = std::path::absolute(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let path = path.to_str().ok_or("the path is not UTF-8")?;
    let command = doc! { "pandoBackup": 1, "path": path };
    let reply = address.ask("admin", command.as_doc())?;
    match refusal(reply.as_doc()) {
        Some(why) => Err(why),
        None => said(path, reply.as_doc()),
    }
}

/// What a reply means for people.
fn said(path: &str, reply: Doc<'_>) -> Result<String, String> {
    if !reply.get("verified").is_some_and(|v| v.truthy()) {
        // A router of an earlier release copies its own empty store.
        return Err(format!(
            "the server does not say that it has read the copy (its release is too old): {path} is not to be relied on"
        ));
    }
    let Some(sets) = reply.get("sets").and_then(|v| v.as_doc()) else {
        return Ok(format!(
            "The backup is in {path}, and was read whole. Start it with: pando serve --dbpath {path}"
        ));
    };
    let mut text = String::from("The backup of the cluster was read whole:\n");
    for set in sets {
        let told = set.val.as_doc().unwrap_or(Doc::EMPTY);
        let word = |name: &str| told.get(name).and_then(|v| v.as_str()).unwrap_or("?");
        let number = |name: &str| told.get(name).and_then(|v| v.to_i64_exact()).unwrap_or(0);
        text += &format!(
            "\n  {}  {}:{}  {} collections, {} MB",
            set.name,
            word("host").rsplit_once(':').map_or("?", |(host, _)| host),
            word("path"),
            number("collections"),
            number("bytes") >> 20
        );
    }
    text += "\n\nStart each from its directory, at the address that it had, and initiate its set: docs/operating.md.";
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_read_is_no_backup() {
        let old = doc! {"path": "/b", "files": 3, "ok": 1.0};
        assert!(said("/b", old.as_doc()).unwrap_err().contains("too old"));
        let one = doc! {"path": "/b", "verified": true};
        let text = said("/b", one.as_doc()).unwrap();
        assert!(text.contains("pando serve --dbpath /b"), "{text}");
        let s0 = doc! {"path": "/b/s0", "host": "h:27018", "collections": 2, "bytes": 3_i64 << 20};
        let all = doc! {"verified": true, "sets": doc! {"s0": s0}};
        let text = said("/b", all.as_doc()).unwrap();
        assert!(text.contains("s0  h:/b/s0  2 collections, 3 MB"), "{text}");
    }
}
