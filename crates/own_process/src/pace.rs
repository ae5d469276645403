//! Work that leaves the machine to others: on a busy one, the worker rests in between.
//!
//! Invariant: whether the machine is busy is what others did while this worker rested, so its own work
//! never slows it down. Others are all other threads, those of its process too. Where the system does not tell
//! what others do, the thread stands behind them and rests no more.

use crate::system::{self, GivesWay};
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// The part of a busy machine that is used: one in this many.
const PARTS: f64 = 20.0;
/// A machine is busy where others use, or wait for the disk with, more than this part of it.
const BUSY: f64 = 0.25;
/// Work for at least this long comes between two rests.
const PIECE: Duration = Duration::from_millis(20);
/// The least rest: ticks of the system are hundredths of a second.
const LOOK: Duration = Duration::from_millis(50);
/// After so much work a machine that was not busy is looked at again.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(20);

/// The work of one of several threads that share a twentieth of a busy machine.
pub struct BackgroundThrottle {
    threads: usize,
    began: Instant,
    is_busy: bool,
    /// Work since the machine was looked at; `None`: it was not yet.
    unlooked: Option<Duration>,
}

impl BackgroundThrottle {
    /// `threads`: how many work like this one. The calling thread gives way to others from now on.
    pub fn begin(threads: usize) -> BackgroundThrottle {
        system::give_way(GivesWay::Much);
        BackgroundThrottle {
            threads,
            began: Instant::now(),
            is_busy: false,
            unlooked: None,
        }
    }

    /// To be called after small pieces of work. Rests if there was enough of it.
    pub fn rest(&mut self) {
        let worked = self.began.elapsed();
        if worked < PIECE {
            return;
        }
        let rest = self.rest_after(worked, cores());
        match rest.is_zero() {
            true => self.unlooked = self.unlooked.map(|before| before + worked),
            false => {
                let before = Usage::now();
                std::thread::sleep(rest);
                self.is_busy = is_busy(before, Usage::now());
                self.unlooked = Some(Duration::ZERO);
            }
        }
        self.began = Instant::now();
    }

    fn rest_after(&self, worked: Duration, cores: usize) -> Duration {
        let is_due = (self.unlooked).is_none_or(|before| before + worked >= LOOK_AFTER);
        let least = if is_due { LOOK } else { Duration::ZERO };
        if !self.is_busy {
            return least;
        }
        let times = PARTS * self.threads.max(1) as f64 / cores as f64 - 1.0;
        worked.mul_f64(times.max(0.0)).max(least).min(LONGEST)
    }

    /// A reader that rests between its pieces.
    pub fn reading<R: Read>(&mut self, from: R) -> Reading<'_, R> {
        Reading { pace: self, from }
    }
}

pub struct Reading<'p, R> {
    pace: &'p mut BackgroundThrottle,
    from: R,
}

impl<R: Read> Read for Reading<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.pace.rest();
        self.from.read(to)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Ticks of all cores since the start of the system, and of this thread.
#[derive(Clone, Copy)]
struct Usage {
    idle: u64,
    all: u64,
    own: u64,
}

impl Usage {
    /// `None` where the system does not tell.
    fn now() -> Option<Usage> {
        let of = |path| std::fs::read_to_string(path).ok();
        let (idle, all) = of_machine(&of("/proc/stat")?)?;
        let own = of_thread(&of("/proc/thread-self/stat")?)?;
        Some(Usage { idle, all, own })
    }
}

/// Whether others used more than [`BUSY`] of the machine between two moments.
fn is_busy(before: Option<Usage>, now: Option<Usage>) -> bool {
    let (Some(before), Some(now)) = (before, now) else {
        return false;
    };
    let between = |of: fn(Usage) -> u64| of(now).saturating_sub(of(before));
    let all = between(|u| u.all);
    let idle = between(|u| u.idle) + between(|u| u.own);
    all > 0 && all.saturating_sub(idle) as f64 > BUSY * all as f64
}

/// Idle and all ticks, by the first line of /proc/stat: `cpu  user nice system idle iowait …`. A core that waits for the
/// disk is not idle: the disk is busy.
fn of_machine(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|n| n.parse().ok())
        .collect();
    // Time of guests is counted as user's too.
    Some((*ticks.get(3)?, ticks.iter().take(8).sum()))
}

/// `pid (name) state …`, where user and system ticks are the 14th and 15th field.
fn of_thread(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_of_all_cores_and_of_this_thread() {
        let stat = "cpu  10 20 30 400 50 6 7 8 9 10\ncpu0 1 1 1 1\n";
        assert_eq!(of_machine(stat), Some((400, 531)));
        assert!(of_machine("cpu0 1 1 1 1").is_none() && of_machine("").is_none());
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 70 30 1 1";
        assert_eq!(of_thread(stat), Some(100));
        assert_eq!(of_thread("7 (a) S 1"), None);
    }

    #[test]
    fn others_make_a_machine_busy_and_own_work_does_not() {
        let of = |idle, own| {
            Some(Usage {
                idle,
                all: 200,
                own,
            })
        };
        let zero = Some(Usage {
            idle: 0,
            all: 0,
            own: 0,
        });
        assert!(is_busy(zero, of(100, 0)));
        assert!(!is_busy(zero, of(100, 60)), "most of it is our own");
        assert!(!is_busy(zero, of(150, 0)));
        assert!(!is_busy(zero, zero) && !is_busy(None, zero));
    }

    #[test]
    fn rests_where_others_want_the_machine() {
        let second = Duration::from_secs(1);
        let rest = |is_busy, threads, cores| {
            let pace = BackgroundThrottle {
                threads,
                began: Instant::now(),
                is_busy,
                unlooked: Some(Duration::ZERO),
            };
            pace.rest_after(second, cores)
        };
        assert_eq!(rest(true, 1, 2), second * 9);
        assert_eq!(rest(true, 2, 2), second * 19);
        assert_eq!(rest(true, 1, 64), LOOK, "less than a twentieth as it is");
        assert_eq!(rest(false, 1, 2), LOOK, "it looks again after a second");
        assert_eq!(rest(true, 100, 1), LONGEST);
        let new = BackgroundThrottle::begin(1);
        assert_eq!(new.rest_after(PIECE, 2), LOOK, "it has not looked yet");
        let looked = BackgroundThrottle {
            unlooked: Some(Duration::ZERO),
            ..new
        };
        assert_eq!(looked.rest_after(PIECE, 2), Duration::ZERO);
    }
}
