//! How a collection is cut: at its birth, and where a chunk has grown; and how chunks of one shard
//! become one.
//!
//! Invariant: neither changes an owner, nor the major version of any shard.

use crate::chunk::ReplacedChunks;
use crate::series::check_bound;
use crate::{Chunk, PlaceRange, RoutingTable, ShardKey, Version};
use bson::{Doc, DocBuf, ObjectId, Writer};
use errors::{Result, bail, err};

/// The hashes that cut all hashes into so many equal parts, as MongoDB cuts them.
fn hashes(parts: u32) -> Vec<i64> {
    let parts = i64::from(parts.max(1));
    let size = (i64::MAX / parts).saturating_mul(2);
    let mut cuts = Vec::new();
    let mut at = match parts % 2 {
        0 => {
            cuts.push(0);
            size
        }
        _ => size / 2,
    };
    for _ in 0..(parts - 1) / 2 {
        cuts.push(at);
        cuts.push(-at);
        at = at.saturating_add(size);
    }
    cuts.sort_unstable();
    cuts
}

/// Where an empty collection is cut into so many chunks: a hashed key whose first field is hashed is
/// cut evenly, others not at all.
pub fn initial(key: &ShardKey, parts: u32) -> Vec<DocBuf> {
    let Some(first) = key.fields().first().filter(|f| f.hashed) else {
        return Vec::new();
    };
    let bound = |hash| {
        let mut w = Writer::new();
        w.i64(first.path.as_str(), hash);
        key.whole_bound(w.finish().as_doc()).ok()
    };
    hashes(parts).into_iter().filter_map(bound).collect()
}

/// The bounds that cut a chunk into pieces of `every` documents, from its keys in order. No cut is
/// made inside of equal keys.
pub fn points<'a>(key: &ShardKey, keys: impl Iterator<Item = Doc<'a>>, every: u64) -> Vec<DocBuf> {
    let (mut cuts, mut last_place, mut count) = (Vec::new(), None, 0u64);
    for doc in keys {
        let (Ok(place), Ok(bound)) = (key.place_of(doc), key.bound_at(doc)) else {
            continue;
        };
        let changed = last_place.as_ref().is_some_and(|last| *last != place);
        if changed && count >= every.max(1) {
            cuts.push(bound);
            count = 0;
        }
        count += 1;
        last_place = Some(place);
    }
    cuts
}

/// A chunk cut at these bounds, which ascend.
pub fn cut_chunk(
    table: &RoutingTable,
    chunk: &Chunk,
    at: &[DocBuf],
    mut id: impl FnMut() -> ObjectId,
) -> Result<ReplacedChunks> {
    let key = table.key();
    let range = chunk.range(key)?;
    // The first chunk's range begins before the place of its bound.
    let first = key.place_of_bound(chunk.min.as_doc())?;
    let major = (chunk.lastmod >> 32) as u32;
    let last = table.version().minor() + at.len() as u32 + 1;
    let (mut new, mut min) = (Vec::new(), chunk.min.clone());
    if table.entry.series.is_some() {
        at.iter().try_for_each(|end| check_bound(end.as_doc()))?;
    }
    for end in at.iter().chain(std::iter::once(&chunk.max)) {
        let place = key.place_of_bound(end.as_doc())?;
        let is_cut = new.len() < at.len();
        if is_cut && (!range.contains(&place) || place == first || *end == chunk.max) {
            bail!(
                InvalidOptions,
                "new split key bound {} is outside of the chunk, or its boundary",
                end.as_doc()
            );
        }
        new.push(Chunk {
            id: id(),
            min: std::mem::replace(&mut min, end.clone()),
            max: end.clone(),
            // The chunk's own major version: its shard has it.
            lastmod: Version::placement_of(major, last - new.len() as u32),
            ..chunk.clone()
        });
    }
    assert_eq!(new.len(), at.len() + 1, "pieces make the chunk up");
    Ok(ReplacedChunks {
        old: vec![chunk.clone()],
        new,
    })
}

/// The chunks of a range, which are one shard's and make it up, as one.
pub fn join(
    table: &RoutingTable,
    range: &PlaceRange,
    mut id: impl FnMut() -> ObjectId,
) -> Result<ReplacedChunks> {
    let old: Vec<Chunk> = table.chunks_in(range).cloned().collect();
    let (Some(first), Some(last)) = (old.first(), old.last()) else {
        return Err(err!(InternalError, "a range has no chunks").into());
    };
    let whole = table.key().range(first.min.as_doc(), last.max.as_doc())?;
    if whole != *range || old.iter().any(|c| c.shard != first.shard) {
        bail!(
            IllegalOperation,
            "it does not belong to one shard, or is not made of whole chunks"
        );
    }
    let greatest = old.iter().map(|c| c.lastmod).max().unwrap_or(0);
    assert!(
        greatest >> 32 == (greatest + 1) >> 32,
        "a join leaves the major version"
    );
    let new = Chunk {
        id: id(),
        max: last.max.clone(),
        lastmod: greatest + 1,
        ..first.clone()
    };
    Ok(ReplacedChunks {
        old,
        new: vec![new],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn hashes_as_mongodb_cuts_them() {
        assert!(hashes(1).is_empty());
        assert_eq!(hashes(2), [0]);
        assert_eq!(hashes(3), [-3074457345618258602, 3074457345618258602]);
        assert_eq!(hashes(4), [-4611686018427387902, 0, 4611686018427387902]);
        assert_eq!(hashes(1000).len(), 999);
    }

    #[test]
    fn no_cut_inside_of_equal_keys() {
        let key = ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap();
        let docs: Vec<_> = [1, 1, 1, 1, 2, 3, 4, 5].map(|n| doc! {"a": n}).to_vec();
        let cuts = points(&key, docs.iter().map(DocBuf::as_doc), 2);
        assert_eq!(cuts, [doc! {"a": 2}, doc! {"a": 4}]);
        assert!(initial(&key, 8).is_empty());
    }

    fn table() -> RoutingTable {
        let key = ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap();
        let chunk = Chunk {
            id: ObjectId([1; 12]),
            min: key.global_min(),
            max: key.global_max(),
            shard: "x".into(),
            lastmod: Version::placement_of(1, 0),
            jumbo: false,
            since: 1,
            turn: 0,
        };
        let entry = crate::CollectionEntry {
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
        RoutingTable::new(entry, vec![chunk]).unwrap()
    }

    /// The pieces of a chunk make it up, in the table and as one again.
    #[test]
    fn what_is_cut_is_joined() {
        let whole = table();
        let chunk = whole.chunks().next().unwrap();
        let id = || ObjectId([2; 12]);
        let ends = [whole.key().global_min(), whole.key().global_max()];
        for end in ends {
            assert!(cut_chunk(&whole, chunk, &[end], id).is_err());
        }
        let cut = cut_chunk(&whole, chunk, &[doc! {"a": 3}, doc! {"a": 5}], id).unwrap();
        let pieces = whole.with(cut.new).unwrap();
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces.version().major(), 1);
        let joined = join(&pieces, &PlaceRange::all(), id).unwrap();
        assert_eq!((joined.old.len(), joined.new.len()), (3, 1));
        assert!(joined.new[0].lastmod > pieces.version().placement);
        let part = pieces
            .key()
            .range(doc! {"a": 3}.as_doc(), doc! {"a": 4}.as_doc());
        assert!(join(&pieces, &part.unwrap(), id).is_err());
    }
}
