//! The router: a server without state of its own, which sends what clients ask to the shards that
//! have it ([decision](../../../docs/decisions/2026-11-25-sharding.md)).
//!
//! From the bottom up; no folder uses one that stands below it in this list:
//!
//! - `request`: a client's command, and what of it goes to a shard; `merge`, `post_merge_projection`:
//!   the results of several shards as one; `databases`: those that are not there yet;
//!   `collection_uuid`: whether a collection is the one that a client means;
//! - `state`: [`Router`], and what it keeps: cursors, transactions;
//! - `scratch`: what the server that the router embeds answers for other commands; `access`: access
//!   control;
//! - `targeting`: which shards a command goes to;
//! - `transactions`: which shards have a part in them, and how they end; snapshots;
//! - `listing`: what there is and what runs, over all shards; `fsync`, `backup`: of all of them;
//! - `reads`: finds, pipelines, change streams, and views; `pipeline_parts`: which stages run on shards;
//!   `merging`: the rest of them, which runs here; `small_side`: joins for shards, `shard_joins`: how those
//!   read what they lack; `joins`, `merge_into`, `views`: what pipelines join, where they write, the
//!   pipelines of views;
//! - `writes`: also those that move a document, and upserts that name no shard;
//! - `admin`: what changes the cluster; `ddl`: collections and indexes;
//! - `dispatch`: which handler a command goes to, and its checks before and after; `fast_path`: what the
//!   event loops send and receive themselves; `service`: the router as they see it.
//!
//! Invariant: a client never sees that the router, or a shard, knew too little. What a router
//! forgets by ending can be had again.

mod access;
mod admin;
mod backup;
mod collection_uuid;
mod databases;
mod ddl;
mod dispatch;
mod fast_path;
mod fsync;
mod listing;
mod merge;
mod post_merge_projection;
mod reads;
mod request;
mod service;
mod state;
mod targeting;
mod transactions;
mod writes;

pub use reads::shard_joins::ShardJoins;
pub use state::Router;

pub use cluster_view::Cluster;
pub(crate) use cluster_view::Outcome;
