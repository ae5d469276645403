//! The sharded cluster's decisions: where a document belongs, which shards an operation has to ask,
//! how a collection is cut, and which range moves.
//!
//! - [`ShardKey`]: the fields that say where a document belongs, and a document's place;
//! - [`Chunk`], [`Version`], [`RoutingTable`]: which shard has which range of places, as of when;
//! - [`targeting`]: from a filter to ranges of places;
//! - [`Ownership`]: what a shard knows of its part, and what it answers to a router that believes
//!   something else;
//! - [`agreement`]: what a router does when a shard refuses its version;
//! - [`lock`], [`moving`], [`moving_primary`], [`follow`]: the lock of a change, how a range gets another
//!   owner and a database another primary, how documents follow, writes in flight ([`UnderWay`]);
//!   [`pace`]: how fast, while clients are served; [`progress`]: how far a move has come;
//! - [`two_phase`]: the steps of a transaction over several shards, from its commit to its end;
//! - [`snapshot`]: one state of all shards; [`snapshot_history`]: what a shard keeps of them;
//! - [`DatabasePrimary`]: the same for unsharded collections, by database;
//! - [`analysis`]: how well a key would serve as a shard key;
//! - [`zones`], [`balance`], [`BalancerSettings`]: where ranges may lie, which one is to move, and when.
//!
//! The contract between the parts is in docs/decisions/2026-11-25-sharding.md.
//!
//! Invariant: pure. No I/O, no clock, no locks.

pub mod agreement;
pub mod analysis;
pub mod balance;
mod balancer_settings;
mod chunk;
mod database_primary;
pub mod follow;
pub mod lock;
pub mod moving;
pub mod moving_primary;
mod ownership;
pub mod pace;
pub mod progress;
pub mod protocol;
mod range;
mod routing_table;
pub mod series;
mod shard_key;
pub mod snapshot;
pub mod snapshot_history;
pub mod split;
pub mod targeting;
pub mod two_phase;
mod under_way;
mod version;
pub mod zones;

pub use balancer_settings::{BalancerSettings, validator as settings_validator};
pub use chunk::{Chunk, ReplacedChunks};
pub use database_primary::{DatabasePrimary, DbVersion, database_standing};
pub use ownership::{Fence, Ownership, Standing, standing};
pub use range::{PlaceRange, cut, intersect, union};
pub use routing_table::{CollectionEntry, RoutingTable};
pub use series::Series;
pub use shard_key::{Place, ShardKey, value_of};
pub use under_way::UnderWay;
pub use version::{Received, Version};
