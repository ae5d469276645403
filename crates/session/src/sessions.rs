//! Logical sessions by id, and when each was last used.

use crate::Lsid;
use errors::{Result, bail};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

const SHARDS: usize = 16;
/// The most sessions at a time (`maxSessions`).
const MAX_SESSIONS: usize = 1_000_000;
/// How long a session lives unused (`logicalSessionTimeoutMinutes`).
pub const SESSION_TIMEOUT_MINUTES: i64 = 30;

/// Session ids are random already: their own bytes are the hash.
#[derive(Default)]
struct OwnBytes(u64);

impl Hasher for OwnBytes {
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

/// Seconds since [`Sessions::start`] of the last use; an ended session was last used one time-out
/// ago.
type Shard = HashMap<Lsid, AtomicI64, BuildHasherDefault<OwnBytes>>;

/// All sessions that are known.
pub struct Sessions {
    shards: [Mutex<Shard>; SHARDS],
    start: Instant,
    pub ended: AtomicU64,
    pub expired: AtomicU64,
}

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions {
            shards: std::array::from_fn(|_| Mutex::default()),
            start: Instant::now(),
            ended: AtomicU64::new(0),
            expired: AtomicU64::new(0),
        }
    }
}

impl Sessions {
    fn shard(&self, id: &Lsid) -> &Mutex<Shard> {
        &self.shards[id.id[15] as usize % SHARDS]
    }

    fn now(&self) -> i64 {
        self.start.elapsed().as_secs() as i64
    }

    /// Marks a session as used; one that was not known begins.
    pub fn touch(&self, id: &Lsid) -> Result<()> {
        let now = self.now();
        let mut shard = self.shard(id).lock();
        if let Some(used) = shard.get(id) {
            used.store(now, Relaxed);
            return Ok(());
        }
        if shard.len() >= MAX_SESSIONS / SHARDS {
            bail!(
                TooManyLogicalSessions,
                "Unable to add session into the cache because the number of active sessions is too high"
            );
        }
        shard.insert(*id, AtomicI64::new(now));
        Ok(())
    }

    /// Ends a session as its client asks.
    pub fn end(&self, id: &Lsid) {
        if self.shard(id).lock().remove(id).is_some() {
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
    pub fn list(&self) -> Vec<(Lsid, i64)> {
        let now = self.now();
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(
                shard
                    .lock()
                    .iter()
                    .map(|(id, used)| (*id, now - used.load(Relaxed))),
            );
        }
        all
    }

    /// Forgets sessions that were unused for their time-out and gives their ids, whose cursors must
    /// go too.
    pub fn reap(&self) -> Vec<Lsid> {
        self.reap_older(SESSION_TIMEOUT_MINUTES * 60)
    }

    fn reap_older(&self, seconds: i64) -> Vec<Lsid> {
        let now = self.now();
        let mut gone = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|id, used| {
                let keep = now - used.load(Relaxed) < seconds;
                if !keep {
                    gone.push(*id);
                }
                keep
            });
        }
        self.expired.fetch_add(gone.len() as u64, Relaxed);
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_until_they_end_or_expire() {
        let s = Sessions::default();
        let session = |n| Lsid::unowned([n; 16]);
        for id in [1, 1, 2].map(session) {
            s.touch(&id).unwrap();
        }
        assert_eq!(s.len(), 2);
        assert!(s.contains(&session(1)) && !s.contains(&session(3)));
        s.end(&session(1));
        let others = Lsid {
            uid: [7; 32],
            ..session(2)
        };
        assert!(!s.contains(&session(1)) && !s.contains(&others));
        assert!(s.reap().is_empty());
        assert_eq!(s.reap_older(0), [session(2)]);
        assert!(s.is_empty());
    }
}
