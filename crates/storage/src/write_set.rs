//! Write set: a transaction's uncommitted writes, over the snapshot that it reads.
//!
//! Invariant: a clone never changes. So a statement that writes while it scans does not see its own
//! writes, and a failed statement is rolled back by returning to the clone made before it.

use crate::{Direction, Effect};
use errors::{Result, err};
use rpds::RedBlackTreeMapSync;
use std::ops::Bound;
use std::sync::Arc;

/// Bytes of a key or value, shared.
pub(crate) type Bytes = Arc<[u8]>;

/// The approximate memory of an entry besides its key and value, in bytes.
const ENTRY_OVERHEAD: usize = 120;

/// Keys with their newest values; `None`: deleted.
#[derive(Clone, Default)]
pub struct WriteSet {
    entries: RedBlackTreeMapSync<Bytes, Option<Bytes>>,
    bytes: usize,
}

impl WriteSet {
    /// Adds an effect. A range deletion is refused: the caller deletes its keys one by one.
    pub fn add(&mut self, effect: &Effect) -> Result<()> {
        let (key, value) = match effect {
            Effect::Put(key, value) => (key, Some(value)),
            Effect::Delete(key) => (key, None),
            Effect::DeleteRange(..) => {
                return Err(err!(InternalError, "a transaction deletes no ranges").into());
            }
        };
        self.bytes += key.len() + value.map_or(0, Vec::len) + ENTRY_OVERHEAD;
        let value = value.map(|v| Bytes::from(v.as_slice()));
        self.entries.insert_mut(Bytes::from(key.as_slice()), value);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The approximate memory taken, in bytes; overwritten values still count.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `Some(None)`: deleted; `None`: not written.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&Bytes>> {
        self.entries.get(key).map(Option::as_ref)
    }

    /// The first entry in the scan's direction, within `low` and `high`.
    fn first(
        &self,
        direction: Direction,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
    ) -> Option<(Bytes, Option<Bytes>)> {
        if is_empty_range(low, high) {
            return None;
        }
        let mut range = self.entries.range::<[u8], _>((low, high));
        let found = match direction {
            Direction::Forward => range.next(),
            Direction::Backward => range.next_back(),
        };
        found.map(|(k, v)| (k.clone(), v.clone()))
    }
}

fn is_empty_range(low: Bound<&[u8]>, high: Bound<&[u8]>) -> bool {
    match (low, high) {
        (Bound::Included(l), Bound::Included(h)) => l > h,
        (Bound::Included(l) | Bound::Excluded(l), Bound::Included(h) | Bound::Excluded(h)) => {
            l >= h
        }
        _ => false,
    }
}

/// The position of a merged scan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Start,
    Below,
    Written,
    Done,
}

/// The scan below a write set.
pub(crate) trait UnderlyingScan {
    fn next(&mut self) -> Result<bool>;
    fn seek(&mut self, key: &[u8]) -> Result<bool>;
    fn valid(&self) -> bool;
    fn key(&self) -> &[u8];
}

/// A write set merged with a scan below it: one entry for each key. A written entry wins over the
/// one below, and a deleted key is skipped.
pub(crate) struct MergedScan {
    writes: WriteSet,
    direction: Direction,
    low: Box<[u8]>,
    /// Empty: no bound.
    high: Box<[u8]>,
    /// The next written entry, or the current one.
    written: Option<(Bytes, Option<Bytes>)>,
    at: At,
}

impl MergedScan {
    pub fn new(writes: WriteSet, direction: Direction, low: &[u8], high: &[u8]) -> MergedScan {
        MergedScan {
            writes,
            direction,
            low: low.into(),
            high: high.into(),
            written: None,
            at: At::Start,
        }
    }

    fn upper(&self) -> Bound<&[u8]> {
        match self.high.is_empty() {
            true => Bound::Unbounded,
            false => Bound::Excluded(&self.high),
        }
    }

    fn after(&self, key: &[u8]) -> Option<(Bytes, Option<Bytes>)> {
        let low = Bound::Included(&*self.low);
        match self.direction {
            Direction::Forward => {
                let key = Bound::Excluded(key);
                self.writes.first(self.direction, key, self.upper())
            }
            Direction::Backward => self.writes.first(self.direction, low, Bound::Excluded(key)),
        }
    }

    fn advance_written(&mut self) {
        self.written = match &self.written {
            Some((key, _)) => self.after(key),
            None => None,
        };
    }

    /// Moves to the next entry. After an error the scan has no position until the next seek.
    pub fn next(&mut self, below: &mut impl UnderlyingScan) -> Result<bool> {
        match std::mem::replace(&mut self.at, At::Done) {
            At::Done => return Ok(false),
            At::Start => {
                below.next()?;
                let low = Bound::Included(&*self.low);
                self.written = self.writes.first(self.direction, low, self.upper());
            }
            At::Below => {
                below.next()?;
            }
            At::Written => self.advance_written(),
        }
        self.settle(below)
    }

    /// To the first entry at or after `key` in the scan's direction.
    pub fn seek(&mut self, key: &[u8], below: &mut impl UnderlyingScan) -> Result<bool> {
        self.at = At::Done;
        below.seek(key)?;
        self.written = match self.direction {
            Direction::Forward => {
                let from = Bound::Included(key.max(&self.low));
                self.writes.first(self.direction, from, self.upper())
            }
            Direction::Backward => {
                let beyond = !self.high.is_empty() && *key >= *self.high;
                let to = if beyond {
                    self.upper()
                } else {
                    Bound::Included(key)
                };
                let low = Bound::Included(&*self.low);
                self.writes.first(self.direction, low, to)
            }
        };
        self.settle(below)
    }

    /// Moves to the first of the two candidates, past deleted keys.
    fn settle(&mut self, below: &mut impl UnderlyingScan) -> Result<bool> {
        use std::cmp::Ordering::*;
        loop {
            let order = match (below.valid(), &self.written) {
                (false, None) => return Ok(false),
                (true, None) => Less,
                (false, Some(_)) => Greater,
                (true, Some((key, _))) => match self.direction {
                    Direction::Forward => below.key().cmp(key),
                    Direction::Backward => below.key().cmp(key).reverse(),
                },
            };
            match order {
                Less => {
                    self.at = At::Below;
                    return Ok(true);
                }
                Equal => {
                    below.next()?;
                }
                Greater if matches!(&self.written, Some((_, Some(_)))) => {
                    self.at = At::Written;
                    return Ok(true);
                }
                Greater => self.advance_written(),
            }
        }
    }

    pub fn valid(&self) -> bool {
        matches!(self.at, At::Below | At::Written)
    }

    /// The current entry when it is a written one; `None` when it is from below, or when there is
    /// none.
    pub fn written(&self) -> Option<(&[u8], &[u8])> {
        match (self.at, &self.written) {
            (At::Written, Some((key, Some(value)))) => Some((key, value)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A scan over a list of keys.
    struct List {
        keys: Vec<Vec<u8>>,
        at: Option<usize>,
        started: bool,
        direction: Direction,
    }

    impl UnderlyingScan for List {
        fn next(&mut self) -> Result<bool> {
            self.at = match (self.started, self.at) {
                (false, _) => Some(0),
                (true, at) => at.map(|n| n + 1),
            };
            self.started = true;
            self.at = self.at.filter(|n| *n < self.keys.len());
            Ok(self.valid())
        }

        fn seek(&mut self, key: &[u8]) -> Result<bool> {
            self.started = true;
            self.at = self.keys.iter().position(|k| match self.direction {
                Direction::Forward => k.as_slice() >= key,
                Direction::Backward => k.as_slice() <= key,
            });
            Ok(self.valid())
        }

        fn valid(&self) -> bool {
            self.at.is_some()
        }

        fn key(&self) -> &[u8] {
            self.at.map_or(&[], |n| &self.keys[n])
        }
    }

    fn key(n: u8) -> Vec<u8> {
        vec![n]
    }

    /// The rest of the merge after `begin`, as (key, written).
    fn collect(
        below: &[u8],
        writes: &WriteSet,
        direction: Direction,
        seek: Option<u8>,
    ) -> Vec<(u8, bool)> {
        let (low, high) = (key(10), key(200));
        let mut keys: Vec<Vec<u8>> = below.iter().map(|n| key(*n)).collect();
        if direction == Direction::Backward {
            keys.reverse();
        }
        let mut list = List {
            keys,
            at: None,
            started: false,
            direction,
        };
        let mut scan = MergedScan::new(writes.clone(), direction, &low, &high);
        let mut out = Vec::new();
        let mut more = match seek {
            Some(n) => scan.seek(&key(n), &mut list).unwrap(),
            None => scan.next(&mut list).unwrap(),
        };
        while more {
            let here = match scan.written() {
                Some((k, _)) => (k[0], true),
                None => (list.key()[0], false),
            };
            out.push(here);
            more = scan.next(&mut list).unwrap();
        }
        assert!(!scan.valid());
        out
    }

    #[test]
    fn a_merge_is_what_a_map_says() {
        let mut seed = 7u64;
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..3000 {
            let mut below: Vec<u8> = (0..random(8)).map(|_| 10 + random(12) as u8).collect();
            below.sort_unstable();
            below.dedup();
            let mut writes = WriteSet::default();
            let mut model: BTreeMap<u8, bool> = below.iter().map(|k| (*k, false)).collect();
            for _ in 0..random(8) {
                // Some keys lie outside the bounds.
                let k = 8 + random(16) as u8;
                if random(2) == 0 {
                    writes.add(&Effect::Put(key(k), vec![1])).unwrap();
                    model.insert(k, true);
                } else {
                    writes.add(&Effect::Delete(key(k))).unwrap();
                    model.remove(&k);
                }
            }
            model.retain(|k, _| *k >= 10);
            let forward: Vec<(u8, bool)> = model.clone().into_iter().collect();
            let backward: Vec<(u8, bool)> = forward.iter().rev().copied().collect();
            assert_eq!(collect(&below, &writes, Direction::Forward, None), forward);
            assert_eq!(
                collect(&below, &writes, Direction::Backward, None),
                backward
            );
            let from = 8 + random(16) as u8;
            let wanted: Vec<_> = forward.iter().copied().filter(|k| k.0 >= from).collect();
            assert_eq!(
                collect(&below, &writes, Direction::Forward, Some(from)),
                wanted
            );
            let wanted: Vec<_> = backward.iter().copied().filter(|k| k.0 <= from).collect();
            assert_eq!(
                collect(&below, &writes, Direction::Backward, Some(from)),
                wanted
            );
        }
    }

    #[test]
    fn a_clone_does_not_change() {
        let mut writes = WriteSet::default();
        writes.add(&Effect::Put(key(1), vec![1])).unwrap();
        let before = writes.clone();
        writes.add(&Effect::Delete(key(1))).unwrap();
        assert_eq!(
            before.get(&key(1)).map(|v| v.map(|v| v.to_vec())),
            Some(Some(vec![1]))
        );
        assert_eq!(writes.get(&key(1)), Some(None));
        assert!(writes.add(&Effect::DeleteRange(key(1), key(2))).is_err());
    }
}
