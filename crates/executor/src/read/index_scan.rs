//! Scans: of records, and of an index with the fetch of what it points to.

use crate::op::OpCtx;
use crate::read::dedup::{Known, Seen};
use crate::read::multi_range::{KeyRange, Place, Several};
use crate::read::skip_scan::{SEEK, Skipping, record_at};
use crate::read::step::{Current, Step, checked};
use crate::records::{self, told, types};
use bson::key::Decoder;
use bson::{Val, Writer};
use catalog::keyspace;
use catalog::numbers::sequence_key;
use catalog::{Collection, Index};
use errors::{Error, Result};
use planner::{Bounds, IndexAccess};
use query::index_keys::{FieldKind, KeySet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use storage::{Direction, Scan, Slice, View};

/// Who has so many keys is remembered where documents are asked; as these become too many, only who has more.
const MANY: usize = 16;
/// How many records an index scan fetches at once, at most.
const FETCH_BATCH: usize = 64;

/// A range of the keyspace and where a scan of it stands; survives letting go of the scan.
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

    /// The ranges of the keyspace that bounds of an index mean, ascending.
    pub(crate) fn ranges(index: &Index, bounds: &Bounds) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Bounds::Ranges(ranges) = bounds;
        ranges
            .iter()
            .map(|(low, high)| {
                let high = if high.is_empty() {
                    keyspace::prefix_end(&index.prefix)
                } else {
                    keyspace::join(&index.prefix, high)
                };
                (keyspace::join(&index.prefix, low), high)
            })
            .collect()
    }

    pub(crate) fn next(&mut self, view: &View) -> Result<bool> {
        let scan = self
            .scan
            .get_or_insert_with(|| view.scan(&self.low, &self.high, self.direction));
        scan.next()
    }

    /// To the first entry at or behind `key`, within the range; in reverse, at or before it.
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

    /// Drops the scan; the next one starts behind this key, or where it did if there is none.
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

    /// Drops the scan; the next one starts behind where it stood.
    pub(crate) fn release(&mut self) {
        // Where it is not on an entry it is at the end, behind which nothing is left, or has not begun.
        let on = self.scan.as_ref().filter(|scan| scan.valid());
        self.rewind(on.map(|scan| scan.key().to_vec()));
    }
}

pub(crate) struct RecordScan {
    position: Position,
    done: bool,
}

impl RecordScan {
    pub(crate) fn new(coll: &Collection, low: &[u8], high: &[u8], reverse: bool) -> RecordScan {
        let p = &coll.record_prefix;
        // The oldest of a capped collection is not where the prefix begins, but behind all that were removed.
        let first = coll.capped.as_ref().map(|c| c.tail.settled_first());
        let first = first.map(sequence_key).unwrap_or_default();
        let low = match coll.capped {
            Some(_) => low.max(&first),
            None => low,
        };
        let high = if high.is_empty() {
            keyspace::prefix_end(p)
        } else {
            keyspace::join(p, high)
        };
        RecordScan {
            position: Position::new(keyspace::join(p, low), high, reverse),
            done: false,
        }
    }

    pub(crate) fn next(&mut self, view: &View) -> Result<bool> {
        if self.done {
            return Ok(false);
        }
        let more = self.position.next(view)?;
        self.done = !more;
        Ok(more)
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

/// Records gathered and not yet given, in order; the buffers are used again for the next batch.
#[derive(Default)]
struct Ready {
    /// The records' keys one after the other, and where each ends.
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// Those that are fetched, of which the first is the one to be given next: not all at once where they are long.
    /// `None`: gone, which cannot be with one snapshot.
    found: VecDeque<Option<Slice>>,
    /// The index keys of those of which only the document tells whether they are given, and which they are.
    undecided: VecDeque<(usize, Vec<u8>)>,
    /// The next one to be given.
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

    /// The next record that is there: which it is, and the document.
    fn next(&mut self, view: &View) -> Result<Option<(usize, Slice)>> {
        while self.at < self.len() {
            let Some(found) = self.found.pop_front() else {
                let keys: SmallVec<[&[u8]; 32]> =
                    (self.at..self.len()).map(|at| self.key(at)).collect();
                let found = view.get_some(&keys)?;
                drop(keys);
                self.found = found.into();
                continue;
            };
            self.at += 1;
            if let Some(slice) = found {
                return Ok(Some((self.at - 1, slice)));
            }
        }
        Ok(None)
    }

    /// The index key of one that is undecided.
    fn undecided(&mut self, at: usize) -> Option<Vec<u8>> {
        while self.undecided.front().is_some_and(|(n, _)| *n < at) {
            self.undecided.pop_front();
        }
        let here = self.undecided.front().is_some_and(|(n, _)| *n == at);
        let next = here.then(|| self.undecided.pop_front())?;
        next.map(|(_, key)| key)
    }
}

/// Where a step of an index scan ended.
enum Found {
    End,
    Entry,
    /// At an entry that is given if none of the document's others comes before it.
    Undecided,
}

/// Scans ranges of an index, tests what the key can tell, fetches in batches.
///
/// A document may have several keys in the bounds, and is given where the scan meets the first of them. Which records were
/// given is remembered while that is little; past that the document tells its keys. The two agree at every entry, so that
/// nothing has to be remembered then: only records of many keys are, which would be asked at each of them.
pub(crate) struct IndexScan {
    index: Arc<Index>,
    access: Arc<IndexAccess>,
    covered: bool,
    /// Those that are not begun, unless they are several.
    ranges: VecDeque<KeyRange>,
    position: Option<Position>,
    several: Option<Box<Several>>,
    /// Where later fields have bounds, or one entry of each value is wanted.
    skipping: Option<Box<Skipping>>,
    seen: Seen,
    /// Documents are asked, and who has at least so many keys is remembered.
    many: Option<usize>,
    /// Of the document that is asked.
    keys: Option<Box<KeySet>>,
    ready: Ready,
    /// How many results are wanted at most, skipped ones included.
    limit: Option<u64>,
    /// How many to gather before the next fetch.
    batch: usize,
    /// The index part of the current entry's key, for merging.
    pub(crate) key: Vec<u8>,
    /// All that follows the prefix in the key of the last entry of the current range that was given.
    last: Vec<u8>,
    done: bool,
    /// After an error: nothing was lost to it.
    sound: bool,
}

impl IndexScan {
    pub(crate) fn new(
        index: Arc<Index>,
        access: &Arc<IndexAccess>,
        covered: bool,
        limit: Option<u64>,
    ) -> IndexScan {
        // One entry of each value may be another's document than the one that comes first.
        debug_assert!(!access.dedup || access.distinct.is_none());
        let mut ranges: VecDeque<_> = Position::ranges(&index, &access.bounds).into();
        let several = Several::of(&mut ranges, access.reverse);
        let (several, position) = match several {
            None => (None, None),
            Some((several, (low, high))) => (
                Some(Box::new(several)),
                Some(Position::new(low, high, access.reverse)),
            ),
        };
        IndexScan {
            index,
            access: access.clone(),
            covered,
            ranges,
            position,
            several,
            skipping: Skipping::new(access),
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
        }
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// To the next entry that is given; its record key goes into `record_key`. Reads documents only where they have to be asked.
    pub(crate) fn next_entry(&mut self, ctx: &mut OpCtx, step: &mut Step) -> Result<bool> {
        loop {
            match self.find(ctx, step)? {
                Found::End => return Ok(false),
                Found::Entry => return Ok(true),
                Found::Undecided => {}
            }
            ctx.tick(1)?;
            step.examined.docs += 1;
            let found = step.view.get(&step.coll.record_key(step.record_key))?;
            let key = std::mem::take(&mut self.key);
            if let Some(doc) = found
                && self.is_first(ctx, &doc, step.record_key, &key)?
            {
                self.key = key;
                return Ok(true);
            }
        }
    }

    /// To the next entry that passes the key's own tests.
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

    /// Stands in a range; false when there is none left.
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

    /// To the range's next entry; false at its end.
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
                    // It counts as what it costs.
                    ctx.tick(SEEK)?;
                    step.examined.seeks += 1;
                }
                s.advance(position, step.view, &self.index)
            }
        }
    }

    /// Whether the entry lies in one of several ranges that are read as one.
    #[inline]
    fn is_inside(&mut self) -> bool {
        let (Some(several), Some(position)) = (&mut self.several, &self.position) else {
            return true;
        };
        let place = several.place(position.key());
        // What was sought in the range before is no matter in the next.
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

    /// Takes the entry, if its key passes its tests and its record was not given already.
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
        let (record, types) = told(&self.index, rest, at, position.value())?;
        if !self.access.key_filter.is_empty() && !passes(&self.index, &self.access, rest, types)? {
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

    /// Whether no other key of a document comes before this one, of those that the scan lets in.
    fn is_first(&mut self, ctx: &OpCtx, doc: &[u8], record_key: &[u8], key: &[u8]) -> Result<bool> {
        let info = &self.index.info;
        let keys = self.keys.get_or_insert_default();
        let doc = checked(doc);
        info.key.extract(doc, info.sparse, keys)?;
        let before = |other: &[u8]| match self.access.reverse {
            false => other < key,
            true => other > key,
        };
        // What `key_filter` tests goes through no array: it holds for all of them, as it does for this one.
        let mut others = keys.iter().map(|(other, _)| other);
        let first = !others.any(|k| before(k) && self.access.holds(&info.key.fields, k));
        // Either it is given now or it was.
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
            while let Some((at, slice)) = self.ready.next(step.view)? {
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
                    // In another run, and perhaps on another thread, it gives these and goes on behind them.
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
            // More than is wanted is never fetched, however often it is interrupted.
            self.batch = match gathered {
                Ok(()) => (self.batch * 2).min(FETCH_BATCH),
                Err(_) => self.batch.saturating_sub(n).max(1),
            };
            gathered?;
            ctx.tick(n as u32)?;
        }
    }

    /// After [`IndexScan::next_entry`] failed with this: whether it may be called again is then for [`IndexScan::can_go_on`] to tell.
    pub(crate) fn interrupted(&mut self, e: &Error) {
        self.sound = self.can_rewind(e);
    }

    /// Whether [`IndexScan::next`], having failed for want of reads or time, may be called again.
    pub(crate) fn can_go_on(&self) -> bool {
        self.sound
    }

    /// Sees to it that the next entry is looked for behind the last one, after `find` has failed with this.
    fn can_rewind(&mut self, e: &Error) -> bool {
        if !e.is_for_disk() {
            // It did not begin to move.
            return e.is_offload();
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

    /// Told when `n` of the results were passed over: no more is fetched than is still wanted.
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
fn passes(index: &Index, access: &IndexAccess, key: &[u8], types: &[u8]) -> Result<bool> {
    let mut d = Decoder::new(key, types);
    for (i, f) in index.info.key.fields.iter().enumerate() {
        let v = d
            .field(f.descending)
            .ok_or_else(|| Error::internal("an index entry does not decode"))?;
        let v = v.as_ref().map_or(Val::NULL, |v| v.as_val());
        if access
            .key_filter
            .iter()
            .any(|(n, t)| *n == i && !t.matches_value(v))
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes `fields` (dotted paths, in index order) as a document, fields of one parent together; missing ones are left out.
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
