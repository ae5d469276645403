//! The clock of an idle server: an entry without content, each `periodicNoopIntervalSecs`.
//! `operationTime`, `lastWrite` and the resume tokens of quiet change streams go on by it.
//!
//! Invariant: it writes only if the newest entry is older than the interval, and only if writes are
//! taken and need not wait: nothing could end its wait.

use crate::Commands;
use crate::settings::parameters::Parameters;
use errors::{Error, Result};
use service::Control;
use service::config::Topology;
use std::sync::{Arc, Weak};
use std::time::Duration;
use storage::{Entry, Store};

const LOOK: Duration = Duration::from_millis(500);

struct NoopWriter {
    store: Weak<Store>,
    engine: Weak<executor::Engine>,
    parameters: Weak<Parameters>,
    control: Weak<Control>,
    replica: Option<::replication::Driver>,
}

/// Starts the thread, which runs for as long as the commands are there.
pub fn start(c: &Commands) -> Result<()> {
    let has_oplog = matches!(c.config.topology, Topology::ReplicaSet { .. });
    if !has_oplog || !c.parameters.bool("writePeriodicNoops") {
        return Ok(());
    }
    let writer = NoopWriter {
        store: Arc::downgrade(&c.store),
        engine: Arc::downgrade(&c.engine),
        parameters: Arc::downgrade(&c.parameters),
        control: Arc::downgrade(&c.control),
        replica: c.replica.clone(),
    };
    let run = move || {
        while writer.look().is_some() {
            std::thread::sleep(LOOK);
        }
    };
    let started = std::thread::Builder::new().name("noops".into()).spawn(run);
    started
        .map(|_| ())
        .map_err(|e| Error::internal(format!("cannot start a thread: {e}")).into())
}

/// Whether the newest entry, of this timestamp, is so old that another is due. A clock that was set
/// back makes none.
fn is_due(newest: u64, now_ms: i64, interval_s: i64) -> bool {
    let newest_s = i64::try_from(newest >> 32).unwrap_or(i64::MAX);
    (now_ms / 1000).saturating_sub(newest_s) >= interval_s
}

impl NoopWriter {
    /// `None` when the server has ended.
    fn look(&self) -> Option<()> {
        if self.control.upgrade()?.is_stopping() {
            return None;
        }
        let store = self.store.upgrade()?;
        let interval = self.parameters.upgrade()?.int("periodicNoopIntervalSecs");
        // A disk that refused others' writes is not said to take them because it takes a few bytes.
        // Without a majority for what there is, writes may have to wait for one.
        let has_majority = |r: &::replication::Driver| r.commit_index() >= store.log_end();
        let takes_writes = (self.replica.as_ref()).is_none_or(|r| r.is_open() && has_majority(r))
            && !self.engine.upgrade()?.fsync_lock.is_closed()
            && store.refusal().is_none();
        if takes_writes && is_due(store.last_ts(), crate::clock::now_millis(), interval) {
            // A failure shows at the next write: a full disk, a deposed primary.
            let _ = store.propose(vec![Entry::noop(vec![])]);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_due_where_the_newest_entry_is_old() {
        let at = |seconds: u64| seconds << 32 | 7;
        assert!(!is_due(at(100), 109_999, 10));
        assert!(is_due(at(100), 110_000, 10));
        assert!(!is_due(at(100), 50_000, 10));
    }
}
