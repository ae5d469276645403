//! Replica sets.
//!
//! [`config`] is the configuration document of a set: what it may say, and which may follow which.
//!
//! Invariant: knows no command and no socket of a client.

pub mod config;
