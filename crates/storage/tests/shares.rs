//! Rows and blocks share the cache by how they are read.

use std::time::{Duration, Instant};
use storage::{Direction, Effect, Store, StoreOptions};

const CACHE: usize = 16 << 20;
const RECORDS: u64 = 40_000;
const RECORD_BYTES: usize = 1000;
const ENTRIES: u64 = 400_000;
const PATIENCE: Duration = Duration::from_secs(90);

fn key(space: u8, n: u64) -> Vec<u8> {
    let mut key = vec![0, 0, 0, 0, 0, 0, 0, 9, space, 0, 0, 0, 0];
    key.extend_from_slice(&n.to_be_bytes());
    key
}

struct Random(u64);

impl Random {
    /// Of `[0, 1)`.
    fn next(&mut self) -> f64 {
        self.0 = (self.0.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }
}

#[test]
fn memory_follows_what_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions {
        cache_bytes: CACHE,
        ..StoreOptions::new(dir.path())
    })
    .unwrap();
    let mut random = Random(1);
    // Spread over all of them, so that the popular do not lie together.
    let place = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_003;
    for some in (0..RECORDS).collect::<Vec<_>>().chunks(1000) {
        let mut value = || {
            let each = std::iter::repeat_with(|| (random.next() * 256.0) as u8);
            each.take(RECORD_BYTES).collect()
        };
        let puts = some.iter().map(|n| Effect::Put(key(1, place(*n)), value()));
        store.write_unlogged(&puts.collect::<Vec<_>>()).unwrap();
    }
    for some in (0..ENTRIES).collect::<Vec<_>>().chunks(10_000) {
        let puts = some
            .iter()
            .map(|n| Effect::Put(key(2, place(*n) << 20 | n), vec![0; 24]));
        store.write_unlogged(&puts.collect::<Vec<_>>()).unwrap();
    }
    store.flush().unwrap();
    let started = Instant::now();
    let share = || store.stats().row_share_bytes as usize * 100 / CACHE;
    // Memtables that had to wait for the disk took room from rows, and give it back step by step. On a
    // busy machine blocks that are read for merging may have won one step (a tenth).
    while share() < 35 {
        assert!(started.elapsed() < PATIENCE, "at rest: {}%", share());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(share() <= 50, "{}%", share());
    let started = Instant::now();
    let view = store.latest();
    while share() < 65 {
        assert!(started.elapsed() < PATIENCE, "records by key: {}%", share());
        for _ in 0..1000 {
            let popular = (random.next().powi(4) * RECORDS as f64) as u64;
            assert!(view.get(&key(1, place(popular))).unwrap().is_some());
        }
    }
    // More than blocks have now, and more than they can get from rows at forty hundredths.
    let started = Instant::now();
    while share() > 40 {
        assert!(started.elapsed() < PATIENCE, "an index: {}%", share());
        let from = (random.next() * 700_000.0) as u64;
        let mut scan = view.scan(
            &key(2, from << 20),
            &key(2, (from + 300) << 20),
            Direction::Forward,
        );
        while scan.next().unwrap() {}
    }
    let stats = store.stats();
    assert!(stats.row_bytes <= stats.row_share_bytes && stats.row_bytes > 0);
}
