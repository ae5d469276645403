//! `aggregate`: the whole pipeline on one shard where all of its documents are there. Otherwise its
//! first stages run on the shards ([`Parts`]), and the rest here, which reads what the shards give as it
//! needs it ([`merging`]).
//!
//! Invariant: a stage that needs all documents sees all of them.

use crate::databases::make_database;
use crate::merge::Merge;
use crate::reads::cluster_stages::naming;
use crate::reads::cursors::first_batch;
use crate::reads::pipeline_parts::Parts;
use crate::reads::small_side::Joins;
use crate::reads::{change_stream, cluster_stages, merge_into, merging, search, synonyms, views};
use crate::request::{RoutedCommand, own};
use crate::state::{Router, cursors};
use crate::targeting::pipeline::{
    fuses, is_of_one_collection, joined_collections, pipeline_context, pipeline_targets, stage_of,
};
use crate::targeting::pipeline_context::list;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::chunks::lock;
use cluster_view::metadata::{Placement, Unsharded};
use cluster_view::reply::sound;
use cluster_view::{Failure, Outcome};
use commands::RouterPipeline;
use errors::{Code, err};
use mover::PendingMoves;
use query::expr::ParseEnv;
use query::pipeline::merged::Found;
use query::pipeline::{Named, ParseCtx, Pipeline};
use std::sync::Arc;

const SHARD_BATCH: i64 = 1000;

pub(crate) fn run(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let stages = command.stages();
    let first = stages.values().next().and_then(stage_of);
    if let Some(("$changeStream", spec)) = first {
        return change_stream::open(router, command, stages, spec);
    }
    if command.collection().is_empty() {
        return without_collection(router, command, stages);
    }
    if let Some(body) = synonyms::with_documents(router, command, stages)? {
        return own(router, &body, run);
    }
    let ns = command.namespace()?;
    let others = joined_collections(command.db, stages);
    let written = Written::of(command.db, stages)?;
    if let Some(written) = &written {
        check_target(command, stages)?;
        make_database(&router.cluster, &written.db, None)?;
        router.cluster.refresh(&written.ns())?;
    }
    let outcome = match &written {
        // A collection that is replaced is not moved meanwhile: the log of the old one says nothing
        // of the new one's documents.
        Some(written) if written.replaces => {
            let ns_of_target = written.ns();
            let held = lock(&router.cluster, &ns_of_target)?;
            router
                .cluster
                .end_pending_moves_under(&held, &ns_of_target)?;
            router.cluster.agree(&ns_of_target, |target| {
                read(router, command, stages, &ns, &others, Some(target))
            })?
        }
        None => read(router, command, stages, &ns, &others, None)?,
        // Where the target is has to be known as well as where the documents are.
        Some(written) => router.cluster.agree(&written.ns(), |target| {
            read(router, command, stages, &ns, &others, Some(target))
        })?,
    };
    match (outcome, written) {
        (Some(reply), _) => match views::resolved_view(&reply) {
            Some(_) if fuses(stages) => fused(router, command, &ns),
            Some(view) => views::aggregate(router, command, &view),
            None => Ok(reply),
        },
        (None, Some(written)) => merge_into::run(router, command, stages, &written),
        (None, None) => Err(err!(InternalError, "a pipeline was not run").into()),
    }
}

/// Fails where `$out` or `$merge`, the last stage, is not as it has to be: before anything is made
/// for it.
fn check_target(command: &RoutedCommand<'_>, stages: Doc<'_>) -> Outcome<()> {
    let mut env = ParseEnv::new();
    for e in command.variables().unwrap_or(Doc::EMPTY) {
        env.define(e.name)?;
    }
    let mut last = Writer::new_array();
    stages.values().last().into_iter().for_each(|s| {
        last.push(s);
    });
    let context = ParseCtx::new(command.db, Some(command.collection()), env);
    Pipeline::parse(last.finish_array().as_val(), &context)?;
    Ok(())
}

/// The shard that can run a pipeline alone, and what it is asked, where neither another collection
/// nor what the cluster knows has a part in it.
pub(crate) fn on_one_shard(
    command: &RoutedCommand<'_>,
    placement: &Placement,
) -> Option<(Arc<str>, DocBuf)> {
    let stages = command.field("pipeline").and_then(Val::as_array)?;
    let first = stages.values().next().and_then(stage_of);
    let streams = first.is_some_and(|(name, _)| name == "$changeStream");
    if streams || !is_of_one_collection(command.db, stages) || command.collection().is_empty() {
        return None;
    }
    let mut shards = pipeline_targets(command, command.body, placement, stages).ok()?;
    let shard = shards.pop().filter(|_| shards.is_empty())?;
    let body = naming(command.whole(), &shard);
    Some((shard, body))
}

/// Whether all of these collections are on one shard, as far as they exist.
pub(crate) fn are_all_on(router: &Router, shard: &str, others: &[String]) -> Outcome<bool> {
    for other in others {
        match router.cluster.placement(other)? {
            None => {}
            Some(Placement::Unsharded(unsharded)) if *unsharded.shard == *shard => {}
            Some(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Runs a pipeline. `target`: where it writes, if it does. `None`: it writes, and not all of it is on
/// one shard.
fn read(
    router: &Router,
    command: &RoutedCommand<'_>,
    stages: Doc<'_>,
    ns: &str,
    others: &[String],
    target: Option<Option<&Placement>>,
) -> Outcome<Option<DocBuf>> {
    let whole_on = |placement: &Placement, shard: &Arc<str>| {
        let mut w = command.without(&[]);
        if let (Some(Some(target)), Some(written)) = (target, Written::of(command.db, stages)?) {
            let told = router.cluster.target_of(&written.ns(), target, shard);
            w.doc("writesTo", told.as_doc());
        }
        let body = naming(w.finish(), shard);
        let reply = router.send(command, placement, shard, &body, &[])?;
        Ok(Some(cursors::adopt(router, ns, shard, reply)))
    };
    router.cluster.agree(ns, |placement| {
        let Some(placement) = placement else {
            if target.is_none() {
                // What other collections are joined to nothing is read all the same.
                return fused(router, command, ns).map(Some);
            }
            make_database(&router.cluster, command.db, None)?;
            router.cluster.refresh(ns)?;
            let Some(primary) = router.cluster.database_primary(command.db)? else {
                return Err(cluster_view::routing::no_database(command.db));
            };
            if !are_all_on(router, &primary.shard, others)? {
                return Ok(None);
            }
            return whole_on(
                &Placement::Unsharded(Unsharded::on_primary(&primary)),
                &primary.shard,
            );
        };
        let mut shards = pipeline_targets(command, command.body, placement, stages)?;
        let fuses = fuses(stages);
        if let ([shard], true) = (
            shards.as_slice(),
            matches!(placement, Placement::Unsharded(_)) || !fuses,
        ) && are_all_on(router, shard, others)?
        {
            return whole_on(placement, shard);
        }
        if target.is_some() {
            return Ok(None);
        }
        if fuses {
            return fused(router, command, ns).map(Some);
        }
        shards.dedup();
        if let Some(first) = stages
            .values()
            .next()
            .filter(|s| search::is_told_together(*s))
        {
            let (told, replies) = search::together(router, command, placement, &shards, first)?;
            if let [view] = &replies[..]
                && views::resolved_view(view).is_some()
            {
                return Ok(Some(view.clone()));
            }
            return behind(router, command, (told, &replies), stages).map(Some);
        }
        split(router, command, placement, ns, &shards, stages).map(Some)
    })
}

/// Runs a pipeline here that reads its own collection as a foreign one: whatever its first stage
/// looks for is read through the router.
fn fused(router: &Router, command: &RoutedCommand<'_>, ns: &str) -> Outcome<DocBuf> {
    let stages = command.field("pipeline").unwrap_or(Val::NULL);
    let whole = RouterPipeline {
        collection: Some(command.collection()),
        ..command.here(stages, command.own_collation())
    };
    merging::first_batch(router, command, ns, whole, None, &[])
}

/// Runs the stages behind the first over the documents that it gave.
fn behind(
    router: &Router,
    command: &RoutedCommand<'_>,
    (documents, replies): (Vec<DocBuf>, &[DocBuf]),
    stages: Doc<'_>,
) -> Outcome<DocBuf> {
    let ns = command.cursor_ns();
    let rest = list(stages.values().skip(1));
    let rest = command.here(rest.as_val(), command.own_collation());
    let merge = Merge::of_documents(&ns, documents);
    merging::first_batch(router, command, &ns, rest, Some(merge), replies)
}

/// Where a pipeline writes.
pub(crate) struct Written {
    pub db: String,
    pub coll: String,
    /// `$out`, and not `$merge`.
    pub replaces: bool,
}

impl Written {
    /// Fails where the stage is not as it has to be.
    fn of(db: &str, stages: Doc<'_>) -> Outcome<Option<Written>> {
        let last = stages.values().last().and_then(|s| s.as_doc()?.first());
        let (target, replaces) = match last.map(|stage| Named::of(stage, db)).transpose()? {
            Some(Named::Replaced(target)) => (target, true),
            Some(Named::Merged { into, .. }) => (into, false),
            _ => return Ok(None),
        };
        Ok(Some(Written {
            db: target.db,
            coll: target.coll,
            replaces,
        }))
    }

    pub fn ns(&self) -> String {
        format!("{}.{}", self.db, self.coll)
    }
}

/// `aggregate: 1`: about the cluster or this process, or of documents that come with it.
fn without_collection(
    router: &Router,
    command: &RoutedCommand<'_>,
    stages: Doc<'_>,
) -> Outcome<DocBuf> {
    if command.is("explain") {
        let shown = command.whole();
        return Ok((router.local).explain_pipeline(&command.step()?, shown.as_doc())?);
    }
    if let Some(written) = Written::of(command.db, stages)? {
        check_target(command, stages)?;
        return merge_into::run(router, command, stages, &written);
    }
    if let Some(first) = stages.values().next().and_then(stage_of)
        && let Some(documents) = cluster_stages::documents(router, command, first)?
    {
        return behind(router, command, (documents, &[]), stages);
    }
    let whole = command.here(stages.as_array_val(), command.own_collation());
    merging::first_batch(router, command, &command.cursor_ns(), whole, None, &[])
}

/// Cursors of a pipeline's documents: those of one shard by themselves.
pub(crate) struct Apart {
    /// The reply with the cursor of all others'.
    pub others: DocBuf,
    /// That of the one's, which has read nothing yet.
    pub of_one: DocBuf,
    /// Where the documents were when the cursors were opened.
    pub placement: Placement,
}

/// Opens a pipeline of a sharded collection so that the documents of one shard come by themselves;
/// `None` where it does more than look at one document at a time, reads other collections, or needs
/// that shard not, or no other. `command`: the aggregate that reads them.
pub(crate) fn apart(
    router: &Router,
    command: &RoutedCommand<'_>,
    one: &str,
) -> Outcome<Option<Apart>> {
    let stages = command.stages();
    if command.collection().is_empty() || !is_of_one_collection(command.db, stages) {
        return Ok(None);
    }
    let ns = command.namespace()?;
    router.cluster.agree(&ns, |placement| {
        let Some(placement @ Placement::Sharded(_)) = placement else {
            return Ok(None);
        };
        let mut shards = pipeline_targets(command, command.body, placement, stages)?;
        shards.dedup();
        let (of_one, others): (Vec<_>, Vec<_>) = shards.into_iter().partition(|s| **s == *one);
        let ([one], false) = (of_one.as_slice(), others.is_empty()) else {
            return Ok(None);
        };
        let holds = command.collation(placement);
        let context = pipeline_context(command.db, command.body, holds)?;
        let parts = Parts::of(&context, stages, &|_, _| Ok(None))?;
        if !parts.looks_at_each() {
            return Ok(None);
        }
        let mut w = command.without(&["pipeline", "cursor"]);
        w.doc("cursor", doc! {"batchSize": 0}.as_doc());
        w.val("pipeline", list(&parts.on_shards).as_val());
        let reply = sound(router.send(command, placement, one, &naming(w.finish(), one), &[])?)?;
        let of_one = cursors::adopt(router, &ns, one, reply);
        let opened = in_parts(router, command, placement, &ns, &others, parts, holds);
        let others = opened.inspect_err(|_| {
            cursors::end(router, &ns, cluster_view::reply::cursor_id(&of_one));
        })?;
        Ok(Some(Apart {
            others,
            of_one,
            placement: placement.clone(),
        }))
    })
}

fn split(
    router: &Router,
    command: &RoutedCommand<'_>,
    placement: &Placement,
    ns: &str,
    shards: &[Arc<str>],
    stages: Doc<'_>,
) -> Outcome<DocBuf> {
    let holds = command.collation(placement);
    let context = pipeline_context(command.db, command.body, holds)?;
    let joins = Joins::of(router, command, &context);
    let mut parts = Parts::of(&context, stages, &|name, spec| joins.join(name, spec))?;
    parts.joins_elsewhere = joins.remote_joins();
    let joined = parts.joins_elsewhere.is_some();
    if parts.asks_meta
        && let Some(first) = stages.values().next()
    {
        let told = search::meta(router, command, placement, shards, first)?;
        parts.know(Found::of(stages.values()), told.as_doc());
    }
    let states = parts.states;
    let ended = in_parts(router, command, placement, ns, shards, parts, holds);
    match ended {
        // Partial states may be longer than the final result.
        Err(Failure::Client(e))
            if states && e.code == Code::BSONObjectTooLarge && !command.in_transaction() =>
        {
            let parts = Parts::of_documents(&context, stages)?;
            in_parts(router, command, placement, ns, shards, parts, holds)
        }
        // A shard has many of them under way, or there is a view now.
        Err(Failure::Client(e))
            if joined
                && matches!(
                    e.code,
                    Code::TemporarilyUnavailable | Code::CommandNotSupportedOnView
                ) =>
        {
            let parts = Parts::of(&context, stages, &|_, _| Ok(None))?;
            in_parts(router, command, placement, ns, shards, parts, holds)
        }
        ended => ended,
    }
}

/// Runs the first part of a pipeline on shards, and the rest here.
fn in_parts(
    router: &Router,
    command: &RoutedCommand<'_>,
    placement: &Placement,
    ns: &str,
    shards: &[Arc<str>],
    parts: Parts,
    holds: Option<Doc<'_>>,
) -> Outcome<DocBuf> {
    let mut w = command.without(&["pipeline", "cursor"]);
    w.open_array("pipeline");
    parts.on_shards.iter().for_each(|s| {
        w.push(s.as_val());
    });
    w.close()
        .open_doc("cursor")
        .i64("batchSize", SHARD_BATCH)
        .close();
    if let Some(joins) = &parts.joins_elsewhere {
        w.val("joinsElsewhere", joins.as_val());
    }
    let each = w.finish();
    let to = shards.iter();
    let commands: Vec<_> = to.map(|s| (s.clone(), naming(each.clone(), s))).collect();
    let replies = router.scatter(command, placement, &commands)?;
    if let Some(view) = replies.iter().find(|r| views::resolved_view(r).is_some()) {
        return Ok(view.clone());
    }
    let ends_here = parts.here.is_empty();
    let mut merge = Merge {
        ns: ns.into(),
        parts: Vec::new(),
        order: parts.order,
        wrapped: parts.wrapped && ends_here,
        skip: parts.skip,
        left: parts.limit,
        batch: SHARD_BATCH,
        projection: None,
        session: command.session_fields(),
        share: None,
    };
    merge.begin(shards, &replies)?;
    if ends_here {
        return first_batch(router, merge, ns, command.batch_size(), false, &replies);
    }
    let rest = list(&parts.here);
    let rest = command.here(rest.as_val(), holds);
    merging::first_batch(router, command, ns, rest, Some(merge), &replies)
}
