//! What paired ratios say: the Hodges-Lehmann median, the interval of Wilcoxon's signed ranks, and the verdict of both
//! measures together.

/// A difference smaller than this is called none: two processes of one build differ by their places in memory.
pub const MARGIN: f64 = 0.02;

/// What the interval must exclude: noise that all pairs of a run share is not in it.
pub const NONE: f64 = 0.01;

/// Quantile of the normal distribution for the intervals, 99%: the rate and the CPU both may decide, and one build
/// compared with itself shall hardly ever be called another.
const REACH: f64 = 2.576;

/// The rate decides; if it cannot, the servers' CPU time for an operation does: the side that needs more
/// for the same is slower wherever CPU is the limit.
pub fn decide(
    rate: (f64, [f64; 2]),
    cost: Option<(f64, [f64; 2])>,
) -> (&'static str, &'static str) {
    let word = verdict(rate.0, rate.1);
    if let ("inconclusive", Some((ratio, [low, high]))) = (word, cost) {
        let speed = verdict(1.0 / ratio, [1.0 / high, 1.0 / low]);
        return (speed, if speed == word { "rate and CPU" } else { "CPU" });
    }
    (word, "rate")
}

fn verdict(ratio: f64, interval: [f64; 2]) -> &'static str {
    if interval[0] > 1.0 + NONE && ratio > 1.0 + MARGIN {
        "faster"
    } else if interval[1] < 1.0 - NONE && ratio < 1.0 - MARGIN {
        "slower"
    } else {
        "inconclusive"
    }
}

/// The Hodges-Lehmann estimate and its interval, on logarithms, so that twice and half weigh the same.
pub fn signed_ranks(ratios: &[f64]) -> (f64, [f64; 2]) {
    let logs: Vec<f64> = ratios
        .iter()
        .filter(|r| r.is_finite() && **r > 0.0)
        .map(|r| r.ln())
        .collect();
    let n = logs.len();
    if n == 0 {
        return (f64::NAN, [f64::NAN; 2]);
    }
    let mut means = Vec::with_capacity(n * (n + 1) / 2);
    for (i, a) in logs.iter().enumerate() {
        means.extend(logs[i..].iter().map(|b| f64::midpoint(*a, *b)));
    }
    means.sort_by(f64::total_cmp);
    let count = n as f64;
    let spread = (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
    let low = (count * (count + 1.0) / 4.0 - REACH * spread)
        .floor()
        .max(0.0) as usize;
    let low = low.min((means.len() - 1) / 2);
    let high = means.len() - 1 - low;
    (
        crate::measure::median(&means).exp(),
        [means[low].exp(), means[high].exp()],
    )
}

/// Half an interval's width, as a share of the ratio.
pub fn half_width(interval: [f64; 2]) -> f64 {
    (interval[1] / interval[0]).ln() / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;

    /// Ratios of slices that each have 6% of noise, and now and then a disturbed one.
    fn noisy(seed: u64, ratio: f64, pairs: usize) -> Vec<f64> {
        let mut rng = Rng::new(seed);
        let mut noise = || (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
        (0..pairs)
            .map(|i| {
                ratio
                    * (1.0 + 0.06 * noise())
                    * if i % 13 == 0 { 0.5 } else { 1.0 }
                    * if i % 17 == 0 { 2.0 } else { 1.0 }
            })
            .collect()
    }

    #[test]
    fn the_same_build_is_inconclusive_and_a_slower_one_slower_nine_times_of_ten() {
        let count = |ratio: f64, want: &str| {
            (0..100)
                .filter(|&seed| {
                    let (r, interval) = signed_ranks(&noisy(seed, ratio, 60));
                    verdict(r, interval) == want
                })
                .count()
        };
        assert!(count(1.0, "inconclusive") >= 95);
        assert!(count(0.95, "slower") >= 90, "{}", count(0.95, "slower"));
        assert!(count(1.1, "faster") >= 95);
    }

    #[test]
    fn the_cpu_decides_where_the_rate_cannot() {
        let unclear = (0.98, [0.9, 1.05]);
        assert_eq!(decide(unclear, None), ("inconclusive", "rate"));
        assert_eq!(
            decide(unclear, Some((1.05, [1.04, 1.06]))),
            ("slower", "CPU")
        );
        assert_eq!(
            decide(unclear, Some((0.9, [0.88, 0.93]))),
            ("faster", "CPU")
        );
        let same = Some((1.01, [1.005, 1.015]));
        assert_eq!(decide(unclear, same), ("inconclusive", "rate and CPU"));
        let clear = (0.9, [0.88, 0.92]);
        assert_eq!(decide(clear, Some((0.9, [0.88, 0.93]))), ("slower", "rate"));
    }

    #[test]
    fn few_or_no_values() {
        assert!(signed_ranks(&[]).0.is_nan());
        assert_eq!(signed_ranks(&[2.0]).0, 2.0);
        let (r, [low, high]) = signed_ranks(&[1.0, 1.1, 0.9, 1.0, 1.05, 0.95]);
        assert!(low < r && r < high);
    }
}
