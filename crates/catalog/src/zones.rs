//! Zone maps: for each block of records, the range of an index in which their entries lie.
//!
//! Records lie in the order of their keys. The entries of a block of records in another index lie
//! between a least and a greatest key. Where the index is correlated with the order of the records,
//! as a creation date is, this interval is narrow. Then a record's key bounds its sort position
//! before the record is read.
//!
//! ```text
//! record keys   |   block 0   |   block 1   |   block 2   | …          up to 4,096 blocks, 400 KB
//! index keys     [least…greatest] of the index's first field in each
//! ```
//! A map is kept in memory only. It is built when it would have saved reads, and given up when it
//! saves few.
//!
//! Invariant: for every state of the store since [`Zones::is_ready_for`], every entry lies in the
//! interval of its record's block. Intervals only grow; deletions leave them wider than necessary.

use crate::keyspace::PREFIX;
use parking_lot::RwLock;
use query::index_keys::KeyPattern;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The bytes that are kept of a key; a longer key is replaced by a bound.
const KEPT: usize = 23;
/// The initial and the largest number of blocks; at the largest number pairs of blocks are merged.
const BLOCKS: usize = 2048;
const MOST_BLOCKS: usize = 2 * BLOCKS;
/// The number of sampled entries of each block, to decide whether a map would be useful.
const SAMPLES: usize = 8;
/// A map is useful when a block spans at most this part of the index on average.
const NARROW: usize = 8;
/// A map is given up after so many successive uses that saved little.
const PATIENCE: u32 = 256;
/// A map is built after so many wasted reads: a part of all records, but at least this number.
const WASTED_PART: u64 = 64;
const WASTED_LEAST: u64 = 2_000;

type Key = SmallVec<[u8; KEPT]>;

/// The kept bytes of a key, as a lower bound.
fn floor(key: &[u8]) -> Key {
    Key::from_slice(key.get(..KEPT).unwrap_or(key))
}

/// The kept bytes of a key, as an upper bound of all keys with this prefix.
fn ceiling(key: &[u8]) -> Key {
    match key.get(..KEPT) {
        Some(kept) if key.len() > KEPT => match bson::key::successor(kept) {
            Some(next) => Key::from_vec(next),
            // All kept bytes are 0xff.
            None => Key::from_slice(key),
        },
        _ => Key::from_slice(key),
    }
}

/// The least and the greatest first field in a block, as the index has them.
#[derive(Clone, Debug)]
struct Interval(Key, Key);

/// The eight bytes after the first `shared` ones, as a number. Keys with the same first bytes
/// compare as these numbers, when the numbers differ.
pub fn digest(key: &[u8], shared: usize) -> u64 {
    let rest = key.get(shared..).unwrap_or(&[]);
    if let Some(whole) = rest.first_chunk() {
        return u64::from_be_bytes(*whole);
    }
    let mut bytes = [0; 8];
    bytes
        .iter_mut()
        .zip(rest)
        .for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(bytes)
}

/// The length of the common prefix of two keys.
pub fn alike(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[derive(Debug)]
struct Map {
    /// The first key of each block; the first block begins before all keys.
    starts: Vec<Key>,
    /// The common prefix of all but the first, and the digest of the rest of each: most of a search
    /// compares numbers.
    shared: Key,
    digests: Vec<u64>,
    intervals: Vec<Option<Interval>>,
    /// The highest record in the map: a new block must begin after it, because its entry widened an
    /// existing block.
    highest: Key,
    /// The number of entries in the last block, and in a full block.
    last: u64,
    block_entries: u64,
}

impl Map {
    /// A map over sorted record keys, each of which stands for so many entries.
    fn new(record_keys: &[Key], entries_each: u64) -> Map {
        let mut starts = vec![Key::new()];
        let first = record_keys.get(SAMPLES..).unwrap_or(&[]);
        starts.extend(first.iter().step_by(SAMPLES).cloned());
        starts.dedup();
        let mut map = Map {
            intervals: vec![None; starts.len()],
            starts,
            shared: Key::new(),
            digests: Vec::new(),
            highest: Key::new(),
            last: 0,
            block_entries: entries_each.saturating_mul(SAMPLES as u64).max(1),
        };
        map.digest();
        map
    }

    /// Computes `shared` and `digests` again.
    fn digest(&mut self) {
        let (Some(first), Some(last)) = (self.starts.get(1), self.starts.last()) else {
            return;
        };
        let shared = alike(first, last);
        self.shared = Key::from_slice(&first[..shared]);
        let behind = self.starts.iter().skip(1);
        self.digests = behind.map(|start| digest(start, shared)).collect();
    }

    fn block(&self, record: &[u8]) -> usize {
        let shared = self.shared.len();
        let most = self.digests.len();
        match record.get(..shared).unwrap_or(record).cmp(&self.shared) {
            Ordering::Less => return 0,
            Ordering::Greater => return most,
            Ordering::Equal => {}
        }
        let own = digest(record, shared);
        let mut at = self.digests.partition_point(|d| *d < own);
        while self.digests.get(at) == Some(&own)
            && self
                .starts
                .get(at + 1)
                .is_some_and(|s| s.as_slice() <= record)
        {
            at += 1;
        }
        at
    }

    fn widen(&mut self, key: &[u8], record: &[u8]) {
        if record > self.highest.as_slice() {
            self.highest = floor(record);
        }
        let at = self.block(record);
        let Some(interval) = self.intervals.get_mut(at) else {
            return;
        };
        match interval {
            None => *interval = Some(Interval(floor(key), ceiling(key))),
            Some(Interval(least, greatest)) => {
                if key < least.as_slice() {
                    *least = floor(key);
                }
                if key > greatest.as_slice() {
                    *greatest = ceiling(key);
                }
            }
        }
    }

    /// Widens a block. Begins a new block when the last one is full; otherwise records inserted at
    /// the end would widen it without limit.
    fn put(&mut self, key: &[u8], record: &[u8]) {
        let start = floor(record);
        if self.starts.last().is_some_and(|last| *last < start) {
            self.last += 1;
            if self.last > self.block_entries && start > self.highest {
                self.last = 0;
                if self.starts.len() >= MOST_BLOCKS {
                    self.halve();
                }
                self.intervals.push(None);
                match start.starts_with(&self.shared) && !self.digests.is_empty() {
                    true => self.digests.push(digest(&start, self.shared.len())),
                    false => self.digests.clear(),
                }
                self.starts.push(start);
                if self.digests.is_empty() {
                    self.digest();
                }
            }
        }
        self.widen(key, record);
    }

    /// Merges pairs of neighbouring blocks.
    fn halve(&mut self) {
        let mut at = 0;
        self.starts.retain(|_| {
            at += 1;
            at % 2 == 1
        });
        let old = std::mem::take(&mut self.intervals);
        self.intervals = old
            .chunks(2)
            .map(|pair| pair.iter().flatten().cloned().reduce(union))
            .collect();
        self.block_entries = self.block_entries.saturating_mul(2);
        self.digest();
    }
}

fn union(a: Interval, b: Interval) -> Interval {
    Interval(a.0.min(b.0), a.1.max(b.1))
}

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    /// The index is being sampled.
    Asked,
    /// The map is being filled: puts are reported while older entries are still being read.
    Filling(Map),
    /// The map holds for this state and later ones.
    Ready(Map, u64),
    /// A map was useless when there were so many records.
    Useless(u64),
}

/// The zone map of an index, if there is one; shared by all its versions.
pub struct Zones {
    /// Which fields of the index's keys are descending.
    descending: SmallVec<[bool; 4]>,
    state: RwLock<State>,
    wasted: AtomicU64,
    /// The number of successive uses that saved little.
    vain: AtomicU32,
}

/// Bounds of a record's key in a sort on the index's first field: not before `best`, and not after
/// `worst`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub best: Key,
    pub worst: Key,
}

impl Expected {
    /// The bounds when the key is known, in the requested order or (`flip`) in the opposite one. Of
    /// a long key only a prefix counts.
    pub fn of(key: &[u8], flip: bool) -> Expected {
        let told = key.get(..=KEPT).unwrap_or(key);
        let flipped: SmallVec<[u8; KEPT + 1]>;
        let told = match flip {
            false => told,
            true => {
                flipped = told.iter().map(|b| !b).collect();
                &flipped
            }
        };
        Expected {
            best: floor(told),
            worst: ceiling(told),
        }
    }

    /// The bounds when nothing is known.
    pub fn anything() -> Expected {
        Expected {
            best: Key::new(),
            worst: Key::from_slice(&[0xFF; KEPT + 8]),
        }
    }
}

impl Zones {
    pub(crate) fn new(key: &KeyPattern) -> Zones {
        Zones {
            descending: key.fields.iter().map(|f| f.descending).collect(),
            state: RwLock::default(),
            wasted: AtomicU64::new(0),
            vain: AtomicU32::new(0),
        }
    }

    /// The first field of an entry and the key of its record; `entry` is without the index's
    /// prefix.
    pub fn split<'e>(&self, entry: &'e [u8]) -> Option<(&'e [u8], &'e [u8])> {
        let mut at = 0;
        let mut first = None;
        for descending in &self.descending {
            at += bson::key::field_len(entry.get(at..)?, *descending)?;
            first.get_or_insert(at);
        }
        Some((entry.get(..first?)?, entry.get(at..)?))
    }

    /// Whether there is a map that is valid for a state.
    pub fn is_ready_for(&self, sequence: u64) -> bool {
        matches!(&*self.state.read(), State::Ready(_, from) if *from <= sequence)
    }

    /// The bounds of records, by their keys. Few keys are looked up at a time, so that writers do
    /// not wait long. `None`: there is no valid map for this state any more; another one may have
    /// been built since.
    pub fn expect<'k>(
        &self,
        sequence: u64,
        records: impl Iterator<Item = &'k [u8]>,
        descending: bool,
        out: &mut Vec<Expected>,
    ) -> Option<()> {
        let same = self.descending.first() == Some(&descending);
        let state = self.state.read();
        let State::Ready(map, from) = &*state else {
            return None;
        };
        if *from > sequence {
            return None;
        }
        for record in records {
            let interval = map.intervals.get(map.block(record));
            out.push(match interval.and_then(Option::as_ref) {
                Some(Interval(least, greatest)) if same => Expected {
                    best: least.clone(),
                    worst: greatest.clone(),
                },
                Some(Interval(least, greatest)) => Expected {
                    best: complement(greatest),
                    // A cut of the least key makes its complement too small.
                    worst: match least.len() < KEPT {
                        true => complement(least),
                        false => anything_with(&complement(least)),
                    },
                },
                // The entry would lie here, but this record has no entry.
                None => Expected::anything(),
            });
        }
        Some(())
    }

    /// Notes that a map might have saved `many` reads, for an index of about so many entries.
    /// Returns whether to build one now; the caller builds it and ends with [`Zones::give_up`] or
    /// [`Zones::finish`].
    pub fn wasted(&self, many: u64, entries: u64) -> bool {
        let wasted = self.wasted.fetch_add(many, Relaxed).saturating_add(many);
        if wasted < (entries / WASTED_PART).max(WASTED_LEAST) {
            return false;
        }
        let mut state = self.state.write();
        let wanted = match *state {
            State::None => true,
            State::Useless(then) => entries > then.saturating_mul(2),
            _ => false,
        };
        self.wasted.store(0, Relaxed);
        if wanted {
            *state = State::Asked;
        }
        wanted
    }

    /// Notes a use: the number of candidates, of records read and of records wanted, for an index
    /// of about so many entries. Gives up a map that saves little.
    pub fn used(&self, records: usize, read: usize, wanted: usize, entries: u64) {
        let (spare, spared) = (records.saturating_sub(wanted), records.saturating_sub(read));
        if spared >= spare / 2 {
            self.vain.store(0, Relaxed);
        } else if self.vain.fetch_add(1, Relaxed) >= PATIENCE {
            self.give_up(entries);
        }
    }

    /// No map is made until there are twice as many entries.
    pub fn give_up(&self, entries: u64) {
        self.vain.store(0, Relaxed);
        *self.state.write() = State::Useless(entries);
    }

    /// Resets the state, because building a map was interrupted.
    pub fn forget(&self) {
        *self.state.write() = State::None;
    }

    /// Begins a map from the samples of the index, if it would be useful. From here on puts are
    /// noted.
    pub fn begin(&self, samples: Samples) -> bool {
        let each = samples.step;
        let Some(record_keys) = samples.order() else {
            return false;
        };
        *self.state.write() = State::Filling(Map::new(&record_keys, each));
        true
    }

    /// Adds entries that existed before; `false`: they are no longer needed.
    pub fn fill<'e>(&self, entries: impl Iterator<Item = &'e [u8]>) -> bool {
        let mut state = self.state.write();
        let State::Filling(map) = &mut *state else {
            return false;
        };
        for entry in entries {
            if let Some((key, record)) = self.split(entry) {
                map.widen(key, record);
            }
        }
        true
    }

    /// All entries of this state have been added.
    pub fn finish(&self, sequence: u64) {
        let mut state = self.state.write();
        *state = match std::mem::take(&mut *state) {
            State::Filling(map) => State::Ready(map, sequence),
            other => other,
        };
    }
}

impl storage::Watcher for Zones {
    fn put(&self, keys: &mut dyn Iterator<Item = &[u8]>) {
        let mut state = self.state.write();
        let (State::Filling(map) | State::Ready(map, _)) = &mut *state else {
            return;
        };
        let entries = keys.map(|key| self.split(&key[PREFIX..]));
        let Some(mut entries) = entries.collect::<Option<SmallVec<[_; 16]>>>() else {
            // The entry cannot be parsed, so nothing is known about its record.
            *state = State::None;
            return;
        };
        // New blocks begin after all existing records, which this order allows.
        entries.sort_unstable_by_key(|(_, record)| *record);
        for (first, record) in entries {
            map.put(first, record);
        }
    }
}

fn complement(key: &Key) -> Key {
    key.iter().map(|b| !b).collect()
}

/// An upper bound of all keys with this prefix.
fn anything_with(key: &Key) -> Key {
    match bson::key::successor(key) {
        Some(next) => Key::from_vec(next),
        None => Key::from_slice(&[0xFF; KEPT + 8]),
    }
}

/// A sample of an index's entries, in index order.
pub struct Samples {
    records: Vec<Key>,
    step: u64,
    seen: u64,
}

impl Default for Samples {
    fn default() -> Samples {
        Samples {
            records: Vec::new(),
            step: 1,
            seen: 0,
        }
    }
}

impl Samples {
    /// The next entry of the index, by the key of its record.
    pub fn add(&mut self, record: &[u8]) {
        if self.seen.is_multiple_of(self.step) {
            if self.records.len() >= 2 * BLOCKS * SAMPLES {
                let mut at = 0;
                self.records.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.step *= 2;
            }
            if self.seen.is_multiple_of(self.step) {
                self.records.push(floor(record));
            }
        }
        self.seen += 1;
    }

    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The keys of the records in their order, where those that are near each other are so in the
    /// index as well.
    fn order(self) -> Option<Vec<Key>> {
        let mut records: Vec<(Key, usize)> = self.records.into_iter().zip(0..).collect();
        let all = records.len();
        records.sort_unstable();
        let spans = records.chunks(SAMPLES).map(|block| {
            let places = block.iter().map(|(_, place)| *place);
            let (least, greatest) = (places.clone().min(), places.max());
            greatest.unwrap_or(0) - least.unwrap_or(0)
        });
        let blocks = all.div_ceil(SAMPLES);
        let narrow = blocks > NARROW && spans.sum::<usize>() <= blocks.saturating_mul(all / NARROW);
        narrow.then(|| records.into_iter().map(|(key, _)| key).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Value, doc};
    use storage::Watcher;

    fn pattern(descending: bool) -> KeyPattern {
        let direction = if descending { -1 } else { 1 };
        KeyPattern::of_spec(doc! {"key": doc! {"d": direction, "x": 1}}.as_doc()).unwrap()
    }

    fn key(v: &Value, descending: bool) -> Vec<u8> {
        let mut key = Vec::new();
        bson::key::encode(v.as_val(), descending, &mut key, None);
        key
    }

    /// An entry without its prefix: `d`, an `x` that is no matter, and the record.
    fn entry(d: &Value, record: u64, descending: bool) -> Vec<u8> {
        let x = key(&Value::from(7i32), false);
        [key(d, descending), x, record.to_be_bytes().to_vec()].concat()
    }

    fn whole(entry: Vec<u8>) -> Vec<u8> {
        [vec![1; PREFIX], entry].concat()
    }

    /// Made of records `0..n`, of which each has `d` of its number.
    fn made(n: u64, descending: bool, d: impl Fn(u64) -> Value) -> Option<Zones> {
        let zones = Zones::new(&pattern(descending));
        assert!(zones.wasted(u64::MAX / 4, n));
        let mut entries: Vec<Vec<u8>> = (0..n).map(|r| entry(&d(r), r, descending)).collect();
        entries.sort();
        let mut samples = Samples::default();
        for e in &entries {
            samples.add(zones.split(e).unwrap().1);
        }
        if !zones.begin(samples) {
            return None;
        }
        assert!(!zones.is_ready_for(9));
        assert!(zones.fill(entries.iter().map(|e| e.as_slice())));
        zones.finish(9);
        assert!(zones.is_ready_for(9) && !zones.is_ready_for(8));
        // A map that was made since a query looked is not for it.
        let none = zones.expect(8, std::iter::empty(), false, &mut Vec::new());
        assert!(none.is_none());
        Some(zones)
    }

    /// Whether a record's own key lies in the expected range, and how wide that is in dates of `d`.
    fn check(zones: &Zones, record: u64, d: &Value) {
        for descending in [false, true] {
            let mut out = Vec::new();
            let record = record.to_be_bytes();
            let records = [&record[..]].into_iter();
            zones.expect(9, records, descending, &mut out).unwrap();
            let own = key(d, descending);
            let expected = &out[0];
            assert!(
                expected.best.as_slice() <= own.as_slice(),
                "{expected:?} {own:?}"
            );
            assert!(
                own.as_slice() <= expected.worst.as_slice(),
                "{expected:?} {own:?}"
            );
        }
    }

    #[test]
    fn a_record_lies_where_it_is_expected() {
        // Short and long keys; those that are cut agree in the kept part.
        let date = |r: u64| Value::date(1_000_000 + r as i64 / 3);
        let long = |r: u64| Value::from(format!("{:060}", r / 2));
        for descending in [false, true] {
            for d in [&date as &dyn Fn(u64) -> Value, &long] {
                let zones = made(100_000, descending, d).unwrap();
                for r in (0..100_000).step_by(37) {
                    check(&zones, r, &d(r));
                }
            }
        }
    }

    #[test]
    fn a_known_key_lies_where_it_is_expected() {
        let mut long = vec![0xFF; 40];
        long[0] = 0x87;
        let keys = [&b"a"[..], &long[..KEPT], &long, &[7; 100], b""];
        for key in keys {
            for flip in [false, true] {
                let own: Vec<u8> = key.iter().map(|b| if flip { !b } else { *b }).collect();
                let Expected { best, worst } = Expected::of(key, flip);
                assert!(best.as_slice() <= own.as_slice() && own.as_slice() <= worst.as_slice());
                assert!(best.len() <= KEPT);
                assert_eq!(best == worst, key.len() <= KEPT);
            }
        }
        let anything = Expected::anything();
        assert!(
            anything.best.as_slice() <= &b""[..] && &[0xFE; 60][..] <= anything.worst.as_slice()
        );
    }

    #[test]
    fn an_index_that_follows_the_records_is_told_narrowly() {
        let zones = made(100_000, true, |r| Value::date(r as i64)).unwrap();
        let records: Vec<[u8; 8]> = (0..100_000u64).map(u64::to_be_bytes).collect();
        let mut out = Vec::new();
        zones
            .expect(9, records.iter().map(|r| &r[..]), true, &mut out)
            .unwrap();
        // Newest first: of nearly all pairs that are some blocks apart the order is known.
        let wrong = (0..99_000).filter(|&r| out[r + 1000].worst >= out[r].best);
        assert_eq!(wrong.count(), 0);
    }

    #[test]
    fn records_under_numbers_of_their_own_are_found_again() {
        // Their keys are those of doubles, of which more and more begins otherwise.
        let id = |r: u64| key(&Value::from(r as i64), false);
        let entry = |r: u64| {
            let d = key(&Value::date(r as i64), true);
            [d, key(&Value::from(7i32), false), id(r)].concat()
        };
        let zones = Zones::new(&pattern(true));
        let mut samples = Samples::default();
        let entries: Vec<Vec<u8>> = (0..10_000).rev().map(entry).collect();
        for e in &entries {
            samples.add(zones.split(e).unwrap().1);
        }
        assert!(zones.begin(samples));
        assert!(zones.fill(entries.iter().map(|e| e.as_slice())));
        zones.finish(1);
        for from in (10_000..30_000).step_by(1000) {
            // In the order of the index; of two groups the later may come first.
            let from = if from % 2000 == 0 {
                from + 1000
            } else {
                from - 1000
            };
            let keys: Vec<Vec<u8>> = (from..from + 1000).rev().map(|r| whole(entry(r))).collect();
            zones.put(&mut keys.iter().map(|k| k.as_slice()));
        }
        let ids: Vec<Vec<u8>> = (0..30_000).map(id).collect();
        let mut out = Vec::new();
        zones
            .expect(9, ids.iter().map(|i| i.as_slice()), true, &mut out)
            .unwrap();
        for (r, e) in out.iter().enumerate() {
            let own = key(&Value::date(r as i64), true);
            assert!(
                e.best.as_slice() <= own.as_slice() && own.as_slice() <= e.worst.as_slice(),
                "{r} {e:?}"
            );
        }
        // All but where the groups changed places.
        let wide = (0..29_900)
            .filter(|&r| out[r + 100].worst >= out[r].best)
            .count();
        assert!(wide < 11_000, "{wide}");
    }

    #[test]
    fn records_that_come_in_any_order_stay_where_they_are_expected() {
        let d = |r: u64| Value::date(r as i64);
        let zones = made(1_000, true, d).unwrap();
        let mut rest: Vec<u64> = (1_000..40_000).collect();
        let mut dice = 1u64;
        // Each comes some places from where it would in order, alone or with others.
        for at in 0..rest.len() {
            dice = dice.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let other = (at + (dice >> 33) as usize % 50).min(rest.len() - 1);
            rest.swap(at, other);
        }
        for some in rest.chunks(7) {
            let keys: Vec<Vec<u8>> = some.iter().map(|&r| whole(entry(&d(r), r, true))).collect();
            zones.put(&mut keys.iter().map(|k| k.as_slice()));
        }
        for r in 0..40_000 {
            check(&zones, r, &d(r));
        }
        let records: Vec<[u8; 8]> = (0..40_000u64).map(u64::to_be_bytes).collect();
        let mut out = Vec::new();
        zones
            .expect(9, records.iter().map(|r| &r[..]), true, &mut out)
            .unwrap();
        let wide = (0..39_000).filter(|&r| out[r + 1000].worst >= out[r].best);
        assert_eq!(wide.count(), 0);
    }

    #[test]
    fn what_has_no_order_gets_no_map() {
        let scattered = |r: u64| Value::date((r.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i64);
        assert!(made(100_000, false, scattered).is_none());
        let few = |r: u64| Value::date(r as i64);
        assert!(made(20, false, few).is_none());
    }

    #[test]
    fn what_is_put_widens_and_new_blocks_begin_behind() {
        let d = |r: u64| Value::date(r as i64);
        let zones = made(10_000, true, d).unwrap();
        let blocks = |zones: &Zones| match &*zones.state.read() {
            State::Ready(map, _) => map.starts.len(),
            _ => 0,
        };
        let before = blocks(&zones);
        // Far more than were there, and one in the middle that is unlike its neighbours.
        for from in (10_000..100_000u64).step_by(100) {
            let keys: Vec<Vec<u8>> = (from..from + 100)
                .map(|r| whole(entry(&d(r), r, true)))
                .collect();
            zones.put(&mut keys.iter().map(|k| k.as_slice()));
        }
        let odd = Value::from("not even a date");
        let keys = [whole(entry(&odd, 5_000, true))];
        zones.put(&mut keys.iter().map(|k| k.as_slice()));
        check(&zones, 5_000, &odd);
        for r in (0..100_000).step_by(97) {
            check(&zones, r, &d(r));
        }
        let now = blocks(&zones);
        assert!(now > before && now <= MOST_BLOCKS, "{before}, {now}");
        let mut out = Vec::new();
        let records = [90_000u64.to_be_bytes(), 99_000u64.to_be_bytes()];
        zones
            .expect(9, records.iter().map(|r| &r[..]), true, &mut out)
            .unwrap();
        assert!(out[1].worst < out[0].best, "new blocks are narrow too");
    }

    #[test]
    fn it_is_made_once_it_is_worth_it_and_given_up_when_it_is_not() {
        let zones = Zones::new(&pattern(false));
        assert!(!zones.wasted(1_999, 10));
        assert!(zones.wasted(1, 10));
        assert!(!zones.wasted(5_000, 10), "somebody makes it");
        zones.give_up(100_000);
        assert!(!zones.wasted(5_000, 150_000));
        assert!(!zones.wasted(3_000, 200_001));
        assert!(zones.wasted(200, 200_001));
        let zones = made(100_000, false, |r| Value::date(r as i64)).unwrap();
        for _ in 0..PATIENCE {
            zones.used(1000, 999, 10, 100_000);
        }
        zones.used(1000, 20, 10, 100_000);
        assert!(zones.is_ready_for(9));
        for _ in 0..=PATIENCE {
            zones.used(1000, 999, 10, 100_000);
        }
        assert!(!zones.is_ready_for(u64::MAX));
    }
}
