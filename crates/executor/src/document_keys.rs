//! The names of documents of sharded collections in change events: the part of the server that knows of
//! shards gives them to the engine.

use crate::Engine;
use std::sync::{Arc, OnceLock};

/// Knows the shard keys of collections.
pub trait ShardKeys: Send + Sync {
    /// The paths of a collection's shard key; none where it is not sharded.
    fn of(&self, ns: &str) -> Arc<[String]>;
}

#[derive(Default)]
pub struct DocumentKeys(OnceLock<Arc<dyn ShardKeys>>);

impl Engine {
    /// Asks `keys` from now on.
    pub fn name_documents_by(&self, keys: Arc<dyn ShardKeys>) {
        let _ = self.document_keys.0.set(keys);
    }

    /// The paths of a collection's shard key.
    pub fn shard_key_of(&self, ns: &str) -> Arc<[String]> {
        match self.document_keys.0.get() {
            Some(keys) => keys.of(ns),
            None => Arc::default(),
        }
    }
}
