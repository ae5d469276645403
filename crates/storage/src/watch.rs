//! Watchers and observers. A watcher learns of keys before they can be read, so that a summary of a
//! part of the keyspace holds for every state that a reader may see.
//!
//! Invariant: a key that is put after [`crate::Store::watch`] has returned is reported before it is
//! visible. Keys put before are in the state that `watch` returns.

use crate::{Committed, Effect, Entry};
use parking_lot::RwLock;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Learns of keys that are put.
pub trait Watcher: Send + Sync {
    /// Called with a group's keys that have the watched prefix. All writers wait for it: it must be
    /// quick, and must not write.
    fn put(&self, keys: &mut dyn Iterator<Item = &[u8]>);
}

/// Learns of entries once the engine has applied them: in-memory state changes here, for entries of
/// every proposer.
pub trait Observer: Send + Sync {
    /// Called for each entry in the order of the log, after it can be read and before its proposer
    /// returns. All writers wait for it: it must be quick, must not propose, and must not wait for
    /// a thread that does.
    fn applied(&self, at: Committed, entry: &Entry);
}

struct Watch {
    prefix: Box<[u8]>,
    watcher: Weak<dyn Watcher>,
}

#[derive(Default)]
pub(crate) struct Watches {
    /// The number of watchers: a group need not take the lock when there are none.
    many: AtomicUsize,
    list: RwLock<Vec<Watch>>,
}

impl Watches {
    /// Called while no group is being written. Removes registrations whose watcher is gone.
    pub fn add(&self, prefix: &[u8], watcher: Weak<dyn Watcher>) {
        let mut list = self.list.write();
        list.retain(|w| w.watcher.strong_count() > 0 && !Weak::ptr_eq(&w.watcher, &watcher));
        list.push(Watch {
            prefix: prefix.into(),
            watcher,
        });
        self.many.store(list.len(), Relaxed);
    }

    /// Reports the keys that a group is about to put.
    pub fn tell<'e>(&self, entries: impl Iterator<Item = &'e Entry> + Clone) {
        // Watchers are added only between two groups.
        if self.many.load(Relaxed) == 0 {
            return;
        }
        for watch in self.list.read().iter() {
            let effects = entries
                .clone()
                .flat_map(Entry::plain)
                .flat_map(|e| &e.effects);
            let mut keys = effects.filter_map(|effect| match effect {
                Effect::Put(key, _) if key.starts_with(&watch.prefix) => Some(key.as_slice()),
                _ => None,
            });
            let Some(first) = keys.next() else { continue };
            if let Some(watcher) = watch.watcher.upgrade() {
                watcher.put(&mut std::iter::once(first).chain(keys));
            }
        }
    }
}
