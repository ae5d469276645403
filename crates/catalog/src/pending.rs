//! The published catalog, and collections that transactions have made and not committed yet.
//!
//! Invariants: a name that is pending is made by nobody else. A pending collection is published when the entry that makes it
//! is applied, by the observer of the log, so before the commit is answered; when its transaction goes before that, the name
//! is free again.

use crate::change::Snapshot;
use crate::collection::Collection;
use crate::names::Names;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use storage::{Committed, Entry, Observer, Op};

/// What readers see of the catalog, and what waits to be seen.
pub(crate) struct Published {
    pub snapshot: ArcSwap<Snapshot>,
    /// By name, in their newest versions.
    pending: Mutex<HashMap<Arc<str>, Arc<Collection>>>,
    /// How many there are: most entries are applied while there is none.
    many: AtomicUsize,
}

impl Published {
    pub fn new(snapshot: Snapshot) -> Published {
        Published {
            snapshot: ArcSwap::from_pointee(snapshot),
            pending: Mutex::default(),
            many: AtomicUsize::new(0),
        }
    }

    /// Changes what readers see. `change` may run more than once: the observer publishes without the catalog's mutex.
    pub fn change(&self, change: impl Fn(&mut Names)) {
        self.snapshot.rcu(|now| {
            let mut next = Snapshot::clone(now);
            change(next.names_mut());
            next
        });
    }

    pub fn is_pending(&self, ns: &str) -> bool {
        self.many.load(Ordering::Acquire) != 0 && self.pending.lock().contains_key(ns)
    }

    fn set(&self, coll: &Arc<Collection>) {
        let mut pending = self.pending.lock();
        pending.insert(coll.ns.clone(), coll.clone());
        self.many.store(pending.len(), Ordering::Release);
    }

    fn remove(&self, ns: &str, uuid: &[u8; 16]) -> Option<Arc<Collection>> {
        let mut pending = self.pending.lock();
        if pending.get(ns).is_none_or(|c| c.uuid != *uuid) {
            return None;
        }
        let removed = pending.remove(ns);
        self.many.store(pending.len(), Ordering::Release);
        removed
    }
}

impl Observer for Published {
    fn applied(&self, _: Committed, entry: &Entry) {
        if self.many.load(Ordering::Acquire) == 0 {
            return;
        }
        for part in entry.plain().filter(|e| matches!(e.op, Op::Ddl(_))) {
            if let Some(coll) = self.remove(&part.ns, &part.uuid) {
                self.change(|names| names.insert(coll.clone()));
            }
        }
    }
}

/// A transaction's hold on a collection that it has made.
pub struct PendingCollection {
    published: Arc<Published>,
    coll: Arc<Collection>,
}

impl PendingCollection {
    pub(crate) fn new(published: &Arc<Published>, coll: Arc<Collection>) -> PendingCollection {
        published.set(&coll);
        PendingCollection {
            published: published.clone(),
            coll,
        }
    }

    /// Its newest version.
    pub fn get(&self) -> &Arc<Collection> {
        &self.coll
    }

    /// Puts another version in its place.
    pub fn set(&mut self, coll: Arc<Collection>) {
        self.published.set(&coll);
        self.coll = coll;
    }
}

impl Drop for PendingCollection {
    fn drop(&mut self) {
        self.published.remove(&self.coll.ns, &self.coll.uuid);
    }
}
