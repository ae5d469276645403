//! YCSB's number distributions, with YCSB's constants: which record an operation touches.
//!
//! Each is checked against values computed from the published formulas for given uniform draws, so that the same load is
//! generated. Source of the zipfian: Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994.

use crate::random::{Permutation, Rng};

pub const ZIPFIAN_CONSTANT: f64 = 0.99;
/// The scrambled zipfian draws from this many items whatever the number of records …
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// … and this is zeta(SCRAMBLED_ITEMS, 0.99).
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// YCSB's hash of a record number (FNV-1a over its eight octets, low first), made non-negative as Java's `Math.abs` does.
#[inline]
pub fn fnv64(value: u64) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    for octet in value.to_le_bytes() {
        hash ^= u64::from(octet);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    (hash as i64).unsigned_abs()
}

fn zeta(from: u64, to: u64, theta: f64, start: f64) -> f64 {
    (from..to).fold(start, |sum, i| sum + 1.0 / ((i + 1) as f64).powf(theta))
}

/// Zipfian over `0..items`, item 0 the most popular.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    zeta_n: f64,
    zeta_2: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Computes zeta: linear in `items`.
    pub fn new(items: u64) -> Zipfian {
        Zipfian::with_zeta(items, zeta(0, items, ZIPFIAN_CONSTANT, 0.0))
    }

    fn with_zeta(items: u64, zeta_n: f64) -> Zipfian {
        let theta = ZIPFIAN_CONSTANT;
        let mut z = Zipfian {
            items,
            theta,
            zeta_n,
            zeta_2: zeta(0, 2, theta, 0.0),
            alpha: 1.0 / (1.0 - theta),
            eta: 0.0,
        };
        z.set_eta();
        z
    }

    fn set_eta(&mut self) {
        self.eta = (1.0 - (2.0 / self.items as f64).powf(1.0 - self.theta))
            / (1.0 - self.zeta_2 / self.zeta_n);
    }

    /// More items than before: zeta grows by the new terms only.
    pub fn grow(&mut self, items: u64) {
        if items > self.items {
            self.zeta_n = zeta(self.items, items, self.theta, self.zeta_n);
            self.items = items;
            self.set_eta();
        }
    }

    /// The item for a uniform draw `u` in `[0, 1)`.
    #[inline]
    pub fn at(&self, u: f64) -> u64 {
        let uz = u * self.zeta_n;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        (self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
    }
}

/// Which of `0..items` (or fewer: see `next`) the next operation touches.
#[derive(Clone, Debug)]
pub enum Chooser {
    Uniform {
        items: u64,
    },
    /// YCSB's `zipfian`: popular items scattered over all by the hash, with its collisions.
    Scrambled {
        items: u64,
        zipfian: Zipfian,
    },
    /// A true zipfian over the items, scattered without collisions. Ours; YCSB has none.
    Exact {
        zipfian: Zipfian,
        scatter: Permutation,
    },
    /// Popular are the records inserted last.
    Latest {
        zipfian: Zipfian,
    },
    Hotspot {
        hot: u64,
        cold: u64,
        hot_operations: f64,
    },
    Sequential {
        items: u64,
        next: u64,
        step: u64,
    },
    /// Exponential backwards from the newest record.
    Exponential {
        gamma: f64,
    },
}

impl Chooser {
    pub fn uniform(items: u64) -> Chooser {
        Chooser::Uniform {
            items: items.max(1),
        }
    }

    pub fn scrambled(items: u64) -> Chooser {
        Chooser::Scrambled {
            items: items.max(1),
            // YCSB's zipfian counts its upper bound in.
            zipfian: Zipfian::with_zeta(SCRAMBLED_ITEMS + 1, SCRAMBLED_ZETA),
        }
    }

    pub fn exact(items: u64) -> Chooser {
        Chooser::Exact {
            zipfian: Zipfian::new(items.max(2)),
            scatter: Permutation::new(items.max(1), 0),
        }
    }

    pub fn latest(items: u64) -> Chooser {
        Chooser::Latest {
            zipfian: Zipfian::new(items.max(2)),
        }
    }

    pub fn hotspot(items: u64, data_fraction: f64, operation_fraction: f64) -> Chooser {
        let items = items.max(1);
        let hot = ((items as f64 * data_fraction) as u64).min(items);
        Chooser::Hotspot {
            hot,
            cold: items - hot,
            hot_operations: operation_fraction,
        }
    }

    /// One of `lanes` that walk the items together.
    pub fn sequential(items: u64, lane: u64, lanes: u64) -> Chooser {
        Chooser::Sequential {
            items: items.max(1),
            next: lane,
            step: lanes.max(1),
        }
    }

    /// `percentile` percent of the draws fall on the newest `range` records.
    pub fn exponential(percentile: f64, range: f64) -> Chooser {
        Chooser::Exponential {
            gamma: -(1.0 - percentile / 100.0).ln() / range.max(1.0),
        }
    }

    /// A record of `0..count`, `count` being how many there are now: draws beyond it are drawn again, as YCSB does for
    /// records that are being inserted.
    #[inline]
    pub fn next(&mut self, rng: &mut Rng, count: u64) -> u64 {
        let count = count.max(1);
        if let Chooser::Latest { zipfian } = self {
            zipfian.grow(count);
        }
        // A chooser over far more items than exist would draw for ever; after so many draws any record will do.
        for _ in 0..10_000 {
            let item = self.draw(rng, count);
            if item < count {
                return item;
            }
        }
        rng.below(count)
    }

    #[inline]
    fn draw(&mut self, rng: &mut Rng, count: u64) -> u64 {
        match self {
            Chooser::Uniform { items } => rng.below(*items),
            Chooser::Scrambled { items, zipfian } => fnv64(zipfian.at(rng.unit())) % *items,
            Chooser::Exact { zipfian, scatter } => scatter.at(zipfian.at(rng.unit())),
            Chooser::Latest { zipfian } => (count - 1).wrapping_sub(zipfian.at(rng.unit())),
            Chooser::Hotspot {
                hot,
                cold,
                hot_operations,
            } => {
                if (rng.unit() < *hot_operations && *hot > 0) || *cold == 0 {
                    rng.below(*hot)
                } else {
                    *hot + rng.below(*cold)
                }
            }
            Chooser::Sequential { items, next, step } => {
                let item = *next % *items;
                *next = next.wrapping_add(*step);
                item
            }
            Chooser::Exponential { gamma } => {
                let back = (-(1.0 - rng.unit()).ln() / *gamma) as u64;
                (count - 1).wrapping_sub(back)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: [f64; 9] = [0.0, 0.03, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99];

    #[test]
    fn keys_hash_as_ycsb_hashes_them() {
        let got = [0, 1, 2, 999, 1_000_000_000].map(fnv64);
        assert_eq!(
            got,
            [
                6284781860667377211,
                8517097267634966620,
                1820151046732198393,
                2071219101098386137,
                6103061475906567652
            ]
        );
    }

    #[test]
    fn zipfian_of_ten_thousand_million_items() {
        let z = Zipfian::with_zeta(SCRAMBLED_ITEMS + 1, SCRAMBLED_ZETA);
        assert_eq!(
            DRAWS.map(|u| z.at(u)),
            [0, 0, 1, 6, 296, 134552, 42924421, 1170869537, 8086205587]
        );
        assert_eq!(
            DRAWS.map(|u| fnv64(z.at(u)) % 1000),
            [211, 211, 620, 587, 614, 260, 439, 670, 521]
        );
    }

    #[test]
    fn zipfian_with_its_own_zeta_also_when_grown() {
        let whole = Zipfian::new(1000);
        assert!((whole.zeta_n - 7.728953217284729).abs() < 1e-9);
        assert_eq!(
            DRAWS.map(|u| whole.at(u)),
            [0, 0, 0, 0, 3, 22, 151, 471, 927]
        );
        let mut grown = Zipfian::new(10);
        grown.grow(500);
        grown.grow(1000);
        assert_eq!(DRAWS.map(|u| grown.at(u)), DRAWS.map(|u| whole.at(u)));
    }

    fn counts(mut chooser: Chooser, items: u64) -> Vec<u32> {
        let mut rng = Rng::new(3);
        let mut counts = vec![0; items as usize];
        for _ in 0..100_000 {
            counts[chooser.next(&mut rng, items) as usize] += 1;
        }
        counts
    }

    #[test]
    fn shapes() {
        let uniform = counts(Chooser::uniform(100), 100);
        assert!(uniform.iter().all(|c| (800..1200).contains(c)));

        let scrambled = counts(Chooser::scrambled(1000), 1000);
        let top = scrambled.iter().enumerate().max_by_key(|c| c.1).unwrap();
        assert_eq!(top.0 as u64, fnv64(0) % 1000);
        // 1 / zeta of all draws go to the most popular item (and a few collide with it).
        assert!((3_600..4_400).contains(top.1), "{top:?}");

        let exact = counts(Chooser::exact(1000), 1000);
        assert!((12_400..13_500).contains(exact.iter().max().unwrap()));

        let latest = counts(Chooser::latest(1000), 1000);
        assert!(latest[999] > 12_000 && latest[0] < 100);

        let hot = counts(Chooser::hotspot(1000, 0.2, 0.8), 1000);
        let in_hot: u32 = hot[..200].iter().sum();
        assert!((79_000..81_000).contains(&in_hot), "{in_hot}");

        let newest = counts(Chooser::exponential(95.0, 857.0), 1000);
        let in_range: u32 = newest[1000 - 857..].iter().sum();
        assert!((94_500..98_000).contains(&in_range), "{in_range}");

        let sequential = counts(Chooser::sequential(1000, 0, 1), 1000);
        assert!(sequential.iter().all(|&c| c == 100));
    }

    #[test]
    fn draws_stay_below_the_records_that_exist() {
        let mut rng = Rng::new(5);
        for mut c in [
            Chooser::uniform(100),
            Chooser::scrambled(100),
            Chooser::exact(100),
            Chooser::latest(3),
            Chooser::hotspot(100, 0.2, 0.8),
            Chooser::sequential(100, 1, 2),
            Chooser::exponential(95.0, 100.0),
        ] {
            for count in [1, 2, 50] {
                for _ in 0..200 {
                    assert!(c.next(&mut rng, count) < count, "{c:?}");
                }
            }
        }
    }
}
