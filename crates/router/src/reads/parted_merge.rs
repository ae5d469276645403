//! `$merge` into a sharded collection, in parts: each shard writes what of its documents belongs to
//! it, and gives the rest, which the router hands on.
//!
//! ```text
//! each shard: [stages, {$merge}] ── opened, nothing is written yet
//!       ▲ getMore {writesTo: what the router believes of the target}
//!       ├── what belongs there is written behind the target's gate
//!       └── the rest ── batches to the shards where it belongs
//! ```
//! Invariants:
//! - Each document of the source is written by one: a shard says of each whether it has written it,
//!   while nothing of the target can move.
//! - A shard that knows better of the target refuses the batch before it has read anything: that batch
//!   comes whole, and is handed on.

use crate::reads::cluster_stages::naming;
use crate::reads::merge_into::{Concerns, Target, finds_by_id, note};
use crate::reads::pipeline_parts::Parts;
use crate::reads::{aggregate, views};
use crate::request::RoutedCommand;
use crate::state::Router;
use crate::targeting::pipeline::{
    fuses, is_of_one_collection, joined_collections, pipeline_context, pipeline_targets,
};
use bson::{Doc, DocBuf, Val, Value, Writer, doc};
use cluster_view::metadata::Placement;
use cluster_view::reply::sound;
use cluster_view::routing::received;
use cluster_view::upstream::{message, with_fields};
use cluster_view::{Failure, Outcome};
use service::Request;
use std::sync::Arc;

/// Documents of a batch that a shard gives at most.
const BATCH: i64 = 10_000;

/// Cursors of shards that write their parts.
pub(crate) struct PartedMerge {
    db: String,
    collection: String,
    /// Those that have more, by their shards.
    open: Vec<(Arc<str>, i64)>,
    session: DocBuf,
}

impl PartedMerge {
    /// Opens the cursors; nothing is written yet. `body`: the aggregate of the stages before the last.
    /// `None` where the target is not sharded, the documents are made from those of several shards, or
    /// other collections have a part in them.
    pub fn open(
        router: &Router,
        command: &RoutedCommand<'_>,
        body: &DocBuf,
        target: &Target,
    ) -> Outcome<Option<PartedMerge>> {
        let Some((_, last)) = target.sharded() else {
            return Ok(None);
        };
        let request = Request::own(body.as_doc());
        let reads = RoutedCommand::of(&request)?;
        if reads.collection().is_empty() {
            return Ok(None);
        }
        let opened = router.cluster.agree(&command.namespace()?, |placement| {
            let Some(placement) = placement else {
                return Ok(None);
            };
            let Some((shards, stages)) = parts(router, &reads, placement)? else {
                return Ok(None);
            };
            let each = opening(command, &stages, last);
            let to = shards.iter();
            let commands: Vec<_> = to.map(|s| (s.clone(), naming(each.clone(), s))).collect();
            let replies = router.scatter(command, placement, &commands)?;
            Ok(Some((shards, replies)))
        })?;
        let Some((shards, replies)) = opened else {
            return Ok(None);
        };
        let mut merge = PartedMerge {
            db: command.db.into(),
            collection: command.collection().into(),
            open: Vec::new(),
            session: command.session_fields(),
        };
        assert_eq!(shards.len(), replies.len(), "a reply of each shard");
        let mut outcome = Ok(true);
        for (shard, reply) in shards.into_iter().zip(replies) {
            if views::resolved_view(&reply).is_some() {
                outcome = outcome.map(|_| false);
                continue;
            }
            match sound(reply) {
                Ok(reply) => merge.keep(shard, &reply),
                Err(e) => outcome = Err(e),
            }
        }
        match outcome {
            Ok(true) => Ok(Some(merge)),
            other => {
                merge.end(router);
                other.map(|_| None)
            }
        }
    }

    fn keep(&mut self, shard: Arc<str>, reply: &DocBuf) {
        match cluster_view::reply::cursor_id(reply) {
            0 => {}
            id => self.open.push((shard, id)),
        }
    }

    /// Has the shards write, and hands on what they give.
    pub fn run(
        mut self,
        router: &Router,
        command: &RoutedCommand<'_>,
        target: &Target,
        concerns: &mut Concerns,
    ) -> Outcome<()> {
        while !self.open.is_empty() {
            let asked = errors::operation::ask().map_err(Failure::Client);
            if let Err(e) = asked {
                self.end(router);
                return Err(e);
            }
            let (given, outcome) = self.batches(router, target, concerns);
            let handed_on = given
                .into_iter()
                .try_for_each(|docs| target.write(router, command, docs, concerns));
            if let Err(e) = outcome.and(handed_on) {
                self.end(router);
                return Err(e);
            }
        }
        Ok(())
    }

    /// One batch of each shard that has more: the documents to pass on, and the first failure.
    fn batches(
        &mut self,
        router: &Router,
        target: &Target,
        concerns: &mut Concerns,
    ) -> (Vec<Vec<DocBuf>>, Outcome<()>) {
        let ns = target.sharded().map_or("", |(ns, _)| ns);
        let believed = router.cluster.placement(ns).ok().flatten();
        let cluster = &router.cluster;
        let asked = std::mem::take(&mut self.open);
        let under_way: Vec<_> = asked
            .iter()
            .map(|(shard, id)| {
                cluster.begin(shard, self.more(router, shard, *id, believed.as_ref(), ns))
            })
            .collect();
        let (mut given, mut outcome) = (Vec::new(), Ok(()));
        for ((shard, id), under_way) in asked.into_iter().zip(under_way) {
            let reply = received(under_way).and_then(|reply| cluster.judge(&shard, reply));
            let reply = match reply {
                // Nothing of the batch was read: it comes whole.
                Err(Failure::Stale(_)) => {
                    let _ = cluster.refresh(ns);
                    let whole = self.more(router, &shard, id, None, ns);
                    received(cluster.begin(&shard, whole))
                }
                reply => reply,
            };
            match reply.and_then(sound) {
                Ok(reply) => {
                    given.push(
                        cluster_view::reply::batch_of(&reply)
                            .map(Doc::to_buf)
                            .collect(),
                    );
                    self.keep(shard.clone(), &reply);
                    note(concerns, reply, &shard);
                }
                // The cursor has ended with it.
                Err(e) => outcome = outcome.and(Err(e)),
            }
        }
        (given, outcome)
    }

    /// The message that asks for a batch. `believed`: where the target is; `None`: nothing is written.
    fn more(
        &self,
        router: &Router,
        shard: &Arc<str>,
        id: i64,
        believed: Option<&Placement>,
        ns: &str,
    ) -> Vec<u8> {
        let mut w = Writer::new();
        w.i64("getMore", id)
            .str("collection", &self.collection)
            .i64("batchSize", BATCH);
        if let Some(placement @ Placement::Sharded(_)) = believed {
            let told = router.cluster.target_of(ns, placement, shard);
            w.doc("writesTo", told.as_doc());
        }
        w.str("$db", &self.db);
        router.cluster.say_time(&mut w);
        let command = with_fields(w.finish().as_doc(), self.session.as_doc());
        message(command.as_doc(), &[])
    }

    /// Ends the shards' open cursors.
    fn end(&mut self, router: &Router) {
        for (shard, id) in std::mem::take(&mut self.open) {
            let kill = doc! {"killCursors": &self.collection, "cursors": bson::array![id]};
            let _ = router.cluster.on_shard(&shard, &self.db, kill.as_doc());
        }
    }
}

/// The shards of a pipeline, and the stages that each runs over its own documents to have all there
/// are; `None` where that is not so.
fn parts(
    router: &Router,
    reads: &RoutedCommand<'_>,
    placement: &Placement,
) -> Outcome<Option<(Vec<Arc<str>>, Vec<Value>)>> {
    let stages = reads.field("pipeline").and_then(Val::as_array);
    let stages = stages.unwrap_or(Doc::EMPTY);
    let mut shards = pipeline_targets(reads, reads.body, placement, stages)?;
    shards.dedup();
    let written = || stages.values().map(|s| s.to_value()).collect();
    if let ([shard], false) = (shards.as_slice(), fuses(stages)) {
        let others = joined_collections(reads.db, stages);
        let all = aggregate::are_all_on(router, shard, &others)?;
        return Ok(all.then(|| (shards, written())));
    }
    if !is_of_one_collection(reads.db, stages) {
        return Ok(None);
    }
    let context = pipeline_context(reads.db, reads.body, reads.collation(placement))?;
    let parts = Parts::of(&context, stages, &|_, _| Ok(None))?;
    Ok(parts.looks_at_each().then_some((shards, parts.on_shards)))
}

/// What each shard is asked first.
fn opening(command: &RoutedCommand<'_>, stages: &[Value], last: &DocBuf) -> DocBuf {
    let mut w = command.without(&["pipeline", "cursor"]);
    w.open_array("pipeline");
    stages.iter().for_each(|s| {
        w.push(s.as_val());
    });
    w.push(last.as_doc().as_val());
    w.close().value("cursor", doc! {"batchSize": 0});
    w.bool("mergeKeyChecked", finds_by_id(last))
        .bool("mergesApart", true);
    w.finish()
}
