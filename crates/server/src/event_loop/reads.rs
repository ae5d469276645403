//! Suspended requests: they need disk reads, and run again with the results.
//!
//! A suspended request holds no thread. Its reads are submitted with those of all others at the end
//! of the turn; the request runs again when all of them are done. It may need further reads, a
//! bounded number of times.
//!
//! Invariant: a suspended request runs again on the loop, or is handed to a worker, exactly once,
//! whether or not its reads succeed.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;

use service::{DiskRead, Resumed, Service};
use smallvec::SmallVec;

use super::disk_queue::Ready;
use super::requests::{Earlier, is_silent};
use super::{EventLoop, Fate, Ran};
use crate::connection::{Connection, Phase, Resume};

/// The most runs of a request. Usually its inline budget, which all runs share, is spent earlier.
const ROUNDS: u8 = 64;

/// A request that waits for reads.
pub(super) struct Suspended {
    key: usize,
    id: i64,
    message: Vec<u8>,
    respond_to: Option<i32>,
    resume: Resume,
}

impl<S: Service> EventLoop<S> {
    /// Whether the reads that a request needs after so many runs can be queued.
    pub(super) fn can_have_read(&self, reads: &[DiskRead], rounds: u8) -> bool {
        rounds <= ROUNDS && self.disk.as_ref().is_some_and(|q| q.has_room(reads))
    }

    /// Queues the reads that a request needs; there is room for them.
    pub(super) fn suspend(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        reads: Vec<DiskRead>,
        resume: Resume,
        message: &[u8],
        respond_to: Option<i32>,
    ) {
        let Some(queue) = &mut self.disk else {
            return;
        };
        let metrics = &self.shared.control.metrics;
        metrics.disk_reads.fetch_add(reads.len() as u64, Relaxed);
        c.phase = Phase::Reading;
        c.silent = is_silent(message);
        let suspended = Suspended {
            key,
            id: c.client.id,
            message: message.to_vec(),
            respond_to,
            resume,
        };
        let alone = self.lone_client.is_there() && self.staged.is_empty();
        queue.take(suspended, reads, alone);
        let output = std::mem::take(&mut c.output);
        self.spare(output);
    }

    /// Runs the requests whose reads are done.
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
            resume,
            ..
        } = ready.request;
        let ran = match ready.reads {
            // A worker will meet the error where it can be reported.
            None => {
                c.resume = Some(resume);
                Ran::ToWorker
            }
            Some(reads) => {
                let brought: SmallVec<[(&DiskRead, &[u8]); 4]> = (reads.iter())
                    .map(|(read, buffer)| (read, buffer.bytes()))
                    .collect();
                let kept = RefCell::new(resume.kept);
                let earlier = Earlier {
                    resumed: Resumed {
                        kept: &kept,
                        reads: &brought,
                        since: resume.since,
                    },
                    rounds: resume.rounds,
                };
                let ran = self.run_inline(key, c, &message, respond_to, Some(earlier));
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
