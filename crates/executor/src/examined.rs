//! Counters of what the plans of an operation examine, and of how they were chosen, for explain and the
//! profiler.

/// What a plan has examined so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Examined {
    pub keys: u64,
    pub docs: u64,
    /// Seeks: to the start of a range, and within it past what later fields exclude.
    pub seeks: u64,
    /// Hidden keys that scans stepped over: deleted, overwritten, or newer than the scan's state.
    pub hidden: u64,
    /// Reads for choosing a plan, counts and reads of plans that lost: entries, and documents as four
    /// entries each.
    pub planning: u64,
    /// The time spent to count for plans; races are not in it.
    pub planning_nanos: u64,
    /// Plans that a race chose, and those among them that differ from what won the last race of the shape.
    pub raced: u64,
    pub replanned: u64,
}

impl Examined {
    pub(crate) fn add(&mut self, more: Examined) {
        self.keys += more.keys;
        self.docs += more.docs;
        self.seeks += more.seeks;
        self.hidden += more.hidden;
        self.planning += more.planning;
        self.planning_nanos += more.planning_nanos;
        self.raced += more.raced;
        self.replanned += more.replanned;
    }
}
