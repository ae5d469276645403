//! What a router asks of the server that it embeds: who a client is and what it may do, what is wrong
//! with a command that no shard sees as it came, what the settings of the cluster add or refuse, what the
//! rest of a pipeline gives.

mod access;
mod checks;
mod pipeline;
mod settings;
mod update;

pub use access::FailPoint;
pub use pipeline::{RouterCursor, RouterPipeline, Step};
pub use update::OneUpdate;
