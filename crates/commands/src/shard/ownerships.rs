//! What this shard knows of its part of each sharded collection, in memory.
//!
//! Invariant: it is what the documents of `config.ownership` say, as applied entries wrote them. A write
//! that a router sent holds its collection's gate from before its version is compared until it is
//! committed; so a mover that has raised a fence and then passed the gate has seen the last earlier
//! write.

use super::gates::{Gate, Holder, Pass};
use super::{DATABASE_PRIMARIES, OWNERSHIP};
use crate::settings::documents;
use bson::Doc;
use catalog::keyspace::SPACE_RECORD;
use errors::{Result, bail};
use executor::{Engine, ShardKeys};
use parking_lot::{Condvar, Mutex, RwLock};
use sharding::{DatabasePrimary, Ownership, PlaceRange, UnderWay};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use storage::{Committed, Effect, Entry, Observer, Op};

/// How long movers' writes in flight are waited for.
const MOVERS_DRAIN: Duration = Duration::from_secs(5);

/// A message has so many bytes for each command that it counts as.
const BYTES_OF_A_COMMAND: usize = 2 << 10;

/// Held by a write until it is committed: a router's has the gates of its collection and, where that
/// is not sharded, of its database.
pub struct WriterGuard {
    collection: Option<Pass>,
    database: Option<Pass>,
    _mover: Option<MoverGuard>,
}

/// Movers' writes in flight to one collection, and the waits for their end.
#[derive(Default)]
struct Movers(Mutex<UnderWay>, Condvar);

struct MoverGuard {
    movers: Arc<Movers>,
    number: u64,
}

impl Drop for MoverGuard {
    fn drop(&mut self) {
        self.movers.0.lock().leave(self.number);
        self.movers.1.notify_all();
    }
}

impl WriterGuard {
    /// Its transaction has written here before: fences of the collection, and of the database where it
    /// has that gate, are not finished before it ends.
    pub(super) fn again(&self) -> bool {
        let passes = [&self.collection, &self.database];
        let mut held = passes.into_iter().flatten().peekable();
        held.peek().is_some() && held.all(|pass| pass.again)
    }
}

#[derive(Default)]
struct CollectionState {
    ownership: Option<Arc<Ownership>>,
    /// When the ranges that it has became other ones, or what it hid is shown.
    changed: Option<Instant>,
    gate: Gate,
    movers: Arc<Movers>,
}

#[derive(Default)]
pub struct Ownerships {
    /// By collection, and for their gates by database.
    states: RwLock<HashMap<String, CollectionState>>,
    database_primaries: RwLock<HashMap<String, Arc<DatabasePrimary>>>,
    /// What changes them: one at a time.
    pub(super) changing: Mutex<()>,
    /// Wakes the waits for the end of a fence.
    news: (Mutex<()>, Condvar),
    /// Commands of routers.
    served: AtomicU64,
    /// Collections whose writers a mover cannot keep up with: how long each write waits, until when.
    slowed: Mutex<HashMap<String, (Duration, Instant)>>,
    /// How many those are.
    slowed_count: AtomicUsize,
    /// Writes that have waited so.
    waited_slowly: AtomicU64,
}

impl Ownerships {
    /// Loads the stored states, and follows every change of them.
    pub fn follow(engine: &Arc<Engine>) -> Result<Arc<Ownerships>> {
        let this = Arc::new(Ownerships::default());
        documents::each(engine, OWNERSHIP, Doc::EMPTY, |d| {
            this.take(d);
            Ok(true)
        })?;
        documents::each(engine, DATABASE_PRIMARIES, Doc::EMPTY, |d| {
            this.take_database_primary(d);
            Ok(true)
        })?;
        engine.store.observe(this.clone())?;
        engine.name_documents_by(this.clone());
        Ok(this)
    }

    pub fn get(&self, ns: &str) -> Option<Arc<Ownership>> {
        self.states.read().get(ns)?.ownership.clone()
    }

    /// When states of before were not to be read any more, since this process began.
    pub fn changed(&self, ns: &str) -> Option<Instant> {
        self.states.read().get(ns)?.changed
    }

    pub fn database_primary(&self, db: &str) -> Option<Arc<DatabasePrimary>> {
        self.database_primaries.read().get(db).cloned()
    }

    /// Delays each write of routers to a collection by `each`, until then. It ends by itself.
    pub fn slow_down(&self, ns: &str, each: Duration, until: Instant) {
        let mut slowed = self.slowed.lock();
        slowed.insert(ns.to_string(), (each, until));
        self.slowed_count.store(slowed.len(), Ordering::Release);
    }

    pub fn slows_any(&self) -> bool {
        self.slowed_count.load(Ordering::Acquire) > 0
    }

    /// How long a write to a collection waits now.
    pub fn slowed(&self, ns: &str) -> Option<Duration> {
        let now = Instant::now();
        let mut slowed = self.slowed.lock();
        slowed.retain(|_, (_, until)| *until > now);
        self.slowed_count.store(slowed.len(), Ordering::Release);
        let each = slowed.get(ns)?.0;
        self.waited_slowly.fetch_add(1, Ordering::Relaxed);
        Some(each)
    }

    /// Writes that have waited because a mover could not keep up, since the process began.
    pub fn waited_slowly(&self) -> u64 {
        self.waited_slowly.load(Ordering::Relaxed)
    }

    /// The gates for a write; `None` while a fence waits for writes to end, unless `holder`, the
    /// write's transaction, has written there before.
    pub(super) fn enter(
        &self,
        ns: &str,
        db: Option<&str>,
        holder: Option<&Holder>,
    ) -> Option<WriterGuard> {
        Some(WriterGuard {
            collection: Some(self.gate(ns).enter(holder)?),
            database: match db {
                None => None,
                Some(db) => Some(self.gate(db).enter(holder)?),
            },
            _mover: None,
        })
    }

    /// For what a mover sends of a range, or of a whole collection. Whether it has a place here is to
    /// be looked at after this.
    pub fn enter_mover(&self, ns: &str, range: Option<PlaceRange>) -> WriterGuard {
        let movers = self.state(ns, |state| state.movers.clone());
        let number = movers.0.lock().enter(range);
        WriterGuard {
            collection: None,
            database: None,
            _mover: Some(MoverGuard { movers, number }),
        }
    }

    /// Waits until what movers have sent of these ranges so far is done; fails when that takes too
    /// long. Others go on meanwhile.
    pub(super) fn drain_movers(&self, ns: &str, ranges: &[PlaceRange]) -> Result<()> {
        let movers = self.state(ns, |state| state.movers.clone());
        let until = Instant::now() + MOVERS_DRAIN;
        let mut under_way = movers.0.lock();
        let awaited = under_way.meeting(ranges);
        while under_way.has_any(&awaited) {
            if movers.1.wait_until(&mut under_way, until).timed_out() {
                bail!(
                    LockTimeout,
                    "what was sent to {ns} of a range that moves is not done yet"
                );
            }
        }
        Ok(())
    }

    fn gate(&self, name: &str) -> Gate {
        self.state(name, |state| state.gate.clone())
    }

    fn state<T>(&self, name: &str, take: impl Fn(&CollectionState) -> T) -> T {
        if let Some(state) = self.states.read().get(name) {
            return take(state);
        }
        take(self.states.write().entry(name.into()).or_default())
    }

    /// Waits until no fence of a collection stands, and none waits for its writes to end; at most until
    /// `until`. Whether there was anything to wait for.
    pub(super) fn wait_while_fenced(&self, ns: &str, until: Instant) -> bool {
        let mut waited = false;
        let mut held = self.news.0.lock();
        while self.get(ns).is_some_and(|known| known.fence.is_some()) {
            waited = true;
            if self.news.1.wait_until(&mut held, until).timed_out() {
                return waited;
            }
        }
        drop(held);
        self.gate(ns).wait_while_awaited(until) || waited
    }

    fn tell_news(&self) {
        let _held = self.news.0.lock();
        self.news.1.notify_all();
    }

    /// A command of a router, in a message of that length: a long one is as much work as several.
    pub(super) fn serving(&self, message_bytes: usize) {
        let work = 1 + message_bytes / BYTES_OF_A_COMMAND;
        self.served.fetch_add(work as u64, Ordering::Relaxed);
    }

    /// How many commands of routers came since the process began, by the work that they are.
    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Waits until the writes in flight to a collection, or to the unsharded collections of a database,
    /// are committed, those of open transactions among them; false when that takes longer than `wait`.
    pub(super) fn drain(&self, name: &str, wait: Duration) -> bool {
        self.gate(name).drain(wait)
    }

    fn take_database_primary(&self, d: Doc<'_>) {
        match DatabasePrimary::parse(d) {
            Ok(primary) => {
                let mut database_primaries = self.database_primaries.write();
                database_primaries.insert(primary.db.clone(), Arc::new(primary));
            }
            Err(e) => {
                tracing::error!(target: "SHARDING", error = %e, "A document of config.homes is not understood")
            }
        }
    }

    fn take(&self, d: Doc<'_>) {
        match Ownership::parse(d) {
            Ok(ownership) => {
                let mut states = self.states.write();
                let state = states.entry(ownership.ns.clone()).or_default();
                let before = state.ownership.as_deref();
                if !Ownership::reads_the_past(before, &ownership) {
                    state.changed = Some(Instant::now());
                }
                state.ownership = Some(Arc::new(ownership));
                drop(states);
                self.tell_news();
            }
            Err(e) => {
                tracing::error!(target: "SHARDING", error = %e, "A document of config.ownership is not understood")
            }
        }
    }

    fn forget(&self, ns: Option<&str>) {
        let mut states = self.states.write();
        for (_, state) in states
            .iter_mut()
            .filter(|(name, _)| ns.is_none_or(|ns| ns == *name))
        {
            state.ownership = None;
        }
        drop(states);
        self.tell_news();
    }
}

impl ShardKeys for Ownerships {
    fn of(&self, ns: &str) -> Arc<[String]> {
        let states = self.states.read();
        let known = states.get(ns).and_then(|state| state.ownership.as_ref());
        known.map_or_else(Arc::default, |known| {
            known.key.names().map(str::to_string).collect()
        })
    }
}

/// The documents that an entry puts.
fn put(entry: &Entry) -> impl Iterator<Item = Doc<'_>> {
    entry.effects.iter().filter_map(|effect| match effect {
        Effect::Put(key, value) if key.get(8) == Some(&SPACE_RECORD) => Doc::new(value),
        _ => None,
    })
}

impl Observer for Ownerships {
    fn applied(&self, _: Committed, entry: &Entry) {
        for part in entry.plain().filter(|e| &*e.ns == DATABASE_PRIMARIES) {
            put(part).for_each(|d| self.take_database_primary(d));
        }
        for part in entry.plain().filter(|e| &*e.ns == OWNERSHIP) {
            match &part.op {
                Op::Ddl(what) if Doc::new(what).is_some_and(|d| d.get("drop").is_some()) => {
                    self.forget(None)
                }
                Op::Delete { record_key } => {
                    let id = Doc::new(record_key).and_then(|d| d.get("_id")?.as_str());
                    self.forget(id);
                }
                _ => {}
            }
            put(part).for_each(|d| self.take(d));
        }
    }
}
