//! Writes to one document: `findAndModify`, and what an update may do to a shard key.
//!
//! Invariant: no update that the router lets pass to a shard as it is moves a document to another
//! place.

use crate::databases::make_database;
use crate::reads::find::one;
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use crate::targeting::key_effect::{Key, effect_on_key, kept_place, place_of_upsert};
use crate::targeting::{shard_at, targets};
use crate::writes::key_change;
use crate::writes::key_change::Changed;
use crate::writes::upsert::{new_document, nothing};
use crate::writes::write::statement_number;
use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::Outcome;
use cluster_view::metadata::Placement;
use cluster_view::upstream::with_fields;
use commands::Commands;
use errors::err;
use std::sync::Arc;

/// How often the router tries to find and change one document, while others change it first.
const TRIES: usize = 10;

pub(crate) fn find_and_modify(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    // A filter of a wrong type would be none, and any document would be changed.
    Commands::check_arguments(&command.args()?)?;
    let filter = command.document("query").unwrap_or(Doc::EMPTY);
    if router.cluster.placement(&ns)?.is_none() {
        make_database(&router.cluster, command.db, None)?;
    }
    for _ in 0..TRIES {
        let first = router
            .cluster
            .agree(&ns, |placement| at_once(router, command, filter, placement))?;
        match first {
            AtOnce::Reply(reply) => return Ok(reply),
            AtOnce::MayMove => return moving(router, command, &ns, filter),
            AtOnce::Search => {}
        }
        if let Some(reply) = ran_before(router, command, &ns)? {
            return Ok(reply);
        }
        // Which document it is is asked first; then that one is changed, if it still matches.
        let within = with_fields(
            command.session_fields().as_doc(),
            command.conditions().as_doc(),
        );
        let sort = command.document("sort");
        let Some(found) = one(router, &ns, filter, sort, within.as_doc())? else {
            return not_found(router, command, &ns);
        };
        let reply = change(router, command, &ns, filter, &found)?;
        let last = reply.get("lastErrorObject").and_then(Val::as_doc);
        let n = last.and_then(|l| l.get("n")?.to_i64_exact()).unwrap_or(1);
        if n > 0 || cluster_view::upstream::error_of(reply.as_doc()).is_some() {
            return Ok(reply);
        }
    }
    Err(err!(
        WriteConflict,
        "the document that was found was changed each time by others"
    )
    .into())
}

/// What can be done without a look at the document.
enum AtOnce {
    Reply(DocBuf),
    /// It may be on several shards.
    Search,
    /// Its shard key may change.
    MayMove,
}

fn at_once(
    router: &Router,
    command: &RoutedCommand<'_>,
    filter: Doc<'_>,
    placement: Option<&Placement>,
) -> Outcome<AtOnce> {
    let Some(placement) = placement else {
        return Err(cluster_view::routing::no_database(command.db));
    };
    Ok(match found_at(command, filter, placement)? {
        Found::On(shard) => {
            AtOnce::Reply(router.send(command, placement, &shard, &command.whole(), &[])?)
        }
        Found::Somewhere => match placement.table().filter(|t| t.entry.measured) {
            Some(_) => {
                let shards = targets(command, placement, filter)?;
                AtOnce::Reply(remove_first(router, command, placement, &shards)?)
            }
            None => AtOnce::Search,
        },
        Found::MayMove => AtOnce::MayMove,
    })
}

/// Where the document is, if that can be said without a look at it.
pub(crate) enum Found {
    On(Arc<str>),
    Somewhere,
    MayMove,
}

/// Where the document of a `findAndModify` is.
pub(crate) fn found_at(
    command: &RoutedCommand<'_>,
    filter: Doc<'_>,
    placement: &Placement,
) -> Outcome<Found> {
    let mut shards = targets(command, placement, filter)?;
    if let Placement::Sharded(table) = placement {
        let found = command.ranges(filter, table)?;
        let effect = match command.field("update") {
            Some(update) => effect_on_key(table, filter, &found, update, false)?,
            None => Key::Kept,
        };
        let Some(place) = kept_place(command, effect, false)? else {
            return Ok(Found::MayMove);
        };
        if command.is("upsert") {
            let Ok(place) = place_of_upsert(table, &found, place) else {
                return Ok(Found::Somewhere);
            };
            shards = vec![shard_at(table, &place)?];
        }
    }
    Ok(match shards.pop() {
        Some(shard) if shards.is_empty() => Found::On(shard),
        _ => Found::Somewhere,
    })
}

/// Removes one measurement, of the first shard that has one: they have no `_id` to find them by again.
fn remove_first(
    router: &Router,
    command: &RoutedCommand<'_>,
    placement: &Placement,
    shards: &[Arc<str>],
) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    if let Some(reply) = ran_before(router, command, &ns)? {
        return Ok(reply);
    }
    let mut last = None;
    for shard in shards {
        let reply = router.send(command, placement, shard, &command.whole(), &[])?;
        let found = reply.get("lastErrorObject").and_then(Val::as_doc);
        let n = found.and_then(|l| l.get("n")?.to_i64_exact());
        if n != Some(0) {
            return Ok(reply);
        }
        last = Some(reply);
    }
    last.ok_or_else(|| err!(InternalError, "a filter asks no shard").into())
}

/// An update that may move its document.
fn moving(
    router: &Router,
    command: &RoutedCommand<'_>,
    ns: &str,
    filter: Doc<'_>,
) -> Outcome<DocBuf> {
    let statement = key_change::Statement {
        command,
        ns,
        filter,
        update: command.field("update").unwrap_or(Val::NULL),
        options: command.body,
        variables: command.field("let"),
        sort: command.document("sort"),
        number: statement_number(command, 0),
    };
    let here = |this: &DocBuf| {
        let mut w = command.without(&["query", "sort", "upsert"]);
        w.doc("query", this.as_doc());
        w.finish()
    };
    match key_change::run(router, &statement, here, || ran_before(router, command, ns))? {
        Changed::Nothing => not_found(router, command, ns),
        Changed::Here(reply) => Ok(reply),
        Changed::Moved {
            before,
            after,
            concern,
        } => key_change::found_reply(command, &before, &after, concern.as_ref()),
    }
}

/// What a command does and answers that has found nothing.
fn not_found(router: &Router, command: &RoutedCommand<'_>, ns: &str) -> Outcome<DocBuf> {
    if command.is("upsert") {
        return insert_new(router, command, ns);
    }
    let mut w = Writer::new();
    w.open_doc("lastErrorObject").i32("n", 0);
    if !command.is("remove") {
        w.bool("updatedExisting", false);
    }
    w.close().null("value");
    Ok(finish(w, &[]))
}

fn change(
    router: &Router,
    command: &RoutedCommand<'_>,
    ns: &str,
    filter: Doc<'_>,
    found: &DocBuf,
) -> Outcome<DocBuf> {
    router.cluster.agree(ns, |placement| {
        let Some(Placement::Sharded(table)) = placement else {
            return Err(cluster_view::routing::no_database(command.db));
        };
        let shard = shard_at(table, &table.key().place_of(found.as_doc())?)?;
        let mut this = Writer::new();
        if let Some(id) = found.get("_id") {
            this.open_doc("_id").val("$eq", id).close();
        }
        let mut w = command.without(&["query", "sort", "upsert"]);
        w.open_doc("query").open_array("$and");
        w.push(this.finish().as_doc().as_val())
            .push(filter.as_val());
        w.close().close();
        let placement = Placement::Sharded(table.clone());
        router.send(command, &placement, &shard, &w.finish(), &[])
    })
}

/// What a retryable command did when it ran before, on whichever shard that was: with a filter that
/// finds nothing a shard answers only what it has recorded.
fn ran_before(router: &Router, command: &RoutedCommand<'_>, ns: &str) -> Outcome<Option<DocBuf>> {
    if !command.is_retryable() {
        return Ok(None);
    }
    let mut w = command.without(&["query", "sort", "upsert", "hint"]);
    w.value("query", nothing());
    let body = w.finish();
    router.cluster.agree(ns, |placement| {
        let Some(placement @ Placement::Sharded(table)) = placement else {
            return Ok(None);
        };
        let all: Vec<_> = table.shards().map(|s| (s.clone(), body.clone())).collect();
        let replies = router.cluster.scatter(placement, &all)?;
        let ran = |r: &DocBuf| {
            let last = r.get("lastErrorObject").and_then(Val::as_doc);
            last.and_then(|l| l.get("n")?.to_i64_exact()) > Some(0)
        };
        Ok(replies.into_iter().find(ran))
    })
}

/// Inserts what an upsert makes that has found nothing.
fn insert_new(router: &Router, command: &RoutedCommand<'_>, ns: &str) -> Outcome<DocBuf> {
    let new = new_document(
        router,
        command.body,
        "query",
        "update",
        command.field("let"),
    )?;
    let mut w = command.without(&["query", "sort", "hint", "update", "arrayFilters"]);
    w.value("query", nothing()).doc("update", new.as_doc());
    let body = w.finish();
    router.cluster.agree(ns, |placement| {
        let Some(placement @ Placement::Sharded(table)) = placement else {
            return Err(cluster_view::routing::no_database(command.db));
        };
        let shard = shard_at(table, &table.key().place_of(new.as_doc())?)?;
        router.send(command, placement, &shard, &body, &[])
    })
}
