//! Replies of an event loop, and its write group.
//!
//! Invariant: a reply to a staged write goes out after the commit of its group and never before;
//! when that fails, the error goes out in its place. Replies that wait for the disk are released
//! when the durable index advances.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use service::Service;
use service::in_flight::SMALL_BYTES;

use super::{AfterReply, EventLoop};
use crate::connection::{Connection, Phase, Sent};
use crate::runner::Head;

/// The number of replies that are sent together: a receiver is woken for the first and finds the
/// others, instead of being woken for each.
const TOGETHER: usize = 16;
/// The longest time that a reply waits for others, besides the request that runs at that moment.
const LINGER: Duration = Duration::from_micros(200);
/// Buffers kept for the next reply, and the largest worth keeping.
const SPARES: usize = 16;
const SPARE_BYTES: usize = 256 << 10;

impl<S: Service> EventLoop<S> {
    /// Completes the reply in the output, which is sent with others of the turn.
    pub(super) fn reply(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        head: Option<Head>,
        more: bool,
    ) -> AfterReply {
        if let Some(head) = head
            && !self.runner.finish(&c.client, &head, more, &mut c.output)
        {
            return AfterReply::Close;
        }
        if self.unsent.is_empty() {
            self.unsent_since = Instant::now();
        }
        self.unsent.push((key, c.client.id));
        AfterReply::Keep
    }

    /// Called between connections: sends the unsent replies if they are many, or have waited long.
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
    pub(super) fn reply_durable(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        head: Option<Head>,
        index: u64,
    ) -> AfterReply {
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
        AfterReply::Keep
    }

    pub(super) fn send(&mut self, key: usize, c: &mut Connection<S>) -> AfterReply {
        match c.flush(self.poll.registry(), key, &mut self.bytes_out) {
            Sent::All => {
                self.recycle(c);
                AfterReply::Keep
            }
            Sent::Blocked => {
                if c.output.len() - c.sent > SMALL_BYTES {
                    self.hold_reply(c);
                }
                AfterReply::Keep
            }
            Sent::Failed => AfterReply::Close,
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
                assert!(
                    matches!(c.phase, Phase::Staged),
                    "a staged write is answered once, after its commit"
                );
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

    /// Requests a sync for the replies that wait for it.
    pub(super) fn await_durable(&mut self) {
        if !std::mem::take(&mut self.ask_sync) {
            return;
        }
        let highest = self.awaiting.iter().map(|w| w.2).max().unwrap_or(0);
        self.inbox.awaits_durable.store(true, SeqCst);
        self.shared.service.request_sync(highest);
        // The sync may have finished before this loop was registered as waiting.
        self.release_durable();
    }

    /// Sends the replies whose entries are durable.
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
                    return AfterReply::Close;
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
}
