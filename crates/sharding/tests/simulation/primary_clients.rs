//! Clients of a database that is not sharded: they make collections, write and read them, define views,
//! while the database's primary and its collections move.

use crate::clients::Clients;
use crate::history::History;
use crate::names::{FIRST, Ns, VIEWS, id_in};
use crate::shard::Op;
use std::cell::Cell;
use std::rc::Rc;

const COLLECTORS: u32 = 2;
/// Of their sessions the first.
const SESSION: u32 = 20;
/// Collections that a client goes on with.
const RECENT: usize = 3;

/// What one of them has made.
#[derive(Default)]
struct Own {
    collections: Vec<Ns>,
    documents: Vec<u32>,
    made: u32,
}

impl Clients {
    pub fn start_on_primary(self: &Rc<Clients>) {
        let most = Rc::new(Cell::new(FIRST));
        for n in 0..COLLECTORS {
            self.spawn(self.clone().collect(n, most.clone()));
        }
        self.spawn(self.clone().define_views());
        self.spawn(self.clone().read_on_primary(most.clone()));
        for _ in 0..2 {
            self.spawn(self.clone().move_primary_often(most.clone()));
        }
    }

    /// Writes to collections of its own, mostly to the newest.
    async fn collect(self: Rc<Clients>, client: u32, most: Rc<Cell<Ns>>) {
        let sim = self.sim().clone();
        let (mut number, mut own) = (0, Own::default());
        while self.goes_on() {
            number += 1;
            if own.collections.is_empty() || sim.one_in(25) {
                own.collections.push(most.get());
                most.set(most.get() + 1);
            }
            let recent = own.collections.len().saturating_sub(RECENT);
            let ns = own.collections
                [recent + sim.below(RECENT as u64) as usize % RECENT.min(own.collections.len())];
            let op = match sim.below(6) {
                0 if !own.documents.is_empty() => {
                    let at = sim.below(own.documents.len() as u64) as usize;
                    Op::Delete(own.documents.swap_remove(at))
                }
                1 | 2 if !own.documents.is_empty() => {
                    Op::Add(own.documents[sim.below(own.documents.len() as u64) as usize])
                }
                _ => {
                    own.made += 1;
                    Op::Insert(id_in(ns, own.made))
                }
            };
            let is_done = self.write_one((SESSION + client, number), op).await;
            if let (Op::Insert(id), true) = (op, is_done) {
                own.documents.push(id);
            }
            self.pause(60).await;
        }
    }

    /// Defines views, ever newer, and removes them.
    async fn define_views(self: Rc<Clients>) {
        let (sim, history) = (self.sim().clone(), self.cluster().history.clone());
        let (mut next, mut view) = (0, None);
        while self.goes_on() {
            let (id, newest) = match view {
                Some(view) => view,
                None => {
                    next += 1;
                    let id = id_in(VIEWS, next);
                    history.inserting(id);
                    (id, 0)
                }
            };
            if newest > 0 && sim.one_in(6) {
                history.deleting(id);
                if self.define((1, 1), Op::Undefine(id)).await {
                    history.deleted(id);
                }
                view = None;
            } else {
                history.adding(id);
                view = match self.define((1, 1), Op::Define(id, newest + 1)).await {
                    true => {
                        history.inserted(id);
                        history.added(id);
                        Some((id, newest + 1))
                    }
                    // It may be defined yet, later.
                    false => None,
                };
            }
            self.pause(250).await;
        }
    }

    /// A command that is not sent again.
    async fn define(&self, session: (u32, i64), op: Op) -> bool {
        let done = self.ask(move |r| r.write(session, op)).await.is_ok();
        self.cluster().history.count("definitions of views");
        done
    }

    async fn read_on_primary(self: Rc<Clients>, most: Rc<Cell<Ns>>) {
        let history: Rc<History> = self.cluster().history.clone();
        while self.goes_on() {
            let many = u64::from(most.get() - FIRST).max(1);
            let recent = self.sim().below(many.min(8)) as u32;
            let ns = match self.sim().one_in(4) {
                true => VIEWS,
                false => FIRST + many as u32 - 1 - recent,
            };
            let expected = history.expected(ns);
            if let Ok(found) = self.ask(move |r| r.find(ns)).await {
                history.count("reads");
                history.check("a read", &expected, &found);
            }
            self.pause(100).await;
        }
    }

    async fn move_primary_often(self: Rc<Clients>, most: Rc<Cell<Ns>>) {
        let sim = self.sim().clone();
        while self.goes_on() {
            let to = sim.below(self.cluster().shards.len() as u64) as usize;
            let to = self.cluster().shards[to].name.clone();
            let many = u64::from(most.get() - FIRST).max(1);
            let ns = FIRST + many as u32 - 1 - sim.below(many.min(8)) as u32;
            let _ = match sim.one_in(2) {
                true => self.ask(move |r| r.move_primary(to.clone())).await,
                false => self.ask(move |r| r.move_collection(ns, to.clone())).await,
            };
            self.pause(150).await;
        }
    }
}
