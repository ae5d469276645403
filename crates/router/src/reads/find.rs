//! `find`, `count` and `distinct`: to the shards that can have a match.
//!
//! Invariant: a document is given once, whatever moves meanwhile: the shards' cursors of one find
//! were opened under one table, and each reads the state of when it was opened.

use crate::merge::{Merge, Order};
use crate::post_merge_projection::{PostMergeProjection, env};
use crate::reads::cursors::first_batch;
use crate::reads::views;
use crate::request::{RoutedCommand, finish};
use crate::state::{Router, cursors};
use crate::targeting::targets;
use bson::{Doc, DocBuf, Val, Writer};
use cluster_view::Outcome;
use cluster_view::metadata::Placement;
use cluster_view::reply::sound;
use query::collation::{self, Collation};
use query::filter::Filter;
use query::metadata::asks_for;
use query::sort::SortPattern;
use std::sync::Arc;

/// Documents of a batch from a shard, where the client does not say how many.
const SHARD_BATCH: i64 = 1000;

/// Without the database nothing is found, and an invalid command is refused.
fn nowhere(
    router: &Router,
    command: &RoutedCommand<'_>,
    nothing: impl FnOnce() -> DocBuf,
) -> Outcome<DocBuf> {
    router.local.check_over_nothing(command.request)?;
    Ok(nothing())
}

fn empty_cursor(ns: &str) -> DocBuf {
    let mut w = Writer::new();
    w.open_doc("cursor").open_array("firstBatch").close();
    w.i64("id", 0).str("ns", ns).close();
    finish(w, &[])
}

pub(crate) fn find(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let reply = stored(router, command)?;
    match views::resolved_view(&reply) {
        Some(view) => {
            commands::check_find_of_view(command.body)?;
            views::find(router, command, &view)
        }
        None => Ok(reply),
    }
}

/// The same, of a view what its shard tells of it.
pub(crate) fn stored(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    let filter = command.document("filter").unwrap_or(Doc::EMPTY);
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return nowhere(router, command, || empty_cursor(&ns));
        };
        let shards = targets(command, placement, filter)?;
        if let [shard] = shards.as_slice() {
            let reply = router.send(command, placement, shard, &command.whole(), &[])?;
            return Ok(cursors::adopt(router, &ns, shard, reply));
        }
        scattered(router, command, placement, &ns, &shards)
    })
}

fn scattered(
    router: &Router,
    command: &RoutedCommand<'_>,
    placement: &Placement,
    ns: &str,
    shards: &[Arc<str>],
) -> Outcome<DocBuf> {
    let Some(scattered) = Scattered::of(command, placement, ns)? else {
        return views::find_by_score(router, command);
    };
    let each = |shard: &Arc<str>| (shard.clone(), scattered.each.clone());
    let commands: Vec<_> = shards.iter().map(each).collect();
    let replies = router.scatter(command, placement, &commands)?;
    scattered.finish(router, shards, &replies)
}

/// A find that several shards answer.
pub(crate) struct Scattered {
    /// What each shard is asked.
    pub each: DocBuf,
    merge: Merge,
    most: Option<i64>,
    single: bool,
}

impl Scattered {
    /// `None`: documents go by a score, which a pipeline computes.
    pub fn of(
        command: &RoutedCommand<'_>,
        placement: &Placement,
        ns: &str,
    ) -> Outcome<Option<Scattered>> {
        let number = |name: &str| command.int(name).unwrap_or(0);
        let (skip, limit) = (number("skip").max(0), number("limit"));
        let single = command.is("singleBatch") || limit < 0;
        let limit = limit.saturating_abs();
        let collation = commands::given_collation(command.collation(placement))?.flatten();
        let order = match order_of(command, collation.as_ref())? {
            Order::By(sort) if sort.has_meta() => return Ok(None),
            order => order,
        };
        let projection = command.document("projection").filter(|p| !p.is_empty());
        let score = projection.is_some_and(|p| asks_for(p.as_val(), "textScore"));
        if score && !order.is_none() {
            return Ok(None);
        }
        // Sort keys are of whole documents.
        let post_merge = projection.filter(|_| !order.is_none());
        let mut w = command.without(&["skip", "limit", "batchSize", "singleBatch", "projection"]);
        if let (Some(projection), None) = (projection, post_merge) {
            w.doc("projection", projection);
        }
        let most = command.int("batchSize");
        let batch = most.filter(|n| *n > 0).unwrap_or(SHARD_BATCH);
        if limit > 0 {
            w.i64("limit", limit.saturating_add(skip));
        }
        w.i64("batchSize", if most == Some(0) { 0 } else { batch });
        let filter = command.document("filter").unwrap_or(Doc::EMPTY);
        let merge = Merge {
            ns: ns.into(),
            parts: Vec::new(),
            order,
            wrapped: false,
            skip: skip.unsigned_abs(),
            left: (limit > 0).then(|| limit.unsigned_abs()),
            batch,
            session: command.session_fields(),
            share: None,
            projection: post_merge
                .map(|p| PostMergeProjection::parse(p, filter, collation, command.document("let")))
                .transpose()?,
        };
        Ok(Some(Scattered {
            each: w.finish(),
            merge,
            most,
            single,
        }))
    }

    /// What the shards give, as one.
    pub fn merged(mut self, shards: &[Arc<str>], replies: &[DocBuf]) -> Outcome<Merge> {
        self.merge.begin(shards, replies)?;
        Ok(self.merge)
    }

    /// The reply for the client. It may ask shards for more, and wait for that, where one of them
    /// has not given all.
    pub fn finish(
        mut self,
        router: &Router,
        shards: &[Arc<str>],
        replies: &[DocBuf],
    ) -> Outcome<DocBuf> {
        self.merge.begin(shards, replies)?;
        let ns = self.merge.ns.clone();
        first_batch(router, self.merge, &ns, self.most, self.single, replies)
    }
}

/// The order in which a find gives its documents.
fn order_of(command: &RoutedCommand<'_>, collation: Option<&Collation>) -> Outcome<Order> {
    let sort = command.document("sort").filter(|s| !s.is_empty());
    if let Some(sort) = sort {
        return Ok(match is_natural(sort) {
            true => Order::None,
            false => Order::By(SortPattern::parse_found(sort)?.collated(collation)),
        });
    }
    let filter = command.document("filter").unwrap_or(Doc::EMPTY);
    // One that is not understood the shards refuse.
    let filter = Filter::parse(filter, &env()).ok();
    let near = filter.as_ref().and_then(Filter::near);
    Ok(near.map_or(Order::None, |(path, test)| {
        Order::Near(path.clone(), test.clone())
    }))
}

fn is_natural(sort: Doc<'_>) -> bool {
    sort.first().is_some_and(|e| e.name == "$natural")
}

pub(crate) fn count(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let reply = count_stored(router, command)?;
    match views::resolved_view(&reply) {
        Some(view) => views::count(router, command, &view),
        None => Ok(reply),
    }
}

fn count_stored(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    let filter = command.document("query").unwrap_or(Doc::EMPTY);
    let none = || {
        let mut w = Writer::new();
        w.i32("n", 0);
        finish(w, &[])
    };
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return nowhere(router, command, none);
        };
        let shards = targets(command, placement, filter)?;
        if let [shard] = shards.as_slice() {
            return router
                .cluster
                .send(placement, shard, command.whole().as_doc(), &[]);
        }
        let (skip, limit) = (
            command.int("skip").unwrap_or(0),
            command.int("limit").unwrap_or(0),
        );
        let mut w = command.without(&["skip", "limit"]);
        if limit != 0 {
            w.i64("limit", limit.saturating_abs().saturating_add(skip));
        }
        let each = w.finish();
        let commands: Vec<_> = shards.iter().map(|s| (s.clone(), each.clone())).collect();
        let replies = router.scatter(command, placement, &commands)?;
        let mut n = 0i64;
        for reply in &replies {
            let reply = sound(reply.clone())?;
            n += reply.get("n").and_then(Val::to_i64_exact).unwrap_or(0);
        }
        n = (n - skip).max(0);
        if limit != 0 {
            n = n.min(limit.saturating_abs());
        }
        let mut w = Writer::new();
        w.int("n", n);
        Ok(finish(w, &replies))
    })
}

pub(crate) fn distinct(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let reply = distinct_stored(router, command)?;
    match views::resolved_view(&reply) {
        Some(view) => views::distinct(router, command, &view),
        None => Ok(reply),
    }
}

fn distinct_stored(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    let filter = command.document("query").unwrap_or(Doc::EMPTY);
    router.cluster.agree(&ns, |placement| {
        let Some(placement) = placement else {
            return nowhere(router, command, || {
                let mut w = Writer::new();
                w.value("values", bson::array![]);
                finish(w, &[])
            });
        };
        let shards = targets(command, placement, filter)?;
        if let [shard] = shards.as_slice() {
            return router.send(command, placement, shard, &command.whole(), &[]);
        }
        let each = command.whole();
        let commands: Vec<_> = shards.iter().map(|s| (s.clone(), each.clone())).collect();
        let replies = router.scatter(command, placement, &commands)?;
        let collation = commands::given_collation(command.collation(placement))?.flatten();
        let mut values: std::collections::BTreeMap<Vec<u8>, bson::Value> = Default::default();
        for reply in &replies {
            let reply = sound(reply.clone())?;
            let found = reply
                .get("values")
                .and_then(Val::as_array)
                .unwrap_or(Doc::EMPTY);
            for v in found.values() {
                values
                    .entry(collation::key_of(collation.as_ref(), v))
                    .or_insert_with(|| v.to_value());
            }
        }
        let mut w = Writer::new();
        w.open_array("values");
        for v in values.values() {
            w.push(v.as_val());
        }
        w.close();
        Ok(finish(w, &replies))
    })
}

/// One document by a filter that names its place, or from whichever shard has it. `within`: the
/// transaction that it is a statement of, if any.
pub(crate) fn one(
    router: &Router,
    ns: &str,
    filter: Doc<'_>,
    sort: Option<Doc<'_>>,
    within: Doc<'_>,
) -> Outcome<Option<DocBuf>> {
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    let mut w = Writer::new();
    w.str("find", collection)
        .doc("filter", filter)
        .i32("limit", 1)
        .bool("singleBatch", true);
    if let Some(sort) = sort {
        w.doc("sort", sort);
    }
    w.str("$db", db).extend(within);
    let body = w.finish();
    let reply = crate::request::own(router, &body, find)?;
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    let batch = cursor.and_then(|c| c.get("firstBatch")?.as_array());
    Ok(batch.and_then(|b| b.values().next()?.as_doc().map(|d| d.to_buf())))
}
