//! The scrub: once a week all data files are read, a bounded number of bytes a second, so that damage is
//! found before its copies are lost. A member of a set repairs damage by itself; a server alone reports
//! it.
//!
//! ```text
//! DATA/scrubbed      its time of change is when the last pass ended, or the data directory began
//! ```
//! Invariant: a pass that is broken off by a stop begins anew; a file that is merged away meanwhile is well.

use crate::Commands;
use errors::{Error, Result};
use service::Control;
use service::config::ClusterRole;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};
use storage::Store;

const MARK: &str = "scrubbed";
const EACH: Duration = Duration::from_secs(7 * 86_400);
const LOOK: Duration = Duration::from_millis(500);

struct Scrub {
    store: Weak<Store>,
    control: Weak<Control>,
    mark: PathBuf,
    bytes_a_second: u64,
}

/// Starts the thread, which runs for as long as the commands are there.
pub fn start(c: &Commands) -> Result<()> {
    // A router has nothing of its own that would last.
    if c.config.scrub_bytes == 0 || c.config.role == ClusterRole::Router {
        return Ok(());
    }
    let scrub = Scrub {
        store: Arc::downgrade(&c.store),
        control: Arc::downgrade(&c.control),
        mark: c.config.db_path.join(MARK),
        bytes_a_second: c.config.scrub_bytes,
    };
    let run = move || {
        while scrub.look().is_some() {
            std::thread::sleep(LOOK);
        }
    };
    let started = std::thread::Builder::new().name("scrub".into()).spawn(run);
    started
        .map(|_| ())
        .map_err(|e| Error::internal(format!("cannot start a thread: {e}")).into())
}

/// Whether a pass is due; where none has ended yet, the directory begins now.
fn is_due(mark: &Path) -> bool {
    let changed = fs::metadata(mark).and_then(|m| m.modified());
    match changed {
        Ok(at) => at.elapsed().is_ok_and(|since| since >= EACH),
        Err(_) => {
            note_end(mark);
            false
        }
    }
}

fn note_end(mark: &Path) {
    let noted = File::create(mark).and_then(|f| f.set_modified(SystemTime::now()));
    if let Err(error) = noted {
        tracing::warn!(target: "STORAGE", %error, file = %mark.display(), "Cannot note when data files were read");
    }
}

/// How long to rest behind so many bytes.
fn rest(bytes: u64, bytes_a_second: u64, took: Duration) -> Duration {
    let whole = bytes as f64 / bytes_a_second.max(1) as f64;
    // A file is of some gigabytes at most.
    Duration::from_secs_f64(whole.min(86_400.0)).saturating_sub(took)
}

impl Scrub {
    /// `None` when the server has ended.
    fn look(&self) -> Option<()> {
        self.go_on()?;
        if is_due(&self.mark) {
            self.pass()?;
        }
        Some(())
    }

    fn go_on(&self) -> Option<()> {
        (!self.control.upgrade()?.is_stopping()).then_some(())
    }

    fn pass(&self) -> Option<()> {
        let files = self.store.upgrade()?.data_files().unwrap_or_default();
        tracing::info!(target: "STORAGE", files = files.len(), "Scrub: reading all data files");
        let mut damaged = 0;
        for (name, bytes) in files {
            let began = Instant::now();
            if let Err(error) = self.store.upgrade()?.verify_data_file(&name) {
                damaged += 1;
                tracing::error!(target: "STORAGE", file = name, %error, "Scrub: a data file is damaged. \
                    A member of a set gets a new copy; a server alone: pando check, pando salvage, or the last backup");
            }
            let ends = Instant::now() + rest(bytes, self.bytes_a_second, began.elapsed());
            while let Some(left) = ends.checked_duration_since(Instant::now()) {
                self.go_on()?;
                std::thread::sleep(left.min(LOOK));
            }
        }
        note_end(&self.mark);
        tracing::info!(target: "STORAGE", damaged, "Scrub: all data files were read");
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_due_a_week_after_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join(MARK);
        assert!(!is_due(&mark) && mark.exists());
        let long_ago = SystemTime::now() - EACH;
        File::open(&mark).unwrap().set_modified(long_ago).unwrap();
        assert!(is_due(&mark));
        note_end(&mark);
        assert!(!is_due(&mark));
    }

    #[test]
    fn reading_rests_until_the_rate_is_kept() {
        let second = Duration::from_secs(1);
        assert_eq!(rest(8 << 20, 4 << 20, second), second);
        assert_eq!(rest(8 << 20, 8 << 20, 2 * second), Duration::ZERO);
        assert!(rest(u64::MAX, 1, second) < Duration::from_secs(86_400));
    }
}
