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
    beside: Beside,
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
pub struct Beside {
    last: AtomicU64,
    led: Mutex<HashMap<String, Led>>,
    changed: Condvar,
}

#[derive(Default)]
struct Led {
    waiting: Vec<Asked>,
    /// The pairs of shards between which something moves.
    busy: Vec<[String; 2]>,
    /// Answers to what has ended.
    ended: Vec<(Sender<Outcome<()>>, Outcome<()>)>,
    failed: bool,
}

impl Led {
    fn answer(&mut self) {
        for (answer, done) in self.ended.drain(..) {
            // Fails without harm if the client has gone.
            let _ = answer.send(done);
        }
    }
}

struct Asked {
    number: u64,
    min: DocBuf,
    max: DocBuf,
    to: String,
    options: MoveOptions,
    answer: Sender<Outcome<()>>,
}

impl Asked {
    fn run(&self, cluster: &Cluster, held: &Lock<'_>, ns: &str) -> Outcome<()> {
        let (min, max) = (self.min.as_doc(), self.max.as_doc());
        let part = held.part()?;
        move_in(&self.options, cluster, &part, ns, min, max, &self.to)
    }
}

/// Moves a range that lies in one chunk, beside others of its collection.
pub fn move_beside(
    cluster: &Arc<Cluster>,
    ns: &str,
    range: &To<'_>,
    options: &MoveOptions,
) -> Outcome<()> {
    cluster.shard(range.shard)?;
    let beside = Beside::of(cluster);
    let (answer, answered) = channel();
    let number = beside.last.fetch_add(1, Ordering::Relaxed);
    let asked = Asked {
        number,
        min: range.min.to_buf(),
        max: range.max.to_buf(),
        to: range.shard.into(),
        options: options.clone(),
        answer,
    };
    if beside.put(ns, asked) {
        let leads = Leads {
            cluster: cluster.clone(),
            ns: ns.into(),
            is_over: Cell::new(false),
        };
        std::thread::Builder::new()
            .name("moves".into())
            .spawn(move || leads.run())
            .map_err(|e| err!(OperationFailed, "no thread for a move: {e}"))?;
    }
    let most = options.left();
    let patience = most.map_or(PATIENCE, |most| most.min(PATIENCE));
    let answer = match answered.recv_timeout(patience) {
        Err(_) if beside.take_back(ns, number) => return Err(too_late(ns, most).into()),
        // It has begun, and looks at its time itself.
        Err(_) => answered.recv(),
        answer => answer.map_err(|_| std::sync::mpsc::RecvError),
    };
    answer.unwrap_or_else(|_| Err(err!(InternalError, "a move of {ns} was lost").into()))
}

impl Beside {
    /// Those of this process.
    fn of(cluster: &Cluster) -> &Beside {
        let mover = cluster.mover.as_any().downcast_ref::<Moving>();
        &mover.expect("a cluster whose data this room moves").beside
    }

    /// Whether the collection has no leader yet.
    fn put(&self, ns: &str, asked: Asked) -> bool {
        let mut all = self.led.lock();
        let is_new = !all.contains_key(ns);
        all.entry(ns.into()).or_default().waiting.push(asked);
        self.changed.notify_all();
        is_new
    }

    /// Whether it had not begun.
    fn take_back(&self, ns: &str, number: u64) -> bool {
        let mut all = self.led.lock();
        let Some(led) = all.get_mut(ns) else {
            return false;
        };
        let before = led.waiting.len();
        led.waiting.retain(|asked| asked.number != number);
        led.waiting.len() < before
    }

    fn ended(&self, ns: &str, pair: &[String; 2], asked: Asked, done: Outcome<()>) {
        let mut all = self.led.lock();
        if let Some(led) = all.get_mut(ns) {
            led.busy.retain(|busy| busy != pair);
            led.failed |= done.is_err();
            led.ended.push((asked.answer, done));
        }
        self.changed.notify_all();
    }
}

/// A leader's next step for a collection.
enum Next {
    Begin(Asked, [String; 2]),
    /// Something has ended, was asked for, or `LOOK` has passed.
    LookAgain,
    /// No move is in progress, and none more begins under this lock.
    Free,
}

/// Of a thread that leads a collection.
struct Leads {
    cluster: Arc<Cluster>,
    ns: String,
    /// Another thread may lead the collection since.
    is_over: Cell<bool>,
}

impl Drop for Leads {
    /// If it ends too early, the waiters find no leader and fail.
    fn drop(&mut self) {
        if !self.is_over.get() {
            Beside::of(&self.cluster).led.lock().remove(&self.ns);
        }
    }
}

impl Leads {
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
            if let Some(led) = Beside::of(&self.cluster).led.lock().get_mut(&self.ns) {
                led.answer();
            }
        }
    }

    /// Whether something waits; where nothing does the collection is not led any more.
    fn has_more(&self) -> bool {
        let mut all = Beside::of(&self.cluster).led.lock();
        let waits = all.get(&self.ns).is_some_and(|led| !led.waiting.is_empty());
        if !waits {
            all.remove(&self.ns);
            self.is_over.set(true);
        }
        waits
    }

    /// Fails all requests that wait now.
    fn refuse(&self, e: Failure) {
        let mut all = Beside::of(&self.cluster).led.lock();
        let e = e.into_error();
        for asked in all
            .get_mut(&self.ns)
            .into_iter()
            .flat_map(|led| led.waiting.drain(..))
        {
            let _ = asked.answer.send(Err(e.clone().into()));
        }
    }

    fn move_under(&self, held: &Lock<'_>, mut table: Arc<RoutingTable>) {
        let (cluster, ns) = (&*self.cluster, self.ns.as_str());
        if let Some(led) = Beside::of(&self.cluster).led.lock().get_mut(ns) {
            led.failed = false;
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
                    Next::Begin(asked, pair) => {
                        threads.spawn(move || {
                            let run = AssertUnwindSafe(|| asked.run(cluster, held, ns));
                            let panicked =
                                |_| Err(err!(InternalError, "a move has panicked").into());
                            let done = catch_unwind(run).unwrap_or_else(panicked);
                            Beside::of(cluster).ended(ns, &pair, asked, done);
                        });
                    }
                }
            }
        });
    }

    fn next(&self, held: &Lock<'_>, table: &RoutingTable) -> Next {
        let mut all = Beside::of(&self.cluster).led.lock();
        let Some(led) = all.get_mut(&self.ns) else {
            return Next::Free;
        };
        let ends = led.failed || held.is_wanted();
        let pair = |asked: &Asked| {
            // Of a range that is none the move itself says so.
            let place = table.key().place_of_bound(asked.min.as_doc());
            let from = place.ok().and_then(|place| table.chunk_at(&place));
            [
                from.map_or("", |chunk| &*chunk.shard).to_string(),
                asked.to.clone(),
            ]
        };
        let is_free = |pair: &[String; 2], busy: &[[String; 2]]| {
            !busy.iter().flatten().any(|shard| pair.contains(shard))
        };
        let mut pairs = led.waiting.iter().map(pair).enumerate();
        let found = pairs.find(|(_, pair)| !ends && is_free(pair, &led.busy));
        if let Some((at, pair)) = found {
            held.set_awaited(false);
            led.busy.push(pair.clone());
            led.answer();
            return Next::Begin(led.waiting.remove(at), pair);
        }
        if led.busy.is_empty() && (ends || led.waiting.is_empty()) {
            return Next::Free;
        }
        led.answer();
        held.set_awaited(!led.waiting.is_empty());
        Beside::of(&self.cluster).changed.wait_for(&mut all, LOOK);
        Next::LookAgain
    }
}
