//! A store as the log of a member: what consensus reads, appends, cuts and applies.
//!
//! Invariants:
//! - Entries that are applied here are on a majority, so flushes may bring them to disk.
//! - Documents are saved before the entries that made them are cut.

use super::Shared;
use crate::member::MemberLog;
use crate::rollback;
use crate::state_file::{self, SavedState};
use errors::{Error, Fallible, err};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{SystemTime, UNIX_EPOCH};
use storage::{Entry, LogReader, Record, Store};

/// Called on a secondary with an entry of DDL before it is applied, when all before it is.
pub type BeforeDdl = Box<dyn Fn(&Entry) -> Fallible<()> + Send + Sync>;

/// So many readers of the log are kept where they stand: one for each member that is behind.
const READERS: usize = 4;

/// Readers of the log with the index that each comes to next, the newest last.
type Readers = Mutex<Vec<(u64, LogReader)>>;

/// A store as a member's log.
#[derive(Clone)]
pub struct StoreLog {
    pub(super) store: Weak<Store>,
    /// Finding an entry reads its segment from the start; members that are behind are sent one part after the other.
    pub(super) readers: Arc<Readers>,
    pub(super) shared: Arc<Shared>,
    pub(super) dir: PathBuf,
    pub(super) before_ddl: Arc<OnceLock<BeforeDdl>>,
}

impl StoreLog {
    pub(super) fn store(&self) -> Fallible<Arc<Store>> {
        let gone = || err!(InterruptedAtShutdown, "the store is closed");
        self.store.upgrade().ok_or_else(gone)
    }
}

/// The bytes of entries read at a time in a rollback.
const ROLLBACK_READ_BYTES: u64 = 4 << 20;

impl StoreLog {
    /// Saves the documents of the entries `[from, to)`, and tells the log of each file.
    fn save_rollback(&self, from: u64, to: u64) -> Fallible<()> {
        let mut hand_out = |take: &mut dyn FnMut(Record<'_>) -> Fallible<()>| {
            let (mut next, mut outcome) = (from, Ok(()));
            while next < to && outcome.is_ok() {
                let begun = next;
                self.read(next, to, ROLLBACK_READ_BYTES, &mut |record| {
                    next = record.index + 1;
                    if outcome.is_ok() {
                        outcome = take(record);
                    }
                })?;
                if next == begun {
                    break;
                }
            }
            outcome
        };
        for saved in rollback::save(&self.dir, SystemTime::now(), &mut hand_out)? {
            tracing::warn!(target: "REPL", namespace = saved.ns.as_str(), documents = saved.documents,
                file = %saved.path.display(), "Rollback: documents that are taken back are saved");
        }
        Ok(())
    }
}

impl MemberLog for StoreLog {
    fn first_index(&self) -> u64 {
        self.store().map_or(1, |s| s.first_log_index())
    }
    fn last_index(&self) -> u64 {
        self.store().map_or(0, |s| s.log_end())
    }
    fn last_ts(&self) -> u64 {
        self.store().map_or(0, |s| s.log_end_ts())
    }
    fn durable_index(&self) -> u64 {
        self.store().map_or(0, |s| s.synced_index())
    }
    fn applied_index(&self) -> u64 {
        self.store().map_or(0, |s| s.last_index())
    }
    fn read(
        &self,
        from: u64,
        to: u64,
        max_bytes: u64,
        take: &mut dyn FnMut(Record<'_>),
    ) -> Fallible<()> {
        let mut readers = self.readers.lock();
        let at = readers.iter().position(|(next, _)| *next == from);
        let kept = at.map(|at| readers.remove(at).1);
        let mut next = from;
        let mut read = |mut reader: LogReader| -> Fallible<LogReader> {
            let mut bytes = 0;
            while next < to && bytes < max_bytes.max(1) {
                let Some(record) = reader.next().map_err(Error::from)? else {
                    break;
                };
                bytes += record.payload.len() as u64;
                next += 1;
                take(record);
            }
            Ok(reader)
        };
        let read = match kept.map(&mut read) {
            Some(Ok(reader)) => Ok(reader),
            // Entries that the reader had given were cut meanwhile.
            _ => read(self.store()?.read_log(from)?),
        };
        if readers.len() == READERS {
            readers.remove(0);
        }
        readers.push((next, read?));
        Ok(())
    }
    fn append(&self, entries: &[Record<'_>]) -> Fallible<()> {
        self.store()?.append_records(entries)
    }
    fn save_taken_back(&self, from: u64, to: u64) -> Fallible<()> {
        match self.shared.saves_rollbacks.load(Ordering::Relaxed) {
            true => self.save_rollback(from, to),
            false => Ok(()),
        }
    }
    fn truncate_after(&self, index: u64) -> Fallible<bool> {
        let store = self.store()?;
        let last = store.log_end();
        tracing::warn!(target: "REPL", from = index + 1, to = last, "Rollback: entries that no majority had are taken back");
        store.truncate_log(index)
    }
    fn apply(&self, entries: &[Record<'_>]) -> Fallible<()> {
        let store = self.store()?;
        let Some(last) = entries.last() else {
            return Ok(());
        };
        // These entries are committed, so they may reach the disk.
        store.flush_gate().allow(last.index);
        let mut rest = entries;
        while let Some(at) = rest.iter().position(|r| Entry::is_ddl(r.payload)) {
            let (before, from) = rest.split_at(at);
            let (ddl, after) = from.split_at(1);
            store.apply_records(before)?;
            let entry = ddl.first().and_then(|r| Entry::decode(r.payload));
            if let (Some(entry), Some(hook)) = (entry, self.before_ddl.get()) {
                hook(&entry)?;
            }
            store.apply_records(ddl)?;
            rest = after;
        }
        store.apply_records(rest)
    }
    fn set_term(&self, term: u64) -> Fallible<()> {
        self.store()?.set_term(term)
    }
    fn close(&self) -> Fallible<()> {
        self.shared.close();
        self.store()?.between_appends();
        Ok(())
    }
    fn request_sync(&self) {
        if let Ok(store) = self.store() {
            store.request_own_sync();
        }
    }
    fn save(&self, state: &SavedState) -> Fallible<()> {
        state_file::save(&self.dir, state)
    }
    fn now_millis(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(0))
    }
}
