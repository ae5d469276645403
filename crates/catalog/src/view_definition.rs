//! Views: what a collection's `viewOn` and `pipeline` say, how views stand on each other, and the
//! rows of `system.views`.
//!
//! Invariant: the views of a database form no cycle and are at most [`MAX_DEPTH`] deep. This is checked
//! when a view is defined or redefined, so following views always ends.
//!
//! A view is a collection record like any other, with a tablet that stays empty. Tools look for
//! views in `system.views` too: that is a real collection, whose documents are written by the log
//! entries that change the views, and by nothing else.

use crate::change::Snapshot;
use crate::collection::Collection;
use crate::db_of;
use bson::{Doc, DocBuf, Val, Writer, key};
use errors::{Result, bail};
use query::collation::Collation;
use query::expr::ParseEnv;
use query::pipeline::{Namespace, ParseCtx, Pipeline, Unpack};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use storage::Effect;

/// How many views may stand on each other.
pub const MAX_DEPTH: usize = 20;
/// How large a view's pipeline may be, with those of the views below it.
const MAX_PIPELINE_BYTES: usize = 16_000_000;

/// A view's definition.
#[derive(Debug)]
pub struct ViewDefinition {
    /// The collection or view that it reads, in the same database.
    pub on: String,
    /// An error when it was stored by a version that knew more stages: reads fail with it, the
    /// server starts.
    pub pipeline: Result<Pipeline>,
}

/// What a view comes down to.
pub struct ResolvedView {
    /// The collection (or nothing, when it is missing) below all views.
    pub on: Namespace,
    pub pipeline: Pipeline,
}

impl ViewDefinition {
    pub(crate) fn of(db: &str, options: Doc<'_>) -> Option<ViewDefinition> {
        let on = options.get("viewOn")?.as_str()?;
        if let Some(series) = ::time_series::TimeSeriesOptions::of_collection(options) {
            return Some(ViewDefinition {
                on: on.to_string(),
                pipeline: Ok(Pipeline::of_measurements(Unpack {
                    options: Arc::new(series),
                })),
            });
        }
        let none = bson::Value::array(DocBuf::new());
        let stages = options.get("pipeline").unwrap_or(none.as_val());
        Some(ViewDefinition {
            on: on.to_string(),
            pipeline: parse(db, on, stages, options.get("collation")),
        })
    }
}

fn parse(db: &str, on: &str, stages: Val<'_>, collation: Option<Val<'_>>) -> Result<Pipeline> {
    let collation = match collation.and_then(|v| v.as_doc()) {
        Some(c) => Collation::new(c)?,
        None => None,
    };
    let env = ParseEnv::new().collated(collation);
    Pipeline::parse(stages, &ParseCtx::new(db, Some(on), env))
}

impl Snapshot {
    /// The collection below a view, and the pipelines on the way joined; `None` when `ns` is not a
    /// view.
    pub fn resolve(&self, ns: &str) -> Result<Option<ResolvedView>> {
        let Some(mut view) = self.get(ns).and_then(|c| c.view.as_ref()) else {
            return Ok(None);
        };
        let db = db_of(ns);
        let mut pipeline = view.pipeline.clone()?;
        for _ in 0..=MAX_DEPTH {
            let below = self.get(&format!("{db}.{}", view.on));
            match below.and_then(|c| c.view.as_ref()) {
                Some(v) => {
                    pipeline = v.pipeline.clone()?.then(&pipeline);
                    view = v;
                }
                None => {
                    let on = Namespace::new(db, &view.on);
                    return Ok(Some(ResolvedView { on, pipeline }));
                }
            }
        }
        bail!(
            ViewDepthLimitExceeded,
            "View depth too deep or view cycle detected; maximum depth is {MAX_DEPTH}"
        );
    }

    /// A view may be read only under its own collation.
    pub fn check_collation<'n>(
        &self,
        read: impl Iterator<Item = &'n Namespace>,
        collation: Option<&Collation>,
    ) -> Result<()> {
        for ns in read {
            let view = self.get(&ns.to_string());
            let view = view.filter(|c| c.is_view() && c.measurements().is_none());
            if view.is_some_and(|v| v.collation.as_ref() != collation) {
                bail!(
                    OptionNotSupportedOnView,
                    "Cannot override a view's default collation: {ns}"
                );
            }
        }
        Ok(())
    }

    /// Checks what a view of the name `ns` is to be: its stages, that it reads other views under
    /// their collation, and that the views stay without cycles and not too deep.
    pub fn check_view(
        &self,
        ns: &str,
        on: &str,
        stages: Val<'_>,
        collation: Option<Collation>,
    ) -> Result<()> {
        let db = db_of(ns);
        let pipeline = parse(db, on, stages, None)?;
        let mut read = pipeline.reads();
        read.push(Namespace::new(db, on));
        self.check_collation(read.iter(), collation.as_ref())?;
        if pipeline.writes() {
            bail!(
                OptionNotSupportedOnView,
                "The aggregation stage {} in the view definition is not allowed",
                pipeline.stages().last().map_or("", |s| s.name)
            );
        }
        let mut graph = Graph {
            db,
            nodes: HashMap::new(),
            depths: HashMap::new(),
            path: HashSet::new(),
        };
        for c in self.of_db(db) {
            let Some(v) = &c.view else { continue };
            let Ok(p) = &v.pipeline else { continue };
            let size = c.option("pipeline").map_or(0, size_of);
            graph.add(c.ns.to_string(), &v.on, p, size);
        }
        graph.add(ns.to_string(), on, &pipeline, size_of(stages));
        // Those that stand on the new one grow with it.
        let names: Vec<String> = graph.nodes.keys().cloned().collect();
        let (depth, bytes) = graph.depth(ns)?;
        let mut deepest = depth;
        for n in &names {
            if graph.reaches(n, ns) {
                deepest = deepest.max(graph.depth(n)?.0);
            }
        }
        if deepest > MAX_DEPTH {
            bail!(
                ViewDepthLimitExceeded,
                "View depth limit exceeded; maximum depth is {MAX_DEPTH}"
            );
        }
        if bytes > MAX_PIPELINE_BYTES {
            bail!(
                ViewPipelineMaxSizeExceeded,
                "Operation would result in a resolved view pipeline that exceeds the maximum size of {MAX_PIPELINE_BYTES} bytes"
            );
        }
        Ok(())
    }
}

/// The bytes of the stages, without those of the array that they stand in.
fn size_of(stages: Val<'_>) -> usize {
    let stages = stages.as_array().unwrap_or(Doc::EMPTY);
    stages.values().map(|v| v.bytes.len()).sum()
}

/// The views of a database and what each reads.
struct Graph<'a> {
    db: &'a str,
    nodes: HashMap<String, (Vec<String>, usize)>,
    depths: HashMap<String, (usize, usize)>,
    path: HashSet<String>,
}

impl Graph<'_> {
    fn add(&mut self, ns: String, on: &str, pipeline: &Pipeline, size: usize) {
        let mut reads = vec![format!("{}.{on}", self.db)];
        reads.extend(pipeline.reads().iter().map(Namespace::to_string));
        self.nodes.insert(ns, (reads, size));
    }

    /// How many views there are from this one down, and the bytes of the largest chain of
    /// pipelines.
    fn depth(&mut self, ns: &str) -> Result<(usize, usize)> {
        let Some((reads, size)) = self.nodes.get(ns).cloned() else {
            return Ok((0, 0));
        };
        if let Some(d) = self.depths.get(ns) {
            return Ok(*d);
        }
        if !self.path.insert(ns.to_string()) {
            bail!(GraphContainsCycle, "View cycle detected: {ns} reads itself");
        }
        let (mut depth, mut bytes) = (0, 0);
        for r in &reads {
            let (d, b) = self.depth(r)?;
            (depth, bytes) = (depth.max(d), bytes.max(b));
            if depth > MAX_DEPTH {
                break;
            }
        }
        self.path.remove(ns);
        let d = (depth + 1, bytes + size);
        self.depths.insert(ns.to_string(), d);
        Ok(d)
    }

    fn reaches(&self, from: &str, to: &str) -> bool {
        let (mut todo, mut seen) = (vec![from], HashSet::new());
        while let Some(n) = todo.pop() {
            if n == to {
                return true;
            }
            if let Some((reads, _)) = self.nodes.get(n)
                && seen.insert(n)
            {
                todo.extend(reads.iter().map(String::as_str));
            }
        }
        false
    }
}

/// The collection that shows a database's views as documents.
pub fn list_of(ns: &str) -> String {
    format!("{}.system.views", db_of(ns))
}

/// Whether that is one of those collections.
pub fn is_list(ns: &str) -> bool {
    crate::collection_of(ns) == "system.views"
}

/// A change of one document of `system.views`.
pub(crate) struct Row {
    pub tablet: u64,
    pub effect: Effect,
    pub records: i64,
    pub bytes: i64,
}

impl Row {
    /// The row when a view changes from `old` to `new`.
    pub fn change(
        snapshot: &Snapshot,
        old: Option<&Collection>,
        new: Option<&Collection>,
    ) -> Option<Row> {
        let [old, new] = [old, new].map(|c| c.filter(|c| c.is_view()));
        let ns = &new.or(old)?.ns;
        let list = snapshot.get(&list_of(ns))?;
        let mut k = list.record_prefix.to_vec();
        key::encode(bson::Value::from(&**ns).as_val(), false, &mut k, None);
        let before = old.map(document);
        let after = new.map(document);
        let bytes = |d: &Option<DocBuf>| d.as_ref().map_or(0, |d| d.as_bytes().len() as i64);
        Some(Row {
            tablet: list.tablet,
            records: i64::from(after.is_some()) - i64::from(before.is_some()),
            bytes: bytes(&after) - bytes(&before),
            effect: match after {
                Some(d) => Effect::Put(k, d.into_vec()),
                None => Effect::Delete(k),
            },
        })
    }
}

fn document(c: &Collection) -> DocBuf {
    let mut w = Writer::new();
    w.str("_id", &c.ns);
    for name in ["viewOn", "pipeline", "collation"] {
        if let Some(v) = c.option(name) {
            w.val(name, v);
        }
    }
    if let Some(series) = c.measurements() {
        w.open_array("pipeline").open_doc("");
        w.doc("$_internalUnpackBucket", series.to_doc().as_doc());
        w.close().close();
    }
    w.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    fn with(views: &[(&str, &str)]) -> Snapshot {
        let mut s = Snapshot::default();
        for (i, (name, options)) in views.iter().enumerate() {
            let options = json::parse(options).unwrap();
            let c = Collection::new(format!("d.{name}").into(), [i as u8; 16], i as u64, options)
                .unwrap();
            s.insert(Arc::new(c));
        }
        s
    }

    fn check(s: &Snapshot, ns: &str, on: &str, stages: &str) -> i32 {
        let d = json::parse(&format!("{{\"p\":{stages}}}")).unwrap();
        s.check_view(ns, on, d.as_doc().get("p").unwrap(), None)
            .map_or_else(|e| e.failure().unwrap().code.0, |()| 0)
    }

    #[test]
    fn resolved() {
        let s = with(&[
            ("a", r#"{"viewOn":"c","pipeline":[{"$match":{"x":1}}]}"#),
            ("b", r#"{"viewOn":"a","pipeline":[{"$limit":2}]}"#),
            ("c", "{}"),
        ]);
        let r = s.resolve("d.b").unwrap().unwrap();
        let names: Vec<_> = r.pipeline.stages().iter().map(|s| s.name).collect();
        assert_eq!(
            (r.on.to_string().as_str(), names),
            ("d.c", vec!["$match", "$limit"])
        );
        assert!(s.resolve("d.c").unwrap().is_none());
    }

    #[test]
    fn cycles_and_depth() {
        let s = with(&[
            ("a", r#"{"viewOn":"b","pipeline":[]}"#),
            ("l", r#"{"viewOn":"c","pipeline":[{"$unionWith":"m"}]}"#),
        ]);
        assert_eq!(check(&s, "d.b", "c", "[]"), 0);
        assert_eq!(check(&s, "d.b", "a", "[]"), 5);
        assert_eq!(check(&s, "d.b", "b", "[]"), 5);
        assert_eq!(check(&s, "d.m", "l", "[]"), 5);
        assert_eq!(check(&s, "d.b", "c", r#"[{"$out":"x"}]"#), 167);
        let names: Vec<(String, String)> = (1..=20)
            .map(|i| {
                (
                    format!("v{i}"),
                    format!(r#"{{"viewOn":"v{}","pipeline":[]}}"#, i - 1),
                )
            })
            .collect();
        let refs: Vec<(&str, &str)> = names
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        let s = with(&refs);
        assert_eq!(check(&s, "d.top", "v20", "[]"), 165);
        assert_eq!(check(&s, "d.top", "v19", "[]"), 0);
        // From below: v20 would become the 21st.
        assert_eq!(check(&s, "d.v0", "c", "[]"), 165);
        assert!(s.resolve("d.v20").unwrap().is_some());
    }
}
