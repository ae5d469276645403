//! `pando backup URI TARGET`: all data of a server, a set or a cluster, in an archive that takes backup after backup;
//! or in place, each server a copy of its own. `list`, `verify` and `prune` are about archives.
//!
//! Invariant: success is reported only for what was read whole, at the servers and in the archive.

mod follow;
mod kept;
mod log_keeper;
mod make;
mod remote;

use crate::client::{ServerAddress, refusal};
use crate::tool_words;
use archive::Archive;
use bson::{Doc, doc};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const HELP: &str = "\
Copies all data of a running server, a replica set or a whole sharded cluster, consistent as of one
moment, while it goes on. The copy is read whole, and its checksums are compared, before success is said.

Usage: pando backup URI ARCHIVE [--key-file FILE] [--follow [--every SECONDS]]
       pando backup URI DIR --in-place
       pando backup list ARCHIVE
       pando backup verify ARCHIVE [ID]
       pando backup prune ARCHIVE --keep N [--keep-days DAYS]

  URI      the server, as mongodb://127.0.0.1:27017/ or
           mongodb://user:password@host/?authSource=admin&tls=true&tlsCAFile=ca.pem
           that of a router is its whole cluster
  ARCHIVE  a directory on this machine, or s3://BUCKET/PREFIX in a store that speaks S3, with who asks
           and where in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL_S3;
           the first backup makes it, and each one adds what it lacks: files that have changed, and
           the log since the backup before. pando restore goes back to any moment that its logs cover
  DIR      a directory of the server's machine that does not exist yet; a server starts from it with
           pando serve --dbpath DIR. On the file system of the data it shares the data files, and takes
           little time and space. Of a cluster, the primary of each shard makes DIR/SHARD on its
           machine, and that of the configuration set DIR/config

  --in-place         copies on the machines of the servers, into DIR
  --follow           goes on until it is ended, and has the log flow into the archive
  --every SECONDS    how often that is [default: 2]
  --key-file FILE    encrypts the archive with AES-256: FILE has 32 bytes in base64, as
                     openssl rand -base64 32 makes them. Without FILE nobody reads the archive
  --keep N           prune keeps the newest N backups, and what they need
  --keep-days DAYS   and all that are not older
";

#[derive(Debug, Default, PartialEq, Eq)]
struct BackupArguments {
    places: Vec<String>,
    in_place: bool,
    follow: bool,
    every: Option<u64>,
    key_file: Option<PathBuf>,
    keep: Option<u64>,
    keep_days: Option<u64>,
}

pub fn main(args: &[OsString]) -> ExitCode {
    let words = tool_words::texts(args);
    let help = tool_words::ask_help(&words).then_some(HELP);
    let arguments = match tool_words::parsed("backup", help, || parse(&words)) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    match run(&arguments) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(says) => {
            eprintln!("pando: {says}");
            ExitCode::from(1)
        }
    }
}

fn parse(words: &[String]) -> Result<BackupArguments, String> {
    let mut arguments = BackupArguments::default();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let (name, given) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_string())),
            _ => (word.as_str(), None),
        };
        let mut value = || {
            given
                .clone()
                .or_else(|| rest.next().cloned())
                .ok_or(format!("{name} wants a value"))
        };
        let number = |text: String| {
            let n = text.parse::<u64>().ok().filter(|n| *n > 0);
            n.ok_or(format!("{name} wants a number above 0, not '{text}'"))
        };
        match name {
            "--in-place" => arguments.in_place = true,
            "--follow" => arguments.follow = true,
            "--every" => arguments.every = Some(number(value()?)?),
            "--keep" => arguments.keep = Some(number(value()?)?),
            "--keep-days" => arguments.keep_days = Some(number(value()?)?),
            "--key-file" => arguments.key_file = Some(value()?.into()),
            option if option.starts_with('-') => {
                return Err(format!("backup has no option {option}"));
            }
            _ => arguments.places.push(word.clone()),
        }
    }
    let places: Vec<&str> = arguments.places.iter().map(String::as_str).collect();
    match *places {
        ["list", _] | ["verify", _] | ["verify", _, _] => {}
        ["prune", _] if arguments.keep.is_some() => {}
        ["prune", _] => return Err("prune wants --keep N: how many backups stay".into()),
        [_, _] => {}
        _ => return Err("backup wants a URI and where to".into()),
    }
    if arguments.in_place && (arguments.follow || arguments.key_file.is_some()) {
        return Err(
            "--in-place makes data directories: nothing of them is encrypted or followed".into(),
        );
    }
    Ok(arguments)
}

fn run(arguments: &BackupArguments) -> Result<String, String> {
    let key = arguments.key_file.as_deref();
    let places: Vec<&str> = arguments.places.iter().map(String::as_str).collect();
    match *places {
        ["list", place] => kept::list(&Archive::open(place, key)?),
        ["verify", place] => kept::verify(&Archive::open(place, key)?, None),
        ["verify", place, id] => kept::verify(&Archive::open(place, key)?, Some(id)),
        ["prune", place] => {
            let keep = arguments
                .keep
                .map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            kept::prune(&Archive::open(place, key)?, keep, arguments.keep_days)
        }
        [uri, dir] if arguments.in_place => in_place(uri, Path::new(dir)).map_err(none_made),
        [uri, place] => into_archive(arguments, uri, place, key).map_err(none_made),
        _ => Err("backup wants a URI and where to".into()),
    }
}

fn none_made(why: String) -> String {
    format!("no backup was made: {why}")
}

fn into_archive(
    arguments: &BackupArguments,
    uri: &str,
    place: &str,
    key: Option<&Path>,
) -> Result<String, String> {
    let address = ServerAddress::parse(uri)?;
    // A server that does not answer leaves no archive behind.
    drop(address.open()?);
    let archive = Archive::open_or_make(place, key)?;
    let made = make::make(&address, &archive, place)?;
    for note in &made.notes {
        eprintln!("pando: {note}");
    }
    let said = format!(
        "Backup {} of {} is in {place}: {} files of {} MB were new to it, and all were read there. Go back to it with: pando restore {place} DIR",
        made.backup.id,
        match made.backup.sets.len() {
            1 if !made.backup.cluster => "the server".to_string(),
            n => format!("{n} sets"),
        },
        made.sent_files,
        made.sent_bytes >> 20
    );
    if !arguments.follow {
        return Ok(said);
    }
    println!("{said}\nThe log flows into it now.");
    let interval = Duration::from_secs(arguments.every.unwrap_or(2));
    follow::follow(&address, (&archive, place), made.logs, interval)
}

fn in_place(uri: &str, dir: &Path) -> Result<String, String> {
    let address = ServerAddress::parse(uri)?;
    let path = std::path::absolute(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let path = path.to_str().ok_or("the path is not UTF-8")?;
    let command = doc! { "pandoBackup": 1, "path": path };
    let reply = address.ask("admin", command.as_doc())?;
    match refusal(reply.as_doc()) {
        Some(why) => Err(why),
        None => summary(path, reply.as_doc()),
    }
}

/// What a reply means for people.
fn summary(path: &str, reply: Doc<'_>) -> Result<String, String> {
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
    fn a_copy_that_was_not_read_is_no_backup() {
        let old = doc! {"path": "/b", "files": 3, "ok": 1.0};
        assert!(summary("/b", old.as_doc()).unwrap_err().contains("too old"));
        let one = doc! {"path": "/b", "verified": true};
        let text = summary("/b", one.as_doc()).unwrap();
        assert!(text.contains("pando serve --dbpath /b"), "{text}");
        let s0 = doc! {"path": "/b/s0", "host": "h:27018", "collections": 2, "bytes": 3_i64 << 20};
        let all = doc! {"verified": true, "sets": doc! {"s0": s0}};
        let text = summary("/b", all.as_doc()).unwrap();
        assert!(text.contains("s0  h:/b/s0  2 collections, 3 MB"), "{text}");
    }

    #[test]
    fn what_may_be_asked() {
        let arguments = |text: &str| {
            let words: Vec<String> = text.split(' ').map(String::from).collect();
            parse(&words)
        };
        let all = arguments("mongodb://h/?a=b /b --follow --every 5 --key-file=k").unwrap();
        assert_eq!(all.places, ["mongodb://h/?a=b", "/b"]);
        assert_eq!((all.every, all.key_file), (Some(5), Some("k".into())));
        assert!(arguments("list /b").is_ok() && arguments("verify /b ID").is_ok());
        for (words, said) in [
            ("mongodb://h/", "wants a URI"),
            ("prune /b", "--keep N"),
            ("prune /b --keep 0", "above 0"),
            ("mongodb://h/ /b --sideways", "no option --sideways"),
            ("mongodb://h/ /b --in-place --follow", "--in-place"),
            ("mongodb://h/ /b --every", "wants a value"),
        ] {
            let says = arguments(words).unwrap_err();
            assert!(says.contains(said), "{words}: {says}");
        }
    }
}
