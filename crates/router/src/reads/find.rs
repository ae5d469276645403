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
use bson::{Doc, DocBuf, Val, Value, Writer};
use cluster_view::Outcome;
use cluster_view::metadata::Placement;
use cluster_view::reply::sound;
use commands::Commands;
use query::collation::{self, Collation};
use query::filter::Filter;
use query::metadata::asks_for;
use query::sort::SortPattern;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Documents of a batch from a shard, where the client does not say how many.
const SHARD_BATCH: i64 = 1000;

/// Without the database nothing is found, and an invalid command is refused.
fn nowhere(
    router: &Router,
    command: &RoutedCommand<'_>,
    nothing: impl FnOnce() -> DocBuf,
) -> Outcome<DocBuf> {
    router.local.check_over_nothing(&command.args()?)?;
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
        let paging = Commands::paging_of_find(&command.args()?)?;
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
        let most = paging.batch.map(at_most_i64);
        let batch = most.filter(|n| *n > 0).unwrap_or(SHARD_BATCH);
        if let Some(limit) = paging.limit {
            w.i64("limit", at_most_i64(limit.saturating_add(paging.skip)));
        }
        w.i64("batchSize", if most == Some(0) { 0 } else { batch });
        let filter = command.document("filter").unwrap_or(Doc::EMPTY);
        let merge = Merge {
            ns: ns.into(),
            parts: Vec::new(),
            order,
            wrapped: false,
            skip: paging.skip,
            left: paging.limit,
            batch,
            session: command.session_fields(),
            share: None,
            projection: post_merge
                .map(|p| PostMergeProjection::parse(p, filter, collation, command.variables()))
                .transpose()?,
        };
        Ok(Some(Scattered {
            each: w.finish(),
            merge,
            most,
            single: paging.single_batch,
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

fn at_most_i64(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
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
        let (skip, limit) = Commands::bounds_of_count(&command.args()?)?;
        let mut w = command.without(&["skip", "limit"]);
        if limit > 0 {
            w.i64("limit", at_most_i64(limit.saturating_add(skip)));
        }
        let each = w.finish();
        let commands: Vec<_> = shards.iter().map(|s| (s.clone(), each.clone())).collect();
        let replies = router.scatter(command, placement, &commands)?;
        let mut w = Writer::new();
        w.int("n", counted(&replies, skip, limit)?);
        Ok(finish(w, &replies))
    })
}

/// What a count comes to that shards have made without `skip`.
fn counted(replies: &[DocBuf], skip: u64, limit: u64) -> Outcome<i64> {
    let mut n = 0u64;
    for reply in replies {
        let reply = sound(reply.clone())?;
        let of_shard = reply.get("n").and_then(Val::to_i64_exact).unwrap_or(0);
        n = n.saturating_add(of_shard.max(0).unsigned_abs());
    }
    n = n.saturating_sub(skip);
    Ok(at_most_i64(match limit {
        0 => n,
        limit => n.min(limit),
    }))
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
        Commands::check_arguments(&command.args()?)?;
        let each = command.whole();
        let commands: Vec<_> = shards.iter().map(|s| (s.clone(), each.clone())).collect();
        let replies = router.scatter(command, placement, &commands)?;
        let collation = commands::given_collation(command.collation(placement))?.flatten();
        let mut w = Writer::new();
        w.open_array("values");
        for v in distinct_values(&replies, collation.as_ref())?.values() {
            w.push(v.as_val());
        }
        w.close();
        Ok(finish(w, &replies))
    })
}

/// The values that shards have found, in their order: of those that are equal under the collation one.
fn distinct_values(
    replies: &[DocBuf],
    collation: Option<&Collation>,
) -> Outcome<BTreeMap<Vec<u8>, Value>> {
    let mut values = BTreeMap::new();
    for reply in replies {
        let reply = sound(reply.clone())?;
        let found = reply.get("values").and_then(Val::as_array);
        for v in found.unwrap_or(Doc::EMPTY).values() {
            values
                .entry(collation::key_of(collation, v))
                .or_insert_with(|| v.to_value());
        }
    }
    Ok(values)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targeting::testing::{table, with_command};
    use bson::{json, shell};

    fn replies(texts: &[&str]) -> Vec<DocBuf> {
        texts.iter().map(|t| json::parse(t).unwrap()).collect()
    }

    #[test]
    fn counts_of_shards_become_one() {
        let shards = replies(&[r#"{"n":7,"ok":1}"#, r#"{"n":5,"ok":1}"#]);
        for (skip, limit, wanted) in [
            (0, 0, 12),
            (3, 0, 9),
            (0, 10, 10),
            (3, 4, 4),
            (10, 4, 2),
            (12, 0, 0),
            (u64::MAX, 0, 0),
            (0, u64::MAX, 12),
        ] {
            assert_eq!(
                counted(&shards, skip, limit).unwrap(),
                wanted,
                "{skip} {limit}"
            );
        }
        assert_eq!(counted(&[], 0, 0).unwrap(), 0);
        let failed = replies(&[r#"{"n":7,"ok":1}"#, r#"{"ok":0,"code":50,"errmsg":"late"}"#]);
        assert_eq!(counted(&failed, 0, 0).unwrap_err().into_error().code.0, 50);
    }

    #[test]
    fn values_of_shards_become_one_list() {
        let shards = [
            r#"{"values":["b","A",3],"ok":1}"#,
            r#"{"values":["a",3.0,null],"ok":1}"#,
        ];
        let strength_two = json::parse(r#"{"locale":"en","strength":2}"#).unwrap();
        let english = commands::given_collation(Some(strength_two.as_doc()));
        for (collation, wanted) in [
            (None, r#"null 3 "A" "a" "b""#),
            (english.unwrap().flatten(), r#"null 3 "A" "b""#),
        ] {
            let values = distinct_values(&replies(&shards), collation.as_ref()).unwrap();
            let values: Vec<String> = values.values().map(|v| v.as_val().to_string()).collect();
            assert_eq!(values.join(" "), wanted);
        }
    }

    /// A shard is asked for what may be among the first of all shards, and no more.
    #[test]
    fn what_each_shard_is_asked_for() {
        let placement = Placement::Sharded(Arc::new(table(&[5])));
        for (command, each, skip, left) in [
            (
                r#"{"find":"c"}"#,
                r#"{ find: "c", $db: "d", batchSize: 1000 }"#,
                0,
                None,
            ),
            (
                r#"{"find":"c","skip":3,"limit":4}"#,
                r#"{ find: "c", $db: "d", limit: 7, batchSize: 1000 }"#,
                3,
                Some(4),
            ),
            (
                r#"{"find":"c","skip":2.5,"limit":3.5,"batchSize":0}"#,
                r#"{ find: "c", $db: "d", limit: 5, batchSize: 0 }"#,
                2,
                Some(3),
            ),
            // Sort keys are of whole documents.
            (
                r#"{"find":"c","sort":{"a":1},"projection":{"b":1},"singleBatch":true,"batchSize":7}"#,
                r#"{ find: "c", sort: { a: 1 }, $db: "d", batchSize: 7 }"#,
                0,
                None,
            ),
            (
                r#"{"find":"c","projection":{"b":1}}"#,
                r#"{ find: "c", $db: "d", projection: { b: 1 }, batchSize: 1000 }"#,
                0,
                None,
            ),
        ] {
            with_command(command, |command| {
                let asked = Scattered::of(command, &placement, "d.c").unwrap().unwrap();
                assert_eq!(shell::doc(asked.each.as_doc()), each);
                assert_eq!((asked.merge.skip, asked.merge.left), (skip, left), "{each}");
            });
        }
        for (command, code) in [
            (r#"{"find":"c","limit":"x"}"#, 14),
            (r#"{"find":"c","skip":-1}"#, 2),
            (r#"{"find":"c","nope":1}"#, 40415),
        ] {
            let failed = with_command(command, |c| Scattered::of(c, &placement, "d.c").err());
            assert_eq!(failed.unwrap().into_error().code.0, code, "{command}");
        }
    }
}
