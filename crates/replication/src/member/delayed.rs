//! Members that stay behind on purpose (`secondaryDelaySecs`): an entry is in their log and on their
//! disk at once, which they say and which counts, and is applied when it is that old.
//!
//! Invariants:
//! - Changes of voters and configuration are never held back: they are taken when they are committed.
//! - Entries that are applied late are read from the log, so a delay of days holds nothing in memory.
//! - Only entries that are committed and on this disk are applied.

use super::{Member, MemberLog, News, raft_id};
use crate::log_view;
use crate::state_file::SavedState;
use errors::{Error, Fallible};
use raft::eraftpb::Entry;
use std::time::{SystemTime, UNIX_EPOCH};

/// What one call applies at the most: so many reads of so many bytes. A member that is no longer
/// delayed has much to apply, and is to answer the others meanwhile.
const READS: usize = 2;
const READ_BYTES: u64 = 4 << 20;

impl SavedState {
    /// How old an entry is before this member applies it, in milliseconds.
    pub fn delay_millis(&self) -> i64 {
        let config = self.config.as_ref();
        let own = config.and_then(|c| c.members.iter().find(|m| raft_id(m.id) == self.id));
        own.map_or(0, |m| m.delay_secs.saturating_mul(1000))
    }

    /// A start applies entries made before that, in milliseconds since 1970.
    pub fn applies_made_before(&self, now: SystemTime) -> i64 {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        match self.delay_millis() {
            0 => i64::MAX,
            delay => i64::try_from(since.as_millis()).unwrap_or(i64::MAX) - delay,
        }
    }
}

impl<L: MemberLog + Clone> Member<L> {
    pub fn is_delayed(&self) -> bool {
        self.state.delay_millis() > 0
    }

    /// The last entry that readers may see: committed, and on a delayed member applied.
    pub fn shown_index(&self) -> u64 {
        match self.is_delayed() {
            true => self.commit_index().min(self.log().applied_index()),
            false => self.commit_index(),
        }
    }

    /// Whether entries wait here to be applied, so that others cannot be applied before them.
    pub(super) fn holds_back(&mut self, committed: &[Entry]) -> bool {
        let applied = self.log().applied_index();
        let next = committed.iter().map(|e| e.index).find(|i| *i > applied);
        self.held_back = self.is_delayed() || next.is_some_and(|next| next > applied + 1);
        self.held_back
    }

    /// Applies entries that are old enough, in parts if they are many.
    pub(super) fn apply_due(&mut self, news: &mut News) -> Fallible<()> {
        if !self.held_back || news.restart.is_some() {
            return Ok(());
        }
        let newest = match self.state.delay_millis() {
            0 => i64::MAX,
            delay => i64::try_from(self.log().now_millis()).unwrap_or(i64::MAX) - delay,
        };
        for _ in 0..READS {
            let applied = self.log().applied_index();
            let end = self.commit_index().min(self.log().durable_index());
            if applied >= end {
                self.held_back = self.is_delayed() || applied < self.commit_index();
                return self.follow_role(news);
            }
            let (mut due, mut waits) = (Vec::new(), false);
            self.log()
                .read(applied + 1, end + 1, READ_BYTES, &mut |record| {
                    waits |= record.wall_millis > newest;
                    if !waits {
                        due.push(log_view::to_raft(&record));
                    }
                })?;
            let records: Vec<_> = due.iter().filter_map(log_view::to_record).collect();
            if records.len() != due.len() {
                return Err(Error::internal("an entry without a stamp is in the log"));
            }
            if !records.is_empty() {
                self.log().apply(&records)?;
            }
            if waits || records.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }
}
