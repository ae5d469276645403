//! How rows and blocks share the cache's memory.
//!
//! A row is one record; the block that it lies in has seven or seventy others beside it that nobody may ask for. Where records are asked
//! for by key and some more often than others, memory for rows spares more reads; where index entries, ids or ranges are read, memory
//! for blocks does. Which it is shows in what both [put out too early](crate::ghost_list): memory goes where it would have spared more
//! reads from the disk, up to a tenth of the cache a second.
//!
//! ```text
//! cache = rows + blocks and memtables          rows: from LEAST to MOST of it, and never what memtables and ROOM need
//! ```

/// Rows get at least this share of the cache, and at most; in hundredths.
const LEAST: usize = 5;
const MOST: usize = 80;
/// What is left to blocks beside the memtables, in hundredths: indexes of files, filters, what is being read.
const ROOM: usize = 12;
/// Memtables grow and go; what they no longer take is given to rows at this rate, in hundredths a second.
const FORGOTTEN: usize = 4;
/// What a second may move at most, in hundredths.
const STEP: usize = 10;
/// How much more a read counts that rows would have spared: a row spares the search for its block as well, each time that it is
/// read, and what more memory for rows spares is more than the last that left them (more is let in, too).
const ROW: f64 = 2.0;
/// How much sooner than by all reads on one side the whole step is taken.
const LEAN: f64 = 2.0;
/// Rows that take this part of their share, in hundredths, are not filling up any more.
const FULL: usize = 95;
/// Fewer reads that were followed say nothing.
const TELLING: u64 = 16;
/// Caches are told of a change of this part of the whole: each change looks through the shards.
const WORTH_TELLING: usize = 200;
/// The part of the cache by which a larger cache of the one or the other is imagined.
pub(crate) const WINDOW: usize = 8;

pub(crate) struct Shares {
    cache_bytes: usize,
    /// What rows should have.
    wanted: usize,
    /// What they were told.
    told: usize,
    /// What they took a second ago.
    used: usize,
    /// The most that memtables took lately.
    memtables: usize,
}

impl Shares {
    pub fn new(cache_bytes: usize, row_bytes: usize) -> Shares {
        Shares {
            cache_bytes,
            wanted: row_bytes,
            told: row_bytes,
            used: 0,
            memtables: 0,
        }
    }

    fn percent(&self, hundredths: usize) -> usize {
        self.cache_bytes / 100 * hundredths
    }

    /// A second later: how many reads from the disk more memory would have spared, for rows and for blocks, as
    /// [`crate::ghost_list::Ghost::take_spared`] gives it; and what rows take.
    pub fn weigh(&mut self, rows: (u64, u64), blocks: (u64, u64), used: usize) {
        // Rows that still come in put out nothing, however much they will lack room.
        let filling =
            used > self.used + self.cache_bytes / WORTH_TELLING && used < self.told / 100 * FULL;
        self.used = used;
        self.memtables = self.memtables.saturating_sub(self.percent(FORGOTTEN));
        if filling || rows.0 + blocks.0 < TELLING {
            return;
        }
        let (rows, blocks) = (ROW * (rows.0 * rows.1) as f64, (blocks.0 * blocks.1) as f64);
        let lean = (rows - blocks) / (rows + blocks);
        let moved = self.percent(STEP) as f64 * (LEAN * lean).clamp(-1.0, 1.0);
        let wanted = self.wanted as f64 + moved;
        self.wanted = (wanted as usize).clamp(self.percent(LEAST), self.percent(MOST));
    }

    /// What rows were last told that they may have.
    pub fn told(&self) -> usize {
        self.told
    }

    /// What rows may have while memtables take so much; none when that is what they were last told, or nearly.
    pub fn rows(&mut self, memtable_bytes: usize) -> Option<usize> {
        self.memtables = self.memtables.max(memtable_bytes);
        let taken = self.memtables + self.percent(ROOM);
        let left = self.cache_bytes.saturating_sub(taken);
        let rows = self.wanted.min(left).max(self.percent(LEAST));
        if rows.abs_diff(self.told) < self.cache_bytes / WORTH_TELLING {
            return None;
        }
        self.told = rows;
        Some(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_where_it_spares_reads() {
        let cache = 1000 << 20;
        let mut shares = Shares::new(cache, cache / 2);
        let percent = |shares: &mut Shares, memtables: usize| {
            shares.rows(memtables);
            shares.told * 100 / cache
        };
        shares.weigh((10, 1), (5, 1), 0);
        assert_eq!(percent(&mut shares, 0), 50, "too few to say");
        shares.weigh((500, 4), (4000, 1), 0);
        assert_eq!(percent(&mut shares, 0), 50, "as many");
        shares.weigh((1500, 1), (1000, 1), 0);
        assert_eq!(percent(&mut shares, 0), 60);
        shares.weigh((0, 1), (1000, 1), cache / 4);
        assert_eq!(percent(&mut shares, 0), 60, "rows are only coming in");
        for _ in 0..100 {
            shares.weigh((1000, 1), (0, 1), 0);
        }
        assert_eq!(percent(&mut shares, 0), 80);
        // Memtables come first.
        assert_eq!(percent(&mut shares, cache / 4), 63);
        assert_eq!(percent(&mut shares, cache), 5);
        shares.weigh((0, 1), (0, 1), 0);
        assert_eq!(
            percent(&mut shares, 0),
            5,
            "who was there lately may come back"
        );
        for _ in 0..100 {
            shares.weigh((0, 1), (0, 1), 0);
        }
        assert_eq!(percent(&mut shares, 0), 80);
        for _ in 0..100 {
            shares.weigh((0, 1), (1000, 1), 0);
        }
        assert_eq!(percent(&mut shares, 0), 5);
        assert_eq!(shares.rows(0), None, "nothing new");
    }
}
