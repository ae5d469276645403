//! A database with another primary shard: what is not sharded goes there, one collection after
//! another, each like a range; then routers wait with the database for a moment, while its views are
//! made there and the metadata says so.
//!
//! Invariant: when the metadata changes, nothing is on the old primary shard that only the database
//! says to be there. A collection that has moved says by itself where it is, whatever ends this.

use super::left::{HOME, begin, decide};
use super::{majority, make_like, move_range_under};
use crate::admin::track;
use crate::chunks::{Change, Lock, lock};
use crate::metadata::{Cluster, Home, all, run};
use crate::{Failure, Outcome};
use bson::{Doc, DocBuf, Val, Writer, doc};
use errors::{Code, err};
use sharding::DbVersion;
use std::sync::Arc;

/// How often collections may come to be while others are moved.
const MOST_ROUNDS: usize = 20;

/// What a shard has of a database: `listCollections`' documents.
fn listed(cluster: &Cluster, db: &str, shard: &str) -> Outcome<Vec<DocBuf>> {
    let set = cluster.shard(shard)?;
    all(&set, db, doc! {"listCollections": 1}.as_doc())
}

fn is_of(d: &DocBuf, kind: &str) -> bool {
    d.get("type").and_then(Val::as_str) == Some(kind)
}

fn name_of(d: &DocBuf) -> &str {
    d.get("name").and_then(Val::as_str).unwrap_or_default()
}

/// The database, the shard that it leaves, and what it is then.
struct Leaving<'c> {
    cluster: &'c Cluster,
    held: &'c Lock<'c>,
    db: &'c str,
    from: Arc<str>,
    version: DbVersion,
}

impl<'c> Leaving<'c> {
    /// `None` where there is no such database.
    fn begin(
        cluster: &'c Cluster,
        held: &'c Lock<'c>,
        db: &'c str,
    ) -> Outcome<Option<Leaving<'c>>> {
        cluster.end_left_moves_under(held, db)?;
        let Some(Home { shard, version }) = cluster.refresh_home(db)? else {
            return Ok(None);
        };
        let version = version.ok_or_else(|| err!(InternalError, "{db} has no version"))?;
        Ok(Some(Leaving {
            cluster,
            held,
            db,
            from: shard,
            version,
        }))
    }

    /// Has routers wait with the database, runs `work`, then changes the metadata as `write` says.
    fn change(
        &self,
        to: &[&str],
        work: impl FnOnce() -> Outcome<()>,
        write: impl FnOnce(&mut Change<'_>),
    ) -> Outcome<()> {
        let mut names = Writer::new_array();
        to.iter().for_each(|to| {
            names.push_value(*to);
        });
        let fields = doc! {
            "from": &*self.from,
            "to": names.finish_array(),
            "fenced": bson::array![&*self.from],
            "version": self.version.to_doc(),
        };
        begin(self.held, self.db, HOME, fields)?;
        let steps = || -> Outcome<()> {
            let fence = doc! {
                "_pandoHome": 1,
                "fence": self.db,
                "version": self.version.to_doc(),
                "by": &self.held.by,
                "writeConcern": majority(),
            };
            self.cluster.on_shard(&self.from, "admin", fence.as_doc())?;
            work()?;
            let mut change = Change::begin(self.held);
            write(&mut change);
            decide(&mut change, self.held, self.db);
            change.commit()
        };
        let done = steps();
        self.cluster.end_left_moves_under(self.held, self.db)?;
        done
    }

    /// The collections that only the database says to be here.
    fn untracked(&self) -> Outcome<Vec<String>> {
        let mut found = Vec::new();
        for d in listed(self.cluster, self.db, &self.from)? {
            let ns = format!("{}.{}", self.db, name_of(&d));
            let own = matches!(name_of(&d), "system.views" | "system.profile");
            // What is being gathered for `$out` stays: its target is looked at again before that.
            let own = own || name_of(&d).starts_with("tmp.agg_out.");
            if is_of(&d, "collection") && !own && self.cluster.read_table(&ns)?.is_none() {
                found.push(ns);
            }
        }
        Ok(found)
    }

    /// What has chunks is known at the primary shard too.
    fn make_tracked(&self, to: &str) -> Outcome<()> {
        for d in listed(self.cluster, self.db, &self.from)? {
            let ns = format!("{}.{}", self.db, name_of(&d));
            if is_of(&d, "collection") && self.cluster.read_table(&ns)?.is_some() {
                make_like(self.cluster, &self.from, &ns, to, &ns)?;
            }
        }
        Ok(())
    }

    fn make_views(&self, to: &str) -> Outcome<()> {
        let set = self.cluster.shard(to)?;
        for d in listed(self.cluster, self.db, &self.from)? {
            if !is_of(&d, "view") {
                continue;
            }
            let mut w = Writer::new();
            w.str("create", name_of(&d));
            w.extend(d.get("options").and_then(Val::as_doc).unwrap_or(Doc::EMPTY));
            w.doc("writeConcern", majority().as_doc())
                .bool("mayBypassWriteBlocking", true);
            match run(&set, self.db, w.finish().as_doc()) {
                Err(Failure::Client(e)) if e.code == Code::NamespaceExists => {}
                other => drop(other?),
            }
        }
        Ok(())
    }
}

/// Makes `to` the primary shard of a database.
pub(crate) fn move_primary(cluster: &Cluster, db: &str, to: &str) -> Outcome<()> {
    let held = lock(cluster, db)?;
    let Some(leaving) = Leaving::begin(cluster, &held, db)? else {
        return Err(err!(NamespaceNotFound, "database {db} not found").into());
    };
    if *leaving.from == *to {
        return Ok(());
    }
    for _ in 0..MOST_ROUNDS {
        for ns in leaving.untracked()? {
            let own = lock(cluster, &ns)?;
            cluster.end_left_moves_under(&own, &ns)?;
            let table = track(cluster, &own, &ns, &leaving.from)?;
            let (min, max) = (table.key().global_min(), table.key().global_max());
            move_range_under(cluster, &own, &ns, min.as_doc(), max.as_doc(), to)?;
        }
        leaving.make_tracked(to)?;
        let work = || {
            if let Some(new) = leaving.untracked()?.first() {
                return Err(err!(ObjectIsBusy, "{new} has come to be").into());
            }
            leaving.make_views(to)
        };
        let next = leaving.version.next();
        let write = |change: &mut Change<'_>| {
            let set = doc! {"primary": to, "version": next.to_doc()};
            change.update(
                "databases",
                doc! {"_id": db, "primary": &*leaving.from},
                doc! {"$set": set},
            );
        };
        match leaving.change(&[to], work, write) {
            Err(Failure::Client(e)) if e.code == Code::ObjectIsBusy => {}
            done => {
                done?;
                forget_views(&leaving);
                return Ok(());
            }
        }
    }
    Err(err!(
        OperationFailed,
        "collections of {db} come to be faster than they are moved"
    )
    .into())
}

/// The views at the old primary shard are nobody's any more.
fn forget_views(leaving: &Leaving<'_>) {
    let views = format!("{}.system.views", leaving.db);
    let swap = doc! {"_pandoSwap": 1, "ns": &views, "writeConcern": majority()};
    let gone = leaving
        .cluster
        .on_shard(&leaving.from, "admin", swap.as_doc());
    if let Err(e) = gone {
        tracing::warn!(target: "SHARDING", db = leaving.db, error = %e, "Views are left behind");
    }
}

/// Removes a database from the metadata, when `drop` has removed what is in it.
pub(crate) fn drop_home(
    cluster: &Cluster,
    db: &str,
    drop: impl FnOnce() -> Outcome<()>,
) -> Outcome<()> {
    let held = lock(cluster, db)?;
    let Some(leaving) = Leaving::begin(cluster, &held, db)? else {
        return drop();
    };
    let write = |change: &mut Change<'_>| change.remove("databases", doc! {"_id": db});
    leaving.change(&[], drop, write)?;
    held.is_over();
    Ok(())
}
