//! What an operation did in a run, for the run that goes on from there.

use crate::examined::Examined;
use planner::Plan;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What an operation did in a run that it goes on from in another.
pub struct Spent {
    pub(super) plan: Option<Arc<Plan>>,
    pub(super) examined: Examined,
    pub(super) used: SmallVec<[Arc<AtomicU64>; 2]>,
}
