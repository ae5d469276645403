//! The side that wants files: from an offer to a directory that the next start opens.
//!
//! ```text
//! initial-sync/OFFER      what was being copied
//!              engine/…   the files; parts that are there are checked and kept
//!              COMPLETE   the offer again, when all is on disk
//! ```
//!
//! Invariants:
//! - Every part was compared with its checksum at the source, also one that an attempt before left.
//! - COMPLETE appears whole, after everything else is on disk.
//! - The first failure ends all lines; what they have is kept for the next attempt.
//! - In an encrypted directory the files are encrypted as they come. Nothing is written over with other content there:
//!   a file that differs begins anew, under another key.

use super::{CopyFile, InitialSyncProgress, Offer, PART_BYTES, SyncSource};
use crate::config::Config;
use crate::state_file;
use errors::{Error, Fallible, err};
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use storage::at_rest::{self, DataFile, DataFiles};
use storage::received_copy::{COMPLETE, DIR, KEEPS_LOG};

const OFFER: &str = "OFFER";
/// It is not waited longer before the next part, whatever the source says.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How often a part that arrives broken is asked for again.
const TRIES: usize = 3;

/// Ends for a reason of the disk's.
fn failed(what: &str, path: &Path, e: &std::io::Error) -> Error {
    match e.kind() {
        ErrorKind::StorageFull => err!(OutOfDiskSpace, "no space left for {}", path.display()),
        _ => err!(FileStreamFailed, "cannot {what} {}: {e}", path.display()),
    }
}

fn load(path: &Path) -> Option<Offer> {
    let bytes = fs::read(path).ok()?;
    Offer::from_doc(bson::validate(&bytes).ok()?)
}

fn save(dir: &Path, name: &str, offer: &Offer) -> Fallible<()> {
    let beside = dir.join(format!("{name}.new"));
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(offer.to_doc().as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, dir.join(name))?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|e| failed("write", &beside, &e))
}

/// Files come over so many lines at once: while one file is sent to disk others arrive.
pub const LINES: usize = 3;

/// Copies all files of a checkpoint beside those of the data directory, over several lines to one
/// source. They are on disk when it returns, and nothing says yet that they are to be used
/// ([`complete`]).
pub fn receive(
    source: &mut dyn SyncSource,
    more: &mut [Box<dyn SyncSource>],
    data_dir: &Path,
    progress: &InitialSyncProgress,
) -> Fallible<Offer> {
    let dir = data_dir.join(DIR);
    let before = load(&dir.join(OFFER));
    let offer = source.begin(before.as_ref().map(|o| o.id))?;
    if offer.format > storage::DATA_FORMAT {
        return Err(err!(
            IncompatibleServerVersion,
            "the files of that member have data format {}, and this program reads up to format {}: install the release that it has",
            offer.format,
            storage::DATA_FORMAT
        ));
    }
    let engine = dir.join("engine");
    if before.is_some_and(|b| b.identity != offer.identity) {
        // Of another database: files of one name would be others.
        fs::remove_dir_all(&dir).map_err(|e| failed("remove", &dir, &e))?;
    }
    fs::create_dir_all(&engine).map_err(|e| failed("make", &engine, &e))?;
    let own = at_rest::files_of(data_dir)?;
    at_rest::prepare_copy(&own, data_dir, &dir)?;
    save(&dir, OFFER, &offer)?;
    remove_others(&engine, &offer)?;
    progress.bytes.store(offer.bytes(), Ordering::Relaxed);
    progress
        .files
        .store(offer.files.len() as u64, Ordering::Relaxed);
    let files = Files::new(&offer, &engine, own);
    std::thread::scope(|scope| {
        for line in more.iter_mut() {
            scope.spawn(|| files.copy(&mut **line, progress));
        }
        files.copy(source, progress);
    });
    files.outcome()?;
    let synced = File::open(&engine).and_then(|d| d.sync_all());
    synced.map_err(|e| failed("sync", &engine, &e))?;
    Ok(offer)
}

/// Removes files that are not of the offer.
fn remove_others(engine: &Path, offer: &Offer) -> Fallible<()> {
    let entries = fs::read_dir(engine).map_err(|e| failed("read", engine, &e))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !offer.files.iter().any(|f| *f.name == *name) {
            fs::remove_file(entry.path()).map_err(|e| failed("remove", &entry.path(), &e))?;
        }
    }
    Ok(())
}

/// The files of an offer, for several lines that take one after the other.
struct Files<'a> {
    offer: &'a Offer,
    engine: &'a Path,
    own: DataFiles,
    /// The largest last, from where they are taken.
    waiting: Mutex<Vec<&'a CopyFile>>,
    failure: Mutex<Option<Error>>,
}

impl<'a> Files<'a> {
    fn new(offer: &'a Offer, engine: &'a Path, own: DataFiles) -> Files<'a> {
        let mut waiting: Vec<_> = offer.files.iter().collect();
        waiting.sort_by_key(|file| file.bytes);
        Files {
            offer,
            engine,
            own,
            waiting: Mutex::new(waiting),
            failure: Mutex::default(),
        }
    }

    /// Copies files until none waits, or a line has failed.
    fn copy(&self, source: &mut dyn SyncSource, progress: &InitialSyncProgress) {
        while let Some(file) = self.next() {
            let copy = FileCopy {
                id: self.offer.id,
                name: &file.name,
                bytes: file.bytes,
                path: self.engine.join(&file.name),
                own: &self.own,
            };
            match copy.run(source, progress, || self.failure.lock().is_some()) {
                Ok(()) => progress.files_done.fetch_add(1, Ordering::Relaxed),
                Err(e) => {
                    self.failure.lock().get_or_insert(e);
                    return;
                }
            };
        }
    }

    fn next(&self) -> Option<&'a CopyFile> {
        let failed = self.failure.lock().is_some();
        (!failed).then(|| self.waiting.lock().pop()).flatten()
    }

    fn outcome(self) -> Fallible<()> {
        if let Some(e) = self.failure.into_inner() {
            return Err(e);
        }
        let waiting = self.waiting.into_inner().len();
        assert_eq!(waiting, 0, "a copy without a failure has all files");
        Ok(())
    }
}

struct FileCopy<'a> {
    id: bson::ObjectId,
    name: &'a str,
    bytes: u64,
    path: PathBuf,
    own: &'a DataFiles,
}

impl FileCopy<'_> {
    /// `ends`: whether another line has failed.
    fn run(
        &self,
        source: &mut dyn SyncSource,
        progress: &InitialSyncProgress,
        ends: impl Fn() -> bool,
    ) -> Fallible<()> {
        let (mut file, mut there) = self.open()?;
        let mut offset = 0;
        while offset < self.bytes {
            if progress.stop.load(Ordering::Relaxed) || ends() {
                return Err(err!(Interrupted, "the initial sync was broken off"));
            }
            let len = (self.bytes - offset).min(PART_BYTES);
            let may_be_there = there >= offset + len;
            let keeps = may_be_there && self.is_there(&file, source, offset, len)?;
            if may_be_there && !keeps && self.own.is_encrypted() {
                (file, there) = (self.anew()?, 0);
                offset = 0;
                continue;
            }
            match keeps {
                true => progress.kept.fetch_add(len, Ordering::Relaxed),
                false => {
                    self.fetch(&file, source, offset, len)?;
                    progress.copied.fetch_add(len, Ordering::Relaxed)
                }
            };
            offset += len;
        }
        let finished = file.finish(self.bytes);
        finished.map_err(|e| failed("write", &self.path, &e))
    }

    /// The file, and how much of it is there. Files of data have one content for ever, the engine's books do not.
    fn open(&self) -> Fallible<(DataFile, u64)> {
        if self.own.is_encrypted() && !self.name.ends_with(".sst") {
            return Ok((self.anew()?, 0));
        }
        let file = self.own.open_to_write(&self.path);
        let file = file.map_err(|e| failed("open", &self.path, &e))?;
        let there = file.bytes().unwrap_or(0);
        Ok((file, there))
    }

    fn anew(&self) -> Fallible<DataFile> {
        let file = self.own.create(&self.path);
        file.map_err(|e| failed("open", &self.path, &e))
    }

    /// Whether the file has the source's bytes at that place.
    fn is_there(
        &self,
        file: &DataFile,
        source: &mut dyn SyncSource,
        offset: u64,
        len: u64,
    ) -> Fallible<bool> {
        let mut own = vec![0; usize::try_from(len).unwrap_or(0)];
        if file.read_exact_at(&mut own, offset).is_err() {
            return Ok(false);
        }
        let part = source.read(self.id, self.name, offset, false)?;
        Ok(part.about.checksum == crc32c::crc32c(&own))
    }

    fn fetch(
        &self,
        file: &DataFile,
        source: &mut dyn SyncSource,
        offset: u64,
        len: u64,
    ) -> Fallible<()> {
        for _ in 0..TRIES {
            let part = source.read(self.id, self.name, offset, true)?;
            std::thread::sleep(part.about.wait.min(LONGEST_WAIT));
            let is_whole = part.bytes.len() as u64 == len;
            if is_whole && part.about.checksum == crc32c::crc32c(part.bytes) {
                let written = file.write_all_at(part.bytes, offset);
                written.map_err(|e| failed("write", &self.path, &e))?;
                at_rest::send_to_disk(file, offset, len);
                return Ok(());
            }
        }
        Err(err!(
            FileStreamFailed,
            "the bytes of {} from {offset} on arrive with another checksum than they were sent with",
            self.name
        ))
    }
}

/// From now on a start opens the received files.
pub fn complete(data_dir: &Path, offer: &Offer) -> Fallible<()> {
    save(&data_dir.join(DIR), COMPLETE, offer)
}

/// To be said before [`complete`]: the member's own log goes on behind the files, and stays.
pub fn keep_log(data_dir: &Path) -> Fallible<()> {
    let path = data_dir.join(DIR).join(KEEPS_LOG);
    let made = File::create(&path).and_then(|f| f.sync_all());
    made.map_err(|e| failed("write", &path, &e))
}

/// Brings the member's state in line with files that were put in place when the data directory was
/// opened. Number, term and vote stay: they are promises.
pub fn adopt(data_dir: &Path) -> Fallible<()> {
    let dir = data_dir.join(DIR);
    let complete = dir.join(COMPLETE);
    if !complete.exists() {
        return Ok(());
    }
    let damaged = || err!(UnsupportedFormat, "{} is damaged", complete.display());
    let offer = load(&complete).ok_or_else(damaged)?;
    let keeps_log = dir.join(KEEPS_LOG).exists();
    if let Some(mut state) = state_file::load(data_dir)?
        && keeps_log
    {
        // The log has what else there is to know. The files hold only what a majority has.
        state.hard.commit = state.hard.commit.max(offer.index);
        state_file::save(data_dir, &state)?;
    } else if let Some(mut state) = state_file::load(data_dir)? {
        state.hard.commit = offer.index;
        state.hard.term = state.hard.term.max(offer.term);
        state.base = Some((offer.index, offer.term));
        state.voters.voters = offer.voters;
        state.voters.learners = offer.learners;
        state.config = Some(Config::parse(offer.config.as_doc(), None)?);
        state_file::save(data_dir, &state)?;
    }
    fs::remove_dir_all(&dir).map_err(|e| failed("remove", &dir, &e))?;
    tracing::info!(target: "REPL", index = offer.index, "Initial sync: the files of another member are in place");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{AboutPart, FilePart};
    use super::*;
    use bson::{DocBuf, ObjectId};

    /// A source of files in memory that fails after so many parts.
    #[derive(Clone)]
    struct Memory {
        files: Vec<(&'static str, Vec<u8>)>,
        identity: &'static str,
        parts: usize,
        sent: u64,
        bends: bool,
        part: Vec<u8>,
    }

    impl SyncSource for Memory {
        fn begin(&mut self, _: Option<ObjectId>) -> Fallible<Offer> {
            Ok(Offer {
                id: ObjectId([1; 12]),
                format: storage::DATA_FORMAT,
                identity: self.identity.into(),
                index: 5,
                term: 2,
                config: DocBuf::default(),
                voters: vec![1],
                learners: vec![],
                files: (self.files.iter())
                    .map(|(name, bytes)| CopyFile {
                        name: (*name).into(),
                        bytes: bytes.len() as u64,
                    })
                    .collect(),
            })
        }

        fn read(
            &mut self,
            _: ObjectId,
            name: &str,
            offset: u64,
            whole: bool,
        ) -> Fallible<FilePart<'_>> {
            let bytes = &self.files.iter().find(|f| f.0 == name).unwrap().1;
            let end = bytes.len().min(offset as usize + PART_BYTES as usize);
            let mut part = bytes[offset as usize..end].to_vec();
            let checksum = crc32c::crc32c(&part);
            if whole {
                self.parts = self
                    .parts
                    .checked_sub(1)
                    .ok_or_else(|| err!(HostUnreachable, "gone"))?;
                self.sent += part.len() as u64;
            } else {
                part.clear();
            }
            if self.bends && !part.is_empty() {
                part[0] ^= 1;
            }
            self.part = part;
            let wait = Duration::ZERO;
            Ok(FilePart {
                bytes: &self.part,
                about: AboutPart { checksum, wait },
            })
        }

        fn end(&mut self, _: ObjectId) -> Fallible<()> {
            Ok(())
        }
    }

    fn files(identity: &'static str, fill: u8) -> Memory {
        let large = vec![fill; PART_BYTES as usize * 2 + 100];
        Memory {
            files: vec![
                ("a.sst", large),
                ("b.sst", vec![fill; 10]),
                ("empty", vec![]),
            ],
            identity,
            parts: usize::MAX,
            sent: 0,
            bends: false,
            part: Vec::new(),
        }
    }

    #[test]
    fn a_copy_goes_on_where_it_was_broken_off_and_drops_files_of_another_database() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let progress = InitialSyncProgress::default();
        let mut source = files("one", 7);
        source.parts = 2;
        assert!(receive(&mut source, &mut [], dir, &progress).is_err());
        assert!(!dir.join(DIR).join(COMPLETE).exists());
        let total = 2 * PART_BYTES + 110;
        let mut source = files("one", 7);
        let offer = receive(&mut source, &mut [], dir, &progress).unwrap();
        assert_eq!(source.sent, total - 2 * PART_BYTES);
        assert_eq!(
            fs::read(dir.join(DIR).join("engine/a.sst")).unwrap(),
            source.files[0].1
        );
        let mut source = files("two", 8);
        receive(&mut source, &mut [], dir, &progress).unwrap();
        assert_eq!(source.sent, total, "nothing of another database is kept");
        complete(dir, &offer).unwrap();
        assert!(dir.join(DIR).join(COMPLETE).exists());
    }

    #[test]
    fn several_lines_share_the_files_and_one_failure_ends_all() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, progress) = (dir.path(), InitialSyncProgress::default());
        let mut source = files("one", 7);
        let mut others: Vec<Box<dyn SyncSource>> =
            vec![Box::new(source.clone()), Box::new(source.clone())];
        receive(&mut source, &mut others, dir, &progress).unwrap();
        for (name, bytes) in &source.files {
            let received = fs::read(dir.join(DIR).join("engine").join(name)).unwrap();
            assert_eq!(&received, bytes);
        }
        let mut broken = files("two", 8);
        broken.parts = 0;
        let mut others: Vec<Box<dyn SyncSource>> = vec![Box::new(broken.clone())];
        let outcome = receive(&mut broken, &mut others, dir, &progress);
        assert!(outcome.unwrap_err().message.contains("gone"));
    }

    #[test]
    fn bytes_that_were_bent_on_the_way_are_never_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = files("one", 7);
        source.bends = true;
        let failure = receive(
            &mut source,
            &mut [],
            dir.path(),
            &InitialSyncProgress::default(),
        )
        .unwrap_err();
        assert!(failure.message.contains("checksum"), "{failure}");
    }
}
