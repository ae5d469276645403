//! What an index writes down of how far it is, without a commit.

use errors::{Error, Result};
use search::Position;
use std::path::Path;

/// How far an index is whose last commit is older: nothing in between did concern it.
///
/// ```text
/// seen    commit u64 LE | index u64 LE | ts u64 LE | crc32c LE of these
/// ```
/// It need not be durable. Without it the index reads the log from its commit on.
pub(super) struct Note;

impl Note {
    const FILE: &'static str = "seen";

    pub fn read(dir: &Path, committed: Position) -> Option<Position> {
        let bytes = std::fs::read(dir.join(Note::FILE)).ok()?;
        let bytes: [u8; 28] = bytes.try_into().ok()?;
        let (body, sum) = bytes.split_at(24);
        let number = |at: usize| {
            let b = body.get(at..at + 8)?;
            Some(u64::from_le_bytes(b.try_into().ok()?))
        };
        let sound = search::checksum(body).to_le_bytes() == *sum;
        (sound && number(0)? == committed.index).then_some(Position {
            index: number(8)?,
            ts: number(16)?,
        })
    }

    pub fn write(dir: &Path, committed: Position, at: Position) -> Result<()> {
        let mut bytes = Vec::with_capacity(28);
        for n in [committed.index, at.index, at.ts] {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        bytes.extend_from_slice(&search::checksum(&bytes).to_le_bytes());
        let failed = |e: std::io::Error| Error::internal(format!("search index: {e}"));
        std::fs::write(dir.join(Note::FILE), bytes).map_err(failed)?;
        Ok(())
    }
}
