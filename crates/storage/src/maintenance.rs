//! The maintenance thread of a store. Ten times a second it sets the write throttle by the
//! compaction debt. Once a second it trims the log to its retention window, and adapts the engine
//! to the write load: compaction is lazy under load and thorough at rest, when memtables are
//! flushed too. It also tells the engine when records arrive in order, so that they need not be
//! merged, and looks around keys that were deleted (see `dead_search`).

use crate::dead_search;
use crate::engine::Engine;
use crate::insert_order::Arrival;
use crate::nonblocking_read::PageCacheRoom;
use crate::tuning::Load;
use crate::write_throttle::Pace;
use errors::Fallible;
use oplog::Log;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(100);
/// Ticks of a period.
const PERIOD: u32 = 10;
/// So many periods in a row must agree before the engine's options change: each change writes an
/// options file.
const AGREEING_PERIODS: u32 = 3;
/// At rest memtables larger than this are flushed: a large skip list is dearer to search than a
/// sorted file with cached blocks, and a restart has less to replay.
const TIDY_BYTES: u64 = 4 << 20;
/// The load is heavy from this many bytes of log a second on.
const HEAVY_BYTES: u64 = 8 << 20;

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    wake: Condvar,
}

pub(crate) struct MaintenanceThread {
    stop: Arc<Stop>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl MaintenanceThread {
    pub fn start(
        log: Arc<Log>,
        engine: Arc<Engine>,
        pace: Arc<Pace>,
        arrival: Arc<Arrival>,
        mut room: PageCacheRoom,
    ) -> MaintenanceThread {
        let stop = Arc::new(Stop::default());
        let for_thread = stop.clone();
        let thread = std::thread::Builder::new()
            .name("store-keeper".into())
            .spawn(move || {
                let mut load = Debounced::new(Load::Moderate);
                let mut in_order = Debounced::new(false);
                let mut paced_at = log.written_bytes();
                let mut written_before = paced_at;
                for tick in 1u32.. {
                    {
                        let mut asked = for_thread.asked.lock();
                        if !*asked {
                            for_thread.wake.wait_for(&mut asked, TICK);
                        }
                        if *asked {
                            return;
                        }
                    }
                    // At rest no writer needs throttling, so the engine is not queried.
                    let written = log.written_bytes();
                    if written != paced_at || pace.is_on() {
                        paced_at = written;
                        pace.observe(engine.merging_debt());
                        engine.share(false);
                    }
                    dead_search::look(&engine);
                    if !tick.is_multiple_of(PERIOD) {
                        continue;
                    }
                    engine.dead().tick();
                    room.look();
                    engine.share(true);
                    // An error is not reported here: the next round meets it again, and writes
                    // report their own failures.
                    let bytes = written.saturating_sub(written_before);
                    written_before = written;
                    if let Some(load) = load.look(load_of(bytes)) {
                        let _ = engine.set_load(load);
                        if load == Load::Idle && engine.memtable_bytes() > TIDY_BYTES {
                            let _ = engine.begin_flush();
                        }
                    }
                    if let Some(in_order) = arrival.look().and_then(|o| in_order.look(o)) {
                        let _ = engine.set_in_order(in_order);
                    }
                    let _ = trim_log(&log, &engine);
                }
            });
        MaintenanceThread {
            stop,
            // Without the thread the log only grows, which is no reason to fail.
            thread: Mutex::new(thread.ok()),
        }
    }

    /// Returns when the thread is gone.
    pub fn stop(&self) {
        *self.stop.asked.lock() = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for MaintenanceThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Removes log segments that neither recovery nor the retention window needs.
pub(crate) fn trim_log(log: &Log, engine: &Engine) -> Fallible<()> {
    log.trim(engine.applied(true)?.index + 1)?;
    Ok(())
}

/// The load, from the bytes of log in a period.
fn load_of(bytes: u64) -> Load {
    match bytes {
        0 => Load::Idle,
        1..HEAVY_BYTES => Load::Moderate,
        _ => Load::Heavy,
    }
}

/// Filters out short-lived changes of a value.
struct Debounced<T> {
    reported: T,
    seen: T,
    periods: u32,
}

impl<T: Copy + PartialEq> Debounced<T> {
    fn new(reported: T) -> Debounced<T> {
        Debounced {
            reported,
            seen: reported,
            periods: 0,
        }
    }

    /// Called once a period with the current value; returns it when it is new and has lasted.
    fn look(&mut self, now: T) -> Option<T> {
        if now != self.seen {
            self.seen = now;
            self.periods = 0;
        }
        self.periods += 1;
        if now == self.reported || self.periods < AGREEING_PERIODS {
            return None;
        }
        self.reported = now;
        Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lasting_load_is_told() {
        let mut load = Debounced::new(Load::Moderate);
        let mut look = |bytes: u64| load.look(load_of(bytes));
        assert_eq!(
            [look(0), look(0), look(0), look(0)],
            [None, None, Some(Load::Idle), None]
        );
        assert_eq!(
            [look(9 << 20), look(0), look(9 << 20), look(9 << 20)],
            [None; 4]
        );
        assert_eq!([look(9 << 20), look(9 << 20)], [Some(Load::Heavy), None]);
        assert_eq!(
            [look(1), look(1), look(1)],
            [None, None, Some(Load::Moderate)]
        );
    }
}
