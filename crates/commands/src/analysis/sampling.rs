//! Queries that are sampled for `analyzeShardKey`: some of each second, as
//! `configureQueryAnalyzer` has said of their collection.
//!
//! ```text
//! config.queryAnalyzers  {_id: ns, collUuid, mode, samplesPerSecond, …}     what is sampled
//! config.sampledQueries  {_id, ns, collectionUuid, cmdName, cmd, expireAt}  what was
//! ```
//!
//! Invariant: a query is never held up. Samples that are not written soon enough are dropped.

use bson::{Doc, DocBuf, Val, Value, Writer};
use catalog::keyspace::SPACE_RECORD;
use errors::Result;
use executor::Engine;
use parking_lot::{Mutex, RwLock};
use service::Request;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use storage::{Committed, Effect, Entry, Observer};

pub const ANALYZERS: &str = "config.queryAnalyzers";
pub const SAMPLES: &str = "config.sampledQueries";

/// How long samples are kept.
const KEPT_MILLIS: i64 = 7 * 24 * 3600 * 1000;
/// Samples that wait to be written.
const MOST_WAITING: usize = 10_000;
/// A command that is longer is not sampled.
const MOST_BYTES: usize = 64 << 10;

/// The sampling of one collection.
struct Analyzer {
    uuid: Value,
    per_second: f64,
    /// Samples that may be taken at once, as of when.
    allowance: Mutex<(f64, Instant)>,
}

impl Analyzer {
    fn takes(&self) -> bool {
        let mut allowance = self.allowance.lock();
        let now = Instant::now();
        let grown = now.duration_since(allowance.1).as_secs_f64() * self.per_second;
        allowance.0 = (allowance.0 + grown).min(self.per_second.max(1.0));
        allowance.1 = now;
        if allowance.0 < 1.0 {
            return false;
        }
        allowance.0 -= 1.0;
        true
    }
}

#[derive(Default)]
pub struct Samplers {
    any: AtomicBool,
    analyzers: RwLock<HashMap<String, Arc<Analyzer>>>,
    waiting: Mutex<Vec<DocBuf>>,
}

impl Samplers {
    /// Samples as the stored configurations say, now and after each change of them.
    pub(crate) fn follow(engine: &Arc<Engine>) -> Result<Arc<Samplers>> {
        let this = Arc::new(Samplers::default());
        crate::settings::documents::each(engine, ANALYZERS, Doc::EMPTY, |d| {
            this.configure(d);
            Ok(true)
        })?;
        engine.store.observe(this.clone())?;
        Ok(this)
    }

    /// Takes a document of `config.queryAnalyzers`.
    pub fn configure(&self, d: Doc<'_>) {
        let Some(ns) = d.get("_id").and_then(Val::as_str) else {
            return;
        };
        let mut analyzers = self.analyzers.write();
        let per_second = d.get("samplesPerSecond").and_then(Val::to_f64);
        match per_second.filter(|_| d.get("mode").and_then(Val::as_str) == Some("full")) {
            None => drop(analyzers.remove(ns)),
            Some(per_second) => {
                let known = analyzers.get(ns);
                if known.is_none_or(|a| a.per_second != per_second) {
                    let analyzer = Analyzer {
                        uuid: d.get("collUuid").unwrap_or(Val::NULL).to_value(),
                        per_second,
                        allowance: Mutex::new((per_second.max(1.0), Instant::now())),
                    };
                    analyzers.insert(ns.into(), Arc::new(analyzer));
                }
            }
        }
        self.any.store(!analyzers.is_empty(), Relaxed);
    }

    /// Takes samples of a command that is run where its client sent it: of what a router sends, the
    /// router takes them.
    pub fn see(&self, request: &Request<'_>) {
        let any = self.any.load(Relaxed);
        if !any || request.message_bytes > MOST_BYTES || request.body.contains("shardVersion") {
            return;
        }
        let (name, db) = (request.command(), request.db().unwrap_or(""));
        let first = request.body.first().and_then(|e| e.val.as_str());
        let Some(coll) = first.filter(|_| sharding::analysis::sampled_as(name).is_some()) else {
            return;
        };
        let ns = format!("{db}.{coll}");
        let Some(analyzer) = self.analyzers.read().get(&ns).cloned() else {
            return;
        };
        for (name, cmd) in samples_of(name, coll, request) {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= MOST_WAITING || !analyzer.takes() {
                return;
            }
            let mut w = Writer::new();
            w.binary("_id", 4, &crate::new_uuid());
            w.str("ns", &ns)
                .val("collectionUuid", analyzer.uuid.as_val())
                .str("cmdName", name)
                .doc("cmd", cmd.as_doc())
                .date("expireAt", crate::clock::now_millis() + KEPT_MILLIS);
            waiting.push(w.finish());
        }
    }

    /// The documents for `config.sampledQueries`.
    pub fn take(&self) -> Vec<DocBuf> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// The samples that a command gives: one, or one for each of its statements.
fn samples_of(name: &str, coll: &str, request: &Request<'_>) -> Vec<(&'static str, DocBuf)> {
    let body = request.body;
    let doc_of = |field: &str| body.get(field).and_then(Val::as_doc).unwrap_or(Doc::EMPTY);
    let read = |filter: Doc<'_>| {
        let mut w = Writer::new();
        w.doc("filter", filter)
            .doc("collation", doc_of("collation"));
        if let Some(variables) = body.get("let") {
            w.val("let", variables);
        }
        w.finish()
    };
    let statements = |name: &'static str, list: &str| {
        let inline = body.get(list).and_then(Val::as_array).unwrap_or(Doc::EMPTY);
        let inline = inline.values().filter_map(Val::as_doc);
        let beside = request.sequence(list).into_iter().flatten();
        let one = |statement: Doc<'_>| {
            let mut w = Writer::new();
            w.str(name, coll).open_array(list).push(statement.as_val());
            (name, w.finish())
        };
        inline.chain(beside).map(one).collect::<Vec<_>>()
    };
    match name {
        "find" => vec![("find", read(doc_of("filter")))],
        "count" => vec![("count", read(doc_of("query")))],
        "distinct" => vec![("distinct", read(doc_of("query")))],
        "aggregate" => {
            let stages = body.get("pipeline").and_then(Val::as_array);
            let first = stages.and_then(|s| s.values().next()?.as_doc());
            let filter = first.and_then(|d| d.get("$match")?.as_doc());
            vec![("aggregate", read(filter.unwrap_or(Doc::EMPTY)))]
        }
        "update" => statements("update", "updates"),
        "delete" => statements("delete", "deletes"),
        _ => {
            let mut w = Writer::new();
            w.str("findAndModify", coll);
            let kept = ["query", "update", "remove", "upsert", "collation", "let"];
            for e in body.iter().filter(|e| kept.contains(&e.name)) {
                w.val(e.name, e.val);
            }
            vec![("findAndModify", w.finish())]
        }
    }
}

impl Observer for Samplers {
    fn applied(&self, _: Committed, entry: &Entry) {
        for part in entry.plain().filter(|e| &*e.ns == ANALYZERS) {
            for effect in &part.effects {
                if let Effect::Put(key, value) = effect
                    && key.get(8) == Some(&SPACE_RECORD)
                    && let Some(d) = Doc::new(value)
                {
                    self.configure(d);
                }
            }
        }
    }
}
