//! Changes of a collection's chunks in the metadata: one at a time for each collection, each in one
//! transaction.
//!
//! Invariant: who changes chunks holds the collection's lock, and the transaction fails where the
//! lock is no longer his.

use crate::metadata::{Cluster, run};
use crate::upstream::with_fields;
use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, ObjectId, Val, Value, Writer, doc};
use errors::{Code, err};
use sharding::Chunk;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a lock is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(30);
/// A lock whose holder has not renewed it for so long was left behind.
const LEFT: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(3);

/// A collection's lock in `config.locks`.
pub(crate) struct Lock<'c> {
    cluster: &'c Cluster,
    ns: String,
    pub by: String,
    renewed: Cell<Instant>,
}

impl Lock<'_> {
    /// Says now and then that the holder is there. Whoever does not goes on until his transaction
    /// fails.
    pub fn renew(&self) -> Outcome<()> {
        if self.renewed.get().elapsed() < RENEW {
            return Ok(());
        }
        self.renewed.set(Instant::now());
        let q = doc! {"_id": &self.ns, "by": &self.by};
        let u = doc! {"$set": doc! {"at": Value::date(millis())}};
        let update = doc! {"update": "locks", "updates": bson::array![doc! {"q": q, "u": u}]};
        self.cluster.on_config("config", update.as_doc()).map(drop)
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let q = doc! {"_id": &self.ns, "by": &self.by};
        let delete = doc! {"delete": "locks", "deletes": bson::array![doc! {"q": q, "limit": 1}]};
        if let Err(e) = self.cluster.on_config("config", delete.as_doc()) {
            tracing::warn!(target: "SHARDING", ns = self.ns.as_str(), error = %e, "A lock is left behind");
        }
    }
}

fn millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| d.as_millis() as i64)
}

/// Takes the lock of a collection. One that was left behind is taken over after a while: its holder's
/// transaction fails then, because it names the holder.
pub(crate) fn lock<'c>(cluster: &'c Cluster, ns: &str) -> Outcome<Lock<'c>> {
    let by = ObjectId::generate().to_string();
    let began = Instant::now();
    loop {
        let late = Value::date(millis() - LEFT.as_millis() as i64);
        let q = doc! {"_id": ns, "at": doc! {"$lt": late}};
        let u = doc! {"$set": doc! {"by": &by, "at": Value::date(millis())}};
        let update = doc! {
            "update": "locks",
            "updates": bson::array![doc! {"q": q, "u": u, "upsert": true}],
            "writeConcern": doc! {"w": "majority"},
        };
        let reply = cluster.on_config("config", update.as_doc())?;
        if reply.get("writeErrors").is_none() {
            return Ok(Lock {
                cluster,
                ns: ns.into(),
                by,
                renewed: Cell::new(Instant::now()),
            });
        }
        if began.elapsed() > PATIENCE {
            return Err(err!(
                ConflictingOperationInProgress,
                "the chunks of {ns} are being changed by somebody else"
            )
            .into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Writes in one transaction on the configuration set.
pub(crate) struct Change<'c> {
    cluster: &'c Cluster,
    lsid: DocBuf,
    started: bool,
}

impl<'c> Change<'c> {
    /// Begins: it fails unless the lock is held.
    pub fn begin(lock: &Lock<'c>) -> Outcome<Change<'c>> {
        let mut change = Change {
            cluster: lock.cluster,
            lsid: doc! {"id": Value::binary(4, &crate::ddl::uuid())},
            started: false,
        };
        let q = doc! {"_id": &lock.ns, "by": &lock.by};
        let u = doc! {"$set": doc! {"at": Value::date(millis())}};
        let update = doc! {"update": "locks", "updates": bson::array![doc! {"q": q, "u": u}]};
        let reply = change.run("config", update.as_doc())?;
        if reply.get("n").and_then(Val::to_i64_exact) != Some(1) {
            change.end("abortTransaction")?;
            return Err(err!(LockTimeout, "the lock of {} was lost", lock.ns).into());
        }
        Ok(change)
    }

    fn run(&mut self, db: &str, command: Doc<'_>) -> Outcome<DocBuf> {
        let mut w = Writer::new();
        w.doc("lsid", self.lsid.as_doc())
            .i64("txnNumber", 1)
            .bool("autocommit", false);
        if !self.started {
            w.bool("startTransaction", true);
            self.started = true;
        }
        run(
            &self.cluster.config,
            db,
            with_fields(command, w.finish().as_doc()).as_doc(),
        )
    }

    fn end(&mut self, how: &str) -> Outcome<DocBuf> {
        let mut w = Writer::new();
        w.i32(how, 1)
            .doc("writeConcern", doc! {"w": "majority"}.as_doc());
        self.run("admin", w.finish().as_doc())
    }

    pub fn write(&mut self, command: &DocBuf) -> Outcome<DocBuf> {
        let reply = self.run("config", command.as_doc())?;
        if let Some(errors) = reply.get("writeErrors").and_then(Val::as_array) {
            let first = errors.values().next().and_then(Val::as_doc);
            let says = first
                .and_then(|e| e.get("errmsg")?.as_str())
                .unwrap_or("a write failed");
            return Err(err!(OperationFailed, "{says}").into());
        }
        Ok(reply)
    }

    pub fn insert(&mut self, collection: &str, docs: &[DocBuf]) -> Outcome<()> {
        for part in docs.chunks(1000) {
            let mut w = Writer::new();
            w.str("insert", collection).open_array("documents");
            for d in part {
                w.push(d.as_doc().as_val());
            }
            self.write(&w.finish())?;
        }
        Ok(())
    }

    pub fn remove(&mut self, collection: &str, filter: DocBuf) -> Outcome<()> {
        let deletes = bson::array![doc! {"q": filter, "limit": 0}];
        self.write(&doc! {"delete": collection, "deletes": deletes})?;
        Ok(())
    }

    /// What became of it is known for certain: a commit whose reply was lost is sent again.
    pub fn commit(mut self) -> Outcome<()> {
        let began = Instant::now();
        loop {
            match self.end("commitTransaction") {
                Ok(_) => return Ok(()),
                Err(Failure::Client(e)) if e.code != Code::HostUnreachable => return Err(e.into()),
                Err(e) if began.elapsed() > PATIENCE => return Err(e),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

/// Puts chunks in the place of others.
pub(crate) fn replace(
    change: &mut Change<'_>,
    uuid: &[u8; 16],
    old: &[Chunk],
    new: &[Chunk],
) -> Outcome<()> {
    for chunk in old {
        change.remove("chunks", doc! {"_id": chunk.id})?;
    }
    let docs: Vec<DocBuf> = new.iter().map(|c| c.to_doc(uuid)).collect();
    change.insert("chunks", &docs)
}

/// A line in `config.changelog`.
pub(crate) fn log(cluster: &Cluster, what: &str, ns: &str, details: DocBuf) {
    let entry = doc! {
        "_id": ObjectId::generate().to_string(),
        "time": Value::date(millis()),
        "what": what,
        "ns": ns,
        "details": details,
    };
    let insert = doc! {"insert": "changelog", "documents": bson::array![entry]};
    if let Err(e) = cluster.on_config("config", insert.as_doc()) {
        tracing::warn!(target: "SHARDING", error = %e, "config.changelog is not written");
    }
}
