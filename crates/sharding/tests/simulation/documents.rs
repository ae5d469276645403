//! What a mover asks of shards: which documents the log says were touched, and what they are since;
//! documents, outcomes of retryable writes, the time. Of some documents the log gives no state, so that
//! the mover reads them.

use crate::history::Planted;
use crate::names::Ns;
use crate::shard::{Change, Document, Record, Refusal, Reply, Shard};
use bson::{Value, doc};
use sharding::follow::{Changes, Newest, Touched};
use sharding::{Ownership, PlaceRange};
use std::collections::BTreeMap;
use std::rc::Rc;

fn id_value(id: u32) -> Value {
    Value::from(id as i32)
}

fn logged_state(d: &Document) -> Newest {
    Newest::Document(doc! {"_id": id_value(d.id), "value": d.value})
}

/// Whose part of a move a write is.
#[derive(Clone)]
pub struct Turn {
    pub ns: Ns,
    /// The collection's.
    pub life: u64,
    /// The holder of the lock.
    pub turn: i64,
    pub range: PlaceRange,
}

impl Shard {
    /// `_pandoChanges`
    pub async fn changes(
        self: Rc<Shard>,
        ns: Ns,
        after: Option<(i64, i64)>,
        range: PlaceRange,
    ) -> Reply<Changes> {
        let set = self.set.borrow();
        let end = set.log.len() as i64;
        let first = after.map_or(end, |(after, _)| after);
        let term = |index: i64| match index {
            0 => Some(0),
            n => set.log.get(n as usize - 1).map(|e| e.term),
        };
        let at = term(first).ok_or_else(|| Refusal::Never("another log".into()))?;
        if after.is_some_and(|(_, believed)| believed != at) {
            return Err(Refusal::Never("another log".into()));
        }
        // The log is cut where no lease covers it: a reader there has to begin anew.
        let kept = self.cut_behind(first, end);
        if kept > first && !self.history.has(Planted::LogCutUnseen) {
            self.history.count("moves whose log was cut");
            return Err(Refusal::Never("the log was cut".into()));
        }
        let mut touched: BTreeMap<u32, Newest> = BTreeMap::new();
        let mut note = |id: u32, newest: Newest| match self.history.has(Planted::OldestOfBatch) {
            true => drop(touched.entry(id).or_insert(newest)),
            false => drop(touched.insert(id, newest)),
        };
        for logged in &set.log[kept as usize..] {
            for change in &logged.entry {
                match change {
                    Change::Put(d) => note(d.id, logged_state(d)),
                    Change::Remove(id) => note(*id, Newest::Gone),
                    _ => {}
                }
            }
        }
        touched.retain(|id, _| self.places.contains(ns, &range, *id));
        let touched = touched.into_iter().map(|(id, newest)| match newest {
            Newest::Document(_) if (i64::from(id) + end) % 8 == 0 => Touched::unknown(id_value(id)),
            newest => Touched {
                id: id_value(id),
                newest,
            },
        });
        let mut touched: Vec<Touched> = touched.collect();
        if self.history.has(Planted::CatchUpShort) {
            touched.pop();
        }
        Ok(Changes {
            touched,
            up_to: end,
            end,
            term: term(end).unwrap_or(0),
            time: set.last_ts(),
            more: false,
        })
    }

    /// The first entry of the log that is still there, for a reader of `first` to `end`: now and then a
    /// lease is over, or another primary knows of none. Where it lies decides, so that no seed goes
    /// another way by being asked.
    fn cut_behind(&self, first: i64, end: i64) -> i64 {
        match end > first && (first * 7 + end).rem_euclid(61) == 0 {
            true => (first + end + 1) / 2,
            false => first,
        }
    }

    /// A find of the mover: by `_id`, or all of a range; not older than a time of this shard's log.
    pub async fn read(
        self: Rc<Shard>,
        (ns, time): (Ns, u64),
        ids: Option<Vec<u32>>,
        range: PlaceRange,
    ) -> Reply<Vec<Document>> {
        if self.time() < time {
            self.hear(time);
            self.append(Vec::new());
        }
        let latest = &self.set.borrow().latest;
        let wanted = |id: &u32| match &ids {
            Some(ids) => ids.contains(id),
            None => true,
        };
        let inside = |d: &&Document| wanted(&d.id) && self.places.contains(ns, &range, d.id);
        Ok(latest.documents.values().filter(inside).cloned().collect())
    }

    fn takes(&self, by: &Turn) -> Reply<()> {
        let known = self.known(by.ns);
        let range = Some(&by.range);
        let takes = Ownership::takes_from(known.as_deref(), by.life, by.turn as u64, range);
        // A message of an ended move is refused twice: by its turn, and by the expected range.
        let unexpected = Ownership::takes_from(known.as_deref(), by.life, by.turn as u64, None);
        let takes = takes || unexpected && self.history.has(Planted::SameTurnAtTheEnd);
        match takes || self.history.has(Planted::LateMoverHeard) {
            true => Ok(()),
            false => Err(Refusal::Never("somebody else changes it since".into())),
        }
    }

    async fn take(self: Rc<Shard>, turn: Turn, entry: Vec<Change>) -> Reply<()> {
        let gate = self.enter_mover(&turn);
        self.takes(&turn)?;
        // Now and then a message takes longer than its sender lives.
        self.pause(if self.sim.one_in(20) { 4000 } else { 3 }).await;
        let mark = self.append(entry);
        drop(gate);
        self.majority(mark).await;
        Ok(())
    }

    pub async fn put(self: Rc<Shard>, turn: Turn, documents: Vec<Document>) -> Reply<()> {
        let entry = documents.into_iter().map(Change::Put).collect();
        self.take(turn, entry).await
    }

    pub async fn remove(
        self: Rc<Shard>,
        turn: Turn,
        ids: Vec<u32>,
        range: PlaceRange,
    ) -> Reply<()> {
        let ids = ids.into_iter();
        let inside = ids.filter(|id| self.places.contains(turn.ns, &range, *id));
        let entry = inside.map(Change::Remove).collect();
        self.take(turn, entry).await
    }

    /// `_pandoSessions`, given: the outcomes of retryable writes.
    pub async fn outcomes(self: Rc<Shard>) -> Vec<(u32, Record)> {
        let (records, last): (Vec<(u32, Record)>, _) = {
            let set = self.set.borrow();
            let records = set.latest.sessions.iter().map(|(id, r)| (*id, r.clone()));
            let records = records.filter(|(_, r)| r.outcome.is_some());
            (records.collect(), set.last())
        };
        // The other shard would report a write that was rolled back as done.
        if let Some(last) = last {
            self.majority(last).await;
        }
        match self.history.has(Planted::OutcomesLeft) {
            true => Vec::new(),
            false => records,
        }
    }

    /// `_pandoSessions`, taken.
    pub async fn take_outcomes(self: Rc<Shard>, records: Vec<(u32, Record)>) {
        let newer: Vec<Change> = {
            let known = &self.set.borrow().latest.sessions;
            let newer = |(id, r): &(u32, Record)| known.get(id).is_none_or(|k| k.number < r.number);
            let records = records.into_iter().filter(newer);
            records.map(|(id, r)| Change::Session(id, r)).collect()
        };
        let mark = self.append(newer);
        self.majority(mark).await;
    }

    /// `_pandoTime`: the log comes to a time.
    pub async fn reach(self: Rc<Shard>, time: u64) {
        self.hear(time);
        let mark = self.append(Vec::new());
        self.majority(mark).await;
    }
}
