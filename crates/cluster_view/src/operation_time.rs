//! The time of the operation that this thread works for: an operation takes many steps, and each of
//! them ends when the whole of it has to (`maxTimeMS`).
//!
//! Invariant: the limit set here is that of the thread's innermost [`within`], and ends when that
//! returns.

use crate::Outcome;
use crate::upstream::time_is_over;
use bson::{Doc, DocBuf, Writer};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How much longer than the operation's own time a reply is waited for: mostly the server says itself
/// that it has ended.
const GRACE: Duration = Duration::from_millis(50);
/// What an operation may take that is over to put away what it has opened: all of it together.
const PUTTING_AWAY: Duration = Duration::from_millis(250);
/// A step is told of the operation's whole time where it lacks no more than this.
const UNSAID_MS: i64 = 5;

thread_local! {
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Commands whose time is that of all their steps. Others may not stop half way; their steps have
/// times of their own.
const TIMED: [&str; 20] = [
    "find",
    "aggregate",
    "count",
    "distinct",
    "explain",
    "insert",
    "update",
    "delete",
    "findAndModify",
    "findandmodify",
    "bulkWrite",
    "mapReduce",
    "mapreduce",
    "filemd5",
    "listCollections",
    "listIndexes",
    "listDatabases",
    "dbStats",
    "collStats",
    "dataSize",
];

/// When a command of that name is over that was first looked at then. `most_ms`: what its client allows;
/// 0 is any time.
pub fn end_of(name: &str, most_ms: u64, since: Instant) -> Option<Instant> {
    if most_ms == 0 || !TIMED.contains(&name) {
        return None;
    }
    since.checked_add(Duration::from_millis(most_ms).saturating_add(GRACE))
}

/// Whether a command may stop between two of its steps.
pub fn may_stop(name: &str) -> bool {
    TIMED.contains(&name)
}

/// Runs steps of an operation that ends at `end`.
pub fn within<T>(end: Option<Instant>, run: impl FnOnce() -> T) -> T {
    struct Before(Option<Instant>);
    impl Drop for Before {
        fn drop(&mut self) {
            END.set(self.0);
        }
    }
    let _before = Before(END.replace(end));
    run()
}

/// Runs what puts away what an operation has opened, also when it is over.
pub fn putting_away<T>(run: impl FnOnce() -> T) -> T {
    let later = END.get().map(|end| end.max(Instant::now() + PUTTING_AWAY));
    within(later, run)
}

/// Runs what may not stop half way: how a transaction ends has to be known.
pub fn to_its_end<T>(run: impl FnOnce() -> T) -> T {
    within(None, run)
}

/// When this thread's operation is over.
pub fn end() -> Option<Instant> {
    END.get()
}

/// When a step is over that begins now and has this time.
pub fn end_of_step(most: Option<Duration>) -> Option<Instant> {
    let own = most.and_then(|most| Instant::now().checked_add(most.saturating_add(GRACE)));
    match (own, end()) {
        (Some(own), Some(end)) => Some(own.min(end)),
        (own, end) => own.or(end),
    }
}

/// `limit`, or the operation's remaining time if that is shorter.
pub fn at_most(limit: Duration) -> Duration {
    end().map_or(limit, |end| {
        limit.min(end.saturating_duration_since(Instant::now()))
    })
}

/// Fails when this thread's operation is over.
pub fn check() -> Outcome<()> {
    match end().is_some_and(|end| end <= Instant::now()) {
        true => Err(time_is_over()),
        false => Ok(()),
    }
}

/// A command with `maxTimeMS` set to the operation's remaining time. `None`: it says so already, or no
/// time.
pub fn shortened(command: Doc<'_>) -> Option<DocBuf> {
    let left = end()?.saturating_duration_since(Instant::now());
    let given = command.get("maxTimeMS")?.to_i64_exact()?;
    let left_ms = i64::try_from(left.as_millis()).unwrap_or(i64::MAX).max(1);
    if given <= 0 || left_ms >= given.saturating_sub(UNSAID_MS) {
        return None;
    }
    let mut w = Writer::with_capacity(command.len() + 8);
    for e in command {
        match e.name {
            "maxTimeMS" => w.i64(e.name, left_ms),
            name => w.val(name, e.val),
        };
    }
    Some(w.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Val, doc};

    #[test]
    fn steps_end_with_the_operation() {
        let now = Instant::now();
        let find = doc! {"find": "c", "maxTimeMS": 10_000};
        let end = end_of("find", 10_000, now);
        assert_eq!(end, Some(now + Duration::from_millis(10_000) + GRACE));
        assert_eq!(end_of("drop", 10, now), None);
        assert_eq!(end_of("find", 0, now), None);
        // Of a getMore it is how long the server may wait for news.
        assert_eq!(end_of("getMore", 9, now), None);
        assert_eq!((end_of_step(None), shortened(find.as_doc())), (None, None));
        within(end, || {
            assert_eq!(end_of_step(None), end);
            assert_eq!(end_of_step(Some(Duration::from_secs(100))), end);
            assert!(end_of_step(Some(Duration::from_secs(1))) < end);
            assert!(at_most(Duration::from_secs(60)) < Duration::from_secs(11));
            assert_eq!(shortened(find.as_doc()), None);
        });
        assert_eq!(super::end(), None);
    }

    #[test]
    fn a_later_step_is_told_what_is_left() {
        let find = doc! {"find": "c", "maxTimeMS": 10_000, "limit": 1};
        within(Some(Instant::now() + Duration::from_secs(3)), || {
            let told = shortened(find.as_doc()).expect("it says less");
            let ms = told.get("maxTimeMS").and_then(Val::to_i64_exact);
            assert!(ms.is_some_and(|ms| (1..=3_000).contains(&ms)), "{told:?}");
            assert_eq!(told.get("limit").and_then(Val::to_i64_exact), Some(1));
            assert_eq!(shortened(doc! {"find": "c"}.as_doc()), None);
        });
        // An operation whose time is over sends 1 ms, as 0 would be no limit.
        within(Some(Instant::now()), || {
            let told = shortened(find.as_doc()).expect("it says less");
            assert_eq!(told.get("maxTimeMS").and_then(Val::to_i64_exact), Some(1));
            assert_eq!(at_most(Duration::from_secs(1)), Duration::ZERO);
            let left = putting_away(|| at_most(Duration::from_secs(9)));
            assert!(left > Duration::ZERO && left <= PUTTING_AWAY);
        });
    }
}
