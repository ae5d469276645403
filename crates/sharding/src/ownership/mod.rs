//! A shard's part of a collection: a state machine that routers and movers teach, and a document of the
//! shard's own (`config.ownership`), so that it survives the process and reaches the other members.
//!
//! Invariant: the state never goes back. A range that the shard has lost, or does not have yet, is among
//! the orphans until its documents are gone or it is owned; so no router sees them.

mod commands;

use crate::{PlaceRange, Received, RoutingTable, ShardKey, Version, cut, union};
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Result, bail, err};

/// A range whose owner is about to change: routers wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The move that raised it.
    pub by: String,
    pub range: PlaceRange,
    /// The collection is about to begin another life: only the mover that raised the fence tells of
    /// that.
    pub firm: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    pub ns: String,
    pub key: ShardKey,
    /// Of this shard's part: zero where it has none.
    pub version: Version,
    /// The placement of the whole collection that this was learned with. It only grows, where the
    /// shard's own falls to zero with its last range.
    pub seen: u64,
    pub owned: Vec<PlaceRange>,
    /// Ranges that may hold documents which are not the shard's.
    pub orphans: Vec<PlaceRange>,
    pub fence: Option<Fence>,
    /// The latest holder of the collection's lock that was heard of. What an earlier one still
    /// sends is refused.
    pub turn: u64,
    /// The range whose documents that holder may send, until it is owned or cleaned: later messages are
    /// refused.
    pub incoming: Option<PlaceRange>,
}

/// What a shard does with a command of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Serve {
        /// Documents in the orphan ranges are to be hidden.
        hides: bool,
    },
    /// One of the two knows less than the other.
    Stale,
    /// The router is to ask again in a moment.
    Fenced,
}

/// How a command's version stands to what the shard knows.
pub fn standing(known: Option<&Ownership>, received: Received) -> Standing {
    let Received::Version(version) = received else {
        return Standing::Serve { hides: false };
    };
    let Some(known) = known else {
        return match version.is_unsharded() {
            true => Standing::Serve { hides: false },
            false => Standing::Stale,
        };
    };
    if known.fence.as_ref().is_some_and(|f| f.firm) {
        return Standing::Fenced;
    }
    // Splits change the minor version only: no range changes its owner.
    if !known.version.is_same_life(&version) || known.version.major() != version.major() {
        return Standing::Stale;
    }
    match known.fence {
        Some(_) => Standing::Fenced,
        None => Standing::Serve {
            hides: !known.orphans.is_empty(),
        },
    }
}

impl Ownership {
    /// Of a shard that has nothing of the collection.
    pub fn nothing(ns: &str, key: ShardKey, version: Version) -> Ownership {
        Ownership {
            ns: ns.into(),
            key,
            version: Version {
                placement: 0,
                ..version
            },
            seen: 0,
            owned: Vec::new(),
            orphans: Vec::new(),
            fence: None,
            turn: 0,
            incoming: None,
        }
    }

    /// What the table says of a shard.
    pub fn of(table: &RoutingTable, shard: &str) -> Ownership {
        Ownership {
            version: table.version_of(shard),
            seen: table.version().placement,
            owned: table.owned_by(shard),
            ..Ownership::nothing(&table.entry.ns, table.key().clone(), table.version())
        }
    }

    /// The state after `told`; `None` if it is not newer.
    pub fn learn(known: Option<&Ownership>, told: &Ownership) -> Option<Ownership> {
        let fresh = Ownership {
            orphans: Vec::new(),
            fence: None,
            turn: known.map_or(0, |k| k.turn),
            ..told.clone()
        };
        let Some(known) = known else {
            return Some(fresh);
        };
        if known.fence.as_ref().is_some_and(|f| f.firm) {
            return None;
        }
        if !told.version.is_same_life(&known.version) {
            return told.version.is_newer(&known.version).then_some(fresh);
        }
        if told.seen <= known.seen {
            return None;
        }
        let lost = cut(&known.owned, &told.owned);
        let may_hold = union([known.orphans.clone(), lost].concat());
        let still_ours = |fence: &Fence| {
            let range = std::slice::from_ref(&fence.range);
            cut(range, &told.owned).is_empty()
        };
        let comes = |range: &PlaceRange| {
            let range = std::slice::from_ref(range);
            cut(range, &told.owned) == range
        };
        Some(Ownership {
            orphans: cut(&may_hold, &told.owned),
            fence: known.fence.clone().filter(still_ours),
            incoming: known.incoming.clone().filter(comes),
            ..fresh
        })
    }

    /// Fails if the lock has had a later holder. From a later one on earlier ones are refused.
    pub fn heed(mut self, turn: u64) -> Result<Ownership> {
        if turn < self.turn {
            bail!(
                ConflictingOperationInProgress,
                "{} is being changed by somebody else since",
                self.ns
            );
        }
        if turn > self.turn {
            self.incoming = None;
        }
        self.turn = turn;
        Ok(self)
    }

    /// Documents of a range are about to come in.
    pub fn receive(mut self, range: PlaceRange) -> Ownership {
        let orphans = cut(std::slice::from_ref(&range), &self.owned);
        self.orphans = union([self.orphans, orphans].concat());
        self.incoming = Some(range);
        self
    }

    /// No documents of these ranges come in any more.
    pub fn closed(mut self, ranges: &[PlaceRange]) -> Ownership {
        let meets = |range: &PlaceRange| ranges.iter().any(|r| r.overlaps(range));
        self.incoming = self.incoming.filter(|range| !meets(range));
        self
    }

    /// No documents of a range are here that the shard does not own.
    pub fn cleaned(mut self, ranges: &[PlaceRange]) -> Ownership {
        self.orphans = cut(&self.orphans, ranges);
        self
    }

    /// A filter that holds for documents outside of the orphan ranges. Ranges are in the order of
    /// bytes, so no collation holds for it.
    pub fn shown(&self) -> DocBuf {
        self.shown_among(&[PlaceRange::all()]).unwrap_or_default()
    }

    /// The same for documents that lie in these ranges. `None`: none of them is an orphan.
    pub fn shown_among(&self, ranges: &[PlaceRange]) -> Option<DocBuf> {
        self.shown_by(&self.key, ranges)
    }

    /// The same by other names, where bounds say nothing of the fields that `key` lacks at its end.
    pub(crate) fn shown_by(&self, key: &ShardKey, ranges: &[PlaceRange]) -> Option<DocBuf> {
        let may_be_found = |orphans: &&PlaceRange| ranges.iter().any(|r| r.overlaps(orphans));
        let mut orphans = self.orphans.iter().filter(may_be_found).peekable();
        orphans.peek()?;
        let mut w = Writer::new();
        w.open_doc("$_pandoUncollated").open_array("$nor");
        for range in orphans {
            let Some((min, max)) = self.key.bounds(range) else {
                continue;
            };
            let (min, max) = (key.named(min.as_doc()), key.named(max.as_doc()));
            let mut condition = Writer::new();
            condition.doc("$expr", key.within(min.as_doc(), max.as_doc()).as_doc());
            w.push(condition.finish().as_doc().as_val());
        }
        Some(w.finish())
    }

    /// Whether a document belongs to this shard.
    pub fn owns(&self, doc: Doc<'_>) -> Result<bool> {
        let place = self.key.place_of(doc)?;
        Ok(self.owned.iter().any(|r| r.contains(&place)))
    }

    pub fn to_doc(&self) -> DocBuf {
        let mut w = Writer::new();
        w.str("_id", &self.ns)
            .doc("key", self.key.pattern())
            .doc("version", self.version.to_doc().as_doc())
            .timestamp("seen", self.seen)
            .i64("turn", self.turn as i64);
        for (name, ranges) in [("owned", &self.owned), ("orphans", &self.orphans)] {
            w.open_array(name);
            for r in ranges {
                w.push(range_doc(r).as_doc().as_val());
            }
            w.close();
        }
        if let Some(incoming) = &self.incoming {
            w.doc("incoming", range_doc(incoming).as_doc());
        }
        if let Some(fence) = &self.fence {
            w.open_doc("fence")
                .str("by", &fence.by)
                .bool("firm", fence.firm)
                .doc("range", range_doc(&fence.range).as_doc())
                .close();
        }
        w.finish()
    }

    pub fn parse(d: Doc<'_>) -> Result<Ownership> {
        let bad = || err!(FailedToParse, "{d} says nothing of who owns what");
        let key = d.get("key").and_then(Val::as_doc).ok_or_else(bad)?;
        let ranges = |name: &str| -> Option<Vec<PlaceRange>> {
            let list = d.get(name)?.as_array()?;
            list.values().map(|v| range_of(v.as_doc()?)).collect()
        };
        let fence = d.get("fence").and_then(Val::as_doc);
        let fence = fence.map(|f| {
            Some(Fence {
                by: f.get("by")?.as_str()?.into(),
                range: range_of(f.get("range")?.as_doc()?)?,
                firm: f.get("firm").is_some_and(Val::truthy),
            })
        });
        Ok(Ownership {
            ns: d.get("_id").and_then(Val::as_str).ok_or_else(bad)?.into(),
            key: ShardKey::parse(key)?,
            version: Version::parse(d.get("version").ok_or_else(bad)?)?,
            seen: d.get("seen").and_then(Val::as_timestamp).ok_or_else(bad)?,
            owned: ranges("owned").ok_or_else(bad)?,
            orphans: ranges("orphans").ok_or_else(bad)?,
            fence: match fence {
                None => None,
                Some(fence) => Some(fence.ok_or_else(bad)?),
            },
            turn: d.get("turn").and_then(Val::to_i64_exact).unwrap_or(0) as u64,
            incoming: match d.get("incoming").and_then(Val::as_doc) {
                None => None,
                Some(range) => Some(PlaceRange::parse(range)?),
            },
        })
    }
}

/// A range as the parts of the cluster tell it each other: `{low, high}`, places as bytes.
pub(crate) fn range_doc(r: &PlaceRange) -> DocBuf {
    let mut w = Writer::new();
    w.binary("low", 0, &r.low);
    if let Some(high) = &r.high {
        w.binary("high", 0, high);
    }
    w.finish()
}

pub(crate) fn range_of(d: Doc<'_>) -> Option<PlaceRange> {
    Some(PlaceRange {
        low: d.get("low")?.as_binary()?.1.to_vec(),
        high: match d.get("high") {
            None => None,
            Some(v) => Some(v.as_binary()?.1.to_vec()),
        },
    })
}

impl PlaceRange {
    /// See [`PlaceRange::parse`].
    pub fn to_doc(&self) -> DocBuf {
        range_doc(self)
    }

    /// `{low, high}`, places as bytes; the last range has no `high`.
    pub fn parse(d: Doc<'_>) -> Result<PlaceRange> {
        Ok(range_of(d).ok_or_else(|| err!(FailedToParse, "{d} is no range of places"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{ObjectId, doc};
    use query::expr::ParseEnv;
    use query::filter::Filter;

    fn version(timestamp: u64, major: u32, minor: u32) -> Version {
        Version {
            epoch: ObjectId([1; 12]),
            timestamp,
            placement: Version::placement_of(major, minor),
        }
    }

    fn key() -> ShardKey {
        ShardKey::parse(doc! {"a": 1}.as_doc()).unwrap()
    }

    fn range(low: i32, high: i32) -> PlaceRange {
        let bound = |n: i32| doc! {"a": n};
        key()
            .range(bound(low).as_doc(), bound(high).as_doc())
            .unwrap()
    }

    fn owning(v: Version, owned: Vec<PlaceRange>) -> Ownership {
        Ownership {
            version: v,
            seen: v.placement,
            owned,
            ..Ownership::nothing("d.c", key(), v)
        }
    }

    #[test]
    fn who_is_stale() {
        let known = owning(version(5, 2, 1), vec![range(0, 10)]);
        let at = |known: Option<&Ownership>, v| standing(known, Received::Version(v));
        let serve = Standing::Serve { hides: false };
        assert_eq!(standing(Some(&known), Received::Nothing), serve);
        assert_eq!(at(None, Version::UNSHARDED), serve);
        assert_eq!(at(None, version(5, 2, 1)), Standing::Stale);
        assert_eq!(at(Some(&known), Version::UNSHARDED), Standing::Stale);
        assert_eq!(at(Some(&known), version(5, 2, 9)), serve);
        assert_eq!(at(Some(&known), version(5, 1, 1)), Standing::Stale);
        assert_eq!(at(Some(&known), version(5, 3, 0)), Standing::Stale);
        assert_eq!(at(Some(&known), version(6, 2, 1)), Standing::Stale);
    }

    /// A whole move, as donor and recipient learn of it.
    #[test]
    fn a_move() {
        let donor = owning(version(5, 1, 0), vec![range(0, 10)]);
        let receiver = Ownership::nothing("d.c", key(), version(5, 1, 0));
        let moving = range(5, 10);
        let receiver = receiver.receive(moving.clone());
        let v = |known: &Ownership, v| standing(Some(known), Received::Version(v));
        assert_eq!(
            v(&receiver, version(5, 0, 0)),
            Standing::Serve { hides: true }
        );
        let fenced = Ownership {
            fence: Some(Fence {
                by: "m".into(),
                range: moving.clone(),
                firm: false,
            }),
            ..donor
        };
        assert_eq!(v(&fenced, version(5, 1, 0)), Standing::Fenced);
        // A split that another router tells of does not lift it.
        let told = owning(version(5, 1, 2), vec![range(0, 10)]);
        let fenced = Ownership::learn(Some(&fenced), &told).unwrap();
        assert!(fenced.fence.is_some());
        let told = owning(version(5, 2, 1), vec![range(0, 5)]);
        let donor = Ownership::learn(Some(&fenced), &told).unwrap();
        assert_eq!(
            (donor.fence.clone(), &donor.orphans),
            (None, &vec![moving.clone()])
        );
        assert_eq!(v(&donor, version(5, 2, 1)), Standing::Serve { hides: true });
        assert!(Ownership::learn(Some(&donor), &told).is_none());
        let told = owning(version(5, 2, 0), vec![moving.clone()]);
        let receiver = Ownership::learn(Some(&receiver), &told).unwrap();
        assert!(receiver.orphans.is_empty());
        assert!(donor.cleaned(&[moving]).orphans.is_empty());
    }

    #[test]
    fn who_gives_the_last_range_away_learns_of_it() {
        let known = owning(version(5, 2, 0), vec![range(0, 10)]);
        let told = Ownership {
            version: version(5, 0, 0),
            seen: Version::placement_of(3, 0),
            ..owning(version(5, 0, 0), Vec::new())
        };
        let learned = Ownership::learn(Some(&known), &told).unwrap();
        assert_eq!(learned.orphans, vec![range(0, 10)]);
        let at = |v| standing(Some(&learned), Received::Version(v));
        assert_eq!(at(version(5, 2, 0)), Standing::Stale);
        assert!(Ownership::learn(Some(&learned), &known).is_none());
    }

    #[test]
    fn who_was_followed_is_refused() {
        let known = owning(version(5, 2, 0), vec![range(0, 10)]);
        let known = known.heed(7).unwrap();
        assert!(known.clone().heed(6).is_err());
        assert_eq!(known.clone().heed(7).unwrap().turn, 7);
        let told = owning(version(6, 1, 0), vec![range(0, 5)]);
        assert_eq!(Ownership::learn(Some(&known), &told).unwrap().turn, 7);
        let firm = Fence {
            by: "m".into(),
            range: PlaceRange::all(),
            firm: true,
        };
        let fenced = Ownership {
            fence: Some(firm),
            ..known
        };
        assert!(Ownership::learn(Some(&fenced), &told).is_none());
        let received = Received::Version(told.version);
        assert_eq!(standing(Some(&fenced), received), Standing::Fenced);
    }

    #[test]
    fn documents_and_what_is_shown() {
        let v = version(5, 2, 0);
        let known = owning(v, vec![range(0, 5), range(20, 30)]).receive(range(4, 8));
        let known = Ownership {
            fence: Some(Fence {
                by: "m".into(),
                range: PlaceRange::all(),
                firm: true,
            }),
            ..known
        };
        assert_eq!(known.orphans, vec![range(5, 8)]);
        assert_eq!(Ownership::parse(known.to_doc().as_doc()).unwrap(), known);
        let shown = Filter::parse(known.shown().as_doc(), &ParseEnv::new()).unwrap();
        for n in 0..12 {
            let d = doc! {"a": n};
            let visible = shown.matches(d.as_doc()).unwrap();
            assert_eq!(visible, !(5..8).contains(&n), "{n}");
        }
        assert!(known.shown_among(&[range(0, 5), range(8, 9)]).is_none());
        assert_eq!(known.shown_among(&[range(7, 9)]), Some(known.shown()));
        assert!(known.owns(doc! {"a": 25}.as_doc()).unwrap());
        assert!(!known.owns(doc! {"a": 5}.as_doc()).unwrap());
        assert!(Ownership::parse(doc! {"_id": "x"}.as_doc()).is_err());
    }
}
