//! Dead ranges: ranges without living keys, so that scans need not step over the markers of deletes
//! there.
//!
//! A deleted key stays in the engine as a marker until files are merged, and each scan would step
//! over every marker again. A scan that has stepped over many of them says so here. Later scans
//! begin behind the range.
//!
//! ```text
//! quiet   [low, high) since w    no write with a number above w has put a key into it
//! dead    [low, high) as of w    nothing lives in it, in every state that holds the writes up to w
//! ```
//!
//! Writes are numbered in their order, one at a time: `begin` is before a write can be read, and
//! its end after it. A reader notes how many writes have ended before it takes its state, so its
//! state holds all of these.
//!
//! Invariants:
//! - A write tells of each key that it puts before it can be read. The ranges that hold the key are
//!   split there first.
//! - A range becomes quiet since the newest write that had begun: all that begin later see it.
//! - A part of a quiet range becomes dead when a state that holds all writes up to `since` was seen
//!   to have nothing there. It is dead as of the newest write that had begun by then.
//! - Only a state that holds all writes up to `as of` may use a dead range.
//!
//! So a key that lives is in no dead range that its reader may use: it was put after the range
//! became quiet, and has split it, or before, and then the state that was seen had it, or had it
//! deleted, as every later state has.
//!
//! Ranges are few, and their keys take bounded memory: those that were not used for longest go.
//! Nothing of this is on disk.

mod known;

pub(crate) use known::{Bytes, behind_all, successor};

use known::{Known, LEAST_WEIGHT, MOST_BYTES, PREFIX, Range, gaps, holder, overlapping, prefix_of};
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most places that wait to be looked at.
const MOST_PLACES: usize = 1024;
/// Seconds after which an unused range is forgotten.
const UNUSED_SECONDS: u64 = 600;

/// How dead ranges are used: `dead_ranges=…` among the engine's options, for experiments and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    On,
    /// Nothing is noted, so scans step over all markers.
    Off,
    /// A planted fault, for the tests that have to find it: writes end no range.
    Unended,
}

impl Mode {
    pub fn of(name: &str) -> Option<Mode> {
        match name {
            "on" => Some(Mode::On),
            "off" => Some(Mode::Off),
            "unended" => Some(Mode::Unended),
            _ => None,
        }
    }
}

#[derive(Default)]
pub(crate) struct DeadRanges {
    mode: Mode,
    known: RwLock<Known>,
    /// The number of ranges: a write that finds none need not take the lock.
    many: AtomicUsize,
    begun: AtomicU64,
    ended: AtomicU64,
    second: AtomicU64,
    /// Keys that were deleted, or stepped over, for [`crate::dead_search`] to look around.
    places: Mutex<VecDeque<Bytes>>,
    /// How often all places were looked at.
    rounds: AtomicU64,
}

/// A write in flight; it ends when this is dropped.
pub(crate) struct Write<'a> {
    ranges: &'a DeadRanges,
    number: u64,
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        self.ranges.ended.store(self.number, Ordering::SeqCst);
    }
}

impl DeadRanges {
    pub fn new(mode: Mode) -> DeadRanges {
        DeadRanges {
            mode,
            ..DeadRanges::default()
        }
    }

    /// Whether anything is noted.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.mode != Mode::Off
    }

    /// Begins a write; only one may be in flight. `each_put` tells of the keys that it puts.
    pub fn begin(&self, each_put: impl Fn(&mut dyn FnMut(&[u8]))) -> Write<'_> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let write = Write {
            ranges: self,
            number,
        };
        // Where there is none now, one that is made later knows of this write by its number.
        if self.many.load(Ordering::SeqCst) == 0 || self.mode == Mode::Unended {
            return write;
        }
        let mut held = false;
        {
            let known = self.known.read();
            each_put(&mut |key| held = held || known.holds(key));
        }
        if held {
            let mut known = self.known.write();
            each_put(&mut |key| known.split(key));
            self.many.store(known.ranges, Ordering::SeqCst);
        }
        write
    }

    /// How many writes have ended: to be asked before a state is taken, which then holds them.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether there is any range.
    #[inline]
    pub fn any(&self) -> bool {
        self.many.load(Ordering::Relaxed) > 0
    }

    /// Whether notes can be made of, and used for, the keys of `[low, high)`.
    pub fn concern(low: &[u8], high: &[u8]) -> bool {
        prefix_of(low, high).is_some()
    }

    /// The first dead range that overlaps `[low, high)`, or the last, with those that follow on it
    /// without a gap. For a reader whose state holds the writes up to `seen`.
    pub fn first(
        &self,
        low: &[u8],
        high: &[u8],
        seen: u64,
        backward: bool,
    ) -> Option<(Bytes, Bytes)> {
        let prefix = prefix_of(low, high)?;
        let known = self.known.read();
        let dead = &known.indexes.get(&prefix)?.dead;
        let now = self.second.load(Ordering::Relaxed);
        let mut found: Option<(&Bytes, &Bytes)> = None;
        if backward {
            let first = holder(dead, low).map_or(low, |(start, _)| start);
            let all = dead.range::<[u8], _>((Bound::Included(first), Bound::Excluded(high)));
            for (start, range) in all.rev() {
                match found {
                    _ if range.write > seen && found.is_none() => continue,
                    None => found = Some((start, &range.high)),
                    Some((from, to)) if range.write <= seen && range.high == *from => {
                        found = Some((start, to));
                    }
                    Some(_) => break,
                }
                range.used.store(now, Ordering::Relaxed);
            }
        } else {
            for (start, range) in overlapping(dead, low, high) {
                match found {
                    _ if range.write > seen && found.is_none() => continue,
                    None => found = Some((start, &range.high)),
                    Some((from, to)) if range.write <= seen && start == to => {
                        found = Some((from, &range.high));
                    }
                    Some(_) => break,
                }
                range.used.store(now, Ordering::Relaxed);
            }
        }
        found.map(|(from, to)| (from.clone(), to.clone()))
    }

    /// Whether `key` is in a dead range.
    pub fn covers(&self, key: &[u8]) -> bool {
        let known = self.known.read();
        let index = key.get(..PREFIX).and_then(|p| known.indexes.get(p));
        index.is_some_and(|i| holder(&i.dead, key).is_some())
    }

    /// Has writes report puts in `[low, high)` from now on, so that one look is enough to note its dead
    /// parts. Returns a mark for [`DeadRanges::forget`].
    pub fn watch(&self, low: &[u8], high: &[u8]) -> Option<u64> {
        let prefix = prefix_of(low, high)?;
        let mut known = self.known.write();
        let since = self.add_quiet(&mut known, &prefix, low, high, u32::MAX);
        self.many.store(known.ranges, Ordering::SeqCst);
        Some(since)
    }

    /// Ends a watch where nothing was found.
    pub fn forget(&self, low: &[u8], high: &[u8], since: u64) {
        let Some(prefix) = prefix_of(low, high) else {
            return;
        };
        let mut known = self.known.write();
        let quiet = known.of(&prefix, false);
        let of_watch = overlapping(quiet, low, high).filter(|(_, r)| r.write == since);
        let of_watch: Vec<Bytes> = of_watch.map(|(low, _)| low.clone()).collect();
        for low in of_watch {
            known.remove(&prefix, false, &low);
        }
        if known
            .indexes
            .get(&prefix)
            .is_some_and(|i| i.quiet.is_empty() && i.dead.is_empty())
        {
            known.indexes.remove(&prefix);
        }
        self.many.store(known.ranges, Ordering::SeqCst);
    }

    /// Makes the parts of `[low, high)` that are not quiet yet quiet since the newest write that has
    /// begun.
    fn add_quiet(
        &self,
        known: &mut Known,
        prefix: &[u8; PREFIX],
        low: &[u8],
        high: &[u8],
        weight: u32,
    ) -> u64 {
        // From here on a write that begins takes the lock, or its number is in `begun` below.
        self.many.fetch_add(1, Ordering::SeqCst);
        let since = self.begun.load(Ordering::SeqCst);
        let used = self.second.load(Ordering::Relaxed);
        for (low, high) in gaps(known.of(prefix, false), low, high) {
            let range = Range {
                high,
                write: since,
                weight,
                used: AtomicU64::new(used),
            };
            known.insert(prefix, false, low, range);
        }
        since
    }

    /// A reader whose state holds the writes up to `seen` has seen nothing in `[low, high)`, and has
    /// stepped over about `weight` markers there. Its quiet parts become dead; the rest becomes quiet,
    /// and will be dead when it is seen so again.
    pub fn note(&self, low: &[u8], high: &[u8], seen: u64, weight: u32) {
        let Some(prefix) = prefix_of(low, high).filter(|_| self.is_on()) else {
            return;
        };
        if low.len() + high.len() > MOST_BYTES / 64 {
            return;
        }
        let mut known = self.known.write();
        let unknown = gaps(known.of(&prefix, true), low, high);
        let as_of = self.begun.load(Ordering::SeqCst);
        let used = self.second.load(Ordering::Relaxed);
        let mut waits = false;
        for (low, high) in unknown {
            let quiet = known.of(&prefix, false);
            let parts: Vec<(Bytes, Bytes, Bytes)> = overlapping(quiet, &low, &high)
                .filter(|(_, range)| range.write <= seen)
                .map(|(start, range)| {
                    let from = (&low).max(start).clone();
                    (start.clone(), from, (&high).min(&range.high).clone())
                })
                .collect();
            for (at, from, to) in parts {
                known.take_out(&prefix, false, &at, &from, &to);
                let range = Range {
                    high: to,
                    write: as_of,
                    weight: weight.max(LEAST_WEIGHT),
                    used: AtomicU64::new(used),
                };
                known.insert(&prefix, true, from.clone(), range);
                known.merge_around(&prefix, &from);
            }
            for (low, high) in gaps(known.of(&prefix, true), &low, &high) {
                waits = true;
                self.add_quiet(&mut known, &prefix, &low, &high, weight.max(LEAST_WEIGHT));
            }
        }
        known.make_room();
        self.many.store(known.ranges, Ordering::SeqCst);
        drop(known);
        if waits {
            self.look_around([low.into()]);
        }
    }

    /// Many keys were deleted around these.
    pub fn look_around(&self, keys: impl IntoIterator<Item = Bytes>) {
        if !self.is_on() {
            return;
        }
        let mut places = self.places.lock();
        for key in keys {
            if places.len() == MOST_PLACES {
                places.pop_front();
            }
            places.push_back(key);
        }
    }

    /// The keys to look around.
    pub fn take_places(&self) -> VecDeque<Bytes> {
        std::mem::take(&mut *self.places.lock())
    }

    /// All places were looked at, or what a round may look at.
    pub fn end_round(&self) {
        self.rounds.fetch_add(1, Ordering::SeqCst);
    }

    /// How many rounds of looks have ended.
    #[cfg(test)]
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::SeqCst)
    }

    /// Called once a second: forgets ranges that were unused for long.
    pub fn tick(&self) {
        let now = self.second.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.any() || !now.is_multiple_of(UNUSED_SECONDS / 10) {
            return;
        }
        let mut known = self.known.write();
        known.retain(|_, r| now.saturating_sub(r.used.load(Ordering::Relaxed)) < UNUSED_SECONDS);
        self.many.store(known.ranges, Ordering::SeqCst);
    }

    /// How many dead ranges there are.
    pub fn dead(&self) -> u64 {
        let known = self.known.read();
        known.indexes.values().map(|i| i.dead.len() as u64).sum()
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
