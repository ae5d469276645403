//! query
pub mod accumulator;
pub mod expr;
pub mod transform;
