//! The router: a server without state of its own, which sends what clients ask to the shards that
//! have it ([decision](../../../docs/decisions/2026-11-25-sharding.md)).
//!
//! - [`Router`] answers the requests that the event loops read: a scratch
//!   [`Commands`](commands::Commands) answers those about the process itself, everything else is sent on
//!   to shards;
//! - `dispatch`: which handler a command goes to, and its checks before and after;
//! - `fast_path`, `loop_connections`: what the event loops send and receive themselves; workers do the
//!   rest;
//! - `scratch`: what the scratch server answers for other commands;
//! - `upstream`, `replica_set`: connections, and which member is primary;
//! - `metadata`: what the configuration set says, as far as it was needed;
//! - `routing`, `refresh`: versions, and the refresh when a router or a shard knows too little;
//! - `request`: a client's command, and what of it goes to a shard;
//! - `pipeline_parts`: which stages run on shards; `merging`: what the rest of them reads; `small_side`:
//!   joins for shards, `shard_joins`: how those read what they lack; `joins`, `merge_into`, `views`:
//!   what pipelines join, where they write, the pipelines of views;
//! - `change_stream`: the streams of all shards as one; `stream_token`: where one resumes;
//!   `waiting_streams`: those that wait for news;
//! - `find`, `find_and_modify`, `cursors`, `aggregate`, `write`, `ddl`, `lists`, `stats`, `explain`,
//!   `map_reduce`, `file_md5`: commands, and families of them; `collection_uuid`: whether a collection
//!   is the one that a client means;
//! - `transactions`: which shards have a part in them, and how they end;
//! - `two_phase`, `resolver`: commits over several shards, and transactions in doubt;
//! - `snapshot`: one state of all shards;
//! - `key_change`: updates that move a document;
//! - `bulk_write`, `upsert`: bulk writes, and upserts that name no shard;
//! - `operations`, `cluster_stages`: what runs in the cluster, and stages that tell of it; `fsync`:
//!   the lock against writes on all of it;
//! - `write_concern`: what shards say of a client's, as one;
//! - `access`: access control; `read_preference`: which member of a set answers;
//! - `admin`, `transfer`, `balancer`: what changes the cluster; `split_points`: where chunks are cut.
//!
//! Invariant: a client never sees that the router, or a shard, knew too little. What a router
//! forgets by ending can be had again.

mod access;
mod admin;
mod aggregate;
mod backup;
mod bulk_write;
mod change_stream;
mod client_concern;
mod cluster_stages;
mod collection_uuid;
mod cursors;
mod ddl;
mod dispatch;
mod explain;
mod fast_path;
mod file_md5;
mod find;
mod find_and_modify;
mod fsync;
mod joins;
mod key_change;
mod lists;
mod loop_connections;
mod map_reduce;
mod merge;
mod merge_into;
mod merging;
mod operations;
mod parted_merge;
mod pipeline_parts;
mod rename;
mod request;
mod router;
mod schema;
mod scratch;
mod search;
mod shard_joins;
mod small_side;
mod snapshot;
mod stats;
mod stream_token;
mod transactions;
mod upsert;
mod views;
mod waiting_streams;
mod write;

pub use router::Router;
pub use shard_joins::ShardJoins;

pub use cluster_view::Cluster;
pub(crate) use cluster_view::Outcome;
