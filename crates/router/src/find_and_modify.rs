//! Writes to one document: `findAndModify`, and what an update may do to a shard key.
//!
//! Invariant: no update that the router lets pass to a shard as it is moves a document to another
//! place.

use crate::ddl;
use crate::find::{one, targets};
use crate::key_change;
use crate::key_change::{Changed, check_may_move};
use crate::request::{RoutedCommand, finish};
use crate::router::Router;
use crate::upsert::{new_document, nothing};
use crate::write::{shard_at, statement_number};
use bson::{Doc, DocBuf, Val, Writer, order, tag};
use cluster_view::Outcome;
use cluster_view::metadata::Placement;
use cluster_view::upstream::with_fields;
use errors::err;
use query::collation::Collation;
use query::expr::ParseEnv;
use query::filter::Filter;
use query::path::FieldPath;
use sharding::{Place, PlaceRange, RoutingTable, targeting};
use std::sync::Arc;

/// How often the router tries to find and change one document, while others change it first.
const TRIES: usize = 10;

/// What an update does to the shard key of the document that it finds.
pub(crate) enum Key {
    /// It keeps it.
    Kept,
    /// It is a replacement, of this place, which is that of the document.
    Replaced(Place),
    /// It is a replacement, of this place, of a document that may lie elsewhere.
    ReplacedSomewhere(Place),
    /// It may change it.
    MayChange,
}

/// The value that a filter gives a field.
fn equality(filter: &Filter, field: &str) -> Option<bson::Value> {
    let path = FieldPath::new(field);
    let all = filter.equalities().ok()?;
    let found = all.iter().find(|(p, _)| **p == path);
    found.map(|(_, v)| v.to_value())
}

/// What can be said by the update alone.
pub(crate) fn effect_on_key(
    table: &RoutingTable,
    filter: Doc<'_>,
    found: &[PlaceRange],
    update: Val<'_>,
    many: bool,
) -> Outcome<Key> {
    let key = table.entry.asked_key();
    if table.entry.measurements().is_some() && !many {
        // The shard reports what is wrong with it.
        return Ok(Key::Kept);
    }
    if update.tag == tag::ARRAY {
        let stages = update.as_array().unwrap_or(Doc::EMPTY);
        for e in stages.values().filter_map(|s| s.as_doc()?.first()) {
            let touched = match (e.name, e.val.as_doc()) {
                ("$set" | "$addFields", Some(fields)) => {
                    fields.iter().any(|f| key.concerns(f.name))
                }
                ("$unset", _) => {
                    let one = e.val.as_str().into_iter();
                    let list = e.val.as_array().unwrap_or(Doc::EMPTY);
                    let mut names = one.chain(list.values().filter_map(Val::as_str));
                    names.any(|name| key.concerns(name))
                }
                _ => key.names().any(|name| name != "_id"),
            };
            if touched {
                return Ok(Key::MayChange);
            }
        }
        return Ok(Key::Kept);
    }
    let update = update.as_doc().unwrap_or(Doc::EMPTY);
    let parsed = Filter::parse(filter, &ParseEnv::new()).ok();
    let given = |field: &str| parsed.as_ref().and_then(|f| equality(f, field));
    if update.first().is_none_or(|e| !e.name.starts_with('$')) {
        if many {
            // The shard reports what is wrong with it.
            return Ok(Key::Kept);
        }
        return replacement(table, update, found, given("_id"));
    }
    for operator in update {
        for f in operator.val.as_doc().unwrap_or(Doc::EMPTY) {
            let renamed = (operator.name == "$rename")
                .then(|| f.val.as_str())
                .flatten();
            if renamed.is_some_and(|to| key.concerns(to)) {
                return Ok(Key::MayChange);
            }
            if !key.concerns(f.name) {
                continue;
            }
            let value = given(f.name);
            // A string may equal others under a collation: then it does not say where they are.
            let told =
                |v: &bson::Value| !Collation::affects(v.as_val()) || *found != [PlaceRange::all()];
            let same = matches!(operator.name, "$set" | "$setOnInsert")
                && value
                    .as_ref()
                    .is_some_and(|v| order::equal(v.as_val(), f.val) && told(v));
            // Only a new document gets it, and that is made before its place is looked for.
            let new = operator.name == "$setOnInsert" && value.is_none();
            if !same && !new {
                return Ok(Key::MayChange);
            }
        }
    }
    Ok(Key::Kept)
}

fn replacement(
    table: &RoutingTable,
    new: Doc<'_>,
    found: &[PlaceRange],
    id: Option<bson::Value>,
) -> Outcome<Key> {
    let key = table.key();
    let by_id = key.names().any(|name| name == "_id");
    let old = targeting::single_place(found, key);
    let mut w = Writer::new();
    match (new.contains("_id"), id) {
        (false, Some(id)) => {
            w.val("_id", id.as_val());
        }
        // It keeps the id that it has, wherever that is.
        (false, None) if by_id => return Ok(Key::Kept),
        _ => {}
    }
    w.extend(new);
    let place = key.place_of(w.finish().as_doc())?;
    Ok(match old {
        Some(old) if old == place => Key::Replaced(place),
        Some(_) => Key::MayChange,
        None => Key::ReplacedSomewhere(place),
    })
}

/// What may be said of the place of an update's document; `None`: it may move, and has to be looked at.
/// Fails where it may not.
pub(crate) fn kept_place(
    command: &RoutedCommand<'_>,
    effect: Key,
    many: bool,
) -> Outcome<Option<Option<Place>>> {
    match effect {
        Key::Kept => Ok(Some(None)),
        Key::Replaced(place) => Ok(Some(Some(place))),
        // A command that must not move it looks for it where it would belong.
        Key::ReplacedSomewhere(place) if check_may_move(command, many).is_err() => {
            Ok(Some(Some(place)))
        }
        Key::ReplacedSomewhere(_) => Ok(None),
        Key::MayChange => check_may_move(command, many).map(|()| None),
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

pub(crate) fn find_and_modify(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    let filter = command.document("query").unwrap_or(Doc::EMPTY);
    if router.cluster.placement(&ns)?.is_none() {
        ddl::make_database(&router.cluster, command.db, None)?;
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
    if command.field("txnNumber").is_none() || command.in_transaction() {
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
