//! A process that writes is killed with SIGKILL at a random moment, again and again: every write
//! that it had acknowledged is found, whole, and nothing else than what it wrote.
//!
//! The process is this test binary, started with `STORAGE_KILL_DIR` set; it prints a line for each
//! acknowledged proposal.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use storage::{Direction, Effect, Entry, LogWindow, Op, Store, StoreOptions};

const THREADS: u64 = 3;
/// Keys of one thread; each proposal writes one of them and a key of an "index" that must agree
/// with it.
const KEYS: u64 = 500;

fn open(dir: &Path) -> Arc<Store> {
    Store::open(StoreOptions {
        // Small, so that flushes, new segments and trimming all happen within a second.
        cache_bytes: 8 << 20,
        log_segment_bytes: 1 << 20,
        log_window: LogWindow {
            max_bytes: 3 << 20,
            ..LogWindow::default()
        },
        ..StoreOptions::new(dir)
    })
    .expect("open")
}

fn key(space: u8, thread: u64, slot: u64) -> Vec<u8> {
    let mut key = vec![0, 0, 0, 0, 0, 0, 0, 1, space, 0, 0, 0, 0];
    key.extend_from_slice(&(thread * KEYS + slot).to_be_bytes());
    key
}

/// What proposal `n` of a thread writes: its number and bytes that follow from it.
fn value(n: u64) -> Vec<u8> {
    let mut value = n.to_le_bytes().to_vec();
    value.resize(8 + (n as usize * 131) % 3000, n as u8);
    value
}

fn write_for_ever(dir: &Path) {
    let store = open(dir);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                let last = last_of(store, thread);
                for n in last + 1.. {
                    let slot = n % KEYS;
                    let effects = vec![
                        Effect::Put(key(1, thread, slot), value(n)),
                        Effect::Put(key(2, thread, slot), n.to_le_bytes().to_vec()),
                    ];
                    let mut entry = Entry::new("db.coll".into(), [0; 16], Op::Insert, effects);
                    let replaced = n.checked_sub(KEYS).filter(|old| *old > 0);
                    let old_bytes = replaced.map_or(0, |old| value(old).len());
                    let new_records = i64::from(replaced.is_none());
                    entry.count(1, new_records, value(n).len() as i64 - old_bytes as i64);
                    store.propose(vec![entry]).expect("propose");
                    // One write(2) a line: a pipe keeps the lines of before the kill.
                    let line = format!("{thread} {n}\n");
                    std::io::stdout()
                        .lock()
                        .write_all(line.as_bytes())
                        .expect("stdout");
                }
            });
        }
    });
}

/// The newest number that a thread wrote; checks that records and index agree and that each record
/// is whole.
fn last_of(store: &Arc<Store>, thread: u64) -> u64 {
    let view = store.view();
    let mut last = 0;
    for slot in 0..KEYS {
        let record = view.get(&key(1, thread, slot)).expect("get");
        let index = view.get(&key(2, thread, slot)).expect("get");
        let Some(record) = record else {
            assert!(index.is_none(), "an index key without its record");
            continue;
        };
        let n = u64::from_le_bytes(record[..8].try_into().expect("a number"));
        assert_eq!(&record[..], &value(n)[..]);
        assert_eq!(index.as_deref(), Some(&n.to_le_bytes()[..]));
        last = last.max(n);
    }
    // Each slot holds the newest number that belongs to it.
    let mut scan = view.scan(
        &key(1, thread, 0),
        &key(1, thread + 1, 0),
        Direction::Forward,
    );
    let mut slot = if last < KEYS { 1 } else { 0 };
    while scan.next().expect("scan") {
        let n = u64::from_le_bytes(scan.value()[..8].try_into().expect("a number"));
        assert_eq!(n % KEYS, slot);
        assert!(n + KEYS > last, "slot {slot} has {n}, the newest is {last}");
        slot += 1;
    }
    assert!(last < KEYS || slot == KEYS);
    last
}

#[test]
fn a_killed_process_loses_nothing_that_it_acknowledged() {
    if let Ok(dir) = std::env::var("STORAGE_KILL_DIR") {
        return write_for_ever(Path::new(&dir));
    }
    let seed: u64 = std::env::var("SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| rand::rng().random());
    println!("SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let rounds = std::env::var("ROUNDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(5);
    let dir = tempfile::tempdir().unwrap();
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "a_killed_process_loses_nothing_that_it_acknowledged",
            ])
            .env("STORAGE_KILL_DIR", dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut acknowledged = BTreeMap::new();
            let mut lines = 0u64;
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Some((thread, n)) = line.split_once(' ') else {
                    continue;
                };
                if let (Ok(thread), Ok(n)) = (thread.parse::<u64>(), n.parse::<u64>()) {
                    acknowledged.insert(thread, n);
                    lines += 1;
                }
            }
            (acknowledged, lines)
        });
        std::thread::sleep(Duration::from_millis(rng.random_range(150..1200)));
        child.kill().unwrap();
        child.wait().unwrap();
        let (acknowledged, lines) = reader.join().unwrap();
        let store = open(dir.path());
        println!(
            "round {round}: {lines} acknowledged, replayed {} entries",
            store.stats().replayed_entries
        );
        let mut scan = store
            .view()
            .scan(&key(1, 0, 0), &key(2, 0, 0), Direction::Forward);
        let mut counted = (0, 0);
        while scan.next().unwrap() {
            counted.0 += 1;
            counted.1 += scan.value().len() as u64;
        }
        assert_eq!(store.counts(1), counted, "SEED={seed} round {round}");
        for (thread, n) in acknowledged {
            let found = last_of(&store, thread);
            // One more may have been written and not yet acknowledged.
            assert!(
                found == n || found == n + 1,
                "SEED={seed} round {round}: {n} acknowledged, {found} found"
            );
        }
    }
}
