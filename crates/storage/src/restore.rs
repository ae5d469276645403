//! A data directory as of a moment: a backup, and what a log has behind it.
//!
//! ```text
//! backup   engine's files: entries up to `from` for sure, up to `complete` maybe ── the record BACKUP says `complete`, and whose log
//! log      … from + 1 ……… complete ……… end (the last that `until` allows) ……… its own end
//! target   the backup's files, and entries from + 1 to end applied to them
//! ```
//!
//! Invariants:
//! - An entry is applied whole: a transaction or a batch is in the target, or it is not.
//! - The log has every entry from `from + 1` to `end`, and it is the log that the backup was made under; else nothing is made.
//! - What the log does not have (see [`Completion`]) is made anew before the target is there.
//! - The target appears whole: it is made under another name beside its own, and renamed when it is on disk.

use crate::Entry;
use crate::at_rest;
use crate::counts::Counts;
use crate::data_dir::{self, DataDir};
use crate::engine::Engine;
use crate::offline::Offline;
use crate::replay::Replay;
use crate::store::{Committed, StoreOptions};
use errors::{Error, Fallible, Stop, err};
use oplog::{LogOptions, Record};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const RECORD: &str = "BACKUP";

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupRecord {
    /// No entry behind this one is in the files.
    pub complete: Committed,
    /// Of its bytes: two logs that were begun in the same second have the same timestamps.
    pub fingerprint: u64,
    /// The directory of the log that it was made under.
    pub log: PathBuf,
}

impl BackupRecord {
    pub(crate) fn save(&self, dir: &Path) -> Fallible<()> {
        let Committed { index, ts } = self.complete;
        let (hash, log) = (self.fingerprint, self.log.display());
        let text = format!("complete {index} {ts} {hash:016x}\nlog {log}\n");
        let path = dir.join(RECORD);
        let written = fs::write(&path, text)
            .and_then(|()| File::open(&path)?.sync_all())
            .and_then(|()| File::open(dir)?.sync_all());
        written.map_err(|e| err!(FileNotOpen, "cannot write {}: {e}", path.display()))
    }

    /// `None` where the directory is no backup.
    pub fn load(dir: &Path) -> Option<BackupRecord> {
        let text = fs::read_to_string(dir.join(RECORD)).ok()?;
        let (complete, log) = text.split_once('\n')?;
        let mut fields = complete.strip_prefix("complete ")?.split(' ');
        Some(BackupRecord {
            complete: Committed {
                index: fields.next()?.parse().ok()?,
                ts: fields.next()?.parse().ok()?,
            },
            fingerprint: u64::from_str_radix(fields.next()?, 16).ok()?,
            log: log.strip_prefix("log ")?.trim_end_matches('\n').into(),
        })
    }
}

/// FNV-1a.
pub fn fingerprint(payload: &[u8]) -> u64 {
    payload.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Up to where a log is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// All that it has.
    End,
    /// Entries whose timestamp is not above.
    Timestamp(u64),
    /// Entries before the first whose wall clock, in milliseconds since 1970, is above.
    Wall(i64),
}

impl Until {
    fn allows(self, record: &Record<'_>) -> bool {
        match self {
            Until::End => true,
            Until::Timestamp(ts) => record.ts <= ts,
            Until::Wall(millis) => record.wall_millis <= millis,
        }
    }

    /// Whether it is later than a moment.
    fn is_after(self, at: &PointInTime) -> bool {
        match self {
            Until::End => false,
            Until::Timestamp(ts) => ts > at.ts,
            Until::Wall(millis) => millis > at.wall_millis,
        }
    }
}

/// An entry's place in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointInTime {
    pub index: u64,
    pub ts: u64,
    /// By the writer's clock; whole seconds if the entry itself is not kept.
    pub wall_millis: i64,
}

impl PointInTime {
    fn of(record: &Record<'_>) -> PointInTime {
        PointInTime {
            index: record.index,
            ts: record.ts,
            wall_millis: record.wall_millis,
        }
    }
}

impl From<Committed> for PointInTime {
    fn from(at: Committed) -> PointInTime {
        PointInTime {
            index: at.index,
            ts: at.ts,
            wall_millis: i64::try_from(at.ts >> 32).unwrap_or(0) * 1000,
        }
    }
}

pub struct RestoreRequest<'p> {
    pub backup: &'p Path,
    /// A directory of segments, or a data directory with one; `None`: where the backup says that its server had it.
    pub log: Option<&'p Path>,
    /// Must not exist.
    pub target: &'p Path,
    pub until: Until,
}

/// Adds to a restore what the log's entries do not have.
pub trait Completion {
    /// Is told of each entry that is applied.
    fn applied(&mut self, entry: &Entry);

    /// Completes the target, which lies in `dir`, and has no log yet.
    fn complete(&mut self, dir: &Path) -> Fallible<()>;
}

#[derive(Clone, Copy, Debug)]
pub struct Restored {
    /// The last entry that is in the target.
    pub last: PointInTime,
    /// Applied behind the backup.
    pub entries: u64,
}

/// Why nothing was made.
#[derive(Debug)]
pub enum RestoreError {
    Failed(Error),
    /// The moment lies before the backup was complete.
    TooEarly {
        earliest: PointInTime,
    },
    /// The log ends before the moment.
    TooLate {
        last: PointInTime,
    },
    /// Entries behind `after` are missing; the log goes on at `next`, if it does.
    Gap {
        after: PointInTime,
        next: Option<PointInTime>,
    },
    /// An entry of the log is not the one under which the backup was made.
    OtherLog {
        index: u64,
    },
}

impl From<Error> for RestoreError {
    fn from(e: Error) -> RestoreError {
        RestoreError::Failed(e)
    }
}

/// Makes `target`. After an error it is not there.
pub fn restore(
    request: &RestoreRequest<'_>,
    completion: &mut dyn Completion,
) -> Result<Restored, RestoreError> {
    let (backup, target) = (request.backup, request.target);
    if target.exists() {
        return Err(err!(FileNotOpen, "{} exists already", target.display()).into());
    }
    let record = BackupRecord::load(backup).ok_or_else(|| {
        err!(
            UnsupportedFormat,
            "{} is no backup: it has no file {RECORD}, as pando backup writes it",
            backup.display()
        )
    })?;
    if backup.join("log").exists() {
        return Err(err!(
            UnsupportedFormat,
            "a server was started in {}: it is a backup no more, but a data directory with a history of its own",
            backup.display()
        )
        .into());
    }
    let log = at_rest::log_options(&log_dir(request.log.unwrap_or(&record.log))?)?;
    let offline = Offline::open(backup)?;
    let from = offline.applied();
    let end = find_end(&log, from, &record, request.until)?;
    let draft = draft_of(target)?;
    let made = make(backup, &draft, &log, (from, end.index), completion);
    // The backup's lock is held until here.
    drop(offline);
    let made = made
        .and_then(|()| completion.complete(&draft))
        .and_then(|()| {
            let place = target.parent().filter(|p| !p.as_os_str().is_empty());
            fs::rename(&draft, target)
                .and_then(|()| File::open(place.unwrap_or(Path::new(".")))?.sync_all())
                .map_err(|e| err!(FileNotOpen, "cannot make {}: {e}", target.display()))
        });
    if let Err(e) = made {
        let _ = fs::remove_dir_all(&draft);
        return Err(e.into());
    }
    Ok(Restored {
        last: end,
        entries: end.index - from.index,
    })
}

/// The name under which the target is made. What a restore left there that was killed goes.
fn draft_of(target: &Path) -> Fallible<PathBuf> {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(".restoring");
    let draft = target.with_file_name(name);
    let fresh = match fs::remove_dir_all(&draft) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => fs::create_dir_all(&draft),
    };
    match fresh {
        Ok(()) => Ok(draft),
        Err(e) => Err(err!(FileNotOpen, "cannot make {}: {e}", draft.display())),
    }
}

/// The directory of segments that `given` is, or has in it.
fn log_dir(given: &Path) -> Fallible<PathBuf> {
    let inner = given.join("log");
    let dir = match inner.is_dir() {
        true => inner,
        false => given.to_path_buf(),
    };
    let files = fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut segments = files.filter(|f| f.path().extension().is_some_and(|e| e == "log"));
    match segments.next() {
        Some(_) => Ok(dir),
        None => Err(err!(
            FileNotOpen,
            "there is no log in {}: it should have segments, as 00000000000000000001.log",
            given.display()
        )),
    }
}

/// The last entry that `until` allows, once it is sure that the log leads there from the backup.
fn find_end(
    log: &LogOptions,
    from: Committed,
    backup: &BackupRecord,
    until: Until,
) -> Result<PointInTime, RestoreError> {
    let complete = backup.complete;
    let mut end = PointInTime::from(from);
    let mut last = end;
    // That the backup's own moment is among the entries makes the clock of it known.
    let mut earliest = PointInTime::from(complete);
    let mut beyond = false;
    let mut fault = None;
    let examined = oplog::examine_from(log, from.index, |record| {
        let at = PointInTime::of(&record);
        let other = at.index == from.index && at.ts != from.ts
            || at.index == complete.index && fingerprint(record.payload) != backup.fingerprint;
        if other {
            fault = Some(RestoreError::OtherLog { index: at.index });
            return false;
        }
        if at.index == complete.index {
            earliest = at;
        }
        if at.index <= from.index {
            (end, last) = (at, at);
            return true;
        }
        if at.index != last.index + 1 {
            let (after, next) = (last, Some(at));
            fault = Some(RestoreError::Gap { after, next });
            return false;
        }
        last = at;
        beyond |= !until.allows(&record);
        if !beyond {
            end = at;
        }
        // One that is beyond says that the log goes far enough.
        !beyond || at.index < complete.index
    });
    let examined = examined.map_err(Error::from)?;
    // Behind damage entries are missing: that they are is not the reason.
    if let Some(damage) = examined.faults.into_iter().next() {
        return Err(Error::from(damage).into());
    }
    if let Some(fault) = fault {
        return Err(fault);
    }
    if last.index < complete.index {
        let (after, next) = (last, None);
        return Err(RestoreError::Gap { after, next });
    }
    if end.index < complete.index || (end.index == complete.index && !reaches(until, &earliest)) {
        return Err(RestoreError::TooEarly { earliest });
    }
    match !beyond && until.is_after(&last) {
        true => Err(RestoreError::TooLate { last }),
        false => Ok(end),
    }
}

/// Whether a moment is not before an entry.
fn reaches(until: Until, at: &PointInTime) -> bool {
    match until {
        Until::End => true,
        Until::Timestamp(ts) => ts >= at.ts,
        Until::Wall(millis) => millis >= at.wall_millis,
    }
}

/// Makes the directory `draft` of the backup's files and the entries behind `from` up to index `end`.
fn make(
    backup: &Path,
    draft: &Path,
    log: &LogOptions,
    (from, end): (Committed, u64),
    completion: &mut dyn Completion,
) -> Fallible<()> {
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::StorageFull => {
            err!(OutOfDiskSpace, "no space left for {}: {e}", draft.display())
        }
        _ => err!(FileNotOpen, "cannot write {}: {e}", draft.display()),
    };
    copy_engine(&backup.join("engine"), &draft.join("engine")).map_err(failed)?;
    // Notes are entries of the log only, and the log begins anew: the oldest data format will do.
    let is_encrypted = backup.join(at_rest::KEY_FILE).exists();
    if is_encrypted {
        at_rest::copy_key(backup, draft)?;
    }
    let stamp = data_dir::Stamp {
        format: data_dir::OLDEST,
        is_encrypted,
    };
    data_dir::write_stamp(draft, stamp).map_err(failed)?;
    let opts = StoreOptions {
        cache_bytes: 64 << 20,
        row_percent: 0,
        ..StoreOptions::new(draft)
    };
    let engine = Arc::new(Engine::open(DataDir::open(draft, true)?, &opts.engine())?);
    let (counts, _) = Counts::load(&engine).map_err(Stop::into_error)?;
    let mut replay = Replay::new(&engine, &counts);
    let mut outcome = Ok(());
    oplog::examine_from(log, from.index, |record| {
        if record.index > from.index && record.index <= end {
            outcome = replay.entry(&record).map(|e| completion.applied(&e));
        }
        record.index < end && outcome.is_ok()
    })?;
    outcome?;
    replay.finish()?;
    engine.flush()
}

/// Data files are never changed, so a link is as good as a copy; the engine's books are.
fn copy_engine(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        let shown = name.to_string_lossy();
        if shown == "LOCK" || shown.starts_with("LOG") {
            continue;
        }
        let copy = to.join(name);
        let is_data = path.extension().is_some_and(|e| e == "sst");
        if !(is_data && fs::hard_link(&path, &copy).is_ok()) {
            fs::copy(&path, &copy)?;
            File::open(&copy)?.sync_all()?;
        }
    }
    File::open(to)?.sync_all()
}

/// The log of a data directory, or a directory of segments, read as it lies there: also one that a server has open.
pub struct LogFiles(LogOptions);

pub fn log_files(dir: &Path) -> Fallible<LogFiles> {
    Ok(LogFiles(at_rest::log_options(&log_dir(dir)?)?))
}

impl LogFiles {
    /// Hands on entries from about timestamp `from` on, until `each` wants no more. The error names damage that it went past.
    pub fn read(&self, from: u64, each: impl FnMut(Record<'_>) -> bool) -> Fallible<()> {
        let first = oplog::segment_before(&self.0, from)?;
        let examined = oplog::examine_from(&self.0, first, each)?;
        match examined.faults.into_iter().next() {
            Some(damage) => Err(damage.into()),
            None => Ok(()),
        }
    }
}
