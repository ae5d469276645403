//! Top-k sort: a sort with a limit that does not read records which cannot be among its results.
//!
//! Often a record's sort key, or a bound of it, is known before the record is read: the first sort
//! field is a field of the scanned index, or is `_id` and the records lie under it, or a zone map
//! of another index gives a bound (`catalog::Zones`). So the record keys are gathered first. Then
//! records are read, the most promising first, until no remaining one can come before the last
//! result. Records that `skip` will certainly drop are not read either.
//!
//! ```text
//! gather keys ─► what to expect of each ─► best first: read, test, sort ─► the next key cannot be better: done
//!      └──────────── again, when there were more than one round takes ◄──────────────────┘
//! ```
//! Invariant: the results are those of a full sort, ties included: ties keep the order of the
//! index.

use super::{Order, RecordStream};
use crate::op::OpCtx;
use crate::read::sorter::{Sorted, Sorter};
use crate::read::source::Source;
use crate::read::step::{Step, test};
use crate::read::zones;
use crate::records;
use bson::key;
use catalog::{Collection, Expected, Index, alike, digest};
use errors::{Error, Result};
use planner::{Access, Plan};
use query::index_keys::{FieldKind, Multikey};
use query::pipeline::Share;
use query::sort::SortPattern;
use smallvec::SmallVec;
use std::sync::Arc;

/// The limits of a round: the number of record keys, and their size in bytes.
const ROUND: usize = 8 << 10;
const ROUND_BYTES: usize = 1 << 20;
/// After so many more keys the memory budget is checked; a round ends when there is no memory left.
const ASK: usize = 512;
/// A sort that wants more results than this reads all records.
const MOST_WANTED: u64 = ROUND as u64;
/// The most records that are read at once.
const FETCH_BATCH: usize = 64;
/// The number of lookups in a zone map while its writers wait.
const LOOKUP: usize = 256;

/// The source of a record's expected sort key.
enum Known {
    /// A field of the scanned index; whether it has the opposite direction.
    Field(usize, bool),
    /// The key of the record; whether the order is descending.
    RecordKey(bool),
    /// A zone map; whether the order is descending.
    Zones(Arc<Index>, bool),
}

pub(super) struct TopK {
    known: Known,
    pattern: SortPattern,
    wanted: u64,
    /// The number of results that will be skipped.
    skip: u64,
    sorter: Option<Box<Sorter>>,
    /// The record keys, concatenated, and the end of each.
    keys: Vec<u8>,
    ends: Vec<u32>,
    /// The expectation for each key; with a zone map, filled in when all keys are gathered.
    expected: Vec<Expected>,
    /// The keys ordered by expectation, best first, and how far they have been read.
    order: Vec<u32>,
    at: usize,
    reading: bool,
    /// Whether all keys have been gathered.
    ended: bool,
    /// The number of keys in earlier rounds.
    before: u64,
    /// The number of results that were certainly skipped, and never read.
    passed: u64,
    batch: usize,
    gathered: usize,
    read: usize,
    share: Share,
}

impl TopK {
    /// `None`: no expectation of sort keys is possible, or all records are wanted.
    pub(super) fn of(
        coll: &Collection,
        plan: &Plan,
        pattern: &SortPattern,
        wanted: Option<u64>,
        sequence: u64,
        skip: u64,
    ) -> Option<TopK> {
        let wanted = wanted.filter(|n| (1..=MOST_WANTED).contains(n))?;
        let known = known(coll, plan, pattern, sequence)?;
        Some(TopK {
            known,
            pattern: pattern.clone(),
            wanted,
            skip,
            sorter: None,
            keys: Vec::new(),
            ends: Vec::new(),
            expected: Vec::new(),
            order: Vec::new(),
            at: 0,
            reading: false,
            ended: false,
            before: 0,
            passed: 0,
            batch: 0,
            gathered: 0,
            read: 0,
            share: Share::default(),
        })
    }

    /// Whether it is between two reads of records, so that it may continue after a failed read.
    pub(super) fn is_reading(&self) -> bool {
        self.reading
    }

    fn key(&self, n: usize) -> &[u8] {
        nth(&self.keys, &self.ends, n)
    }

    /// Whether another key goes into the round.
    fn may_gather(&mut self) -> bool {
        let (many, bytes) = (self.ends.len(), self.keys.len());
        if many >= ROUND || bytes >= ROUND_BYTES {
            return false;
        }
        let held = bytes + many * (size_of::<Expected>() + 2 * size_of::<u32>());
        many == 0 || !many.is_multiple_of(ASK) || self.share.fits(held)
    }

    /// Adds a key; `entry` is the part of the index entry before it.
    fn push(&mut self, index: &Index, entry: &[u8], record_key: &[u8]) -> Result<()> {
        self.keys.extend_from_slice(record_key);
        self.ends.push(self.keys.len() as u32);
        self.gathered += 1;
        match &self.known {
            Known::Zones(..) => {}
            Known::RecordKey(flip) => self.expected.push(Expected::of(record_key, *flip)),
            Known::Field(at, flip) => {
                let key = field(index, entry, *at)?;
                self.expected.push(Expected::of(key, *flip));
            }
        }
        Ok(())
    }

    /// Orders the gathered keys, and drops those that are certainly skipped. `whole`: every key is
    /// a result.
    fn arrange(&mut self, ctx: &OpCtx, sequence: u64, disk_use: bool, whole: bool) {
        if let Known::Zones(index, descending) = &self.known {
            let mut expected = std::mem::take(&mut self.expected);
            while expected.len() < self.ends.len() {
                let from = expected.len();
                let some = (from..self.ends.len()).take(LOOKUP).map(|n| self.key(n));
                if index
                    .zones
                    .expect(sequence, some, *descending, &mut expected)
                    .is_none()
                {
                    // The zone map was given up meanwhile: nothing is known.
                    expected.resize_with(self.ends.len(), Expected::anything);
                }
            }
            self.expected = expected;
        }
        let expected = &self.expected;
        let best = |n: u32| expected[n as usize].best.as_slice();
        let worst = |n: u32| expected[n as usize].worst.as_slice();
        let mut order = by_key((0..self.ends.len() as u32).map(|n| (n, best(n))), best);
        if whole && self.ended && self.before == 0 {
            // The highest possible rank of a record. If it is within the skipped ranks, the record
            // is certainly skipped.
            let place = |n: u32| order.partition_point(|other| best(*other) <= worst(n)) as u64;
            let certain: SmallVec<[bool; 64]> = order
                .iter()
                .take(usize::try_from(self.skip).unwrap_or(usize::MAX))
                .map(|n| place(*n) <= self.skip)
                .collect();
            let mut at = 0;
            order.retain(|_| {
                at += 1;
                !certain.get(at - 1).copied().unwrap_or(false)
            });
            self.passed = certain.iter().filter(|c| **c).count() as u64;
        }
        (self.order, self.at, self.batch) = (order, 0, 0);
        self.sorter.get_or_insert_with(|| {
            let limit = usize::try_from(self.wanted - self.passed.min(self.wanted));
            let limit = limit.unwrap_or(usize::MAX).max(1);
            Box::new(Sorter::new(
                ctx,
                self.pattern.clone(),
                Some(limit),
                disk_use,
            ))
        });
        self.reading = true;
    }

    /// The end, in `order`, of the next records to read.
    fn until(&mut self, whole: bool) -> usize {
        let room = self.sorter.as_ref().map_or(0, |s| s.room());
        let rest = self.order.len() - self.at;
        let most = match room {
            // The sort is full: read up to a whole batch.
            0 => FETCH_BATCH,
            // When not all records pass the filter, the batch grows.
            _ if !whole => room.max(self.batch * 2).min(FETCH_BATCH),
            _ => room.min(FETCH_BATCH),
        };
        let most = most.min(rest);
        let last = self.sorter.as_ref().and_then(|s| s.last_key());
        let n = match last {
            None => most,
            Some(last) => {
                let may_come = |n: &u32| {
                    let expected = self.expected.get(*n as usize);
                    expected.is_none_or(|e| e.best.as_slice() <= last)
                };
                let some = &self.order[self.at..self.at + most];
                some.iter().take_while(|n| may_come(n)).count()
            }
        };
        self.batch = n;
        self.at + n
    }

    /// To the next round.
    fn again(&mut self) {
        self.before += self.ends.len() as u64;
        self.keys.clear();
        self.ends.clear();
        self.expected.clear();
        self.order.clear();
        self.at = 0;
        self.reading = false;
    }
}

fn known(coll: &Collection, plan: &Plan, pattern: &SortPattern, sequence: u64) -> Option<Known> {
    let Access::Index(access) = &plan.access else {
        return None;
    };
    if plan.covered || access.dedup || pattern.has_meta() {
        return None;
    }
    let sorted = pattern.fields.first()?;
    let scanned = &coll.index(access.index)?.info;
    let fields = scanned.key.fields.iter();
    let of_index = fields.enumerate().find(|(i, f)| {
        f.kind == FieldKind::Ordered
            && f.path == sorted.path
            && !Multikey(scanned.multikey).field(*i)
    });
    if let Some((at, f)) = of_index
        && scanned.key.collation() == pattern.collation()
    {
        return Some(Known::Field(at, f.descending != sorted.descending));
    }
    let by_id = sorted.path.first() == "_id" && !sorted.path.is_dotted();
    if by_id && !coll.is_numbered() && pattern.collation().is_none() && coll.collation.is_none() {
        return Some(Known::RecordKey(sorted.descending));
    }
    let index = zones::telling(coll, pattern)?;
    let ready = index.zones.is_ready_for(sequence);
    ready.then(|| Known::Zones(index.clone(), sorted.descending))
}

/// Numbers ordered by their keys; with equal keys, in ascending order.
fn by_key<'k>(
    numbered: impl Iterator<Item = (u32, &'k [u8])> + Clone,
    key: impl Fn(u32) -> &'k [u8],
) -> Vec<u32> {
    let first = numbered.clone().next().map_or(&[][..], |(_, key)| key);
    let shared = numbered.clone().map(|(_, key)| alike(first, key)).min();
    let shared = shared.unwrap_or(0);
    // Nearly all comparisons are decided by these numbers.
    let mut order: Vec<(u64, u32)> = numbered.map(|(n, key)| (digest(key, shared), n)).collect();
    order.sort_unstable_by(|a, b| {
        let keys = || key(a.1).cmp(key(b.1));
        a.0.cmp(&b.0).then_with(keys).then(a.1.cmp(&b.1))
    });
    order.into_iter().map(|(_, n)| n).collect()
}

/// The `n`th of the concatenated keys.
fn nth<'k>(keys: &'k [u8], ends: &[u32], n: usize) -> &'k [u8] {
    let end = |n: usize| ends[n] as usize;
    let start = n.checked_sub(1).map_or(0, end);
    &keys[start..end(n)]
}

/// A field of an entry's key.
fn field<'e>(index: &Index, mut entry: &'e [u8], at: usize) -> Result<&'e [u8]> {
    let damaged = || crate::records::damaged_entry(index);
    for f in index.info.key.fields.iter().take(at) {
        let len = key::field_len(entry, f.descending).ok_or_else(damaged)?;
        entry = entry.get(len..).ok_or_else(damaged)?;
    }
    let descending = index.info.key.fields.get(at).is_some_and(|f| f.descending);
    let len = key::field_len(entry, descending).ok_or_else(damaged)?;
    entry.get(..len).ok_or_else(|| damaged().into())
}

/// After a sort of all records: notes how many reads a zone map might have saved.
pub(super) fn note_wasted(ctx: &OpCtx, coll: &Collection, plan: &Plan, sorter: &Sorter) {
    let Some(pattern) = &plan.sort else { return };
    let spare = match (&plan.access, sorter.limit()) {
        (Access::Index(a), Some(limit)) if !plan.covered && !a.dedup => {
            sorter.rows().saturating_sub(limit as u64)
        }
        _ => 0,
    };
    if spare > 0 {
        zones::wasted(ctx.engine, coll, pattern, spare);
    }
}

impl RecordStream {
    /// Sorts as far as results are wanted.
    pub(super) fn make_narrow(&mut self, ctx: &mut OpCtx, mut narrow: Box<TopK>) -> Result<()> {
        match self.sort_narrowly(ctx, &mut narrow) {
            Ok(sorted) => {
                self.passed = narrow.passed;
                self.source = Source::Sorted(sorted);
                Ok(())
            }
            Err(e) => {
                self.order = Order::Narrow(narrow);
                Err(e)
            }
        }
    }

    fn sort_narrowly(&mut self, ctx: &mut OpCtx, narrow: &mut TopK) -> Result<Sorted> {
        let whole = self.plan.residual.is_trivial();
        loop {
            if !narrow.reading {
                if narrow.gathered == 0 {
                    narrow.share = ctx.engine.stage_memory.share();
                }
                self.gather(ctx, narrow)?;
                narrow.arrange(ctx, self.view.sequence(), self.disk_use, whole);
            }
            loop {
                let until = narrow.until(whole);
                if until == narrow.at {
                    break;
                }
                self.read_until(ctx, narrow, until)?;
            }
            if narrow.ended {
                break;
            }
            narrow.again();
        }
        let spared = narrow.gathered.saturating_sub(narrow.read);
        ctx.engine.zones.spare(spared);
        if let Known::Zones(index, _) = &narrow.known
            && whole
        {
            let wanted = (narrow.wanted - narrow.passed.min(narrow.wanted)) as usize;
            let entries = ctx.engine.store.counts(self.coll.tablet).0;
            let (gathered, read) = (narrow.gathered, narrow.read);
            index.zones.used(gathered, read, wanted, entries);
        }
        self.lost = true;
        let Some(sorter) = narrow.sorter.take() else {
            return Err(Error::internal("a sort has no order").into());
        };
        (self.sort_bytes, self.sort_rows) = (sorter.peak_bytes(), sorter.rows());
        let sorted = sorter.finish(ctx)?;
        self.lost = false;
        Ok(sorted)
    }

    fn gather(&mut self, ctx: &mut OpCtx, narrow: &mut TopK) -> Result<()> {
        let Source::Index(scan) = &mut self.source else {
            return Err(Error::internal("a narrow sort reads no index").into());
        };
        while !narrow.ended && narrow.may_gather() {
            let mut step = step!(self);
            match scan.next_entry(ctx, &mut step) {
                Ok(true) => narrow.push(scan.index(), &scan.key, step.record_key)?,
                Ok(false) => narrow.ended = true,
                Err(e) => {
                    scan.interrupted(&e);
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn read_until(&mut self, ctx: &mut OpCtx, narrow: &mut TopK, until: usize) -> Result<()> {
        while narrow.at < until {
            let some = &narrow.order[narrow.at..until];
            let keys: Vec<Vec<u8>> = some
                .iter()
                .map(|n| self.coll.record_key(narrow.key(*n as usize)))
                .collect();
            let refs: Vec<&[u8]> = keys.iter().map(|k| k.as_slice()).collect();
            ctx.tick(refs.len() as u32)?;
            let found = self.view.get_some(&refs)?;
            let some: SmallVec<[u32; FETCH_BATCH]> =
                some.iter().take(found.len()).copied().collect();
            narrow.at += found.len();
            narrow.read += found.len();
            self.examined.docs += found.len() as u64;
            self.lost = true;
            for (n, slice) in some.into_iter().zip(found) {
                let Some(slice) = slice else { continue };
                let record_key = nth(&narrow.keys, &narrow.ends, n as usize);
                let doc = records::stored(&self.coll, record_key, &slice)?;
                if !self.plan.residual.is_trivial()
                    && !test(&self.plan.residual, doc, self.vars.as_deref())?
                {
                    continue;
                }
                let seq = narrow.before + u64::from(n) + 1;
                if let Some(sorter) = &mut narrow.sorter {
                    let keep = sorter.may_keep(doc.len());
                    sorter.add_as(ctx, doc, record_key, keep, seq)?;
                }
            }
            self.lost = false;
        }
        Ok(())
    }
}
