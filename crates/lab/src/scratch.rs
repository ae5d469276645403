//! Folders that belong to one run: the data and logs of the servers that it starts. They go with the run; those of a run
//! that was killed go with the next one.
//!
//! Invariant: a folder is removed for a run that died only when it is ours by name, owner and marker,
//! and the lock on the marker is free. The run holds it as long as it lives, whatever ends it, so no
//! process id can be mistaken, not even across containers that share a temporary directory.

use crate::fault::{Result, local};
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How our folders are called.
pub const PREFIX: &str = "pando-lab-";
const MARKER: &str = ".run";

pub struct Scratch {
    pub dir: PathBuf,
    kept: AtomicBool,
    /// Its lock says that we live.
    _marker: File,
}

impl Scratch {
    /// An empty folder below `parent` or the temporary directory. What runs that died have left there is removed first.
    pub fn new(kind: &str, parent: Option<&Path>) -> Result<Scratch> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        for dir in sweep(&parent) {
            eprintln!("removed {}, left by a run that was killed", dir.display());
        }
        crate::cgroup::sweep_up();
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let n = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("{PREFIX}{kind}-{}-{n}", std::process::id()));
        // Servers that run as another user pass through it.
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&dir);
        made.map_err(local(dir.display()))?;
        let marker = mark(&dir).map_err(local(dir.display())).inspect_err(|_| {
            let _ = std::fs::remove_dir_all(&dir);
        })?;
        Ok(Scratch {
            dir,
            kept: AtomicBool::new(false),
            _marker: marker,
        })
    }

    /// Leaves the folder, for a look into a failure; later runs leave it too.
    pub fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
        let _ = std::fs::remove_file(self.dir.join(MARKER));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Relaxed) {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Under another name until it is locked: a run that looks for the marker finds it locked or not at all.
fn mark(dir: &Path) -> std::io::Result<File> {
    let beside = dir.join(".making");
    let file = File::create(&beside)?;
    if !lock(&file) {
        return Err(std::io::ErrorKind::WouldBlock.into());
    }
    std::fs::rename(&beside, dir.join(MARKER))?;
    Ok(file)
}

/// Takes the lock if it is free. Processes that we start do not inherit the file.
pub(crate) fn lock(file: &File) -> bool {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open as long as `file` lives.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Removes the folders of runs that died; gives those that are gone.
fn sweep(parent: &Path) -> Vec<PathBuf> {
    // SAFETY: no pointers are involved.
    let user = unsafe { libc::getuid() };
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|e| {
        // Of a symbolic link this is the link itself.
        let is_ours = |m: std::fs::Metadata| m.is_dir() && m.uid() == user;
        e.file_name().to_string_lossy().starts_with(PREFIX) && e.metadata().is_ok_and(is_ours)
    });
    ours.map(|e| e.path())
        .filter(|dir| {
            let Ok(marker) = File::open(dir.join(MARKER)) else {
                return false;
            };
            lock(&marker) && std::fs::remove_dir_all(dir).is_ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_run_left_goes_and_all_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let there = |name: &str| dir.path().join(name).exists();
        let living = Scratch::new("x", Some(dir.path())).unwrap();
        std::fs::write(living.dir.join("data"), "d").unwrap();
        let kept = Scratch::new("x", Some(dir.path())).unwrap();
        kept.keep();
        let kept_dir = kept.dir.clone();
        drop(kept);
        // A killed run's: the marker is there and its lock is free.
        for (name, marked) in [
            ("pando-lab-x-1-0", true),
            ("pando-lab-x-1-1", false),
            ("other-x-1-0", true),
        ] {
            let d = dir.path().join(name);
            std::fs::create_dir_all(d.join("db0")).unwrap();
            if marked {
                std::fs::write(d.join(MARKER), "").unwrap();
            }
        }
        let target = tempfile::tempdir().unwrap();
        std::fs::write(target.path().join(MARKER), "").unwrap();
        std::os::unix::fs::symlink(target.path(), dir.path().join("pando-lab-x-2-0")).unwrap();

        let next = Scratch::new("x", Some(dir.path())).unwrap();
        assert!(!there("pando-lab-x-1-0"));
        assert!(there("pando-lab-x-1-1") && there("other-x-1-0"));
        assert!(living.dir.join("data").exists() && kept_dir.exists());
        assert!(target.path().exists());
        let dirs = [next.dir.clone(), living.dir.clone()];
        drop((next, living));
        assert!(dirs.iter().all(|d| !d.exists()));
    }
}
