//! Log tail: tells the followers of the log of the entries that concern them.
//!
//! ```text
//! an entry is applied ── by its namespace: who follows it? ── note it with them, ask for a sync soon
//! a sync is done ─────── those whose noted entries are durable ── have news; who waits is woken
//! ```
//!
//! No thread reads the log to find out: writers look up their own entries, and do nothing more if the
//! followers are noted already.
//!
//! Invariants:
//! - A follower without news has missed nothing up to [`LogTail::scanned`], if it had read up to
//!   the durable index when it took its last news.
//! - Only durable entries are news: what a follower has seen survives a loss of power.
//! - `pending` is in the order of the log, and holds a name at most once.

use bson::Doc;
use errors::Result;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst, fence};
use std::sync::{Arc, Weak};
use storage::{Committed, Entry, LogMark, Observer, Op, Store};

/// What to call when there is news.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// A follower of the log, until it is dropped.
pub struct LogFollower {
    place: Arc<Place>,
    tail: Arc<LogTail>,
    name: Box<str>,
}

impl Drop for LogFollower {
    fn drop(&mut self) {
        self.tail.unfollow(&self.name, &self.place);
    }
}

impl LogFollower {
    pub fn has_news(&self) -> bool {
        self.place.news.lock().is_some()
    }

    /// A position before the first entry that may concern it.
    pub fn take_news(&self) -> Option<LogMark> {
        self.place.news.lock().take()
    }

    /// Has `wake` called, once, when there is news from now on. A caller that then looks for earlier
    /// news has missed none.
    pub fn on_news(&self, wake: Wake) {
        *self.place.wake.lock() = Some(wake);
        self.tail.hurry(&self.name);
    }
}

/// What a follower is told through.
#[derive(Default)]
struct Place {
    news: Mutex<Option<LogMark>>,
    wake: Mutex<Option<Wake>>,
}

impl Place {
    fn waits(&self) -> bool {
        self.wake.lock().is_some()
    }

    fn tell(&self, mark: LogMark) {
        self.news.lock().get_or_insert(mark);
        let wake = self.wake.lock().take();
        if let Some(wake) = wake {
            wake();
        }
    }
}

/// The followers of one name.
#[derive(Default)]
struct Named {
    places: Vec<Arc<Place>>,
    /// The first entry that concerns them and of which they were not told yet, and the last one.
    noted: Option<(LogMark, u64)>,
}

impl Named {
    fn some_wait(&self) -> bool {
        self.places.iter().any(|place| place.waits())
    }
}

#[derive(Default)]
struct Followers {
    /// By `database.collection`, by database, and under the empty name those of the whole server.
    by_name: HashMap<Box<str>, Named, foldhash::fast::RandomState>,
    /// The names with a noted entry, and from which index on they wait for its durability.
    pending: VecDeque<(u64, Box<str>)>,
    /// The last entry that was applied while there were followers, and the same at the last sync.
    applied: Committed,
    applied_at_sync: Committed,
    scanned: Committed,
}

impl Followers {
    /// Notes an entry with the followers of a name. Returns whether a sync is to be asked for.
    fn note(&mut self, name: &str, index: u64, store: &Store) -> bool {
        let Some(named) = self.by_name.get_mut(name) else {
            return false;
        };
        match &mut named.noted {
            Some((_, last)) => {
                *last = index.max(*last);
                false
            }
            none => {
                *none = Some((store.log_mark(index), index));
                self.pending.push_back((index, name.into()));
                named.some_wait()
            }
        }
    }

    /// Notes an entry with the followers of a collection, of its database, or of everything.
    fn note_of(&mut self, ns: &str, index: u64, store: &Store) -> bool {
        let mut wanted = self.note(ns, index, store);
        if let Some((db, _)) = ns.split_once('.') {
            wanted |= self.note(db, index, store);
        }
        wanted | self.note("", index, store)
    }

    fn note_entry(&mut self, entry: &Entry, index: u64, store: &Store) -> bool {
        // The server's own bookkeeping concerns those of the whole server: the oplog shows it.
        let mut wanted = self.note("", index, store);
        for part in entry.plain().filter(|part| !part.ns.is_empty()) {
            wanted |= self.note_of(&part.ns, index, store);
            // A collection is renamed to another name, which may be of another database.
            if let Op::Ddl(what) = &part.op {
                let Some(what) = Doc::new(what) else {
                    // A reader of the entry reports that it is damaged.
                    return true;
                };
                for name in what.values().filter_map(|v| v.as_str()) {
                    wanted |= self.note_of(name, index, store);
                }
            }
        }
        wanted
    }

    /// Gives news to those whose noted entries are durable. Returns whether another sync is wanted.
    fn tell(&mut self, durable: u64, store: &Store) -> bool {
        let (mut wanted, mut again) = (false, Vec::new());
        while let Some((index, name)) = self.pending.pop_front() {
            if index > durable {
                self.pending.push_front((index, name));
                break;
            }
            let Some(named) = self.by_name.get_mut(&name) else {
                continue;
            };
            let Some((mark, last)) = named.noted.take() else {
                continue;
            };
            if last > durable {
                wanted |= named.some_wait();
                named.noted = Some((store.log_mark(durable + 1), last));
                again.push((durable + 1, name));
            }
            named.places.iter().for_each(|place| place.tell(mark));
        }
        // The others that wait are for later entries than these.
        for waits in again {
            self.pending.push_front(waits);
        }
        if self.applied.index <= durable {
            self.scanned = self.applied;
        } else if self.applied_at_sync.index <= durable {
            self.scanned = self.applied_at_sync;
        }
        self.applied_at_sync = self.applied;
        wanted
    }
}

pub struct LogTail {
    store: Arc<Store>,
    followers: Mutex<Followers>,
    following: AtomicUsize,
}

/// Notes applied entries with their followers.
struct NoteApplied(Weak<LogTail>);

impl Observer for NoteApplied {
    fn applied(&self, at: Committed, entry: &Entry) {
        if let Some(tail) = self.0.upgrade()
            && tail.following.load(SeqCst) > 0
        {
            tail.applied(at, entry);
        }
    }
}

impl LogTail {
    pub fn new(store: Arc<Store>) -> Result<Arc<LogTail>> {
        let tail = Arc::new(LogTail {
            store,
            followers: Mutex::default(),
            following: AtomicUsize::new(0),
        });
        let note = NoteApplied(Arc::downgrade(&tail));
        tail.store.observe(Arc::new(note))?;
        let weak = Arc::downgrade(&tail);
        tail.store.on_durable(Box::new(move |_| {
            if let Some(tail) = weak.upgrade()
                && tail.following.load(SeqCst) > 0
            {
                tail.became_durable();
            }
        }));
        Ok(tail)
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The index, and its timestamp, up to which all followers were notified.
    pub fn scanned(&self) -> (u64, u64) {
        let scanned = self.followers.lock().scanned;
        (scanned.index, scanned.ts)
    }

    fn applied(&self, at: Committed, entry: &Entry) {
        let mut followers = self.followers.lock();
        followers.applied = at;
        let wanted = match &entry.op {
            Op::Insert | Op::Update { .. } | Op::Delete { .. } => {
                followers.note_of(&entry.ns, at.index, &self.store)
            }
            _ => followers.note_entry(entry, at.index, &self.store),
        };
        // A sync may have been quicker than this.
        if self.store.durable_index() >= at.index {
            followers.tell(self.store.durable_index(), &self.store);
        } else if wanted {
            self.store.request_sync_soon();
        }
    }

    fn became_durable(&self) {
        let durable = self.store.durable_index();
        if self.followers.lock().tell(durable, &self.store) {
            self.store.request_sync_soon();
        }
    }

    /// A wait for news of a name begins: noted entries have to become durable.
    fn hurry(&self, name: &str) {
        let followers = self.followers.lock();
        if followers
            .by_name
            .get(name)
            .is_some_and(|n| n.noted.is_some())
        {
            self.store.request_sync_soon();
        }
    }

    /// Follows the writes to a collection (`database.collection`), to a database, or (empty) all.
    pub fn follow(self: &Arc<LogTail>, name: &str) -> LogFollower {
        let place = Arc::<Place>::default();
        let before = self.following.fetch_add(1, SeqCst);
        // An entry that is appended after this is noted, or it is in the log's end below.
        fence(SeqCst);
        let mut followers = self.followers.lock();
        if before == 0 {
            // Entries applied meanwhile are unknown.
            followers.scanned = Committed::default();
            followers.applied = self.store.last();
            followers.applied_at_sync = followers.applied;
        }
        let (durable, end) = (self.store.durable_index(), self.store.log_end());
        if followers.tell(durable, &self.store) {
            self.store.request_sync_soon();
        }
        let followers = &mut *followers;
        let named = followers.by_name.entry(name.into()).or_default();
        named.places.push(place.clone());
        if end > durable {
            // These were applied before there was this follower, so they count as its concern.
            match &mut named.noted {
                Some((_, last)) => *last = end.max(*last),
                none => {
                    *none = Some((self.store.log_mark(durable + 1), end));
                    followers.pending.push_front((durable + 1, name.into()));
                }
            }
            self.store.request_sync();
        }
        LogFollower {
            place,
            tail: self.clone(),
            name: name.into(),
        }
    }

    fn unfollow(&self, name: &str, place: &Arc<Place>) {
        self.following.fetch_sub(1, SeqCst);
        let mut followers = self.followers.lock();
        if let Some(named) = followers.by_name.get_mut(name) {
            named.places.retain(|other| !Arc::ptr_eq(other, place));
            if named.places.is_empty() {
                followers.by_name.remove(name);
                followers.pending.retain(|(_, waits)| &**waits != name);
            }
        }
    }
}
