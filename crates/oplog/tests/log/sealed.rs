//! A log whose entries are encrypted: the bytes of its files, and the entries read from them.

use super::{
    Entries, FaultyDisk, append, expected, of_another_member, open_with, options, payload, segment,
};
use encryption::DataKey;
use oplog::{Error, LogOptions, examine};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

fn sealed(disk: &FaultyDisk, key: &DataKey) -> LogOptions {
    LogOptions {
        key: Some(key.clone()),
        segment_bytes: 600,
        ..options(disk)
    }
}

#[test]
fn payloads_are_in_no_file_and_come_back_after_a_start_a_roll_and_a_cut() {
    let (disk, key) = (FaultyDisk::default(), DataKey::generate());
    let opts = sealed(&disk, &key);
    let (log, ..) = open_with(opts.clone(), 1).unwrap();
    append(&log, 1, 20);
    drop(log);
    let (log, found, _) = open_with(opts.clone(), 1).unwrap();
    assert_eq!(found, expected(20));
    log.truncate_after(12).unwrap();
    // The same lengths: each entry lies where another lay, and is no XOR of the two.
    let new: Vec<Vec<u8>> = (13..=20).map(|n| vec![0xee; payload(n).len()]).collect();
    log.append_records((13..).zip(&new).map(|(n, p)| of_another_member(n, 1, p)))
        .unwrap();
    assert!(log.size().1 > 2, "it was rolled");
    drop(log);
    let mut seen = Entries::new();
    let examined = examine(&opts, |r| seen.push((r.index, r.payload.to_vec()))).unwrap();
    assert!(examined.faults.is_empty(), "{:?}", examined.faults);
    assert_eq!(seen[..12], expected(12)[..]);
    assert!(seen[12..].iter().map(|e| &e.1).eq(&new));
    for path in disk.names() {
        let bytes = disk.bytes(&path);
        for n in 1..=20 {
            let plain = payload(n);
            let is_there = plain.len() > 8 && bytes.windows(plain.len()).any(|w| w == plain);
            assert!(!is_there, "entry {n} is readable");
        }
        assert!(!bytes.windows(8).any(|w| w == [0xee; 8]));
    }
}

#[test]
fn another_key_none_and_a_plain_log_are_refused_by_name() {
    let (disk, key) = (FaultyDisk::default(), DataKey::generate());
    let opts = sealed(&disk, &key);
    let (log, ..) = open_with(opts.clone(), 1).unwrap();
    append(&log, 1, 3);
    log.wait_durable(3).unwrap();
    append(&log, 4, 4);
    drop(log);
    let plain = LogOptions {
        key: None,
        ..opts.clone()
    };
    let e = open_with(plain.clone(), 1).err().unwrap();
    assert!(
        matches!(
            e,
            Error::Encryption {
                is_sealed: true,
                ..
            }
        ),
        "{e}"
    );
    // The last entry proves that those before it were durable, with whatever key.
    let e = open_with(sealed(&disk, &DataKey::generate()), 1)
        .err()
        .unwrap();
    assert!(e.to_string().contains("another key"), "{e}");
    assert_eq!(open_with(opts, 1).unwrap().1, expected(4));
    let disk = FaultyDisk::default();
    drop(open_with(options(&disk), 1).unwrap());
    let e = open_with(sealed(&disk, &key), 1).err().unwrap();
    assert!(
        matches!(
            e,
            Error::Encryption {
                is_sealed: false,
                ..
            }
        ),
        "{e}"
    );
}

#[test]
fn no_byte_of_a_durable_entry_changes_unseen() {
    let (disk, key) = (FaultyDisk::default(), DataKey::generate());
    let opts = LogOptions {
        segment_bytes: 1 << 20,
        ..sealed(&disk, &key)
    };
    let (log, ..) = open_with(opts.clone(), 1).unwrap();
    append(&log, 1, 4);
    log.wait_durable(4).unwrap();
    append(&log, 5, 5);
    drop(log);
    let whole = disk.bytes(&segment(1));
    let last = whole.len() - 44 - payload(5).len();
    for at in (0..last).step_by(3) {
        let mut bad = whole.clone();
        bad[at] ^= 0x10;
        disk.put(&segment(1), bad);
        match open_with(opts.clone(), 1) {
            Err(_) => {}
            Ok((_, found, _)) => assert_eq!(found[..4], expected(4)[..], "byte {at}"),
        }
    }
}

#[test]
fn a_loss_of_power_leaves_a_prefix_that_has_all_that_was_durable() {
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let (disk, key) = (FaultyDisk::default(), DataKey::generate());
        let opts = sealed(&disk, &key);
        let (log, ..) = open_with(opts.clone(), 1).unwrap();
        let durable = rng.random_range(0..20);
        append(&log, 1, durable);
        log.wait_durable(durable).unwrap();
        append(&log, durable + 1, durable + rng.random_range(0..20));
        let crashed = LogOptions {
            file_system: Arc::new(disk.lose_power(&mut rng)),
            ..opts
        };
        let (log, found, _) = open_with(crashed.clone(), 1).unwrap();
        let last = log.last_index();
        assert!(last >= durable, "seed {seed}");
        assert_eq!(found, expected(last), "seed {seed}");
        append(&log, last + 1, last + 5);
        drop(log);
        assert_eq!(
            open_with(crashed, 1).unwrap().1,
            expected(last + 5),
            "seed {seed}"
        );
    }
}
