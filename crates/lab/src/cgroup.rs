//! Memory cgroups, in which servers are held to so much memory.
//!
//! Invariant: a group goes with the server that is in it, and one that a killed run has left with the
//! next run that starts a server. A group with a process in it cannot be removed, so no running server
//! loses its group.

use crate::fault::{Fault, Result, local};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "pando-lab-";
const V1: &str = "memory.limit_in_bytes";
const V2: &str = "memory.max";

/// Where groups are made, and the file that has a group's limit.
fn root() -> (&'static Path, &'static str) {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    if v1.is_dir() {
        (v1, V1)
    } else {
        (Path::new("/sys/fs/cgroup"), V2)
    }
}

/// Removes what runs that were killed have left.
pub fn sweep_up() {
    sweep(root().0);
}

fn sweep(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let maker = name.strip_prefix(PREFIX).and_then(|n| n.split_once('-'));
        let Some(maker) = maker.and_then(|(pid, _)| pid.parse::<u32>().ok()) else {
            continue;
        };
        // Of a run that lives one may be empty for a moment.
        if !Path::new("/proc").join(maker.to_string()).exists() {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// A memory cgroup: heaps of the processes in it count, and the page cache that they fill.
pub struct MemoryGroup {
    pub dir: PathBuf,
}

impl MemoryGroup {
    /// An empty group; it stays until its folder is removed.
    pub fn new(bytes: u64) -> Result<MemoryGroup> {
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        let (root, file) = root();
        if file == V2 {
            // A controller is there for a group only when its parent hands it on.
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        sweep(root);
        let n = GROUPS.fetch_add(1, Ordering::Relaxed);
        let dir = root.join(format!("{PREFIX}{}-{n}", std::process::id()));
        let limited = std::fs::create_dir(&dir)
            .and_then(|()| std::fs::write(dir.join(file), bytes.to_string()));
        limited.map_err(|e| {
            let _ = std::fs::remove_dir(&dir);
            Fault::Local(format!("limiting memory by {}: {e}", dir.display()))
        })?;
        Ok(MemoryGroup { dir })
    }

    fn members(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Puts a process that runs into the group; children that it has stay outside.
    pub fn add(&self, pid: u32) -> Result<()> {
        let path = self.members();
        std::fs::write(&path, pid.to_string()).map_err(local(path.display()))
    }

    /// Lets the command begin in the group.
    pub fn admit(&self, command: &mut Command) -> Result<()> {
        let path = self.members();
        let file = std::fs::OpenOptions::new().write(true).open(&path);
        let file = file.map_err(local(path.display()))?;
        // SAFETY: between fork and exec only write is called, on a file that the closure owns.
        unsafe {
            command.pre_exec(move || io::Write::write_all(&mut (&file), b"0"));
        }
        Ok(())
    }
}

/// A group with one process in it, gone when dropped.
pub struct MemoryLimit(MemoryGroup);

impl MemoryLimit {
    pub fn on(pid: u32, bytes: u64) -> Result<MemoryLimit> {
        let limit = MemoryLimit(MemoryGroup::new(bytes)?);
        limit.0.add(pid)?;
        Ok(limit)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_runs_that_died_go_and_all_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let own = format!("{PREFIX}{}-0", std::process::id());
        let dead = u32::MAX;
        let [busy, left] = [1, 0].map(|n| format!("{PREFIX}{dead}-{n}"));
        let others = [own, busy, format!("other-{dead}-0"), format!("{PREFIX}x-0")];
        for name in others.iter().chain([&left]) {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        // As a process in a group does, this keeps it from being removed.
        std::fs::write(dir.path().join(&others[1]).join("busy"), "").unwrap();
        sweep(dir.path());
        assert!(!dir.path().join(&left).exists());
        for name in &others {
            assert!(dir.path().join(name).exists(), "{name}");
        }
    }
}
