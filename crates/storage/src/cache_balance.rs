//! Cache balance: divides the memory between the record cache (rows) and the block cache.
//!
//! A row is one record; a block holds seven or seventy others beside it. Where records are read by
//! key and some more often than others, memory for rows saves more disk reads. Where index entries,
//! ids or ranges are read, memory for blocks saves more. The [ghost lists](crate::ghost_list) of
//! both caches tell which it is: memory moves to the cache where it would have saved more reads, up
//! to a tenth of the memory a second.
//!
//! ```text
//! cache = rows + blocks and memtables          rows: from LEAST to MOST of it, and never what memtables and ROOM need
//! ```

/// The least and the greatest share of the rows, in percent.
const LEAST: usize = 5;
const MOST: usize = 80;
/// The least that blocks keep besides the memtables, in percent: for files' index blocks, filters,
/// and blocks in use.
const ROOM: usize = 12;
/// When memtables shrink, rows may take the freed memory at this rate, in percent a second.
const FORGOTTEN: usize = 4;
/// The most that may move in a second, in percent.
const STEP: usize = 10;
/// The weight of a read that more memory for rows would have saved. It is above one because a row
/// also saves the search in its block at each read, and because a larger record cache also admits
/// more records.
const ROW: f64 = 2.0;
/// A factor on the lean towards one cache: the whole step is already taken when half of the reads
/// are on one side.
const LEAN: f64 = 2.0;
/// Rows that take this percentage of their share count as full.
const FULL: usize = 95;
/// The least number of sampled reads that allows a decision.
const TELLING: u64 = 16;
/// A change smaller than one part in so many is not applied: each change walks through the shards.
const WORTH_TELLING: usize = 200;
/// Ghost lists simulate caches that are larger by one part in so many.
pub(crate) const WINDOW: usize = 8;

pub(crate) struct Shares {
    cache_bytes: usize,
    /// The share that rows should have, in bytes.
    wanted: usize,
    /// The share that rows were last given.
    given: usize,
    /// The bytes that rows took a second ago.
    used: usize,
    /// The most bytes that memtables took recently.
    memtables: usize,
}

impl Shares {
    pub fn new(cache_bytes: usize, row_bytes: usize) -> Shares {
        Shares {
            cache_bytes,
            wanted: row_bytes,
            given: row_bytes,
            used: 0,
            memtables: 0,
        }
    }

    fn percent(&self, hundredths: usize) -> usize {
        self.cache_bytes / 100 * hundredths
    }

    /// Called once a second with the reads that more memory would have saved, for rows and for
    /// blocks (see [`crate::ghost_list::Ghost::take_spared`]), and the bytes that rows take.
    pub fn weigh(&mut self, rows: (u64, u64), blocks: (u64, u64), used: usize) {
        // A record cache that is still filling evicts nothing, however short of memory it will be.
        let filling =
            used > self.used + self.cache_bytes / WORTH_TELLING && used < self.given / 100 * FULL;
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

    /// The share that rows were last given, in bytes.
    pub fn given(&self) -> usize {
        self.given
    }

    /// The rows' share while memtables take so many bytes; `None` when it is about what they were
    /// last given.
    pub fn rows(&mut self, memtable_bytes: usize) -> Option<usize> {
        self.memtables = self.memtables.max(memtable_bytes);
        let taken = self.memtables + self.percent(ROOM);
        let left = self.cache_bytes.saturating_sub(taken);
        let rows = self.wanted.min(left).max(self.percent(LEAST));
        if rows.abs_diff(self.given) < self.cache_bytes / WORTH_TELLING {
            return None;
        }
        self.given = rows;
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
            shares.given * 100 / cache
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
        // Memtables have priority.
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
