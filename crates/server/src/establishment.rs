//! Rate limit for new connections: a token bucket, and a queue in the order of arrival.
//!
//! Invariant: no clock and no socket here; the caller passes the time.

use service::establishment::EstablishmentRate;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The decision on a new connection.
#[derive(Debug, PartialEq)]
pub(crate) enum Arrival<T> {
    LetIn(T),
    Queued,
    /// The queue is full.
    Rejected(T),
}

pub(crate) struct Establishing<T> {
    waiting: VecDeque<T>,
    tokens: f64,
    /// When tokens were last added; `None`: the bucket is full.
    since: Option<Instant>,
}

impl<T> Default for Establishing<T> {
    fn default() -> Establishing<T> {
        Establishing {
            waiting: VecDeque::new(),
            tokens: 0.0,
            since: None,
        }
    }
}

impl<T> Establishing<T> {
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn arrive(&mut self, item: T, rate: &EstablishmentRate, now: Instant) -> Arrival<T> {
        if self.waiting.is_empty() && self.take(rate, now) {
            return Arrival::LetIn(item);
        }
        if self.waiting.len() >= rate.queue_depth {
            return Arrival::Rejected(item);
        }
        self.waiting.push_back(item);
        Arrival::Queued
    }

    /// The next connection to admit; without a rate, the first in the queue.
    pub fn next(&mut self, rate: Option<&EstablishmentRate>, now: Instant) -> Option<T> {
        if self.waiting.is_empty() || rate.is_some_and(|r| !self.take(r, now)) {
            return None;
        }
        self.waiting.pop_front()
    }

    /// The time until the next queued connection may be admitted; `None` when the queue is empty.
    pub fn pause(&self, rate: Option<&EstablishmentRate>) -> Option<Duration> {
        if self.waiting.is_empty() {
            return None;
        }
        let seconds = rate.map_or(0.0, |r| (1.0 - self.tokens) / r.per_second);
        let pause = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
        // The operator may raise the rate meanwhile.
        Some(pause.clamp(Duration::from_millis(1), Duration::from_secs(1)))
    }

    fn take(&mut self, rate: &EstablishmentRate, now: Instant) -> bool {
        let most = (rate.per_second * rate.burst_seconds).max(1.0);
        self.tokens = match self.since {
            None => most,
            Some(since) => {
                let passed = now.saturating_duration_since(since).as_secs_f64();
                (self.tokens + passed * rate.per_second).min(most)
            }
        };
        self.since = Some(now);
        let any = self.tokens >= 1.0;
        if any {
            self.tokens -= 1.0;
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: f64, burst_seconds: f64, queue_depth: usize) -> EstablishmentRate {
        EstablishmentRate {
            per_second,
            burst_seconds,
            queue_depth,
            exempt: Vec::new(),
        }
    }

    #[test]
    fn a_burst_is_let_in_then_some_wait_and_the_rest_are_rejected() {
        let (mut queue, rate, start) =
            (Establishing::default(), rate(10.0, 0.2, 1), Instant::now());
        let came: Vec<_> = (0..4).map(|i| queue.arrive(i, &rate, start)).collect();
        let expected = [
            Arrival::LetIn(0),
            Arrival::LetIn(1),
            Arrival::Queued,
            Arrival::Rejected(3),
        ];
        assert_eq!(came, expected);
        assert_eq!(queue.pause(Some(&rate)), Some(Duration::from_millis(100)));
        assert_eq!(queue.next(Some(&rate), start), None);
        let later = start + Duration::from_millis(110);
        assert_eq!(queue.next(Some(&rate), later), Some(2));
        assert_eq!(queue.pause(Some(&rate)), None);
    }

    #[test]
    fn no_connection_overtakes_and_waiters_are_let_in_when_the_limit_goes() {
        let (mut queue, rate, start) = (Establishing::default(), rate(1.0, 1.0, 9), Instant::now());
        assert_eq!(queue.arrive(0, &rate, start), Arrival::LetIn(0));
        assert_eq!(queue.arrive(1, &rate, start), Arrival::Queued);
        let later = start + Duration::from_secs(5);
        assert_eq!(queue.arrive(2, &rate, later), Arrival::Queued);
        assert_eq!(queue.next(None, later), Some(1));
        assert_eq!(queue.next(None, later), Some(2));
        assert_eq!((queue.next(None, later), queue.waiting()), (None, 0));
    }
}
