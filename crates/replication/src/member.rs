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

mod delayed;
mod stand_in;

use crate::config::Config;
use crate::log_view::{self, LogView, VoterChange};
use crate::state_file::State;
use bson::Doc;
use errors::{Error, Fallible as Result};
use raft::eraftpb::{ConfState, Entry, Message, MessageType};
use raft::{Ready, StateRole, Storage as _};
use slog::{Discard, Logger, o};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
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
    ) -> Result<()>;
    /// Appends entries that follow on the last.
    fn append(&self, entries: &[Record<'_>]) -> Result<()>;
    /// Saves what the entries `[from, to)` wrote, before they are cut.
    fn save_taken_back(&self, from: u64, to: u64) -> Result<()>;
    /// Takes the entries after `index` out. False, and nothing is done, where one of them is applied
    /// or being applied.
    fn truncate_after(&self, index: u64) -> Result<bool>;
    /// Applies entries that are in the log and follow on what is applied.
    fn apply(&self, entries: &[Record<'_>]) -> Result<()>;
    /// The term of entries that are made here from now on.
    fn set_term(&self, term: u64) -> Result<()>;
    /// Takes no more entries that are made here: when it returns, [`MemberLog::last_index`] counts all
    /// that were.
    fn close(&self) -> Result<()>;
    fn request_sync(&self);
    /// Writes the state; it is on disk when this returns.
    fn save(&self, state: &State) -> Result<()>;
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
    /// MemberRole, primary or configuration have changed.
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
    state: State,
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
    told: HashMap<u64, u64>,
    /// On the primary: the tick at which each other member answered last. raft-rs's own note is
    /// cleared at each check of the quorum, so a look right after one would find all members gone.
    answered: HashMap<u64, u64>,
    /// What election timeouts are drawn from.
    chance: u64,
}

impl<L: MemberLog + Clone> Member<L> {
    /// A member that was one before, or that is told its number now. `chance`: a random number, in
    /// which members differ.
    pub fn new(log: L, state: State, chance: u64) -> Result<Member<L>> {
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
        // What is applied was committed.
        hard.commit = hard.commit.max(applied).min(last);
        hard.term = hard.term.max(log_view::FIRST_TERM);
        let state = State { hard, ..state };
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
            told: HashMap::new(),
            answered: HashMap::new(),
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

    /// How often entries were taken back.
    pub fn rollbacks(&self) -> u64 {
        self.state.rollbacks
    }

    pub fn config(&self) -> Option<&Config> {
        self.state.config.as_ref()
    }

    pub fn voters(&self) -> &ConfState {
        &self.state.voters
    }

    /// On the primary: up to where each member has the log on disk, and whether it was heard of lately.
    pub fn progress(&self) -> Vec<(u64, u64, bool)> {
        let all = self.node.raft.prs().iter();
        all.map(|(id, p)| (*id, p.matched, self.is_heard(*id)))
            .collect()
    }

    /// On the primary: whether a member has answered within an election timeout.
    fn is_heard(&self, id: u64) -> bool {
        let within = |at: &u64| self.ticks - at <= ELECTION_TICKS as u64;
        id == self.state.id || self.answered.get(&id).is_some_and(within)
    }

    fn note_answer(&mut self, message: &Message) {
        let answers = [
            MessageType::MsgAppendResponse,
            MessageType::MsgHeartbeatResponse,
        ];
        if answers.contains(&message.get_msg_type()) && message.term == self.term() {
            self.answered.insert(message.from, self.ticks);
        }
    }

    /// When the entry at an index was made; `None`: the log does not hold it.
    pub fn op_time(&self, index: u64) -> Option<OpTime> {
        self.node.raft.raft_log.store.op_time(index)
    }

    fn log(&self) -> &L {
        &self.node.raft.raft_log.store.log
    }

    /// A tenth of the election timeout has passed.
    pub fn tick(&mut self) -> Result<News> {
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
        self.stand_in();
        if self.saved_commit + self.save_every < self.commit_index()
            && self.ticks.is_multiple_of(10)
        {
            self.save()?;
        }
        self.remind();
        let mut news = self.process()?;
        self.apply_due(&mut news)?;
        Ok(news)
    }

    /// Sets the election timeout in place of raft-rs's, which comes from a generator of its own. A
    /// new one for each term, and for each time that no election came of the last.
    fn draw_timeout(&mut self) {
        let mut hasher = DefaultHasher::new();
        let round = self.ticks / (2 * ELECTION_TICKS as u64);
        (self.chance, self.state.id, self.term(), round).hash(&mut hasher);
        let beyond = hasher.finish() as usize % ELECTION_TICKS;
        self.node
            .raft
            .set_randomized_election_timeout(ELECTION_TICKS + beyond);
    }

    /// Whether it may be elected, as far as it goes by itself.
    pub fn may_stand(&self) -> bool {
        self.ticks >= self.frozen_until && !self.withheld && self.is_electable()
    }

    fn is_electable(&self) -> bool {
        let Some(config) = &self.state.config else {
            return true;
        };
        let id = i32::try_from(self.state.id).unwrap_or(i32::MAX) - 1;
        config.member(id).is_none_or(|m| m.is_electable())
    }

    /// Messages of other members.
    pub fn receive(&mut self, messages: Vec<Message>) -> Result<News> {
        let (mut outgoing, mut invited_by) = (Vec::new(), None);
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                let mut invited = self.invited(&message);
                outgoing.append(&mut invited.messages);
                invited_by = invited.invited_by.or(invited_by);
                continue;
            }
            self.note_answer(&message);
            // A member that was removed, or one of an old configuration, is answered by nobody.
            let _ = self.node.step(message);
        }
        let mut news = self.process()?;
        news.messages.append(&mut outgoing);
        news.invited_by = invited_by;
        Ok(news)
    }

    /// Whether this is the primary, and another member has not been told of the commit point.
    pub fn owes_commit(&self) -> bool {
        self.node.raft.state == StateRole::Leader && self.unaware().next().is_some()
    }

    /// Whether a majority has all entries: none is under way that would take the commit point along.
    pub fn is_all_committed(&self) -> bool {
        self.node.raft.raft_log.last_index() <= self.commit_index()
    }

    /// Members that have not been told of the commit point.
    fn unaware(&self) -> impl Iterator<Item = u64> {
        let (own, commit) = (self.state.id, self.commit_index());
        let others = self.node.raft.prs().iter().map(|(id, _)| *id);
        others.filter(move |id| *id != own && self.told.get(id).is_none_or(|told| *told < commit))
    }

    /// Tells the commit point to those who were sent none since it moved. One that is not reached
    /// learns of it by a heartbeat.
    pub fn tell_commit(&mut self) -> Result<News> {
        self.remind();
        self.process()
    }

    fn remind(&mut self) {
        if self.node.raft.state != StateRole::Leader {
            return;
        }
        let commit = self.commit_index();
        for id in self.unaware().collect::<Vec<_>>() {
            self.node.raft.send_append(id);
            self.told.insert(id, commit);
        }
    }

    /// The primary has no entries that this member could append, from `message.index` on it has. A
    /// member that has copied files since tells it where its log begins.
    fn invited(&self, message: &Message) -> News {
        let mut news = News::default();
        if message.term != self.term() || message.from != self.leader() {
            return news;
        }
        let known = self.commit_index().min(self.log().durable_index());
        if known + 1 < message.index {
            news.invited_by = Some(message.from);
            return news;
        }
        let mut answer = self.message_to(message.from, MessageType::MsgAppendResponse);
        answer.index = known;
        answer.commit = known;
        news.messages.push(answer);
        news
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
    pub fn appended(&mut self, entries: Vec<Appended>) -> Result<News> {
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
    pub fn synced(&mut self) -> Result<News> {
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

    /// Stands for election at once: so the founder begins its set.
    pub fn campaign(&mut self) -> Result<News> {
        let _ = self.node.campaign();
        self.process()
    }

    /// Has another member elected in its place.
    pub fn hand_over(&mut self, to: u64) -> Result<News> {
        self.node.transfer_leader(to);
        self.process()
    }

    /// Another member is being elected in its place.
    pub fn is_handing_over(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    /// Gives the primary's part up without a successor.
    pub fn give_up(&mut self) -> Result<News> {
        let term = self.node.raft.term;
        self.node.raft.become_follower(term, 0);
        self.process()
    }

    /// It does not stand for election for so many ticks; 0 ends that.
    pub fn freeze(&mut self, ticks: u64) {
        self.frozen_until = self.ticks + ticks;
    }

    /// Whether it stands for no election until this is said otherwise.
    pub fn withhold(&mut self, on: bool) {
        self.withheld = on;
    }

    /// The message that asks the primary to have this member elected; `None` where none is known.
    pub fn ask_for_the_lead(&self) -> Option<Message> {
        let leader = self.leader();
        let known = leader != 0 && leader != self.state.id;
        known.then(|| self.message_to(leader, MessageType::MsgTransferLeader))
    }

    /// On the primary: the next change of voters that brings them nearer to the configuration.
    pub fn next_change(&self) -> Option<VoterChange> {
        if self.role != MemberRole::Primary || self.node.raft.has_pending_conf() {
            return None;
        }
        let config = self.state.config.as_ref()?;
        let ConfState {
            voters, learners, ..
        } = &self.state.voters;
        for member in &config.members {
            let id = raft_id(member.id);
            let votes = voters.contains(&id);
            if !votes && !learners.contains(&id) {
                return Some(VoterChange::Learner(id));
            }
            if votes && !member.votes && id != self.state.id {
                return Some(VoterChange::Learner(id));
            }
            if !votes && member.votes && self.lag(id) < CAUGHT_UP_ENTRIES {
                return Some(VoterChange::Voter(id));
            }
        }
        let gone = |id: &&u64| {
            let member = i32::try_from(**id).unwrap_or(i32::MAX) - 1;
            **id != self.state.id && config.member(member).is_none()
        };
        let gone = voters.iter().chain(learners).find(gone)?;
        Some(VoterChange::Remove(*gone))
    }

    /// How many entries a member lacks, as far as the primary knows.
    pub fn lag(&self, id: u64) -> u64 {
        let last = self.node.raft.raft_log.last_index();
        match self.node.raft.prs().get(id) {
            Some(p) if self.is_heard(id) && p.matched > 0 => last.saturating_sub(p.matched),
            _ => u64::MAX,
        }
    }

    /// Sets the configuration of a member that is told of it by another.
    pub fn learn(&mut self, config: Config) -> Result<()> {
        self.state.config = Some(config);
        self.save()
    }

    /// Up to there, at most up to the commit point, changes of voters have been taken and are written
    /// down. A start takes those behind what it applies from its files: so neither the commit point
    /// that is saved nor the data files may be further.
    pub fn taken_index(&self) -> u64 {
        self.node.raft.raft_log.applied()
    }

    pub fn save(&mut self) -> Result<()> {
        self.saved_commit = self.saved_commit.max(self.taken_index());
        self.state.hard.commit = self.saved_commit;
        self.log().save(&self.state)
    }

    /// Does what raft-rs asks for, until it asks for nothing.
    fn process(&mut self) -> Result<News> {
        let mut news = News::default();
        while news.restart.is_none() && self.node.has_ready() {
            let ready = self.node.ready();
            self.take(ready, &mut news)?;
        }
        for member in self.node.raft.raft_log.store.take_left_behind() {
            let mut invitation = self.message_to(member, MessageType::MsgSnapshot);
            invitation.index = self.log().first_index();
            news.messages.push(invitation);
        }
        Ok(news)
    }

    fn take(&mut self, mut ready: Ready, news: &mut News) -> Result<()> {
        if let Some(why) = self.close_deposed()? {
            news.restart = Some(why);
            return Ok(());
        }
        if let Some(hard) = ready.hs() {
            let votes = (hard.term, hard.vote) != (self.state.hard.term, self.state.hard.vote);
            self.state.hard = hard.clone();
            if votes {
                // The commit point may be that of entries which are not in the log yet.
                self.state.hard.commit = self.saved_commit;
                self.log().save(&self.state)?;
            }
        }
        let role_changed = ready.ss().is_some();
        let entries = ready.take_entries();
        if let Some(why) = self.append(&entries)? {
            news.restart = Some(why);
            return Ok(());
        }
        let mut sent = ready.take_messages();
        let mut persisted = ready.take_persisted_messages();
        self.stamp_begin(&mut sent);
        self.stamp_begin(&mut persisted);
        self.note_told(&sent);
        news.messages.append(&mut sent);
        let index = entries.last().map_or(0, |e| e.index);
        let number = ready.number();
        let committed = ready.take_committed_entries();
        self.node.advance_append_async(ready);
        let index = match self.unsynced.back() {
            Some(before) => index.max(before.index),
            None => index,
        };
        if index <= self.log().durable_index() {
            self.node.on_persist_ready(number);
            news.messages.append(&mut persisted);
        } else {
            self.log().request_sync();
            self.unsynced.push_back(Unsynced {
                ready: number,
                index,
                messages: persisted,
            });
        }
        self.commit(&committed, news)?;
        if role_changed {
            news.changed = true;
            self.follow_role(news)?;
        }
        Ok(())
    }

    /// Entries tell of the commit point too.
    fn note_told(&mut self, messages: &[Message]) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgAppend {
                self.told.insert(message.to, message.commit);
            }
        }
    }

    /// A primary that was deposed takes no more writes. Gives the reason why it has to start again.
    fn close_deposed(&mut self) -> Result<Option<String>> {
        if self.role != MemberRole::Primary || self.node.raft.state == StateRole::Leader {
            return Ok(None);
        }
        self.log().close()?;
        let known = self.node.raft.raft_log.store.last_index().map_err(broken)?;
        let ahead = self.log().last_index() > known;
        Ok(ahead.then(|| "the primary was deposed with writes that nobody was sent".into()))
    }

    /// Appends what is not in the log yet. Gives the reason why the member has to start again.
    fn append(&mut self, entries: &[Entry]) -> Result<Option<String>> {
        let Some(first) = entries.first() else {
            return Ok(None);
        };
        if self.node.raft.state == StateRole::Leader {
            self.begin_term(entries)?;
        } else {
            let last = self.log().last_index();
            let index = first.index;
            let is_applied = || self.log().applied_index() >= index;
            if index <= last && (is_applied() || !self.take_back(index)?) {
                return Ok(Some(format!(
                    "the entries from {index} on were not those of the majority"
                )));
            }
            let records: Option<Vec<_>> = entries.iter().map(log_view::to_record).collect();
            let records =
                records.ok_or_else(|| Error::internal("an entry without a stamp was received"))?;
            self.log().append(&records)?;
            self.appends += 1;
            self.node.mut_store().keep(entries);
        }
        Ok(None)
    }

    /// Cuts the entries from `index` on out of the log, unless one of them is being applied. It is
    /// counted first: who sees another count has to look again at what he has read of the log.
    fn take_back(&mut self, index: u64) -> Result<bool> {
        self.state.rollbacks += 1;
        // The commit point may be that of entries which are not in the log yet.
        let mut state = self.state.clone();
        state.hard.commit = self.saved_commit;
        self.log().save(&state)?;
        self.log()
            .save_taken_back(index, self.log().last_index() + 1)?;
        self.log().truncate_after(index - 1)
    }

    /// What the term of a new primary begins with gets its stamp, and is appended. All else was
    /// appended by the store.
    fn begin_term(&mut self, entries: &[Entry]) -> Result<()> {
        let mut kept = entries.to_vec();
        for entry in &mut kept {
            if !entry.context.is_empty() {
                continue;
            }
            let now = self.log().now_millis();
            let ts = ((now / 1000) << 32 | 1).max(self.log().last_ts() + 1);
            let payload = storage::Entry::noop(Vec::new()).to_bytes();
            let record = Record {
                index: entry.index,
                ts,
                term: entry.term,
                wall_millis: now as i64,
                payload: &payload,
            };
            self.log().append(&[record])?;
            *entry = log_view::to_raft(&record);
            self.begin = Some(entry.clone());
        }
        self.node.mut_store().keep(&kept);
        Ok(())
    }

    /// Messages that were made before the stamp was get it now.
    fn stamp_begin(&self, messages: &mut [Message]) {
        let Some(begin) = &self.begin else { return };
        for message in messages {
            if message.get_msg_type() != MessageType::MsgAppend {
                continue;
            }
            for entry in message.entries.iter_mut() {
                if entry.context.is_empty() && is_same(entry, begin) {
                    *entry = begin.clone();
                }
            }
        }
    }

    /// Applies what is committed and not applied yet.
    fn commit(&mut self, committed: &[Entry], news: &mut News) -> Result<()> {
        let Some(last) = committed.last().map(|e| e.index) else {
            return Ok(());
        };
        for entry in committed {
            let begin = self.begin.as_ref().filter(|b| is_same(b, entry));
            let entry = begin.unwrap_or(entry).clone();
            let Some(record) = log_view::to_record(&entry) else {
                return Err(Error::internal("an entry without a stamp was committed"));
            };
            if let Some((config, change)) = storage::Entry::membership(record.payload) {
                self.reconfigure(record.index, &config, &change)?;
                news.changed = true;
            }
        }
        if self.holds_back(committed) {
            self.node.advance_apply_to(last);
            return self.follow_role(news);
        }
        let applied = self.log().applied_index();
        let new: Vec<Entry> = committed
            .iter()
            .filter(|e| e.index > applied)
            .map(|e| match &self.begin {
                Some(b) if is_same(b, e) => b.clone(),
                _ => e.clone(),
            })
            .collect();
        let records: Vec<_> = new.iter().filter_map(log_view::to_record).collect();
        if !records.is_empty() {
            self.log().apply(&records)?;
        }
        self.node.advance_apply_to(last);
        self.follow_role(news)
    }

    /// Takes the change of voters and configuration of the entry at `index`.
    fn reconfigure(&mut self, index: u64, config: &[u8], change: &[u8]) -> Result<()> {
        if let Some(change) = VoterChange::from_bytes(change) {
            self.state.voters = self
                .node
                .apply_conf_change(&change.to_raft())
                .map_err(broken)?;
            self.node.mut_store().voters = self.state.voters.clone();
        }
        if let Some(doc) = Doc::new(config) {
            self.state.config = Some(Config::parse(doc, None)?);
        }
        // A start takes up what is behind the commit point that is saved: there may be more changes.
        self.saved_commit = self.saved_commit.max(index);
        self.state.hard.commit = self.saved_commit;
        self.log().save(&self.state)
    }

    /// What raft-rs says that this member is.
    fn follow_role(&mut self, news: &mut News) -> Result<()> {
        let role = match self.node.raft.state {
            StateRole::Follower => MemberRole::Secondary,
            StateRole::Candidate | StateRole::PreCandidate => MemberRole::Candidate,
            // Everything before this term is applied once its first entry is.
            StateRole::Leader => match &self.begin {
                Some(begin)
                    if begin.term == self.term()
                        && self.log().applied_index() >= begin.index
                        && self.is_electable() =>
                {
                    MemberRole::Primary
                }
                _ => MemberRole::Elected,
            },
        };
        if role == MemberRole::Elected && self.role != role {
            // What was answered to this member in an earlier term says nothing of this one.
            self.answered.clear();
        }
        if role == MemberRole::Primary && self.role != MemberRole::Primary {
            self.log().set_term(self.term())?;
        }
        news.changed |= role != self.role;
        self.role = role;
        Ok(())
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
