//! The locks of an archive: backups may run beside each other, but none beside a prune, which removes
//! files that no backup has yet.
//!
//! Invariant: each writes what it does first and looks for others then, so of two one at least sees the
//! other.

use crate::ArchiveResult;
use crate::store::ArchiveStore;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LOCKS: &str = "locks/";
/// How old a lock is whose process has ended.
const STALE: Duration = Duration::from_secs(300);
const RENEWED_EACH: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveWork {
    Backup,
    Prune,
}

impl ArchiveWork {
    fn name(self) -> &'static str {
        match self {
            ArchiveWork::Backup => "backup",
            ArchiveWork::Prune => "prune",
        }
    }

    fn bears(self, other: &str) -> bool {
        self == ArchiveWork::Backup && other == ArchiveWork::Backup.name()
    }
}

/// Held during a piece of work; given back when it is dropped.
pub struct ArchiveLock {
    store: Arc<dyn ArchiveStore>,
    name: String,
    ended: Arc<AtomicBool>,
    renewer: Option<JoinHandle<()>>,
}

impl ArchiveLock {
    pub(crate) fn take(
        store: &Arc<dyn ArchiveStore>,
        work: ArchiveWork,
    ) -> ArchiveResult<ArchiveLock> {
        let name = format!("{LOCKS}{}-{}", work.name(), random_name());
        store.put(&name, &mut &b"held\n"[..])?;
        let mut lock = ArchiveLock {
            store: store.clone(),
            name,
            ended: Arc::default(),
            renewer: None,
        };
        for other in store.list(LOCKS)? {
            let is_stale = other.age.is_some_and(|age| age > STALE);
            let kind = other.name.trim_start_matches(LOCKS);
            let kind = kind.split('-').next().unwrap_or("");
            if other.name == lock.name || work.bears(kind) {
                continue;
            }
            if is_stale {
                store.remove(&other.name)?;
            } else {
                return Err(format!(
                    "a {kind} works in this archive, or has ended in the last minutes without saying so ({})",
                    other.name
                ));
            }
        }
        lock.renew();
        Ok(lock)
    }

    fn renew(&mut self) {
        let (store, name, ended) = (self.store.clone(), self.name.clone(), self.ended.clone());
        let run = move || {
            let mut renewed = Instant::now();
            while !ended.load(Ordering::Acquire) {
                std::thread::park_timeout(LOOK);
                if renewed.elapsed() > RENEWED_EACH {
                    renewed = Instant::now();
                    // What does not succeed now may the next time.
                    let _ = store.put(&name, &mut &b"held\n"[..]);
                }
            }
        };
        self.renewer = std::thread::Builder::new().spawn(run).ok();
    }
}

impl Drop for ArchiveLock {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(renewer) = self.renewer.take() {
            renewer.thread().unpark();
            let _ = renewer.join();
        }
        let _ = self.store.remove(&self.name);
    }
}

/// A unique name.
pub(crate) fn random_name() -> String {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    if read.is_err() {
        let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
        let nanos = since.map_or(0, |d| d.as_nanos() as u64);
        bytes = (nanos ^ u64::from(std::process::id()) << 40).to_le_bytes();
    }
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use std::time::SystemTime;

    #[test]
    fn backups_share_the_lock_and_a_prune_is_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn ArchiveStore> = Arc::new(Directory::new(dir.path()));
        let first = ArchiveLock::take(&store, ArchiveWork::Backup).unwrap();
        let second = ArchiveLock::take(&store, ArchiveWork::Backup).unwrap();
        assert!(ArchiveLock::take(&store, ArchiveWork::Prune).is_err());
        drop(first);
        assert!(ArchiveLock::take(&store, ArchiveWork::Prune).is_err());
        drop(second);
        let prune = ArchiveLock::take(&store, ArchiveWork::Prune).unwrap();
        assert!(ArchiveLock::take(&store, ArchiveWork::Backup).is_err());
        drop(prune);
        assert!(store.list("locks/").unwrap().is_empty());
        // One whose process was killed.
        store.put("locks/prune-0", &mut &b""[..]).unwrap();
        let file = File::open(dir.path().join("locks/prune-0")).unwrap();
        file.set_modified(SystemTime::now() - 2 * STALE).unwrap();
        assert!(ArchiveLock::take(&store, ArchiveWork::Backup).is_ok());
    }
}
