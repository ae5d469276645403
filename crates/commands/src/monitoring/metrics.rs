//! Counters since the start: `serverStatus.opcounters`, `opLatencies`, `metrics.document` and
//! `queryExecutor`, `top`, and `$collStats.latencyStats`.

use crate::monitoring::latency::{ClassLatency, LatencyClass};
use executor::Updated;
use foldhash::HashMap;
use foldhash::fast::FixedState;
use parking_lot::Mutex;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Kinds of operation that `opcounters` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    Insert,
    Query,
    Update,
    Delete,
    GetMore,
    Command,
}

/// How `opcounters` names them, in its order.
pub const KINDS: [(&str, OperationKind); 6] = [
    ("insert", OperationKind::Insert),
    ("query", OperationKind::Query),
    ("update", OperationKind::Update),
    ("delete", OperationKind::Delete),
    ("getmore", OperationKind::GetMore),
    ("command", OperationKind::Command),
];

/// The kind that a command is counted as.
pub fn kind_of(command: &str) -> OperationKind {
    match command {
        "find" => OperationKind::Query,
        "getMore" => OperationKind::GetMore,
        "insert" => OperationKind::Insert,
        "update" => OperationKind::Update,
        "delete" => OperationKind::Delete,
        _ => OperationKind::Command,
    }
}

/// Microseconds spent and operations counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub micros: u64,
    pub count: u64,
}

/// What operations did to documents: `serverStatus.metrics`.
#[derive(Clone, Copy, Debug, Default)]
pub struct DocumentWork {
    pub inserted: u64,
    pub updated: u64,
    pub deleted: u64,
    pub returned: u64,
    pub keys_examined: u64,
    pub docs_examined: u64,
    /// Hidden keys that scans stepped over.
    pub hidden_keys: u64,
    /// Plans that looked at a whole collection, and that sorted what they found.
    pub scans: u64,
    pub sorts: u64,
}

impl DocumentWork {
    /// Counts what an update did.
    pub fn wrote(&mut self, u: &Updated) {
        self.updated += u.modified;
        self.inserted += u64::from(u.upserted.is_some());
    }

    fn add(&mut self, more: &DocumentWork) {
        self.inserted += more.inserted;
        self.updated += more.updated;
        self.deleted += more.deleted;
        self.returned += more.returned;
        self.keys_examined += more.keys_examined;
        self.docs_examined += more.docs_examined;
        self.hidden_keys += more.hidden_keys;
        self.scans += more.scans;
        self.sorts += more.sorts;
    }
}

/// What was spent on one namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceCounters {
    pub ns: String,
    /// By [`OperationKind`].
    pub usage: [Usage; 6],
    /// By [`LatencyClass`].
    pub latencies: [ClassLatency; 3],
    pub scans: u64,
}

/// The counters of all threads, and the sums of ended threads.
#[derive(Default)]
struct Shards {
    live: Vec<Arc<Mutex<Top>>>,
    left: Top,
}

impl Shards {
    fn gather(&mut self) {
        let left = &mut self.left;
        self.live.retain(|shard| {
            let alive = Arc::strong_count(shard) > 1;
            if !alive {
                left.add(&shard.lock());
            }
            alive
        });
    }
}

#[derive(Default)]
pub struct Counters {
    kinds: [AtomicU64; 6],
    user_asserts: AtomicU64,
    pub acknowledgements: Acknowledgements,
    shards: Mutex<Shards>,
}

/// Waits of writes for other members.
#[derive(Default)]
pub struct Acknowledgements {
    pub num: AtomicU64,
    pub micros: AtomicU64,
    pub timed_out: AtomicU64,
}

impl Acknowledgements {
    pub fn add(&self, took: Duration, timed_out: bool) {
        self.num.fetch_add(1, Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Relaxed);
        self.timed_out.fetch_add(u64::from(timed_out), Relaxed);
    }
}

/// The counters of one event loop or worker: each has its own, so that none waits for another.
#[derive(Default)]
pub struct Top {
    namespaces: HashMap<u64, NamespaceCounters>,
    latencies: [ClassLatency; 3],
    work: DocumentWork,
}

/// Namespaces that are counted by themselves: a client that asks for ever new ones must not take
/// ever more memory.
const MOST_NAMESPACES: usize = 10_000;

impl Top {
    /// One operation on a collection, or several.
    pub fn used(
        &mut self,
        db: &str,
        coll: &str,
        kind: OperationKind,
        class: LatencyClass,
        more: Usage,
    ) {
        // No name of a field, and of no collection either.
        if coll.contains('\0') {
            return;
        }
        if let Some(n) = self.namespace(hash_of(db, coll), || format!("{db}.{coll}")) {
            let u = &mut n.usage[kind as usize];
            u.micros += more.micros;
            u.count += more.count;
            n.latencies[class as usize].add(more.micros, more.count);
        }
    }

    /// A plan looked at a whole collection.
    pub fn scanned(&mut self, db: &str, coll: &str) {
        if let Some(n) = self.namespaces.get_mut(&hash_of(db, coll)) {
            n.scans += 1;
        }
    }

    /// One command, whatever it was on.
    pub fn ran(&mut self, class: LatencyClass, micros: u64, work: &DocumentWork) {
        self.latencies[class as usize].add(micros, 1);
        self.work.add(work);
    }

    /// The figures of a namespace, unless there are too many already.
    fn namespace(
        &mut self,
        hash: u64,
        ns: impl FnOnce() -> String,
    ) -> Option<&mut NamespaceCounters> {
        if self.namespaces.len() >= MOST_NAMESPACES && !self.namespaces.contains_key(&hash) {
            return None;
        }
        Some(
            self.namespaces
                .entry(hash)
                .or_insert_with(|| NamespaceCounters {
                    ns: ns(),
                    ..NamespaceCounters::default()
                }),
        )
    }
}

fn hash_of(db: &str, coll: &str) -> u64 {
    // All threads' counters name a namespace alike.
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(db.as_bytes());
    hasher.write_u8(b'.');
    hasher.write(coll.as_bytes());
    hasher.finish()
}

impl Top {
    fn forget(&mut self, db: &str, coll: Option<&str>) {
        match coll {
            Some(coll) => drop(self.namespaces.remove(&hash_of(db, coll))),
            None => self.namespaces.retain(|_, n| {
                let rest = n.ns.strip_prefix(db);
                !rest.is_some_and(|rest| rest.starts_with('.'))
            }),
        }
    }

    fn add(&mut self, other: &Top) {
        for (hash, n) in &other.namespaces {
            if let Some(sum) = self.namespace(*hash, || n.ns.clone()) {
                sum.merge(n);
            }
        }
        for (sum, l) in self.latencies.iter_mut().zip(&other.latencies) {
            sum.merge(l);
        }
        self.work.add(&other.work);
    }
}

impl NamespaceCounters {
    fn merge(&mut self, other: &NamespaceCounters) {
        for (sum, u) in self.usage.iter_mut().zip(&other.usage) {
            sum.micros += u.micros;
            sum.count += u.count;
        }
        for (sum, l) in self.latencies.iter_mut().zip(&other.latencies) {
            sum.merge(l);
        }
        self.scans += other.scans;
    }
}

impl Counters {
    /// Counts `n` operations: documents of an insert, statements of an update or delete, else
    /// commands.
    pub fn add(&self, kind: OperationKind, n: u64) {
        self.kinds[kind as usize].fetch_add(n, Relaxed);
    }

    pub fn get(&self, kind: OperationKind) -> u64 {
        self.kinds[kind as usize].load(Relaxed)
    }

    pub fn failed(&self) {
        self.user_asserts.fetch_add(1, Relaxed);
    }

    pub fn user_asserts(&self) -> u64 {
        self.user_asserts.load(Relaxed)
    }

    /// For a new event loop or worker: where it counts.
    pub fn shard(&self) -> Arc<Mutex<Top>> {
        let shard = Arc::default();
        let mut shards = self.shards.lock();
        shards.gather();
        shards.live.push(Arc::clone(&shard));
        shard
    }

    /// A collection, or all of a database, is gone: its figures go too and make room for others.
    pub fn forget(&self, db: &str, coll: Option<&str>) {
        let mut shards = self.shards.lock();
        shards.left.forget(db, coll);
        for shard in &shards.live {
            shard.lock().forget(db, coll);
        }
    }

    /// What was spent by namespace, over all loops and workers that are or were.
    pub fn top(&self) -> Vec<NamespaceCounters> {
        let mut all = Top::default();
        self.each(|top| all.add(top));
        let mut rows: Vec<_> = all.namespaces.into_values().collect();
        rows.sort_by(|a, b| a.ns.cmp(&b.ns));
        rows
    }

    /// The same of one namespace.
    pub fn namespace(&self, db: &str, coll: &str) -> NamespaceCounters {
        let (hash, mut sum) = (hash_of(db, coll), NamespaceCounters::default());
        self.each(|top| {
            if let Some(n) = top.namespaces.get(&hash) {
                sum.merge(n);
            }
        });
        sum
    }

    /// What all commands took, by [`LatencyClass`], and what they did.
    pub fn totals(&self) -> ([ClassLatency; 3], DocumentWork) {
        let (mut latencies, mut work) = (<[ClassLatency; 3]>::default(), DocumentWork::default());
        self.each(|top| {
            for (sum, l) in latencies.iter_mut().zip(&top.latencies) {
                sum.merge(l);
            }
            work.add(&top.work);
        });
        (latencies, work)
    }

    fn each(&self, mut look: impl FnMut(&Top)) {
        let mut shards = self.shards.lock();
        shards.gather();
        look(&shards.left);
        shards.live.iter().for_each(|shard| look(&shard.lock()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(top: &Mutex<Top>, db: &str, coll: &str, kind: OperationKind, micros: u64) {
        let usage = Usage { micros, count: 1 };
        top.lock().used(db, coll, kind, LatencyClass::Reads, usage);
    }

    #[test]
    fn sums_over_shards() {
        let c = Counters::default();
        let (a, b) = (c.shard(), c.shard());
        spent(&a, "db", "x", OperationKind::Query, 5);
        spent(&b, "db", "x", OperationKind::Query, 7);
        spent(&b, "db", "y", OperationKind::Insert, 1);
        // A worker thread ends; its counts stay.
        drop(b);
        let top = c.top();
        assert_eq!(
            top.iter().map(|n| n.ns.as_str()).collect::<Vec<_>>(),
            ["db.x", "db.y"]
        );
        let u = top[0].usage[OperationKind::Query as usize];
        assert_eq!((u.micros, u.count), (12, 2));
        let reads = &c.namespace("db", "x").latencies[LatencyClass::Reads as usize];
        assert_eq!((reads.micros, reads.ops), (12, 2));
        assert_eq!(
            c.namespace("db", "z").latencies[LatencyClass::Reads as usize].ops,
            0
        );
    }

    #[test]
    fn totals_outlive_workers_and_collections() {
        let c = Counters::default();
        let (a, b) = (c.shard(), c.shard());
        let work = DocumentWork {
            returned: 3,
            scans: 1,
            ..DocumentWork::default()
        };
        a.lock().ran(LatencyClass::Writes, 10, &work);
        b.lock().ran(LatencyClass::Writes, 20, &work);
        drop(a);
        c.forget("db", None);
        let (latencies, work) = c.totals();
        let writes = &latencies[LatencyClass::Writes as usize];
        assert_eq!((writes.micros, writes.ops), (30, 2));
        assert_eq!((work.returned, work.scans, work.inserted), (6, 2, 0));
    }

    #[test]
    fn what_is_dropped_makes_room() {
        let c = Counters::default();
        let (a, b) = (c.shard(), c.shard());
        for n in 0..MOST_NAMESPACES {
            spent(&a, "db", &n.to_string(), OperationKind::Query, 1);
        }
        let counted = |ns: &str| c.top().iter().any(|n| n.ns == ns);
        spent(&b, "db", "7", OperationKind::Query, 1);
        spent(&a, "db2", "one more", OperationKind::Query, 1);
        assert!(!counted("db2.one more"), "there is no room");
        c.forget("db", Some("7"));
        assert!(!counted("db.7"));
        spent(&a, "db2", "one more", OperationKind::Query, 1);
        assert!(counted("db2.one more"));
        c.forget("db", None);
        assert_eq!(
            c.top().len(),
            1,
            "another database that begins the same stays"
        );
        drop(b);
        c.forget("db2", Some("one more"));
        assert!(c.top().is_empty());
    }
}
