//! Which shard gives a range away, and which takes it: by size, as MongoDB balances since 6.1.

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

/// Giver and taker, if a range of `range_bytes` is to move at all.
pub fn choose<'a>(loads: &[Load<'a>], range_bytes: u64) -> Option<(&'a str, &'a str)> {
    let takers = loads.iter().filter(|l| l.may_take && !l.draining);
    let taker = takers.min_by_key(|l| l.bytes)?;
    let givers = || {
        loads
            .iter()
            .filter(|l| l.has_ranges && l.shard != taker.shard)
    };
    // Whoever must or may not have what it has gives first.
    if let Some(giver) = givers().find(|l| l.draining || !l.may_take) {
        return Some((giver.shard, taker.shard));
    }
    let giver = givers().max_by_key(|l| l.bytes)?;
    let apart = giver.bytes.saturating_sub(taker.bytes);
    (apart > range_bytes.saturating_mul(TOLERANCE)).then_some((giver.shard, taker.shard))
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
