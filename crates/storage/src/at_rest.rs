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

use encryption::{DataKey, FILE_HEADER_BYTES, FileCipher, MasterKey, Unwrapped};
use errors::{Fallible as Result, err};
use oplog::LogOptions;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

pub const KEY_FILE: &str = "PANDO.key";
const DRAFT: &str = "PANDO.key.new";

static MASTER: OnceLock<MasterKey> = OnceLock::new();

/// Gives the process its master key, once, before it opens a directory: new ones are encrypted, encrypted ones are
/// opened, and plain ones are refused as data directories of a server.
pub fn use_key_file(path: &Path) -> Result<()> {
    let key = master_key(path)?;
    let is_first = MASTER.set(key).is_ok();
    assert!(is_first, "a process has one master key");
    Ok(())
}

fn master_key(path: &Path) -> Result<MasterKey> {
    MasterKey::load(path).map_err(|says| err!(BadValue, "{says}"))
}

/// The key of the directory `dir`; `None` where it is plain. `stamped`: whether its stamp says that it is encrypted,
/// `None` without a stamp. `serves`: it is opened to be written, and made where it is new.
pub(crate) fn decide(dir: &Path, stamped: Option<bool>, serves: bool) -> Result<Option<DataKey>> {
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

fn load(dir: &Path, master: &MasterKey) -> Result<DataKey> {
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
fn save(dir: &Path, text: &str) -> Result<()> {
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
pub(crate) fn copy_key(from: &Path, to: &Path) -> Result<()> {
    let path = from.join(KEY_FILE);
    let text = fs::read_to_string(&path);
    let text = text.map_err(|e| err!(FileNotOpen, "cannot read {}: {e}", path.display()))?;
    save(to, &text)
}

/// Wraps the key of a directory that no server has open by another master key: what is encrypted stays as it is.
pub fn rekey(dir: &Path, new: &Path) -> Result<()> {
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
pub(crate) fn log_options(dir: &Path) -> Result<LogOptions> {
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

/// The engine's files of a directory as the engine sees them: decrypted, without what only tells how.
#[derive(Clone)]
pub struct DataFiles(Option<DataKey>);

impl DataFiles {
    pub(crate) fn new(key: Option<DataKey>) -> DataFiles {
        DataFiles(key)
    }

    /// Those of a data directory that exists.
    pub fn of(dir: &Path) -> Result<DataFiles> {
        decide(dir, None, false).map(DataFiles)
    }

    pub fn is_encrypted(&self) -> bool {
        self.0.is_some()
    }

    /// Opens a file to read it.
    pub fn open(&self, path: &Path) -> io::Result<DataFile> {
        let file = File::open(path)?;
        let cipher = self.cipher_of(&file, path)?;
        Ok(DataFile { file, cipher })
    }

    /// Opens a file to go on with it; one whose header is not whole begins anew.
    pub fn open_to_write(&self, path: &Path) -> io::Result<DataFile> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path)?;
        match self.cipher_of(&file, path) {
            Ok(cipher) => Ok(DataFile { file, cipher }),
            Err(_) => self.create(path),
        }
    }

    /// Makes an empty file, which is encrypted under a key of its own.
    pub fn create(&self, path: &Path) -> io::Result<DataFile> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(path)?;
        if let Some(key) = &self.0 {
            file.write_all_at(&key.new_header(), 0)?;
        }
        let cipher = self.cipher_of(&file, path)?;
        Ok(DataFile { file, cipher })
    }

    fn cipher_of(&self, file: &File, path: &Path) -> io::Result<Option<FileCipher>> {
        let Some(key) = &self.0 else {
            return Ok(None);
        };
        let mut header = [0; FILE_HEADER_BYTES];
        let damaged = || {
            let says = format!("the header of {} is damaged", path.display());
            io::Error::new(ErrorKind::InvalidData, says)
        };
        file.read_exact_at(&mut header, 0).map_err(|_| damaged())?;
        key.of_file(&header).map(Some).ok_or_else(damaged)
    }

    /// Puts what is needed to read files of this directory into `to`, which gets such files.
    pub fn prepare(&self, dir: &Path, to: &Path) -> Result<()> {
        match self.0 {
            Some(_) => copy_key(dir, to),
            None => Ok(()),
        }
    }
}

/// A file of the engine's.
pub struct DataFile {
    file: File,
    cipher: Option<FileCipher>,
}

impl DataFile {
    fn front(&self) -> u64 {
        self.cipher.as_ref().map_or(0, |_| FILE_HEADER_BYTES as u64)
    }

    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len().saturating_sub(self.front()))
    }

    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let at = offset + self.front();
        self.file.read_exact_at(bytes, at)?;
        if let Some(cipher) = &self.cipher {
            cipher.apply(at, bytes);
        }
        Ok(())
    }

    /// What is written again in one place must be what was there: see `encryption`. Other content wants a new file.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let at = offset + self.front();
        match &self.cipher {
            None => self.file.write_all_at(bytes, at),
            Some(cipher) => {
                let mut bytes = bytes.to_vec();
                cipher.apply(at, &mut bytes);
                self.file.write_all_at(&bytes, at)
            }
        }
    }

    /// Has the disk begin with what was written there. A failure is found by [`DataFile::finish`].
    pub fn send_to_disk(&self, offset: u64, len: u64) {
        let at = i64::try_from(offset + self.front());
        let (Ok(at), Ok(len)) = (at, i64::try_from(len)) else {
            return;
        };
        let fd: RawFd = self.file.as_raw_fd();
        // SAFETY: the file is open; the call touches no memory of ours.
        unsafe { libc::sync_file_range(fd, at, len, libc::SYNC_FILE_RANGE_WRITE) };
    }

    /// Gives the file its length, and syncs it.
    pub fn finish(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes + self.front())?;
        self.file.sync_all()
    }
}

/// A file without a name, which is gone when it is closed. In an encrypted directory its bytes are encrypted under a
/// key that is in memory only.
pub struct TemporaryFile {
    file: File,
    cipher: Option<FileCipher>,
    at: u64,
    buffer: Vec<u8>,
}

impl TemporaryFile {
    pub(crate) fn new(file: File, is_encrypted: bool) -> TemporaryFile {
        TemporaryFile {
            file,
            cipher: is_encrypted.then(FileCipher::temporary),
            at: 0,
            buffer: Vec::new(),
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

/// What is encrypted for one write.
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
    fn files_are_the_same_with_and_without_a_key_and_differ_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for key in [None, Some(DataKey::generate())] {
            let files = DataFiles::new(key);
            let file = files.create(&path).unwrap();
            file.write_all_at(b"world", 6).unwrap();
            file.write_all_at(b"hello ", 0).unwrap();
            file.finish(11).unwrap();
            let file = files.open_to_write(&path).unwrap();
            assert_eq!(file.bytes().unwrap(), 11);
            let mut bytes = [0; 4];
            files
                .open(&path)
                .unwrap()
                .read_exact_at(&mut bytes, 4)
                .unwrap();
            assert_eq!(&bytes, b"o wo");
            let on_disk = fs::read(&path).unwrap();
            let is_plain = on_disk.windows(5).any(|w| w == b"hello");
            assert_eq!(is_plain, !files.is_encrypted());
        }
        let other = DataFiles::new(Some(DataKey::generate()));
        let e = other.open(&path).err().unwrap();
        assert!(e.to_string().contains("damaged"), "{e}");
    }

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
