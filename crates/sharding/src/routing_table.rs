//! Which shard has which range of a collection, as of a version.
//!
//! Invariant: the chunks are ascending and leave no place out.

use crate::{Chunk, Place, PlaceRange, ShardKey, Version, union};
use bson::ObjectId;
use errors::{Result, bail};
use std::collections::BTreeMap;
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
}

#[derive(Clone, Debug)]
pub struct RoutingTable {
    pub entry: CollectionEntry,
    chunks: Vec<Chunk>,
    /// Where each chunk begins.
    starts: Vec<Place>,
    /// The greatest version among the chunks of each shard.
    shards: BTreeMap<Arc<str>, u64>,
}

impl RoutingTable {
    /// In whatever order the chunks are.
    pub fn new(entry: CollectionEntry, chunks: Vec<Chunk>) -> Result<RoutingTable> {
        let mut placed = Vec::with_capacity(chunks.len());
        let mut shards: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        for mut chunk in chunks {
            match shards.get_key_value(&chunk.shard) {
                // One name for all of its chunks.
                Some((name, _)) => chunk.shard = name.clone(),
                None => {
                    shards.insert(chunk.shard.clone(), 0);
                }
            }
            if let Some(version) = shards.get_mut(&chunk.shard) {
                *version = chunk.lastmod.max(*version);
            }
            placed.push((chunk.range(&entry.key)?, chunk));
        }
        placed.sort_by(|a, b| a.0.low.cmp(&b.0.low));
        let mut expected = Some(Vec::new());
        for (range, _) in &placed {
            if expected.as_ref() != Some(&range.low) {
                bail!(
                    ConflictingOperationInProgress,
                    "The chunks of {} do not meet: they are being changed",
                    entry.ns
                );
            }
            expected = range.high.clone();
        }
        if expected.is_some() {
            bail!(
                ConflictingOperationInProgress,
                "The chunks of {} have no end: they are being changed",
                entry.ns
            );
        }
        let (ranges, chunks): (Vec<_>, Vec<_>) = placed.into_iter().unzip();
        Ok(RoutingTable {
            entry,
            chunks,
            starts: ranges.into_iter().map(|r| r.low).collect(),
            shards,
        })
    }

    pub fn key(&self) -> &ShardKey {
        &self.entry.key
    }

    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    fn index_at(&self, place: &[u8]) -> usize {
        let behind = self
            .starts
            .partition_point(|start| start.as_slice() <= place);
        behind.saturating_sub(1)
    }

    pub fn chunk_at(&self, place: &[u8]) -> Option<&Chunk> {
        self.chunks.get(self.index_at(place))
    }

    pub fn range_of(&self, chunk: usize) -> Option<PlaceRange> {
        Some(PlaceRange {
            low: self.starts.get(chunk)?.clone(),
            high: self.starts.get(chunk + 1).cloned(),
        })
    }

    /// The chunks that have any place of these ranges.
    pub fn chunks_in(&self, range: &PlaceRange) -> impl Iterator<Item = (usize, &Chunk)> {
        let first = self.index_at(&range.low);
        let high = range.high.clone();
        let rest = self.chunks.iter().enumerate().skip(first);
        rest.take_while(move |(i, _)| {
            *i == first || high.as_ref().is_none_or(|high| self.starts[*i] < *high)
        })
    }

    /// The shards that have any place of these ranges, by name.
    pub fn shards_in(&self, ranges: &[PlaceRange]) -> Vec<Arc<str>> {
        let mut found: Vec<Arc<str>> = Vec::new();
        for range in ranges {
            for (_, chunk) in self.chunks_in(range) {
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

    /// What a shard has to know to serve whoever believes this table.
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
        let of = |(i, chunk): (usize, &Chunk)| {
            (*chunk.shard == *shard).then(|| self.range_of(i)).flatten()
        };
        union(self.chunks.iter().enumerate().filter_map(of).collect())
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
        let mut chunks = whole.chunks().to_vec();
        chunks.remove(1);
        assert!(RoutingTable::new(whole.entry.clone(), chunks).is_err());
        let mut chunks = whole.chunks().to_vec();
        chunks.pop();
        assert!(RoutingTable::new(whole.entry.clone(), chunks).is_err());
        assert!(RoutingTable::new(whole.entry.clone(), Vec::new()).is_err());
    }
}
