//! `aggregate`, and its part of explain.

use super::cursor::{self, Keep};
use super::explain::Verbosity;
use super::{change_stream, explain_pipeline, shape, snapshot, through_primary, variables};
use crate::Commands;
use crate::crud::query_settings;
use crate::crud::rows;
use crate::crud::stored_config;
use crate::request::collation::{self, CollationArgument};
use crate::request::transaction;
use crate::request::{CommandContext, Done};
use crate::shard::joins;
use bson::{Doc, DocBuf, Elem, Val, Writer};
use catalog::Snapshot;
use errors::{Result, bail};
use executor::{AggregateRequest, MergesApart, PipelineCursor, ReadRemotely};
use front::Args;
use front::idl;
use planner::Hint;
use query::pipeline::{Namespace, ParseCtx, Pipeline, written};

pub(super) struct Aggregate {
    ns: String,
    pub(super) request: AggregateRequest,
    batch: u64,
    bypass_validation: bool,
    merge_key_checked: bool,
}

idl::arguments! {
    /// The arguments of aggregate as they are written.
    struct Arguments<'a> {
        "pipeline" => pipeline: Option<Val<'a>> = idl::value,
        "cursor" => cursor: Option<Option<u64>> = read_cursor,
        "explain" => explain: Option<bool> = bool_not_null,
        "allowDiskUse" => allow_disk_use: Option<bool> = bool_not_null,
        "let" => let_: Option<Doc<'a>> = idl::doc,
        "hint" => hint: Option<Hint> = variables::read_hint_not_null,
        "collation" => collation: CollationArgument = collation::read,
        "bypassDocumentValidation" => bypass_validation: bool = idl::flag,
        "mergeKeyChecked" => merge_key_checked: bool = idl::flag,
        "mergesApart" => merges_apart: bool = idl::flag,
        "joinsElsewhere" => joins_elsewhere: Option<Doc<'a>> = idl::array,
    }
    checked: "encryptionInformation" => idl::no_encryption;
    ignored: "fromMongos" | "needsMerge" | "exchange" | "collectionUUID" | "isMapReduceCommand"
        | "includeQueryStatsMetrics" | "querySettings" | "requestResumeToken"
        | "passthroughToShard" | "fromRouter" | "mergeTarget";
}

/// The argument `cursor`: the size of the first batch, if it tells one.
fn read_cursor(within: &str, e: Elem<'_>) -> Result<Option<Option<u64>>> {
    match e.val.as_doc() {
        Some(d) => cursor::read_batch_size("cursor", d).map(Some),
        None => Err(idl::mismatch(within, e.name, e.val, &["object"])),
    }
}

/// A boolean, and null is none.
fn bool_not_null(within: &str, e: Elem<'_>) -> Result<Option<bool>> {
    match e.val.as_bool() {
        Some(b) => Ok(Some(b)),
        None => Err(idl::mismatch(within, e.name, e.val, &["bool"])),
    }
}

/// The collection that an aggregate is on; `None` for `1`, which is the database.
fn collection<'a>(first: Val<'a>) -> Result<Option<&'a str>> {
    match first.as_str() {
        Some(c) => Ok(Some(c)),
        None if first.to_f64() == Some(1.0) => Ok(None),
        None if first.is_number() => {
            bail!(
                BadValue,
                "Invalid command format: the 'aggregate' field must specify a collection name or 1"
            )
        }
        None => bail!(
            InvalidNamespace,
            "collection name has invalid type {}",
            first.type_name()
        ),
    }
}

const AT: &str = "aggregate";

/// The arguments, and the pipeline, which has to be among them. `needs_cursor`: so has `cursor`.
fn arguments<'a>(args: &Args<'a>, needs_cursor: bool) -> Result<(Arguments<'a>, Val<'a>)> {
    let a = Arguments::parse(AT, args.fields.iter().copied())?;
    let pipeline: Val = idl::required(AT, "pipeline", a.pipeline)?;
    if a.cursor.is_none() && a.explain != Some(true) && needs_cursor {
        bail!(
            FailedToParse,
            "The 'cursor' option is required, except for aggregate with the explain argument"
        );
    }
    if args.generic.api.strict {
        check_strict(pipeline)?;
    }
    Ok((a, pipeline))
}

/// Checks the arguments as far as that needs no collection.
pub fn check(args: &Args<'_>) -> Result<()> {
    let stages = args.field("pipeline").and_then(|v| v.as_array());
    let first = stages.and_then(|s| s.values().next()?.as_doc()?.first());
    args.namespace_of(collection(args.first)?.unwrap_or("$cmd.aggregate"))?;
    if let Some(e) = first.filter(|e| e.name == change_stream::STAGE) {
        return change_stream::check(args, e.val);
    }
    let (_, pipeline) = arguments(args, true)?;
    written(pipeline)?.try_for_each(|stage| stage.map(drop))?;
    check_read_concern(args, pipeline)
}

pub(super) fn parse(cx: &CommandContext<'_, '_>) -> Result<Aggregate> {
    let coll = collection(cx.args.first)?;
    let ns = cx.args.namespace_of(coll.unwrap_or("$cmd.aggregate"))?;
    let (a, pipeline) = arguments(&cx.args, cx.command.name == AT)?;
    let documents = stored_config::stage(cx, &ns);
    let with_documents = documents.as_ref().map(|d| behind(d.as_doc(), pipeline));
    let (coll, pipeline) = match &with_documents {
        Some(stages) => (None, stages.get("pipeline").unwrap_or(Val::NULL)),
        None => (coll, pipeline),
    };
    check_read_concern(&cx.args, pipeline)?;
    if cx.transaction.is_some() {
        transaction::check_stages(pipeline)?;
    }
    let (env, vars) = variables::variables(cx, &ns, &a.collation, a.let_)?;
    if pipeline.as_array().is_some_and(rows::needs_worker) {
        cx.op.need_worker()?;
    }
    let ctx = ParseCtx::new(cx.args.db, coll, env);
    let pipeline = parse_stages(cx.app, pipeline, &ctx)?;
    let request = AggregateRequest {
        ns: Namespace::new(cx.args.db, coll.unwrap_or("$cmd.aggregate")),
        pipeline: match a.merges_apart {
            true => pipeline.merging_apart(),
            false => pipeline,
        },
        vars,
        hint: a.hint,
        allow_disk_use: a
            .allow_disk_use
            .unwrap_or_else(|| cx.app.parameters.bool(super::find::DISK_USE)),
        server_rows: Some(rows::for_pipeline(cx.app, cx.client)),
        remote: remote_reads(cx, a.joins_elsewhere)?,
        causal: is_causal(&cx.args),
        merges_apart: a.merges_apart.then_some(MergesApart {
            bypass_validation: a.bypass_validation,
            key_checked: a.merge_key_checked,
        }),
    };
    Ok(Aggregate {
        ns,
        request,
        batch: a.cursor.flatten().unwrap_or(cursor::FIRST_BATCH),
        bypass_validation: a.bypass_validation,
        merge_key_checked: a.merge_key_checked,
    })
}

/// Parses the stages of a pipeline, and checks what of them depends on the catalog.
pub(crate) fn parse_stages(
    app: &Commands,
    stages: Val<'_>,
    context: &ParseCtx,
) -> Result<Pipeline> {
    let pipeline = Pipeline::parse(stages, context)?;
    let (ranked, read) = (pipeline.fuses(), pipeline.reads());
    if !ranked.is_empty() || !read.is_empty() {
        let snapshot = app.engine.catalog.snapshot();
        ranked
            .iter()
            .try_for_each(|ns| check_fused(&snapshot, ns))?;
        snapshot.check_collation(read.iter(), context.env.collation())?;
    }
    if context.coll.is_none() && !context.is_rest() && !pipeline.makes_input() {
        bail!(
            InvalidNamespace,
            "{{aggregate: 1}} is not valid for '{}'; a collection is required.",
            pipeline
                .stages()
                .first()
                .map_or("an empty pipeline", |s| s.name)
        );
    }
    Ok(pipeline)
}

/// Measurements are not ranked.
fn check_fused(snapshot: &Snapshot, ns: &Namespace) -> Result<()> {
    let on = match snapshot.resolve(&ns.to_string())? {
        Some(r) => r.on.coll.clone(),
        None => ns.coll.clone(),
    };
    if on.starts_with("system.buckets.") {
        bail!(
            10557301,
            "$rankFusion and $scoreFusion are unsupported on timeseries collections"
        );
    }
    Ok(())
}

/// Whether the client tells what it has seen.
fn is_causal(args: &Args<'_>) -> bool {
    let concern = args.generic.read_concern.and_then(|v| v.as_doc());
    concern.is_some_and(|d| d.contains("afterClusterTime"))
}

/// How the pipeline reads other collections, where that is not from this server.
fn remote_reads(
    cx: &CommandContext<'_, '_>,
    joins: Option<Doc<'_>>,
) -> Result<Option<ReadRemotely>> {
    if let Some(joins) = joins {
        return joins::read_by(cx, joins).map(Some);
    }
    let Some(collections) = cx.app.remote_collections.get() else {
        return Ok(None);
    };
    let given = cx.args.field("collation").and_then(|v| v.as_doc());
    Ok(Some(ReadRemotely {
        collections: collections.clone(),
        collation: given.filter(|d| !d.is_empty()).map(Doc::to_buf),
        within: DocBuf::new(),
    }))
}

/// A pipeline with a stage before it.
fn behind(first: Doc<'_>, pipeline: Val<'_>) -> DocBuf {
    let mut w = Writer::new();
    w.open_array("pipeline");
    w.open_doc("").extend(first).close();
    for stage in pipeline.as_array().unwrap_or(Doc::EMPTY).values() {
        w.push(stage);
    }
    w.close();
    w.finish()
}

/// Stages that tell about this server take no read concern but local, and those that write not
/// linearizable.
fn check_read_concern(args: &Args<'_>, pipeline: Val<'_>) -> Result<()> {
    let concern = args.generic.read_concern.and_then(|v| v.as_doc());
    let Some(level) = concern.and_then(|d| d.get("level")?.as_str()) else {
        return Ok(());
    };
    let stages = pipeline.as_array().unwrap_or(Doc::EMPTY);
    for e in stages.values().filter_map(|v| v.as_doc()?.first()) {
        let refused = match e.name {
            "$currentOp"
            | "$listClusterCatalog"
            | "$listLocalSessions"
            | "$planCacheStats"
            | "$querySettings" => level != "local",
            "$out" | "$merge" => level == "linearizable",
            _ => false,
        };
        if refused {
            bail!(
                InvalidOptions,
                "Aggregation stage {} cannot run with a readConcern other than 'local', or in a multi-document transaction. Current readConcern: {level}",
                e.name
            );
        }
    }
    Ok(())
}

/// Under `apiStrict`, the stages that tell about the server are no part of version 1.
fn check_strict(pipeline: Val<'_>) -> Result<()> {
    let stages = pipeline.as_array().unwrap_or(Doc::EMPTY);
    for e in stages.values().filter_map(|v| v.as_doc()?.first()) {
        let stats = e.val.as_doc().filter(|_| e.name == "$collStats");
        let only_count = stats.is_none_or(|d| d.iter().all(|e| e.name == "count"));
        if !only_count
            || matches!(
                e.name,
                "$_internalInhibitOptimization"
                    | "$currentOp"
                    | "$indexStats"
                    | "$listClusterCatalog"
                    | "$listLocalSessions"
                    | "$listSessions"
                    | "$planCacheStats"
                    | "$listSearchIndexes"
                    | "$rankFusion"
                    | "$score"
                    | "$scoreFusion"
                    | "$search"
                    | "$searchMeta"
                    | "$vectorSearch"
            )
        {
            bail!(
                APIStrictError,
                "stage {} is not allowed with 'apiStrict: true' in API Version 1",
                e.name
            );
        }
    }
    Ok(())
}

/// The shape of the aggregate that `cx.args` holds, which is checked.
pub fn query_shape(cx: &CommandContext<'_, '_>) -> Result<DocBuf> {
    let ns = parse(cx)?.ns;
    shape_of(cx, &ns)
}

fn shape_of(cx: &CommandContext<'_, '_>, ns: &str) -> Result<DocBuf> {
    let given = cx.args.field("collation").and_then(|v| v.as_doc());
    let collation = collation::given(given)?.flatten();
    let stages = cx.args.field("pipeline").unwrap_or(Val::NULL);
    Ok(shape::of_pipeline(ns, stages, collation.as_ref()))
}

/// With the argument `explain`. `shown`: the command as the reply has it.
pub fn explain(cx: &mut CommandContext<'_, '_>, shown: Doc<'_>) -> Result<Done> {
    if cx.args.generic.api.strict {
        bail!(
            APIStrictError,
            "The 'explain' argument of aggregate is not in API Version 1"
        );
    }
    explain_pipeline::write_explain(cx, shown, Verbosity::QueryPlanner)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    if cx.args.field("explain").and_then(|v| v.as_bool()) == Some(true) {
        return explain(cx, cx.request.body);
    }
    if change_stream::is_one(cx)? {
        return change_stream::run(cx);
    }
    if let Some(done) = through_primary::run(cx)? {
        return Ok(done);
    }
    let mut a = parse(cx)?;
    if !cx.app.query_settings.is_empty() {
        let shape = shape_of(cx, &a.ns)?;
        query_settings::heed(cx, &a.ns, &shape, &mut a.request.hint)?;
    }
    cx.op.bypass_validation = a.bypass_validation;
    cx.op.merges_by_checked_key = a.merge_key_checked;
    let last = a.request.pipeline.stages().last().map(|s| s.name);
    // What writes looks at its target as it is.
    if !matches!(last, Some("$out" | "$merge")) {
        snapshot::enter(cx)?;
    }
    let keep_uuid;
    let results = {
        let c = PipelineCursor::open(&mut cx.op, a.request)?;
        keep_uuid = c.uuid;
        Box::new(c)
    };
    cursor::first_batch(
        cx,
        &a.ns,
        results,
        a.batch,
        Keep {
            uuid: keep_uuid,
            ..Keep::default()
        },
    )?;
    Ok(Done::Reply)
}
