//! What `hello` tells of the deployment: this member of its replica set, and the clients that wait
//! for a change.

pub mod member;
pub mod monitor;
pub mod own_config;
pub mod state_change;
