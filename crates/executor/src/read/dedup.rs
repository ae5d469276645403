//! Which records a scan has given, where it may come to one more than once.
//!
//! To remember them is the cheap way, but they are as many as the scan gives. So they are remembered up to
//! [`OpCtx::remembered`] bytes, while there is memory for stages; past that whoever asked finds out from the document itself,
//! which tells everything that leads to it: its keys in an index ([`crate::read::index_scan::IndexScan`]), the branches that it matches
//! ([`given_by`]).
//!
//! Invariant: both ways give each record once, and the one can follow the other in the middle of a scan.

use crate::op::OpCtx;
use crate::read::step::test;
use bson::Doc;
use errors::{Error, Result};
use planner::Branch;
use query::expr::Vars;
use query::filter::{Filter, Node};
use query::pipeline::Share;
use std::collections::HashSet;

/// So little is not counted among what stages hold.
const UNCOUNTED: usize = 16 << 10;
/// What is counted at least: less would be given to anybody.
const COUNTED: usize = 256 << 10;
/// What a key takes besides its bytes: its place in the set, of which a part is empty, and what an allocation costs.
const OVERHEAD: usize = 48;

/// What is known of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    New,
    Given,
    /// It is not among those that are remembered, and there are others.
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
    /// What is known of a record; from now on it is among those that were given, if there is room.
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

    /// Gives the memory back: nothing is known from here on.
    pub(crate) fn forget(&mut self) {
        *self = Seen {
            full: true,
            ..Seen::default()
        };
    }

    /// What was given will not come again: every record is new.
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
    ctx.tick(branches.len() as u32)?;
    for whole in branches.iter().filter_map(|b| b.whole.as_ref()) {
        match test(whole, doc, vars) {
            Ok(false) => {}
            Ok(true) => return Ok(true),
            Err(e) if stops(&e) || chooses(whole) => return Err(e),
            // What the branch tests of its own documents fails in the same place: it has none for which it does.
            Err(_) => {}
        }
    }
    Ok(false)
}

fn stops(e: &Error) -> bool {
    e.is_offload() || e.is_interruption()
}

/// Whether a document may be found by one part of the filter where testing another fails.
fn chooses(filter: &Filter) -> bool {
    filter.root().any(&mut |n| match n {
        Node::Or(_) => true,
        Node::Expr(e) => e.alternatives().is_some(),
        _ => false,
    })
}

#[cfg(test)]
mod tests;
