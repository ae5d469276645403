//! How many records each tablet holds, and their bytes: kept exactly, so that a count needs no scan.
//!
//! An entry says by how much it changes its tablet's count; the totals of the tablets that a group touched are put into the
//! group's own batch. So they are atomic with the records, and a recovery that replays the log comes to the same numbers.
//!
//! ```text
//! tablet 0 | space 0 | index 4 | tablet u64 BE  →  records i64 LE | bytes i64 LE
//! ```

use crate::engine::{Batch, Engine};
use crate::entry::encode_put;
use crate::view::{Direction, View};
use errors::Result;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

const PREFIX: [u8; 13] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4];

/// Records and bytes.
pub(crate) type Total = [i64; 2];

/// By how much an entry changes a tablet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountDelta {
    pub tablet: u64,
    pub records: i64,
    pub bytes: i64,
}

/// The key under which a tablet's total lies (to be deleted with the tablet).
pub fn count_key(tablet: u64) -> Vec<u8> {
    let mut key = PREFIX.to_vec();
    key.extend_from_slice(&tablet.to_be_bytes());
    key
}

pub(crate) struct Counts {
    totals: RwLock<HashMap<u64, Total>>,
}

/// New totals of the tablets that one group touches.
#[derive(Default)]
pub(crate) struct Touched(Vec<(u64, Total)>);

impl Counts {
    pub fn load(engine: &Arc<Engine>) -> Result<Counts> {
        let mut totals = HashMap::new();
        let mut high = PREFIX;
        high[12] += 1;
        let mut scan = View::latest(engine).scan(&PREFIX, &high, Direction::Forward);
        while scan.next()? {
            let tablet = scan
                .key()
                .get(13..)
                .and_then(|k| k.try_into().ok())
                .map(u64::from_be_bytes);
            let field = |at: usize| {
                Some(i64::from_le_bytes(
                    scan.value().get(at..at + 8)?.try_into().ok()?,
                ))
            };
            if let (Some(tablet), Some(records), Some(bytes)) = (tablet, field(0), field(8)) {
                totals.insert(tablet, [records, bytes]);
            }
        }
        Ok(Counts {
            totals: RwLock::new(totals),
        })
    }

    pub fn get(&self, tablet: u64) -> Total {
        self.totals.read().get(&tablet).copied().unwrap_or_default()
    }

    /// Adds an entry's change to what its group will bring.
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

    /// The group is in the log: its totals are the totals.
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

    /// Puts the new totals into the group's batch.
    pub fn stage(&self, batch: &mut Batch) {
        for (tablet, [records, bytes]) in &self.0 {
            let mut value = [0; 16];
            value[..8].copy_from_slice(&records.to_le_bytes());
            value[8..].copy_from_slice(&bytes.to_le_bytes());
            let mut put = Vec::with_capacity(48);
            encode_put(&mut put, &count_key(*tablet), &value);
            batch.extend(&put, 1);
        }
    }
}
