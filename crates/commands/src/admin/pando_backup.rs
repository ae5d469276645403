//! `pandoBackup`: a consistent copy of all data, taken while the server goes on, that is itself a
//! data directory.
//!
//! ```text
//! {pandoBackup: 1, path: "/an/absolute/path"}                  copies, and reads the copy whole
//! {pandoBackup: 1, path: "/an/absolute/path", step: "copy"}    copies, beside the data; the server is locked against writes
//! {pandoBackup: 1, path: "/an/absolute/path", step: "finish"}  puts that copy in its place, and reads it whole
//! ```
//! A router asks for the steps: between them it gives writes free on all shards, since the second may
//! take long. On one file system the copy shares the data files (they are never changed), so it takes
//! no space at first. The path is that of the server's machine and must not exist.
//!
//! Invariant: a reply with `verified: true` is of a copy whose every block was read and has its checksum.

use crate::request::{CommandContext, Done, idl};
use crate::topology::member::host;
use errors::{Fallible, Result, bail, err};
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use storage::Offline;

/// In the data directory: a copy that was not put in its place yet.
const STAGED: &str = "backup-staged";

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let at = "pandoBackup";
    let (mut path, mut step) = (None, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "path" => path = idl::string(at, e)?,
            "step" => step = idl::string(at, e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let path = Path::new(idl::required(at, "path", path)?);
    if !path.is_absolute() {
        bail!(
            BadValue,
            "the path of a backup must be absolute, not '{}'",
            path.display()
        );
    }
    if path.exists() {
        bail!(BadValue, "{} exists already", path.display());
    }
    let staged = cx.app.config.db_path.join(STAGED);
    match step {
        None => {
            make_parent(path)?;
            copy(cx, path)?;
            verify(cx, path)?;
        }
        Some("copy") => {
            check_locked(cx)?;
            // What an attempt that was broken off has left.
            match fs::remove_dir_all(&staged) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(&staged, &e).into()),
                _ => {}
            }
            copy(cx, &staged)?;
            check_locked(cx)?;
        }
        Some("finish") => {
            make_parent(path)?;
            put_in_place(&staged, path)?;
            verify(cx, path)?;
        }
        Some(other) => bail!(BadValue, "{at} has no step '{other}'"),
    }
    let host = host(cx);
    cx.w.str("path", &path.to_string_lossy()).str("host", &host);
    Ok(Done::Reply)
}

/// What was written to one shard and not to another would be in the backup of a cluster else.
fn check_locked(cx: &CommandContext<'_, '_>) -> Result<()> {
    match cx.app.engine.gate.is_closed() {
        true => Ok(()),
        false => bail!(
            IllegalOperation,
            "the lock against writes is gone: the primary has changed, or somebody has unlocked it"
        ),
    }
}

fn copy(cx: &mut CommandContext<'_, '_>, path: &Path) -> Result<()> {
    let store = &cx.app.store;
    let index = store.last_index();
    store.checkpoint(path)?;
    let files = fs::read_dir(path.join("engine")).map_or(0, Iterator::count);
    // Everything up to here is in it; what was written meanwhile may be.
    cx.w.i64("files", files as i64)
        .i64("index", index as i64)
        .timestamp("timestamp", cx.app.store.last_ts());
    Ok(())
}

/// Reads the copy as a start would, and every block of its files. After an error there is no copy.
fn verify(cx: &mut CommandContext<'_, '_>, path: &Path) -> Result<()> {
    match read_whole(path) {
        Ok((collections, bytes)) => {
            cx.w.bool("verified", true)
                .int("collections", collections as i64)
                .i64("bytes", bytes as i64);
            Ok(())
        }
        Err(e) => {
            let _ = fs::remove_dir_all(path);
            tracing::error!(target: "STORAGE", error = %e, "A backup could not be read, and was removed");
            Err(err!(
                DataCorruptionDetected,
                "the copy is damaged, as the data may be (pando check tells): {}",
                e.message
            )
            .into())
        }
    }
}

/// How many collections it has, and how many bytes its files are.
fn read_whole(path: &Path) -> Fallible<(usize, u64)> {
    let offline = Offline::open(path)?;
    offline.stamp()?;
    offline.verify_files()?;
    let catalog = catalog::Snapshot::read(&offline.view()).map_err(errors::Stop::into_error)?;
    let bytes = offline.files()?.iter().map(|f| f.1).sum();
    Ok((catalog.all().count(), bytes))
}

fn failed(path: &Path, e: &std::io::Error) -> errors::Error {
    match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            err!(OutOfDiskSpace, "no space left for {}: {e}", path.display())
        }
        _ => err!(FileNotOpen, "cannot write {}: {e}", path.display()),
    }
}

fn make_parent(path: &Path) -> Fallible<()> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    let mut builder = DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(|e| failed(parent, &e))
}

/// Moves the copy, or copies it where the path is on another file system.
fn put_in_place(staged: &Path, path: &Path) -> Fallible<()> {
    match fs::rename(staged, path) {
        Err(e) if e.kind() == ErrorKind::CrossesDevices => {}
        moved => return moved.map_err(|e| failed(path, &e)),
    }
    let copied = copy_tree(staged, path);
    if copied.is_err() {
        let _ = fs::remove_dir_all(path);
    }
    let _ = fs::remove_dir_all(staged);
    copied
}

fn copy_tree(from: &Path, to: &Path) -> Fallible<()> {
    DirBuilder::new()
        .mode(0o700)
        .create(to)
        .map_err(|e| failed(to, &e))?;
    let entries = fs::read_dir(from).map_err(|e| failed(from, &e))?;
    for entry in entries {
        let from = entry.map_err(|e| failed(from, &e))?.path();
        let to: PathBuf = to.join(from.file_name().unwrap_or_default());
        if from.is_dir() {
            copy_tree(&from, &to)?;
        } else {
            let copied = fs::copy(&from, &to).and_then(|_| File::open(&to)?.sync_all());
            copied.map_err(|e| failed(&to, &e))?;
        }
    }
    File::open(to)
        .and_then(|dir| dir.sync_all())
        .map_err(|e| failed(to, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_copied_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("engine")).unwrap();
        fs::write(from.join("engine/000001.sst"), b"x").unwrap();
        fs::write(from.join("stamp"), b"y").unwrap();
        copy_tree(&from, &to).unwrap();
        assert_eq!(fs::read(to.join("engine/000001.sst")).unwrap(), b"x");
        assert_eq!(fs::read(to.join("stamp")).unwrap(), b"y");
        assert!(put_in_place(&from, &dir.path().join("moved")).is_ok() && !from.exists());
    }
}
