//! Query settings: what an administrator set for all queries of one shape, for the whole server and
//! across restarts.
//!
//! Invariant: while nothing is set, a query asks one flag and nothing else.

use crate::crud::{shape, variables};
use crate::request::CommandContext;
use crate::settings::stored;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail};
use executor::OpCtx;
use parking_lot::{Mutex, RwLock};
use planner::Hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The document of `config.settings` that keeps them.
pub(crate) use front::cluster_settings::QUERY_SETTINGS as ID;

/// The settings of one query shape.
#[derive(Clone)]
pub struct Setting {
    /// 64 hexadecimal digits in upper case.
    pub hash: String,
    /// The command with placeholders for its literals.
    pub shape: DocBuf,
    /// A command of that shape, as it was given.
    pub query: DocBuf,
    pub settings: DocBuf,
}

#[derive(Default)]
pub struct QuerySettings {
    any: AtomicBool,
    all: RwLock<Vec<Arc<Setting>>>,
    /// Held while settings change, from the reading to the storing.
    changing: Mutex<()>,
}

impl Setting {
    fn from_doc(d: Doc<'_>) -> Option<Setting> {
        let part = |name: &str| d.get(name).and_then(|v| v.as_doc()).map(|d| d.to_buf());
        Some(Setting {
            hash: d.get("queryShapeHash")?.as_str()?.to_string(),
            shape: part("debugQueryShape")?,
            query: part("representativeQuery")?,
            settings: part("settings")?,
        })
    }

    pub fn rejects(&self) -> bool {
        self.settings.get("reject").is_some_and(|v| v.truthy())
    }

    /// The indexes that queries of the shape may use of a collection, when there is anything said
    /// about it.
    pub fn hints(&self, ns: &str) -> Option<Hint> {
        let all = self.settings.get("indexHints").and_then(|v| v.as_array())?;
        let text =
            |d: Doc<'_>, name: &str| d.get(name).and_then(|v| v.as_str().map(str::to_string));
        let mut of_ns = all.values().filter_map(|v| v.as_doc()).filter(|d| {
            let named = d.get("ns").and_then(|v| v.as_doc()).unwrap_or(Doc::EMPTY);
            text(named, "db").as_deref() == Some(catalog::db_of(ns))
                && text(named, "coll").as_deref() == Some(catalog::collection_of(ns))
        });
        let allowed = of_ns.next()?.get("allowedIndexes")?.as_array()?;
        let hints = allowed.values().filter_map(|v| match v.as_str() {
            Some("$natural") => Some(Hint::Natural { reverse: false }),
            _ => variables::hint(v).ok().flatten(),
        });
        Some(Hint::Among(hints.collect()))
    }
}

impl stored::InMemory for QuerySettings {
    fn id(&self) -> &'static str {
        ID
    }

    fn take(&self, setting: Option<Doc<'_>>) {
        let list = setting.and_then(|d| d.get("settings")?.as_array());
        let all: Vec<_> = (list.iter().flat_map(|l| l.values()))
            .filter_map(|v| Setting::from_doc(v.as_doc()?).map(Arc::new))
            .collect();
        self.any.store(!all.is_empty(), Relaxed);
        *self.all.write() = all;
    }
}

impl QuerySettings {
    /// Whether nothing is set: asked for every query.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.any.load(Relaxed)
    }

    pub fn find(&self, hash: &str) -> Option<Arc<Setting>> {
        if self.is_empty() {
            return None;
        }
        self.all.read().iter().find(|s| s.hash == hash).cloned()
    }

    /// Changes the settings: `change` gets the present ones, and its result is stored before queries
    /// apply it.
    pub fn change<T>(
        &self,
        op: &mut OpCtx<'_>,
        change: impl FnOnce(&mut Vec<Arc<Setting>>) -> Result<T>,
    ) -> Result<T> {
        let _changing = self.changing.lock();
        let mut all = self.all.read().clone();
        let done = change(&mut all)?;
        let mut w = Writer::new();
        w.open_array("settings");
        for s in &all {
            w.push(row(s, true).as_doc().as_val());
        }
        stored::save(op, ID, w.finish().as_doc())?;
        Ok(done)
    }

    /// The rows of `$querySettings`.
    pub fn rows(&self, with_shape: bool) -> Vec<DocBuf> {
        self.all.read().iter().map(|s| row(s, with_shape)).collect()
    }
}

fn row(s: &Setting, with_shape: bool) -> DocBuf {
    let mut w = Writer::new();
    w.str("queryShapeHash", &s.hash);
    if with_shape {
        w.doc("debugQueryShape", s.shape.as_doc());
    }
    w.doc("settings", s.settings.as_doc())
        .doc("representativeQuery", s.query.as_doc());
    w.finish()
}

/// Applies the settings of a query that is about to run: fails if its shape is rejected, and replaces
/// its own hint by the allowed indexes.
pub fn heed(
    cx: &CommandContext<'_, '_>,
    ns: &str,
    asked: &DocBuf,
    hint: &mut Option<Hint>,
) -> Result<()> {
    let Some(setting) = find(cx, || shape::query_shape_hash(asked.as_doc())) else {
        return Ok(());
    };
    if setting.rejects() {
        bail!(
            QueryRejectedBySettings,
            "Query rejected by admin query settings"
        );
    }
    if let Some(hints) = setting.hints(ns) {
        *hint = Some(hints);
    }
    Ok(())
}

/// The settings of the client's query; `own` computes the hash of its shape.
pub fn find(cx: &CommandContext<'_, '_>, own: impl FnOnce() -> String) -> Option<Arc<Setting>> {
    let body = cx.request.body;
    let hash = match body.get("originalQueryShapeHash").and_then(|v| v.as_str()) {
        Some(hash) => hash.to_string(),
        // What a router has made of a query may have the shape of another.
        None if body.contains("shardVersion") => return None,
        None => own(),
    };
    cx.app.query_settings.find(&hash)
}

/// Whether a filter asks for one `_id`: such a query is answered without a choice.
pub fn is_id_lookup(filter: Val<'_>) -> bool {
    let Some(d) = filter.as_doc() else {
        return false;
    };
    match (d.first(), d.count()) {
        (Some(e), 1) if e.name == "_id" => match e.val.as_doc().and_then(|d| d.first()) {
            Some(op) if op.name.starts_with('$') => {
                op.name == "$eq" && e.val.as_doc().is_some_and(|d| d.count() == 1)
            }
            _ => e.val.tag != bson::tag::REGEX,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{array, doc};

    #[test]
    fn id_lookups() {
        let is = |d: DocBuf| is_id_lookup(d.as_doc().as_val());
        assert!(is(doc! { "_id": 1 }));
        assert!(is(doc! { "_id": doc! { "a": 1 } }));
        assert!(is(doc! { "_id": doc! { "$eq": 1 } }));
        assert!(!is(doc! { "_id": doc! { "$gt": 1 } }));
        assert!(!is(doc! { "_id": doc! { "$eq": 1, "$ne": 2 } }));
        assert!(!is(doc! { "_id": 1, "a": 1 }));
        assert!(!is(doc! { "a": 1 }));
        assert!(!is(doc! {}));
    }

    #[test]
    fn hints_of_a_collection() {
        let named = |coll: &str, index: &str| {
            doc! { "ns": doc! { "db": "d", "coll": coll }, "allowedIndexes": array![index] }
        };
        let s = Setting {
            hash: String::new(),
            shape: doc! {},
            query: doc! {},
            settings: doc! { "indexHints": array![named("a", "x_1"), named("b", "$natural")] },
        };
        let of = |ns: &str| match s.hints(ns) {
            Some(Hint::Among(list)) => list,
            _ => Vec::new(),
        };
        assert!(matches!(&of("d.a")[..], [Hint::Name(n)] if n == "x_1"));
        assert!(matches!(&of("d.b")[..], [Hint::Natural { reverse: false }]));
        assert!(s.hints("d.c").is_none() && s.hints("e.a").is_none());
        assert!(!s.rejects());
    }
}
