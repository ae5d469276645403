//! The YCSB core workload: properties as its users write them, its keys, its distributions, its operations.
//!
//! Facts about the workload (defaults, formulas) are those of YCSB 0.17's `CoreWorkload` and its MongoDB binding.

pub mod client;
pub mod command;
mod export;
mod output;
pub mod properties;
pub mod scenario;
pub mod sequence;
pub mod session;
pub mod spec;
pub mod values;

pub use client::{Shared, YcsbClient, YcsbPhase};
pub use properties::Properties;
pub use session::Session;
pub use spec::Spec;
