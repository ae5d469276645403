//! `pando backup URI DIR`: has a running server copy all its data into a directory, which starts as it is.

use crate::client::{ServerAddress, refusal};
use bson::doc;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Copies all data of a running server, consistent as of one moment, while it goes on.

Usage: pando backup URI DIR

  URI   the server, as mongodb://127.0.0.1:27017/ or
        mongodb://user:password@host/?authSource=admin&tls=true&tlsCAFile=ca.pem
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
    let address = ServerAddress::parse(uri)?;
    let path = std::path::absolute(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let path = path.to_str().ok_or("the path is not UTF-8")?;
    let command = doc! { "pandoBackup": 1, "path": path };
    let reply = address.ask("admin", command.as_doc())?;
    match refusal(reply.as_doc()) {
        Some(why) => Err(why),
        None => Ok(format!(
            "The backup is in {path}. Start it with: pando serve --dbpath {path}"
        )),
    }
}
