//! The published studies. A: one process, documents of 1 KB with three secondary indexes, tests 1 to 8.

pub mod dataset;
pub mod operation;
pub mod record;
pub mod single;
