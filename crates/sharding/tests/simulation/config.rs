//! The configuration set: documents, read as a majority has them, and changed all or not at all.

use crate::history::History;
use crate::mover::fence;
use crate::names::{DB, Ns, SHARDED, name_of};
use crate::replicated::{Replicated, State};
use crate::runtime::{Process, Sim};
use bson::{Doc, DocBuf, ObjectId, Val, doc};
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::update::{Update, UpdateCtx};
use sharding::{Chunk, CollectionEntry, DbVersion, RoutingTable, ShardKey, Version, lock};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Of a collection.
pub fn uuid_of(ns: Ns) -> [u8; 16] {
    let mut uuid = [7; 16];
    uuid[..4].copy_from_slice(&ns.to_be_bytes());
    uuid
}

#[derive(Clone, Debug)]
pub enum Write {
    Insert(&'static str, DocBuf),
    Update(&'static str, DocBuf, DocBuf),
    Remove(&'static str, DocBuf),
}

#[derive(Clone, Default)]
pub struct Documents(BTreeMap<&'static str, Vec<DocBuf>>);

/// The metadata is not as it was believed to be.
#[derive(Clone, Copy, Debug)]
pub struct Conflict;

fn filter(q: &DocBuf) -> Filter {
    Filter::parse(q.as_doc(), &ParseEnv::new()).expect("a filter")
}

fn changed(old: Doc<'_>, q: &DocBuf, u: &DocBuf) -> DocBuf {
    let update = Update::parse(u.as_doc().as_val(), &[], &ParseEnv::new()).expect("an update");
    let vars = Vars::new(0);
    let applied = update.apply(old, &filter(q), &UpdateCtx::new(&vars, 0, 0));
    applied.expect("applies").map_or(old.to_buf(), |a| a.doc)
}

impl Documents {
    pub fn find(&self, collection: &str, q: &DocBuf) -> Vec<DocBuf> {
        let filter = filter(q);
        let all = self.0.get(collection).into_iter().flatten();
        let matching = all.filter(|d| filter.matches(d.as_doc()).unwrap_or(false));
        matching.cloned().collect()
    }

    fn run(&mut self, write: &Write) -> Result<(), Conflict> {
        match write {
            Write::Insert(name, new) => {
                let all = self.0.entry(name).or_default();
                let id = new.get("_id").map(Val::to_value);
                if all.iter().any(|d| d.get("_id").map(Val::to_value) == id) {
                    return Err(Conflict);
                }
                all.push(new.clone());
            }
            Write::Update(name, q, u) => {
                let (all, filter) = (self.0.entry(name).or_default(), filter(q));
                let found = all
                    .iter_mut()
                    .find(|d| filter.matches(d.as_doc()).unwrap_or(false));
                let found = found.ok_or(Conflict)?;
                *found = changed(found.as_doc(), q, u);
            }
            Write::Remove(name, q) => {
                let filter = filter(q);
                let all = self.0.entry(name).or_default();
                all.retain(|d| !filter.matches(d.as_doc()).unwrap_or(false));
            }
        }
        Ok(())
    }
}

impl State for Documents {
    type Entry = Vec<Write>;
    fn apply(&mut self, entry: &Vec<Write>, _: u64) {
        for write in entry {
            self.run(write).expect("it was run before");
        }
    }
}

pub struct Config {
    pub process: Process,
    sim: Rc<Sim>,
    pub set: RefCell<Replicated<Documents>>,
    history: Rc<History>,
}

/// An entry of `config.collections`: the collection that is sharded has one of its own.
pub fn entry_of(ns: Ns, epoch: ObjectId, timestamp: u64) -> CollectionEntry {
    let key = match ns {
        SHARDED => doc! {"k": 1},
        _ => doc! {"_id": 1},
    };
    CollectionEntry {
        ns: name_of(ns),
        uuid: uuid_of(ns),
        key: ShardKey::parse(key.as_doc()).expect("a key"),
        unique: false,
        unsplittable: ns != SHARDED,
        epoch,
        timestamp,
        collation: None,
        series: None,
        measured: false,
    }
}

pub fn entry() -> CollectionEntry {
    entry_of(SHARDED, ObjectId([3; 12]), 9)
}

/// The first chunk of a collection: all of it.
pub fn whole_chunk(key: &ShardKey, shard: &str, id: ObjectId) -> Chunk {
    Chunk {
        id,
        min: key.global_min(),
        max: key.global_max(),
        shard: shard.into(),
        lastmod: Version::placement_of(1, 0),
        jumbo: false,
        since: 1,
        turn: 0,
    }
}

/// Of the collection that is sharded.
fn chunks_of(state: &Documents) -> Vec<Chunk> {
    let of_sharded = RoutingTable::unknown_chunks(None, &uuid_of(SHARDED));
    let chunks = state.find("chunks", &of_sharded);
    let parsed = chunks.iter().map(|d| Chunk::parse(d.as_doc()));
    parsed.map(|c| c.expect("a chunk")).collect()
}

impl Config {
    /// One chunk, and the primary, on the first shard.
    pub fn new(sim: Rc<Sim>, process: Process, history: Rc<History>) -> Rc<Config> {
        let chunk = whole_chunk(&entry().key, "s0", ObjectId([0; 12]));
        let mut all = Documents::default();
        let version = DbVersion {
            uuid: [5; 16],
            timestamp: 9,
            last_mod: 1,
        };
        let database = doc! {"_id": DB, "primary": "s0", "version": version.to_doc()};
        for first in [
            Write::Insert("chunks", chunk.to_doc(&uuid_of(SHARDED))),
            Write::Insert("databases", database),
        ] {
            all.run(&first).expect("the first documents");
        }
        Rc::new(Config {
            process,
            set: RefCell::new(Replicated::new(sim.clone(), all)),
            sim,
            history,
        })
    }

    pub fn read(&self, collection: &str, q: &DocBuf) -> Vec<DocBuf> {
        self.set.borrow_mut().durable().find(collection, q)
    }

    /// All writes or none. The answer comes when a majority has them.
    pub async fn change(self: Rc<Config>, writes: Vec<Write>) -> Result<(), Conflict> {
        let mark = {
            let mut set = self.set.borrow_mut();
            let mut trial = set.latest.clone();
            writes.iter().try_for_each(|w| trial.run(w))?;
            self.check_versions(&set.latest, &trial);
            set.append(writes)
        };
        self.check();
        self.wait(mark.durable_at()).await;
        Ok(())
    }

    async fn wait(&self, until: u64) {
        self.sim.sleep(until.saturating_sub(self.sim.now())).await;
    }

    /// Takes a lock: the number of its holder.
    pub async fn take(self: Rc<Config>, name: String, by: String) -> Option<i64> {
        let now = self.sim.now() as i64;
        let (q, u) = lock::take(&name, &by, now);
        let (write, turn) = {
            let set = self.set.borrow();
            let own = set.latest.find("locks", &doc! {"_id": name.as_str()});
            let free = set.latest.find("locks", &q);
            let (write, taken) = match (own.first(), free.first()) {
                (Some(_), None) => return None,
                (Some(_), Some(old)) => {
                    let taken = changed(old.as_doc(), &q, &u);
                    (Write::Update("locks", q, u), taken)
                }
                (None, _) => {
                    let new = changed(doc! {"_id": name.as_str()}.as_doc(), &q, &u);
                    (Write::Insert("locks", new.clone()), new)
                }
            };
            let turn = taken.get("turn").and_then(Val::to_i64_exact);
            (write, turn.expect("a turn"))
        };
        let mark = self.set.borrow_mut().append(vec![write]);
        self.wait(mark.durable_at()).await;
        Some(turn)
    }

    /// How many have held locks; `None` while a lock is held or a move is pending. A lock that was left
    /// counts as held: its holder may wake up, and go on until another has taken the lock.
    pub fn turns(&self) -> Option<i64> {
        let latest = &self.set.borrow().latest;
        let locks = latest.find("locks", &DocBuf::default());
        let held = |d: &DocBuf| d.get("by").and_then(Val::as_str) != Some("");
        if locks.iter().any(held) || !latest.find("migrations", &DocBuf::default()).is_empty() {
            return None;
        }
        let turn = |d: &DocBuf| d.get("turn")?.to_i64_exact();
        locks.iter().map(turn).sum()
    }

    /// The fences of pending moves, as the newest state has them, or as a majority does.
    pub fn fences(&self) -> Vec<String> {
        let mut set = self.set.borrow_mut();
        let all = |state: &Documents| state.find("migrations", &DocBuf::default());
        let both = [all(&set.latest), all(set.durable())].concat();
        both.iter().map(fence).collect()
    }

    /// The table of the newest state is whole at any time.
    fn check(&self) {
        let chunks = chunks_of(&self.set.borrow().latest);
        if let Err(stop) = RoutingTable::new(entry(), chunks) {
            self.history.wrong(format!("{}", stop.into_error()));
        }
    }

    /// What goes to another shard has a version that the collection did not have before: of two tables the one with more moves in
    /// it is known as the later one.
    fn check_versions(&self, before: &Documents, after: &Documents) {
        let Ok(table) = RoutingTable::new(entry(), chunks_of(before)) else {
            return;
        };
        for chunk in chunks_of(after) {
            let place = table.key().place_of_bound(chunk.min.as_doc());
            let owner = table.chunk_at(&place.expect("a bound"));
            let has_gone = owner.is_some_and(|owner| owner.shard != chunk.shard);
            if has_gone && (chunk.lastmod >> 32) as u32 <= table.version().major() {
                let version = chunk.lastmod >> 32;
                self.history
                    .wrong(format!("version {version} is that of two moves"));
            }
        }
    }
}
