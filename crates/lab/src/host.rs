//! The machine a result was measured on, and what else it was doing meanwhile.

use crate::lang::tr;
use crate::text;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MachineDescription {
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

impl MachineDescription {
    pub fn current() -> MachineDescription {
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kb: u64 = memory
            .split_ascii_whitespace()
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);
        MachineDescription {
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
pub struct MachineWatch {
    load: f64,
    began: Ticks,
}

fn load() -> f64 {
    read("/proc/loadavg")
        .split_ascii_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0.0)
}

/// CPU time of all cores since the machine started, in ticks: what programs and the kernel spent for them, what the
/// hypervisor gave to others, and all there was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ticks {
    pub busy: u64,
    pub steal: u64,
    pub all: u64,
}

impl Ticks {
    pub fn now() -> Ticks {
        Ticks::of(&read("/proc/stat"))
    }

    pub fn since(self, before: Ticks) -> Ticks {
        Ticks {
            busy: self.busy.saturating_sub(before.busy),
            steal: self.steal.saturating_sub(before.steal),
            all: self.all.saturating_sub(before.all),
        }
    }

    /// The share of the cores' time that was taken; unknown of a time too short for ticks.
    pub fn busy_share(self) -> Option<f64> {
        let known = self.all >= Noise::TICKS;
        known.then(|| (self.busy + self.steal) as f64 / self.all as f64)
    }

    /// Of the first line of `/proc/stat`.
    fn of(stat: &str) -> Ticks {
        let numbers: Vec<u64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_ascii_whitespace()
            .skip(1)
            .filter_map(|n| n.parse().ok())
            .collect();
        Ticks {
            // User, nice, system: interrupts belong to no process.
            busy: numbers.iter().take(3).sum(),
            steal: numbers.get(7).copied().unwrap_or(0),
            all: numbers.iter().take(8).sum(),
        }
    }
}

/// What else the machine did during a step, in percent of all its cores. If the server's processes are
/// not known, the others' share is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Noise {
    pub others_percent: Option<f64>,
    pub steal_percent: f64,
    /// By how much the null server fell behind its best of the run.
    pub null_behind_percent: Option<f64>,
}

impl Noise {
    /// Above these a figure is not to be believed without another run.
    const OTHERS: f64 = 8.0;
    const STEAL: f64 = 3.0;
    const BEHIND: f64 = 20.0;
    /// A shorter step has too few ticks to tell.
    const TICKS: u64 = 100;

    /// `ours`: CPU time of client and server together, where it is known.
    pub fn of(passed: Ticks, ours: Option<std::time::Duration>) -> Noise {
        let percent = |ticks: f64| ticks * 100.0 / passed.all.max(1) as f64;
        // A tick is 10 ms on every Linux that reports to programs.
        let others = ours.map(|t| passed.busy as f64 - t.as_secs_f64() * 100.0);
        let others = others.filter(|_| passed.all >= Noise::TICKS);
        Noise {
            // A few ticks are within what rounding makes.
            others_percent: others.map(|t| percent((t - 3.0).max(0.0))),
            steal_percent: percent(passed.steal as f64),
            null_behind_percent: None,
        }
    }

    /// The worse of two repeats.
    pub fn worse(self, other: Noise) -> Noise {
        let most = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        Noise {
            others_percent: most(self.others_percent, other.others_percent),
            steal_percent: self.steal_percent.max(other.steal_percent),
            null_behind_percent: most(self.null_behind_percent, other.null_behind_percent),
        }
    }

    /// Why a figure is doubtful, in words; nothing where the machine was quiet.
    pub fn reasons(&self) -> Option<String> {
        let whole = |percent: f64| format!("{percent:.0}");
        let mut why = Vec::new();
        if let Some(p) = self.others_percent.filter(|p| *p > Noise::OTHERS) {
            why.push(text!("other processes took {0}% of the cores", whole(p)));
        }
        if self.steal_percent > Noise::STEAL {
            why.push(text!(
                "{0}% of the time was stolen",
                whole(self.steal_percent)
            ));
        }
        if let Some(p) = self.null_behind_percent.filter(|p| *p > Noise::BEHIND) {
            why.push(text!(
                "the null server itself was {0}% slower than at its best",
                whole(p)
            ));
        }
        (!why.is_empty()).then(|| why.join(tr(", ")))
    }
}

impl MachineWatch {
    pub fn start() -> MachineWatch {
        MachineWatch {
            load: load(),
            began: Ticks::now(),
        }
    }

    /// The load average at the start.
    pub fn load(&self) -> f64 {
        self.load
    }

    pub fn end(&self) -> Conditions {
        let passed = Ticks::now().since(self.began);
        Conditions {
            load_before: self.load,
            load_after: load(),
            steal_percent: passed.steal as f64 * 100.0 / passed.all.max(1) as f64,
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
    fn what_others_took_is_told() {
        let before = Ticks::of("cpu  100 0 50 800 0 9 9 10 0 0\ncpu0 1 1 1\n");
        assert_eq!(
            before,
            Ticks {
                busy: 150,
                steal: 10,
                all: 978
            }
        );
        let passed = Ticks::of("cpu  250 20 80 900 0 9 9 10 0 0").since(before);
        assert_eq!((passed.busy, passed.all), (200, 300));
        // Of two seconds of work one was ours.
        let loud = Noise::of(passed, Some(Duration::from_secs(1)));
        assert!(
            loud.reasons().unwrap().contains("32% of the cores"),
            "{loud:?}"
        );
        let quiet = Noise::of(passed, Some(Duration::from_millis(1990)));
        assert_eq!(quiet.reasons(), None);
        assert_eq!(Noise::of(passed, None).others_percent, None);
        assert_eq!(quiet.worse(loud), loud);
        let stolen = Noise {
            steal_percent: 5.0,
            ..Noise::default()
        };
        assert!(stolen.reasons().unwrap().contains("stolen"));
    }

    #[test]
    fn this_machine_has_a_core_and_memory() {
        let h = MachineDescription::current();
        assert!(h.cores > 0 && h.memory_bytes > 0);
        let c = MachineWatch::start().end();
        assert!((0.0..=100.0).contains(&c.steal_percent));
    }
}
