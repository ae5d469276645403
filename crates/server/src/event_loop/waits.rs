//! Requests that wait for a deadline or an event ([`service::Outcome::Await`]), such as an awaited
//! hello. They hold no thread, and no buffer but their own message.
//!
//! Invariant: a connection is in `waits` exactly while its phase is `Waiting`, under the deadline
//! in that phase. A waiting request runs again after every event that the service had not seen when
//! it began to wait, and after a call of its own waker.

use std::time::Instant;

use service::Service;

use super::{AfterReply, EventLoop};
use crate::connection::{Connection, Phase, Rerun};

impl<S: Service> EventLoop<S> {
    /// Runs `again` at the deadline `until`, or when events after `seen` have happened.
    pub(super) fn wait(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        again: Rerun,
        until: Instant,
        seen: usize,
    ) -> AfterReply {
        self.recycle(c);
        if c.hung_up {
            return AfterReply::Close;
        }
        let woken = std::mem::take(&mut c.woken);
        let until = if seen == self.stirred && !woken {
            until
        } else {
            Instant::now()
        };
        c.again = Some(Box::new(again));
        c.phase = Phase::Waiting(until);
        self.waits.insert((until, key, c.client.id));
        AfterReply::Keep
    }

    /// Runs one that its waker was called for.
    pub(super) fn woken(&mut self, key: usize, c: &mut Connection<S>) -> AfterReply {
        match c.phase {
            Phase::Waiting(until) => {
                self.waits.remove(&(until, key, c.client.id));
                c.phase = Phase::Idle;
                self.pump_or_queue(key, c)
            }
            // Its run may have begun before.
            Phase::Working | Phase::Reading | Phase::Remote => {
                c.woken = true;
                AfterReply::Keep
            }
            _ => AfterReply::Keep,
        }
    }

    /// Runs the requests whose deadline has passed; all of them after an event.
    pub(super) fn resume(&mut self) {
        let stirred = self.shared.control.stirred();
        let all = std::mem::replace(&mut self.stirred, stirred) != stirred;
        if self.waits.is_empty() {
            return;
        }
        let later = match all {
            true => Default::default(),
            false => (self.waits).split_off(&(Instant::now(), usize::MAX, i64::MAX)),
        };
        for (_, key, id) in std::mem::replace(&mut self.waits, later) {
            self.with_id(key, id, |this, key, c| {
                assert!(
                    matches!(c.phase, Phase::Waiting(_)),
                    "what is among the waits waits"
                );
                c.phase = Phase::Idle;
                this.pump_or_queue(key, c)
            });
        }
    }
}
