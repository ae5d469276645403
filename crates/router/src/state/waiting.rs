//! Merges whose documents a pipeline of this process will read.

use crate::merge::Merge;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a cursor is kept whose client asks for no more.
pub(crate) const IDLE: Duration = Duration::from_secs(600);

/// Merges that wait for their pipeline to read them, by namespace, and since when. A cursor whose client
/// asks for no more is forgotten after a while, and its merge with it.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<HashMap<String, (Instant, Merge)>>);

impl Waiting {
    pub fn put(&self, ns: &str, merge: Merge) {
        let mut waiting = self.0.lock();
        waiting.retain(|_, (since, _)| since.elapsed() <= IDLE);
        waiting.insert(ns.into(), (Instant::now(), merge));
    }

    pub fn take(&self, ns: &str) -> Option<Merge> {
        Some(self.0.lock().remove(ns)?.1)
    }
}
