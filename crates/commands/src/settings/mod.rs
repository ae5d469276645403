//! What an administrator sets while the server runs: parameters, log verbosity, query settings,
//! fail points.

pub mod documents;
pub mod fail_point;
pub mod log_components;
pub mod parameters;
pub mod stored;
