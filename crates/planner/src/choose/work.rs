//! How much planning has done, and may do.
//!
//! Invariants: the number of steps is at most linear in the nodes of the filter, times the number
//! of indexes, and something constant; what asks for more gets a simpler plan, not an error. The
//! operation is asked in turns whether it is to end ([`operation`]); when it is, planning takes no
//! further step, and fails.

use crate::plan::PlanRequest;
use errors::{Error, Fallible, operation};
use query::filter::{Node, Test};
use std::cell::{Cell, RefCell};

/// The steps that every query may take. A step looks at a clause for a field of an index, or
/// copies a node: some hundred nanoseconds at most.
const FREE_STEPS: u64 = 20_000;
/// The steps for each node of the filter and each index.
const STEPS_PER_NODE: u64 = 4;
pub(super) struct PlanningWork<'p> {
    done: Cell<u64>,
    most: Cell<u64>,
    stopped: RefCell<Option<Error>>,
    req: &'p PlanRequest<'p>,
}

impl<'p> PlanningWork<'p> {
    pub fn new(req: &'p PlanRequest<'p>) -> PlanningWork<'p> {
        PlanningWork {
            done: Cell::new(0),
            most: Cell::new(0),
            stopped: RefCell::new(None),
            req,
        }
    }

    /// Counts steps that are taken anyway.
    pub fn step(&self, n: usize) {
        self.done.set(self.done.get().saturating_add(n as u64));
        self.pass(n);
    }

    /// Counts steps that are linear in the clauses and the indexes by themselves, so that only the
    /// operation may end them. Whether planning goes on.
    pub fn pass(&self, n: usize) -> bool {
        if let Err(ended) = operation::steps(n) {
            self.stopped.borrow_mut().get_or_insert(ended);
        }
        !self.is_stopped()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.borrow().is_some()
    }

    /// Fails when the operation was to end.
    pub fn finish(&self) -> Fallible<()> {
        self.stopped.take().map_or(Ok(()), Err)
    }

    /// Whether `n` further steps may be taken, which are not counted yet.
    pub fn allows(&self, n: usize) -> bool {
        if self.most.get() == 0 {
            self.most.set(most(self.req));
        }
        !self.is_stopped() && self.done.get().saturating_add(n as u64) <= self.most.get()
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
pub(crate) fn size(node: &Node) -> usize {
    1 + match node {
        Node::And(c) | Node::Or(c) | Node::Nor(c) => c.iter().map(size).sum(),
        Node::Not(n) => size(n),
        Node::Pred {
            test: Test::In(l), ..
        } => l.values.len() + l.regexes.len(),
        _ => 0,
    }
}
