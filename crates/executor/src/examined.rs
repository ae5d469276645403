//! Counters of what the plans of an operation examine, for explain and the profiler.

/// What a plan has examined so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Examined {
    pub keys: u64,
    pub docs: u64,
    /// Seeks: to the start of a range, and within it past what later fields exclude.
    pub seeks: u64,
    /// Hidden keys that scans stepped over: deleted, overwritten, or newer than what was read.
    pub hidden: u64,
}
