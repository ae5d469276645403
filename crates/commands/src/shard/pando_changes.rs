//! `_pandoChanges`: which documents of a collection the log says were touched, for whoever copies
//! them.
//!
//! ```text
//! {_pandoChanges: 1, ns}                          → {ids: [], upTo: <long>, term: <long>}     where the log ends
//! {_pandoChanges: 1, ns, after: <long>, term, range?: {low, high?}}
//!                                                 → {ids: [_id…], upTo, term, more: <bool>}
//! ```
//! With a range: of documents that lie there, or may have lain there.
//! `term` is that of the entry `upTo`. A log that has another entry there is another primary's, and what
//! was read before may never have been written: that fails.

use super::{range, text};
use crate::request::{CommandContext, Done};
use bson::{Doc, Val, Value, Writer};
use catalog::keyspace::SPACE_RECORD;
use changes::What;
use errors::{Error, Result, Stop, err};
use sharding::{Ownership, PlaceRange, value_of};
use std::collections::HashSet;
use std::sync::Arc;
use storage::{Effect, Entry, Op};

/// What is before a record's own key: tablet, space, index.
const RECORD_PREFIX: usize = 8 + 1 + 4;
/// The ids of one reply, in bytes.
const MOST_BYTES: usize = 4 << 20;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = text(cx, "ns")?;
    let end = cx.app.store.last_index();
    let number = |name: &str| cx.args.field(name).and_then(|v| v.to_i64_exact());
    let after = number("after").map(|n| u64::try_from(n).unwrap_or(0));
    let wanted = Wanted::of(cx, ns)?;
    let mut ids = Writer::new_array();
    let (mut seen, mut up_to, mut more) = (HashSet::new(), end, false);
    let first = after.unwrap_or(end);
    let mut term = 0;
    if first > 0 {
        let mut reader = cx.app.store.read_log(first)?;
        term = match reader.next()? {
            Some(record) if record.index == first => record.term,
            _ => return Err(another_log(first).into()),
        };
        let believed = number("term").map(|n| n as u64);
        if after.is_some() && believed.is_some_and(|believed| believed != term) {
            return Err(another_log(first).into());
        }
        let mut next = first + 1;
        while next <= end {
            cx.op.check()?;
            let Some(record) = reader.next()? else { break };
            (next, up_to, term) = (record.index + 1, record.index, record.term);
            let Some(entry) = Entry::decode(record.payload) else {
                return Err(err!(DataCorruptionDetected, "an entry of the log is damaged").into());
            };
            for change in changes::changes(&entry).iter().filter(|c| c.ns == ns) {
                let doc = match change.what {
                    What::Insert(d) | What::Update(_, d) | What::Replace(d) | What::Delete(d) => d,
                    What::Ddl(_) => continue,
                };
                let concerned = wanted.as_ref().is_none_or(|w| w.concerned(&change.what));
                if let Some(id) = doc.get("_id").filter(|_| concerned) {
                    touched(id, &mut seen, &mut ids);
                }
            }
            for part in entry.plain().filter(|part| &*part.ns == ns) {
                for id in removed(part)? {
                    touched(id.as_val(), &mut seen, &mut ids);
                }
            }
            if ids.len() > MOST_BYTES {
                more = next <= end;
                break;
            }
        }
    }
    cx.w.val("ids", ids.finish_array().as_val());
    cx.w.i64("upTo", up_to as i64).i64("term", term as i64);
    cx.w.bool("more", more);
    Ok(Done::Reply)
}

/// The range that is asked about, and the key that says what lies in it.
struct Wanted {
    known: Arc<Ownership>,
    range: PlaceRange,
}

impl Wanted {
    fn of(cx: &CommandContext<'_, '_>, ns: &str) -> Result<Option<Wanted>> {
        let known = cx.app.ownerships.get(ns);
        match (cx.args.field("range"), known) {
            (Some(_), Some(known)) => Ok(Some(Wanted {
                known,
                range: range(cx)?,
            })),
            _ => Ok(None),
        }
    }

    /// Whether a change put a document into the range, or may have taken it out of there.
    fn concerned(&self, what: &What<'_>) -> bool {
        let key = &self.known.key;
        let may_lie_there = |d| {
            let place = key.place_of(d);
            place.map_or(true, |place| self.range.contains(&place))
        };
        match what {
            What::Ddl(_) => false,
            What::Insert(d) => may_lie_there(*d),
            What::Update(diff, d) => may_lie_there(*d) || self.moves(*diff),
            What::Replace(d) => may_lie_there(*d) || key.names().any(|name| name != "_id"),
            // It has the fields of the key under their whole paths, where the document had them.
            What::Delete(d) => {
                let told = |name: &str| !name.contains('.') && d.contains(name);
                !key.names().all(told) || may_lie_there(*d)
            }
        }
    }

    /// Whether a diff may change a document's place.
    fn moves(&self, diff: Doc<'_>) -> bool {
        let key = &self.known.key;
        diff.iter()
            .any(|part| match (part.name, part.val.as_doc()) {
                ("u" | "i" | "d", Some(fields)) => fields.iter().any(|f| key.concerns(f.name)),
                (name, _) => name.strip_prefix('s').is_none_or(|f| key.concerns(f)),
            })
    }
}

fn another_log(index: u64) -> Error {
    err!(
        OplogStartMissing,
        "the log has no entry {index} as it was, or none any more"
    )
}

fn touched(id: Val<'_>, seen: &mut HashSet<Vec<u8>>, ids: &mut Writer) {
    if seen.insert(bson::key::of(id)) {
        ids.push(id);
    }
}

/// The ids of what goes where others come in its place: of a time series' buckets. Records lie there
/// by their ids.
fn removed(entry: &Entry) -> Result<Vec<Value>> {
    let gone = entry.effects.iter().filter_map(|effect| match effect {
        Effect::Delete(key) if key.get(8) == Some(&SPACE_RECORD) => key.get(RECORD_PREFIX..),
        _ => None,
    });
    match entry.op {
        Op::Insert => gone
            .map(|key| value_of(key).ok_or_else(unknown_id))
            .collect(),
        _ => Ok(Vec::new()),
    }
}

fn unknown_id() -> Stop {
    err!(InternalError, "an entry of the log removes what has no _id").into()
}
