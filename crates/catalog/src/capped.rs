//! Capped collections: their bounds, and the cursors that wait for them to grow.
//!
//! Its records lie under [numbers](crate::numbers), so their order is that of their insertion.
//!
//! Invariant: a writer takes numbers only while it holds the latch on [`Tail`], from its first read
//! until its entry is applied. So a snapshot that shows a number also shows every lower one, and a
//! reader that has read up to a number has missed none below it.

use bson::Doc;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a newly found first number is withheld from readers: an older view could still show a
/// smaller one.
const SETTLING: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Capped {
    /// The most bytes of its documents.
    pub size_bytes: u64,
    /// The most documents.
    pub max: Option<u64>,
    /// Shared by all versions of the collection.
    pub tail: Arc<Tail>,
}

impl Capped {
    /// From the options of `create`; `None` when they are not those of a capped collection.
    pub(crate) fn of(options: Doc<'_>, tail: Arc<Tail>) -> Option<Capped> {
        let number = |name: &str| {
            let n = options.get(name).and_then(|v| v.to_i64_truncated())?;
            u64::try_from(n).ok().filter(|n| *n > 0)
        };
        if !options.get("capped").is_some_and(|v| v.truthy()) {
            return None;
        }
        Some(Capped {
            size_bytes: number("size").unwrap_or(0),
            max: number("max"),
            tail,
        })
    }

    /// Whether so many records of so many bytes are too many.
    pub fn is_over(&self, records: i64, bytes: i64) -> bool {
        let above = |n: i64, bound: u64| u64::try_from(n).is_ok_and(|n| n > bound);
        above(bytes, self.size_bytes) || self.max.is_some_and(|max| above(records, max))
    }
}

/// The growing end of a capped collection, and the cursors that wait for it.
#[derive(Default)]
pub struct Tail {
    head: Mutex<Head>,
    /// The number of additions since the process started.
    additions: Mutex<u64>,
    added: Condvar,
}

/// The position of the oldest record: without it, a scan would step over all removed records before
/// it.
#[derive(Default)]
struct Head {
    /// No record has a smaller number.
    first: u64,
    /// As `first`, also for views that are up to [`SETTLING`] old.
    settled: u64,
    /// When `first` is settled.
    settles: Option<(Instant, u64)>,
}

impl Tail {
    /// A lower bound of the numbers in the newest state.
    pub fn first(&self) -> u64 {
        self.head.lock().first
    }

    /// A lower bound of the numbers in a fresh view.
    pub fn settled_first(&self) -> u64 {
        self.head.lock().settled
    }

    /// The holder of the latch has seen that the oldest record has this number.
    pub fn found_first(&self, first: u64) {
        let mut head = self.head.lock();
        if first <= head.first {
            return;
        }
        head.first = first;
        match head.settles {
            Some((at, _)) if Instant::now() < at => {}
            settles => {
                if let Some((_, n)) = settles {
                    head.settled = n;
                }
                head.settles = Some((Instant::now() + SETTLING, first));
            }
        }
    }

    /// The number of additions: read it before reading the newest state, and pass it to
    /// [`Tail::wait`] afterwards.
    pub fn additions(&self) -> u64 {
        *self.additions.lock()
    }

    /// Notes an addition that is visible.
    pub fn tell(&self) {
        *self.additions.lock() += 1;
        self.added.notify_all();
    }

    /// Waits for an addition after `seen`, or until `deadline`.
    pub fn wait(&self, seen: u64, deadline: Instant) {
        let mut additions = self.additions.lock();
        while *additions == seen {
            if self.added.wait_until(&mut additions, deadline).timed_out() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        let of = |d: bson::DocBuf| Capped::of(d.as_doc(), Arc::default());
        assert!(of(bson::doc! { "size": 100 }).is_none());
        let c = of(bson::doc! { "capped": true, "size": 100, "max": 0 }).unwrap();
        assert_eq!(c.max, None);
        assert!(!c.is_over(1_000, 100));
        assert!(c.is_over(1, 101));
        let c = of(bson::doc! { "capped": true, "size": 100, "max": 2 }).unwrap();
        assert!(!c.is_over(2, 100));
        assert!(c.is_over(3, 1));
        assert!(!c.is_over(-1, -1));
    }

    #[test]
    fn the_first_number_reaches_readers_later() {
        let t = Tail::default();
        t.found_first(5);
        assert_eq!((t.first(), t.settled_first()), (5, 0));
        t.found_first(4);
        t.found_first(9);
        assert_eq!((t.first(), t.settled_first()), (9, 0));
        t.head.lock().settles = Some((Instant::now() - SETTLING, 5));
        t.found_first(12);
        assert_eq!((t.first(), t.settled_first()), (12, 5));
    }

    #[test]
    fn waiting_ends_with_an_addition() {
        let t = Arc::new(Tail::default());
        let seen = t.additions();
        let other = t.clone();
        let thread = std::thread::spawn(move || {
            other.wait(seen, Instant::now() + Duration::from_secs(60));
            other.additions()
        });
        t.tell();
        assert_eq!(thread.join().unwrap(), seen + 1);
        let begun = Instant::now();
        t.wait(seen + 1, begun + Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }
}
