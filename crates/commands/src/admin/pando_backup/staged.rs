//! Copies beside the data, until they are fetched or put in their place.
//!
//! ```text
//! DATA/backup-staged/ID/engine/…, BACKUP, PANDO
//! ```
//!
//! Invariants:
//! - A name that a client gives never leads out of the copy.
//! - A copy that was not requested for [`IDLE`] is abandoned: it goes with the next one.

use super::{Outcome, failed, unreadable};
use errors::err;
use own_process::pace::BackgroundThrottle;
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use storage::{BackupRecord, Committed, Offline};

const AREA: &str = "backup-staged";
const IDLE: Duration = Duration::from_secs(600);
/// The longest piece of a file in one reply.
const MOST_READ: u64 = 8 << 20;

pub(super) struct Staged {
    id: String,
    dir: PathBuf,
}

pub(super) struct StagedFile {
    pub name: String,
    pub bytes: u64,
    pub sha256: [u8; 32],
}

/// What a copy is.
pub(super) struct Found {
    pub collections: usize,
    pub bytes: u64,
    /// All entries up to here are in it.
    pub from: Committed,
    /// None behind this one is.
    pub complete: Committed,
    pub fingerprint: u64,
}

impl Staged {
    /// A place for a new copy. What attempts have left that were broken off goes.
    pub fn make(data: &Path) -> Outcome<Staged> {
        let area = data.join(AREA);
        make_dir(&area)?;
        let left = fs::read_dir(&area).map_err(|e| unreadable(&area, &e))?;
        for one in left.flatten().map(|entry| entry.path()) {
            if is_idle(&one) {
                let removed = match one.is_dir() {
                    true => fs::remove_dir_all(&one),
                    false => fs::remove_file(&one),
                };
                removed.map_err(|e| failed(&one, &e))?;
            }
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = since.map_or(0, |d| d.as_nanos());
        let id = format!("{now:x}-{:x}", std::process::id());
        let dir = area.join(&id);
        Ok(Staged { id, dir })
    }

    pub fn find(data: &Path, id: &str) -> Outcome<Staged> {
        let is_id = !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        let dir = data.join(AREA).join(id);
        if !is_id || !dir.is_dir() {
            return Err(err!(
                BadValue,
                "there is no copy '{id}' here: the primary has changed, or nobody has asked for it for too long"
            ));
        }
        let copy = Staged { id: id.into(), dir };
        copy.touch();
        Ok(copy)
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn touch(&self) {
        touch(&self.dir);
    }

    pub fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            tracing::warn!(target: "STORAGE", %error, id = self.id, "A copy for a backup stays");
        }
    }

    /// Its files, each read whole.
    pub fn files(&self, pace: &mut BackgroundThrottle) -> Outcome<Vec<StagedFile>> {
        let mut files = Vec::new();
        for folder in ["", "engine"] {
            let dir = self.dir.join(folder);
            let entries = fs::read_dir(&dir).map_err(|e| unreadable(&dir, &e))?;
            for path in entries.flatten().map(|entry| entry.path()) {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let is_book = name == "LOCK" || name == "pando.lock" || name.starts_with("LOG");
                if path.is_dir() || is_book {
                    continue;
                }
                let name = match folder {
                    "" => name.into_owned(),
                    folder => format!("{folder}/{name}"),
                };
                let (bytes, sha256) = hash(&path, pace).map_err(|e| unreadable(&path, &e))?;
                files.push(StagedFile {
                    name,
                    bytes,
                    sha256,
                });
                self.touch();
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }

    /// A piece of a file: of that length, or shorter at the file's end or the limit of a reply.
    pub fn read(&self, file: &str, offset: u64, length: u64) -> Outcome<Vec<u8>> {
        let name = file.strip_prefix("engine/").unwrap_or(file);
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(err!(BadValue, "'{file}' is no file of a copy"));
        }
        let path = self.dir.join(file);
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = Vec::new();
            file.take(length.min(MOST_READ)).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|e| unreadable(&path, &e))
    }

    /// Moves the copy, or copies it where the path is on another file system.
    pub fn put_in_place(&self, path: &Path) -> Outcome<()> {
        match fs::rename(&self.dir, path) {
            Err(e) if e.kind() == ErrorKind::CrossesDevices => {}
            moved => return moved.map_err(|e| failed(path, &e)),
        }
        let copied = copy_tree(&self.dir, path);
        if copied.is_err() {
            let _ = fs::remove_dir_all(path);
        }
        self.remove();
        copied
    }
}

/// Marks a copy as still in use.
fn touch(dir: &Path) {
    let _ = File::open(dir).and_then(|dir| dir.set_modified(SystemTime::now()));
}

fn is_idle(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|m| m.modified());
    let since = modified.ok().and_then(|at| at.elapsed().ok());
    since.is_some_and(|since| since > IDLE)
}

fn hash(path: &Path, pace: &mut BackgroundThrottle) -> std::io::Result<(u64, [u8; 32])> {
    let mut file = pace.reading(File::open(path)?);
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut piece = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut piece)?;
        let Some(read) = piece.get(..n).filter(|read| !read.is_empty()) else {
            return Ok((bytes, hasher.finalize().into()));
        };
        hasher.update(read);
        bytes += n as u64;
    }
}

/// Does long work in a thread that gives way to all others of the server, and of the machine.
pub(super) fn beside_others<T: Send>(
    work: impl FnOnce(&mut BackgroundThrottle) -> Outcome<T> + Send,
) -> Outcome<T> {
    let gives_way = || work(&mut BackgroundThrottle::begin(1));
    std::thread::scope(|scope| {
        let begun = std::thread::Builder::new()
            .name("backup-read".into())
            .spawn_scoped(scope, gives_way);
        let gone = || err!(InternalError, "the thread that read the copy has ended");
        let thread = begun.map_err(|e| err!(InternalError, "a copy is not read: {e}"))?;
        thread.join().unwrap_or_else(|_| Err(gone()))
    })
}

/// Reads a copy as a start would, and every block of its files.
pub(super) fn read_whole(path: &Path, pace: &mut BackgroundThrottle) -> Outcome<Found> {
    let offline = Offline::open(path)?;
    offline.stamp()?;
    for (name, _) in offline.files()? {
        offline.verify_file(&name)?;
        // On a busy machine this takes longer than an abandoned copy is kept.
        touch(path);
        pace.rest();
    }
    let catalog = catalog::Snapshot::read(&offline.view()).map_err(errors::Stop::into_error)?;
    let bytes = offline.files()?.iter().map(|f| f.1).sum();
    let record = BackupRecord::load(path)
        .ok_or_else(|| err!(FileNotOpen, "the copy does not say of when it is"))?;
    Ok(Found {
        collections: catalog.all().count(),
        bytes,
        from: offline.applied(),
        complete: record.complete,
        fingerprint: record.fingerprint,
    })
}

fn make_dir(dir: &Path) -> Outcome<()> {
    let mut builder = DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| failed(dir, &e))
}

pub(super) fn make_parent(path: &Path) -> Outcome<()> {
    path.parent().map_or(Ok(()), make_dir)
}

fn copy_tree(from: &Path, to: &Path) -> Outcome<()> {
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

    fn one(data: &Path) -> Staged {
        let staged = Staged::make(data).unwrap();
        fs::create_dir_all(staged.dir().join("engine")).unwrap();
        fs::write(staged.dir().join("engine/000001.sst"), b"x").unwrap();
        fs::write(staged.dir().join("BACKUP"), b"yes").unwrap();
        staged
    }

    #[test]
    fn a_tree_is_copied_whole() {
        let dir = tempfile::tempdir().unwrap();
        let from = one(dir.path());
        let to = dir.path().join("to");
        copy_tree(from.dir(), &to).unwrap();
        assert_eq!(fs::read(to.join("engine/000001.sst")).unwrap(), b"x");
        assert_eq!(fs::read(to.join("BACKUP")).unwrap(), b"yes");
        assert!(from.put_in_place(&dir.path().join("moved")).is_ok() && !from.dir().exists());
    }

    #[test]
    fn files_are_told_and_read_in_pieces_and_no_others_are() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret"), b"s").unwrap();
        let copy = one(dir.path());
        let files = copy.files(&mut BackgroundThrottle::begin(1)).unwrap();
        let told: Vec<_> = files.iter().map(|f| (f.name.as_str(), f.bytes)).collect();
        assert_eq!(told, [("BACKUP", 3), ("engine/000001.sst", 1)]);
        assert_eq!(files[0].sha256[..], Sha256::digest(b"yes")[..]);
        let copy = Staged::find(dir.path(), copy.id()).unwrap();
        assert_eq!(copy.read("BACKUP", 1, 100).unwrap(), b"es");
        assert_eq!(copy.read("BACKUP", 9, 100).unwrap(), b"");
        for bad in [
            "../../secret",
            "engine/../../../secret",
            "..",
            "",
            "engine/",
            "/etc/passwd",
        ] {
            assert!(copy.read(bad, 0, 10).is_err(), "{bad}");
        }
        for bad in ["", "..", "../backup-staged", "0"] {
            assert!(Staged::find(dir.path(), bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_copy_that_is_not_fetched_goes_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (left, wanted) = (one(dir.path()), one(dir.path()));
        let long_ago = SystemTime::now() - 2 * IDLE;
        for copy in [&left, &wanted] {
            File::open(copy.dir())
                .unwrap()
                .set_modified(long_ago)
                .unwrap();
        }
        Staged::find(dir.path(), wanted.id()).unwrap();
        one(dir.path());
        assert!(!left.dir().exists() && wanted.dir().exists());
    }
}
