//! Checkpoints that other members copy.
//!
//! Invariants:
//! - A checkpoint is kept while it is read, and goes when its reader has not been heard of for a while.
//!   It shares the data files; what it costs is what merging would have freed meanwhile.
//! - While there is one, the log is not trimmed past it: a member that has copied it finds the log from
//!   there.
//! - Only files of the checkpoint are read, whatever name is asked for.
//! - The files are sent decrypted: the recipient encrypts them with a key of its own, or not.

use super::{AboutPart, CopyFile, Offer, PART_BYTES};
use crate::driver::Status;
use bson::ObjectId;
use errors::{Error, Fallible, err};
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use storage::at_rest::{DataFile, DataFiles};
use storage::{Offline, Store};

/// Where checkpoints lie in the data directory.
const DIR: &str = "initial-sync-source";
/// How long after a copy the log is kept for its member, unless that has caught up before.
const CATCH_UP: Duration = Duration::from_secs(600);

struct Checkpoint {
    /// The member that copies it.
    member: u64,
    dir: PathBuf,
    offer: Offer,
    begun: Instant,
    touched: Instant,
    read_bytes: u64,
    /// When it was copied to the end, and where the log ended then.
    ended: Option<(Instant, u64)>,
}

pub struct Copies {
    store: Weak<Store>,
    dir: PathBuf,
    /// Where the database says which it is.
    identity: PathBuf,
    /// The base of the own log: its last entry's index and term before the first.
    base: Option<(u64, u64)>,
    made: Mutex<Vec<Checkpoint>>,
    /// Held while one is made.
    making: Mutex<()>,
}

fn failed(what: &str, path: &Path, e: &std::io::Error) -> Error {
    err!(FileStreamFailed, "cannot {what} {}: {e}", path.display())
}

/// Appends `len` bytes of a file to `out`, which is not cleared before.
fn append_part(file: &DataFile, offset: u64, len: u64, out: &mut Vec<u8>) -> std::io::Result<()> {
    let len = usize::try_from(len).unwrap_or(0);
    // Room for the end of the reply too.
    out.reserve_exact(len + 256);
    let start = out.len();
    out.resize(start + len, 0);
    let part = out.get_mut(start..).unwrap_or_default();
    file.read_exact_at(part, offset)
}

/// All of a small file.
fn text_of(files: &DataFiles, path: &Path) -> std::io::Result<String> {
    let file = files.open(path)?;
    let mut bytes = Vec::new();
    append_part(&file, 0, file.bytes()?, &mut bytes)?;
    String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into())
}

impl Copies {
    /// What a process that was killed left is removed.
    pub fn new(store: &Arc<Store>, data_dir: &Path, base: Option<(u64, u64)>) -> Copies {
        let dir = data_dir.join(DIR);
        let _ = std::fs::remove_dir_all(&dir);
        Copies {
            store: Arc::downgrade(store),
            dir,
            identity: data_dir.join("engine").join("IDENTITY"),
            base,
            made: Mutex::default(),
            making: Mutex::default(),
        }
    }

    fn store(&self) -> Fallible<Arc<Store>> {
        let gone = || err!(InterruptedAtShutdown, "the store is closed");
        self.store.upgrade().ok_or_else(gone)
    }

    /// A checkpoint for a member: the one that it knows, or a new one. It names the voters of its
    /// entries: where they change while it is made the copier has to ask again.
    pub fn begin(
        &self,
        member: u64,
        known: Option<ObjectId>,
        status: impl Fn() -> Arc<Status>,
    ) -> Fallible<Offer> {
        let _making = self.making.lock();
        {
            let mut made = self.made.lock();
            let there = made
                .iter_mut()
                .find(|c| c.member == member && Some(c.offer.id) == known && c.ended.is_none());
            if let Some(there) = there {
                there.touched = Instant::now();
                return Ok(there.offer.clone());
            }
        }
        self.forget(|c| c.member == member);
        let store = self.store()?;
        let before = status();
        let config = before.config.as_ref().filter(|_| before.id != 0);
        let config =
            config.ok_or_else(|| err!(NotYetInitialized, "no replset config has been received"))?;
        store.hold_log(store.first_log_index());
        let id = ObjectId::generate();
        let dir = self.dir.join(id.to_string());
        let offer = self.make(&store, &dir, id).and_then(|offer| {
            let after = status();
            let of = |s: &Status| (s.voters.clone(), s.learners.clone(), s.config.clone());
            if of(&before) != of(&after) {
                let _ = std::fs::remove_dir_all(&dir);
                return Err(err!(
                    InterruptedDueToReplStateChange,
                    "the members of the set changed meanwhile: begin again"
                ));
            }
            Ok(Offer {
                config: config.to_doc(),
                voters: before.voters.clone(),
                learners: before.learners.clone(),
                ..offer
            })
        });
        if let Ok(offer) = &offer {
            let now = Instant::now();
            self.made.lock().push(Checkpoint {
                member,
                dir,
                offer: offer.clone(),
                begun: now,
                touched: now,
                read_bytes: 0,
                ended: None,
            });
            tracing::info!(target: "REPL", member, index = offer.index, bytes = offer.bytes(), "A member copies a checkpoint");
        }
        self.hold();
        offer
    }

    fn make(&self, store: &Store, dir: &Path, id: ObjectId) -> Fallible<Offer> {
        std::fs::create_dir_all(&self.dir).map_err(|e| failed("make", &self.dir, &e))?;
        store.checkpoint(dir)?;
        let offer = self.describe(store, dir, id);
        if offer.is_err() {
            let _ = std::fs::remove_dir_all(dir);
        }
        offer
    }

    fn describe(&self, store: &Store, dir: &Path, id: ObjectId) -> Fallible<Offer> {
        let index = Offline::open(dir)?.applied().index;
        let engine = dir.join("engine");
        let data = store.engine_files();
        let mut files = Vec::new();
        let entries = std::fs::read_dir(&engine).map_err(|e| failed("read", &engine, &e))?;
        for entry in entries {
            let entry = entry.map_err(|e| failed("read", &engine, &e))?;
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_book = name == "LOCK" || (name.starts_with("LOG") && data.is_encrypted());
            if path.is_file() && !is_book {
                let bytes = data.open(&path).and_then(|file| file.bytes());
                let bytes = bytes.map_err(|e| failed("read", &path, &e))?;
                files.push(CopyFile { name, bytes });
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let identity = self.identity.clone();
        let identity = text_of(&data, &identity).map_err(|e| failed("read", &identity, &e))?;
        Ok(Offer {
            id,
            format: store.data_format(),
            identity: identity.trim().into(),
            index,
            term: self.term_of(store, index)?,
            config: Default::default(),
            voters: Vec::new(),
            learners: Vec::new(),
            files,
        })
    }

    fn term_of(&self, store: &Store, index: u64) -> Fallible<u64> {
        if let Some((base, term)) = self.base
            && base == index
        {
            return Ok(term);
        }
        let mut reader = store.read_log(index)?;
        let record = reader.next()?;
        let record = record.filter(|r| r.index == index);
        let record =
            record.ok_or_else(|| Error::internal(format!("entry {index} is not in the log")))?;
        Ok(record.term.max(crate::log_view::FIRST_TERM))
    }

    /// Appends a part of a file to `out`. `rate`: bytes a second that the reader may have; 0 for all
    /// that it can take.
    pub fn read(
        &self,
        id: ObjectId,
        name: &str,
        offset: u64,
        rate: u64,
        out: &mut Vec<u8>,
    ) -> Fallible<AboutPart> {
        let gone = || err!(NoSuchKey, "there is no such file to copy: begin again");
        let (path, len) = {
            let mut made = self.made.lock();
            let copy = made
                .iter_mut()
                .find(|c| c.offer.id == id)
                .ok_or_else(gone)?;
            copy.touched = Instant::now();
            let file = copy
                .offer
                .files
                .iter()
                .find(|f| f.name == name)
                .ok_or_else(gone)?;
            let len = file.bytes.saturating_sub(offset).min(PART_BYTES);
            (copy.dir.join("engine").join(&file.name), len)
        };
        let start = out.len();
        let files = self.store()?.engine_files();
        let appended = files
            .open(&path)
            .and_then(|file| append_part(&file, offset, len, out));
        appended.map_err(|e| failed("read", &path, &e))?;
        let checksum = crc32c::crc32c(&out[start..]);
        let mut made = self.made.lock();
        let copy = made
            .iter_mut()
            .find(|c| c.offer.id == id)
            .ok_or_else(gone)?;
        copy.read_bytes += len;
        let due = match rate {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(copy.read_bytes as f64 / rate as f64),
        };
        let wait = due.saturating_sub(copy.begun.elapsed());
        // Its patience begins when it may ask again.
        copy.touched = Instant::now() + wait;
        Ok(AboutPart { checksum, wait })
    }

    /// The reader has all: the files go, and the log is kept until it has caught up.
    pub fn end(&self, id: ObjectId) {
        let end = self.store().map_or(0, |s| s.log_end());
        let mut made = self.made.lock();
        if let Some(copy) = made.iter_mut().find(|c| c.offer.id == id) {
            let _ = std::fs::remove_dir_all(&copy.dir);
            copy.ended.get_or_insert((Instant::now(), end));
        }
    }

    /// Removes checkpoints that were not read for `patience`, and ends the leases of members that have
    /// caught up.
    pub fn sweep(&self, patience: Duration, status: &Status) {
        if self.made.lock().is_empty() {
            return;
        }
        let reached = |member: u64| {
            let progress = status.progress.iter().find(|p| p.0 == member);
            progress.map_or(0, |p| p.1)
        };
        self.forget(|c| match c.ended {
            Some((at, end)) => at.elapsed() > CATCH_UP || reached(c.member) >= end,
            None => c.touched.elapsed() > patience,
        });
    }

    /// Whether a member copies files from here now.
    pub fn serves(&self, member: u64) -> bool {
        self.made
            .lock()
            .iter()
            .any(|c| c.member == member && c.ended.is_none())
    }

    fn forget(&self, which: impl Fn(&Checkpoint) -> bool) {
        let mut made = self.made.lock();
        made.retain(|c| {
            let goes = which(c);
            if goes {
                let _ = std::fs::remove_dir_all(&c.dir);
            }
            !goes
        });
        drop(made);
        self.hold();
    }

    /// Keeps the log from the oldest checkpoint on.
    fn hold(&self) {
        let oldest = self.made.lock().iter().map(|c| c.offer.index).min();
        if let Ok(store) = self.store() {
            store.hold_log(oldest.unwrap_or(u64::MAX));
        }
    }
}
