//! `pando oplog`: the log as a person reads it, a line of Extended JSON for each document of `local.oplog.rs`.
//!
//! From a data directory it reads the log's files, whether a server has them open or not; from a URI it asks the server.

use crate::client::ServerAddress;
use crate::point_in_time;
use crate::tool_words;
use bson::{Doc, DocBuf, Writer};
use changes::{EntryStamp, oplog_entry};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use storage::{Entry, Until};

const HELP: &str = "\
Shows the log: a line of Extended JSON for each entry, as local.oplog.rs has them.

Usage: pando oplog SOURCE [--from MOMENT] [--until MOMENT] [--ns NAME] [--limit N]

  SOURCE   a data directory or its directory \"log\", also of a running server; or a server,
           as mongodb://127.0.0.1:27017/
  --from   from there on: a time as 2026-11-24T10:00:00Z, or a timestamp as 1795514400:3
  --until  up to there, in the same forms
  --ns     only entries that concern a collection (shop.orders) or a database (shop)
  --limit  at most so many
";

pub fn main(args: &[OsString]) -> ExitCode {
    let help = tool_words::ask_help_alone(args).then_some(HELP);
    let (source, wanted) = match tool_words::parsed("oplog", help, || parse(args)) {
        Ok(asked) => asked,
        Err(code) => return code,
    };
    let shown = match source.starts_with("mongodb://") {
        true => of_server(&source, wanted),
        false => of_files(Path::new(&source), wanted),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(says) => {
            eprintln!("pando: cannot show the log of {source}: {says}");
            ExitCode::from(1)
        }
    }
}

/// Which documents are shown.
struct Wanted {
    from: Option<Until>,
    until: Until,
    ns: Option<String>,
    left: u64,
}

fn parse(args: &[OsString]) -> Result<(String, Wanted), String> {
    let mut source = None;
    let mut wanted = Wanted {
        from: None,
        until: Until::End,
        ns: None,
        left: u64::MAX,
    };
    let mut args = args.iter().map(|a| a.to_string_lossy().into_owned());
    while let Some(word) = args.next() {
        let mut value = || args.next().ok_or(format!("{word} wants a value"));
        match word.as_str() {
            "--from" => wanted.from = Some(point_in_time::parse(&value()?)?),
            "--until" => wanted.until = point_in_time::parse(&value()?)?,
            "--ns" => wanted.ns = Some(value()?),
            "--limit" => {
                wanted.left = value()?
                    .parse()
                    .map_err(|_| "--limit wants a number".to_string())?;
            }
            option if option.starts_with('-') => {
                return Err(format!("oplog has no option {option}"));
            }
            _ if source.is_some() => return Err("oplog shows one log".into()),
            _ => source = Some(word),
        }
    }
    let source = source.ok_or("oplog wants a data directory or a server")?;
    Ok((source, wanted))
}

impl Wanted {
    /// The least timestamp that may be shown.
    fn low(&self) -> u64 {
        match self.from {
            Some(Until::Timestamp(ts)) => ts,
            // Clocks go back by seconds, if they do.
            Some(Until::Wall(millis)) => {
                (u64::try_from(millis / 1000).unwrap_or(0)).saturating_sub(60) << 32
            }
            _ => 0,
        }
    }

    /// Prints a document if it is wanted; false when none behind it is.
    fn show(&mut self, doc: Doc<'_>) -> bool {
        let ts = doc.get("ts").and_then(|v| v.as_timestamp()).unwrap_or(0);
        let wall = doc.get("wall").and_then(|v| v.as_date()).unwrap_or(0);
        let early = match self.from {
            Some(Until::Timestamp(from)) => ts < from,
            Some(Until::Wall(from)) => wall < from,
            _ => false,
        };
        let late = match self.until {
            Until::Timestamp(until) => ts > until,
            Until::Wall(until) => wall > until,
            Until::End => false,
        };
        if late || self.left == 0 {
            return false;
        }
        if !early && self.ns.as_deref().is_none_or(|ns| concerns(doc, ns)) {
            println!("{}", bson::json::val_to_string(doc.as_val()));
            self.left -= 1;
        }
        self.left > 0
    }
}

/// Whether an operation, or one in it, is on a collection or database.
fn concerns(op: Doc<'_>, name: &str) -> bool {
    let ns = op.get("ns").and_then(|v| v.as_str()).unwrap_or("");
    let db = ns.split_once('.').map_or(ns, |(db, _)| db);
    if ns == name || db == name {
        return true;
    }
    let Some(o) = op.get("o").and_then(|v| v.as_doc()) else {
        return false;
    };
    if let Some(parts) = o.get("applyOps").and_then(|v| v.as_array()) {
        let mut parts = parts.values().filter_map(|v| v.as_doc());
        return parts.any(|part| concerns(part, name));
    }
    // A command names its collection without the database, renaming with it.
    let first = o.first().and_then(|e| e.val.as_str()).unwrap_or("");
    let to = o.get("to").and_then(|v| v.as_str());
    ns.ends_with(".$cmd") && (format!("{db}.{first}") == name || first == name || to == Some(name))
}

fn of_files(dir: &Path, mut wanted: Wanted) -> Result<(), String> {
    let files = storage::log_files(dir).map_err(errors::Error::into_message)?;
    let mut strange = None;
    let read = files.read(wanted.low(), |record| {
        let stamp = EntryStamp {
            ts: record.ts,
            term: record.term,
            wall_millis: record.wall_millis,
        };
        match Entry::decode(record.payload) {
            Some(entry) => {
                let documents = oplog_entry::documents(&stamp, &entry, 1);
                documents.iter().all(|d| wanted.show(d.as_doc()))
            }
            None => {
                strange = Some(record.index);
                false
            }
        }
    });
    match strange {
        Some(index) => Err(format!(
            "entry {index} has a form that this version does not know"
        )),
        None => read.map_err(errors::Error::into_message),
    }
}

fn of_server(uri: &str, mut wanted: Wanted) -> Result<(), String> {
    let address = ServerAddress::parse(uri)?;
    let mut find = Writer::new();
    find.str("find", "oplog.rs");
    find.open_doc("filter").open_doc("ts");
    find.timestamp("$gte", wanted.low()).close().close();
    let mut body = find.finish();
    loop {
        let reply = address.ask("local", body.as_doc())?;
        let reply = reply.as_doc();
        if !reply.get("ok").is_some_and(|v| v.truthy()) {
            let says = reply.get("errmsg").and_then(|v| v.as_str());
            return Err(says.unwrap_or("the server refused").to_string());
        }
        let cursor = reply.get("cursor").and_then(|v| v.as_doc());
        let cursor = cursor.ok_or("the server's reply is damaged")?;
        let batch = cursor.get("firstBatch").or_else(|| cursor.get("nextBatch"));
        let batch = batch.and_then(|v| v.as_array()).unwrap_or(Doc::EMPTY);
        let go_on = (batch.values().filter_map(|v| v.as_doc())).all(|d| wanted.show(d));
        let id = cursor.get("id").and_then(|v| v.as_i64()).unwrap_or(0);
        match (go_on, id) {
            (_, 0) => return Ok(()),
            (true, _) => body = more("getMore", id),
            (false, _) => {
                return address
                    .ask("local", more("killCursors", id).as_doc())
                    .map(drop);
            }
        }
    }
}

fn more(command: &str, id: i64) -> DocBuf {
    let mut w = Writer::new();
    match command {
        "getMore" => {
            w.i64("getMore", id).str("collection", "oplog.rs");
        }
        _ => {
            w.str("killCursors", "oplog.rs").open_array("cursors");
            w.push_value(id);
            w.close();
        }
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_entry_concerns() {
        for (op, name, does) in [
            (
                r#"{"op":"i","ns":"shop.orders","o":{}}"#,
                "shop.orders",
                true,
            ),
            (r#"{"op":"i","ns":"shop.orders","o":{}}"#, "shop", true),
            (
                r#"{"op":"i","ns":"shop.orders","o":{}}"#,
                "shop.order",
                false,
            ),
            (
                r#"{"op":"c","ns":"shop.$cmd","o":{"drop":"orders"}}"#,
                "shop.orders",
                true,
            ),
            (
                r#"{"op":"c","ns":"shop.$cmd","o":{"renameCollection":"shop.a","to":"shop.b"}}"#,
                "shop.b",
                true,
            ),
            (
                r#"{"op":"c","ns":"admin.$cmd","o":{"applyOps":[{"ns":"a.b","o":{}},{"ns":"c.d","o":{}}]}}"#,
                "c.d",
                true,
            ),
            (r#"{"op":"n","ns":"","o":{"msg":"x"}}"#, "shop", false),
        ] {
            let op = bson::json::parse(op).unwrap();
            assert_eq!(concerns(op.as_doc(), name), does, "{} {name}", op.as_doc());
        }
    }
}
