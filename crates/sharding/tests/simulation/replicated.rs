//! A replica set, as the cluster sees it: a log whose entries a majority has after a while, and an
//! election that rolls back the others.
//!
//! Invariant: an entry that a majority has is never rolled back. Timestamps of one log rise.

use crate::runtime::Sim;
use std::rc::Rc;

pub trait State: Clone {
    type Entry: Clone;
    fn apply(&mut self, entry: &Self::Entry, ts: u64);
}

pub struct Logged<E> {
    pub entry: E,
    pub ts: u64,
    pub term: i64,
    number: u64,
    /// When a majority has it.
    durable_at: u64,
}

const MOST_AHEAD: u64 = 500;

pub struct Replicated<S: State> {
    sim: Rc<Sim>,
    pub log: Vec<Logged<S::Entry>>,
    pub latest: S,
    durable: (usize, S),
    pub term: i64,
    /// Nothing is written at or before it.
    heard: u64,
    /// By how much its clock is before the real one, in milliseconds: those of two sets differ.
    ahead: u64,
    made: u64,
}

/// An entry that is waited for.
#[derive(Clone, Copy)]
pub struct Mark {
    index: usize,
    number: u64,
    durable_at: u64,
}

impl<S: State> Replicated<S> {
    pub fn new(sim: Rc<Sim>, state: S) -> Replicated<S> {
        let ahead = sim.below(MOST_AHEAD);
        Replicated {
            ahead,
            sim,
            log: Vec::new(),
            durable: (0, state.clone()),
            latest: state,
            term: 1,
            heard: 0,
            made: 0,
        }
    }

    pub fn last_ts(&self) -> u64 {
        self.log.last().map_or(0, |e| e.ts)
    }

    pub fn hear(&mut self, time: u64) {
        self.heard = self.heard.max(time);
    }

    pub fn append(&mut self, entry: S::Entry) -> Mark {
        let (now, slow) = (self.sim.now(), self.sim.one_in(40));
        let wait = if slow { 300 } else { 5 };
        let before = self.log.last().map_or(0, |e| e.durable_at);
        let ts = ((now + self.ahead) << 8)
            .max(self.last_ts() + 1)
            .max(self.heard + 1);
        self.made += 1;
        self.latest.apply(&entry, ts);
        let logged = Logged {
            entry,
            ts,
            term: self.term,
            number: self.made,
            durable_at: (now + 1 + self.sim.below(wait)).max(before),
        };
        let mark = Mark {
            index: self.log.len(),
            number: logged.number,
            durable_at: logged.durable_at,
        };
        self.log.push(logged);
        mark
    }

    /// The last entry.
    pub fn last(&self) -> Option<Mark> {
        let last = self.log.last()?;
        Some(Mark {
            index: self.log.len() - 1,
            number: last.number,
            durable_at: last.durable_at,
        })
    }

    fn catch_up(&mut self) {
        let now = self.sim.now();
        let (done, state) = &mut self.durable;
        while let Some(e) = self.log.get(*done).filter(|e| e.durable_at <= now) {
            state.apply(&e.entry, e.ts);
            *done += 1;
        }
    }

    /// What a majority has.
    pub fn durable(&mut self) -> &S {
        self.catch_up();
        &self.durable.1
    }

    pub fn has(&self, mark: Mark) -> bool {
        self.log
            .get(mark.index)
            .is_some_and(|e| e.number == mark.number)
    }

    /// Another member leads, with any part of what no majority had.
    pub fn elect(&mut self) {
        self.catch_up();
        let first = self.durable.0;
        let kept = first + self.sim.below((self.log.len() - first) as u64 + 1) as usize;
        self.log.truncate(kept);
        self.latest = self.durable.1.clone();
        for e in &self.log[first..] {
            self.latest.apply(&e.entry, e.ts);
        }
        self.term += 1;
        self.heard = 0;
    }
}

impl Mark {
    pub fn durable_at(self) -> u64 {
        self.durable_at
    }
}
