//! What the operating system tells of this process and this machine; zeros where it does not.

use own_process::system;
pub use own_process::system::page_bytes;
use std::fs;
use std::sync::OnceLock;

/// Memory of this process in bytes: resident, virtual.
pub fn memory() -> (u64, u64) {
    let memory = system::own_memory().unwrap_or_default();
    (memory.resident, memory.virtual_size)
}

/// The files and sockets that this process has open.
pub fn open_files() -> i64 {
    system::open_files().map_or(0, |count| count as i64)
}

/// Time and faults of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessUsage {
    pub user_micros: i64,
    pub system_micros: i64,
    pub page_faults: i64,
    pub max_resident_kb: i64,
    pub blocks_in: i64,
    pub blocks_out: i64,
    pub page_reclaims: i64,
    pub voluntary_switches: i64,
    pub involuntary_switches: i64,
}

/// Linux tells kilobytes, macOS bytes.
const MAX_RESIDENT_UNITS_PER_KB: i64 = if cfg!(target_os = "macos") { 1024 } else { 1 };

pub fn usage() -> ProcessUsage {
    // SAFETY: `r` is written by the call before it is read.
    let r = unsafe {
        let mut r: libc::rusage = std::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_SELF, &mut r) != 0 {
            return ProcessUsage::default();
        }
        r
    };
    // Types differ between systems.
    #[allow(clippy::useless_conversion)]
    let micros = |t: libc::timeval| t.tv_sec * 1_000_000 + i64::from(t.tv_usec);
    ProcessUsage {
        user_micros: micros(r.ru_utime),
        system_micros: micros(r.ru_stime),
        page_faults: r.ru_majflt,
        max_resident_kb: r.ru_maxrss / MAX_RESIDENT_UNITS_PER_KB,
        blocks_in: r.ru_inblock,
        blocks_out: r.ru_oublock,
        page_reclaims: r.ru_minflt,
        voluntary_switches: r.ru_nvcsw,
        involuntary_switches: r.ru_nivcsw,
    }
}

/// Memory of the machine in bytes, and what a control group leaves of it.
pub fn machine_memory() -> (u64, u64) {
    let total = system::machine_memory().unwrap_or(0);
    let limit = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .iter()
    .find_map(|p| fs::read_to_string(p).ok()?.trim().parse::<u64>().ok())
    .map_or(total, |l| l.min(total));
    (total, limit)
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A field of /proc/cpuinfo.
pub fn cpu(field: &str) -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text
        .lines()
        .find(|l| l.split(':').next().is_some_and(|n| n.trim() == field));
    line.and_then(|l| l.split_once(':'))
        .map_or(String::new(), |(_, v)| v.trim().to_string())
}

/// The name of this machine, as it was when it was first asked for: each pipeline asks.
pub fn host_name() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    let read = || match system::kernel().host {
        name if name.is_empty() => "localhost".to_string(),
        name => name,
    };
    NAME.get_or_init(read).clone()
}
