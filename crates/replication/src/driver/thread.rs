//! The driver's thread: takes one input after the other, and hands on what the member makes of it.
//!
//! Invariant: it never waits for a group of the store. A group may wait for memory tables to be
//! flushed, and those for the commit point that this thread moves.

use super::changes::Preference;
use super::elections::{Elections, Vote};
use super::outbox::{PACE, Pace};
use super::room::{self, DiskRoom};
use super::{Changed, Input, LOOK, Shared, Status, StoreLog, Transport};
use crate::SetName;
use crate::log_view::FIRST_TERM;
use crate::member::{ELECTION_TICKS, Member, MemberLog, MemberRole, News, raft_id};
use crate::state_file::{self, SavedState};
use errors::{Error, Fallible};
use own_process::fail_stop::FailStop;
use raft::eraftpb::{Message, MessageType};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

/// A tick, a tenth of the election timeout, where the configuration leaves MongoDB's default. That is
/// ten seconds: long for a set whose members stand side by side.
const TICK: Duration = Duration::from_millis(100);
const DEFAULT_ELECTION_TIMEOUT_MS: i64 = 10_000;
/// After how many looks a primary looks for a member that should be primary in its place.
const LOOKS_FOR_BETTER: u64 = 20;
/// Bounds of a tick that the configuration asks for.
const SHORTEST_TICK: Duration = Duration::from_millis(10);
const LONGEST_TICK: Duration = Duration::from_secs(60);
/// The most inputs that are taken before the status is made known.
const BATCH: usize = 256;
/// How long a writing primary waits for entries that take the commit point with them.
const TELL: Duration = Duration::from_millis(1);

/// Why members stand for election, in MongoDB's words: they hear of no primary; the primary asks them
/// to take over.
pub(super) const BY_TIMEOUT: &str = "electionTimeout";
pub(super) const BY_REQUEST: &str = "stepUpRequestSkipDryRun";
/// The primary asks, because this member has the higher priority.
pub(super) const BY_PRIORITY: &str = "priorityTakeover";
/// A client asks it to, by `replSetStepUp`.
pub(super) const BY_STEP_UP: &str = "stepUpRequest";

/// The inputs that have come; neighbours of one kind become one, so that what they cause is sent in
/// one message.
fn gather(first: Input, inputs: &Receiver<Input>) -> Vec<Input> {
    let mut gathered = vec![first];
    for input in std::iter::from_fn(|| inputs.try_recv().ok()).take(BATCH) {
        match (gathered.last_mut(), input) {
            (Some(Input::Appended), Input::Appended) => {}
            (Some(Input::Received(all)), Input::Received(more)) => all.extend(more),
            (Some(Input::Synced), Input::Synced) => {}
            (_, input) => gathered.push(input),
        }
    }
    gathered
}

pub(super) struct Thread {
    pub(super) log: StoreLog,
    pub(super) shared: Arc<Shared>,
    pub(super) member: Option<Member<StoreLog>>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) restart: Box<dyn Fn(&str) + Send + Sync>,
    pub(super) elected_at: Option<SystemTime>,
    /// The term in which the primary asked this member to take over.
    pub(super) asked_in: u64,
    pub(super) asked_because: &'static str,
    /// What a member is told that this one asks to take over.
    pub(super) hands_over_because: &'static str,
    pub(super) elected_because: &'static str,
    pub(super) elections: Elections,
    /// Another member knows a newer configuration, and this one is not in it.
    pub(super) removed: bool,
    /// It was told to give the primary's part up.
    pub(super) yields: bool,
    /// It is time for a status that tells what changes with each message.
    pub(super) looked: bool,
    pub(super) heard: HashMap<u64, SystemTime>,
    pub(super) set_name: String,
    /// Files are copied.
    pub(super) copying: bool,
    /// The copied files take the place of damaged ones.
    pub(super) repairs: bool,
    /// How often entries had been appended when the log was found not to reach back.
    pub(super) left_behind: Option<u64>,
    /// Not before then is it tried again.
    pub(super) next_copy: Instant,
    /// So many wishes to give the primary's part up wait for writes that were taken.
    pub(super) closing: usize,
    /// A change of voters is being proposed.
    pub(super) reconciling: Arc<AtomicBool>,
    pub(super) pace: Pace,
    pub(super) preference: Preference,
    pub(super) room: DiskRoom,
    /// Its data files are.
    pub(super) damaged: bool,
}

impl Thread {
    pub(super) fn run(mut self, inputs: Receiver<Input>, state: Option<SavedState>) {
        // Consensus in an unknown state must not go on: a start reads the state on disk. An assertion of this
        // room ends the process; what raft-rs makes a panic of may be an error of the disk, and is looked into.
        let _fail_stop = FailStop::of_crate(file!());
        let outcome =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.serve(&inputs, state)));
        let why = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(e)) => e,
            Err(_) => Error::internal("the thread of the replica set panicked"),
        };
        self.leave(why.clone());
        // No input is taken from now on.
        drop(inputs);
        if storage::damage().is_some() {
            self.repair_from_outside();
        }
        if room::wait_for_room(&self.log.dir, &why) {
            tracing::warn!(target: "REPL", "The disk has room again: starting again, as a member of the set");
            (self.restart)("the disk has room again");
        }
    }

    fn leave(&self, why: Error) {
        self.shared.close();
        tracing::error!(target: "REPL", error = why.message.as_str(), "The member leaves its replica set");
        let _ = self.shared.left.set(why.into_message());
        let status = Status::default();
        *self.shared.status.write() = Arc::new(status);
        self.shared.wake();
        self.tell(Changed::Topology);
        // Waiters for writes of this member hear that it is no primary any more.
        if let Ok(store) = self.log.store() {
            store.call_back();
        }
    }

    fn serve(&mut self, inputs: &Receiver<Input>, state: Option<SavedState>) -> Fallible<()> {
        if let Some(state) = state {
            self.begin(state)?;
        }
        let mut next_tick = Instant::now() + self.tick();
        let (mut next_look, mut looks) = (Instant::now() + LOOK, 0u64);
        let (mut tell_at, mut held) = (None, None);
        loop {
            let wait = next_tick.min(next_look);
            let wait = [tell_at, held]
                .into_iter()
                .flatten()
                .fold(wait, Instant::min);
            let wait = wait.saturating_duration_since(Instant::now());
            match inputs.recv_timeout(wait) {
                Ok(first) => {
                    for input in gather(first, inputs) {
                        if !self.take(input)? {
                            return Ok(());
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            held = self.hand_on(false)?;
            tell_at = self.tell_commit(tell_at)?;
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + self.tick();
                self.drive(Member::tick)?;
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                looks += 1;
                self.looked = true;
                self.look_for_room()?;
                self.look_for_damage()?;
                self.reopen();
                self.look_for_removal();
                self.reconcile()?;
                if looks.is_multiple_of(LOOKS_FOR_BETTER) {
                    self.prefer();
                }
            }
            self.publish();
        }
    }

    /// Hands the member what the store has appended, unless that is held back: until when, then.
    pub(super) fn hand_on(&mut self, at_once: bool) -> Fallible<Option<Instant>> {
        let (entries, held) = self.pace.take(&self.shared.outbox, at_once);
        if !entries.is_empty() {
            self.drive(|m| m.appended(entries))?;
        }
        Ok(held)
    }

    /// Tells the others of the commit point, unless entries will do so before `at`: entries in flight,
    /// or soon to be sent. Returns when to.
    fn tell_commit(&mut self, at: Option<Instant>) -> Fallible<Option<Instant>> {
        let Some(member) = self.member.as_ref().filter(|m| m.owes_commit()) else {
            return Ok(None);
        };
        let all_committed = member.is_all_committed();
        let (now, paced) = (Instant::now(), self.pace.holds_until(&self.shared.outbox));
        let at = at.unwrap_or(now + if paced.is_some() { PACE * 2 } else { TELL });
        if now < at && (paced.is_some() || !all_committed) {
            return Ok(Some(at));
        }
        self.drive(Member::tell_commit)?;
        Ok(None)
    }

    fn receive(&mut self, mut messages: Vec<Message>) -> Fallible<()> {
        let term = self.member.as_ref().map_or(0, Member::term);
        if messages.iter().any(|m| m.term > term) {
            // What the others are sent before this member is deposed is not lost with it.
            self.hand_on(true)?;
        }
        let now = SystemTime::now();
        for message in &messages {
            self.heard.insert(message.from, now);
            match message.get_msg_type() {
                MessageType::MsgTimeoutNow => {
                    self.asked_in = message.term;
                    self.asked_because = [BY_PRIORITY, BY_STEP_UP]
                        .into_iter()
                        .find(|why| *message.context == *why.as_bytes())
                        .unwrap_or(BY_REQUEST);
                }
                MessageType::MsgTransferLeader if message.term == term => {
                    self.step_aside_for(message.from);
                }
                _ => {}
            }
        }
        let withheld = self.is_withheld();
        messages.retain(|m| match m.get_msg_type() {
            MessageType::MsgTransferLeader => false,
            MessageType::MsgTimeoutNow => !withheld,
            _ => true,
        });
        self.drive(|m| m.receive(messages))
    }

    /// How long a tick is.
    fn tick(&self) -> Duration {
        let config = self.member.as_ref().and_then(Member::config);
        match config.map(|c| c.settings.election_timeout_ms) {
            None | Some(DEFAULT_ELECTION_TIMEOUT_MS) => TICK,
            Some(ms) => (Duration::from_millis(ms.unsigned_abs()) / ELECTION_TICKS as u32)
                .clamp(SHORTEST_TICK, LONGEST_TICK),
        }
    }

    /// False at the end.
    fn take(&mut self, input: Input) -> Fallible<bool> {
        match input {
            Input::Received(messages) => self.receive(messages)?,
            // What the store has appended is taken below, after all inputs.
            Input::Appended | Input::Asked => {}
            Input::Synced => {
                // A member whose log takes nothing more is of no use to its set.
                self.log.store()?.healthy()?;
                self.drive(Member::synced)?;
            }
            Input::Begin(state) => {
                if self.member.is_none() {
                    let founds = state.voters.voters == [state.id] && state.rejoins_until == 0;
                    let state = self.after_backup(*state);
                    state_file::save(&self.log.dir, &state)?;
                    self.begin(state)?;
                    if founds {
                        self.drive(Member::campaign)?;
                    }
                }
            }
            Input::Readmit(id) => {
                if let Some(until) = self.member.as_mut().and_then(|m| m.readmit(id)) {
                    self.shared.joining.grant(id, until);
                }
            }
            Input::Reconfigure(config, answer) => self.reconfigure(*config, answer),
            Input::ForceReconfig(config, answer) => self.force_reconfig(*config, answer)?,
            Input::StepUp => self.step_up()?,
            Input::Withhold => self.withhold(),
            Input::HandOver(to) => {
                self.hands_over_because = BY_REQUEST;
                self.close_before(move |term| Input::HandOverNow(to, term));
            }
            Input::HandOverNow(to, term) => {
                self.closing = self.closing.saturating_sub(1);
                self.hand_on(true)?;
                if self.is_of(term) {
                    self.drive(|m| m.hand_over(to))?;
                }
            }
            Input::Freeze(length) => {
                let tick = self.tick().as_millis();
                if let Some(member) = &mut self.member {
                    member.freeze(length.as_millis().div_ceil(tick) as u64);
                }
            }
            Input::StandDown => self.close_before(Input::StandDownNow),
            Input::StandDownNow(term) => {
                self.closing = self.closing.saturating_sub(1);
                self.hand_on(true)?;
                if self.is_of(term) {
                    self.drive(Member::give_up)?;
                }
            }
            Input::Copied(outcome) => self.end_copy(outcome)?,
            Input::Stop => {
                // From now on no thread moves the commit point for later writes.
                self.shared.close();
                self.shared.initial_sync.stop();
                self.hand_on(true)?;
                if let Some(member) = &mut self.member {
                    member.save()?;
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A set that begins from a backup has no log: the last entry of the backup is before its first.
    fn after_backup(&self, mut state: SavedState) -> SavedState {
        let (first, last) = (self.log.first_index(), self.log.last_index());
        if last > 0 && first > last {
            state.base = Some((last, FIRST_TERM));
        }
        state
    }

    fn begin(&mut self, state: SavedState) -> Fallible<()> {
        let chance = RandomState::new().hash_one(state.id);
        self.elections.vote = Vote {
            term: state.hard.term,
            candidate: state.hard.vote,
            at: None,
        };
        self.member = Some(Member::new(self.log.clone(), state, chance)?);
        self.introduce();
        Ok(())
    }

    pub(super) fn drive(
        &mut self,
        f: impl FnOnce(&mut Member<StoreLog>) -> Fallible<News>,
    ) -> Fallible<()> {
        let Some(member) = &mut self.member else {
            return Ok(());
        };
        let mut news = f(member)?;
        if let Some(why) = &news.restart {
            self.shared.close();
            self.may_restart()?;
            // Nothing is saved: the commit point may be that of entries which are not in the log.
            tracing::warn!(target: "REPL", reason = why.as_str(), "Starting again to take back writes that no majority had");
            (self.restart)(why);
            return Err(Error::internal("the process could not be started again"));
        }
        for message in &mut news.messages {
            if message.get_msg_type() == MessageType::MsgTimeoutNow {
                message.context = self.hands_over_because.as_bytes().to_vec().into();
            }
        }
        if !news.messages.is_empty() {
            self.transport.send(news.messages);
        }
        if let Some(primary) = news.invited_by {
            self.begin_copy(primary);
        }
        if news.changed {
            let member_role = self.member.as_ref().map(Member::role);
            let opens = member_role == Some(MemberRole::Primary);
            if !opens {
                self.shared.close();
            }
            self.introduce();
        }
        Ok(())
    }

    /// Tells the transport the set's members.
    pub(super) fn introduce(&mut self) {
        let Some(member) = &self.member else { return };
        let Some(config) = member.config() else {
            return;
        };
        let set = SetName {
            name: self.set_name.clone(),
            id: config.settings.replica_set_id.map_or([0; 12], |id| id.0),
            founder: member.founder(),
            from: member.id(),
        };
        let peers: Vec<_> = (config.members.iter())
            .filter(|m| raft_id(m.id) != member.id())
            .map(|m| (raft_id(m.id), m.host.to_string()))
            .collect();
        self.transport.peers(&set, config, &peers);
    }
}
