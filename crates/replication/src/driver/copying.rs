//! The copy of another member's files, for a member that the primary's log does not reach: begun on a
//! thread of its own, and put in the place of this member's files by a start.

use super::{Input, Thread};
use crate::initial_sync::Offer;
use crate::initial_sync::receive::{LINES, complete, receive};
use crate::member::raft_id;
use errors::{Error, Fallible as Result};
use std::time::{Duration, Instant};

/// After an initial sync that failed, before the next.
const COPY_PAUSE: Duration = Duration::from_secs(1);

impl Thread {
    /// The primary says that its log does not reach back to this member's.
    pub(super) fn begin_copy(&mut self, primary: u64) {
        let Some(member) = &self.member else { return };
        if self.copying || Instant::now() < self.next_copy {
            return;
        }
        let config = member.config();
        let host = config.and_then(|c| c.members.iter().find(|m| raft_id(m.id) == primary));
        let Some(host) = host.map(|m| m.host.to_string()) else {
            return;
        };
        let (transport, shared) = (self.transport.clone(), self.shared.clone());
        let (dir, id) = (self.log.dir.clone(), member.id());
        shared.initial_sync.attempt(&host);
        tracing::info!(target: "REPL", source = host.as_str(), "Initial sync: the log of the primary does not reach back to what this member has");
        let run = move || {
            let copy = || {
                let mut source = transport.source(&host, id)?;
                // One line is enough, where there are no more to be had.
                let more = (1..LINES).map_while(|_| transport.source(&host, id).ok());
                let mut more: Vec<_> = more.collect();
                let offer = receive(&mut *source, &mut more, &dir, &shared.initial_sync)?;
                source.end(offer.id)?;
                Ok(offer)
            };
            let _ = shared.inputs.send(Input::Copied(copy()));
        };
        let spawned = std::thread::Builder::new()
            .name("initial-sync".into())
            .spawn(run);
        self.copying = spawned.is_ok();
        self.left_behind = Some(member.appends());
    }

    /// Has the files that were copied opened, unless the member went on by the log meanwhile.
    pub(super) fn end_copy(&mut self, outcome: Result<Offer>) -> Result<()> {
        self.copying = false;
        self.next_copy = Instant::now() + COPY_PAUSE;
        let offer = match outcome {
            Ok(offer) => offer,
            Err(e) => {
                self.shared.initial_sync.failed(&e.message);
                tracing::warn!(target: "REPL", error = %e, "Initial sync: copying files failed, and is tried again");
                return Ok(());
            }
        };
        let Some(member) = &mut self.member else {
            return Ok(());
        };
        if self.left_behind != Some(member.appends()) || offer.index <= member.commit_index() {
            self.left_behind = None;
            tracing::info!(target: "REPL", "Initial sync: the files are not needed, the log goes on");
            return Ok(());
        }
        member.save()?;
        complete(&self.log.dir, &offer)?;
        (self.restart)("the files of another member are complete");
        Err(Error::internal("the process could not be started again"))
    }
}
