//! `pando lab study shards`: study D, one process against 2, 4, 6 and 8 shards with a hashed `_id`.
//!
//! Each number of shards is a target of its own, given by its address: `--shards 1=URL,2=URL,…` (a single process, routers).
//! A target that is asked for shards and is no router is left out with one line. Shares of the mixed scenarios other than
//! 65% are not published: we take 10/90, 65/35 and 90/10 reads and updates.

use crate::connection::{Address, Connection};
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::progress::say;
use crate::report::{Draft, Shard};
use crate::resume::Journal;
use crate::show;
use crate::targets;
use crate::terms::{Durability, count, duration};
use crate::ycsb::session::Plan;
use crate::ycsb::{Properties, Session, Spec};
use bson::{Val, Value, doc};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// NUMBER=URL, the number of shards and the process or router that has them.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1=mongodb://127.0.0.1:27017"
    )]
    pub shards: Vec<String>,
    /// Records of 2 KB (published: 5m).
    #[arg(long, default_value = "100k", value_parser = count)]
    pub records: u64,
    /// Connections (published: 32, found by trial).
    #[arg(long, alias = "threads", default_value_t = 32)]
    pub connections: usize,
    /// Length of each scenario but the load.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: Durability,
    /// Result file (default: a new one in lab-results/; - for none).
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Go on after the last step that a run with the same --out finished.
    #[arg(long)]
    pub resume: bool,
    /// No progress.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Scenario, what it is, share of reads.
const SCENARIOS: [(&str, &str, f64); 5] = [
    ("D.S1", "load", 0.0),
    ("D.S2", "write-mostly", 0.1),
    ("D.S3", "mixed", 0.65),
    ("D.S4", "read-mostly", 0.9),
    ("D.S5", "read-only", 1.0),
];

fn spec(records: u64, reads: f64) -> Result<Spec> {
    let mut p = Properties::default();
    p.set("recordcount", records);
    p.set("table", "microshard");
    p.set("fieldlength", 200);
    p.set("requestdistribution", "uniform");
    p.set("readproportion", reads);
    p.set("updateproportion", 1.0 - reads);
    Ok(Spec::new(&p)?.0)
}

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    if args.connections == 0 || args.records == 0 {
        return Err(Fault::Usage(
            "--connections and --records must be at least 1".into(),
        ));
    }
    let mut setups = Vec::new();
    for pair in &args.shards {
        let parsed = pair
            .split_once('=')
            .and_then(|(n, url)| Some((n.parse::<u64>().ok()?, url)));
        let Some((n, url)) = parsed.filter(|(n, _)| *n > 0) else {
            return Err(Fault::Usage(format!(
                "--shards {pair}: NUMBER=URL is expected"
            )));
        };
        setups.push((n, url.to_string()));
    }
    let mut draft = Draft::new("study", "D-shards");
    draft.set("records", args.records);
    draft.set("record_bytes", 2000);
    draft.set("connections", args.connections);
    draft.set("durability", args.durability.name());
    draft.note(
        "Shares of the mixed scenarios: 10/90, 65/35 (published) and 90/10 reads and updates.",
    );
    let journal = Journal::open(&mut draft, args.out.as_deref(), args.resume)?;
    let mut measured = 0;
    for (n, url) in setups {
        if interrupted() {
            break;
        }
        let target = targets::open(&url)?;
        let shown = targets::without_password(&url);
        let opened = Session::open(target, "D", spec(args.records, 1.0)?, args.durability);
        let session = match opened {
            Ok(session) => session,
            Err(fault) => {
                skip(
                    &mut draft,
                    format!("{n} shard(s), {shown}: skipped ({fault})"),
                );
                continue;
            }
        };
        if n > 1 && !is_router(&url)? {
            skip(
                &mut draft,
                format!(
                    "{n} shards, {shown}: skipped (no router answers there: it has no sharding)"
                ),
            );
            continue;
        }
        measured += 1;
        one(&args, session, n, &url, &mut draft, &journal)?;
    }
    if measured == 0 {
        return Err(Fault::Target(
            "nothing to measure: none of the targets answered with shards".into(),
        ));
    }
    let report = draft.finish(args.out.as_deref())?;
    journal.close();
    show::report(&report);
    Ok(true)
}

fn skip(draft: &mut Draft, line: String) {
    eprintln!("{line}");
    draft.note(line);
}

fn one(
    args: &Args,
    mut session: Session,
    n: u64,
    url: &str,
    draft: &mut Draft,
    journal: &Journal,
) -> Result<()> {
    session.quiet = args.quiet;
    draft.add_target(session.info.clone());
    let db = session.target.database().unwrap_or_else(|| "ycsb".into());
    for (name, title, reads) in SCENARIOS {
        let key = format!("{n} / {name}");
        if interrupted() || draft.has(&key) {
            continue;
        }
        say(args.quiet, format_args!("{n} shard(s): {name} {title}"));
        session.set_spec(name, spec(args.records, reads)?);
        let plan = Plan::timed(args.connections, args.duration);
        let mut step = if name == "D.S1" {
            session.empty()?;
            if n > 1 {
                shard_collection(url, &db, "microshard", Value::from("hashed"))?;
            }
            let plan = Plan {
                limit: None,
                ..plan
            };
            session.load_into(plan, &mut |_| {})?.1
        } else {
            if session.count()? != args.records {
                return Err(Fault::Check(format!(
                    "{n} shard(s): the records of D.S1 are not all there"
                )));
            }
            session.run(plan, &mut |_| {})?.1
        };
        step.name = format!("{name} {title}");
        step.mode = Some(format!("{n} shard(s)"));
        step.at = Some(n as f64);
        draft.push(&key, step);
        journal.save(draft)?;
    }
    if n > 1 {
        draft
            .report
            .shards
            .extend(statistics(url, &db, "microshard", n)?);
    }
    session.drop_table()
}

fn control(url: &str) -> Result<Connection> {
    Address::parse(url)?.connect()
}

/// Whether a router of a cluster answers there.
pub fn is_router(url: &str) -> Result<bool> {
    if !url.starts_with("mongodb") {
        return Ok(false);
    }
    let c = control(url)?;
    Ok(c.hello.get("msg").and_then(Val::as_str) == Some("isdbgrid"))
}

/// Spreads an empty collection over all shards by its `_id`.
pub fn shard_collection(url: &str, db: &str, collection: &str, key: Value) -> Result<()> {
    let mut c = control(url)?;
    let namespace = format!("{db}.{collection}");
    let key = doc! {"_id": key};
    c.command("admin", doc! {"enableSharding": db}.as_doc())?;
    c.command(
        "admin",
        doc! {"shardCollection": namespace.as_str(), "key": key}.as_doc(),
    )?;
    Ok(())
}

/// What `collStats` says of each shard.
pub fn statistics(url: &str, db: &str, collection: &str, setup: u64) -> Result<Vec<Shard>> {
    let stats = control(url)?.command(db, doc! {"collStats": collection}.as_doc())?;
    let shards = stats.get("shards").and_then(Val::as_doc);
    let all = shards.into_iter().flat_map(|s| s.iter());
    Ok(all
        .filter_map(|e| {
            let d = e.val.as_doc()?;
            let number =
                |name: &str| d.get(name).and_then(Val::to_f64).unwrap_or(0.0).max(0.0) as u64;
            Some(Shard {
                of: setup,
                name: e.name.to_string(),
                documents: number("count"),
                data_bytes: number("size"),
                storage_bytes: number("storageSize"),
                index_bytes: number("totalIndexSize"),
                chunks: number("nchunks"),
            })
        })
        .collect())
}
