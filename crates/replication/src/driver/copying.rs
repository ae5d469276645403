//! The copy of another member's files, for a member that the primary's log does not reach: begun on a
//! thread of its own, and put in the place of this member's files by a start. The same for a member whose
//! files are damaged.

use super::{Input, Thread, Transport};
use crate::initial_sync::receive::{LINES, complete, keep_log, receive};
use crate::initial_sync::{InitialSyncProgress, Offer};
use crate::member::{Member, MemberLog, MemberRole, raft_id};
use errors::{Error, Fallible};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use storage::received_copy;

/// After an initial sync that failed, before the next.
const COPY_PAUSE: Duration = Duration::from_secs(1);

/// Copies the files of a member's checkpoint; for a repair they are read whole then.
fn fetch(
    transport: &dyn Transport,
    host: &str,
    id: u64,
    dir: &Path,
    progress: &InitialSyncProgress,
    repairs: bool,
) -> Fallible<Offer> {
    let mut source = transport.source(host, id)?;
    // One line is enough, where there are no more to be had.
    let more = (1..LINES).map_while(|_| transport.source(host, id).ok());
    let mut more: Vec<_> = more.collect();
    let offer = receive(&mut *source, &mut more, dir, progress)?;
    source.end(offer.id)?;
    if repairs {
        received_copy::verify(dir)?;
    }
    Ok(offer)
}

impl Thread {
    /// The primary says that its log does not reach back to this member's.
    pub(super) fn begin_copy(&mut self, primary: u64) {
        self.copy(primary, false);
    }

    /// The data files here are damaged: those of the primary take their place.
    pub(super) fn begin_repair(&mut self) {
        let leader = self.member.as_ref().map(|m| (m.leader(), m.id()));
        if let Some((leader, own)) = leader
            && self.shared.repairs_itself.load(Ordering::Relaxed)
            && leader != 0
            && leader != own
        {
            self.copy(leader, true);
        }
    }

    fn copy(&mut self, primary: u64, repairs: bool) {
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
        match repairs {
            true => {
                tracing::warn!(target: "REPL", source = host.as_str(), "The data files are damaged here: those of the primary are copied");
            }
            false => {
                tracing::info!(target: "REPL", source = host.as_str(), "Initial sync: the log of the primary does not reach back to what this member has");
            }
        }
        let run = move || {
            let outcome = fetch(&*transport, &host, id, &dir, &shared.initial_sync, repairs);
            let _ = shared.inputs.send(Input::Copied(outcome));
        };
        let spawned = std::thread::Builder::new()
            .name("initial-sync".into())
            .spawn(run);
        self.copying = spawned.is_ok();
        self.repairs = repairs;
        self.left_behind = (!repairs).then(|| member.appends());
    }

    /// Has the files that were copied opened, unless the member went on by the log meanwhile.
    pub(super) fn end_copy(&mut self, outcome: Fallible<Offer>) -> Fallible<()> {
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
        if self.repairs {
            return self.end_repair(&offer);
        }
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

    /// Has the files of the primary opened in place of the damaged ones. What this member has acknowledged it keeps: its log
    /// stays, unless the files have all of it.
    fn end_repair(&mut self, offer: &Offer) -> Fallible<()> {
        let (first, last) = (self.log.first_index(), self.log.last_index());
        let Some(member) = &mut self.member else {
            return Ok(());
        };
        if member.role() == MemberRole::Primary || !fits(offer, first, last) {
            tracing::warn!(target: "REPL", index = offer.index, first, "The files do not fit to the log here, and are copied again");
            return Ok(());
        }
        member.save()?;
        self.put_in_place(offer, last)?;
        (self.restart)("the files of another member are complete");
        Err(Error::internal("the process could not be started again"))
    }

    fn put_in_place(&self, offer: &Offer, last: u64) -> Fallible<()> {
        if offer.index <= last {
            keep_log(&self.log.dir)?;
        }
        complete(&self.log.dir, offer)
    }

    /// The member has left its set because of the damage: an entry could not be applied. Every other
    /// member is asked for its files all the same, until the process ends.
    pub(super) fn repair_from_outside(&mut self) {
        let config = self.member.as_ref().and_then(|m| m.config()).cloned();
        let own = self.member.as_ref().map_or(0, Member::id);
        let others = config.iter().flat_map(|c| &c.members);
        let others: Vec<String> = others
            .filter(|m| raft_id(m.id) != own && !m.arbiter_only)
            .map(|m| m.host.to_string())
            .collect();
        let (shared, dir) = (self.shared.clone(), self.log.dir.clone());
        while shared.repairs_itself.load(Ordering::Relaxed)
            && !shared.stopping.load(Ordering::Acquire)
        {
            for host in &others {
                tracing::warn!(target: "REPL", source = host.as_str(), "The data files are damaged here: those of another member are copied");
                let fetched = fetch(
                    &*self.transport,
                    host,
                    own,
                    &dir,
                    &shared.initial_sync,
                    true,
                );
                let (first, last) = (self.log.first_index(), self.log.last_index());
                let done = match fetched {
                    Ok(offer) if fits(&offer, first, last) => self.put_in_place(&offer, last),
                    Ok(_) => Err(Error::internal("the files do not fit to the log here")),
                    Err(e) => Err(e),
                };
                match done {
                    Ok(()) => (self.restart)("the files of another member are complete"),
                    Err(e) => {
                        tracing::warn!(target: "REPL", error = %e, "Copying files failed, and is tried again");
                    }
                }
            }
            std::thread::sleep(COPY_PAUSE);
        }
    }
}

/// Whether the log here goes on behind files, or they have all of it.
fn fits(offer: &Offer, first: u64, last: u64) -> bool {
    offer.index > last || offer.index + 1 >= first
}
