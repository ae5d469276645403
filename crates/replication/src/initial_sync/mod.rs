//! Initial sync: a member that lacks entries which the primary's log has no more gets the files of a
//! checkpoint, and the log from there.
//!
//! ```text
//! primary   a member lacks what no log has ─► invites it (a message)
//! member    receive: begin ─► Offer ─► parts of files ─► side directory, on disk ─► COMPLETE ─► starts again
//! source    Copies: a checkpoint of its own files, kept while it is read
//! ```
//!
//! - [`source`]: the side that has the files.
//! - [`receive`]: the side that wants them.
//!
//! Invariants:
//! - A checkpoint holds only entries that a majority has: flushes wait for the commit point.
//! - A member that took entries from a primary while it copied drops the copy: what it told a primary
//!   that it has it must keep.

pub mod receive;
pub mod source;

use bson::{Doc, DocBuf, ObjectId, Writer};
use errors::Fallible;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Files are read and checked in parts of so many bytes.
pub const PART_BYTES: u64 = 4 << 20;

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyFile {
    pub name: String,
    pub bytes: u64,
}

/// A checkpoint that a member may copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    pub id: ObjectId,
    /// [`storage::DATA_FORMAT`] of the files.
    pub format: u32,
    /// Names the database that the files are of. Files of one database with one name are the same.
    pub identity: String,
    /// The last entry that is in the files for sure, and its term.
    pub index: u64,
    pub term: u64,
    pub config: DocBuf,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    pub files: Vec<CopyFile>,
}

impl Offer {
    pub fn to_doc(&self) -> DocBuf {
        let mut w = Writer::new();
        w.oid("id", self.id)
            .int("format", i64::from(self.format))
            .str("identity", &self.identity)
            .i64("index", self.index as i64)
            .i64("term", self.term as i64)
            .doc("config", self.config.as_doc());
        for (name, ids) in [("voters", &self.voters), ("learners", &self.learners)] {
            w.open_array(name);
            for id in ids {
                w.push_value(*id as i64);
            }
            w.close();
        }
        w.open_array("files");
        for file in &self.files {
            w.open_doc("")
                .str("name", &file.name)
                .i64("bytes", file.bytes as i64)
                .close();
        }
        w.close();
        w.finish()
    }

    /// `None` where the document is none, or names a file that is not one of a directory.
    pub fn from_doc(d: Doc<'_>) -> Option<Offer> {
        let number = |d: Doc<'_>, name: &str| u64::try_from(d.get(name)?.to_i64_exact()?).ok();
        let ids = |name: &str| {
            let array = d.get(name)?.as_array()?;
            let ids = array
                .values()
                .map(|v| u64::try_from(v.to_i64_exact()?).ok());
            ids.collect::<Option<Vec<u64>>>()
        };
        let files = d.get("files")?.as_array()?.values().map(|v| {
            let file = v.as_doc()?;
            let name = file.get("name")?.as_str()?;
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            let is_file = name.bytes().all(plain) && name.bytes().any(|b| b != b'.');
            is_file.then_some(())?;
            Some(CopyFile {
                name: name.into(),
                bytes: number(file, "bytes")?,
            })
        });
        Some(Offer {
            id: d.get("id")?.as_oid()?,
            format: u32::try_from(number(d, "format")?).ok()?,
            identity: d.get("identity")?.as_str()?.into(),
            index: number(d, "index")?,
            term: number(d, "term")?,
            config: d.get("config")?.as_doc()?.to_buf(),
            voters: ids("voters")?,
            learners: ids("learners")?,
            files: files.collect::<Option<_>>()?,
        })
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.bytes).sum()
    }
}

/// A part of a file, where it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart<'a> {
    /// Empty where only the checksum was asked for.
    pub bytes: &'a [u8],
    pub about: AboutPart,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AboutPart {
    /// CRC-32C of the part.
    pub checksum: u32,
    /// How long the recipient is to wait before it asks again.
    pub wait: Duration,
}

/// A member that has files, as the recipient reaches it.
pub trait SyncSource: Send {
    /// A checkpoint; the one with this number, where it is still there.
    fn begin(&mut self, known: Option<ObjectId>) -> Fallible<Offer>;
    /// A part of a file, or its checksum alone.
    fn read(
        &mut self,
        id: ObjectId,
        file: &str,
        offset: u64,
        whole: bool,
    ) -> Fallible<FilePart<'_>>;
    fn end(&mut self, id: ObjectId) -> Fallible<()>;
}

/// The progress of this member's initial sync.
#[derive(Default)]
pub struct InitialSyncProgress {
    /// The thread that receives is to end.
    stop: AtomicBool,
    attempts: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    /// Received, and found in place.
    copied: AtomicU64,
    kept: AtomicU64,
    files: AtomicU64,
    files_done: AtomicU64,
    about: Mutex<About>,
}

#[derive(Clone, Debug, Default)]
struct About {
    began: Option<Instant>,
    source: String,
    failure: Option<String>,
}

/// [`InitialSyncProgress`] at a moment.
#[derive(Clone, Debug, Default)]
pub struct ProgressReport {
    pub attempts: u64,
    pub failed: u64,
    pub bytes: u64,
    pub copied: u64,
    pub kept: u64,
    pub files: u64,
    pub files_done: u64,
    pub elapsed: Duration,
    pub source: String,
    pub failure: Option<String>,
}

impl InitialSyncProgress {
    pub fn report(&self) -> ProgressReport {
        let about = self.about.lock().clone();
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        ProgressReport {
            attempts: get(&self.attempts),
            failed: get(&self.failed),
            bytes: get(&self.bytes),
            copied: get(&self.copied),
            kept: get(&self.kept),
            files: get(&self.files),
            files_done: get(&self.files_done),
            elapsed: about.began.map_or(Duration::ZERO, |at| at.elapsed()),
            source: about.source,
            failure: about.failure,
        }
    }

    /// An attempt begins.
    pub(crate) fn attempt(&self, source: &str) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.stop.store(false, Ordering::Relaxed);
        for n in [&self.copied, &self.kept, &self.files_done] {
            n.store(0, Ordering::Relaxed);
        }
        let mut about = self.about.lock();
        about.began.get_or_insert_with(Instant::now);
        about.source = source.into();
    }

    pub(crate) fn failed(&self, why: &str) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.about.lock().failure = Some(why.into());
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(file: &str) -> Offer {
        Offer {
            id: ObjectId([1; 12]),
            format: 4,
            identity: "x".into(),
            index: 7,
            term: 2,
            config: DocBuf::default(),
            voters: vec![1],
            learners: vec![2, 3],
            files: vec![CopyFile {
                name: file.into(),
                bytes: 9,
            }],
        }
    }

    #[test]
    fn an_offer_comes_back_and_names_only_files_of_its_directory() {
        let good = offer("000012.sst");
        assert_eq!(Offer::from_doc(good.to_doc().as_doc()), Some(good));
        for name in ["../x", "a/b", "..", "", "/etc/passwd"] {
            assert_eq!(
                Offer::from_doc(offer(name).to_doc().as_doc()),
                None,
                "{name}"
            );
        }
    }
}
