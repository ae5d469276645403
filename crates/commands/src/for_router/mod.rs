//! What a router asks of the server that it embeds: who a client is and what it may do, what is wrong
//! with a command that no shard sees as it came, what is said of a collection that is not there, what the
//! settings of the cluster add or refuse, what the rest of a pipeline gives, and what of a command is about
//! this process.

mod access;
mod checks;
mod own_part;
mod pipeline;
mod settings;
mod step;
mod update;

pub use access::FailPoint;
pub use pipeline::{RouterCursor, RouterPipeline};
pub use step::{Step, Whose};
pub use update::OneUpdate;
