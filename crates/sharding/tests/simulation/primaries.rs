//! Changes of a database's primary, or of the shard of an unsharded collection.

use crate::config::{Write, entry_of, uuid_of, whole_chunk};
use crate::history::Planted;
use crate::mover::{Held, failed, fence, state, text};
use crate::names::{DB, Ns, name_of, ns_named};
use crate::router::{Failure, Outcome, Placement, Router};
use crate::shard::Refusal;
use bson::{DocBuf, Value, doc};
use sharding::moving::MoveState;
use sharding::moving_primary::{self, EndPrimaryMoveStep, PrimaryMove, PrimaryMoveStep};
use sharding::two_phase::Shard as Name;
use sharding::{DbVersion, RoutingTable};
use std::rc::Rc;

/// The database, and where it goes.
struct Leaving {
    from: Name,
    to: Name,
    version: DbVersion,
}

impl Router {
    /// `movePrimary`
    pub async fn move_primary(self: Rc<Router>, to: Name) -> Outcome<()> {
        let held = self.lock(DB).await?;
        let done = self.move_primary_under(&held, to).await;
        self.free(held).await;
        done
    }

    async fn move_primary_under(self: &Rc<Router>, held: &Held, to: Name) -> Outcome<()> {
        self.end_pending_moves(held).await?;
        let (from, version) = self.read_database_primary().await?;
        if from == to {
            return Ok(());
        }
        let leaving = Leaving { from, to, version };
        let mut steps = PrimaryMove::new();
        let done = self.primary_steps(&mut steps, held, &leaving).await;
        self.history.count(match done.is_ok() {
            true => "moves of the primary",
            false => "failed moves of the primary",
        });
        let ended = self.end_pending_moves(held).await;
        self.forget_database();
        done.and(ended)
    }

    async fn primary_steps(
        self: &Rc<Router>,
        steps: &mut PrimaryMove,
        held: &Held,
        leaving: &Leaving,
    ) -> Outcome<()> {
        while let Some(step) = steps.step() {
            self.stop_at_times().await;
            if matches!(step, PrimaryMoveStep::Look | PrimaryMoveStep::LookAgain) {
                steps.found(self.untracked(&leaving.from).await?);
            }
            self.primary_step(step, held, leaving).await?;
            steps.done().map_err(failed)?;
        }
        Ok(())
    }

    async fn primary_step(
        self: &Rc<Router>,
        step: PrimaryMoveStep,
        held: &Held,
        l: &Leaving,
    ) -> Outcome<()> {
        match step {
            PrimaryMoveStep::Look | PrimaryMoveStep::LookAgain => Ok(()),
            PrimaryMoveStep::MoveCollection(name) => {
                self.move_untracked(held, ns_named(&name), l).await
            }
            PrimaryMoveStep::MakeTracked => {
                for ns in self.on(&l.from, |s| s.list()).await? {
                    if self.read_table(ns, None).await?.is_some() {
                        self.on(&l.to, move |s| s.make_like(ns)).await?;
                    }
                }
                Ok(())
            }
            PrimaryMoveStep::WriteDown => {
                let fields = doc! {
                    "from": &*l.from, "to": &*l.to, "version": l.version.to_doc(),
                };
                self.begin(held, "home", &fields).await
            }
            PrimaryMoveStep::Fence if self.history.has(Planted::DatabaseFenceSkipped) => Ok(()),
            PrimaryMoveStep::Fence => {
                let (version, by, turn) = (l.version, held.fence(), held.turn());
                self.try_on(&l.from, move |s| {
                    s.raise_database_fence(version, by.clone(), turn)
                })
                .await
            }
            PrimaryMoveStep::MakeViews => {
                let turn = held.turn();
                self.teach_database_primary(&l.from, l.version, &l.to, Some(turn))
                    .await?;
                if !self.history.has(Planted::OldViewsKept) {
                    self.try_on(&l.to, move |s| s.forget_views(turn)).await?;
                }
                let views = self.on(&l.from, |s| s.views()).await?;
                self.stop_at_times().await;
                self.try_on(&l.to, move |s| s.make_views(views.clone(), turn))
                    .await
            }
            PrimaryMoveStep::ChangePrimary => {
                let q = doc! {"_id": DB, "primary": &*l.from};
                let set = doc! {"primary": &*l.to, "version": l.version.next().to_doc()};
                let update = Write::Update("databases", q, doc! {"$set": set});
                self.change(held, vec![update, self.decides(held)]).await
            }
            PrimaryMoveStep::TakeBack => {
                self.history.count("collections that came to be");
                self.end_pending_moves(held).await
            }
        }
    }

    /// The collections that only the database says to be there.
    async fn untracked(&self, shard: &str) -> Outcome<Vec<String>> {
        let mut found = Vec::new();
        for ns in self.on(shard, |s| s.list()).await? {
            if self.read_table(ns, None).await?.is_none() {
                found.push(name_of(ns));
            }
        }
        Ok(found)
    }

    async fn move_untracked(self: &Rc<Router>, held: &Held, ns: Ns, l: &Leaving) -> Outcome<()> {
        let own = self.lock(&name_of(ns)).await?;
        let done = self.move_whole(&own, Some(held), ns, &l.from, &l.to).await;
        self.free(own).await;
        done
    }

    /// All of a collection that is not sharded. `database`: the lock of that, whose primary it is on.
    async fn move_whole(
        self: &Rc<Router>,
        own: &Held,
        database: Option<&Held>,
        ns: Ns,
        from: &Name,
        to: &Name,
    ) -> Outcome<()> {
        self.end_pending_moves(own).await?;
        let table = match database {
            Some(database) => self.track(own, database, ns, from).await?,
            None => self.table_of(ns).await?,
        };
        let from = table.shards().next().expect("a shard").clone();
        let bounds = (table.key().global_min(), table.key().global_max());
        self.move_part(own, table, from, bounds, to.clone()).await
    }

    /// Says of a collection where it is, by a chunk of its own.
    async fn track(
        &self,
        own: &Held,
        database: &Held,
        ns: Ns,
        shard: &str,
    ) -> Outcome<Rc<RoutingTable>> {
        if let Some(table) = self.read_table(ns, None).await? {
            return Ok(table);
        }
        let entry = entry_of(ns, self.id(), self.sim.now());
        let chunk = whole_chunk(&entry.key, shard, self.id());
        let document = doc! {
            "_id": name_of(ns),
            "epoch": entry.epoch,
            "timestamp": Value::timestamp(entry.timestamp),
        };
        let writes = vec![
            self.holds(database),
            Write::Insert("collections", document),
            Write::Insert("chunks", chunk.to_doc(&uuid_of(ns))),
        ];
        self.change(own, writes).await?;
        let table = RoutingTable::new(entry, vec![chunk]);
        Ok(Rc::new(table.map_err(failed)?))
    }

    /// `moveCollection`
    pub async fn move_collection(self: Rc<Router>, ns: Ns, to: Name) -> Outcome<()> {
        let database = self.lock(DB).await?;
        let own = match self.end_pending_moves(&database).await {
            Ok(()) => self.lock(&name_of(ns)).await,
            Err(failure) => Err(failure),
        };
        let own = match own {
            Ok(own) => own,
            Err(failure) => {
                self.free(database).await;
                return Err(failure);
            }
        };
        let tracked = self.track_here(&own, &database, ns).await;
        self.free(database).await;
        let done = match tracked {
            Ok(from) => self.move_whole(&own, None, ns, &from, &to).await,
            Err(failure) => Err(failure),
        };
        self.free(own).await;
        done
    }

    async fn track_here(&self, own: &Held, database: &Held, ns: Ns) -> Outcome<Name> {
        self.end_pending_moves(own).await?;
        let Placement::DatabasePrimary(shard, _) = self.refresh(ns).await? else {
            return Ok(self
                .table_of(ns)
                .await?
                .shards()
                .next()
                .expect("a shard")
                .clone());
        };
        if !self.on(&shard, |s| s.list()).await?.contains(&ns) {
            return Err(Failure::Refused(Refusal::Never("it is not there".into())));
        }
        self.track(own, database, ns, &shard).await?;
        Ok(shard)
    }

    /// Ends a change of the primary that is decided.
    pub async fn end_primary_change(&self, held: Option<&Held>, left: &DocBuf) -> Outcome<()> {
        let turn = held.map(Held::turn);
        let sides = [text(left, "from").to_string(), text(left, "to").to_string()];
        let (primary, version) = self.read_database_primary().await?;
        for step in moving_primary::ending(state(left) == MoveState::Moved, held.is_some()) {
            for side in &sides {
                match step {
                    EndPrimaryMoveStep::Tell => {
                        self.teach_database_primary(&primary, version, side, turn)
                            .await?
                    }
                    EndPrimaryMoveStep::Lift => {
                        let by = fence(left);
                        self.try_on(side, move |s| s.lift_database_fence(by.clone(), turn))
                            .await?;
                    }
                    EndPrimaryMoveStep::ForgetViews if **side == *primary => {}
                    EndPrimaryMoveStep::ForgetViews if self.history.has(Planted::OldViewsKept) => {}
                    EndPrimaryMoveStep::ForgetViews => {
                        let turn = turn.unwrap_or(0);
                        self.try_on(side, move |s| s.forget_views(turn)).await?;
                    }
                }
            }
        }
        self.forget_database();
        Ok(())
    }
}
