//! Cache balance: divides the memory between the record cache (rows) and the block cache.
//!
//! A row is one record; a block holds seven or seventy others beside it. Where records are read by
//! key and some more often than others, memory for rows saves more disk reads. Where index entries,
//! ids or ranges are read, memory for blocks saves more. The [ghost lists](crate::ghost_list) of
//! both caches tell which it is: memory moves to the cache where it would have saved more reads, up
//! to a tenth of the memory a second.
//!
//! ```text
//! cache = lent + own
//! own   = rows + blocks and memtables          rows: from LEAST to MOST of it, and never what memtables and ROOM need
//! lent  ≤ half of what full memtables leave     what has no other place than memory: graphs of vectors
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
    /// The most that may be lent, in bytes.
    most_lent: usize,
    lent: usize,
    /// What rows and blocks had together when they were last told.
    told: usize,
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
    /// `memtables`: the bytes of full memtables.
    pub fn new(cache_bytes: usize, row_bytes: usize, memtables: usize) -> Shares {
        Shares {
            cache_bytes,
            most_lent: cache_bytes.saturating_sub(memtables) / 2,
            lent: 0,
            told: cache_bytes,
            wanted: row_bytes,
            given: row_bytes,
            used: 0,
            memtables: 0,
        }
    }

    /// What is not lent, in bytes.
    pub fn own(&self) -> usize {
        self.cache_bytes - self.lent
    }

    pub fn lent(&self) -> usize {
        self.lent
    }

    /// Whether one who had `before` bytes of the cache may have `bytes`, and has them from now on.
    pub fn lend(&mut self, before: usize, bytes: usize) -> bool {
        assert!(before <= self.lent, "what was lent comes back once");
        let lent = (self.lent - before).saturating_add(bytes);
        if bytes > before && lent > self.most_lent {
            return false;
        }
        self.lent = lent;
        true
    }

    fn percent(&self, hundredths: usize) -> usize {
        self.own() / 100 * hundredths
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

    /// The bytes of rows, and of blocks with memtables, while these take so many; `None` when they are about what they
    /// were last told.
    pub fn divide(&mut self, memtable_bytes: usize) -> Option<(usize, usize)> {
        self.memtables = self.memtables.max(memtable_bytes);
        let taken = self.memtables + self.percent(ROOM);
        let own = self.own();
        let left = own.saturating_sub(taken).min(self.percent(MOST));
        let rows = self.wanted.min(left).max(self.percent(LEAST));
        if rows.abs_diff(self.given) < self.cache_bytes / WORTH_TELLING && own == self.told {
            return None;
        }
        self.given = rows;
        self.told = own;
        Some((rows, own - rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_where_it_spares_reads() {
        let cache = 1000 << 20;
        let mut shares = Shares::new(cache, cache / 2, 0);
        let percent = |shares: &mut Shares, memtables: usize| {
            shares.divide(memtables);
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
        assert_eq!(shares.divide(0), None, "nothing new");
    }

    #[test]
    fn what_is_lent_is_missing_from_both() {
        let cache = 1000 << 20;
        let mut shares = Shares::new(cache, cache / 2, 200 << 20);
        assert!(
            !shares.lend(0, (400 << 20) + 1),
            "more than half of the rest"
        );
        assert_eq!(shares.divide(0), None);
        assert!(shares.lend(0, 400 << 20));
        let (rows, blocks) = shares.divide(0).unwrap();
        assert_eq!(rows + blocks, 600 << 20);
        assert_eq!(rows, 480 << 20, "the most of what is left");
        assert!(!shares.lend(0, 1), "another one");
        assert!(shares.lend(400 << 20, 100 << 20), "some of it comes back");
        assert!(shares.lend(0, 300 << 20));
        assert!(shares.lend(300 << 20, 0) && shares.lend(100 << 20, 0));
        assert_eq!(shares.divide(0), Some((cache / 2, cache / 2)));
    }

    #[test]
    #[should_panic(expected = "comes back once")]
    fn more_than_was_lent_does_not_come_back() {
        Shares::new(1 << 30, 1 << 20, 0).lend(1, 0);
    }
}
