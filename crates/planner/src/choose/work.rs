//! How much planning has done, and may do.
//!
//! Invariant: the number of steps is at most linear in the nodes of the filter, times the number of
//! indexes, and something constant. What asks for more gets a simpler plan, not an error.

use crate::plan::PlanRequest;
use query::filter::{Node, Test};
use std::cell::Cell;

/// The steps that every query may take. A step looks at a clause for a field of an index, or
/// copies a node: some hundred nanoseconds at most.
const FREE_STEPS: u64 = 20_000;
/// The steps for each node of the filter and each index.
const STEPS_PER_NODE: u64 = 4;

pub(super) struct Work<'p> {
    done: Cell<u64>,
    most: Cell<u64>,
    req: &'p PlanRequest<'p>,
}

impl<'p> Work<'p> {
    pub fn new(req: &'p PlanRequest<'p>) -> Work<'p> {
        Work {
            done: Cell::new(0),
            most: Cell::new(0),
            req,
        }
    }

    /// Counts what is done anyway.
    pub fn step(&self, n: usize) {
        self.done.set(self.done.get().saturating_add(n as u64));
    }

    /// Whether `n` further steps may be taken, which are not counted yet.
    pub fn allows(&self, n: usize) -> bool {
        if self.most.get() == 0 {
            self.most.set(most(self.req));
        }
        self.done.get().saturating_add(n as u64) <= self.most.get()
    }

    #[cfg(test)]
    pub fn done(&self) -> u64 {
        self.done.get()
    }
}

fn most(req: &PlanRequest<'_>) -> u64 {
    let each = (req.indexes.len() as u64 + 8).saturating_mul(STEPS_PER_NODE);
    FREE_STEPS.saturating_add(each.saturating_mul(size(req.filter.root()) as u64))
}

/// The nodes of a filter, and the values in its lists.
pub(super) fn size(node: &Node) -> usize {
    1 + match node {
        Node::And(c) | Node::Or(c) | Node::Nor(c) => c.iter().map(size).sum(),
        Node::Not(n) => size(n),
        Node::Pred {
            test: Test::In(l), ..
        } => l.values.len() + l.regexes.len(),
        _ => 0,
    }
}
