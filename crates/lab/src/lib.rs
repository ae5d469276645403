//! The laboratory: published benchmarks against PandoDB and its peers, measured honestly.
//!
//! The way of a measurement:
//! ```text
//! scenario ─ Workload (what to send, how to check the reply) ─ Fleet ─ Lane (one thread, many connections) ─ socket
//!                                                                 └── Sample each second ─ Progress, series
//!                                                                 └── RunOutcome: histograms, CPU ─ Report (JSON, table)
//! ```
//! * [`targets`]: the databases, one file or folder each; [`targets::local`] starts throw-away ones, [`scratch`] has their
//!   files, [`cgroup`] holds them to so much memory.
//! * [`distribution`], [`ycsb`]: the YCSB core workload, key for key, and its command line. [`study`]: studies A to M.
//! * [`lane`], [`fleet`]: the load client, a closed or an open loop; [`spoken`]: workloads in a target's dialect. [`null`]:
//!   the server that only reads and answers; [`floor`]: what that costs, beside each step.
//! * [`sweep`], [`compare`], [`short`]: peak and knee, two sides in alternating slices, the canonical study. [`reads`]: of data that is there.
//!   [`queries`]: of the user's own, from a file.
//! * [`bench`]: the table of bars, server and null server interleaved. [`report`]: the one schema of results, [`rates`]:
//!   what steps say with intervals over [`repeat`]s, [`overview`]: all studies with all targets, [`verdict`]: what they say in a few sentences, [`show`], [`html`], [`formats`]: tables, the page, other
//!   tools' formats, [`threshold`]: bars of the user's,
//!   [`output`]: where a result goes, and the steps of a run that died.
//!
//! Architecture invariant: this crate is a client. It knows nothing of the server's insides, and an error, a wrong count
//! or a wrong document ends a measurement; nothing is dropped from one.

mod agents;
mod bench;
mod calibrate;
mod cgroup;
mod changed;
mod compare;
pub mod connection;
mod distribution;
mod family;
pub mod fault;
mod fleet;
mod floor;
mod formats;
mod host;
mod html;
mod lane;
mod lang;
mod measure;
pub mod null;
mod output;
mod overview;
#[cfg(test)]
mod planted;
mod process;
mod progress;
mod queries;
mod random;
mod rates;
mod reads;
#[cfg(test)]
mod recorded;
mod repeat;
mod reply;
pub mod report;
pub mod request;
mod run;
mod scorecard;
pub mod scratch;
mod seed;
mod sheet;
pub mod sheets;
mod short;
pub mod show;
mod spoken;
mod stall;
mod study;
mod sweep;
pub mod targets;
pub mod terms;
mod threshold;
pub mod verdict;
mod veto;
pub mod ycsb;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use fault::{Fault, Result};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

/// Benchmarks: published workloads against PandoDB and other databases, with checked replies and comparable results.
/// Without a command: the short study, a few minutes on a server of its own, ending with a table and a page.
#[derive(Parser)]
#[command(name = "pando lab", bin_name = "pando lab", version, about)]
struct Lab {
    #[command(subcommand)]
    command: Option<Command>,
    /// Lose what others have in tables (collections) of the names that are needed; else they are refused.
    #[arg(long, global = true)]
    overwrite: bool,
    /// Change settings of a whole server where the durability needs it, and set them back at the end.
    #[arg(long, global = true)]
    change_settings: bool,
    /// The language of tables and pages.
    #[arg(long, global = true, value_enum, default_value = "en")]
    lang: lang::Lang,
}

#[derive(Subcommand)]
enum Command {
    /// Run a YCSB workload: a built-in scenario (C.S1 to C.S5, A to F) or property files.
    Run(run::Args),
    /// Bring a workload's records in, measured, and leave them.
    Load(run::Args),
    /// A workload by connections, with peak and knee, then response times at 50, 70 and 90% of the least peak.
    Sweep(sweep::Args),
    /// Two targets or two builds in alternating slices: faster, slower or inconclusive.
    Compare(compare::Args),
    /// The canonical short study on a server of its own (the same as without a word).
    Short(short::Args),
    /// Run a published study.
    Study {
        #[command(subcommand)]
        study: Study,
    },
    /// The whole test of one of the five authors, scaled by one number, with its statements.
    Seed(seed::Args),
    /// Queries of your own, from a small file, on any targets.
    Queries(queries::Args),
    /// Point reads and index ranges on a collection that is there, and what reads from disk do to those from memory.
    Reads(reads::Args),
    /// Measure a server against the null server, operation by operation, and compare with the bars.
    Bench(bench::Args),
    /// Serve recorded replies and nothing else: the floor that `bench` compares with.
    Null(null::Args),
    /// Record one reply of a server for each operation of study A, for `null`.
    Record(study::record::Args),
    /// Wait for a share of the load of `run --agents`.
    Agent(agents::Args),
    /// Measure the load client itself against the null server.
    Calibrate(calibrate::Args),
    /// Print a result file; of several, one table of all studies with all targets.
    Show {
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// As tables, or for other tools.
        #[arg(long, value_enum, default_value = "table")]
        format: formats::Format,
    },
    /// Result files as one HTML page, and each plot as an SVG file.
    Report(html::Args),
    /// Compare two result files, step by step.
    Diff { before: PathBuf, after: PathBuf },
    /// List scenarios, studies and benchmarks.
    List,
    /// YCSB's own command line: load or run, with its property files, options and output.
    Ycsb(ycsb::command::Args),
    /// Databases started for measurements: list them, start one from installed packages, stop them.
    Targets(targets::local::Args),
}

#[derive(Subcommand)]
enum Study {
    /// Study A on one server: tests 1 to 8.
    #[command(alias = "a")]
    Single(study::single::Args),
    /// Study B: five ways to insert, reads by number of keys, on any targets.
    #[command(alias = "b")]
    Keys(study::keys::Args),
    /// Study C: five scenarios by connections and data size, on any targets.
    #[command(alias = "c")]
    Sizes(study::sizes::Args),
    /// Study D: one process against shards.
    #[command(alias = "d")]
    Shards(study::shards::Args),
    /// Study E: flatness, spikes, ids, threads, journal modes, restart, recovery.
    #[command(alias = "e")]
    Pains(study::pains::Args),
    /// Study F: large files through GridFS.
    #[command(alias = "f")]
    Files(study::files::Args),
    /// Study G: pipelines that filter, group, join and sort documents of 1 KB, each by itself, on any targets.
    #[command(alias = "g")]
    Aggregate(study::aggregate::Args),
    /// Study H: a queue of jobs, or a window by age: whether deleted records cost anything, on any
    /// targets.
    #[command(alias = "h")]
    Queue(study::queue::Args),
    /// Study I: what it costs clients that chunks move, second by second, on any clusters.
    #[command(alias = "i")]
    Moves(study::moves::Args),
    /// Study J: joins and groups of the kind that TPC-H asks, each by itself, on any targets.
    #[command(alias = "j")]
    Tpch(study::tpch::Args),
    /// Study K: whether the planner takes the best index: random queries by every index that bears on them.
    #[command(alias = "k")]
    Plans(study::plans::Args),
    /// Study L: full text: the build of an index, searches by kind, inserts beside it.
    #[command(alias = "l")]
    Search(study::search::Args),
    /// Study M: the nearest vectors, of all and behind filters, with the recall that the rate was reached at.
    #[command(alias = "m")]
    Vectors(study::vectors::Args),
}

/// Runs `pando lab …`; `args` are the words after `lab`.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let words = std::iter::once(OsString::from("pando lab")).chain(args);
    let words: Vec<OsString> = words.collect();
    let shown = words
        .iter()
        .map(|w| targets::without_password(&w.to_string_lossy()));
    let shown: Vec<String> = shown.collect();
    let lab = match Lab::try_parse_from(words) {
        Ok(lab) => lab,
        // A word is missing: the help says which there are.
        Err(e) if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            return ExitCode::from(2);
        }
        Err(e) if e.use_stderr() => {
            eprintln!("pando lab: {}", brief(&e.to_string()));
            return ExitCode::from(2);
        }
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    if let Ok(mut command) = COMMAND.lock() {
        *command = shown;
    }
    if lab.overwrite {
        targets::mark::overwrite();
    }
    lang::set(lab.lang);
    if lab.change_settings {
        changed::allow();
    }
    changed::restore_left();
    // Without a word, the short study.
    let command = match lab.command {
        Some(command) => command,
        None => match Lab::try_parse_from(["pando lab", "short"]) {
            Ok(Lab {
                command: Some(c), ..
            }) => c,
            _ => unreachable!("the short study has defaults"),
        },
    };
    let done = dispatch(command);
    changed::restore();
    match done {
        // As a shell expects of what Ctrl-C ended.
        Ok(_) if fleet::interrupted() => ExitCode::from(130),
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(fault) => {
            eprintln!("pando lab: {fault}");
            ExitCode::from(if matches!(fault, Fault::Usage(_)) {
                2
            } else {
                1
            })
        }
    }
}

/// Runs a command of the laboratory within another one; its words are those after `pando lab`.
fn run_words(words: &[String]) -> Result<bool> {
    let command = knows(words).map_err(Fault::Usage)?;
    dispatch(command)
}

fn knows(words: &[String]) -> std::result::Result<Command, String> {
    let all = std::iter::once("pando lab").chain(words.iter().map(String::as_str));
    let parsed = Lab::try_parse_from(all).map_err(|e| brief(&e.to_string()))?;
    parsed.command.ok_or_else(|| "no command".to_string())
}

/// The words of the command under way, as results keep them.
static COMMAND: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// How this run was called, without passwords.
pub fn command() -> Vec<String> {
    COMMAND.lock().map(|c| c.clone()).unwrap_or_default()
}

/// What clap says of wrong words, in one line.
fn brief(said: &str) -> String {
    let (why, usage) = said.split_once("Usage: ").unwrap_or((said, ""));
    let why = why.replace("For more information, try '--help'.", "");
    let why = why.trim().trim_start_matches("error: ");
    let why: Vec<&str> = why.split_whitespace().collect();
    let of: Vec<&str> = usage
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .take_while(|w| !w.starts_with(['-', '<', '[']))
        .collect();
    let of = if of.is_empty() {
        "pando lab".into()
    } else {
        of.join(" ")
    };
    format!("{}; see {of} --help", why.join(" "))
}

/// `false` when the command ran but something that it checked did not hold.
fn dispatch(command: Command) -> Result<bool> {
    match command {
        Command::Run(args) => run::main(args),
        Command::Load(mut args) => {
            args.phase = run::Phases::Load;
            run::main(args)
        }
        Command::Sweep(args) => sweep::main(args),
        Command::Compare(args) => compare::main(args),
        Command::Short(args) => short::main(args),
        Command::Study { study } => match study {
            Study::Single(args) => study::single::main(args),
            Study::Keys(args) => study::keys::main(args),
            Study::Sizes(args) => study::sizes::main(args),
            Study::Shards(args) => study::shards::main(args),
            Study::Pains(args) => study::pains::main(args),
            Study::Files(args) => study::files::main(args),
            Study::Aggregate(args) => study::aggregate::main(args),
            Study::Queue(args) => study::queue::main(args),
            Study::Moves(args) => study::moves::main(args),
            Study::Tpch(args) => study::tpch::main(args),
            Study::Plans(args) => study::plans::main(args),
            Study::Search(args) => study::search::main(args),
            Study::Vectors(args) => study::vectors::main(args),
        },
        Command::Seed(args) => seed::main(args),
        Command::Queries(args) => queries::main(args),
        Command::Reads(args) => reads::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Null(args) => null::main(args),
        Command::Record(args) => study::record::main(args),
        Command::Agent(args) => agents::main(args),
        Command::Calibrate(args) => calibrate::main(args),
        Command::Show { results, format } => {
            let reports: Vec<_> = results
                .iter()
                .map(|p| report::Report::read(p))
                .collect::<Result<_>>()?;
            match (format, reports.as_slice()) {
                (formats::Format::Csv, all) => print!("{}", formats::csv(all)),
                (formats::Format::Prometheus, all) => print!("{}", formats::prometheus(all)),
                (formats::Format::Hlog, all) => print!("{}", formats::hlog(all)),
                (formats::Format::Table, [one]) => show::report(one),
                (formats::Format::Table, all) => show::several(all),
            }
            Ok(true)
        }
        Command::Report(args) => html::main(args),
        Command::Diff { before, after } => {
            show::diff(
                &report::Report::read(&before)?,
                &report::Report::read(&after)?,
            )?;
            Ok(true)
        }
        Command::Ycsb(args) => ycsb::command::main(args),
        Command::Targets(args) => targets::local::main(args),
        Command::List => {
            list();
            Ok(true)
        }
    }
}

fn list() {
    println!("Scenarios of `pando lab run`:");
    for (name, about, _) in ycsb::scenario::ALL {
        println!("  {name:<6}{about}");
    }
    println!("\nStudies of `pando lab study`:");
    for (name, about) in [
        ("single", "A: one process, tests 1 to 8"),
        (
            "keys",
            "B: five ways to insert, reads by number of keys, on any targets",
        ),
        (
            "sizes",
            "C: five scenarios by connections and data size, on any targets",
        ),
        ("shards", "D: one process against 2, 4, 6, 8 shards"),
        (
            "pains",
            "E: flatness, spikes, ids, threads, journal modes, restart, recovery",
        ),
        ("files", "F: large files through GridFS"),
        (
            "aggregate",
            "G: pipelines over documents of 1 KB, on any targets",
        ),
        ("queue", "H: a queue, or a window by age, on any targets"),
        ("moves", "I: what it costs clients that chunks move"),
        (
            "tpch",
            "J: joins and groups of the kind that TPC-H asks, on any targets",
        ),
        ("plans", "K: the plan that is chosen, against the best"),
        (
            "search",
            "L: full text: the build of an index, searches, inserts beside it",
        ),
        ("vectors", "M: the nearest vectors, with their recall"),
    ] {
        println!("  {name:<11}{about}");
    }
    println!("\nBenchmarks of `pando lab bench --only`:");
    for (name, about) in bench::names() {
        println!("  {name:<18}{about}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_words_are_told_of_in_one_line() {
        let said = |words: &str| {
            let words = std::iter::once("pando lab").chain(words.split(' '));
            brief(&Lab::try_parse_from(words).err().unwrap().to_string())
        };
        for (words, has, of) in [
            ("frobnicate", "'frobnicate'", "pando lab --help"),
            ("study double", "'double'", "pando lab study --help"),
            ("report", "<RESULTS>", "pando lab report --help"),
            (
                "run C.S1 --records many",
                "'many'",
                "; see pando lab --help",
            ),
            ("run C.S1 --url", "--url", "supplied; see pando lab --help"),
            (
                "study keys --out x --out y",
                "--out",
                "pando lab study keys --help",
            ),
        ] {
            let line = said(words);
            assert!(line.contains(has) && line.ends_with(of), "{line}");
            assert!(!line.contains('\n') && !line.starts_with("error"), "{line}");
        }
    }
}
