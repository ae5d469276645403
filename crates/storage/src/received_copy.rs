//! The place where a member receives the files of another member's checkpoint, and how they take the
//! place of its own.
//!
//! ```text
//! <data directory>/initial-sync/engine/…    the files, as they come
//!                               KEEPS-LOG   where the member's own log goes on behind the files: it stays
//!                               COMPLETE    written last: all of them are there and on disk
//! ```
//!
//! Invariants:
//! - Without COMPLETE nothing of the directory is used.
//! - With it, engine and log of the data directory are replaced when the directory is opened, or the
//!   engine alone where the log is kept: what a member has acknowledged is in its log. Each step can be
//!   done again: a crash between two of them is made good by the next start.

use crate::offline::Offline;
use errors::{Fallible, err};
use std::fs::{self, File};
use std::io;
use std::path::Path;

pub const DIR: &str = "initial-sync";
pub const COMPLETE: &str = "COMPLETE";
pub const KEEPS_LOG: &str = "KEEPS-LOG";

/// Reads all files that were received: those of a member that is damaged too are no remedy.
pub fn verify(dir: &Path) -> Fallible<()> {
    Offline::open(&dir.join(DIR))?.verify_files()
}

/// Puts a complete copy in the place of engine and log of the data directory.
pub(crate) fn swap_in(dir: &Path) -> Fallible<()> {
    let received = dir.join(DIR);
    let engine = received.join("engine");
    if !received.join(COMPLETE).exists() || !engine.exists() {
        return Ok(());
    }
    let swap = || {
        if !received.join(KEEPS_LOG).exists() {
            remove(&dir.join("log"))?;
        }
        remove(&dir.join("engine"))?;
        fs::rename(&engine, dir.join("engine"))?;
        File::open(dir)?.sync_all()?;
        File::open(&received)?.sync_all()
    };
    swap().map_err(|e| {
        err!(
            FileNotOpen,
            "the files received in {} cannot be put in place: {e}",
            received.display()
        )
    })
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_copy_is_put_in_place_and_a_crash_on_the_way_is_made_good() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let put = |name: &str, text: &str| {
            fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
            fs::write(dir.join(name), text).unwrap();
        };
        let holds = |name: &str| fs::read_to_string(dir.join(name)).ok();
        put("engine/a", "old");
        put("log/1", "old");
        put("initial-sync/engine/a", "half");
        swap_in(dir).unwrap();
        assert_eq!(holds("engine/a").as_deref(), Some("old"));
        put("initial-sync/engine/a", "new");
        put("initial-sync/COMPLETE", "");
        // As a crash after the removals leaves it.
        fs::remove_dir_all(dir.join("log")).unwrap();
        fs::remove_dir_all(dir.join("engine")).unwrap();
        swap_in(dir).unwrap();
        assert_eq!(holds("engine/a").as_deref(), Some("new"));
        // What came after is left alone by another start.
        put("log/2", "newer");
        swap_in(dir).unwrap();
        assert_eq!(holds("log/2").as_deref(), Some("newer"));
        // A log that goes on behind the files stays.
        put("initial-sync/engine/a", "newest");
        put("initial-sync/KEEPS-LOG", "");
        swap_in(dir).unwrap();
        assert_eq!(holds("engine/a").as_deref(), Some("newest"));
        assert_eq!(holds("log/2").as_deref(), Some("newer"));
    }
}
