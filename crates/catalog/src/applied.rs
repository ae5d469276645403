//! The published catalog, and how an applied entry changes it.
//!
//! ```text
//! entry of DDL ─┬─ put of a collection's record    → a version in the place of the one before
//!               ├─ delete of a collection's record → the collection is gone
//!               └─ put of the next tablet's number → numbers below it are taken
//! ```
//! Invariants:
//! - The published catalog changes only here, when the engine has applied an entry, by the same
//!   code on the member that proposed it and on other members. So it always equals what
//!   [`Snapshot::read`] would read.
//! - A version shares in-memory state with the previous version ([`Collection::adopt`]): locks,
//!   counters, maps.
//! - A pending name is reserved for its transaction. A pending collection is published when its entry is
//!   applied; when its transaction aborts, the name is free again. A name is published before it is no
//!   longer pending, so a reader that asks in the other order never finds it free in between
//!   ([`Published::holder`]).

use crate::change::Snapshot;
use crate::collection::Collection;
use crate::keyspace::{self, META_COLLECTION, META_NEXT_TABLET, Prefix, SPACE_META, SYSTEM_TABLET};
use crate::record;
use arc_swap::ArcSwap;
use bson::Doc;
use errors::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use storage::{Committed, Effect, Entry, Observer, Op};

type Uuid = [u8; 16];

pub(crate) fn collection_records() -> Prefix {
    keyspace::prefix(SYSTEM_TABLET, SPACE_META, META_COLLECTION)
}

pub(crate) fn next_tablet_key() -> Prefix {
    keyspace::prefix(SYSTEM_TABLET, SPACE_META, META_NEXT_TABLET)
}

/// The number that [`next_tablet_key`] holds.
pub(crate) fn next_tablet_of(value: &[u8]) -> Result<u64> {
    let number = || {
        let n = Doc::new(value)?.get("nextTablet")?.as_i64()?;
        u64::try_from(n).ok()
    };
    // A tablet number that is given twice would show one collection's records in another.
    number().ok_or_else(|| Error::internal("the catalog is damaged (nextTablet)").into())
}

/// A collection from its record, as the store has it.
pub(crate) fn read_record(value: &[u8]) -> Result<Collection> {
    let d = Doc::new(value).ok_or_else(|| Error::internal("catalog record is damaged"))?;
    record::read(d)
}

/// The published catalog, and the pending collections.
pub(crate) struct Published {
    pub snapshot: ArcSwap<Snapshot>,
    /// The next tablet number: no tablet has it, or a higher one.
    next_tablet: AtomicU64,
    /// By name, in their newest versions.
    pending: Mutex<HashMap<Arc<str>, Arc<Collection>>>,
    /// The number of pending collections: mostly there are none.
    many: AtomicUsize,
    /// Called when a collection with search indexes has changed.
    pub on_search: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Published {
    pub fn new(snapshot: Snapshot, next_tablet: u64) -> Published {
        Published {
            snapshot: ArcSwap::from_pointee(snapshot),
            next_tablet: AtomicU64::new(next_tablet),
            pending: Mutex::default(),
            many: AtomicUsize::new(0),
            on_search: OnceLock::new(),
        }
    }

    /// A number for a new tablet. A number is given only once.
    pub fn take_tablet(&self) -> u64 {
        self.next_tablet.fetch_add(1, Ordering::AcqRel)
    }

    fn is_pending(&self, ns: &str) -> bool {
        self.many.load(Ordering::Acquire) != 0 && self.pending.lock().contains_key(ns)
    }

    /// The published collection of that name. `None`: the name is free, as long as the catalog's
    /// mutex is held. Fails with WriteConflict when an open transaction has created a collection of
    /// that name.
    pub fn holder(&self, ns: &str) -> Result<Option<Arc<Collection>>> {
        // In this order: a commit publishes the name first, and then takes it from the pending.
        if self.is_pending(ns) {
            return Err(storage::write_conflict().into());
        }
        Ok(self.snapshot.load().get(ns).cloned())
    }

    fn set_pending(&self, coll: &Arc<Collection>) {
        let mut pending = self.pending.lock();
        pending.insert(coll.ns.clone(), coll.clone());
        self.many.store(pending.len(), Ordering::Release);
    }

    /// The pending collection of that name and UUID.
    fn pending(&self, ns: &str, uuid: &Uuid) -> Option<Arc<Collection>> {
        if self.many.load(Ordering::Acquire) == 0 {
            return None;
        }
        let pending = self.pending.lock();
        pending.get(ns).filter(|c| c.uuid == *uuid).cloned()
    }

    /// Frees the name of a pending collection.
    fn free(&self, coll: &Collection) {
        if self.many.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut pending = self.pending.lock();
        if pending.get(&coll.ns).is_some_and(|c| c.uuid == coll.uuid) {
            pending.remove(&coll.ns);
            self.many.store(pending.len(), Ordering::Release);
        }
    }

    /// Changes a catalog as a plain entry of DDL says. Adds to `made` the pending collections that
    /// it publishes. Returns whether a collection with search indexes is concerned.
    fn change(
        &self,
        next: &mut Snapshot,
        part: &Entry,
        made: &mut Vec<Arc<Collection>>,
    ) -> Result<bool> {
        made.extend(self.pending(&part.ns, &part.uuid));
        let (records, number) = (collection_records(), next_tablet_key());
        let (mut versions, mut gone) = (Vec::new(), Vec::new());
        for effect in &part.effects {
            match effect {
                Effect::Put(key, value) if key.starts_with(&records) => {
                    versions.push(read_record(value)?)
                }
                Effect::Delete(key) => gone.extend(uuid_of(key, &records)),
                Effect::Put(key, value) if *key == number[..] => {
                    let taken = next_tablet_of(value)?;
                    self.next_tablet.fetch_max(taken, Ordering::AcqRel);
                }
                _ => {}
            }
        }
        let mut searched = versions.iter().any(|c| c.search.is_some());
        for uuid in &gone {
            if let Some(there) = next.by_uuid(uuid).cloned() {
                searched |= there.search.is_some();
                next.names_mut().remove(&there.ns);
            }
        }
        for mut version in versions {
            let before = next.by_uuid(&version.uuid).cloned();
            searched |= before.as_ref().is_some_and(|c| c.search.is_some());
            let in_memory = made.iter().find(|c| c.uuid == version.uuid);
            if let Some(c) = in_memory.or(before.as_ref()) {
                version.adopt(c);
            }
            if let Some(before) = before.filter(|c| c.ns != version.ns) {
                next.names_mut().remove(&before.ns);
            }
            assert!(
                next.get(&version.ns).is_none_or(|c| c.uuid == version.uuid),
                "two collections named {}",
                version.ns
            );
            next.names_mut().insert(Arc::new(version));
        }
        Ok(searched)
    }
}

/// The collection whose record lies under `key`.
fn uuid_of(key: &[u8], records: &Prefix) -> Option<Uuid> {
    key.strip_prefix(&records[..])?.try_into().ok()
}

impl Observer for Published {
    /// Panics where a record cannot be read, which its proposer has written: nothing is appended
    /// after that, and a restart refuses to open the same record.
    fn applied(&self, at: Committed, entry: &Entry) {
        let is_ddl = |e: &Entry| matches!(e.op, Op::Ddl(_));
        // Most entries are neither; this is known without reading their effects.
        if !matches!(entry.op, Op::Ddl(_) | Op::Transaction(_)) || !entry.plain().any(is_ddl) {
            return;
        }
        let mut next = Snapshot::clone(&self.snapshot.load());
        let mut made = Vec::new();
        let mut searched = false;
        for part in entry.plain().filter(|e| is_ddl(e)) {
            match self.change(&mut next, part, &mut made) {
                Ok(concerned) => searched |= concerned,
                Err(e) => panic!("the catalog's change at {}: {}", at.index, e),
            }
        }
        self.snapshot.store(Arc::new(next));
        if let Some(changed) = self.on_search.get().filter(|_| searched) {
            changed();
        }
        made.iter().for_each(|c| self.free(c));
    }
}

/// A transaction's handle of a collection that it has created.
pub struct PendingCollection {
    published: Arc<Published>,
    coll: Arc<Collection>,
}

impl PendingCollection {
    pub(crate) fn new(published: &Arc<Published>, coll: Arc<Collection>) -> PendingCollection {
        published.set_pending(&coll);
        PendingCollection {
            published: published.clone(),
            coll,
        }
    }

    /// The newest version of the collection.
    pub fn get(&self) -> &Arc<Collection> {
        &self.coll
    }

    /// Replaces the version.
    pub fn set(&mut self, coll: Arc<Collection>) {
        self.published.set_pending(&coll);
        self.coll = coll;
    }
}

impl Drop for PendingCollection {
    fn drop(&mut self) {
        self.published.free(&self.coll);
    }
}

#[cfg(test)]
#[path = "applied_tests.rs"]
mod tests;
