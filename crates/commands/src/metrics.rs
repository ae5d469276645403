//! Counters since the start: `serverStatus.opcounters` and `top`.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// Where threads count, and what those counted that have left.
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
    shards: Mutex<Shards>,
}

/// Time spent by namespace, as one event loop or worker has counted it: each has its own, so that none waits for another.
#[derive(Default)]
pub struct Top(HashMap<u64, (String, [Usage; 6])>);

/// Namespaces that are counted by themselves: a client that asks for ever new ones must not take ever more memory.
const MOST_NAMESPACES: usize = 10_000;

impl Top {
    pub fn spent(&mut self, db: &str, coll: &str, kind: Kind, micros: u64) {
        self.used(db, coll, kind, Usage { micros, count: 1 });
    }

    pub fn used(&mut self, db: &str, coll: &str, kind: Kind, more: Usage) {
        // No name of a field, and of no collection either.
        if coll.contains('\0') {
            return;
        }
        let hash = hash_of(db, coll);
        if self.0.len() >= MOST_NAMESPACES && !self.0.contains_key(&hash) {
            return;
        }
        let usage = self
            .0
            .entry(hash)
            .or_insert_with(|| (format!("{db}.{coll}"), Default::default()));
        let u = &mut usage.1[kind as usize];
        u.micros += more.micros;
        u.count += more.count;
    }
}

fn hash_of(db: &str, coll: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(db.as_bytes());
    hasher.write_u8(b'.');
    hasher.write(coll.as_bytes());
    hasher.finish()
}

impl Top {
    fn forget(&mut self, db: &str, coll: Option<&str>) {
        match coll {
            Some(coll) => drop(self.0.remove(&hash_of(db, coll))),
            None => self.0.retain(|_, (ns, _)| {
                let rest = ns.strip_prefix(db);
                !rest.is_some_and(|rest| rest.starts_with('.'))
            }),
        }
    }

    fn add(&mut self, other: &Top) {
        for (hash, (ns, usage)) in &other.0 {
            if self.0.len() >= MOST_NAMESPACES && !self.0.contains_key(hash) {
                continue;
            }
            let sum = self
                .0
                .entry(*hash)
                .or_insert_with(|| (ns.clone(), Default::default()));
            for (s, u) in sum.1.iter_mut().zip(usage) {
                s.micros += u.micros;
                s.count += u.count;
            }
        }
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

    /// Time spent by namespace, over all loops and workers that are or were.
    pub fn top(&self) -> Vec<(String, [Usage; 6])> {
        let mut all = Top::default();
        let mut shards = self.shards.lock();
        shards.gather();
        all.add(&shards.left);
        shards.live.iter().for_each(|shard| all.add(&shard.lock()));
        let mut rows: Vec<_> = all.0.into_values().collect();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        rows
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
        // A worker leaves; what it counted stays.
        drop(b);
        let top = c.top();
        assert_eq!(
            top.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>(),
            ["db.x", "db.y"]
        );
        let u = top[0].1[Kind::Query as usize];
        assert_eq!((u.micros, u.count), (12, 2));
    }

    #[test]
    fn what_is_dropped_makes_room() {
        let c = Counters::default();
        let (a, b) = (c.shard(), c.shard());
        for n in 0..MOST_NAMESPACES {
            a.lock().spent("db", &n.to_string(), Kind::Query, 1);
        }
        let counted = |ns: &str| c.top().iter().any(|(n, _)| n == ns);
        b.lock().spent("db", "7", Kind::Query, 1);
        a.lock().spent("db2", "one more", Kind::Query, 1);
        assert!(!counted("db2.one more"), "there is no room");
        c.forget("db", Some("7"));
        assert!(!counted("db.7"));
        a.lock().spent("db2", "one more", Kind::Query, 1);
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
