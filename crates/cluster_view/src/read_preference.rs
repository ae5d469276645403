//! Which members of a set may answer a read: `$readPreference`, as MongoDB's routers understand it.
//!
//! ```text
//! {mode: "primary" | "primaryPreferred" | "secondary" | "secondaryPreferred" | "nearest",
//!  tags: [{name: value, …}, …], maxStalenessSeconds: n, hedge: {enabled: bool}}
//! ```
//!
//! Invariant: pure. Members are what they last said of themselves.

use bson::{Doc, DocBuf, Val, Writer};
use errors::{Fallible, bail, err};
use std::time::Duration;

/// Members that are slower than the fastest by more than this are not asked.
const WINDOW: Duration = Duration::from_millis(15);
/// The least that `maxStalenessSeconds` may be.
const LEAST_STALENESS_SECS: i64 = 90;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    Primary,
    PrimaryPreferred,
    Secondary,
    SecondaryPreferred,
    Nearest,
}

impl ReadMode {
    const ALL: [(&'static str, ReadMode); 5] = [
        ("primary", ReadMode::Primary),
        ("primaryPreferred", ReadMode::PrimaryPreferred),
        ("secondary", ReadMode::Secondary),
        ("secondaryPreferred", ReadMode::SecondaryPreferred),
        ("nearest", ReadMode::Nearest),
    ];

    fn named(name: &str) -> Option<ReadMode> {
        let found = ReadMode::ALL.iter().find(|(n, _)| *n == name);
        found.map(|(_, mode)| *mode)
    }

    fn name(self) -> &'static str {
        let found = ReadMode::ALL.iter().find(|(_, mode)| *mode == self);
        found.map_or("primary", |(name, _)| name)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReadPreference {
    pub mode: ReadMode,
    /// Sets of tags; the first that some member has is the one that counts. None: any member.
    tags: Vec<DocBuf>,
    most_stale: Option<Duration>,
}

/// What a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberKind {
    /// It was not reached, or not asked yet.
    #[default]
    Unknown,
    Primary,
    Secondary,
    /// It has no data that could be read.
    Other,
}

/// A member, as it last described itself.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub kind: MemberKind,
    pub tags: DocBuf,
    pub round_trip: Duration,
    /// When it was seen, and the moment of its last write: milliseconds since 1970.
    pub at: i64,
    pub last_write: i64,
}

impl ReadPreference {
    pub const PRIMARY: ReadPreference = ReadPreference {
        mode: ReadMode::Primary,
        tags: Vec::new(),
        most_stale: None,
    };

    /// Fails with MongoDB's errors.
    pub fn parse(given: Val<'_>) -> Fallible<ReadPreference> {
        let Some(d) = given.as_doc() else {
            bail!(
                TypeMismatch,
                "$readPreference must be an object, found {}",
                given.type_name()
            );
        };
        let mode = mode(d)?;
        let tags = tags(d)?;
        if mode == ReadMode::Primary && !tags.is_empty() {
            bail!(
                BadValue,
                "Only empty tags are allowed with primary read preference"
            );
        }
        let hedge = d.get("hedge").and_then(Val::as_doc);
        let hedges = hedge.is_some_and(|h| h.get("enabled").is_none_or(Val::truthy));
        if mode == ReadMode::Primary && hedges {
            bail!(
                InvalidOptions,
                "cannot enable hedging for mode \"primary\" reads"
            );
        }
        Ok(ReadPreference {
            mode,
            tags,
            most_stale: most_stale(d, mode)?,
        })
    }

    /// Which of the members may be asked: indexes, all as good.
    pub fn choose(&self, members: &[Seen], between_looks: Duration) -> Vec<usize> {
        let of = |kind: MemberKind| indexes(members, |m| m.kind == kind);
        let primaries = of(MemberKind::Primary);
        let secondaries = || {
            let fresh = self.fresh(members, of(MemberKind::Secondary), between_looks);
            self.tagged(members, fresh)
        };
        let chosen = match self.mode {
            ReadMode::Primary => primaries,
            ReadMode::PrimaryPreferred if !primaries.is_empty() => primaries,
            ReadMode::PrimaryPreferred | ReadMode::Secondary => secondaries(),
            ReadMode::SecondaryPreferred => match secondaries() {
                none if none.is_empty() => primaries,
                some => some,
            },
            ReadMode::Nearest => {
                let mut all = self.fresh(members, of(MemberKind::Secondary), between_looks);
                all.extend(primaries);
                self.tagged(members, all)
            }
        };
        near(members, chosen)
    }

    /// Those that are not further behind than is allowed.
    fn fresh(&self, members: &[Seen], from: Vec<usize>, between_looks: Duration) -> Vec<usize> {
        let Some(most) = self.most_stale else {
            return from;
        };
        let primary = members.iter().find(|m| m.kind == MemberKind::Primary);
        let newest = from.iter().map(|i| members[*i].last_write).max();
        let behind = |m: &Seen| match (primary, newest) {
            (Some(p), _) => (m.at - m.last_write) - (p.at - p.last_write),
            (None, Some(newest)) => newest - m.last_write,
            (None, None) => 0,
        };
        let looks = between_looks.as_millis() as i64;
        let most = most.as_millis() as i64;
        let stays = |i: &usize| behind(&members[*i]) + looks <= most;
        from.into_iter().filter(stays).collect()
    }

    /// Those that have the tags of the first set that any has.
    fn tagged(&self, members: &[Seen], from: Vec<usize>) -> Vec<usize> {
        if self.tags.is_empty() {
            return from;
        }
        let has = |i: usize, set: &DocBuf| {
            let own = members[i].tags.as_doc();
            let mut wanted = set.as_doc().iter();
            wanted.all(|tag| own.get(tag.name).and_then(Val::as_str) == tag.val.as_str())
        };
        let with = |set| from.iter().copied().filter(|i| has(*i, set)).collect();
        let mut sets = self.tags.iter().map(with);
        sets.find(|found: &Vec<usize>| !found.is_empty())
            .unwrap_or_default()
    }

    /// As errors show it.
    pub fn shown(&self) -> String {
        let mut w = Writer::new();
        w.str("mode", self.mode.name());
        if !self.tags.is_empty() {
            w.open_array("tags");
            self.tags.iter().for_each(|set| {
                w.push(set.as_doc().as_val());
            });
            w.close();
        }
        if let Some(most) = self.most_stale {
            w.i64("maxStalenessSeconds", most.as_secs() as i64);
        }
        bson::shell::doc(w.finish().as_doc())
    }
}

fn mode(d: Doc<'_>) -> Fallible<ReadMode> {
    let Some(given) = d.get("mode") else {
        bail!(
            40414,
            "BSON field '$readPreference.mode' is missing but a required field"
        );
    };
    let Some(name) = given.as_str() else {
        bail!(
            TypeMismatch,
            "BSON field '$readPreference.mode' is the wrong type '{}', expected type 'string'",
            given.type_name()
        );
    };
    ReadMode::named(name).ok_or_else(|| {
        err!(
            BadValue,
            "Enumeration value '{name}' for field '$readPreference.mode' is not a valid value."
        )
    })
}

/// The sets of tags; none where the first of them is empty, as any member has that.
fn tags(d: Doc<'_>) -> Fallible<Vec<DocBuf>> {
    let Some(given) = d.get("tags").filter(|v| !v.is_nullish()) else {
        return Ok(Vec::new());
    };
    let Some(list) = given.as_array() else {
        bail!(
            TypeMismatch,
            "BSON field '$readPreference.tags' is the wrong type '{}', expected type 'array'",
            given.type_name()
        );
    };
    let mut sets = Vec::new();
    for set in list.values() {
        let Some(set) = set.as_doc() else {
            bail!(
                BadValue,
                "tags must be documents, found {}",
                set.type_name()
            );
        };
        sets.push(set.to_buf());
    }
    let any = sets.first().is_none_or(|set| set.as_doc().is_empty());
    Ok(if any { Vec::new() } else { sets })
}

fn most_stale(d: Doc<'_>, mode: ReadMode) -> Fallible<Option<Duration>> {
    let Some(given) = d.get("maxStalenessSeconds").filter(|v| !v.is_nullish()) else {
        return Ok(None);
    };
    let Some(seconds) = given.to_i64_truncated() else {
        bail!(
            TypeMismatch,
            "BSON field '$readPreference.maxStalenessSeconds' is the wrong type '{}', expected types '[long, int, decimal, double]'",
            given.type_name()
        );
    };
    if seconds == 0 || seconds == -1 {
        return Ok(None);
    }
    if mode == ReadMode::Primary {
        bail!(
            BadValue,
            "maxStalenessSeconds can not be set for the primary mode"
        );
    }
    if seconds < LEAST_STALENESS_SECS {
        bail!(
            MaxStalenessOutOfRange,
            "{seconds} value can not be less than {LEAST_STALENESS_SECS}"
        );
    }
    Ok(Some(Duration::from_secs(seconds.unsigned_abs())))
}

fn indexes(members: &[Seen], is: impl Fn(&Seen) -> bool) -> Vec<usize> {
    let all = members.iter().enumerate();
    all.filter(|(_, m)| is(m)).map(|(i, _)| i).collect()
}

/// The fastest, and those that are about as fast.
fn near(members: &[Seen], from: Vec<usize>) -> Vec<usize> {
    let fastest = from.iter().map(|i| members[*i].round_trip).min();
    let Some(fastest) = fastest else { return from };
    let near = |i: &usize| members[*i].round_trip <= fastest + WINDOW;
    from.into_iter().filter(near).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn preference(d: DocBuf) -> ReadPreference {
        ReadPreference::parse(d.as_doc().as_val()).unwrap()
    }

    fn member(kind: MemberKind, dc: &str, round_trip_ms: u64, behind_secs: i64) -> Seen {
        Seen {
            kind,
            tags: doc! {"dc": dc},
            round_trip: Duration::from_millis(round_trip_ms),
            at: 1_000_000,
            last_write: 1_000_000 - behind_secs * 1000,
        }
    }

    fn set() -> Vec<Seen> {
        vec![
            member(MemberKind::Primary, "a", 1, 0),
            member(MemberKind::Secondary, "a", 2, 1),
            member(MemberKind::Secondary, "b", 10, 100),
            member(MemberKind::Unknown, "b", 0, 0),
            member(MemberKind::Secondary, "c", 40, 0),
        ]
    }

    #[test]
    fn members_by_mode_tags_staleness_and_distance() {
        let tagged = |mode: &str, tags: bson::Value| doc! {"mode": mode, "tags": tags};
        let b_then_any = bson::array![doc! {"dc": "b"}, doc! {}];
        let nowhere = || bson::array![doc! {"dc": "x"}];
        let stale = doc! {"mode": "secondary", "maxStalenessSeconds": 100};
        for (asked, wanted) in [
            (doc! {"mode": "primary"}, vec![0]),
            (doc! {"mode": "primaryPreferred"}, vec![0]),
            (doc! {"mode": "secondary"}, vec![1, 2]),
            (doc! {"mode": "secondaryPreferred"}, vec![1, 2]),
            (doc! {"mode": "nearest"}, vec![1, 2, 0]),
            (tagged("secondary", b_then_any), vec![2]),
            (tagged("secondary", nowhere()), vec![]),
            (tagged("secondaryPreferred", nowhere()), vec![0]),
            (tagged("nearest", bson::array![doc! {"dc": "c"}]), vec![4]),
            (stale, vec![1]),
        ] {
            let shown = format!("{asked:?}");
            let chosen = preference(asked).choose(&set(), Duration::from_secs(10));
            assert_eq!(chosen, wanted, "{shown}");
        }
        let leaderless = &set()[1..];
        let chosen = preference(doc! {"mode": "primaryPreferred"});
        assert_eq!(chosen.choose(leaderless, Duration::ZERO), vec![0, 1]);
        assert!(
            ReadPreference::PRIMARY
                .choose(leaderless, Duration::ZERO)
                .is_empty()
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (d, code) in [
            (doc! {}, 40414),
            (doc! {"mode": 1}, 14),
            (doc! {"mode": "first"}, 2),
            (
                doc! {"mode": "primary", "tags": bson::array![doc! {"a": "b"}]},
                2,
            ),
            (doc! {"mode": "primary", "maxStalenessSeconds": 120}, 2),
            (doc! {"mode": "nearest", "maxStalenessSeconds": 5}, 160),
            (
                doc! {"mode": "primary", "hedge": doc! {"enabled": true}},
                72,
            ),
        ] {
            let e = ReadPreference::parse(d.as_doc().as_val()).unwrap_err();
            assert_eq!(e.code.0, code, "{d:?}");
        }
        let plain = preference(doc! {"mode": "primary", "tags": bson::array![doc! {}]});
        assert_eq!(plain, ReadPreference::PRIMARY);
        assert_eq!(plain.shown(), "{ mode: \"primary\" }");
    }
}
