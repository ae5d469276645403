//! Counters since the start: `serverStatus.opcounters` and `top`.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// Kinds of operation that `opcounters` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Insert,
    Query,
    Update,
    Delete,
    GetMore,
    Command,
}

/// How `opcounters` names them, in its order.
pub const KINDS: [(&str, Kind); 6] = [
    ("insert", Kind::Insert),
    ("query", Kind::Query),
    ("update", Kind::Update),
    ("delete", Kind::Delete),
    ("getmore", Kind::GetMore),
    ("command", Kind::Command),
];

/// The kind that a command is counted as.
pub fn kind_of(command: &str) -> Kind {
    match command {
        "find" => Kind::Query,
        "getMore" => Kind::GetMore,
        "insert" => Kind::Insert,
        "update" => Kind::Update,
        "delete" => Kind::Delete,
        _ => Kind::Command,
    }
}

/// Microseconds spent and operations counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub micros: u64,
    pub count: u64,
}

#[derive(Default)]
pub struct Counters {
    kinds: [AtomicU64; 6],
    user_asserts: AtomicU64,
    shards: Mutex<Vec<Weak<Mutex<Top>>>>,
}

/// Time spent by namespace, as one event loop or worker has counted it: each has its own, so that none waits for another.
#[derive(Default)]
pub struct Top(HashMap<u64, (String, [Usage; 6])>);

/// Namespaces that are counted by themselves: a client that asks for ever new ones must not take ever more memory.
const MOST_NAMESPACES: usize = 10_000;

impl Top {
    pub fn spent(&mut self, db: &str, coll: &str, kind: Kind, micros: u64) {
        // No name of a field, and of no collection either.
        if coll.contains('\0') {
            return;
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(db.as_bytes());
        hasher.write_u8(b'.');
        hasher.write(coll.as_bytes());
        let hash = hasher.finish();
        if self.0.len() >= MOST_NAMESPACES && !self.0.contains_key(&hash) {
            return;
        }
        let usage = self
            .0
            .entry(hash)
            .or_insert_with(|| (format!("{db}.{coll}"), Default::default()));
        let u = &mut usage.1[kind as usize];
        u.micros += micros;
        u.count += 1;
    }
}

impl Counters {
    /// Counts `n` operations: documents of an insert, statements of an update or delete, else commands.
    pub fn add(&self, kind: Kind, n: u64) {
        self.kinds[kind as usize].fetch_add(n, Relaxed);
    }

    pub fn get(&self, kind: Kind) -> u64 {
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
        shards.retain(|s| s.strong_count() > 0);
        shards.push(Arc::downgrade(&shard));
        shard
    }

    /// Time spent by namespace, over all loops and workers that are.
    pub fn top(&self) -> Vec<(String, [Usage; 6])> {
        let mut all: BTreeMap<String, [Usage; 6]> = BTreeMap::new();
        for shard in self.shards.lock().iter().filter_map(Weak::upgrade) {
            for (ns, usage) in shard.lock().0.values() {
                let sum = all.entry(ns.clone()).or_default();
                for (s, u) in sum.iter_mut().zip(usage) {
                    s.micros += u.micros;
                    s.count += u.count;
                }
            }
        }
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_shards() {
        let c = Counters::default();
        let (a, b) = (c.shard(), c.shard());
        a.lock().spent("db", "x", Kind::Query, 5);
        b.lock().spent("db", "x", Kind::Query, 7);
        b.lock().spent("db", "y", Kind::Insert, 1);
        let top = c.top();
        assert_eq!(
            top.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>(),
            ["db.x", "db.y"]
        );
        let u = top[0].1[Kind::Query as usize];
        assert_eq!((u.micros, u.count), (12, 2));
    }
}
