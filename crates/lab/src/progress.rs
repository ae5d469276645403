//! What a person sees while a measurement runs: on a terminal a few lines that are drawn over, else a plain line now and
//! then. Drawn by the collecting thread once a second, never by a lane.

use crate::measure::Sample;
use crate::process;
use crate::terms::{grouped, span};
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often a plain line is written.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// When a step is over.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    Operations(u64),
    Time(Duration),
}

/// A study as a whole: its steps with weights, so that the time left of all of them can be told from those that are done.
#[derive(Clone, Copy, Debug)]
struct Course {
    total: f64,
    done: f64,
    /// Of the step under way.
    weight: f64,
    began: Instant,
    step_began: Instant,
}

/// One study runs at a time.
static COURSE: Mutex<Option<Course>> = Mutex::new(None);

/// A study begins whose steps have this weight together, in any unit.
pub fn course(total: f64) {
    let now = Instant::now();
    if let Ok(mut course) = COURSE.lock() {
        *course = (total > 0.0).then_some(Course {
            total,
            done: 0.0,
            weight: 0.0,
            began: now,
            step_began: now,
        });
    }
}

/// The step before is done, the next one begins.
pub fn step(weight: f64) {
    if let Ok(mut course) = COURSE.lock()
        && let Some(c) = course.as_mut()
    {
        c.done += c.weight;
        c.weight = weight;
        c.step_began = Instant::now();
    }
}

impl Course {
    /// Seconds until all steps are done; `share`: the done part of the present one.
    fn left(&self, share: f64, now: Instant) -> Option<f64> {
        let here = (now - self.step_began).as_secs_f64();
        let before = (self.step_began - self.began).as_secs_f64();
        let left = if self.done > 0.0 {
            (self.total - self.done) * before / self.done - here
        } else if share > 0.02 && self.weight > 0.0 {
            here / share * self.total / self.weight - here
        } else {
            return None;
        };
        // A step that takes longer than those before is not over before it is.
        Some(left.max(0.0))
    }

    fn sentence(&self, share: f64, now: Instant) -> Option<String> {
        let percent = (self.done + self.weight * share.clamp(0.0, 1.0)) / self.total * 100.0;
        let left = time(self.left(share, now)?);
        Some(format!(
            "whole run {:.0}%, about {left} left",
            percent.min(100.0)
        ))
    }
}

/// Seconds as a person says them.
fn time(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match minutes {
        _ if seconds < 100.0 => format!("{seconds:.0} s"),
        0..100 => format!("{minutes} min"),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

pub struct Progress {
    title: String,
    goal: Goal,
    /// The server's processes, when they are of this machine.
    pids: Vec<u32>,
    terminal: bool,
    quiet: bool,
    started: Instant,
    operations: u64,
    drawn_lines: usize,
    said: Instant,
    server_cpu: Option<(Instant, Duration)>,
    written: Option<(Instant, u64)>,
    client_cpu: (Instant, Duration),
}

/// What all processes have together; nothing when one is gone or there are none.
fn sum<T: std::iter::Sum>(pids: &[u32], of: impl Fn(u32) -> Option<T>) -> Option<T> {
    if pids.is_empty() {
        return None;
    }
    pids.iter().map(|p| of(*p)).sum()
}

impl Progress {
    pub fn new(title: impl Into<String>, goal: Goal, pids: Vec<u32>, quiet: bool) -> Progress {
        let now = Instant::now();
        let cpu = |pids: &[u32]| Some((now, sum(pids, process::cpu_time)?));
        Progress {
            title: title.into(),
            goal,
            terminal: std::io::stderr().is_terminal(),
            quiet,
            started: now,
            operations: 0,
            drawn_lines: 0,
            said: now,
            server_cpu: cpu(&pids),
            written: sum(&pids, process::written_bytes).map(|bytes| (now, bytes)),
            client_cpu: cpu(&[std::process::id()]).unwrap_or((now, Duration::ZERO)),
            pids,
        }
    }

    /// The server's processes that it looks at.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    fn share_done(&self) -> f64 {
        let share = match self.goal {
            Goal::Operations(n) => self.operations as f64 / n.max(1) as f64,
            Goal::Time(t) => self.started.elapsed().as_secs_f64() / t.as_secs_f64().max(1e-9),
        };
        share.clamp(0.0, 1.0)
    }

    /// Percent of one core since the last sample.
    fn busy(last: &mut (Instant, Duration), pids: &[u32]) -> Option<f64> {
        let (now, cpu) = (Instant::now(), sum(pids, process::cpu_time)?);
        let spent = cpu.saturating_sub(last.1).as_secs_f64();
        let percent = spent * 100.0 / (now - last.0).as_secs_f64().max(1e-9);
        *last = (now, cpu);
        Some(percent)
    }

    /// Megabytes a second that the server wrote since the last sample.
    fn disk(&mut self) -> Option<f64> {
        let (then, before) = self.written?;
        let (now, bytes) = (Instant::now(), sum(&self.pids, process::written_bytes)?);
        self.written = Some((now, bytes));
        let seconds = (now - then).as_secs_f64().max(1e-9);
        Some(bytes.saturating_sub(before) as f64 / 1e6 / seconds)
    }

    /// What the server and the client used since the last sample.
    fn cpu_and_disk(&mut self) -> String {
        let server = match &mut self.server_cpu {
            Some(last) => Progress::busy(last, &self.pids),
            None => None,
        };
        let client = Progress::busy(&mut self.client_cpu, &[std::process::id()]);
        let percent = |p: Option<f64>| p.map_or("–".to_string(), |p| format!("{p:.0}%"));
        let (server, client) = (percent(server), percent(client));
        let disk = self.disk();
        let disk = disk.map_or(String::new(), |mb| format!("  disk {mb:.1} MB/s written"));
        // An error would have ended the run.
        format!("CPU server {server}  client {client}{disk}  errors 0")
    }

    pub fn sample(&mut self, s: &Sample) {
        self.operations += s.operations;
        if self.quiet {
            return;
        }
        if !self.terminal && self.said.elapsed() < PLAIN_EVERY {
            return;
        }
        self.said = Instant::now();
        let elapsed = self.started.elapsed().as_secs_f64();
        let done = self.share_done();
        let left = if done > 0.0 {
            elapsed / done - elapsed
        } else {
            f64::NAN
        };
        let ns = |us: f64| span((us * 1e3) as u64);
        let rates = format!(
            "{} ops/s now, {} overall",
            grouped(s.operations as f64 / s.seconds.max(1e-9)),
            grouped(self.operations as f64 / elapsed.max(1e-9)),
        );
        let latencies = format!(
            "p50 {}  p99 {}  p99.9 {}  max {}",
            ns(s.p50_us),
            ns(s.p99_us),
            ns(s.p999_us),
            ns(s.max_us)
        );
        let cpu = self.cpu_and_disk();
        let course = COURSE.lock().ok().and_then(|c| *c);
        let whole = course.and_then(|c| c.sentence(done, Instant::now()));
        if !self.terminal {
            let whole = whole.map_or(String::new(), |w| format!("; {w}"));
            eprintln!(
                "{}: {:.0}% after {elapsed:.0} s, {rates}; {latencies}; {cpu}{whole}",
                self.title,
                done * 100.0
            );
            return;
        }
        const WIDTH: usize = 40;
        let full = (done * WIDTH as f64).round() as usize;
        let bar = format!("{}{}", "█".repeat(full), "░".repeat(WIDTH - full));
        let lines = [
            self.title.clone(),
            format!("{bar} {:.0}%  {left:.0} s left", done * 100.0),
            format!("{rates}  {} in all", grouped(self.operations as f64)),
            latencies,
            cpu,
            whole.unwrap_or_default(),
        ];
        self.draw(&lines);
    }

    fn draw(&mut self, lines: &[String]) {
        let mut out = String::new();
        if self.drawn_lines > 0 {
            out.push_str(&format!("\x1b[{}A", self.drawn_lines));
        }
        for line in lines {
            out.push_str("\r\x1b[2K");
            out.push_str(line);
            out.push('\n');
        }
        self.drawn_lines = lines.len();
        let mut err = std::io::stderr().lock();
        let _ = err.write_all(out.as_bytes());
        let _ = err.flush();
    }
}

impl Drop for Progress {
    /// Wipes the screen's lines; what remains to be said stands in the table.
    fn drop(&mut self) {
        if self.drawn_lines > 0 {
            eprint!("\x1b[{}A\x1b[J", self.drawn_lines);
        }
    }
}

/// A plain line about a preparation.
pub fn say(quiet: bool, line: impl std::fmt::Display) {
    if !quiet {
        eprintln!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_run_is_told_from_the_steps_that_are_done() {
        let began = Instant::now();
        let after = |s: u64| began + Duration::from_secs(s);
        let mut c = Course {
            total: 10.0,
            done: 0.0,
            weight: 2.0,
            began,
            step_began: began,
        };
        assert_eq!(c.left(0.0, after(1)), None);
        // Half of a fifth took 10 s, so all takes 100.
        assert_eq!(c.left(0.5, after(10)).map(f64::round), Some(90.0));
        (c.done, c.weight, c.step_began) = (2.0, 4.0, after(20));
        assert_eq!(c.left(0.0, after(20)).map(f64::round), Some(80.0));
        assert_eq!(c.left(0.9, after(500)), Some(0.0));
        assert_eq!(
            c.sentence(0.5, after(30)).unwrap(),
            "whole run 40%, about 70 s left"
        );
        assert_eq!(
            (time(140.0).as_str(), time(7260.0).as_str()),
            ("2 min", "2 h 1 min")
        );
    }
}
