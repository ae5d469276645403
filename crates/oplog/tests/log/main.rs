//! The log against a disk that tears, fails, fills up and loses power.

mod faulty_disk;
#[path = "../../../../tests/fuzz/mutate.rs"]
mod mutate;
mod sealed;
#[path = "../../../../tests/fuzz/targets/log.rs"]
mod targets;

use faulty_disk::{Faults, FaultyDisk};
use oplog::{Error, Log, LogOptions, Record, Recovered, Window};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const NEVER: Duration = Duration::from_secs(100_000);
type Entries = Vec<(u64, Vec<u8>)>;

fn options(disk: &FaultyDisk) -> LogOptions {
    LogOptions {
        sync_interval: NEVER,
        file_system: Arc::new(disk.clone()),
        ..LogOptions::new("/log")
    }
}

fn open_with(opts: LogOptions, from: u64) -> Result<(Log, Entries, Recovered), Error> {
    let mut entries = Vec::new();
    let (log, recovered) = Log::open(opts, from, 0, |r| {
        entries.push((r.index, r.payload.to_vec()));
        Ok::<(), Error>(())
    })?;
    Ok((log, entries, recovered))
}

fn open(disk: &FaultyDisk) -> Result<(Log, Entries, Recovered), Error> {
    open_with(options(disk), 1)
}

fn refusal(disk: &FaultyDisk) -> Error {
    open(disk).err().expect("must be refused")
}

fn segment(first: u64) -> PathBuf {
    Path::new("/log").join(format!("{first:020}.log"))
}

/// A payload that tells its index, of a length that varies.
fn payload(n: u64) -> Vec<u8> {
    let mut p = n.to_le_bytes().to_vec();
    p.resize(8 + (n as usize * 37) % 90, n as u8);
    p
}

fn append(log: &Log, from: u64, to: u64) {
    for n in from..=to {
        assert_eq!(log.append(&payload(n)).unwrap().index, n);
    }
}

fn expected(to: u64) -> Entries {
    (1..=to).map(|n| (n, payload(n))).collect()
}

/// The first segment without the space that is reserved behind its last entry.
fn written(disk: &FaultyDisk) -> Vec<u8> {
    let mut bytes = disk.bytes(&segment(1));
    let len = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
    bytes.truncate(len);
    bytes
}

#[test]
fn reserved_space_is_no_entry_and_no_damage() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    append(&log, 1, 3);
    log.wait_durable(3).unwrap();
    let (killed, end) = (disk.copy(), written(&disk).len());
    let first = 48 + 44 + payload(1).len();
    assert_eq!(
        disk.bytes(&segment(1)).len(),
        first + (1 << 20),
        "1 MiB is ready"
    );
    let mut reader = log.read(1).unwrap();
    while reader.next().unwrap().is_some() {}
    append(&log, 4, 4);
    assert_eq!(
        reader.next().unwrap().unwrap().index,
        4,
        "no reader holds zeros"
    );
    drop(log);
    let left = disk.bytes(&segment(1));
    assert_eq!(left, written(&disk), "a log that is closed gives back");

    let examined = oplog::examine(&options(&killed), |_| {}).unwrap();
    assert_eq!(
        (examined.faults.len(), examined.entries, examined.torn_bytes),
        (0, 3, 0)
    );
    let (log, found, recovered) = open(&killed).unwrap();
    assert_eq!((found, recovered.dropped_bytes), (expected(3), 0));
    assert_eq!(killed.bytes(&segment(1)).len(), end);
    append(&log, 4, 5);
    drop(log);

    // Bytes that were not written there are damage, or a torn tail.
    let mut bytes = killed.bytes(&segment(1));
    let whole = bytes.len();
    bytes.resize(whole + 5000, 0);
    bytes.push(7);
    killed.put(&segment(1), bytes);
    let (_, found, recovered) = open(&killed).unwrap();
    assert_eq!((found, recovered.dropped_bytes), (expected(5), 5001));
}

#[test]
fn zeros_in_place_of_what_was_durable_are_damage() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    append(&log, 1, 3);
    log.wait_durable(3).unwrap();
    append(&log, 4, 4);
    let mut bytes = written(&disk);
    let third = 48 + (1..=2).map(|n| 44 + payload(n).len()).sum::<usize>();
    bytes[third..third + 44 + payload(3).len()].fill(0);
    let killed = disk.copy();
    killed.put(&segment(1), bytes);
    assert!(matches!(refusal(&killed), Error::Corrupt { index: 3, .. }));
}

#[test]
fn a_tail_torn_at_any_byte_is_dropped_and_the_log_goes_on() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    append(&log, 1, 3);
    let torn = disk.copy();
    drop(log);
    let whole = written(&torn);
    // Where each entry ends: header, then 44 bytes and the payload.
    let ends: Vec<usize> = (1..=3)
        .scan(48, |end, n| {
            *end += 44 + payload(n).len();
            Some(*end)
        })
        .collect();
    assert_eq!(ends.last(), Some(&whole.len()));
    for cut in 0..=whole.len() {
        for garbage in [0, 1, 50] {
            let disk = FaultyDisk::default();
            let mut bytes = whole[..cut].to_vec();
            bytes.extend(std::iter::repeat_n(0x5a, garbage));
            disk.put(&segment(1), bytes);
            let kept = ends.iter().filter(|end| **end <= cut).count() as u64;
            let (log, found, _) = open(&disk).unwrap();
            assert_eq!(
                found,
                expected(kept),
                "cut at {cut}, {garbage} bytes of garbage"
            );
            append(&log, kept + 1, kept + 2);
            drop(log);
            let (_, found, recovered) = open(&disk).unwrap();
            assert_eq!(found, expected(kept + 2));
            assert_eq!(recovered.dropped_bytes, 0);
        }
    }
}

#[test]
fn a_damaged_entry_that_was_durable_is_named() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    append(&log, 1, 2);
    log.wait_durable(2).unwrap();
    append(&log, 3, 4);
    let whole = written(&disk);
    let copy = disk.copy();
    drop(log);
    let second = 48 + 44 + payload(1).len();
    let third = second + 44 + payload(2).len();
    for at in 48..whole.len() {
        for flip in [0x01, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            copy.put(&segment(1), bytes);
            match open(&copy) {
                Err(Error::Corrupt { index, offset, .. }) if at < third => {
                    let first = at < second;
                    assert_eq!(index, if first { 1 } else { 2 });
                    assert_eq!(offset, if first { 48 } else { second as u64 });
                }
                // Behind the durable part it is a torn tail.
                Ok((_, found, _)) if at >= third => assert!(found.len() >= 2 && found.len() < 4),
                other => panic!("byte {at}: {:?}", other.map(|o| o.1)),
            }
        }
    }
}

#[test]
fn a_damaged_header_before_what_was_durable_is_named() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    append(&log, 1, 2);
    log.wait_durable(2).unwrap();
    append(&log, 3, 4);
    let mut bytes = disk.bytes(&segment(1));
    let copy = disk.copy();
    drop(log);
    bytes[3] ^= 0x5a;
    copy.put(&segment(1), bytes.clone());
    assert!(matches!(
        refusal(&copy),
        Error::Corrupt {
            index: 1,
            offset: 0,
            ..
        }
    ));
    assert_eq!(copy.bytes(&segment(1)), bytes, "nothing of it is removed");
    // A later examination still finds the entries behind.
    let mut seen = Vec::new();
    let found = oplog::examine(&options(&copy), |r| seen.push(r.index)).unwrap();
    assert_eq!((found.faults.len(), seen), (1, vec![1, 2, 3, 4]));

    // Nothing says that any of it was durable: what a loss of power leaves.
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    append(&log, 1, 4);
    let mut bytes = disk.bytes(&segment(1));
    let copy = disk.copy();
    drop(log);
    bytes[3] ^= 0x5a;
    copy.put(&segment(1), bytes);
    let found = oplog::examine(&options(&copy), |_| {}).unwrap();
    assert!(found.faults.is_empty() && found.torn_bytes > 0);
    assert_eq!(open(&copy).unwrap().1, expected(0));
}

#[test]
fn damage_in_an_older_segment_is_named_unless_it_is_not_needed() {
    let disk = FaultyDisk::default();
    let opts = LogOptions {
        segment_bytes: 400,
        ..options(&disk)
    };
    let (log, _, _) = open_with(opts.clone(), 1).unwrap();
    append(&log, 1, 30);
    log.wait_durable(30).unwrap();
    append(&log, 31, 31);
    drop(log);
    let names = disk.names();
    assert!(names.len() > 4);
    let mut bytes = disk.bytes(&names[1]);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    disk.put(&names[1], bytes);
    let e = refusal(&disk);
    assert!(matches!(e, Error::Corrupt { .. }), "{e}");
    assert!(e.to_string().contains(names[1].to_str().unwrap()), "{e}");
    assert_eq!(
        errors::Error::from(e).code,
        errors::Code::UnrecoverableRollbackError
    );
    let (log, found, _) = open_with(opts, 25).unwrap();
    assert_eq!(found, expected(31)[24..]);
    // A later reader gets the error.
    let mut reader = log.read(1).unwrap();
    let outcome = loop {
        match reader.next() {
            Ok(Some(_)) => {}
            other => break other.map(|r| r.map(|r| r.index)),
        }
    };
    assert!(matches!(outcome, Err(Error::Corrupt { .. })));
}

#[test]
fn a_segment_that_is_missing_is_named() {
    let disk = FaultyDisk::default();
    let opts = LogOptions {
        segment_bytes: 400,
        ..options(&disk)
    };
    let (log, _, _) = open_with(opts, 1).unwrap();
    append(&log, 1, 30);
    log.wait_durable(30).unwrap();
    append(&log, 31, 31);
    drop(log);
    let names = disk.names();
    use oplog::FileSystem;
    disk.remove(&names[2]).unwrap();
    assert!(matches!(refusal(&disk), Error::Corrupt { .. }));
    disk.remove(&names[0]).unwrap();
    assert!(matches!(refusal(&disk), Error::Missing { wanted: 1, .. }));
}

#[test]
fn a_failed_sync_poisons_for_good() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    append(&log, 1, 1);
    log.wait_durable(1).unwrap();
    append(&log, 2, 2);
    let called = Arc::new(AtomicUsize::new(0));
    let seen = called.clone();
    log.on_durable(Box::new(move |durable| {
        assert_eq!(durable, 1);
        seen.fetch_add(1, Ordering::SeqCst);
    }));
    disk.set(Faults {
        sync: true,
        ..Faults::default()
    });
    assert!(matches!(log.wait_durable(2), Err(Error::Poisoned { .. })));
    assert!(called.load(Ordering::SeqCst) > 0, "waiters hear of it");
    // The disk would now say that all is well.
    assert!(matches!(log.append(b"x"), Err(Error::Poisoned { .. })));
    assert!(matches!(log.wait_durable(2), Err(Error::Poisoned { .. })));
    assert!(log.healthy().is_err());
    assert_eq!(log.durable_index(), 1);
    assert_eq!(log.last_index(), 2);
    // A later request is called back as well.
    let before = called.load(Ordering::SeqCst);
    log.request_sync();
    let deadline = Instant::now() + Duration::from_secs(20);
    while called.load(Ordering::SeqCst) == before {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn no_caller_waits_for_an_unwritten_entry() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    log.wait_durable(7).unwrap();
    append(&log, 1, 1);
    log.wait_durable(7).unwrap();
    assert_eq!(log.durable_index(), 1);
}

#[test]
fn a_failed_sync_of_the_directory_poisons() {
    let disk = FaultyDisk::default();
    let opts = LogOptions {
        segment_bytes: 200,
        ..options(&disk)
    };
    let (log, _, _) = open_with(opts, 1).unwrap();
    disk.set(Faults {
        sync_dir: true,
        ..Faults::default()
    });
    append(&log, 1, 1);
    log.wait_durable(1).unwrap();
    append(&log, 2, 20);
    assert!(matches!(log.wait_durable(20), Err(Error::Poisoned { .. })));
}

#[test]
fn a_full_disk_fails_the_group_cleanly() {
    for space in 0..200 {
        let disk = FaultyDisk::default();
        let (log, _, _) = open(&disk).unwrap();
        append(&log, 1, 2);
        let before = written(&disk);
        disk.set(Faults {
            space: Some(space),
            ..Faults::default()
        });
        let mut group = log.group();
        for n in 3..=6 {
            group.add(|buf| buf.extend_from_slice(&payload(n)));
        }
        let e = group.write().unwrap_err();
        assert!(matches!(e, Error::Full { .. }), "{e}");
        assert_eq!(errors::Error::from(e).code, errors::Code::OutOfDiskSpace);
        assert_eq!(written(&disk), before, "with {space} bytes left");
        assert_eq!(log.last_index(), 2);
        disk.set(Faults::default());
        append(&log, 3, 4);
        log.wait_durable(4).unwrap();
        drop(log);
        assert_eq!(open(&disk).unwrap().1, expected(4));
    }
}

#[test]
fn a_full_disk_at_a_new_segment_fails_cleanly() {
    for space in [0, 10, 40] {
        let disk = FaultyDisk::default();
        let opts = LogOptions {
            segment_bytes: 200,
            ..options(&disk)
        };
        let (log, _, _) = open_with(opts.clone(), 1).unwrap();
        append(&log, 1, 3);
        disk.set(Faults {
            space: Some(space),
            ..Faults::default()
        });
        for _ in 0..3 {
            assert!(matches!(log.append(&[1; 150]), Err(Error::Full { .. })));
        }
        disk.set(Faults::default());
        append(&log, 4, 9);
        drop(log);
        assert_eq!(open_with(opts, 1).unwrap().1, expected(9));
    }
}

#[test]
fn a_part_that_cannot_be_cut_off_poisons() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    append(&log, 1, 1);
    disk.set(Faults {
        space: Some(50),
        truncate: true,
        ..Faults::default()
    });
    assert!(matches!(log.append(&[1; 100]), Err(Error::Full { .. })));
    disk.set(Faults::default());
    assert!(matches!(log.append(b"x"), Err(Error::Poisoned { .. })));
    drop(log);
    assert_eq!(open(&disk).unwrap().1, expected(1));
}

#[test]
fn what_was_synced_need_not_stay_in_memory() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    let synced = |n: u64, bytes: usize| {
        assert_eq!(log.append(&vec![7; bytes]).unwrap().index, n);
        assert_eq!(
            disk.forgotten(&segment(1)),
            0,
            "nothing before it is synced"
        );
        log.wait_durable(n).unwrap();
    };
    synced(1, 1000);
    synced(2, 600 << 10);
    synced(3, 600 << 10);
    let len = written(&disk).len() as u64;
    assert_eq!(disk.forgotten(&segment(1)), len);
    append(&log, 4, 5);
    log.wait_durable(5).unwrap();
    assert_eq!(disk.forgotten(&segment(1)), len, "not for so little");
}

#[test]
fn a_group_is_one_write() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    let before = disk.writes();
    let mut group = log.group();
    for n in 1..=100 {
        assert_eq!(group.add(|buf| buf.extend_from_slice(&payload(n))).index, n);
    }
    assert_eq!(group.write().unwrap().index, 100);
    assert_eq!(disk.writes() - before, 1);
    let mut dropped = log.group();
    dropped.add(|buf| buf.push(1));
    drop(dropped);
    append(&log, 101, 101);
    drop(log);
    assert_eq!(open(&disk).unwrap().1, expected(101));
}

static NOW: AtomicU64 = AtomicU64::new(1000);

#[test]
fn timestamps_grow_whatever_the_clock_does() {
    let disk = FaultyDisk::default();
    let opts = LogOptions {
        clock: || NOW.load(Ordering::SeqCst) * 1000,
        ..options(&disk)
    };
    let (log, _, _) = open_with(opts.clone(), 1).unwrap();
    let at = |log: &Log, now: u64| {
        NOW.store(now, Ordering::SeqCst);
        log.append(b"x").unwrap().ts
    };
    assert_eq!(at(&log, 1000), 1000 << 32 | 1);
    assert_eq!(at(&log, 1000), 1000 << 32 | 2);
    assert_eq!(at(&log, 900), 1000 << 32 | 3);
    assert_eq!(at(&log, 1001), 1001 << 32 | 1);
    drop(log);
    let (log, _, _) = open_with(opts.clone(), 1).unwrap();
    assert_eq!(log.last_ts(), 1001 << 32 | 1);
    assert_eq!(at(&log, 500), 1001 << 32 | 2);
    drop(log);
    // The caller's state may be newer than the log.
    let (log, _) = Log::open(opts, 5, 2000 << 32, |_| Ok::<(), Error>(())).unwrap();
    assert_eq!(at(&log, 500), 2000 << 32 | 1);
}

/// Its clock is ahead of ours.
fn foreign_ts(index: u64) -> u64 {
    ((1 << 31) + index) << 32 | 7
}

/// As another member made it: its term, timestamp and clock are not ours.
fn of_another_member(index: u64, term: u64, payload: &[u8]) -> Record<'_> {
    Record {
        index,
        ts: foreign_ts(index),
        term,
        wall_millis: 1234,
        payload,
    }
}

/// Index, timestamp, term, wall clock and payload of every entry.
fn records(log: &Log) -> Vec<(u64, u64, u64, i64, Vec<u8>)> {
    let mut reader = log.read(log.first_index()).unwrap();
    let mut all = Vec::new();
    while let Some(r) = reader.next().unwrap() {
        all.push((r.index, r.ts, r.term, r.wall_millis, r.payload.to_vec()));
    }
    all
}

#[test]
fn entries_of_another_member_keep_what_they_carry() {
    let disk = FaultyDisk::default();
    let (log, ..) = open(&disk).unwrap();
    append(&log, 1, 2);
    let (three, four) = (payload(3), payload(4));
    log.append_records([
        of_another_member(3, 2, &three),
        of_another_member(4, 5, &four),
    ])
    .unwrap();
    assert_eq!((log.last_index(), log.last_term()), (4, 5));
    // What does not follow is refused, with the whole group.
    let stale = Record {
        ts: 1,
        ..of_another_member(5, 5, b"")
    };
    for refused in [
        vec![of_another_member(4, 5, b"")],
        vec![of_another_member(6, 5, b"")],
        vec![of_another_member(5, 4, b"")],
        vec![
            of_another_member(5, 5, b"fits"),
            of_another_member(7, 5, b""),
        ],
        vec![stale],
    ] {
        let e = log.append_records(refused).unwrap_err();
        assert!(matches!(e, Error::OutOfOrder { .. }), "{e}");
    }
    assert_eq!(log.last_index(), 4);
    // An own entry comes after, in the newest term.
    assert!(log.set_term(4).is_err());
    log.set_term(6).unwrap();
    let own = log.append(&payload(5)).unwrap();
    assert_eq!((own.term, own.ts), (6, foreign_ts(4) + 1));
    let before = records(&log);
    assert_eq!(before[2], (3, foreign_ts(3), 2, 1234, payload(3)));
    drop(log);
    let (log, ..) = open(&disk).unwrap();
    assert_eq!(records(&log), before);
    assert_eq!(log.last_term(), 6);
}

#[test]
fn a_term_survives_in_a_segment_without_entries() {
    let disk = FaultyDisk::default();
    let opts = LogOptions {
        segment_bytes: 200,
        ..options(&disk)
    };
    let (log, ..) = open_with(opts.clone(), 1).unwrap();
    log.set_term(3).unwrap();
    append(&log, 1, 20);
    let before = records(&log);
    // Cut where a segment begins: it stays, empty.
    let first = disk.names().into_iter().nth(3).unwrap();
    let first: u64 = first
        .file_stem()
        .unwrap()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    log.truncate_after(first - 1).unwrap();
    drop(log);
    let (log, found, _) = open_with(opts, first).unwrap();
    assert!(found.is_empty());
    assert_eq!((log.last_index(), log.last_term()), (first - 1, 3));
    assert_eq!(log.last_ts(), before[first as usize - 2].1);
}

#[test]
fn a_suffix_is_cut_and_the_log_goes_on_in_another_term() {
    for segment_bytes in [150, 400, 1 << 20] {
        for last in [0, 1, 7, 19] {
            let disk = FaultyDisk::default();
            let opts = LogOptions {
                segment_bytes,
                ..options(&disk)
            };
            let (log, ..) = open_with(opts.clone(), 1).unwrap();
            log.set_term(1).unwrap();
            append(&log, 1, 10);
            log.wait_durable(5).unwrap();
            append(&log, 11, 20);
            let before = records(&log);
            log.truncate_after(last).unwrap();
            assert_eq!((log.last_index(), log.durable_index()), (last, last));
            assert_eq!(log.last_term(), u64::from(last > 0));
            assert_eq!(records(&log), before[..last as usize]);
            // Durable at once: whatever a loss of power takes, nothing of it comes back.
            let mut rng = StdRng::seed_from_u64(last);
            let (lost, found, _) =
                open_with(options_of(&opts, &disk.lose_power(&mut rng)), 1).unwrap();
            assert_eq!((lost.last_index(), found), (last, expected(last)));
            let new: Vec<Vec<u8>> = (last + 1..=30).map(|n| payload(n + 1)).collect();
            let following = (last + 1..)
                .zip(&new)
                .map(|(n, p)| of_another_member(n, 2, p));
            log.append_records(following).unwrap();
            drop(log);
            let (log, ..) = open_with(opts, 1).unwrap();
            let after = records(&log);
            assert_eq!(after[..last as usize], before[..last as usize]);
            assert_eq!((after.len(), log.last_term()), (30, 2));
            assert!(after[last as usize..].iter().all(|r| r.2 == 2));
        }
    }
}

fn options_of(opts: &LogOptions, disk: &FaultyDisk) -> LogOptions {
    LogOptions {
        file_system: Arc::new(disk.clone()),
        ..opts.clone()
    }
}

#[test]
fn a_reader_behind_a_cut_is_told_and_one_before_it_goes_on() {
    let disk = FaultyDisk::default();
    let (log, ..) = open(&disk).unwrap();
    append(&log, 1, 10);
    let read = |n: usize| {
        let mut reader = log.read(1).unwrap();
        (0..n).for_each(|_| assert!(reader.next().unwrap().is_some()));
        reader
    };
    let (mut before, mut at, mut behind) = (read(3), read(5), read(6));
    log.truncate_after(5).unwrap();
    // The same lengths, so that each entry lies where another lay.
    let new: Vec<Vec<u8>> = (6..=10).map(|n| vec![0xee; payload(n).len()]).collect();
    log.append_records((6..).zip(&new).map(|(n, p)| of_another_member(n, 1, p)))
        .unwrap();
    assert!(matches!(
        behind.next(),
        Err(Error::Cut { wanted: 7, last: 5 })
    ));
    assert_eq!(at.next().unwrap().unwrap().payload, new[0]);
    for n in 4..=5 {
        assert_eq!(before.next().unwrap().unwrap().payload, payload(n));
    }
    for new in &new {
        assert_eq!(before.next().unwrap().unwrap().payload, new);
    }
    assert!(before.next().unwrap().is_none());
}

#[test]
fn a_crash_in_the_middle_of_a_cut_leaves_a_log_without_a_hole() {
    let mut ends = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let disk = FaultyDisk::default();
        let opts = LogOptions {
            segment_bytes: 250,
            ..options(&disk)
        };
        let (log, ..) = open_with(opts.clone(), 1).unwrap();
        append(&log, 1, 25);
        log.wait_durable(25).unwrap();
        append(&log, 26, 30);
        // It fails after some removals, or when the file itself is to be cut.
        disk.set(Faults {
            removals: Some(seed as usize % 7),
            truncate: true,
            ..Faults::default()
        });
        let e = log.truncate_after(8).unwrap_err();
        assert!(matches!(e, Error::Io { .. }), "{e}");
        assert!(matches!(log.append(b"x"), Err(Error::Poisoned { .. })));
        let mut rng = StdRng::seed_from_u64(seed);
        let crashed = options_of(&opts, &disk.lose_power(&mut rng));
        let (log, found, _) = open_with(crashed.clone(), 1).unwrap();
        assert_eq!(found, expected(log.last_index()));
        assert!((8..=30).contains(&log.last_index()));
        ends.insert(log.last_index());
        // The caller of the truncation repeats it.
        log.truncate_after(8).unwrap();
        drop(log);
        assert_eq!(open_with(crashed, 1).unwrap().1, expected(8));
    }
    assert!(ends.len() > 3, "{ends:?}");
}

#[test]
fn syncs_are_shared() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    let before = disk.syncs();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let stamp = log.append(b"entry").unwrap();
                    log.wait_durable(stamp.index).unwrap();
                    assert!(log.durable_index() >= stamp.index);
                }
            });
        }
    });
    assert_eq!(log.durable_index(), 800);
    assert!(disk.syncs() - before < 800, "{}", disk.syncs() - before);
}

#[test]
fn the_sync_thread_serves_requests_and_the_interval() {
    let disk = FaultyDisk::default();
    let wait = |log: &Log, index| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while log.durable_index() < index {
            assert!(Instant::now() < deadline, "entry {index} was never synced");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let (log, _, _) = open(&disk).unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let seen = told.clone();
    log.on_durable(Box::new(move |durable| {
        seen.store(durable, Ordering::SeqCst)
    }));
    for n in 1..=20 {
        append(&log, n, n);
        log.request_sync();
        wait(&log, n);
    }
    drop(log);
    assert_eq!(told.load(Ordering::SeqCst), 20);
    let opts = LogOptions {
        sync_interval: Duration::from_millis(5),
        ..options(&disk)
    };
    let (log, _, _) = open_with(opts, 1).unwrap();
    for n in 21..=40 {
        // The thread is up soon after a sync, and rests later.
        if n % 4 == 0 {
            std::thread::sleep(Duration::from_millis(12));
        }
        append(&log, n, n);
        wait(&log, n);
    }
}

#[test]
fn a_reader_follows_across_segments() {
    let disk = FaultyDisk::default();
    let opts = LogOptions {
        segment_bytes: 300,
        ..options(&disk)
    };
    let (log, _, _) = open_with(opts, 1).unwrap();
    let mut reader = log.read(1).unwrap();
    assert!(reader.next().unwrap().is_none());
    for n in 1..=50 {
        append(&log, n, n);
        let record = reader.next().unwrap().unwrap();
        assert_eq!((record.index, record.payload), (n, &payload(n)[..]));
        assert!(reader.next().unwrap().is_none());
    }
    let mut reader = log.read(33).unwrap();
    for n in 33..=50 {
        assert_eq!(reader.next().unwrap().unwrap().index, n);
    }
}

#[test]
fn old_segments_go_when_they_are_neither_needed_nor_kept() {
    let disk = FaultyDisk::default();
    let opts = LogOptions {
        segment_bytes: 300,
        window: window(1000, 0),
        ..options(&disk)
    };
    let (log, _, _) = open_with(opts.clone(), 1).unwrap();
    append(&log, 1, 50);
    let (bytes, segments) = log.size();
    assert!(bytes > 3000 && segments > 8);
    assert_eq!(log.trim(1).unwrap(), 0, "all are needed");
    let mut behind = log.read(1).unwrap();
    assert_eq!(behind.next().unwrap().unwrap().index, 1);
    assert!(log.trim(20).unwrap() > 0);
    let first = log.first_index();
    assert!(first > 1 && first <= 20);
    assert!(log.trim(51).unwrap() > 0);
    let (bytes, _) = log.size();
    assert!((400..=1000).contains(&bytes), "{bytes}");
    let first = log.first_index();
    assert!(matches!(log.read(1), Err(Error::Missing { wanted: 1, .. })));
    assert_eq!(
        log.read(first).unwrap().next().unwrap().unwrap().index,
        first
    );
    assert!(
        behind.next().is_ok(),
        "a segment that is being read stays readable"
    );
    drop(log);
    let (log, found, _) = open_with(opts.clone(), first).unwrap();
    assert_eq!(found, expected(50)[first as usize - 1..]);
    drop(log);
}

fn window(max_bytes: u64, min_hours: u64) -> Window {
    Window {
        max_bytes,
        min_age: Duration::from_secs(min_hours * 3600),
    }
}

#[test]
fn what_is_young_stays_however_large_the_log_is() {
    let disk = FaultyDisk::default();
    let opts = LogOptions {
        segment_bytes: 300,
        window: window(1000, 24),
        ..options(&disk)
    };
    let (log, _, _) = open_with(opts.clone(), 1).unwrap();
    append(&log, 1, 50);
    assert_eq!(log.trim(51).unwrap(), 0);
    drop(log);
    // The times of segments that the start did not read are read when they are asked for.
    let (log, _, _) = open_with(opts.clone(), 51).unwrap();
    assert_eq!(log.trim(51).unwrap(), 0);
    drop(log);
    let tomorrow = LogOptions {
        clock: || (LogOptions::new("/").clock)() + 25 * 3_600_000,
        ..opts
    };
    let (log, _, _) = open_with(tomorrow, 51).unwrap();
    log.set_window(window(u64::MAX, 24));
    assert_eq!(log.trim(51).unwrap(), 0, "it is not too large");
    log.set_window(window(1000, 26));
    assert_eq!(log.trim(51).unwrap(), 0, "none is as old");
    log.set_window(window(1000, 24));
    assert!(log.trim(51).unwrap() > 0);
    assert!(log.size().0 <= 1000);
    assert!(log.trimmed().segments > 0);
}

#[test]
fn a_state_ahead_of_the_log_leaves_a_gap_that_is_known() {
    let disk = FaultyDisk::default();
    let (log, _, _) = open(&disk).unwrap();
    append(&log, 1, 3);
    drop(log);
    let (log, found, _) = open_with(options(&disk), 11).unwrap();
    assert!(found.is_empty());
    assert_eq!(log.append(b"x").unwrap().index, 11);
    let mut reader = log.read(1).unwrap();
    let mut indexes = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        indexes.push(record.index);
    }
    assert_eq!(indexes, [1, 2, 3, 11]);
    drop(log);
    let (log, found, _) = open_with(options(&disk), 11).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(log.last_index(), 11);
    drop(log);
    // A state of before the gap, as of an older copy of its files.
    for from in [1, 4, 10] {
        let refused = open_with(options(&disk), from).err().unwrap();
        assert!(refused.to_string().contains("in no log"), "{refused}");
    }
}

/// Random groups, syncs, trims and losses of power. All durable entries must be found, unchanged and
/// dense; entries beyond must have been written; and no loss of power is mistaken for damage.
#[test]
fn no_loss_of_power_loses_what_was_durable() {
    let seed: u64 = std::env::var("SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| rand::rng().random());
    println!("SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..300 {
        let mut disk = FaultyDisk::default();
        let mut written: Entries = Vec::new();
        let mut version = 0u64;
        for round in 0..4 {
            let opts = LogOptions {
                segment_bytes: rng.random_range(100..3000),
                ..options(&disk)
            };
            let (log, found, _) = open_with(opts, 1)
                .unwrap_or_else(|e| panic!("SEED={seed} case {case} round {round}: {e}"));
            assert_eq!(
                found,
                written[..found.len()],
                "SEED={seed} case {case} round {round}"
            );
            written.truncate(found.len());
            for _ in 0..rng.random_range(1..25) {
                let mut group = log.group();
                let mut added = Vec::new();
                for _ in 0..rng.random_range(1..6) {
                    version += 1;
                    let mut p = version.to_le_bytes().to_vec();
                    p.resize(rng.random_range(8..300), version as u8);
                    added.push((group.add(|buf| buf.extend_from_slice(&p)).index, p));
                }
                group.write().unwrap();
                written.append(&mut added);
                if rng.random_bool(0.2) {
                    log.wait_durable(rng.random_range(0..=written.len() as u64))
                        .unwrap();
                }
            }
            let durable = log.durable_index();
            let after = disk.lose_power(&mut rng);
            drop(log);
            disk = after;
            let (log, found, _) = open(&disk)
                .unwrap_or_else(|e| panic!("SEED={seed} case {case} round {round}: {e}"));
            assert!(
                found.len() as u64 >= durable,
                "SEED={seed} case {case} round {round}: {durable} durable, {} found",
                found.len()
            );
            drop(log);
        }
    }
}

#[test]
fn a_bent_segment_is_recovered_or_refused() {
    let disk = FaultyDisk::default();
    let (log, ..) = open(&disk).unwrap();
    append(&log, 1, 5);
    log.wait_durable(5).unwrap();
    append(&log, 6, 9);
    drop(log);
    let sound = expected(9);
    let bytes = disk.bytes(&segment(1));
    mutate::fuzz("bent segments", std::slice::from_ref(&bytes), |input| {
        let disk = FaultyDisk::default();
        disk.put(&segment(1), input.to_vec());
        let mut seen = Vec::new();
        let looked = oplog::examine(&options(&disk), |r| {
            seen.push((r.index, r.payload.to_vec()))
        });
        assert!(looked.is_ok_and(|found| found.entries == seen.len() as u64));
        // Whatever was bent: recovered entries are the written ones, from the first on.
        if let Ok((_, entries, _)) = open(&disk) {
            assert!(sound.starts_with(&entries));
        }
    });
    let found = [
        // One entry whose index, and one whose timestamp, is the last number there is.
        vec![0, 0, 0, 0, 1, 0xff],
        vec![0, 0, 0, 0, 1, 0, 0xff],
        // A segment with three entries, and one that begins at the second of them and owns up to a
        // gap.
        [&[0, 1, 0, 0, 3][..], &[0; 12], &[0, 0, 0x81, 1, 2], &[0; 9]].concat(),
    ];
    mutate::fuzz("log", &[&found[..], &[bytes]].concat(), targets::recovery);
}

#[test]
fn examining_names_damage_and_reads_on() {
    let disk = FaultyDisk::default();
    let (log, ..) = open(&disk).unwrap();
    append(&log, 1, 10);
    log.wait_durable(10).unwrap();
    append(&log, 11, 20);
    drop(log);
    let whole = disk.bytes(&segment(1));
    let look = |disk: &FaultyDisk| {
        let mut seen = Vec::new();
        let found = oplog::examine(&options(disk), |r| seen.push(r.index)).unwrap();
        (found, seen)
    };
    let (found, seen) = look(&disk);
    assert_eq!(
        (found.faults.len(), found.entries, found.last_index),
        (0, 20, 20)
    );
    assert_eq!(seen, (1..=20).collect::<Vec<u64>>());

    let mut bent = whole.clone();
    let at = bent.len() / 3;
    bent[at] ^= 0x40;
    disk.put(&segment(1), bent);
    let (found, seen) = look(&disk);
    assert_eq!(
        (found.faults.len(), found.entries),
        (1, 19),
        "{:?}",
        found.faults
    );
    assert!(matches!(found.faults[0], Error::Corrupt { .. }));
    assert_eq!(seen.last(), Some(&20));

    disk.put(&segment(1), whole[..whole.len() - 3].to_vec());
    let (found, _) = look(&disk);
    assert_eq!((found.faults.len(), found.entries), (0, 19));
    assert!(found.torn_bytes > 0, "a torn tail is no damage");
}
