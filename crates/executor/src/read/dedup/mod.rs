//! Deduplication: the records that a scan has given, when it may meet a record more than once.
//!
//! Remembering them is cheap, but they are as many as the scan gives. So they are remembered up to
//! [`OpCtx::remembered`] bytes, within the memory budget of stages. Past that the caller decides
//! from the document itself, which tells every way to it: its keys in an index
//! ([`crate::read::index_scan::IndexScan`]), and the branches that it matches ([`given_by`]).
//!
//! Invariant: both ways give each record once, and a scan may change from the first way to the
//! second in the middle.

use crate::op::OpCtx;
use crate::read::step::test;
use bson::Doc;
use errors::{Result, Stop};
use planner::Branch;
use query::expr::Vars;
use query::filter::{Filter, Node};
use query::pipeline::Share;
use std::collections::HashSet;

/// Up to this size the memory is not charged to the budget.
const UNCOUNTED: usize = 16 << 10;
/// The least amount that is charged.
const COUNTED: usize = 256 << 10;
/// The overhead of a key: its slot in the partly empty set, and its allocation.
const OVERHEAD: usize = 48;

/// Whether a record was given before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    New,
    Given,
    /// It is not remembered, but not all records are.
    Nothing,
}

#[derive(Default)]
pub(crate) struct Seen {
    keys: HashSet<Box<[u8]>>,
    bytes: usize,
    share: Option<Share>,
    full: bool,
}

impl Seen {
    /// Whether a record was given before; remembers it as given, if there is room.
    pub(crate) fn add(&mut self, ctx: &OpCtx, record_key: &[u8]) -> Known {
        let bytes = self.bytes.saturating_add(record_key.len() + OVERHEAD);
        if self.full || !self.fits(ctx, bytes) {
            self.full = true;
            return self.look(record_key);
        }
        if !self.keys.insert(record_key.into()) {
            return Known::Given;
        }
        self.bytes = bytes;
        Known::New
    }

    /// The same without remembering it.
    pub(crate) fn look(&self, record_key: &[u8]) -> Known {
        match (self.keys.contains(record_key), self.full) {
            (true, _) => Known::Given,
            (false, false) => Known::New,
            (false, true) => Known::Nothing,
        }
    }

    fn fits(&mut self, ctx: &OpCtx, bytes: usize) -> bool {
        let share = || ctx.engine.stage_memory.share();
        bytes <= ctx.remembered
            && (bytes <= UNCOUNTED || {
                let share = self.share.get_or_insert_with(share);
                share.fits(bytes.max(COUNTED))
            })
    }

    /// Releases the memory: nothing is known from here on.
    pub(crate) fn forget(&mut self) {
        *self = Seen {
            full: true,
            ..Seen::default()
        };
    }

    /// Starts again: records given so far will not come again, so every record is new.
    pub(crate) fn restart(&mut self) {
        if self.bytes > UNCOUNTED {
            *self = Seen::default();
        } else if self.bytes > 0 || self.full {
            self.keys.clear();
            (self.bytes, self.full) = (0, false);
        }
    }
}

/// Whether one of the branches gives the document.
pub(crate) fn given_by<A>(
    ctx: &mut OpCtx,
    branches: &[Branch<A>],
    doc: Doc<'_>,
    vars: Option<&Vars>,
) -> Result<bool> {
    // A suspension here would lose the row, which no stage holds.
    ctx.in_one_turn(|ctx| ctx.tick(branches.len() as u32))?;
    for whole in branches.iter().filter_map(|b| b.whole.as_ref()) {
        match test(whole, doc, vars) {
            Ok(false) => {}
            Ok(true) => return Ok(true),
            Err(e) if stops(&e) || chooses(whole) => return Err(e),
            // The branch's own test would fail for this document too, so the branch does not give
            // it.
            Err(_) => {}
        }
    }
    Ok(false)
}

fn stops(e: &Stop) -> bool {
    e.is_suspension() || e.is_interruption()
}

/// Whether one part of the filter may accept a document for which testing another part fails.
fn chooses(filter: &Filter) -> bool {
    filter.root().any(&mut |n| match n {
        Node::Or(_) => true,
        Node::Expr(e) => e.has_alternatives(),
        _ => false,
    })
}

#[cfg(test)]
mod tests;
