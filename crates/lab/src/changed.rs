//! Settings of servers that a run changes, with `--change-settings` only, and how they come back.
//!
//! What a setting was is written to a file before it is changed, and the file is locked as long as the run lives. The end of
//! the run sets it back and removes the file. Where that never came (`kill -9`, a second Ctrl-C), the file lies there
//! unlocked, and the next start of the laboratory sets it back.
//!
//! Invariant: no setting of a server that the laboratory did not start is changed without the flag, and none before what it
//! was is on the disk.

use crate::fault::{Fault, Result, local};
use crate::scratch::lock;
use crate::targets;
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

static ALLOWED: AtomicBool = AtomicBool::new(false);

/// `--change-settings` was given.
pub fn allow() {
    ALLOWED.store(true, Ordering::Relaxed);
}

pub fn is_allowed() -> bool {
    ALLOWED.load(Ordering::Relaxed)
}

/// A setting as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedSetting {
    /// With its password: the file is its owner's only.
    pub url: String,
    pub name: String,
    pub value: String,
}

/// What this run has changed, with the files that say so.
static CHANGED: Mutex<Vec<(ChangedSetting, PathBuf, File)>> = Mutex::new(Vec::new());

/// To be called before a setting is changed. Of one that is changed again the first value counts.
pub fn remember(setting: ChangedSetting) -> Result<()> {
    let mut changed = CHANGED.lock().unwrap_or_else(|e| e.into_inner());
    let is_same = |s: &ChangedSetting| s.url == setting.url && s.name == setting.name;
    if changed.iter().any(|(s, _, _)| is_same(s)) {
        return Ok(());
    }
    let (path, file) = write(&folder()?, &setting)?;
    changed.push((setting, path, file));
    Ok(())
}

/// Sets back what this run has changed. What cannot be set back now stays for the next start.
pub fn restore() {
    let mut changed = CHANGED.lock().unwrap_or_else(|e| e.into_inner());
    for (setting, path, _file) in changed.drain(..) {
        set_back(&setting, &path);
    }
}

/// Sets back what runs that died have changed.
pub fn restore_left() {
    let Ok(folder) = folder() else { return };
    for (setting, path, _held) in left(&folder) {
        set_back(&setting, &path);
    }
}

fn set_back(setting: &ChangedSetting, path: &Path) {
    let told = format!("{} = {}", setting.name, setting.value);
    let place = targets::without_password(&setting.url);
    match targets::set_back(setting) {
        Ok(()) => {
            let _ = std::fs::remove_file(path);
            eprintln!("{place}: {told} again, as it was before");
        }
        Err(fault) => eprintln!(
            "warning: {place}: {told} could not be set back ({fault}); the next start of pando lab tries again"
        ),
    }
}

/// The folder of such files, for its owner only.
fn folder() -> Result<PathBuf> {
    let of_home = || std::env::var_os("HOME").map(|h| Path::new(&h).join(".local/state"));
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let Some(state) = state.filter(|p| p.is_absolute()).or_else(of_home) else {
        return Err(Fault::Usage(
            "--change-settings needs $HOME or $XDG_STATE_HOME, where what settings were is kept"
                .into(),
        ));
    };
    let folder = state.join("pando-lab");
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder);
    made.map_err(local(folder.display()))?;
    Ok(folder)
}

const PREFIX: &str = "changed-";

/// Locked and on the disk before it has the name that others look for.
fn write(folder: &Path, setting: &ChangedSetting) -> Result<(PathBuf, File)> {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let n = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("{PREFIX}{}-{n}.json", std::process::id());
    let (path, beside) = (folder.join(&name), folder.join(format!(".{name}")));
    let written = || -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&beside)?;
        if !lock(&file) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        file.write_all(&serde_json::to_vec(setting)?)?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)?;
        File::open(folder)?.sync_all()?;
        Ok(file)
    };
    let file = written().map_err(local(path.display()))?;
    Ok((path, file))
}

/// What dead runs have left; each is ours as long as the file is held.
fn left(folder: &Path) -> Vec<(ChangedSetting, PathBuf, File)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|e| e.path()).filter(|p| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(PREFIX)
    });
    paths
        .filter_map(|path| {
            let mut file = File::open(&path).ok()?;
            let mut text = Vec::new();
            if !lock(&file) || file.read_to_end(&mut text).is_err() {
                return None;
            }
            let setting = serde_json::from_slice(&text).ok()?;
            Some((setting, path, file))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_living_run_has_changed_is_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let setting = ChangedSetting {
            url: "mysql://root@127.0.0.1:1/".into(),
            name: "innodb_flush_log_at_trx_commit".into(),
            value: "1".into(),
        };
        let (path, file) = write(dir.path(), &setting).unwrap();
        assert!(left(dir.path()).is_empty());
        drop(file);
        let found = left(dir.path());
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0].0, &found[0].1), (&setting, &path));
        // The other run sets it back already.
        assert!(left(dir.path()).is_empty());
    }
}
