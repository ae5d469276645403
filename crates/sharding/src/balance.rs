//! Which shard gives a range away, and which takes it: by size, as MongoDB balances since 6.1. A shard
//! takes part in one move at a time, so of `n` shards `n / 2` pairs move at once.

use crate::zones::{Within, Zone, of as zone_of};
use crate::{Chunk, RoutingTable};
use errors::Result;
use std::collections::{BTreeMap, BTreeSet};

/// What a shard has of a collection, or of one of its zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load<'a> {
    pub shard: &'a str,
    pub bytes: u64,
    /// It has ranges to give.
    pub has_ranges: bool,
    /// It is being emptied: it takes nothing, and gives all.
    pub draining: bool,
    /// Its zones let it take ranges.
    pub may_take: bool,
}

/// Data is moved while two shards differ by more than so many ranges' sizes.
const TOLERANCE: u64 = 3;

/// By how many bytes of a collection two shards may differ. So a collection of which no shard has more is even.
pub fn tolerated_bytes(range_bytes: u64) -> u64 {
    range_bytes.saturating_mul(TOLERANCE)
}

/// Donor and recipient, if a range of `range_bytes` is to move at all.
pub fn choose<'a>(loads: &[Load<'a>], range_bytes: u64) -> Option<(&'a str, &'a str)> {
    let recipients = loads.iter().filter(|l| l.may_take && !l.draining);
    let recipient = recipients.min_by_key(|l| l.bytes)?;
    let donors = || {
        loads
            .iter()
            .filter(|l| l.has_ranges && l.shard != recipient.shard)
    };
    // A draining shard, or one whose zones forbid its ranges, gives first.
    if let Some(donor) = donors().find(|l| l.draining || !l.may_take) {
        return Some((donor.shard, recipient.shard));
    }
    let donor = donors().max_by_key(|l| l.bytes)?;
    let apart = donor.bytes.saturating_sub(recipient.bytes);
    (apart > tolerated_bytes(range_bytes)).then_some((donor.shard, recipient.shard))
}

/// Whether shards that have so many bytes of a collection are about even: [`choose`] then has a range move only
/// for a shard that is being emptied, or for zones.
pub fn is_even(bytes: impl Iterator<Item = u64> + Clone, range_bytes: u64) -> bool {
    let most = bytes.clone().max().unwrap_or(0);
    let least = bytes.min().unwrap_or(0);
    most - least <= tolerated_bytes(range_bytes)
}

/// Donors and recipients of moves that go on at once: no shard is in two of them, or `busy` already. They
/// are busy then.
pub fn choose_apart<'a>(
    loads: &[Load<'a>],
    range_bytes: u64,
    busy: &mut BTreeSet<String>,
) -> Vec<(&'a str, &'a str)> {
    let free = loads.iter().filter(|l| !busy.contains(l.shard));
    let mut free: Vec<Load<'a>> = free.copied().collect();
    let mut chosen = Vec::new();
    while let Some((from, to)) = choose(&free, range_bytes) {
        free.retain(|l| l.shard != from && l.shard != to);
        busy.extend([from.to_string(), to.to_string()]);
        chosen.push((from, to));
    }
    chosen
}

/// A shard as a plan sees it: how many bytes it has of the collection, and its zones.
#[derive(Clone, Debug)]
pub struct ShardLoad<'a> {
    pub shard: &'a str,
    pub bytes: u64,
    pub draining: bool,
    pub zones: Vec<&'a str>,
}

/// The moves that a collection needs most, no two of which have a shard in common: each a chunk, and the shard
/// that is to have it. `zones`: those of the collection, disjoint.
pub fn plan<'t>(
    table: &'t RoutingTable,
    mut zones: Vec<Zone>,
    shards: &[ShardLoad<'t>],
    range_bytes: u64,
    moves_jumbo: bool,
) -> Result<Vec<(&'t Chunk, &'t str)>> {
    zones.sort_by(|a, b| a.range.low.cmp(&b.range.low));
    let first = first_chunks(table, &zones, |c| moves_jumbo || !c.jumbo)?;
    let (mut planned, mut busy) = (Vec::new(), BTreeSet::new());
    let names: BTreeSet<&str> = zones.iter().map(|z| z.name.as_str()).collect();
    // Chunks of zones come first: what lies in none may be anywhere.
    for zone in names.into_iter().map(Some).chain([None]) {
        let Some(chunks) = first.get(&zone) else {
            continue;
        };
        let load = |s: &ShardLoad<'t>| Load {
            shard: s.shard,
            bytes: s.bytes,
            has_ranges: chunks.contains_key(s.shard),
            draining: s.draining,
            may_take: zone.is_none_or(|zone| s.zones.contains(&zone)),
        };
        let loads: Vec<Load<'t>> = shards.iter().map(load).collect();
        let chosen = choose_apart(&loads, range_bytes, &mut busy).into_iter();
        planned.extend(chosen.filter_map(|(from, to)| Some((*chunks.get(from)?, to))));
    }
    Ok(planned)
}

/// The first chunk of each shard in each zone, and outside of all (`None`), of which `which` holds. A chunk that
/// a zone's end cuts is in none of them. `zones` ascend.
fn first_chunks<'t, 'z>(
    table: &'t RoutingTable,
    zones: &'z [Zone],
    which: impl Fn(&Chunk) -> bool,
) -> Result<BTreeMap<Option<&'z str>, BTreeMap<&'t str, &'t Chunk>>> {
    let mut first: BTreeMap<_, BTreeMap<&str, &Chunk>> = BTreeMap::new();
    for chunk in table.chunks().filter(|c| which(c)) {
        let zone = match zones.is_empty() {
            true => None,
            false => match zone_of(zones, &chunk.range(table.key())?) {
                Within::Zone(name) => Some(name),
                Within::None => None,
                Within::Several => continue,
            },
        };
        let of_zone = first.entry(zone).or_default();
        of_zone.entry(&*chunk.shard).or_insert(chunk);
        if zones.is_empty() && of_zone.len() == table.shards().len() {
            break;
        }
    }
    Ok(first)
}

/// Takes those moves off the plan that may run at once: the first, and each that has no shard in common
/// with those before. `pair`: donor and recipient.
pub fn take_apart<T>(planned: &mut Vec<T>, pair: impl Fn(&T) -> [String; 2]) -> Vec<T> {
    let mut busy = BTreeSet::new();
    let is_free = |one: &mut T| {
        let shards = pair(one);
        let free = !shards.iter().any(|shard| busy.contains(shard));
        if free {
            busy.extend(shards);
        }
        free
    };
    planned.extract_if(.., is_free).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(shard: &'static str, bytes: u64) -> Load<'static> {
        Load {
            shard,
            bytes,
            has_ranges: bytes > 0,
            draining: false,
            may_take: true,
        }
    }

    #[test]
    fn by_size() {
        assert_eq!(
            choose(&[load("a", 100), load("b", 0)], 10),
            Some(("a", "b"))
        );
        assert_eq!(choose(&[load("a", 100), load("b", 75)], 10), None);
        assert_eq!(choose(&[load("a", 100)], 10), None);
        let three = [load("a", 50), load("b", 100), load("c", 10)];
        assert_eq!(choose(&three, 10), Some(("b", "c")));
    }

    #[test]
    fn shards_that_are_even_need_no_move() {
        for (a, b, even) in [
            (100, 0, false),
            (30, 0, true),
            (31, 0, false),
            (0, 0, true),
            (90, 100, true),
        ] {
            assert_eq!(is_even([a, b].into_iter(), 10), even, "{a} {b}");
            let chosen = choose(&[load("a", a), load("b", b)], 10);
            assert_eq!(chosen.is_none(), even, "{a} {b}");
        }
    }

    #[test]
    fn who_is_emptied_gives_all() {
        let mut a = load("a", 1);
        a.draining = true;
        assert_eq!(choose(&[a, load("b", 100)], 10), Some(("a", "b")));
        assert_eq!(choose(&[load("b", 100), a], 10), Some(("a", "b")));
        a.has_ranges = false;
        assert_eq!(choose(&[a, load("b", 100)], 10), None);
        let mut outside = load("x", 5);
        outside.may_take = false;
        assert_eq!(choose(&[load("b", 9), outside], 10), Some(("x", "b")));
    }

    #[test]
    fn several_at_once() {
        let none = &mut BTreeSet::new();
        let four = [load("a", 90), load("b", 100), load("c", 5), load("d", 0)];
        assert_eq!(choose_apart(&four, 10, none), [("b", "d"), ("a", "c")]);
        // The other two have about the same.
        let four = [load("a", 60), load("b", 100), load("c", 50), load("d", 0)];
        let mut busy = BTreeSet::new();
        assert_eq!(choose_apart(&four, 10, &mut busy), [("b", "d")]);
        assert_eq!(busy, BTreeSet::from(["b".into(), "d".into()]));
        assert_eq!(choose_apart(&four, 10, &mut busy), []);
        // Of three shards one waits.
        let three = [load("a", 90), load("b", 100), load("c", 0)];
        let chosen = choose_apart(&three, 10, &mut BTreeSet::new());
        assert_eq!(chosen, [("b", "c")]);
        let (mut one, mut other) = (load("a", 1), load("b", 1));
        (one.draining, other.draining) = (true, true);
        let emptied = [one, other, load("c", 9), load("d", 8)];
        let chosen = choose_apart(&emptied, 10, &mut BTreeSet::new());
        assert_eq!(chosen, [("a", "d"), ("b", "c")]);
    }

    #[test]
    fn what_has_a_shard_in_common_goes_one_after_the_other() {
        let pairs = ["ab", "bc", "cd", "da", "ef"];
        let mut planned = pairs.to_vec();
        let pair = |p: &&str| [p[..1].to_string(), p[1..].to_string()];
        assert_eq!(take_apart(&mut planned, pair), ["ab", "cd", "ef"]);
        assert_eq!(take_apart(&mut planned, pair), ["bc", "da"]);
        assert!(take_apart(&mut planned, pair).is_empty());
    }

    /// Moves of equal ranges come to an end.
    #[test]
    fn it_ends() {
        let mut bytes = [1000u64, 10, 10];
        for _ in 0..200 {
            let loads: Vec<_> = ["a", "b", "c"]
                .iter()
                .zip(bytes)
                .map(|(s, b)| load(s, b))
                .collect();
            let Some((from, to)) = choose(&loads, 10) else {
                assert!(bytes.iter().max().unwrap() - bytes.iter().min().unwrap() <= 30);
                return;
            };
            let at = |name: &str| ["a", "b", "c"].iter().position(|s| *s == name).unwrap();
            bytes[at(from)] -= 10;
            bytes[at(to)] += 10;
        }
        panic!("still moving: {bytes:?}");
    }
}
