//! What moves data and ends what others began: ranges, databases, other shard keys, the balancer, the
//! end of transactions over shards.
//!
//! - [`transfer`]: a range, a database, or a collection with another shard key, on its way;
//! - [`balancer`]: which ranges move so that shards have alike; [`moves_under_way`]: what is told of
//!   them;
//! - [`two_phase`], [`resolver`]: the end of transactions that have written on several shards, and of
//!   what is left of them;
//! - [`settings`]: settings of the whole cluster, told to shards that have not heard of them;
//! - [`track`]: collections that are not sharded, in the metadata.
//!
//! Invariant: whoever begins something says so in the metadata first, so that another process ends it.

pub mod balancer;
pub mod moves_under_way;
pub mod resolver;
pub mod settings;
pub mod track;
pub mod transfer;
pub mod two_phase;

pub use transfer::{Moving, PendingMoves};
pub use two_phase::TwoPhase;
