//! Suspended requests that wait for replies of other servers. The service has sent what they ask,
//! and reads what comes; the loop polls the one descriptor that says when there is something.
//!
//! Invariant: a request that waits runs again exactly once: when the service gives its ticket, or
//! when the service's state for this loop was replaced after a panic. Then its reply is lost, which
//! the service finds out by itself.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Token};
use service::Service;

use super::requests::Suspended;
use super::{AfterReply, EventLoop};
use crate::connection::{Connection, Phase, Resume};

/// How often the service looks for overdue replies: it may have to end requests that wait for them.
const LOOK: Duration = Duration::from_millis(50);

pub(super) const REMOTE: Token = Token(usize::MAX - 2);

#[derive(Default)]
pub(super) struct Remote {
    /// By their tickets.
    waiting: HashMap<u64, Suspended>,
    /// Empty between turns.
    arrived: Vec<u64>,
    /// When the service last looked for replies.
    looked: Option<Instant>,
    /// [`crate::runner::Runner::resets`] of the state that is polled.
    resets: Option<u64>,
}

impl<S: Service> EventLoop<S> {
    /// Has the poll tell of replies, and lets those go on that waited for replies to a state of the
    /// service that is no more.
    pub(super) fn watch_replies(&mut self) {
        let resets = self.runner.resets;
        if self.remote.resets == Some(resets) {
            return;
        }
        self.remote.resets = Some(resets);
        if let Some(fd) = self.runner.watch_replies() {
            let registry = self.poll.registry();
            // Without it no request would ever go on.
            if let Err(e) = registry.register(&mut SourceFd(&fd), REMOTE, Interest::READABLE) {
                tracing::error!(target: "NETWORK", error = %e, "Replies of other servers are not polled");
            }
        }
        for (_, suspended) in std::mem::take(&mut self.remote.waiting) {
            self.go_on_with(suspended);
        }
    }

    /// Whether the state that has sent for replies is gone, and requests wait for them.
    pub(super) fn are_replies_lost(&self) -> bool {
        !self.remote.waiting.is_empty() && self.remote.resets != Some(self.runner.resets)
    }

    /// Has a request wait until the service gives its ticket.
    pub(super) fn await_replies(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        ticket: u64,
        resume: Resume,
        message: &[u8],
        respond_to: Option<i32>,
    ) {
        c.phase = Phase::Remote;
        let suspended = Suspended::new(key, c, resume, message, respond_to);
        self.remote.waiting.insert(ticket, suspended);
        let output = std::mem::take(&mut c.output);
        self.spare(output);
    }

    /// Whether replies have come, or may be read on since there is memory again.
    pub(super) fn may_have_replies(&self, events: &Events) -> bool {
        let in_flight = &self.shared.control.in_flight;
        if events.iter().any(|event| event.token() == REMOTE) {
            return true;
        }
        let looked = self.remote.looked;
        let due = looked.is_none_or(|looked| looked.elapsed() >= LOOK);
        !self.remote.waiting.is_empty() && (due || in_flight.has_waiting())
    }

    /// When the service is to look for replies though none has come.
    pub(super) fn look_for_replies(&self) -> Option<Duration> {
        (!self.remote.waiting.is_empty()).then_some(LOOK)
    }

    /// Runs the requests whose replies are there.
    pub(super) fn take_replies(&mut self) {
        let mut arrived = std::mem::take(&mut self.remote.arrived);
        self.remote.looked = Some(Instant::now());
        self.runner.take_arrived(&mut arrived);
        for ticket in arrived.drain(..) {
            if let Some(suspended) = self.remote.waiting.remove(&ticket) {
                self.go_on_with(suspended);
            }
        }
        self.remote.arrived = arrived;
    }

    fn go_on_with(&mut self, suspended: Suspended) {
        let (key, id) = (suspended.key, suspended.id);
        self.with_id(key, id, |this, key, c| this.on_replies(key, c, suspended));
        self.send_some();
    }

    fn on_replies(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        suspended: Suspended,
    ) -> AfterReply {
        assert!(
            matches!(c.phase, Phase::Remote),
            "a request that waits for replies runs again once"
        );
        c.phase = Phase::Idle;
        match c.stream {
            Some(_) => self.run_again(key, c, suspended, &[]),
            None => AfterReply::Close,
        }
    }
}
