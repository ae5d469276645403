//! Changes of a collection's chunks in the metadata: one at a time for each collection, each done
//! whole or not at all.
//!
//! Invariant: a change of chunks needs the collection's lock; the change fails if the lock was taken
//! over.

use crate::metadata::{Cluster, run};
use crate::write_concern::majority;
use crate::{Failure, Outcome};
use bson::{DocBuf, ObjectId, Val, Value, Writer, doc};
use errors::{Code, Error, err};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use sharding::{Chunk, lock, moving};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long a lock is waited for.
pub const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(30);
/// A waiter then asks the holder to hurry.
const ASKS_AFTER: Duration = Duration::from_millis(500);

/// A lock in `config.locks`, of a collection or of a database. The holder, or one of its
/// [`part`](Lock::part)s, renews it.
pub struct Lock<'c> {
    pub cluster: &'c Cluster,
    pub by: String,
    /// Grows with each holder, each part, and each move that is rolled back: shards refuse commands of
    /// an earlier turn.
    turn: AtomicI64,
    /// Its pending move is one of several, and has this `_id`.
    part: Option<String>,
    shared: Arc<LockShared<'c>>,
}

/// What the parts of a lock share.
struct LockShared<'c> {
    cluster: &'c Cluster,
    ns: String,
    by: String,
    /// The last turn of any part.
    last: AtomicI64,
    /// Held while the lock's document is changed.
    changing: Arc<Mutex<()>>,
    /// Held by the part that changes the owner of its range.
    deciding: Mutex<Decided>,
    wanted: Arc<AtomicBool>,
    /// Another command waits for a part of the lock.
    awaited: AtomicBool,
    /// Ends the renewal when it is dropped.
    _renewed: mpsc::Sender<()>,
}

/// What is known of the changes by parts of a lock.
#[derive(Default)]
struct Decided {
    /// What became of one is not known.
    in_doubt: bool,
}

impl LockShared<'_> {
    fn own(&self) -> DocBuf {
        lock::held(&self.ns, &self.by)
    }
}

impl<'c> Lock<'c> {
    fn new(cluster: &'c Cluster, ns: &str, by: String, turn: i64) -> Outcome<Lock<'c>> {
        let (ends, ended) = mpsc::channel();
        let changing = Arc::new(Mutex::new(()));
        let shared = LockShared {
            cluster,
            ns: ns.into(),
            by: by.clone(),
            last: AtomicI64::new(turn),
            changing: changing.clone(),
            deciding: Mutex::default(),
            wanted: Arc::default(),
            awaited: AtomicBool::new(false),
            _renewed: ends,
        };
        let (config, q) = (cluster.config.clone(), shared.own());
        let wanted = shared.wanted.clone();
        let held = Lock {
            cluster,
            by,
            turn: AtomicI64::new(turn),
            part: None,
            shared: Arc::new(shared),
        };
        let renew = move || {
            while ended.recv_timeout(lock::RENEW) == Err(RecvTimeoutError::Timeout) {
                let Some(_changing) = changing.try_lock() else {
                    continue;
                };
                let renew = doc! {
                    "findAndModify": "locks",
                    "query": &q,
                    "update": lock::renewed(millis()),
                    "writeConcern": majority(),
                };
                // A failed renewal is not fatal here: the holder's next change fails if the lock was
                // taken over.
                if let Ok(reply) = run(&config, "config", renew.as_doc()) {
                    let before = reply.get("value").and_then(Val::as_doc);
                    let asked = before.is_some_and(|d| d.contains("wanted"));
                    wanted.fetch_or(asked, Ordering::Relaxed);
                }
            }
        };
        std::thread::Builder::new()
            .name("lock".into())
            .spawn(renew)
            .map_err(|e| err!(OperationFailed, "no thread for a lock: {e}"))?;
        Ok(held)
    }

    /// Of which collection or database it is.
    pub fn name(&self) -> &str {
        &self.shared.ns
    }

    /// A part of it for one of several moves at once, no two of which have a shard in common, with a
    /// turn of its own. The holder itself changes nothing until its parts have ended.
    pub fn part(&self) -> Outcome<Lock<'c>> {
        let mut part = Lock {
            cluster: self.cluster,
            by: self.by.clone(),
            turn: AtomicI64::new(0),
            part: None,
            shared: self.shared.clone(),
        };
        part.take_turn()?;
        part.part = Some(part.fence());
        Ok(part)
    }

    /// Changes the owner of the range of a part: no other part does so until it is known what became of
    /// that, which `is_known` finds out where it failed.
    pub fn decide(
        &self,
        change: impl FnOnce() -> Outcome<()>,
        is_known: impl FnOnce() -> Outcome<()>,
    ) -> Outcome<()> {
        let mut decided = self.shared.deciding.lock();
        if decided.in_doubt {
            return Err(err!(
                ConflictingOperationInProgress,
                "it is not known what became of another move of {}",
                self.shared.ns
            )
            .into());
        }
        let done = change();
        decided.in_doubt = done.is_err() && is_known().is_err();
        done
    }

    /// The `_id` of its pending move, if that is one of several at once.
    pub fn of_part(&self) -> Option<&str> {
        self.part.as_deref()
    }

    /// Whether another waits for it, as far as was heard.
    pub fn is_wanted(&self) -> bool {
        self.shared.wanted.load(Ordering::Relaxed)
    }

    /// Sets whether a command waits for the end of a part of the lock.
    pub fn set_awaited(&self, awaited: bool) {
        self.shared.awaited.store(awaited, Ordering::Relaxed);
    }

    /// Whether anybody waits for the end of what it is held for: then that does not rest.
    pub fn is_awaited(&self) -> bool {
        self.is_wanted() || self.shared.awaited.load(Ordering::Relaxed)
    }

    pub fn turn(&self) -> i64 {
        self.turn.load(Ordering::Relaxed)
    }

    /// The name of the fences of its holder's pending move.
    pub fn fence(&self) -> String {
        moving::fence_of(&self.by, self.turn())
    }

    fn own(&self) -> DocBuf {
        self.shared.own()
    }

    /// Continues as the next holder: messages of a rolled-back move that are still on their way carry an
    /// earlier turn.
    pub fn take_turn(&self) -> Outcome<()> {
        let mut change = MetadataChange::begin(self);
        change.update("locks", self.own(), lock::next_turn(millis()));
        change.commit()?;
        let before = self.shared.last.fetch_add(1, Ordering::Relaxed);
        self.turn.store(before + 1, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for LockShared<'_> {
    fn drop(&mut self) {
        let _changing = self.changing.lock();
        let updates = bson::array![doc! {"q": self.own(), "u": lock::freed()}];
        let free = doc! {"update": "locks", "updates": updates, "writeConcern": majority()};
        if let Err(e) = self.cluster.on_config("config", free.as_doc()) {
            tracing::warn!(target: "SHARDING", ns = self.ns.as_str(), error = %e, "A lock is left behind");
        }
    }
}

pub fn millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as i64)
}

/// Takes the lock of a collection or of a database. One that was left behind is taken over after a
/// while: its holder's transaction fails then, because it names the holder.
pub fn lock<'c>(cluster: &'c Cluster, ns: &str) -> Outcome<Lock<'c>> {
    lock_within(cluster, ns, None)
}

/// The same with a time limit.
pub fn lock_within<'c>(
    cluster: &'c Cluster,
    ns: &str,
    most: Option<Duration>,
) -> Outcome<Lock<'c>> {
    let patience = most.map_or(PATIENCE, |most| most.min(PATIENCE));
    let by = ObjectId::generate().to_string();
    let began = Instant::now();
    let mut asked = false;
    loop {
        let (query, update) = lock::take(ns, &by, millis());
        let take = doc! {
            "findAndModify": "locks",
            "query": query,
            "update": update,
            "upsert": true,
            "new": true,
            "writeConcern": doc! {"w": "majority"},
        };
        match cluster.on_config("config", take.as_doc()) {
            Ok(reply) => {
                let taken = reply.get("value").and_then(Val::as_doc);
                let turn = taken.and_then(|d| d.get("turn")?.to_i64_exact());
                let turn = turn.ok_or_else(|| err!(InternalError, "a lock has no turn"))?;
                return Lock::new(cluster, ns, by, turn);
            }
            Err(Failure::Client(e))
                if matches!(e.code, Code::DuplicateKey | Code::WriteConflict) => {}
            Err(e) => return Err(e),
        }
        if !asked && began.elapsed() > ASKS_AFTER {
            asked = true;
            let updates = bson::array![doc! {"q": doc! {"_id": ns}, "u": lock::wanted(millis())}];
            let ask = doc! {"update": "locks", "updates": updates, "writeConcern": majority()};
            // If the request to hurry is lost, the wait just takes longer.
            let _ = cluster.on_config("config", ask.as_doc());
        }
        if began.elapsed() > patience {
            return Err(too_late(ns, most).into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// The error of a timeout on a collection's or a database's lock.
pub fn too_late(ns: &str, most: Option<Duration>) -> Error {
    match most {
        Some(most) if most < PATIENCE => {
            err!(MaxTimeMSExpired, "operation exceeded time limit")
        }
        _ => err!(
            ConflictingOperationInProgress,
            "{ns} is being changed by somebody else"
        ),
    }
}

/// Writes to the metadata that are done all or not at all.
pub struct MetadataChange<'c> {
    cluster: &'c Cluster,
    /// The lock's last turn: of several moves at once, a later change has no earlier turn.
    turn: i64,
    writes: Vec<DocBuf>,
    /// The lock is not renewed meanwhile: that would be a conflict.
    _changing: ArcMutexGuard<RawMutex, ()>,
}

impl<'c> MetadataChange<'c> {
    /// It fails unless the lock is held then.
    pub fn begin(held: &Lock<'c>) -> MetadataChange<'c> {
        let changing = Mutex::lock_arc(&held.shared.changing);
        let mut change = MetadataChange {
            turn: held.shared.last.load(Ordering::Relaxed),
            cluster: held.cluster,
            writes: Vec::new(),
            _changing: changing,
        };
        change.update("locks", held.own(), lock::renewed(millis()));
        change
    }

    /// It fails unless this lock is held too.
    pub fn holding(&mut self, other: &Lock<'_>) {
        self.update("locks", other.own(), lock::renewed(millis()));
    }

    pub fn insert(&mut self, collection: &str, docs: &[DocBuf]) {
        if docs.is_empty() {
            return;
        }
        let mut w = Writer::new();
        w.str("insert", collection).open_array("documents");
        for d in docs {
            w.push(d.as_doc().as_val());
        }
        self.writes.push(w.finish());
    }

    /// Updates one document; all fails where it is not there as the filter says.
    pub fn update(&mut self, collection: &str, filter: DocBuf, update: DocBuf) {
        let write = doc! {"update": collection, "q": filter, "u": update};
        self.writes.push(write);
    }

    pub fn remove(&mut self, collection: &str, filter: DocBuf) {
        self.writes.push(doc! {"remove": collection, "q": filter});
    }

    /// Where the reply was lost it is not known what became of it.
    pub fn commit(self) -> Outcome<()> {
        let mut w = Writer::new();
        w.i32("_pandoChange", 1).open_array("writes");
        for write in &self.writes {
            w.push(write.as_doc().as_val());
        }
        w.close()
            .doc("writeConcern", doc! {"w": "majority"}.as_doc());
        let command = w.finish();
        let began = Instant::now();
        loop {
            match self.cluster.on_config("admin", command.as_doc()) {
                // Another thread reads or renews the same document.
                Err(Failure::Client(e))
                    if e.code == Code::WriteConflict && began.elapsed() < PATIENCE =>
                {
                    std::thread::sleep(PAUSE);
                }
                other => return other.map(drop),
            }
        }
    }
}

/// The indexes by which chunks are read: all of a collection, what has changed, and of which collections a
/// shard has any.
pub fn index_chunks(cluster: &Cluster) -> Outcome<()> {
    let index = |first: &str, second: &str| {
        let mut key = Writer::new();
        key.i32(first, 1).i32(second, 1);
        doc! {"key": key.finish(), "name": format!("{first}_1_{second}_1")}
    };
    let by_shard = index("shard", "uuid");
    let create = doc! {
        "createIndexes": "chunks",
        "indexes": bson::array![index("uuid", "min"), index("uuid", "turn"), by_shard],
        "writeConcern": doc! {"w": "majority"},
    };
    cluster.on_config("config", create.as_doc()).map(drop)
}

/// Puts chunks in the place of others.
pub fn replace(change: &mut MetadataChange<'_>, uuid: &[u8; 16], old: &[Chunk], new: &[Chunk]) {
    for chunk in old {
        change.remove("chunks", doc! {"_id": chunk.id});
    }
    let turn = change.turn as u64;
    let written = |c: &Chunk| Chunk { turn, ..c.clone() }.to_doc(uuid);
    let docs: Vec<DocBuf> = new.iter().map(written).collect();
    change.insert("chunks", &docs);
}

/// A line in `config.changelog`.
pub fn log(cluster: &Cluster, what: &str, ns: &str, details: DocBuf) {
    let entry = doc! {
        "_id": ObjectId::generate().to_string(),
        "time": Value::date(millis()),
        "what": what,
        "ns": ns,
        "details": details,
    };
    let insert = doc! {
        "insert": "changelog", "documents": bson::array![entry], "writeConcern": majority(),
    };
    if let Err(e) = cluster.on_config("config", insert.as_doc()) {
        tracing::warn!(target: "SHARDING", error = %e, "config.changelog is not written");
    }
}
