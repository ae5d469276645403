//! Entries of the log outside of a log: packed by a server for archives, and made a log again.
//!
//! ```text
//! index u64 LE | ts u64 LE | term u64 LE | wall clock i64 LE | fingerprint of the payload u64 LE | length u32 LE | payload
//! ```
//!
//! Invariant: unpacked entries are the packed ones: an entry whose fingerprint does not agree is an
//! error.

use crate::at_rest;
use crate::restore::fingerprint;
use errors::{Error, Fallible, err};
use oplog::{Log, LogOptions, Record};
use std::path::Path;

const HEAD: usize = 44;

pub fn pack_record(record: &Record<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&record.index.to_le_bytes());
    out.extend_from_slice(&record.ts.to_le_bytes());
    out.extend_from_slice(&record.term.to_le_bytes());
    out.extend_from_slice(&record.wall_millis.to_le_bytes());
    out.extend_from_slice(&fingerprint(record.payload).to_le_bytes());
    // An entry is bounded by what the log takes: 64 MB at most.
    out.extend_from_slice(&(record.payload.len() as u32).to_le_bytes());
    out.extend_from_slice(record.payload);
}

/// What tells an entry from one of another log at the same place and time: the same on all members of a set.
pub fn record_fingerprint(record: &Record<'_>) -> u64 {
    let mut packed = Vec::with_capacity(HEAD + record.payload.len());
    pack_record(record, &mut packed);
    fingerprint(&packed)
}

/// Takes the first entry off the bytes; `None` at their end.
pub fn unpack_record<'p>(bytes: &mut &'p [u8]) -> Fallible<Option<Record<'p>>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let damaged = || {
        err!(
            DataCorruptionDetected,
            "packed entries of a log are damaged"
        )
    };
    let (head, rest) = bytes.split_at_checked(HEAD).ok_or_else(damaged)?;
    let word = |at: usize| -> u64 {
        let slice = head.get(at..at + 8).and_then(|s| s.try_into().ok());
        u64::from_le_bytes(slice.unwrap_or_default())
    };
    let len = head.get(40..44).and_then(|s| s.try_into().ok());
    let len = u32::from_le_bytes(len.unwrap_or_default());
    let len = usize::try_from(len).map_err(|_| damaged())?;
    let (payload, rest) = rest.split_at_checked(len).ok_or_else(damaged)?;
    if fingerprint(payload) != word(32) {
        return Err(damaged());
    }
    *bytes = rest;
    Ok(Some(Record {
        index: word(0),
        ts: word(8),
        term: word(16),
        wall_millis: word(24).cast_signed(),
        payload,
    }))
}

/// Makes a directory of segments, as a server has it, of packed entries in their order.
pub struct LogMaker {
    log: Option<Log>,
    options: LogOptions,
    /// Index and timestamp of the last entry; 0 before there is one.
    last: (u64, u64),
}

impl LogMaker {
    /// `dir` is new or empty.
    /// It is encrypted where it lies in a directory that is.
    pub fn new(dir: &Path) -> Fallible<LogMaker> {
        Ok(LogMaker {
            log: None,
            options: at_rest::log_options(dir)?,
            last: (0, 0),
        })
    }

    /// Appends the entries packed in `bytes`; those that are there already are skipped. The first index
    /// of all is any; the others follow on it.
    pub fn append(&mut self, mut bytes: &[u8]) -> Fallible<()> {
        let mut records = Vec::new();
        while let Some(record) = unpack_record(&mut bytes)? {
            if record.index > self.last.0 {
                records.push(record);
            }
        }
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            return Ok(());
        };
        let log = match &mut self.log {
            Some(log) => log,
            none => {
                let floor = first.ts.saturating_sub(1);
                let all = |_: Record<'_>| Ok::<(), Error>(());
                let opened = Log::open(self.options.clone(), first.index, floor, all)?;
                none.insert(opened.0)
            }
        };
        self.last = (last.index, last.ts);
        log.append_records(records.iter().copied())?;
        Ok(())
    }

    /// The timestamp of the last entry, once all are on disk; 0 where there was none.
    pub fn finish(self) -> Fallible<u64> {
        if let Some(log) = &self.log {
            log.wait_durable(log.last_index())?;
        }
        Ok(self.last.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(index: u64, payload: &[u8]) -> Record<'_> {
        Record {
            index,
            ts: index << 32 | 1,
            term: 3,
            wall_millis: -5,
            payload,
        }
    }

    #[test]
    fn packed_entries_become_a_log_that_goes_on_where_they_began() {
        let dir = tempfile::tempdir().unwrap();
        let mut maker = LogMaker::new(dir.path()).unwrap();
        for from in [7_u64, 8, 9] {
            let mut packed = Vec::new();
            for index in [from, from + 1] {
                let payload: &[u8] = if index % 2 == 1 { b"a" } else { b"" };
                pack_record(&record(index, payload), &mut packed);
            }
            maker.append(&packed).unwrap();
        }
        assert_eq!(maker.finish().unwrap(), 10 << 32 | 1);
        let mut seen = Vec::new();
        let options = LogOptions::new(dir.path());
        let examined = oplog::examine(&options, |r| {
            seen.push((r.index, r.ts, r.term, r.wall_millis, r.payload.len()));
        });
        assert!(examined.unwrap().faults.is_empty());
        let expected = [7, 8, 9, 10].map(|n: u64| (n, n << 32 | 1, 3, -5, (n % 2) as usize));
        assert_eq!(seen, expected);
    }

    #[test]
    fn damage_and_gaps_are_errors() {
        let mut packed = Vec::new();
        pack_record(&record(1, b"hello"), &mut packed);
        for at in [32, 40, HEAD, packed.len() - 1] {
            let mut bad = packed.clone();
            bad[at] ^= 1;
            assert!(unpack_record(&mut &bad[..]).is_err(), "{at}");
        }
        for len in 1..packed.len() {
            assert!(unpack_record(&mut &packed[..len]).is_err(), "{len}");
        }
        let dir = tempfile::tempdir().unwrap();
        let mut maker = LogMaker::new(dir.path()).unwrap();
        maker.append(&packed).unwrap();
        let mut behind_a_gap = Vec::new();
        pack_record(&record(3, b""), &mut behind_a_gap);
        assert!(maker.append(&behind_a_gap).is_err());
    }
}
