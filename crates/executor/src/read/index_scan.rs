//! Scans: of records, and of an index with the fetch of its records.

use crate::op::OpCtx;
use crate::read::dedup::{Known, Seen};
use crate::read::multi_range::{KeyRange, Place, RangesScan};
use crate::read::skip_scan::{SEEK, SkipScan, record_at};
use crate::read::step::{Current, Step, checked};
use crate::records::{self, key_and_types, types};
use bson::key::Decoder;
use bson::{Val, Writer};
use catalog::keyspace;
use catalog::numbers::sequence_key;
use catalog::{Collection, Index};
use errors::{Error, Result, Stop, Suspension, operation};
use planner::{Bounds, IndexAccess};
use query::filter::Filter;
use query::index_keys::{FieldKind, KeySet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use storage::{Direction, Scan, Slice, View};

/// Where documents decide, only records with at least so many keys are remembered; the number grows
/// when these become too many.
const MANY: usize = 16;
/// The most records that an index scan fetches at once.
const FETCH_BATCH: usize = 64;

/// The range of the keyspace for bounds behind a prefix; an empty `high` is the prefix's end.
pub(crate) fn behind(prefix: &keyspace::Prefix, low: &[u8], high: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let high = match high.is_empty() {
        true => keyspace::prefix_end(prefix),
        false => keyspace::join(prefix, high),
    };
    (keyspace::join(prefix, low), high)
}

/// A range of the keyspace and the position of a scan in it, which outlives the scan.
pub(crate) struct Position {
    low: Vec<u8>,
    high: Vec<u8>,
    direction: Direction,
    scan: Option<Scan>,
}

impl Position {
    pub(crate) fn new(low: Vec<u8>, high: Vec<u8>, reverse: bool) -> Position {
        let direction = if reverse {
            Direction::Backward
        } else {
            Direction::Forward
        };
        Position {
            low,
            high,
            direction,
            scan: None,
        }
    }

    /// The ranges of the keyspace for bounds of an index, ascending.
    pub(crate) fn ranges(index: &Index, bounds: &Bounds) -> Result<VecDeque<(Vec<u8>, Vec<u8>)>> {
        let Bounds::Ranges(ranges) = bounds;
        let step = |range| {
            operation::step()?;
            Ok(Position::range(index, range))
        };
        ranges.iter().map(step).collect()
    }

    /// One of them.
    pub(crate) fn range(index: &Index, (low, high): &(Vec<u8>, Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
        behind(&index.prefix, low, high)
    }

    pub(crate) fn next(&mut self, view: &View) -> Result<bool> {
        let scan = self
            .scan
            .get_or_insert_with(|| view.scan(&self.low, &self.high, self.direction));
        scan.next()
    }

    /// Moves to the first entry at or after `key` within the range; in reverse, at or before it.
    pub(crate) fn seek(&mut self, view: &View, key: &[u8]) -> Result<bool> {
        let scan = self
            .scan
            .get_or_insert_with(|| view.scan(&self.low, &self.high, self.direction));
        scan.seek(key)
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.scan.as_ref().expect("it is on an entry").key()
    }

    pub(crate) fn value(&self) -> &[u8] {
        self.scan.as_ref().expect("it is on an entry").value()
    }

    /// Drops the scan; the next one starts after this key, or at the old start if there is none.
    fn rewind(&mut self, last: Option<Vec<u8>>) {
        self.scan = None;
        match (last, self.direction) {
            (None, _) => {}
            (Some(mut last), Direction::Forward) => {
                last.push(0);
                self.low = last;
            }
            (Some(last), Direction::Backward) => self.high = last,
        }
    }

    /// Drops the scan; the next one starts after the current position.
    pub(crate) fn release(&mut self) {
        // A scan that is not on an entry is at its end, or has not begun.
        let on = self.scan.as_ref().filter(|scan| scan.valid());
        self.rewind(on.map(|scan| scan.key().to_vec()));
    }
}

pub(crate) struct RecordScan {
    position: Position,
    done: bool,
    hole: Option<KeyGap>,
    /// How many records of a hole are stepped over before a seek: the next hole is probably as long
    /// as the last one.
    patience: u32,
    /// Records stepped over since the last question whether to go on.
    passed: u64,
}

/// A range of keys whose records are not wanted, the second end excluded.
struct KeyGap {
    low: Vec<u8>,
    high: Vec<u8>,
    stepped: u32,
}

impl KeyGap {
    fn holds(&self, key: &[u8]) -> bool {
        self.low.as_slice() <= key && key < self.high.as_slice()
    }
}

impl RecordScan {
    pub(crate) fn new(coll: &Collection, low: &[u8], high: &[u8], reverse: bool) -> RecordScan {
        let p = &coll.record_prefix;
        // The oldest record of a capped collection lies after all that were removed, whose
        // tombstones a scan from the prefix would meet.
        let first = coll.capped.as_ref().map(|c| c.tail.settled_first());
        let first = first.map(sequence_key).unwrap_or_default();
        let low = match coll.capped {
            Some(_) => low.max(&first),
            None => low,
        };
        let (low, high) = behind(p, low, high);
        RecordScan {
            position: Position::new(low, high, reverse),
            done: false,
            hole: None,
            patience: 1,
            passed: 0,
        }
    }

    pub(crate) fn next(&mut self, view: &View) -> Result<bool> {
        if self.done {
            return Ok(false);
        }
        let more = match self.hole {
            None => self.position.next(view)?,
            Some(_) => self.next_beside(view)?,
        };
        self.done = !more;
        Ok(more)
    }

    /// From here on records with these keys (whole ones; `high` excluded) may be passed over, and no
    /// others.
    pub(crate) fn leave_out(&mut self, low: Vec<u8>, high: Vec<u8>) {
        let stepped = 0;
        self.hole = Some(KeyGap { low, high, stepped });
    }

    /// How many records the engine gave since the last call that were not wanted.
    pub(crate) fn take_passed(&mut self) -> u64 {
        std::mem::take(&mut self.passed)
    }

    /// To the next record that is not in the hole.
    fn next_beside(&mut self, view: &View) -> Result<bool> {
        loop {
            let Some(hole) = &mut self.hole else {
                return self.position.next(view);
            };
            let far = hole.stepped >= self.patience;
            let more = match (far, self.position.direction) {
                (false, _) => self.position.next(view)?,
                (true, Direction::Forward) => self.position.seek(view, &hole.high)?,
                (true, Direction::Backward) => self.position.seek(view, &hole.low)?,
            };
            if more && hole.holds(self.position.key()) {
                hole.stepped += 1;
                self.passed += 1;
                continue;
            }
            if hole.stepped > 0 {
                self.patience = match far {
                    true => (self.patience / 2).max(1),
                    false => (self.patience * 2).min(SEEK),
                };
                self.hole = None;
            }
            return Ok(more);
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.position.key()
    }

    pub(crate) fn value(&self) -> &[u8] {
        self.position.value()
    }

    pub(crate) fn release(&mut self) {
        self.position.release();
    }
}

/// Gathered records that were not given yet, in order; the buffers are reused for the next batch.
#[derive(Default)]
struct Ready {
    /// The records' keys, concatenated, and the end of each.
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// The fetched records; the first is given next. Long ones are not fetched all at once. `None`:
    /// there is no such record, and the index is damaged.
    found: VecDeque<Option<Slice>>,
    /// The index keys, with their positions, of records of which only the document decides whether
    /// they are given.
    undecided: VecDeque<(usize, Vec<u8>)>,
    /// The position of the next record to be given.
    at: usize,
}

impl Ready {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.ends.clear();
        self.found.clear();
        self.undecided.clear();
        self.at = 0;
    }

    fn push(&mut self, prefix: &[u8], record_key: &[u8]) {
        self.keys.extend_from_slice(prefix);
        self.keys.extend_from_slice(record_key);
        self.ends.push(self.keys.len());
    }

    fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[start..self.ends[at]]
    }

    /// The next record: its position and its document. A view shows an entry and its record, or
    /// neither: an entry whose record is missing is an error.
    fn next(&mut self, step: &Step, index: &Index) -> Result<Option<(usize, Slice)>> {
        while self.at < self.len() {
            let Some(found) = self.found.pop_front() else {
                let keys: SmallVec<[&[u8]; 32]> =
                    (self.at..self.len()).map(|at| self.key(at)).collect();
                let found = step.view.get_some(&keys)?;
                drop(keys);
                self.found = found.into();
                continue;
            };
            self.at += 1;
            let record = found
                .ok_or_else(|| records::missing_record(step.coll, index, self.key(self.at - 1)))?;
            return Ok(Some((self.at - 1, record)));
        }
        Ok(None)
    }

    /// The index key of an undecided record.
    fn undecided(&mut self, at: usize) -> Option<Vec<u8>> {
        while self.undecided.front().is_some_and(|(n, _)| *n < at) {
            self.undecided.pop_front();
        }
        let here = self.undecided.front().is_some_and(|(n, _)| *n == at);
        let next = here.then(|| self.undecided.pop_front())?;
        next.map(|(_, key)| key)
    }
}

/// The outcome of a step of an index scan.
enum Found {
    End,
    Entry,
    /// At an entry that is given if it is the first of the document's entries in this scan.
    Undecided,
}

/// Scans ranges of an index, tests what the key can decide, and fetches records in batches.
///
/// A document may have several keys in the bounds; it is given at the first of them. Given records
/// are remembered while they are few. Past that the document's keys decide. Both ways agree at
/// every entry. In the second way only records with many keys are remembered, because their
/// documents would be tested at each key.
pub(crate) struct IndexScan {
    index: Arc<Index>,
    access: Arc<IndexAccess>,
    covered: bool,
    /// The ranges that are not begun; empty with a multi-range scan.
    ranges: VecDeque<KeyRange>,
    position: Option<Position>,
    several: Option<Box<RangesScan>>,
    /// Present when later fields have bounds, or one entry of each value is wanted.
    skipping: Option<Box<SkipScan>>,
    seen: Seen,
    /// Set when documents decide: records with at least so many keys are remembered.
    many: Option<usize>,
    /// The keys of the document that decides.
    keys: Option<Box<KeySet>>,
    ready: Ready,
    /// The most results wanted, skipped ones included.
    limit: Option<u64>,
    /// The number of records to gather before the next fetch.
    batch: usize,
    /// The index part of the current entry's key, for merging.
    pub(crate) key: Vec<u8>,
    /// The key, without prefix, of the last given entry of the current range.
    last: Vec<u8>,
    done: bool,
    /// Whether an error has lost no result.
    sound: bool,
}

impl IndexScan {
    pub(crate) fn new(
        index: Arc<Index>,
        access: &Arc<IndexAccess>,
        covered: bool,
        limit: Option<u64>,
    ) -> Result<IndexScan> {
        // With one entry for each value, that entry need not be the document's first.
        assert!(!access.dedup || access.distinct.is_none());
        let mut ranges: VecDeque<_> = Position::ranges(&index, &access.bounds)?;
        let several = RangesScan::of(&mut ranges, access.reverse);
        let (several, position) = match several {
            None => (None, None),
            Some((several, (low, high))) => (
                Some(Box::new(several)),
                Some(Position::new(low, high, access.reverse)),
            ),
        };
        Ok(IndexScan {
            index,
            access: access.clone(),
            covered,
            ranges,
            position,
            several,
            skipping: SkipScan::new(access),
            seen: Seen::default(),
            many: None,
            keys: None,
            ready: Ready::default(),
            limit,
            batch: first_batch(limit),
            key: Vec::new(),
            last: Vec::new(),
            done: false,
            sound: false,
        })
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// The key of the entry that it stands on, without the index's prefix.
    pub(crate) fn at(&self) -> Option<&[u8]> {
        let scan = self.position.as_ref()?.scan.as_ref()?;
        scan.valid().then(|| records::own_part(scan.key()))
    }

    /// Whether records are gathered that [`IndexScan::next`] gives before anything else.
    pub(crate) fn has_gathered(&self) -> bool {
        self.ready.at < self.ready.len()
    }

    /// Moves to the next entry that is given, and puts its record key into `record_key`. Reads
    /// documents only where they must decide. Nothing may be gathered: that would be passed over.
    pub(crate) fn next_entry(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<bool> {
        assert!(!self.has_gathered(), "gathered records are given first");
        loop {
            match self.find(ctx, step)? {
                Found::End => return Ok(false),
                Found::Entry => return Ok(true),
                Found::Undecided => {}
            }
            ctx.tick(1)?;
            step.examined.docs += 1;
            let record_key = step.coll.record_key(step.record_key);
            let doc = (step.view.get(&record_key)?)
                .ok_or_else(|| records::missing_record(step.coll, &self.index, &record_key))?;
            let key = std::mem::take(&mut self.key);
            if self.is_first(ctx, &doc, step.record_key, &key)? {
                self.key = key;
                return Ok(true);
            }
        }
    }

    /// Moves to the next entry that passes the tests on its key.
    fn find(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Found> {
        loop {
            if !self.begin_range(step) {
                if self.access.dedup {
                    self.seen.forget();
                }
                return Ok(Found::End);
            }
            ctx.tick(1)?;
            if !self.advance(ctx, step)? {
                self.position = None;
                continue;
            }
            if !self.is_inside() {
                continue;
            }
            step.examined.keys += 1;
            if let Some(found) = self.take(ctx, step)? {
                return Ok(found);
            }
        }
    }

    /// Makes sure that a range is begun; false when none is left.
    #[inline]
    fn begin_range(&mut self, step: &mut Step) -> bool {
        if self.position.is_some() {
            return true;
        }
        let Some((low, high)) = self.ranges.pop_front() else {
            return false;
        };
        step.examined.seeks += 1;
        self.position = Some(Position::new(low, high, self.access.reverse));
        self.last.clear();
        if let Some(s) = &mut self.skipping {
            s.restart();
        }
        true
    }

    /// Moves to the range's next entry; false at its end.
    #[inline]
    fn advance(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<bool> {
        let Some(position) = &mut self.position else {
            return Ok(false);
        };
        let begin = self.several.as_mut().and_then(|s| s.target());
        if let Some(begin) = begin {
            step.examined.seeks += 1;
            return position.seek(step.view, begin);
        }
        match &mut self.skipping {
            None => position.next(step.view),
            Some(s) => {
                if s.seeks() {
                    // A seek counts by its cost.
                    ctx.tick(SEEK)?;
                    step.examined.seeks += 1;
                }
                s.advance(position, step.view, &self.index)
            }
        }
    }

    /// Whether the entry lies in one of the ranges of a multi-range scan.
    #[inline]
    fn is_inside(&mut self) -> bool {
        let (Some(several), Some(position)) = (&mut self.several, &self.position) else {
            return true;
        };
        let place = several.place(position.key());
        // A target in the previous range has no meaning in the next.
        if matches!(place, Place::Entered | Place::Outside)
            && let Some(s) = &mut self.skipping
        {
            s.restart();
        }
        if matches!(place, Place::Behind) {
            self.position = None;
        }
        matches!(place, Place::Inside | Place::Entered)
    }

    /// Takes the entry, if its key passes the tests and its record was not given before.
    #[inline]
    fn take(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Found>> {
        let Some(position) = &self.position else {
            return Ok(None);
        };
        let rest = records::own_part(position.key());
        let at = match &mut self.skipping {
            None => record_at(&self.index, rest)?,
            Some(s) => match s.admit(&self.index, rest)? {
                Some(at) => at,
                None => return Ok(None),
            },
        };
        let (record, types) = key_and_types(&self.index, rest, at, position.value())?;
        if !self.access.key_filter.is_empty()
            && !passes(&self.index, &self.access.key_filter, rest, types)?
        {
            return Ok(None);
        }
        let mut found = Found::Entry;
        if self.access.dedup {
            let known = match self.many {
                None => self.seen.add(ctx, record),
                Some(_) => self.seen.look(record),
            };
            match known {
                Known::Given => return Ok(None),
                Known::New if self.many.is_none() => {}
                _ => {
                    self.many.get_or_insert(MANY);
                    found = Found::Undecided;
                }
            }
        }
        if let Some(s) = &mut self.skipping
            && !s.given(&self.index, rest, types)
        {
            return Ok(None);
        }
        step.record_key.clear();
        step.record_key.extend_from_slice(record);
        self.key.clear();
        self.key.extend_from_slice(&rest[..at]);
        self.last.clear();
        self.last.extend_from_slice(rest);
        Ok(Some(found))
    }

    /// Whether this is the first of the document's keys that the scan admits.
    fn is_first(&mut self, ctx: &OpCtx, doc: &[u8], record_key: &[u8], key: &[u8]) -> Result<bool> {
        let info = &self.index.info;
        let keys = self.keys.get_or_insert_default();
        let doc = checked(doc);
        info.key.extract(doc, info.sparse, keys)?;
        let before = |other: &[u8]| match self.access.reverse {
            false => other < key,
            true => other > key,
        };
        // `key_filter` tests no multikey field, so it holds for all keys of the document alike.
        let mut others = keys.iter().map(|(other, _)| other);
        let first = !others.any(|k| before(k) && self.access.holds(&info.key.fields, k));
        // The record is given now, or was given before.
        if let Some(many) = &mut self.many
            && keys.len() >= *many
            && self.seen.add(ctx, record_key) == Known::Nothing
        {
            self.seen.restart();
            *many = many.saturating_mul(2);
        }
        Ok(first)
    }

    /// A document of the index's fields, from the current entry.
    fn build(&self) -> Result<Vec<u8>> {
        let position = self.position.as_ref().expect("it is on an entry");
        let types = types(&self.index, position.value())?;
        let mut d = Decoder::new(&self.key, types);
        let mut fields = Vec::with_capacity(self.index.info.key.fields.len());
        for f in &self.index.info.key.fields {
            let v = d
                .field(f.descending)
                .ok_or_else(|| Error::internal("an index entry does not decode"))?;
            let name = match (f.kind, &self.access.wildcard) {
                (FieldKind::Ordered, _) => f.path.as_str(),
                (FieldKind::Wildcard, Some(path)) => path.as_str(),
                _ => continue,
            };
            fields.push((name, v));
        }
        let mut w = Writer::new();
        nest(&mut w, &fields, 0);
        Ok(w.finish().into_vec())
    }

    pub(crate) fn next(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<Option<Current>> {
        if self.covered {
            if !self.next_entry(ctx, step)? {
                return Ok(None);
            }
            return Ok(Some(Current::Built(self.build()?)));
        }
        loop {
            self.sound = true;
            while let Some((at, slice)) = self.ready.next(step, &self.index)? {
                self.sound = false;
                let key = records::own_part(self.ready.key(at));
                records::stored(step.coll, key, &slice)?;
                step.record_key.clear();
                step.record_key.extend_from_slice(key);
                if let Some(key) = self.ready.undecided(at)
                    && !self.is_first(ctx, &slice, step.record_key, &key)?
                {
                    self.sound = true;
                    continue;
                }
                return Ok(Some(Current::Fetched(slice)));
            }
            if self.done {
                return Ok(None);
            }
            let mut batch = std::mem::take(&mut self.ready);
            batch.clear();
            let mut gathered = Ok(());
            while batch.len() < self.batch {
                match self.find(ctx, step) {
                    Ok(Found::End) => {
                        self.done = true;
                        break;
                    }
                    Ok(Found::Entry) => {}
                    Ok(Found::Undecided) => {
                        let at = batch.len();
                        batch.undecided.push_back((at, self.key.clone()));
                    }
                    // The next run, perhaps on another thread, gives these and continues after
                    // them.
                    Err(e) => {
                        self.sound = self.can_rewind(&e);
                        gathered = Err(e);
                        break;
                    }
                }
                batch.push(&step.coll.record_prefix, step.record_key);
            }
            let n = batch.len();
            self.ready = batch;
            step.examined.docs += n as u64;
            // Interruptions never cause more records to be fetched than are wanted.
            self.batch = match gathered {
                Ok(()) => (self.batch * 2).min(FETCH_BATCH),
                Err(_) => self.batch.saturating_sub(n).max(1),
            };
            gathered?;
            ctx.tick(n as u32)?;
        }
    }

    /// Called after [`IndexScan::next_entry`] failed with `e`; then [`IndexScan::can_go_on`] says
    /// whether it may be called again.
    pub(crate) fn interrupted(&mut self, e: &Stop) {
        self.sound = self.can_rewind(e);
    }

    /// Whether [`IndexScan::next`] may be called again after it failed for want of reads or time.
    pub(crate) fn can_go_on(&self) -> bool {
        self.sound
    }

    /// After `find` failed with `e`: makes the scan continue after the last given entry, if it can.
    fn can_rewind(&mut self, e: &Stop) -> bool {
        if !matches!(e, Stop::Suspended(Suspension::Read)) {
            // The scan did not move.
            return e.is_suspension();
        }
        if self.several.is_some() || self.skipping.is_some() {
            return false;
        }
        if let Some(position) = &mut self.position {
            let last = keyspace::join(&self.index.prefix, &self.last);
            position.rewind((!self.last.is_empty()).then_some(last));
        }
        true
    }

    /// Called when `n` results were skipped, so that no more is fetched than is still wanted.
    pub(crate) fn skipped(&mut self, n: u64) {
        self.limit = self.limit.map(|l| l.saturating_sub(n));
        self.batch = first_batch(self.limit);
    }

    pub(crate) fn release(&mut self) {
        self.ready.found.clear();
        self.keys = None;
        if let Some(p) = &mut self.position {
            p.release();
        }
    }
}

fn first_batch(limit: Option<u64>) -> usize {
    limit
        .map_or(16, |l| usize::try_from(l).unwrap_or(FETCH_BATCH))
        .clamp(1, FETCH_BATCH)
}

/// Whether an entry passes the tests on single fields of its key.
pub(crate) fn passes(
    index: &Index,
    tests: &[(usize, Filter)],
    key: &[u8],
    types: &[u8],
) -> Result<bool> {
    let mut d = Decoder::new(key, types);
    for (i, f) in index.info.key.fields.iter().enumerate() {
        let v = d
            .field(f.descending)
            .ok_or_else(|| Error::internal("an index entry does not decode"))?;
        let v = v.as_ref().map_or(Val::NULL, |v| v.as_val());
        if tests.iter().any(|(n, t)| *n == i && !t.matches_value(v)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes `fields` (dotted paths, in index order) as a document, grouped by parent; missing fields
/// are left out.
fn nest(w: &mut Writer, fields: &[(&str, Option<bson::Value>)], depth: usize) {
    let mut done: Vec<&str> = Vec::new();
    for (path, v) in fields {
        let part = path.split('.').next().unwrap_or("");
        if done.contains(&part) {
            continue;
        }
        done.push(part);
        if part.len() == path.len() {
            if let Some(v) = v {
                w.val(part, v.as_val());
            }
            continue;
        }
        let below: Vec<_> = fields
            .iter()
            .filter_map(|(p, v)| Some((p.strip_prefix(part)?.strip_prefix('.')?, v.clone())))
            .collect();
        if below.iter().any(|(_, v)| v.is_some()) && depth < bson::MAX_DEPTH {
            w.open_doc(part);
            nest(w, &below, depth + 1);
            w.close();
        }
    }
}
