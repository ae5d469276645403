//! A thread that looks after the store now and then: it trims the log to its retention window.

use crate::engine::Engine;
use errors::Result;
use log::Log;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const PERIOD: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    wake: Condvar,
}

pub(crate) struct Keeper {
    stop: Arc<Stop>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    pub fn start(log: Arc<Log>, engine: Arc<Engine>) -> Keeper {
        let stop = Arc::new(Stop::default());
        let for_thread = stop.clone();
        let thread = std::thread::Builder::new()
            .name("store-keeper".into())
            .spawn(move || {
                loop {
                    {
                        let mut asked = for_thread.asked.lock();
                        if !*asked {
                            for_thread.wake.wait_for(&mut asked, PERIOD);
                        }
                        if *asked {
                            return;
                        }
                    }
                    // Nobody is told of an error here: it comes back at the next round, and writes report what fails them.
                    let _ = trim_log(&log, &engine);
                }
            });
        Keeper {
            stop,
            // Without the thread the log only grows: not worth failing for.
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

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Drops log segments that neither recovery nor the retention window needs.
pub(crate) fn trim_log(log: &Log, engine: &Engine) -> Result<()> {
    let (persisted, _) = engine.applied(true)?;
    log.trim(persisted + 1)?;
    Ok(())
}
