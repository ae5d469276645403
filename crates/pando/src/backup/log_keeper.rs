//! The log of a set, kept in an archive: read from the server behind the last kept entry, and put as it
//! comes.
//!
//! Invariant: in a line each entry follows on the one before. If the log proves to be another one,
//! another line begins, with a backup.

use super::remote::{self, LogFailure};
use crate::client::Conversation;
use archive::{Archive, At, LogPiece};
use storage::{fingerprint, record_fingerprint, unpack_record};

/// A piece is put again with more in it until it is of this size.
const FULL_BYTES: usize = 1 << 20;

pub(super) struct LogKeeper<'a> {
    archive: &'a Archive,
    pub set: String,
    pub line: String,
    /// The last entry that was read; without a timestamp nothing was, and any entry behind the index is right.
    pub last: At,
    /// Its fingerprint: another log may have an entry of that place and time.
    print: Option<u64>,
    /// Entries that are in no full piece, and the index of the first of them.
    tail: Vec<u8>,
    tail_first: u64,
    /// The piece that has them, or some of them.
    tail_piece: Option<LogPiece>,
    /// The fingerprint of an entry that a backup ends with.
    watched: Option<(u64, Option<u64>)>,
}

impl<'a> LogKeeper<'a> {
    /// Goes on where the archive ends, in that line.
    pub fn go_on(
        archive: &'a Archive,
        set: &str,
        line: &str,
    ) -> Result<Option<LogKeeper<'a>>, String> {
        let pieces = archive.pieces(line, set)?;
        let Some(piece) = pieces.into_iter().max_by_key(|p| p.last) else {
            return Ok(None);
        };
        let packed = archive.read_piece(&piece)?;
        let Some((last, print)) =
            last_entry(&packed).map_err(|why| format!("the log in the archive: {why}"))?
        else {
            return Ok(None);
        };
        let first = piece.first;
        let is_full = packed.len() >= FULL_BYTES;
        let mut keeper = LogKeeper::begin(archive, set, line, last);
        keeper.print = Some(print);
        if !is_full {
            (keeper.tail, keeper.tail_first, keeper.tail_piece) = (packed, first, Some(piece));
        }
        Ok(Some(keeper))
    }

    /// A new line, or one that has nothing to go on with.
    pub fn begin(archive: &'a Archive, set: &str, line: &str, after: At) -> LogKeeper<'a> {
        LogKeeper {
            archive,
            set: set.into(),
            line: line.into(),
            last: after,
            print: None,
            tail: Vec::new(),
            tail_first: after.index + 1,
            tail_piece: None,
            watched: None,
        }
    }

    /// Notes the fingerprint of that entry when it comes by.
    pub fn watch(&mut self, index: u64) {
        self.watched = Some((index, None));
    }

    pub fn seen_fingerprint(&self) -> Option<u64> {
        self.watched.and_then(|(_, seen)| seen)
    }

    /// Reads all that the server has. Returns whether there was anything.
    pub fn pull(&mut self, c: &mut Conversation, reach: u64) -> Result<bool, LogFailure> {
        let before = self.last.index;
        loop {
            let entries = remote::log(c, &self.set, self.last, self.print, reach)?;
            self.take(&entries.packed).map_err(LogFailure::Failed)?;
            if entries.last.index > self.last.index {
                return Err(LogFailure::Failed(
                    "the server told fewer entries than it said".into(),
                ));
            }
            if self.tail.len() >= FULL_BYTES {
                self.put().map_err(LogFailure::Failed)?;
            }
            if !entries.more {
                break;
            }
        }
        if self.last.index > before {
            self.put().map_err(LogFailure::Failed)?;
        }
        Ok(self.last.index > before)
    }

    fn take(&mut self, packed: &[u8]) -> Result<(), String> {
        let mut rest = packed;
        while let Some(record) = unpack_record(&mut rest).map_err(|e| e.into_message())? {
            if record.index != self.last.index + 1 {
                return Err(format!(
                    "behind entry {} the server told entry {}",
                    self.last.index, record.index
                ));
            }
            if let Some((index, seen)) = &mut self.watched
                && *index == record.index
            {
                *seen = Some(fingerprint(record.payload));
            }
            self.last = At {
                index: record.index,
                ts: record.ts,
            };
            self.print = Some(record_fingerprint(&record));
        }
        if self.tail.is_empty() {
            self.tail_first = first_of(packed)?.unwrap_or(self.tail_first);
        }
        self.tail.extend_from_slice(packed);
        Ok(())
    }

    /// Puts the tail in place of the piece that has its beginning.
    fn put(&mut self) -> Result<(), String> {
        if self.tail.is_empty() {
            return Ok(());
        }
        let range = (self.tail_first, self.last.index);
        let piece = self
            .archive
            .put_piece(&self.line, &self.set, range, &self.tail)?;
        if let Some(shorter) = self.tail_piece.replace(piece)
            && shorter.last < range.1
        {
            self.archive.remove_piece(&shorter)?;
        }
        if self.tail.len() >= FULL_BYTES {
            self.tail.clear();
            self.tail_piece = None;
        }
        Ok(())
    }
}

fn first_of(mut packed: &[u8]) -> Result<Option<u64>, String> {
    let first = unpack_record(&mut packed).map_err(|e| e.into_message())?;
    Ok(first.map(|r| r.index))
}

/// The last of packed entries, each of which is compared with its fingerprint.
pub(crate) fn last_of(packed: &[u8]) -> Result<Option<At>, String> {
    Ok(last_entry(packed)?.map(|(at, _)| at))
}

/// The same with its fingerprint.
fn last_entry(mut packed: &[u8]) -> Result<Option<(At, u64)>, String> {
    let mut last = None;
    while let Some(record) = unpack_record(&mut packed).map_err(|e| e.into_message())? {
        let at = At {
            index: record.index,
            ts: record.ts,
        };
        last = Some((at, record_fingerprint(&record)));
    }
    Ok(last)
}
