//! An in-memory file system that fails on demand and can lose power. After a loss of power some sectors
//! of the unsynced bytes are kept.

use oplog::{FileSystem, LogFile};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What fails from now on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Bytes that can still be written; a write that does not fit is cut, the next gets ENOSPC.
    pub space: Option<usize>,
    pub sync: bool,
    pub truncate: bool,
    pub sync_dir: bool,
    /// The number of files that can still be removed.
    pub removals: Option<usize>,
}

enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
    Reserve(usize),
}

#[derive(Default)]
struct Contents {
    seen: Vec<u8>,
    synced: Vec<u8>,
    since: Vec<Change>,
    forgotten: u64,
}

type File = Arc<Mutex<Contents>>;

#[derive(Default)]
struct State {
    faults: Faults,
    syncs: usize,
    writes: usize,
    files: BTreeMap<PathBuf, File>,
    synced_names: BTreeMap<PathBuf, File>,
}

#[derive(Clone, Default)]
pub struct FaultyDisk(Arc<Mutex<State>>);

struct OpenFile(File, FaultyDisk);

impl Change {
    fn apply(&self, data: &mut Vec<u8>, mut sector_kept: impl FnMut() -> bool) {
        match self {
            Change::Truncate(len) => {
                if sector_kept() {
                    data.resize(*len, 0);
                }
            }
            Change::Reserve(len) => {
                if sector_kept() && data.len() < *len {
                    data.resize(*len, 0);
                }
            }
            Change::Write(at, bytes) => {
                let mut at = *at;
                for sector in bytes.chunks(64) {
                    if sector_kept() {
                        if data.len() < at + sector.len() {
                            data.resize(at + sector.len(), 0);
                        }
                        data[at..at + sector.len()].copy_from_slice(sector);
                    }
                    at += sector.len();
                }
            }
        }
    }
}

impl FaultyDisk {
    pub fn set(&self, faults: Faults) {
        self.0.lock().unwrap().faults = faults;
    }

    pub fn syncs(&self) -> usize {
        self.0.lock().unwrap().syncs
    }

    pub fn writes(&self) -> usize {
        self.0.lock().unwrap().writes
    }

    pub fn names(&self) -> Vec<PathBuf> {
        self.0.lock().unwrap().files.keys().cloned().collect()
    }

    /// Up to which offset the page cache may drop a file.
    pub fn forgotten(&self, path: &Path) -> u64 {
        self.0.lock().unwrap().files[path].lock().unwrap().forgotten
    }

    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        self.0.lock().unwrap().files[path]
            .lock()
            .unwrap()
            .seen
            .clone()
    }

    /// Replaces a file's bytes, as if they had always been so.
    pub fn put(&self, path: &Path, bytes: Vec<u8>) {
        let contents = Contents {
            synced: bytes.clone(),
            seen: bytes,
            ..Contents::default()
        };
        let file = Arc::new(Mutex::new(contents));
        let mut state = self.0.lock().unwrap();
        state.files.insert(path.into(), file.clone());
        state.synced_names.insert(path.into(), file);
    }

    /// A copy of the disk as a killed process leaves it.
    pub fn copy(&self) -> FaultyDisk {
        let copy = FaultyDisk::default();
        for path in self.names() {
            copy.put(&path, self.bytes(&path));
        }
        copy
    }

    /// The disk after a loss of power.
    pub fn lose_power(&self, rng: &mut StdRng) -> FaultyDisk {
        let copy = FaultyDisk::default();
        let state = self.0.lock().unwrap();
        let kept = rng.random_range(0.0..=1.0);
        for (path, file) in &state.files {
            if !state.synced_names.contains_key(path) && rng.random_bool(0.5) {
                continue;
            }
            let file = file.lock().unwrap();
            let mut data = file.synced.clone();
            for change in &file.since {
                change.apply(&mut data, || rng.random_bool(kept));
            }
            copy.put(path, data);
        }
        for (path, file) in &state.synced_names {
            // A removal that was not synced may not have happened.
            if !state.files.contains_key(path) && rng.random_bool(0.5) {
                copy.put(path, file.lock().unwrap().synced.clone());
            }
        }
        copy
    }
}

fn error(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

impl FileSystem for FaultyDisk {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        let name = |p: PathBuf| p.file_name().unwrap().to_str().unwrap().to_string();
        Ok(self.names().into_iter().map(name).collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        let mut state = self.0.lock().unwrap();
        if state.faults.space == Some(0) {
            return Err(error(libc::ENOSPC));
        }
        let file = File::default();
        state.files.insert(path.into(), file.clone());
        Ok(Arc::new(OpenFile(file, self.clone())))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        let state = self.0.lock().unwrap();
        let file = state.files.get(path).ok_or_else(|| error(libc::ENOENT))?;
        Ok(Arc::new(OpenFile(file.clone(), self.clone())))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        match &mut state.faults.removals {
            None => {}
            Some(0) => return Err(error(libc::EIO)),
            Some(left) => *left -= 1,
        }
        let removed = state.files.remove(path);
        removed.map(|_| ()).ok_or_else(|| error(libc::ENOENT))
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.faults.sync_dir {
            return Err(error(libc::EIO));
        }
        state.synced_names = state.files.clone();
        Ok(())
    }
}

impl LogFile for OpenFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().seen.len() as u64)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut state = self.1.0.lock().unwrap();
        state.writes += 1;
        let n = match &mut state.faults.space {
            None => buf.len(),
            Some(0) => return Err(error(libc::ENOSPC)),
            Some(space) => {
                let n = buf.len().min(*space);
                *space -= n;
                n
            }
        };
        drop(state);
        let change = Change::Write(offset as usize, buf[..n].to_vec());
        let mut file = self.0.lock().unwrap();
        change.apply(&mut file.seen, || true);
        file.since.push(change);
        Ok(n)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.0.lock().unwrap();
        let rest = file.seen.get(offset as usize..).unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        if self.1.0.lock().unwrap().faults.truncate {
            return Err(error(libc::EIO));
        }
        let mut file = self.0.lock().unwrap();
        file.seen.resize(len as usize, 0);
        file.since.push(Change::Truncate(len as usize));
        Ok(())
    }

    fn reserve(&self, _: u64, to: u64) -> bool {
        if self.1.0.lock().unwrap().faults.space.is_some() {
            return false;
        }
        let mut file = self.0.lock().unwrap();
        let change = Change::Reserve(to as usize);
        change.apply(&mut file.seen, || true);
        file.since.push(change);
        true
    }

    fn sync_data(&self) -> io::Result<()> {
        // A write during the sync is not part of it.
        let (seen, changes) = {
            let file = self.0.lock().unwrap();
            (file.seen.clone(), file.since.len())
        };
        std::thread::yield_now();
        let mut state = self.1.0.lock().unwrap();
        state.syncs += 1;
        let mut file = self.0.lock().unwrap();
        if state.faults.sync {
            // As on Linux: the pages that could not be written are dropped, and the next sync
            // succeeds.
            state.faults.sync = false;
            file.since.drain(..changes);
            return Err(error(libc::EIO));
        }
        file.synced = seen;
        file.since.drain(..changes);
        Ok(())
    }

    fn forget(&self, len: u64) {
        self.0.lock().unwrap().forgotten = len;
    }
}
