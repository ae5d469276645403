//! How a collection is cut: at its birth, and where a chunk has grown.

use crate::ShardKey;
use bson::{Doc, DocBuf, Writer};

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
}
