//! How fast a range's documents are copied and removed while clients are served.
//!
//! ```text
//! worked for t ─► rests for t × PAUSE_RATIO × load, at most LONGEST; less, the longer the move takes
//! load: commands that a shard serves for routers in a second, in parts of BUSY; at most 1
//! ```
//! So a mover works a seventeenth of the time on a busy shard, and all of it on an idle one: it keeps several
//! threads of both sides at work, and takes four times its share from clients. Writes of clients meanwhile
//! have to be copied too: after four seconds the mover works a fifth of the time, after six a third, after
//! eight half of it, after eleven two thirds, and so comes to an end. Short moves, which are most, take the
//! least from clients; a long one has had six seconds of work after fifteen.
//!
//! Invariant: a rest is bounded by the work before it, so a move takes at most `1 + PAUSE_RATIO` times as
//! long as one that does not rest.

use std::time::Duration;

/// Rests in parts of the work before, under full load.
const PAUSE_RATIO: f64 = 16.0;
/// Commands in a second that are full load.
const BUSY: f64 = 500.0;
/// A move that takes longer than this rests less and less, by the square of its age.
const STEADY: Duration = Duration::from_secs(2);
/// A lower load counts as idle.
const IDLE: f64 = 0.02;
const LONGEST: Duration = Duration::from_millis(200);
/// The least time over which load is measured; the first time is shorter.
const PERIOD: Duration = Duration::from_millis(40);
const FIRST: Duration = Duration::from_millis(5);
/// Documents of one piece of work, while others are served and while none are.
const FEW: usize = 100;
const MANY: usize = 2000;
/// While others are served, in a move that takes longer than [`PATIENCE`].
const SOME: usize = 500;
const PATIENCE: Duration = Duration::from_millis(1500);

/// What one mover knows of one shard.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// When the count was taken, and the count.
    before: Option<(Duration, u64)>,
    /// Not measured yet: `None`.
    load: Option<f64>,
}

impl Pace {
    /// Whether the count that [`heard`](Pace::heard) takes is wanted.
    pub fn asks(&self, now: Duration) -> bool {
        let period = self.load.map_or(FIRST, |_| PERIOD);
        self.before
            .is_none_or(|(then, _)| now.saturating_sub(then) >= period)
    }

    /// How many commands the shard has served for routers since it began. A count that falls is of
    /// another primary.
    pub fn heard(&mut self, served: u64, now: Duration) {
        if let Some((then, before)) = self.before {
            let seconds = now.saturating_sub(then).as_secs_f64();
            let rate = served.saturating_sub(before) as f64 / seconds.max(0.001);
            self.load = Some((rate / BUSY).min(1.0));
        }
        self.before = Some((now, served));
    }

    pub fn is_idle(&self) -> bool {
        self.load.is_some_and(|load| load < IDLE)
    }

    /// How long to rest after work, of a move that began `since` ago.
    pub fn rest(&self, worked: Duration, since: Duration) -> Duration {
        match self.load {
            Some(load) if load >= IDLE => {
                let age = (since.as_secs_f64() / STEADY.as_secs_f64()).max(1.0);
                worked
                    .mul_f64(PAUSE_RATIO / (age * age) * load)
                    .min(LONGEST)
            }
            _ => Duration::ZERO,
        }
    }

    /// How many documents are copied before the next rest, of a move that began `since` ago.
    pub fn documents(&self, since: Duration) -> usize {
        match self.load {
            Some(load) if load < IDLE => MANY,
            _ if since < PATIENCE => FEW,
            _ => SOME,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn who_is_alone_does_not_rest() {
        let mut pace = Pace::default();
        assert!(pace.asks(millis(0)));
        pace.heard(100, millis(0));
        assert!(!pace.asks(millis(4)) && pace.asks(millis(6)));
        assert!(!pace.is_idle());
        assert_eq!(pace.documents(millis(0)), FEW);
        pace.heard(100, millis(500));
        assert!(!pace.asks(millis(530)) && pace.asks(millis(550)));
        assert_eq!(pace.rest(millis(10), millis(0)), Duration::ZERO);
        assert_eq!(pace.documents(millis(0)), MANY);
    }

    #[test]
    fn a_mover_works_a_seventeenth_of_the_time_at_least() {
        let mut pace = Pace::default();
        pace.heard(0, millis(0));
        pace.heard(10_000, millis(1000));
        assert_eq!(pace.rest(millis(10), millis(0)), millis(160));
        assert_eq!(pace.rest(millis(1000), millis(0)), LONGEST);
        assert_eq!(pace.documents(millis(0)), FEW);
        // The longer it takes, the more it works.
        assert_eq!(pace.rest(millis(10), millis(2000)), millis(160));
        assert_eq!(pace.rest(millis(10), millis(4000)), millis(40));
        assert_eq!(pace.rest(millis(16), millis(8000)), millis(16));
        assert_eq!(pace.documents(millis(8000)), SOME);
        pace.heard(10_250, millis(2000));
        assert_eq!(pace.rest(millis(10), millis(0)), millis(80));
        // Another primary counts from its beginning.
        pace.heard(3, millis(3000));
        assert_eq!(pace.rest(millis(10), millis(0)), Duration::ZERO);
    }
}
