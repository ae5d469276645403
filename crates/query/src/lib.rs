//! MongoDB's query language over BSON bytes.
//!
//! Every part of the language has the same life: it is parsed once, with MongoDB's errors, into an
//! owned form, and then run over the bytes of many documents.
//!
//! * [`filter`]: query predicates (`{a: {$gt: 1}}`), `$jsonSchema`, and why a document failed one.
//! * [`expr`]: aggregation expressions (`{$add: ["$a", 1]}`), one table of all operators.
//! * [`projection`]: find's projections. [`transform`]: `$project`, `$addFields` and their kin.
//! * [`update`]: update operators, positional paths, pipelines as updates, upserts.
//! * [`accumulator`]: what `$group` and windows sum up. [`pipeline`]: stages, their order, their
//!   memory.
//! * [`sort`]: sort patterns and their keys. [`index_keys`]: the keys of a document in an index.
//! * [`path`]: dotted paths and MongoDB's walk along them. [`collation`]: the order of strings.
//! * [`metadata`]: a document's metadata beside its fields.
//! * [`script`]: what functions in JavaScript ask of an engine.
//! * [`arithmetic`]: the four number types. [`shape`]: which fields and types documents have.
//!
//! Invariant: pure. No I/O, no clock, no random numbers, no locks: what may differ between two runs
//! comes in from outside ([`expr::Vars`], [`pipeline::PipelineHost`]).

pub mod accumulator;
pub mod arithmetic;
pub mod collation;
pub mod expr;
pub mod filter;
pub mod index_keys;
mod list;
pub mod metadata;
pub mod namespace;
pub mod path;
pub mod pipeline;
pub mod projection;
pub mod script;
pub mod shape;
pub mod sort;
pub mod transform;
pub mod update;
