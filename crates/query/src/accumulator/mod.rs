//! Accumulators of `$group`: states that take one value a document.
//!
//! Invariant: `$sum $avg $min $max $first $last $stdDev*` hold one value; the others hold what they return, and
//! [`Accumulator::memory_bytes`] says how much that is.

pub(crate) mod percentile;
mod spec;
mod state;

pub use spec::AccumulatorSpec;
pub use state::Accumulator;
