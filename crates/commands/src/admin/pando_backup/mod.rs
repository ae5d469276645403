//! `pandoBackup`: a consistent copy of all data, taken while the server goes on.
//!
//! ```text
//! {path: "/an/absolute/path"}                   a copy in a directory of the server's machine, which is itself a data directory
//!
//! {step: "stage", hold: <id of a lock>}         a copy beside the data; the reply has its `id`
//! {step: "finish", id, path}                    puts that copy in its place, and reads it whole
//! {step: "describe", id}                        reads it whole, and tells its files with their hashes
//! {step: "read", id, file, offset, length}      a piece of a file
//! {step: "release", id}                         removes the copy
//! {step: "log", after: {index, timestamp}, reach}   entries of the log behind that one
//! {step: "kept", backup: <id>, to: <where>}     it is in an archive now: what the set knows as its last backup
//! ```
//! `pando backup` asks for the steps, by a router for a whole cluster: between `stage` and the others
//! writes are free again on all shards. On one file system a copy shares the data files (they are never
//! changed), so it takes no space at first.
//!
//! Invariants:
//! - A reply with `verified: true` is of a copy whose every block was read and has its checksum.
//! - A copy that was staged under a lock is of a server that was locked all that time.
//! - Entries that were sent are never rolled back: a majority has them on disk.

pub mod last;
mod log;
mod staged;

use crate::request::{CommandContext, Done};
use crate::topology::member::host;
use bson::Doc;
use errors::{Fallible, Result, bail, err};
use front::idl;
use own_process::pace::BackgroundThrottle;
use staged::Staged;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const AT: &str = "pandoBackup";

#[derive(Default)]
struct BackupArguments<'a> {
    path: Option<&'a str>,
    step: Option<&'a str>,
    id: Option<&'a str>,
    file: Option<&'a str>,
    hold: Option<i64>,
    offset: u64,
    length: u64,
    after: Option<Doc<'a>>,
    reach: u64,
    backup: Option<&'a str>,
    to: Option<&'a str>,
}

fn parse<'a>(cx: &CommandContext<'a, '_>) -> Result<BackupArguments<'a>> {
    let mut arguments = BackupArguments::default();
    for e in cx.args.fields.clone() {
        match e.name {
            "path" => arguments.path = idl::string(AT, e)?,
            "step" => arguments.step = idl::string(AT, e)?,
            "id" => arguments.id = idl::string(AT, e)?,
            "file" => arguments.file = idl::string(AT, e)?,
            "hold" => arguments.hold = idl::int(AT, e)?,
            "offset" => arguments.offset = idl::unsigned(AT, e)?.unwrap_or(0),
            "length" => arguments.length = idl::unsigned(AT, e)?.unwrap_or(0),
            "after" => arguments.after = idl::doc(AT, e)?,
            "reach" => arguments.reach = e.val.as_timestamp().unwrap_or(0),
            "backup" => arguments.backup = idl::string(AT, e)?,
            "to" => arguments.to = idl::string(AT, e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    Ok(arguments)
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let arguments = parse(cx)?;
    let of_id = |cx: &CommandContext<'_, '_>| -> Result<Staged> {
        let id = idl::required(AT, "id", arguments.id)?;
        Ok(Staged::find(&cx.app.config.db_path, id)?)
    };
    match arguments.step {
        None => {
            let path = checked(arguments.path)?;
            staged::make_parent(path)?;
            copy(cx, path)?;
            verify(cx, path)?;
            place(cx, path);
            if let Err(e) = last::note(cx, "", &path.to_string_lossy()) {
                tracing::warn!(target: "STORAGE", error = %e, "The set is not told of a backup");
            }
        }
        Some("stage") => stage(cx, arguments.hold)?,
        Some("finish") => {
            let path = checked(arguments.path)?;
            let copy = of_id(cx)?;
            staged::make_parent(path)?;
            copy.put_in_place(path)?;
            verify(cx, path)?;
            place(cx, path);
        }
        Some("describe") => describe(cx, &of_id(cx)?)?,
        Some("read") => {
            let (copy, file) = (of_id(cx)?, idl::required(AT, "file", arguments.file)?);
            let bytes = copy.read(file, arguments.offset, arguments.length)?;
            cx.w.binary("data", 0, &bytes);
        }
        Some("release") => of_id(cx)?.remove(),
        Some("log") => log::tell(cx, arguments.after, arguments.reach)?,
        Some("kept") => {
            let id = idl::required(AT, "backup", arguments.backup)?;
            last::note(cx, id, idl::required(AT, "to", arguments.to)?)?;
        }
        Some(other) => bail!(BadValue, "{AT} has no step '{other}'"),
    }
    Ok(Done::Reply)
}

/// Where a copy may be put.
fn checked(path: Option<&str>) -> Result<&Path> {
    let path = Path::new(idl::required(AT, "path", path)?);
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
    Ok(path)
}

fn place(cx: &mut CommandContext<'_, '_>, path: &Path) {
    let host = host(cx);
    cx.w.str("path", &path.to_string_lossy()).str("host", &host);
}

fn stage(cx: &mut CommandContext<'_, '_>, hold: Option<i64>) -> Result<()> {
    check_locked(cx, hold)?;
    let staged = Staged::make(&cx.app.config.db_path)?;
    let made = copy(cx, staged.dir()).and_then(|()| check_locked(cx, hold));
    if made.is_err() {
        staged.remove();
    }
    made?;
    let host = host(cx);
    cx.w.str("id", staged.id()).str("host", &host);
    Ok(())
}

/// Without the lock the backup of a cluster could have a write of one shard and lack that of another.
fn check_locked(cx: &CommandContext<'_, '_>, hold: Option<i64>) -> Result<()> {
    match hold.is_none_or(|id| cx.app.engine.fsync_lock.holds(id)) {
        true => Ok(()),
        false => bail!(
            IllegalOperation,
            "the lock against writes is gone: the primary has changed, somebody has unlocked it, or its time was over"
        ),
    }
}

fn copy(cx: &mut CommandContext<'_, '_>, path: &Path) -> Result<()> {
    let store = &cx.app.store;
    let index = store.last_index();
    store.checkpoint(path)?;
    let files = fs::read_dir(path.join("engine")).map_or(0, Iterator::count);
    // Everything up to here is in it; later writes may be.
    cx.w.i64("files", files as i64)
        .i64("index", index as i64)
        .timestamp("timestamp", cx.app.store.last_ts());
    Ok(())
}

/// Reads the copy as a start would, and every block of its files. After an error there is no copy.
fn verify(cx: &mut CommandContext<'_, '_>, path: &Path) -> Result<()> {
    match staged::beside_others(|pace| staged::read_whole(path, pace)) {
        Ok(found) => {
            cx.w.bool("verified", true)
                .int("collections", found.collections as i64)
                .i64("bytes", found.bytes as i64);
            Ok(())
        }
        Err(e) => {
            let _ = fs::remove_dir_all(path);
            Err(damaged(&e))
        }
    }
}

fn describe(cx: &mut CommandContext<'_, '_>, copy: &Staged) -> Result<()> {
    let read = |pace: &mut BackgroundThrottle| {
        let found = staged::read_whole(copy.dir(), pace)?;
        Ok((found, copy.files(pace)?))
    };
    let described = staged::beside_others(read);
    let (found, files) = match described {
        Ok(described) => described,
        Err(e) => {
            copy.remove();
            return Err(damaged(&e));
        }
    };
    let w = &mut cx.w;
    w.bool("verified", true)
        .int("collections", found.collections as i64)
        .i64("bytes", found.bytes as i64);
    w.open_doc("from")
        .i64("index", found.from.index as i64)
        .timestamp("timestamp", found.from.ts)
        .close();
    w.open_doc("complete")
        .i64("index", found.complete.index as i64)
        .timestamp("timestamp", found.complete.ts)
        .i64("fingerprint", found.fingerprint.cast_signed())
        .close();
    w.open_array("files");
    for file in files {
        w.open_doc("")
            .str("name", &file.name)
            .i64("bytes", file.bytes as i64)
            .binary("sha256", 0, &file.sha256)
            .close();
    }
    w.close();
    Ok(())
}

fn damaged(e: &errors::Error) -> errors::Stop {
    tracing::error!(target: "STORAGE", error = %e, "A backup could not be read, and was removed");
    err!(
        DataCorruptionDetected,
        "the copy is damaged, as the data may be (pando check tells): {}",
        e.message
    )
    .into()
}

fn failed(path: &Path, e: &std::io::Error) -> errors::Error {
    match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            err!(OutOfDiskSpace, "no space left for {}: {e}", path.display())
        }
        _ => err!(FileNotOpen, "cannot write {}: {e}", path.display()),
    }
}

fn unreadable(path: &Path, e: &std::io::Error) -> errors::Error {
    err!(FileNotOpen, "cannot read {}: {e}", path.display())
}

type Outcome<T> = Fallible<T>;
