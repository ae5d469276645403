//! Counts what the candidates of a query would read, so that the planner can choose among them.
//!
//! All candidates are counted in turns, each turn longer than the last, by the scans that would run
//! (bounds of later fields and tests on keys included), without reading a document of an index. Counting
//! ends when one of them has ended and the others have read as much. A longer one is estimated: from the
//! engine's sizes of key ranges, from the share of the ranges that was passed, and from the share of the
//! entries that was given.
//!
//! Invariant: counting for one plan reads at most [`MOST_READ`] entries, and a turn for each
//! candidate. On an event loop it counts one short turn; what needs more goes to a worker.

use crate::Examined;
use crate::engine::Engine;
use crate::op::OpCtx;
use crate::read::index_scan::{IndexScan, Position, RecordScan};
use crate::read::source::index;
use crate::read::step::Step;
use catalog::{Collection, Index, keyspace};
use errors::{Result, Stop, Suspension};
use planner::{Access, Bounds, IndexAccess, Reads};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Instant;
use storage::View;

/// What a candidate may have read after each turn, in entries.
const TURNS: [u64; 4] = [16, 64, 256, 1024];
/// The turns that an event loop does itself.
const TURNS_OF_LOOP: usize = 2;
/// The entries that are counted for one plan.
const MOST_READ: u64 = 16 << 10;
/// Where few results are wanted, a candidate's turns are up to so many times as many entries.
const OF_LIMIT: u64 = 4;
/// A document costs as much as so many entries.
const FETCH: u64 = 4;
/// Where an estimate is so many times the least, counting on would change nothing.
const PLAIN: f64 = 4.0;
/// Of the ranges of a scan the sizes of so many are asked for.
const ASKED_RANGES: usize = 16;
/// The bytes of an entry, where nothing better is known.
const ENTRY_BYTES: f64 = 48.0;

pub(crate) struct Measure<'m> {
    engine: &'m Arc<Engine>,
    view: &'m View,
    coll: &'m Arc<Collection>,
    left: Cell<u64>,
    /// The most entries of a candidate.
    most: u64,
    /// When counting began. No clock is read where nothing is counted.
    began: Cell<Option<Instant>>,
    /// Why counting stopped.
    stopped: RefCell<Option<Stop>>,
}

/// The scan of a candidate, or of one of its branches, as far as it was counted.
struct Counted<'c> {
    kind: Kind<'c>,
    examined: Examined,
    given: u64,
    ended: bool,
}

enum Kind<'c> {
    Index(Box<IndexScan>, Arc<Index>, &'c Arc<IndexAccess>),
    Records(Box<RecordScan>, &'c [u8], &'c [u8]),
    /// Known without counting, and whether exactly.
    Known(u64, bool),
}

/// A candidate: its branches, one after the other.
struct Candidate<'c> {
    branches: Vec<Counted<'c>>,
    at: usize,
    /// It has read more than another costs.
    dearer: bool,
}

impl<'m> Measure<'m> {
    pub(crate) fn new(
        engine: &'m Arc<Engine>,
        view: &'m View,
        coll: &'m Arc<Collection>,
        limit: Option<u64>,
    ) -> Measure<'m> {
        Measure {
            engine,
            view,
            coll,
            left: Cell::new(MOST_READ),
            most: limit.map_or(u64::MAX, |l| l.saturating_mul(OF_LIMIT)),
            began: Cell::new(None),
            stopped: RefCell::default(),
        }
    }

    /// How many entries it has counted.
    pub(crate) fn counted(&self) -> u64 {
        MOST_READ - self.left.get()
    }

    /// How long ago it began to count, in nanoseconds; 0 where it did not.
    pub(crate) fn nanos(&self) -> u64 {
        self.began
            .get()
            .map_or(0, |t| t.elapsed().as_nanos() as u64)
    }

    /// The suspension or failure for which the figures are not to be used.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.stopped.take()
    }

    /// What each access would read.
    pub(crate) fn reads(&self, asked: &[&Access]) -> Vec<Reads> {
        if self.began.get().is_none() {
            self.began.set(Some(Instant::now()));
        }
        match self.count(asked) {
            Ok(all) => all.iter().map(|c| self.total(c)).collect(),
            Err(stop) => {
                self.stopped.borrow_mut().get_or_insert(stop);
                vec![Reads::default(); asked.len()]
            }
        }
    }

    fn count<'c>(&self, asked: &[&'c Access]) -> Result<Vec<Candidate<'c>>> {
        let mut all = Vec::with_capacity(asked.len());
        for access in asked {
            let mut branches = Vec::new();
            self.open(access, &mut branches)?;
            all.push(Candidate {
                branches,
                at: 0,
                dearer: false,
            });
        }
        let mut ctx = OpCtx::worker(self.engine);
        for (turn, until) in TURNS.into_iter().enumerate() {
            // How soon a limit is reached only a race can tell, which this must not outdo.
            if turn > 0 && until > self.most {
                break;
            }
            if turn == TURNS_OF_LOOP && self.view.is_cached_only() {
                return Err(Suspension::Worker.into());
            }
            if turn >= TURNS_OF_LOOP && self.is_plain(&all) {
                break;
            }
            for c in all.iter_mut().filter(|c| !c.dearer) {
                let before = c.read();
                c.count(self, &mut ctx, until)?;
                let read = c.read().saturating_sub(before);
                self.left.set(self.left.get().saturating_sub(read));
            }
            let least = all.iter().filter(|c| c.ended()).map(Candidate::cost).min();
            if let Some(least) = least {
                all.iter_mut().for_each(|c| c.dearer = c.cost() > least);
            }
            if all.iter().all(|c| c.dearer || c.ended()) || self.left.get() == 0 {
                break;
            }
        }
        Ok(all)
    }

    fn open<'c>(&self, access: &'c Access, out: &mut Vec<Counted<'c>>) -> Result<()> {
        let of_index = |a: &'c Arc<IndexAccess>| -> Result<Counted<'c>> {
            let index = index(self.coll, a.index)?;
            if reads_all(&index, a) {
                return Ok(Counted::known(self.records(), true));
            }
            let scan = IndexScan::new(index.clone(), a, true, None)?;
            Ok(Counted::of(Kind::Index(Box::new(scan), index, a)))
        };
        match access {
            Access::Index(a) => out.push(of_index(a)?),
            Access::Merge(branches, _) => {
                for b in branches.iter() {
                    out.push(of_index(&b.access)?);
                }
            }
            Access::Or(branches) => {
                for b in branches.iter() {
                    self.open(&b.access, out)?;
                }
            }
            Access::Records { low, high, .. } if low.is_empty() && high.is_empty() => {
                out.push(Counted::known(self.records(), true));
            }
            Access::Records { low, high, .. } => {
                let scan = RecordScan::new(self.coll, low, high, false);
                out.push(Counted::of(Kind::Records(Box::new(scan), low, high)));
            }
            Access::Ids(ids) => out.push(Counted::known(ids.len() as u64, true)),
            Access::Eof | Access::Near(_) => out.push(Counted::known(0, true)),
        }
        Ok(())
    }

    fn records(&self) -> u64 {
        self.engine.store.counts(self.coll.tablet).0
    }

    /// Whether one is by far the least, as far as can be told. Sizes of short ranges tell nothing.
    fn is_plain(&self, all: &[Candidate<'_>]) -> bool {
        let figures = |c: &Candidate<'_>| {
            let r = self.total(c);
            let told = r.exact || r.keys > PLAIN * c.read() as f64;
            (r.keys + r.given * FETCH as f64, told)
        };
        let mut costs: Vec<(f64, bool)> = all.iter().map(figures).collect();
        costs.sort_by(|a, b| a.0.total_cmp(&b.0));
        match costs[..] {
            [(least, told), (next, _), ..] => told && least * PLAIN < next,
            _ => true,
        }
    }

    /// What a candidate reads in all.
    fn total(&self, c: &Candidate<'_>) -> Reads {
        let mut sum = Reads {
            exact: true,
            ..Reads::default()
        };
        for b in &c.branches {
            let r = self.total_of(b);
            sum.keys += r.keys;
            sum.given += r.given;
            sum.exact &= r.exact;
        }
        sum
    }

    fn total_of(&self, b: &Counted<'_>) -> Reads {
        let (read, given) = (b.examined.keys as f64, b.given as f64);
        if let Kind::Known(n, exact) = b.kind {
            return Reads {
                keys: n as f64,
                given: n as f64,
                exact,
            };
        }
        if b.ended {
            return Reads {
                keys: read,
                given,
                exact: true,
            };
        }
        let all = match &b.kind {
            Kind::Index(scan, index, a) => self.entries(scan, index, a, read),
            Kind::Records(_, low, high) => self.records_between(low, high),
            Kind::Known(n, _) => *n as f64,
        };
        let all = all.max(read + 1.0);
        // Nothing was given of few: something may be of many.
        let share = if read > 0.0 {
            given.max(0.5) / read
        } else {
            1.0
        };
        Reads {
            keys: all,
            given: all * share.min(1.0),
            exact: false,
        }
    }

    /// About how many entries a scan reads that has not ended.
    fn entries(&self, scan: &IndexScan, index: &Index, a: &IndexAccess, read: f64) -> f64 {
        let Bounds::Ranges(ranges) = &a.bounds;
        let at = scan.at();
        if ranges.len() > ASKED_RANGES
            && let Some(key) = at
        {
            let passed = ranges.partition_point(|(low, _)| low.as_slice() <= key);
            let passed = match a.reverse {
                false => passed,
                true => ranges.len() - passed + 1,
            };
            if passed >= ASKED_RANGES / 2 {
                return read * ranges.len() as f64 / passed as f64;
            }
        }
        let each = (ranges.len() / ASKED_RANGES).max(1);
        let some = ranges.iter().step_by(each).take(ASKED_RANGES);
        let some: Vec<_> = some.map(|r| Position::range(index, r)).collect();
        let bytes: u64 = some.iter().map(|(l, h)| self.size(l, h)).sum();
        let bytes = bytes as f64 * each as f64;
        if !a.skip.is_empty()
            && let (Some(key), [(low, high)]) = (at, &some[..])
        {
            // Later fields let the scan pass over entries.
            let key = keyspace::join(&index.prefix, key);
            let passed = match a.reverse {
                false => self.size(low, &key),
                true => self.size(&key, high),
            };
            let share = passed as f64 / bytes.max(1.0);
            if share > 0.02 {
                return read / share.min(1.0);
            }
        }
        self.entries_of(index, bytes)
    }

    /// The entries of an index that take so many bytes.
    fn entries_of(&self, index: &Index, bytes: f64) -> f64 {
        let whole = self.size(&index.prefix, &keyspace::prefix_end(&index.prefix));
        let info = &index.info;
        let one_each = info.multikey == 0 && !info.sparse && info.partial.is_none();
        match whole {
            0 => 0.0,
            n if one_each && info.key.wildcard().is_none() => {
                bytes / n as f64 * self.records() as f64
            }
            n => (bytes / ENTRY_BYTES).max(bytes / n as f64 * self.records() as f64),
        }
    }

    fn records_between(&self, low: &[u8], high: &[u8]) -> f64 {
        let prefix = &self.coll.record_prefix;
        let end = keyspace::prefix_end(prefix);
        let low = keyspace::join(prefix, low);
        let high = match high {
            [] => end.clone(),
            h => keyspace::join(prefix, h),
        };
        match self.size(prefix, &end) {
            0 => 0.0,
            n => self.size(&low, &high) as f64 / n as f64 * self.records() as f64,
        }
    }

    fn size(&self, low: &[u8], high: &[u8]) -> u64 {
        self.engine.store.approximate_size(low, high)
    }
}

/// Whether a scan reads an entry for each record, and gives them all.
fn reads_all(index: &Index, a: &IndexAccess) -> bool {
    let Bounds::Ranges(ranges) = &a.bounds;
    let info = &index.info;
    matches!(&ranges[..], [(low, high)] if low.is_empty() && high.is_empty())
        && a.skip.is_empty()
        && a.key_filter.is_empty()
        && info.multikey == 0
        && !info.sparse
        && info.partial.is_none()
        && info.key.wildcard().is_none()
        && info.key.text().is_none()
}

impl<'c> Counted<'c> {
    fn of(kind: Kind<'c>) -> Counted<'c> {
        Counted {
            kind,
            examined: Examined::default(),
            given: 0,
            ended: false,
        }
    }

    fn known(n: u64, exact: bool) -> Counted<'c> {
        Counted {
            ended: true,
            ..Counted::of(Kind::Known(n, exact))
        }
    }

    /// What counting has read: a seek is as much as an entry.
    fn read(&self) -> u64 {
        self.examined.keys + self.examined.seeks
    }

    /// Counts one more; `false` at the end.
    fn step(&mut self, m: &Measure<'_>, ctx: &mut OpCtx, record_key: &mut Vec<u8>) -> Result<bool> {
        match &mut self.kind {
            Kind::Index(scan, ..) => {
                let mut step = Step {
                    view: m.view,
                    coll: m.coll,
                    vars: None,
                    examined: &mut self.examined,
                    record_key,
                };
                scan.next_entry(ctx, &mut step)
            }
            Kind::Records(scan, ..) => {
                let more = scan.next(m.view)?;
                self.examined.keys += u64::from(more);
                Ok(more)
            }
            Kind::Known(..) => Ok(false),
        }
    }
}

impl Candidate<'_> {
    fn read(&self) -> u64 {
        self.branches.iter().map(Counted::read).sum()
    }

    /// What it costs as far as it was counted.
    fn cost(&self) -> u64 {
        let cost = |b: &Counted<'_>| match b.kind {
            Kind::Known(n, _) => n * (1 + FETCH),
            _ => b.examined.keys + b.given * FETCH,
        };
        self.branches.iter().map(cost).sum()
    }

    fn ended(&self) -> bool {
        self.branches.iter().all(|b| b.ended)
    }

    /// Counts on until so much was read. A step ends there too: the next entry that the scan gives may be far.
    fn count(&mut self, m: &Measure<'_>, ctx: &mut OpCtx, until: u64) -> Result<()> {
        let mut read = self.read();
        let mut record_key = Vec::new();
        while read < until
            && let Some(b) = self.branches.get_mut(self.at)
        {
            let before = b.read();
            if b.ended {
                self.at += 1;
                continue;
            }
            ctx.begin_turn(until - read);
            let more = b.step(m, ctx, &mut record_key);
            let is_cut = ctx.end_turn() && more.as_ref().is_err_and(Stop::is_suspension);
            read += b.read().saturating_sub(before);
            if is_cut {
                return Ok(());
            }
            if more? {
                b.given += 1;
            } else {
                b.ended = true;
                self.at += 1;
            }
        }
        Ok(())
    }
}
