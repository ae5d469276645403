//! What a shard is taught by routers and movers: of a collection's ranges, and of the database's primary.

use crate::history::Planted;
use crate::names::{DB, Ns, SHARDED, VIEWS, name_of, ns_of};
use crate::shard::{Behind, Change, Document, Refusal, Reply, Shard, never};
use sharding::{DatabasePrimary, DbVersion, Fence, Ownership, PlaceRange, ShardKey, Version};
use std::rc::Rc;

/// Documents that are removed before a rest.
const CLEANED_AT_ONCE: usize = 3;
/// How long writes in flight are waited for.
const DRAIN: u64 = 500;

fn not_sharded() -> Refusal {
    Refusal::Never("it is not sharded here".into())
}

fn own(ns: Ns, known: Ownership) -> Change {
    Change::Own(ns, Box::new(known))
}

impl Shard {
    /// `_pandoOwnership`
    pub async fn learn(self: Rc<Shard>, ns: Ns, told: Ownership, turn: Option<i64>) -> Reply<()> {
        self.changing().await;
        let known = self.known(ns);
        let turn = turn.map(|t| t as u64);
        let learned =
            Ownership::learn_in_turn(known.as_deref(), &told, None, turn).map_err(never)?;
        self.store(learned.map(|learned| own(ns, learned))).await;
        Ok(())
    }

    /// Waits until a majority has the learned state, or the known one.
    async fn store(&self, learned: Option<Change>) {
        let mark = match learned {
            Some(learned) => Some(self.append(vec![learned])),
            None => self.set.borrow().last(),
        };
        if let Some(mark) = mark {
            self.majority(mark).await;
        }
    }

    /// One change of the state at a time.
    async fn changing(&self) {
        while self.memory.borrow().changing {
            self.sim.sleep(3).await;
        }
    }

    fn set_changing(&self, changing: bool) {
        self.memory.borrow_mut().changing = changing;
    }

    async fn is_quiet(&self, ns: Ns) -> bool {
        if self.history.has(Planted::GateSkipped) {
            return true;
        }
        if !self.drain(Behind::Collection(ns), DRAIN).await {
            return false;
        }
        let until = self.sim.now() + DRAIN;
        while ns == SHARDED && !self.set.borrow().latest.prepared.is_empty() {
            if self.history.has(Planted::PreparedPassed) {
                return true;
            }
            if self.sim.now() >= until {
                return false;
            }
            self.sim.sleep(3).await;
        }
        true
    }

    /// `_pandoFence`, raised.
    pub async fn raise(self: Rc<Shard>, ns: Ns, fence: Fence, turn: i64) -> Reply<()> {
        self.changing().await;
        let known = self.known(ns).ok_or_else(not_sharded)?;
        let known = known.with_fence(fence, turn as u64).map_err(never)?;
        self.set_changing(true);
        let mark = self.append(vec![own(ns, known.clone())]);
        let quiet = self.is_quiet(ns).await;
        self.set_changing(false);
        if !quiet {
            self.append(vec![own(ns, known.without_fence())]);
            return Err(Refusal::Never("writes have been open for too long".into()));
        }
        self.majority(mark).await;
        Ok(())
    }

    /// `_pandoFence`, lifted.
    pub async fn lift(self: Rc<Shard>, ns: Ns, by: String, turn: Option<i64>) -> Reply<()> {
        self.changing().await;
        let Some(known) = self.known(ns) else {
            return Ok(());
        };
        let turn = turn.map_or(known.turn, |t| t as u64);
        if let Some(open) = known.lifted(&by, turn).map_err(never)? {
            let mark = self.append(vec![own(ns, open)]);
            self.majority(mark).await;
        }
        Ok(())
    }

    /// `_pandoReceive`
    pub async fn expect(
        self: Rc<Shard>,
        ns: Ns,
        (key, version): (ShardKey, Version),
        incoming: PlaceRange,
        turn: i64,
    ) -> Reply<()> {
        self.changing().await;
        let nothing = Ownership::nothing(&name_of(ns), key, version);
        let known = self.known(ns);
        let (turn, range) = (Some(turn as u64), incoming.clone());
        let expecting = Ownership::expecting(known.as_deref(), nothing, incoming, turn);
        let mark = self.append(vec![own(ns, expecting.map_err(never)?)]);
        self.drain_movers(ns, range).await?;
        self.majority(mark).await;
        Ok(())
    }

    /// `_pandoClean`
    pub async fn clean(
        self: Rc<Shard>,
        ns: Ns,
        gone: PlaceRange,
        turn: i64,
        keep: bool,
    ) -> Reply<()> {
        self.changing().await;
        let before = self.known(ns).ok_or_else(not_sharded)?;
        let mut known = (*before).clone().heed(turn as u64).map_err(never)?;
        if !keep {
            known = known.closed(std::slice::from_ref(&gone));
        }
        if known != *before {
            self.append(vec![own(ns, known.clone())]);
        }
        self.drain_movers(ns, gone.clone()).await?;
        // A few at a time, with rests.
        loop {
            self.changing().await;
            let now = self.known(ns).ok_or_else(not_sharded)?;
            if !self.history.has(Planted::CleanGoesOn) {
                if now.turn != known.turn || !now.version.is_same_life(&known.version) {
                    return Err(Refusal::Never("somebody else changes it since".into()));
                }
                now.check_cleans(&gone).map_err(never)?;
            }
            let inside: Vec<u32> = {
                let latest = &self.set.borrow().latest;
                let ids = latest.documents.keys().copied();
                let inside = ids.filter(|id| self.places.contains(ns, &gone, *id));
                inside.take(CLEANED_AT_ONCE).collect()
            };
            let is_last = inside.len() < CLEANED_AT_ONCE;
            let mut entry: Vec<Change> = inside.into_iter().map(Change::Remove).collect();
            if is_last && !keep {
                let cleaned = (*now).clone().cleaned(std::slice::from_ref(&gone));
                entry.push(own(ns, cleaned));
            }
            let mark = self.append(entry);
            if is_last {
                self.majority(mark).await;
                return Ok(());
            }
            self.pause(if self.sim.one_in(4) { 6000 } else { 30 }).await;
        }
    }

    /// `_pandoHome`: which shard is the primary.
    pub async fn learn_database_primary(
        self: Rc<Shard>,
        told: DatabasePrimary,
        turn: Option<i64>,
    ) -> Reply<()> {
        self.changing().await;
        let known = self.database_primary();
        let turn = turn.map(|t| t as u64);
        let learned =
            DatabasePrimary::learn_in_turn(known.as_deref(), &told, turn).map_err(never)?;
        self.store(learned.map(|l| Change::DatabasePrimary(Box::new(l))))
            .await;
        Ok(())
    }

    /// `_pandoHome`, with a fence.
    pub async fn raise_database_fence(
        self: Rc<Shard>,
        version: DbVersion,
        by: String,
        turn: i64,
    ) -> Reply<()> {
        self.changing().await;
        let known = self.database_primary();
        let turn = match self.history.has(Planted::LateDatabaseFence) {
            true => u64::MAX >> 1,
            false => turn as u64,
        };
        let fenced = DatabasePrimary::fenced(known.as_deref(), (DB, version), &by, turn);
        let fenced = fenced.map_err(never)?;
        self.set_changing(true);
        let mark = self.append(vec![Change::DatabasePrimary(Box::new(fenced.clone()))]);
        let skips = self.history.has(Planted::DatabaseGateSkipped);
        let quiet = skips || self.drain(Behind::Database, DRAIN).await;
        self.set_changing(false);
        if !quiet {
            self.append(vec![Change::DatabasePrimary(Box::new(
                fenced.without_fence(),
            ))]);
            return Err(Refusal::Never("writes have been open for too long".into()));
        }
        self.majority(mark).await;
        Ok(())
    }

    /// `_pandoHome`, without it.
    pub async fn lift_database_fence(self: Rc<Shard>, by: String, turn: Option<i64>) -> Reply<()> {
        self.changing().await;
        let turn = turn.map(|t| t as u64);
        let open = match self.database_primary() {
            Some(known) => known.lifted(&by, turn).map_err(never)?,
            None => None,
        };
        self.store(open.map(|open| Change::DatabasePrimary(Box::new(open))))
            .await;
        Ok(())
    }

    /// `_pandoHome`: views without an owner are dropped.
    pub async fn forget_views(self: Rc<Shard>, turn: i64) -> Reply<()> {
        self.changing().await;
        let known = self.database_primary();
        let heard = DatabasePrimary::cleared(known.as_deref(), DB, turn as u64).map_err(never)?;
        let entry = vec![
            Change::DatabasePrimary(Box::new(heard)),
            Change::Drop(VIEWS),
        ];
        let mark = self.append(entry);
        self.majority(mark).await;
        Ok(())
    }

    /// `listCollections`
    pub async fn list(self: Rc<Shard>) -> Vec<Ns> {
        let latest = &self.set.borrow().latest;
        let of_database = |ns: &&Ns| **ns != SHARDED && **ns != VIEWS;
        latest
            .collections
            .iter()
            .filter(of_database)
            .copied()
            .collect()
    }

    pub async fn views(self: Rc<Shard>) -> Vec<Document> {
        let latest = &self.set.borrow().latest;
        let views = latest.documents.values().filter(|d| ns_of(d.id) == VIEWS);
        views.cloned().collect()
    }

    /// `create`, by a mover: existing views stay.
    pub async fn make_views(self: Rc<Shard>, views: Vec<Document>, turn: i64) -> Reply<()> {
        let known = self.database_primary();
        if !DatabasePrimary::takes_from(known.as_deref(), turn as u64) {
            return Err(Refusal::Never("somebody else changes it since".into()));
        }
        let new = {
            let there = &self.set.borrow().latest.documents;
            let new = views.into_iter().filter(|d| !there.contains_key(&d.id));
            new.map(Change::Put).collect()
        };
        let mark = self.append(new);
        self.majority(mark).await;
        Ok(())
    }

    /// The collection as it is elsewhere: it is there, if it was not.
    pub async fn make_like(self: Rc<Shard>, ns: Ns) {
        let mark = self.append(vec![Change::Create(ns)]);
        self.majority(mark).await;
    }
}
