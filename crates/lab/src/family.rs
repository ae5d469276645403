//! One decision over many rows: which of the ratios of a page differ from 1, so that a page of equals names a winner in one of
//! twenty cases at most, however many rows it has.
//!
//! Each row that was measured several times has a paired t-test on logarithms; Holm's procedure (S. Holm, "A simple sequentially
//! rejective multiple test procedure", 1979) bounds the chance that any of them is wrong.

use crate::rates::{Ratio, RatioWord};

/// The chance that a page of equals names a winner.
const LEVEL: f64 = 0.05;

/// The decision on each ratio, in their order. Those without repeats stay open.
pub fn decided(ratios: &[Ratio]) -> Vec<RatioWord> {
    let mut tested: Vec<(usize, f64)> = ratios
        .iter()
        .enumerate()
        .filter_map(|(i, r)| Some((i, r.chance?)))
        .collect();
    tested.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut words = vec![RatioWord::Open; ratios.len()];
    for (rank, (i, chance)) in tested.iter().enumerate() {
        let left = (tested.len() - rank) as f64;
        if *chance > LEVEL / left {
            break;
        }
        if let (Some(word), Some(r)) = (words.get_mut(*i), ratios.get(*i)) {
            *word = if r.value > 1.0 {
                RatioWord::Faster
            } else {
                RatioWord::Slower
            };
        }
    }
    words
}

/// The chance of a mean so far from 0 where there is nothing but noise: two-sided, by Student's t with one degree of freedom less
/// than there are values. `None` of fewer than two.
pub fn chance(values: &[f64]) -> Option<f64> {
    let freedom = values.len().checked_sub(1).filter(|n| *n > 0)?;
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let spread = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    if spread <= 0.0 {
        return Some(if mean == 0.0 { 1.0 } else { 0.0 });
    }
    Some(1.0 - within(mean.abs() / (spread / n).sqrt(), freedom))
}

/// The share of Student's t that lies within ±t, for a whole number of degrees of freedom (Abramowitz and Stegun, 26.7.3, 26.7.4).
fn within(t: f64, freedom: usize) -> f64 {
    let angle = (t / (freedom as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let odd = !freedom.is_multiple_of(2);
    let first = if odd { cos } else { 1.0 };
    let (mut term, mut sum) = (first, if freedom == 1 { 0.0 } else { first });
    let mut k = if odd { 3 } else { 2 };
    while k + 1 < freedom + usize::from(odd) {
        term *= cos * cos * (k - 1) as f64 / k as f64;
        sum += term;
        k += 2;
    }
    match odd {
        true => (angle + sin * sum) * 2.0 / std::f64::consts::PI,
        false => sin * sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;

    #[test]
    fn students_t_is_that_of_the_tables() {
        for (freedom, t) in [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (4, 2.776),
            (5, 2.571),
            (9, 2.262),
            (10, 2.228),
            (30, 2.042),
        ] {
            let share = within(t, freedom);
            assert!((share - 0.95).abs() < 2e-4, "{freedom}: {share}");
        }
        assert_eq!(chance(&[0.1]), None);
        assert_eq!(
            (chance(&[0.0, 0.0]), chance(&[0.2, 0.2])),
            (Some(1.0), Some(0.0))
        );
    }

    /// A logarithm of a rate with noise of about 3%.
    fn noise(rng: &mut Rng) -> f64 {
        let twelve: f64 = (0..12)
            .map(|_| rng.below(1 << 20) as f64 / f64::from(1 << 20))
            .sum();
        (twelve - 6.0) * 0.03
    }

    fn page(rng: &mut Rng, rows: usize, repeats: usize, factor: f64) -> Vec<Ratio> {
        let mut one = |by: f64| -> Vec<f64> {
            (0..repeats)
                .map(|_| 1000.0 * by * noise(rng).exp())
                .collect()
        };
        (0..rows)
            .filter_map(|_| Ratio::of(&one(factor), &one(1.0)))
            .collect()
    }

    fn winners(
        pages: usize,
        repeats: usize,
        factor: f64,
        is: impl Fn(&[RatioWord]) -> bool,
    ) -> usize {
        let mut rng = Rng::new(7);
        (0..pages)
            .filter(|_| is(&decided(&page(&mut rng, 16, repeats, factor))))
            .count()
    }

    #[test]
    fn pages_of_equals_name_a_winner_in_one_of_twenty_at_most() {
        let any = |words: &[RatioWord]| words.iter().any(|w| *w != RatioWord::Open);
        let named = winners(2000, 3, 1.0, any);
        assert!(named <= 2000 / 20 + 30, "{named} of 2000");
        // Row by row more than half of the pages do.
        let mut rng = Rng::new(7);
        let by_row = (0..200)
            .filter(|_| {
                page(&mut rng, 16, 3, 1.0)
                    .iter()
                    .any(|r| r.word() != RatioWord::Open)
            })
            .count();
        assert!(by_row > 80, "{by_row} of 200");
    }

    #[test]
    fn what_is_slower_by_a_fifth_is_found() {
        let slower = |words: &[RatioWord]| {
            words.contains(&RatioWord::Slower) && !words.contains(&RatioWord::Faster)
        };
        let found = winners(200, 5, 0.8, slower);
        assert!(found >= 190, "{found} of 200");
    }
}
