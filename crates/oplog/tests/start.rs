//! What a start reads of a log: the headers of its segments, and the entries from the one on that the caller lacks, however long the
//! past is that is kept.

use oplog::{Disk, Error, FileSystem, Log, LogFile, LogOptions, Window};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The disk, with reads counted.
#[derive(Clone, Default)]
struct CountingDisk {
    opened: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

struct CountingFile(Arc<dyn LogFile>, Arc<AtomicU64>);

impl CountingDisk {
    fn file(&self, file: Arc<dyn LogFile>) -> Arc<dyn LogFile> {
        self.opened.fetch_add(1, SeqCst);
        Arc::new(CountingFile(file, self.bytes.clone()))
    }
}

impl FileSystem for CountingDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        Disk.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Disk.list(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        Disk.create(path).map(|f| self.file(f))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn LogFile>> {
        Disk.open(path).map(|f| self.file(f))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        Disk.sync_dir(dir)
    }
}

impl LogFile for CountingFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.0.read_at(buf, offset)?;
        self.1.fetch_add(n as u64, SeqCst);
        Ok(n)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }

    fn reserve(&self, from: u64, to: u64) -> bool {
        self.0.reserve(from, to)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

fn options(dir: &Path, disk: &CountingDisk) -> LogOptions {
    LogOptions {
        segment_bytes: 8 << 10,
        sync_interval: Duration::from_secs(1000),
        window: Window {
            max_bytes: u64::MAX,
            min_age: Duration::ZERO,
        },
        file_system: Arc::new(disk.clone()),
        ..LogOptions::new(dir)
    }
}

#[test]
fn a_long_past_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let disk = CountingDisk::default();
    let open = |disk: &CountingDisk, from: u64| {
        let opts = options(dir.path(), disk);
        Log::open(opts, from, 0, |_| Ok::<(), Error>(())).unwrap()
    };
    let (log, _) = open(&disk, 1);
    let entry = [7; 1000];
    let segments = |log: &Log| log.size().1;
    while segments(&log) < 400 {
        log.append(&entry).unwrap();
    }
    let last = log.last_index();
    log.wait_durable(last).unwrap();
    let (bytes, many) = log.size();
    drop(log);

    let at_start = CountingDisk::default();
    let (log, recovered) = open(&at_start, last + 1);
    assert_eq!(recovered.replayed, 0);
    let read = at_start.bytes.load(SeqCst);
    assert_eq!(at_start.opened.load(SeqCst), many);
    // A header is 48 bytes; the last segment is read whole.
    assert!(read <= many * 48 + (8 << 10), "{read} of {bytes} bytes");
    // Earlier entries can still be read.
    assert_eq!(log.read(1).unwrap().next().unwrap().unwrap().index, 1);
    drop(log);

    // What the caller lacks is read, and nothing before the segment that it begins in.
    let at_start = CountingDisk::default();
    let (_, recovered) = open(&at_start, last - 20);
    assert_eq!(recovered.replayed, 21);
    let read = at_start.bytes.load(SeqCst);
    assert!(read <= many * 48 + 5 * (8 << 10), "{read} of {bytes} bytes");
}
