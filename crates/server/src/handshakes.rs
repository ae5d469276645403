//! Handshakes of TLS, computed beside the event loops: a signature with RSA takes a loop a
//! millisecond, in which all its clients would wait.
//!
//! ```text
//! loop: bytes of the peer → session ─┐                     ┌→ session → bytes to the peer
//!                                    └ thread: compute one step ┘
//! ```
//! Invariants: a loop never computes a step, a thread never touches a socket; a session has one
//! step under way at most, and its loop feeds it nothing meanwhile, so what waits here is bounded
//! by the connections that are open and [`crate::tls`]'s limit for each; steps of closed
//! connections are dropped before they are many. The newest step is computed first: under a flood
//! the old ones are lost anyway. No more than [`AT_ONCE`] handshakes are under way: for a further
//! one a loop closes its oldest, since an honest client is done in milliseconds. The threads give
//! way to all others of the process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use own_process::system::{self, GivesWay};
use parking_lot::{Condvar, Mutex};
use service::{Client, Service};

use crate::inbox::{Inbox, Item};
use crate::tls::Session;

/// A handshake holds 10 KB.
const AT_ONCE: usize = 4096;

/// Steps of closed connections that may lie about.
const CLOSED: usize = 1024;

struct Step<S: Service> {
    key: usize,
    client: Arc<Client<S::State>>,
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
    steps: Mutex<Vec<Step<S>>>,
    come: Condvar,
    under_way: AtomicUsize,
    stopped: AtomicBool,
}

impl<S: Service> Handshakes<S> {
    /// Starts the threads: one for two cores.
    pub fn start() -> std::io::Result<Arc<Handshakes<S>>> {
        let this = Arc::new(Handshakes {
            steps: Mutex::default(),
            come: Condvar::new(),
            under_way: AtomicUsize::new(0),
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

    /// Counts a handshake that begins; false when there are too many.
    pub fn begin(&self) -> bool {
        self.under_way.fetch_add(1, Relaxed) < AT_ONCE
    }

    /// Counts one that has ended, or whose connection is closed.
    pub fn end(&self) {
        let before = self.under_way.fetch_sub(1, Relaxed);
        assert!(before > 0, "a handshake that ends has begun");
    }

    pub fn submit(
        &self,
        key: usize,
        client: &Arc<Client<S::State>>,
        session: Box<Session>,
        back: &Arc<Inbox<S>>,
    ) {
        let mut steps = self.steps.lock();
        if steps.len() >= AT_ONCE + CLOSED {
            steps.retain(|s| !s.client.is_cancelled());
        }
        steps.push(Step {
            key,
            client: Arc::clone(client),
            session,
            back: Arc::clone(back),
        });
        drop(steps);
        self.come.notify_one();
    }

    /// Ends the threads. What waits is dropped, with the connections that it belongs to.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.steps.lock().clear();
        self.come.notify_all();
    }

    fn work(&self) {
        // Many logins take what loops and workers leave.
        system::give_way(GivesWay::Little);
        while let Some(step) = self.next() {
            let Step {
                key,
                client,
                mut session,
                back,
            } = step;
            let id = client.id;
            drop(client);
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
            while let Some(step) = steps.pop() {
                if !step.client.is_cancelled() {
                    return Some(step);
                }
            }
            self.come.wait(&mut steps);
        }
    }
}
