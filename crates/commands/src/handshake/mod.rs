//! Commands by which a client and the server get to know each other.

pub mod build_info;
pub mod hello;
pub mod ping;
