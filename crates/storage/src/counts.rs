//! Record counts: the exact number and size of each tablet's records, so that a count needs no
//! scan.
//!
//! An entry carries the change of its tablet's count. The new totals of the tablets that a group
//! touches are part of the group's batch. So they are atomic with the records, and recovery by
//! replaying the log gives the same numbers.
//!
//! ```text
//! tablet 0 | space 0 | index 4 | tablet u64 BE  →  records i64 LE | bytes i64 LE | log index u64 LE | timestamp u64 LE
//! ```
//! Index and timestamp are those of the group. They tell how far the log is applied, which saves
//! nearly every group a separate put.

use crate::batch::Batch;
use crate::engine::Engine;
use crate::store::Committed;
use crate::view::{Direction, View};
use errors::{Result, err};
use foldhash::{HashMap, HashMapExt};
use parking_lot::RwLock;
use std::sync::Arc;

const PREFIX: [u8; 13] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4];

/// Records and bytes.
pub(crate) type Total = [i64; 2];

/// The change of a tablet's count by an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountDelta {
    pub tablet: u64,
    pub records: i64,
    pub bytes: i64,
}

/// The key of a tablet's total (to be deleted with the tablet).
pub fn count_key(tablet: u64) -> Vec<u8> {
    let mut key = PREFIX.to_vec();
    key.extend_from_slice(&tablet.to_be_bytes());
    key
}

#[derive(Default)]
pub(crate) struct Counts {
    totals: RwLock<HashMap<u64, Total>>,
}

/// The new totals of the tablets that one group touches.
#[derive(Default)]
pub(crate) struct Touched(Vec<(u64, Total)>);

impl Counts {
    /// Loads all totals, and the newest place in the log that one of them carries.
    pub fn load(engine: &Arc<Engine>) -> Result<(Counts, Committed)> {
        let mut totals = HashMap::new();
        let mut newest = Committed::default();
        let mut high = PREFIX;
        high[12] += 1;
        let mut scan = View::latest(engine).scan(&PREFIX, &high, Direction::Forward);
        while scan.next()? {
            // The reserved time of builds before 28 November 2026 (`executor::reserved_time`).
            if scan.key().len() == PREFIX.len() {
                continue;
            }
            let tablet = scan.key().get(13..).and_then(|k| k.try_into().ok());
            let field = |at: usize| {
                let bytes = scan.value().get(at..at + 8)?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            };
            let (Some(tablet), Some(records), Some(bytes), Some(index), Some(ts)) =
                (tablet, field(0), field(8), field(16), field(24))
            else {
                return Err(err!(
                    UnrecoverableRollbackError,
                    "the data files are damaged: the count of a tablet has no form that is known"
                )
                .into());
            };
            let tablet = u64::from_be_bytes(tablet);
            totals.insert(tablet, [records as i64, bytes as i64]);
            newest = newest.max(Committed { index, ts });
        }
        let totals = RwLock::new(totals);
        Ok((Counts { totals }, newest))
    }

    pub fn get(&self, tablet: u64) -> Total {
        self.totals.read().get(&tablet).copied().unwrap_or_default()
    }

    /// Adds an entry's change to the totals of its group.
    pub fn touch(&self, touched: &mut Touched, delta: &CountDelta) {
        let at = match touched.0.iter().position(|(t, _)| *t == delta.tablet) {
            Some(at) => at,
            None => {
                touched.0.push((delta.tablet, self.get(delta.tablet)));
                touched.0.len() - 1
            }
        };
        if let Some((_, total)) = touched.0.get_mut(at) {
            total[0] += delta.records;
            total[1] += delta.bytes;
        }
    }

    /// Makes a group's totals the current ones, once the group is applied.
    pub fn publish(&self, touched: &Touched) {
        if touched.0.is_empty() {
            return;
        }
        let mut totals = self.totals.write();
        for (tablet, total) in &touched.0 {
            totals.insert(*tablet, *total);
        }
    }
}

impl Touched {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Puts the new totals into the batch of the group that ends at `at`; returns whether there
    /// were any.
    pub fn stage(&self, batch: &mut Batch, at: Committed) -> bool {
        for (tablet, [records, bytes]) in &self.0 {
            let mut key = [0; PREFIX.len() + 8];
            key[..PREFIX.len()].copy_from_slice(&PREFIX);
            key[PREFIX.len()..].copy_from_slice(&tablet.to_be_bytes());
            let mut value = [0; 32];
            value[..8].copy_from_slice(&records.to_le_bytes());
            value[8..16].copy_from_slice(&bytes.to_le_bytes());
            value[16..24].copy_from_slice(&at.index.to_le_bytes());
            value[24..].copy_from_slice(&at.ts.to_le_bytes());
            batch.put(&key, &value);
        }
        !self.0.is_empty()
    }
}
