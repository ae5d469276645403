//! Requests on an event loop: each runs where it was read, and continues on a worker, or later, if
//! that is not enough.
//!
//! Invariant: a message that is run ends in one of these: a reply is made or staged, there is none,
//! it waits for an event or for reads, a worker has it, or the connection is closed.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use service::{DiskRead, Needs, Outcome, Resumed, Service};

use super::{AfterReply, EventLoop, InlineOutcome, Staged};
use crate::connection::{Connection, Phase, Rerun, Resume};
use crate::inbox::Done;
use crate::runner::{Executed, Head};
use crate::workers::Job;

/// The number of staged writes after which the group is committed within the turn, so that replies
/// do not wait for too many.
const GROUP: usize = 256;

/// The run of a request before this one.
#[derive(Clone, Copy)]
pub(super) struct EarlierRun<'a> {
    pub resumed: Resumed<'a>,
    /// The number of runs so far.
    pub rounds: u8,
}

/// A request that waits for something before it is run again.
pub(super) struct Suspended {
    pub key: usize,
    pub id: i64,
    pub message: Vec<u8>,
    pub respond_to: Option<i32>,
    pub resume: Resume,
}

impl Suspended {
    pub fn new<S: Service>(
        key: usize,
        c: &mut Connection<S>,
        resume: Resume,
        message: &[u8],
        respond_to: Option<i32>,
    ) -> Suspended {
        c.silent = is_silent(message);
        Suspended {
            key,
            id: c.client.id,
            message: message.to_vec(),
            respond_to,
            resume,
        }
    }
}

/// Whether the client wants no reply to the message.
pub(super) fn is_silent(message: &[u8]) -> bool {
    wire::Header::read(message).is_some_and(|h| h.op_code == wire::op::MSG)
        && wire::Msg::peek_flags(message) & wire::MORE_TO_COME != 0
}

impl<S: Service> EventLoop<S> {
    /// Has a worker run the message.
    pub(super) fn hand_over(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        message: Vec<u8>,
        respond_to: Option<i32>,
    ) {
        c.phase = Phase::Working;
        c.silent = is_silent(&message);
        let out = std::mem::take(&mut c.output);
        let resume = c.resume.take();
        let client = Arc::clone(&c.client);
        self.shared.workers.submit(Job {
            key,
            client,
            message,
            respond_to,
            resume,
            out,
            back: Arc::clone(&self.inbox),
        });
    }

    /// Runs a message that was not run before.
    pub(super) fn run_message(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        message: &[u8],
        respond_to: Option<i32>,
    ) -> InlineOutcome {
        self.requests += 1;
        if message.len() > self.shared.limits.inline_bytes {
            return InlineOutcome::ToWorker;
        }
        self.run_inline(key, c, message, respond_to, None)
    }

    /// Runs a message on the loop, for the first time or after an `earlier` run that was suspended.
    pub(super) fn run_inline(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        message: &[u8],
        respond_to: Option<i32>,
        earlier: Option<EarlierRun<'_>>,
    ) -> InlineOutcome {
        if c.output.capacity() == 0 {
            c.output = self.spares.pop().unwrap_or_default();
        }
        let resumed = earlier.map(|e| e.resumed);
        let runner = &mut self.runner;
        let executed = runner.execute(&c.client, message, respond_to, resumed, &mut c.output);
        if executed.panicked {
            // The group is intact; the service's state for this request is not.
            self.commit();
            self.runner.reset();
        }
        let Executed {
            outcome,
            head,
            served,
            ..
        } = executed;
        let suspension = match outcome {
            Outcome::Suspended(suspension) => suspension,
            outcome => {
                return match self.conclude(key, c, outcome, head, || message.to_vec()) {
                    AfterReply::Keep => InlineOutcome::Handled,
                    AfterReply::Close => InlineOutcome::Close,
                };
            }
        };
        c.output.clear();
        if !served {
            return InlineOutcome::ToWorker;
        }
        let resume = Resume {
            kept: suspension.kept,
            since: earlier.map_or_else(Instant::now, |e| e.resumed.since),
            rounds: earlier.map_or(0, |e| e.rounds).saturating_add(1),
        };
        match suspension.needs {
            Needs::Reads(reads) if self.can_have_read(&reads, resume.rounds) => {
                self.suspend(key, c, reads, resume, message, respond_to);
                InlineOutcome::Handled
            }
            Needs::Replies(ticket) => {
                self.await_replies(key, c, ticket, resume, message, respond_to);
                InlineOutcome::Handled
            }
            Needs::Reads(_) | Needs::Worker => {
                c.resume = Some(resume);
                InlineOutcome::ToWorker
            }
        }
    }

    /// Runs a suspended request again, with the reads that it lacked.
    pub(super) fn run_again(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        suspended: Suspended,
        reads: &[(&DiskRead, &[u8])],
    ) -> AfterReply {
        let Suspended {
            message,
            respond_to,
            resume,
            ..
        } = suspended;
        let kept = RefCell::new(resume.kept);
        let earlier = EarlierRun {
            resumed: Resumed {
                kept: &kept,
                reads,
                since: resume.since,
            },
            rounds: resume.rounds,
        };
        match self.run_inline(key, c, &message, respond_to, Some(earlier)) {
            InlineOutcome::Handled => {}
            InlineOutcome::ToWorker => self.hand_over(key, c, message, respond_to),
            InlineOutcome::Close => return AfterReply::Close,
        }
        self.go_on(key, c);
        AfterReply::Keep
    }

    /// Acts on the outcome of a run. `message`: the request, in case it runs again.
    fn conclude(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        outcome: Outcome,
        head: Option<Head>,
        message: impl FnOnce() -> Vec<u8>,
    ) -> AfterReply {
        match outcome {
            Outcome::Reply => self.reply(key, c, head, false),
            Outcome::ReplyMore => {
                stream_on(c, head.as_ref(), message());
                self.reply(key, c, head, true)
            }
            Outcome::Staged { durable } => {
                c.phase = Phase::Staged;
                self.staged.push(Staged {
                    key,
                    id: c.client.id,
                    durable,
                    head,
                });
                if self.staged.len() >= GROUP {
                    self.commit();
                }
                AfterReply::Keep
            }
            Outcome::Await { until, seen } => {
                let again = Rerun {
                    message: message(),
                    respond_to: head.map_or(0, |h| h.respond_to),
                };
                self.wait(key, c, again, until, seen)
            }
            Outcome::WaitDurable(index) => self.reply_durable(key, c, head, index),
            Outcome::NoReply => {
                self.recycle(c);
                AfterReply::Keep
            }
            // The caller handles suspensions; a suspension on a worker has already become an error.
            Outcome::Close | Outcome::Suspended(_) => AfterReply::Close,
        }
    }

    /// Takes back a request that a worker has run; its reply is complete.
    pub(super) fn on_done(&mut self, key: usize, c: &mut Connection<S>, done: Done) -> AfterReply {
        assert!(
            matches!(c.phase, Phase::Working),
            "a request comes back from a worker once"
        );
        c.phase = Phase::Idle;
        self.release(c);
        if c.stream.is_none() {
            return AfterReply::Close;
        }
        let Executed { outcome, head, .. } = done.executed;
        c.output = done.out;
        let fate = match outcome {
            Outcome::Reply => self.send(key, c),
            Outcome::ReplyMore => {
                stream_on(c, head.as_ref(), done.message);
                self.send(key, c)
            }
            outcome => self.conclude(key, c, outcome, head, || done.message),
        };
        self.go_on(key, c);
        fate
    }
}

/// Has the message run again for the next reply of its stream.
fn stream_on<S: Service>(c: &mut Connection<S>, head: Option<&Head>, message: Vec<u8>) {
    c.again = Some(Box::new(Rerun {
        message,
        respond_to: head.map_or(0, |h| h.reply_id),
    }));
}
