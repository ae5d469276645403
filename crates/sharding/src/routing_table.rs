//! Which shard has which range of a collection, as of a version.
//!
//! Chunks lie in blocks that tables share: a table that differs from another in a few chunks shares
//! all blocks with it but those of these chunks.
//!
//! Invariant: the chunks are ascending and leave no place out.

use crate::{Chunk, Place, PlaceRange, Series, ShardKey, Version, union};
use bson::{Doc, DocBuf, ObjectId, Writer};
use errors::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What `config.collections` says of a sharded collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionEntry {
    pub ns: String,
    pub uuid: [u8; 16],
    pub key: ShardKey,
    pub unique: bool,
    /// It is not sharded, but was moved by itself: it has one chunk.
    pub unsplittable: bool,
    pub epoch: ObjectId,
    pub timestamp: u64,
    /// The collection's own, unless it is the simple one. Places do not heed it.
    pub collation: Option<DocBuf>,
    /// It holds the buckets of a time series.
    pub series: Option<Series>,
    /// It was asked for by the name of its measurements.
    pub measured: bool,
}

impl CollectionEntry {
    /// The measurements, where it was asked for by their name.
    pub fn measurements(&self) -> Option<&Series> {
        self.series.as_ref().filter(|_| self.measured)
    }

    /// The shard key by the names that filters and updates use.
    pub fn asked_key(&self) -> &ShardKey {
        self.measurements().map_or(&self.key, Series::key)
    }

    /// The place of a document to insert.
    pub fn place_of(&self, doc: Doc<'_>) -> Result<Place> {
        match self.measurements() {
            Some(series) => series.place_of(&self.key, doc),
            None => self.key.place_of(doc),
        }
    }
}

/// Chunks of a new block.
const BLOCK: usize = 512;

/// Chunks that follow each other.
#[derive(Debug)]
struct Block {
    chunks: Vec<Chunk>,
    /// Where each begins.
    starts: Vec<Place>,
    /// The greatest version among the chunks of each shard.
    shards: Vec<(Arc<str>, u64)>,
    turn: u64,
}

/// A chunk with its range.
type Placed = (PlaceRange, Chunk);

impl Block {
    fn new(placed: Vec<Placed>) -> Block {
        let mut shards: Vec<(Arc<str>, u64)> = Vec::new();
        let mut turn = 0;
        for (_, chunk) in &placed {
            turn = chunk.turn.max(turn);
            match shards.iter_mut().find(|(name, _)| *name == chunk.shard) {
                Some((_, version)) => *version = chunk.lastmod.max(*version),
                None => shards.push((chunk.shard.clone(), chunk.lastmod)),
            }
        }
        let (ranges, mut chunks): (Vec<_>, Vec<_>) = placed.into_iter().unzip();
        chunks.shrink_to_fit();
        Block {
            chunks,
            starts: ranges.into_iter().map(|r| r.low).collect(),
            shards,
            turn,
        }
    }

    fn start(&self) -> &[u8] {
        self.starts.first().map_or(&[], Vec::as_slice)
    }
}

/// The greatest version among the chunks of each shard.
type Versions = BTreeMap<Arc<str>, u64>;

#[derive(Clone, Debug)]
pub struct RoutingTable {
    pub entry: CollectionEntry,
    blocks: Vec<Arc<Block>>,
    shards: Versions,
    /// The greatest turn of the chunks.
    turn: u64,
}

/// Where a chunk is: its block, and its place in that.
type At = (usize, usize);

impl RoutingTable {
    /// In whatever order the chunks are.
    pub fn new(entry: CollectionEntry, chunks: Vec<Chunk>) -> Result<RoutingTable> {
        let mut names = BTreeSet::new();
        let mut placed = place(&entry, chunks, &mut names)?;
        placed.sort_by(|a, b| a.0.low.cmp(&b.0.low));
        check_meet(&entry.ns, &placed, Some(&[]), None)?;
        let mut blocks = Vec::new();
        cut_into(placed, &mut blocks);
        let shards = versions_after(&Versions::new(), &[], &blocks, || &[]);
        Ok(RoutingTable::of(entry, blocks, shards))
    }

    /// `shards`: the greatest version among the chunks of each.
    fn of(entry: CollectionEntry, blocks: Vec<Arc<Block>>, shards: Versions) -> RoutingTable {
        assert!(
            blocks.is_sorted_by(|a, b| a.start() < b.start()),
            "chunks ascend"
        );
        RoutingTable {
            entry,
            shards,
            turn: blocks.iter().map(|b| b.turn).max().unwrap_or(0),
            blocks,
        }
    }

    /// The table when these chunks have taken the places of all that lie in their ranges.
    pub fn with(&self, changed: Vec<Chunk>) -> Result<RoutingTable> {
        let mut names: BTreeSet<Arc<str>> = self.shards.keys().cloned().collect();
        let mut changed = place(&self.entry, changed, &mut names)?;
        changed.sort_by(|a, b| a.0.low.cmp(&b.0.low));
        let mut changed = changed.into_iter().peekable();
        let mut blocks = Vec::with_capacity(self.blocks.len() + 1);
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < self.blocks.len() {
            let first = at;
            let mut new: Vec<Placed> = Vec::new();
            // As many blocks as these chunks reach into, and the chunks that begin in them.
            loop {
                let end = self.blocks.get(at + 1).map(|b| b.start());
                while let Some(one) =
                    changed.next_if(|(r, _)| end.is_none_or(|end| r.low.as_slice() < end))
                {
                    new.push(one);
                }
                at += 1;
                let reaches = |(r, _): &Placed| match (&r.high, end) {
                    (_, None) => false,
                    (None, Some(_)) => true,
                    (Some(high), Some(end)) => high.as_slice() > end,
                };
                if at >= self.blocks.len() || !new.last().is_some_and(reaches) {
                    break;
                }
            }
            match new.is_empty() {
                true => blocks.extend_from_slice(&self.blocks[first..at]),
                false => {
                    let others = blocks.len();
                    self.replace(first..at, new, &mut blocks)?;
                    gone.extend_from_slice(&self.blocks[first..at]);
                    come.extend_from_slice(&blocks[others..]);
                }
            }
        }
        assert!(changed.next().is_none(), "each chunk has its place");
        let shards = versions_after(&self.shards, &gone, &come, || &blocks);
        Ok(RoutingTable::of(self.entry.clone(), blocks, shards))
    }

    /// New blocks for some that new chunks, ascending, lie in.
    fn replace(
        &self,
        old: std::ops::Range<usize>,
        new: Vec<Placed>,
        blocks: &mut Vec<Arc<Block>>,
    ) -> Result<()> {
        let mut all: Vec<Placed> = Vec::new();
        let overlapped = |r: &PlaceRange| {
            let behind = new.partition_point(|(n, _)| n.low <= r.low);
            let near = &new[behind.saturating_sub(1)..(behind + 1).min(new.len())];
            near.iter().any(|(n, _)| n.overlaps(r))
        };
        for block in old.clone() {
            for (i, chunk) in self.blocks[block].chunks.iter().enumerate() {
                let range = self.range_at((block, i));
                if !overlapped(&range) {
                    all.push((range, chunk.clone()));
                }
            }
        }
        all.extend(new);
        all.sort_by(|a, b| a.0.low.cmp(&b.0.low));
        let start = self.blocks[old.start].start();
        let end = self.blocks.get(old.end).map(|b| b.start());
        check_meet(&self.entry.ns, &all, Some(start), end)?;
        cut_into(all, blocks);
        Ok(())
    }

    /// The filter for the chunks that a known table of the same life lacks: those written since, in the
    /// table's greatest turn or a later one.
    pub fn unknown_chunks(known: Option<&RoutingTable>, uuid: &[u8; 16]) -> DocBuf {
        let mut w = Writer::new();
        w.binary("uuid", 4, uuid);
        if let Some(known) = known {
            w.open_doc("turn").i64("$gte", known.turn as i64).close();
        }
        w.finish()
    }

    /// The table when the chunks of [`RoutingTable::unknown_chunks`] are known.
    pub fn followed(
        known: Option<&RoutingTable>,
        entry: CollectionEntry,
        chunks: Vec<Chunk>,
    ) -> Result<RoutingTable> {
        match known {
            Some(known) => known.with(chunks),
            None => RoutingTable::new(entry, chunks),
        }
    }

    pub fn key(&self) -> &ShardKey {
        &self.entry.key
    }

    /// How many chunks there are.
    pub fn len(&self) -> usize {
        self.blocks.iter().map(|b| b.chunks.len()).sum()
    }

    /// There is no place without a chunk.
    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.blocks.iter().flat_map(|b| &b.chunks)
    }

    /// What changes later is written by this holder of the lock, or by a later one.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    fn at(&self, place: &[u8]) -> At {
        let behind = self.blocks.partition_point(|b| b.start() <= place);
        let block = behind.saturating_sub(1);
        let Some(starts) = self.blocks.get(block).map(|b| &b.starts) else {
            return (0, 0);
        };
        let behind = starts.partition_point(|start| start.as_slice() <= place);
        (block, behind.saturating_sub(1))
    }

    fn next(&self, (block, i): At) -> Option<At> {
        match self.blocks.get(block)?.chunks.len() > i + 1 {
            true => Some((block, i + 1)),
            false => (self.blocks.len() > block + 1).then_some((block + 1, 0)),
        }
    }

    fn range_at(&self, at: At) -> PlaceRange {
        let start = |(block, i): At| self.blocks[block].starts[i].clone();
        PlaceRange {
            low: start(at),
            high: self.next(at).map(start),
        }
    }

    pub fn chunk_at(&self, place: &[u8]) -> Option<&Chunk> {
        let (block, i) = self.at(place);
        self.blocks.get(block)?.chunks.get(i)
    }

    /// The first chunk of a shard of which `which` holds.
    pub fn chunk_of(&self, shard: &str, which: impl Fn(&Chunk) -> bool) -> Option<&Chunk> {
        let has = |b: &&Arc<Block>| b.shards.iter().any(|(name, _)| **name == *shard);
        let mut chunks = self.blocks.iter().filter(has).flat_map(|b| &b.chunks);
        chunks.find(|c| *c.shard == *shard && which(c))
    }

    /// All chunks with their ranges.
    fn placed(&self) -> impl Iterator<Item = (At, &Chunk)> {
        let of = |(b, block): (usize, &'_ Arc<Block>)| (b, block.chunks.len());
        let all = self.blocks.iter().enumerate().map(of);
        all.flat_map(|(b, len)| (0..len).map(move |i| (b, i)))
            .map(|at| (at, &self.blocks[at.0].chunks[at.1]))
    }

    /// The chunks that have any place of a range.
    pub fn chunks_in(&self, range: &PlaceRange) -> impl Iterator<Item = &Chunk> {
        let first = self.at(&range.low);
        let high = range.high.clone();
        let inside = move |(b, i): &At| {
            let start = &self.blocks[*b].starts[*i];
            high.as_ref().is_none_or(|high| start < high)
        };
        let rest = std::iter::successors(self.next(first), |at| self.next(*at));
        std::iter::once(first)
            .chain(rest.take_while(inside))
            .filter_map(|(b, i)| self.blocks.get(b)?.chunks.get(i))
    }

    /// The shards that have any place of these ranges, by name.
    pub fn shards_in(&self, ranges: &[PlaceRange]) -> Vec<Arc<str>> {
        if let [all] = ranges
            && *all == PlaceRange::all()
        {
            return self.shards.keys().cloned().collect();
        }
        let mut found: Vec<Arc<str>> = Vec::new();
        for range in ranges {
            for chunk in self.chunks_in(range) {
                if !found.contains(&chunk.shard) {
                    found.push(chunk.shard.clone());
                }
                if found.len() == self.shards.len() {
                    break;
                }
            }
        }
        found.sort();
        found
    }

    /// The shards that have a chunk, by name.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.shards.keys()
    }

    /// The version that a shard must know to serve a router with this table.
    pub fn version_of(&self, shard: &str) -> Version {
        Version {
            epoch: self.entry.epoch,
            timestamp: self.entry.timestamp,
            placement: self.shards.get(shard).copied().unwrap_or(0),
        }
    }

    /// The version of the whole.
    pub fn version(&self) -> Version {
        Version {
            epoch: self.entry.epoch,
            timestamp: self.entry.timestamp,
            placement: self.shards.values().copied().max().unwrap_or(0),
        }
    }

    /// What a shard has.
    pub fn owned_by(&self, shard: &str) -> Vec<PlaceRange> {
        let own = self.placed().filter(|(_, c)| *c.shard == *shard);
        union(own.map(|(at, _)| self.range_at(at)).collect())
    }
}

/// The chunks with their ranges, and one name for all chunks of a shard.
fn place(
    entry: &CollectionEntry,
    chunks: Vec<Chunk>,
    names: &mut BTreeSet<Arc<str>>,
) -> Result<Vec<Placed>> {
    let mut placed = Vec::with_capacity(chunks.len());
    for mut chunk in chunks {
        match names.get(&chunk.shard) {
            Some(name) => chunk.shard = name.clone(),
            None => drop(names.insert(chunk.shard.clone())),
        }
        placed.push((chunk.range(&entry.key)?, chunk));
    }
    Ok(placed)
}

/// Fails unless each chunk begins where the one before it ends, the first at `start` and the last
/// ending at `end`.
fn check_meet(ns: &str, placed: &[Placed], start: Option<&[u8]>, end: Option<&[u8]>) -> Result<()> {
    let mut expected = start;
    for (range, _) in placed {
        if expected != Some(range.low.as_slice()) {
            bail!(
                ConflictingOperationInProgress,
                "The chunks of {ns} do not meet: they are being changed"
            );
        }
        expected = range.high.as_deref();
    }
    if expected != end {
        bail!(
            ConflictingOperationInProgress,
            "The chunks of {ns} have no end: they are being changed"
        );
    }
    Ok(())
}

/// The greatest versions when blocks have come in the place of others. What a move changes has greater versions
/// than all before it: so only of a shard whose greatest version has gone, and nothing as great has come, the
/// versions in `all` blocks are read.
fn versions_after<'b>(
    known: &Versions,
    gone: &[Arc<Block>],
    come: &[Arc<Block>],
    all: impl FnOnce() -> &'b [Arc<Block>],
) -> Versions {
    let mut versions = known.clone();
    let mut take = |name: &Arc<str>, version: u64| match versions.get_mut(name) {
        Some(greatest) => *greatest = version.max(*greatest),
        None => drop(versions.insert(name.clone(), version)),
    };
    let mut in_doubt: BTreeSet<Arc<str>> = BTreeSet::new();
    for (name, version) in gone.iter().flat_map(|b| &b.shards) {
        if known.get(name) == Some(version) {
            in_doubt.insert(name.clone());
        }
    }
    for (name, version) in come.iter().flat_map(|b| &b.shards) {
        take(name, *version);
        if known.get(name).is_some_and(|greatest| version >= greatest) {
            in_doubt.remove(name);
        }
    }
    if in_doubt.is_empty() {
        return versions;
    }
    versions.retain(|name, _| !in_doubt.contains(name));
    for (name, version) in all().iter().flat_map(|b| &b.shards) {
        if in_doubt.contains(name) {
            let greatest = versions.entry(name.clone()).or_default();
            *greatest = (*version).max(*greatest);
        }
    }
    versions
}

fn cut_into(placed: Vec<Placed>, blocks: &mut Vec<Arc<Block>>) {
    let mut rest = placed.into_iter().peekable();
    while rest.peek().is_some() {
        blocks.push(Arc::new(Block::new(rest.by_ref().take(BLOCK).collect())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    pub(crate) fn table(bounds: &[i32], shards: &[&str]) -> Result<RoutingTable> {
        let key = ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap();
        let bound = |n: i32| doc! {"a": n};
        let all: Vec<_> = std::iter::once(key.global_min())
            .chain(bounds.iter().map(|n| bound(*n)))
            .chain(std::iter::once(key.global_max()))
            .collect();
        let chunk = |(i, w): (usize, &[bson::DocBuf])| Chunk {
            id: ObjectId::generate(),
            min: w[0].clone(),
            max: w[1].clone(),
            shard: shards[i % shards.len()].into(),
            lastmod: Version::placement_of(1, i as u32),
            jumbo: false,
            since: 1,
            turn: 1,
        };
        let chunks = all.windows(2).enumerate().map(chunk).collect();
        let entry = CollectionEntry {
            ns: "d.c".into(),
            uuid: [1; 16],
            key,
            unique: false,
            unsplittable: false,
            epoch: ObjectId([3; 12]),
            timestamp: 9,
            collation: None,
            series: None,
            measured: false,
        };
        RoutingTable::new(entry, chunks)
    }

    #[test]
    fn finds_shards() {
        let t = table(&[10, 20, 30], &["x", "y", "z"]).unwrap();
        let at = |n: i32| {
            let place = t.key().place_of(doc! {"a": n}.as_doc()).unwrap();
            t.chunk_at(&place).unwrap().shard.to_string()
        };
        assert_eq!(
            [at(9), at(10), at(19), at(25), at(30)],
            ["x", "y", "y", "z", "x"]
        );
        let range = |low: i32, high: i32| {
            let key = t.key();
            key.range(doc! {"a": low}.as_doc(), doc! {"a": high}.as_doc())
                .unwrap()
        };
        let shards = |r: &[PlaceRange]| t.shards_in(r).join(",");
        assert_eq!(shards(&[range(0, 10)]), "x");
        assert_eq!(shards(&[range(0, 11)]), "x,y");
        assert_eq!(shards(&[range(12, 13), range(22, 23)]), "y,z");
        assert_eq!(shards(&[PlaceRange::all()]), "x,y,z");
        assert_eq!(shards(&[]), "");
        assert_eq!(t.version_of("x").placement, Version::placement_of(1, 3));
        assert_eq!(t.version_of("unknown").placement, 0);
        assert_eq!(t.owned_by("x").len(), 2);
    }

    #[test]
    fn gaps_are_refused() {
        let whole = table(&[10, 20], &["x"]).unwrap();
        let mut chunks: Vec<_> = whole.chunks().cloned().collect();
        chunks.remove(1);
        assert!(RoutingTable::new(whole.entry.clone(), chunks).is_err());
        let mut chunks: Vec<_> = whole.chunks().cloned().collect();
        chunks.pop();
        assert!(RoutingTable::new(whole.entry.clone(), chunks).is_err());
        assert!(RoutingTable::new(whole.entry.clone(), Vec::new()).is_err());
    }

    /// A table that follows others by what has changed is the one that is made anew.
    #[test]
    fn what_has_changed_takes_its_place() {
        use rand::{Rng, SeedableRng, rngs::StdRng};
        for seed in 0..30 {
            let mut rng = StdRng::seed_from_u64(seed);
            let many = if seed % 3 == 0 { 3000 } else { 40 };
            let bounds: Vec<i32> = (1..many).map(|n| n * 10).collect();
            let mut followed = table(&bounds, &["x", "y", "z"]).unwrap();
            for turn in 2..30 {
                let all: Vec<Chunk> = followed.chunks().cloned().collect();
                let at = rng.random_range(0..all.len());
                let to = (at + rng.random_range(1..5)).min(all.len());
                let mut new = Chunk {
                    id: ObjectId::generate(),
                    shard: ["x", "y", "z", "w"][rng.random_range(0..4usize)].into(),
                    max: all[to - 1].max.clone(),
                    lastmod: Version::placement_of(turn as u32, 0),
                    turn,
                    ..all[at].clone()
                };
                let mut changed = Vec::new();
                let value = |d: &bson::DocBuf| d.get("a").and_then(|v| v.to_i64_exact());
                if let (Some(low), Some(high)) = (value(&new.min), value(&new.max))
                    && high - low > 1
                {
                    let middle = doc! {"a": ((low + high) / 2) as i32};
                    changed.push(Chunk {
                        min: middle.clone(),
                        ..new.clone()
                    });
                    new.max = middle;
                }
                changed.push(new);
                let mut whole = all;
                whole.splice(at..to, changed.clone());
                followed = followed.with(changed).unwrap();
                let anew = RoutingTable::new(followed.entry.clone(), whole).unwrap();
                assert!(followed.chunks().eq(anew.chunks()), "seed {seed}");
                assert_eq!(followed.shards, anew.shards, "seed {seed}");
                assert_eq!((followed.turn, anew.turn), (turn, turn));
                assert_eq!(followed.len(), anew.len());
                for shard in ["x", "w"] {
                    assert_eq!(followed.owned_by(shard), anew.owned_by(shard));
                }
            }
        }
    }

    /// What a move changes makes a new table from the old one and the changed blocks: it takes no longer where
    /// there are more chunks.
    #[test]
    fn a_move_reads_no_other_blocks() {
        let bounds: Vec<i32> = (1..5000).collect();
        let names: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let before = table(&bounds, &names).unwrap();
        let chunk = before.chunk_of("s3", |_| true).unwrap();
        let (bounds, to) = ((&chunk.min, &chunk.max), Arc::from("s7"));
        let moved = crate::moving::change_of_owner(&before, bounds, &to, 1, ObjectId::generate);
        let after = before.with(moved.unwrap().new).unwrap();
        let replaced = |of: &RoutingTable, by: &RoutingTable| -> Vec<Arc<Block>> {
            let kept = |b: &Arc<Block>| by.blocks.iter().any(|other| Arc::ptr_eq(b, other));
            of.blocks.iter().filter(|b| !kept(b)).cloned().collect()
        };
        let (gone, come) = (replaced(&before, &after), replaced(&after, &before));
        assert_eq!((gone.len(), come.len()), (1, 1));
        let versions = versions_after(&before.shards, &gone, &come, || panic!("all are read"));
        assert_eq!(versions, after.shards);
        assert_eq!(after.version_of("s7").major(), 2);
        // The greatest version of a shard has gone, and nothing has come: the others are looked at.
        let last = before.blocks.last().unwrap().clone();
        let rest = &before.blocks[..before.blocks.len() - 1];
        let without = versions_after(&before.shards, &[last], &[], || rest);
        assert_eq!(without, versions_after(&Versions::new(), &[], rest, || &[]));
        assert_ne!(without, before.shards);
    }

    /// A chunk that reaches over a part of another is refused.
    #[test]
    fn changes_that_do_not_meet_are_refused() {
        let t = table(&[10, 20, 30], &["x"]).unwrap();
        let chunk = |min: i32, max: i32| Chunk {
            min: doc! {"a": min},
            max: doc! {"a": max},
            ..t.chunks().next().unwrap().clone()
        };
        assert!(t.with(vec![chunk(10, 15)]).is_err());
        assert!(t.with(vec![chunk(10, 25)]).is_err());
        assert!(t.with(vec![chunk(10, 30), chunk(20, 30)]).is_err());
        assert_eq!(t.with(vec![chunk(10, 30)]).unwrap().len(), 3);
        assert_eq!(t.with(Vec::new()).unwrap().len(), 4);
    }
}
