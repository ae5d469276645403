//! Rates of steps with their intervals, and what they say of a number of connections: the peak and the knee.

use crate::measure::median_interval;
use crate::report::Step;

/// An interval of a step's rate, from its whole seconds.
pub fn rate_interval(s: &Step) -> [f64; 2] {
    let whole = s.series.iter().filter(|x| x.seconds > 0.5);
    let rates: Vec<f64> = whole.map(|x| x.operations as f64 / x.seconds).collect();
    if rates.len() < 3 {
        return [s.per_second, s.per_second];
    }
    let [low, high] = median_interval(&rates);
    [low.min(s.per_second), high.max(s.per_second)]
}

/// The peak, and the least number of connections whose interval reaches its.
pub fn peak_and_knee<'a>(steps: &[&'a Step]) -> Option<(&'a Step, &'a Step)> {
    let peak = steps
        .iter()
        .copied()
        .max_by(|a, b| a.per_second.total_cmp(&b.per_second))?;
    let low = rate_interval(peak)[0];
    let mut by_connections: Vec<&Step> = steps.to_vec();
    by_connections.sort_by_key(|s| s.connections);
    let knee = by_connections
        .into_iter()
        .find(|s| rate_interval(s)[1] >= low)?;
    Some((peak, knee))
}

/// An interval of the rate from the times of groups.
pub fn group_interval(s: &Step) -> Option<[f64; 2]> {
    if s.group_seconds.len() < 3 {
        return None;
    }
    let rates: Vec<f64> = s
        .group_seconds
        .iter()
        .map(|t| s.group as f64 / t.max(1e-9))
        .collect();
    let [low, high] = median_interval(&rates);
    Some([low.min(s.per_second), high.max(s.per_second)])
}

pub fn interval(s: &Step) -> [f64; 2] {
    group_interval(s).unwrap_or_else(|| rate_interval(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_the_least_that_reaches_the_peak() {
        let steps = [
            Step::example("a", "t", 1, 10.0),
            Step::example("a", "t", 8, 100.0),
            Step::example("a", "t", 16, 100.0),
            Step::example("a", "t", 32, 90.0),
        ];
        let list: Vec<&Step> = steps.iter().collect();
        let (peak, knee) = peak_and_knee(&list).unwrap();
        assert_eq!((peak.connections, knee.connections), (16, 8));
        assert!(peak_and_knee(&[]).is_none());
    }
}
