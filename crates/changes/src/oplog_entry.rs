//! The documents of `local.oplog.rs`: one of each entry of the log, several of a large transaction.
//!
//! ```text
//! {lsid, txnNumber, op: i|u|d|c|n, ns, ui, o, o2, stmtId, ts, t, v: 2, wall, prevOpTime}
//! ```
//! Several documents in one entry, and transactions, are one `c` with `o: {applyOps: [{op, ns, ui, o, o2}, …]}`: MongoDB 8 writes
//! an insert of several documents so, too.
//!
//! A transaction of more than [`PART_BYTES`] is several of them, as MongoDB's oplog entry has to be a document: all but the last with
//! `partialTxn`, each with the `prevOpTime` of the one before, the last with their `count`. Their timestamps were reserved when
//! the entry was written (`storage::Entry`).
//!
//! Source: the oplog of MongoDB 8 as its tools and other readers use it; the manual names few of its
//! fields.

use crate::{Change, ChangeKind, EntryStamp, changes, coll_of, text};
use bson::{Doc, DocBuf, Writer, tag};
use storage::{Entry, Op, OpSession};

/// SHA-256 of nothing: the user of a session without authentication.
const NO_USER: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

/// Operations of one document, in bytes, unless it is a single one.
pub const PART_BYTES: usize = 15 << 20;

/// The documents of an entry. `term`: what to say where the log's frame has none.
pub fn documents(stamp: &EntryStamp, entry: &Entry, term: i64) -> Vec<DocBuf> {
    // None of its operations is larger here than there, nor are all of them.
    match matches!(entry.op, Op::Transaction(_)) && entry.size_bound() > PART_BYTES {
        true => chain(stamp, entry, term),
        false => vec![write(stamp, entry, term)],
    }
}

/// The parts of a transaction.
fn chain(stamp: &EntryStamp, entry: &Entry, term: i64) -> Vec<DocBuf> {
    let term = i64::try_from(stamp.term).unwrap_or(0).max(term);
    let operations: Vec<DocBuf> = changes(entry)
        .iter()
        .map(|change| {
            let mut w = Writer::with_capacity(512);
            operation(&mut w, change);
            w.finish()
        })
        .collect();
    let mut parts: Vec<&[DocBuf]> = Vec::new();
    let mut rest = operations.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|op| {
            bytes += op.as_bytes().len() + 16;
            bytes <= PART_BYTES
        });
        let (part, behind) = rest.split_at(fits.count().max(1));
        parts.push(part);
        rest = behind;
    }
    let last = parts.len().saturating_sub(1);
    let ts_of = |at: usize| stamp.ts.saturating_sub((last - at) as u64);
    let part = |(at, part): (usize, &&[DocBuf])| {
        let mut w = Writer::with_capacity(512);
        session(&mut w, entry);
        w.str("op", "c").str("ns", "admin.$cmd");
        w.open_doc("o").open_array("applyOps");
        part.iter().for_each(|op| {
            w.push(op.as_doc().as_val());
        });
        w.close();
        match (at == last, last) {
            (false, _) => w.bool("partialTxn", true),
            (true, 0) => &mut w,
            (true, _) => w.i64("count", operations.len() as i64),
        };
        w.close();
        w.timestamp("ts", ts_of(at)).i64("t", term).i64("v", 2);
        w.date("wall", stamp.wall_millis);
        let before = match at.checked_sub(1) {
            Some(before) => (ts_of(before), term),
            None => (0, -1),
        };
        w.open_doc("prevOpTime").timestamp("ts", before.0);
        w.i64("t", before.1).close();
        w.finish()
    };
    parts.iter().enumerate().map(part).collect()
}

fn session(w: &mut Writer, entry: &Entry) {
    if let Some(session) = &entry.session {
        w.open_doc("lsid").binary("id", 4, &session.lsid);
        w.binary("uid", 0, &NO_USER).close();
        w.i64("txnNumber", session.txn_number);
    }
}

/// The document of an entry that is one.
fn write(stamp: &EntryStamp, entry: &Entry, term: i64) -> DocBuf {
    let all = changes(entry);
    let mut w = Writer::with_capacity(512);
    session(&mut w, entry);
    match all.as_slice() {
        [] => {
            w.str("op", "n").str("ns", "");
            match &entry.op {
                Op::Note(note) => w.doc("o", Doc::new(note).unwrap_or(Doc::EMPTY)),
                _ if entry.effects.is_empty() => {
                    w.open_doc("o").str("msg", "periodic noop").close()
                }
                _ => w.open_doc("o").str("msg", "no documents").close(),
            };
        }
        [change] if !change.in_transaction => operation(&mut w, change),
        parts => {
            w.str("op", "c").str("ns", "admin.$cmd");
            w.open_doc("o").open_array("applyOps");
            for part in parts {
                w.open_doc("");
                operation(&mut w, part);
                w.close();
            }
            w.close().close();
        }
    }
    if let Some(OpSession { stmt_id, .. }) = entry.session
        && stmt_id >= 0
    {
        w.i32("stmtId", stmt_id);
    }
    let term = i64::try_from(stamp.term).unwrap_or(0).max(term);
    w.timestamp("ts", stamp.ts).i64("t", term).i64("v", 2);
    w.date("wall", stamp.wall_millis);
    if entry.session.is_some() {
        w.open_doc("prevOpTime").timestamp("ts", 0).i64("t", -1);
        w.close();
    }
    w.finish()
}

/// `op`, `ns`, `ui`, `o` and `o2` of a change.
fn operation(w: &mut Writer, change: &Change<'_>) {
    let head = |w: &mut Writer, op: &str, ns: &str| {
        w.str("op", op).str("ns", ns);
        if change.uuid != [0; 16] {
            w.binary("ui", 4, &change.uuid);
        }
    };
    let id = |w: &mut Writer, doc: Doc<'_>| {
        w.open_doc("o2");
        if let Some(id) = doc.get("_id") {
            w.val("_id", id);
        }
        w.close();
    };
    match change.what {
        ChangeKind::Insert(d) => {
            head(w, "i", change.ns);
            w.doc("o", d);
            id(w, d);
        }
        ChangeKind::Update(diff, new) => {
            head(w, "u", change.ns);
            w.open_doc("o").i32("$v", 2).doc("diff", diff).close();
            id(w, new);
        }
        ChangeKind::Replace(new) => {
            head(w, "u", change.ns);
            w.doc("o", new);
            id(w, new);
        }
        ChangeKind::Delete(key) => {
            head(w, "d", change.ns);
            w.doc("o", key);
        }
        ChangeKind::Ddl(d) => match command(d) {
            Some(o) => {
                head(w, "c", &format!("{}.$cmd", change.db()));
                w.doc("o", o.as_doc());
            }
            None => {
                head(w, "n", change.ns);
                w.open_doc("o");
                w.str("msg", d.first().map_or("", |e| e.name)).close();
            }
        },
    }
}

/// A DDL document as MongoDB's command; `None`: MongoDB has none of the kind.
fn command(d: Doc<'_>) -> Option<DocBuf> {
    let first = d.first()?;
    let coll = coll_of(first.val.as_str().unwrap_or(""));
    let mut w = Writer::new();
    match first.name {
        "create" => {
            w.str("create", coll);
            if let Some(options) = d.get("options").and_then(|v| v.as_doc()) {
                w.extend(options);
            }
            w.open_doc("idIndex").i32("v", 2);
            w.open_doc("key").i32("_id", 1).close();
            w.str("name", "_id_").close();
        }
        "drop" => {
            w.str("drop", coll);
        }
        "dropDatabase" => {
            w.i32("dropDatabase", 1);
        }
        "renameCollection" => {
            w.val("renameCollection", first.val)
                .str("to", text(d, "to"));
            w.bool("stayTemp", false);
            match d.get("targetUUID") {
                Some(uuid) => w.val("dropTarget", uuid),
                None => w.bool("dropTarget", false),
            };
        }
        "createIndexes" => {
            let specs = d.get("indexes").and_then(|v| v.as_array())?;
            let mut each = specs.values();
            match (each.next().and_then(|v| v.as_doc()), each.next()) {
                (Some(spec), None) => {
                    w.str("createIndexes", coll).extend(spec);
                }
                _ => {
                    w.str("commitIndexBuild", coll);
                    w.val("indexes", d.get("indexes")?);
                }
            }
        }
        "dropIndexes" => {
            w.str("dropIndexes", coll).str("index", text(d, "index"));
        }
        "collMod" => {
            w.str("collMod", coll);
            for e in d.iter().skip(1) {
                match e.val.as_doc().filter(|_| e.val.tag == tag::DOCUMENT) {
                    Some(options) if e.name == "options" => {
                        w.extend(options);
                    }
                    _ => {
                        w.val(e.name, e.val);
                    }
                }
            }
        }
        _ => return None,
    }
    Some(w.finish())
}
