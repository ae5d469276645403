//! Ranges of places, and sets of them.
//!
//! Invariant: a set is ascending, its ranges are disjoint and none is empty.

use crate::Place;

/// The places from `low` to before `high`; without a `high`, to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceRange {
    pub low: Place,
    pub high: Option<Place>,
}

impl PlaceRange {
    pub fn all() -> PlaceRange {
        PlaceRange {
            low: Vec::new(),
            high: None,
        }
    }

    pub fn contains(&self, place: &[u8]) -> bool {
        self.low.as_slice() <= place && self.high.as_deref().is_none_or(|high| place < high)
    }

    pub fn is_empty(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high <= self.low)
    }

    pub fn overlaps(&self, other: &PlaceRange) -> bool {
        let before = |a: &PlaceRange, b: &PlaceRange| a.high.as_ref().is_none_or(|h| b.low < *h);
        before(self, other) && before(other, self)
    }
}

fn earlier(a: &Option<Place>, b: &Option<Place>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a <= b,
        (Some(_), None) => true,
        (None, b) => b.is_none(),
    }
}

/// Sorts, drops empty ranges, joins adjacent ones.
pub fn union(mut ranges: Vec<PlaceRange>) -> Vec<PlaceRange> {
    ranges.retain(|r| !r.is_empty());
    ranges.sort_by(|a, b| a.low.cmp(&b.low));
    let mut out: Vec<PlaceRange> = Vec::with_capacity(ranges.len());
    for r in ranges {
        match out.last_mut() {
            Some(last) if last.high.as_ref().is_none_or(|high| r.low <= *high) => {
                if earlier(&last.high, &r.high) {
                    last.high = r.high;
                }
            }
            _ => out.push(r),
        }
    }
    assert!(is_set(&out), "ranges of a set ascend and are disjoint");
    out
}

fn is_set(ranges: &[PlaceRange]) -> bool {
    let ascend = |w: &[PlaceRange]| match w {
        [a, b] => a.high.as_ref().is_some_and(|high| *high < b.low),
        _ => true,
    };
    ranges.windows(2).all(ascend)
}

/// The places in both sets.
pub fn intersect(a: &[PlaceRange], b: &[PlaceRange]) -> Vec<PlaceRange> {
    let (mut i, mut j) = (0, 0);
    let mut out = Vec::new();
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let x_ends_first = earlier(&x.high, &y.high);
        let both = PlaceRange {
            low: x.low.clone().max(y.low.clone()),
            high: if x_ends_first { &x.high } else { &y.high }.clone(),
        };
        if !both.is_empty() {
            out.push(both);
        }
        match x_ends_first {
            true => i += 1,
            false => j += 1,
        }
    }
    out
}

/// The places in the set `a` and not in the set `b`.
pub fn cut(a: &[PlaceRange], b: &[PlaceRange]) -> Vec<PlaceRange> {
    let mut outside = Vec::with_capacity(b.len() + 1);
    let mut low = Some(Vec::new());
    for r in b {
        if let Some(low) = low.take() {
            outside.push(PlaceRange {
                low,
                high: Some(r.low.clone()),
            });
        }
        low = r.high.clone();
    }
    if let Some(low) = low {
        outside.push(PlaceRange { low, high: None });
    }
    outside.retain(|r| !r.is_empty());
    intersect(a, &outside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn random(rng: &mut StdRng) -> Vec<PlaceRange> {
        let many = rng.random_range(0..5);
        let one = |rng: &mut StdRng| {
            let low = rng.random_range(0..20u8);
            let high = rng.random_range(0..22u8);
            PlaceRange {
                low: if low == 0 { vec![] } else { vec![low] },
                high: (high < 20).then(|| vec![high]),
            }
        };
        (0..many).map(|_| one(rng)).collect()
    }

    #[test]
    fn sets_agree_with_their_points() {
        for seed in 0..2000 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (a, b) = (random(&mut rng), random(&mut rng));
            let (ua, ub) = (union(a.clone()), union(b.clone()));
            for ranges in [&ua, &ub] {
                assert!(
                    ranges
                        .windows(2)
                        .all(|w| w[0].high.as_ref().unwrap() < &w[1].low)
                );
            }
            let (both, without) = (intersect(&ua, &ub), cut(&ua, &ub));
            for p in 0..25u8 {
                let has = |set: &[PlaceRange]| set.iter().any(|r| r.contains(&[p]));
                assert_eq!(has(&ua), has(&a), "seed {seed}");
                assert_eq!(has(&both), has(&a) && has(&b), "seed {seed}");
                assert_eq!(has(&without), has(&a) && !has(&b), "seed {seed}");
            }
        }
    }
}
