//! Rates of steps with their intervals over repeats, ratios of two steps, and what rates say of a number of connections:
//! the peak and the knee.
//!
//! An interval is of 95%, by Student's t on logarithms. A single run has none: seconds of one run say
//! how even it was, not what the next run would give.

use crate::family;
use crate::measure::{median, median_interval};
use crate::report::MeasuredStep;

/// Student's t at 97.5% for 1, 2, 3 … degrees of freedom.
const STUDENT: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131,
];

/// An interval of what the next values would give in the middle, from two values on; it holds their median.
pub fn interval_of(values: &[f64]) -> Option<[f64; 2]> {
    if values.len() < 2 || values.iter().any(|v| !v.is_finite() || *v <= 0.0) {
        return None;
    }
    let logs: Vec<f64> = values.iter().map(|v| v.ln()).collect();
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let spread = logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let t = STUDENT.get(values.len() - 2).copied().unwrap_or(2.0);
    let reach = t * (spread / n).sqrt();
    let middle = median(values);
    Some([
        (mean - reach).exp().min(middle),
        (mean + reach).exp().max(middle),
    ])
}

/// An interval of a step's rate from its repeats.
pub fn interval(s: &MeasuredStep) -> Option<[f64; 2]> {
    interval_of(&s.rates())
}

/// `1,234 ±5%`: how far the interval reaches from the median.
pub fn reach(value: f64, interval: Option<[f64; 2]>) -> String {
    let Some([low, high]) = interval.filter(|_| value > 0.0) else {
        return String::new();
    };
    let reach = (high / value - 1.0).max(1.0 - low / value) * 100.0;
    match reach {
        r if r < 9.95 => format!(" ±{r:.1}%"),
        r if r < 1000.0 => format!(" ±{r:.0}%"),
        _ => " ±?".into(),
    }
}

/// As much of an interval as is drawn: one that says nothing must not stretch an axis over everything else.
pub fn drawn(value: f64, [low, high]: [f64; 2]) -> [f64; 2] {
    [low.max(value / WIDE), high.min(value * WIDE)]
}

/// An interval that reaches so many times farther than its value says no more than that nothing is known.
const WIDE: f64 = 3.0;

/// One rate divided by another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    pub value: f64,
    pub interval: Option<[f64; 2]>,
    /// The chance of such a ratio between equals; `None` where it was measured once, or the repeats took no turns.
    pub chance: Option<f64>,
}

/// What a ratio says of its first side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatioWord {
    Faster,
    Slower,
    /// The interval holds 1, or there is none.
    Open,
}

impl Ratio {
    /// Of medians; repeats that took turns are paired, else both intervals bound it.
    pub fn of(a: &[f64], b: &[f64]) -> Option<Ratio> {
        let value = median(a) / median(b);
        if !value.is_finite() {
            return None;
        }
        let mut chance = None;
        let interval = if a.len() == b.len() {
            let pairs: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
            let logs: Vec<f64> = pairs.iter().map(|p| p.ln()).collect();
            chance = family::chance(&logs).filter(|c| c.is_finite());
            interval_of(&pairs)
        } else {
            let both = interval_of(a).zip(interval_of(b));
            both.map(|(a, b)| [a[0] / b[1], a[1] / b[0]])
        };
        Some(Ratio {
            value,
            chance,
            interval: interval.map(|[low, high]| [low.min(value), high.max(value)]),
        })
    }

    #[cfg(test)]
    pub fn word(&self) -> RatioWord {
        match self.interval {
            Some([low, _]) if low > 1.0 => RatioWord::Faster,
            Some([_, high]) if high < 1.0 => RatioWord::Slower,
            _ => RatioWord::Open,
        }
    }

    /// With its interval, where it has one.
    pub fn text(&self) -> String {
        match self.interval {
            Some(i) if drawn(self.value, i) == i => {
                format!("{:.2}× ({:.2}–{:.2})", self.value, i[0], i[1])
            }
            Some(_) => format!("{:.2}× (wide)", self.value),
            None => format!("{:.2}× ?", self.value),
        }
    }
}

/// Said of a ratio that is not decided.
pub const UNDECIDED: &str = "≈";

/// The rates that a ratio is made of: of the repeats, or the only one.
pub fn rates(s: &MeasuredStep) -> Vec<f64> {
    match s.repeats.is_empty() {
        true => vec![s.per_second],
        false => s.rates(),
    }
}

/// A knee gives at least this share of the peak, however wide its interval is.
const KNEE: f64 = 0.9;

/// The peak, and the least number of connections whose interval reaches its; no knee without repeats.
pub fn peak_and_knee<'a>(
    steps: &[&'a MeasuredStep],
) -> Option<(&'a MeasuredStep, Option<&'a MeasuredStep>)> {
    let peak = steps
        .iter()
        .copied()
        .max_by(|a, b| a.per_second.total_cmp(&b.per_second))?;
    let mut by_connections: Vec<&MeasuredStep> = steps.to_vec();
    by_connections.sort_by_key(|s| s.connections);
    let knee = interval(peak).and_then(|[low, _]| {
        let is_near = |s: &&MeasuredStep| s.per_second >= peak.per_second * KNEE;
        let reaches =
            |s: &&MeasuredStep| is_near(s) && interval(s).is_some_and(|[_, high]| high >= low);
        by_connections.into_iter().find(reaches)
    });
    Some((peak, knee))
}

/// How even a step was: an interval of its median from the times of its groups. It bounds nothing but this one run.
pub fn group_interval(s: &MeasuredStep) -> Option<[f64; 2]> {
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

#[cfg(test)]
impl MeasuredStep {
    /// A step of these rates.
    pub fn repeated(name: &str, target: &str, connections: usize, rates: &[f64]) -> MeasuredStep {
        let one = |rate: &f64| MeasuredStep::example(name, target, connections, *rate);
        let all = MeasuredStep::merged(rates.iter().map(one).collect());
        all.ok().flatten().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_that_says_nothing_is_told_of_as_wide() {
        let unsure = Ratio::of(&[100.0, 900.0], &[200.0, 150.0]).unwrap();
        assert!(unsure.text().contains("(wide)"), "{}", unsure.text());
        assert_eq!(drawn(10.0, [0.0, 1e9]), [10.0 / 3.0, 30.0]);
        assert_eq!(drawn(10.0, [9.0, 12.0]), [9.0, 12.0]);
    }

    #[test]
    fn the_knee_is_the_least_that_reaches_the_peak() {
        let steps = [
            MeasuredStep::repeated("a", "t", 1, &[10.0, 10.1, 9.9]),
            MeasuredStep::repeated("a", "t", 8, &[100.0, 99.0, 101.0]),
            MeasuredStep::repeated("a", "t", 16, &[100.5, 101.0, 100.0]),
            MeasuredStep::repeated("a", "t", 32, &[90.0, 90.1, 89.9]),
        ];
        let list: Vec<&MeasuredStep> = steps.iter().collect();
        let (peak, knee) = peak_and_knee(&list).unwrap();
        assert_eq!((peak.connections, knee.unwrap().connections), (16, 8));
        assert!(peak_and_knee(&[]).is_none());
        // A wide interval reaches everything, and makes no knee.
        let wide = [
            MeasuredStep::repeated("a", "t", 1, &[20.0, 2.0, 200.0]),
            MeasuredStep::repeated("a", "t", 8, &[100.0, 10.0, 900.0]),
        ];
        let list: Vec<&MeasuredStep> = wide.iter().collect();
        let knee = peak_and_knee(&list).and_then(|p| p.1);
        assert_eq!(knee.map(|k| k.connections), Some(8));
        let once = MeasuredStep::example("a", "t", 8, 5.0);
        assert!(peak_and_knee(&[&once]).unwrap().1.is_none());
    }

    #[test]
    fn a_ratio_is_called_faster_only_when_its_interval_excludes_1() {
        let word = |a: &[f64], b: &[f64]| Ratio::of(a, b).unwrap().word();
        assert_eq!(
            word(&[20.0, 21.0, 19.0], &[10.0, 10.0, 10.0]),
            RatioWord::Faster
        );
        assert_eq!(
            word(&[10.0, 10.0, 10.0], &[20.0, 21.0, 19.0]),
            RatioWord::Slower
        );
        assert_eq!(
            word(&[20.0, 9.0, 11.0], &[10.0, 10.0, 10.0]),
            RatioWord::Open
        );
        // A single run says nothing, however far apart.
        let once = Ratio::of(&[40.0], &[1.0]).unwrap();
        assert_eq!(
            (once.word(), once.text().as_str()),
            (RatioWord::Open, "40.00× ?")
        );
        // A drift that both sides share does not blur pairs.
        let drift = Ratio::of(&[11.0, 22.1, 43.9], &[10.0, 20.0, 40.0]).unwrap();
        assert_eq!(drift.word(), RatioWord::Faster);
        assert_eq!(word(&[30.0, 31.0], &[10.0, 10.1, 10.2]), RatioWord::Faster);
        assert!(Ratio::of(&[1.0], &[0.0]).is_none());
    }

    #[test]
    fn an_interval_is_students() {
        let [low, high] = interval_of(&[99.0, 100.0, 101.0]).unwrap();
        assert!(
            (low - 97.5).abs() < 0.2 && (high - 102.5).abs() < 0.2,
            "{low} {high}"
        );
        assert!(interval_of(&[1.0]).is_none() && interval_of(&[1.0, 0.0]).is_none());
        assert_eq!(reach(100.0, Some([97.5, 102.5])), " ±2.5%");
        assert_eq!(reach(100.0, None), "");
    }
}
