//! What a member of a set has applied of others' writes: `opcountersRepl`.

use replication::Driver;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use storage::{Committed, Effect, Entry, Observer, Op};

/// Counts of operations that were applied while this member took none of its own.
pub struct Replicated {
    driver: Driver,
    insert: AtomicU64,
    update: AtomicU64,
    delete: AtomicU64,
    command: AtomicU64,
    entries: AtomicU64,
    bytes: AtomicU64,
}

impl Replicated {
    pub fn new(driver: Driver) -> Replicated {
        Replicated {
            driver,
            insert: AtomicU64::new(0),
            update: AtomicU64::new(0),
            delete: AtomicU64::new(0),
            command: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// By its name in serverStatus.
    pub fn get(&self, field: &str) -> u64 {
        let count = match field {
            "insert" => &self.insert,
            "update" => &self.update,
            "delete" => &self.delete,
            "command" => &self.command,
            _ => return 0,
        };
        count.load(Relaxed)
    }
}

impl Replicated {
    /// Entries of others that were applied, and about how many bytes of effects they had.
    pub fn batches(&self) -> (u64, u64) {
        (self.entries.load(Relaxed), self.bytes.load(Relaxed))
    }
}

fn effect_bytes(effect: &Effect) -> usize {
    match effect {
        Effect::Put(key, value) => key.len() + value.len(),
        Effect::Delete(key) => key.len(),
        Effect::DeleteRange(low, high) => low.len() + high.len(),
    }
}

impl Observer for Replicated {
    fn applied(&self, _at: Committed, entry: &Entry) {
        if self.driver.is_open() {
            return;
        }
        self.entries.fetch_add(1, Relaxed);
        for part in entry.plain() {
            let bytes: usize = part.effects.iter().map(effect_bytes).sum();
            self.bytes.fetch_add(bytes as u64, Relaxed);
            match &part.op {
                Op::Insert => {
                    let documents = part.count.as_ref().map_or(1, |c| c.records.max(1));
                    self.insert.fetch_add(documents.unsigned_abs(), Relaxed);
                }
                Op::Update { .. } => _ = self.update.fetch_add(1, Relaxed),
                Op::Delete { .. } => _ = self.delete.fetch_add(1, Relaxed),
                Op::Ddl(_) => _ = self.command.fetch_add(1, Relaxed),
                Op::Noop | Op::Note(_) | Op::Transaction(_) | Op::Membership { .. } => {}
            }
        }
    }
}
