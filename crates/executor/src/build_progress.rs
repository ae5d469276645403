//! Running index builds: their progress, and how to abort them.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A running build, as currentOp shows it.
#[derive(Debug, Default)]
pub struct BuildProgress {
    pub ns: String,
    pub name: String,
    pub done: AtomicU64,
    pub total: AtomicU64,
    pub abort: AtomicBool,
}

#[derive(Default)]
pub struct Builds {
    running: Mutex<HashMap<([u8; 16], u32), Arc<BuildProgress>>>,
}

impl Builds {
    pub fn running(&self) -> Vec<Arc<BuildProgress>> {
        self.running.lock().values().cloned().collect()
    }

    /// Asks a build to stop; its creator gets IndexBuildAborted.
    pub fn abort(&self, uuid: &[u8; 16], id: u32) {
        if let Some(p) = self.running.lock().get(&(*uuid, id)) {
            p.abort.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn begin(&self, uuid: [u8; 16], id: u32, progress: Arc<BuildProgress>) {
        self.running.lock().insert((uuid, id), progress);
    }

    pub(crate) fn end(&self, uuid: [u8; 16], id: u32) {
        self.running.lock().remove(&(uuid, id));
    }
}
