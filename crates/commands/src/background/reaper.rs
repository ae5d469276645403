//! Frees what clients leave behind: idle cursors, unused sessions, the records of their retryable
//! writes, snapshots that were read. Looks daily at when the server's certificate ends.

use crate::Commands;
use crate::analysis::sampling::{SAMPLES, Samplers};
use crate::settings::documents;
use crate::settings::parameters::{INITIAL_SYNC_PATIENCE, SNAPSHOT_WINDOW, TRANSACTION_LIFETIME};
use bson::{Doc, DocBuf, Value, doc};
use errors::{Error, Result};
use executor::OpCtx;
use service::config::ClusterRole;
use session::{Cursors, SESSION_TIMEOUT_MINUTES, SessionTable, Sessions};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use storage::Store;

/// Records of retryable writes are looked through this often.
const RECORDS_PERIOD: Duration = Duration::from_secs(600);

/// The server's certificate is looked at this often.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(24 * 3600);

struct Reaper {
    cursors: Weak<Cursors>,
    sessions: Weak<Sessions>,
    session_table: Weak<SessionTable>,
    store: Weak<Store>,
    engine: Weak<executor::Engine>,
    parameters: Weak<crate::Parameters>,
    snapshots: Weak<crate::snapshot_history::SnapshotHistory>,
    samplers: Weak<Samplers>,
    /// A router writes them to its cluster.
    writes_samples: bool,
    records: Instant,
    control: Weak<service::Control>,
    certificate: Instant,
    replica: Option<replication::Driver>,
}

/// Starts the thread that reaps for as long as the commands are there.
pub fn start(c: &Commands) -> Result<()> {
    let mut reaper = Reaper {
        cursors: Arc::downgrade(&c.cursors),
        sessions: Arc::downgrade(&c.sessions),
        session_table: Arc::downgrade(&c.session_table),
        store: Arc::downgrade(&c.store),
        engine: Arc::downgrade(&c.engine),
        parameters: Arc::downgrade(&c.parameters),
        snapshots: Arc::downgrade(&c.snapshots),
        samplers: Arc::downgrade(&c.samplers),
        writes_samples: c.config.role != ClusterRole::Router,
        records: Instant::now(),
        control: Arc::downgrade(&c.control),
        certificate: Instant::now(),
        replica: c.replica.clone(),
    };
    let run = move || {
        while let Some(pause) = reaper.round() {
            std::thread::sleep(pause);
        }
    };
    let started = std::thread::Builder::new().name("reaper".into()).spawn(run);
    started
        .map(|_| ())
        .map_err(|e| Error::internal(format!("cannot start a thread: {e}")).into())
}

impl Reaper {
    /// How long to wait for the next round; `None` when the server has ended.
    fn round(&mut self) -> Option<Duration> {
        let (cursors, sessions) = (self.cursors.upgrade()?, self.sessions.upgrade()?);
        let parameters = self.parameters.upgrade()?;
        let idle = parameters.int("cursorTimeoutMillis");
        cursors.reap(Duration::from_millis(idle.unsigned_abs()));
        let window = parameters.int(SNAPSHOT_WINDOW).unsigned_abs();
        let snapshots = self.snapshots.upgrade()?;
        snapshots.forget_old(Duration::from_secs(window));
        let session_table = self.session_table.upgrade()?;
        if let Some(replica) = &self.replica {
            let patience = parameters.int(INITIAL_SYNC_PATIENCE).unsigned_abs();
            let patience = Duration::from_secs(patience);
            replica.copies().sweep(patience, &replica.status());
        }
        self.write_samples()?;
        let lifetime = parameters.int(TRANSACTION_LIFETIME).unsigned_abs();
        let open = self.engine.upgrade()?.transactions.open();
        session_table.abort_expired(&open, Duration::from_secs(lifetime));
        for id in sessions.reap() {
            cursors.kill_session(id);
            session_table.end(&id);
        }
        if self.records.elapsed() >= RECORDS_PERIOD {
            self.records = Instant::now();
            let before = crate::clock::now_millis() - SESSION_TIMEOUT_MINUTES * 60_000;
            self.forget_samples()?;
            let store = self.store.upgrade()?;
            // Only the primary deletes: the others are told what it deleted.
            let deletes = self.replica.as_ref().is_none_or(|r| r.is_open());
            if deletes && let Err(e) = session_table.delete_older(&store, before) {
                tracing::warn!(target: "COMMAND", id = 20710, error = %e, "Old session records could not be deleted");
            }
        }
        if self.certificate.elapsed() >= CERTIFICATE_PERIOD {
            self.certificate = Instant::now();
            if let Some(certificates) = self.control.upgrade()?.certificates.get() {
                (certificates.own)().warn_of_end(crate::clock::now_millis());
            }
        }
        Some(Duration::from_secs(
            parameters
                .int("clientCursorMonitorFrequencySecs")
                .unsigned_abs()
                .max(1),
        ))
    }

    /// Writes the sampled queries; `None` when the server has ended.
    fn write_samples(&self) -> Option<()> {
        if !self.writes_samples {
            return Some(());
        }
        let taken = self.samplers.upgrade()?.take();
        let is_primary = self.replica.as_ref().is_none_or(|r| r.is_open());
        if taken.is_empty() || !is_primary {
            return Some(());
        }
        let engine = self.engine.upgrade()?;
        for some in taken.chunks(100) {
            let docs: Vec<Doc<'_>> = some.iter().map(DocBuf::as_doc).collect();
            let mut op = OpCtx::worker(&engine);
            if let Err(e) = executor::insert(&mut op, SAMPLES, &docs, false, None) {
                tracing::warn!(target: "COMMAND", error = %e.into_error(), "Sampled queries could not be written");
                break;
            }
        }
        Some(())
    }

    /// Removes samples whose time is over.
    fn forget_samples(&self) -> Option<()> {
        let engine = self.engine.upgrade()?;
        if self.replica.as_ref().is_some_and(|r| !r.is_open()) {
            return Some(());
        }
        let now = Value::date(crate::clock::now_millis());
        let late = doc! {"expireAt": doc! {"$lt": now}};
        let mut op = OpCtx::worker(&engine);
        if let Err(e) = documents::remove(&mut op, SAMPLES, late.as_doc()) {
            tracing::warn!(target: "COMMAND", error = %e.into_error(), "Old samples could not be removed");
        }
        Some(())
    }
}
