//! The log as others read it: from its entries to the events of change streams and to the documents of `local.oplog.rs`.
//!
//! * [`changes`] lists what an entry changed, each with its position in the entry.
//! * [`event`] makes the event of a change stream of one such change, [`oplog_entry`] the documents of the oplog of an entry.
//! * [`ResumeToken`] is where in the log an event stands, as clients keep it.
//!
//! Invariant: pure. The description of a change comes from its entry alone: no catalog, no store and no
//! clock is asked, so an old entry gives today what it gave when it was written.

mod description;
pub mod event;
pub mod oplog_entry;
mod token;

pub use token::{ResumeToken, TokenPlace, token_not_found};

use bson::Doc;
use catalog::keyspace::SPACE_RECORD;
use storage::{Effect, Entry, Op, OpSession, Uuid};

/// What the log's frame says of an entry.
#[derive(Clone, Copy, Debug)]
pub struct EntryStamp {
    /// seconds << 32 | increment
    pub ts: u64,
    pub term: u64,
    pub wall_millis: i64,
}

/// What happened to one document or collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind<'a> {
    Insert(Doc<'a>),
    /// The diff, and the whole new document.
    Update(Doc<'a>, Doc<'a>),
    Replace(Doc<'a>),
    /// What names the document ([`event::document_key`]).
    Delete(Doc<'a>),
    Ddl(Doc<'a>),
}

/// One change of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Its position in the entry, from 0.
    pub at: u32,
    /// `database.collection`
    pub ns: &'a str,
    pub uuid: Uuid,
    pub what: ChangeKind<'a>,
    pub pre_image: Option<Doc<'a>>,
    /// Of the write, or of the transaction that it is a part of.
    pub session: Option<OpSession>,
    pub in_transaction: bool,
    /// Of a range's move between shards.
    pub migrated: bool,
}

impl<'a> Change<'a> {
    pub fn db(&self) -> &'a str {
        self.ns.split_once('.').map_or(self.ns, |(db, _)| db)
    }

    pub fn coll(&self) -> &'a str {
        self.ns.split_once('.').map_or("", |(_, coll)| coll)
    }
}

/// The changes of an entry, in order.
pub fn changes(entry: &Entry) -> Vec<Change<'_>> {
    let in_transaction = matches!(entry.op, Op::Transaction(_));
    let mut out = Vec::new();
    for plain in entry.plain() {
        let doc = |bytes| Doc::new(bytes).unwrap_or(Doc::EMPTY);
        let mut add = |what| {
            out.push(Change {
                at: u32::try_from(out.len()).unwrap_or(u32::MAX),
                ns: &plain.ns,
                uuid: plain.uuid,
                what,
                pre_image: plain.pre_image.as_deref().and_then(Doc::new),
                session: plain.session.or(entry.session),
                in_transaction,
                migrated: entry.migrated,
            });
        };
        match &plain.op {
            Op::Noop | Op::Note(_) | Op::Transaction(_) | Op::Membership { .. } => {}
            Op::Insert => documents(plain).for_each(|d| add(ChangeKind::Insert(d))),
            Op::Update { diff, .. } => {
                let Some(new) = documents(plain).next() else {
                    continue;
                };
                add(match diff.is_empty() {
                    true => ChangeKind::Replace(new),
                    false => ChangeKind::Update(doc(diff), new),
                });
            }
            Op::Delete { record_key } => add(ChangeKind::Delete(doc(record_key))),
            Op::Ddl(what) => add(ChangeKind::Ddl(doc(what))),
        }
    }
    out
}

/// The documents that an entry puts.
fn documents(entry: &Entry) -> impl Iterator<Item = Doc<'_>> {
    entry.effects.iter().filter_map(|effect| match effect {
        // Tablet 0 is the system's own.
        Effect::Put(key, value)
            if key.get(8) == Some(&SPACE_RECORD) && key.get(..8) != Some(&[0; 8]) =>
        {
            Doc::new(value)
        }
        _ => None,
    })
}

/// A string of a DDL document.
fn text<'a>(d: Doc<'a>, name: &str) -> &'a str {
    d.get(name).and_then(|v| v.as_str()).unwrap_or("")
}

/// The collection's part of `database.collection`.
fn coll_of(ns: &str) -> &str {
    ns.split_once('.').map_or("", |(_, coll)| coll)
}
