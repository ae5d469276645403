//! The way of an index scan past entries that the bounds of later fields exclude.
//!
//! An entry outside names where the next one inside can be. Steps are cheapest when it is near, a seek when it is far. How far
//! it is nobody knows, but mostly as far as the last time: steps that did not arrive make the next steps fewer, steps that did
//! make them more.
//!
//! Invariant: no entry inside is passed over, and every entry that the engine showed was counted by the caller.

use crate::fetch::Position;
use bson::key;
use catalog::Index;
use catalog::keyspace;
use errors::{Error, Result};
use planner::SkipBounds;
use smallvec::SmallVec;
use storage::View;

/// About how many steps cost what a seek does.
pub(crate) const SEEK: u32 = 8;

pub(crate) struct Skipping {
    bounds: SkipBounds,
    reverse: bool,
    /// Where the next entry inside can be, without the index's prefix.
    target: Vec<u8>,
    /// How many steps are still made towards the target before a seek; `None`: not under way.
    left: Option<u32>,
    /// How many are made the next time: 1 to [`SEEK`].
    patience: u32,
    /// Where the fields of the current entry's key end.
    ends: SmallVec<[usize; 4]>,
}

impl Skipping {
    /// `None` where no later field has bounds: such a scan has nothing to do with this.
    pub(crate) fn new(bounds: &SkipBounds, reverse: bool) -> Option<Box<Skipping>> {
        (!bounds.is_empty()).then(|| {
            Box::new(Skipping {
                bounds: bounds.clone(),
                reverse,
                target: Vec::new(),
                left: None,
                patience: SEEK,
                ends: SmallVec::new(),
            })
        })
    }

    /// The scan goes on in another range.
    pub(crate) fn restart(&mut self) {
        self.left = None;
    }

    /// Whether the next move is a seek.
    pub(crate) fn seeks(&self) -> bool {
        self.left == Some(0)
    }

    /// To the next entry, or the first at the target.
    pub(crate) fn advance(
        &mut self,
        position: &mut Position,
        view: &View,
        index: &Index,
    ) -> Result<bool> {
        if !self.seeks() {
            return position.next(view);
        }
        self.patience = (self.patience / 2).max(1);
        position.seek(view, &keyspace::join(&index.prefix, &self.target))
    }

    /// Where the record's key begins in an entry, if it is inside.
    pub(crate) fn admit(&mut self, index: &Index, entry: &[u8]) -> Result<Option<usize>> {
        if let Some(left) = self.left {
            let arrived = match self.reverse {
                false => entry >= self.target.as_slice(),
                true => entry <= self.target.as_slice(),
            };
            // A seek arrives, wherever it was aimed.
            if !arrived && left > 0 {
                self.left = Some(left - 1);
                return Ok(None);
            }
            if left > 0 {
                self.patience = (self.patience * 2).min(SEEK);
            }
            self.left = None;
        }
        let mut at = 0;
        self.ends.clear();
        for f in &index.info.key.fields {
            at += next_field(index, entry, at, f.descending)?;
            self.ends.push(at);
        }
        let inside = self
            .bounds
            .admit(entry, &self.ends, self.reverse, &mut self.target);
        if !inside {
            self.left = Some(self.patience);
        }
        Ok(inside.then_some(at))
    }
}

/// Where the record's key begins in an entry.
#[inline]
pub(crate) fn record_at(index: &Index, entry: &[u8]) -> Result<usize> {
    let mut at = 0;
    for f in &index.info.key.fields {
        at += next_field(index, entry, at, f.descending)?;
    }
    Ok(at)
}

#[inline]
fn next_field(index: &Index, entry: &[u8], at: usize, descending: bool) -> Result<usize> {
    let n = entry
        .get(at..)
        .and_then(|rest| key::field_len(rest, descending));
    n.ok_or_else(|| Error::internal(format!("an entry of index {} is damaged", index.name())))
}
