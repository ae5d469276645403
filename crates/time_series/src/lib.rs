//! Time-series collections: what their options say, how measurements lie in buckets, and what of a
//! query or an index is known of whole buckets
//! ([decision](../../docs/decisions/2026-11-25-time-series.md)).
//!
//! Invariant: pure. A measurement comes out of a bucket as it went in; a filter of buckets passes every
//! bucket that holds a measurement which the query matches.

mod bucket;
mod columns;
mod index;
mod measured;
mod options;
mod selection;

#[cfg(test)]
mod tests;

pub use bucket::{Measurement, Packed, Rows, bounds, is_young, pack, rows, young_rows};
pub use index::{of_buckets, of_measurements};
pub use measured::hold as bounds_hold;
pub use options::{BUCKETS, Granularity, MAX_SPAN_SECONDS, TimeSeriesOptions, buckets_of};
pub use selection::Selection;

/// The most measurements of one bucket, and the most bytes of them (one may be longer).
pub const MAX_ROWS: usize = 1000;
pub const MAX_BYTES: usize = 125 << 10;
/// So many measurements at once lie by column; fewer lie as they came, until there are as many.
pub const PACKED_ROWS: usize = 128;
