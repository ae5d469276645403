//! A collection and its indexes as one immutable version; a change makes a new version.

use crate::keyspace::{self, Prefix, SPACE_INDEX, SPACE_RECORD};
use bson::DocBuf;
use parking_lot::{ArcRwLockReadGuard, RawRwLock, RwLock};
use planner::IndexInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Held by a write statement from prepare until applied.
pub type WriteLock = ArcRwLockReadGuard<RawRwLock, ()>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexState {
    /// Writers maintain it, readers do not use it, a build is filling it.
    Building,
    Ready,
}

#[derive(Clone)]
pub struct Index {
    pub id: u32,
    /// The specification as listIndexes shows it (`v`, `key`, `name`, options).
    pub spec: DocBuf,
    /// What planner and writers need: key pattern, unique, sparse, partial filter, hidden, multikey, ready.
    pub info: IndexInfo,
    pub state: IndexState,
    pub prefix: Prefix,
    /// How often a plan used it (`$indexStats`), since `since` (ms since 1970).
    pub accesses: Arc<AtomicU64>,
    pub since_millis: i64,
    /// About how many entries share a value of the first field, and the number of records when that was looked up (0: never).
    pub spread: Arc<(AtomicU64, AtomicU64)>,
}

impl Index {
    pub fn name(&self) -> &str {
        &self.info.name
    }

    pub fn touch(&self) {
        self.accesses.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone)]
pub struct Collection {
    /// `db.collection`.
    pub ns: String,
    pub uuid: [u8; 16],
    pub tablet: u64,
    /// The options of `create`, as listCollections shows them.
    pub options: DocBuf,
    /// All but `_id_`, building ones included, in order of creation.
    pub indexes: Vec<Arc<Index>>,
    /// The highest index id ever given: ids are not reused, since a range delete of an old one may still be pending.
    pub(crate) highest_index: u32,
    /// What the planner may choose from: `_id_` excluded (records lie under their `_id`), only ready ones.
    pub usable: Vec<IndexInfo>,
    pub id_index_accesses: Arc<AtomicU64>,
    pub record_prefix: Prefix,
    pub since_millis: i64,
    pub(crate) lock: Arc<RwLock<()>>,
}

impl Collection {
    pub(crate) fn new(ns: String, uuid: [u8; 16], tablet: u64, options: DocBuf) -> Collection {
        Collection {
            ns,
            uuid,
            tablet,
            options,
            indexes: Vec::new(),
            highest_index: 0,
            usable: Vec::new(),
            id_index_accesses: Arc::default(),
            record_prefix: keyspace::prefix(tablet, SPACE_RECORD, 0),
            since_millis: now_millis(),
            lock: Arc::default(),
        }
    }

    pub(crate) fn index_prefix(tablet: u64, id: u32) -> Prefix {
        keyspace::prefix(tablet, SPACE_INDEX, id)
    }

    /// After a change of `indexes`.
    pub(crate) fn refresh(&mut self) {
        self.usable = self
            .indexes
            .iter()
            .filter(|i| i.state == IndexState::Ready)
            .map(|i| i.info.clone())
            .collect();
    }

    pub fn db(&self) -> &str {
        crate::db_of(&self.ns)
    }

    pub fn name(&self) -> &str {
        crate::collection_of(&self.ns)
    }

    pub fn index(&self, id: u32) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|i| i.id == id)
    }

    pub fn index_named(&self, name: &str) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|i| i.name() == name)
    }

    /// The write lock's read side, without waiting.
    pub fn try_write_lock(&self) -> Option<WriteLock> {
        RwLock::try_read_arc(&self.lock)
    }

    /// The write lock's read side; waits for DDL on this collection.
    pub fn write_lock(&self) -> WriteLock {
        RwLock::read_arc(&self.lock)
    }

    /// The key of a record in the store.
    pub fn record_key(&self, key: &[u8]) -> Vec<u8> {
        keyspace::join(&self.record_prefix, key)
    }

    pub fn option(&self, name: &str) -> Option<bson::Val<'_>> {
        self.options.get(name)
    }

    pub fn is_view(&self) -> bool {
        self.options.get("viewOn").is_some()
    }

    /// listIndexes' documents, `_id_` first; building ones included.
    pub fn index_specs(&self) -> Vec<DocBuf> {
        let mut v = vec![bson::doc! { "v": 2, "key": bson::doc! { "_id": 1 }, "name": "_id_" }];
        v.extend(self.indexes.iter().map(|i| i.spec.clone()));
        v
    }
}

pub(crate) fn now_millis() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64)
}
