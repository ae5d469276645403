//! All lanes of a run together: threads, one sample a second, and what came out in the end.

use crate::connection::{MongoAddress, handshake};
use crate::fault::{Fault, Result};
use crate::host::Ticks;
use crate::lane::{Lane, LaneOutcome, OpenLoopPace, Workload};
use crate::measure::{Sample, Single, Tick, histogram};
use crate::process::{ProcessCounters, cpu_time_of, give_way};
use crate::progress::Progress;
use crate::targets::Dialect;
use hdrhistogram::Histogram;
use outgoing::Stream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const SAMPLE: Duration = Duration::from_secs(1);

/// Set by Ctrl-C: runs end early and keep what they measured.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Lets Ctrl-C end the run under way; a second one ends the process.
pub fn catch_interrupts() {
    extern "C" fn handler(_: libc::c_int) {
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            // SAFETY: _exit is async-signal-safe.
            unsafe { libc::_exit(130) };
        }
    }
    // SAFETY: the handler does only what a signal handler may.
    unsafe { libc::signal(libc::SIGINT, handler as *const () as libc::sighandler_t) };
    static ADVISER: std::sync::Once = std::sync::Once::new();
    ADVISER.call_once(|| drop(std::thread::spawn(advise)));
}

/// How long an end may take after Ctrl-C until the user is told how to have it at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a server may keep the process waiting after that.
const SILENCE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(200);

/// Tells the user after Ctrl-C why the run does not end, and ends the process when it waits for a server that does not answer.
/// The steps that are done are on the disk.
fn advise() {
    while !interrupted() {
        std::thread::sleep(LOOK);
    }
    std::thread::sleep(PATIENCE);
    eprintln!("waiting for a server's answer; Ctrl-C once more ends at once");
    let mut seen = (Waits::last(), Instant::now());
    while Waits::last().is_none() || seen.1.elapsed() < SILENCE {
        std::thread::sleep(LOOK);
        if Waits::last() != seen.0 {
            seen = (Waits::last(), Instant::now());
        }
    }
    eprintln!("a server does not answer: this ends without it; --resume goes on");
    // SAFETY: nothing runs after it. A thread that waits for a socket cannot be asked to end.
    unsafe { libc::_exit(130) };
}

/// A read that blocks, for as long as it lives.
pub(crate) struct Waits;

static BEGUN: AtomicU64 = AtomicU64::new(0);
static WAITING: AtomicU64 = AtomicU64::new(0);

impl Waits {
    pub(crate) fn begin() -> Waits {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        WAITING.fetch_add(1, Ordering::SeqCst);
        Waits
    }

    /// The number of the read that began last, while any waits.
    fn last() -> Option<u64> {
        let waiting = WAITING.load(Ordering::SeqCst) > 0;
        waiting.then(|| BEGUN.load(Ordering::SeqCst))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::SeqCst);
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// What a run gave.
#[derive(Clone)]
pub struct RunOutcome {
    pub operations: u64,
    pub requests: u64,
    pub elapsed: Duration,
    /// Histograms by kind, those of all lanes merged; kinds that did not occur are left out.
    pub kinds: Vec<(&'static str, Histogram<u64>)>,
    pub samples: Vec<Sample>,
    /// CPU time of the lanes' threads.
    pub client_cpu: Duration,
    /// How long those threads had nothing to do, together.
    pub client_idle: Duration,
    /// Sent and received.
    pub bytes: [u64; 2],
    /// How late the client itself sent the requests of an open loop, in nanoseconds.
    pub lag: Option<Histogram<u64>>,
    /// What the whole machine did meanwhile.
    pub machine: Ticks,
    /// What the server's processes counted meanwhile, where they are known.
    pub counters: Option<ProcessCounters>,
    /// Of an open loop: times from the sending on, by kind.
    pub served: Vec<(&'static str, Histogram<u64>)>,
    /// Each operation by itself, where that is wanted, in no order.
    pub singles: Vec<Single>,
}

impl RunOutcome {
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl RunOutcome {
    /// All lanes together.
    fn of(
        lanes: Vec<LaneOutcome>,
        kinds: &[&'static str],
        samples: Vec<Sample>,
        machine: Ticks,
    ) -> Result<RunOutcome> {
        let mut outcome = RunOutcome {
            operations: 0,
            requests: 0,
            elapsed: Duration::ZERO,
            kinds: kinds.iter().map(|k| (*k, histogram())).collect(),
            samples,
            client_cpu: Duration::ZERO,
            client_idle: Duration::ZERO,
            bytes: [0; 2],
            lag: None,
            machine,
            counters: None,
            served: kinds.iter().map(|k| (*k, histogram())).collect(),
            singles: Vec::new(),
        };
        let add = |all: &mut Vec<(&str, Histogram<u64>)>, one: Vec<Histogram<u64>>| {
            all.iter_mut().zip(one).try_for_each(|((_, all), one)| {
                let merged = all.add(&one);
                merged.map_err(|e| Fault::Local(format!("merging histograms: {e}")))
            })
        };
        for mut lane in lanes {
            if let Some(lag) = &lane.lag {
                // Same bounds.
                let _ = outcome.lag.get_or_insert_with(histogram).add(lag);
            }
            outcome.operations += lane.recorder.operations;
            outcome.requests += lane.recorder.requests;
            outcome.elapsed = outcome.elapsed.max(lane.elapsed);
            outcome.client_cpu += lane.cpu;
            outcome.client_idle += lane.idle;
            outcome.bytes[0] += lane.bytes[0];
            outcome.bytes[1] += lane.bytes[1];
            outcome.singles.append(&mut lane.recorder.take_singles());
            add(&mut outcome.served, lane.recorder.take_served())?;
            add(&mut outcome.kinds, lane.recorder.into_totals())?;
        }
        outcome.kinds.retain(|(_, h)| !h.is_empty());
        outcome.served.retain(|(_, h)| !h.is_empty());
        Ok(outcome)
    }
}

/// Connections spread over threads.
pub struct Fleet<W> {
    pub lanes: Vec<Lane<W>>,
}

impl<W: Workload> Fleet<W> {
    /// `make(i, n)` gives the workload of lane `i` of `n`.
    pub fn connect(
        target: &MongoAddress,
        connections: usize,
        threads: usize,
        mut make: impl FnMut(usize, usize) -> W,
    ) -> Result<Fleet<W>> {
        let open = || Ok((handshake(target)?.0, 0));
        Fleet::over(&open, connections, threads, |i, n| Ok(make(i, n)))
    }

    /// The same through any database's dialect.
    pub fn through(
        dialect: &dyn Dialect,
        connections: usize,
        threads: usize,
        make: impl FnMut(usize, usize) -> Result<W>,
    ) -> Result<Fleet<W>> {
        Fleet::over(&|| dialect.connect(), connections, threads, make)
    }

    fn over(
        open: &dyn Fn() -> Result<(Stream, u32)>,
        connections: usize,
        threads: usize,
        mut make: impl FnMut(usize, usize) -> Result<W>,
    ) -> Result<Fleet<W>> {
        let threads = threads.clamp(1, connections.max(1));
        let mut lanes = Vec::with_capacity(threads);
        for i in 0..threads {
            let share = connections / threads + usize::from(i < connections % threads);
            lanes.push(Lane::connect(open, share, make(i, threads)?)?);
        }
        Ok(Fleet { lanes })
    }

    /// Makes the loop open: `rate` operations a second in all, which may move evenly to another rate. `None` closes it again.
    pub fn set_ramp(&mut self, rate: Option<f64>, ramp: Option<(f64, Duration)>, poisson: bool) {
        let lanes = self.lanes.len() as f64;
        for (i, lane) in self.lanes.iter_mut().enumerate() {
            lane.pace = rate.map(|r| OpenLoopPace {
                rate: r / lanes,
                ramp: ramp.map(|(end, over)| (end / lanes, over)),
                poisson,
                seed: i as u64 + 1,
            });
        }
    }

    /// Runs all lanes to their end; `observe` sees each second as it passes.
    pub fn run(
        &mut self,
        limit: Option<Duration>,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<RunOutcome> {
        let stop = AtomicBool::new(false);
        let before = Ticks::now();
        let (ticks, received) = channel::<Tick>();
        let kinds = self.lanes.first().map_or(&[][..], |l| l.workload.kinds());
        let mut samples = Vec::new();
        let finished = std::thread::scope(|scope| {
            let handles: Vec<_> = self
                .lanes
                .iter_mut()
                .map(|lane| {
                    let (ticks, stop) = (ticks.clone(), &stop);
                    scope.spawn(move || {
                        // On the server's cores a client that woke up would interrupt it at each reply, to take that one and
                        // sleep again. Requests at set times must leave on time.
                        if lane.pace.is_none() {
                            give_way();
                        }
                        let outcome = lane.run(limit, stop, &ticks);
                        if outcome.is_err() {
                            stop.store(true, Ordering::Relaxed);
                        }
                        outcome
                    })
                })
                .collect();
            drop(ticks);
            let mut window = Window::new(kinds);
            loop {
                match received.recv_timeout(window.left()) {
                    Ok(tick) => window.add(&tick),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                if interrupted() {
                    stop.store(true, Ordering::Relaxed);
                }
                if window.left().is_zero() {
                    let sample = window.close();
                    observe(&sample);
                    samples.push(Sample {
                        kinds: Vec::new(),
                        ..sample
                    });
                }
            }
            if window.operations > 0 {
                samples.push(window.close());
            }
            handles
                .into_iter()
                .map(|h| {
                    h.join()
                        .unwrap_or_else(|_| Err(Fault::Local("a lane's thread panicked".into())))
                })
                .collect::<Result<Vec<_>>>()
        })?;
        let machine = Ticks::now().since(before);
        RunOutcome::of(finished, kinds, samples, machine)
    }

    /// The same with progress on the screen; gives the CPU time too that the server's processes spent meanwhile, where
    /// it can be known.
    pub fn watched(
        &mut self,
        limit: Option<Duration>,
        mut progress: Progress,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<(RunOutcome, Option<Duration>)> {
        let pids = progress.pids().to_vec();
        let counted = ProcessCounters::of(&pids);
        let before = cpu_time_of(&pids);
        let mut outcome = self.run(limit, &mut |s| {
            progress.sample(s);
            observe(s);
        })?;
        let spent = before.zip(cpu_time_of(&pids));
        let counters = counted.zip(ProcessCounters::of(&pids));
        outcome.counters = counters.map(|(before, after)| after.since(before));
        Ok((outcome, spent.map(|(b, a)| a.saturating_sub(b))))
    }

    /// The same without anybody looking on.
    pub fn run_quietly(&mut self, limit: Option<Duration>) -> Result<RunOutcome> {
        self.run(limit, &mut |_| {})
    }
}

/// The second under way.
struct Window {
    start: Instant,
    opened: Instant,
    operations: u64,
    latencies: Histogram<u64>,
    names: &'static [&'static str],
    kinds: Vec<(&'static str, Histogram<u64>)>,
}

impl Window {
    fn new(names: &'static [&'static str]) -> Window {
        let now = Instant::now();
        Window {
            start: now,
            opened: now,
            operations: 0,
            latencies: histogram(),
            names,
            kinds: Vec::new(),
        }
    }

    fn left(&self) -> Duration {
        SAMPLE.saturating_sub(self.opened.elapsed())
    }

    fn add(&mut self, tick: &Tick) {
        self.operations += tick.operations;
        for (kind, h) in &tick.latencies {
            // All have the same bounds.
            let _ = self.latencies.add(h);
            let Some(name) = self.names.get(usize::from(*kind)) else {
                continue;
            };
            match self.kinds.iter_mut().find(|(n, _)| n == name) {
                Some((_, all)) => drop(all.add(h)),
                None => self.kinds.push((name, h.clone())),
            }
        }
    }

    fn close(&mut self) -> Sample {
        let now = Instant::now();
        let at = |q: f64| self.latencies.value_at_quantile(q) as f64 / 1e3;
        let sample = Sample {
            at: (now - self.start).as_secs_f64(),
            seconds: (now - self.opened).as_secs_f64(),
            operations: self.operations,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.latencies.max() as f64 / 1e3,
            kinds: std::mem::take(&mut self.kinds),
        };
        self.opened = now;
        self.operations = 0;
        self.latencies.reset();
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::{Issued, Judged};
    use crate::process::gives_way;
    use bson::Doc;

    /// Sends nothing, and tells how its thread is scheduled.
    struct Witness(Option<bool>);

    impl Workload for Witness {
        fn kinds(&self) -> &'static [&'static str] {
            &["NOTHING"]
        }

        fn next(&mut self, _: &mut Vec<u8>) -> Option<Issued> {
            self.0 = Some(gives_way());
            None
        }

        fn reply(&mut self, _: &Issued, _: Doc<'_>, _: &mut Vec<u8>) -> Judged {
            Ok(None)
        }
    }

    #[test]
    fn clients_give_way_unless_their_requests_are_due() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let open = || Ok((Stream::from(std::net::TcpStream::connect(to).unwrap()), 0));
        for rate in [None, Some(10.0)] {
            let mut fleet = Fleet::over(&open, 2, 2, |_, _| Ok(Witness(None))).unwrap();
            fleet.set_ramp(rate, None, false);
            fleet.run_quietly(Some(Duration::from_millis(150))).unwrap();
            for lane in &fleet.lanes {
                assert_eq!(lane.workload.0, Some(rate.is_none()));
            }
        }
        assert!(!gives_way(), "only the clients' threads");
    }
}
