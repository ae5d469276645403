//! `mapReduce`: a pipeline whose stages call the user's functions.
//!
//! The documents that `query`, `sort` and `limit` choose are mapped (`$_internalJsEmit`), what they
//! emitted is grouped by key and reduced (`$_internalJsReduce`), then finalized (`$function`) and
//! given back, or written by `$out` or `$merge`.

use super::explain::Verbosity;
use super::variables;
use crate::Commands;
use crate::request::{CommandContext, Done};
use bson::{Doc, Elem, Val, Value, Writer, tag};
use errors::{Error, Result, bail};
use executor::{AggregateRequest, PipelineCursor};
use front::Args;
use front::idl;
use front::map_reduce::Out;
use query::expr::Vars;
use query::pipeline::{Namespace, ParseCtx, Pipeline};
use query::script::SCOPE;
use std::sync::Arc;

const AT: &str = "mapReduce";
/// Bytes of the results that a reply may hold.
const REPLY_BYTES: usize = 16 << 20;

#[derive(Default)]
struct MapReduce<'a> {
    map: Option<Val<'a>>,
    reduce: Option<Val<'a>>,
    finalize: Option<Val<'a>>,
    out: Option<Out<'a>>,
    query: Option<Doc<'a>>,
    sort: Option<Doc<'a>>,
    limit: i64,
    scope: Option<Doc<'a>>,
    collation: crate::request::collation::CollationArgument,
    bypass_validation: bool,
}

fn function<'a>(e: Elem<'a>) -> Result<Option<Val<'a>>> {
    match e.val.tag {
        tag::NULL | tag::UNDEFINED => Ok(None),
        tag::STRING | tag::CODE => Ok(Some(e.val)),
        _ => bail!(BadValue, "'{}' must be of string or code type", e.name),
    }
}

fn parse<'a>(args: &Args<'a>) -> Result<MapReduce<'a>> {
    let mut m = MapReduce::default();
    for e in &args.fields {
        let e = *e;
        match e.name {
            "map" => m.map = function(e)?,
            "reduce" => m.reduce = function(e)?,
            "finalize" => m.finalize = function(e)?,
            "out" => m.out = Some(Out::parse(e.val)?),
            "query" => m.query = idl::doc(AT, e)?,
            "sort" => m.sort = idl::doc(AT, e)?,
            "limit" => m.limit = idl::int(AT, e)?.unwrap_or(0),
            "scope" => m.scope = idl::doc(AT, e)?,
            "collation" => m.collation = crate::request::collation::given(idl::doc(AT, e)?)?,
            "bypassDocumentValidation" => {
                m.bypass_validation = idl::safe_bool(AT, e)?.unwrap_or(false)
            }
            "jsMode" | "verbose" => {
                idl::boolean(AT, e)?;
            }
            _ => return Err(args.unknown(e)),
        }
    }
    if m.limit < 0 {
        bail!(15958, "The limit specified to mapReduce must be positive");
    }
    if m.sort.is_some_and(Doc::is_empty) {
        bail!(
            15976,
            "The mapReduce sort option must have at least one sort key"
        );
    }
    Ok(m)
}

/// `{$function: …}` with these arguments.
fn call(w: &mut Writer, body: Val<'_>, args: &[&str]) {
    w.open_doc("$function").val("body", body).open_array("args");
    for arg in args {
        w.str("", arg);
    }
    w.close().str("lang", "js").close();
}

/// `{$project: {value: {$function: …}}}`, which finalizes.
fn finalizing(w: &mut Writer, finalize: Val<'_>) {
    w.open_doc("").open_doc("$project").open_doc("value");
    call(w, finalize, &["$_id", "$value"]);
    w.close().close().close();
}

fn pipeline_of(m: &MapReduce<'_>, map: Val<'_>, reduce: Val<'_>, db: &str) -> Value {
    let mut w = Writer::new_array();
    if let Some(query) = m.query {
        w.open_doc("").doc("$match", query).close();
    }
    if let Some(sort) = m.sort {
        w.open_doc("").doc("$sort", sort).close();
    }
    if m.limit > 0 {
        w.open_doc("").i64("$limit", m.limit).close();
    }
    w.open_doc("").open_doc("$project").i32("_id", 0);
    w.open_doc("emits").open_doc("$_internalJsEmit");
    w.str("this", "$$ROOT").val("eval", map);
    w.close().close().close().close();
    w.open_doc("").str("$unwind", "$emits").close();
    w.open_doc("").open_doc("$group").str("_id", "$emits.k");
    w.open_doc("value").open_doc("$_internalJsReduce");
    w.str("data", "$emits").val("eval", reduce);
    w.close().close().close().close();
    if let Some(f) = m.finalize {
        finalizing(&mut w, f);
    }
    if let Some(Out::Collection {
        mode,
        db: other,
        name,
    }) = &m.out
    {
        let db = other.unwrap_or(db);
        w.open_doc("");
        if *mode == "replace" {
            w.open_doc("$out").str("db", db).str("coll", name).close();
        } else {
            w.open_doc("$merge").open_doc("into");
            w.str("db", db).str("coll", name).close();
            w.str("on", "_id").str("whenNotMatched", "insert");
            if *mode == "merge" {
                w.str("whenMatched", "replace");
            } else {
                reducing_again(&mut w, m, reduce);
            }
            w.close();
        }
        w.close();
    }
    w.finish_array()
}

/// What becomes of a document that is there already: its value and the new one are reduced.
fn reducing_again(w: &mut Writer, m: &MapReduce<'_>, reduce: Val<'_>) {
    w.open_array("whenMatched");
    w.open_doc("").open_doc("$project").open_doc("value");
    w.open_doc("$function").val("body", reduce);
    w.open_array("args").str("", "$_id").open_array("");
    w.str("", "$value").str("", "$$new.value");
    w.close().close().str("lang", "js").close();
    w.close().close().close();
    if let Some(f) = m.finalize {
        finalizing(w, f);
    }
    w.close();
}

/// What a router makes of the command.
pub struct RoutedMapReduce {
    /// The stages, the one that writes too.
    pub pipeline: Value,
    pub writes: bool,
    /// The functions see variables.
    pub scoped: bool,
    /// `result` of the reply.
    pub result: Option<Value>,
}

impl Commands {
    /// The pipeline that a `mapReduce` stands for.
    pub fn routed_map_reduce(
        &self,
        request: &service::Request<'_>,
    ) -> Result<RoutedMapReduce, Error> {
        let args = Args::parse(AT, request.body, request.legacy_db);
        let made = args.and_then(|args| {
            let m = parse(&args)?;
            let map = idl::required(AT, "map", m.map)?;
            let reduce = idl::required(AT, "reduce", m.reduce)?;
            let out = idl::required(AT, "out", m.out.as_ref())?;
            let result = match out {
                Out::Inline => None,
                Out::Collection { db: None, name, .. } => Some(Value::from(*name)),
                Out::Collection {
                    db: Some(db), name, ..
                } => Some(bson::doc! {"db": *db, "collection": *name}.into()),
            };
            Ok(RoutedMapReduce {
                pipeline: pipeline_of(&m, map, reduce, args.db),
                writes: result.is_some(),
                scoped: m.scope.is_some(),
                result,
            })
        });
        made.map_err(|stop| stop.into_error())
    }
}

/// A mapReduce that may run, as the pipeline that it stands for.
fn request(cx: &CommandContext<'_, '_>, m: &MapReduce<'_>) -> Result<AggregateRequest> {
    let ns = cx.args.namespace()?;
    let map = idl::required(AT, "map", m.map)?;
    let reduce = idl::required(AT, "reduce", m.reduce)?;
    idl::required(AT, "out", m.out.as_ref())?;
    if cx.app.engine.catalog.get(&ns).is_some_and(|c| c.is_view()) {
        bail!(
            CommandNotSupportedOnView,
            "Namespace {ns} is a view, not a collection"
        );
    }
    let (env, mut vars) = variables::variables(cx, &ns, &m.collation, None)?;
    if let Some(scope) = m.scope {
        let mut with_scope = Vars::clone(&vars);
        with_scope.set(SCOPE, scope.as_val().to_value());
        vars = Arc::new(with_scope);
    }
    let coll = cx.args.first.as_str().unwrap_or("");
    let ctx = ParseCtx::new(cx.args.db, Some(coll), env);
    let stages = pipeline_of(m, map, reduce, cx.args.db);
    Ok(AggregateRequest {
        causal: false,
        merges_apart: None,
        ns: Namespace::new(cx.args.db, coll),
        pipeline: Pipeline::parse(stages.as_val(), &ctx)?,
        vars,
        hint: None,
        allow_disk_use: true,
        server_rows: None,
        remote: None,
    })
}

/// `{explain: {mapReduce: …}}`: its pipeline's explanation.
pub(super) fn explain(cx: &mut CommandContext<'_, '_>, verbosity: Verbosity) -> Result<Done> {
    // The inner command lives as long as the request.
    let Some(inner) = cx.args.first.as_doc() else {
        return Ok(Done::Reply);
    };
    let args = Args::parse(AT, inner, Some(cx.args.db))?;
    let outer = std::mem::replace(&mut cx.args, args);
    let done = parse(&cx.args).and_then(|m| {
        let request = request(cx, &m)?;
        super::explain_pipeline::write_explain_of(cx, inner, request, verbosity)
    });
    cx.args = outer;
    done
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let m = parse(&cx.args)?;
    let request = request(cx, &m)?;
    let out = idl::required(AT, "out", m.out.as_ref())?;
    cx.op.bypass_validation = m.bypass_validation;
    let mut results = PipelineCursor::open(&mut cx.op, request)?;
    match out {
        Out::Inline => {
            cx.w.open_array("results");
            if !results.fill(&mut cx.op, &mut cx.w, u64::MAX, REPLY_BYTES)? {
                bail!(
                    BSONObjectTooLarge,
                    "the results of mapReduce do not fit into one reply"
                );
            }
            cx.w.close();
        }
        Out::Collection { db, name, .. } => {
            while results.advance(&mut cx.op)? {}
            match db {
                None => cx.w.str("result", name),
                Some(db) => {
                    cx.w.open_doc("result")
                        .str("db", db)
                        .str("collection", name);
                    cx.w.close()
                }
            };
        }
    }
    Ok(Done::Reply)
}
