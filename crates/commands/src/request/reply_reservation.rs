//! Reply reservation: the memory of a long reply, from when it begins to grow until it is sent.
//!
//! Invariant: reserved memory is released here or, after [`ReplyReservation::settle`], by the
//! connection.

use crate::connection::Connection;
use bson::MAX_DOC_BYTES;
use executor::ReplyMemory;
use service::in_flight::SMALL_BYTES;
use service::{Client, Control, OWN_ID, Request};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Twice the largest reply, because it is made from documents of the same size.
const MOST_BYTES: usize = 2 * (MAX_DOC_BYTES + (64 << 10));
/// How often a waiting request checks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(250);

pub struct ReplyReservation<'c> {
    control: &'c Control,
    client: &'c Client<Connection>,
    /// The request holds memory itself, or that does for which the process runs it: it must be able
    /// to finish.
    must_go_on: bool,
    taken: Cell<usize>,
}

impl<'c> ReplyReservation<'c> {
    pub fn new(
        control: &'c Control,
        client: &'c Client<Connection>,
        request: &Request<'_>,
    ) -> ReplyReservation<'c> {
        ReplyReservation {
            control,
            client,
            must_go_on: request.message_bytes > SMALL_BYTES || client.id == OWN_ID,
            taken: Cell::new(0),
        }
    }

    /// The final size of the reply, held until it is sent.
    pub fn settle(&self, bytes: usize) {
        let taken = self.taken.take();
        if taken > 0 {
            let held = if bytes > SMALL_BYTES {
                bytes.min(taken)
            } else {
                0
            };
            self.client.reply_held.store(held, Relaxed);
            self.control.in_flight.give(taken - held);
        }
    }

    fn took(&self, taken: bool) -> bool {
        if taken {
            self.taken.set(MOST_BYTES);
        }
        taken
    }
}

impl ReplyMemory for ReplyReservation<'_> {
    fn take(&self) -> bool {
        if self.must_go_on {
            self.control.in_flight.take(MOST_BYTES);
            return self.took(true);
        }
        self.took(self.control.in_flight.try_take(MOST_BYTES))
    }

    fn wait(&self) -> bool {
        let _waiting = self.control.waits();
        self.took(self.control.in_flight.wait(MOST_BYTES, LOOK))
    }
}

impl Drop for ReplyReservation<'_> {
    /// After an error or a panic there is no long reply.
    fn drop(&mut self) {
        let taken = self.taken.get();
        if taken > 0 {
            self.control.in_flight.give(taken);
        }
    }
}
