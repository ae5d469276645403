//! query
pub mod accumulator;
pub mod arithmetic;
pub mod collation;
pub mod expr;
pub mod filter;
pub mod index_keys;
mod list;
pub mod path;
pub mod pipeline;
pub mod projection;
pub mod shape;
pub mod sort;
pub mod transform;
pub mod update;
