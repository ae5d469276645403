//! Queries on views: the query becomes the stages behind those of the view, and runs as a pipeline.

use super::cursor::{self, Keep};
use super::explain::Verbosity;
use super::{explain_pipeline, variables};
use crate::crud::rows;
use crate::crud::stored_config;
use crate::request::collation;
use crate::request::{CommandContext, Done};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, Stop, err};
use executor::{AggregateRequest, PipelineCursor};
use front::idl;
use query::path::FieldPath;
use query::pipeline::{Namespace, ParseCtx, Pipeline};

/// Whether a command failed only because its collection is a view: then it is to be run here.
pub fn wanted(e: &Stop) -> bool {
    e.is(errors::Code::CommandNotSupportedOnView)
}

fn given<'a>(cx: &CommandContext<'_, 'a>, name: &str) -> Option<Val<'a>> {
    cx.args.field(name).filter(|v| !v.is_nullish())
}

fn doc<'a>(cx: &CommandContext<'_, 'a>, name: &str) -> Option<Doc<'a>> {
    given(cx, name)
        .and_then(|v| v.as_doc())
        .filter(|d| !d.is_empty())
}

fn collation(cx: &CommandContext<'_, '_>) -> Result<collation::CollationArgument> {
    collation::given(doc(cx, "collation"))
}

fn number(cx: &CommandContext<'_, '_>, name: &str) -> i64 {
    given(cx, name).and_then(idl::whole).unwrap_or(0)
}

/// Options of find that a pipeline does not have.
pub fn check_find(find: Doc<'_>) -> Result<()> {
    let unsupported = |name: &str| -> Result<()> {
        Err(err!(
            InvalidPipelineOperator,
            "Option {name} not supported in aggregation."
        )
        .into())
    };
    let given = |name: &str| find.get(name).filter(|v| !v.is_nullish());
    let doc = |name: &str| given(name)?.as_doc().filter(|d| !d.is_empty());
    for name in ["min", "max"] {
        if doc(name).is_some() {
            return unsupported(name);
        }
    }
    for name in [
        "returnKey",
        "showRecordId",
        "tailable",
        "noCursorTimeout",
        "allowPartialResults",
        "readOnce",
        "requestResumeToken",
    ] {
        if given(name).is_some_and(|v| v.truthy()) {
            return unsupported(name);
        }
    }
    let limit = given("limit").and_then(idl::whole);
    if given("singleBatch").is_some_and(|v| v.truthy()) && limit != Some(1) {
        return unsupported("singleBatch");
    }
    Ok(())
}

fn is_natural(sort: Doc<'_>) -> bool {
    sort.contains("$natural")
}

/// The stages that stand for the query of `command`.
fn stages(cx: &CommandContext<'_, '_>, command: &str) -> Result<DocBuf> {
    let mut w = Writer::new();
    w.open_array("pipeline");
    if let Some(documents) = stored_config::stage(cx, &cx.args.namespace()?) {
        w.open_doc("").extend(documents.as_doc()).close();
    }
    let mut stage = |name: &str, v: Val<'_>| {
        w.open_doc("").val(name, v).close();
    };
    let query = if command == "find" { "filter" } else { "query" };
    if let Some(d) = doc(cx, query) {
        stage("$match", d.as_val());
    }
    if command == "find" {
        check_find(cx.request.body)?;
        if let Some(d) = doc(cx, "sort").filter(|d| !is_natural(*d)) {
            stage("$sort", d.as_val());
        }
    }
    if command != "distinct" {
        for (name, n) in [
            ("$skip", number(cx, "skip")),
            ("$limit", number(cx, "limit").saturating_abs()),
        ] {
            if n > 0 {
                stage(name, bson::Value::from(n).as_val());
            }
        }
    }
    if command == "find"
        && let Some(d) = doc(cx, "projection")
    {
        stage("$project", d.as_val());
    }
    if command == "count" {
        stage("$count", bson::Value::from("count").as_val());
    }
    w.close();
    Ok(w.finish())
}

/// The pipeline that stands for the command in `cx.args`.
pub fn request(cx: &CommandContext<'_, '_>, command: &str) -> Result<AggregateRequest> {
    let stages = stages(cx, command)?;
    let (ns, given_collation) = (cx.args.namespace()?, collation(cx)?);
    let (env, vars) = variables::variables(cx, &ns, &given_collation, doc(cx, "let"))?;
    let coll = cx.args.first.as_str().unwrap_or("");
    let (coll, parsed_for) = match stored_config::stage(cx, &ns) {
        Some(_) => ("$cmd.aggregate", None),
        None => (coll, Some(coll)),
    };
    let pipeline = stages.get("pipeline").unwrap_or(Val::NULL);
    Ok(AggregateRequest {
        causal: false,
        merges_apart: None,
        ns: Namespace::new(cx.args.db, coll),
        pipeline: Pipeline::parse(pipeline, &ParseCtx::new(cx.args.db, parsed_for, env))?,
        vars,
        hint: match given(cx, "hint") {
            Some(h) => variables::hint(h)?,
            // A pipeline takes a sort by the natural order as its hint.
            None => match doc(cx, "sort").filter(|d| is_natural(*d)) {
                Some(sort) if command == "find" => variables::hint(sort.as_val())?,
                _ => None,
            },
        },
        allow_disk_use: given(cx, "allowDiskUse")
            .and_then(|v| v.as_bool())
            .unwrap_or_else(|| cx.app.parameters.bool(super::find::DISK_USE)),
        server_rows: Some(rows::for_pipeline(cx.app, cx.client)),
        remote: None,
    })
}

pub fn find(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let ns = cx.args.namespace()?;
    let request = request(cx, "find")?;
    let batch = given(cx, "batchSize")
        .and_then(idl::whole)
        .map_or(cursor::FIRST_BATCH, i64::unsigned_abs);
    let keep = Keep {
        single_batch: given(cx, "singleBatch").is_some_and(|v| v.truthy()),
        ..Keep::default()
    };
    let results = Box::new(PipelineCursor::open(&mut cx.op, request)?);
    cursor::first_batch(cx, &ns, results, batch, keep)?;
    Ok(Done::Reply)
}

pub fn count(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let request = request(cx, "count")?;
    let mut results = PipelineCursor::open(&mut cx.op, request)?;
    let mut w = Writer::new();
    w.open_array("docs");
    results.fill(&mut cx.op, &mut w, 1, cursor::BATCH_BYTES)?;
    w.close();
    let docs = w.finish();
    let row = docs.get("docs").and_then(|v| v.as_array());
    let n = row
        .and_then(|a| a.values().next())
        .and_then(|v| v.as_doc()?.get("count")?.to_i64_exact())
        .unwrap_or(0);
    cx.w.int("n", n);
    Ok(Done::Reply)
}

pub fn distinct(cx: &mut CommandContext<'_, '_>, key: &str) -> Result<Done> {
    let request = request(cx, "distinct")?;
    let ns = cx.args.namespace()?;
    let collation = collation::effective(cx, &ns, &collation(cx)?)?;
    let path = FieldPath::new(key);
    let values = executor::distinct_of(&mut cx.op, request, &path, collation.as_ref())?;
    cx.w.open_array("values");
    for v in &values {
        cx.w.push(v.as_val());
    }
    cx.w.close();
    cx.int_ok = true;
    Ok(Done::Reply)
}

/// `{explain: {find: a view, …}}`, `command` in `cx.args`: explained as the pipeline that it is.
pub fn explain(
    cx: &mut CommandContext<'_, '_>,
    command: &'static str,
    inner: Doc<'_>,
    verbosity: Verbosity,
) -> Result<Done> {
    let request = request(cx, command)?;
    explain_pipeline::write_explain_of(cx, inner, request, verbosity)
}
