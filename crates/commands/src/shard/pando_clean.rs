//! `_pandoClean`: removes the documents of a range that the shard does not own.
//!
//! ```text
//! {_pandoClean: 1, ns, range?: {low, high?}, keep?, turn?, millis?, hurries?}
//!                                                 → {n: <documents removed>, more: <bool>}
//! ```
//! Without a range: of all that may hold orphans. With `keep` it stays a range that may hold orphans.
//! What an earlier holder of the lock has sent of it is done before. While routers are served, and unless
//! it `hurries`, it rests between batches ([`Pace`]). After `millis` there may be more.
//!
//! Invariant: no batch is removed after another holder of the lock was heard of, or the shard owns the
//! range. In between the state may change.

use super::{Ownerships, range, store, text, turn};
use crate::Commands;
use crate::request::{CommandContext, Done};
use crate::settings::parameters::CLEAN_PAUSE;
use bson::{Doc, DocBuf, Writer};
use errors::{Result, bail};
use executor::{OpCtx, ReadRequest};
use planner::{Hint, IndexInfo};
use query::filter::Filter;
use sharding::pace::Pace;
use sharding::{Ownership, PlaceRange};
use std::time::{Duration, Instant};

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = text(cx, "ns")?;
    let mut rests = CleanThrottle::new(cx);
    let keeps = cx.args.field("keep").is_some_and(|v| v.truthy());
    let (known, gone) = close(cx, ns, keeps)?;
    cx.op.from_migrate = true;
    let mut n = 0;
    for range in &gone {
        n += remove(cx, &known, range, &mut rests)?;
    }
    if !keeps && !rests.is_late {
        let ownerships = cx.app.ownerships.clone();
        let _one = ownerships.changing.lock();
        for range in &gone {
            still_cleans(&ownerships, &known, range)?;
        }
        if let Some(now) = ownerships.get(ns) {
            store(cx, &(*now).clone().cleaned(&gone))?;
        }
    }
    cx.after_commit = true;
    cx.w.i64("n", n as i64).bool("more", rests.is_late);
    Ok(Done::Reply)
}

/// From here on what earlier holders of the lock send is refused, and what this one has sent of these
/// ranges, unless they are kept; all of it is done. Gives the new state, and the ranges.
fn close(
    cx: &mut CommandContext<'_, '_>,
    ns: &str,
    keeps: bool,
) -> Result<(Ownership, Vec<PlaceRange>)> {
    let ownerships = cx.app.ownerships.clone();
    let one = ownerships.changing.lock();
    let Some(known) = ownerships.get(ns) else {
        bail!(NamespaceNotSharded, "{ns} is not sharded here");
    };
    let gone = match cx.args.field("range") {
        Some(_) => vec![range(cx)?],
        None => known.orphans.clone(),
    };
    let mut later = (*known).clone().heed(turn(cx, known.turn))?;
    if !keeps {
        later = later.closed(&gone);
    }
    if later != *known {
        store(cx, &later)?;
    }
    // Other ranges and collections may change while this waits: each batch looks again.
    drop(one);
    ownerships.drain_movers(ns, &gone)?;
    Ok((later, gone))
}

/// Fails where the collection has another holder of the lock, or the range belongs here, by now.
fn still_cleans(ownerships: &Ownerships, known: &Ownership, range: &PlaceRange) -> Result<()> {
    match ownerships.get(&known.ns) {
        Some(now) if now.turn == known.turn && now.version.is_same_life(&known.version) => {
            now.check_cleans(range)
        }
        _ => bail!(
            ConflictingOperationInProgress,
            "{} is being changed by somebody else since",
            known.ns
        ),
    }
}

/// Removes the documents of a range: how many there were.
fn remove(
    cx: &mut CommandContext<'_, '_>,
    known: &Ownership,
    range: &PlaceRange,
    rests: &mut CleanThrottle<'_>,
) -> Result<u64> {
    let Some((min, max)) = known.key.bounds(range) else {
        bail!(BadValue, "the range has no bounds of the shard key");
    };
    let mut w = Writer::new();
    w.doc(
        "$expr",
        known.key.within(min.as_doc(), max.as_doc()).as_doc(),
    );
    let filter = match *range == PlaceRange::all() {
        true => DocBuf::default(),
        false => w.finish(),
    };
    let filter = Filter::parse(filter.as_doc(), &Default::default())?;
    let by_index = by_index(cx, known, min.as_doc(), max.as_doc());
    let mut request = ReadRequest::new(&filter);
    if let Some((hint, low, high)) = &by_index {
        request.hint = Some(hint.clone());
        request.min = Some(low.as_doc());
        request.max = high.as_ref().map(DocBuf::as_doc);
    }
    let ownerships = cx.app.ownerships.clone();
    let hold = |op: &OpCtx<'_>| {
        if !rests.rest(op)? {
            return Ok(None);
        }
        let held = ownerships.changing.lock();
        still_cleans(&ownerships, known, range)?;
        Ok(Some(held))
    };
    let done = executor::delete_in_parts(&mut cx.op, &known.ns, &request, hold)?;
    Ok(done.n)
}

/// An index by which the documents of a range are found, and the range's bounds in it.
fn by_index(
    cx: &CommandContext<'_, '_>,
    known: &Ownership,
    min: Doc<'_>,
    max: Doc<'_>,
) -> Option<(Hint, DocBuf, Option<DocBuf>)> {
    let coll = cx.app.engine.catalog.get(&known.ns)?;
    let has_all = |i: &&IndexInfo| {
        let plain = !i.sparse && i.partial.is_none() && i.key.collation().is_none();
        plain && i.ready && !i.hidden
    };
    coll.usable.iter().filter(has_all).find_map(|i| {
        let (low, high) = known.key.limits(i.key.as_doc(), min, max)?;
        Some((Hint::Name(i.name.clone()), low, high))
    })
}

/// It rests as the copy of a move of that age, since it comes behind one.
const AGE: Duration = Duration::from_secs(4);

/// Rests between batches.
struct CleanThrottle<'c> {
    app: &'c Commands,
    pace: Pace,
    hurries: bool,
    began: Instant,
    worked_since: Instant,
    ends: Option<Duration>,
    /// There was no time for all.
    is_late: bool,
}

impl<'c> CleanThrottle<'c> {
    fn new(cx: &CommandContext<'c, '_>) -> CleanThrottle<'c> {
        let millis = cx.args.field("millis").and_then(|v| v.to_i64_exact());
        let mut pace = Pace::default();
        pace.heard(cx.app.served(), Duration::ZERO);
        CleanThrottle {
            app: cx.app,
            pace,
            hurries: cx.args.field("hurries").is_some_and(|v| v.truthy()),
            began: Instant::now(),
            worked_since: Instant::now(),
            ends: millis.map(|n| Duration::from_millis(n.unsigned_abs())),
            is_late: false,
        }
    }

    /// Whether there is time for another batch.
    fn rest(&mut self, op: &OpCtx<'_>) -> Result<bool> {
        let now = self.began.elapsed();
        self.is_late = self.is_late || self.ends.is_some_and(|ends| now >= ends);
        if self.is_late {
            return Ok(false);
        }
        if self.pace.asks(now) {
            self.pace.heard(self.app.served(), now);
        }
        let least = self.app.parameters.int(CLEAN_PAUSE).unsigned_abs();
        let rest = match self.hurries {
            true => Duration::ZERO,
            false => self.pace.rest(self.worked_since.elapsed(), AGE + now),
        };
        std::thread::sleep(rest.max(Duration::from_millis(least)));
        op.check()?;
        self.worked_since = Instant::now();
        Ok(true)
    }
}
