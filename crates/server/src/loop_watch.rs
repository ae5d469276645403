//! Watches the event loops: a turn that takes long keeps every connection of its loop waiting.
//!
//! Each loop notes when a turn begins and ends; a thread of its own looks at the notes. So a turn is
//! told of while it lasts, also where it never ends.
//!
//! Invariant: a turn is counted once, however long it lasts, and a loop that waits for work is not.

use service::Control;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A longer turn is told of.
const HELD: Duration = Duration::from_secs(1);
const LOOKED: Duration = Duration::from_millis(250);

/// When the turn of a loop has begun: milliseconds since the watch was made, and one; 0 while the
/// loop waits.
pub(crate) struct TurnClock {
    origin: Instant,
    began: AtomicU64,
}

impl TurnClock {
    pub fn new() -> TurnClock {
        TurnClock {
            origin: Instant::now(),
            began: AtomicU64::new(0),
        }
    }

    pub fn begin(&self) {
        let now = self.origin.elapsed().as_millis() as u64;
        self.began.store(now + 1, Relaxed);
    }

    pub fn end(&self) {
        self.began.store(0, Relaxed);
    }

    /// Which turn is under way, and for how many milliseconds.
    fn turn(&self) -> Option<(u64, u64)> {
        let began = self.began.load(Relaxed);
        let now = self.origin.elapsed().as_millis() as u64;
        (began > 0).then(|| (began, (now + 1).saturating_sub(began)))
    }
}

/// What the watch knows of one loop.
struct Watched {
    clock: Arc<TurnClock>,
    /// The turn that was told of last.
    told: u64,
}

/// Watches until the server stops.
pub(crate) fn start(clocks: Vec<Arc<TurnClock>>, control: Arc<Control>) -> std::io::Result<()> {
    let mut loops: Vec<Watched> = clocks
        .into_iter()
        .map(|clock| Watched { clock, told: 0 })
        .collect();
    let watch = move || {
        while !control.is_stopping() {
            std::thread::sleep(LOOKED);
            loops
                .iter_mut()
                .enumerate()
                .for_each(|(n, l)| look(n, l, &control));
        }
    };
    std::thread::Builder::new()
        .name("loop-watch".into())
        .spawn(watch)
        .map(|_| ())
}

fn look(n: usize, watched: &mut Watched, control: &Control) {
    let Some((turn, ms)) = watched.clock.turn() else {
        return;
    };
    if u128::from(ms) < HELD.as_millis() {
        return;
    }
    let metrics = &control.metrics;
    metrics.loop_held_longest_ms.fetch_max(ms, Relaxed);
    if std::mem::replace(&mut watched.told, turn) != turn {
        metrics.loop_held.fetch_add(1, Relaxed);
        tracing::warn!(
            target: "NETWORK",
            eventLoop = n,
            millis = ms,
            "An event loop is held by one turn; its connections wait"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_turn_counts_once() {
        let clock = Arc::new(TurnClock {
            origin: Instant::now() - Duration::from_secs(60),
            began: AtomicU64::new(0),
        });
        let control = Control::default();
        let mut watched = Watched {
            clock: clock.clone(),
            told: 0,
        };
        let mut held = |began: u64| {
            clock.began.store(began, Relaxed);
            look(0, &mut watched, &control);
            control.metrics.loop_held.load(Relaxed)
        };
        assert_eq!(held(0), 0, "it waits");
        assert_eq!(held(60_001), 0, "it has just begun");
        assert_eq!(held(1), 1);
        assert_eq!(held(1), 1, "the same turn");
        assert_eq!(held(2), 2);
        assert!(control.metrics.loop_held_longest_ms.load(Relaxed) >= 59_000);
    }
}
