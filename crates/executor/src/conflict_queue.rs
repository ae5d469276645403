//! The conflict queue: transactions whose sessions have lost a conflict begin again one after the other.
//!
//! A transaction that loses a conflict is told at once, and begins again at once. Where many connections
//! want the same few documents, most of what they do then is to lose, and what they hold until they do
//! makes others lose. So a session that has lost waits at its next beginning until it is its turn: until
//! the one before it has ended. Sessions that have not lost begin freely.
//!
//! Invariants:
//! - A turn ends with its transaction, and after [`LEASE`] in any case: a long one, or one whose client
//!   has gone, holds up no other.
//! - A waiter holds nothing: no snapshot is taken and no key is locked before the turn.

use errors::Result;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest turn.
const LEASE: Duration = Duration::from_millis(20);
/// How often a waiter checks whether to go on waiting.
const LOOK: Duration = Duration::from_millis(100);
/// The most that wait: each holds a worker thread. Further ones begin at once.
const MOST_WAITING: usize = 64;

#[derive(Default)]
struct Queue {
    /// The number of the turn that is on, and when it ends by itself.
    on: Option<(u64, Instant)>,
    next: u64,
    waiting: VecDeque<(u64, Arc<Condvar>)>,
}

impl Queue {
    /// Wakes the one whose turn it is next.
    fn call(&self) {
        if let Some((_, first)) = self.waiting.front() {
            first.notify_one();
        }
    }
}

/// The queue of sessions that have lost a conflict.
#[derive(Clone, Default)]
pub struct ConflictQueue(Arc<Mutex<Queue>>);

/// A turn, until it is dropped.
pub struct Turn {
    queue: ConflictQueue,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.queue.0.lock();
        if queue.on.is_some_and(|(number, _)| number == self.number) {
            queue.on = None;
            queue.call();
        }
    }
}

/// A place in the queue, given up on drop.
struct Place<'a>(&'a ConflictQueue, u64);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.0.lock();
        queue.waiting.retain(|(number, _)| *number != self.1);
        // The new first waiter has to know until when the present turn lasts.
        queue.call();
    }
}

impl ConflictQueue {
    /// Waits for a turn; `check` says that there is no reason to wait on. `None`: too many wait.
    pub fn wait(&self, mut check: impl FnMut() -> Result<()>) -> Result<Option<Turn>> {
        let called = Arc::new(Condvar::new());
        let mut queue = self.0.lock();
        if queue.waiting.len() >= MOST_WAITING {
            return Ok(None);
        }
        queue.next += 1;
        let number = queue.next;
        queue.waiting.push_back((number, called.clone()));
        drop(queue);
        let _place = Place(self, number);
        loop {
            check()?;
            let mut queue = self.0.lock();
            let now = Instant::now();
            let first = queue.waiting.front().is_some_and(|(n, _)| *n == number);
            let ends = queue.on.map_or(now, |(_, ends)| ends);
            if first && ends <= now {
                assert!(
                    queue.on.is_none_or(|(before, _)| before < number),
                    "turns follow one another in the order of the queue"
                );
                queue.on = Some((number, now + LEASE));
                let queue = self.clone();
                return Ok(Some(Turn { queue, number }));
            }
            // A call in between was made under this lock.
            let until = if first { ends } else { now + LOOK };
            called.wait_until(&mut queue, until.min(now + LOOK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn every_waiter_gets_a_turn() {
        let conflict_queue = ConflictQueue::default();
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let turn = conflict_queue.wait(|| Ok(())).unwrap().unwrap();
                        done.fetch_add(1, SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(done.load(SeqCst), 16 * 50);
        let queue = conflict_queue.0.lock();
        assert!(queue.on.is_none() && queue.waiting.is_empty());
    }

    #[test]
    fn a_turn_that_does_not_end_holds_up_no_waiter() {
        let conflict_queue = ConflictQueue::default();
        let began = Instant::now();
        let left = conflict_queue.wait(|| Ok(())).unwrap();
        let next = conflict_queue.wait(|| Ok(())).unwrap().unwrap();
        assert!(began.elapsed() >= LEASE, "two turns at once");
        // Its end is not that of the turn that is on now.
        drop(left);
        assert_eq!(
            conflict_queue.0.lock().on.map(|(n, _)| n),
            Some(next.number)
        );
        // A waiter that gives up leaves the queue.
        let mut asked = 0;
        let gave_up = conflict_queue.wait(|| {
            asked += 1;
            match asked {
                1 => Ok(()),
                _ => Err(storage::write_conflict().into()),
            }
        });
        assert!(gave_up.is_err() || asked == 1);
        drop((gave_up, next));
        assert!(conflict_queue.0.lock().waiting.is_empty());
    }
}
