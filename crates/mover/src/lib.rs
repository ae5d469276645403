//! What moves data and ends what others began: ranges, databases, other shard keys, the balancer, the
//! end of transactions over shards.
//!
//! - [`transfer`]: a range, a database, or a collection with another shard key, on its way;
//! - [`balancer`]: which ranges move so that shards have alike; [`moves_under_way`]: reports on moves;
//! - [`two_phase`], [`resolver`]: commits over several shards, and transactions in doubt;
//! - [`settings`]: settings of the whole cluster, told to shards that have not heard of them;
//! - [`track`]: collections that are not sharded, in the metadata.
//!
//! Invariant: a change is recorded in the metadata before it begins, so that another process can end it.

pub mod balancer;
pub mod moves_under_way;
pub mod resolver;
pub mod settings;
pub mod track;
pub mod transfer;
pub mod two_phase;

pub use transfer::{Moving, PendingMoves};
pub use two_phase::TwoPhase;
