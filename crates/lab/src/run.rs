//! `pando lab run`: a YCSB workload, loaded and run at one or more numbers of connections.

use crate::agents::Agents;
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::progress::say;
use crate::repeat::{Repeat, turns};
use crate::report::{Draft, MeasuredStep};
use crate::targets::local::given_or_own;
use crate::targets::{self, TargetDatabase};
use crate::terms::{WriteDurability, count, duration, pause, positive};
use crate::ycsb::session::StepPlan;
use crate::ycsb::spec::known;
use crate::ycsb::{Properties, Session, Spec, scenario};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Phases {
    /// Insert the records and stop.
    Load,
    /// Run on the existing records.
    Run,
    /// Load the missing records, then run.
    Both,
}

#[derive(clap::Args)]
pub struct Args {
    /// A built-in scenario (C.S1 … C.S5, A … F) or a property file.
    pub workload: Option<String>,
    /// Property files, in order; what comes later wins.
    #[arg(short = 'P', value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Single properties, over all files.
    #[arg(short = 'p', value_name = "KEY=VALUE")]
    pub properties: Vec<String>,
    /// The target, as mongodb://host:port[/database][?w=…&journal=…], postgres://… or mysql://…; several take
    /// turns.
    #[arg(long)]
    pub url: Vec<String>,
    /// Connections, each with one operation under way; a list runs one after the other.
    #[arg(long, alias = "threads", value_delimiter = ',')]
    pub connections: Vec<usize>,
    /// Threads of the load client (default: one a core).
    #[arg(long)]
    pub client_threads: Option<usize>,
    /// Records (recordcount): 1000, 50k, 5m …
    #[arg(long, value_parser = count)]
    pub records: Option<u64>,
    /// Operations of each run; with --duration, whichever ends first.
    #[arg(long, value_parser = count)]
    pub operations: Option<u64>,
    /// Length of each run.
    #[arg(long, value_parser = duration)]
    pub duration: Option<Duration>,
    /// Unmeasured time before measuring (not with workloads that only insert).
    #[arg(long, default_value = "0s", value_parser = pause)]
    pub warmup: Duration,
    /// Open loop: so many operations a second, response times counted from when each was due; 1000..9000 rises evenly over
    /// --duration.
    #[arg(long, value_parser = rate)]
    pub rate: Option<Rate>,
    /// Random gaps between the operations of an open loop instead of equal ones.
    #[arg(long)]
    pub poisson: bool,
    /// What a write waits for (default: what the URL says, else w1).
    #[arg(long, value_enum)]
    pub durability: Option<WriteDurability>,
    /// Whether to load, to run, or both.
    #[arg(long, value_enum, default_value = "both")]
    pub phase: Phases,
    /// Documents of an insert message while loading is not measured.
    #[arg(long, default_value_t = 1000)]
    pub load_batch: u64,
    /// Load anew even if the records are there.
    #[arg(long)]
    pub reload: bool,
    /// Where random numbers begin: the same seed, the same operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub agents: Agents,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
}

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    let (name, properties) = gather(&args)?;
    let (spec, warnings) = Spec::new(&properties)?;
    for w in warnings {
        eprintln!("warning: {w}");
    }
    let mut urls = args.url.clone();
    if urls.is_empty() {
        urls.extend(properties.get("mongodb.url").map(String::from));
    }
    let connections = if args.connections.is_empty() {
        vec![properties.parse("threadcount", 1)?]
    } else {
        args.connections.clone()
    };
    positive("--connections", &connections)?;
    positive("--load-batch", &[args.load_batch as usize])?;
    let mut draft = Draft::new("run", &name);
    draft.set("records", spec.records);
    draft.set("fields", spec.field_count);
    draft.set("field_bytes", spec.field_length);
    draft.set("requests", format!("{:?}", spec.request).to_lowercase());
    draft.set("seed", args.seed);
    if !args.agents.is_empty() {
        draft.set("agents", args.agents.agents.len());
    }
    if urls.is_empty() && args.phase != Phases::Both {
        return Err(Fault::Usage(
            "a server of this run's own has no records before it and none after it: give --url"
                .into(),
        ));
    }
    let (own, targets) = given_or_own(&urls, args.to.quiet)?;
    let repeats = args.repeat.times(targets.len())?;
    draft.repeated(repeats);
    let mut sessions = sessions(&args, targets, &name, &spec, &mut draft)?;
    let mut journal = Journal::open(&mut draft, &args.to)?;
    for (repeat, i) in turns(repeats, sessions.len()) {
        draft.begin(repeat);
        let one = &mut sessions[i];
        all(
            &args,
            one,
            &connections,
            &properties,
            &mut draft,
            &mut journal,
        )?;
    }
    drop(own);
    let page = if sessions.len() > 1 {
        Page::Beside
    } else {
        Page::None
    };
    Ok(journal.finish(draft, page)?.passed())
}

/// The workload on each target.
fn sessions(
    args: &Args,
    targets: Vec<Arc<dyn TargetDatabase>>,
    name: &str,
    spec: &Spec,
    draft: &mut Draft,
) -> Result<Vec<Session>> {
    let mut sessions = Vec::new();
    for target in targets {
        let durability = match args.durability {
            Some(d) => d,
            None => durability_of(target.url())?,
        };
        let mut session = Session::open(target, name, spec.clone(), durability)?;
        draft.tell_apart(&mut session.info);
        session.load_batch = args.load_batch;
        session.client_threads = args.client_threads.unwrap_or(0);
        session.seed = args.seed;
        session.quiet = args.to.quiet;
        draft.add_target(session.info.clone());
        sessions.push(session);
    }
    let mut durabilities: Vec<&str> = sessions.iter().map(|s| s.durability.name()).collect();
    durabilities.dedup();
    draft.set("durability", durabilities.join(", "));
    Ok(sessions)
}

fn all(
    args: &Args,
    session: &mut Session,
    connections: &[usize],
    properties: &Properties,
    draft: &mut Draft,
    journal: &mut Journal,
) -> Result<()> {
    if args.phase == Phases::Load {
        return load(args, session, connections[0], properties, draft, journal);
    }
    let (label, name) = (session.info.label(), session.name.clone());
    let mut reload = args.reload;
    for &n in connections {
        let key = format!("{label} / {name} / {n}");
        if interrupted() || draft.has(&key) {
            continue;
        }
        if args.phase == Phases::Run && session.spec.writes() {
            session.claim()?;
        }
        if args.phase != Phases::Run && !session.prepare(std::mem::take(&mut reload))? {
            break;
        }
        let plan = plan(args, &session.spec, n, properties)?;
        say(
            args.to.quiet,
            format_args!("{} with {n} connection(s)", session.name),
        );
        let step = match args.agents.is_empty() {
            true => session.run(plan, &mut |_| {})?.1,
            false => together(args, session, properties, false, plan)?,
        };
        draft.push(&key, step);
        journal.save(draft);
    }
    Ok(())
}

/// The records brought in, measured.
fn load(
    args: &Args,
    session: &mut Session,
    connections: usize,
    properties: &Properties,
    draft: &mut Draft,
    journal: &mut Journal,
) -> Result<()> {
    let key = format!("{} / {} / load", session.info.label(), session.name);
    if interrupted() || draft.has(&key) {
        return Ok(());
    }
    let plan = StepPlan {
        limit: args.duration,
        ..StepPlan::timed(connections, Duration::ZERO)
    };
    let step = match args.agents.is_empty() {
        true => session.load(plan, &mut |_| {})?.1,
        false => {
            session.empty()?;
            together(args, session, properties, true, plan)?
        }
    };
    draft.push(&key, step);
    journal.save(draft);
    Ok(())
}

/// A phase by all agents.
fn together(
    args: &Args,
    session: &mut Session,
    properties: &Properties,
    load: bool,
    plan: StepPlan,
) -> Result<MeasuredStep> {
    // The password is in no result, and agents need it.
    let given =
        |url: &&String| targets::without_password(url) == session.info.url || args.url.len() == 1;
    let url = args
        .url
        .iter()
        .find(given)
        .map_or(session.target.url(), String::as_str)
        .to_string();
    args.agents.run(session, &url, properties, load, plan)
}

fn plan(args: &Args, spec: &Spec, connections: usize, properties: &Properties) -> Result<StepPlan> {
    let only_inserts = spec.only_inserts();
    let most: u64 = properties.parse("maxexecutiontime", 0)?;
    let most = (most > 0).then(|| Duration::from_secs(most));
    let target: f64 = properties.parse("target", 0.0)?;
    let (operations, limit) = match (args.operations, args.duration.or(most)) {
        (Some(n), limit) => (n, limit),
        (None, Some(limit)) if args.workload.is_none() && args.duration.is_none() => {
            // YCSB's: whichever ends first, and no operationcount is no bound.
            let operations = Some(spec.operations).filter(|n| *n > 0);
            (operations.unwrap_or(u64::MAX), Some(limit))
        }
        (None, Some(limit)) => (u64::MAX, Some(limit)),
        // Of a scenario the size decides, of a property file its operationcount.
        (None, None) if only_inserts => (spec.records, None),
        (None, None) if args.workload.is_none() && spec.operations > 0 => (spec.operations, None),
        (None, None) => (u64::MAX, Some(Duration::from_secs(30))),
    };
    if only_inserts && args.phase == Phases::Run {
        return Err(Fault::Usage(
            "a run that only inserts starts empty: leave out --phase run".into(),
        ));
    }
    let ramp = args.rate.and_then(|r| r.to);
    if ramp.is_some() && limit.is_none() {
        return Err(Fault::Usage("a rate that rises needs --duration".into()));
    }
    let rate = args.rate.map(|r| r.from);
    Ok(StepPlan {
        connections,
        operations,
        limit,
        warmup: args.warmup,
        rate: rate.or((target > 0.0).then_some(target)),
        ramp,
        poisson: args.poisson,
    })
}

/// A rate, and the one that it comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    from: f64,
    to: Option<f64>,
}

fn rate(text: &str) -> std::result::Result<Rate, String> {
    let number = |s: &str| {
        let n = s.trim().parse::<f64>().ok();
        n.filter(|n| n.is_finite() && *n > 0.0)
            .ok_or_else(|| format!("'{s}' is not a rate (such as 5000 or 1000..9000)"))
    };
    Ok(match text.split_once("..") {
        Some((from, to)) => Rate {
            from: number(from)?,
            to: Some(number(to)?),
        },
        None => Rate {
            from: number(text)?,
            to: None,
        },
    })
}

/// The workload's name and all its properties.
pub fn gather(args: &Args) -> Result<(String, Properties)> {
    let mut properties = Properties::default();
    let mut name = String::from("ycsb");
    if let Some(workload) = &args.workload {
        if let Some(text) = scenario::find(workload) {
            properties.add_text(text)?;
            name = workload.to_ascii_uppercase();
        } else if Path::new(workload).is_file() {
            properties.add_file(Path::new(workload))?;
            name = stem(Path::new(workload));
        } else {
            return Err(Fault::Usage(format!(
                "{workload} is neither a scenario (see `pando lab list`) nor a file"
            )));
        }
    } else if args.files.is_empty() && args.properties.is_empty() {
        return Err(Fault::Usage(
            "name a scenario (see `pando lab list`) or give a property file with -P".into(),
        ));
    }
    for file in &args.files {
        properties.add_file(file)?;
        if args.workload.is_none() {
            name = stem(file);
        }
    }
    for pair in &args.properties {
        properties.add_pair(pair)?;
        // Unknown properties in a file only give a warning; those of the command line are errors.
        let key = pair.split('=').next().unwrap_or_default().trim();
        if !known(key) {
            return Err(Fault::Usage(format!("property {key} is not known")));
        }
    }
    if let Some(n) = args.records {
        properties.set("recordcount", n);
    }
    Ok((name, properties))
}

fn stem(path: &Path) -> String {
    path.file_name()
        .map_or("ycsb".into(), |n| n.to_string_lossy().into_owned())
}

/// The write concern of a URL's options, as the MongoDB binding of YCSB takes it.
pub fn durability_of(url: &str) -> Result<WriteDurability> {
    let options = url.split_once('?').map_or("", |(_, o)| o);
    let mut durability = WriteDurability::W1;
    let mut journaled = false;
    for (key, value) in options.split('&').filter_map(|o| o.split_once('=')) {
        match (key.to_ascii_lowercase().as_str(), value) {
            ("w", "0") => durability = WriteDurability::Unack,
            ("w", "1") => durability = WriteDurability::W1,
            ("w", "majority") => durability = WriteDurability::Majority,
            ("w", other) => {
                return Err(Fault::Usage(format!("{url}: w={other} is not supported")));
            }
            ("j" | "journal", "true") => journaled = true,
            _ => {}
        }
    }
    Ok(match durability {
        WriteDurability::W1 if journaled => WriteDurability::Journaled,
        other => other,
    })
}
