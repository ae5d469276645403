//! Reading: snapshots, gets, scans.

use errors::Result;
use std::ops::Deref;

/// The order of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// A consistent state of the keyspace. Cheap to clone; keeps what it shows alive.
#[derive(Clone)]
pub struct View {}

/// A value, pinned in the engine: no copy was made.
pub struct Slice {}

impl Deref for Slice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        todo!()
    }
}

impl View {
    /// The same state, read only as far as it is in memory: a read that would go to the disk fails with `Error::offload()`.
    pub fn cached_only(&self) -> View {
        todo!()
    }

    pub fn get(&self, _key: &[u8]) -> Result<Option<Slice>> {
        todo!()
    }

    /// The values of `keys`, in their order; fastest when they are sorted.
    pub fn multi_get(&self, _keys: &[&[u8]]) -> Result<Vec<Option<Slice>>> {
        todo!()
    }

    /// A cursor over `[low, high)` (an empty `high`: no bound), before its first entry: call `next` or `seek`.
    pub fn scan(&self, _low: &[u8], _high: &[u8], _direction: Direction) -> Scan {
        todo!()
    }
}

/// A cursor over a range: `while scan.next()? { scan.key() .. scan.value() }`. Owns all it needs; Send, 'static.
pub struct Scan {}

impl Scan {
    /// To the next entry in the scan's direction (the first, when it is new); false at the end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<bool> {
        todo!()
    }

    /// To the first entry at or after `key` in the scan's direction, within the bounds; false when there is none.
    /// A following `next` moves on from that entry.
    pub fn seek(&mut self, _key: &[u8]) -> Result<bool> {
        todo!()
    }

    pub fn valid(&self) -> bool {
        todo!()
    }

    /// The key of the current entry; empty when not valid.
    pub fn key(&self) -> &[u8] {
        todo!()
    }

    /// The value of the current entry; empty when not valid.
    pub fn value(&self) -> &[u8] {
        todo!()
    }
}
