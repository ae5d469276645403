//! Skip scan: moves an index scan past entries that the bounds of later fields exclude, or whose
//! value was already given.
//!
//! An entry outside the bounds tells the next possible entry inside (the target). When the target
//! is near, single steps are cheapest; when it is far, a seek is. The distance is usually like the
//! last one. So when steps did not reach the target, fewer are tried the next time; when they did,
//! more are.
//!
//! Invariant: no entry inside the bounds is skipped, and the caller counts every entry that the
//! engine returned.

use crate::read::index_scan::Position;
use crate::records::damaged_entry;
use bson::key::{self, Decoder};
use bson::tag;
use catalog::Index;
use catalog::keyspace;
use errors::Result;
use planner::{Distinct, IndexAccess};
use query::index_keys::Multikey;
use smallvec::SmallVec;
use std::sync::Arc;
use storage::View;

/// The approximate cost of a seek, in steps.
pub(crate) const SEEK: u32 = 8;

pub(crate) struct SkipScan {
    access: Arc<IndexAccess>,
    reverse: bool,
    /// The next possible entry inside the bounds, without the index's prefix.
    target: Vec<u8>,
    /// The steps left towards the target before a seek; `None`: no target.
    left: Option<u32>,
    /// The number of steps to try the next time: 1 to [`SEEK`].
    patience: u32,
    /// The end offset of each field in the current entry's key.
    ends: SmallVec<[usize; 4]>,
    /// One entry of each value of a field is wanted.
    distinct: Option<Distinct>,
}

impl SkipScan {
    /// `None` when every entry is wanted.
    pub(crate) fn new(access: &Arc<IndexAccess>) -> Option<Box<SkipScan>> {
        let distinct = access.distinct;
        (!access.skip.is_empty() || distinct.is_some()).then(|| {
            Box::new(SkipScan {
                access: access.clone(),
                reverse: access.reverse,
                target: Vec::new(),
                left: None,
                // A value usually has more than a few entries.
                patience: if distinct.is_some() { 1 } else { SEEK },
                ends: SmallVec::new(),
                distinct,
            })
        })
    }

    /// Resets the state: the scan continues in another range.
    pub(crate) fn restart(&mut self) {
        self.left = None;
    }

    /// Whether the next move is a seek.
    pub(crate) fn seeks(&self) -> bool {
        self.left == Some(0)
    }

    /// Called when the last admitted entry is given: other entries of its value are then skipped.
    /// `false`: the entry has no value, and must not be given.
    pub(crate) fn given(&mut self, index: &Index, entry: &[u8], types: &[u8]) -> bool {
        let Some(d) = self.distinct else { return true };
        let start = d.field.checked_sub(1).map_or(0, |before| self.ends[before]);
        let Some(value) = self.ends.get(d.field).and_then(|end| entry.get(..*end)) else {
            return true;
        };
        if !d.missing {
            let descending = (index.info.key.fields.get(d.field)).is_some_and(|f| f.descending);
            let first = value
                .get(start)
                .map_or(0, |b| if descending { !*b } else { *b });
            let empty = first == key::rank_byte(tag::UNDEFINED);
            if empty || first == key::rank_byte(tag::NULL) {
                let arrays = Multikey(index.info.multikey).field(d.field);
                if arrays {
                    // Only the document can tell.
                    return true;
                }
                if !empty && !shows(index, d.field, entry, types) {
                    return false;
                }
            }
        }
        self.target.clear();
        self.target.extend_from_slice(value);
        if !self.reverse {
            match key::successor(&self.target) {
                Some(behind) => self.target = behind,
                None => self.target.push(0xFF),
            }
        }
        self.left = Some(self.patience);
        true
    }

    /// Moves to the next entry, or seeks to the target.
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

    /// The offset of the record key in an entry, if the entry is inside the bounds.
    pub(crate) fn admit(&mut self, index: &Index, entry: &[u8]) -> Result<Option<usize>> {
        if let Some(left) = self.left {
            let arrived = match self.reverse {
                false => entry >= self.target.as_slice(),
                true => entry <= self.target.as_slice(),
            };
            // A seek always reaches the target.
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
            .access
            .skip
            .admit(entry, &self.ends, self.reverse, &mut self.target);
        if !inside {
            self.left = Some(self.patience);
        }
        Ok(inside.then_some(at))
    }
}

/// Whether an entry has a value of a field, be it null.
fn shows(index: &Index, field: usize, entry: &[u8], types: &[u8]) -> bool {
    let mut d = Decoder::new(entry, types);
    let mut fields = index.info.key.fields.iter().take(field + 1);
    let last = fields.try_fold(None, |_, f| d.field(f.descending));
    matches!(last, Some(Some(_)))
}

/// The offset of the record key in an entry.
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
    n.ok_or_else(|| damaged_entry(index).into())
}
