//! Commands by which a client and the server get to know each other.

pub mod build_info;
pub mod connection_status;
pub mod get_last_error;
pub mod get_nonce;
pub mod hello;
pub mod logout;
pub mod ping;
pub mod sasl;
pub mod whatsmyuri;
