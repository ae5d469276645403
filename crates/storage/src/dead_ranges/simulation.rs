//! Dead ranges in a simulation: the steps of one write after the other, of scans and of searches, which
//! a seed interleaves, over all versions of some keys. Most writes are deletes.
//!
//! ```text
//! write    begins, can be read, ends
//! scan     asks which writes have ended, takes its state, goes from key to key, notes what it saw
//! search   watches, waits, and is then a scan from a place to the next living key
//! ```
//!
//! Checked is: a scan gives the living keys of its state. Faults that are planted have to be found.
//!
//!     PANDO_SEEDS=10000 cargo test -p storage --lib dead_ranges::simulation --release

use super::known::successor;
use super::{Bytes, DeadRanges, Mode, Write};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Bound;

const KEYS: u64 = 80;
const STEPS: u64 = 6000;
/// A scan that has passed so many deleted keys in a row notes them.
const MANY: u32 = 4;
/// Of each note: ranges that are split often stay.
const WEIGHT: u32 = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A write ends no range.
    Unended,
    /// A scan asks which writes have ended when it has its state already.
    AsksLate,
    /// A search does not wait for the writes that had begun before its watch.
    Unawaited,
}

fn key(n: u64) -> Bytes {
    let mut key = vec![0, 0, 0, 0, 0, 0, 0, 9, 2, 0, 0, 0, 1];
    key.extend_from_slice(&n.to_be_bytes());
    key.into()
}

struct Reader {
    low: Bytes,
    high: Bytes,
    backward: bool,
    /// Of a search: what it watches since when.
    watch: Option<u64>,
    seen: Option<u64>,
    state: Option<u64>,
    /// Forward: the next key that it may give. Backward: the key behind that.
    from: Bytes,
    /// Where the stretch began that it is in, and how many deleted keys lie in it so far.
    stretch: Bytes,
    markers: u32,
    given: Vec<Bytes>,
}

struct Simulation<'r> {
    ranges: &'r DeadRanges,
    planted: Planted,
    rng: StdRng,
    /// Of each key: whether it lives, from which write on.
    versions: BTreeMap<Bytes, BTreeMap<u64, bool>>,
    /// How many writes can be read.
    readable: u64,
    /// The write in flight, and its changes until they can be read.
    under_way: Option<(Write<'r>, Vec<(Bytes, bool)>)>,
    readers: Vec<Reader>,
    checked: u64,
}

impl<'r> Simulation<'r> {
    fn new(ranges: &'r DeadRanges, planted: Planted, seed: u64) -> Simulation<'r> {
        Simulation {
            ranges,
            planted,
            rng: StdRng::seed_from_u64(seed),
            versions: (0..KEYS)
                .map(|n| (key(n), BTreeMap::from([(0, true)])))
                .collect(),
            readable: 0,
            under_way: None,
            readers: Vec::new(),
            checked: 0,
        }
    }

    fn lives(&self, key: &[u8], state: u64) -> bool {
        let versions = self.versions.get(key);
        versions.is_some_and(|v| {
            v.range(..=state)
                .next_back()
                .is_some_and(|(_, alive)| *alive)
        })
    }

    /// The keys that are known of `[low, high)`.
    fn keys(&self, low: &Bytes, high: &Bytes, backward: bool) -> Vec<&Bytes> {
        if low >= high {
            return Vec::new();
        }
        let within = (Bound::Included(&**low), Bound::Excluded(&**high));
        let mut keys: Vec<&Bytes> = self
            .versions
            .range::<[u8], _>(within)
            .map(|e| e.0)
            .collect();
        if backward {
            keys.reverse();
        }
        keys
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.random_range(0..10) {
            0..4 => self.write(),
            4 if self.readers.len() < 6 => {
                let reader = self.reader();
                self.readers.push(reader);
            }
            _ if !self.readers.is_empty() => {
                let at = self.rng.random_range(0..self.readers.len());
                let mut reader = self.readers.swap_remove(at);
                if self.read(&mut reader) {
                    self.check(&reader)?;
                } else {
                    self.readers.push(reader);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The next step of the write in flight, or a new one.
    fn write(&mut self) {
        if let Some((write, changes)) = self.under_way.take() {
            if changes.is_empty() {
                return drop(write);
            }
            self.readable += 1;
            for (key, alive) in changes {
                let versions = self.versions.entry(key).or_default();
                versions.insert(self.readable, alive);
            }
            self.under_way = Some((write, Vec::new()));
            return;
        }
        let from = self.rng.random_range(0..KEYS);
        let changes: Vec<(Bytes, bool)> = match self.rng.random_range(0..4) {
            0 => vec![(key(from), true)],
            _ => {
                let run = from..KEYS.min(from + self.rng.random_range(1..30));
                run.map(|n| (key(n), false)).collect()
            }
        };
        let write = self.ranges.begin(|each| {
            let puts = changes.iter().filter(|(_, alive)| *alive);
            puts.for_each(|(key, _)| each(key));
        });
        self.under_way = Some((write, changes));
    }

    fn reader(&mut self) -> Reader {
        let backward = self.rng.random_bool(0.5);
        let searches = self.rng.random_bool(0.3);
        let (low, high) = match searches {
            true => (0, KEYS),
            false => {
                let low = self.rng.random_range(0..KEYS / 2);
                (low, self.rng.random_range(low + 1..=KEYS))
            }
        };
        let (low, high) = (key(low), key(high));
        let begin = match (searches, backward) {
            (true, _) => key(self.rng.random_range(0..KEYS)),
            (false, false) => low.clone(),
            (false, true) => high.clone(),
        };
        let watch = match searches {
            true => self.ranges.watch(&low, &high),
            false => None,
        };
        Reader {
            low,
            high,
            backward,
            watch,
            seen: None,
            state: None,
            from: begin.clone(),
            stretch: begin,
            markers: 0,
            given: Vec::new(),
        }
    }

    /// One step; true when the reader is at its end.
    fn read(&mut self, reader: &mut Reader) -> bool {
        let ended = self.ranges.ended();
        let (seen, state) = match (reader.seen, reader.state, reader.watch) {
            (Some(seen), Some(state), _) => (seen, state),
            (None, None, Some(watch)) if self.planted == Planted::Unawaited => {
                (reader.seen, reader.state) = (Some(watch), Some(self.readable));
                return false;
            }
            (None, None, Some(watch)) if ended < watch => return false,
            (None, None, None) if self.planted == Planted::AsksLate => {
                reader.state = Some(self.readable);
                return false;
            }
            (None, _, _) => {
                reader.seen = Some(ended);
                return false;
            }
            (_, None, _) => {
                reader.state = Some(self.readable);
                return false;
            }
        };
        let (mut low, mut high) = match reader.backward {
            false => (reader.from.clone(), reader.high.clone()),
            true => (reader.low.clone(), reader.from.clone()),
        };
        let dead = match low < high {
            true => self.ranges.first(&low, &high, seen, reader.backward),
            false => None,
        };
        match &dead {
            Some((begin, _)) if !reader.backward => high = begin.clone().max(low.clone()),
            Some((_, end)) => low = end.clone().min(high.clone()),
            None => {}
        }
        let keys = self.keys(&low, &high, reader.backward);
        let gone = keys.iter().take_while(|key| !self.lives(key, state));
        reader.markers += gone.count() as u32;
        let found = keys.into_iter().find(|key| self.lives(key, state)).cloned();
        match (found, dead) {
            (Some(found), _) => {
                self.note(reader, Some(&found), seen);
                reader.from = match reader.backward {
                    false => successor(&found),
                    true => found.clone(),
                };
                (reader.stretch, reader.markers) = (reader.from.clone(), 0);
                reader.given.push(found);
                reader.watch.is_some()
            }
            (None, Some((begin, end))) => {
                reader.from = if reader.backward { begin } else { end };
                false
            }
            (None, None) => {
                self.note(reader, None, seen);
                true
            }
        }
    }

    /// Notes the stretch up to the key that was found.
    fn note(&self, reader: &Reader, found: Option<&Bytes>, seen: u64) {
        if reader.markers < MANY {
            return;
        }
        let (low, high) = match (reader.backward, found) {
            (false, Some(found)) => (&reader.stretch, found.clone()),
            (false, None) => (&reader.stretch, reader.high.clone()),
            (true, Some(found)) => (&successor(found), reader.stretch.clone()),
            (true, None) => (&reader.low, reader.stretch.clone()),
        };
        self.ranges.note(low, &high, seen, WEIGHT);
    }

    fn check(&mut self, reader: &Reader) -> Result<(), String> {
        if let Some(watch) = reader.watch {
            self.ranges.forget(&reader.low, &reader.high, watch);
            return Ok(());
        }
        let state = reader.state.unwrap_or_default();
        let mut lives = self.keys(&reader.low, &reader.high, reader.backward);
        lives.retain(|key| self.lives(key, state));
        if !lives.iter().copied().eq(&reader.given) {
            return Err(format!("{:?} for {lives:?}", reader.given));
        }
        self.checked += 1;
        Ok(())
    }
}

/// How many scans were checked, and how often a dead range was known; or the first difference.
fn run(planted: Planted, seed: u64) -> Result<(u64, u64), String> {
    let mode = match planted {
        Planted::Unended => Mode::Unended,
        _ => Mode::On,
    };
    let ranges = DeadRanges::new(mode);
    let mut simulation = Simulation::new(&ranges, planted, seed);
    let mut known = 0;
    for _ in 0..STEPS {
        simulation.step()?;
        known += u64::from(ranges.dead() > 0);
    }
    Ok((simulation.checked, known))
}

/// `PANDO_SEEDS` makes more of them.
fn seeds() -> u64 {
    let given = std::env::var("PANDO_SEEDS").ok();
    given.and_then(|n| n.parse().ok()).unwrap_or(60)
}

#[test]
fn scans_give_what_lives_in_their_states() {
    for seed in 1..=seeds() {
        let done = run(Planted::Nothing, seed);
        let enough = |(checked, known)| checked > 200 && known > STEPS / 2;
        assert!(done.clone().is_ok_and(enough), "seed {seed}: {done:?}");
    }
}

#[test]
fn what_is_planted_is_found() {
    for planted in [Planted::Unended, Planted::AsksLate, Planted::Unawaited] {
        let mut finds = (1..=300).filter(|seed| run(planted, *seed).is_err());
        assert!(
            finds.nth(2).is_some(),
            "{planted:?} is not found three times"
        );
    }
}
