//! The query language: whatever comes, parsing and running it ends with a value or an error, soon and in little memory.
//!
//! What runs long in the server asks now and then whether it may go on; here it may [`TURNS`] times, so that a target that takes
//! long is one that does not ask.

use bson::{Doc, DocBuf, Val, Value, Writer, tag};
use errors::{Code, Result, err};
use query::collation::Collation;
use query::expr::{EvalCtx, Expression, ParseEnv, Vars};
use query::filter::{Filter, explain_failure};
use query::index_keys::{KeyPattern, KeySet};
use query::pipeline::{
    DocumentSource, MergeSpec, Namespace, OutSpec, ParseCtx, Pipeline, PipelineHost, Pushdown,
    RowsStage, Source, SpillFile, over_docs,
};
use query::projection::Projection;
use query::update::{Update, UpdateCtx};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

/// How often a run may ask before it is told to end.
const TURNS: u32 = 2000;
/// Bytes that a blocking stage may hold.
const STAGE_BYTES: usize = 1 << 20;

/// A value as BSON (in a document of its own when it is none) or as Extended JSON.
fn read(input: &[u8]) -> Option<Value> {
    match bson::validate(input) {
        Ok(doc) => Some(Value::from(doc)),
        Err(_) => bson::json::parse_value(std::str::from_utf8(input).ok()?).ok(),
    }
}

fn read_doc(input: &[u8]) -> Option<DocBuf> {
    read(input)?.as_val().as_doc().map(Doc::to_buf)
}

/// What the targets run over: a value of every type, arrays in arrays, names that are numbers, nothing at all.
static DOCUMENTS: LazyLock<Vec<DocBuf>> = LazyLock::new(|| {
    let mut all: Vec<DocBuf> = [
        r#"{"_id": 1, "a": 1, "b": {"c": 3, "d": {"e": "x"}}, "n": 5, "t": [1, 2], "s": "Äb,c d", "k": "a"}"#,
        r#"{"_id": 2, "a": [{"x": 3, "y": 1, "b": 2}, 7, null, [1, [2]]], "b": ["x", [1]], "c": [0, {"d": 1}], "g": {"$numberDecimal": "1.5"}}"#,
        r#"{"_id": 3, "a": "aaaaaaaaaaaaaaaaaaaac", "b": null, "d": {"$date": "2024-02-29T12:34:56.789Z"}, "h": {"$binary": {"base64": "AAEC", "subType": "00"}}}"#,
        r#"{"_id": {"x": 1}, "a": {"$numberLong": "9223372036854775807"}, "n": -2147483648, "t": [], "d": {"$date": {"$numberLong": "-9223372036854775808"}}, "0": {"1": 2}}"#,
        r#"{"_id": {"$oid": "65a0000000000000000000ff"}, "a": {"$numberDouble": "NaN"}, "n": {"$numberDecimal": "-Infinity"}, "r": {"$regularExpression": {"pattern": "^a", "options": "i"}}, "m": {"$minKey": 1}, "ts": {"$timestamp": {"t": 5, "i": 1}}, "b": true}"#,
        r#"{}"#,
    ]
    .iter()
    .map(|text| bson::json::parse(text).expect("JSON"))
    .collect();
    let mut w = Writer::new();
    w.val("_id", Value::symbol("s").as_val())
        .val("a", Value::code("x").as_val())
        .val("u", Val::UNDEFINED)
        .value("n", f64::MIN_POSITIVE)
        .value("big", "é".repeat(300));
    all.push(w.finish());
    all
});

/// Variables as a command has them, with an interrupt that comes.
fn vars() -> Vars {
    let mut vars = Vars::new(1_700_000_000_000);
    vars.set_cluster_time(1 << 32);
    let turns = AtomicU32::new(0);
    vars.set_watchdog(Arc::new(move || {
        match turns.fetch_add(1, Ordering::Relaxed) {
            n if n < TURNS => Ok(()),
            _ => Err(err!(Interrupted, "enough").into()),
        }
    }));
    vars
}

/// As it is and, now and then, under a collation.
fn envs(input: &[u8]) -> Vec<ParseEnv> {
    static COLLATION: LazyLock<Option<Collation>> = LazyLock::new(|| {
        let spec = bson::doc! { "locale": "de", "strength": 2, "numericOrdering": true };
        Collation::new(spec.as_doc()).expect("a collation")
    });
    let mut env = ParseEnv::new();
    env.define("x").expect("a name");
    let mut all = vec![env.clone()];
    if input.len().is_multiple_of(4) {
        all.push(env.collated(COLLATION.clone()));
    }
    all
}

fn sound(doc: Doc<'_>) {
    // Values that are computed may be nested deeper than what comes from outside.
    bson::validate_with_depth(doc.as_bytes(), 300).expect("what is made is sound BSON");
}

pub fn filters(input: &[u8]) {
    let Some(doc) = read_doc(input) else { return };
    let vars = vars();
    for env in envs(input) {
        let Ok(filter) = Filter::parse(doc.as_doc(), &env) else {
            continue;
        };
        sound(filter.to_doc().as_doc());
        let _ = (filter.shape(), filter.equalities().is_ok());
        for d in DOCUMENTS.iter() {
            let found = filter.matches_with(d.as_doc(), &vars);
            if let Ok(found) = found
                && !doc_names(doc.as_doc(), &["$rand", "$sampleRate"])
            {
                match filter.first_matched_index(d.as_doc(), &vars) {
                    Ok(at) => assert_eq!(at.is_some(), found, "on {d:?}"),
                    // The first time was the last that it might ask; or what fails comes before what did not match.
                    Err(e) => assert!(!found || e.is(Code::Interrupted), "{e} on {d:?}"),
                }
            }
            if matches!(found, Ok(false)) {
                sound(explain_failure(doc.as_doc(), d.as_doc(), &vars).as_doc());
            }
        }
    }
}

/// Whether one of the names occurs anywhere: a run that is not the same twice.
fn doc_names(doc: Doc<'_>, names: &[&str]) -> bool {
    let hay = doc.as_bytes();
    names
        .iter()
        .any(|n| hay.windows(n.len()).any(|w| w == n.as_bytes()))
}

/// Shapes: read as a document holds them, covered, measured, compared with themselves; as regions, with what a document has.
pub fn shapes(input: &[u8]) {
    let Some(doc) = read_doc(input) else { return };
    let pattern = |spec: &str| {
        let spec = bson::json::parse(spec).expect("JSON");
        KeyPattern::of_spec(spec.as_doc()).expect("a pattern")
    };
    let patterns = [
        pattern(r#"{"key": {"a": "2dsphere", "b": 1}}"#),
        pattern(r#"{"key": {"a": "2d", "b": 1}, "bits": 32}"#),
    ];
    let mut w = Writer::new();
    w.doc("a", doc.as_doc()).i32("b", 1);
    let stored = w.finish();
    let mut keys = KeySet::new();
    for p in &patterns {
        let _ = p.extract(stored.as_doc(), false, &mut keys);
    }
    let vars = vars();
    let env = ParseEnv::new().allow_where(true);
    for operator in ["$geoWithin", "$geoIntersects", "$near", "$nearSphere"] {
        let mut w = Writer::new();
        w.open_doc("a")
            .open_doc(operator)
            .doc("$geometry", doc.as_doc());
        w.close().close();
        let whole = w.finish();
        let mut w = Writer::new();
        w.open_doc("a").doc(operator, doc.as_doc()).close();
        for query in [whole, w.finish()] {
            let Ok(filter) = Filter::parse(query.as_doc(), &env) else {
                continue;
            };
            sound(filter.to_doc().as_doc());
            let _ = filter.matches_with(stored.as_doc(), &vars);
            for d in DOCUMENTS.iter() {
                let _ = filter.matches_with(d.as_doc(), &vars);
            }
        }
    }
}

pub fn expressions(input: &[u8]) {
    let Some(value) = read(input) else { return };
    for env in envs(input) {
        let Ok(expression) = Expression::parse(value.as_val(), &env) else {
            continue;
        };
        let mut shown = Writer::new();
        shown.val("e", expression.to_value().as_val());
        sound(shown.finish().as_doc());
        let _ = (expression.needed_paths(), expression.runtime_variable());
        let mut vars = vars();
        vars.set("x", bson::array![1, "b", 2.5]);
        for d in DOCUMENTS.iter() {
            if let Ok(computed) = expression.evaluate(&EvalCtx::new(d.as_doc(), &vars))
                && let Some(v) = computed.as_val()
            {
                let mut w = Writer::new();
                w.val("v", v);
                sound(w.finish().as_doc());
            }
        }
    }
}

pub fn updates(input: &[u8]) {
    let Some(value) = read(input) else { return };
    // `{pipeline: […]}` is how a document says an array.
    let u = match value.as_val().as_doc().and_then(Doc::first) {
        Some(e) if e.name == "pipeline" && e.val.tag == tag::ARRAY => e.val,
        _ => value.as_val(),
    };
    let vars = vars();
    let all = Filter::all();
    let text = |text: &str| bson::json::parse(text).expect("JSON");
    let (x, query) = (
        text(r#"{"x.b": {"$gt": 0}}"#),
        text(r#"{"a": {"$gte": 2}, "k": "a"}"#),
    );
    let query = Filter::parse(query.as_doc(), &ParseEnv::new()).expect("a filter");
    let filters = [x.as_doc()];
    for array_filters in [&filters[..], &[]] {
        let Ok(update) = Update::parse(u, array_filters, &ParseEnv::new()) else {
            continue;
        };
        let ctx = UpdateCtx::new(&vars, 0, 1 << 32);
        for d in DOCUMENTS.iter() {
            let filter = if update.needs_position() {
                &query
            } else {
                &all
            };
            let Ok(Some(applied)) = update.apply(d.as_doc(), filter, &ctx) else {
                continue;
            };
            sound(applied.doc.as_doc());
            applied.diff.iter().for_each(|diff| {
                sound(Doc::new(diff).expect("a difference is a document"));
            });
            untouched(&update, d.as_doc(), applied.doc.as_doc());
        }
        if let Ok(doc) = update.upsert(&query, &ctx) {
            sound(doc.as_doc());
            assert_eq!(doc.as_doc().first().map(|e| e.name), Some("_id"));
        }
    }
}

/// Indexes are kept by what an update says it may touch.
fn untouched(update: &Update, before: Doc<'_>, after: Doc<'_>) {
    for e in before {
        if e.name != "_id" && !update.may_touch(e.name) {
            assert_eq!(after.get(e.name), Some(e.val), "{} changed", e.name);
        }
    }
    for e in after {
        if e.name != "_id" && !update.may_touch(e.name) {
            assert_eq!(before.get(e.name), Some(e.val), "{} came", e.name);
        }
    }
}

pub fn projections_and_index_keys(input: &[u8]) {
    let Some(spec) = read_doc(input) else { return };
    let vars = vars();
    let query = bson::doc! { "t": 2 };
    for env in envs(input) {
        let query = Filter::parse(query.as_doc(), &env).expect("a filter");
        if let Ok(projection) = Projection::parse(spec.as_doc(), Some(&query), &env) {
            let _ = projection.needed_fields();
            for d in DOCUMENTS.iter() {
                let at = query.first_matched_index(d.as_doc(), &vars);
                let mut out = Vec::new();
                if projection
                    .apply(d.as_doc(), at.ok().flatten().flatten(), &vars, &mut out)
                    .is_ok()
                {
                    sound(Doc::new(&out).expect("a projection is a document"));
                }
            }
        }
    }
    let part = spec.as_doc().get("wildcardProjection");
    let of = match spec.as_doc().get("key") {
        Some(key) => key.as_doc().unwrap_or(Doc::EMPTY),
        None => spec.as_doc(),
    };
    if let Ok(pattern) = KeyPattern::parse_with(of, part.and_then(|p| p.as_doc())) {
        let mut keys = KeySet::new();
        let _ = pattern.default_name();
        for d in DOCUMENTS.iter() {
            for sparse in [false, true] {
                keys.clear();
                if pattern.extract(d.as_doc(), sparse, &mut keys).is_err() {
                    continue;
                }
                for (key, types) in keys.iter() {
                    let shown = pattern.decode(key, types, false);
                    sound(shown.expect("a key decodes").as_doc());
                }
            }
        }
    }
}

/// Collections in memory. Every `offload_every`-th check fails as on an event loop, and all after [`TURNS`].
struct Memory {
    offload_every: Option<u32>,
    checks: u32,
    stage_bytes: usize,
    stored: Vec<DocBuf>,
    under_way: usize,
}

impl Memory {
    fn new(offload_every: Option<u32>, stage_bytes: usize) -> Memory {
        Memory {
            offload_every,
            checks: 0,
            stage_bytes,
            stored: Vec::new(),
            under_way: 0,
        }
    }
}

impl PipelineHost for Memory {
    fn check(&mut self) -> Result<()> {
        self.checks += 1;
        match self.offload_every {
            _ if self.checks > 2 * TURNS => Err(err!(Interrupted, "enough").into()),
            Some(n) if self.checks.is_multiple_of(n) => Err(errors::Suspension::Worker.into()),
            _ => Ok(()),
        }
    }

    fn advance_rows(&mut self, _: &mut dyn DocumentSource) -> Result<bool> {
        Ok(false)
    }

    fn open(
        &mut self,
        ns: &Namespace,
        pipeline: &Pipeline,
        vars: &Arc<Vars>,
    ) -> Result<Box<dyn Source>> {
        self.check()?;
        let docs = match ns.coll.len() {
            0..3 => vec![],
            _ => DOCUMENTS.clone(),
        };
        Ok(pipeline.attach(0, over_docs(docs), vars))
    }

    fn out(&mut self, _: &OutSpec, input: &mut dyn Source) -> Result<()> {
        while input.advance(self)? {
            self.stored.push(input.doc().to_buf());
        }
        Ok(())
    }

    fn merge(&mut self, spec: &MergeSpec, input: &mut dyn Source, vars: &Arc<Vars>) -> Result<()> {
        while input.advance(self)? {
            spec.bind(input.doc(), vars)?;
            self.stored.push(input.doc().to_buf());
        }
        Ok(())
    }

    fn rows(&mut self, stage: &RowsStage) -> Result<Vec<DocBuf>> {
        Ok(vec![stage.spec.clone(), bson::doc! { "a": 1, "b": "x" }])
    }

    fn memory_limit(&self) -> usize {
        self.stage_bytes
    }

    fn under_way(&mut self) -> &mut usize {
        &mut self.under_way
    }

    fn spill(&mut self) -> Result<Box<dyn SpillFile>> {
        Ok(Box::new(std::io::Cursor::new(Vec::new())))
    }
}

/// What comes out: documents, or the code of an error.
type Outcome = std::result::Result<Vec<DocBuf>, i32>;

fn drain(source: &mut dyn Source, host: &mut Memory) -> Outcome {
    let mut out = Vec::new();
    loop {
        match source.advance(host) {
            Ok(true) => {
                sound(source.doc());
                if out.len() < 1000 {
                    out.push(source.doc().to_buf());
                }
            }
            Ok(false) => {
                // From then on there is nothing.
                let again = source.advance(host);
                assert!(again.is_err() || again.is_ok_and(|more| !more));
                return Ok(out);
            }
            Err(e) if e.is_suspension() => {}
            Err(e) => return Err(e.into_error().code.0),
        }
    }
}

/// The beginning of a pipeline as a query would answer it.
fn answered(push: &Pushdown, vars: &Vars) -> Option<Vec<DocBuf>> {
    let mut rows: Vec<(Vec<u8>, DocBuf)> = Vec::new();
    for d in DOCUMENTS.iter() {
        if push.filter.matches_with(d.as_doc(), vars).ok()? {
            let mut key = Vec::new();
            if let Some(sort) = &push.sort {
                sort.sort_key(d.as_doc(), &mut key).ok()?;
            }
            rows.push((key, d.clone()));
        }
    }
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    let skip = usize::try_from(push.skip).unwrap_or(usize::MAX);
    let limit = push
        .limit
        .map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    Some(
        rows.into_iter()
            .map(|r| r.1)
            .skip(skip)
            .take(limit)
            .collect(),
    )
}

/// `d` with nothing but the paths that are needed, if an index could give them: not through arrays, and not of what may be lacking
/// with all that is around it.
fn cut(d: &DocBuf, push: &Pushdown) -> DocBuf {
    let Some(needed) = &push.needed else {
        return d.clone();
    };
    let given = |path: &str| {
        let mut at = d.as_doc();
        let mut parts = path.split('.').peekable();
        while let Some(part) = parts.next() {
            let last = parts.peek().is_none();
            match at.get(part) {
                Some(v) if v.tag == tag::ARRAY => return false,
                Some(v) if !last => match v.as_doc() {
                    Some(inner) => at = inner,
                    None => return false,
                },
                Some(_) => {}
                None => return !path.contains('.'),
            }
        }
        true
    };
    if needed.is_empty() || !needed.iter().all(|p| given(p)) {
        return d.clone();
    }
    let mut w = Writer::new();
    if !needed.contains("_id") {
        w.i32("_id", 0);
    }
    for path in needed {
        // Of two paths where one is inside the other, the outer.
        let mut around = path.match_indices('.').map(|(at, _)| &path[..at]);
        if !around.any(|outer| needed.contains(outer)) {
            w.i32(path, 1);
        }
    }
    let spec = w.finish();
    let mut out = Vec::new();
    match Projection::parse(spec.as_doc(), None, &ParseEnv::new()) {
        Ok(p) if p.apply(d.as_doc(), None, &Vars::new(0), &mut out).is_ok() => {
            DocBuf::from_vec(out).expect("a projection is a document")
        }
        _ => d.clone(),
    }
}

const VARYING: &[&str] = &["$rand", "$sample", "randVal", "ObjectId"];

pub fn pipelines(input: &[u8]) {
    let Some(value) = read(input) else { return };
    let stages = match value.as_val().as_doc() {
        Some(doc) => doc.first().map_or(Val::NULL, |e| e.val),
        None => value.as_val(),
    };
    for env in envs(input) {
        let mut env = env;
        let ctx = |env: &ParseEnv| ParseCtx::new("db", Some("coll"), env.clone());
        let Ok(pipeline) = Pipeline::parse(stages, &ctx(&env)) else {
            // Some stages want no collection.
            env = ParseEnv::new();
            let alone = ParseCtx::new("db", None, env);
            if let Ok(p) = Pipeline::parse(stages, &alone) {
                let mut host = Memory::new(None, STAGE_BYTES);
                let _ = drain(&mut *p.run_alone(&Arc::new(vars())), &mut host);
            }
            continue;
        };
        run(&pipeline, stages);
    }
}

fn run(pipeline: &Pipeline, stages: Val<'_>) {
    let fresh = || {
        let mut vars = vars();
        vars.set("x", Value::from(7));
        Arc::new(vars)
    };
    let over = |docs: Vec<DocBuf>, from: usize, offload: Option<u32>, stage_bytes: usize| {
        let mut host = Memory::new(offload, stage_bytes);
        let mut source = pipeline.attach(from, over_docs(docs), &fresh());
        let got = drain(&mut *source, &mut host);
        (got, host.stored, host.checks > TURNS)
    };
    let (got, stored, long) = over(DOCUMENTS.clone(), 0, None, STAGE_BYTES);
    for stage in pipeline.stages() {
        sound(stage.explain(None).as_doc());
    }
    let _ = (pipeline.reads(), pipeline.target(), pipeline.writes());
    // Beyond their memory, stages go to files.
    let _ = over(DOCUMENTS.clone(), 0, None, 300);
    let varies = |name: &&str| {
        let hay = stages.bytes;
        hay.windows(name.len()).any(|w| w == name.as_bytes())
    };
    if long || VARYING.iter().any(varies) {
        return;
    }
    // On an event loop it is interrupted time and again, and nothing is lost.
    let (interrupted, stored_then, _) = over(DOCUMENTS.clone(), 0, Some(3), STAGE_BYTES);
    assert_eq!(interrupted, got, "interrupted");
    assert_eq!(stored_then, stored, "interrupted");
    // A query answers its beginning, and reads only what the rest needs. What `$geoNear` finds only a
    // query can tell: by itself the stage hands on what comes.
    let push = pipeline.pushdown();
    if got.is_ok()
        && !varies(&"$geoNear")
        && !push.filter.has_expr()
        && let Some(rows) = answered(&push, &fresh())
    {
        let rows = rows.iter().map(|d| cut(d, &push)).collect();
        let (pushed, stored_then, _) = over(rows, push.consumed, None, STAGE_BYTES);
        assert_eq!(pushed, got, "pushed down: {push:?}");
        assert_eq!(stored_then, stored, "pushed down: {push:?}");
    }
}
