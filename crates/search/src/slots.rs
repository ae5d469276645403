//! The file of a field's vectors.
//!
//! ```text
//! vectors-N.f32    slot 0 | slot 1 | …      `dimensions` f32 LE and their crc32c LE each, of the N-th vector field
//! ```
//! Slots are only appended; those of documents that changed stay until the index is built anew.
//!
//! Invariants:
//! - The file is on disk up to a commit's count of slots before that commit is.
//! - In an encrypted directory a slot that was not committed is not written over: the committed ones move to a new file.

use crate::definition::OrProblem;
use crate::files::damaged;
use encryption::{DataFile, DataFiles};
use errors::Result;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most bytes that one read of the file takes.
const READ_BYTES: usize = 1 << 20;

/// The bytes of a slot's checksum.
const SUM_BYTES: usize = 4;

/// The file of a field's vectors.
pub(crate) fn file_of(dir: &Path, field: usize) -> PathBuf {
    dir.join(format!("vectors-{field}.f32"))
}

/// The bytes of a slot.
fn slot_bytes(dimensions: usize) -> usize {
    dimensions * 4 + SUM_BYTES
}

/// The vector of a slot; `None`: it is not what was written.
fn sound(slot: &[u8]) -> Option<&[u8]> {
    let (vector, sum) = slot.split_last_chunk::<SUM_BYTES>()?;
    (crc32c::crc32c(vector).to_le_bytes() == *sum).then_some(vector)
}

/// Fails where one of the first `count` slots is not what was written. Reads them all.
pub(crate) fn check(path: &Path, data: &DataFiles, dimensions: usize, count: u64) -> Result<()> {
    let bytes = slot_bytes(dimensions);
    let Ok(file) = data.open(path) else {
        return Err(damaged("vectors"));
    };
    let (mut left, mut whole) = (Vec::new(), 0);
    let mut file = file.reader().take(count * bytes as u64);
    crate::directory::each_block(&mut file, |block| {
        left.extend_from_slice(block);
        let end = left.len() / bytes * bytes;
        let slots = left.get(..end).unwrap_or(&[]).chunks_exact(bytes);
        whole += slots.take_while(|s| sound(s).is_some()).count() as u64;
        left.drain(..end);
        Ok(())
    })?;
    match whole == count {
        true => Ok(()),
        false => Err(damaged("vectors")),
    }
}

/// Appends vectors.
pub(crate) struct Slots {
    file: Arc<DataFile>,
    /// The end of what is in the file.
    end: u64,
    count: u64,
    buffer: Vec<u8>,
    /// Some of the file is not on disk yet.
    unsynced: bool,
}

impl Slots {
    /// Goes on behind `count` slots: what is behind them was not committed.
    pub fn open(path: &Path, data: &DataFiles, dimensions: usize, count: u64) -> Result<Slots> {
        let end = count * slot_bytes(dimensions) as u64;
        let mut file = data.open_to_write(path).or_problem()?;
        if data.is_encrypted() && file.bytes().or_problem()? > end {
            file = moved(&file, path, data, end)?;
        }
        file.set_bytes(end).or_problem()?;
        Ok(Slots {
            file: Arc::new(file),
            end,
            count,
            buffer: Vec::new(),
            unsynced: false,
        })
    }

    pub fn file(&self) -> &Arc<DataFile> {
        &self.file
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// The slot of a vector.
    pub fn push(&mut self, vector: &[f32]) -> Result<u64> {
        let start = self.buffer.len();
        vector
            .iter()
            .for_each(|n| self.buffer.extend_from_slice(&n.to_le_bytes()));
        let sum = crc32c::crc32c(self.buffer.get(start..).unwrap_or(&[]));
        self.buffer.extend_from_slice(&sum.to_le_bytes());
        if self.buffer.len() > READ_BYTES {
            self.flush()?;
        }
        self.count += 1;
        Ok(self.count - 1)
    }

    fn flush(&mut self) -> Result<()> {
        self.unsynced = true;
        let written = self.file.write_all_at(&self.buffer, self.end);
        written.or_problem()?;
        self.end += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// All that was pushed is on disk.
    pub fn sync(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        if self.unsynced {
            self.file.sync_data().or_problem()?;
            self.unsynced = false;
        }
        Ok(())
    }
}

/// The first bytes of a file in a new one of its name, which has a key of its own.
fn moved(file: &DataFile, path: &Path, data: &DataFiles, bytes: u64) -> Result<DataFile> {
    let part = path.with_extension("tmp");
    let new = data.create(&part).or_problem()?;
    let mut at = 0;
    crate::directory::each_block(&mut file.reader().take(bytes), |block| {
        let written = new.write_all_at(block, at);
        at += block.len() as u64;
        written.or_problem()
    })?;
    new.finish(bytes).or_problem()?;
    std::fs::rename(&part, path).or_problem()?;
    Ok(new)
}

/// Reads slots, best in their order.
pub(crate) struct SlotReader {
    file: Arc<DataFile>,
    bytes: usize,
    a_read: u64,
    start: u64,
    block: Vec<u8>,
}

impl SlotReader {
    /// `at_once`: the most slots that it reads at a time.
    pub fn new(file: Arc<DataFile>, dimensions: usize, at_once: usize) -> SlotReader {
        let bytes = slot_bytes(dimensions);
        SlotReader {
            file,
            bytes,
            a_read: (READ_BYTES / bytes).clamp(1, at_once.max(1)) as u64,
            start: u64::MAX,
            block: Vec::new(),
        }
    }

    /// The vector of a slot: its f32 LE.
    pub fn read(&mut self, slot: u64) -> Result<&[u8]> {
        let first = slot / self.a_read * self.a_read;
        if first != self.start {
            self.start = u64::MAX;
            let length = self.a_read as usize * self.bytes;
            read_block(
                &self.file,
                first * self.bytes as u64,
                length,
                &mut self.block,
            )?;
            self.start = first;
        }
        let from = usize::try_from(slot - first).unwrap_or(0) * self.bytes;
        let found = self.block.get(from..from + self.bytes);
        found.and_then(sound).ok_or_else(|| damaged("vectors"))
    }

    /// The same as numbers.
    pub fn numbers(&mut self, slot: u64) -> Result<Vec<f32>> {
        let bytes = self.read(slot)?.chunks_exact(4);
        let number = |c: &[u8]| Some(f32::from_le_bytes(c.try_into().ok()?));
        Ok(bytes.filter_map(number).collect())
    }
}

fn read_block(file: &DataFile, at: u64, bytes: usize, block: &mut Vec<u8>) -> Result<()> {
    block.resize(bytes, 0);
    let mut filled = 0;
    while let Some(rest) = block.get_mut(filled..).filter(|r| !r.is_empty()) {
        match file.read_at(rest, at + filled as u64).or_problem()? {
            0 => break,
            n => filled += n,
        }
    }
    block.truncate(filled);
    Ok(())
}
