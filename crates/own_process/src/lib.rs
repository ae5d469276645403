//! What both programs do with their own process: end quietly where nobody reads their output, rest where others want the machine,
//! and spend CPU time in vain on purpose. Invariant: knows nothing of databases.

pub mod broken_pipe;
pub mod handicap;
pub mod pace;
