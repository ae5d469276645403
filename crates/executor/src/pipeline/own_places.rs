//! What a shard has of a sharded collection, for a pipeline that writes there.
//!
//! Invariant: it is true for as long as the operation runs: its creator holds the gate of the collection
//! until the writes are committed.

use bson::Doc;
use errors::Result;
use std::sync::Arc;

/// Documents that one batch writes before it pauses: the gate is not held for longer.
const MOST_WRITES: u32 = 10_000;

/// Says of a document whether it belongs to this server.
pub trait Owns: Send + Sync {
    /// # Errors
    /// The document lies nowhere: an array is no value of a shard key.
    fn owns(&self, doc: Doc<'_>) -> Result<bool>;
}

/// For one command.
#[derive(Clone)]
pub struct OwnPlaces {
    /// The namespace of the collection.
    pub target: String,
    owns: Arc<dyn Owns>,
    written: u32,
    paused: bool,
}

impl OwnPlaces {
    pub fn new(target: &str, owns: Arc<dyn Owns>) -> OwnPlaces {
        OwnPlaces {
            target: target.into(),
            owns,
            written: 0,
            paused: false,
        }
    }

    /// Whether a document is to be written here. One that has no place is reported by the router.
    pub(crate) fn has(&mut self, doc: Doc<'_>) -> bool {
        let has = self.owns.owns(doc).unwrap_or(false);
        self.written += u32::from(has);
        has
    }

    /// Whether it is time for a pause.
    pub(crate) fn pauses(&mut self) -> bool {
        self.paused = self.written >= MOST_WRITES;
        self.paused
    }

    /// Whether it pauses. Told once.
    pub(crate) fn take_pause(&mut self) -> bool {
        std::mem::take(&mut self.paused)
    }
}
