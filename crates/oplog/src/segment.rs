//! Segment files: names, creation, and the list of the segments that are kept.

use crate::error::{Error, Result};
use crate::file::{LogFile, read_full_at, write_all_at};
use crate::frame::{FLAG_SEALED, HEADER_BYTES, Header, VERSION};
use crate::lease::MOST_WINDOWS;
use crate::reader::{Frames, Step};
use crate::{LogOptions, Shared};
use encryption::EntryCipher;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub(crate) struct Segment {
    pub first_index: u64,
    pub path: PathBuf,
    pub file: Arc<dyn LogFile>,
    /// Seals its entries, in a log that is encrypted.
    pub cipher: Option<Arc<EntryCipher>>,
    /// The timestamp of the first entry; 0 while there is none, or before it has been read.
    pub first_ts: AtomicU64,
    /// Where its entries end, as far as that is known: the file may have reserved space behind them.
    /// Readers go no further, since what they took from there could be written meanwhile.
    pub bytes: Arc<AtomicU64>,
}

pub(crate) fn file_name(first_index: u64) -> String {
    format!("{first_index:020}.log")
}

/// The first index, from a segment's file name; `None` for other files.
pub(crate) fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    (digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())
        .flatten()
}

impl Segment {
    /// Creates the file and writes its header. After an error no file is left. Syncs neither file
    /// nor directory.
    pub fn create(opts: &LogOptions, header: Header) -> Result<Arc<Segment>> {
        let first_index = header.first_index;
        let cipher = cipher(opts, first_index);
        let header = Header {
            flags: header.flags | if cipher.is_some() { FLAG_SEALED } else { 0 },
            ..header
        };
        let path = opts.dir.join(file_name(first_index));
        let fail = |e: &std::io::Error| Error::io(format!("cannot create {}", path.display()), e);
        let file = opts.file_system.create(&path).map_err(|e| fail(&e))?;
        if let Err(e) = write_all_at(&*file, &header.encode(), 0) {
            // Recovery drops a segment with a partial header, so a removal that fails does no harm.
            let _ = opts.file_system.remove(&path);
            return Err(fail(&e));
        }
        Ok(Arc::new(Segment {
            first_index,
            path,
            file,
            cipher,
            first_ts: AtomicU64::new(0),
            bytes: Arc::new(AtomicU64::new(HEADER_BYTES as u64)),
        }))
    }

    /// The timestamp of its first entry, read from the file when it is not known yet; 0 when there
    /// is none.
    pub fn first_ts(self: &Arc<Segment>) -> u64 {
        let known = self.first_ts.load(Ordering::Relaxed);
        if known > 0 {
            return known;
        }
        let Ok(Step::Frame(first)) = Frames::new(self).next() else {
            return 0;
        };
        self.first_ts.store(first.stamp.ts, Ordering::Relaxed);
        first.stamp.ts
    }

    /// Opens an existing file. `Ok(None)` when its header is incomplete.
    pub fn open(
        opts: &LogOptions,
        path: &Path,
        first_index: u64,
    ) -> Result<Option<(Arc<Segment>, Header)>> {
        Segment::opened(opts, opts.file_system.open(path), path, first_index)
    }

    /// As [`Segment::open`], read-only.
    pub fn open_to_read(
        opts: &LogOptions,
        path: &Path,
        first_index: u64,
    ) -> Result<Option<(Arc<Segment>, Header)>> {
        Segment::opened(opts, opts.file_system.open_to_read(path), path, first_index)
    }

    /// Opens a file whose header is damaged, to read the frames behind the header. The file name
    /// gives the first index.
    pub fn open_headless(opts: &LogOptions, path: &Path, first_index: u64) -> Result<Arc<Segment>> {
        let fail = |e: &std::io::Error| Error::io(format!("cannot read {}", path.display()), e);
        let file = opts.file_system.open_to_read(path).map_err(|e| fail(&e))?;
        let bytes = file.len().map_err(|e| fail(&e))?;
        Ok(Arc::new(Segment {
            first_index,
            path: path.to_path_buf(),
            file,
            cipher: cipher(opts, first_index),
            first_ts: AtomicU64::new(0),
            bytes: Arc::new(AtomicU64::new(bytes)),
        }))
    }

    fn opened(
        opts: &LogOptions,
        file: std::io::Result<Arc<dyn LogFile>>,
        path: &Path,
        first_index: u64,
    ) -> Result<Option<(Arc<Segment>, Header)>> {
        let fail = |e: &std::io::Error| Error::io(format!("cannot read {}", path.display()), e);
        let file = file.map_err(|e| fail(&e))?;
        let mut head = [0; HEADER_BYTES];
        let n = read_full_at(&*file, &mut head, 0).map_err(|e| fail(&e))?;
        let head = head.get(..n).unwrap_or(&head);
        let Some(header) = Header::decode(head) else {
            return match Header::other_version(head) {
                Some(version) => Err(Error::Version {
                    segment: path.to_path_buf(),
                    version,
                }),
                None => Ok(None),
            };
        };
        if header.version != VERSION {
            return Err(Error::Version {
                segment: path.to_path_buf(),
                version: header.version,
            });
        }
        if header.first_index != first_index {
            return Err(Error::Corrupt {
                segment: path.to_path_buf(),
                offset: 16,
                index: first_index,
                why: format!(
                    "the file's header says that it begins at {}",
                    header.first_index
                ),
            });
        }
        let is_sealed = header.flags & FLAG_SEALED != 0;
        if is_sealed != opts.key.is_some() {
            return Err(Error::Encryption {
                segment: path.to_path_buf(),
                is_sealed,
            });
        }
        let bytes = file.len().map_err(|e| fail(&e))?;
        let segment = Segment {
            first_index,
            path: path.to_path_buf(),
            file,
            cipher: cipher(opts, first_index),
            first_ts: AtomicU64::new(0),
            bytes: Arc::new(AtomicU64::new(bytes)),
        };
        Ok(Some((Arc::new(segment), header)))
    }
}

fn cipher(opts: &LogOptions, first_index: u64) -> Option<Arc<EntryCipher>> {
    let key = opts.key.as_ref()?;
    Some(Arc::new(key.of_segment(first_index)))
}

/// All kept segments, oldest first. The last one is open for appending.
pub(crate) struct Segments {
    pub all: VecDeque<Arc<Segment>>,
}

impl Segments {
    pub fn first_index(&self) -> u64 {
        self.all.front().map_or(1, |s| s.first_index)
    }

    pub fn closed_bytes(&self) -> u64 {
        let closed = self.all.len().saturating_sub(1);
        self.all
            .iter()
            .take(closed)
            .map(|s| s.bytes.load(Ordering::Relaxed))
            .sum()
    }

    /// The segment that holds `index` or would hold it, and whether it is the last.
    pub fn holding(&self, index: u64) -> Option<(Arc<Segment>, bool)> {
        let at = self.all.partition_point(|s| s.first_index <= index);
        let segment = self.all.get(at.checked_sub(1)?)?;
        Some((segment.clone(), at == self.all.len()))
    }
}

impl Shared {
    /// Removes the oldest segments beyond the window that `needed_from` does not need.
    pub(crate) fn trim(&self, needed_from: u64, open_bytes: u64) -> Result<usize> {
        let began = Instant::now();
        let opts = &self.opts;
        let window = *self.window.lock();
        let age = u64::try_from(window.min_age.as_millis()).unwrap_or(u64::MAX);
        let kept_from = ((opts.clock)().saturating_sub(age) / 1000) << 32;
        let leased_from = self.leases.oldest(began);
        let leased_bytes = window.max_bytes.saturating_mul(MOST_WINDOWS);
        let mut removed = Vec::new();
        {
            let mut segments = self.segments.lock();
            let mut total = segments.closed_bytes() + open_bytes;
            while let (Some(first), Some(second)) = (segments.all.front(), segments.all.get(1)) {
                // Nothing is removed that recovery needs, whatever the window says.
                if second.first_index > needed_from || total <= window.max_bytes {
                    break;
                }
                if second.first_index > leased_from && total <= leased_bytes {
                    break;
                }
                // All in a segment is older than the first entry of the next. One that has none yet tells nothing.
                let young = || !(1..kept_from).contains(&second.first_ts());
                if age > 0 && young() {
                    break;
                }
                total = total.saturating_sub(first.bytes.load(Ordering::Relaxed));
                removed.extend(segments.all.pop_front());
            }
            assert!(
                removed.is_empty() || segments.first_index() <= needed_from,
                "what recovery needs is kept"
            );
        }
        for segment in &removed {
            opts.file_system
                .remove(&segment.path)
                .map_err(|e| Error::io(format!("cannot remove {}", segment.path.display()), &e))?;
        }
        if !removed.is_empty() {
            let mut trimmed = self.trimmed.lock();
            trimmed.segments += removed.len() as u64;
            trimmed.took += began.elapsed();
        }
        Ok(removed.len())
    }
}
