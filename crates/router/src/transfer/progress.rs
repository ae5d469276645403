//! How far a move has come: told in its document of `config.migrations`, once a second, and in the log.
//!
//! ```text
//! progress: {phase: "copy" | "catchUp", copiedDocuments, copiedBytes, backlogDocuments, seconds}
//! ```
//! Invariant: nobody decides anything by it, and a move does not fail because it could not be told.

use super::copy::Way;
use bson::{DocBuf, doc};
use parking_lot::Mutex;
use sharding::moving;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TOLD_EACH: Duration = Duration::from_secs(1);
const LOGGED_EACH: Duration = Duration::from_secs(10);

pub(super) struct Progress {
    began: Instant,
    told: Mutex<Instant>,
    logged: Mutex<Instant>,
    documents: AtomicU64,
    bytes: AtomicU64,
}

impl Default for Progress {
    fn default() -> Progress {
        let began = Instant::now();
        Progress {
            began,
            told: Mutex::new(began),
            logged: Mutex::new(began),
            documents: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

fn is_due(last: &Mutex<Instant>, each: Duration) -> bool {
    let mut last = last.lock();
    let due = last.elapsed() >= each;
    if due {
        *last = Instant::now();
    }
    due
}

impl Progress {
    /// So much has been put at receivers.
    pub fn put(&self, documents: usize, bytes: usize) {
        self.documents
            .fetch_add(documents as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Tells of it where that was not done for a while. `backlog`: documents that the log has told of
    /// and that wait.
    pub fn tell(&self, way: &Way<'_>, phase: &str, backlog: usize) {
        if !is_due(&self.told, TOLD_EACH) {
            return;
        }
        let documents = self.documents.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        let seconds = self.began.elapsed().as_secs();
        if is_due(&self.logged, LOGGED_EACH) {
            tracing::info!(target: "SHARDING", ns = way.ns, phase, documents, bytes, backlog, seconds, "A range is under way");
        }
        let progress = doc! {
            "phase": phase,
            "copiedDocuments": documents as i64,
            "copiedBytes": bytes as i64,
            "backlogDocuments": backlog as i64,
            "seconds": seconds as i64,
        };
        if let Err(e) = self.write(way, progress) {
            tracing::debug!(target: "SHARDING", ns = way.ns, error = %e, "The progress of a move was not told");
        }
    }

    fn write(&self, way: &Way<'_>, progress: DocBuf) -> crate::Outcome<()> {
        let id = way.held.of_part().unwrap_or(way.ns);
        let q = moving::undecided(id, &way.held.by, way.held.turn());
        let u = doc! {"$set": doc! {"progress": progress}};
        let update = doc! {
            "update": "migrations",
            "updates": bson::array![doc! {"q": q, "u": u}],
            "writeConcern": doc! {"w": 1},
        };
        way.cluster.on_config("config", update.as_doc()).map(drop)
    }
}
