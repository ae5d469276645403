//! Writes to one document: `findAndModify`, and what an update may do to a shard key.
//!
//! Invariant: no update that the router lets pass moves a document to another place.

use crate::find::{one, several_shards, targets};
use crate::metadata::Placement;
use crate::request::{Command, finish, ranges};
use crate::service_impl::Router;
use crate::without_key::{new_document, nothing};
use crate::write::shard_at;
use crate::{Failure, Outcome, ddl};
use bson::{Doc, DocBuf, Val, Writer, order, tag};
use errors::err;
use query::expr::ParseEnv;
use query::filter::Filter;
use query::path::FieldPath;
use sharding::{Place, PlaceRange, RoutingTable, targeting};

/// Tries to find and change one document before somebody else does.
const TRIES: usize = 10;

fn moves(field: &str) -> Failure {
    Failure::Client(err!(
        IllegalOperation,
        "An update that can change the shard key (here: {field}) is not supported: remove the document, and insert it anew"
    ))
}

/// The value that a filter gives a field.
fn equality(filter: &Filter, field: &str) -> Option<bson::Value> {
    let path = FieldPath::new(field);
    let all = filter.equalities().ok()?;
    let found = all.iter().find(|(p, _)| **p == path);
    found.map(|(_, v)| v.to_value())
}

/// Fails where an update can change the shard key. For a replacement, the place of what it makes.
pub(crate) fn check_key_kept(
    table: &RoutingTable,
    filter: Doc<'_>,
    found: &[PlaceRange],
    update: Val<'_>,
    many: bool,
) -> Outcome<Option<Place>> {
    let key = table.key();
    if update.tag == tag::ARRAY {
        let stages = update.as_array().unwrap_or(Doc::EMPTY);
        for e in stages.values().filter_map(|s| s.as_doc()?.first()) {
            let touched = match (e.name, e.val.as_doc()) {
                ("$set" | "$addFields", Some(fields)) => {
                    fields.iter().find(|f| key.concerns(f.name)).map(|f| f.name)
                }
                ("$unset", _) => {
                    let one = e.val.as_str().into_iter();
                    let list = e.val.as_array().unwrap_or(Doc::EMPTY);
                    let mut names = one.chain(list.values().filter_map(Val::as_str));
                    names.find(|name| key.concerns(name))
                }
                _ => key.names().find(|name| *name != "_id"),
            };
            if let Some(field) = touched {
                return Err(moves(field));
            }
        }
        return Ok(None);
    }
    let update = update.as_doc().unwrap_or(Doc::EMPTY);
    let parsed = Filter::parse(filter, &ParseEnv::new()).ok();
    let given = |field: &str| parsed.as_ref().and_then(|f| equality(f, field));
    if update.first().is_none_or(|e| !e.name.starts_with('$')) {
        if many {
            // The shard says what is wrong with it.
            return Ok(None);
        }
        return replacement(table, update, found, given("_id"));
    }
    for operator in update {
        for f in operator.val.as_doc().unwrap_or(Doc::EMPTY) {
            let renamed = (operator.name == "$rename")
                .then(|| f.val.as_str())
                .flatten();
            if renamed.is_some_and(|to| key.concerns(to)) {
                return Err(moves(f.name));
            }
            if !key.concerns(f.name) {
                continue;
            }
            let value = given(f.name);
            let same = matches!(operator.name, "$set" | "$setOnInsert")
                && value
                    .as_ref()
                    .is_some_and(|v| order::equal(v.as_val(), f.val));
            // Only a new document gets it, and that is made before its place is looked for.
            let new = operator.name == "$setOnInsert" && value.is_none();
            if !same && !new {
                return Err(moves(f.name));
            }
        }
    }
    Ok(None)
}

fn replacement(
    table: &RoutingTable,
    new: Doc<'_>,
    found: &[PlaceRange],
    id: Option<bson::Value>,
) -> Outcome<Option<Place>> {
    let key = table.key();
    let by_id = key.names().any(|name| name == "_id");
    let old = targeting::single_place(found, key);
    let mut w = Writer::new();
    match (new.contains("_id"), id) {
        (false, Some(id)) => {
            w.val("_id", id.as_val());
        }
        // It keeps the id that it has, wherever that is.
        (false, None) if by_id => return Ok(None),
        _ => {}
    }
    w.extend(new);
    let place = key.place_of(w.finish().as_doc())?;
    match old {
        Some(old) if old != place => Err(moves("in a replacement")),
        _ => Ok(Some(place)),
    }
}

/// Where an upsert's new document would lie.
pub(crate) fn place_of_upsert(
    table: &RoutingTable,
    found: &[PlaceRange],
    replacement: Option<Place>,
) -> Outcome<Place> {
    let place = targeting::single_place(found, table.key()).or(replacement);
    place.ok_or_else(|| {
        err!(
            ShardKeyNotFound,
            "Failed to target upsert by query :: could not extract exact shard key"
        )
        .into()
    })
}

pub(crate) fn find_and_modify(router: &Router, command: &Command<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    let filter = command.document("query").unwrap_or(Doc::EMPTY);
    let upsert = command.is("upsert");
    if router.cluster.placement(&ns)?.is_none() {
        ddl::make_database(&router.cluster, command.db, None)?;
    }
    for _ in 0..TRIES {
        let reply = router.cluster.agree(&ns, |placement| {
            let Some(placement) = placement else {
                return Err(crate::routing::no_database(command.db));
            };
            let mut shards = targets(command, placement, filter)?;
            if let Placement::Sharded(table) = placement {
                let found = ranges(filter, command.document("let"), table)?;
                let update = command.field("update");
                let place = match update {
                    Some(update) => check_key_kept(table, filter, &found, update, false)?,
                    None => None,
                };
                if upsert {
                    let Ok(place) = place_of_upsert(table, &found, place) else {
                        return Ok(None);
                    };
                    shards = vec![shard_at(table, &place)?];
                }
            }
            let [shard] = shards.as_slice() else {
                return Ok(None);
            };
            router
                .send(command, placement, shard, &command.whole(), &[])
                .map(Some)
        })?;
        if let Some(reply) = reply {
            return Ok(reply);
        }
        if command.in_transaction() {
            return Err(several_shards());
        }
        if let Some(reply) = ran_before(router, command, &ns)? {
            return Ok(reply);
        }
        // Which document it is is asked first; then that one is changed, if it still matches.
        let Some(found) = one(router, &ns, filter, command.document("sort"))? else {
            if upsert {
                return insert_new(router, command, &ns);
            }
            let mut w = Writer::new();
            w.open_doc("lastErrorObject").i32("n", 0);
            if !command.is("remove") {
                w.bool("updatedExisting", false);
            }
            w.close().null("value");
            return Ok(finish(w, &[]));
        };
        let reply = change(router, command, &ns, filter, &found)?;
        let last = reply.get("lastErrorObject").and_then(Val::as_doc);
        let n = last.and_then(|l| l.get("n")?.to_i64_exact()).unwrap_or(1);
        if n > 0 || crate::upstream::error_of(reply.as_doc()).is_some() {
            return Ok(reply);
        }
    }
    Err(err!(
        WriteConflict,
        "the document that was found was changed each time by others"
    )
    .into())
}

fn change(
    router: &Router,
    command: &Command<'_>,
    ns: &str,
    filter: Doc<'_>,
    found: &DocBuf,
) -> Outcome<DocBuf> {
    router.cluster.agree(ns, |placement| {
        let Some(Placement::Sharded(table)) = placement else {
            return Err(crate::routing::no_database(command.db));
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
        router
            .cluster
            .send(&placement, &shard, w.finish().as_doc(), &[])
    })
}

/// What a retryable command did when it ran before, on whichever shard that was: with a filter that
/// finds nothing a shard answers only what it has recorded.
fn ran_before(router: &Router, command: &Command<'_>, ns: &str) -> Outcome<Option<DocBuf>> {
    if command.field("txnNumber").is_none() {
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
fn insert_new(router: &Router, command: &Command<'_>, ns: &str) -> Outcome<DocBuf> {
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
            return Err(crate::routing::no_database(command.db));
        };
        let shard = shard_at(table, &table.key().place_of(new.as_doc())?)?;
        router.cluster.send(placement, &shard, body.as_doc(), &[])
    })
}
