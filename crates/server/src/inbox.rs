//! Inbox: what other threads hand to an event loop.
//!
//! Invariant: after `push` or `wake` the loop makes a turn in which it sees the new items; wakes that it
//! has not yet seen are merged into one system call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use mio::Waker;
use parking_lot::Mutex;
use service::{Client, Service};

use crate::handshakes::Stepped;
use crate::net::Stream;
use crate::runner::Executed;

pub(crate) enum Item<S: Service> {
    Accepted(Stream, Arc<Client<S::State>>),
    Done(Done),
    Stepped(Stepped),
    /// What the request of a connection (its slot and number) waits for may have happened.
    Woken(usize, i64),
}

/// A request that has run on a worker.
pub(crate) struct Done {
    pub key: usize,
    pub id: i64,
    pub executed: Executed,
    /// The reply, complete if the outcome is `Reply` or `ReplyMore`.
    pub out: Vec<u8>,
    /// The request's message, for running it again.
    pub message: Vec<u8>,
}

pub(crate) struct Inbox<S: Service> {
    items: Mutex<Vec<Item<S>>>,
    waker: Waker,
    woken: AtomicBool,
    /// The loop has replies that wait for the disk.
    pub awaits_durable: AtomicBool,
}

impl<S: Service> Inbox<S> {
    pub fn new(waker: Waker) -> Inbox<S> {
        Inbox {
            items: Mutex::default(),
            waker,
            woken: AtomicBool::new(false),
            awaits_durable: AtomicBool::new(false),
        }
    }

    pub fn push(&self, item: Item<S>) {
        self.items.lock().push(item);
        self.wake();
    }

    pub fn wake(&self) {
        if !self.woken.swap(true, SeqCst) {
            // An eventfd can only fail when it is closed, with the loop that would have read it.
            let _ = self.waker.wake();
        }
    }

    /// Takes everything handed over so far. Later pushes wake the loop again.
    pub fn take(&self) -> Vec<Item<S>> {
        self.woken.store(false, SeqCst);
        std::mem::take(&mut *self.items.lock())
    }
}
