//! The published studies. A ([`single`]): one process, documents of 1 KB with three secondary indexes. B ([`keys`]): ways
//! to insert. C ([`sizes`]): YCSB by connections and data size. D ([`shards`]). E ([`pains`]). F ([`files`]): GridFS. G ([`aggregate`]):
//! pipelines over documents of 1 KB. H ([`queue`]): a queue, and a window by age. I ([`moves`]): chunks that move under load.
//! J ([`tpch`]): joins and groups of the kind that TPC-H asks. K ([`plans`]): the plan that is chosen, against the best. L ([`search`]):
//! full text. M ([`vectors`]): the nearest vectors.

pub mod aggregate;
pub mod dataset;
mod embeddings;
pub mod files;
pub mod keys;
pub mod moves;
pub mod operation;
pub mod pains;
pub mod plans;
pub mod queue;
pub mod record;
pub mod search;
pub mod shards;
mod sides;
pub mod single;
pub mod sizes;
mod texts;
pub mod tpch;
pub mod vectors;
