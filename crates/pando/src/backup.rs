//! `pando backup URI DIR`: has a running server copy all its data into a directory, which starts as it is.

use crate::client::Address;
use bson::{Doc, Writer};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Copies all data of a running server, consistent as of one moment, while it goes on.

Usage: pando backup URI DIR

  URI   the server, as mongodb://127.0.0.1:27017/
  DIR   a directory of the server's machine that does not exist yet; a server starts from it with
        pando serve --dbpath DIR. On the file system of the data it shares the data files, and takes
        little time and space.
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
    let address = Address::parse(uri)?;
    let path = std::path::absolute(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let path = path.to_str().ok_or("the path is not UTF-8")?;
    let mut body = Writer::new();
    body.i32("pandoBackup", 1)
        .str("path", path)
        .str("$db", "admin");
    let reply = address.ask(body.finish().as_doc())?;
    let reply = Doc::new(&reply).ok_or("the server's reply is damaged")?;
    if reply.get("ok").is_some_and(|v| v.truthy()) {
        return Ok(format!(
            "The backup is in {path}. Start it with: pando serve --dbpath {path}"
        ));
    }
    let text = reply.get("errmsg").and_then(|v| v.as_str());
    Err(text
        .unwrap_or("the server refused without a reason")
        .to_string())
}
