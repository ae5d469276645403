//! `pandoSchema`: what the documents of a collection look like, from a sample of them, and which
//! index serves which field. A command of our own.
//!
//! ```text
//! {pandoSchema: <collection>, sampleSize: 1000, filter: {…}}
//! {ns, documents, sampled, complete, truncated, fields: [{path, documents, share, types: [{type, count, share}], examples,
//!   elements?: {least, most, average}, indexes: [{name, position}]}]}
//! ```

use crate::crud::variables;
use crate::request::{CommandContext, Done};
use bson::{Doc, Value, Writer};
use catalog::Collection;
use errors::{Result, bail};
use executor::{AggregateRequest, PipelineCursor};
use front::{Args, idl};
use query::pipeline::{Namespace, ParseCtx, Pipeline};
use query::shape::{Field, Shape, ShapeLimits};

const AT: &str = "pandoSchema";
/// Enough for a share to be right within a few percent.
const SAMPLE: i64 = 1000;
const MAX_SAMPLE: i64 = 1_000_000;

/// Which documents are looked at, and how much is told of them.
struct Sampling<'a> {
    ns: String,
    sample: i64,
    filter: Doc<'a>,
    limits: ShapeLimits,
}

fn arguments<'a>(args: &Args<'a>) -> Result<Sampling<'a>> {
    let ns = args.namespace()?;
    let (mut sample, mut filter) = (SAMPLE, Doc::EMPTY);
    let mut limits = ShapeLimits::default();
    for e in &args.fields {
        match e.name {
            "sampleSize" => sample = idl::int_from(AT, *e, 1)?.unwrap_or(SAMPLE),
            "filter" => filter = idl::doc(AT, *e)?.unwrap_or(Doc::EMPTY),
            "maxFields" => {
                let n = idl::int_from(AT, *e, 1)?.unwrap_or(0);
                limits.fields = (n as usize).clamp(1, 10_000);
            }
            "examples" => {
                let n = idl::int_from(AT, *e, 0)?.unwrap_or(0);
                limits.examples = (n as usize).min(20);
            }
            _ => return Err(args.unknown(*e)),
        }
    }
    if sample > MAX_SAMPLE {
        bail!(
            BadValue,
            "BSON field 'sampleSize' value must be <= {MAX_SAMPLE}, actual value '{sample}'"
        );
    }
    Ok(Sampling {
        ns,
        sample,
        filter,
        limits,
    })
}

/// Checks the arguments.
pub fn check(args: &Args<'_>) -> Result<()> {
    arguments(args).map(drop)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let Sampling {
        ns,
        sample,
        filter,
        limits,
    } = arguments(&cx.args)?;
    let Some(coll) = cx.app.engine.catalog.get(&ns) else {
        bail!(NamespaceNotFound, "Collection '{ns}' does not exist.");
    };
    let count = match coll.is_view() {
        true => None,
        false => Some(cx.app.store.counts(coll.tablet).0),
    };
    let all = filter.is_empty() && count.is_some_and(|n| n <= sample.unsigned_abs());
    let mut shape = Shape::new(limits);
    let mut cursor = open(cx, coll.name(), filter, (!all).then_some(sample))?;
    while cursor.advance(&mut cx.op)? {
        shape.add(cursor.doc());
    }
    let (sampled, truncated) = (shape.documents, shape.truncated);
    cx.w.str("ns", &ns);
    if let Some(n) = count {
        cx.w.int("documents", n as i64);
    }
    // Fewer than asked for: there are no more.
    cx.w.int("sampled", sampled as i64)
        .bool("complete", all || sampled < sample.unsigned_abs())
        .bool("truncated", truncated)
        .open_array("fields");
    for f in shape.into_fields() {
        field(&mut cx.w, &f, sampled, &coll);
    }
    cx.w.close();
    Ok(Done::Reply)
}

/// The documents to look at.
fn open(
    cx: &mut CommandContext<'_, '_>,
    coll: &str,
    filter: Doc<'_>,
    sample: Option<i64>,
) -> Result<PipelineCursor> {
    let mut w = Writer::new_array();
    if !filter.is_empty() {
        w.open_doc("").doc("$match", filter).close();
    }
    if let Some(n) = sample {
        w.open_doc("")
            .open_doc("$sample")
            .i64("size", n)
            .close()
            .close();
    }
    let stages = w.finish_array();
    let (env, vars) = variables::variables(cx, "", &None, None)?;
    let pipeline = Pipeline::parse(stages.as_val(), &ParseCtx::new(cx.args.db, Some(coll), env))?;
    let request = AggregateRequest {
        causal: false,
        merges_apart: None,
        ns: Namespace::new(cx.args.db, coll),
        pipeline,
        vars,
        hint: None,
        allow_disk_use: true,
        server_rows: None,
        remote: None,
    };
    PipelineCursor::open(&mut cx.op, request)
}

/// A share of a whole, to four digits.
fn share(n: u64, of: u64) -> Value {
    Value::from((n as f64 / of.max(1) as f64 * 10_000.0).round() / 10_000.0)
}

fn field(w: &mut Writer, f: &Field, sampled: u64, coll: &Collection) {
    w.open_doc("")
        .str("path", &f.path)
        .int("documents", f.documents as i64)
        .value("share", share(f.documents, sampled))
        .open_array("types");
    let mut types = f.types.clone();
    types.sort_by_key(|t| std::cmp::Reverse(t.1));
    for (name, n) in &types {
        w.open_doc("")
            .str("type", name)
            .int("count", *n as i64)
            .value("share", share(*n, f.values))
            .close();
    }
    w.close().open_array("examples");
    for e in &f.examples {
        w.push(e.as_val());
    }
    w.close();
    if let Some((least, most, all)) = f.elements {
        let arrays = f.types.iter().find(|(t, _)| *t == "array");
        let average = all as f64 / arrays.map_or(1, |(_, n)| *n).max(1) as f64;
        w.open_doc("elements")
            .int("least", least as i64)
            .int("most", most as i64)
            .f64("average", (average * 100.0).round() / 100.0)
            .close();
    }
    w.open_array("indexes");
    for (name, position) in indexes(coll, &f.path) {
        w.open_doc("")
            .str("name", &name)
            .int("position", position as i64)
            .close();
    }
    w.close().close();
}

/// The indexes that hold a field, and where in their keys it stands: an index serves a query by its
/// first field.
fn indexes(coll: &Collection, path: &str) -> Vec<(String, usize)> {
    let path = path.replace("[]", "");
    let mut found = Vec::new();
    for spec in coll.index_specs() {
        let name = spec.get("name").and_then(|v| v.as_str()).unwrap_or("");
        let key = spec.get("key").and_then(|v| v.as_doc());
        let at = key
            .unwrap_or(Doc::EMPTY)
            .iter()
            .position(|e| e.name == path);
        if let Some(at) = at {
            found.push((name.to_string(), at));
        }
    }
    found
}
