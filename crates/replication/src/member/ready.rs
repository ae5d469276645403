//! Carries out what raft-rs requests, in its order: state, entries into the log, messages, committed
//! entries.
//!
//! Invariants:
//! - A vote and a term are on disk before a message tells of them.
//! - Entries are cut from the log only where none of them is applied; else the member starts again.
//! - Changes of voters and configuration are taken when they are committed, and written down.
//! - A primary applies nothing here that its store has proposed.

use super::{Member, MemberLog, News, Unsynced, broken, is_same};
use crate::config::Config;
use crate::log_view::{self, VoterChange};
use bson::Doc;
use errors::{Error, Fallible};
use raft::eraftpb::{Entry, Message, MessageType};
use raft::{Ready, StateRole};
use storage::Record;

impl<L: MemberLog + Clone> Member<L> {
    /// Does what raft-rs asks for, until it asks for nothing.
    pub(super) fn process(&mut self) -> Fallible<News> {
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

    fn take(&mut self, mut ready: Ready, news: &mut News) -> Fallible<()> {
        if let Some(why) = self.close_deposed()? {
            news.restart = Some(why);
            return Ok(());
        }
        if let Some(hard) = ready.hs() {
            let before = &self.state.hard;
            assert!(
                hard.term > before.term
                    || hard.term == before.term && (before.vote == 0 || before.vote == hard.vote),
                "a term does not go back, and has one vote"
            );
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
        let told = |m: &Message| is_asked_before(m) || m.term <= self.state.hard.term;
        assert!(
            sent.iter().chain(&persisted).all(told),
            "a term is on disk before a message tells of it"
        );
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
            assert!(
                self.unsynced.back().is_none_or(|u| u.ready < number),
                "what waits for the disk is in its order"
            );
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

    /// Appends the entries that are not in the log yet. Gives the reason why the member has to start
    /// again.
    fn append(&mut self, entries: &[Entry]) -> Fallible<Option<String>> {
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
    /// counted first: a reader that sees another count has to read the log again.
    fn take_back(&mut self, index: u64) -> Fallible<bool> {
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
    fn begin_term(&mut self, entries: &[Entry]) -> Fallible<()> {
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

    /// Applies entries that are committed and not applied yet. What this member has proposed as a
    /// primary its store applies by itself, and may be at it: that is not waited for, because it may
    /// wait for memory tables to be flushed, and those wait for the commit point that is moved here.
    fn commit(&mut self, committed: &[Entry], news: &mut News) -> Fallible<()> {
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
                self.reconfigure((record.index, record.term), &config, &change)?;
                news.changed = true;
            }
        }
        if self.holds_back(committed) {
            self.node.advance_apply_to(last);
            return self.follow_role(news);
        }
        let applied = self.log().applied_index();
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader;
        let is_own = |e: &Entry| {
            let begins = self.begin.as_ref().is_some_and(|b| is_same(b, e));
            leads && e.term == raft.term && !begins
        };
        let new: Vec<Entry> = committed
            .iter()
            .filter(|e| e.index > applied && !is_own(e))
            .map(|e| match &self.begin {
                Some(b) if is_same(b, e) => b.clone(),
                _ => e.clone(),
            })
            .collect();
        let records: Vec<_> = new.iter().filter_map(log_view::to_record).collect();
        assert_eq!(records.len(), new.len(), "each entry has its stamp");
        assert!(
            last <= self.commit_index(),
            "only what a majority has is applied"
        );
        if !records.is_empty() {
            self.log().apply(&records)?;
        }
        self.node.advance_apply_to(last);
        self.follow_role(news)
    }

    /// Takes the change of voters and configuration of the entry of that index and term.
    fn reconfigure(
        &mut self,
        (index, term): (u64, u64),
        config: &[u8],
        change: &[u8],
    ) -> Fallible<()> {
        if index <= self.state.forced_at {
            return Ok(());
        }
        assert!(
            index <= self.commit_index(),
            "a change of the members is taken when it is committed"
        );
        if let Some(change) = VoterChange::from_bytes(change) {
            if let VoterChange::Remove(id) = change {
                self.state.force_removed.retain(|gone| *gone != id);
            }
            self.note_admission(change, term);
            self.state.voters = self
                .node
                .apply_conf_change(&change.to_raft())
                .map_err(broken)?;
            self.node.mut_store().voters = self.state.voters.clone();
        }
        if let Some(doc) = Doc::new(config) {
            let config = Config::parse(doc, None)?;
            // A change of voters that was begun before the newest configuration bears one that is older.
            let known = self.state.config.as_ref();
            if known.is_none_or(|known| !known.is_newer_than(&config)) {
                self.state.config = Some(config);
            }
        }
        // A start applies the entries behind the saved commit point: there may be more changes.
        self.saved_commit = self.saved_commit.max(index);
        self.state.hard.commit = self.saved_commit;
        self.log().save(&self.state)
    }
}

/// Whether a message is about an election that may come to nothing: it names the term that would be, which no
/// member has yet.
fn is_asked_before(message: &Message) -> bool {
    matches!(
        message.get_msg_type(),
        MessageType::MsgRequestPreVote | MessageType::MsgRequestPreVoteResponse
    )
}
