//! How often each command ran and failed since the process started (`serverStatus.metrics.commands`).

use front::Specification;
use front::specification::NAMES;
use std::sync::atomic::AtomicU64;

/// Of one command.
pub struct CommandCount {
    pub total: AtomicU64,
    pub failed: AtomicU64,
}

static COUNTS: [CommandCount; NAMES.len()] = [const {
    CommandCount {
        total: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    }
}; NAMES.len()];

#[inline]
pub fn of(command: &Specification) -> &'static CommandCount {
    &COUNTS[command.index]
}
