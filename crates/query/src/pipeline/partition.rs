//! The rows of one partition of `$setWindowFields`, asked for by their number.
//!
//! They are in memory, or, when they are too much for that, in a temporary file that is read by
//! pages:
//!
//! ```text
//! page = row*
//! row  = key length u32 LE | key | document length u32 LE | document
//! ```
//! Invariant: a partition holds at most the memory limit, and its share of the common memory: all rows,
//! or the pages looked at last, and of these at least one. Of the rest only where each page begins is
//! known.

use super::spill::{SpillFile, failed, read_part, write_part};
use super::{PipelineHost, Share, too_much_memory};
use bson::DocBuf;
use errors::{Error, Result};
use std::io::{Read, Seek, SeekFrom, Write};

/// A page ends with the row that takes it past this.
const PAGE_BYTES: usize = 256 << 10;

/// A document in its place.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    pub key: Vec<u8>,
    pub doc: DocBuf,
}

impl Row {
    fn bytes(&self) -> usize {
        self.key.len() + self.doc.as_bytes().len() + size_of::<Row>()
    }
}

#[derive(Default)]
pub(super) struct Partition {
    rows: Vec<Row>,
    /// Of all rows, wherever they are.
    bytes: usize,
    share: Option<Share>,
    /// Where all rows are once they are too many.
    pages: Option<Pages>,
    len: usize,
}

impl Partition {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn clear(&mut self) {
        *self = Partition::default();
    }

    /// To be called before each [`Partition::push`]: makes room for the row. After an error for
    /// which `is_suspension()` holds it may be called again.
    pub fn prepare(&mut self, row: &Row, host: &mut dyn PipelineHost) -> Result<()> {
        let (limit, bytes) = (host.memory_limit(), self.bytes + row.bytes());
        if self.len == 0 {
            return Ok(());
        }
        // Without leave for files a stage is refused for its own memory, not for that of others.
        if bytes > limit && !host.allow_disk_use() {
            return Err(too_much_memory("$setWindowFields", limit).into());
        }
        let share = self.share.get_or_insert_with(|| host.share());
        if self.pages.is_none() && (bytes > limit || !share.fits(bytes)) {
            let mut pages = Pages::new(host.spill()?, host.share(), limit / 4);
            for row in std::mem::take(&mut self.rows) {
                pages.push(&row)?;
            }
            self.share = None;
            self.pages = Some(pages);
        }
        Ok(())
    }

    /// Takes a row in. None may follow once one was asked for.
    pub fn push(&mut self, row: Row) -> Result<()> {
        self.bytes += row.bytes();
        self.len += 1;
        match &mut self.pages {
            Some(pages) => pages.push(&row)?,
            None => self.rows.push(row),
        }
        Ok(())
    }

    /// The row of this number.
    pub fn row(&mut self, at: usize) -> Result<Option<&Row>> {
        match &mut self.pages {
            Some(pages) if at < self.len => pages.row(at).map(Some),
            Some(_) => Ok(None),
            None => Ok(self.rows.get(at)),
        }
    }
}

struct Pages {
    file: Box<dyn SpillFile>,
    /// Of each page the number of its first row and its place in the file.
    starts: Vec<(usize, u64)>,
    end: u64,
    /// The page that is being filled, and how many rows there are with it.
    filling: Vec<u8>,
    rows: usize,
    cached: Vec<Page>,
    cached_bytes: usize,
    cache_limit: usize,
    share: Share,
    looks: u64,
}

struct Page {
    number: usize,
    rows: Vec<Row>,
    bytes: usize,
    /// When it was last looked at.
    look: u64,
}

impl Pages {
    fn new(file: Box<dyn SpillFile>, share: Share, cache_limit: usize) -> Pages {
        Pages {
            file,
            starts: Vec::new(),
            end: 0,
            filling: Vec::new(),
            rows: 0,
            cached: Vec::new(),
            cached_bytes: 0,
            cache_limit,
            share,
            looks: 0,
        }
    }

    fn push(&mut self, row: &Row) -> Result<()> {
        if self.filling.is_empty() {
            self.starts.push((self.rows, self.end));
        }
        write_part(&mut self.filling, &row.key).map_err(failed)?;
        write_part(&mut self.filling, row.doc.as_bytes()).map_err(failed)?;
        self.rows += 1;
        if self.filling.len() >= PAGE_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.file.write_all(&self.filling).map_err(failed)?;
        self.end += self.filling.len() as u64;
        self.filling.clear();
        Ok(())
    }

    fn row(&mut self, at: usize) -> Result<&Row> {
        if !self.filling.is_empty() {
            self.write()?;
        }
        let number = self.starts.partition_point(|(first, _)| *first <= at);
        let number = number.saturating_sub(1);
        let held = match self.cached.iter().position(|p| p.number == number) {
            Some(held) => held,
            None => self.read(number)?,
        };
        self.looks += 1;
        let first = self.starts.get(number).map_or(0, |(first, _)| *first);
        self.cached
            .get_mut(held)
            .and_then(|page| {
                page.look = self.looks;
                page.rows.get(at - first)
            })
            .ok_or_else(|| Error::internal("a spilled partition lost a row").into())
    }

    /// Brings a page into the cache; where it is there.
    fn read(&mut self, number: usize) -> Result<usize> {
        let Some((_, start)) = self.starts.get(number).copied() else {
            return Err(Error::internal("a spilled partition lost a page").into());
        };
        let end = self.starts.get(number + 1).map_or(self.end, |(_, at)| *at);
        self.file.seek(SeekFrom::Start(start)).map_err(failed)?;
        let mut raw = Vec::with_capacity((end - start) as usize);
        let mut part = Read::take(&mut self.file, end - start);
        part.read_to_end(&mut raw).map_err(failed)?;
        let (mut rest, mut rows, mut bytes) = (raw.as_slice(), Vec::new(), 0);
        while let Some(key) = read_part(&mut rest).map_err(failed)? {
            let doc = read_part(&mut rest).map_err(failed)?;
            let doc = doc
                .and_then(DocBuf::from_vec)
                .ok_or_else(|| Error::internal("a spilled document is damaged"))?;
            let row = Row { key, doc };
            bytes += row.bytes();
            rows.push(row);
        }
        let limit = self.cache_limit;
        let fits = |share: &mut Share, bytes| bytes <= limit && share.fits(bytes);
        while !fits(&mut self.share, self.cached_bytes + bytes) {
            let oldest = self.cached.iter().enumerate().min_by_key(|(_, p)| p.look);
            let Some((oldest, _)) = oldest else { break };
            self.cached_bytes -= self.cached.swap_remove(oldest).bytes;
        }
        self.cached_bytes += bytes;
        self.cached.push(Page {
            number,
            rows,
            bytes,
            look: 0,
        });
        Ok(self.cached.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::StageMemory;
    use super::super::tests::Memory;
    use super::*;
    use bson::doc;
    use std::sync::Arc;

    fn row(i: usize) -> Row {
        Row {
            key: i.to_be_bytes().to_vec(),
            doc: doc! { "_id": i as i64, "pad": "x".repeat(i % 7 * 10_000) },
        }
    }

    fn push(to: &mut Partition, i: usize, host: &mut Memory) -> Result<()> {
        to.prepare(&row(i), host)?;
        to.push(row(i))
    }

    #[test]
    fn goes_to_a_file_early_where_others_hold_the_memory() {
        let memory = Arc::new(StageMemory::new(8 << 20));
        let mut other = memory.share();
        assert!(other.fits(6 << 20));
        let mut host = Memory {
            limit: Some(16 << 20),
            shared: Some(memory.clone()),
            ..Memory::default()
        };
        let mut all = Partition::default();
        for i in 0..400 {
            push(&mut all, i, &mut host).unwrap();
        }
        assert_eq!((all.len(), host.spilled), (400, 1));
        for at in 0..400 {
            assert_eq!(all.row(at * 89 % 400).unwrap(), Some(&row(at * 89 % 400)));
            assert!(memory.used() <= memory.limit());
        }
        // Most of the memory stays free for new stages; a stage alone gets more.
        assert!(all.pages.as_ref().unwrap().cached_bytes < 2 << 20);
        drop(other);
        (0..400).for_each(|at| assert_eq!(all.row(at).unwrap(), Some(&row(at))));
        assert!(all.pages.as_ref().unwrap().cached_bytes > 3 << 20);
        // A refusal without leave for files does not depend on the others.
        let mut refused = Partition::default();
        let error = (0..800).find_map(|i| push(&mut refused, i, &mut host).err());
        assert_eq!(error.unwrap().failure().unwrap().code.0, 292);
        all.clear();
        refused.clear();
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn gives_any_row_while_holding_few() {
        const ROWS: usize = 400;
        let mut host = Memory {
            limit: Some(4 << 20),
            disk: true,
            ..Memory::default()
        };
        let mut all = Partition::default();
        for i in 0..ROWS {
            push(&mut all, i, &mut host).unwrap();
        }
        assert_eq!((all.len(), host.spilled), (ROWS, 1));
        for at in (0..ROWS)
            .chain((0..ROWS).rev())
            .chain((0..ROWS).map(|i| i * 89 % ROWS))
        {
            assert_eq!(all.row(at).unwrap(), Some(&row(at)));
            let pages = all.pages.as_ref().unwrap();
            assert!(pages.cached_bytes <= 1 << 20);
            assert_eq!(
                pages.cached_bytes,
                pages.cached.iter().map(|p| p.bytes).sum::<usize>()
            );
        }
        assert_eq!(all.row(ROWS).unwrap(), None);
        host.disk = false;
        let mut refused = Partition::default();
        let error = (0..ROWS).find_map(|i| push(&mut refused, i, &mut host).err());
        assert_eq!(error.unwrap().failure().unwrap().code.0, 292);
    }
}
