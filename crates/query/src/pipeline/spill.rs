//! Sorted runs outside memory, and their merge: how a blocking stage goes beyond its memory.
//!
//! ```text
//! run   = entry*                    ascending by key
//! entry = key length u32 LE | key | payload length u32 LE | payload
//! ```
//! Runs are numbered in order of writing; of equal keys the one from the earlier run comes first, so that merging is stable.

use errors::{Error, Result};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};

/// Temporary storage that the host lends: written once, read once, gone when dropped.
pub trait SpillFile: Read + Write + Seek + Send {}

impl<T: Read + Write + Seek + Send> SpillFile for T {}

#[derive(Default)]
pub struct Runs {
    files: Vec<Box<dyn SpillFile>>,
}

fn failed(e: io::Error) -> Error {
    errors::err!(OutOfDiskSpace, "temporary file of a blocking stage: {e}")
}

fn write_part(w: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    w.write_all(&len.to_le_bytes())?;
    w.write_all(bytes)
}

/// `None` at the end.
fn read_part(r: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    match r.read_exact(&mut len) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
    r.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

impl Runs {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Writes entries, which are in order, as one run; gives its bytes.
    pub fn write<'a>(
        &mut self,
        file: Box<dyn SpillFile>,
        entries: impl Iterator<Item = (&'a [u8], Vec<u8>)>,
    ) -> Result<u64> {
        let mut w = BufWriter::with_capacity(1 << 18, file);
        let mut bytes = 0;
        for (key, payload) in entries {
            write_part(&mut w, key).map_err(failed)?;
            write_part(&mut w, &payload).map_err(failed)?;
            bytes += (8 + key.len() + payload.len()) as u64;
        }
        self.files
            .push(w.into_inner().map_err(|e| failed(e.into_error()))?);
        Ok(bytes)
    }

    /// All runs as one sequence.
    pub fn merge(self) -> Result<Merge> {
        let mut merge = Merge {
            heads: BinaryHeap::new(),
            files: Vec::new(),
        };
        for (i, mut f) in self.files.into_iter().enumerate() {
            f.seek(SeekFrom::Start(0)).map_err(failed)?;
            merge.files.push(BufReader::with_capacity(1 << 16, f));
            merge.refill(i)?;
        }
        Ok(merge)
    }
}

/// The next entry of each run: key, number of the run, payload.
type Head = Reverse<(Vec<u8>, usize, Vec<u8>)>;

/// All runs as one sequence.
pub struct Merge {
    heads: BinaryHeap<Head>,
    files: Vec<BufReader<Box<dyn SpillFile>>>,
}

impl Merge {
    fn refill(&mut self, run: usize) -> Result<()> {
        let Some(f) = self.files.get_mut(run) else {
            return Ok(());
        };
        if let Some(key) = read_part(f).map_err(failed)? {
            let payload = read_part(f).map_err(failed)?.unwrap_or_default();
            self.heads.push(Reverse((key, run, payload)));
        }
        Ok(())
    }

    /// The key that comes next.
    pub fn peek_key(&self) -> Option<&[u8]> {
        self.heads.peek().map(|Reverse((k, ..))| k.as_slice())
    }

    /// The next entry in order: key and payload.
    pub fn next_entry(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Some(Reverse((key, run, payload))) = self.heads.pop() else {
            return Ok(None);
        };
        self.refill(run)?;
        Ok(Some((key, payload)))
    }
}

/// Documents outside memory, in their order, to be read more than once.
pub(super) struct Tape {
    file: BufReader<Box<dyn SpillFile>>,
}

impl Tape {
    pub fn write<'a>(
        file: Box<dyn SpillFile>,
        first: impl Iterator<Item = &'a [u8]>,
    ) -> Result<TapeWriter> {
        let mut w = TapeWriter(BufWriter::with_capacity(1 << 18, file));
        for doc in first {
            w.push(doc)?;
        }
        Ok(w)
    }

    pub fn rewind(&mut self) -> Result<()> {
        self.file.rewind().map_err(failed)
    }

    pub fn next(&mut self) -> Result<Option<Vec<u8>>> {
        read_part(&mut self.file).map_err(failed)
    }
}

pub(super) struct TapeWriter(BufWriter<Box<dyn SpillFile>>);

impl TapeWriter {
    pub fn push(&mut self, doc: &[u8]) -> Result<()> {
        write_part(&mut self.0, doc).map_err(failed)
    }

    pub fn finish(self) -> Result<Tape> {
        let file = self.0.into_inner().map_err(|e| failed(e.into_error()))?;
        Ok(Tape {
            file: BufReader::with_capacity(1 << 16, file),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn merges_stably() {
        let mut runs = Runs::default();
        for run in [&["a1", "c1"][..], &["a2", "b2"], &[]] {
            let entries = run
                .iter()
                .map(|e| (&e.as_bytes()[..1], e.as_bytes().to_vec()));
            runs.write(Box::new(Cursor::new(Vec::new())), entries)
                .unwrap();
        }
        let mut m = runs.merge().unwrap();
        let mut all = Vec::new();
        while let Some((_, p)) = m.next_entry().unwrap() {
            all.push(String::from_utf8(p).unwrap());
        }
        assert_eq!(all, ["a1", "a2", "b2", "c1"]);
    }
}
