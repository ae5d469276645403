//! `renameCollection`: the shard that has the database renames what it has.
//!
//! A collection that was moved by itself, and is where its database is, is first what only the database
//! says to be there. A router that does not know of that yet still sends commands to the right shard:
//! the documents stay where they are. If this ends in between, such a collection stays, under its old
//! name.

use crate::collection_uuid;
use crate::databases::{made_for, make_database};
use crate::request::RoutedCommand;
use crate::state::Router;
use bson::{DocBuf, Val, Value, doc};
use cluster_view::Outcome;
use cluster_view::chunks::{Lock, MetadataChange, lock};
use cluster_view::metadata::{Cluster, Placement, Unsharded, run as run_on};
use cluster_view::write_concern::majority;
use errors::err;
use mover::PendingMoves;

pub(crate) fn run(router: &Router, command: &RoutedCommand<'_>) -> Outcome<DocBuf> {
    let from = command.collection().to_string();
    let to = command
        .field("to")
        .and_then(Val::as_str)
        .unwrap_or_default();
    let cluster = &router.cluster;
    let databases = lock_databases(cluster, &[&from, to])?;
    // Neither is moved meanwhile. Always in one order, so that no two wait for each other.
    let mut names = [from.as_str(), to];
    names.sort_unstable();
    let mut held = Vec::new();
    for ns in names.iter().filter(|ns| ns.contains('.')) {
        if held.is_empty() || from != to {
            let own = lock(cluster, ns)?;
            cluster.end_pending_moves_under(&own, ns)?;
            held.push(own);
        }
    }
    match (cluster.refresh(&from)?, cluster.refresh(to)?) {
        (None, _) => {
            let target = command.field("dropTarget");
            collection_uuid::check(cluster, to, target.filter(|v| v.as_binary().is_some()))?;
            Err(err!(NamespaceNotFound, "Source collection {from} does not exist").into())
        }
        (Some(placement @ Placement::Unsharded(_)), b) => {
            let Placement::Unsharded(a) = &placement else {
                return Err(err!(InternalError, "a collection is nowhere").into());
            };
            let b = match b {
                Some(b) => b,
                None => made_beside(cluster, to, a)?,
            };
            let same = matches!(&b, Placement::Unsharded(b) if a.shard == b.shard);
            if !same || !is_on_primary(cluster, &from, a)? {
                return Err(err!(
                    CommandFailed,
                    "Source and destination collections must be on same shard"
                )
                .into());
            }
            for lock in &held {
                untrack(cluster, lock, &databases)?;
            }
            let whole = command.whole();
            cluster.agree(&from, |now| match now {
                Some(now @ Placement::Unsharded(Unsharded { shard, .. })) => {
                    cluster.send(now, shard, whole.as_doc(), &[])
                }
                _ => Err(err!(NamespaceNotFound, "Source collection {from} does not exist").into()),
            })
        }
        _ => Err(err!(
            NotImplemented,
            "renaming a sharded collection is not supported yet"
        )
        .into()),
    }
}

/// Where a collection goes whose database is made for it, beside another collection.
fn made_beside(cluster: &Cluster, ns: &str, other: &Unsharded) -> Outcome<Placement> {
    let db = ns.split_once('.').map_or(ns, |(db, _)| db);
    make_database(cluster, db, Some(&other.shard))?;
    made_for(cluster, db, ns)
}

/// The locks of the databases: what has no chunk of its own goes where they go.
fn lock_databases<'c>(cluster: &'c Cluster, names: &[&str]) -> Outcome<Vec<Lock<'c>>> {
    let mut databases: Vec<&str> = names
        .iter()
        .filter_map(|ns| Some(ns.split_once('.')?.0))
        .collect();
    databases.sort_unstable();
    databases.dedup();
    let mut held = Vec::new();
    for db in databases {
        let own = lock(cluster, db)?;
        cluster.end_pending_moves_under(&own, db)?;
        held.push(own);
    }
    Ok(held)
}

/// Whether a collection is where its database is.
fn is_on_primary(cluster: &Cluster, ns: &str, unsharded: &Unsharded) -> Outcome<bool> {
    let db = ns.split_once('.').map_or(ns, |(db, _)| db);
    Ok(cluster
        .refresh_database_primary(db)?
        .is_some_and(|primary| primary.shard == unsharded.shard))
}

/// Takes the chunk away that says where a collection is, on the shard that its database is on; the
/// other shards lose what they have of it, which is empty.
fn untrack(cluster: &Cluster, held: &Lock<'_>, databases: &[Lock<'_>]) -> Outcome<()> {
    let ns = held.name();
    let Some(table) = cluster
        .read_table(ns)?
        .filter(|table| !table.entry.measured)
    else {
        return Ok(());
    };
    let primary = table.shards().next().cloned();
    let mut change = MetadataChange::begin(held);
    databases.iter().for_each(|lock| change.holding(lock));
    change.remove("collections", doc! {"_id": ns});
    change.remove("chunks", doc! {"uuid": Value::binary(4, &table.entry.uuid)});
    change.commit()?;
    cluster.forget(ns);
    for shard in cluster.shard_names()? {
        if primary.as_deref() != Some(&*shard) {
            let gone = doc! {
                "_pandoSwap": 1, "ns": ns, "turn": held.turn(),
                "writeConcern": majority(),
            };
            run_on(&*cluster.shard(&shard)?, "admin", gone.as_doc())?;
        }
        cluster.teach(ns, None, &shard, Some(table.entry.timestamp))?;
    }
    Ok(())
}
