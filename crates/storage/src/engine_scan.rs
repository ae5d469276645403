//! A scan of the engine alone: an iterator, or one after another where dead ranges lie in between.
//!
//! ```text
//! low ────────┬─ dead range ─┬─────────┬─ dead ─┬───────── high
//!   part      │  passed over │  part   │        │  part
//! ```
//!
//! Each part has an iterator with the part's bounds, so no marker in a dead range is stepped over,
//! wherever the scan comes from. What the scan steps over itself it counts; where that is much, it
//! notes the range as dead (see `dead_ranges`).
//!
//! A step over very many hidden keys pauses now and then, asks whether it may go on (see
//! `long_steps`), and goes on where it stopped.
//!
//! Invariant: all parts of a scan show one state. A view without a snapshot gets one before its
//! scan has a second part.

use crate::bounded_iterator::{BoundedIterator, ScanOptions, Stopped};
use crate::dead_ranges::{Bytes, DeadRanges, successor};
use crate::hidden_keys::{self, SkippedEntries};
use crate::long_steps;
use crate::nonblocking_read::Noting;
use crate::view::{Direction, View, ViewState};
use crate::write_set::UnderlyingScan;
use errors::{Error, Result, Stop, Suspension};
use std::sync::Arc;

/// A scan that steps over so many deleted keys in a row notes them.
const MANY: u64 = 16;
/// To pass a dead range costs about as much as to step over so many markers.
const COST_OF_PART: u64 = 4;

/// The processor by itself brings what lies close behind an entry, so only behind longer ones
/// something is prefetched.
const LONG: usize = 4 * LINE;
/// The size of a line of the processor's caches.
const LINE: usize = 64;
/// How many cache lines of the next entry are prefetched: its key, and as much of a document as most
/// queries look at.
const PREFETCHED_LINES: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    On,
    Done,
}

/// Where the stretch began that the scan is in: behind the entry that it gave last, or where it was
/// told to begin.
#[derive(Default)]
struct Stretch {
    /// Forward: the first key of it. Backward: the first key behind it.
    from: Vec<u8>,
    /// Markers of deleted keys that were stepped over.
    markers: u64,
    /// Dead ranges that were passed.
    passed: u64,
}

pub(crate) struct EngineScan {
    iterator: Option<BoundedIterator>,
    state: State,
    options: ScanOptions,
    /// The current entry, in the engine's memory; empty when there is none.
    key: *const [u8],
    value: *const [u8],
    low: Arc<[u8]>,
    /// Empty: no bound.
    high: Arc<[u8]>,
    /// Whether dead ranges are used and noted: its keys lie in one index.
    notes: bool,
    /// There are dead ranges between the parts: the place where the next part begins (backward:
    /// ends).
    parted: bool,
    beyond: Option<Bytes>,
    /// The state holds the writes up to this.
    seen: u64,
    stretch: Stretch,
    /// Hidden keys that it has stepped over.
    hidden: u64,
    shown: Arc<ViewState>,
}

// SAFETY: an iterator may be used by any one thread at a time.
unsafe impl Send for EngineScan {}

impl Drop for EngineScan {
    fn drop(&mut self) {
        if self.hidden > 0 {
            hidden_keys::count_of_all(self.hidden);
        }
    }
}

impl EngineScan {
    pub fn new(
        shown: &Arc<ViewState>,
        options: ScanOptions,
        low: &[u8],
        high: &[u8],
    ) -> EngineScan {
        let (low, high): (Arc<[u8]>, Arc<[u8]>) = (low.into(), high.into());
        let is_empty = !high.is_empty() && low >= high;
        let mut scan = EngineScan {
            iterator: None,
            state: if is_empty { State::Done } else { State::New },
            options,
            key: &[],
            value: &[],
            notes: !is_empty && DeadRanges::concern(&low, &high),
            parted: false,
            beyond: None,
            // Before the iterator takes its state.
            seen: shown.writes_seen(),
            stretch: Stretch::default(),
            hidden: 0,
            shown: shown.clone(),
            low,
            high,
        };
        if scan.notes && (scan.dead().any() || shown.empty().any()) {
            scan.look_for_parts();
        }
        if !scan.parted {
            let _noting = Noting::begin(options.cached_only);
            scan.iterator = Some(BoundedIterator::new(
                shown,
                options,
                scan.low.clone(),
                scan.high.clone(),
            ));
        }
        scan
    }

    fn dead(&self) -> &DeadRanges {
        self.shown.engine().dead()
    }

    fn backward(&self) -> bool {
        self.options.direction == Direction::Backward
    }

    /// The first range of `[low, high)`, or the last, in which nothing lives: known of all states, or
    /// of this snapshot only.
    fn first_dead(&self, low: &[u8], high: &[u8]) -> Option<(Bytes, Bytes)> {
        let backward = self.backward();
        let of_all = self.dead().first(low, high, self.seen, backward);
        let of_this = self.shown.empty().first(low, high, backward);
        match (of_all, of_this) {
            (Some(a), Some(b)) if backward => Some(if a.1 >= b.1 { a } else { b }),
            (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
            (a, b) => a.or(b),
        }
    }

    /// Sees whether dead ranges lie within the bounds.
    fn look_for_parts(&mut self) {
        if self.first_dead(&self.low, &self.high).is_none() {
            return;
        }
        if self.shown.snapshot().is_null() {
            self.shown = View::snapshot(self.shown.engine()).into_shown();
            self.seen = self.shown.writes_seen();
        }
        self.parted = true;
    }

    /// Goes to the part that begins at `from` (backward: ends before it), or behind the dead range
    /// there. False when there is none.
    fn begin_part(&mut self, from: &[u8]) -> bool {
        self.iterator = None;
        self.beyond = None;
        let mut from: Bytes = from.into();
        loop {
            let backward = self.backward();
            if backward && *from <= *self.low || !backward && *from >= *self.high {
                return false;
            }
            let dead = match backward {
                false => self.first_dead(&from, &self.high),
                true => self.first_dead(&self.low, &from),
            };
            let (low, high, beyond): (&[u8], &[u8], _) = match (&dead, backward) {
                (None, false) => (&from, &self.high, None),
                (None, true) => (&self.low, &from, None),
                (Some((low, high)), false) if *low <= from => {
                    self.stretch.passed += 1;
                    from = high.clone();
                    continue;
                }
                (Some((low, high)), true) if *high >= from => {
                    self.stretch.passed += 1;
                    from = low.clone();
                    continue;
                }
                (Some((low, high)), false) => (&from, low, Some(high.clone())),
                (Some((low, high)), true) => (high, &from, Some(low.clone())),
            };
            let iterator = BoundedIterator::new(&self.shown, self.options, low.into(), high.into());
            self.iterator = Some(iterator);
            self.beyond = beyond;
            return true;
        }
    }

    /// To the next entry in the scan's direction (the first, when it is new); false at the end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<bool> {
        let _noting = Noting::begin(self.options.cached_only);
        let direction = self.options.direction;
        let before = SkippedEntries::now();
        match self.state {
            State::Done => Ok(false),
            State::On => {
                if self.notes {
                    // SAFETY: the scan is on an entry, whose bytes stay until it moves.
                    let key = unsafe { &*self.key };
                    self.stretch.begin_behind(key, direction);
                }
                if let Some(iterator) = &mut self.iterator {
                    iterator.go_to_next(direction);
                }
                self.arrived(before, 1)
            }
            State::New => {
                let from = match direction {
                    Direction::Forward => self.low.clone(),
                    Direction::Backward => self.high.clone(),
                };
                self.stretch.begin(&from, self.notes);
                if self.parted && !self.begin_part(&from) {
                    return Ok(self.ended());
                }
                if let Some(iterator) = &mut self.iterator {
                    iterator.go_to_first(direction);
                }
                self.arrived(before, 0)
            }
        }
    }

    /// To the first entry at or after `key` in the scan's direction, within the bounds; false when
    /// there is none. A following `next` moves on from that entry.
    pub fn seek(&mut self, key: &[u8]) -> Result<bool> {
        if !self.high.is_empty() && self.low >= self.high {
            return Ok(false);
        }
        let _noting = Noting::begin(self.options.cached_only);
        let direction = self.options.direction;
        let before = SkippedEntries::now();
        let low = self.low.clone();
        let key = match direction {
            Direction::Forward => key.max(&*low),
            Direction::Backward => key,
        };
        if self.notes {
            match direction {
                Direction::Forward => self.stretch.begin(key, true),
                Direction::Backward => {
                    let high = self.high.clone();
                    self.stretch.begin((&*successor(key)).min(&high), true);
                }
            }
        }
        if self.parted && !self.part_holds(key) {
            let from: Bytes = match direction {
                Direction::Forward => key.into(),
                Direction::Backward => (&*successor(key)).min(&*self.high).into(),
            };
            if !self.begin_part(&from) {
                return Ok(self.ended());
            }
        }
        if let Some(iterator) = &mut self.iterator {
            iterator.go_to(key, direction);
        }
        self.arrived(before, 0)
    }

    /// Whether the current part is where a seek of `key` has to begin.
    fn part_holds(&self, key: &[u8]) -> bool {
        self.iterator
            .as_ref()
            .is_some_and(|iterator| *iterator.low <= *key && *key < *iterator.high)
    }

    /// `own`: entries that the engine has passed and that are not hidden.
    #[inline]
    fn arrived(&mut self, mut before: SkippedEntries, mut own: u64) -> Result<bool> {
        let mut paused_at = Vec::new();
        loop {
            let Some(iterator) = &self.iterator else {
                return Ok(self.ended());
            };
            let entry = iterator.is_on_entry().then(|| iterator.entry());
            // A step backward has passed the entry that it gives, one forward the one before.
            let own_here = if self.backward() {
                u64::from(entry.is_some())
            } else {
                own
            };
            self.count(SkippedEntries::now().since(before, self.backward(), own_here))?;
            if let Some(entry) = entry {
                self.state = State::On;
                (self.key, self.value) = entry;
                if !self.backward() && self.value.len() >= LONG {
                    prefetch_behind(self.value);
                }
                if self.stretch.is_long() {
                    self.note();
                }
                return Ok(true);
            }
            match self
                .iterator
                .as_ref()
                .map_or(Stopped::AtEnd, BoundedIterator::stopped)
            {
                Stopped::AtEnd => (),
                Stopped::Failed(e) => return Err(self.failed(e)),
                Stopped::Paused => {
                    before = SkippedEntries::now();
                    own = 0;
                    self.go_on(&mut paused_at)?;
                    continue;
                }
            }
            let Some(beyond) = self.beyond.take() else {
                return Ok(self.ended());
            };
            self.stretch.passed += 1;
            before = SkippedEntries::now();
            own = 0;
            if !self.begin_part(&beyond) {
                return Ok(self.ended());
            }
            if let Some(iterator) = &mut self.iterator {
                iterator.go_to_first(self.options.direction);
            }
        }
    }

    /// A step has passed so many hidden keys, and so many markers among them.
    #[inline]
    fn count(&mut self, (hidden, markers): (u64, u64)) -> Result<()> {
        if hidden == 0 {
            return Ok(());
        }
        hidden_keys::count(hidden);
        self.hidden += hidden;
        self.stretch.markers += markers;
        if self.options.cached_only && !long_steps::may_stay_on_loop(hidden) {
            return Err(self.failed(Suspension::Read.into()));
        }
        Ok(())
    }

    /// After a pause: goes on where the iterator stopped, which is behind `before`.
    #[cold]
    fn go_on(&mut self, before: &mut Vec<u8>) -> Result<()> {
        let asked = errors::operation::ask();
        let Some(iterator) = self.iterator.as_mut().filter(|_| asked.is_ok()) else {
            return asked.map_err(|e| self.failed(e.into()));
        };
        let place = iterator.place();
        if place == *before {
            let lost = Error::internal("a scan that paused does not come further");
            return Err(self.failed(lost.into()));
        }
        iterator.go_to(&place, self.options.direction);
        *before = place;
        Ok(())
    }

    /// The scan gives nothing more.
    #[cold]
    fn failed(&mut self, e: Stop) -> Stop {
        self.state = State::Done;
        (self.key, self.value) = (&[], &[]);
        e
    }

    /// The scan is at its end.
    fn ended(&mut self) -> bool {
        self.state = State::Done;
        (self.key, self.value) = (&[], &[]);
        if self.stretch.is_long() {
            self.note();
        }
        false
    }

    /// Notes that nothing lives between where the stretch began and where the scan is.
    #[cold]
    fn note(&mut self) {
        if !self.notes {
            return;
        }
        // SAFETY: empty, or the bytes of the entry that the scan is on.
        let at = unsafe { &*self.key };
        let weight = u32::try_from(self.stretch.markers).unwrap_or(u32::MAX);
        let (on, from) = (self.state == State::On, self.stretch.from.as_slice());
        let behind = successor(at);
        let (low, high) = match (self.options.direction, on) {
            (Direction::Forward, true) => (from, at),
            (Direction::Forward, false) => (from, &*self.high),
            (Direction::Backward, true) => (&*behind, from),
            (Direction::Backward, false) => (&*self.low, from),
        };
        self.dead().note(low, high, self.seen, weight);
        if !self.shown.snapshot().is_null() {
            self.shown.empty().note(low, high, weight);
        }
    }

    /// Whether it is on an entry.
    pub fn valid(&self) -> bool {
        self.state == State::On
    }

    /// The key of the current entry; empty when there is none.
    #[inline]
    pub fn key(&self) -> &[u8] {
        // SAFETY: see `arrived`; to move the iterator takes `&mut self`.
        unsafe { &*self.key }
    }

    /// The value of the current entry; empty when there is none.
    #[inline]
    pub fn value(&self) -> &[u8] {
        // SAFETY: as for `key`.
        unsafe { &*self.value }
    }
}

impl Stretch {
    fn begin(&mut self, from: &[u8], wanted: bool) {
        (self.markers, self.passed) = (0, 0);
        self.from.clear();
        if wanted {
            self.from.extend_from_slice(from);
        }
    }

    /// Behind the entry of `key`.
    #[inline]
    fn begin_behind(&mut self, key: &[u8], direction: Direction) {
        (self.markers, self.passed) = (0, 0);
        self.from.clear();
        self.from.extend_from_slice(key);
        if direction == Direction::Forward {
            self.from.push(0);
        }
    }

    #[inline]
    fn is_long(&self) -> bool {
        self.markers + self.passed.saturating_sub(1) * COST_OF_PART >= MANY
    }
}

impl UnderlyingScan for EngineScan {
    fn next(&mut self) -> Result<bool> {
        EngineScan::next(self)
    }

    fn seek(&mut self, key: &[u8]) -> Result<bool> {
        EngineScan::seek(self, key)
    }

    fn valid(&self) -> bool {
        EngineScan::valid(self)
    }

    fn key(&self) -> &[u8] {
        EngineScan::key(self)
    }
}

/// Has the processor bring what lies behind an entry: the next one of its block begins there. It
/// comes while this one is looked at.
#[inline]
fn prefetch_behind(value: *const [u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let end = value.cast::<i8>().wrapping_add(value.len());
        for line in 0..PREFETCHED_LINES {
            // SAFETY: a hint, for any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(end.wrapping_add(line * LINE)) }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
