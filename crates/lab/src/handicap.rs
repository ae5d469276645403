//! A slowdown put in on purpose, to see whether a comparison finds it: a thread that spends a share of what the other
//! threads of its process spend, once more and in vain. On a server that has one core for itself, as those of `compare`
//! have, that slows it down as much as dearer operations would; its CPU an operation grows wherever it runs.

use crate::fault::{Fault, Result, local};
use crate::process::{own_cpu_time, thread_cpu_time};
use std::time::Duration;

/// Between two looks: short beside a slice, and long beside what a look costs.
const EVERY: Duration = Duration::from_millis(10);

/// What looks cost while nobody works counts as paid, but no more than this: a long rest is no credit for later.
const CREDIT: Duration = Duration::from_millis(1);

/// Slows this process down by so many percent for as long as it lives.
pub fn start(percent: f64) -> Result<()> {
    if !(0.0..=1000.0).contains(&percent) {
        return Err(Fault::Usage("--handicap is 0 to 1000 percent".into()));
    }
    if percent == 0.0 {
        return Ok(());
    }
    let others = || {
        let all = own_cpu_time(std::process::id()).unwrap_or_default();
        all.saturating_sub(thread_cpu_time())
    };
    let mut seen = others();
    let work = move || {
        let (mut owed, mut paid) = (Duration::ZERO, Duration::ZERO);
        let mut last = thread_cpu_time();
        loop {
            std::thread::sleep(EVERY);
            let now = others();
            owed += now.saturating_sub(seen).mul_f64(percent / 100.0);
            seen = now;
            loop {
                let own = thread_cpu_time();
                paid += own.saturating_sub(last);
                last = own;
                if paid >= owed {
                    break;
                }
                std::hint::spin_loop();
            }
            paid = paid.min(owed + CREDIT);
        }
    };
    let thread = std::thread::Builder::new().name("handicap".into());
    thread.spawn(work).map_err(local("starting a thread"))?;
    Ok(())
}
