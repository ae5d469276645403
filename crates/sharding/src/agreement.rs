//! What a router does when a shard refuses the version that it believes in.
//!
//! ```text
//! refused ─► fenced: a pause, and the same again; after a while the fence is taken away
//!         └► stale: the metadata is read. It says something new: again with that
//!                                         nothing new: the shard knows less, and is told
//! ```
//! Invariant: no wait is without limit.

use std::time::Duration;

/// How long a router and a shard may differ, or a fence may stand.
const PATIENCE: Duration = Duration::from_secs(30);
const FENCE_PAUSE: Duration = Duration::from_millis(4);
/// A fence that has stood this long is removed, unless its change is decided.
const FENCE_LEFT: Duration = Duration::from_secs(4);
/// Between two attempts that are not expected to differ.
const STALE_PAUSE: Duration = Duration::from_millis(10);

/// What comes after a refusal, and a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// They have differed for too long.
    GiveUp,
    /// The same is asked again.
    Again(Duration),
    /// What has left the fence is ended; then the metadata is read.
    Release(Duration),
    /// The metadata is read.
    Read(Duration),
}

/// Which side has to learn, after the metadata was read because of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleSide {
    Router,
    Shard,
}

/// The refusals of one request.
#[derive(Clone, Debug, Default)]
pub struct Agreement {
    fenced_since: Option<Duration>,
    attempts: u32,
}

impl Agreement {
    /// `elapsed`: since the request came.
    pub fn refused(&mut self, elapsed: Duration, fenced: bool) -> Next {
        if elapsed > PATIENCE {
            return Next::GiveUp;
        }
        self.attempts += 1;
        if !fenced {
            self.fenced_since = None;
            return Next::Read(match self.attempts > 2 {
                true => STALE_PAUSE,
                false => Duration::ZERO,
            });
        }
        let since = *self.fenced_since.get_or_insert(elapsed);
        if elapsed.saturating_sub(since) <= FENCE_LEFT {
            return Next::Again(FENCE_PAUSE);
        }
        self.fenced_since = None;
        Next::Release(FENCE_PAUSE)
    }
}

/// `before` and `now`: what the router tells the shard, from before and after it has read the
/// metadata.
pub fn learns<B: PartialEq>(before: &B, now: &B) -> StaleSide {
    match before == now {
        true => StaleSide::Shard,
        false => StaleSide::Router,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_was_left_is_taken_away() {
        let mut agreement = Agreement::default();
        let mut at = Duration::ZERO;
        let released = loop {
            match agreement.refused(at, true) {
                Next::Again(pause) => at += pause,
                other => break other,
            }
        };
        assert_eq!(released, Next::Release(FENCE_PAUSE));
        assert!(at > FENCE_LEFT && at < FENCE_LEFT + 3 * FENCE_PAUSE);
        assert_eq!(agreement.refused(at, false), Next::Read(STALE_PAUSE));
        assert_eq!(agreement.refused(PATIENCE * 2, true), Next::GiveUp);
        assert_eq!(learns(&1, &1), StaleSide::Shard);
        assert_eq!(learns(&1, &2), StaleSide::Router);
    }
}
