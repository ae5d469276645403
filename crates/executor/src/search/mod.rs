//! Search indexes: each follows the log, turn by turn on the threads of one pool, and answers
//! searches from its last commit.
//!
//! ```text
//! catalog: collections with definitions ── sync ──▶ one Follower a definition ──▶ search/<id>-<version>-<tablet>/
//!                                                        ▲ durable entries of the log
//! ```
//! Invariants:
//! - A server without search indexes has no thread, no file and no follower of the log for them.
//! - An index has committed only durable state: nothing that it shows is rolled back.
//! - A new version of a definition is built beside the old one, which serves until it is ready.

mod follower;
mod note;
mod pool;
mod records;
mod stage;
mod stamps;
mod synonyms;

pub(crate) use stage::{explain, found};
pub use stamps::{CollectionStamp, stamp};

use crate::engine::Engine;
use crate::op::OpCtx;
use bson::{Doc, DocBuf, Value};
use catalog::Collection;
use errors::{Result, bail};
use follower::IndexFollower;
use parking_lot::Mutex;
use pool::Pool;
use query::pipeline::search::SYNONYMS;
use search::{Definition, Kind, SearchIndex};
use stamps::Stamps;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A definition as the catalog keeps it, read.
#[derive(Clone, Debug)]
pub struct SearchSpec {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    pub version: i64,
    pub definition: Arc<Definition>,
}

impl SearchSpec {
    /// From `{id, name, type, version, definition}`.
    pub fn read(d: Doc<'_>) -> Result<SearchSpec> {
        let text = |name: &str| {
            d.get(name)
                .and_then(|v| v.as_str())
                .unwrap_or("")
                .to_string()
        };
        let kind = Kind::named(&text("type")).unwrap_or(Kind::Search);
        let given = d.get("definition").and_then(|v| v.as_doc());
        Ok(SearchSpec {
            id: text("id"),
            name: text("name"),
            kind,
            version: d.get("version").and_then(|v| v.as_i64()).unwrap_or(0),
            definition: Arc::new(Definition::parse(kind, given.unwrap_or(Doc::EMPTY))?),
        })
    }

    /// The name of its folder: an index of one version.
    fn folder(&self, tablet: u64) -> String {
        format!("{}-{}-{tablet}", self.id, self.version)
    }
}

/// The status of an index.
#[derive(Clone, Debug)]
pub struct SearchStatus {
    /// `BUILDING`, `READY` or `FAILED`.
    pub status: &'static str,
    pub queryable: bool,
    pub documents: u64,
    pub bytes: u64,
    /// What went wrong, while it did.
    pub message: Option<String>,
}

/// How a synonym mapping of an index fares.
#[derive(Clone, Debug)]
pub struct SynonymStatus {
    pub name: String,
    /// `BUILDING`, `READY` or `FAILED`.
    pub status: &'static str,
    /// What is wrong with its collection.
    pub message: Option<String>,
}

/// A field that documents lack in an index.
#[derive(Clone, Debug)]
pub struct LackingField {
    pub path: String,
    pub reason: &'static str,
    pub count: u64,
    /// The `_id`s of some of them.
    pub ids: Vec<Value>,
}

/// The documents that an index has not wholly taken in.
#[derive(Clone, Debug, Default)]
pub struct LackingDocuments {
    pub count: u64,
    pub fields: Vec<LackingField>,
}

/// An index that a search goes on in, and its follower.
pub(crate) struct Opened {
    index: Arc<SearchIndex>,
    follower: Arc<IndexFollower>,
}

/// The search indexes of a server.
#[derive(Default)]
pub struct SearchIndexes {
    followers: Mutex<HashMap<String, Arc<IndexFollower>>>,
    pool: Arc<Pool>,
    stamps: Stamps,
    /// One waits that others close their writers.
    wants_writer: AtomicBool,
    /// A look at the catalog is to come.
    sync_asked: AtomicBool,
}

impl SearchIndexes {
    /// Begins to follow the catalog. Called once, when the engine is open.
    pub fn start(engine: &Arc<Engine>) {
        let weak = Arc::downgrade(engine);
        engine.catalog.on_search(Box::new(move || {
            if let Some(engine) = weak.upgrade() {
                engine.search.changed(&engine);
            }
        }));
        engine.search.sync(engine, true);
    }

    /// The catalog has changed, or an index is ready.
    fn changed(&self, engine: &Arc<Engine>) {
        // The caller may hold locks, and waits: the work is done by another thread.
        if self.sync_asked.swap(true, SeqCst) {
            return;
        }
        let weak = Arc::downgrade(engine);
        let sync = move || {
            if let Some(engine) = weak.upgrade() {
                engine.search.sync_asked.store(false, SeqCst);
                engine.search.sync(&engine, false);
            }
        };
        let thread = std::thread::Builder::new().name("search-sync".into());
        if thread.spawn(sync).is_err() {
            self.sync_asked.store(false, SeqCst);
        }
    }

    fn wants_writer(&self, wanted: bool) {
        self.wants_writer.store(wanted, SeqCst);
    }

    fn is_writer_wanted(&self) -> bool {
        self.wants_writer.load(SeqCst)
    }

    /// Has a follower for every definition there is, and no other.
    fn sync(&self, engine: &Arc<Engine>, at_start: bool) {
        let mut followers = self.followers.lock();
        let snapshot = engine.catalog.snapshot();
        let mut wanted = HashMap::new();
        let mut serving = Vec::new();
        for c in snapshot.all() {
            for spec in c.search.as_deref().unwrap_or(&[]) {
                let spec = match SearchSpec::read(spec.as_doc()) {
                    Ok(spec) => spec,
                    Err(e) => {
                        tracing::error!(target: "INDEX", namespace = &*c.ns, error = %e, "a search index cannot be read");
                        continue;
                    }
                };
                let folder = spec.folder(c.tablet);
                if !followers.get(&folder).is_some_and(|f| f.is_ready()) {
                    serving.push(spec.id.clone());
                }
                wanted.insert(folder, (c.uuid, c.tablet, c.ns.to_string(), spec));
            }
        }
        followers.retain(|folder, f| {
            // The version before serves until the new one is ready.
            let stays = wanted.contains_key(folder) || serving.contains(&f.spec.id);
            if !stays {
                f.end(true);
            }
            stays
        });
        let base = base(engine);
        if at_start {
            remove_others(&base, &wanted);
        }
        for (folder, (uuid, tablet, ns, spec)) in wanted {
            let dir = base.join(&folder);
            let made = || IndexFollower::new(engine, (uuid, tablet), spec, dir);
            followers.entry(folder).or_insert_with(made).follow(&ns);
        }
    }

    /// The index of that name, to search in it; `None`: there is none of that name, so nothing is found.
    /// One that is opened, or of a collection that has just come to this shard, is ready in a moment: it is
    /// waited for a little.
    ///
    /// # Errors
    /// `UnknownError` where its first state is still to be built here.
    pub(crate) fn to_search(
        &self,
        ctx: &OpCtx<'_>,
        coll: &Collection,
        name: &str,
    ) -> Result<Option<Opened>> {
        let is_named = |s: &&DocBuf| s.get("name").and_then(|v| v.as_str()) == Some(name);
        let specs = coll.search.as_deref().unwrap_or(&[]);
        let Some(spec) = specs.iter().find(is_named) else {
            return Ok(None);
        };
        let until = Instant::now() + OPENING;
        loop {
            let serving = self.serving(coll, name);
            if let Some((index, follower)) = serving.and_then(|f| Some((f.index()?, f))) {
                return Ok(Some(Opened { index, follower }));
            }
            let state = match self.status(coll, spec.as_doc()).status {
                "FAILED" => "FAILED",
                _ => "INITIAL_SYNC",
            };
            // An answer without documents would be taken for what there is.
            if state == "FAILED" || Instant::now() > until {
                bail!(
                    UnknownError,
                    "cannot query search index {name} while in state {state}"
                );
            }
            ctx.check()?;
            std::thread::sleep(LOOK);
        }
    }

    /// The index of that name that serves now; `None`: there is none, or it is being built.
    fn serving(&self, coll: &Collection, name: &str) -> Option<Arc<IndexFollower>> {
        let specs = coll.search.as_deref()?;
        let spec = specs
            .iter()
            .find(|s| s.get("name").and_then(|v| v.as_str()) == Some(name))?;
        let id = spec.get("id")?.as_str()?;
        let followers = self.followers.lock();
        let ready = followers
            .values()
            .filter(|f| f.spec.id == id && f.is_ready());
        ready.max_by_key(|f| f.spec.version).cloned()
    }

    /// How an index fares here.
    pub fn status(&self, coll: &Collection, spec: Doc<'_>) -> SearchStatus {
        let text = |name: &str| spec.get(name).and_then(|v| v.as_str()).unwrap_or("");
        let name = text("name");
        let serving = self.serving(coll, name);
        let newest = self.newest(spec);
        let message = newest.as_ref().and_then(|f| f.failure());
        let ready = newest
            .as_ref()
            .is_some_and(|f| f.is_ready() && !f.is_suspect());
        SearchStatus {
            status: match (&message, ready) {
                (Some(_), false) => "FAILED",
                (_, true) => "READY",
                (None, false) => "BUILDING",
            },
            queryable: serving.is_some(),
            documents: newest.as_ref().map_or(0, |f| f.documents()),
            bytes: newest.as_ref().map_or(0, |f| f.bytes()),
            message,
        }
    }

    /// The follower of a definition in its present version.
    fn newest(&self, spec: Doc<'_>) -> Option<Arc<IndexFollower>> {
        let id = spec.get("id").and_then(|v| v.as_str())?;
        let version = spec.get("version").and_then(|v| v.as_i64());
        let followers = self.followers.lock();
        let mut of = followers.values();
        of.find(|f| f.spec.id == id && Some(f.spec.version) == version)
            .cloned()
    }

    /// Reads the synonym mappings of an index, so that [`SearchIndexes::synonyms`] tells of them as they are now. `sent`:
    /// what a router has read of them, by name: documents, or why it could not.
    pub fn read_synonyms(
        &self,
        ctx: &mut OpCtx<'_>,
        coll: &Collection,
        spec: Doc<'_>,
        sent: Option<Doc<'_>>,
    ) -> Result<()> {
        let Some(follower) = self.newest(spec) else {
            return Ok(());
        };
        let db = coll.ns.split_once('.').map_or("", |(db, _)| db);
        for source in &follower.spec.definition.synonyms {
            let mappings = &follower.mappings;
            let given = sent.and_then(|d| d.get(&source.name));
            match (given.and_then(|v| v.as_array()), sent) {
                (Some(docs), _) => drop(mappings.sent(ctx, source, docs)?),
                (None, None) => drop(mappings.read(ctx, db, source)?),
                (None, Some(_)) => {
                    if let Some(why) = given.and_then(|v| v.as_str()) {
                        mappings.unread(ctx, &source.name, why);
                    }
                }
            }
        }
        Ok(())
    }

    /// How the synonym mappings of an index fare, as far as they were read.
    pub fn synonyms(&self, spec: Doc<'_>) -> Vec<SynonymStatus> {
        let Some(follower) = self.newest(spec) else {
            return Vec::new();
        };
        let sources = follower.spec.definition.synonyms.iter();
        let one = |source: &search::SynonymSource| {
            let (status, message) = match follower.mappings.state(&source.name) {
                None => ("BUILDING", None),
                Some(Ok(())) => ("READY", None),
                Some(Err(why)) => ("FAILED", Some(why)),
            };
            SynonymStatus {
                name: source.name.clone(),
                status,
                message,
            }
        };
        sources.map(one).collect()
    }

    /// The documents that an index has not wholly taken in.
    pub fn lacking(&self, engine: &Engine, spec: Doc<'_>) -> Result<LackingDocuments> {
        let index = self.newest(spec).and_then(|f| f.index());
        let Some(index) = index else {
            return Ok(LackingDocuments::default());
        };
        let found = index.snapshot().incomplete()?;
        let view = engine.store.latest();
        let mut fields = Vec::new();
        for field in found.fields {
            let mut ids: Vec<Value> = Vec::new();
            for key in &field.keys {
                let record = view.get(key)?;
                let id = record.as_ref().and_then(|r| Doc::new(r)?.get("_id"));
                let id = id.filter(|id| id.bytes.len() <= MOST_ID_BYTES);
                let id = id.map(|id| id.to_value());
                // Elements of one document have its key.
                ids.extend(id.filter(|id| ids.last() != Some(id)));
            }
            fields.push(LackingField {
                path: field.path,
                reason: field.unfit.reason(),
                count: field.count,
                ids,
            });
        }
        Ok(LackingDocuments {
            count: found.count,
            fields,
        })
    }

    /// Ends all turns, and waits for them.
    fn stop(&self) {
        let followers: Vec<Arc<IndexFollower>> =
            self.followers.lock().drain().map(|(_, f)| f).collect();
        self.pool.stop();
        followers.iter().for_each(|f| f.close_now());
    }
}

impl Drop for SearchIndexes {
    fn drop(&mut self) {
        self.stop();
    }
}

fn base(engine: &Engine) -> PathBuf {
    engine.store.dir().join("search")
}

/// Takes away folders that belong to no definition.
fn remove_others<T>(base: &std::path::Path, wanted: &HashMap<String, T>) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(|n| wanted.contains_key(n)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Reads the synonym mappings of the indexes of a collection that `$listSearchIndexes` lists: `{name}`, `{id}` or all,
/// with what a router has read of them.
pub fn read_synonyms(ctx: &mut OpCtx<'_>, ns: &str, spec: Doc<'_>) -> Result<()> {
    let Some(coll) = ctx.catalog().get(ns).cloned() else {
        return Ok(());
    };
    let sent = spec.get(SYNONYMS).and_then(|v| v.as_doc());
    let text = |d: Doc<'_>, name: &str| {
        let v = d.get(name).and_then(|v| v.as_str());
        v.map(str::to_string)
    };
    for definition in coll.search.as_deref().unwrap_or(&[]) {
        let d = definition.as_doc();
        let is_listed = ["name", "id"].iter().all(|field| {
            let wanted = text(spec, field);
            wanted.is_none() || wanted == text(d, field)
        });
        let given = d.get("definition").and_then(|v| v.as_doc());
        let has_any = given.is_some_and(|d| d.contains("synonyms"));
        if !is_listed || !has_any {
            continue;
        }
        ctx.need_worker()?;
        let of_this = |all: Doc<'_>| {
            let name = text(d, "name").unwrap_or_default();
            let known = all.get(&name).and_then(|v| v.as_doc());
            known.map_or_else(DocBuf::new, Doc::to_buf)
        };
        let sent = sent.map(of_this);
        let engine = ctx.engine.clone();
        let sent = sent.as_ref().map(|d| d.as_doc());
        engine.search.read_synonyms(ctx, &coll, d, sent)?;
    }
    Ok(())
}

/// Refuses a collection that cannot have search indexes.
pub fn check_searchable(coll: &Collection) -> Result<()> {
    if coll.is_view() || coll.time_series.is_some() {
        bail!(
            CommandNotSupportedOnView,
            "search indexes on views and time series are not supported yet: {}",
            coll.ns
        );
    }
    Ok(())
}

/// A longer `_id` is not told of a document.
const MOST_ID_BYTES: usize = 1024;

/// How long a search waits for an index that is not ready.
const OPENING: Duration = Duration::from_millis(500);
/// How long a wait for an index goes on before it asks again.
const LOOK: Duration = Duration::from_millis(20);
