//! The balancer: moves ranges until shards have about the same of each collection, by size.
//!
//! Invariant: one move at a time for each shard, and no move where the balancer is stopped. Moves between
//! different pairs of shards go on at the same time, of one collection too. It decides on figures of the
//! moment; a move that is not needed any more is only work.

use crate::transfer::{MoveOptions, To, move_range, move_ranges};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::collections::forbids_moves;
use cluster_view::collections::{size_on, sizes_on};
use cluster_view::metadata::{Cluster, Placement};
use cluster_view::split_points::first_part;
use cluster_view::write_concern::majority;
use cluster_view::{Failure, Outcome};
use errors::Code;
use jiff::tz::TimeZone;
use parking_lot::{Condvar, Mutex};
use sharding::balance::{Load, choose_apart, is_even, take_apart};
use sharding::zones::{Within, Zone, of as zone_of};
use sharding::{BalancerSettings, Chunk, RoutingTable, settings_validator};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

const PAUSE: Duration = Duration::from_secs(10);
/// A range's size where `config.settings` does not say.
const RANGE_BYTES: u64 = 128 << 20;

static ASKED: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
static ROUNDS: AtomicI64 = AtomicI64::new(0);

/// Has the next round begin at once.
pub fn wake() {
    *ASKED.0.lock() = true;
    ASKED.1.notify_all();
}

/// How many rounds there were since the process began.
pub fn rounds() -> i64 {
    ROUNDS.load(Ordering::Relaxed)
}

/// Whether a collection is not as it should be.
pub fn has_work(cluster: &Cluster, table: &RoutingTable) -> Outcome<bool> {
    let moves_jumbo = settings(cluster)?.moves_jumbo;
    Ok(!plan(cluster, table, range_bytes(cluster)?, moves_jumbo)?.is_empty())
}

fn setting(cluster: &Cluster, id: &str) -> Outcome<Option<DocBuf>> {
    let found = cluster.read_config("settings", doc! {"_id": id}.as_doc(), Doc::EMPTY)?;
    Ok(found.into_iter().next())
}

/// The balancer's settings; an error if they are invalid.
pub fn settings(cluster: &Cluster) -> Outcome<BalancerSettings> {
    let found = setting(cluster, "balancer")?.unwrap_or_default();
    Ok(BalancerSettings::parse(found.as_doc())?)
}

/// The time zone of this process, as `TZ` or the machine says.
fn time_zone() -> TimeZone {
    let named = std::env::var("TZ").ok().filter(|name| !name.is_empty());
    let zone = match named {
        Some(name) => {
            let name = name.trim_start_matches(':');
            TimeZone::get(name).or_else(|_| TimeZone::posix(name)).ok()
        }
        None => std::fs::read("/etc/localtime")
            .ok()
            .and_then(|data| TimeZone::tzif("local", &data).ok()),
    };
    zone.unwrap_or(TimeZone::UTC)
}

/// The minute of the day.
fn minute() -> u16 {
    let now = jiff::Timestamp::now().to_zoned(time_zone());
    now.hour().unsigned_abs() as u16 * 60 + now.minute().unsigned_abs() as u16
}

/// Has writes to `config.settings` refused that set of the balancer what makes no sense.
pub fn keep_settings_sound(cluster: &Cluster) -> Outcome<()> {
    let rules = |command: &str| {
        let validator = settings_validator();
        let mut w = Writer::new();
        w.str(command, "settings")
            .doc("validator", validator.as_doc());
        w.str("validationLevel", "strict")
            .str("validationAction", "error");
        w.doc("writeConcern", majority().as_doc());
        w.finish()
    };
    match cluster.on_config("config", rules("create").as_doc()) {
        Err(Failure::Client(e)) if e.code == Code::NamespaceExists => {
            cluster.on_config("config", rules("collMod").as_doc())?;
        }
        other => drop(other?),
    }
    Ok(())
}

pub fn range_bytes(cluster: &Cluster) -> Outcome<u64> {
    let found = setting(cluster, "chunksize")?;
    let mb = found.and_then(|d| d.get("value")?.to_f64());
    Ok(mb
        .map_or(RANGE_BYTES, |mb| (mb * f64::from(1 << 20)) as u64)
        .max(1 << 16))
}

/// A chunk, and the shard that is to have it.
struct Due {
    chunk: Chunk,
    to: String,
}

/// The moves that a collection needs most, no two of which have a shard in common.
fn plan(
    cluster: &Cluster,
    table: &RoutingTable,
    bytes: u64,
    moves_jumbo: bool,
) -> Outcome<Vec<Due>> {
    let (mut planned, mut busy) = (Vec::new(), BTreeSet::new());
    let ns = &table.entry.ns;
    let shards = cluster.shards()?;
    let tags = cluster.read_config("tags", doc! {"ns": ns.as_str()}.as_doc(), Doc::EMPTY)?;
    let zones: Result<Vec<Zone>, _> = tags
        .iter()
        .map(|d| Zone::parse(d.as_doc(), table.key()))
        .collect();
    let zones = zones?;
    let mut names: Vec<Option<&str>> = zones.iter().map(|z| Some(z.name.as_str())).collect();
    names.push(None);
    names.dedup();
    for zone in names {
        let within = zone.map_or(Within::None, Within::Zone);
        let inside = |c: &Chunk| {
            let range = c.range(table.key());
            range.is_ok_and(|r| zone_of(&zones, &r) == within)
        };
        let here = |c: &&Chunk| (moves_jumbo || !c.jumbo) && (zones.is_empty() || inside(c));
        let chunks: Vec<&Chunk> = table.chunks().filter(here).collect();
        let mut loads = Vec::new();
        for shard in &shards {
            let id = shard.get("_id").and_then(Val::as_str).unwrap_or_default();
            let tags = shard
                .get("tags")
                .and_then(Val::as_array)
                .unwrap_or(Doc::EMPTY);
            let tagged = |z: &str| tags.values().any(|t| t.as_str() == Some(z));
            loads.push(Load {
                shard: id,
                bytes: size_on(cluster, id, ns)?.0,
                has_ranges: chunks.iter().any(|c| &*c.shard == id),
                draining: shard.get("draining").is_some_and(Val::truthy),
                may_take: zone.is_none_or(tagged),
            });
        }
        for (from, to) in choose_apart(&loads, bytes, &mut busy) {
            let chunk = chunks.iter().find(|c| &*c.shard == from);
            planned.extend(chunk.map(|c| Due {
                chunk: (*c).clone(),
                to: to.into(),
            }));
        }
    }
    Ok(planned)
}

/// What a round knows of all collections before it looks at one: a few messages, however many there are.
struct Survey {
    /// A shard is being emptied.
    draining: bool,
    /// Collections that have zones.
    zoned: BTreeSet<String>,
    /// Collections that are known to have about as many bytes on each shard.
    even: BTreeSet<String>,
}

/// How much a shard has of collections. `None`: it is of a release that tells of one at a time only.
fn sizes_if_told(cluster: &Cluster, shard: &str, names: &[&str]) -> Outcome<Option<Vec<u64>>> {
    match sizes_on(cluster, shard, names) {
        Err(Failure::Client(e)) if e.code == Code::CommandNotFound => Ok(None),
        sizes => sizes.map(Some),
    }
}

impl Survey {
    fn take(cluster: &Cluster, names: &[&str], range_bytes: u64) -> Outcome<Survey> {
        let shards = cluster.shards()?;
        let text = |d: &DocBuf, name: &str| Some(d.get(name)?.as_str()?.to_string());
        let mut sizes = Some(Vec::new());
        for shard in shards.iter().filter_map(|s| text(s, "_id")) {
            let told = sizes_if_told(cluster, &shard, names)?;
            sizes = sizes.zip(told).map(|(mut sizes, told)| {
                sizes.push(told);
                sizes
            });
        }
        let of = |i: usize| {
            let all = sizes.iter().flatten();
            all.filter_map(move |of_shard| of_shard.get(i).copied())
        };
        let even = names.iter().enumerate();
        let even = even.filter(|(i, _)| sizes.is_some() && is_even(of(*i), range_bytes));
        let tags = cluster.read_config("tags", Doc::EMPTY, Doc::EMPTY)?;
        Ok(Survey {
            draining: shards
                .iter()
                .any(|s| s.get("draining").is_some_and(Val::truthy)),
            zoned: tags.iter().filter_map(|tag| text(tag, "ns")).collect(),
            even: even.map(|(_, ns)| ns.to_string()).collect(),
        })
    }

    fn may_need_moves(&self, ns: &str) -> bool {
        self.draining || self.zoned.contains(ns) || !self.even.contains(ns)
    }
}

/// The collections that the balancer may move ranges of.
fn balanced(entries: &[DocBuf]) -> Vec<&str> {
    let moves = |entry: &&DocBuf| {
        !entry.get("noBalance").is_some_and(Val::truthy) && !forbids_moves(entry.as_doc())
    };
    let names = entries.iter().filter(moves);
    names
        .filter_map(|entry| entry.get("_id")?.as_str())
        .collect()
}

/// One round: for each collection the moves that it needs, at most one of a shard. How many there were.
pub fn round(cluster: &Cluster) -> Result<usize, errors::Error> {
    one_round(cluster).map_err(|f| f.into_error())
}

fn one_round(cluster: &Cluster) -> Outcome<usize> {
    ROUNDS.fetch_add(1, Ordering::Relaxed);
    let settings = settings(cluster)?;
    if settings.is_off || !settings.is_open(minute()) {
        return Ok(0);
    }
    let throttle = settings.throttle.as_ref().map(DocBuf::as_doc);
    let options = MoveOptions::default().throttled(throttle);
    let bytes = range_bytes(cluster)?;
    let mut planned = Vec::new();
    let entries = cluster.read_config("collections", Doc::EMPTY, doc! {"_id": 1}.as_doc())?;
    let names = balanced(&entries);
    let survey = Survey::take(cluster, &names, bytes)?;
    for ns in names.into_iter().filter(|ns| survey.may_need_moves(ns)) {
        let Some(Placement::Sharded(table)) = cluster.refresh(ns)? else {
            continue;
        };
        for due in plan(cluster, &table, bytes, settings.moves_jumbo)? {
            planned.push(Planned {
                ns: ns.into(),
                max: first_part(cluster, &table, &due.chunk, bytes)?,
                due,
            });
        }
    }
    let mut moved = 0;
    while !planned.is_empty() {
        let mut wave: BTreeMap<String, Vec<Planned>> = BTreeMap::new();
        let mut busy: Vec<String> = Vec::new();
        for one in take_apart(&mut planned, Planned::pair) {
            let pair = one.pair();
            assert!(
                !pair.iter().any(|shard| busy.contains(shard)),
                "one move at a time for each shard"
            );
            busy.extend(pair);
            wave.entry(one.ns.clone()).or_default().push(one);
        }
        moved += std::thread::scope(|threads| {
            let run = |(ns, moves): (&String, &Vec<_>)| run_all(cluster, ns, moves, &options);
            let all: Vec<_> = wave.iter().map(|m| threads.spawn(move || run(m))).collect();
            // One that panicked has moved nothing that is known of.
            let ended = all.into_iter().map(|m| m.join().unwrap_or(0));
            ended.sum::<usize>()
        });
    }
    Ok(moved)
}

/// Moves of one collection, at once. How many were done.
fn run_all(cluster: &Cluster, ns: &str, moves: &[Planned], options: &MoveOptions) -> usize {
    let done = match moves {
        [one] => {
            let To { min, max, shard } = one.to();
            Ok(vec![move_range(cluster, ns, min, max, shard, options)])
        }
        moves => {
            let ranges: Vec<To<'_>> = moves.iter().map(Planned::to).collect();
            move_ranges(cluster, ns, &ranges, options)
        }
    };
    let done = done.unwrap_or_else(|e| vec![Err(e)]);
    for e in done.iter().filter_map(|done| done.as_ref().err()) {
        tracing::warn!(target: "SHARDING", ns, error = %e, "The balancer's move failed");
    }
    done.iter().filter(|done| done.is_ok()).count()
}

/// A move that a round has decided on.
struct Planned {
    ns: String,
    due: Due,
    max: DocBuf,
}

impl Planned {
    /// Donor and recipient.
    fn pair(&self) -> [String; 2] {
        [self.due.chunk.shard.to_string(), self.due.to.clone()]
    }

    fn to(&self) -> To<'_> {
        To {
            min: self.due.chunk.min.as_doc(),
            max: self.max.as_doc(),
            shard: &self.due.to,
        }
    }
}

/// Balances for ever, in a thread of its own, while `leads` says that this process is to.
pub fn run(
    cluster: Arc<Cluster>,
    leads: impl Fn() -> bool + Send + 'static,
) -> std::io::Result<()> {
    let mut is_sound = false;
    let work = move || {
        loop {
            // A cluster that an earlier version has made has no rules for its settings.
            if !is_sound && leads() {
                is_sound = keep_settings_sound(&cluster).is_ok();
            }
            let moved = match leads() {
                true => one_round(&cluster).unwrap_or_else(|e| {
                    tracing::warn!(target: "SHARDING", error = %e, "A round of the balancer is skipped");
                    0
                }),
                false => 0,
            };
            if moved > 0 {
                continue;
            }
            let mut asked = ASKED.0.lock();
            if !*asked {
                ASKED.1.wait_for(&mut asked, PAUSE);
            }
            *asked = false;
        }
    };
    std::thread::Builder::new()
        .name("balancer".into())
        .spawn(work)
        .map(drop)
}
