//! Work that leaves the machine to others: on a busy one, the worker rests in between.

use std::time::{Duration, Instant};

/// The part of a busy machine that is used: one in this many.
const PARTS: f64 = 10.0;
/// A machine is busy where fewer of its ticks were idle than one in so many.
const IDLE: u64 = 10;
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(20);

/// One piece of work of a thread.
pub struct Pace {
    began: Instant,
    ticks: Option<Ticks>,
}

#[derive(Clone, Copy)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Pace {
    pub fn begin() -> Pace {
        Pace {
            began: Instant::now(),
            ticks: ticks(),
        }
    }

    /// Rests after the piece, if the machine was busy meanwhile, long enough that `threads` such threads
    /// take a tenth of it.
    pub fn rest(self, threads: usize) {
        let (Some(before), Some(now)) = (self.ticks, ticks()) else {
            return;
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let worked = self.began.elapsed();
        std::thread::sleep(rest(worked, before, now, cores, threads));
    }
}

fn rest(worked: Duration, before: Ticks, now: Ticks, cores: usize, threads: usize) -> Duration {
    let idle = now.idle.saturating_sub(before.idle);
    let all = now.all.saturating_sub(before.all);
    if all == 0 || idle * IDLE >= all {
        return Duration::ZERO;
    }
    let times = PARTS * threads.max(1) as f64 / cores as f64 - 1.0;
    worked.mul_f64(times.max(0.0)).min(LONGEST)
}

/// Of all cores since the start of the system; `None` where that is not told.
fn ticks() -> Option<Ticks> {
    read(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// The first line of /proc/stat: `cpu  user nice system idle iowait …`.
fn read(stat: &str) -> Option<Ticks> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|n| n.parse().ok())
        .collect();
    // Time of guests is counted as user's too.
    Some(Ticks {
        idle: ticks.get(3)? + ticks.get(4)?,
        all: ticks.iter().take(8).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_tells_of_all_cores() {
        let t = read("cpu  10 20 30 400 50 6 7 8 9 10\ncpu0 1 1 1 1\n").unwrap();
        assert_eq!((t.idle, t.all), (450, 531));
        assert!(read("cpu0 1 1 1 1").is_none() && read("").is_none());
    }

    #[test]
    fn rests_where_others_want_the_machine() {
        let (second, zero) = (Duration::from_secs(1), Ticks { idle: 0, all: 0 });
        let at = |idle| Ticks { idle, all: 200 };
        let rest = |idle, cores, threads| rest(second, zero, at(idle), cores, threads).as_secs();
        assert_eq!(rest(0, 2, 1), 4);
        assert_eq!(rest(19, 2, 2), 9);
        assert_eq!(rest(0, 64, 1), 0, "less than a tenth as it is");
        assert_eq!(rest(20, 2, 1), 0, "a tenth is idle");
        assert_eq!(rest(0, 1, 100), 20);
    }
}
