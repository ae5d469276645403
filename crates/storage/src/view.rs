//! Reading: consistent views, gets that pin instead of copy, scans.
//!
//! Everything here owns what it needs and keeps the engine open: a view, a value or a scan may be
//! kept and moved to another thread at will. The raw pointers are the engine's; each is destroyed
//! exactly once, by the type that wraps it, and always before the reference to the engine that
//! stands behind it in the struct is let go.

use crate::batched_read::{self, FinishedReads};
use crate::bounded_iterator::ScanOptions;
use crate::empty_stretches::EmptyStretches;
use crate::engine::{Engine, check_read};
use crate::engine_scan::EngineScan;
use crate::family::Family;
use crate::ghost_list::blocks_that_came;
use crate::nonblocking_read::{self, Noting};
use crate::record_cache::{Row, is_record};
use crate::write_set::{Bytes, MergedScan, WriteSet};
use errors::{Error, Result, Stop, Suspension, err};
use rocksdb_sys as ffi;
use smallvec::SmallVec;
use std::ffi::c_char;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

const TIER_BLOCK_CACHE: i32 = 1;
const TIER_PERSISTED: i32 = 2;

/// The engine's read options; constant once they are shared.
pub(crate) struct ReadOptions(*mut ffi::rocksdb_readoptions_t);

// SAFETY: only read after they were set up.
unsafe impl Send for ReadOptions {}
unsafe impl Sync for ReadOptions {}

impl ReadOptions {
    pub fn new() -> ReadOptions {
        // SAFETY: plain allocation.
        ReadOptions(unsafe { ffi::rocksdb_readoptions_create() })
    }

    pub fn raw(&self) -> *mut ffi::rocksdb_readoptions_t {
        self.0
    }

    /// Reads only what would survive a crash at this moment.
    pub fn persisted_only(&self) {
        // SAFETY: our own options, not shared yet.
        unsafe { ffi::rocksdb_readoptions_set_read_tier(self.0, TIER_PERSISTED) }
    }

    pub fn of(snapshot: *const ffi::rocksdb_snapshot_t, cached: bool) -> ReadOptions {
        let options = ReadOptions::new();
        // SAFETY: our own options; the snapshot outlives them in the same struct.
        unsafe {
            if !snapshot.is_null() {
                ffi::rocksdb_readoptions_set_snapshot(options.0, snapshot);
            }
            if cached {
                ffi::rocksdb_readoptions_set_read_tier(options.0, TIER_BLOCK_CACHE);
            }
        }
        options
    }
}

impl Drop for ReadOptions {
    fn drop(&mut self) {
        // SAFETY: made by `new`.
        unsafe { ffi::rocksdb_readoptions_destroy(self.0) }
    }
}

/// The least number of keys whose rows are prefetched.
const PREFETCHED: usize = 4;
/// The limit of the values that one call reads together, in bytes; the last value may exceed it.
pub const SOME_BYTES: usize = 256 << 10;
/// The most keys in one batched get. So many values may be long even when the ones before were
/// short.
const LARGEST_BATCH: usize = 32;
/// The least number of keys for which a batched get may be cheaper than single gets.
const BATCHED: usize = 4;

/// Keys count as dense when on average so many of them lie in each block that has to be read.
const DENSE: usize = 4;
/// After a dense batch, the next so many batches are assumed to be dense.
const DENSE_BATCHES: u32 = 15;

/// Whether keys, in the given order, are likely to lie in the same blocks: when nearly all rise or
/// nearly all fall, as ids from an index on a date do. (Ids under one value of an index rise too,
/// and may lie anywhere.) For such keys a batched get searches each block once, and reads adjacent
/// blocks together. Where each key lies in a block of its own, a batched get is dearer than single
/// gets, because it copies what it reads from the disk.
fn lie_together(keys: &[&[u8]]) -> bool {
    let steps = keys.len().saturating_sub(1);
    let rising = keys.windows(2).filter(|pair| pair.is_sorted()).count();
    keys.len() >= BATCHED && rising.min(steps - rising) <= steps / 4
}

/// The order of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// The state that a view shows.
pub(crate) struct ViewState {
    engine: Arc<Engine>,
    /// Null: the newest state at each read.
    snapshot: *const ffi::rocksdb_snapshot_t,
    /// The engine's sequence number of the snapshot; `u64::MAX` without one.
    sequence: u64,
    /// The snapshot holds the writes up to this one; see `dead_ranges`.
    writes: u64,
    /// Where its scans have found nothing, if it has a snapshot.
    empty: EmptyStretches,
    any: OnceLock<ReadOptions>,
    cached: OnceLock<ReadOptions>,
    /// How many of the next batches are assumed to be dense.
    dense: AtomicU32,
    /// The value that `dense` was last set to.
    sure: AtomicU32,
}

// SAFETY: a snapshot is an immutable object of the database; the options are constant.
unsafe impl Send for ViewState {}
unsafe impl Sync for ViewState {}

impl ViewState {
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Null: the newest state at each read.
    pub fn snapshot(&self) -> *const ffi::rocksdb_snapshot_t {
        self.snapshot
    }

    /// Where its scans have found nothing; nothing is noted there without a snapshot.
    pub fn empty(&self) -> &EmptyStretches {
        &self.empty
    }

    /// Whatever is read from now on holds the writes up to this one.
    pub fn writes_seen(&self) -> u64 {
        match self.snapshot.is_null() {
            true => self.engine.dead().ended(),
            false => self.writes,
        }
    }

    /// A sequence number at which a value that was just found certainly existed.
    fn seen(&self) -> u64 {
        match self.snapshot.is_null() {
            true => self.engine.sequence(),
            false => self.sequence,
        }
    }

    /// Learns from a batch of keys that seemed to lie together: how many blocks came from the page
    /// cache (`came`), and how many disk reads the uncached keys needed. Where all were cached,
    /// which says nothing about the next batch, more batches are assumed to be dense each time.
    fn learn(&self, keys: usize, came: usize, lacking: usize, reads: usize) {
        let batches = match (came, lacking) {
            (0, 0) => (self.sure.load(Ordering::Relaxed) * 2).clamp(1, DENSE_BATCHES),
            _ if (came + reads) * DENSE <= keys && (lacking == 0 || reads > 0) => DENSE_BATCHES,
            _ => 0,
        };
        self.sure.store(batches, Ordering::Relaxed);
        self.dense.store(batches, Ordering::Relaxed);
    }

    /// Whether the next batch is assumed to be dense; asked once for each batch.
    fn next_is_dense(&self) -> bool {
        let left = self.dense.load(Ordering::Relaxed);
        self.dense.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }
}

impl Drop for ViewState {
    fn drop(&mut self) {
        if !self.snapshot.is_null() {
            // SAFETY: made from this database, released once.
            unsafe { ffi::rocksdb_release_snapshot(self.engine.raw(), self.snapshot) }
        }
    }
}

/// A consistent state of the keyspace. Cheap to clone. A view keeps its state alive.
#[derive(Clone)]
pub struct View {
    shown: Arc<ViewState>,
    cached_only: bool,
    /// A transaction's own writes over the state.
    overlay: Option<Arc<Overlay>>,
}

/// A transaction's own writes, over the snapshot that it reads.
struct Overlay {
    /// What belongs to the snapshot and is not in the engine's. `writes` begin with it.
    base: WriteSet,
    writes: WriteSet,
    /// The newest state, to detect write conflicts: another writer has changed the key since the
    /// snapshot.
    newest: Option<View>,
}

impl Overlay {
    /// Whether the transaction has written the key itself.
    fn is_own(&self, key: &[u8]) -> bool {
        let Some(written) = self.writes.get(key) else {
            return false;
        };
        match (self.base.get(key), written) {
            (None, _) => true,
            (Some(None), None) => false,
            (Some(Some(base)), Some(written)) => !Arc::ptr_eq(base, written),
            (Some(_), _) => true,
        }
    }
}

impl View {
    pub(crate) fn snapshot(engine: &Arc<Engine>) -> View {
        // Before the snapshot, which then holds these writes.
        let writes = engine.dead().ended();
        // SAFETY: the engine's handle is valid; `ViewState` releases the snapshot.
        let (snapshot, sequence) = unsafe {
            let snapshot = ffi::rocksdb_create_snapshot(engine.raw());
            let sequence = ffi::rocksdb_snapshot_get_sequence_number(snapshot);
            (snapshot, sequence)
        };
        View::of(engine, snapshot, sequence, writes)
    }

    pub(crate) fn latest(engine: &Arc<Engine>) -> View {
        View::of(engine, ptr::null(), u64::MAX, 0)
    }

    pub(crate) fn into_shown(self) -> Arc<ViewState> {
        self.shown
    }

    fn of(
        engine: &Arc<Engine>,
        snapshot: *const ffi::rocksdb_snapshot_t,
        sequence: u64,
        writes: u64,
    ) -> View {
        View {
            shown: Arc::new(ViewState {
                engine: engine.clone(),
                snapshot,
                sequence,
                writes,
                empty: EmptyStretches::new(engine.dead().is_on()),
                any: OnceLock::new(),
                cached: OnceLock::new(),
                dense: AtomicU32::new(0),
                sure: AtomicU32::new(0),
            }),
            cached_only: false,
            overlay: None,
        }
    }

    /// The same state with a transaction's own writes over it.
    pub fn with_writes(&self, writes: WriteSet) -> View {
        self.with_overlay(WriteSet::default(), writes, None)
    }

    /// As [`View::with_writes`], for writing: [`View::check_first_writer`] and
    /// [`View::check_unchanged`] compare with `newest`. `base`: with what the writes began, because it
    /// belongs to the snapshot.
    pub fn for_writing(&self, base: WriteSet, writes: WriteSet, newest: View) -> View {
        self.with_overlay(base, writes, Some(newest))
    }

    fn with_overlay(&self, base: WriteSet, writes: WriteSet, newest: Option<View>) -> View {
        let overlay = Overlay {
            base,
            writes,
            newest,
        };
        View {
            overlay: Some(Arc::new(overlay)),
            ..self.clone()
        }
    }

    /// Whether the view includes a transaction's writes.
    pub fn has_writes(&self) -> bool {
        self.overlay.as_ref().is_some_and(|o| !o.writes.is_empty())
    }

    fn below(&self) -> View {
        View {
            overlay: None,
            ..self.clone()
        }
    }

    /// Fails with WriteConflict where another has changed `key` since the snapshot: the first
    /// writer wins. Only a view [for writing](View::for_writing) has something to compare with;
    /// what the transaction has written itself is its own.
    pub fn check_first_writer(&self, key: &[u8]) -> Result<()> {
        let Some(overlay) = &self.overlay else {
            return Ok(());
        };
        match &overlay.newest {
            Some(newest) if !overlay.is_own(key) => {
                let then = match overlay.base.get(key) {
                    Some(value) => value.map(Slice::of_written),
                    None => self.below().get(key)?,
                };
                match newest.get(key)?.as_deref() == then.as_deref() {
                    true => Ok(()),
                    false => Err(write_conflict().into()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Fails with WriteConflict where an entry of `[low, high)` is not what it was in the snapshot:
    /// for unique indexes, of a view [for writing](View::for_writing); any other has nothing to
    /// compare with.
    pub fn check_unchanged(&self, low: &[u8], high: &[u8]) -> Result<()> {
        let Some((base, newest)) = self
            .overlay
            .as_ref()
            .and_then(|o| Some((&o.base, o.newest.as_ref()?)))
        else {
            return Ok(());
        };
        let below = match base.is_empty() {
            true => self.below(),
            false => self.with_writes(base.clone()),
        };
        let mut then = below.scan(low, high, Direction::Forward);
        let mut now = newest.scan(low, high, Direction::Forward);
        loop {
            let (a, b) = (then.next()?, now.next()?);
            if a != b || then.key() != now.key() || then.value() != now.value() {
                return Err(write_conflict().into());
            }
            if !a {
                return Ok(());
            }
        }
    }

    /// The value under `key` as a transaction sees it.
    fn get_over(&self, overlay: &Overlay, key: &[u8]) -> Result<Option<Slice>> {
        if let Some(written) = overlay.writes.get(key) {
            return Ok(written.map(Slice::of_written));
        }
        self.below().get(key)
    }

    fn get_some_over(&self, overlay: &Overlay, keys: &[&[u8]]) -> Result<Vec<Option<Slice>>> {
        let (mut values, mut bytes) = (Vec::with_capacity(keys.len()), 0);
        for key in keys {
            let value = self.get_over(overlay, key)?;
            bytes += value.as_ref().map_or(0, |v| v.len());
            values.push(value);
            if bytes >= SOME_BYTES {
                break;
            }
        }
        Ok(values)
    }

    /// The same state, read from memory only: a read that would go to the disk stops with
    /// `Suspension::Read`.
    pub fn cached_only(&self) -> View {
        self.reading(true)
    }

    /// The same state, read from memory or disk.
    pub fn anywhere(&self) -> View {
        self.reading(false)
    }

    fn reading(&self, cached_only: bool) -> View {
        let overlay = self.overlay.as_ref().map(|o| match &o.newest {
            None => o.clone(),
            Some(newest) => Arc::new(Overlay {
                base: o.base.clone(),
                writes: o.writes.clone(),
                newest: Some(newest.reading(cached_only)),
            }),
        });
        View {
            shown: self.shown.clone(),
            cached_only,
            overlay,
        }
    }

    /// The engine's sequence number of the view; `u64::MAX`: always the newest.
    pub fn sequence(&self) -> u64 {
        self.shown.sequence
    }

    /// A scan that does not fill the cache: for large ranges that will not be read again soon.
    pub fn scan_once(&self, low: &[u8], high: &[u8]) -> Scan {
        let fill = false;
        self.scan_with(Family::of(low), low, high, Direction::Forward, fill)
    }

    pub fn is_cached_only(&self) -> bool {
        self.cached_only
    }

    fn options(&self) -> *mut ffi::rocksdb_readoptions_t {
        let shown = &*self.shown;
        // A thread that records misses reads through files that do not block.
        let slot = if self.cached_only && !nonblocking_read::active() {
            &shown.cached
        } else {
            &shown.any
        };
        slot.get_or_init(|| ReadOptions::of(shown.snapshot, ptr::eq(slot, &shown.cached)))
            .raw()
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Slice>> {
        if let Some(overlay) = &self.overlay {
            return self.get_over(overlay, key);
        }
        let engine = &*self.shown.engine;
        let Some(rows) = engine.rows().filter(|_| is_record(key)) else {
            return self.fetch(key);
        };
        let hash = rows.hash(key);
        if let Some(row) = rows.get(hash, key, self.shown.sequence) {
            return Ok(Some(Slice::of_row(row, key.len())));
        }
        // Before the read: a change in between must keep the row out.
        let sequence = self.shown.sequence.min(engine.sequence());
        let found = self.fetch(key)?;
        if let Some(value) = &found {
            rows.offer(hash, key, value, sequence, self.shown.seen());
        }
        Ok(found)
    }

    /// Whether there is a value under `key`; cheapest when there is none.
    pub fn exists(&self, key: &[u8]) -> Result<bool> {
        if let Some(overlay) = &self.overlay {
            return Ok(self.get_over(overlay, key)?.is_some());
        }
        Ok(self.fetch(key)?.is_some())
    }

    /// Reads from the engine.
    fn fetch(&self, key: &[u8]) -> Result<Option<Slice>> {
        let mut failure: *mut c_char = ptr::null_mut();
        let _noting = Noting::begin(self.cached_only);
        let rows = self.shown.engine.rows().filter(|_| is_record(key));
        let came = blocks_that_came();
        // SAFETY: database, options and key are valid during the call; the result is null or a
        // pinned slice, ours to destroy.
        let pinned = unsafe {
            ffi::rocksdb_get_pinned_cf(
                self.shown.engine.raw(),
                self.options(),
                self.shown.engine.families().of(key),
                key.as_ptr().cast(),
                key.len(),
                &mut failure,
            )
        };
        check_read(failure)?;
        if let Some(rows) = rows
            && blocks_that_came() != came
        {
            rows.lacked(key);
        }
        Ok(Slice::take(pinned, &self.shown.engine))
    }

    /// The values of the first of `keys`, in their order: at least one, until they reach
    /// [`SOME_BYTES`]. Fastest when the keys are sorted. Long values should not be held together:
    /// the caller asks again for the rest when it is done with these.
    pub fn get_some(&self, keys: &[&[u8]]) -> Result<Vec<Option<Slice>>> {
        if let Some(overlay) = &self.overlay {
            return self.get_some_over(overlay, keys);
        }
        let engine = &self.shown.engine;
        let Some(rows) = engine.rows() else {
            return self.fetch_some(keys, SOME_BYTES);
        };
        let hashes: SmallVec<[u64; 32]> = keys.iter().map(|key| rows.hash(key)).collect();
        if keys.len() >= PREFETCHED {
            rows.prefetch(&hashes);
        }
        let mut missing: SmallVec<[usize; 32]> = SmallVec::new();
        let mut values: Vec<Option<Slice>> = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        for (at, (key, &hash)) in keys.iter().zip(&hashes).enumerate() {
            let row = rows
                .get(hash, key, self.shown.sequence)
                .map(|row| Slice::of_row(row, key.len()));
            match &row {
                Some(row) => bytes += row.len(),
                None => missing.push(at),
            }
            values.push(row);
            if bytes >= SOME_BYTES {
                break;
            }
        }
        if missing.is_empty() {
            return Ok(values);
        }
        // Before the read: a change in between must keep the row out.
        let sequence = self.shown.sequence.min(engine.sequence());
        let asked: SmallVec<[&[u8]; 32]> = missing
            .iter()
            .filter_map(|at| keys.get(*at).copied())
            .collect();
        let found = self.fetch_some(&asked, SOME_BYTES.saturating_sub(bytes))?;
        if let Some(&next) = missing.get(found.len()) {
            values.truncate(next);
        }
        let since = self.shown.seen();
        for (at, found) in missing.into_iter().zip(found) {
            if let (Some(key), Some(hash), Some(value)) = (keys.get(at), hashes.get(at), &found)
                && is_record(key)
            {
                rows.offer(*hash, key, value, sequence, since);
            }
            if let Some(place) = values.get_mut(at) {
                *place = found;
            }
        }
        Ok(values)
    }

    /// Calls `each` with the position and value of every key that exists, in order, until it
    /// returns `false`. Only some values are held at a time.
    pub fn get_each(
        &self,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, &Slice) -> Result<bool>,
    ) -> Result<()> {
        let mut at = 0;
        while let Some(rest) = keys.get(at..).filter(|rest| !rest.is_empty()) {
            for value in self.get_some(rest)? {
                if let Some(value) = value
                    && !each(at, &value)?
                {
                    return Ok(());
                }
                at += 1;
            }
        }
        Ok(())
    }

    /// [`View::get_some`] from the engine, one by one or in batches; up to `most` bytes.
    fn fetch_some(&self, keys: &[&[u8]], most: usize) -> Result<Vec<Option<Slice>>> {
        // The engine's batched get always reads the disk, so a cached-only view uses single gets.
        if self.cached_only {
            return self.fetch_each(keys, most);
        }
        let together = lie_together(keys);
        // (A thread that records misses records one attempt at a time.)
        if keys.len() >= BATCHED
            && !(together && self.shown.next_is_dense())
            && !nonblocking_read::active()
            && batched_read::possible()
        {
            return self.fetch_ahead(keys, most, together);
        }
        if !together {
            return self.fetch_each(keys, most);
        }
        // A batched get cannot be stopped half-way, so its number of keys follows the lengths of
        // earlier values.
        let (mut values, mut bytes, mut longest, mut next) =
            (Vec::with_capacity(keys.len()), 0, 0, 1);
        while (bytes < most || values.is_empty())
            && let Some(rest) = keys.get(values.len()..).filter(|rest| !rest.is_empty())
        {
            let fit = most.saturating_sub(bytes) / usize::max(longest, 1);
            let batch = rest.get(..fit.clamp(1, next)).unwrap_or(rest);
            let found = match batch {
                [key] => vec![self.fetch(key)?],
                batch => self.fetch_batch(batch)?,
            };
            for value in found.iter().flatten() {
                bytes += value.len();
                longest = longest.max(value.len());
            }
            values.extend(found);
            next = (next * 16).min(LARGEST_BATCH);
        }
        Ok(values)
    }

    /// [`View::get_some`] from the engine, by single gets. After a cache miss the remaining keys
    /// are tried too, so that all misses are known at once.
    fn fetch_each(&self, keys: &[&[u8]], most: usize) -> Result<Vec<Option<Slice>>> {
        let mut values = Vec::with_capacity(keys.len());
        let (mut first, mut bytes) = (None, 0);
        for key in keys {
            match self.fetch(key) {
                Ok(value) => {
                    bytes += value.as_ref().map_or(0, |v| v.len());
                    values.push(value);
                }
                Err(e)
                    if matches!(e, Stop::Suspended(Suspension::Read))
                        && nonblocking_read::active() =>
                {
                    first = first.or(Some(e))
                }
                Err(e) => return Err(e),
            }
            if bytes >= most {
                break;
            }
        }
        first.map_or(Ok(values), Err)
    }

    /// [`View::get_some`] from the engine, with all disk reads batched. `together`: whether to
    /// learn how many of the keys lie in one block.
    fn fetch_ahead(
        &self,
        keys: &[&[u8]],
        most: usize,
        together: bool,
    ) -> Result<Vec<Option<Slice>>> {
        // Each key misses one read at a time.
        let keys = keys.get(..nonblocking_read::ROOM).unwrap_or(keys);
        let cached = self.cached_only();
        let mut found: Vec<Option<Option<Slice>>> = Vec::with_capacity(keys.len());
        found.resize_with(keys.len(), || None);
        let (mut brought, mut bytes) = (FinishedReads::default(), 0);
        let came = blocks_that_came();
        for round in 0..batched_read::ROUNDS {
            let blocks = brought.blocks();
            let mut lacking = 0;
            let (tried, missing) = nonblocking_read::without(&blocks, || {
                for (key, place) in keys.iter().zip(&mut found) {
                    if bytes >= most {
                        break;
                    }
                    if place.is_some() {
                        continue;
                    }
                    match cached.fetch(key) {
                        Ok(value) => {
                            bytes += value.as_ref().map_or(0, |v| v.len());
                            *place = Some(value);
                        }
                        Err(Stop::Suspended(Suspension::Read)) => lacking += 1,
                        Err(e) => return Err(e),
                    }
                }
                Ok(())
            });
            drop(blocks);
            tried?;
            if round == 0 && together {
                let came = blocks_that_came().wrapping_sub(came) as usize;
                self.shown.learn(keys.len(), came, lacking, missing.len());
            }
            if missing.is_empty() || bytes >= most || !brought.read(missing) {
                break;
            }
        }
        drop(brought);
        let mut values = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        for (key, found) in keys.iter().zip(found) {
            if bytes >= most && !values.is_empty() {
                break;
            }
            let value = match found {
                Some(value) => value,
                None => self.fetch(key)?,
            };
            bytes += value.as_ref().map_or(0, |v| v.len());
            values.push(value);
        }
        Ok(values)
    }

    /// Reads from the engine by one batched get.
    fn fetch_batch(&self, keys: &[&[u8]]) -> Result<Vec<Option<Slice>>> {
        let engine = &self.shown.engine;
        let family = keys.first().map_or(Family::Records, |key| Family::of(key));
        if keys.iter().any(|key| Family::of(key) != family) {
            return self.fetch_each(keys, usize::MAX);
        }
        let sorted = keys.is_sorted();
        let slices: SmallVec<[ffi::rocksdb_slice_t; 32]> = keys
            .iter()
            .map(|key| ffi::rocksdb_slice_t {
                data: key.as_ptr().cast(),
                size: key.len(),
            })
            .collect();
        let mut pinned: SmallVec<[*mut ffi::rocksdb_pinnableslice_t; 32]> =
            SmallVec::from_elem(ptr::null_mut(), keys.len());
        let mut failures: SmallVec<[*mut c_char; 32]> =
            SmallVec::from_elem(ptr::null_mut(), keys.len());
        // SAFETY: three arrays of `keys.len()`; the keys live during the call; what comes back is
        // ours to destroy or free.
        unsafe {
            ffi::rocksdb_batched_multi_get_cf_slice(
                engine.raw(),
                self.options(),
                engine.families().handle(family),
                keys.len(),
                slices.as_ptr(),
                pinned.as_mut_ptr(),
                failures.as_mut_ptr(),
                sorted,
            );
        }
        let mut values = Vec::with_capacity(keys.len());
        let mut outcome = Ok(());
        // All results are taken over, also after an error: each has to be freed.
        for (pinned, failure) in pinned.into_iter().zip(failures) {
            values.push(Slice::take(pinned, engine));
            outcome = check_read(failure).and(outcome);
        }
        outcome.map(|()| values)
    }

    /// A cursor over `[low, high)` (an empty `high`: no bound), before its first entry: call `next`
    /// or `seek`. It covers one column family, the one of `low`: a range never crosses spaces.
    pub fn scan(&self, low: &[u8], high: &[u8], direction: Direction) -> Scan {
        self.scan_of(Family::of(low), low, high, direction)
    }

    pub(crate) fn scan_of(
        &self,
        family: Family,
        low: &[u8],
        high: &[u8],
        direction: Direction,
    ) -> Scan {
        self.scan_with(family, low, high, direction, true)
    }

    /// `fill`: whether blocks that are read enter the cache.
    fn scan_with(
        &self,
        family: Family,
        low: &[u8],
        high: &[u8],
        direction: Direction,
        fill: bool,
    ) -> Scan {
        let options = ScanOptions {
            family,
            direction,
            cached_only: self.cached_only,
            fill,
        };
        let engine = EngineScan::new(&self.shown, options, low, high);
        let over = self.overlay.as_ref().filter(|o| !o.writes.is_empty());
        let over = over.map(|o| Box::new(MergedScan::new(o.writes.clone(), direction, low, high)));
        Scan { engine, over }
    }
}

/// A value, pinned in place without a copy.
pub struct Slice {
    data: *const u8,
    len: usize,
    _owner: Owner,
}

/// The owner that keeps a value's bytes in place.
enum Owner {
    Engine { _pinned: Pinned },
    Row { _row: Row },
    Written { _value: Bytes },
}

struct Pinned {
    slice: *mut ffi::rocksdb_pinnableslice_t,
    /// Pinned blocks belong to the engine's cache.
    _engine: Arc<Engine>,
}

// SAFETY: an immutable value; its destruction only touches the (thread-safe) cache.
unsafe impl Send for Slice {}
unsafe impl Sync for Slice {}

impl Slice {
    fn take(pinned: *mut ffi::rocksdb_pinnableslice_t, engine: &Arc<Engine>) -> Option<Slice> {
        if pinned.is_null() {
            return None;
        }
        let mut len = 0;
        // SAFETY: a valid pinned slice; its data stays where it is until it is destroyed.
        let data = unsafe { ffi::rocksdb_pinnableslice_value(pinned, &mut len) };
        Some(Slice {
            data: data.cast(),
            len,
            _owner: Owner::Engine {
                _pinned: Pinned {
                    slice: pinned,
                    _engine: engine.clone(),
                },
            },
        })
    }

    /// A value of a write set.
    fn of_written(value: &Bytes) -> Slice {
        Slice {
            data: value.as_ptr(),
            len: value.len(),
            _owner: Owner::Written {
                _value: value.clone(),
            },
        }
    }

    /// The value in a row of the record cache, which begins with its key.
    fn of_row(row: Row, key_len: usize) -> Slice {
        let value = &row[key_len..];
        Slice {
            data: value.as_ptr(),
            len: value.len(),
            _owner: Owner::Row { _row: row },
        }
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: see `take` and `of_row`; the owner keeps the bytes where they are, and nothing writes
        // them.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed once; the engine is still there.
        unsafe { ffi::rocksdb_pinnableslice_destroy(self.slice) }
    }
}

/// A cursor over a range: `while scan.next()? { scan.key() .. scan.value() }`.
pub struct Scan {
    engine: EngineScan,
    over: Option<Box<MergedScan>>,
}

impl Scan {
    /// To the next entry in the scan's direction (the first, when it is new); false at the end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<bool> {
        match &mut self.over {
            None => self.engine.next(),
            Some(over) => over.next(&mut self.engine),
        }
    }

    /// To the first entry at or after `key` in the scan's direction, within the bounds; false when
    /// there is none. A following `next` moves on from that entry.
    pub fn seek(&mut self, key: &[u8]) -> Result<bool> {
        match &mut self.over {
            None => self.engine.seek(key),
            Some(over) => over.seek(key, &mut self.engine),
        }
    }

    /// Whether it is on an entry.
    pub fn valid(&self) -> bool {
        match &self.over {
            None => self.engine.valid(),
            Some(over) => over.valid(),
        }
    }

    /// The key of the current entry; empty when there is none.
    #[inline]
    pub fn key(&self) -> &[u8] {
        match &self.over {
            None => self.engine.key(),
            Some(over) => over.written().map_or_else(|| self.engine_key(), |e| e.0),
        }
    }

    /// The value of the current entry; empty when there is none.
    #[inline]
    pub fn value(&self) -> &[u8] {
        match &self.over {
            None => self.engine.value(),
            Some(over) => match over.written() {
                Some((_, value)) => value,
                None if over.valid() => self.engine.value(),
                None => &[],
            },
        }
    }

    fn engine_key(&self) -> &[u8] {
        if self.valid() { self.engine.key() } else { &[] }
    }
}

/// Another writer has changed what the transaction would change.
pub fn write_conflict() -> Error {
    err!(
        WriteConflict,
        "Caused by :: Write conflict during plan execution and yielding is disabled. :: Please retry your operation or multi-document transaction."
    )
}

#[cfg(test)]
mod tests {
    use super::lie_together;

    #[test]
    fn keys_that_rise_or_fall_lie_together() {
        let together = |keys: &[u8]| {
            let keys: Vec<&[u8]> = keys.chunks(1).collect();
            lie_together(&keys)
        };
        assert!(together(&[1, 2, 3, 4]));
        assert!(together(&[4, 3, 2, 1]));
        assert!(together(&[5, 5, 5, 5]));
        // Dates that are a little out of order.
        assert!(together(&[1, 2, 4, 3, 5, 6, 7, 9, 8, 10]));
        assert!(!together(&[7, 2, 9, 4, 1, 8, 3, 6, 5, 10]));
        assert!(!together(&[1, 2, 4, 3]));
        // Too few to tell, and to gain anything.
        assert!(!together(&[1, 2, 3]));
        assert!(!together(&[1]));
        assert!(!together(&[]));
    }
}
