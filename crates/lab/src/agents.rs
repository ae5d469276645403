//! One load from several processes or machines: `pando lab agent` waits for work, and `run --agents host:port,…` gives each its
//! share, has all begin together and merges what they measured.
//!
//! ```text
//! run --agents      → job (target, workload, share i of n)      agent: opens its connections
//!                   ← ready
//!                   → go, once all are ready                    agent: runs
//!                   ← what it measured, with whole histograms
//! ```
//! Each agent has the records that fall to its share by hash, so that no two insert the same. A client that knows the secret has an agent
//! send load anywhere: it listens on loopback unless told otherwise, and elsewhere only with a secret.
//!
//! Invariants: a line from the other side is bounded, and waited for no longer than a known time. Histograms are merged, percentiles
//! never averaged. An agent whose coordinator is gone ends its run.

use crate::fault::{Fault, Result, target};
use crate::fleet::INTERRUPTED;
use crate::progress::say;
use crate::report::MeasuredStep;
use crate::targets::{self, without_password};
use crate::terms::WriteDurability;
use crate::ycsb::session::StepPlan;
use crate::ycsb::{Properties, Session, Spec};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Where it listens; port 0 takes a free one and says which.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: String,
    /// A file with the secret that a run must know; needed beyond loopback.
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
    /// End after so many jobs.
    #[arg(long)]
    pub jobs: Option<usize>,
}

/// The agents of a run.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Agents {
    /// Processes that send the load together, as `pando lab agent` names them: host:port,host:port.
    #[arg(long, value_delimiter = ',')]
    pub agents: Vec<String>,
    /// The file with their secret.
    #[arg(long, value_name = "FILE", requires = "agents")]
    pub agents_secret: Option<PathBuf>,
}

/// The longest line of a job, and of what was measured.
const JOB_BYTES: u64 = 1 << 20;
const RESULT_BYTES: u64 = 256 << 20;
/// How long a side may take that has nothing to do but answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an agent is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    secret: String,
    url: String,
    name: String,
    properties: BTreeMap<String, String>,
    durability: String,
    load: bool,
    connections: usize,
    operations: u64,
    limit_seconds: Option<f64>,
    warmup_seconds: f64,
    rate: Option<f64>,
    ramp: Option<f64>,
    poisson: bool,
    seed: u64,
    /// Its share of the records.
    part: (u64, u64),
}

#[derive(Serialize, Deserialize)]
enum Message {
    Ready,
    Done(Box<MeasuredStep>),
    Failed(String),
}

pub fn main(args: Args) -> Result<bool> {
    let secret = read_secret(args.secret.as_deref())?;
    let listener = TcpListener::bind(&args.listen).map_err(target(&args.listen))?;
    let own = listener.local_addr().map_err(target(&args.listen))?;
    if !own.ip().is_loopback() && secret.is_empty() {
        return Err(Fault::Usage(format!(
            "{own}: whoever reaches an agent has it send load anywhere; beyond loopback it needs --secret"
        )));
    }
    println!("agent at {own}");
    let _ = std::io::stdout().flush();
    let jobs = args.jobs.unwrap_or(usize::MAX);
    for stream in listener.incoming().flatten().take(jobs) {
        // One job at a time: two would measure each other.
        if let Err(fault) = serve(stream, &secret) {
            eprintln!("{fault}");
        }
    }
    Ok(true)
}

fn read_secret(file: Option<&Path>) -> Result<String> {
    let Some(path) = file else {
        return Ok(String::new());
    };
    let text = std::fs::read_to_string(path).map_err(crate::fault::local(path.display()))?;
    match text.trim() {
        "" => Err(Fault::Usage(format!("{}: is empty", path.display()))),
        secret => Ok(secret.to_string()),
    }
}

/// Compares in a time that does not depend on where two texts differ.
fn same(a: &str, b: &str) -> bool {
    let differ = a.bytes().zip(b.bytes()).fold(0, |d, (a, b)| d | (a ^ b));
    a.len() == b.len() && differ == 0
}

/// A line of at most so many bytes.
fn line<T: for<'a> Deserialize<'a>>(from: &mut BufReader<TcpStream>, most: u64) -> Result<T> {
    let mut text = Vec::new();
    let read = from.by_ref().take(most).read_until(b'\n', &mut text);
    let read = read.map_err(|e| Fault::Target(format!("the other side does not answer ({e})")))?;
    if read == 0 || text.last() != Some(&b'\n') {
        return Err(Fault::Target(
            "the other side went away, or says too much".into(),
        ));
    }
    serde_json::from_slice(&text)
        .map_err(|e| Fault::Target(format!("the other side says what is not understood ({e})")))
}

fn send(to: &mut TcpStream, what: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(what).map_err(|e| Fault::Local(e.to_string()))?;
    text.push(b'\n');
    to.write_all(&text)
        .map_err(|e| Fault::Target(format!("the other side went away ({e})")))
}

/// One job of an agent.
fn serve(mut stream: TcpStream, secret: &str) -> Result<()> {
    let timeouts = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .and_then(|()| stream.try_clone());
    let mut from = BufReader::new(timeouts.map_err(target("socket"))?);
    let job: Job = line(&mut from, JOB_BYTES)?;
    if !same(&job.secret, secret) {
        let _ = send(
            &mut stream,
            &Message::Failed("the secret is another one".into()),
        );
        return Err(Fault::Target(
            "a run with another secret was refused".into(),
        ));
    }
    INTERRUPTED.store(false, Ordering::SeqCst);
    let done = work(&job, &mut stream, from);
    let said = match done {
        Ok(step) => Message::Done(Box::new(step)),
        Err(fault) => Message::Failed(fault.to_string()),
    };
    send(&mut stream, &said)
}

fn work(job: &Job, stream: &mut TcpStream, mut from: BufReader<TcpStream>) -> Result<MeasuredStep> {
    let mut session = job.session()?;
    send(stream, &Message::Ready)?;
    // The others may take their time.
    let long = from.get_ref().set_read_timeout(Some(PATIENCE * 5));
    long.map_err(target("socket"))?;
    let _go: bool = line(&mut from, JOB_BYTES)?;
    say(
        false,
        format_args!(
            "{}: {}, share {} of {}",
            without_password(&job.url),
            job.name,
            job.part.0 + 1,
            job.part.1
        ),
    );
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| end_with(from, &over));
        let done = session.share(job.load, job.plan());
        over.store(true, Ordering::SeqCst);
        done
    })
}

/// Ends the run when the coordinator is gone.
fn end_with(mut from: BufReader<TcpStream>, over: &AtomicBool) {
    let _ = from
        .get_ref()
        .set_read_timeout(Some(Duration::from_millis(300)));
    let mut byte = [0];
    while !over.load(Ordering::SeqCst) {
        match from.read(&mut byte) {
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) => {}
            _ => {
                INTERRUPTED.store(true, Ordering::SeqCst);
                return;
            }
        }
    }
}

impl Job {
    fn session(&self) -> Result<Session> {
        let mut properties = Properties::default();
        self.properties
            .iter()
            .for_each(|(k, v)| properties.set(k, v));
        let (spec, _) = Spec::new(&properties)?;
        let (index, of) = self.part;
        let is_share = |v: Option<f64>| v.is_none_or(|v| v.is_finite() && (0.0..1e9).contains(&v));
        let sound = index < of && of <= 1024 && (1..=100_000).contains(&self.connections);
        if !sound
            || !is_share(self.limit_seconds)
            || !is_share(self.rate)
            || !is_share(Some(self.warmup_seconds))
        {
            return Err(Fault::Usage("a job that makes no sense".into()));
        }
        let durability = WriteDurability::from_str(&self.durability, true).map_err(Fault::Usage)?;
        let mut session = Session::open(targets::open(&self.url)?, &self.name, spec, durability)?;
        session.quiet = true;
        session.seed = self.seed;
        session.part = Some(self.part);
        Ok(session)
    }

    fn plan(&self) -> StepPlan {
        StepPlan {
            connections: self.connections,
            operations: self.operations,
            limit: self.limit_seconds.map(Duration::from_secs_f64),
            warmup: Duration::from_secs_f64(self.warmup_seconds),
            rate: self.rate,
            ramp: self.ramp,
            poisson: self.poisson,
        }
    }
}

impl Agents {
    pub fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// A phase of a workload by all agents together, each with its share of connections, operations and rate; every insert is counted
    /// in the end.
    pub fn run(
        &self,
        session: &mut Session,
        url: &str,
        properties: &Properties,
        load: bool,
        plan: StepPlan,
    ) -> Result<MeasuredStep> {
        let secret = read_secret(self.agents_secret.as_deref())?;
        let of = self.agents.len();
        if plan.connections < of {
            return Err(Fault::Usage(format!(
                "{of} agents take at least {of} connections"
            )));
        }
        if !load && session.spec.insert > 0.0 && !session.spec.only_inserts() {
            return Err(Fault::Usage(
                "agents do not know of each other's inserts: a workload that reads what it inserts is for one process".into(),
            ));
        }
        let before = if load || session.spec.only_inserts() {
            0
        } else {
            session.count()?
        };
        let mut properties: BTreeMap<String, String> = properties
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect();
        properties.insert("table".into(), session.spec.table.clone());
        properties.insert("recordcount".into(), session.spec.records.to_string());
        let share = |n: u64, i: usize| n / of as u64 + u64::from((i as u64) < n % of as u64);
        let job = |i: usize| Job {
            secret: secret.clone(),
            url: url.to_string(),
            name: session.name.clone(),
            properties: properties.clone(),
            durability: session.durability.name().into(),
            load,
            connections: share(plan.connections as u64, i) as usize,
            operations: match plan.operations {
                u64::MAX => u64::MAX,
                n => share(n, i),
            },
            limit_seconds: plan.limit.map(|l| l.as_secs_f64()),
            warmup_seconds: plan.warmup.as_secs_f64(),
            rate: plan.rate.map(|r| r / of as f64),
            ramp: plan.ramp.map(|r| r / of as f64),
            poisson: plan.poisson,
            seed: session.seed.wrapping_add(i as u64) | 1,
            part: (i as u64, of as u64),
        };
        let jobs: Vec<Job> = (0..of).map(job).collect();
        let spent = session.info.cpu_time();
        let steps = self.together(&jobs, plan)?;
        let spent = spent
            .zip(session.info.cpu_time())
            .map(|(b, a)| a.saturating_sub(b));
        let mut step = MeasuredStep::together(steps)?;
        step.server_cpu_us = spent.map(|s| s.as_secs_f64() * 1e6 / step.operations.max(1) as f64);
        let inserted = match load || session.spec.only_inserts() {
            true => step.operations,
            false => 0,
        };
        if session.spec.delete == 0.0 {
            session.expect_count(before + inserted)?;
        }
        Ok(step)
    }

    /// All agents ready, then all at once; what each measured.
    fn together(&self, jobs: &[Job], plan: StepPlan) -> Result<Vec<MeasuredStep>> {
        let mut all = Vec::new();
        for (agent, job) in self.agents.iter().zip(jobs) {
            let mut stream = connect(agent)?;
            let clone = stream.try_clone().map_err(target(agent))?;
            let mut from = BufReader::new(clone);
            send(&mut stream, job).map_err(|f| f.at(agent))?;
            match line(&mut from, JOB_BYTES).map_err(|f| f.at(agent))? {
                Message::Ready => {}
                Message::Failed(why) => return Err(Fault::Target(format!("agent {agent}: {why}"))),
                Message::Done(_) => {
                    return Err(Fault::Target(format!(
                        "agent {agent} was done before it began"
                    )));
                }
            }
            all.push((agent, stream, from));
        }
        let patience = plan.limit.map(|l| l + plan.warmup + PATIENCE * 3);
        for (agent, stream, _) in &mut all {
            stream
                .set_read_timeout(patience)
                .map_err(target(&**agent))?;
            send(stream, &true).map_err(|f| f.at(agent))?;
        }
        let mut steps = Vec::new();
        for (agent, _, from) in &mut all {
            match line(from, RESULT_BYTES).map_err(|f| f.at(agent))? {
                Message::Done(step) => steps.push(*step),
                Message::Failed(why) => return Err(Fault::Target(format!("agent {agent}: {why}"))),
                Message::Ready => {
                    return Err(Fault::Target(format!("agent {agent} is ready twice")));
                }
            }
        }
        Ok(steps)
    }
}

fn connect(agent: &str) -> Result<TcpStream> {
    let place = agent.to_socket_addrs().map_err(target(agent))?.next();
    let place = place.ok_or_else(|| Fault::Usage(format!("{agent}: no such host")))?;
    let stream = TcpStream::connect_timeout(&place, PATIENCE).map_err(target(agent))?;
    let timeouts = stream
        .set_read_timeout(Some(PATIENCE * 2))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    timeouts.map_err(target(agent))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Latency, Sample, histogram};

    #[test]
    fn what_several_measured_is_merged_and_no_percentile_averaged() {
        let step = |rate: f64, us: u64| {
            let mut h = histogram();
            h.record_n(us * 1000, 900).unwrap();
            let mut s = MeasuredStep::example("C.S5", "P", 4, rate);
            (s.operations, s.seconds) = (900, 10.0);
            s.client_cpu_us = us as f64;
            s.latency.insert("READ".into(), Latency::of(&h));
            s.series.push(Sample {
                at: 11.0,
                seconds: 0.4,
                operations: 3,
                ..Sample::default()
            });
            s
        };
        let all = MeasuredStep::together(vec![step(90.0, 100), step(90.0, 100), step(90.0, 9000)])
            .unwrap();
        assert_eq!(
            (all.operations, all.connections, all.per_second),
            (2700, 12, 270.0)
        );
        let l = &all.latency["READ"];
        assert_eq!(l.count, 2700);
        assert!(
            (l.p50_us - 100.0).abs() < 1.0 && (l.p99_us - 9000.0).abs() < 9.0,
            "{l:?}"
        );
        assert_eq!(
            (
                all.series.len(),
                all.series[0].operations,
                all.series[10].operations
            ),
            (11, 270, 9)
        );
        assert!((all.client_cpu_us - 3066.7).abs() < 1.0);
        assert!(MeasuredStep::together(Vec::new()).is_err());
    }

    #[test]
    fn an_agent_takes_no_job_without_its_secret_and_no_endless_line() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let agent = std::thread::spawn(move || {
            let mut faults = Vec::new();
            for _ in 0..3 {
                let (stream, _) = listener.accept().unwrap();
                faults.push(serve(stream, "right").unwrap_err().to_string());
            }
            faults
        });
        let job = |secret: &str| Job {
            secret: secret.into(),
            url: "mongodb://127.0.0.1:1/".into(),
            name: "C.S5".into(),
            properties: BTreeMap::new(),
            durability: "w1".into(),
            load: false,
            connections: 1,
            operations: 1,
            limit_seconds: None,
            warmup_seconds: 0.0,
            rate: None,
            ramp: None,
            poisson: false,
            seed: 1,
            part: (0, 1),
        };
        let agents = Agents {
            agents: vec![place.clone()],
            agents_secret: None,
        };
        let refused = agents
            .together(&[job("wrong")], StepPlan::timed(1, PATIENCE))
            .unwrap_err();
        assert!(refused.to_string().contains("another one"), "{refused}");
        let mut flood = connect(&place).unwrap();
        let _ = flood.write_all(&vec![b'x'; JOB_BYTES as usize + 1]);
        let mut garbage = connect(&place).unwrap();
        garbage.write_all(b"{\"secret\": 1}\n").unwrap();
        let faults = agent.join().unwrap();
        assert!(faults[0].contains("another secret"), "{faults:?}");
        assert!(
            faults[1].contains("too much") && faults[2].contains("not understood"),
            "{faults:?}"
        );
        // Nonsense is refused before anything is opened.
        let nonsense = Job {
            part: (3, 2),
            ..job("")
        };
        assert!(nonsense.session().is_err());
    }
}
