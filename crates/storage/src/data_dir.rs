//! The data directory: its stamp, its format version, and its lock for one process.
//!
//! ```text
//! PANDO        "pando data format 4\n": the stamp; a directory without it is new or another program's.
//!              4, or 5 once something is in it that only this release and later ones read;
//!              100 more where the directory is encrypted
//! PANDO.key    the key of an encrypted one, see `at_rest`
//! pando.lock   flock(2)ed while a process has the directory open; holds its pid
//! log/         segments of the log
//! log-window   how much of the log's past is kept, once it was set
//! engine/      RocksDB
//! local/       the store of a member's own database `local`: a data directory like this one
//! rollback/    what a deposed primary took back
//! replica-set.bson  what a member of a replica set must not forget besides
//! scrubbed     when all data files were read for damage
//! initial-sync/         files of another member, see `received_copy`
//! initial-sync-source/  checkpoints that other members copy
//! ```

use crate::at_rest::{self, TemporaryFile};
use crate::received_copy;
use encryption::DataKey;
use errors::{Fallible, err};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const STAMP: &str = "PANDO";
const LOCK: &str = "pando.lock";
/// The newest form of data files and log entries, one number for both. A new directory has the oldest
/// form that is read, which the release before reads too; a newer one is brought in by
/// [`DataDir::raise`].
pub const FORMAT: u32 = 5;
pub(crate) const OLDEST: u32 = 4;
/// Added to the format that the stamp of an encrypted directory says.
const ENCRYPTED: u32 = 100;

/// What a stamp says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub format: u32,
    pub is_encrypted: bool,
}

/// The directory, locked until the value is dropped.
pub(crate) struct DataDir {
    dir: PathBuf,
    /// What the stamp says.
    format: AtomicU32,
    /// `None` where the directory is plain.
    key: Option<DataKey>,
    _lock: File,
}

impl DataDir {
    /// Opens an existing data directory, or creates one in a new or empty directory. `syncs`: what it writes is to
    /// survive a loss of power.
    pub fn open(dir: &Path, syncs: bool) -> Fallible<DataDir> {
        let shown = dir.display();
        if dir.is_file() {
            return Err(err!(
                FileNotOpen,
                "the data directory {shown} is a file, not a directory"
            ));
        }
        fs::create_dir_all(dir)
            .map_err(|e| err!(FileNotOpen, "cannot create the data directory {shown}: {e}"))?;
        let stamped = check_contents(dir)?;
        let lock = lock(dir)?;
        let key = at_rest::decide(dir, stamped.map(|s| s.is_encrypted), true)?;
        received_copy::swap_in(dir)?;
        let stamp = stamped.unwrap_or(Stamp {
            format: OLDEST,
            is_encrypted: key.is_some(),
        });
        if stamped.is_none() {
            put_stamp(dir, stamp, syncs).map_err(|e| {
                err!(
                    FileNotOpen,
                    "cannot write to the data directory {shown}: {e}"
                )
            })?;
        }
        Ok(DataDir {
            dir: dir.to_path_buf(),
            format: AtomicU32::new(stamp.format),
            key,
            _lock: lock,
        })
    }

    /// Opens an existing data directory read-only. It may be on a disk that takes no writes.
    pub fn open_to_read(dir: &Path) -> Fallible<DataDir> {
        let shown = dir.display();
        if !dir.is_dir() {
            return Err(err!(FileNotOpen, "there is no directory {shown}"));
        }
        // The stamp may be damaged: the engine's files or the log's also identify the directory.
        if !dir.join("engine").is_dir() && !dir.join("log").is_dir() {
            return Err(err!(
                UnsupportedFormat,
                "{shown} is no data directory of PandoDB: it has neither a directory \"engine\" nor \"log\""
            ));
        }
        // What a later release has written is not damaged, and not to be judged here.
        let stamped = match check_contents(dir) {
            Err(e) if e.code == errors::Code::IncompatibleServerVersion => return Err(e),
            stamped => stamped.ok().flatten(),
        };
        let key = at_rest::decide(dir, stamped.map(|s| s.is_encrypted), false)?;
        let lock = match lock(dir) {
            Ok(file) => file,
            Err(e) if e.code == errors::Code::DBPathInUse => return Err(e),
            Err(_) => File::open(dir)
                .map_err(|e| err!(FileNotOpen, "cannot open the directory {shown}: {e}"))?,
        };
        Ok(DataDir {
            dir: dir.to_path_buf(),
            format: AtomicU32::new(OLDEST),
            key,
            _lock: lock,
        })
    }

    /// The form of what may be in the directory.
    pub fn format(&self) -> u32 {
        self.format.load(Ordering::Acquire)
    }

    pub fn stamp(&self) -> Stamp {
        Stamp {
            format: self.format(),
            is_encrypted: self.key.is_some(),
        }
    }

    /// What its files are encrypted with; `None` where they are not.
    pub fn key(&self) -> Option<&DataKey> {
        self.key.as_ref()
    }

    /// From now on the directory may hold what only programs of this format and later ones read. On
    /// disk when it returns.
    pub fn raise(&self, format: u32) -> Fallible<()> {
        if format <= self.format() {
            return Ok(());
        }
        let stamp = Stamp {
            format,
            ..self.stamp()
        };
        write_stamp(&self.dir, stamp).map_err(|e| {
            let shown = self.dir.display();
            err!(FileNotOpen, "cannot write the stamp {shown}/{STAMP}: {e}")
        })?;
        self.format.store(format, Ordering::Release);
        Ok(())
    }

    /// Whether the stamp is intact and of a supported format.
    pub fn check_stamp(&self) -> Fallible<()> {
        match check_contents(&self.dir)? {
            Some(_) => Ok(()),
            None => Err(err!(
                UnsupportedFormat,
                "the stamp {}/{STAMP} is missing: it should say \"pando data format {OLDEST}\"",
                self.dir.display()
            )),
        }
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub fn engine(&self) -> PathBuf {
        self.dir.join("engine")
    }

    /// Creates a file without a name.
    pub fn temporary_file(&self) -> Fallible<TemporaryFile> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("temporary-{number}.new"));
        let mut options = OpenOptions::new();
        // A killed process may have left a file of that name.
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path);
        file.and_then(|file| fs::remove_file(&path).map(|()| file))
            .map(|file| TemporaryFile::new(file, self.key.is_some()))
            .map_err(|e| {
                err!(
                    OutOfDiskSpace,
                    "cannot make a temporary file in {}: {e}",
                    self.dir.display()
                )
            })
    }

    /// Fails when the engine would mistake its directory for a new one, and remove the data files
    /// in it as foreign.
    pub fn check_books(&self) -> Fallible<()> {
        let current = self.engine().join("CURRENT");
        match current.exists() || !has_data_files(&self.engine()) {
            true => Ok(()),
            false => Err(err!(
                UnrecoverableRollbackError,
                "the data files are damaged: {} is missing",
                current.display()
            )),
        }
    }
}

/// Writes the stamp that marks `dir` as a data directory. It appears whole or not at all.
pub(crate) fn write_stamp(dir: &Path, stamp: Stamp) -> std::io::Result<()> {
    put_stamp(dir, stamp, true)
}

fn put_stamp(dir: &Path, stamp: Stamp, syncs: bool) -> std::io::Result<()> {
    let sync = |file: &File| if syncs { file.sync_all() } else { Ok(()) };
    let format = stamp.format + if stamp.is_encrypted { ENCRYPTED } else { 0 };
    let draft = dir.join("PANDO.new");
    let mut file = File::create(&draft)?;
    file.write_all(format!("pando data format {format}\n").as_bytes())?;
    sync(&file)?;
    fs::rename(&draft, dir.join(STAMP))?;
    sync(&File::open(dir)?)
}

/// What the directory's stamp says; `None` without one, an error when it belongs to other
/// software.
fn check_contents(dir: &Path) -> Fallible<Option<Stamp>> {
    let shown = dir.display();
    let unreadable =
        |e: std::io::Error| err!(FileNotOpen, "cannot read the data directory {shown}: {e}");
    match fs::read_to_string(dir.join(STAMP)) {
        Ok(stamp) => {
            let format = stamp
                .trim()
                .strip_prefix("pando data format ")
                .and_then(|n| n.parse::<u32>().ok());
            return match format {
                Some(format @ OLDEST..=FORMAT) => Ok(Some(Stamp {
                    format,
                    is_encrypted: false,
                })),
                Some(n) if (ENCRYPTED + OLDEST..=ENCRYPTED + FORMAT).contains(&n) => {
                    Ok(Some(Stamp {
                        format: n - ENCRYPTED,
                        is_encrypted: true,
                    }))
                }
                Some(n) if n > FORMAT => Err(err!(
                    IncompatibleServerVersion,
                    "the data directory {shown} has format {n}, which a later release has written; this version of PandoDB reads formats {OLDEST} and \
                     {FORMAT}: install the release that wrote it, or a later one"
                )),
                Some(n) => Err(err!(
                    UnsupportedFormat,
                    "the data directory {shown} has format {n}; this version of PandoDB reads formats {OLDEST} and {FORMAT} (move the data with mongodump, \
                     from the version that wrote it, and mongorestore)"
                )),
                None => Err(err!(
                    UnsupportedFormat,
                    "the stamp {shown}/{STAMP} is damaged: it should say \"pando data format {OLDEST}\" or a later one"
                )),
            };
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(unreadable(e)),
    }
    if has_data_files(&dir.join("engine")) && dir.join(LOCK).exists() {
        return Err(err!(
            UnsupportedFormat,
            "the stamp {shown}/{STAMP} is missing: it should say \"pando data format {OLDEST}\""
        ));
    }
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "WiredTiger" || name.starts_with("WiredTiger.") {
            return Err(err!(
                UnsupportedFormat,
                "the data directory {shown} holds MongoDB's WiredTiger files, which PandoDB does not read: start mongod on it, \
                 dump it with mongodump, and load the dump into PandoDB (with another --dbpath) with mongorestore"
            ));
        }
        let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
        if !harmless(&name, is_dir) {
            return Err(err!(
                UnsupportedFormat,
                "the data directory {shown} is not empty and not PandoDB's (it holds \"{name}\"): choose an empty directory"
            ));
        }
    }
    Ok(None)
}

/// Whether a directory holds data files of the engine.
fn has_data_files(engine: &Path) -> bool {
    let entries = fs::read_dir(engine).into_iter().flatten().flatten();
    entries
        .map(|e| e.path())
        .any(|path| path.extension().is_some_and(|e| e == "sst"))
}

/// What may lie in a new data directory: remains of an interrupted creation, and files that start
/// scripts put there.
fn harmless(name: &str, is_dir: bool) -> bool {
    let beside = [
        ".log", ".pid", ".lock", ".conf", ".cfg", ".yaml", ".yml", ".pem", ".key", ".new",
    ];
    name == "lost+found"
        || name.starts_with('.')
        || (!is_dir && (name.contains(".log") || beside.iter().any(|ext| name.ends_with(ext))))
}

fn lock(dir: &Path) -> Fallible<File> {
    let path = dir.join(LOCK);
    let shown = path.display();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| err!(FileNotOpen, "cannot open {shown}: {e}"))?;
    // SAFETY: flock on a descriptor that `file` keeps open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let e = std::io::Error::last_os_error();
        if e.kind() != std::io::ErrorKind::WouldBlock {
            return Err(err!(FileNotOpen, "cannot lock {shown}: {e}"));
        }
        let mut pid = String::new();
        let who = match file.read_to_string(&mut pid) {
            Ok(_) if !pid.trim().is_empty() => format!("process {}", pid.trim()),
            _ => "another process".to_string(),
        };
        return Err(err!(
            DBPathInUse,
            "the data directory {} is in use by {who}",
            dir.display()
        ));
    }
    let pid = format!("{}\n", std::process::id());
    // The pid is for a second process's error message; the lock holds without it.
    let _ = file
        .set_len(0)
        .and_then(|()| file.write_all(pid.as_bytes()));
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use errors::Code;

    fn refusal(dir: &Path) -> errors::Error {
        DataDir::open(dir, true).err().expect("must be refused")
    }

    #[test]
    fn a_second_process_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path(), true).unwrap();
        let e = refusal(dir.path());
        assert_eq!(e.code, Code::DBPathInUse);
        assert!(
            e.message
                .contains(&format!("process {}", std::process::id())),
            "{e}"
        );
        drop(first);
        DataDir::open(dir.path(), true).unwrap();
    }

    #[test]
    fn what_is_refused_and_what_is_not() {
        let cases = [
            ("WiredTiger.wt", "mongorestore"),
            ("WiredTiger", "mongorestore"),
            ("thesis.doc", "thesis.doc"),
        ];
        for (file, said) in cases {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(file), "x").unwrap();
            let e = refusal(dir.path());
            assert!(e.message.contains(said), "{e}");
            assert!(
                !dir.path().join(STAMP).exists(),
                "a refused directory is left alone"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        for file in ["mongod.log", "mongod.log.2024-01-01", "mongod.pid", ".keep"] {
            fs::write(dir.path().join(file), "x").unwrap();
        }
        DataDir::open(dir.path(), true).unwrap();
    }

    #[test]
    fn another_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (stamp, said) in [
            ("pando data format 1\n", "format 1"),
            ("pando data format 3\n", "format 3"),
            ("", "damaged"),
            ("x", "damaged"),
        ] {
            fs::write(dir.path().join(STAMP), stamp).unwrap();
            let e = refusal(dir.path());
            assert_eq!(e.code, Code::UnsupportedFormat);
            assert!(e.message.contains(said), "{e}");
        }
        fs::write(dir.path().join(STAMP), "pando data format 6\n").unwrap();
        fs::create_dir(dir.path().join("engine")).unwrap();
        let read = DataDir::open_to_read(dir.path()).err().unwrap();
        for e in [refusal(dir.path()), read] {
            assert_eq!(e.code, Code::IncompatibleServerVersion);
            assert!(e.message.contains("format 6, which a later release"), "{e}");
        }
    }
}
