//! The balancer: moves ranges until shards have about the same of each collection, by size.
//!
//! Invariant: one move at a time for each shard, and no move where the balancer is stopped. Moves between
//! different pairs of shards go on at the same time, of one collection too. It decides on figures of the
//! moment; a move that is not needed any more is only work.

use crate::transfer::{MoveOptions, To, move_range, move_ranges};
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::collections::{forbids_moves, large_on, size_on, sizes_on};
use cluster_view::metadata::{Cluster, Placement};
use cluster_view::split_points::first_part;
use cluster_view::write_concern::majority;
use cluster_view::{Failure, Outcome};
use errors::Code;
use jiff::tz::TimeZone;
use parking_lot::{Condvar, Mutex};
use sharding::balance::{ShardLoad, is_even, plan, take_apart, tolerated_bytes};
use sharding::zones::Zone;
use sharding::{BalancerSettings, Chunk, RoutingTable, settings_validator};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

const PAUSE: Duration = Duration::from_secs(10);
/// How long a round waits, in all, for shards to have a primary.
const REACHED: Duration = Duration::from_secs(2);
/// A round plans no further when it has so many moves: later ones go by fresher figures.
const MOST_PLANNED: usize = 1_000;
/// A round looks closer at so many collections: each shard tells the sizes of these.
const MOST_LOOKED_AT: usize = 2_000;
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
    let zones_of_it = doc! {"ns": table.entry.ns.as_str()};
    let figures = Survey {
        shards: cluster.shards()?,
        tags: cluster.read_config("tags", zones_of_it.as_doc(), Doc::EMPTY)?,
        sizes: BTreeMap::new(),
        due: Vec::new(),
        last: String::new(),
    };
    let moves = figures.plan(cluster, table, range_bytes(cluster)?, moves_jumbo)?;
    Ok(!moves.is_empty())
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

/// What a round knows of all collections before it looks at one: a few messages to each shard, however many
/// collections there are.
struct Survey {
    /// The shards that were reached: the others take no part in the round.
    shards: Vec<DocBuf>,
    /// The zones of all collections.
    tags: Vec<DocBuf>,
    /// How many bytes each of the shards has, in their order, of collections that were looked at.
    sizes: BTreeMap<String, Vec<u64>>,
    /// Of these, the ones that may need moves.
    due: Vec<String>,
    /// The last one that was looked at: the next round goes on behind it.
    last: String,
}

fn text<'d>(d: &'d DocBuf, name: &str) -> Option<&'d str> {
    d.get(name)?.as_str()
}

fn id_of(shard: &DocBuf) -> &str {
    text(shard, "_id").unwrap_or_default()
}

fn is_draining(shard: &DocBuf) -> bool {
    shard.get("draining").is_some_and(Val::truthy)
}

/// The answer of a shard; `None`: it is of a release that does not know the question.
fn if_known<T>(answer: Outcome<T>) -> Outcome<Option<T>> {
    match answer {
        Err(Failure::Client(e)) if e.code == Code::CommandNotFound => Ok(None),
        answer => answer.map(Some),
    }
}

/// The collections among `names` that are not known to have about as many bytes on each shard. Shards tell of
/// those only of which they have more than shards may differ by. `None`: a shard does not know the question.
fn perhaps_uneven<'n>(
    cluster: &Cluster,
    shards: &[DocBuf],
    names: &BTreeSet<&'n str>,
    range_bytes: u64,
) -> Outcome<Option<BTreeSet<&'n str>>> {
    let mut sizes: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for shard in shards {
        let large = if_known(large_on(
            cluster,
            id_of(shard),
            tolerated_bytes(range_bytes),
        ))?;
        let Some(large) = large.flatten() else {
            return Ok(None);
        };
        for (ns, bytes) in large {
            if let Some(name) = names.get(ns.as_str()) {
                sizes.entry(name).or_default().push(bytes);
            }
        }
    }
    let told_by_all = |told: &Vec<u64>| told.len() == shards.len();
    sizes.retain(|_, told| !(told_by_all(told) && is_even(told.iter().copied(), range_bytes)));
    Ok(Some(sizes.into_keys().collect()))
}

/// How many bytes each shard has of each of the collections. `None`: a shard is of a release that tells of one
/// at a time only.
fn sizes_of(
    cluster: &Cluster,
    shards: &[DocBuf],
    names: &[&str],
) -> Outcome<Option<BTreeMap<String, Vec<u64>>>> {
    let mut sizes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    if names.is_empty() {
        return Ok(Some(sizes));
    }
    for shard in shards {
        let Some(told) = if_known(sizes_on(cluster, id_of(shard), names))? else {
            return Ok(None);
        };
        for (ns, bytes) in names.iter().zip(told) {
            sizes.entry(ns.to_string()).or_default().push(bytes);
        }
    }
    Ok(Some(sizes))
}

/// The collections of which shards that are being emptied have chunks.
fn to_be_emptied<'e>(
    cluster: &Cluster,
    shards: &[DocBuf],
    entries: &'e [DocBuf],
) -> Outcome<BTreeSet<&'e str>> {
    if !shards.iter().any(is_draining) {
        return Ok(BTreeSet::new());
    }
    let mut names = Writer::new_array();
    for shard in shards.iter().filter(|s| is_draining(s)) {
        names.push_value(id_of(shard));
    }
    let names = names.finish_array();
    let distinct = doc! {
        "distinct": "chunks", "key": "uuid", "query": doc! {"shard": doc! {"$in": names}},
        "readConcern": doc! {"level": "majority"},
    };
    let reply = cluster.on_config("config", distinct.as_doc())?;
    let uuids = reply.get("values").and_then(Val::as_array);
    let uuid = |v: Val<'_>| Some(v.as_binary()?.1.to_vec());
    let uuids = uuids.unwrap_or(Doc::EMPTY).values().filter_map(uuid);
    let uuids: BTreeSet<Vec<u8>> = uuids.collect();
    let here = entries.iter().filter(|entry| {
        let own = entry.get("uuid").and_then(uuid);
        own.is_some_and(|own| uuids.contains(&own))
    });
    Ok(here.filter_map(|entry| text(entry, "_id")).collect())
}

/// The first of the names that come behind one, in a circle.
fn behind<'n>(names: &BTreeSet<&'n str>, after: &str, many: usize) -> Vec<&'n str> {
    let behind = names.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
    let rest = names.range::<str, _>((Bound::Unbounded, Bound::Included(after)));
    behind.chain(rest).copied().take(many).collect()
}

impl Survey {
    /// Looks at the collections behind `after`, as many as one round does.
    fn take(
        cluster: &Cluster,
        entries: &[DocBuf],
        range_bytes: u64,
        after: &str,
    ) -> Outcome<Survey> {
        let names: BTreeSet<&str> = balanced(entries).into_iter().collect();
        let mut shards = cluster.shards()?;
        let all = shards.len();
        cluster.retain_reached(&mut shards, id_of, REACHED)?;
        if shards.len() < all {
            let missing = all - shards.len();
            tracing::warn!(target: "SHARDING", missing, "Shards without a primary take no part in a round of the balancer");
        }
        let tags = cluster.read_config("tags", Doc::EMPTY, Doc::EMPTY)?;
        // Whatever their sizes are.
        let mut certain = to_be_emptied(cluster, &shards, entries)?;
        certain.extend(tags.iter().filter_map(|tag| text(tag, "ns")));
        let suspects = perhaps_uneven(cluster, &shards, &names, range_bytes)?;
        let mut suspects = suspects.unwrap_or_else(|| names.clone());
        suspects.extend(certain.intersection(&names));
        let looked_at = behind(&suspects, after, MOST_LOOKED_AT);
        let sizes = sizes_of(cluster, &shards, &looked_at)?;
        let is_due = |ns: &&str| {
            let sizes = sizes.as_ref().and_then(|sizes| sizes.get(*ns));
            let is_even = sizes.is_some_and(|s| is_even(s.iter().copied(), range_bytes));
            certain.contains(ns) || !is_even
        };
        let last = looked_at.last().copied().unwrap_or_default().into();
        let due = looked_at.into_iter().filter(is_due).map(String::from);
        let due = due.collect();
        let sizes = sizes.unwrap_or_default();
        Ok(Survey {
            shards,
            tags,
            sizes,
            due,
            last,
        })
    }

    /// The moves that a collection needs most, no two of which have a shard in common.
    fn plan(
        &self,
        cluster: &Cluster,
        table: &RoutingTable,
        range_bytes: u64,
        moves_jumbo: bool,
    ) -> Outcome<Vec<Due>> {
        let ns = table.entry.ns.as_str();
        let bytes = match self.sizes.get(ns) {
            Some(sizes) => sizes.clone(),
            None => {
                let size = |s| Ok(size_on(cluster, id_of(s), ns)?.0);
                self.shards
                    .iter()
                    .map(size)
                    .collect::<Outcome<Vec<u64>>>()?
            }
        };
        let tags = self.tags.iter().filter(|tag| text(tag, "ns") == Some(ns));
        let zones: Result<Vec<Zone>, _> =
            tags.map(|d| Zone::parse(d.as_doc(), table.key())).collect();
        let load = |(shard, bytes)| ShardLoad {
            shard: id_of(shard),
            bytes,
            draining: is_draining(shard),
            zones: zones_of(shard),
        };
        let loads: Vec<ShardLoad<'_>> = self.shards.iter().zip(bytes).map(load).collect();
        let moves = plan(table, zones?, &loads, range_bytes, moves_jumbo)?;
        let due = moves.into_iter().map(|(chunk, to)| Due {
            chunk: chunk.clone(),
            to: to.into(),
        });
        Ok(due.collect())
    }
}

/// The zones of a shard.
fn zones_of(shard: &DocBuf) -> Vec<&str> {
    let zones = shard.get("tags").and_then(Val::as_array);
    let zones = zones.unwrap_or(Doc::EMPTY).values();
    zones.filter_map(Val::as_str).collect()
}

/// A chunk, and the shard that is to have it.
struct Due {
    chunk: Chunk,
    to: String,
}

/// The collections that the balancer may move ranges of.
fn balanced(entries: &[DocBuf]) -> Vec<&str> {
    let moves = |entry: &&DocBuf| {
        !entry.get("noBalance").is_some_and(Val::truthy) && !forbids_moves(entry.as_doc())
    };
    let names = entries.iter().filter(moves);
    names.filter_map(|entry| text(entry, "_id")).collect()
}

/// The balancer, from round to round.
#[derive(Default)]
pub struct Balancer {
    /// The collection behind which the next round begins to look.
    after: String,
}

impl Balancer {
    /// One round: for each collection the moves that it needs, at most one of a shard. How many there were.
    pub fn round(&mut self, cluster: &Cluster) -> Outcome<usize> {
        ROUNDS.fetch_add(1, Ordering::Relaxed);
        let settings = settings(cluster)?;
        if settings.is_off || !settings.is_open(minute()) {
            return Ok(0);
        }
        let throttle = settings.throttle.as_ref().map(DocBuf::as_doc);
        let options = MoveOptions::default().throttled(throttle);
        let planned = self.plan(cluster, settings.moves_jumbo)?;
        Ok(run_planned(cluster, planned, &options))
    }

    fn plan(&mut self, cluster: &Cluster, moves_jumbo: bool) -> Outcome<Vec<Planned>> {
        let bytes = range_bytes(cluster)?;
        let fields = doc! {"uuid": 1, "noBalance": 1, "permitMigrations": 1};
        let by_name = doc! {"_id": 1};
        let entries = cluster.read_config_fields(
            "collections",
            Doc::EMPTY,
            by_name.as_doc(),
            fields.as_doc(),
        )?;
        let survey = Survey::take(cluster, &entries, bytes, &self.after)?;
        self.after.clone_from(&survey.last);
        let mut planned = Vec::new();
        for ns in &survey.due {
            let Some(Placement::Sharded(table)) = cluster.refresh(ns)? else {
                continue;
            };
            for due in survey.plan(cluster, &table, bytes, moves_jumbo)? {
                planned.push(Planned {
                    ns: ns.clone(),
                    max: first_part(cluster, &table, &due.chunk, bytes)?,
                    due,
                });
            }
            if planned.len() >= MOST_PLANNED {
                self.after.clone_from(ns);
                break;
            }
        }
        Ok(planned)
    }
}

/// Runs moves, as many at once as have no shard in common. How many were done.
fn run_planned(cluster: &Cluster, mut planned: Vec<Planned>, options: &MoveOptions) -> usize {
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
            let run = |(ns, moves): (&String, &Vec<_>)| run_all(cluster, ns, moves, options);
            let all: Vec<_> = wave.iter().map(|m| threads.spawn(move || run(m))).collect();
            // One that panicked has moved nothing that is known of.
            let ended = all.into_iter().map(|m| m.join().unwrap_or(0));
            ended.sum::<usize>()
        });
    }
    moved
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
    let mut balancer = Balancer::default();
    let work = move || {
        loop {
            // A cluster that an earlier version has made has no rules for its settings.
            if !is_sound && leads() {
                is_sound = keep_settings_sound(&cluster).is_ok();
            }
            let moved = match leads() {
                true => balancer.round(&cluster).unwrap_or_else(|e| {
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
