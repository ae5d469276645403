//! `pando lab ycsb load|run <binding> …`: YCSB's own command line, so that scripts and property files run unmodified.
//!
//! ```text
//! pando lab ycsb run mongodb -P workloads/workloada -p mongodb.url=mongodb://127.0.0.1/ycsb?w=1 -threads 16 -s
//! ```
//! Results go to standard output in YCSB's text form, the status line of `-s` to standard error.

use super::client::OPERATIONS;
use super::export::Exporter;
use super::output::{AveragesOverTime, Form, MeasurementInterval, Measurements, StatusLine};
use super::session::{Session, StepPlan};
use super::spec::known;
use super::{Properties, Spec};
use crate::fault::{Fault, Result, local};
use crate::fleet::{RunOutcome, catch_interrupts, interrupted};
use crate::html;
use crate::measure::Sample;
use crate::output::fresh_place;
use crate::report::{Draft, MeasuredStep, write_whole};
use crate::run::durability_of;
use crate::targets::{self, mark};
use crate::terms::WriteDurability;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const USAGE: &str = "\
Usage: pando lab ycsb load|run BINDING [options]
  BINDING        mongodb, mongodb-async, jdbc (db.url=jdbc:mysql://… or jdbc:postgresql://…), postgrenosql,
                 or a target's URL
  -P FILE        a property file; several are read in order
  -p KEY=VALUE   a property, over all files
  -s             a status line every status.interval seconds (10)
  -threads N     connections (threadcount)
  -target N      operations a second in all (target)
  -l TEXT        a label for the status line
  -db CLASS      accepted and ignored
  --overwrite    write into a table that the laboratory did not make
  --out FILE     a result (JSON) with a page beside it";

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// load or run, the binding, and YCSB's options.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

#[derive(Debug, Default)]
struct Request {
    load: bool,
    binding: String,
    properties: Properties,
    status: bool,
    label: String,
    overwrite: bool,
    out: Option<PathBuf>,
}

fn parse(words: &[String]) -> Result<Request> {
    let usage = |why: String| Fault::Usage(format!("{why}; see pando lab ycsb --help"));
    let mut words = words.iter().map(String::as_str);
    let load = match words.next() {
        Some("load") => true,
        Some("run") => false,
        Some(other) => return Err(usage(format!("'{other}' is neither load nor run"))),
        None => return Err(usage("load or run is expected".into())),
    };
    let binding = words.next().filter(|b| !b.starts_with('-'));
    let binding = binding.ok_or_else(|| usage("a binding is expected, such as mongodb".into()))?;
    let mut request = Request {
        load,
        binding: binding.to_string(),
        ..Request::default()
    };
    // Single properties win over files wherever they stand.
    let mut single = Vec::new();
    while let Some(word) = words.next() {
        let mut value = || {
            let missing = || usage(format!("{word} wants a value"));
            words.next().ok_or_else(missing)
        };
        match word {
            "-P" => request.properties.add_file(Path::new(value()?))?,
            "-p" => single.push(value()?),
            "-s" => request.status = true,
            "-l" => request.label = value()?.to_string(),
            "-threads" | "-t" => request.properties.set("threadcount", value()?),
            "-target" => request.properties.set("target", value()?),
            "-db" => {
                value()?;
            }
            "-load" => request.load = true,
            "--overwrite" => request.overwrite = true,
            "--out" => request.out = Some(value()?.into()),
            other => return Err(usage(format!("unknown option {other}"))),
        }
    }
    for pair in single {
        request.properties.add_pair(pair)?;
    }
    Ok(request)
}

/// The target's URL that the binding's properties give.
fn url(binding: &str, p: &Properties) -> Result<String> {
    let with_options = |url: &str, name: &str| match p.get(name) {
        Some(value) if !url.contains('?') => format!("{url}?{value}"),
        _ => url.to_string(),
    };
    Ok(match binding {
        "mongodb" | "mongodb-async" => {
            let url = p.get("mongodb.url").ok_or_else(|| {
                Fault::Usage(
                    "say which server is written to: -p mongodb.url=mongodb://host:port/ycsb?w=1"
                        .into(),
                )
            })?;
            with_options(url, "lab.options")
        }
        "jdbc" | "postgrenosql" => {
            let name = if binding == "jdbc" {
                "db.url"
            } else {
                "postgrenosql.url"
            };
            let Some(jdbc) = p.get(name).and_then(|u| u.strip_prefix("jdbc:")) else {
                return Err(Fault::Usage(format!(
                    "{binding}: the property {name}=jdbc:… is expected"
                )));
            };
            let prefix = name.trim_end_matches("url");
            let user = p.get(&format!("{prefix}user"));
            let password = p.get(&format!("{prefix}passwd"));
            let mut url = jdbc.to_string();
            if let (Some(user), Some((scheme, rest))) = (user, jdbc.split_once("://")) {
                let password = password.map_or(String::new(), |p| format!(":{}", escaped(p)));
                url = format!("{scheme}://{}{password}@{rest}", escaped(user));
            }
            if binding == "postgrenosql" {
                let mark = if url.contains('?') { '&' } else { '?' };
                url = format!("{url}{mark}layout=jsonb");
            }
            url
        }
        url if url.contains("://") => url.to_string(),
        other => {
            return Err(Fault::Usage(format!(
                "binding {other} is not known (mongodb, mongodb-async, jdbc, postgrenosql, or a target's URL)"
            )));
        }
    })
}

fn escaped(s: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    s.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

/// What writes wait for: the URL's options, or the binding's older property.
fn durability(url: &str, p: &Properties) -> Result<WriteDurability> {
    let asked = p.get("mongodb.writeConcern").map(str::to_ascii_lowercase);
    match asked.as_deref() {
        None => durability_of(url),
        Some("unacknowledged" | "none" | "errors_ignored") => Ok(WriteDurability::Unack),
        Some("acknowledged" | "safe" | "normal") => Ok(WriteDurability::W1),
        Some("journaled" | "fsynced" | "fsync_safe" | "journal_safe") => {
            Ok(WriteDurability::Journaled)
        }
        Some("replica_acknowledged" | "majority" | "replicas_safe") => {
            Ok(WriteDurability::Majority)
        }
        Some(other) => Err(Fault::Usage(format!(
            "mongodb.writeConcern={other} is not known"
        ))),
    }
}

pub fn main(args: Args) -> Result<bool> {
    let words: Vec<String> = args
        .words
        .iter()
        .map(|w| w.to_string_lossy().into_owned())
        .collect();
    if words
        .iter()
        .any(|w| w == "--help" || w == "-h" || w == "-help")
    {
        println!("{USAGE}");
        return Ok(true);
    }
    catch_interrupts();
    let request = parse(&words)?;
    if request.overwrite {
        mark::overwrite();
    }
    let p = &request.properties;
    let (mut spec, warnings) = Spec::new(p)?;
    for w in warnings {
        eprintln!("warning: {w}");
    }
    let wanted = Wanted {
        forms: Form::all(p)?,
        interval: MeasurementInterval::of(p)?,
        exporter: Exporter::of(p)?,
    };
    let url = url(&request.binding, p)?;
    let target = targets::open(&url)?;
    let durability = durability(&url, p)?;
    if request.load {
        // The load phase inserts one by one unless the binding was told otherwise.
        spec.operations = spec.insert_count;
    }
    let plan = plan(&request, &spec)?;
    let mut session = Session::open(target, "ycsb", spec, durability)?;
    session.quiet = true;
    session.singles = wanted.raw();
    let page = match &request.out {
        Some(out) => {
            fresh_place(out, false)?;
            Some((
                out,
                Draft::new("ycsb", if request.load { "load" } else { "run" }),
            ))
        }
        None => None,
    };
    let started = Instant::now();
    let (outcome, series) = run(&request, &mut session, plan, &wanted)?;
    let measurements = Measurements {
        outcome: &outcome,
        elapsed: outcome.elapsed,
        forms: &wanted.forms,
        interval: wanted.interval,
        series: &series,
        names: &OPERATIONS,
    };
    print(&measurements, wanted.exporter, p.get("exportfile"))?;
    if let Some((out, draft)) = page {
        let step = session.measured(request.load, plan, &outcome)?;
        finish(&request, &session, step, draft, out)?;
    }
    if interrupted() {
        eprintln!("interrupted after {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(true)
}

/// The result with its page, beside YCSB's own output.
fn finish(
    request: &Request,
    session: &Session,
    step: MeasuredStep,
    mut draft: Draft,
    out: &Path,
) -> Result<()> {
    draft.add_target(session.info.clone());
    draft.set("durability", session.durability.name());
    let told = |k: &str| known(k) && !k.contains("url") && !k.contains("pass");
    for (key, value) in request.properties.iter().filter(|(k, _)| told(k)) {
        draft.set(key, value);
    }
    draft.push(&step.name.clone(), step);
    let report = draft.end()?;
    report.write(out)?;
    eprintln!("page: {}", html::beside(&report, out)?.display());
    Ok(())
}

/// What the output is to hold.
struct Wanted {
    forms: Vec<(&'static str, Form)>,
    interval: MeasurementInterval,
    exporter: Exporter,
}

impl Wanted {
    fn raw(&self) -> bool {
        self.forms
            .iter()
            .any(|(_, f)| matches!(f, Form::Raw { .. }))
    }

    /// Milliseconds of a series.
    fn granularity(&self) -> Option<u64> {
        self.forms.iter().find_map(|(_, f)| match f {
            Form::Series { granularity } => Some(*granularity),
            _ => None,
        })
    }
}

fn plan(request: &Request, spec: &Spec) -> Result<StepPlan> {
    let p = &request.properties;
    let connections: usize = p.parse("threadcount", 1)?;
    crate::terms::positive("threadcount", &[connections])?;
    let rate: f64 = p.parse("target", 0.0)?;
    let most: u64 = p.parse("maxexecutiontime", 0)?;
    if spec.operations == 0 && !request.load && most == 0 {
        return Err(Fault::Usage(
            "operationcount must be set (or maxexecutiontime)".into(),
        ));
    }
    let series = p.get("measurementtype") == Some("timeseries");
    if rate > 0.0 && (request.status || series) {
        eprintln!("the status line and series count latencies from when each operation was due");
    }
    Ok(StepPlan {
        connections,
        operations: match spec.operations {
            0 => u64::MAX,
            n => n,
        },
        limit: (most > 0).then(|| Duration::from_secs(most)),
        warmup: Duration::ZERO,
        rate: (rate > 0.0).then_some(rate),
        ramp: None,
        poisson: false,
    })
}

/// The phase, with the status line beside.
fn run(
    request: &Request,
    session: &mut Session,
    plan: StepPlan,
    wanted: &Wanted,
) -> Result<(RunOutcome, AveragesOverTime)> {
    let every = request.properties.parse("status.interval", 10u64)?.max(1);
    let goal = match request.load {
        true => session.spec.insert_count,
        false => plan.operations,
    };
    let every = Duration::from_secs(every);
    let mut status = StatusLine::new(request.status, &request.label, every, goal);
    let granularity = wanted.granularity();
    let mut series = AveragesOverTime::default();
    let mut observe = |s: &Sample| {
        status.sample(s);
        if let Some(granularity) = granularity {
            series.sample(s, granularity);
        }
    };
    let outcome = match request.load {
        true => session.add(plan, &mut observe)?,
        false => session.go(plan, &mut observe)?,
    };
    status.end(&outcome);
    if let Some(granularity) = granularity {
        series.end(&outcome, granularity);
    }
    Ok((outcome, series))
}

/// Raw lines first, as YCSB has it, then the figures, to the export's file or the output.
fn print(all: &Measurements<'_>, exporter: Exporter, file: Option<&str>) -> Result<()> {
    match all.raw_lines() {
        Some((Some(file), lines)) => {
            use std::io::Write;
            let open = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(file);
            open.and_then(|mut f| f.write_all(lines.as_bytes()))
                .map_err(local(file.display()))?;
        }
        Some((None, lines)) => print!("{lines}"),
        None => {}
    }
    let text = exporter.text(&all.entries());
    match file {
        // Figures are not lost with the file.
        Some(file) => write_whole(Path::new(file), &text).inspect_err(|_| print!("{text}")),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(s: &str) -> Vec<String> {
        s.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn the_command_line_as_scripts_write_it() {
        let r = parse(&words("run mongodb -s -p recordcount=5 -threads 16 -target 100 -l x -db site.ycsb.db.MongoDbClient")).unwrap();
        assert!(!r.load && r.status);
        assert_eq!((r.binding.as_str(), r.label.as_str()), ("mongodb", "x"));
        assert_eq!(r.properties.get("threadcount"), Some("16"));
        assert_eq!(r.properties.get("target"), Some("100"));
        for bad in [
            "",
            "walk mongodb",
            "run",
            "run -s",
            "run mongodb -P",
            "run mongodb -x",
            "run mongodb -p a",
            "run mongodb -P /nowhere/x",
        ] {
            assert!(parse(&words(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn bindings_lead_to_targets() {
        let mut p = Properties::default();
        assert!(url("mongodb", &p).is_err());
        p.set("mongodb.url", "mongodb://h/ycsb?w=1");
        assert_eq!(url("mongodb", &p).unwrap(), "mongodb://h/ycsb?w=1");
        assert!(url("jdbc", &p).is_err() && url("cassandra-cql", &p).is_err());
        p.set("db.url", "jdbc:mysql://h:3306/ycsb");
        p.set("db.user", "me");
        p.set("db.passwd", "a@b");
        p.set("postgrenosql.url", "jdbc:postgresql://h/test");
        assert_eq!(url("jdbc", &p).unwrap(), "mysql://me:a%40b@h:3306/ycsb");
        assert_eq!(
            url("postgrenosql", &p).unwrap(),
            "postgresql://h/test?layout=jsonb"
        );
        assert_eq!(
            durability("mongodb://h/?w=1&j=true", &p).unwrap(),
            WriteDurability::Journaled
        );
        p.set("mongodb.writeConcern", "unacknowledged");
        assert_eq!(
            durability("mongodb://h/", &p).unwrap(),
            WriteDurability::Unack
        );
    }
}
