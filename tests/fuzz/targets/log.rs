//! Segment files as a disk may hand them back: recovery ends with entries or a refusal, and what it left is a sound log.
//!
//! Checksums would stop nearly every bent segment at its first frame. So an input may also be a list of frames whose checksums
//! are put right here, and of damage that is done to the files afterwards.

use super::faulty_disk::FaultyDisk;
use oplog::{Error, Log, LogOptions, Recovered};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

type Entries = Vec<(u64, Vec<u8>)>;

fn options(disk: &FaultyDisk) -> LogOptions {
    LogOptions {
        sync_interval: Duration::from_secs(100_000),
        segment_bytes: 400,
        file_system: Arc::new(disk.clone()),
        ..LogOptions::new("/log")
    }
}

fn open(disk: &FaultyDisk, from: u64) -> Result<(Log, Entries, Recovered), Error> {
    let mut entries = Vec::new();
    let (log, recovered) = Log::open(options(disk), from, 0, |r| {
        entries.push((r.index, r.payload.to_vec()));
        Ok::<(), Error>(())
    })?;
    Ok((log, entries, recovered))
}

fn path(first: u64) -> PathBuf {
    Path::new("/log").join(format!("{first:020}.log"))
}

/// Bytes that say what to do, and zeros when they have run out.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A small number, or now and then one at the edge.
    fn number(&mut self, near: u64) -> u64 {
        match self.byte() {
            0xff => u64::MAX,
            0xfe => u64::MAX - 1,
            0xfd => 0,
            n @ 0x80.. => near.wrapping_sub(u64::from(n - 0x7f)),
            n => near.wrapping_add(u64::from(n)),
        }
    }
}

/// One segment with frames: see `frame.rs` for their bytes.
fn segment(script: &mut Script<'_>, next: &mut u64) -> (u64, Vec<u8>) {
    let first = script.number(*next);
    let flags = u32::from(script.byte() & 1);
    let mut out = b"PANDOLOG".to_vec();
    out.extend_from_slice(&2u32.to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&first.to_le_bytes());
    // Term and timestamp of the entry before.
    out.extend_from_slice(&[0; 16]);
    let sum = crc32c::crc32c(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    *next = first;
    let mut ts = 1u64 << 32;
    for _ in 0..script.byte() % 12 {
        let index = script.number(*next);
        *next = index.wrapping_add(1);
        ts = script.number(ts.wrapping_add(1));
        let lag = script.number(0) as u32;
        let payload = vec![index as u8; usize::from(script.byte())];
        let length = 36 + payload.len() as u32;
        let mut body = index.to_le_bytes().to_vec();
        body.extend_from_slice(&ts.to_le_bytes());
        // Term and wall clock.
        body.extend_from_slice(&[0; 16]);
        body.extend_from_slice(&lag.to_le_bytes());
        body.extend_from_slice(&payload);
        let sum = crc32c::crc32c_append(crc32c::crc32c(&length.to_le_bytes()), &body);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(&body);
    }
    (first, out)
}

fn damage(script: &mut Script<'_>, bytes: &mut Vec<u8>) {
    for _ in 0..script.byte() % 4 {
        let at = usize::from(script.byte()) * 256 + usize::from(script.byte());
        let at = at % (bytes.len() + 1);
        match script.byte() % 4 {
            0 => bytes.truncate(at),
            1 => bytes.extend(std::iter::repeat_n(0, at)),
            2 => bytes.extend(std::iter::repeat_n(0x5a, at)),
            _ => {
                if let Some(b) = bytes.get_mut(at) {
                    *b ^= script.byte() | 1;
                }
            }
        }
    }
}

pub fn recovery(input: &[u8]) {
    let disk = FaultyDisk::default();
    let mut from = 1;
    if input.starts_with(b"PANDOLOG") {
        disk.put(&path(1), input.to_vec());
    } else {
        let mut script = Script(input);
        from = script.number(1).clamp(1, 1 << 60);
        let mut next = 1;
        for _ in 0..=script.byte() % 4 {
            let (first, mut bytes) = segment(&mut script, &mut next);
            damage(&mut script, &mut bytes);
            let name = match script.byte() {
                0xff => first.wrapping_add(1),
                _ => first,
            };
            disk.put(&path(name), bytes);
        }
    }
    let mut whole: Entries = Vec::new();
    let looked = oplog::examine(&options(&disk), |r| {
        whole.push((r.index, r.payload.to_vec()));
    });
    assert_eq!(
        looked.map(|found| found.entries).ok(),
        Some(whole.len() as u64)
    );
    let Ok((log, mut entries, recovered)) = open(&disk, from) else {
        return;
    };
    assert_eq!(recovered.replayed, entries.len() as u64);
    assert!(entries.iter().all(|(index, _)| *index >= from));
    assert!(entries.iter().all(|entry| whole.contains(entry)));
    assert!(entries.windows(2).all(|w| w[0].0 < w[1].0));
    // New entries are found again, behind the old ones.
    for payload in [b"one".to_vec(), b"two".to_vec()] {
        let Ok(stamp) = log.append(&payload) else {
            return;
        };
        entries.push((stamp.index, payload));
    }
    drop(log);
    let from = from.min(entries.first().map_or(from, |e| e.0));
    let (log, again, recovered) = open(&disk, from).expect("a log that was recovered opens");
    assert_eq!(again, entries);
    assert_eq!(recovered.dropped_bytes, 0);
    drop(log);
}
