//! Handshakes of TLS, computed beside the event loops: a signature with RSA takes a loop a
//! millisecond, in which all its clients would wait.
//!
//! ```text
//! loop: bytes of the peer → session ─┐                     ┌→ session → bytes to the peer
//!                                    └ thread: compute one step ┘
//! ```
//! Invariants: a loop never computes a step, a thread never touches a socket; a session has one
//! step under way at most, and its loop feeds it nothing meanwhile, so what waits here is bounded
//! by the connections and [`crate::tls`]'s limit for each. The threads give way to all others of
//! the process.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::{Condvar, Mutex};
use service::Service;

use crate::inbox::{Inbox, Item};
use crate::tls::Session;

/// Behind loops and workers in the system's order, so that many logins take what those leave.
const NICENESS: libc::c_int = 5;

struct Step<S: Service> {
    key: usize,
    id: i64,
    session: Box<Session>,
    back: Arc<Inbox<S>>,
}

/// A session whose step was computed.
pub(crate) struct Stepped {
    pub key: usize,
    pub id: i64,
    pub session: Box<Session>,
    pub outcome: Result<(), rustls::Error>,
}

pub(crate) struct Handshakes<S: Service> {
    steps: Mutex<VecDeque<Step<S>>>,
    come: Condvar,
    stopped: AtomicBool,
}

impl<S: Service> Handshakes<S> {
    /// Starts the threads: one for two cores.
    pub fn start() -> std::io::Result<Arc<Handshakes<S>>> {
        let this = Arc::new(Handshakes {
            steps: Mutex::default(),
            come: Condvar::new(),
            stopped: AtomicBool::new(false),
        });
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        for _ in 0..(cores / 2).max(1) {
            let this = Arc::clone(&this);
            std::thread::Builder::new()
                .name("handshake".into())
                .spawn(move || this.work())?;
        }
        Ok(this)
    }

    pub fn submit(&self, key: usize, id: i64, session: Box<Session>, back: &Arc<Inbox<S>>) {
        let back = Arc::clone(back);
        self.steps.lock().push_back(Step {
            key,
            id,
            session,
            back,
        });
        self.come.notify_one();
    }

    /// Ends the threads. What waits is dropped, with the connections that it belongs to.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.steps.lock().clear();
        self.come.notify_all();
    }

    fn work(&self) {
        // SAFETY: takes numbers alone; 0 is the calling thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
        while let Some(step) = self.next() {
            let Step {
                key,
                id,
                mut session,
                back,
            } = step;
            let computed = catch_unwind(AssertUnwindSafe(|| session.step()));
            let outcome =
                computed.unwrap_or_else(|_| Err(rustls::Error::General("a panic".into())));
            back.push(Item::Stepped(Stepped {
                key,
                id,
                session,
                outcome,
            }));
        }
    }

    fn next(&self) -> Option<Step<S>> {
        let mut steps = self.steps.lock();
        loop {
            if self.stopped.load(SeqCst) {
                return None;
            }
            if let Some(step) = steps.pop_front() {
                return Some(step);
            }
            self.come.wait(&mut steps);
        }
    }
}
