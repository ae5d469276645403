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

use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use storage::{Glance, LogMark, LogReader, Store};

/// The longest time that followers wait for a written entry to become durable, by a sync of others
/// or by one requested here.
const LOOK: Duration = Duration::from_millis(10);
/// The number of entries read before the list of followers is unlocked for a moment.
const RUN: usize = 4096;

/// A follower of the log.
pub struct Follower {
    /// The position before the first entry that may concern this follower.
    news: Mutex<Option<LogMark>>,
}

impl Follower {
    pub fn has_news(&self) -> bool {
        self.news.lock().is_some()
    }

    pub fn take_news(&self) -> Option<LogMark> {
        self.news.lock().take()
    }

    /// Returns whether the follower had no news before.
    fn tell(&self, mark: LogMark) -> bool {
        let mut news = self.news.lock();
        let first = news.is_none();
        news.get_or_insert(mark);
        first
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
    /// Notifies the followers under a name; returns whether it was news to any.
    fn tell(&self, name: &str, mark: LogMark) -> bool {
        let list = self.by_name.get(name).into_iter().flatten();
        let told = list.filter_map(Weak::upgrade).filter(|f| f.tell(mark));
        told.count() > 0
    }
}

pub struct LogTail {
    store: Arc<Store>,
    followers: Mutex<Followers>,
    /// Signalled when entries became durable.
    durable: Condvar,
    following: AtomicUsize,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl LogTail {
    pub fn new(store: Arc<Store>) -> Arc<LogTail> {
        let tail = Arc::new(LogTail {
            store,
            followers: Mutex::default(),
            durable: Condvar::new(),
            following: AtomicUsize::new(0),
            wake: OnceLock::new(),
        });
        let weak = Arc::downgrade(&tail);
        tail.store.on_durable(Box::new(move |_| {
            if let Some(tail) = weak.upgrade()
                && tail.following.load(SeqCst) > 0
            {
                tail.durable.notify_one();
            }
        }));
        tail
    }

    /// Sets the function that is called when a follower has news. Only the first call has an
    /// effect.
    pub fn on_news(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let _ = self.wake.set(wake);
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
        });
        let mut followers = self.followers.lock();
        let list = followers.by_name.entry(name.to_string()).or_default();
        list.retain(|f| f.strong_count() > 0);
        list.push(Arc::downgrade(&follower));
        self.following.fetch_add(1, SeqCst);
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
        let mut followers = self.followers.lock();
        if self.store.durable_index() <= followers.scanned {
            self.durable.wait_for(&mut followers, LOOK);
        }
        let mut left = 0;
        followers.by_name.retain(|_, list| {
            list.retain(|f| f.strong_count() > 0);
            left += list.len();
            !list.is_empty()
        });
        self.following.store(left, SeqCst);
        if left == 0 {
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
                let names: Vec<String> = followers.by_name.keys().cloned().collect();
                names.iter().for_each(|name| {
                    followers.tell(name, mark);
                });
            }
            followers.scanned = durable;
            drop(followers);
            self.call();
            return true;
        }
        true
    }

    fn call(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    fn scan(
        &self,
        followers: &mut Followers,
        reader: &mut Option<LogReader>,
        durable: u64,
    ) -> errors::Result<()> {
        let reader = match reader {
            Some(reader) => reader,
            none => none.insert(self.store.read_log(followers.scanned + 1)?),
        };
        let mut news = false;
        for _ in 0..RUN {
            let mark = reader.mark();
            if mark.index > durable {
                break;
            }
            let Some(record) = reader.next()? else { break };
            news |= match Glance::at(record.payload) {
                Some(Glance::Documents(ns)) => {
                    let db = ns.split_once('.').map_or(ns, |(db, _)| db);
                    let of_coll = followers.tell(ns, mark);
                    followers.tell(db, mark) | followers.tell("", mark) | of_coll
                }
                _ => {
                    let names = followers.by_name.keys();
                    names.fold(false, |any, name| followers.tell(name, mark) | any)
                }
            };
            followers.scanned = record.index;
            followers.scanned_ts = record.ts;
        }
        if news {
            self.call();
        }
        Ok(())
    }
}
