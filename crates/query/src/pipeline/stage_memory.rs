//! Memory that the blocking stages of all operations share.
//!
//! One stage may hold up to its own limit ([`PipelineHost::memory_limit`]), all together what
//! [`StageMemory`] says. A stage that can spill asks with [`Share::fits`], and spills early when others
//! have the memory: each may hold four times the free bytes beside it, so that one alone gets nearly
//! all, many get even shares, and a new one always finds some. What cannot go to a file ([`hold`]) may
//! take all that is free and half as much again; past that it waits, and is refused when that was in
//! vain. If no other stage holds any it is left to its own limit: waiting would be in vain.
//!
//! Invariant: a stage that can spill never waits, so that its memory comes back whatever the waiting
//! ones do.
//!
//! Little ([`LEAST`]) may be held past the limit, up to half as much again, so that a new stage finds some whatever
//! others hold; what cannot go to a file up to twice the limit. It counts too: a stage between two batches of a cursor
//! holds what it has, and there may be many.
//!
//! Past [`UNASKED`] a stage grows only while the process has room beside all else that it holds
//! ([`StageMemory::asks_for_room`]): without room it is as if others held the limit.

use super::PipelineHost;
use errors::{Result, err};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// What each stage may hold while all together hold no more than the limit and half as much again, or twice the limit.
const LEAST: usize = 128 << 10;
/// Memory is taken in steps of this, and what is less than one in smaller ones.
const STEP: usize = 128 << 10;
const SMALL_STEP: usize = 1 << 10;
/// What a stage may hold whatever the process holds.
const UNASKED: usize = 8 << 20;
/// So much further at once the process is asked for, which reads a file.
const BETWEEN_QUESTIONS: usize = 1 << 20;
/// How often what cannot be spilled lets others go first: see [`PipelineHost::wait_for_memory`].
const TURNS: u32 = 1000;

/// Such memory, and how much of it is held.
pub struct StageMemory {
    limit: usize,
    used: AtomicUsize,
    /// How often a stage was told to make do with less than its own limit.
    squeezed: AtomicU64,
    /// Whether the process has room for so many bytes more.
    room: OnceLock<Room>,
}

type Room = Box<dyn Fn(usize) -> bool + Send + Sync>;

impl Default for StageMemory {
    /// So much that one sort alone comes to its 100 MB.
    fn default() -> StageMemory {
        StageMemory::new(128 << 20)
    }
}

impl StageMemory {
    pub fn new(limit: usize) -> StageMemory {
        StageMemory {
            limit,
            used: AtomicUsize::new(0),
            squeezed: AtomicU64::new(0),
            room: OnceLock::new(),
        }
    }

    /// Has stages ask whether the process has `room` for so many bytes more. Only the first call counts.
    pub fn asks_for_room(&self, room: impl Fn(usize) -> bool + Send + Sync + 'static) {
        let _ = self.room.set(Box::new(room));
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub fn squeezed(&self) -> u64 {
        self.squeezed.load(Relaxed)
    }

    pub fn share(self: &Arc<StageMemory>) -> Share {
        Share {
            of: Some(Arc::clone(self)),
            bytes: 0,
            granted: 0,
        }
    }
}

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

/// What stages of this thread have taken and not given back, in bytes. Another thread may give back what this one took, so only
/// differences within one operation mean something.
pub fn held_by_stages() -> isize {
    HELD.get()
}

/// What one stage holds. By default it shares with no other.
#[derive(Default)]
pub struct Share {
    of: Option<Arc<StageMemory>>,
    bytes: usize,
    /// Up to how many bytes the process had room.
    granted: usize,
}

impl Share {
    /// Whether the stage may hold `bytes` in all; when not it should write them to a file.
    #[inline]
    pub fn fits(&mut self, bytes: usize) -> bool {
        bytes <= self.bytes
            || self.grow(bytes, |own, all, limit| {
                own / 4 <= limit.saturating_sub(all) || (own <= LEAST && all <= limit + limit / 2)
            })
    }

    /// The same for what cannot be written to a file.
    pub fn fits_for_good(&mut self, bytes: usize) -> bool {
        bytes <= self.bytes
            || self.grow(bytes, |own, all, limit| {
                all <= limit + limit / 2 || all == own || (own <= LEAST && all <= limit * 2)
            })
    }

    /// Has it hold `bytes` of `what`, which cannot be written to a file. Where there is no room
    /// others go first, with each call of `wait` for a moment; refuses when that was in vain.
    #[inline]
    pub fn hold(
        &mut self,
        bytes: usize,
        what: &str,
        mut wait: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        for _ in 0..TURNS {
            if self.fits_for_good(bytes) {
                return Ok(());
            }
            wait()?;
        }
        Err(err!(
            ExceededMemoryLimit,
            "{what} needs {bytes} bytes of memory and cannot spill to disk, and other operations hold what there is for stages of \
             pipelines. Try again later"
        ).into())
    }

    /// `allowed` looks at what this stage, and what all would hold then, and at the limit.
    fn grow(&mut self, bytes: usize, allowed: impl Fn(usize, usize, usize) -> bool) -> bool {
        let Some(of) = &self.of else {
            return true;
        };
        let step = if bytes < STEP { SMALL_STEP } else { STEP };
        let own = bytes.next_multiple_of(step);
        if own > UNASKED.max(self.granted) {
            let next = own + BETWEEN_QUESTIONS;
            // A long array that grows is copied, and for a moment it is there twice.
            let more = next - self.bytes + own;
            if of.room.get().is_some_and(|room| !room(more)) {
                of.squeezed.fetch_add(1, Relaxed);
                return false;
            }
            self.granted = next;
        }
        let taken = of.used.fetch_update(Relaxed, Relaxed, |used| {
            let all = used.saturating_sub(self.bytes).saturating_add(own);
            allowed(own, all, of.limit).then_some(all)
        });
        match taken {
            Ok(_) => self.set(own),
            Err(_) => {
                of.squeezed.fetch_add(1, Relaxed);
            }
        }
        taken.is_ok()
    }

    /// Gives all of it back.
    pub fn release(&mut self) {
        if let Some(of) = &self.of {
            of.used.fetch_sub(self.bytes, Relaxed);
        }
        self.granted = 0;
        self.set(0);
    }

    fn set(&mut self, bytes: usize) {
        HELD.set(HELD.get() + bytes as isize - self.bytes as isize);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

/// Has `share` hold `bytes` of `what`, which cannot be written to a file; waits for them, up to a
/// point.
#[inline]
pub(super) fn hold(
    share: &mut Share,
    bytes: usize,
    host: &mut dyn PipelineHost,
    what: &str,
) -> Result<()> {
    share.hold(bytes, what, || host.wait_for_memory())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn one_alone_gets_nearly_all_and_the_next_some() {
        let all = Arc::new(StageMemory::default());
        let (mut a, mut b, mut c) = (all.share(), all.share(), all.share());
        assert!(a.fits(100 * MB) && !a.fits(110 * MB));
        assert!(b.fits(20 * MB) && !b.fits(30 * MB));
        assert!(c.fits(MB) && c.fits(4 * MB) && !c.fits(20 * MB));
        assert_eq!((all.used(), all.squeezed()), (124 * MB, 3));
        a.release();
        assert!(b.fits(50 * MB));
        drop((b, c));
        assert_eq!(all.used(), 0);
    }

    #[test]
    fn many_get_even_shares_and_stay_within_it() {
        let all = Arc::new(StageMemory::default());
        let mut shares: Vec<Share> = (0..256).map(|_| all.share()).collect();
        for step in 1..=100 * MB / STEP {
            shares.iter_mut().for_each(|s| {
                s.fits(step * STEP);
            });
        }
        assert!(all.used() <= all.limit());
        let held = shares.iter().map(|s| s.bytes);
        assert!(held.clone().min() >= Some(3 * STEP) && held.max() <= Some(4 * STEP));
        assert!(all.share().fits(LEAST), "there is a little for a new one");
    }

    #[test]
    fn many_that_hold_little_are_bounded_too() {
        let all = Arc::new(StageMemory::new(100 * MB));
        let mut held = Vec::new();
        loop {
            let mut share = all.share();
            if !share.fits(LEAST - 1) {
                break;
            }
            held.push(share);
        }
        assert_eq!(held.len(), 150 * MB / LEAST);
        assert_eq!(all.used(), 150 * MB);
        assert!(
            all.share().fits_for_good(LEAST),
            "a join goes on beside idle sorts"
        );
        held.pop();
        assert!(all.share().fits(10) && !all.share().fits(2 * LEAST));
    }

    #[test]
    fn what_cannot_be_spilled_may_go_beyond_and_no_further() {
        let all = Arc::new(StageMemory::new(100 * MB));
        let mut sort = all.share();
        assert!(sort.fits(80 * MB));
        let (mut a, mut b) = (all.share(), all.share());
        assert!(a.fits_for_good(60 * MB) && !b.fits_for_good(11 * MB) && b.fits_for_good(10 * MB));
        let mut host = super::super::tests::Memory::default();
        let refused = hold(&mut b, 20 * MB, &mut host, "$lookup").unwrap_err();
        assert_eq!(
            refused.failure().unwrap().code,
            errors::Code::ExceededMemoryLimit
        );
        sort.release();
        hold(&mut b, 20 * MB, &mut host, "$lookup").unwrap();
        drop(a);
        assert!(b.fits_for_good(151 * MB) && !all.share().fits_for_good(MB));
        let mut a = all.share();
        b.release();
        hold(&mut b, 20 * MB, &mut host, "$lookup").unwrap();
        assert!(a.fits_for_good(60 * MB));
        assert!(
            all.share().fits(MB),
            "what can be spilled goes on with less"
        );
    }

    #[test]
    fn past_its_first_megabytes_it_needs_the_process_to_have_room() {
        let all = Arc::new(StageMemory::new(100 * MB));
        let process = Arc::new(AtomicUsize::new(30 * MB));
        let (asked, left) = (Arc::new(AtomicUsize::new(0)), process.clone());
        let times = asked.clone();
        all.asks_for_room(move |more| {
            times.fetch_add(1, Relaxed);
            more <= left.load(Relaxed)
        });
        let (mut sort, mut join) = (all.share(), all.share());
        assert!(sort.fits(8 * MB) && asked.load(Relaxed) == 0);
        for kb in 8 << 10..=16 << 10 {
            assert!(sort.fits(kb << 10));
        }
        assert!(asked.load(Relaxed) <= 9);
        process.store(MB, Relaxed);
        assert!(!sort.fits(30 * MB) && sort.fits(16 * MB));
        assert!(join.fits_for_good(8 * MB) && !join.fits_for_good(9 * MB));
        let mut waits = 0;
        join.hold(20 * MB, "$lookup", || {
            waits += 1;
            process.store(40 * MB, Relaxed);
            Ok(())
        })
        .unwrap();
        assert_eq!(waits, 1);
        sort.release();
        process.store(0, Relaxed);
        assert!(
            sort.fits(8 * MB) && !sort.fits(9 * MB),
            "it is asked for anew"
        );
    }

    #[test]
    fn alone_it_is_without_bound() {
        assert!(Share::default().fits(usize::MAX / 2));
    }
}
