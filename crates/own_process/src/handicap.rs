//! A slowdown put in on purpose, to see whether a comparison finds it: a thread that spends a share of what the other
//! threads of its process spend, once more and in vain. On a server that has one core for itself, as those of `compare`
//! have, that slows it down as much as dearer operations would; its CPU an operation grows wherever it runs.

use std::time::Duration;

/// Between two looks: short beside a slice, and long beside what a look costs.
const EVERY: Duration = Duration::from_millis(10);

/// The cost of looking during idle time counts as paid, but no more than this: a long rest is no credit
/// for later.
const CREDIT: Duration = Duration::from_millis(1);

/// Slows this process down by so many percent (0 to 1000) for as long as it lives. The error is a
/// sentence.
pub fn start(percent: f64) -> Result<(), String> {
    if !(0.0..=1000.0).contains(&percent) {
        return Err("--handicap is 0 to 1000 percent".into());
    }
    if percent == 0.0 {
        return Ok(());
    }
    let others = || {
        let all = cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID);
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
    match thread.spawn(work) {
        Ok(_) => Ok(()),
        Err(e) => Err(format!("starting a thread: {e}")),
    }
}

fn thread_cpu_time() -> Duration {
    cpu_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// What one of the kernel's CPU clocks shows; nothing where it cannot be read.
fn cpu_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the time.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Duration::ZERO;
    }
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_makes_sense_is_taken() {
        assert!(start(0.0).is_ok());
        for wrong in [-1.0, 1000.5, f64::NAN] {
            assert!(start(wrong).is_err(), "{wrong}");
        }
        let before = thread_cpu_time();
        while thread_cpu_time() < before + Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        assert!(cpu_time(libc::CLOCK_PROCESS_CPUTIME_ID) >= before);
    }
}
