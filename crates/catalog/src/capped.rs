//! What a capped collection has that others do not: its bounds, and who follows it as it grows.
//!
//! Its records lie under [numbers](crate::numbers), so their order is that of their insertion.
//!
//! Invariant: its numbers are given out by whoever holds the latch on [`Tail`], from before he
//! looks until what he inserted is applied. A snapshot therefore holds every number that was given
//! out before the newest one it holds: whoever has read up to a number has missed nothing below it.

use bson::Doc;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a newly found first number is kept from readers: a view that is older could hold a
/// smaller one.
const SETTLING: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Capped {
    /// What its documents may take, in bytes.
    pub size_bytes: u64,
    /// How many documents there may be.
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

/// Where a capped collection grows, and who waits for it to grow.
#[derive(Default)]
pub struct Tail {
    head: Mutex<Head>,
    /// How often something was added since the process started.
    additions: Mutex<u64>,
    added: Condvar,
}

/// Where the oldest record is: without this, every look at it would step over all that were removed
/// before it.
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
    /// A number that no record of the newest state is below.
    pub fn first(&self) -> u64 {
        self.head.lock().first
    }

    /// A number that no record of a fresh view is below.
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

    /// How often something was added: to be asked before looking at the newest state, and given to
    /// [`Tail::wait`] after.
    pub fn additions(&self) -> u64 {
        *self.additions.lock()
    }

    /// Something was added and can be seen.
    pub fn tell(&self) {
        *self.additions.lock() += 1;
        self.added.notify_all();
    }

    /// Waits until something was added since `seen` was current, or until `deadline`.
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
