//! `pando lab study shards`: study D, one process against 2, 4, 6 and 8 shards with a hashed `_id`.
//!
//! Each number of shards is a target of its own: launched (`--shards 1,2,4,6,8`), or given by its address (`--shards
//! 1=URL,2=URL+URL,…`: a single process, a router, processes side by side). Launched mongods get a router. PandoDB has none
//! yet: there the client itself spreads the keys over the processes ([`crate::targets::split`]), which costs no router and
//! moves no chunks; the result says which of the two it was. A target that is asked for shards and has none is left out
//! with one line. Shares of the mixed scenarios other than 65% are not published: we take 10/90, 65/35 and 90/10.

use super::moves;
use crate::connection::{MongoAddress, MongoConnection};
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::output::{Journal, Output, Page};
use crate::progress::{course, say, step};
use crate::repeat::{Repeat, turns};
use crate::report::{CheckedFigure, Draft, ShardPart, TargetInfo, sizes_of};
use crate::targets;
use crate::targets::local::{Means, Started, Up};
use crate::terms::{WriteDurability, count, duration, positive};
use crate::ycsb::session::StepPlan;
use crate::ycsb::{Properties, Session, Spec};
use bson::{Val, doc};
use std::sync::Arc;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Numbers of shards to launch, or NUMBER=URL of those that run: a process, a router, or URL+URL+… side by side.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,6,8")]
    pub shards: Vec<String>,
    /// The product to launch: pando (the client spreads the keys) or mongod (with a router).
    #[arg(long, value_name = "PRODUCT", default_value = "pando")]
    pub launch: String,
    #[command(flatten)]
    pub means: Means,
    /// Records of 2 KB (published: 5m).
    #[arg(long, default_value = "100k", value_parser = count)]
    pub records: u64,
    /// Connections (published: 32, found by trial); of several the one that gives the most on the first target.
    #[arg(long, alias = "threads", value_delimiter = ',', default_value = "32")]
    pub connections: Vec<usize>,
    /// Length of each scenario but the load.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: WriteDurability,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
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
    positive("--connections", &args.connections)?;
    positive("--records", &[args.records as usize])?;
    let mut setups = Vec::new();
    for word in &args.shards {
        setups.push(Setup::parse(word)?);
    }
    let repeats = args.repeat.times(setups.len())?;
    let mut draft = Draft::new("study", "D-shards");
    draft.set("records", args.records);
    draft.set("record_bytes", 2000);
    draft.set("connections", args.connections.clone());
    draft.set("durability", args.durability.name());
    draft.repeated(repeats);
    draft.note(
        "Shares of the mixed scenarios: 10/90, 65/35 (published) and 90/10 reads and updates.",
    );
    let mut journal = Journal::open(&mut draft, &args.to)?;
    let steps = setups.len() * SCENARIOS.len() * repeats;
    course(steps.saturating_sub(draft.done()) as f64);
    let mut measured = 0;
    for (repeat, i) in turns(repeats, setups.len()) {
        if interrupted() {
            break;
        }
        draft.begin(repeat);
        measured += usize::from(setups[i].measure(&args, &mut draft, &mut journal)?);
    }
    if measured == 0 {
        return Err(Fault::Target(
            "nothing to measure: none of the targets answered with shards".into(),
        ));
    }
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

const BY_CLIENT: &str = "Sharding by the client: each key lives on the process that its hash names, and each process \
    has its share of the connections; no router, no configuration server, no moving chunks.";

/// One number of shards, launched unless there is a URL.
#[derive(Debug, PartialEq, Eq)]
struct Setup {
    shards: u64,
    url: Option<String>,
}

impl Setup {
    fn parse(word: &str) -> Result<Setup> {
        let (number, url) = match word.split_once('=') {
            Some((number, url)) => (number, Some(url.to_string())),
            None => (word, None),
        };
        match number.parse() {
            Ok(shards) if (1..=64).contains(&shards) => Ok(Setup { shards, url }),
            _ => Err(Fault::Usage(format!(
                "--shards {word}: a NUMBER to launch or NUMBER=URL is expected"
            ))),
        }
    }

    /// All scenarios on this number of shards, which are launched for it where they are not given; `false` when it has no
    /// shards and was left out.
    fn measure(&self, args: &Args, draft: &mut Draft, journal: &mut Journal) -> Result<bool> {
        let shards = self.shards;
        // Finished steps need no launch.
        if SCENARIOS
            .iter()
            .all(|(name, _, _)| draft.has(&key(shards, name)))
        {
            return Ok(true);
        }
        let mut started = None;
        let url = match &self.url {
            Some(url) => url.clone(),
            None => {
                let up = Up::new(&args.launch, args.means.clone(), shards as usize);
                let launched = Started::of(&up, args.to.quiet)?;
                started.insert(launched).url()
            }
        };
        let target = targets::open(&url)?;
        let shown = targets::without_password(&url);
        let spec = spec(args.records, 1.0)?;
        let session = match Session::open(Arc::clone(&target), "D", spec, args.durability) {
            Ok(session) => session,
            Err(fault) => {
                let line = format!("{}, {shown}: skipped ({fault})", of_shards(shards));
                skip(draft, line);
                return Ok(false);
            }
        };
        let parts = target.parts().len() as u64;
        if parts > 0 && parts != shards {
            return Err(Fault::Usage(format!(
                "--shards {shards}={shown}: those are {parts} processes"
            )));
        }
        if shards > 1 && parts == 0 && !is_router(&url)? {
            let why = "no router answers there: it has no sharding";
            skip(
                draft,
                format!("{}, {shown}: skipped ({why})", of_shards(shards)),
            );
            return Ok(false);
        }
        let mut session = session;
        match parts {
            0 if shards > 1 => {
                let mut router = MongoAddress::parse(&url)?.connect()?;
                name_cluster(&mut session.info, &mut router);
            }
            0 => {}
            _ => draft.note(BY_CLIENT),
        }
        one(args, session, shards, &url, draft, journal)?;
        Ok(true)
    }
}

fn key(shards: u64, scenario: &str) -> String {
    format!("{shards} / {scenario}")
}

fn of_shards(n: u64) -> String {
    match n {
        1 => "1 shard".into(),
        more => format!("{more} shards"),
    }
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
    journal: &mut Journal,
) -> Result<()> {
    session.quiet = args.to.quiet;
    draft.add_target(session.info.clone());
    let db = session.target.database().unwrap_or_else(|| "ycsb".into());
    let connections = search(args, &mut session, draft)?;
    let mut loaded = !draft.has(&key(n, "D.S1"));
    for (name, title, reads) in SCENARIOS {
        let key = key(n, name);
        if interrupted() || draft.has(&key) {
            continue;
        }
        step(1.0);
        say(
            args.to.quiet,
            format_args!("{}: {name} {title}", of_shards(n)),
        );
        session.set_spec(name, spec(args.records, reads)?);
        let plan = StepPlan::timed(connections, args.duration);
        let mut done = if name == "D.S1" {
            session.empty()?;
            let plan = StepPlan {
                limit: None,
                ..plan
            };
            session.load_into(plan, &mut |_| {})?.1
        } else {
            // Those of a run that died went with its servers.
            if !loaded {
                if !session.prepare(false)? {
                    break;
                }
                loaded = true;
            }
            if session.count()? != args.records {
                return Err(Fault::Check(format!(
                    "{}: the records of D.S1 are not all there",
                    of_shards(n)
                )));
            }
            session.run(plan, &mut |_| {})?.1
        };
        done.name = format!("{name} {title}");
        done.mode = Some(of_shards(n));
        done.at = Some(n as f64);
        draft.push(&key, done);
        journal.save(draft);
    }
    let shards = shards_of(&session, n, url, &db)?;
    draft.report.shards.retain(|s| s.of != n);
    draft.report.shards.extend(shards);
    session.drop_table()
}

/// The figure that says how many connections were taken.
const FOUND: &str = "connections that gave the most in the trial";

/// How many connections: the only number, or of several the best in a short run of D.S4 each, tried once for all targets.
fn search(args: &Args, session: &mut Session, draft: &mut Draft) -> Result<usize> {
    if let [only] = args.connections[..] {
        return Ok(only);
    }
    if let Some(found) = draft.report.checks.iter().find(|c| c.name == FOUND) {
        return Ok(found.value as usize);
    }
    session.set_spec("D.S4", spec(args.records, 0.9)?);
    if !session.prepare(false)? {
        return Ok(args.connections[0]);
    }
    let mut best = (args.connections[0], 0.0);
    for &n in &args.connections {
        say(args.to.quiet, format_args!("trial with {n} connection(s)"));
        let (outcome, _) = session.run(StepPlan::timed(n, args.duration / 5), &mut |_| {})?;
        let rate = outcome.rate();
        if rate > best.1 {
            best = (n, rate);
        }
        let name = format!("trial with {n} connection(s)");
        draft
            .report
            .checks
            .push(CheckedFigure::figure(&name, rate, "/s"));
    }
    draft
        .report
        .checks
        .push(CheckedFigure::figure(FOUND, best.0 as f64, ""));
    Ok(best.0)
}

/// What each shard holds in the end: of processes side by side, or as a router says.
fn shards_of(session: &Session, n: u64, url: &str, db: &str) -> Result<Vec<ShardPart>> {
    let parts = session.target.parts();
    if parts.is_empty() && n > 1 {
        return statistics(url, db, "microshard", n);
    }
    let mut all = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let sizes = part.sizes(session.table(), 0.0)?;
        all.push(ShardPart {
            of: n,
            name: format!("process {}", i + 1),
            documents: sizes.documents,
            data_bytes: sizes.data_bytes,
            storage_bytes: sizes.storage_bytes,
            index_bytes: sizes.index_bytes,
            indexes: sizes.indexes,
            chunks: 1,
        });
    }
    Ok(all)
}

/// Whether a router of a cluster answers there.
pub fn is_router(url: &str) -> Result<bool> {
    Ok(url.starts_with("mongodb") && MongoAddress::parse(url)?.connect()?.is_router())
}

/// Makes a router's description one of the cluster behind it: product and version are those of one process too.
pub fn name_cluster(info: &mut TargetInfo, router: &mut MongoConnection) {
    let listed = router.try_command("admin", doc! {"listShards": 1}.as_doc());
    let shards = listed.ok().and_then(|l| {
        let all = l.get("shards")?.as_array()?;
        Some(all.count().to_string())
    });
    let shards = shards.map_or_else(|| "shards".into(), |n| format!("{n} shards"));
    info.product = format!("{shards} of {}", info.product);
    // Nothing is told of the shards' processes: what the router alone spends and holds would pass for all of it.
    info.pid = None;
    info.more_pids.clear();
}

/// A sentence where the documents do not lie evenly: then it is not the number of shards that was measured.
pub fn uneven(shards: &[ShardPart]) -> Option<String> {
    let all: u64 = shards.iter().map(|s| s.documents).sum();
    let most = shards.iter().max_by_key(|s| s.documents)?;
    let is_uneven = all > 0 && most.documents * shards.len() as u64 * 2 > all * 3;
    is_uneven.then(|| {
        format!(
            "NOT SPREAD: {:.0}% of the documents lie on 1 of {} shards ({}).",
            most.documents as f64 / all as f64 * 100.0,
            shards.len(),
            most.name
        )
    })
}

/// What `collStats` says of each shard, with the chunks that the configuration gives it.
pub fn statistics(url: &str, db: &str, collection: &str, setup: u64) -> Result<Vec<ShardPart>> {
    let mut c = MongoAddress::parse(url)?.connect()?;
    let stats = c.command(db, doc! {"collStats": collection}.as_doc())?;
    let chunks = moves::chunks_of(&mut c, &format!("{db}.{collection}"))?;
    let shards = stats.get("shards").and_then(Val::as_doc);
    let all = shards.into_iter().flat_map(|s| s.iter());
    Ok(all
        .filter_map(|e| {
            let d = e.val.as_doc()?;
            let number =
                |name: &str| d.get(name).and_then(Val::to_f64).unwrap_or(0.0).max(0.0) as u64;
            Some(ShardPart {
                of: setup,
                name: e.name.to_string(),
                documents: number("count"),
                data_bytes: number("size"),
                storage_bytes: number("storageSize"),
                index_bytes: number("totalIndexSize"),
                indexes: d
                    .get("indexSizes")
                    .and_then(Val::as_doc)
                    .map(sizes_of)
                    .unwrap_or_default(),
                chunks: chunks.iter().filter(|c| c.shard == e.name).count() as u64,
            })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_on_one_shard_are_told_of() {
        let with = |documents: &[u64]| -> Vec<ShardPart> {
            let shard = |n: &u64| ShardPart {
                name: format!("s{n}"),
                documents: *n,
                ..ShardPart::default()
            };
            documents.iter().map(shard).collect()
        };
        assert_eq!(uneven(&with(&[0, 0])), None);
        assert_eq!(uneven(&with(&[60, 40])), None);
        assert_eq!(uneven(&with(&[900, 800, 1000])), None);
        let told = uneven(&with(&[0, 1000])).unwrap();
        assert!(
            told.contains("100%") && told.contains("1 of 2") && told.contains("s1000"),
            "{told}"
        );
    }

    #[test]
    fn setups() {
        let launched = Setup::parse("4").unwrap();
        assert_eq!((launched.shards, launched.url), (4, None));
        let given = Setup::parse("2=mongodb://h/?w=1+mongodb://i/").unwrap();
        assert_eq!(given.url.as_deref(), Some("mongodb://h/?w=1+mongodb://i/"));
        for bad in ["", "0", "x", "=mongodb://h", "65"] {
            assert!(Setup::parse(bad).is_err(), "{bad}");
        }
    }
}
