//! `_pandoChanges`: which documents of a collection were touched, by the log, for movers.
//!
//! ```text
//! {_pandoChanges: 1, ns}                          → {ids: [], upTo: <long>, term: <long>}     where the log ends
//! {_pandoChanges: 1, ns, after: <long>, term, range?: {low, high?}, documents?: <bool>}
//!                                                 → {ids: [_id…], upTo, term, more: <bool>, end: <long>}
//! {_pandoChanges: 1, ns, after: <long>, lease: <string>, renew: true, slowMillis?: <long>}     → {}
//! {_pandoChanges: 1, ns, lease: <string>, end: true}                     → {}
//! ```
//! With a range: of documents that lie there, or may have lain there. With `documents` the reply also has
//! the newest states that the log has of them up to there: `documents`, and in `gone` the `_id`s of those
//! that are deleted or have left the range. `ids` are the others then, which have to be read. With a lease
//! the log is kept from `after` on, or from its end, until a minute after it was last asked for. With
//! `slowMillis` each write of routers to the collection is delayed by that time, for a second. The log is
//! read up to `upTo`, and ends at `end`. `term` is that of the entry `upTo`. If the log has another entry
//! there it is another primary's, and the entries read before may never have been committed: that fails.

use super::{range, text};
use crate::request::{CommandContext, Done};
use bson::{Doc, Val, Value, Writer};
use catalog::keyspace::SPACE_RECORD;
use changes::ChangeKind;
use errors::{Error, Result, Stop, err};
use sharding::{Ownership, PlaceRange, value_of};
use std::collections::HashMap;
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
/// A reply ends with the entry that brings its ids and documents to more than this.
const MOST_BYTES: usize = 4 << 20;
/// From here on the documents of an entry are told of by their ids, so that a reply is a message.
const MOST_BYTES_OF_AN_ENTRY: usize = 12 << 20;

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = text(cx, "ns")?;
    let end = cx.app.store.last_index();
    let after = number(cx, "after").map(|n| u64::try_from(n).unwrap_or(0));
    let first = after.unwrap_or(end);
    if only_the_lease(cx, ns, first)? {
        return Ok(Done::Reply);
    }
    let mut touched = Touched {
        documents: truthy(cx, "documents"),
        ..Touched::default()
    };
    let mut place = Place {
        up_to: end,
        term: 0,
        more: false,
    };
    if first > 0 {
        let mut reader = read_log(cx, first)?;
        place.term = match reader.next()? {
            Some(record) if record.index == first => record.term,
            _ => return Err(another_log(first).into()),
        };
        let believed = number(cx, "term").map(|n| n as u64);
        if after.is_some() && believed.is_some_and(|believed| believed != place.term) {
            return Err(another_log(first).into());
        }
        read_on(cx, ns, (reader, first, end), &mut place, &mut touched)?;
    }
    touched.write(&mut cx.w);
    cx.w.i64("upTo", place.up_to as i64).i64("end", end as i64);
    cx.w.i64("term", place.term as i64).bool("more", place.more);
    Ok(Done::Reply)
}

fn number(cx: &CommandContext<'_, '_>, name: &str) -> Option<i64> {
    cx.args.field(name).and_then(|v| v.to_i64_exact())
}

fn truthy(cx: &CommandContext<'_, '_>, name: &str) -> bool {
    cx.args.field(name).is_some_and(|v| v.truthy())
}

/// Heeds what is said of a lease. Whether that is all.
fn only_the_lease(cx: &CommandContext<'_, '_>, ns: &str, first: u64) -> Result<bool> {
    let Some(name) = cx.args.field("lease").and_then(|v| v.as_str()) else {
        return Ok(false);
    };
    if truthy(cx, "end") {
        cx.app.store.end_log_lease(name);
        return Ok(true);
    }
    cx.app.store.lease_log(name, first, LEASE);
    if let Some(millis) = number(cx, "slowMillis") {
        let each = Duration::from_millis(millis.clamp(0, MOST_SLOW_MILLIS).unsigned_abs());
        let until = Instant::now() + SLOWED;
        cx.app.ownerships.slow_down(ns, each, until);
    }
    Ok(truthy(cx, "renew"))
}

/// How far the log was read.
struct Place {
    up_to: u64,
    /// Of the entry `up_to`.
    term: u64,
    more: bool,
}

/// Reads the entries behind `first`, up to `end` or until a reply is full.
fn read_on(
    cx: &CommandContext<'_, '_>,
    ns: &str,
    (mut reader, first, end): (LogReader, u64, u64),
    place: &mut Place,
    touched: &mut Touched,
) -> Result<()> {
    let wanted = Wanted::of(cx, ns)?;
    let mut next = first + 1;
    while next <= end {
        cx.op.check()?;
        let Some(record) = reader.next()? else { break };
        next = record.index + 1;
        (place.up_to, place.term) = (record.index, record.term);
        // Another collection's documents are not decoded.
        if let Some(EntryGlance::Documents(other)) = EntryGlance::at(record.payload)
            && other != ns
        {
            continue;
        }
        let Some(entry) = Entry::decode(record.payload) else {
            return Err(err!(DataCorruptionDetected, "an entry of the log is damaged").into());
        };
        touched.hear(&entry, ns, wanted.as_ref())?;
        if touched.bytes > MOST_BYTES {
            place.more = next <= end;
            break;
        }
    }
    Ok(())
}

/// The documents that entries have touched, each once, in the order of their first change.
#[derive(Default)]
struct Touched {
    /// Whether documents are given, too.
    documents: bool,
    /// The place of each in `all`, by the key of its `_id`.
    places: HashMap<Vec<u8>, usize>,
    all: Vec<(Value, Newest)>,
    bytes: usize,
}

/// The last that the log says of a document.
enum Newest {
    /// That it has to be read.
    Unknown,
    Document(Vec<u8>),
    /// That it is deleted, or not in the range any more.
    Gone,
}

impl Newest {
    fn bytes(&self) -> usize {
        match self {
            Newest::Document(d) => d.len(),
            Newest::Unknown | Newest::Gone => 0,
        }
    }
}

impl Touched {
    fn hear(&mut self, entry: &Entry, ns: &str, wanted: Option<&Wanted>) -> Result<()> {
        for change in changes::changes(entry).iter().filter(|c| c.ns == ns) {
            let (ChangeKind::Insert(d)
            | ChangeKind::Update(_, d)
            | ChangeKind::Replace(d)
            | ChangeKind::Delete(d)) = change.what
            else {
                continue;
            };
            let lies = match wanted {
                None => Some(Lies::Within),
                Some(wanted) => wanted.lies(&change.what),
            };
            let (Some(id), Some(lies)) = (d.get("_id"), lies) else {
                continue;
            };
            let newest = match (&change.what, lies) {
                (ChangeKind::Delete(_), _) | (_, Lies::Outside) => Newest::Gone,
                (_, Lies::Within) if self.has_room_for(d) => {
                    Newest::Document(d.as_bytes().to_vec())
                }
                _ => Newest::Unknown,
            };
            self.note(id, newest);
        }
        for part in entry.plain().filter(|part| &*part.ns == ns) {
            for id in removed(part)? {
                self.note(id.as_val(), Newest::Unknown);
            }
        }
        Ok(())
    }

    /// One entry may have more than goes into a reply.
    fn has_room_for(&self, d: Doc<'_>) -> bool {
        self.documents && self.bytes + d.len() <= MOST_BYTES_OF_AN_ENTRY
    }

    fn note(&mut self, id: Val<'_>, newest: Newest) {
        self.bytes += newest.bytes();
        let key = bson::key::of(id);
        if let Some((_, known)) = self.places.get(&key).and_then(|at| self.all.get_mut(*at)) {
            self.bytes -= known.bytes();
            *known = newest;
            return;
        }
        self.bytes += id.bytes.len();
        self.places.insert(key, self.all.len());
        self.all.push((id.to_value(), newest));
    }

    fn write(&self, w: &mut Writer) {
        let (mut ids, mut gone) = (Writer::new_array(), Writer::new_array());
        let mut documents = Writer::new_array();
        for (id, newest) in &self.all {
            match newest {
                Newest::Gone if self.documents => gone.push(id.as_val()),
                Newest::Document(d) => documents.push(Doc::new(d).unwrap_or(Doc::EMPTY).as_val()),
                _ => ids.push(id.as_val()),
            };
        }
        w.val("ids", ids.finish_array().as_val());
        if self.documents {
            w.val("documents", documents.finish_array().as_val());
            w.val("gone", gone.finish_array().as_val());
        }
    }
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

/// Where a document lies, seen from the range that is asked about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lies {
    Within,
    Outside,
    Unknown,
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

    /// Where a document lies after a change. `None`: not in the range, nor did it before.
    fn lies(&self, what: &ChangeKind<'_>) -> Option<Lies> {
        let key = &self.known.key;
        let lies = |d| match key.place_of(d) {
            Ok(place) if self.range.contains(&place) => Lies::Within,
            Ok(_) => Lies::Outside,
            Err(_) => Lies::Unknown,
        };
        let (now, may_leave) = match what {
            ChangeKind::Ddl(_) => return None,
            ChangeKind::Insert(d) => (lies(*d), false),
            ChangeKind::Update(diff, d) => (lies(*d), self.moves(*diff)),
            ChangeKind::Replace(d) => (lies(*d), key.names().any(|name| name != "_id")),
            // It has the fields of the key under their whole paths, where the document had them.
            ChangeKind::Delete(d) => {
                let told = |name: &str| !name.contains('.') && d.contains(name);
                (lies(*d), !key.names().all(told))
            }
        };
        (now != Lies::Outside || may_leave).then_some(now)
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
