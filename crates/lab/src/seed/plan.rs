//! What a seed takes: time, disk, memory; and whether this machine has them.

use super::stages::SeedStage;
use crate::host::MachineDescription;
use crate::terms::bytes;
use crate::text;
use own_process::disk_space::DiskSpace;
use std::path::Path;

pub struct SeedPlan {
    stages: Vec<(String, f64, u64, u64)>,
    free_disk: Option<u64>,
    memory: u64,
}

/// Left free on the disk, as a share of it.
const SPARE: f64 = 0.05;

impl SeedPlan {
    pub fn of(stages: &[SeedStage], folder: &Path) -> SeedPlan {
        let cost = |s: &SeedStage| (s.name.clone(), s.seconds, s.disk, s.memory);
        SeedPlan {
            stages: stages.iter().map(cost).collect(),
            // Servers keep their data in the temporary directory; results are small.
            free_disk: free(&std::env::temp_dir()).or_else(|| free(folder)),
            memory: available().unwrap_or(MachineDescription::current().memory_bytes),
        }
    }

    fn disk(&self) -> u64 {
        self.stages.iter().map(|s| s.2).max().unwrap_or(0)
    }

    fn most_memory(&self) -> u64 {
        self.stages.iter().map(|s| s.3).max().unwrap_or(0)
    }

    /// Lines for the user.
    pub fn lines(&self) -> Vec<String> {
        let stage = |(name, seconds, disk, memory): &(String, f64, u64, u64)| {
            let all = [time(*seconds), bytes(*disk), bytes(*memory)];
            text!(
                "{0}: about {1}, {2} of disk, {3} of memory",
                name,
                all[0],
                all[1],
                all[2]
            )
        };
        let mut lines: Vec<String> = self.stages.iter().map(stage).collect();
        let all = time(self.stages.iter().map(|s| s.1).sum());
        let have = self.free_disk.map_or("?".into(), bytes);
        lines.push(text!(
            "in all about {0}; at most {1} of disk at a time (free: {2}) and {3} of memory (free: {4})",
            all,
            bytes(self.disk()),
            have,
            bytes(self.most_memory()),
            bytes(self.memory)
        ));
        lines
    }

    /// Why it does not fit.
    pub fn refusal(&self) -> Option<String> {
        let (disk, memory) = (self.disk(), self.most_memory());
        if let Some(free) = self.free_disk
            && disk as f64 > free as f64 * (1.0 - SPARE)
        {
            return Some(text!(
                "{0} of disk are needed and {1} are free",
                bytes(disk),
                bytes(free)
            ));
        }
        let short = memory > self.memory;
        short.then(|| {
            text!(
                "{0} of memory are needed and {1} are free",
                bytes(memory),
                bytes(self.memory)
            )
        })
    }
}

/// Seconds as a person says them.
fn time(seconds: f64) -> String {
    let (minutes, hours) = (seconds / 60.0, seconds / 3600.0);
    match seconds {
        s if s < 90.0 => text!("{0} s", format!("{s:.0}")),
        s if s < 5400.0 => text!("{0} min", format!("{minutes:.0}")),
        s if s < 172_800.0 => text!("{0} h", format!("{hours:.1}")),
        _ => text!("{0} days", format!("{:.1}", hours / 24.0)),
    }
}

/// Bytes that are free where a folder is, or would be.
fn free(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|d| d.is_dir())?;
    Some(DiskSpace::at(there)?.free)
}

/// Memory that programs can have without swapping.
fn available() -> Option<u64> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kilobytes: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let plan = |disk: u64, memory: u64| SeedPlan {
            stages: vec![
                ("a".into(), 30.0, disk, 1000),
                ("b".into(), 7200.0, 10, memory),
            ],
            free_disk: Some(1_000_000),
            memory: 500_000,
        };
        assert_eq!(plan(900_000, 400_000).refusal(), None);
        let disk = plan(960_000, 400_000).refusal().unwrap();
        assert!(disk.contains("of disk"), "{disk}");
        let memory = plan(10, 600_000).refusal().unwrap();
        assert!(memory.contains("of memory"), "{memory}");
        let lines = plan(20_000, 30_000).lines();
        assert!(
            lines[0].starts_with("a: about 30 s, 20.0 KB of disk"),
            "{lines:?}"
        );
        assert!(
            lines[2].starts_with("in all about 2.0 h; at most 20.0 KB"),
            "{lines:?}"
        );
        assert!(free(Path::new("/tmp/no/such/folder")).is_some() && available().is_some());
        assert_eq!(time(200_000.0), "2.3 days");
    }
}
