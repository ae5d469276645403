//! Log tail: watches the end of the log once for all followers.
//!
//! One thread reads the entries that become durable, and finds the followers of each by the
//! namespace in its first bytes. Other followers need not read the log at all. The thread runs
//! while there are followers.
//!
//! Invariants:
//! - A follower without news has missed nothing up to [`LogTail::scanned`], if it had read up to
//!   the durable index when it took its last news.
//! - Only durable entries are news: what a follower has seen survives a loss of power.

use bson::Doc;
use errors::Result;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;
use storage::{Committed, Entry, Glance, LogMark, LogReader, Observer, Op, Store};

/// So often the thread looks whether it is still needed.
const LOOK: Duration = Duration::from_millis(250);
/// The number of entries read before the list of followers is unlocked for a moment.
const RUN: usize = 4096;

/// What to call when there is news.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// A follower of the log.
pub struct Follower {
    /// The position before the first entry that may concern this follower.
    news: Mutex<Option<LogMark>>,
    wake: Mutex<Option<Wake>>,
    census: Arc<Census>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.census.following.fetch_sub(1, SeqCst);
        self.census.changed.store(true, SeqCst);
    }
}

/// How many there are, and whether one has gone since the lists were last cleared of such.
#[derive(Default)]
struct Census {
    following: AtomicUsize,
    changed: AtomicBool,
}

impl Follower {
    pub fn has_news(&self) -> bool {
        self.news.lock().is_some()
    }

    pub fn take_news(&self) -> Option<LogMark> {
        self.news.lock().take()
    }

    /// Has `wake` called, once, when there is news from now on. Who then looks whether there was news before has missed none.
    pub fn on_news(&self, wake: Wake) {
        *self.wake.lock() = Some(wake);
    }

    fn tell(&self, mark: LogMark) {
        self.news.lock().get_or_insert(mark);
        let wake = self.wake.lock().take();
        if let Some(wake) = wake {
            wake();
        }
    }
}

#[derive(Default)]
struct Followers {
    /// Followers by `database.collection`, by database, and under the empty name those of the whole
    /// server.
    by_name: HashMap<String, Vec<Weak<Follower>>>,
    running: bool,
    scanned: u64,
    scanned_ts: u64,
}

impl Followers {
    /// Notifies the followers under a name.
    fn tell(&self, name: &str, mark: LogMark) {
        let list = self.by_name.get(name).into_iter().flatten();
        list.filter_map(Weak::upgrade).for_each(|f| f.tell(mark));
    }

    /// Tells those who follow a collection, its database, or everything.
    fn tell_of(&self, ns: &str, mark: LogMark) {
        self.tell(ns, mark);
        if let Some((db, _)) = ns.split_once('.') {
            self.tell(db, mark);
        }
        self.tell("", mark);
    }

    fn tell_all(&self, mark: LogMark) {
        for name in self.by_name.keys() {
            self.tell(name, mark);
        }
    }

    /// Tells those whom a transaction, DDL or the server's own bookkeeping concerns.
    fn tell_entry(&self, payload: &[u8], mark: LogMark) {
        let Some(entry) = Entry::decode(payload) else {
            return self.tell_all(mark);
        };
        self.tell("", mark);
        for part in entry.plain() {
            self.tell_of(&part.ns, mark);
            // A collection is renamed to another name, which may be of another database.
            if let Op::Ddl(what) = &part.op {
                let texts = Doc::new(what).unwrap_or(Doc::EMPTY).values();
                let names = texts.filter_map(|v| v.as_str());
                names.for_each(|name| self.tell_of(name, mark));
            }
        }
    }
}

pub struct LogTail {
    store: Arc<Store>,
    followers: Mutex<Followers>,
    /// Something became durable since the thread looked.
    durable: Mutex<bool>,
    became_durable: Condvar,
    census: Arc<Census>,
}

/// Asks for the sync of what is written while somebody follows: it is news only once it is on disk.
struct AskForSync(Weak<LogTail>);

impl Observer for AskForSync {
    fn applied(&self, _: Committed, _: &Entry) {
        if let Some(tail) = self.0.upgrade()
            && tail.census.following.load(SeqCst) > 0
        {
            tail.store.request_sync();
        }
    }
}

impl LogTail {
    pub fn new(store: Arc<Store>) -> Result<Arc<LogTail>> {
        let tail = Arc::new(LogTail {
            store,
            followers: Mutex::default(),
            durable: Mutex::new(false),
            became_durable: Condvar::new(),
            census: Arc::default(),
        });
        let ask = AskForSync(Arc::downgrade(&tail));
        tail.store.observe(Arc::new(ask))?;
        let weak = Arc::downgrade(&tail);
        tail.store.on_durable(Box::new(move |_| {
            if let Some(tail) = weak.upgrade()
                && tail.census.following.load(SeqCst) > 0
            {
                tail.look();
            }
        }));
        Ok(tail)
    }

    /// Has the thread look at the log.
    fn look(&self) {
        *self.durable.lock() = true;
        self.became_durable.notify_one();
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The index, and its timestamp, up to which all followers were notified.
    pub fn scanned(&self) -> (u64, u64) {
        let followers = self.followers.lock();
        (followers.scanned, followers.scanned_ts)
    }

    /// Follows what is written to a collection (`database.collection`), to a database, or (empty)
    /// at all.
    pub fn follow(self: &Arc<LogTail>, name: &str) -> Arc<Follower> {
        let follower = Arc::new(Follower {
            news: Mutex::default(),
            wake: Mutex::default(),
            census: self.census.clone(),
        });
        self.census.following.fetch_add(1, SeqCst);
        // What was written before was asked for by nobody.
        *self.durable.lock() = true;
        let mut followers = self.followers.lock();
        let list = followers.by_name.entry(name.to_string()).or_default();
        list.retain(|f| f.strong_count() > 0);
        list.push(Arc::downgrade(&follower));
        if !followers.running {
            followers.running = true;
            followers.scanned = self.store.durable_index();
            // Entries before the first scanned one are unknown, so no mark may be ahead of it.
            followers.scanned_ts = 0;
            let tail = self.clone();
            let started = std::thread::Builder::new()
                .name("log-tail".into())
                .spawn(move || {
                    let mut reader = None;
                    while tail.turn(&mut reader) {}
                });
            followers.running = started.is_ok();
        }
        follower
    }

    /// Scans the new durable entries; false when there are no followers left.
    fn turn(&self, reader: &mut Option<LogReader>) -> bool {
        {
            let mut durable = self.durable.lock();
            if !*durable {
                self.became_durable.wait_for(&mut durable, LOOK);
            }
            *durable = false;
        }
        let mut followers = self.followers.lock();
        if self.census.changed.swap(false, SeqCst) {
            followers.by_name.retain(|_, list| {
                list.retain(|f| f.strong_count() > 0);
                !list.is_empty()
            });
        }
        if self.census.following.load(SeqCst) == 0 {
            followers.running = false;
            return false;
        }
        let durable = self.store.durable_index();
        if self.store.last_index() > durable {
            self.store.request_sync();
        }
        if durable > followers.scanned && self.scan(&mut followers, reader, durable).is_err() {
            // The log could not be read. Followers get the error when they read it themselves.
            *reader = None;
            let mark = self.store.read_log(durable).map(|r| r.mark());
            if let Ok(mark) = mark {
                followers.tell_all(mark);
            }
            followers.scanned = durable;
        }
        if followers.scanned < durable {
            *self.durable.lock() = true;
        }
        true
    }

    fn scan(
        &self,
        followers: &mut Followers,
        reader: &mut Option<LogReader>,
        durable: u64,
    ) -> Result<()> {
        let reader = match reader {
            Some(reader) => reader,
            none => none.insert(self.store.read_log(followers.scanned + 1)?),
        };
        for _ in 0..RUN {
            let mark = reader.mark();
            if mark.index > durable {
                break;
            }
            let Some(record) = reader.next()? else { break };
            match Glance::at(record.payload) {
                Some(Glance::Documents(ns)) => followers.tell_of(ns, mark),
                _ => followers.tell_entry(record.payload, mark),
            }
            followers.scanned = record.index;
            followers.scanned_ts = record.ts;
        }
        Ok(())
    }
}
