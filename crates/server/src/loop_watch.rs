//! Watches the event loops: a turn that takes long keeps every connection of its loop waiting.
//!
//! Each loop notes when a turn begins and ends; a thread of its own looks at the notes. So a turn is
//! told of while it lasts, also where it never ends. It is told of again when it has worked twice as
//! long: its time may be what others on the machine do, its processor time is its own.
//!
//! Invariant: a turn is counted once, however long it lasts, and a loop that waits for work is not.

use service::Control;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A longer turn is told of.
const HELD: Duration = Duration::from_secs(1);
const LOOKED: Duration = Duration::from_millis(250);

/// When the turn of a loop has begun: milliseconds since the watch was made, and one; 0 while the
/// loop waits.
pub(crate) struct TurnClock {
    origin: Instant,
    began: AtomicU64,
    /// The loop's thread in `/proc`, from its first turn on; nothing where there is no such place.
    thread: OnceLock<Option<PathBuf>>,
}

impl TurnClock {
    pub fn new() -> TurnClock {
        TurnClock {
            origin: Instant::now(),
            began: AtomicU64::new(0),
            thread: OnceLock::new(),
        }
    }

    /// On the loop's thread.
    pub fn begin(&self) {
        self.thread.get_or_init(|| {
            let own = std::fs::read_link("/proc/thread-self").ok()?;
            Some(Path::new("/proc").join(own).join("schedstat"))
        });
        let now = self.origin.elapsed().as_millis() as u64;
        self.began.store(now + 1, Relaxed);
    }

    pub fn end(&self) {
        self.began.store(0, Relaxed);
    }

    /// The processor time of the loop's thread, in milliseconds.
    fn worked_ms(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.thread.get()?.as_ref()?).ok()?;
        let nanos: u64 = text.split(' ').next()?.parse().ok()?;
        Some(nanos / 1_000_000)
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
    /// The turn that was seen last, and the processor time of its thread at that moment.
    seen: u64,
    worked_before_ms: u64,
    /// The turn that was told of last, and from which processor time on it is told of again.
    told: u64,
    again_at_ms: u64,
}

impl Watched {
    fn new(clock: Arc<TurnClock>) -> Watched {
        Watched {
            clock,
            seen: 0,
            worked_before_ms: 0,
            told: 0,
            again_at_ms: 0,
        }
    }

    /// How long a turn has worked since it was seen first.
    fn worked_ms(&mut self, turn: u64) -> u64 {
        let now = self.clock.worked_ms().unwrap_or(0);
        if std::mem::replace(&mut self.seen, turn) != turn {
            self.worked_before_ms = now;
        }
        now.saturating_sub(self.worked_before_ms)
    }
}

/// Watches until the server stops.
pub(crate) fn start(clocks: Vec<Arc<TurnClock>>, control: Arc<Control>) -> std::io::Result<()> {
    let mut loops: Vec<Watched> = clocks.into_iter().map(Watched::new).collect();
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
    let worked = watched.worked_ms(turn);
    if u128::from(ms) < HELD.as_millis() {
        return;
    }
    let metrics = &control.metrics;
    metrics.loop_held_longest_ms.fetch_max(ms, Relaxed);
    let new = std::mem::replace(&mut watched.told, turn) != turn;
    if new {
        metrics.loop_held.fetch_add(1, Relaxed);
        watched.again_at_ms = HELD.as_millis() as u64;
    }
    let again = worked >= watched.again_at_ms;
    if again {
        watched.again_at_ms = worked.saturating_mul(2);
    }
    if new || again {
        tracing::warn!(
            target: "NETWORK",
            eventLoop = n,
            millis = ms,
            workedMillis = worked,
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
            thread: OnceLock::new(),
        });
        let control = Control::default();
        let mut watched = Watched::new(clock.clone());
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

    /// What others do on the machine does not count.
    #[test]
    fn the_work_of_a_turn_is_its_own_thread_s() {
        let clock = Arc::new(TurnClock::new());
        clock.begin();
        let mut watched = Watched::new(clock.clone());
        assert_eq!(watched.worked_ms(1), 0, "it was not seen before");
        let started = clock.worked_ms().expect("Linux tells");
        while clock.worked_ms().unwrap_or(0) < started + 30 {
            std::hint::black_box((0..10_000u64).sum::<u64>());
        }
        assert!(watched.worked_ms(1) >= 30);
        let others = clock.clone();
        let of_clock = std::thread::spawn(move || {
            others.begin();
            others.worked_ms()
        });
        assert!(
            of_clock.join().unwrap() >= Some(started + 30),
            "the first thread is the loop's"
        );
        assert_eq!(watched.worked_ms(2), 0, "another turn");
    }
}
