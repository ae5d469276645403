//! Gates: each write of a router holds that of its collection until it is committed, and the fence waits
//! until it has the gate alone.
//!
//! While it waits no new write enters, except those of transactions that are inside: they could not end
//! otherwise, and the fence waits for their end.
//!
//! Invariant: [`Pass::again`] is true only if the transaction has held the gate without a pause since
//! before the pass was given, so no fence has had the gate alone meanwhile.

use parking_lot::lock_api::ArcRwLockReadGuard;
use parking_lot::{Mutex, RawRwLock, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A transaction: its session's id as bytes, and its number.
pub(super) type Holder = (Vec<u8>, i64);

#[derive(Clone, Default)]
pub(super) struct Gate {
    lock: Arc<RwLock<()>>,
    /// How many passes the transactions hold that have any.
    holders: Arc<Mutex<HashMap<Holder, usize>>>,
}

/// Held by a write.
pub(super) struct Pass {
    gate: Gate,
    holder: Option<Holder>,
    /// The transaction was in already.
    pub again: bool,
    _guard: ArcRwLockReadGuard<RawRwLock, ()>,
}

impl Gate {
    /// `None` while a fence waits for the gate, unless the transaction holds it.
    pub fn enter(&self, holder: Option<&Holder>) -> Option<Pass> {
        let holds = |h: &Holder| self.holders.lock().contains_key(h);
        let guard = match holder.is_some_and(holds) {
            // Waits for no fence, or, if the transaction ends just now, while one that is alone passes.
            true => self.lock.read_arc_recursive(),
            false => self.lock.try_read_arc()?,
        };
        let mut again = false;
        if let Some(holder) = holder {
            let mut holders = self.holders.lock();
            let passes = holders.entry(holder.clone()).or_default();
            again = *passes > 0;
            *passes += 1;
        }
        Some(Pass {
            gate: self.clone(),
            holder: holder.cloned(),
            again,
            _guard: guard,
        })
    }

    /// Whether the gate was free, at the latest after `wait`.
    pub fn drain(&self, wait: Duration) -> bool {
        self.lock.try_write_for(wait).is_some()
    }

    /// Waits until no fence waits for the gate. Whether there was anything to wait for.
    pub fn wait_while_awaited(&self, until: Instant) -> bool {
        if self.lock.try_read().is_some() {
            return false;
        }
        drop(self.lock.try_read_until(until));
        true
    }
}

impl Drop for Pass {
    /// Before the gate is let go.
    fn drop(&mut self) {
        let Some(holder) = &self.holder else { return };
        let mut holders = self.gate.holders.lock();
        let passes = holders.get_mut(holder).map_or(0, |passes| {
            *passes -= 1;
            *passes + 1
        });
        assert!(passes > 0, "a pass that ends was given");
        if passes == 1 {
            holders.remove(holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_enters_again_while_a_fence_drains() {
        let gate = Gate::default();
        let (inside, other) = ((vec![1], 1), (vec![2], 1));
        let first = gate.enter(Some(&inside)).unwrap();
        assert!(!first.again);
        std::thread::scope(|s| {
            let alone = s.spawn(|| gate.drain(Duration::from_secs(60)));
            while gate.enter(Some(&other)).is_some() || gate.enter(None).is_some() {
                std::thread::yield_now();
            }
            let second = gate.enter(Some(&inside)).unwrap();
            assert!(second.again);
            drop(first);
            let third = gate.enter(Some(&inside)).unwrap();
            assert!(third.again && gate.enter(Some(&(vec![1], 2))).is_none());
            drop((second, third));
            assert!(alone.join().unwrap());
        });
        assert!(!gate.enter(Some(&inside)).unwrap().again);
        assert!(gate.holders.lock().is_empty());
        assert!(gate.drain(Duration::ZERO));
    }
}
