//! Linux: what stands in `/proc`, and its priorities of threads.
//!
//! Invariant: as the module's: what is not told is `None`.

use super::{GivesWay, ProcessMemory, page_bytes};
use std::fs;

pub const NAME: &str = "Linux";
/// A directory of the files that this process has open.
pub const OPEN_FILES: &str = "/proc/self/fd";

pub fn own_memory() -> Option<ProcessMemory> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_ascii_whitespace().map(|n| n.parse::<u64>());
    let mut bytes = || Some(pages.next()?.ok()?.saturating_mul(page_bytes()));
    let virtual_size = bytes()?;
    let resident = bytes()?;
    let of_files = bytes()?;
    Some(ProcessMemory {
        resident,
        anonymous: resident.saturating_sub(of_files),
        virtual_size,
    })
}

pub fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kb: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kb << 10)
}

pub fn running_threads() -> Option<usize> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let (running, _) = text.split_ascii_whitespace().nth(3)?.split_once('/')?;
    running.parse().ok()
}

pub fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let mut fields = text.lines().filter_map(|l| l.split_once(':'));
    let (_, name) = fields.find(|(field, _)| field.trim() == "model name")?;
    Some(name.trim().to_string())
}

pub fn kernel_version() -> Option<String> {
    let text = fs::read_to_string("/proc/version").ok()?;
    Some(text.trim().to_string())
}

pub fn release() -> Option<(String, String)> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let field = |name: &str| {
        let value = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix('='));
        value.map_or_else(String::new, |v| v.trim_matches('"').to_string())
    };
    Some((field("PRETTY_NAME"), field("VERSION_ID")))
}

pub fn processes() -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// In ticks since the machine began.
pub fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, spaces too.
    let after = stat.rsplit_once(')')?.1;
    let mut fields = after.split_ascii_whitespace();
    let state = fields.next()?;
    (state != "Z").then_some(())?;
    fields.nth(18)?.parse().ok()
}

pub fn command_line(pid: u32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{pid}/cmdline")).ok()
}

pub fn give_way(far: GivesWay) {
    // Of nice(2).
    let niceness = match far {
        GivesWay::Little => 5,
        GivesWay::Much => 10,
    };
    // SAFETY: takes numbers alone; 0 is the calling thread, which alone is changed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
}
