//! A log after a loss of power: written by the real log on a disk that keeps some sectors of the
//! unsynced bytes, and read again by its recovery.

use crate::disk::{own, record};
use crate::faulty_disk::FaultyDisk;
use oplog::{Log, LogOptions};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;
use storage::Appended;

/// Small, so that a tail spans several.
const SEGMENT_BYTES: u64 = 4096;

/// Entries that are written and synced together.
const GROUP: usize = 3;

/// The entries that are left, of which `synced` were synced.
pub fn survivors(entries: &[Appended], synced: usize, rng: &mut StdRng) -> Vec<Appended> {
    let disk = FaultyDisk::default();
    let (log, _) = open(&disk);
    let (kept, rest) = entries.split_at(synced);
    if !kept.is_empty() {
        log.append_records(kept.iter().map(record)).unwrap();
        log.wait_durable(synced as u64).unwrap();
    }
    for group in rest.chunks(GROUP) {
        log.append_records(group.iter().map(record)).unwrap();
    }
    let (_, left) = open(&disk.lose_power(rng));
    left
}

/// Whether the real log's recovery refuses to open a log of these entries, all of which were synced, when
/// one bit of it is another one. Where it opens it, the bit was of the newest group, which looks like a
/// torn tail, or of nothing: it gives entries as they were written, and lacks no other.
pub fn is_refused_with_damage(entries: &[Appended], rng: &mut StdRng) -> bool {
    let disk = FaultyDisk::default();
    let (log, _) = open(&disk);
    let mut groups = entries.chunks(GROUP).peekable();
    while let Some(group) = groups.next() {
        log.append_records(group.iter().map(record)).unwrap();
        // The newest entries say that those before them are on disk.
        log.wait_durable(group.last().unwrap().index).unwrap();
        assert!(groups.peek().is_none() || group.len() == GROUP);
    }
    drop(log);
    let names = disk.names();
    let name = &names[rng.random_range(0..names.len())];
    let mut bytes = disk.bytes(name);
    let at = rng.random_range(0..bytes.len());
    bytes[at] ^= 1 << rng.random_range(0..8);
    disk.put(name, bytes);
    match try_open(&disk) {
        Err(_) => true,
        Ok((_, left)) => {
            assert_eq!(entries.get(..left.len()), Some(&left[..]), "{name:?} {at}");
            let lacks = entries.len() - left.len();
            assert!(lacks <= GROUP, "{lacks} entries are taken for a torn tail");
            false
        }
    }
}

fn open(disk: &FaultyDisk) -> (Log, Vec<Appended>) {
    try_open(disk).unwrap()
}

fn try_open(disk: &FaultyDisk) -> Result<(Log, Vec<Appended>), oplog::Error> {
    let options = LogOptions {
        segment_bytes: SEGMENT_BYTES,
        sync_interval: Duration::from_secs(3600),
        file_system: Arc::new(disk.clone()),
        ..LogOptions::new("/log")
    };
    let mut entries = Vec::new();
    let (log, _) = Log::open(options, 1, 0, |r| {
        entries.push(own(&r));
        Ok::<(), oplog::Error>(())
    })?;
    Ok((log, entries))
}
