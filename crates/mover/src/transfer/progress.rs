//! How far a move has come ([`CopyProgress`]): told in its document of `config.migrations` and in
//! `serverStatus` once a second, and in the log every ten.
//!
//! Invariant: no decision depends on it, and a move does not fail if it cannot be written.

use super::copy::CopyRoute;
use bson::{Doc, DocBuf, Val, doc};
use cluster_view::chunks::millis;
use cluster_view::collections::size_on;
use cluster_view::metadata::Cluster;
use cluster_view::upstream::with_fields;
use parking_lot::Mutex;
use service::moves::{MoveUnderWay, Moves, RemainingWork};
use sharding::moving;
use sharding::progress::CopyProgress;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const WRITTEN_EACH: Duration = Duration::from_secs(1);
const LOGGED_EACH: Duration = Duration::from_secs(10);

pub(super) struct MoveProgress {
    began: Instant,
    written: Mutex<Instant>,
    logged: Mutex<Instant>,
    documents: AtomicU64,
    bytes: AtomicU64,
    /// Asked for when it is told for the first time, so that a short move pays nothing.
    to_copy: OnceLock<Option<(u64, u64)>>,
    moves: Arc<Moves>,
    under_way: Mutex<MoveUnderWay>,
}

fn is_due(last: &Mutex<Instant>, each: Duration) -> bool {
    let mut last = last.lock();
    let due = last.elapsed() >= each;
    if due {
        *last = Instant::now();
    }
    due
}

/// What a donor works at.
pub(super) struct Work<'a> {
    pub catches_up: bool,
    pub backlog: usize,
    pub share: f64,
    /// The limits of an index that find what it gives; empty where that is all, or none are known.
    pub limits: Doc<'a>,
}

impl MoveProgress {
    pub fn new(cluster: &Cluster) -> MoveProgress {
        let began = Instant::now();
        MoveProgress {
            began,
            written: Mutex::new(began),
            logged: Mutex::new(began),
            documents: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            to_copy: OnceLock::new(),
            under_way: Mutex::new(cluster.moves.begin()),
            moves: cluster.moves.clone(),
        }
    }

    /// So much has been put at recipients.
    pub fn put(&self, documents: usize, bytes: usize) {
        for (documents_sum, bytes_sum) in [
            (&self.documents, &self.bytes),
            (&self.moves.documents, &self.moves.bytes),
        ] {
            documents_sum.fetch_add(documents as u64, Ordering::Relaxed);
            bytes_sum.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Tells of it where that was not done for a while.
    pub fn tell(&self, route: &CopyRoute<'_>, work: &Work<'_>) {
        if !is_due(&self.written, WRITTEN_EACH) {
            return;
        }
        let now = CopyProgress {
            catches_up: work.catches_up,
            documents: self.documents.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            to_copy: *self.to_copy.get_or_init(|| to_copy(route, work.limits)),
            backlog: work.backlog as u64,
            share: work.share,
            since: self.began.elapsed(),
        };
        self.under_way.lock().tell(RemainingWork {
            documents: now.left().unwrap_or(0),
            bytes: now.left_bytes().unwrap_or(0),
            backlog: now.backlog,
        });
        if is_due(&self.logged, LOGGED_EACH) {
            let (documents, bytes) = (now.documents, now.bytes);
            let seconds = now.since.as_secs();
            let remaining = now.remaining().map(|left| left.as_secs());
            tracing::info!(
                target: "SHARDING", ns = route.ns, phase = now.phase(), documents, bytes, left = now.left(),
                backlog = now.backlog, share = now.share, seconds, remaining_seconds = remaining,
                "A range is under way"
            );
        }
        if let Err(e) = write(route, now.to_doc(millis())) {
            tracing::debug!(target: "SHARDING", ns = route.ns, error = %e, "The progress of a move was not told");
        }
    }
}

fn write(route: &CopyRoute<'_>, progress: DocBuf) -> cluster_view::Outcome<()> {
    let id = route.held.of_part().unwrap_or(route.ns);
    let q = moving::undecided(id, &route.held.by, route.held.turn());
    let u = doc! {"$set": doc! {"progress": progress}};
    let update = doc! {
        "update": "migrations",
        "updates": bson::array![doc! {"q": q, "u": u}],
        "writeConcern": doc! {"w": 1},
    };
    route.cluster.on_config("config", update.as_doc()).map(drop)
}

/// How many documents and bytes there are to copy, about; `None` where that cannot be told cheaply.
fn to_copy(route: &CopyRoute<'_>, limits: Doc<'_>) -> Option<(u64, u64)> {
    if limits.is_empty() && !route.gives_all() {
        return None;
    }
    let mut sum = (0, 0);
    for donor in route.leases.donors() {
        let (documents, bytes) = match limits.is_empty() {
            true => {
                let (bytes, documents) = size_on(route.cluster, &donor, route.ns).ok()?;
                (documents, bytes)
            }
            false => size_within(route, &donor, limits)?,
        };
        sum = (sum.0 + documents, sum.1 + bytes);
    }
    Some(sum)
}

fn size_within(route: &CopyRoute<'_>, donor: &str, limits: Doc<'_>) -> Option<(u64, u64)> {
    let ask = doc! {"_pandoRangeSize": 1, "ns": route.ns};
    let ask = with_fields(ask.as_doc(), limits);
    let reply = route.cluster.on_shard(donor, "admin", ask.as_doc()).ok()?;
    let number = |name: &str| reply.get(name).and_then(Val::to_i64_exact);
    Some((
        number("documents")?.unsigned_abs(),
        number("bytes")?.unsigned_abs(),
    ))
}
