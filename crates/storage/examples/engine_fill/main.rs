//! What the storage room costs by itself: documents a second and CPU microseconds an operation, in
//! process.
//!
//! `cargo run --release -p storage --example engine_fill -- [docs=60000] [cache_mb=1024]
//! [row_percent=50] [block=16384] [group=n: only inserts, in groups of n] [repeat=1: of the reads,
//! the cheapest counts]`
//!
//! With `load=md5` or `load=generated` it runs the load that `load.rs` describes instead (`docs`,
//! `threads=4`, `batch=100`, `check=1`, `numbered=1`: records under numbers and ids in a place of
//! their own, as with long `_id`s; `doc=1024`, `random=100`, `dir=` where to put it, `engine=`
//! options of RocksDB by name).
//!
//! Inserts put a 1 KB document (half of it incompressible) and three index keys, by one thread,
//! without waiting for the disk (w: 1). "CPU" is that of the whole process, flushes and compactions
//! included; "own" is the calling thread's alone.

mod load;
mod process;

use process::cpu;
use std::sync::Arc;
use std::time::Instant;
use storage::{Direction, Effect, Entry, Op, Store, StoreOptions};

struct Meter {
    name: String,
    wall: Instant,
    process: f64,
    thread: f64,
}

impl Meter {
    fn start(name: impl Into<String>) -> Meter {
        Meter {
            name: name.into(),
            wall: Instant::now(),
            process: cpu(libc::CLOCK_PROCESS_CPUTIME_ID),
            thread: cpu(libc::CLOCK_THREAD_CPUTIME_ID),
        }
    }

    fn stop(self, ops: usize) -> Figure {
        let per = 1e6 / ops as f64;
        Figure {
            rate: ops as f64 / self.wall.elapsed().as_secs_f64(),
            process: (cpu(libc::CLOCK_PROCESS_CPUTIME_ID) - self.process) * per,
            thread: (cpu(libc::CLOCK_THREAD_CPUTIME_ID) - self.thread) * per,
            name: self.name,
        }
    }
}

struct Figure {
    name: String,
    rate: f64,
    process: f64,
    thread: f64,
}

impl Figure {
    fn print(&self) {
        println!(
            "{:<56} {:>10.0}/s   CPU {:>7.2} µs   own {:>7.2} µs",
            self.name, self.rate, self.process, self.thread
        );
    }
}

/// A cheap sequence of unrelated numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn prefix(space: u8, index: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(48);
    key.extend_from_slice(&7u64.to_be_bytes());
    key.push(space);
    key.extend_from_slice(&index.to_be_bytes());
    key
}

fn record_key(n: u64) -> Vec<u8> {
    let mut key = prefix(1, 0);
    key.push(0x2d);
    // As a generated ObjectId: it grows.
    key.extend_from_slice(&[0x65, 0, 0, 0]);
    key.extend_from_slice(&n.to_be_bytes());
    key
}

fn index_key(index: u32, field: u64, n: u64) -> Vec<u8> {
    let mut key = prefix(2, index);
    key.push(0x1e);
    key.extend_from_slice(&field.to_be_bytes());
    key.extend_from_slice(record_key(n).get(13..).unwrap_or(&[]));
    key
}

fn document(n: u64, numbers: &mut Numbers) -> Vec<u8> {
    let mut doc = vec![b'x'; 1024];
    doc[..8].copy_from_slice(&n.to_le_bytes());
    for chunk in doc[8..520].chunks_exact_mut(8) {
        chunk.copy_from_slice(&numbers.next().to_le_bytes());
    }
    doc
}

fn insert(n: u64, numbers: &mut Numbers) -> Entry {
    let doc = document(n, numbers);
    let bytes = doc.len() as i64;
    let effects = vec![
        Effect::Put(record_key(n), doc),
        Effect::Put(index_key(1, numbers.next(), n), vec![1]),
        Effect::Put(index_key(2, numbers.next() % 1000, n), vec![1]),
        Effect::Put(index_key(3, n, n), vec![1]),
    ];
    let mut entry = Entry::new(Arc::default(), [1; 16], Op::Insert, effects);
    entry.count(7, 1, bytes);
    entry
}

fn fill(store: &Arc<Store>, from: u64, count: u64, group: u64) -> u64 {
    let mut numbers = Numbers(from);
    // Making the entries is not measured.
    let mut batches = Vec::new();
    let mut n = from;
    while n < from + count {
        batches.push(
            (0..group)
                .map(|i| insert(n + i, &mut numbers))
                .collect::<Vec<_>>(),
        );
        n += group;
    }
    let meter = Meter::start(format!("insert 1 KB + 3 index keys, groups of {group}"));
    for batch in batches {
        store.propose(batch).expect("propose");
    }
    meter.stop(count as usize).print();
    n
}

/// Runs each measurement `repeat` times in turn and prints the cheapest of each.
fn read(store: &Arc<Store>, docs: u64, what: &str, repeat: u64) {
    let mut best: Vec<Figure> = Vec::new();
    for round in 0..=repeat {
        let figures = read_once(store, docs, what, 99 + round);
        // The first round brings all into the cache.
        match round {
            0 => {}
            1 => best = figures,
            _ => {
                for (best, new) in best.iter_mut().zip(figures) {
                    if new.process < best.process {
                        *best = new;
                    }
                }
            }
        }
    }
    for figure in best {
        figure.print();
    }
}

fn read_once(store: &Arc<Store>, docs: u64, what: &str, seed: u64) -> Vec<Figure> {
    let rounds = 100_000usize;
    let mut numbers = Numbers(seed);
    let mut figures = Vec::new();
    let latest = store.latest();
    for (name, view) in [("latest", Some(latest.clone())), ("snapshot each", None)] {
        let meter = Meter::start(format!("{what}: get, {name}"));
        let mut found = 0usize;
        for _ in 0..rounds {
            let key = record_key(numbers.next() % docs);
            let value = match &view {
                Some(view) => view.get(&key),
                None => store.view().get(&key),
            };
            found += value.expect("get").map_or(0, |v| v.len());
        }
        assert!(found > 0);
        figures.push(meter.stop(rounds));
    }
    let meter = Meter::start(format!("{what}: get of what is not there"));
    for _ in 0..rounds {
        let key = record_key(numbers.next() | 1 << 60);
        assert!(latest.get(&key).expect("get").is_none());
    }
    figures.push(meter.stop(rounds));
    let view = store.view();
    for (name, view) in [("any", view.clone()), ("cache only", view.cached_only())] {
        let meter = Meter::start(format!("{what}: get_some of 10, {name}"));
        let mut offloads = 0;
        for _ in 0..rounds / 10 {
            let mut keys: Vec<Vec<u8>> =
                (0..10).map(|_| record_key(numbers.next() % docs)).collect();
            keys.sort();
            let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
            match view.get_some(&keys) {
                Ok(values) => assert_eq!(values.len(), 10),
                Err(_) => offloads += 1,
            }
        }
        let mut figure = meter.stop(rounds / 10);
        if offloads > 0 {
            figure.name += &format!(", {offloads} met the disk");
        }
        figures.push(figure);
    }
    let scans = [
        ("1 index key", 1, 1, rounds / 10),
        ("10 index keys", 10, 1, rounds / 10),
        ("1000 index keys", 1000, 1, rounds / 100),
        ("100 documents", 100, 0, rounds / 40),
    ];
    for (name, length, index, rounds) in scans {
        let meter = Meter::start(format!("{what}: open, seek, read {name}, close"));
        let mut bytes = 0;
        for _ in 0..rounds {
            let mut scan = if index == 0 {
                view.scan(
                    &record_key(numbers.next() % docs),
                    &prefix(1, 1),
                    Direction::Forward,
                )
            } else {
                view.scan(
                    &index_key(1, numbers.next() >> 1, 0),
                    &prefix(2, 2),
                    Direction::Forward,
                )
            };
            for _ in 0..length {
                if !scan.next().expect("next") {
                    break;
                }
                bytes += scan.key().len();
                if index == 0 {
                    bytes += scan.value().len();
                }
            }
        }
        assert!(bytes > 0);
        figures.push(meter.stop(rounds));
    }
    figures
}

fn main() {
    let number = |name: &str, default: u64| {
        std::env::args()
            .filter_map(|a| a.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
            .next_back()
            .unwrap_or(default)
    };
    let text = |name: &str| {
        std::env::args().find_map(|a| Some(a.strip_prefix(name)?.strip_prefix('=')?.to_string()))
    };
    let docs = number("docs", 60_000);
    let dir = match text("dir") {
        Some(under) => tempfile::tempdir_in(under).expect("directory"),
        None => tempfile::tempdir().expect("directory"),
    };
    let started = Instant::now();
    let default = StoreOptions::new(dir.path());
    let store = Store::open(StoreOptions {
        cache_bytes: (number("cache_mb", 1024) as usize) << 20,
        row_percent: number("row_percent", 50) as u8,
        block_bytes: number("block", default.block_bytes as _) as usize,
        direct_io: number("direct", 0) != 0,
        log_window: storage::LogWindow {
            max_bytes: number("retain_mb", 1024) << 20,
            ..Default::default()
        },
        engine_options: text("engine").unwrap_or_default(),
        ..default
    })
    .expect("open");
    if let Some(ids) = text("load") {
        let load = load::Load {
            docs,
            threads: number("threads", 4),
            batch: number("batch", 100),
            md5: ids == "md5",
            numbered: number("numbered", 0) != 0,
            check: number("check", 0) != 0,
            doc_bytes: number("doc", 1024) as usize,
            random_percent: number("random", 100) as usize,
        };
        return load::run(&store, dir.path(), &load);
    }
    println!("opened in {:?}", started.elapsed());
    let mut n = 0;
    let group = number("group", 0);
    if let Some(groups) = (docs / 5).checked_div(group) {
        for _ in 0..5 {
            n = fill(&store, n, groups * group, group);
        }
        return;
    }
    for group in [1, 32, 1000] {
        n = fill(&store, n, docs / 3 / group * group, group);
    }
    let repeat = number("repeat", 1);
    read(&store, n, "memtable or files", repeat);
    store.flush().expect("flush");
    store.compact(&[], &[], &mut || Ok(())).expect("compact");
    read(&store, n, "compacted", repeat);
    let meter = Meter::start("update: get, put of 1 KB, one by one");
    let mut numbers = Numbers(5);
    for _ in 0..docs / 3 {
        let k = numbers.next() % n;
        let old = store
            .latest()
            .get(&record_key(k))
            .expect("get")
            .expect("there");
        let op = Op::Update {
            diff: vec![0; 40],
            record_key: record_key(k),
        };
        let effects = vec![Effect::Put(record_key(k), old.to_vec())];
        store
            .propose(vec![Entry::new(Arc::default(), [1; 16], op, effects)])
            .expect("propose");
    }
    meter.stop((docs / 3) as usize).print();
    println!("{:#?}", store.stats());
}
