//! The machine a result was measured on, and what else it was doing meanwhile.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Host {
    pub name: String,
    pub cpu: String,
    pub cores: usize,
    pub memory_bytes: u64,
    pub kernel: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

impl Host {
    pub fn current() -> Host {
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kb: u64 = memory
            .split_ascii_whitespace()
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);
        Host {
            name: read("/proc/sys/kernel/hostname").trim().to_string(),
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: crate::process::online_cores(),
            memory_bytes: kb * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
        }
    }
}

/// Load and steal around a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Conditions {
    /// One-minute load average before and after.
    pub load_before: f64,
    pub load_after: f64,
    /// CPU time that the hypervisor gave to others, in percent of all CPU time.
    pub steal_percent: f64,
}

/// Watches the machine from its making until `end`.
pub struct Watch {
    load: f64,
    steal: u64,
    all: u64,
}

fn load() -> f64 {
    read("/proc/loadavg")
        .split_ascii_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0)
}

/// Steal and total of the first line of `/proc/stat`, in ticks.
fn ticks() -> (u64, u64) {
    let stat = read("/proc/stat");
    let numbers: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace()
        .skip(1)
        .filter_map(|n| n.parse().ok())
        .collect();
    (
        numbers.get(7).copied().unwrap_or(0),
        numbers.iter().take(8).sum(),
    )
}

impl Watch {
    pub fn start() -> Watch {
        let (steal, all) = ticks();
        Watch {
            load: load(),
            steal,
            all,
        }
    }

    /// The load average at the start.
    pub fn load(&self) -> f64 {
        self.load
    }

    pub fn end(&self) -> Conditions {
        let (steal, all) = ticks();
        let passed = all.saturating_sub(self.all).max(1);
        Conditions {
            load_before: self.load,
            load_after: load(),
            steal_percent: steal.saturating_sub(self.steal) as f64 * 100.0 / passed as f64,
        }
    }
}

/// UTC, `2026-01-31T12:00:00Z`.
pub fn timestamp(t: SystemTime) -> String {
    let secs = t.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (secs / 86_400, secs % 86_400);
    // Days to a civil date, counting from 1 March of year 0 so that the leap day comes last.
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(secs)), text);
        }
    }

    #[test]
    fn this_machine_has_a_core_and_memory() {
        let h = Host::current();
        assert!(h.cores > 0 && h.memory_bytes > 0);
        let c = Watch::start().end();
        assert!((0.0..=100.0).contains(&c.steal_percent));
    }
}
