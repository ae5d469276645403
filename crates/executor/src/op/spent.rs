//! What an operation spent in a run, for the run that continues it.

use crate::examined::Examined;
use planner::Plan;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What an operation spent in a run that another run continues.
pub struct Spent {
    pub(super) plan: Option<Arc<Plan>>,
    pub(super) examined: Examined,
    pub(super) used: SmallVec<[Arc<AtomicU64>; 2]>,
}
