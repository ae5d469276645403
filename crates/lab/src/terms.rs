//! The terms that commands share: durability, durations, lists, and where results go.

use crate::fault::{Fault, Result};
use bson::Writer;
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a write waits for before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WriteDurability {
    /// Not acknowledged (`w: 0`).
    Unack,
    /// `w: 1`.
    W1,
    /// `w: "majority"`.
    Majority,
    /// `w: 1, j: true`.
    Journaled,
}

impl WriteDurability {
    pub fn name(self) -> &'static str {
        match self {
            WriteDurability::Unack => "unack",
            WriteDurability::W1 => "w1",
            WriteDurability::Majority => "majority",
            WriteDurability::Journaled => "journaled",
        }
    }

    pub fn acknowledged(self) -> bool {
        self != WriteDurability::Unack
    }

    /// Appends `writeConcern`.
    pub fn write_concern(self, w: &mut Writer) {
        w.open_doc("writeConcern");
        match self {
            WriteDurability::Unack => w.i32("w", 0),
            WriteDurability::W1 => w.i32("w", 1),
            WriteDurability::Majority => w.str("w", "majority"),
            WriteDurability::Journaled => w.i32("w", 1).bool("j", true),
        };
        w.close();
    }
}

/// `500ms`, `30s`, `5m`, `1h`, or plain seconds.
pub fn duration(s: &str) -> std::result::Result<Duration, String> {
    match pause(s)? {
        Duration::ZERO => Err("more than nothing is expected".into()),
        some => Ok(some),
    }
}

/// The same where nothing is fine too: a warm-up, a rest.
pub fn pause(s: &str) -> std::result::Result<Duration, String> {
    let split = s
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(s.len());
    let (number, unit) = s.split_at(split);
    let factor = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("'{unit}' is not ms, s, m or h")),
    };
    let n: f64 = number
        .parse()
        .map_err(|_| format!("'{number}' is not a number"))?;
    Duration::try_from_secs_f64(n * factor).map_err(|e| e.to_string())
}

/// A count with an optional `k`, `m` or `g` (thousand, million, thousand million).
pub fn count(s: &str) -> std::result::Result<u64, String> {
    let lower = s.to_ascii_lowercase().replace('_', "");
    let (digits, factor) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 1e3),
        Some(b'm') => (&lower[..lower.len() - 1], 1e6),
        Some(b'g') => (&lower[..lower.len() - 1], 1e9),
        _ => {
            return lower
                .parse()
                .map_err(|_| format!("'{s}' is not a count (such as 50000, 50k or 5m)"));
        }
    };
    match digits.parse::<f64>() {
        Ok(n) if n >= 0.0 && n * factor < u64::MAX as f64 => Ok((n * factor).round() as u64),
        _ => Err(format!("'{s}' is not a count (such as 50000, 50k or 5m)")),
    }
}

/// A size in bytes: `512m`, `4g`, or plain bytes.
pub fn bytes_of(s: &str) -> std::result::Result<u64, String> {
    let s = s.trim().to_ascii_lowercase();
    let s = s.strip_suffix('b').unwrap_or(&s);
    count(s).map_err(|_| format!("'{s}' is not a size (such as 512m or 4g)"))
}

/// Bytes as a person reads them.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KB", "MB", "GB", "TB"];
    if n < 10_000 {
        return format!("{n} B");
    }
    let (mut value, mut unit) = (n as f64 / 1e3, UNITS[0]);
    for u in &UNITS[1..] {
        if value < 1e3 {
            break;
        }
        value /= 1e3;
        unit = u;
    }
    format!("{value:.1} {unit}")
}

/// A number with thin groups of three digits: `1,234,567`.
pub fn grouped(n: f64) -> String {
    if !n.is_finite() {
        return "–".into();
    }
    if n.abs() < 100.0 {
        return format!("{n:.1}");
    }
    let digits = format!("{n:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        let left = digits.len() - i;
        if i > 0 && left % 3 == 0 && !out.ends_with('-') {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A count, which has no fractions.
pub fn counted(n: u64) -> String {
    match n {
        0..100 => n.to_string(),
        n => grouped(n as f64),
    }
}

/// A single figure: counts whole, small values with what tells them apart.
pub fn figure(n: f64) -> String {
    if n.fract() == 0.0 && n.abs() < 1e6 {
        return format!("{n:.0}");
    }
    if n.abs() < 10.0 {
        return format!("{n:.3}");
    }
    grouped(n)
}

/// A span of time from nanoseconds, in the unit that suits it.
pub fn span(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        1_000_000..10_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// Where a result goes when the user named no file: a new name in `lab-results/`.
pub fn default_result_path(kind: &str, name: &str, stamp: &str) -> PathBuf {
    let safe: String = format!("{kind}-{name}-{stamp}")
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' || c == '.' {
                c
            } else {
                '_'
            }
        })
        .collect();
    Path::new("lab-results").join(format!("{safe}.json"))
}

/// Refuses an empty list or a zero in it.
pub fn positive(what: &str, list: &[usize]) -> Result<()> {
    if list.is_empty() || list.contains(&0) {
        return Err(Fault::Usage(format!("{what} must be at least 1")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_counts() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        assert!(duration("3 days").is_err());
        assert!(duration("0s").is_err() && pause("0s") == Ok(Duration::ZERO));
        assert!(duration("-1s").is_err());
        assert_eq!(count("1_000"), Ok(1000));
        assert_eq!(count("1.5k"), Ok(1500));
        assert_eq!(count("5M"), Ok(5_000_000));
        assert!(count("many").is_err());
        assert!(count("k").is_err());
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(grouped(1234567.4), "1,234,567");
        assert_eq!(grouped(-123456.0), "-123,456");
        assert_eq!(grouped(999.0), "999");
        assert_eq!(grouped(12.34), "12.3");
        assert_eq!(figure(32.0), "32");
        assert_eq!(figure(0.94312), "0.943");
        assert_eq!(figure(1234.5), "1,234");
        assert_eq!(bytes(5_300_000), "5.3 MB");
        assert_eq!(span(1_500), "2 µs");
        assert_eq!(span(12_340_000), "12.3 ms");
    }
}
