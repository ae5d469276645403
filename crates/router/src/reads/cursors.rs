//! `getMore` and `killCursors`, and cursors over what several shards have found.

use crate::access;
use crate::merge::Merge;
use crate::request::{RoutedCommand, finish};
use crate::state::Router;
use crate::state::cursors::{CursorSource, FIRST_BATCH, Source, close, end};
use auth::{Action, Target};
use bson::{DocBuf, Val, Writer};
use cluster_view::{Failure, Outcome};
use errors::err;

pub(crate) fn get_more(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let id = command.int("getMore").unwrap_or(0);
    let collection = command
        .field("collection")
        .and_then(Val::as_str)
        .unwrap_or("");
    let ns = format!("{}.{collection}", command.db);
    router.cursors.check_rights(command, id)?;
    let mut source = router.cursors.take(id, &ns)?;
    let gone_on = match router.local.fail_routed_get_more() {
        None => source.more(router, command, &ns, id),
        Some(e) => Err(e.into()),
    };
    match gone_on {
        Ok((reply, true)) => {
            router.cursors.end(id);
            close(router, &ns, source);
            Ok(reply)
        }
        Ok((reply, false)) => {
            if let Some(killed) = router.cursors.give_back(id, source) {
                close(router, &ns, killed);
            }
            Ok(reply)
        }
        Err(not_yet @ Failure::NotYet(_)) => {
            if let Some(killed) = router.cursors.give_back(id, source) {
                close(router, &ns, killed);
            }
            Err(not_yet)
        }
        Err(e) => {
            router.cursors.end(id);
            let resumable = source.is_resumable();
            close(router, &ns, source);
            match resumable {
                true => Err(commands::with_resumable_label(e.into_error()).into()),
                false => Err(e),
            }
        }
    }
}

impl CursorSource for Merge {
    fn more(
        &mut self,
        router: &Router,
        command: &RoutedCommand<'_>,
        ns: &str,
        id: i64,
    ) -> Outcome<(DocBuf, bool)> {
        let most = command.more();
        let mut w = Writer::new();
        w.open_doc("cursor").open_array("nextBatch");
        let done = self.fill(&router.cluster, &mut w, most)?;
        if !done {
            self.release(&router.local.cursor_memory())?;
        }
        w.close()
            .i64("id", if done { 0 } else { id })
            .str("ns", ns)
            .close();
        Ok((finish(w, &[]), done))
    }

    fn close(self: Box<Self>, router: &Router, _: &str) {
        Merge::close(&self, &router.cluster);
    }
}

/// The reply to a command that has opened cursors on several shards.
pub(crate) fn first_batch(
    router: &Router,
    mut merge: Merge,
    ns: &str,
    most: Option<i64>,
    single: bool,
    replies: &[DocBuf],
) -> Outcome<DocBuf> {
    let mut w = Writer::new();
    w.open_doc("cursor").open_array("firstBatch");
    let done = match most {
        Some(0) => false,
        most => merge.fill(&router.cluster, &mut w, most.or(Some(FIRST_BATCH)))?,
    };
    w.close();
    let ends = done || single;
    let kept = match ends {
        true => Ok(()),
        false => merge.release(&router.local.cursor_memory()),
    };
    let source: Source = Box::new(merge);
    let id = match ends || kept.is_err() {
        true => {
            close(router, ns, source);
            0
        }
        false => router.cursors.add(ns, source),
    };
    kept?;
    w.i64("id", id).str("ns", ns).close();
    Ok(finish(w, replies))
}

pub(crate) fn kill(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    let ids = command.field("cursors").and_then(Val::as_array);
    let Some(ids) = ids else {
        return Err(Failure::Client(err!(FailedToParse, "cursors is an array")));
    };
    let target = Target::Collection(command.db, command.collection());
    let kills_any = |t| access::may(command.user.as_deref(), Action::KillAnyCursor, t);
    if !kills_any(target) && !kills_any(Target::Cluster) {
        for id in ids.values().filter_map(Val::to_i64_exact) {
            router.cursors.check_owner(command, id)?;
        }
    }
    let (mut killed, mut missing) = (Writer::new_array(), Writer::new_array());
    for id in ids.values().filter_map(Val::to_i64_exact) {
        let known = router.cursors.is_open(id);
        end(router, &ns, id);
        let list = if known { &mut killed } else { &mut missing };
        list.push_value(id);
    }
    let mut w = Writer::new();
    w.val("cursorsKilled", killed.finish_array().as_val())
        .val("cursorsNotFound", missing.finish_array().as_val())
        .value("cursorsAlive", bson::array![])
        .value("cursorsUnknown", bson::array![]);
    Ok(finish(w, &[]))
}
