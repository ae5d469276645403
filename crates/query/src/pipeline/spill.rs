//! Sorted runs outside memory, and their merge: how a blocking stage goes beyond its memory.
//!
//! ```text
//! run   = entry*                    ascending by key
//! entry = key length u32 LE | key | payload length u32 LE | payload
//! ```
//! Runs are numbered in order of writing; of equal keys the one from the earlier run comes first,
//! so that merging is stable.
//!
//! Runs of one level lie in one file, one after the other. When there are many they are merged into
//! one run of the next level, whose runs are therefore the earlier ones: neither files nor what a
//! merge holds grow with the number of runs, which may be large where there is little memory.

use super::PipelineHost;
use errors::{Error, Result, Stop};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;

/// So many small runs are merged into one; ...
const MANY: usize = 32;
/// ... of longer ones, which are better read once more than twice, more.
const MANY_LONG: usize = 256;
const LONG_BYTES: u64 = 4 << 20;

/// Temporary storage that the host lends: written once, read once, gone when dropped.
pub trait SpillFile: Read + Write + Seek + Send {}

impl<T: Read + Write + Seek + Send> SpillFile for T {}

/// Where runs go.
pub trait SpillTarget {
    fn file(&mut self) -> Result<Box<dyn SpillFile>>;
    /// Whether to go on: asked for each entry of a merge.
    fn check(&mut self) -> Result<()>;
}

impl SpillTarget for dyn PipelineHost + '_ {
    fn file(&mut self) -> Result<Box<dyn SpillFile>> {
        self.spill()
    }

    fn check(&mut self) -> Result<()> {
        PipelineHost::check(self)
    }
}

#[derive(Default)]
pub struct Runs {
    /// The latest runs first.
    levels: Vec<Level>,
}

struct Level {
    file: Box<dyn SpillFile>,
    runs: Vec<Range<u64>>,
}

pub(super) fn failed(e: io::Error) -> Stop {
    errors::err!(OutOfDiskSpace, "temporary file of a blocking stage: {e}").into()
}

pub(super) fn write_part(w: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    w.write_all(&len.to_le_bytes())?;
    w.write_all(bytes)
}

/// `None` at the end.
pub(super) fn read_part(r: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
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

impl Level {
    fn new(file: Box<dyn SpillFile>) -> Level {
        Level {
            file,
            runs: Vec::new(),
        }
    }

    /// Where the next run begins.
    fn end(&self) -> u64 {
        self.runs.last().map_or(0, |r| r.end)
    }

    fn is_full(&self) -> bool {
        let many = match self.end() / MANY as u64 {
            0..LONG_BYTES => MANY,
            _ => MANY_LONG,
        };
        self.runs.len() >= many
    }

    /// Appends a run, which `next` gives entry by entry. Of one that fails nothing is left.
    fn write<K: AsRef<[u8]>>(
        &mut self,
        mut next: impl FnMut() -> Result<Option<(K, Vec<u8>)>>,
    ) -> Result<()> {
        let start = self.end();
        self.file.seek(SeekFrom::Start(start)).map_err(failed)?;
        let mut w = BufWriter::with_capacity(1 << 16, &mut self.file);
        let mut end = start;
        while let Some((key, payload)) = next()? {
            let key = key.as_ref();
            write_part(&mut w, key).map_err(failed)?;
            write_part(&mut w, &payload).map_err(failed)?;
            end += (8 + key.len() + payload.len()) as u64;
        }
        w.flush().map_err(failed)?;
        drop(w);
        self.runs.push(start..end);
        Ok(())
    }
}

impl Runs {
    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// Takes over runs that come behind all of these.
    pub fn append(&mut self, next: Runs) {
        // The first level has the last runs: each keeps its place behind those of the levels above it.
        let mut levels = next.levels;
        levels.append(&mut self.levels);
        self.levels = levels;
    }

    /// To be called before each [`Runs::write`]: makes its file, and room in it. After an error for
    /// which `is_suspension()` holds it may be called again.
    pub fn prepare(&mut self, disk: &mut (impl SpillTarget + ?Sized)) -> Result<()> {
        if self.levels.is_empty() {
            self.levels.push(Level::new(disk.file()?));
        }
        // The longest first, so that there is room in the next.
        let mut at = self.levels.iter().take_while(|l| l.is_full()).count();
        while at > 0 {
            if at == self.levels.len() {
                self.levels.push(Level::new(disk.file()?));
            }
            let fresh = Level::new(disk.file()?);
            let (below, above) = self.levels.split_at_mut(at);
            let (Some(from), Some(to)) = (below.last_mut(), above.first_mut()) else {
                return Err(Error::internal("a level of spilled runs is missing").into());
            };
            let mut merge = Merge::new([std::mem::replace(from, fresh)])?;
            to.write(|| {
                match disk.check() {
                    // Too late for that: it would only begin anew.
                    Err(e) if !e.is_suspension() => return Err(e),
                    _ => {}
                }
                merge.next_entry()
            })?;
            at -= 1;
        }
        Ok(())
    }

    /// Writes entries, which are in order, as one run; gives its bytes.
    pub fn write<'a>(
        &mut self,
        mut entries: impl Iterator<Item = (&'a [u8], Vec<u8>)>,
    ) -> Result<u64> {
        let Some(level) = self.levels.first_mut() else {
            return Err(Error::internal("spilled runs were not prepared").into());
        };
        let start = level.end();
        level.write(|| Ok(entries.next()))?;
        Ok(level.end() - start)
    }

    /// All runs as one sequence.
    pub fn merge(self) -> Result<Merge> {
        Merge::new(self.levels.into_iter().rev())
    }
}

/// One run on its way through a merge.
struct Reader {
    /// Which file it lies in.
    file: usize,
    /// The part that is not in `buffer` yet.
    rest: Range<u64>,
    buffer: Vec<u8>,
    at: usize,
}

impl Reader {
    fn left(&self) -> u64 {
        (self.buffer.len() - self.at) as u64 + (self.rest.end - self.rest.start)
    }

    fn read(&mut self, files: &mut [Box<dyn SpillFile>], out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            if self.at == self.buffer.len() {
                let rest = self.rest.end - self.rest.start;
                let n = rest.min(if rest > LONG_BYTES { 1 << 16 } else { 1 << 13 });
                let Some(file) = files.get_mut(self.file).filter(|_| n > 0) else {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                };
                self.buffer.resize(n as usize, 0);
                self.at = 0;
                file.seek(SeekFrom::Start(self.rest.start))?;
                file.read_exact(&mut self.buffer)?;
                self.rest.start += n;
            }
            let mut have = self.buffer.get(self.at..).unwrap_or(&[]);
            let n = have.read(out.get_mut(done..).unwrap_or(&mut []))?;
            done += n;
            self.at += n;
        }
        Ok(())
    }

    /// `None` at the end.
    fn part(&mut self, files: &mut [Box<dyn SpillFile>]) -> io::Result<Option<Vec<u8>>> {
        if self.left() == 0 {
            return Ok(None);
        }
        let mut len = [0; 4];
        self.read(files, &mut len)?;
        let len = u32::from_le_bytes(len);
        if u64::from(len) > self.left() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len as usize];
        self.read(files, &mut bytes)?;
        Ok(Some(bytes))
    }
}

/// Several runs as one sequence. Of each run only the next key is in memory, and a buffer.
pub struct Merge {
    files: Vec<Box<dyn SpillFile>>,
    readers: Vec<Reader>,
    heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
}

impl Merge {
    /// The earliest runs first.
    fn new(levels: impl IntoIterator<Item = Level>) -> Result<Merge> {
        let mut merge = Merge {
            files: Vec::new(),
            readers: Vec::new(),
            heads: BinaryHeap::new(),
        };
        for (file, level) in levels.into_iter().enumerate() {
            merge.files.push(level.file);
            merge
                .readers
                .extend(level.runs.into_iter().map(|rest| Reader {
                    file,
                    rest,
                    buffer: Vec::new(),
                    at: 0,
                }));
        }
        for run in 0..merge.readers.len() {
            merge.refill(run)?;
        }
        Ok(merge)
    }

    fn part(&mut self, run: usize) -> Result<Option<Vec<u8>>> {
        match self.readers.get_mut(run) {
            Some(r) => r.part(&mut self.files).map_err(failed),
            None => Ok(None),
        }
    }

    fn refill(&mut self, run: usize) -> Result<()> {
        if let Some(key) = self.part(run)? {
            self.heads.push(Reverse((key, run)));
        }
        Ok(())
    }

    /// The key that comes next.
    pub fn peek_key(&self) -> Option<&[u8]> {
        self.heads.peek().map(|Reverse((k, _))| k.as_slice())
    }

    /// The next entry in order: key and payload.
    pub fn next_entry(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Some(Reverse((key, run))) = self.heads.pop() else {
            return Ok(None);
        };
        let payload = self.part(run)?.unwrap_or_default();
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

    /// Counts the files that it lends.
    #[derive(Default)]
    struct Lent(usize);

    impl SpillTarget for Lent {
        fn file(&mut self) -> Result<Box<dyn SpillFile>> {
            self.0 += 1;
            Ok(Box::new(Cursor::new(Vec::new())))
        }

        fn check(&mut self) -> Result<()> {
            Err(errors::Suspension::Worker.into())
        }
    }

    fn all(runs: Runs) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut m = runs.merge().unwrap();
        let mut all = Vec::new();
        while let Some((k, p)) = m.next_entry().unwrap() {
            assert!(m.peek_key().is_none_or(|next| next >= k.as_slice()));
            all.push((k, p));
        }
        all
    }

    #[test]
    fn merges_stably() {
        let (mut runs, mut disk) = (Runs::default(), Lent::default());
        for run in [&["a1", "c1"][..], &["a2", "b2"], &[]] {
            runs.prepare(&mut disk).unwrap();
            let entries = run
                .iter()
                .map(|e| (&e.as_bytes()[..1], e.as_bytes().to_vec()));
            assert_eq!(runs.write(entries).unwrap(), 11 * run.len() as u64);
        }
        assert!(!runs.is_empty());
        let found = all(runs).into_iter().map(|(_, p)| p);
        let found: Vec<_> = found.map(|p| String::from_utf8(p).unwrap()).collect();
        assert_eq!(found, ["a1", "a2", "b2", "c1"]);
    }

    #[test]
    fn many_runs_are_merged_into_few_and_stay_in_order() {
        let (mut runs, mut disk) = (Runs::default(), Lent::default());
        const RUNS: u32 = 2500;
        let mut expected = Vec::new();
        for run in 0..RUNS {
            runs.prepare(&mut disk).unwrap();
            // Two keys of 50, and one that all have; some payloads are longer than a buffer.
            let keys = [run % 25, 25 + run % 25, 99].map(|k| format!("{k:02}"));
            let payload = |at: usize| {
                let mut p = format!("{run:04} {at}").into_bytes();
                p.resize(if run % 500 == 7 { 20_000 } else { 8 }, b'.');
                p
            };
            let entries = keys.iter().enumerate();
            runs.write(entries.map(|(at, k)| (k.as_bytes(), payload(at))))
                .unwrap();
            let entries = keys.iter().enumerate();
            expected.extend(entries.map(|(at, k)| (k.clone().into_bytes(), payload(at))));
        }
        let open: usize = runs.levels.iter().map(|l| l.runs.len()).sum();
        assert!(runs.levels.len() == 3 && open <= 3 * MANY, "{open}");
        assert!(disk.0 < RUNS as usize / 10);
        // Stable: of equal keys in order of the runs.
        expected.sort_by(|(a, _), (b, _)| a.cmp(b));
        assert!(all(runs) == expected);
    }

    #[test]
    fn damage_is_an_error() {
        let mut bytes = 7u32.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"abc");
        let level = Level {
            runs: std::iter::once(0..bytes.len() as u64).collect(),
            file: Box::new(Cursor::new(bytes)),
        };
        assert!(Merge::new([level]).is_err());
    }
}
