//! Striped latches over key hashes, held from prepare until applied.

use std::sync::Arc;

/// The table of latches.
#[derive(Clone)]
pub struct Latches(#[allow(dead_code)] Arc<()>);

/// Latches held; released on drop. May be sent to another thread.
pub struct LatchGuard(#[allow(dead_code)] Latches);

impl Latches {
    /// All of them or none, without waiting. Duplicates in `hashes` are allowed.
    pub fn try_acquire(&self, _hashes: &[u64]) -> Option<LatchGuard> {
        todo!()
    }

    /// All of them; waits, holding none while it waits.
    pub fn acquire(&self, _hashes: &[u64]) -> LatchGuard {
        todo!()
    }
}

impl LatchGuard {
    /// Adds more latches to those held: all of `hashes` or none of them, without waiting. Those already held count as had.
    pub fn try_extend(&mut self, _hashes: &[u64]) -> bool {
        todo!()
    }
}
