//! Who is told of keys before anybody can read them: for summaries of a part of the keyspace that hold for every state that a reader
//! may see.
//!
//! Invariant: a key that is put after [`crate::Store::watch`] has returned was told before it is visible; what was put before lies in the
//! state that it returns, unless it was deleted since.

use crate::{Committed, Effect, Entry};
use parking_lot::RwLock;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Is told of keys that are put.
pub trait Watcher: Send + Sync {
    /// The keys of a group that begin with what is watched, whole. It holds all writers up: it must be quick, and must not write.
    fn put(&self, keys: &mut dyn Iterator<Item = &[u8]>);
}

/// Is told of entries once the engine has them: what is kept in memory of the state changes here, on whichever way an entry came.
pub trait Observer: Send + Sync {
    /// Called for each entry in the order of the log, after it can be read and before its proposer returns. It holds all writers
    /// up: it must be quick, must not propose, and must not wait for anybody who does.
    fn applied(&self, at: Committed, entry: &Entry);
}

struct Watch {
    prefix: Box<[u8]>,
    watcher: Weak<dyn Watcher>,
}

#[derive(Default)]
pub(crate) struct Watches {
    /// So many there are: a group need not take the lock to see that there are none.
    many: AtomicUsize,
    list: RwLock<Vec<Watch>>,
}

impl Watches {
    /// To be called while no group is being written. Those whose watcher is gone are forgotten.
    pub fn add(&self, prefix: &[u8], watcher: Weak<dyn Watcher>) {
        let mut list = self.list.write();
        list.retain(|w| w.watcher.strong_count() > 0 && !Weak::ptr_eq(&w.watcher, &watcher));
        list.push(Watch {
            prefix: prefix.into(),
            watcher,
        });
        self.many.store(list.len(), Relaxed);
    }

    /// Tells what a group is about to put.
    pub fn tell<'e>(&self, entries: impl Iterator<Item = &'e Entry> + Clone) {
        // Whoever adds one does so between two groups.
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
