//! Requests that lack reads from the disk: they are suspended, and run again with what was read.
//!
//! Such a request holds no worker and no thread. Its reads are submitted with those of all others at the end of the turn; when
//! the last of them has come the request is run again. It may then lack others, a bounded number of times.
//!
//! Invariant: a suspended request is run again on the loop or handed to a worker exactly once, whatever became of its reads.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use service::{DiskRead, Kept, Resumed, Service};
use smallvec::SmallVec;

use super::disk_queue::Ready;
use super::replies::is_silent;
use super::{EventLoop, Fate, Ran};
use crate::connection::{Connection, Phase};

/// How often a request may be run again from its start for want of reads.
const ROUNDS: u8 = 8;
/// The same for one that goes on each time where it stopped; what it may examine on a loop ends it before.
const KEPT_ROUNDS: u8 = 64;

/// What a request lacks.
pub(super) struct Lack {
    pub reads: Vec<DiskRead>,
    /// What it wants back when it is run again.
    pub kept: Option<Kept>,
    /// When it was run first, and how often it has lacked reads before.
    pub since: Instant,
    pub rounds: u8,
}

/// A request that waits for reads.
pub(super) struct Suspended {
    key: usize,
    id: i64,
    message: Vec<u8>,
    respond_to: Option<i32>,
    since: Instant,
    rounds: u8,
    kept: Option<Kept>,
}

impl<S: Service> EventLoop<S> {
    /// Has the reads done that a request lacks; false when it must go to a worker.
    pub(super) fn read_for(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        lack: Lack,
        message: &[u8],
        respond_to: Option<i32>,
    ) -> bool {
        let rounds = if lack.kept.is_some() {
            KEPT_ROUNDS
        } else {
            ROUNDS
        };
        let queue =
            (self.disk.as_mut()).filter(|q| lack.rounds < rounds && q.has_room(&lack.reads));
        let Some(queue) = queue else {
            c.left = lack.kept.map(|kept| (kept, lack.since));
            return false;
        };
        let metrics = &self.shared.control.metrics;
        metrics
            .disk_reads
            .fetch_add(lack.reads.len() as u64, Relaxed);
        c.phase = Phase::Reading;
        c.silent = is_silent(message);
        let suspended = Suspended {
            key,
            id: c.client.id,
            message: message.to_vec(),
            respond_to,
            since: lack.since,
            rounds: lack.rounds + 1,
            kept: lack.kept,
        };
        let alone = self.lone_client.is_there() && self.staged.is_empty();
        queue.take(suspended, lack.reads, alone);
        let output = std::mem::take(&mut c.output);
        self.spare(output);
        true
    }

    /// Runs the requests whose reads have come.
    pub(super) fn take_reads(&mut self) {
        let Some(queue) = &mut self.disk else {
            return;
        };
        for ready in queue.take_ready() {
            let (key, id) = (ready.request.key, ready.request.id);
            self.with_id(key, id, |this, key, c| this.on_read(key, c, ready));
            self.send_some();
        }
    }

    fn on_read(&mut self, key: usize, c: &mut Connection<S>, ready: Ready<Suspended>) -> Fate {
        c.phase = Phase::Idle;
        if c.stream.is_none() {
            return Fate::Close;
        }
        let Suspended {
            message,
            respond_to,
            since,
            rounds,
            kept,
            ..
        } = ready.request;
        let ran = match ready.reads {
            // The worker meets the error where it can be reported.
            None => {
                c.left = kept.map(|kept| (kept, since));
                Ran::ToWorker
            }
            Some(reads) => {
                let brought: SmallVec<[(&DiskRead, &[u8]); 4]> = (reads.iter())
                    .map(|(read, buffer)| (read, buffer.bytes()))
                    .collect();
                let kept = RefCell::new(kept);
                let resumed = Resumed {
                    kept: &kept,
                    reads: &brought,
                    since,
                };
                let ran = self.run_resumed(key, c, &message, respond_to, Some((resumed, rounds)));
                drop(brought);
                if let Some(queue) = &mut self.disk {
                    queue.give_back(reads);
                }
                ran
            }
        };
        match ran {
            Ran::Handled => {}
            Ran::ToWorker => self.hand_over(key, c, message, respond_to),
            Ran::Close => return Fate::Close,
        }
        self.go_on(key, c);
        Fate::Keep
    }
}
