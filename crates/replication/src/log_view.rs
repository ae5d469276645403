//! The log as raft-rs reads it.
//!
//! An entry of the log and one of raft-rs are the same entry in two forms:
//!
//! ```text
//! context = timestamp u64 LE | wall clock i64 LE | payload, of a change of voters only
//! data    = payload; of a change of voters: the change in raft-rs's own form
//! ```
//!
//! An entry of raft-rs without a context is what a new primary begins its term with: it gets its
//! timestamp when it is appended.
//!
//! Invariant: entries that were made without a replica set have term 0 in the log, and term 1 here:
//! raft-rs takes term 0 for "there is no such entry". Elections begin at term 2.

use crate::member::{MemberLog, OpTime};
use crate::state_file::SavedState;
use errors::Error;
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeType, ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::RefCell;
use std::collections::VecDeque;
use storage::{Appended, Record};

/// The term of entries of before there was a set.
pub const FIRST_TERM: u64 = 1;

/// So many bytes of the log's end are kept in memory: what followers that keep up are sent.
const RECENT_BYTES: usize = 16 << 20;

/// What a change of voters does: the bytes in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoterChange {
    Voter(u64),
    Learner(u64),
    Remove(u64),
}

impl VoterChange {
    pub fn to_bytes(self) -> Vec<u8> {
        let (kind, id) = match self {
            VoterChange::Voter(id) => (1, id),
            VoterChange::Learner(id) => (2, id),
            VoterChange::Remove(id) => (3, id),
        };
        let mut bytes = vec![kind];
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes
    }

    /// `None` for bytes that are no change: a configuration that leaves the voters as they are.
    pub fn from_bytes(bytes: &[u8]) -> Option<VoterChange> {
        let (kind, id) = bytes.split_first()?;
        let id = u64::from_le_bytes(id.try_into().ok()?);
        match kind {
            1 => Some(VoterChange::Voter(id)),
            2 => Some(VoterChange::Learner(id)),
            3 => Some(VoterChange::Remove(id)),
            _ => None,
        }
    }

    /// In the form of raft-rs.
    pub fn to_raft(self) -> ConfChange {
        let (kind, id) = match self {
            VoterChange::Voter(id) => (ConfChangeType::AddNode, id),
            VoterChange::Learner(id) => (ConfChangeType::AddLearnerNode, id),
            VoterChange::Remove(id) => (ConfChangeType::RemoveNode, id),
        };
        let mut change = ConfChange::default();
        change.set_change_type(kind);
        change.node_id = id;
        change
    }
}

/// The stamp of an entry as its context begins.
fn stamp(ts: u64, wall_millis: i64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend_from_slice(&ts.to_le_bytes());
    bytes.extend_from_slice(&wall_millis.to_le_bytes());
    bytes
}

/// The change of voters in an entry of the log.
pub fn change_of(payload: &[u8]) -> Option<VoterChange> {
    let (_, change) = storage::Entry::membership(payload)?;
    VoterChange::from_bytes(&change)
}

/// Kind, context and data of an entry of the log.
fn parts(ts: u64, wall_millis: i64, payload: Vec<u8>) -> (EntryType, Vec<u8>, Vec<u8>) {
    let mut context = stamp(ts, wall_millis);
    match change_of(&payload) {
        None => (EntryType::EntryNormal, context, payload),
        Some(change) => {
            context.extend_from_slice(&payload);
            // A message of fixed fields always has bytes.
            let data = change.to_raft().write_to_bytes().unwrap_or_default();
            (EntryType::EntryConfChange, context, data)
        }
    }
}

/// What raft-rs is asked to take as the next entry.
pub fn proposal(appended: Appended) -> Entry {
    let (kind, context, data) = parts(appended.ts, appended.wall_millis, appended.payload);
    let mut entry = Entry::default();
    entry.set_entry_type(kind);
    entry.context = context.into();
    entry.data = data.into();
    entry
}

pub fn to_raft(record: &Record<'_>) -> Entry {
    let (kind, context, data) = parts(record.ts, record.wall_millis, record.payload.to_vec());
    let mut entry = Entry::default();
    entry.set_entry_type(kind);
    entry.index = record.index;
    entry.term = record.term.max(FIRST_TERM);
    entry.context = context.into();
    entry.data = data.into();
    entry
}

/// The entry of the log; `None` where it has no stamp yet.
pub fn to_record(entry: &Entry) -> Option<Record<'_>> {
    let number = |at: usize| <[u8; 8]>::try_from(entry.context.get(at..at + 8)?).ok();
    let payload = match entry.get_entry_type() {
        EntryType::EntryNormal => &entry.data,
        _ => entry.context.get(16..)?,
    };
    Some(Record {
        index: entry.index,
        ts: u64::from_le_bytes(number(0)?),
        term: entry.term,
        wall_millis: i64::from_le_bytes(number(8)?),
        payload,
    })
}

/// What raft-rs reads: the log, and the state beside it.
pub(crate) struct LogView<L> {
    pub log: L,
    pub hard: HardState,
    pub voters: ConfState,
    /// The last entry that raft-rs was told of. The log may be ahead of it.
    last: u64,
    /// The end of the log, in order and without a gap.
    recent: VecDeque<Entry>,
    recent_bytes: usize,
    /// Index and term of the entry before the log's first, where a copy of files ended with it.
    base: Option<(u64, u64)>,
    /// Members that lack what the log has no more.
    left_behind: RefCell<Vec<u64>>,
    /// Index and term of the last entry of each of the newest readings that went past `recent`. The next
    /// message to a follower that is behind names it, and the log has no index: finding one entry there
    /// reads a part of a segment.
    read_ends: RefCell<VecDeque<(u64, u64)>>,
}

/// So many ends of readings are known: several for each member that is behind.
const READ_ENDS: usize = 16;

impl<L: MemberLog> LogView<L> {
    pub fn new(log: L, state: &SavedState) -> LogView<L> {
        LogView {
            last: log.last_index(),
            log,
            hard: state.hard.clone(),
            voters: state.voters.clone(),
            base: state.base,
            left_behind: RefCell::default(),
            read_ends: RefCell::default(),
            recent: VecDeque::new(),
            recent_bytes: 0,
        }
    }

    /// The members that were found to lack what the log has no more, since this was asked.
    pub fn take_left_behind(&self) -> Vec<u64> {
        std::mem::take(&mut *self.left_behind.borrow_mut())
    }

    /// Keeps entries that are in the log now.
    pub fn keep(&mut self, entries: &[Entry]) {
        if let Some(first) = entries.first() {
            self.read_ends
                .get_mut()
                .retain(|(index, _)| *index < first.index);
        }
        self.last = entries.last().map_or(self.last, |e| e.index);
        for entry in entries {
            while self.recent.back().is_some_and(|e| e.index >= entry.index) {
                self.forget_last();
            }
            if self
                .recent
                .back()
                .is_some_and(|e| e.index + 1 != entry.index)
            {
                self.recent.clear();
                self.recent_bytes = 0;
            }
            assert!(
                self.recent
                    .back()
                    .is_none_or(|e| e.index + 1 == entry.index),
                "the end of the log is kept without a gap"
            );
            self.recent_bytes += size(entry);
            self.recent.push_back(entry.clone());
        }
        while self.recent_bytes > RECENT_BYTES && self.recent.len() > 1 {
            let gone = self.recent.pop_front();
            self.recent_bytes -= gone.as_ref().map_or(0, size);
        }
    }

    /// When the entry at an index was made.
    pub fn op_time(&self, index: u64) -> Option<OpTime> {
        if let Some(entry) = self.recent_at(index).and_then(|at| self.recent.get(at)) {
            return to_record(entry).map(|r| OpTime::of(&r));
        }
        let mut time = None;
        if index == 0 || index < self.log.first_index() || index > self.last {
            return None;
        }
        let read = self
            .log
            .read(index, index + 1, 0, &mut |r| time = Some(OpTime::of(&r)));
        read.ok().and(time)
    }

    fn forget_last(&mut self) {
        let gone = self.recent.pop_back();
        self.recent_bytes -= gone.as_ref().map_or(0, size);
    }

    fn recent_at(&self, index: u64) -> Option<usize> {
        let first = self.recent.front()?.index;
        let at = usize::try_from(index.checked_sub(first)?).ok()?;
        (at < self.recent.len()).then_some(at)
    }
}

fn size(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + 64
}

fn unavailable(e: Error) -> raft::Error {
    raft::Error::Store(StorageError::Other(e.into_message().into()))
}

impl<L: MemberLog> Storage for LogView<L> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), self.voters.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.first_index()? {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        if let Some(at) = self.recent_at(low) {
            let mut total = 0u64;
            let fits = |e: &&Entry| {
                let before = total;
                total += size(e) as u64;
                e.index < high && (before == 0 || total <= max)
            };
            return Ok(self.recent.range(at..).take_while(fits).cloned().collect());
        }
        let mut entries = Vec::new();
        self.log
            .read(low, high, max, &mut |record| entries.push(to_raft(&record)))
            .map_err(unavailable)?;
        if let Some(last) = entries.last() {
            let mut ends = self.read_ends.borrow_mut();
            if ends.len() == READ_ENDS {
                ends.pop_front();
            }
            ends.push_back((last.index, last.term));
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == 0 {
            return Ok(0);
        }
        if let Some(entry) = self.recent_at(index).and_then(|at| self.recent.get(at)) {
            return Ok(entry.term);
        }
        if let Some((base, term)) = self.base
            && base == index
        {
            return Ok(term);
        }
        if index + 1 < self.first_index()? {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if let Some((_, term)) = self.read_ends.borrow().iter().find(|(at, _)| *at == index) {
            return Ok(*term);
        }
        let mut term = None;
        self.log
            .read(index, index + 1, 0, &mut |record| term = Some(record.term))
            .map_err(|_| raft::Error::Store(StorageError::Compacted))?;
        Ok(term
            .ok_or(raft::Error::Store(StorageError::Unavailable))?
            .max(FIRST_TERM))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.log.first_index().max(1))
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    /// A member that lacks entries which no log has any more copies the files of another
    /// ([`crate::initial_sync`]); nothing is sent in place of the entries.
    fn snapshot(&self, _: u64, to: u64) -> raft::Result<Snapshot> {
        let mut left_behind = self.left_behind.borrow_mut();
        if !left_behind.contains(&to) {
            left_behind.push(to);
        }
        Err(raft::Error::Store(
            StorageError::SnapshotTemporarilyUnavailable,
        ))
    }
}
