//! Suspended requests: they need disk reads, and run again with the results.
//!
//! A suspended request holds no thread. Its reads are submitted with those of all others at the end
//! of the turn; the request runs again when all of them are done. It may need further reads, a
//! bounded number of times.
//!
//! Invariant: a suspended request runs again on the loop, or is handed to a worker, exactly once,
//! whether or not its reads succeed.

use std::sync::atomic::Ordering::Relaxed;

use service::{DiskRead, Service};
use smallvec::SmallVec;

use super::disk_queue::Ready;
use super::requests::Suspended;
use super::{AfterReply, EventLoop};
use crate::connection::{Connection, Phase, Resume};

/// The most runs of a request. Usually its inline budget, which all runs share, is spent earlier.
const ROUNDS: u8 = 64;

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
        let suspended = Suspended::new(key, c, resume, message, respond_to);
        queue.take(suspended, reads);
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

    fn on_read(
        &mut self,
        key: usize,
        c: &mut Connection<S>,
        ready: Ready<Suspended>,
    ) -> AfterReply {
        assert!(
            matches!(c.phase, Phase::Reading),
            "a suspended request runs again once"
        );
        c.phase = Phase::Idle;
        if c.stream.is_none() {
            return AfterReply::Close;
        }
        let suspended = ready.request;
        let Some(reads) = ready.reads else {
            // A worker will meet the error where it can be reported.
            c.resume = Some(suspended.resume);
            self.hand_over(key, c, suspended.message, suspended.respond_to);
            self.go_on(key, c);
            return AfterReply::Keep;
        };
        let brought: SmallVec<[(&DiskRead, &[u8]); 4]> = (reads.iter())
            .map(|(read, buffer)| (read, buffer.bytes()))
            .collect();
        let fate = self.run_again(key, c, suspended, &brought);
        drop(brought);
        if let Some(queue) = &mut self.disk {
            queue.give_back(reads);
        }
        fate
    }
}
