//! Connections of guests: their TLS is not settled, or the service requires a login and they have none.
//!
//! Invariant: a turn serves at most [`GUESTS_A_TURN`] of them, after all others and in the order of
//! their coming, so that however many there are, a logged-in client waits for a few at most.

use service::Service;

use super::{AfterReply, EventLoop};
use crate::connection::Connection;

/// A guess of a password, over TLS, takes about 50 µs.
const GUESTS_A_TURN: usize = 8;

impl<S: Service> EventLoop<S> {
    pub(super) fn is_guest(&self, c: &Connection<S>) -> bool {
        c.stream.as_ref().is_some_and(|s| s.is_establishing())
            || self.shared.service.is_guest(&c.client)
    }

    /// Has the connection pumped when it is its turn.
    pub(super) fn queue_guest(&mut self, key: usize, c: &mut Connection<S>) {
        if !std::mem::replace(&mut c.queued, true) {
            self.guests.push_back((key, c.client.id));
        }
    }

    /// Pumps the guests whose turn it is.
    pub(super) fn serve_guests(&mut self) {
        for _ in 0..GUESTS_A_TURN {
            let Some((key, id)) = self.guests.pop_front() else {
                break;
            };
            self.with_id(key, id, |this, key, c| {
                c.queued = false;
                match c.is_free() {
                    true => this.pump(key, c),
                    false => AfterReply::Keep,
                }
            });
        }
    }
}
