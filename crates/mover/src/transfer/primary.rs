//! A database with another primary shard: its unsharded collections go there one after another, each
//! like a range; then routers wait with the database for a moment, while its views are made there and
//! the metadata changes. The steps are those of `sharding::moving_primary`.
//!
//! Invariant: when the metadata changes, nothing is on the old primary shard that only the database
//! says to be there. A collection that has moved says by itself where it is, whatever ends this.

use super::PendingMoves;
use super::recovery::{PRIMARY, begin, decide, forget_views};
use super::{make_like, move_range_under};
use crate::track::track;
use bson::{Doc, DocBuf, Val, Writer, doc};
use cluster_view::chunks::{Lock, MetadataChange, lock};
use cluster_view::metadata::{Cluster, KnownPrimary, all, run};
use cluster_view::write_concern::majority;
use cluster_view::{Failure, Outcome};
use errors::{Code, err};
use sharding::DbVersion;
use sharding::moving::DrainPatience;
use sharding::moving_primary::{PrimaryMove, PrimaryMoveStep};
use std::sync::Arc;

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
        cluster.end_pending_moves_under(held, db)?;
        let Some(KnownPrimary { shard, version }) = cluster.refresh_database_primary(db)? else {
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

    /// The document of the pending move.
    fn write_down(&self, to: &[&str]) -> Outcome<()> {
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
        begin(self.held, self.db, PRIMARY, fields)
    }

    /// Has routers wait with the database; what it has acknowledged is done.
    fn fence(&self) -> Outcome<()> {
        let mut drains = DrainPatience::default();
        loop {
            let millis = i64::try_from(drains.now().as_millis()).unwrap_or(i64::MAX);
            let fence = doc! {
                "fence": self.db,
                "version": self.version.to_doc(),
                "by": self.held.fence(),
                "drain": millis,
            };
            let turn = Some(self.held.turn());
            match self.cluster.run_pando_home(&self.from, fence, turn) {
                Err(Failure::Client(e)) if e.code == Code::LockTimeout => match drains.refused() {
                    Some(pause) if !self.held.is_wanted() => std::thread::sleep(pause),
                    _ => return Err(e.into()),
                },
                done => return done,
            }
        }
    }

    fn decide(&self, write: impl FnOnce(&mut MetadataChange<'_>)) -> Outcome<()> {
        let mut change = MetadataChange::begin(self.held);
        write(&mut change);
        decide(&mut change, self.held, self.db);
        change.commit()
    }

    /// The collections that only the database says to be here.
    fn untracked(&self) -> Outcome<Vec<String>> {
        let mut found = Vec::new();
        for d in listed(self.cluster, self.db, &self.from)? {
            let ns = format!("{}.{}", self.db, name_of(&d));
            let own = matches!(name_of(&d), "system.views" | "system.profile");
            // Temporary collections of `$out` stay: `$out` checks its target again before it renames
            // them.
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
                make_like(self.cluster, &self.from, &ns, to, (&ns, None))?;
            }
        }
        Ok(())
    }

    /// What the new primary shard has of the database's views are those that are here.
    fn make_views(&self, to: &str) -> Outcome<()> {
        let turn = self.held.turn();
        let (cluster, from) = (self.cluster, &*self.from);
        cluster.teach_database_primary(self.db, self.version, from, to, Some(turn))?;
        forget_views(self.cluster, self.db, to, Some(turn))?;
        let set = self.cluster.shard(to)?;
        for d in listed(self.cluster, self.db, &self.from)? {
            if !is_of(&d, "view") {
                continue;
            }
            let mut w = Writer::new();
            w.str("create", name_of(&d));
            w.extend(d.get("options").and_then(Val::as_doc).unwrap_or(Doc::EMPTY));
            w.doc("moveTurn", doc! {"db": self.db, "turn": turn}.as_doc());
            w.doc("writeConcern", majority().as_doc())
                .bool("mayBypassWriteBlocking", true);
            match run(&set, self.db, w.finish().as_doc()) {
                Err(Failure::Client(e)) if e.code == Code::NamespaceExists => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    fn move_untracked(&self, ns: &str, to: &str) -> Outcome<()> {
        let own = lock(self.cluster, ns)?;
        self.cluster.end_pending_moves_under(&own, ns)?;
        let table = track(self.cluster, (&own, self.held), ns, &self.from)?;
        let (min, max) = (table.key().global_min(), table.key().global_max());
        move_range_under(self.cluster, &own, ns, min.as_doc(), max.as_doc(), to)
    }

    fn step(&self, step: PrimaryMoveStep, steps: &mut PrimaryMove, to: &str) -> Outcome<()> {
        match step {
            PrimaryMoveStep::Look | PrimaryMoveStep::LookAgain => {
                steps.found(self.untracked()?);
                Ok(())
            }
            PrimaryMoveStep::MoveCollection(ns) => self.move_untracked(&ns, to),
            PrimaryMoveStep::MakeTracked => self.make_tracked(to),
            PrimaryMoveStep::WriteDown => self.write_down(&[to]),
            PrimaryMoveStep::Fence => self.fence(),
            PrimaryMoveStep::MakeViews => self.make_views(to),
            PrimaryMoveStep::ChangePrimary => self.change_primary(to),
            PrimaryMoveStep::TakeBack => self.cluster.end_pending_moves_under(self.held, self.db),
        }
    }

    fn change_primary(&self, to: &str) -> Outcome<()> {
        let set = doc! {"primary": to, "version": self.version.next().to_doc()};
        let old = doc! {"_id": self.db, "primary": &*self.from};
        self.decide(|change| change.update("databases", old, doc! {"$set": set}))
    }
}

/// Makes `to` the primary shard of a database.
pub fn move_primary(cluster: &Cluster, db: &str, to: &str) -> Outcome<()> {
    let held = lock(cluster, db)?;
    let Some(leaving) = Leaving::begin(cluster, &held, db)? else {
        return Err(err!(NamespaceNotFound, "database {db} not found").into());
    };
    if *leaving.from == *to {
        return Ok(());
    }
    let mut steps = PrimaryMove::new();
    let mut run = || -> Outcome<()> {
        while let Some(step) = steps.step() {
            leaving.step(step, &mut steps, to)?;
            steps.done()?;
        }
        Ok(())
    };
    let done = run();
    ended(cluster, &held, db, done)
}

/// Ends the pending move. What the metadata says decides: it may have been changed where that failed.
fn ended(cluster: &Cluster, held: &Lock<'_>, db: &str, done: Outcome<()>) -> Outcome<()> {
    let ended = cluster.end_pending_moves_under(held, db);
    if let (Err(_), Err(left)) = (&done, &ended) {
        tracing::warn!(target: "SHARDING", db, error = %left, "A change of a primary is left behind");
    }
    done.and(ended)
}

/// Removes a database from the metadata, after `drop` has removed its collections.
pub fn drop_database_metadata(
    cluster: &Cluster,
    db: &str,
    drop: impl FnOnce() -> Outcome<()>,
) -> Outcome<()> {
    let held = lock(cluster, db)?;
    let Some(leaving) = Leaving::begin(cluster, &held, db)? else {
        return drop();
    };
    let run = || -> Outcome<()> {
        leaving.write_down(&[])?;
        leaving.fence()?;
        drop()?;
        leaving.decide(|change| change.remove("databases", doc! {"_id": db}))
    };
    let done = run();
    ended(cluster, &held, db, done)
}
