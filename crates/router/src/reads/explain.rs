//! `explain`: what each shard would do, and the router's part of a pipeline.

use crate::listing::stats::sum;
use crate::reads::pipeline_parts::Parts;
use crate::reads::small_side::Joins;
use crate::reads::{aggregate, views};
use crate::request::{RoutedCommand, finish, is_ours};
use crate::state::Router;
use crate::targeting::pipeline::{
    fuses, joined_collections, pipeline_context, pipeline_targets, stage_of,
};
use crate::targeting::targets;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::Outcome;
use cluster_view::metadata::Placement;
use cluster_view::reply::sound;
use cluster_view::upstream::with_fields;
use errors::err;
use service::Request;
use std::sync::Arc;

/// What each shard would do. A view is read as the pipeline over what lies below it, step by step
/// where that is a view itself, as a read of it is.
pub(crate) fn explain(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let Some(inner) = command.document("explain") else {
        return Err(err!(BadValue, "explain needs a command").into());
    };
    let asked = with_fields(inner, doc! {"$db": command.db}.as_doc());
    let request = Request::own(asked.as_doc());
    let read = RoutedCommand::of(&request)?;
    let Some(below) = views::below_defined(router, &read)? else {
        return explain_stored(router, command, &read);
    };
    let mut w = Writer::new();
    w.open_doc("explain");
    for e in below.as_doc().iter().filter(|e| e.name != "$db") {
        w.val(e.name, e.val);
    }
    w.close();
    for e in command.body.iter().skip(1) {
        w.val(e.name, e.val);
    }
    let below = w.finish();
    let request = Request::own(below.as_doc());
    let below = RoutedCommand::of(&request)?.by(command.user.clone());
    sound(explain(router, &below)?)
}

/// `aggregate`: with the argument `explain` it is shown, as by the command `explain`.
pub(crate) fn aggregate(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let streams = command.stages().values().next().and_then(stage_of);
    let streams = streams.is_some_and(|(name, _)| name == "$changeStream");
    if !command.is("explain") || command.collection().is_empty() || streams {
        return aggregate::run(router, command);
    }
    let generic = |name: &str| matches!(name, "lsid" | "maxTimeMS" | "comment" | "$db");
    let mut w = Writer::new();
    w.open_doc("explain");
    let whole = command.whole();
    for e in whole
        .as_doc()
        .iter()
        .filter(|e| e.name != "explain" && !generic(e.name))
    {
        w.val(e.name, e.val);
    }
    if !command.body.contains("cursor") {
        w.open_doc("cursor").close();
    }
    w.close().str("verbosity", "queryPlanner");
    for e in whole.as_doc().iter().filter(|e| generic(e.name)) {
        w.val(e.name, e.val);
    }
    let explained = w.finish();
    let request = Request::own(explained.as_doc());
    let explained = RoutedCommand::of(&request)?.by(command.user.clone());
    sound(explain(router, &explained)?)
}

/// Where an explained command looks for documents.
fn filter_of<'a>(inner: &RoutedCommand<'a>) -> Doc<'a> {
    let first_of = |statements: &str| {
        let all = inner.body.get(statements)?.as_array()?;
        all.values().next()?.as_doc()?.get("q")?.as_doc()
    };
    let name = inner.body.first().map_or("", |e| e.name);
    let filter = match name {
        "find" => inner.document("filter"),
        "update" => first_of("updates"),
        "delete" => first_of("deletes"),
        _ => inner.document("query"),
    };
    filter.unwrap_or(Doc::EMPTY)
}

/// Sends it with what the router believes, as the command itself goes: a shard hides what it does
/// not own, and refuses what it knows better.
fn explain_stored(
    router: &Router,
    command: &RoutedCommand<'_>,
    inner: &RoutedCommand<'_>,
) -> Outcome<DocBuf> {
    let ns = format!("{}.{}", command.db, inner.collection());
    let is_pipeline = inner.body.first().is_some_and(|e| e.name == "aggregate");
    let stages = match is_pipeline {
        true => inner.stages(),
        false => Doc::EMPTY,
    };
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return Ok(router.local.explain_absent(&command.step()?)?);
        };
        let shards = match is_pipeline {
            true => pipeline_targets(inner, inner.body, placement, stages)?,
            false => targets(inner, placement, filter_of(inner))?,
        };
        let whole = command.whole();
        let is_whole_on = |shard: &Arc<str>| {
            let others = joined_collections(command.db, stages);
            aggregate::are_all_on(router, shard, &others)
        };
        if let (Placement::Unsharded(_), [shard]) = (placement, shards.as_slice())
            && is_whole_on(shard)?
        {
            return router.cluster.send(placement, shard, whole.as_doc(), &[]);
        }
        if is_pipeline {
            let own = placement.table().and_then(|t| t.entry.collation.as_ref());
            let collation = inner.own_collation().or(own.map(DocBuf::as_doc));
            return explain_pipeline(router, command, inner.body, collation, (placement, &shards));
        }
        let to_each: Vec<_> = shards.iter().map(|s| (s.clone(), whole.clone())).collect();
        let replies = router.cluster.scatter(placement, &to_each)?;
        let mut explained = Vec::new();
        for (shard, reply) in shards.iter().zip(replies) {
            explained.push((shard.clone(), sound(reply)?));
        }
        explained_together(router, &explained)
    })
}

/// One explanation of a command that several shards explain.
fn explained_together(router: &Router, explained: &[(Arc<str>, DocBuf)]) -> Outcome<DocBuf> {
    let mut w = Writer::new();
    let stage = match explained.len() {
        1 => "SINGLE_SHARD",
        _ => "SHARD_MERGE",
    };
    w.open_doc("queryPlanner")
        .open_doc("winningPlan")
        .str("stage", stage);
    w.open_array("shards");
    for (shard, reply) in explained {
        let mut one = Writer::new();
        one.str("shardName", shard)
            .str("connectionString", &router.cluster.shard(shard)?.address);
        if let Some(planner) = reply.get("queryPlanner").and_then(Val::as_doc) {
            one.extend(planner);
        }
        w.push(one.finish().as_doc().as_val());
    }
    w.close().close().close();
    let stats: Vec<_> = explained
        .iter()
        .filter_map(|(s, r)| Some((s.clone(), r.get("executionStats")?.as_doc()?.to_buf())))
        .collect();
    if !stats.is_empty() {
        w.open_doc("executionStats");
        let names = ["nReturned", "totalKeysExamined", "totalDocsExamined"];
        sum(&stats, &names, &mut w);
        w.open_doc("executionStages")
            .str("stage", stage)
            .open_array("shards");
        for (shard, s) in &stats {
            let mut one = Writer::new();
            one.str("shardName", shard).extend(s.as_doc());
            w.push(one.finish().as_doc().as_val());
        }
        w.close().close().close();
    }
    Ok(finish(w, &[]))
}

/// Each shard's plan for a pipeline, and the router's part.
fn explain_pipeline(
    router: &Router,
    command: &RoutedCommand<'_>,
    inner: Doc<'_>,
    collation: Option<Doc<'_>>,
    (placement, shards): (&Placement, &[Arc<str>]),
) -> Outcome<DocBuf> {
    let stages = inner.get("pipeline").and_then(Val::as_array);
    let stages = stages.unwrap_or(Doc::EMPTY);
    let context = pipeline_context(command.db, inner, collation)?;
    let joins = Joins::of(router, command, &context);
    let others = joined_collections(command.db, stages);
    let is_split = match shards {
        [shard] => fuses(stages) || !aggregate::are_all_on(router, shard, &others)?,
        _ => true,
    };
    let (each, rest) = match is_split {
        true => Parts::of(&context, stages, &|name, spec| joins.join(name, spec))?.shown(),
        false => (stages.as_array_val().to_value(), Val::NULL.to_value()),
    };
    let mut run = Writer::new();
    for e in inner.iter().filter(|e| !is_ours(e.name)) {
        match e.name {
            "pipeline" => run.val("pipeline", each.as_val()),
            name => run.val(name, e.val),
        };
    }
    if let Some(joins) = joins.remote_joins().filter(|_| is_split) {
        run.val("joinsElsewhere", joins.as_val());
    }
    let mut body = Writer::new();
    body.doc("explain", run.finish().as_doc())
        .extend(command.without(&["explain"]).finish().as_doc());
    let body = body.finish();
    let mut w = Writer::new();
    match is_split {
        true => {
            w.str("mergeType", "router").open_doc("splitPipeline");
            w.val("shardsPart", each.as_val())
                .val("mergerPart", rest.as_val())
                .close();
        }
        false => _ = w.null("splitPipeline"),
    }
    w.open_doc("shards");
    let to_each: Vec<_> = shards.iter().map(|s| (s.clone(), body.clone())).collect();
    let replies = router.cluster.scatter(placement, &to_each)?;
    for (shard, reply) in shards.iter().zip(replies) {
        w.doc(shard, of_shard(router, shard, &sound(reply)?)?.as_doc());
    }
    w.close();
    Ok(finish(w, &[]))
}

/// What a shard's reply says of its plan, and where it is.
fn of_shard(router: &Router, shard: &str, reply: &DocBuf) -> Outcome<DocBuf> {
    let mut w = Writer::new();
    w.str("host", &router.cluster.shard(shard)?.address);
    let not_of_plans = [
        "ok",
        "$clusterTime",
        "operationTime",
        "serverInfo",
        "command",
    ];
    let plan = reply.as_doc().iter();
    for e in plan.filter(|e| !not_of_plans.contains(&e.name)) {
        w.val(e.name, e.val);
    }
    Ok(w.finish())
}
