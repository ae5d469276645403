//! One member of a replica set: raft-rs over the one log, without sockets, threads, clocks and chance.
//!
//! ```text
//! primary     its store appends and applies an entry, and hands it in (appended) ─► to the others
//!             a majority has it on disk ─► commit point ─► acknowledged for majority
//! secondary   entries come in ─► appended ─► on disk ─► told to the primary; up to the commit point: applied
//! ```
//!
//! Invariants:
//! - What raft-rs takes for the log is the log up to an index; the primary's store may be ahead of it
//!   by entries that are on their way here. They are handed in in the order of the log.
//! - A member says that it has an entry, or that it votes, only after that is on disk.
//! - A primary takes writes only after everything before its term is applied.
//! - A deposed primary makes no more entries before it takes its successor's. So each entry bears the
//!   term of the primary that made it.
//! - The commit point that is saved is never beyond what the log holds of the same entries: a start
//!   applies the log up to there.
//! - The others are told of a commit point with the next entries, or by [`Member::tell_commit`]: a
//!   message of its own for each commit would be half of all messages.
//! - The voters that are saved are those of the commit point that is saved, or of one behind it that
//!   is nearer than the next change.
//! - A member that may not be primary takes no writes, also where it was elected ([`stand_in`]).
//! - An entry that is applied is never cut from the log: a member that would have to
//!   ([`News::restart`]) starts again, and applies what a majority had.
//!
//! What happens to a member stands here; what it does about that in the rooms:
//! - [`election`]: elections, and their consequences.
//! - [`followers`]: a primary's knowledge of the others, its messages to them, and who votes.
//! - [`ready`]: what raft-rs asks for.
//! - [`delayed`]: members that apply entries late.
//! - [`readmission`]: members that have lost their disk.
//! - [`force_reconfig`]: a member that goes on without the majority of its set.
//! - [`stand_in`]: members that may not be primary, and have entries that no other member has.

mod caretaker;
mod delayed;
mod election;
mod followers;
mod forced_reconfig;
mod readmission;
mod ready;

use crate::config::Config;
use crate::log_view::{self, LogView};
use crate::state_file::SavedState;
use errors::{Code, Error, Fallible};
use raft::StateRole;
use raft::eraftpb::{ConfState, Entry, Message, MessageType};
use slog::{Discard, Logger, o};
use std::collections::{HashMap, VecDeque};
use storage::{Appended, Record};

/// The log and the state of a member: a store's, or a simulator's.
pub trait MemberLog {
    fn first_index(&self) -> u64;
    fn last_index(&self) -> u64;
    fn last_ts(&self) -> u64;
    /// The last index that survives a loss of power.
    fn durable_index(&self) -> u64;
    fn applied_index(&self) -> u64;
    /// Hands the entries `[from, to)` to `take`, the first in any case, until they have more than `max_bytes`.
    fn read(
        &self,
        from: u64,
        to: u64,
        max_bytes: u64,
        take: &mut dyn FnMut(Record<'_>),
    ) -> Fallible<()>;
    /// Appends entries that follow on the last.
    fn append(&self, entries: &[Record<'_>]) -> Fallible<()>;
    /// Saves what the entries `[from, to)` wrote, before they are cut.
    fn save_taken_back(&self, from: u64, to: u64) -> Fallible<()>;
    /// Takes the entries after `index` out. False, and nothing is done, where one of them is applied
    /// or being applied.
    fn truncate_after(&self, index: u64) -> Fallible<bool>;
    /// Applies entries that are in the log and follow on the last applied one.
    fn apply(&self, entries: &[Record<'_>]) -> Fallible<()>;
    /// The term of entries that are made here from now on.
    fn set_term(&self, term: u64) -> Fallible<()>;
    /// Takes no more entries that are made here: when it returns, [`MemberLog::last_index`] counts all
    /// that were.
    fn close(&self) -> Fallible<()>;
    fn request_sync(&self);
    /// Writes the state; it is on disk when this returns.
    fn save(&self, state: &SavedState) -> Fallible<()>;
    /// Milliseconds since 1970.
    fn now_millis(&self) -> u64;
}

/// What a member is at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberRole {
    #[default]
    Secondary,
    Candidate,
    /// Elected, and not ready to take writes yet, or never: it hands over to one that may.
    Elected,
    Primary,
}

/// What came of an input.
#[derive(Debug, Default)]
pub struct News {
    pub messages: Vec<Message>,
    /// The member has to start again, because of this.
    pub restart: Option<String>,
    /// Role, primary or configuration have changed.
    pub changed: bool,
    /// This member's log is too far back: the primary of this number says that it has to copy files.
    pub invited_by: Option<u64>,
}

/// When an entry was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTime {
    /// BSON Timestamp: seconds << 32 | increment.
    pub ts: u64,
    pub term: u64,
    /// Milliseconds since 1970, by the clock of its primary.
    pub wall_millis: i64,
}

impl OpTime {
    pub(crate) fn of(record: &Record<'_>) -> OpTime {
        OpTime {
            ts: record.ts,
            term: record.term,
            wall_millis: record.wall_millis,
        }
    }
}

/// Ticks of an election timeout, and between heartbeats.
pub const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;
/// A member that lacks fewer entries than this may vote.
const CAUGHT_UP_ENTRIES: u64 = 1000;
/// After so many entries the state is saved again: a start applies the log up to the commit point there.
const SAVE_EVERY: u64 = 1000;
const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// So many messages go to a follower before it answers the first. All of them together stay below what
/// the transport lets wait for a peer: what it throws away past that is read and sent again.
const MAX_IN_FLIGHT: usize = 32;
const NOT_PROPOSED: &str = "an entry of the log could not be proposed";

/// What waits until the log is on disk up to an index.
struct Unsynced {
    ready: u64,
    index: u64,
    messages: Vec<Message>,
}

pub struct Member<L: MemberLog> {
    node: raft::RawNode<LogView<L>>,
    state: SavedState,
    role: MemberRole,
    unsynced: VecDeque<Unsynced>,
    /// What the term began with, in raft-rs's form with its stamp.
    begin: Option<Entry>,
    /// It does not stand for election until then, in ticks.
    frozen_until: u64,
    /// It does not stand for election at all.
    withheld: bool,
    /// For so many ticks it has heard of no primary, and may not be one itself.
    leaderless: usize,
    ticks: u64,
    saved_commit: u64,
    /// The state is saved when the commit point is so many entries further.
    save_every: u64,
    /// Committed entries wait to be applied.
    held_back: bool,
    /// How often entries of a primary were appended.
    appends: u64,
    /// On the primary: the commit point that each other member was sent last.
    commit_sent: HashMap<u64, u64>,
    /// On the primary: the tick at which each other member answered last. raft-rs's own note is
    /// cleared at each check of the quorum, so a look right after one would find all members gone.
    answered: HashMap<u64, u64>,
    readmissions: readmission::Readmissions,
    /// What election timeouts are drawn from.
    chance: u64,
}

impl<L: MemberLog + Clone> Member<L> {
    /// A member that was one before, or that is told its number now. `chance`: a random number, in
    /// which members differ.
    pub fn new(log: L, state: SavedState, chance: u64) -> Fallible<Member<L>> {
        let last = log.last_index();
        // A delayed member has taken all changes of voters up to its commit point, and applies the rest
        // later.
        let applied = match state.delay_millis() {
            0 => log.applied_index(),
            _ => log.applied_index().max(state.hard.commit.min(last)),
        };
        let config = raft::Config {
            id: state.id,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied,
            max_size_per_msg: MAX_MESSAGE_BYTES,
            max_committed_size_per_ready: MAX_MESSAGE_BYTES * 4,
            max_inflight_msgs: MAX_IN_FLIGHT,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            skip_bcast_commit: true,
            ..raft::Config::default()
        };
        let mut hard = state.hard.clone();
        // Applied entries were committed.
        hard.commit = hard.commit.max(applied).min(last);
        hard.term = hard.term.max(log_view::FIRST_TERM);
        let state = SavedState { hard, ..state };
        let view = LogView::new(log, &state);
        let logger = Logger::root(Discard, o!());
        let node = raft::RawNode::new(&config, view, &logger).map_err(broken)?;
        Ok(Member {
            node,
            saved_commit: state.hard.commit,
            save_every: SAVE_EVERY,
            held_back: state.delay_millis() > 0,
            state,
            appends: 0,
            commit_sent: HashMap::new(),
            answered: HashMap::new(),
            readmissions: readmission::Readmissions::default(),
            chance,
            role: MemberRole::Secondary,
            unsynced: VecDeque::new(),
            begin: None,
            frozen_until: 0,
            withheld: false,
            leaderless: 0,
            ticks: 0,
        })
    }

    /// Saves the state after so many entries, at the next tick but nine at the latest.
    pub fn save_every(&mut self, entries: u64) {
        self.save_every = entries;
    }

    pub fn id(&self) -> u64 {
        self.state.id
    }

    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// The voter that the set began with.
    pub fn founder(&self) -> u64 {
        self.state.founder
    }

    pub fn role(&self) -> MemberRole {
        self.role
    }

    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// The member that is primary, as far as is known; 0 for none.
    pub fn leader(&self) -> u64 {
        self.node.raft.leader_id
    }

    pub fn commit_index(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    /// The candidate of its vote (0: none), and the term.
    pub fn vote(&self) -> (u64, u64) {
        (self.state.hard.vote, self.state.hard.term)
    }

    /// How many rollbacks there were.
    pub fn rollbacks(&self) -> u64 {
        self.state.rollbacks
    }

    pub fn config(&self) -> Option<&Config> {
        self.state.config.as_ref()
    }

    pub fn voters(&self) -> &ConfState {
        &self.state.voters
    }

    /// When the entry at an index was made; `None`: the log does not hold it.
    pub fn op_time(&self, index: u64) -> Option<OpTime> {
        self.node.raft.raft_log.store.op_time(index)
    }

    fn log(&self) -> &L {
        &self.node.raft.raft_log.store.log
    }

    /// A tenth of the election timeout has passed.
    pub fn tick(&mut self) -> Fallible<News> {
        self.ticks += 1;
        self.draw_timeout();
        let stands = self.node.raft.state == StateRole::Leader || self.may_stand();
        if stands {
            self.node.tick();
        } else {
            // It does not stand, and votes: it has to know that it hears of no primary any more.
            let elapsed = &mut self.node.raft.election_elapsed;
            *elapsed = ELECTION_TICKS.min(*elapsed + 1);
        }
        self.act_as_caretaker();
        if self.saved_commit + self.save_every < self.commit_index()
            && self.ticks.is_multiple_of(10)
        {
            self.save_if_room()?;
        }
        self.remind();
        let mut news = self.process()?;
        self.apply_due(&mut news)?;
        Ok(news)
    }

    /// Messages of other members.
    pub fn receive(&mut self, messages: Vec<Message>) -> Fallible<News> {
        let (mut outgoing, mut invited_by) = (Vec::new(), None);
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                let mut invited = self.invited(&message);
                outgoing.append(&mut invited.messages);
                invited_by = invited.invited_by.or(invited_by);
                continue;
            }
            if !self.can_take(&message)? {
                continue;
            }
            self.note_answer(&message);
            // A message of a removed member, or of an old configuration, gets no answer.
            let _ = self.node.step(message);
        }
        let mut news = self.process()?;
        news.messages.append(&mut outgoing);
        news.invited_by = invited_by;
        Ok(news)
    }

    fn message_to(&self, to: u64, kind: MessageType) -> Message {
        let mut message = Message::default();
        message.set_msg_type(kind);
        (message.to, message.from, message.term) = (to, self.state.id, self.term());
        message
    }

    /// How often entries of a primary were appended since the process began.
    pub fn appends(&self) -> u64 {
        self.appends
    }

    /// Entries that the store has appended.
    pub fn appended(&mut self, entries: Vec<Appended>) -> Fallible<News> {
        // What goes together is proposed together: it makes one message to each member.
        let (mut proposed, mut bytes) = (Vec::new(), 0);
        for appended in entries {
            let raft = &self.node.raft;
            let next = raft.raft_log.last_index() + proposed.len() as u64 + 1;
            let is_ours = raft.state == StateRole::Leader && appended.term == raft.term;
            if !is_ours || appended.index != next {
                return Ok(restart("entries that nobody else was sent are in the log"));
            }
            let entry = log_view::proposal(appended);
            bytes += entry.data.len() as u64;
            proposed.push(entry);
            if bytes >= MAX_MESSAGE_BYTES {
                bytes = 0;
                if self.propose(&mut proposed).is_err() {
                    return Ok(restart(NOT_PROPOSED));
                }
            }
        }
        match self.propose(&mut proposed) {
            Ok(()) => self.process(),
            Err(_) => Ok(restart(NOT_PROPOSED)),
        }
    }

    /// Hands entries to raft-rs, and leaves none.
    fn propose(&mut self, entries: &mut Vec<Entry>) -> raft::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.state.id;
        message.entries = std::mem::take(entries).into();
        self.node.raft.step(message)
    }

    /// The log is on disk further than before.
    pub fn synced(&mut self) -> Fallible<News> {
        let mut messages = Vec::new();
        let durable = self.log().durable_index();
        while self.unsynced.front().is_some_and(|u| u.index <= durable) {
            let Some(unsynced) = self.unsynced.pop_front() else {
                break;
            };
            self.node.on_persist_ready(unsynced.ready);
            messages.extend(unsynced.messages);
        }
        let mut news = self.process()?;
        messages.append(&mut news.messages);
        news.messages = messages;
        Ok(news)
    }

    /// Sets the configuration of a member that is told of it by another.
    pub fn learn(&mut self, config: Config) -> Fallible<()> {
        self.state.config = Some(config);
        self.save()
    }

    /// Up to there, at most up to the commit point, changes of voters have been taken and are written
    /// down. A start takes those behind what it applies from its files: so neither the commit point
    /// that is saved nor the data files may be further.
    pub fn taken_index(&self) -> u64 {
        self.node.raft.raft_log.applied()
    }

    /// Saves how far it is. A full disk puts that off: what was saved before holds too, and a start reads
    /// more of the log.
    fn save_if_room(&mut self) -> Fallible<()> {
        let before = self.saved_commit;
        match self.save() {
            Err(e) if e.code == Code::OutOfDiskSpace => {
                (self.saved_commit, self.state.hard.commit) = (before, before);
                Ok(())
            }
            outcome => outcome,
        }
    }

    pub fn save(&mut self) -> Fallible<()> {
        self.saved_commit = self.saved_commit.max(self.taken_index());
        assert!(
            self.saved_commit <= self.node.raft.raft_log.last_index(),
            "the log reaches to the commit point that is saved"
        );
        self.state.hard.commit = self.saved_commit;
        self.log().save(&self.state)
    }
}

/// Whether two forms are of one entry: an index alone may have held another before an election.
fn is_same(a: &Entry, b: &Entry) -> bool {
    (a.index, a.term) == (b.index, b.term)
}

fn restart(why: &str) -> News {
    News {
        restart: Some(why.to_string()),
        ..News::default()
    }
}

fn broken(e: raft::Error) -> Error {
    Error::internal(format!("consensus: {e}"))
}

/// The number in messages of the member with this `_id`.
pub fn raft_id(member: i32) -> u64 {
    member.unsigned_abs() as u64 + 1
}
