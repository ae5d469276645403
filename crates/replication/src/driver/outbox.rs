//! Entries on their way from the store to the driver's thread.
//!
//! Where many writes of `w: 1` come, the groups of some milliseconds are handed on together: one message
//! to each member and one sync then serve them all. No entry is held back while a write waits for other
//! members, or while few entries come.
//!
//! ```text
//! the store ── put ──► entries ── take ──► the thread: at once, or PACE after the last time
//! who waits ── ask ──► asked ─────────────►
//! ```
//!
//! Invariants:
//! - Entries leave in the order of the log, and none is held back for longer than [`PACE`].
//! - A request before the thread looks is seen by it; a later one wakes it.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use storage::Appended;

/// The longest that an entry waits for others to go with it.
pub(super) const PACE: Duration = Duration::from_millis(5);
/// Fewer entries than this in [`PACE`] are not held back: little is gained, and reads from secondaries
/// would lag.
const MANY: usize = 4;
/// After a wait for other members another one is likely: for this long no entry is held back.
const EXPECT_WAITS: Duration = Duration::from_millis(20);
/// Entries of this many bytes go at once.
const FULL_BYTES: usize = 256 << 10;

#[derive(Default)]
struct Waiting {
    entries: Vec<Appended>,
    bytes: usize,
}

pub(super) struct Outbox {
    begun: Instant,
    waiting: Mutex<Waiting>,
    /// The last wait for other members, in microseconds since `begun`; 0 for never.
    asked: AtomicU64,
    /// The thread holds entries back.
    holds: AtomicBool,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox {
            begun: Instant::now(),
            waiting: Mutex::default(),
            asked: AtomicU64::new(0),
            holds: AtomicBool::new(false),
        }
    }
}

impl Outbox {
    /// Takes entries in. Whether the thread has to be told.
    pub fn put(&self, entries: Vec<Appended>) -> bool {
        let mut waiting = self.waiting.lock();
        if let (Some(last), Some(first)) = (waiting.entries.last(), entries.first()) {
            assert!(
                last.term != first.term || last.index + 1 == first.index,
                "entries leave in the order of the log"
            );
        }
        let (was_empty, before) = (waiting.entries.is_empty(), waiting.bytes);
        waiting.bytes += entries.iter().map(|e| e.payload.len()).sum::<usize>();
        waiting.entries.extend(entries);
        was_empty || before < FULL_BYTES && waiting.bytes >= FULL_BYTES
    }

    /// A write waits for other members. Whether the thread has to be told.
    pub fn ask(&self) -> bool {
        let since = self.begun.elapsed().as_micros();
        self.asked
            .store(u64::try_from(since).unwrap_or(u64::MAX).max(1), SeqCst);
        self.holds.swap(false, SeqCst)
    }

    fn is_asked(&self) -> bool {
        let asked = self.asked.load(SeqCst);
        asked != 0
            && self
                .begun
                .elapsed()
                .saturating_sub(Duration::from_micros(asked))
                < EXPECT_WAITS
    }

    fn take(&self) -> Vec<Appended> {
        let mut waiting = self.waiting.lock();
        waiting.bytes = 0;
        std::mem::take(&mut waiting.entries)
    }
}

/// When the driver's thread hands entries on.
#[derive(Default)]
pub(super) struct Pace {
    /// How many entries went when, in the last [`PACE`].
    went: VecDeque<(Instant, usize)>,
}

impl Pace {
    /// Until when nothing goes; `None`: at once.
    pub fn holds_until(&mut self, outbox: &Outbox) -> Option<Instant> {
        let now = Instant::now();
        while (self.went.front()).is_some_and(|(at, _)| now.duration_since(*at) >= PACE) {
            self.went.pop_front();
        }
        let lately: usize = self.went.iter().map(|(_, n)| n).sum();
        let until = self.went.back().map(|(at, _)| *at + PACE)?;
        (lately >= MANY && !outbox.is_asked()).then_some(until)
    }

    /// The entries that go now. With `at_once` all do; else those that are held back stay, and the
    /// second value says until when.
    pub fn take(&mut self, outbox: &Outbox, at_once: bool) -> (Vec<Appended>, Option<Instant>) {
        let (is_empty, is_full) = {
            let waiting = outbox.waiting.lock();
            (waiting.entries.is_empty(), waiting.bytes >= FULL_BYTES)
        };
        if is_empty {
            return (Vec::new(), None);
        }
        if !at_once && !is_full && self.holds_until(outbox).is_some() {
            outbox.holds.store(true, SeqCst);
            // A request before that has not woken the thread.
            if let Some(until) = self.holds_until(outbox) {
                return (Vec::new(), Some(until));
            }
        }
        outbox.holds.store(false, SeqCst);
        let entries = outbox.take();
        self.went.push_back((Instant::now(), entries.len()));
        (entries, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, bytes: usize) -> Appended {
        Appended {
            index,
            payload: vec![0; bytes],
            ..Appended::default()
        }
    }

    /// Entries that follow on those that wait.
    fn put(outbox: &Outbox, n: u64) -> bool {
        let last = outbox.waiting.lock().entries.last().map_or(0, |e| e.index);
        outbox.put((1..=n).map(|i| entry(last + i, 10)).collect())
    }

    #[test]
    fn few_entries_go_at_once_and_many_go_together() {
        let (outbox, mut pace) = (Outbox::default(), Pace::default());
        assert!(put(&outbox, 1), "the first tells the thread");
        assert!(!put(&outbox, 1), "the next go with it");
        assert_eq!(pace.take(&outbox, false).0.len(), 2);
        put(&outbox, 20);
        assert_eq!(pace.take(&outbox, false).0.len(), 20, "few came before");
        put(&outbox, 1);
        let (none, until) = pace.take(&outbox, false);
        assert!(none.is_empty());
        let until = until.expect("held back");
        assert!(until <= Instant::now() + PACE);
        assert_eq!(pace.take(&outbox, true).0.len(), 1, "where it has to be");
        put(&outbox, 2);
        std::thread::sleep(PACE);
        assert_eq!(pace.take(&outbox, false).0.len(), 2, "after the pace");
    }

    #[test]
    fn nothing_is_held_back_from_who_waits() {
        let (outbox, mut pace) = (Outbox::default(), Pace::default());
        put(&outbox, 20);
        pace.take(&outbox, false);
        put(&outbox, 1);
        assert!(pace.take(&outbox, false).0.is_empty());
        assert!(outbox.ask(), "the thread that holds back is told");
        assert!(!outbox.ask(), "once");
        assert_eq!(pace.take(&outbox, false).0.len(), 1);
        put(&outbox, 20);
        assert_eq!(pace.take(&outbox, false).0.len(), 20, "nor the next ones");
        assert!(
            !outbox.ask(),
            "a thread that holds nothing back is not told"
        );
    }

    #[test]
    fn much_goes_at_once() {
        let (outbox, mut pace) = (Outbox::default(), Pace::default());
        put(&outbox, 20);
        pace.take(&outbox, false);
        put(&outbox, 1);
        assert!(outbox.put(vec![entry(2, FULL_BYTES)]), "the thread is told");
        assert_eq!(pace.take(&outbox, false).0.len(), 2);
    }
}
