//! `mapReduce`: the pipeline that it stands for, run as any other pipeline: shards map, the router
//! reduces, and the results go where their collection is.

use crate::reads::aggregate;
use crate::reads::cursors::get_more;
use crate::request::{RoutedCommand, finish, own};
use crate::state::{Router, cursors};
use bson::{DocBuf, Writer, doc};
use cluster_view::Outcome;
use cluster_view::metadata::Placement;
use errors::err;

/// What the pipeline takes over.
const SHARED: [&str; 7] = [
    "collation",
    "bypassDocumentValidation",
    "maxTimeMS",
    "comment",
    "readConcern",
    "writeConcern",
    "lsid",
];
/// Bytes of the results that a reply may hold.
const REPLY_BYTES: usize = 16 << 20;

pub(crate) fn run(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let ns = command.namespace()?;
    let asked = router.local.routed_map_reduce(command.request)?;
    if asked.scoped {
        return on_one_shard(router, command, &ns, asked.writes);
    }
    let mut w = Writer::new();
    w.str("aggregate", command.collection())
        .val("pipeline", asked.pipeline.as_val())
        .value("cursor", doc! {})
        .bool("allowDiskUse", true);
    for name in SHARED {
        if let Some(v) = command.field(name) {
            w.val(name, v);
        }
    }
    w.str("$db", command.db);
    let mut reply = own(router, &w.finish(), aggregate::run)?;
    let first = reply.clone();
    let mut w = Writer::new();
    if !asked.writes {
        w.open_array("results");
        loop {
            cluster_view::reply::batch_of(&reply).for_each(|d| {
                w.push(d.as_val());
            });
            let id = cluster_view::reply::cursor_id(&reply);
            if w.len() > REPLY_BYTES {
                cursors::end(router, &ns, id);
                return Err(err!(
                    BSONObjectTooLarge,
                    "the results of mapReduce do not fit into one reply"
                )
                .into());
            }
            if id == 0 {
                break;
            }
            let more = doc! {
                "getMore": id, "collection": command.collection(), "$db": command.db,
            };
            reply = own(router, &more, get_more)?;
        }
        w.close();
    }
    if let Some(told) = &asked.result {
        w.val("result", told.as_val());
    }
    if let Some(error) = first.get("writeConcernError") {
        w.val("writeConcernError", error);
    }
    Ok(finish(w, &[first]))
}

/// Variables for the functions (`scope`) do not go with a pipeline that is divided.
fn on_one_shard(
    router: &Router,
    command: &RoutedCommand<'_>,
    ns: &str,
    writes: bool,
) -> Outcome<DocBuf> {
    router.cluster.agree(ns, |placement| match placement {
        Some(placement @ Placement::Unsharded(unsharded)) if !writes => {
            let body = command.whole();
            router.send(command, placement, &unsharded.shard, &body, &[])
        }
        None => Err(err!(NamespaceNotFound, "ns does not exist").into()),
        _ => Err(err!(
            NotImplemented,
            "mapReduce with a scope reads one shard, and gives its results inline"
        )
        .into()),
    })
}
