//! From messages to replies: an event loop's running side, and its group of writes.
//!
//! Invariant: a reply to a staged write goes out after the commit of its group and never before; when that fails, the error
//! goes out in its place. Replies that wait for the disk are released by whoever moves the durable index.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use service::in_flight::SMALL_BYTES;
use service::{Outcome, Resumed, Service};

use super::reads::Lack;
use super::{EventLoop, Fate, Ran, Staged};
use crate::connection::{Again, Connection, Phase, Sent};
use crate::inbox::Done;
use crate::runner::{Executed, Head};
use crate::workers::Job;

/// Staged writes after which a group is committed although the turn goes on: replies should not wait for too many.
const GROUP: usize = 256;
/// Replies that leave together: whoever takes them is woken for the first and finds the others, where one by one he would be
/// woken for each.
const TOGETHER: usize = 16;
/// For how long a reply may wait for others, beside what runs at that moment.
const LINGER: Duration = Duration::from_micros(200);
/// Buffers kept for the next reply, and the largest worth keeping.
const SPARES: usize = 16;
const SPARE_BYTES: usize = 256 << 10;

/// Whether no reply is wanted to the message.
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
        let left = c.left.take();
        let client = Arc::clone(&c.client);
        self.shared.workers.submit(Job {
            key,
            client,
            message,
            respond_to,
            left,
            out,
            back: Arc::clone(&self.inbox),
        });
    }

    /// Runs one message inline.
    pub(super) fn run_message(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        message: &[u8],
        respond_to: Option<i32>,
    ) -> Ran {
        self.requests += 1;
        if message.len() > self.shared.limits.inline_bytes {
            return Ran::ToWorker;
        }
        self.lone_client.note(c.client.id);
        self.run_resumed(key, c, message, respond_to, None)
    }

    /// As [`EventLoop::run_message`], for one that has been run before and lacked reads, and how often.
    pub(super) fn run_resumed(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        message: &[u8],
        respond_to: Option<i32>,
        resumed: Option<(Resumed<'_>, u8)>,
    ) -> Ran {
        if c.output.capacity() == 0 {
            c.output = self.spares.pop().unwrap_or_default();
        }
        let mut flushed = false;
        let executed = loop {
            let (client, runner) = (&c.client, &mut self.runner);
            let taken = resumed.map(|(r, _)| r);
            let executed = runner.execute(client, message, respond_to, taken, &mut c.output);
            if executed.panicked {
                // The group is sound, what the service was in the middle of is not.
                self.commit();
                self.runner.reset();
            }
            match executed.outcome {
                Outcome::Flush if !self.staged.is_empty() && !flushed => {
                    self.commit();
                    flushed = true;
                }
                _ => break executed,
            }
        };
        let Executed { outcome, head, .. } = executed;
        let since = || resumed.map_or_else(Instant::now, |(r, _)| r.since);
        let fate = match outcome {
            Outcome::NeedsDisk { reads, kept } => {
                let rounds = resumed.map_or(0, |(_, n)| n);
                let lack = Lack {
                    reads,
                    kept,
                    since: since(),
                    rounds,
                };
                c.output.clear();
                return match self.read_for(key, c, lack, message, respond_to) {
                    true => Ran::Handled,
                    false => Ran::ToWorker,
                };
            }
            Outcome::Offload { kept } => {
                c.output.clear();
                c.left = kept.map(|kept| (kept, since()));
                return Ran::ToWorker;
            }
            Outcome::Flush => {
                c.output.clear();
                return Ran::ToWorker;
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
                Fate::Keep
            }
            Outcome::ReplyMore => {
                let reply_id = head.as_ref().map_or(0, |h| h.reply_id);
                c.again = Some(Box::new(Again {
                    message: message.to_vec(),
                    respond_to: reply_id,
                }));
                self.reply(key, c, head, true)
            }
            Outcome::Await { until, seen } => {
                let again = Again {
                    message: message.to_vec(),
                    respond_to: head.map_or(0, |h| h.respond_to),
                };
                self.wait(key, c, again, until, seen)
            }
            Outcome::Reply => self.reply(key, c, head, false),
            Outcome::WaitDurable(index) => self.reply_durable(key, c, head, index),
            Outcome::NoReply => {
                self.recycle(c);
                Fate::Keep
            }
            Outcome::Close => Fate::Close,
        };
        match fate {
            Fate::Keep => Ran::Handled,
            Fate::Close => Ran::Close,
        }
    }

    /// Completes the reply in the output, which is sent with others of the turn.
    fn reply(&mut self, key: usize, c: &mut Connection<S>, head: Option<Head>, more: bool) -> Fate {
        if let Some(head) = head
            && !self.runner.finish(&c.client, &head, more, &mut c.output)
        {
            return Fate::Close;
        }
        if self.unsent.is_empty() {
            self.unsent_since = Instant::now();
        }
        self.unsent.push((key, c.client.id));
        Fate::Keep
    }

    /// To be called between connections: sends the replies that are there if they are enough, or have waited enough.
    pub(super) fn send_some(&mut self) {
        if self.unsent.len() >= TOGETHER
            || (!self.unsent.is_empty() && self.unsent_since.elapsed() > LINGER)
        {
            self.send_unsent();
        }
    }

    pub(super) fn send_unsent(&mut self) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for (key, id) in unsent.drain(..) {
            self.with_id(key, id, |this, key, c| {
                let fate = this.send(key, c);
                this.go_on(key, c);
                fate
            });
        }
        // Sending makes no replies.
        self.unsent = unsent;
    }

    /// As [`EventLoop::reply`], once the log is on disk up to `index`.
    fn reply_durable(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        head: Option<Head>,
        index: u64,
    ) -> Fate {
        let Some(head) = head else {
            return self.reply(key, c, None, false);
        };
        if index > self.durable {
            match self.shared.service.durable() {
                Ok(durable) => self.durable = durable,
                Err(error) => {
                    self.runner.replace(&head, &mut c.output, &error);
                    return self.reply(key, c, Some(head), false);
                }
            }
        }
        if index <= self.durable {
            return self.reply(key, c, Some(head), false);
        }
        c.phase = Phase::AwaitsDurable(head);
        self.awaiting.push((key, c.client.id, index));
        self.ask_sync = true;
        Fate::Keep
    }

    pub(super) fn send(&mut self, key: usize, c: &mut Connection<S>) -> Fate {
        match c.flush(self.poll.registry(), key, &mut self.bytes_out) {
            Sent::All => {
                self.recycle(c);
                Fate::Keep
            }
            Sent::Blocked => {
                if c.output.len() - c.sent > SMALL_BYTES {
                    self.hold_reply(c);
                }
                Fate::Keep
            }
            Sent::Failed => Fate::Close,
        }
    }

    /// Counts a long reply that the peer is slow to take.
    fn hold_reply(&self, c: &mut Connection<S>) {
        c.progress = Instant::now();
        c.reply_since.get_or_insert(c.progress);
        if c.client.reply_held.load(Relaxed) == 0 {
            let bytes = c.output.capacity();
            self.shared.control.in_flight.take(bytes);
            c.client.reply_held.store(bytes, Relaxed);
        }
    }

    pub(super) fn recycle(&mut self, c: &mut Connection<S>) {
        self.release_reply(c);
        c.reply_since = None;
        let output = std::mem::take(&mut c.output);
        self.spare(output);
    }

    pub(super) fn spare(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && buffer.capacity() <= SPARE_BYTES && self.spares.len() < SPARES {
            buffer.clear();
            self.spares.push(buffer);
        }
    }

    /// Commits the group. The replies leave in [`EventLoop::send_committed`].
    pub(super) fn commit(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let metrics = &self.shared.control.metrics;
        metrics.groups.fetch_add(1, Relaxed);
        metrics.grouped.fetch_add(self.staged.len() as u64, Relaxed);
        let result = self.runner.commit();
        self.committed
            .extend(self.staged.drain(..).map(|staged| (staged, result.clone())));
    }

    pub(super) fn send_committed(&mut self) {
        for (staged, result) in std::mem::take(&mut self.committed) {
            self.with_id(staged.key, staged.id, |this, key, c| {
                c.phase = Phase::Idle;
                let fate = match (result, staged.head) {
                    (Err(error), Some(head)) => {
                        this.runner.replace(&head, &mut c.output, &error);
                        this.reply(key, c, Some(head), false)
                    }
                    (Ok(index), head) if staged.durable => this.reply_durable(key, c, head, index),
                    (_, head) => this.reply(key, c, head, false),
                };
                this.go_on(key, c);
                fate
            });
        }
    }

    /// A request has ended outside of `pump`: have the next one looked for.
    pub(super) fn go_on(&mut self, key: usize, c: &Connection<S>) {
        if c.is_free() && c.has_more() {
            self.ready.push(key);
        }
    }

    /// Asks for the disk on behalf of the replies that wait for it.
    pub(super) fn await_durable(&mut self) {
        if !std::mem::take(&mut self.ask_sync) {
            return;
        }
        let highest = self.awaiting.iter().map(|w| w.2).max().unwrap_or(0);
        self.inbox.awaits_durable.store(true, SeqCst);
        self.shared.service.request_sync(highest);
        // The disk may have got there before anyone knew that this loop waits.
        self.release_durable();
    }

    /// Sends the replies that need not wait for the disk any longer.
    pub(super) fn release_durable(&mut self) {
        let reached = self.shared.service.durable();
        let known = reached.as_ref().copied().unwrap_or(u64::MAX);
        if let Ok(durable) = reached {
            self.durable = durable;
        }
        let released: Vec<_> = self.awaiting.extract_if(.., |w| w.2 <= known).collect();
        for (key, id, _) in released {
            self.with_id(key, id, |this, key, c| {
                let Phase::AwaitsDurable(head) = std::mem::replace(&mut c.phase, Phase::Idle)
                else {
                    return Fate::Close;
                };
                if let Err(error) = &reached {
                    this.runner.replace(&head, &mut c.output, error);
                }
                let fate = this.reply(key, c, Some(head), false);
                this.go_on(key, c);
                fate
            });
        }
        if self.awaiting.is_empty() {
            self.inbox.awaits_durable.store(false, SeqCst);
        }
    }

    pub(super) fn on_done(&mut self, key: usize, c: &mut Connection<S>, done: Done) -> Fate {
        c.phase = Phase::Idle;
        self.release(c);
        if c.stream.is_none() {
            return Fate::Close;
        }
        let Executed { outcome, head, .. } = done.executed;
        c.output = done.out;
        let fate = match outcome {
            Outcome::Reply => self.send(key, c),
            Outcome::ReplyMore => {
                let respond_to = head.map_or(0, |h| h.reply_id);
                c.again = Some(Box::new(Again {
                    message: done.message,
                    respond_to,
                }));
                self.send(key, c)
            }
            Outcome::Await { until, seen } => {
                let again = Again {
                    message: done.message,
                    respond_to: head.map_or(0, |h| h.respond_to),
                };
                self.wait(key, c, again, until, seen)
            }
            Outcome::WaitDurable(index) => self.reply_durable(key, c, head, index),
            Outcome::NoReply => {
                self.recycle(c);
                Fate::Keep
            }
            // Outcomes of event loops were turned into errors where the worker ran the request.
            Outcome::Close
            | Outcome::Staged { .. }
            | Outcome::Offload { .. }
            | Outcome::NeedsDisk { .. }
            | Outcome::Flush => Fate::Close,
        };
        self.go_on(key, c);
        fate
    }
}
