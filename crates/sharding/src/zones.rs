//! Zones: ranges of a collection that only some shards may have.

use crate::{PlaceRange, ShardKey};
use bson::Doc;
use errors::{Result, bail, err};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    pub name: String,
    pub range: PlaceRange,
}

impl Zone {
    /// A document of `config.tags`.
    pub fn parse(d: Doc<'_>, key: &ShardKey) -> Result<Zone> {
        let read = || {
            let name = d.get("tag")?.as_str()?;
            Some((name, d.get("min")?.as_doc()?, d.get("max")?.as_doc()?))
        };
        let (name, min, max) = read().ok_or_else(|| err!(FailedToParse, "{d} is no zone"))?;
        Ok(Zone {
            name: name.into(),
            range: key.range(
                key.whole_bound(min)?.as_doc(),
                key.whole_bound(max)?.as_doc(),
            )?,
        })
    }
}

/// Fails where a new range overlaps another that is not the same.
pub fn check(zones: &[Zone], new: &PlaceRange) -> Result<()> {
    match zones
        .iter()
        .find(|z| z.range != *new && z.range.overlaps(new))
    {
        None => Ok(()),
        Some(other) => bail!(
            RangeOverlapConflict,
            "Zone range overlaps a range of the zone {}",
            other.name
        ),
    }
}

/// Where a chunk lies in regard to the zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within<'z> {
    Zone(&'z str),
    None,
    /// A zone's end cuts it.
    Several,
}

/// The zone that a chunk lies in. `zones` are disjoint and ascend.
pub fn of<'z>(zones: &'z [Zone], chunk: &PlaceRange) -> Within<'z> {
    let ends_before = |z: &Zone| z.range.high.as_ref().is_some_and(|high| *high <= chunk.low);
    let first = zones.get(zones.partition_point(ends_before));
    let Some(zone) = first.filter(|z| z.range.overlaps(chunk)) else {
        return Within::None;
    };
    let ends_inside = match (&zone.range.high, &chunk.high) {
        (None, _) => true,
        (Some(z), Some(c)) => c <= z,
        (Some(_), None) => false,
    };
    match zone.range.low <= chunk.low && ends_inside {
        true => Within::Zone(&zone.name),
        false => Within::Several,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn where_a_chunk_may_lie() {
        let key = ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap();
        let range = |low: i32, high: i32| {
            key.range(doc! {"a": low}.as_doc(), doc! {"a": high}.as_doc())
                .unwrap()
        };
        let d = doc! {"tag": "eu", "min": doc! {"a": 10}, "max": doc! {"a": 20}};
        let zones = [Zone::parse(d.as_doc(), &key).unwrap()];
        assert_eq!(of(&zones, &range(10, 15)), Within::Zone("eu"));
        assert_eq!(of(&zones, &range(0, 10)), Within::None);
        assert_eq!(of(&zones, &range(0, 11)), Within::Several);
        assert_eq!(of(&zones, &PlaceRange::all()), Within::Several);
        let zone = |name: &str, low: i32, high: i32| Zone {
            name: name.into(),
            range: range(low, high),
        };
        let several = [zone("us", 0, 10), zone("eu", 10, 20), zone("us", 30, 40)];
        for (low, high, within) in [
            (0, 5, Within::Zone("us")),
            (10, 20, Within::Zone("eu")),
            (5, 15, Within::Several),
            (20, 30, Within::None),
            (25, 35, Within::Several),
            (30, 31, Within::Zone("us")),
            (40, 50, Within::None),
        ] {
            assert_eq!(of(&several, &range(low, high)), within, "{low} {high}");
        }
        assert!(check(&zones, &range(15, 25)).is_err());
        assert!(check(&zones, &range(10, 20)).is_ok());
        assert!(check(&zones, &range(20, 25)).is_ok());
    }
}
