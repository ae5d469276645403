//! How much memory there is for this process: the machine's, or what its control groups leave of it; and how much it holds.
//!
//! A process may stand deep in a hierarchy of groups, each with a limit of its own: the smallest counts. Containers show the own
//! group at the root, so the root is always looked at too.

use crate::allocator;
use alloc_meter::HeldMemory;
use own_process::system;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// With less memory than this a quarter is the share; it holds what the server needs beside its cache.
const ROOMY: u64 = 1 << 30;
const LEAST_WHEN_ROOMY: u64 = 256 << 20;
/// Control groups of the first kind say so when they mean no limit.
const UNLIMITED: u64 = 1 << 60;

/// Has the system give this process memory in pages of the usual size only. Of huge ones, which the allocator asks for, those that are
/// partly free cannot be given back: past memory, where blocks come and go, that was a third on top of the cache and more.
pub fn refuse_huge_pages() {
    #[cfg(target_os = "linux")]
    // SAFETY: sets a flag of the process. Where the system knows none, all stays as it was.
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
    }
}

/// What the server may hold beside its cache before memory that is free is given back at once; it promises 300 MB.
const BESIDE_CACHE: u64 = 140 << 20;
/// What one large operation may bring it to beside its cache; stages may bring it to 64 MB more, and what others take meanwhile comes to
/// some 60.
const LARGE_BESIDE_CACHE: u64 = 352 << 20;
/// So much of the memory that there is, three eighths at most, is left to what does not ask what the process holds: messages (96 MB),
/// operations of up to 32 MB (a sixteenth of all, and one), the kernel's part.
const LEFT_BY_LARGE: u64 = 192 << 20;
const LOOK: Duration = Duration::from_millis(100);

/// Watches how much of the machine's memory this process holds, and has the allocator return free memory
/// when it is much. A load writes hundreds of megabytes a second through memtables and messages; what of
/// that is free for a moment, in one thread's share while another asks the system for more, was a
/// hundred megabytes and more.
pub fn keep_within(cache_bytes: u64) {
    alloc_meter::gives_back_by(allocator::give_back);
    let of_large = cache_bytes.saturating_add(LARGE_BESIDE_CACHE);
    let available = available_bytes();
    let limit = limit_of_large(available);
    let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    alloc_meter::set_available(bytes(available));
    alloc_meter::process_by(move || {
        Some(HeldMemory {
            held: bytes(held_bytes()?),
            most: bytes(of_large),
            limit: bytes(limit),
        })
    });
    let most = cache_bytes.saturating_add(BESIDE_CACHE);
    let watch = move || {
        // Where the system does not tell, nothing is done.
        while let Some(held) = held_bytes() {
            if held > most {
                allocator::give_back();
            }
            std::thread::sleep(LOOK);
        }
    };
    // Without the thread it is given back later.
    drop(
        std::thread::Builder::new()
            .name("memory".into())
            .spawn(watch),
    );
}

/// What large operations and stages may bring the process to where there are `available` bytes: past that the system would end it.
fn limit_of_large(available: u64) -> u64 {
    available - LEFT_BY_LARGE.min(available / 8 * 3)
}

/// What long messages in flight may hold: less where there is little memory.
pub fn in_flight_bytes() -> usize {
    service::in_flight::DEFAULT_BYTES.min(alloc_meter::available() / 8)
}

/// What this process holds of the machine's memory, without mapped files, in bytes.
fn held_bytes() -> Option<u64> {
    Some(system::own_memory()?.anonymous)
}

/// Memory in bytes.
pub fn available_bytes() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let machine = system::machine_memory().unwrap_or(1 << 30);
    limit_files(&groups, Path::new("/sys/fs/cgroup"))
        .iter()
        .filter_map(|path| number_in(path))
        .fold(machine, u64::min)
}

/// Whether a sixteenth of the machine's memory, or of what each control group may have, is unused.
pub fn has_room() -> storage::HasRoom {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups: Vec<(PathBuf, u64)> = limit_files(&groups, Path::new("/sys/fs/cgroup"))
        .into_iter()
        .filter_map(|path| {
            let limit = number_in(&path).filter(|n| *n < UNLIMITED)?;
            let used = match path.file_name()?.to_str()? {
                "memory.max" => "memory.current",
                _ => "memory.usage_in_bytes",
            };
            Some((path.with_file_name(used), limit))
        })
        .collect();
    Arc::new(move || {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let told = |name| meminfo_bytes(&meminfo, name);
        is_roomy(told("MemFree:"), told("MemTotal:"))
            && groups.iter().all(|(used, limit)| {
                let free = number_in(used).map(|used| limit.saturating_sub(used));
                is_roomy(free, Some(*limit))
            })
    })
}

fn is_roomy(free: Option<u64>, all: Option<u64>) -> bool {
    // What cannot be known is taken for the usual case.
    free.zip(all).is_none_or(|(free, all)| free >= all / 16)
}

fn number_in(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The default size of the cache.
pub fn default_cache_bytes(memory: u64) -> u64 {
    let quarter = memory / 4;
    match memory {
        0..ROOMY => quarter,
        _ => quarter.max(LEAST_WHEN_ROOMY),
    }
}

fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.starts_with(name))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// Where the limits of the process's groups may stand, from the innermost group up, for both versions of control groups.
fn limit_files(groups: &str, root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(kinds), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, file) = if kinds.is_empty() {
            (root.to_path_buf(), "memory.max")
        } else if kinds.split(',').any(|k| k == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let path = Path::new(path.trim_start_matches('/'));
        files.extend(path.ancestors().map(|up| root.join(up).join(file)));
    }
    files.push(root.join("memory.max"));
    files.push(root.join("memory/memory.limit_in_bytes"));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_given_back_when_asked() {
        // Well above what other tests do meanwhile.
        const BYTES: usize = 200 << 20;
        let pieces: Vec<Vec<u8>> = (0..200).map(|n| vec![n as u8 | 1; BYTES / 200]).collect();
        let Some(full) = held_bytes() else { return };
        assert!(full >= BYTES as u64, "{full}");
        drop(pieces);
        allocator::give_back();
        let left = held_bytes().unwrap();
        assert!(left + BYTES as u64 / 2 < full, "{left} of {full}");
    }

    #[test]
    fn every_group_on_the_way_up_counts() {
        let root = Path::new("/g");
        let files = |groups| {
            limit_files(groups, root)
                .iter()
                .map(|p| p.display().to_string())
                .collect::<Vec<_>>()
        };
        let two = files("0::/a/b\n");
        assert_eq!(
            two[..3],
            ["/g/a/b/memory.max", "/g/a/memory.max", "/g/memory.max"]
        );
        let one = files("5:cpu,cpuacct:/x\n4:memory:/y\n");
        assert_eq!(one[0], "/g/memory/y/memory.limit_in_bytes");
        assert!(!one.iter().any(|f| f.contains("/x")));
        assert_eq!(files("").len(), 2);
    }

    #[test]
    fn shares() {
        let mb = 1 << 20;
        for (memory, cache) in [
            (256, 64),
            (512, 128),
            (1024, 256),
            (4096, 1024),
            (1200, 300),
        ] {
            assert_eq!(default_cache_bytes(memory * mb), cache * mb);
        }
        let roomy = |free, all| is_roomy(Some(free), Some(all));
        assert!(roomy(70 * mb, 1024 * mb) && !roomy(60 * mb, 1024 * mb));
        assert!(is_roomy(None, Some(1)));
        let told = meminfo_bytes("MemTotal:       2048 kB\n", "MemTotal:");
        assert_eq!(told, Some(2 << 20));
    }
}
