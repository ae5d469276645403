//! Whether a data directory is encrypted, and with which key: the one place that decides.
//!
//! ```text
//! PANDO      says a format of 100 more where the directory is encrypted: earlier releases refuse it
//! PANDO.key  the directory's data key, wrapped by the master key (`encryption::DataKey`)
//! ```
//!
//! Invariants:
//! - A directory is encrypted from its beginning or not at all: log, engine and spill files alike.
//! - Where the key is missing, damaged or wrapped by another master key, nothing of the directory is read or changed.
//! - A copy of a directory has a copy of its wrapped key.

pub use encryption::{DataFile, DataFiles};
use encryption::{DataKey, FileCipher, MasterKey, Unwrapped};
use errors::{Fallible, err};
use oplog::LogOptions;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

pub const KEY_FILE: &str = "PANDO.key";
const DRAFT: &str = "PANDO.key.new";

static MASTER: OnceLock<MasterKey> = OnceLock::new();

/// Gives the process its master key, once, before it opens a directory: new ones are encrypted, encrypted ones are
/// opened, and plain ones are refused as data directories of a server.
pub fn use_key_file(path: &Path) -> Fallible<()> {
    let key = master_key(path)?;
    let is_first = MASTER.set(key).is_ok();
    assert!(is_first, "a process has one master key");
    Ok(())
}

fn master_key(path: &Path) -> Fallible<MasterKey> {
    MasterKey::load(path).map_err(|says| err!(BadValue, "{says}"))
}

/// The key of the directory `dir`; `None` where it is plain. `stamped`: whether its stamp says that it is encrypted,
/// `None` without a stamp. `serves`: it is opened to be written, and made where it is new.
pub(crate) fn decide(dir: &Path, stamped: Option<bool>, serves: bool) -> Fallible<Option<DataKey>> {
    let shown = dir.display();
    let is_encrypted = stamped == Some(true) || dir.join(KEY_FILE).exists();
    match (is_encrypted, MASTER.get()) {
        (true, Some(master)) => load(dir, master).map(Some),
        (true, None) => Err(err!(
            BadValue,
            "the data directory {shown} is encrypted: its key is wanted (--enableEncryption --encryptionKeyFile FILE for a server, \
             --encryptionKeyFile FILE for a tool)"
        )),
        (false, Some(master)) if serves && stamped.is_none() => {
            let key = DataKey::generate();
            save(dir, &key.wrap(master))?;
            Ok(Some(key))
        }
        (false, Some(_)) if serves => Err(err!(
            BadValue,
            "the data directory {shown} is not encrypted, and --enableEncryption is for new ones: start a member of the set on an empty \
             directory (initial sync encrypts what it gets), or dump with mongodump and load into a new directory with mongorestore"
        )),
        (false, _) => Ok(None),
    }
}

fn load(dir: &Path, master: &MasterKey) -> Fallible<DataKey> {
    let path = dir.join(KEY_FILE);
    let shown = path.display();
    let text = match fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(err!(
                BadValue,
                "{shown} is missing, and without it nobody can read the data: put it back from a backup of this directory"
            ));
        }
        Err(e) => return Err(err!(FileNotOpen, "cannot read {shown}: {e}")),
    };
    match DataKey::unwrap(&text, master) {
        Unwrapped::Key(key) => Ok(key),
        Unwrapped::OtherMaster => Err(err!(
            BadValue,
            "{shown} was wrapped by another master key than the one of --encryptionKeyFile: the key is wrong, or it was rotated since"
        )),
        Unwrapped::Damaged => Err(err!(
            BadValue,
            "{shown} is damaged, and without it nobody can read the data: put it back from a backup of this directory"
        )),
    }
}

/// Writes the file of the wrapped key. It appears whole or not at all.
fn save(dir: &Path, text: &str) -> Fallible<()> {
    let (draft, path) = (dir.join(DRAFT), dir.join(KEY_FILE));
    let write = || {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| err!(FileNotOpen, "cannot write {}: {e}", path.display()))
}

/// Puts the wrapped key of one directory into another, which has or gets files of it.
pub(crate) fn copy_key(from: &Path, to: &Path) -> Fallible<()> {
    let path = from.join(KEY_FILE);
    let text = fs::read_to_string(&path);
    let text = text.map_err(|e| err!(FileNotOpen, "cannot read {}: {e}", path.display()))?;
    save(to, &text)
}

/// Wraps the key of a directory that no server has open by another master key: encrypted files stay as
/// they are.
pub fn rekey(dir: &Path, new: &Path) -> Fallible<()> {
    let new = master_key(new)?;
    let data_dir = crate::data_dir::DataDir::open_to_read(dir)?;
    match data_dir.key() {
        Some(key) => save(dir, &key.wrap(&new)),
        None => Err(err!(
            BadValue,
            "the data directory {} is not encrypted",
            dir.display()
        )),
    }
}

/// How the log is read that lies in `dir`: a data directory, or a directory in one.
pub(crate) fn log_options(dir: &Path) -> Fallible<LogOptions> {
    let around = [Some(dir), dir.parent()];
    let data = around.into_iter().flatten();
    let mut data = data.filter(|d| d.join(KEY_FILE).exists());
    let key = match data.next() {
        Some(data) => decide(data, None, false)?,
        None => None,
    };
    Ok(LogOptions {
        key,
        ..LogOptions::new(dir)
    })
}

/// The files of a data directory that exists.
pub fn files_of(dir: &Path) -> Fallible<DataFiles> {
    decide(dir, None, false).map(DataFiles::new)
}

/// Puts the keys for reading the files of an encrypted directory into `to`, which gets such files.
pub fn prepare_copy(files: &DataFiles, dir: &Path, to: &Path) -> Fallible<()> {
    match files.is_encrypted() {
        true => copy_key(dir, to),
        false => Ok(()),
    }
}

/// Has the disk begin to write these bytes. A failure is found by [`DataFile::finish`].
pub fn send_to_disk(file: &DataFile, offset: u64, len: u64) {
    let at = i64::try_from(file.place(offset));
    let (Ok(at), Ok(len)) = (at, i64::try_from(len)) else {
        return;
    };
    begin_to_write(file.as_raw_fd(), at, len);
}

#[cfg(target_os = "linux")]
fn begin_to_write(fd: RawFd, at: i64, len: i64) {
    // SAFETY: the file is open; the call touches no memory of ours.
    unsafe { libc::sync_file_range(fd, at, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Elsewhere the disk begins when the system wants it to, or at the sync.
#[cfg(not(target_os = "linux"))]
fn begin_to_write(_fd: RawFd, _at: i64, _len: i64) {}

/// A file without a name, which is gone when it is closed. In an encrypted directory its bytes are encrypted under a
/// key that is in memory only.
pub struct TemporaryFile {
    file: File,
    cipher: Option<FileCipher>,
    at: u64,
    buffer: Vec<u8>,
    _place: Option<Place>,
}

/// How many temporary files there are, and may be.
pub(crate) struct Places {
    taken: AtomicUsize,
    most: usize,
}

impl Places {
    pub fn new(most: usize) -> Arc<Places> {
        let taken = AtomicUsize::new(0);
        Arc::new(Places { taken, most })
    }

    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// A place for one more.
    pub fn take(self: &Arc<Places>) -> Fallible<Place> {
        // Counted at once: the place is given back whatever comes of it.
        let place = Place(self.clone());
        match self.taken.fetch_add(1, Ordering::Relaxed) < self.most {
            true => Ok(place),
            false => Err(err!(
                ExceededMemoryLimit,
                "There are {} temporary files of sorts, groups and cursors already. Close cursors, or try again later",
                self.most
            )),
        }
    }
}

pub(crate) struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TemporaryFile {
    pub(crate) fn new(file: File, is_encrypted: bool) -> TemporaryFile {
        TemporaryFile {
            file,
            cipher: is_encrypted.then(FileCipher::temporary),
            at: 0,
            buffer: Vec::new(),
            _place: None,
        }
    }

    pub(crate) fn at_place(self, place: Place) -> TemporaryFile {
        TemporaryFile {
            _place: Some(place),
            ..self
        }
    }
}

impl Read for TemporaryFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(bytes)?;
        if let (Some(cipher), Some(read)) = (&self.cipher, bytes.get_mut(..n)) {
            cipher.apply(self.at, read);
        }
        self.at += n as u64;
        Ok(n)
    }
}

/// The most bytes encrypted for one write.
const MOST_WRITTEN: usize = 64 << 10;

impl Write for TemporaryFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = match &self.cipher {
            None => self.file.write(bytes)?,
            Some(cipher) => {
                self.buffer.clear();
                let some = bytes.get(..MOST_WRITTEN).unwrap_or(bytes);
                self.buffer.extend_from_slice(some);
                cipher.apply(self.at, &mut self.buffer);
                self.file.write(&self.buffer)?
            }
        };
        self.at += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for TemporaryFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_come_back_and_are_not_readable() {
        for is_encrypted in [false, true] {
            let mut on_disk = tempfile::tempfile().unwrap();
            let same = on_disk.try_clone().unwrap();
            let mut file = TemporaryFile::new(same, is_encrypted);
            let plain: Vec<u8> = (0..200_000_u32).map(|n| (n / 1000) as u8).collect();
            file.write_all(&plain[..70_001]).unwrap();
            file.write_all(&plain[70_001..]).unwrap();
            for from in [0, 1, 69_999, 150_000] {
                file.seek(SeekFrom::Start(from as u64)).unwrap();
                let mut back = Vec::new();
                file.read_to_end(&mut back).unwrap();
                assert_eq!(back, plain[from..]);
            }
            on_disk.seek(SeekFrom::Start(0)).unwrap();
            let mut raw = Vec::new();
            on_disk.read_to_end(&mut raw).unwrap();
            assert_eq!(raw == plain, !is_encrypted);
        }
    }
}
