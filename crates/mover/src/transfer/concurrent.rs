//! Moves of one collection that are asked for at the same time at this process: they run beside each other under one lock, as long
//! as no two of them have a shard in common, as the balancer's do.
//!
//! ```text
//! asked ─► is the collection led? no ─► a thread takes the lock ─► begins what waits and finds its shards free ─► … ─► frees it
//!                  └─► yes ──────────────────────────────────────────┘
//! ```
//! Invariants:
//! - Every request gets one answer, whatever happens to the thread. A request that has waited too long
//!   withdraws its move, if that has not begun.
//! - If another command waits for the lock, or a move has failed, nothing more begins under it: the
//!   remaining moves begin under the next.

use super::move_options::MoveOptions;
use super::recovery::PendingMoves;
use super::recovery::{table_now, table_under};
use super::{To, move_in};
use bson::DocBuf;
use cluster_view::chunks::{Lock, PATIENCE, lock_within, too_late};
use cluster_view::metadata::{Cluster, Mover};
use cluster_view::{Failure, Outcome};
use errors::{Code, err};
use parking_lot::{Condvar, Mutex};
use sharding::RoutingTable;
use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// It is looked for as long at once whether the lock is free, and whether another waits for it.
const LOOK: Duration = Duration::from_secs(1);

/// What moves data in a process.
#[derive(Default)]
pub struct Moving {
    concurrent: ConcurrentMoves,
}

impl Mover for Moving {
    fn release_fence(&self, cluster: &Cluster, name: &str, shard: &str) -> Outcome<()> {
        PendingMoves::release_fence(cluster, name, shard)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The requested moves, by collection. There is an entry for as long as it is led.
#[derive(Default)]
pub struct ConcurrentMoves {
    last: AtomicU64,
    queues: Mutex<HashMap<String, MoveQueue>>,
    changed: Condvar,
}

#[derive(Default)]
struct MoveQueue {
    waiting: Vec<QueuedMove>,
    /// The pairs of shards between which something moves.
    busy: Vec<[String; 2]>,
    /// Answers to what has ended.
    ended: Vec<(Sender<Outcome<()>>, Outcome<()>)>,
    failed: bool,
}

impl MoveQueue {
    fn answer(&mut self) {
        for (answer, done) in self.ended.drain(..) {
            // Fails without harm if the client has gone.
            let _ = answer.send(done);
        }
    }
}

struct QueuedMove {
    number: u64,
    min: DocBuf,
    max: DocBuf,
    to: String,
    options: MoveOptions,
    answer: Sender<Outcome<()>>,
}

impl QueuedMove {
    fn run(&self, cluster: &Cluster, held: &Lock<'_>, ns: &str) -> Outcome<()> {
        let (min, max) = (self.min.as_doc(), self.max.as_doc());
        let part = held.part()?;
        move_in(&self.options, cluster, &part, ns, min, max, &self.to)
    }
}

/// Moves a range that lies in one chunk, beside others of its collection.
pub fn move_concurrently(
    cluster: &Arc<Cluster>,
    ns: &str,
    range: &To<'_>,
    options: &MoveOptions,
) -> Outcome<()> {
    cluster.shard(range.shard)?;
    let concurrent = ConcurrentMoves::of(cluster);
    let (answer, answered) = channel();
    let number = concurrent.last.fetch_add(1, Ordering::Relaxed);
    let queued = QueuedMove {
        number,
        min: range.min.to_buf(),
        max: range.max.to_buf(),
        to: range.shard.into(),
        options: options.clone(),
        answer,
    };
    if concurrent.put(ns, queued) {
        let leader = QueueLeader {
            cluster: cluster.clone(),
            ns: ns.into(),
            is_over: Cell::new(false),
        };
        std::thread::Builder::new()
            .name("moves".into())
            .spawn(move || leader.run())
            .map_err(|e| err!(OperationFailed, "no thread for a move: {e}"))?;
    }
    let most = options.left();
    let patience = most.map_or(PATIENCE, |most| most.min(PATIENCE));
    let answer = match answered.recv_timeout(patience) {
        Err(_) if concurrent.take_back(ns, number) => return Err(too_late(ns, most).into()),
        // It has begun, and looks at its time itself.
        Err(_) => answered.recv(),
        answer => answer.map_err(|_| std::sync::mpsc::RecvError),
    };
    answer.unwrap_or_else(|_| Err(err!(InternalError, "a move of {ns} was lost").into()))
}

impl ConcurrentMoves {
    /// Those of this process.
    fn of(cluster: &Cluster) -> &ConcurrentMoves {
        let mover = cluster.mover.as_any().downcast_ref::<Moving>();
        &mover
            .expect("a cluster whose data this room moves")
            .concurrent
    }

    /// Whether the collection has no leader yet.
    fn put(&self, ns: &str, queued: QueuedMove) -> bool {
        let mut all = self.queues.lock();
        let is_new = !all.contains_key(ns);
        all.entry(ns.into()).or_default().waiting.push(queued);
        self.changed.notify_all();
        is_new
    }

    /// Whether it had not begun.
    fn take_back(&self, ns: &str, number: u64) -> bool {
        let mut all = self.queues.lock();
        let Some(queue) = all.get_mut(ns) else {
            return false;
        };
        let before = queue.waiting.len();
        queue.waiting.retain(|queued| queued.number != number);
        queue.waiting.len() < before
    }

    fn ended(&self, ns: &str, pair: &[String; 2], queued: QueuedMove, done: Outcome<()>) {
        let mut all = self.queues.lock();
        let Some(queue) = all.get_mut(ns) else {
            panic!("a collection is led while a range of it moves");
        };
        let busy = queue.busy.len();
        queue.busy.retain(|busy| busy != pair);
        assert!(
            queue.busy.len() + 1 == busy,
            "one move at a time between two shards"
        );
        queue.failed |= done.is_err();
        queue.ended.push((queued.answer, done));
        self.changed.notify_all();
    }
}

/// A leader's next step for a collection.
enum Next {
    Begin(QueuedMove, [String; 2]),
    /// Something has ended, was asked for, or `LOOK` has passed.
    LookAgain,
    /// No move is in progress, and none more begins under this lock.
    Free,
}

/// Of a thread that leads a collection.
struct QueueLeader {
    cluster: Arc<Cluster>,
    ns: String,
    /// Another thread may lead the collection since.
    is_over: Cell<bool>,
}

impl Drop for QueueLeader {
    /// If it ends too early, the waiters find no leader and fail.
    fn drop(&mut self) {
        if !self.is_over.get() {
            ConcurrentMoves::of(&self.cluster)
                .queues
                .lock()
                .remove(&self.ns);
        }
    }
}

impl QueueLeader {
    fn run(self) {
        while self.has_more() {
            let held = match lock_within(&self.cluster, &self.ns, Some(LOOK)) {
                Ok(held) => held,
                Err(Failure::Client(e)) if e.code == Code::MaxTimeMSExpired => continue,
                Err(e) => {
                    self.refuse(e);
                    continue;
                }
            };
            match table_under(&self.cluster, &held, &self.ns) {
                Ok(table) => self.move_under(&held, table),
                Err(e) => self.refuse(e),
            }
            // A client with its answer finds the lock free.
            drop(held);
            if let Some(queue) = ConcurrentMoves::of(&self.cluster)
                .queues
                .lock()
                .get_mut(&self.ns)
            {
                queue.answer();
            }
        }
    }

    /// Whether something waits; where nothing does the collection is not led any more.
    fn has_more(&self) -> bool {
        let mut all = ConcurrentMoves::of(&self.cluster).queues.lock();
        let waits = all
            .get(&self.ns)
            .is_some_and(|queue| !queue.waiting.is_empty());
        if !waits {
            all.remove(&self.ns);
            self.is_over.set(true);
        }
        waits
    }

    /// Fails all requests that wait now.
    fn refuse(&self, e: Failure) {
        let mut all = ConcurrentMoves::of(&self.cluster).queues.lock();
        let e = e.into_error();
        for queued in all
            .get_mut(&self.ns)
            .into_iter()
            .flat_map(|queue| queue.waiting.drain(..))
        {
            let _ = queued.answer.send(Err(e.clone().into()));
        }
    }

    fn move_under(&self, held: &Lock<'_>, mut table: Arc<RoutingTable>) {
        let (cluster, ns) = (&*self.cluster, self.ns.as_str());
        if let Some(queue) = ConcurrentMoves::of(&self.cluster).queues.lock().get_mut(ns) {
            queue.failed = false;
        }
        std::thread::scope(|threads| {
            loop {
                match self.next(held, &table) {
                    Next::Free => break,
                    Next::LookAgain => {
                        // What has ended has made another.
                        if let Ok(now) = table_now(cluster, ns) {
                            table = now;
                        }
                    }
                    Next::Begin(queued, pair) => {
                        threads.spawn(move || {
                            let run = AssertUnwindSafe(|| queued.run(cluster, held, ns));
                            let panicked =
                                |_| Err(err!(InternalError, "a move has panicked").into());
                            let done = catch_unwind(run).unwrap_or_else(panicked);
                            ConcurrentMoves::of(cluster).ended(ns, &pair, queued, done);
                        });
                    }
                }
            }
        });
    }

    fn next(&self, held: &Lock<'_>, table: &RoutingTable) -> Next {
        let mut all = ConcurrentMoves::of(&self.cluster).queues.lock();
        let Some(queue) = all.get_mut(&self.ns) else {
            return Next::Free;
        };
        let ends = queue.failed || held.is_wanted();
        let pair = |queued: &QueuedMove| {
            // Of a range that is none the move itself says so.
            let place = table.key().place_of_bound(queued.min.as_doc());
            let from = place.ok().and_then(|place| table.chunk_at(&place));
            [
                from.map_or("", |chunk| &*chunk.shard).to_string(),
                queued.to.clone(),
            ]
        };
        let is_free = |pair: &[String; 2], busy: &[[String; 2]]| {
            !busy.iter().flatten().any(|shard| pair.contains(shard))
        };
        let mut pairs = queue.waiting.iter().map(pair).enumerate();
        let found = pairs.find(|(_, pair)| !ends && is_free(pair, &queue.busy));
        if let Some((at, pair)) = found {
            held.set_awaited(false);
            queue.busy.push(pair.clone());
            queue.answer();
            return Next::Begin(queue.waiting.remove(at), pair);
        }
        if queue.busy.is_empty() && (ends || queue.waiting.is_empty()) {
            return Next::Free;
        }
        queue.answer();
        held.set_awaited(!queue.waiting.is_empty());
        ConcurrentMoves::of(&self.cluster)
            .changed
            .wait_for(&mut all, LOOK);
        Next::LookAgain
    }
}
