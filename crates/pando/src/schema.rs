//! `pando schema`: what the documents of a collection look like, as a table for people.

use crate::client::ServerAddress;
use crate::tool_words;
use bson::{Doc, doc};
use std::ffi::OsString;
use std::process::ExitCode;

const HELP: &str = "\
pando schema: what the documents of a collection look like: fields, types and how often, examples, and the indexes that serve them.

Usage: pando schema [mongodb://[user:password@]host:port[/?authSource=…&tls=true…]] DB.COLLECTION [options]

  --sample N    look at N documents, chosen at random (1000); all of them when there are no more
  --json        the server's answer as JSON
  --help

The server must be a PandoDB; without an address it is the one on 127.0.0.1:27017. A path ends in [] for the elements of an
array, and in .* for the fields of an object whose names are data. An index in parentheses holds the field, but not first.
";

struct Options {
    target: ServerAddress,
    db: String,
    coll: String,
    sample: i64,
    json: bool,
}

/// Runs `pando schema …`; `args` are the words after `schema`.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let words = tool_words::texts(&args);
    if tool_words::ask_help(&words) {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let options = match parse(&words) {
        Ok(o) => o,
        Err(e) => {
            eprintln!("pando schema: {e}; see pando schema --help");
            return ExitCode::from(2);
        }
    };
    match ask(&options) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("pando schema: {e}");
            ExitCode::FAILURE
        }
    }
}

fn parse(words: &[String]) -> Result<Options, String> {
    let (mut url, mut ns, mut sample, mut json) = (None, None, 1000, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((n, v)) if n.starts_with("--") => (n, Some(v.to_string())),
            _ => (word.as_str(), None),
        };
        match name {
            "--json" => json = true,
            "--sample" => {
                let text = value.or_else(|| words.next().cloned()).unwrap_or_default();
                sample = match text.parse() {
                    Ok(n) if n > 0 => n,
                    _ => return Err(format!("--sample takes a number above 0, not '{text}'")),
                };
            }
            other if other.starts_with('-') => return Err(format!("there is no option {other}")),
            _ if word.contains("://") => url = Some(word.clone()),
            _ => match ns.replace(word.clone()) {
                None => {}
                // A host without its scheme, then the collection.
                Some(host) if url.is_none() => url = Some(format!("mongodb://{host}")),
                Some(_) => return Err("name one collection".into()),
            },
        }
    }
    let url = url.unwrap_or_else(|| "mongodb://127.0.0.1:27017".into());
    let target = ServerAddress::parse(&url)?;
    let ns = ns.ok_or("name a collection as DB.COLLECTION")?;
    let (db, coll) = match (ns.split_once('.'), target.database()) {
        (Some((db, coll)), _) if !db.is_empty() && !coll.is_empty() => (db, coll),
        (None, Some(db)) if !ns.is_empty() => (db, ns.as_str()),
        _ => return Err(format!("'{ns}' is not of the form DB.COLLECTION")),
    };
    Ok(Options {
        db: db.to_string(),
        coll: coll.to_string(),
        target,
        sample,
        json,
    })
}

fn ask(o: &Options) -> Result<String, String> {
    let command = doc! { "pandoSchema": o.coll.as_str(), "sampleSize": o.sample };
    let reply = o.target.ask(&o.db, command.as_doc())?;
    let reply = reply.as_doc();
    if reply.get("ok").and_then(|v| v.to_f64()) != Some(1.0) {
        let code = reply.get("code").and_then(|v| v.to_i64_exact());
        return Err(match code {
            Some(59) => format!("{} is no PandoDB, or an older one", o.target.host()),
            _ => text(reply, "errmsg"),
        });
    }
    if o.json {
        return Ok(bson::json::val_to_string(reply.as_val()) + "\n");
    }
    Ok(table(reply))
}

fn text(d: Doc<'_>, name: &str) -> String {
    d.get(name)
        .and_then(|v| v.as_str())
        .unwrap_or("")
        .to_string()
}

fn number(d: Doc<'_>, name: &str) -> f64 {
    d.get(name).and_then(|v| v.to_f64()).unwrap_or(0.0)
}

fn list<'a>(d: Doc<'a>, name: &str) -> impl Iterator<Item = Doc<'a>> {
    let list = d.get(name).and_then(|v| v.as_array());
    list.unwrap_or(Doc::EMPTY)
        .values()
        .filter_map(|v| v.as_doc())
}

fn percent(share: f64) -> String {
    let p = share * 100.0;
    if p >= 99.95 || p.fract() < 0.05 {
        format!("{p:.0}%")
    } else {
        format!("{p:.1}%")
    }
}

fn table(reply: Doc<'_>) -> String {
    let mut rows = vec![["field", "in", "types", "examples", "indexes"].map(str::to_string)];
    for f in list(reply, "fields") {
        let types: Vec<String> = list(f, "types")
            .map(|t| {
                let mut s = text(t, "type");
                if let Some(e) = f.get("elements").and_then(|v| v.as_doc())
                    && s == "array"
                {
                    s = format!("array of {}–{}", number(e, "least"), number(e, "most"));
                }
                match number(t, "share") {
                    share if share >= 1.0 => s,
                    share => format!("{s} {}", percent(share)),
                }
            })
            .collect();
        let examples = f.get("examples").and_then(|v| v.as_array());
        let examples: Vec<String> = examples
            .unwrap_or(Doc::EMPTY)
            .values()
            .map(|v| printable(&bson::shell::val(v)))
            .collect();
        let indexes: Vec<String> = list(f, "indexes")
            .map(|i| match number(i, "position") {
                0.0 => text(i, "name"),
                _ => format!("({})", text(i, "name")),
            })
            .collect();
        rows.push([
            printable(&text(f, "path")),
            percent(number(f, "share")),
            types.join(", "),
            shortened(&examples.join(", "), 60),
            indexes.join(", "),
        ]);
    }
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max();
    let widths: Vec<usize> = (0..5).map(|c| width(c).unwrap_or(0)).collect();
    let mut out = format!("{}: ", text(reply, "ns"));
    let (all, sampled) = (number(reply, "documents"), number(reply, "sampled"));
    if reply.get("documents").is_some() {
        out += &format!("{all} documents, ");
    }
    out += &format!("{sampled} looked at\n\n");
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line += cell;
            line.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
        }
        out += line.trim_end();
        out.push('\n');
    }
    if reply.get("truncated").and_then(|v| v.as_bool()) == Some(true) {
        out += "\nThere are more fields than are told apart here.\n";
    }
    out
}

/// What a terminal shows as it is.
fn printable(s: &str) -> String {
    s.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn shortened(s: &str, most: usize) -> String {
    if s.chars().count() <= most {
        return s.to_string();
    }
    s.chars().take(most - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(s: &str) -> Result<Options, String> {
        parse(&s.split(' ').map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn addresses_and_collections() {
        let host = |o: &Options| o.target.host();
        let o = words("shop.orders").unwrap();
        assert_eq!(
            (o.db.as_str(), o.coll.as_str(), host(&o).as_str()),
            ("shop", "orders", "127.0.0.1:27017")
        );
        let o = words("mongodb://127.0.0.1:7/ shop.orders.old --sample 5 --json").unwrap();
        assert_eq!(
            (o.coll.as_str(), host(&o).as_str(), o.sample, o.json),
            ("orders.old", "127.0.0.1:7", 5, true)
        );
        let o = words("127.0.0.1:8 shop.orders --sample=9").unwrap();
        assert_eq!((host(&o).as_str(), o.sample), ("127.0.0.1:8", 9));
        let o = words("mongodb://127.0.0.1/shop orders").unwrap();
        assert_eq!((o.db.as_str(), o.coll.as_str()), ("shop", "orders"));
        for wrong in [
            "orders",
            "--nope a.b",
            "a.b --sample 0",
            "a.b c.d e.f",
            ".b",
        ] {
            assert!(words(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!(percent(1.0), "100%");
        assert_eq!(percent(0.5), "50%");
        assert_eq!(percent(0.333), "33.3%");
    }
}
