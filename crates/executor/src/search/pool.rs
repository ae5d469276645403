//! The threads on which search indexes have their turns.
//!
//! An index with work is due at some time; a thread takes the one that is due first, and puts it back
//! when its turn is over. There are no more threads than [`MOST_THREADS`] and no more writers than
//! [`MOST_WRITERS`], however many indexes there are.
//!
//! Invariants:
//! - An index has one turn at a time.
//! - An index that is made due before a time runs from that time on, as soon as a thread is free.

use super::follower::{IndexFollower, Next};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most threads.
pub(super) const MOST_THREADS: usize = 4;
/// The most writers of indexes that are open at a time; each has some threads of the library.
pub(super) const MOST_WRITERS: usize = 6;
/// How many of them may be filling their index: a follower of the log never waits for all of them.
const MOST_FILLING: usize = 3;
/// A thread that was idle for this long ends.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Pool {
    due: Mutex<Due>,
    changed: Condvar,
    stopped: AtomicBool,
    writers: AtomicUsize,
    filling: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Which index is due when.
#[derive(Default)]
struct Due {
    in_order: BTreeSet<(Instant, u64)>,
    waiting: HashMap<u64, (Instant, Arc<IndexFollower>)>,
    running: HashSet<u64>,
    /// When those that run are due again.
    again: HashMap<u64, Instant>,
    threads: usize,
    idle: usize,
}

impl Due {
    fn put(&mut self, follower: &Arc<IndexFollower>, at: Instant) {
        let id = follower.id;
        if self.running.contains(&id) {
            let again = self.again.entry(id).or_insert(at);
            *again = at.min(*again);
            return;
        }
        if let Some((known, _)) = self.waiting.get(&id) {
            if *known <= at {
                return;
            }
            self.in_order.remove(&(*known, id));
        }
        self.in_order.insert((at, id));
        self.waiting.insert(id, (at, follower.clone()));
    }

    /// The one that is due first, or when it will be.
    fn take(&mut self) -> Result<Arc<IndexFollower>, Option<Instant>> {
        let Some((at, id)) = self.in_order.first().copied() else {
            return Err(None);
        };
        if at > Instant::now() {
            return Err(Some(at));
        }
        self.in_order.pop_first();
        let Some((_, follower)) = self.waiting.remove(&id) else {
            return Err(Some(at));
        };
        let is_first = self.running.insert(id);
        assert!(is_first, "an index has one turn at a time");
        Ok(follower)
    }

    fn ended(&mut self, follower: &Arc<IndexFollower>, next: &Next) {
        self.running.remove(&follower.id);
        let again = self.again.remove(&follower.id);
        let own = match next {
            Next::Wait => None,
            Next::After(rest) => Some(Instant::now() + *rest),
            Next::Ended => return,
        };
        if let Some(at) = own.into_iter().chain(again).min() {
            self.put(follower, at);
        }
    }
}

impl Pool {
    /// Has an index get a turn from `at` on.
    pub fn due(self: &Arc<Pool>, follower: &Arc<IndexFollower>, at: Instant) {
        if self.stopped.load(SeqCst) {
            return;
        }
        let mut due = self.due.lock();
        due.put(follower, at);
        if due.idle == 0 && due.threads < MOST_THREADS {
            due.threads += 1;
            drop(due);
            self.start_thread();
        } else {
            drop(due);
            self.changed.notify_one();
        }
    }

    fn start_thread(self: &Arc<Pool>) {
        let pool = Arc::downgrade(self);
        let thread = std::thread::Builder::new()
            .name("search-index".into())
            .spawn(move || work(&pool));
        match thread {
            Ok(thread) => {
                let mut threads = self.threads.lock();
                threads.retain(|t| !t.is_finished());
                threads.push(thread);
            }
            Err(e) => {
                self.due.lock().threads -= 1;
                tracing::warn!(target: "INDEX", error = %e, "no thread for search indexes");
            }
        }
    }

    /// No turn begins from now on; waits for those that run.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        // Under the lock, so that no thread that has looked before sleeps on.
        drop(self.due.lock());
        self.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        // The last owner of the engine may be one of them.
        let me = std::thread::current().id();
        for thread in threads.into_iter().filter(|t| t.thread().id() != me) {
            let _ = thread.join();
        }
        *self.due.lock() = Due::default();
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    /// A permit to have a writer open; `None`: there are enough.
    pub fn writer(self: &Arc<Pool>, filling: bool) -> Option<WriterPermit> {
        let take = |count: &AtomicUsize, most: usize| {
            let more = |n: usize| (n < most).then_some(n + 1);
            count.fetch_update(SeqCst, SeqCst, more).is_ok()
        };
        if filling && !take(&self.filling, MOST_FILLING) {
            return None;
        }
        if !take(&self.writers, MOST_WRITERS) {
            if filling {
                self.filling.fetch_sub(1, SeqCst);
            }
            return None;
        }
        Some(WriterPermit {
            pool: self.clone(),
            filling,
        })
    }

    /// How many writers are open.
    pub fn writers(&self) -> usize {
        self.writers.load(SeqCst)
    }
}

/// Allows its owner to have a writer open.
pub(super) struct WriterPermit {
    pool: Arc<Pool>,
    filling: bool,
}

impl WriterPermit {
    /// The index is filled: others may be.
    pub fn is_filled(&mut self) {
        if std::mem::take(&mut self.filling) {
            self.pool.filling.fetch_sub(1, SeqCst);
        }
    }
}

impl Drop for WriterPermit {
    fn drop(&mut self) {
        self.is_filled();
        self.pool.writers.fetch_sub(1, SeqCst);
    }
}

/// What a thread does.
fn work(pool: &Weak<Pool>) {
    while let Some(pool) = pool.upgrade() {
        let taken = {
            let mut due = pool.due.lock();
            if pool.stopped.load(SeqCst) {
                due.threads -= 1;
                return;
            }
            let taken = due.take();
            if let Err(next) = taken {
                let begun = Instant::now();
                due.idle += 1;
                match next {
                    Some(at) => pool.changed.wait_until(&mut due, at),
                    None => pool.changed.wait_for(&mut due, IDLE),
                };
                due.idle -= 1;
                // One thread that waits for later work is enough.
                let spare = due.idle > 0 || due.in_order.is_empty();
                if spare && begun.elapsed() >= IDLE {
                    due.threads -= 1;
                    // It may have been woken for work, which another one has to do then: that one may sleep until
                    // something else is due.
                    pool.changed.notify_one();
                    return;
                }
                continue;
            }
            // The next may be due already.
            if due
                .in_order
                .first()
                .is_some_and(|(at, _)| *at <= Instant::now())
            {
                pool.changed.notify_one();
            }
            taken
        };
        if let Ok(follower) = taken {
            let next = follower.turn();
            let mut due = pool.due.lock();
            due.ended(&follower, &next);
        }
    }
}
