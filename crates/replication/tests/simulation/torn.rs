//! What a loss of power leaves of a log: written by the real log on a disk that keeps some sectors of
//! what was not synced, and read again by its recovery.

use crate::disk::{own, record};
use crate::faulty_disk::FaultyDisk;
use oplog::{Log, LogOptions};
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;
use storage::Appended;

/// Small, so that a tail spans several.
const SEGMENT_BYTES: u64 = 4096;

/// The entries that are left, of which `synced` were synced.
pub fn survivors(entries: &[Appended], synced: usize, rng: &mut StdRng) -> Vec<Appended> {
    let disk = FaultyDisk::default();
    let (log, _) = open(&disk);
    let (kept, rest) = entries.split_at(synced);
    if !kept.is_empty() {
        log.append_records(kept.iter().map(record)).unwrap();
        log.wait_durable(synced as u64).unwrap();
    }
    for group in rest.chunks(3) {
        log.append_records(group.iter().map(record)).unwrap();
    }
    let (_, left) = open(&disk.lose_power(rng));
    left
}

fn open(disk: &FaultyDisk) -> (Log, Vec<Appended>) {
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
    })
    .unwrap();
    (log, entries)
}
