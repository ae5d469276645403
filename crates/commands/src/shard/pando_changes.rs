//! `_pandoChanges`: which documents of a collection were touched, by the log, for movers.
//!
//! ```text
//! {_pandoChanges: 1, ns}                          → {ids: [], upTo: <long>, term: <long>}     where the log ends
//! {_pandoChanges: 1, ns, after: <long>, term, range?: {low, high?}}
//!                                                 → {ids: [_id…], upTo, term, more: <bool>}
//! {_pandoChanges: 1, ns, after: <long>, lease: <string>, renew: true, slowMillis?: <long>}     → {}
//! {_pandoChanges: 1, ns, lease: <string>, end: true}                     → {}
//! ```
//! With a range: of documents that lie there, or may have lain there. With a lease the log is kept from
//! `after` on, or from its end, until a minute after it was last asked for. With `slowMillis` each write
//! of routers to the collection is delayed by that time, for a second. `term` is that of the entry
//! `upTo`. If the log has another entry there it is another primary's, and the entries read before may
//! never have been committed: that fails.

use super::{range, text};
use crate::request::{CommandContext, Done};
use bson::{Doc, Val, Value, Writer};
use catalog::keyspace::SPACE_RECORD;
use changes::ChangeKind;
use errors::{Error, Result, Stop, err};
use sharding::{Ownership, PlaceRange, value_of};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::{Effect, Entry, EntryGlance, LogReader, Op};

/// The prefix of a record's own key: tablet, space, index.
const RECORD_PREFIX: usize = 8 + 1 + 4;
/// How long writes wait that are slowed down, at most, and for how long they do.
const MOST_SLOW_MILLIS: i64 = 500;
const SLOWED: Duration = Duration::from_secs(1);
/// How long a lease on the log holds unless it is renewed.
const LEASE: Duration = Duration::from_secs(60);
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
    if let Some(name) = cx.args.field("lease").and_then(|v| v.as_str()) {
        let asks = |field: &str| cx.args.field(field).is_some_and(|v| v.truthy());
        if asks("end") {
            cx.app.store.end_log_lease(name);
            return Ok(Done::Reply);
        }
        cx.app.store.lease_log(name, first, LEASE);
        if let Some(millis) = number("slowMillis") {
            let each = Duration::from_millis(millis.clamp(0, MOST_SLOW_MILLIS).unsigned_abs());
            cx.app
                .ownerships
                .slow_down(ns, each, Instant::now() + SLOWED);
        }
        if asks("renew") {
            return Ok(Done::Reply);
        }
    }
    let mut term = 0;
    if first > 0 {
        let mut reader = read_log(cx, first)?;
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
            // Another collection's documents are not decoded.
            if let Some(EntryGlance::Documents(other)) = EntryGlance::at(record.payload)
                && other != ns
            {
                continue;
            }
            let Some(entry) = Entry::decode(record.payload) else {
                return Err(err!(DataCorruptionDetected, "an entry of the log is damaged").into());
            };
            for change in changes::changes(&entry).iter().filter(|c| c.ns == ns) {
                let doc = match change.what {
                    ChangeKind::Insert(d)
                    | ChangeKind::Update(_, d)
                    | ChangeKind::Replace(d)
                    | ChangeKind::Delete(d) => d,
                    ChangeKind::Ddl(_) => continue,
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

/// A reader from an entry on. If its entries are gone, the mover has to begin anew.
fn read_log(cx: &CommandContext<'_, '_>, first: u64) -> Result<LogReader> {
    let store = &cx.app.store;
    if first < store.first_log_index() {
        let most = store.stats().log_window.max_bytes * storage::LEASED_LOG_WINDOWS;
        let mebibytes = most >> 20;
        return Err(err!(
            OplogStartMissing,
            "while this was copied more was written than the log keeps for it ({mebibytes} MiB): do it \
             again when less is written, in smaller ranges, or with a larger oplog (replSetResizeOplog)"
        )
        .into());
    }
    Ok(store.read_log(first)?)
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
    fn concerned(&self, what: &ChangeKind<'_>) -> bool {
        let key = &self.known.key;
        let may_lie_there = |d| {
            let place = key.place_of(d);
            place.map_or(true, |place| self.range.contains(&place))
        };
        match what {
            ChangeKind::Ddl(_) => false,
            ChangeKind::Insert(d) => may_lie_there(*d),
            ChangeKind::Update(diff, d) => may_lie_there(*d) || self.moves(*diff),
            ChangeKind::Replace(d) => may_lie_there(*d) || key.names().any(|name| name != "_id"),
            // It has the fields of the key under their whole paths, where the document had them.
            ChangeKind::Delete(d) => {
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
