//! What there is and what runs, over all shards.

pub(crate) mod lists;
pub(crate) mod operations;
pub(crate) mod stats;
