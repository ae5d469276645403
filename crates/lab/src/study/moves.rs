//! `pando lab study moves`: study I, the cost to writers of chunk moves, second by second.
//!
//! On each target, a router, each load runs twice on the same collection made anew: without moves, and while a client has one
//! chunk after the other moved to the next shard. The collection has the same chunks both times, spread over the shards
//! before anything is written. The end of each move is marked in the series.
//!
//! Invariant: every acknowledged insert is counted at the end of each run. The balancer is off meanwhile, and then as it was.

use super::shards::{is_router, name_cluster};
use crate::connection::{MongoAddress, MongoConnection};
use crate::fault::{Fault, Result};
use crate::fleet::{catch_interrupts, interrupted};
use crate::measure::{Sample, median};
use crate::output::{Journal, Output, Page};
use crate::progress::say;
use crate::repeat::{Repeat, turns};
use crate::report::{CheckedFigure, Draft, MeasuredStep};
use crate::targets;
use crate::targets::local::{Means, Started, Up};
use crate::terms::{WriteDurability, count, duration, positive};
use crate::ycsb::session::StepPlan;
use crate::ycsb::{Properties, Session, Spec};
use bson::{Doc, DocBuf, Val, Value, doc};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Routers of clusters that run already, with at least two shards.
    #[arg(long, conflicts_with = "launch")]
    pub url: Vec<String>,
    /// Clusters that are started and measured beside each other: pando, mongod (with its mongos).
    #[arg(long, value_name = "PRODUCT", value_delimiter = ',')]
    pub launch: Vec<String>,
    /// Shards of each cluster that is started.
    #[arg(long, default_value_t = 2)]
    pub shards: usize,
    #[command(flatten)]
    pub means: Means,
    /// Loads: inserts (one by one), batches (of 50), mixed (half reads, a quarter updates, a quarter inserts).
    #[arg(long, value_enum, value_delimiter = ',', default_value = "batches")]
    pub load: Vec<ClientLoad>,
    /// Kinds of shard key.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ranged")]
    pub key: Vec<KeyOrder>,
    /// Records of 500 bytes that are there before the mixed load.
    #[arg(long, default_value = "20k", value_parser = count)]
    pub records: u64,
    /// Connections.
    #[arg(long, alias = "threads", default_value_t = 4)]
    pub connections: usize,
    /// Length of each run.
    #[arg(long, default_value = "20s", value_parser = duration)]
    pub duration: Duration,
    /// What a write waits for.
    #[arg(long, value_enum, default_value = "w1")]
    pub durability: WriteDurability,
    #[command(flatten)]
    pub repeat: Repeat,
    #[command(flatten)]
    pub to: Output,
}

/// What the clients do.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientLoad {
    Inserts,
    Batches,
    Mixed,
}

/// How the collection is spread, by its `_id`.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    Ranged,
    Hashed,
}

const TABLE: &str = "moved";
const BATCH: u64 = 50;
/// Keys are `user` and the digits of a hash, so their first digit is even enough.
const DIGITS: std::ops::RangeInclusive<u32> = 2..=9;
/// The pause before a shard that is still taking the last chunk is asked again.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// The name of a chunk's arrival in the series.
const MOVED: &str = "chunk moved";

impl ClientLoad {
    fn name(self) -> &'static str {
        match self {
            ClientLoad::Inserts => "inserts",
            ClientLoad::Batches => "batches of 50",
            ClientLoad::Mixed => "mixed",
        }
    }

    fn spec(self, records: u64) -> Result<Spec> {
        let (read, update, insert) = match self {
            ClientLoad::Inserts | ClientLoad::Batches => (0.0, 0.0, 1.0),
            ClientLoad::Mixed => (0.5, 0.25, 0.25),
        };
        let mut p = Properties::default();
        p.set("recordcount", records);
        p.set("table", TABLE);
        p.set("fieldcount", 1);
        p.set("fieldlength", 450);
        p.set("requestdistribution", "uniform");
        p.set("readproportion", read);
        p.set("updateproportion", update);
        p.set("insertproportion", insert);
        if self == ClientLoad::Batches {
            p.set("batchsize", BATCH);
        }
        Ok(Spec::new(&p)?.0)
    }
}

impl KeyOrder {
    fn name(self) -> &'static str {
        match self {
            KeyOrder::Ranged => "ranged key",
            KeyOrder::Hashed => "hashed key",
        }
    }

    /// The shard key's value in `shardCollection`.
    fn how(self) -> Value {
        match self {
            KeyOrder::Ranged => Value::from(1i32),
            KeyOrder::Hashed => Value::from("hashed"),
        }
    }

    /// Where chunks end.
    fn middles(self) -> Vec<DocBuf> {
        let parts = i64::from(*DIGITS.end());
        let hashed = |n: u32| {
            let from_the_least = i128::from(u64::MAX) * i128::from(n - 1) / i128::from(parts);
            // Within 64 bits, since it is a share of their range.
            i64::try_from(from_the_least + i128::from(i64::MIN)).unwrap_or(0)
        };
        DIGITS
            .map(|n| match self {
                KeyOrder::Ranged => doc! {"_id": format!("user{n}")},
                KeyOrder::Hashed => doc! {"_id": hashed(n)},
            })
            .collect()
    }
}

pub fn main(args: Args) -> Result<bool> {
    catch_interrupts();
    positive("--connections", &[args.connections])?;
    positive("--records", &[args.records as usize])?;
    if args.shards < 2 {
        return Err(Fault::Usage("--shards must be at least two".into()));
    }
    let (_started, urls) = args.clusters()?;
    let repeats = args.repeat.times(urls.len())?;
    let mut draft = Draft::new("study", "I-moves");
    draft.set("connections", args.connections);
    draft.set("durability", args.durability.name());
    draft.set("seconds", args.duration.as_secs_f64());
    draft.repeated(repeats);
    let mut journal = Journal::open(&mut draft, &args.to)?;
    for (repeat, i) in turns(repeats, urls.len()) {
        draft.begin(repeat);
        for load in &args.load {
            for kind in &args.key {
                if interrupted() {
                    break;
                }
                args.pair(&urls[i], *load, *kind, &mut draft)?;
                journal.save(&draft);
            }
        }
    }
    Ok(journal.finish(draft, Page::Beside)?.passed())
}

impl Args {
    /// Those that are given, or PandoDB's or whatever is to be started.
    fn clusters(&self) -> Result<(Started, Vec<String>)> {
        let (mut started, mut urls) = (Started::default(), self.url.clone());
        let mut products = self.launch.clone();
        if urls.is_empty() && products.is_empty() {
            products.push("pando".into());
        }
        for product in &products {
            let mut means = self.means.clone();
            means.cluster = true;
            // With several products a given program is the one that is not found by itself.
            let given = means.binary.take();
            means.binary = given.filter(|_| product == "mongod" || products.len() == 1);
            let up = Up::new(product, means, self.shards);
            urls.push(started.add(&up, self.to.quiet)?);
        }
        for url in &urls {
            if !is_router(url)? {
                let shown = targets::without_password(url);
                return Err(Fault::Usage(format!("no router answers at {shown}")));
            }
        }
        Ok((started, urls))
    }

    /// One load on one kind of key, without moves and with them.
    fn pair(&self, url: &str, load: ClientLoad, kind: KeyOrder, draft: &mut Draft) -> Result<()> {
        let target = targets::open(url)?;
        let spec = load.spec(self.records)?;
        let mut session = Session::open(target, load.name(), spec, self.durability)?;
        session.quiet = self.to.quiet;
        let mut router = MongoAddress::parse(url)?.connect()?;
        name_cluster(&mut session.info, &mut router);
        let what = format!("{}, {}", load.name(), kind.name());
        let label = session.info.label();
        if !draft.report.targets.iter().any(|t| t.label() == label) {
            draft.add_target(session.info.clone());
        }
        let stopped = Balancer::stop(&mut router)?;
        let mut both = Vec::new();
        for moves in [false, true] {
            let mode = if moves { "with moves" } else { "without moves" };
            let key = format!("{label} / {what} / {mode}");
            if draft.has(&key) || interrupted() {
                continue;
            }
            say(self.to.quiet, format_args!("{label}: {what}, {mode}"));
            let chunks = spread(&mut router, &session, kind)?;
            if load == ClientLoad::Mixed {
                self.fill(&mut session, load)?;
            }
            let (mut step, done) = self.run(&mut session, url, moves.then_some(&chunks))?;
            step.name.clone_from(&what);
            step.mode = Some(mode.into());
            step.activity = [(MOVED.to_string(), done.ends.clone())].into();
            step.activity.retain(|_, ends| !ends.is_empty());
            done.refused.iter().for_each(|why| {
                draft.note(format!("{label}: a move was refused: {why}"));
            });
            draft.push(&key, step.clone());
            both.push((step, done));
        }
        if let [(without, _), (with, done)] = &both[..] {
            for check in figures(&format!("{label}, {what}"), without, with, done) {
                draft.check(check);
            }
        }
        stopped.start_again(&mut router)?;
        session.drop_table()
    }

    /// The records that are read and updated.
    fn fill(&self, session: &mut Session, load: ClientLoad) -> Result<()> {
        let own = load.spec(self.records)?;
        let spec = Spec {
            batch: session.load_batch,
            ..own.clone()
        };
        session.set_spec(load.name(), spec);
        let plan = StepPlan {
            limit: None,
            ..StepPlan::timed(self.connections, Duration::ZERO)
        };
        session.load_into(plan, &mut |_| {})?;
        session.set_spec(load.name(), own);
        Ok(())
    }

    fn run(
        &self,
        session: &mut Session,
        url: &str,
        chunks: Option<&Vec<Chunk>>,
    ) -> Result<(MeasuredStep, Moves)> {
        let plan = StepPlan::timed(self.connections, self.duration);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let mover = chunks.map(|chunks| {
                let (began, is_over) = (Instant::now(), &is_over);
                threads.spawn(move || move_on(url, chunks, began, is_over))
            });
            let run = session.run(plan, &mut |_| {});
            is_over.store(true, Ordering::Relaxed);
            let moves = match mover.map(std::thread::ScopedJoinHandle::join) {
                None => Moves::default(),
                Some(moves) => {
                    moves.map_err(|_| Fault::Local("the mover's thread panicked".into()))??
                }
            };
            Ok((run?.1, moves))
        })
    }
}

/// A balancer that is off for a while.
struct Balancer {
    was_on: bool,
}

impl Balancer {
    fn stop(router: &mut MongoConnection) -> Result<Balancer> {
        let status = router.command("admin", doc! {"balancerStatus": 1}.as_doc())?;
        let was_on = status.get("mode").and_then(Val::as_str) != Some("off");
        router.command("admin", doc! {"balancerStop": 1}.as_doc())?;
        Ok(Balancer { was_on })
    }

    fn start_again(self, router: &mut MongoConnection) -> Result<()> {
        if self.was_on {
            router.command("admin", doc! {"balancerStart": 1}.as_doc())?;
        }
        Ok(())
    }
}

/// A range between two keys, and the shard that has it.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    min: DocBuf,
    max: DocBuf,
    pub(super) shard: String,
}

/// Documents of `config`, as many as a first batch holds.
fn read_config(
    router: &mut MongoConnection,
    collection: &str,
    filter: Doc<'_>,
) -> Result<Vec<DocBuf>> {
    let find = doc! {"find": collection, "filter": filter.to_buf(), "batchSize": 1000};
    let reply = router.command("config", find.as_doc())?;
    let batch = reply
        .get("cursor")
        .and_then(|c| c.as_doc()?.get("firstBatch")?.as_array());
    let batch = batch.unwrap_or(Doc::EMPTY);
    Ok(batch
        .values()
        .filter_map(|d| Some(d.as_doc()?.to_buf()))
        .collect())
}

/// All chunks of a collection. They name it by its UUID; before MongoDB 5 by its namespace.
pub(super) fn chunks_of(router: &mut MongoConnection, ns: &str) -> Result<Vec<Chunk>> {
    let entries = read_config(router, "collections", doc! {"_id": ns}.as_doc())?;
    let uuid = entries
        .first()
        .and_then(|e| Some(e.get("uuid")?.to_value()));
    let mut found = match uuid {
        Some(uuid) => read_config(router, "chunks", doc! {"uuid": uuid}.as_doc())?,
        None => Vec::new(),
    };
    if found.is_empty() {
        found = read_config(router, "chunks", doc! {"ns": ns}.as_doc())?;
    }
    let chunk = |d: &DocBuf| {
        let document = |name: &str| Some(d.get(name)?.as_doc()?.to_buf());
        Some(Chunk {
            min: document("min")?,
            max: document("max")?,
            shard: d.get("shard")?.as_str()?.to_string(),
        })
    };
    Ok(found.iter().filter_map(chunk).collect())
}

pub(super) fn shards_of(router: &mut MongoConnection) -> Result<Vec<String>> {
    let reply = router.command("admin", doc! {"listShards": 1}.as_doc())?;
    let all = reply.get("shards").and_then(Val::as_array);
    let names = all.unwrap_or(Doc::EMPTY).values();
    let names = names.filter_map(|s| Some(s.as_doc()?.get("_id")?.as_str()?.to_string()));
    Ok(names.collect())
}

fn move_chunk(router: &mut MongoConnection, ns: &str, chunk: &Chunk, to: &str) -> Result<()> {
    let bounds = bson::array![chunk.min.clone(), chunk.max.clone()];
    let command = doc! {"moveChunk": ns, "bounds": bounds, "to": to};
    router.command("admin", command.as_doc()).map(drop)
}

/// Makes the collection anew, in the same chunks each time, one after the other on the next shard.
fn spread(router: &mut MongoConnection, session: &Session, kind: KeyOrder) -> Result<Vec<Chunk>> {
    let table = session.table();
    router.drop_collection(&table.database, &table.name)?;
    router.shard_collection(&table.database, &table.name, "_id", kind.how())?;
    split_and_spread(router, &table.database, &table.name, kind.middles())
}

/// Splits a collection without documents before each of those keys, and puts one chunk after the other on the next shard.
pub(super) fn split_and_spread(
    router: &mut MongoConnection,
    db: &str,
    collection: &str,
    middles: Vec<DocBuf>,
) -> Result<Vec<Chunk>> {
    let ns = format!("{db}.{collection}");
    for middle in middles {
        let split = doc! {"split": ns.as_str(), "middle": middle};
        router.command("admin", split.as_doc())?;
    }
    let shards = shards_of(router)?;
    if shards.len() < 2 {
        return Err(Fault::Usage("a move needs two shards".into()));
    }
    let mut chunks = chunks_of(router, &ns)?;
    for (i, chunk) in chunks.iter_mut().enumerate() {
        let to = &shards[i % shards.len()];
        if chunk.shard != *to {
            move_chunk(router, &ns, chunk, to)?;
            chunk.shard.clone_from(to);
        }
    }
    Ok(chunks)
}

/// The moves during a run.
#[derive(Default)]
struct Moves {
    /// Seconds since it began.
    ends: Vec<f64>,
    /// Seconds of each.
    took: Vec<f64>,
    refused: Vec<String>,
}

/// One chunk after the other to the next shard, until it is over.
fn move_on(url: &str, chunks: &[Chunk], began: Instant, is_over: &AtomicBool) -> Result<Moves> {
    let mut router = MongoAddress::parse(url)?.connect()?;
    let shards = shards_of(&mut router)?;
    let database = targets::open(url)?.database();
    let ns = format!("{}.{TABLE}", database.as_deref().unwrap_or("ycsb"));
    let (mut chunks, mut moves) = (chunks.to_vec(), Moves::default());
    for turn in 0.. {
        if is_over.load(Ordering::Relaxed) || chunks.is_empty() {
            break;
        }
        let at = turn % chunks.len();
        let chunk = &mut chunks[at];
        let has = shards.iter().position(|s| *s == chunk.shard);
        let to = &shards[(has.unwrap_or(0) + 1) % shards.len()];
        let start = Instant::now();
        match move_chunk(&mut router, &ns, chunk, to) {
            Ok(()) => {
                chunk.shard.clone_from(to);
                moves.took.push(start.elapsed().as_secs_f64());
                moves.ends.push(began.elapsed().as_secs_f64());
            }
            Err(why) => {
                moves.refused.push(why.to_string());
                std::thread::sleep(REFUSED_PAUSE);
            }
        }
    }
    Ok(moves)
}

/// What the moves cost, and how long they took.
fn figures(
    of: &str,
    without: &MeasuredStep,
    with: &MeasuredStep,
    moves: &Moves,
) -> Vec<CheckedFigure> {
    let rate = |s: &Sample| s.operations as f64 / s.seconds;
    // The first second has connections that warm up.
    let whole = with.series.iter().skip(1).filter(|s| s.seconds > 0.5);
    let slowest = whole.map(rate).fold(f64::NAN, f64::min);
    let figure = |what: &str, value: f64, unit: &str| {
        let named = CheckedFigure::figure(&format!("{of}: {what}"), value, unit);
        Some(named).filter(|_| value.is_finite())
    };
    let all = [
        figure(
            "rate with moves to that without",
            with.per_second / without.per_second,
            "",
        ),
        figure(
            "slowest second with moves to the rate without",
            slowest / without.per_second,
            "",
        ),
        figure("moves", moves.took.len() as f64, ""),
        figure("moves refused", moves.refused.len() as f64, ""),
        figure("a move, median", median(&moves.took), "s"),
        figure(
            "the longest move",
            moves.took.iter().copied().fold(f64::NAN, f64::max),
            "s",
        ),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_both_kinds_are_eight_or_nine_parts_in_order() {
        let numbers = KeyOrder::Hashed.middles();
        let numbers: Vec<i64> = numbers
            .iter()
            .map(|d| d.get("_id").and_then(Val::to_i64_exact).unwrap())
            .collect();
        assert_eq!(numbers.len(), 8);
        assert!(numbers.windows(2).all(|w| w[0] < w[1]), "{numbers:?}");
        let width = numbers[1].abs_diff(numbers[0]);
        assert_eq!(numbers[0].abs_diff(i64::MIN) / 1000, width / 1000);
        let ranged = KeyOrder::Ranged.middles();
        assert_eq!(ranged[0], doc! {"_id": "user2"});
        assert_eq!(ranged.len(), 8);
    }

    #[test]
    fn figures_are_those_of_the_seconds_after_the_first() {
        let series = [(1.0, 5), (2.0, 100), (3.0, 40), (4.0, 90)];
        let series = series.map(|(at, operations)| Sample {
            at,
            seconds: 1.0,
            operations,
            ..Sample::default()
        });
        let with = MeasuredStep {
            per_second: 80.0,
            series: series.to_vec(),
            ..MeasuredStep::default()
        };
        let without = MeasuredStep {
            per_second: 100.0,
            ..MeasuredStep::default()
        };
        let moves = Moves {
            ends: vec![1.0, 3.0, 4.0],
            took: vec![1.0, 2.0, 1.0],
            refused: Vec::new(),
        };
        let said = figures("x", &without, &with, &moves);
        let values: Vec<f64> = said.iter().map(|c| c.value).collect();
        assert_eq!(values, [0.8, 0.4, 3.0, 0.0, 1.0, 2.0]);
        // Without a move nothing is said of how long one took.
        assert_eq!(figures("x", &without, &with, &Moves::default()).len(), 4);
    }
}
