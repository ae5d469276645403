//! When the log came to which time, of the recent past: a stream of changes over the cluster begins
//! where its command was read at the router, and shards are asked only later.
//!
//! ```text
//! spans, oldest first:  (first, before ── last, upTo) (first, before ── last, upTo) …
//! ```
//! A span is of entries that were applied one right after the other, from `first` to `last`; `before` is
//! the time of the entry before them.
//!
//! Invariant: the answer is never later than the log's time then. It is exact but within a span, where it
//! is the span's beginning. Spans are few: older ones grow together, those of the last moments stay.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use storage::{Committed, Entry, Observer};

/// Entries of one group, not of two requests.
const SHORTEST: Duration = Duration::from_micros(10);
const MOST_SPANS: usize = 8192;

#[derive(Clone, Copy)]
struct Span {
    first: Instant,
    before: u64,
    last: Instant,
    up_to: u64,
}

#[derive(Default)]
pub struct LogTimes {
    spans: Mutex<VecDeque<Span>>,
}

impl LogTimes {
    fn note(&self, now: Instant, ts: u64) {
        let mut spans = self.spans.lock();
        let newest = spans.back_mut();
        let before = newest.as_ref().map_or(ts.saturating_sub(1), |s| s.up_to);
        match newest {
            Some(newest) if now.saturating_duration_since(newest.first) < SHORTEST => {
                newest.last = now;
                newest.up_to = ts;
            }
            _ => spans.push_back(Span {
                first: now,
                before,
                last: now,
                up_to: ts,
            }),
        }
        if spans.len() > MOST_SPANS {
            halve(&mut spans);
        }
        assert!(spans.len() <= MOST_SPANS, "spans grow together");
    }

    /// The log's time at a moment; `None` where nothing is known of what came before it, because
    /// nothing has come since the process began.
    pub fn at(&self, moment: Instant) -> Option<u64> {
        let spans = self.spans.lock();
        let begun = spans.partition_point(|s| s.first <= moment);
        match begun.checked_sub(1).and_then(|n| spans.get(n)) {
            Some(span) if span.last <= moment => Some(span.up_to),
            Some(span) => Some(span.before),
            None => spans.front().map(|span| span.before),
        }
    }
}

/// Joins each two that follow each other, but for the newest eighth.
fn halve(spans: &mut VecDeque<Span>) {
    let newest = spans.split_off(spans.len() - spans.len() / 8);
    let old = std::mem::take(spans);
    let mut old = old.into_iter();
    while let Some(first) = old.next() {
        let second = old.next().unwrap_or(first);
        spans.push_back(Span {
            last: second.last,
            up_to: second.up_to,
            ..first
        });
    }
    spans.extend(newest);
}

impl Observer for LogTimes {
    fn applied(&self, at: Committed, _: &Entry) {
        self.note(Instant::now(), at.ts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_time_it_was() {
        let (times, begin) = (LogTimes::default(), Instant::now());
        let after = |micros: u64| begin + Duration::from_micros(micros);
        assert_eq!(times.at(begin), None);
        times.note(after(100), 10);
        times.note(after(104), 11);
        times.note(after(200), 20);
        let found = [50, 100, 103, 104, 150, 199, 200, 9000].map(|m| times.at(after(m)).unwrap());
        assert_eq!(found, [9, 9, 9, 11, 11, 11, 20, 20]);
    }

    /// However many there were, the answer is never too late, and that of the last moments exact.
    #[test]
    fn many_entries() {
        let (times, begin) = (LogTimes::default(), Instant::now());
        let after = |n: u64| begin + Duration::from_micros(20 * n);
        for n in 1..=100_000 {
            times.note(after(n), n);
        }
        assert!(times.spans.lock().len() <= MOST_SPANS);
        for n in (1..100_000).step_by(97) {
            assert!(times.at(after(n)).unwrap() <= n);
        }
        for n in 99_000..=100_000 {
            assert_eq!(times.at(after(n)), Some(n));
        }
    }
}
