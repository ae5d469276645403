//! Prepared transactions: the part that one shard has in a transaction over several, from the
//! promise to commit it until the decision.
//!
//! ```text
//! prepare ─ an entry that stores the parts ─► key locks, locks of collections   on every member
//! commit  ─ an entry with the parts, which removes what is stored
//! abort   ─ an entry that removes what is stored
//!
//! tablet 0 | space 3 | 1 | record of the session [16] | number u64 BE
//!     → {lsid: {id, uid}, txnNumber, recoveryShard, date, locks: u64 LE…, entry: bytes of the commit's entry}
//! ```
//!
//! The stored entry is state as any other: it survives a restart, is in every copy of the data, and
//! needs no log. The locks follow it, in memory, as entries are applied; so a new primary has them
//! already.
//!
//! Invariants: no time limit, no election and no restart ends one. Only its decision writes its keys,
//! and its collections see no DDL, until it is decided. A decision takes effect once: it and the removal
//! are one entry, and one thread at a time decides.

use crate::key_locks::{KeyLocks, Transactions};
use auth::session_id::Lsid;
use bson::{Doc, Writer};
use catalog::keyspace::{self, PREFIX, Prefix, SESSION_PREPARED, SPACE_RECORD, SPACE_SESSION};
use catalog::{Catalog, WriteLock};
use errors::{Error, Result, err};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use storage::{Direction, Effect, Entry, Op, View};

/// Where prepared transactions are stored.
pub fn prefix() -> Prefix {
    keyspace::prefix(keyspace::SYSTEM_TABLET, SPACE_SESSION, SESSION_PREPARED)
}

/// One transaction that waits to be decided.
pub struct PreparedTransaction {
    pub lsid: Lsid,
    pub number: i64,
    /// Which shard knows the outcome.
    pub recovery_shard: String,
    /// When it was prepared, in milliseconds since 1970.
    pub since_millis: i64,
    /// The collections that it writes to.
    pub collections: Vec<String>,
    /// The highest record that it puts in each tablet.
    highest: Vec<Vec<u8>>,
    id: u64,
    locks: Vec<u64>,
    _collections: Vec<WriteLock>,
}

/// The fields that are stored beside its entry.
pub(crate) struct Stored<'t> {
    pub lsid: Lsid,
    pub number: i64,
    pub recovery_shard: &'t str,
    pub since_millis: i64,
    pub locks: &'t [u64],
}

impl Stored<'_> {
    pub fn write(&self, whole: &Entry) -> Vec<u8> {
        let locks: Vec<u8> = self.locks.iter().flat_map(|h| h.to_le_bytes()).collect();
        let mut w = Writer::with_capacity(256 + locks.len());
        w.open_doc("lsid")
            .binary("id", 4, &self.lsid.id)
            .binary("uid", 0, &self.lsid.uid)
            .close();
        w.i64("txnNumber", self.number)
            .str("recoveryShard", self.recovery_shard)
            .date("date", self.since_millis)
            .binary("locks", 0, &locks)
            .binary("entry", 0, &whole.to_bytes());
        w.finish().into_vec()
    }
}

/// A session of a stored document.
pub fn session_of(d: Doc<'_>) -> Option<Lsid> {
    Some(Lsid {
        id: d.get("id")?.as_binary()?.1.try_into().ok()?,
        uid: d.get("uid")?.as_binary()?.1.try_into().ok()?,
    })
}

pub(crate) fn damaged() -> Error {
    err!(
        DataCorruptionDetected,
        "a prepared transaction is damaged: it can be neither committed nor aborted"
    )
}

/// The entry that commits a stored transaction.
pub(crate) fn entry_of(stored: &[u8]) -> Option<Entry> {
    let bytes = Doc::new(stored)?.get("entry")?.as_binary()?.1;
    Entry::decode(bytes).filter(|e| matches!(e.op, Op::Transaction(_)))
}

impl PreparedTransaction {
    /// As it is stored, without its locks.
    fn read(stored: &[u8]) -> Option<PreparedTransaction> {
        let d = Doc::new(stored)?;
        let entry = entry_of(stored)?;
        let mut collections: Vec<String> = Vec::new();
        let mut highest: Vec<Vec<u8>> = Vec::new();
        for part in entry.plain() {
            if !part.ns.is_empty() && !collections.iter().any(|c| **c == *part.ns) {
                collections.push(part.ns.to_string());
            }
            for effect in &part.effects {
                if let Effect::Put(key, _) = effect
                    && key.get(8) == Some(&SPACE_RECORD)
                {
                    note_highest(&mut highest, key);
                }
            }
        }
        let (locks, _) = d.get("locks")?.as_binary()?.1.as_chunks::<8>();
        Some(PreparedTransaction {
            lsid: session_of(d.get("lsid")?.as_doc()?)?,
            number: d.get("txnNumber")?.to_i64_exact()?,
            recovery_shard: d.get("recoveryShard")?.as_str()?.into(),
            since_millis: d.get("date")?.as_date()?,
            collections,
            highest,
            id: 0,
            locks: locks.iter().map(|b| u64::from_le_bytes(*b)).collect(),
            _collections: Vec::new(),
        })
    }
}

fn each_in(view: &View, mut take: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
    let prefix = prefix();
    let end = keyspace::prefix_end(&prefix);
    let mut scan = view.scan(&prefix, &end, Direction::Forward);
    while scan.next()? {
        take(scan.key(), scan.value())?;
    }
    Ok(())
}

/// The transactions prepared in a state; they hold no locks.
pub fn stored_in(view: &View) -> Result<Vec<PreparedTransaction>> {
    let mut all = Vec::new();
    each_in(view, |_, stored| {
        all.push(PreparedTransaction::read(stored).ok_or_else(damaged)?);
        Ok(())
    })?;
    Ok(all)
}

/// Keeps the highest key of each prefix.
fn note_highest(highest: &mut Vec<Vec<u8>>, key: &[u8]) {
    let of_its_tablet = |k: &&mut Vec<u8>| k.get(..PREFIX) == key.get(..PREFIX);
    match highest.iter_mut().find(of_its_tablet) {
        Some(known) if known.as_slice() < key => *known = key.to_vec(),
        Some(_) => {}
        None => highest.push(key.to_vec()),
    }
}

/// All prepared transactions of this member, by the key that they are stored under.
#[derive(Default)]
pub struct Prepared {
    /// How many there are: most operations look no further.
    many: AtomicUsize,
    table: Mutex<HashMap<Vec<u8>, Arc<PreparedTransaction>>>,
    decided: Condvar,
}

impl Prepared {
    /// Takes up what `view` has.
    pub(crate) fn load(&self, all: &Transactions, catalog: &Catalog, view: &View) -> Result<()> {
        each_in(view, |key, stored| self.add(all, catalog, key, stored))
    }

    /// Whether an entry prepares or decides one.
    pub(crate) fn is_concerned(entry: &Entry) -> bool {
        matches!(entry.op, Op::Noop | Op::Transaction(_)) && {
            let prefix = prefix();
            entry.effects.iter().any(|e| e.key().starts_with(&prefix))
        }
    }

    /// Follows an entry that was applied.
    pub(crate) fn applied(&self, all: &Transactions, catalog: &Catalog, entry: &Entry) {
        let prefix = prefix();
        let effects = entry.effects.iter();
        for effect in effects.filter(|e| e.key().starts_with(&prefix)) {
            match effect {
                Effect::Put(key, stored) => {
                    if let Err(e) = self.add(all, catalog, key, stored) {
                        tracing::error!(target: "TXN", error = %e, "A prepared transaction is not understood");
                    }
                }
                effect => self.remove(&all.locks, effect.key()),
            }
        }
    }

    /// Where it was this member's transaction, that has its locks still.
    fn add(&self, all: &Transactions, catalog: &Catalog, key: &[u8], stored: &[u8]) -> Result<()> {
        let mut new = PreparedTransaction::read(stored).ok_or_else(damaged)?;
        new.id = all.next.fetch_add(1, Ordering::Relaxed);
        all.locks.take_over(new.id, &new.locks);
        let collections = new.collections.iter();
        new._collections = collections
            .filter_map(|ns| catalog.get(ns)?.try_write_lock_again())
            .collect();
        let mut table = self.table.lock();
        table.insert(key.to_vec(), Arc::new(new));
        self.many.store(table.len(), Ordering::Release);
        Ok(())
    }

    fn remove(&self, locks: &KeyLocks, key: &[u8]) {
        let mut table = self.table.lock();
        let gone = table.remove(key);
        self.many.store(table.len(), Ordering::Release);
        drop(table);
        if let Some(gone) = gone {
            locks.release(gone.id, &gone.locks);
        }
        self.decided.notify_all();
    }

    pub fn is_empty(&self) -> bool {
        self.many.load(Ordering::Acquire) == 0
    }

    pub fn len(&self) -> usize {
        self.many.load(Ordering::Acquire)
    }

    pub fn list(&self) -> Vec<Arc<PreparedTransaction>> {
        self.table.lock().values().cloned().collect()
    }

    /// Waits for at most `patience` until none is left of which `which` holds; whether that is so.
    pub fn wait(
        &self,
        patience: Duration,
        which: impl Fn(&[u8], &PreparedTransaction) -> bool,
    ) -> bool {
        if self.is_empty() {
            return true;
        }
        let until = Instant::now() + patience;
        let mut table = self.table.lock();
        while table.iter().any(|(key, t)| which(key, t)) {
            if self.decided.wait_until(&mut table, until).timed_out() {
                return !table.iter().any(|(key, t)| which(key, t));
            }
        }
        true
    }

    /// The highest record with this prefix that one of them puts.
    pub(crate) fn highest(&self, prefix: &Prefix) -> Option<Vec<u8>> {
        if self.is_empty() {
            return None;
        }
        let table = self.table.lock();
        let all = table.values().flat_map(|t| &t.highest);
        all.filter(|key| key.starts_with(prefix)).max().cloned()
    }
}
