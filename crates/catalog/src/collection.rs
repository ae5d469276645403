//! A collection and its indexes as one immutable version; a change makes a new version.

use crate::capped::Capped;
use crate::index_filter::IndexFilters;
use crate::keyspace::{self, Prefix, SPACE_ID, SPACE_INDEX, SPACE_RECORD};
use crate::numbers::{ID_INDEX, Numbers};
use crate::plan_cache::PlanCache;
use crate::validator::Validator;
use crate::view_definition::ViewDefinition;
use crate::zones::Zones;
use bson::DocBuf;
use errors::Result;
use parking_lot::{ArcRwLockReadGuard, ArcRwLockWriteGuard, RawRwLock, RwLock};
use planner::IndexInfo;
use query::collation::Collation;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Held by a write statement from prepare until applied.
pub type WriteLock = ArcRwLockReadGuard<RawRwLock, ()>;

pub(crate) type ExclusiveLock = ArcRwLockWriteGuard<RawRwLock, ()>;

/// Asked while a change waits for writes: an error ends the wait, and the change with it.
pub type CheckInterrupt<'a> = &'a dyn Fn() -> Result<()>;

/// For what has to be done whatever comes, such as taking away what a failed change has made.
pub fn never_interrupted() -> Result<()> {
    Ok(())
}

/// How long a wait for writes goes on before it asks again.
const BETWEEN_CHECKS: Duration = Duration::from_millis(50);

/// Blocks all writes to a collection: see [`Collection::freeze`].
pub struct Frozen {
    pub(crate) uuid: [u8; 16],
    _lock: ExclusiveLock,
}

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
    /// What planner and writers need: key pattern, unique, sparse, partial filter, hidden,
    /// multikey, ready.
    pub info: IndexInfo,
    pub state: IndexState,
    pub prefix: Prefix,
    /// How often a plan used it (`$indexStats`), since `since` (ms since 1970).
    pub accesses: Arc<AtomicU64>,
    pub since_millis: i64,
    pub zones: Arc<Zones>,
}

impl Index {
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// See [`Collection::adopt`]. Hiding or showing an index begins its statistics anew.
    fn adopt(&mut self, before: &Index) {
        self.zones = before.zones.clone();
        if self.info.hidden == before.info.hidden {
            self.accesses = before.accesses.clone();
        }
    }
}

#[derive(Clone)]
pub struct Collection {
    /// `db.collection`.
    pub ns: Arc<str>,
    pub uuid: [u8; 16],
    pub tablet: u64,
    /// The options of `create`, as listCollections shows them. Changed by
    /// [`Collection::set_options`] only.
    pub options: DocBuf,
    /// The view's definition, if this is a view.
    pub view: Option<Arc<ViewDefinition>>,
    /// The validator, if documents are tested.
    pub validator: Option<Arc<Validator>>,
    /// All but `_id_`, building ones included, in order of creation. Where records lie under
    /// numbers it is `_id_` that they begin with.
    pub indexes: Vec<Arc<Index>>,
    /// The highest index id ever given: ids are not reused, since a range delete of an old one may
    /// still be pending.
    pub(crate) highest_index: u32,
    /// The ready ones of `indexes`, from which the planner chooses.
    pub usable: Vec<IndexInfo>,
    pub id_index_accesses: Arc<AtomicU64>,
    pub record_prefix: Prefix,
    pub since_millis: i64,
    pub capped: Option<Capped>,
    /// The source of sequence numbers; `None`: records lie under their `_id`.
    pub numbers: Option<Arc<Numbers>>,
    /// The collation of commands that give none.
    pub collation: Option<Collation>,
    pub index_filters: Arc<IndexFilters>,
    pub plan_cache: Arc<PlanCache>,
    /// Of a time series: set for its measurements, which are a view, and for its buckets.
    pub time_series: Option<Arc<::time_series::TimeSeriesOptions>>,
    pub young: Arc<crate::time_series::OpenBuckets>,
    /// The search indexes: `{id, name, type, version, definition}` each. Mostly there are none.
    pub search: Option<Arc<[DocBuf]>>,
    pub(crate) lock: Arc<RwLock<()>>,
}

impl Collection {
    pub(crate) fn new(
        ns: Arc<str>,
        uuid: [u8; 16],
        tablet: u64,
        options: DocBuf,
    ) -> Result<Collection> {
        let collation = match options.get("collation").and_then(|v| v.as_doc()) {
            Some(c) => Collation::new(c)?,
            None => None,
        };
        let mut c = Collection {
            ns,
            uuid,
            tablet,
            options: DocBuf::new(),
            view: None,
            validator: None,
            collation,
            index_filters: Arc::default(),
            plan_cache: Arc::default(),
            time_series: None,
            young: Arc::default(),
            search: None,
            indexes: Vec::new(),
            highest_index: 0,
            usable: Vec::new(),
            id_index_accesses: Arc::default(),
            record_prefix: keyspace::prefix(tablet, SPACE_RECORD, 0),
            since_millis: now_millis(),
            capped: Capped::of(options.as_doc(), Arc::default()),
            numbers: None,
            lock: Arc::default(),
        };
        c.set_options(options);
        if c.capped.is_some() {
            c.number()?;
        }
        Ok(c)
    }

    /// Has the records lie under numbers from now on: there must be none.
    pub(crate) fn number(&mut self) -> Result<()> {
        if self.numbers.is_none() {
            let spec = id_index_spec();
            let state = IndexState::Ready;
            let mut id = crate::record::build_index(self.tablet, ID_INDEX, spec.as_doc(), state)?;
            id.info.unique = true;
            self.numbers = Some(Arc::default());
            self.indexes.insert(0, Arc::new(id));
            self.refresh();
        }
        Ok(())
    }

    /// Whether its records could lie under numbers, if there were none.
    pub fn may_be_numbered(&self) -> bool {
        !self.is_numbered()
            && !self.is_view()
            && self.collation.is_none()
            && self.option("clusteredIndex").is_none()
            && self.indexes.iter().all(|i| i.state == IndexState::Ready)
    }

    /// Whether its records lie under numbers, and not under their `_id`.
    #[inline]
    pub fn is_numbered(&self) -> bool {
        self.numbers.is_some()
    }

    /// Takes over the in-memory state of the previous version.
    pub(crate) fn adopt(&mut self, before: &Collection) {
        self.lock = before.lock.clone();
        self.id_index_accesses = before.id_index_accesses.clone();
        self.index_filters = before.index_filters.clone();
        self.plan_cache = before.plan_cache.clone();
        self.young = before.young.clone();
        if let (Some(now), Some(then)) = (&mut self.capped, &before.capped) {
            now.tail = then.tail.clone();
        }
        if let (Some(now), Some(then)) = (&mut self.numbers, &before.numbers) {
            *now = then.clone();
        }
        for index in &mut self.indexes {
            if let Some(then) = before.index(index.id) {
                Arc::make_mut(index).adopt(then);
            }
        }
    }

    /// Takes over options and parses what they hold, so that no statement has to.
    pub(crate) fn set_options(&mut self, options: DocBuf) {
        self.view = ViewDefinition::of(self.db(), options.as_doc()).map(Arc::new);
        self.validator = Validator::of(options.as_doc()).map(Arc::new);
        self.time_series =
            ::time_series::TimeSeriesOptions::of_collection(options.as_doc()).map(Arc::new);
        self.options = options;
    }

    pub(crate) fn index_prefix(tablet: u64, id: u32) -> Prefix {
        let space = match id {
            ID_INDEX => SPACE_ID,
            _ => SPACE_INDEX,
        };
        keyspace::prefix(tablet, space, id)
    }

    /// After a change of `indexes` or `options`. A collection stays capped or not: its records lie
    /// where they lie.
    pub(crate) fn refresh(&mut self) {
        if let Some(capped) = &mut self.capped {
            let tail = capped.tail.clone();
            if let Some(now) = Capped::of(self.options.as_doc(), tail) {
                *capped = now;
            }
        }
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

    /// The write lock's read side once more, for a holder of it: also while DDL waits for it.
    pub fn write_lock_again(&self) -> WriteLock {
        RwLock::read_arc_recursive(&self.lock)
    }

    /// As [`Collection::write_lock_again`], but `None` where DDL is at work.
    pub fn try_write_lock_again(&self) -> Option<WriteLock> {
        (!self.lock.is_locked_exclusive()).then(|| self.write_lock_again())
    }

    /// This version, with the fields that `later` knows to hold arrays in indexes of both.
    pub fn with_multikey_of(self: &Arc<Self>, later: &Collection) -> Arc<Collection> {
        let known = |id: u32| later.index(id).map_or(0, |i| i.info.multikey);
        let more = |i: &Arc<Index>| known(i.id) & !i.info.multikey != 0;
        if !self.indexes.iter().any(more) {
            return self.clone();
        }
        let mut merged = Collection::clone(self);
        for index in &mut merged.indexes {
            let bits = known(index.id);
            Arc::make_mut(index).info.multikey |= bits;
        }
        merged.refresh();
        Arc::new(merged)
    }

    /// The write lock's read side; waits at most `patience` for DDL on this collection.
    pub fn write_lock_within(&self, patience: Duration) -> Option<WriteLock> {
        RwLock::try_read_arc_for(&self.lock, patience)
    }

    /// Waits at most `patience` until no write is in flight; whether none is.
    pub fn is_idle_within(&self, patience: Duration) -> bool {
        RwLock::try_write_arc_for(&self.lock, patience).is_some()
    }

    /// Waits for writes in flight, and keeps others away until the guard is dropped.
    pub fn freeze(&self, interrupt: CheckInterrupt<'_>) -> Result<Frozen> {
        Ok(Frozen {
            uuid: self.uuid,
            _lock: self.lock_exclusively(interrupt)?,
        })
    }

    /// The write lock's other side. A write may scan for as long as it likes: while one is under
    /// way, the wait asks again and again whether it is to end.
    pub(crate) fn lock_exclusively(&self, interrupt: CheckInterrupt<'_>) -> Result<ExclusiveLock> {
        loop {
            if let Some(lock) = RwLock::try_write_arc_for(&self.lock, BETWEEN_CHECKS) {
                return Ok(lock);
            }
            interrupt()?;
        }
    }

    /// All indexes but `_id_`, building ones included.
    pub fn secondary(&self) -> impl Iterator<Item = &Arc<Index>> {
        self.indexes.iter().filter(|i| i.id != ID_INDEX)
    }

    /// The key of a record in the store.
    pub fn record_key(&self, key: &[u8]) -> Vec<u8> {
        keyspace::join(&self.record_prefix, key)
    }

    /// Whether log entries carry documents as they were before a change
    /// (`changeStreamPreAndPostImages`).
    pub fn keeps_images(&self) -> bool {
        let images = self.option("changeStreamPreAndPostImages");
        let enabled = images.and_then(|v| v.as_doc()?.get("enabled"));
        enabled.is_some_and(|v| v.truthy())
    }

    pub fn option(&self, name: &str) -> Option<bson::Val<'_>> {
        self.options.get(name)
    }

    /// What it says of itself as a time series, where it shows measurements (its buckets are another
    /// collection, [`time_series::buckets_of`](::time_series::buckets_of)).
    pub fn measurements(&self) -> Option<&Arc<::time_series::TimeSeriesOptions>> {
        self.time_series.as_ref().filter(|_| self.is_view())
    }

    #[inline]
    pub fn is_view(&self) -> bool {
        self.view.is_some()
    }

    /// listIndexes' documents, `_id_` first; building ones included.
    pub fn index_specs(&self) -> Vec<DocBuf> {
        let mut id = id_index_spec();
        if let Some(c) = &self.collation {
            let mut w = bson::Writer::new();
            w.extend(id.as_doc()).doc("collation", c.spec());
            id = w.finish();
        }
        let mut v = vec![id];
        v.extend(self.secondary().map(|i| i.spec.clone()));
        v
    }
}

fn id_index_spec() -> DocBuf {
    bson::doc! { "v": 2, "key": bson::doc! { "_id": 1 }, "name": "_id_" }
}

pub(crate) fn now_millis() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64)
}
