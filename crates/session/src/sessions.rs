//! Logical sessions by id.

use crate::retries::Retries;
use crate::{Lsid, SESSION_TIMEOUT_MINUTES};
use errors::{Error, Result, bail};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use storage::{Effect, Entry, Op, Store};

const SHARDS: usize = 16;
/// The most sessions at a time (`maxSessions`).
const MAX_SESSIONS: usize = 1_000_000;
/// Session records deleted with one log entry.
const DELETE_BATCH: usize = 1000;

/// Session ids are random already: their own bytes are the hash.
#[derive(Default)]
struct Bytes(u64);

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut b = [0; 8];
            b[..chunk.len()].copy_from_slice(chunk);
            self.0 = self.0.rotate_left(7) ^ u64::from_le_bytes(b);
        }
    }
    fn write_usize(&mut self, _: usize) {}
}

struct Session {
    /// Seconds since [`Sessions::start`].
    used: AtomicU64,
    retries: Arc<Mutex<Retries>>,
}

type Shard = HashMap<Lsid, Session, BuildHasherDefault<Bytes>>;

/// All sessions that are known.
pub struct Sessions {
    shards: [Mutex<Shard>; SHARDS],
    start: Instant,
    pub ended: AtomicU64,
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions { shards: std::array::from_fn(|_| Mutex::default()), start: Instant::now(), ended: AtomicU64::new(0) }
    }
}

/// A session checked out by a command that writes retryably: nobody else has it meanwhile.
pub type CheckedOut = ArcMutexGuard<RawMutex, Retries>;

impl Sessions {
    fn shard(&self, id: &Lsid) -> &Mutex<Shard> {
        &self.shards[id[15] as usize % SHARDS]
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_secs()
    }

    /// Marks a session as used; one that was not known begins.
    pub fn touch(&self, id: &Lsid) -> Result<()> {
        let now = self.now();
        let mut shard = self.shard(id).lock();
        if let Some(s) = shard.get(id) {
            s.used.store(now, Relaxed);
            return Ok(());
        }
        if shard.len() >= MAX_SESSIONS / SHARDS {
            bail!(TooManyLogicalSessions, "Unable to add session ({}) into the cache because there are too many active sessions", hex(id));
        }
        shard.insert(*id, Session { used: AtomicU64::new(now), retries: Arc::default() });
        Ok(())
    }

    /// Checks a session out for a retryable write with `txn_number`. `wait` false gives `Error::offload()` when somebody
    /// else has it. The record is read from `view` (`store.latest()`, cached or not) when the session is new here.
    pub fn check_out(&self, id: &Lsid, txn_number: i64, view: &storage::View, wait: bool) -> Result<CheckedOut> {
        self.touch(id)?;
        let retries = match self.shard(id).lock().get(id) {
            Some(s) => s.retries.clone(),
            None => return Err(Error::internal("a session vanished while it was used")),
        };
        let mut guard = if wait { retries.lock_arc() } else { retries.try_lock_arc().ok_or_else(Error::offload)? };
        guard.load(*id, view)?;
        guard.begin(txn_number)?;
        Ok(guard)
    }

    /// Ends a session as its client asks: it is forgotten at the next reaping. Its retryable writes stay answerable till then.
    pub fn end(&self, id: &Lsid) {
        if let Some(s) = self.shard(id).lock().get(id) {
            // Long past: expired, but not gone while a late retry may still come.
            s.used.store(0, Relaxed);
            self.ended.fetch_add(1, Relaxed);
        }
    }

    pub fn contains(&self, id: &Lsid) -> bool {
        self.shard(id).lock().contains_key(id)
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every session with the seconds since its last use.
    pub fn list(&self) -> Vec<(Lsid, u64)> {
        let now = self.now();
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().iter().map(|(id, s)| (*id, now.saturating_sub(s.used.load(Relaxed)))));
        }
        all
    }

    /// Forgets sessions unused for their time-out, and deletes their records. Gives the ids, whose cursors must go too.
    pub fn reap(&self, store: &Store) -> Result<Vec<Lsid>> {
        let (now, limit) = (self.now(), SESSION_TIMEOUT_MINUTES * 60);
        let mut gone = Vec::new();
        let mut stored = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|id, s| {
                // A session in use is locked; it will come by again.
                let expired = now.saturating_sub(s.used.load(Relaxed)) >= limit;
                let Some(retries) = expired.then(|| s.retries.try_lock()).flatten() else { return true };
                if retries.is_stored() {
                    stored.push(*id);
                }
                gone.push(*id);
                false
            });
        }
        for ids in stored.chunks(DELETE_BATCH) {
            let effects = ids.iter().map(|id| Effect::Delete(crate::retries::key(id))).collect();
            store.propose(vec![Entry::new([0; 16], Op::Noop, effects)])?;
        }
        Ok(gone)
    }
}

pub(crate) fn hex(id: &Lsid) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_until_they_expire() {
        let s = Sessions::default();
        s.touch(&[1; 16]).unwrap();
        s.touch(&[1; 16]).unwrap();
        s.touch(&[2; 16]).unwrap();
        assert_eq!(s.len(), 2);
        assert!(s.contains(&[1; 16]) && !s.contains(&[3; 16]));
    }
}
