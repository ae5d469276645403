//! Memory for large messages in flight, over all loops.
//!
//! Invariant: a message takes its whole length or nothing, before its buffer grows, so that two messages can never wait
//! for each other's memory; the first one always gets it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

pub(crate) struct Budget {
    total: usize,
    used: AtomicUsize,
    /// Connections that wait, over all loops.
    waiting: AtomicUsize,
}

impl Budget {
    pub fn new(total: usize) -> Budget {
        Budget {
            total,
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
    }

    pub fn try_take(&self, bytes: usize) -> bool {
        self.used
            .fetch_update(SeqCst, SeqCst, |used| {
                (used == 0 || used + bytes <= self.total).then_some(used + bytes)
            })
            .is_ok()
    }

    /// Gives bytes back; true when somebody waits for them.
    pub fn give(&self, bytes: usize) -> bool {
        self.used.fetch_sub(bytes, SeqCst);
        self.has_waiting()
    }

    pub fn wait(&self) {
        self.waiting.fetch_add(1, SeqCst);
    }

    pub fn unwait(&self) {
        self.waiting.fetch_sub(1, SeqCst);
    }

    pub fn has_waiting(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_or_nothing() {
        let b = Budget::new(100);
        assert!(b.try_take(60) && !b.try_take(60) && b.try_take(40) && !b.try_take(1));
        b.wait();
        assert!(b.give(60));
        b.unwait();
        assert!(!b.give(40));
        assert!(b.try_take(1000), "one message alone may pass the total");
        assert!(!b.try_take(1));
    }
}
