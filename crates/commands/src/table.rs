//! The table of commands: wire name, manners, and the function that runs each.

use crate::cx::{Cx, Done};
use errors::Result;
use std::sync::atomic::AtomicU64;

pub type Run = for<'c, 'r> fn(&mut Cx<'c, 'r>) -> Result<Done>;

/// Manners of a command, or-ed together.
pub mod flag {
    /// Runs against the admin database only.
    pub const ADMIN: u16 = 1;
    /// Writes: takes a write concern.
    pub const WRITE: u16 = 2;
    /// Takes read concerns other than local.
    pub const READ: u16 = 4;
    /// May be a retryable write.
    pub const RETRY: u16 = 8;
    /// Belongs to version 1 of the versioned API.
    pub const API: u16 = 16;
    /// Never runs on an event loop: it waits, or is long.
    pub const WORKER: u16 = 32;
    /// Not counted among `opcounters.command`, because it has a counter of its own.
    pub const COUNTED: u16 = 64;
    /// A client may send it before it is known (handshake, authentication).
    pub const HANDSHAKE: u16 = 128;
}
use flag::*;

/// One command.
pub struct Command {
    pub name: &'static str,
    pub flags: u16,
    pub run: Run,
    /// For `listCommands`.
    pub help: &'static str,
    /// How often it ran and failed since the process started (`serverStatus.metrics.commands`).
    pub total: AtomicU64,
    pub failed: AtomicU64,
}

impl Command {
    pub fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

macro_rules! commands {
    ($($name:literal $(| $alias:literal)* => $flags:expr, $run:path, $help:literal;)*) => {
        /// The wire names of all commands, without aliases, in the table's order.
        pub static NAMES: &[&str] = &[$($name),*];

        /// The command of that name or old name. Compared in the table's order: the frequent ones stand first.
        pub fn lookup(name: &str) -> Option<&'static Command> {
            match name {
                $($name $(| $alias)* => {
                    static COMMAND: Command = Command {
                        name: $name,
                        flags: $flags,
                        run: $run,
                        help: $help,
                        total: AtomicU64::new(0),
                        failed: AtomicU64::new(0),
                    };
                    Some(&COMMAND)
                })*
                _ => None,
            }
        }
    };
}

// The commands on data (find, getMore, killCursors, insert, update, delete, findAndModify, count, distinct, aggregate, explain)
// and the cursors and retryable writes behind them are being written by the lead in `crud/` and in crate `session`; all others
// (handshake, administration, DDL, sessions' own commands) as before.
commands! {
    "find" => READ | API | COUNTED, crate::crud::find::run, "documents that match";
    "insert" => WRITE | RETRY | API | COUNTED, crate::crud::insert::run, "new documents";
    "update" => WRITE | RETRY | API | COUNTED, crate::crud::update::run, "changes of documents";
    "delete" => WRITE | RETRY | API | COUNTED, crate::crud::delete::run, "removal of documents";
    "getMore" => READ | API | COUNTED | WORKER, crate::crud::get_more::run, "a cursor's next batch";
    "findAndModify" | "findandmodify" => WRITE | RETRY | API, crate::crud::find_and_modify::run, "one document changed and given back";
    "count" => READ | API, crate::crud::count::run, "how many documents match";
    "aggregate" => READ | WRITE | API, crate::crud::aggregate::run, "documents through the stages of a pipeline";
    "explain" => READ | API | WORKER, crate::crud::explain::run, "how a command is answered";
    "distinct" => READ | API, crate::crud::distinct::run, "the different values of a field";
    "killCursors" => API, crate::crud::kill_cursors::run, "ends cursors";
    "hello" => HANDSHAKE | API, crate::handshake::hello::run, "what a client must know of this server";
    "isMaster" | "ismaster" => HANDSHAKE, crate::handshake::hello::run_legacy, "what a client must know of this server (old name)";
    "ping" => HANDSHAKE | API, crate::handshake::ping::run, "whether the server answers";
    "buildInfo" | "buildinfo" => HANDSHAKE, crate::handshake::build_info::run, "version and build of the server";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_once() {
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NAMES.len());
        for name in NAMES {
            assert_eq!(lookup(name).unwrap().name, *name);
        }
        assert!(lookup("Ping").is_none());
    }
}
