//! YCSB's reads and updates on the bare engine, in process, as C.S2 to C.S5 of `pando lab run` ask
//! a server for them. `scripts/bench-beyond.sh` sets the server's figures beside these.
//!
//! `cargo run --release -p storage --example engine_ycsb -- phases=C.S5:100,C.S2:90
//! [records=100000] [doc=1168] [threads=32] [seconds=30] [warmup=10] [cache_mb=256] [row_percent=0]
//! [direct=0] [dir=where to put it]`: names of phases with how many of a hundred operations read.
//! The bare engine has all of the cache for its blocks; `row_percent=50` is the storage room as the
//! server has it, with rows in front of them.
//!
//! Keys, their distribution (the laboratory's own code) and the sizes of records and fields are
//! those of the scenarios; options and allocator are those of the server. A read gets the record;
//! an update gets it, changes one field and puts it whole. So many threads, each with one operation
//! under way, stand for connections; nothing is latched, parsed or sent. A line of JSON comes out
//! for the load and for each phase; CPU is that of the whole process, merging and the drawing of
//! keys (under a microsecond) included.

// The laboratory's own, so that the same records are asked for as often; this room depends on none
// that stand above it.
#[allow(dead_code, reason = "other workloads use the rest")]
#[path = "../../../lab/src/distribution.rs"]
mod distribution;
#[allow(dead_code, reason = "the other example uses the rest")]
#[path = "../engine_fill/process.rs"]
mod process;
#[allow(dead_code, reason = "other workloads use the rest")]
#[path = "../../../lab/src/random.rs"]
mod random;

use distribution::{Chooser, fnv64};
use hdrhistogram::Histogram;
use process::{cpu, directory_bytes, stolen};
use random::Rng;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use storage::{Effect, Entry, Op, Store, StoreOptions};

/// The server's: another takes another share of the memory that there is.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Records are brought in as the script has the laboratory do it: batches of so many from so many
/// threads.
const BATCH: u64 = 100;
const LOADERS: u64 = 4;
const FIELDS: u64 = 10;
const FIELD_BYTES: usize = 100;
/// From one field's value to the next: tag, name, length and subtype of binary data.
const FIELD_STRIDE: usize = 113;
/// Length, `_id` and the head of the first field.
const FIRST_FIELD: usize = 50;
/// What the log keeps of an update beside the field's value.
const DIFF_BYTES: usize = FIELD_BYTES + 28;
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

struct Phase {
    name: String,
    read_percent: u64,
}

impl Phase {
    fn list(text: &str) -> Vec<Phase> {
        text.split(',')
            .map(|phase| {
                let (name, percent) = phase.split_once(':').expect("NAME:PERCENT");
                Phase {
                    name: name.to_string(),
                    read_percent: percent.parse().expect("a percentage"),
                }
            })
            .collect()
    }
}

struct Ycsb {
    records: u64,
    doc_bytes: usize,
    threads: u64,
    seconds: u64,
    /// Each phase first runs for this time unmeasured.
    warmup: u64,
    phases: Vec<Phase>,
}

fn record_key(n: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(48);
    // Tablet, the space of records, no index.
    key.extend_from_slice(&7u64.to_be_bytes());
    key.extend_from_slice(&[1, 0, 0, 0, 0]);
    key.push(0x3c);
    key.extend_from_slice(format!("user{}", fnv64(n)).as_bytes());
    key.push(0);
    key
}

fn fill(rng: &mut Rng, out: &mut [u8]) {
    for chunk in out.chunks_mut(8) {
        let bytes = rng.next_u64().to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
}

fn load(store: &Arc<Store>, ycsb: &Ycsb) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for loader in 0..LOADERS {
            let next = &next;
            scope.spawn(move || {
                let mut rng = Rng::new(loader);
                loop {
                    let from = next.fetch_add(BATCH, Ordering::Relaxed);
                    if from >= ycsb.records {
                        return;
                    }
                    let entries = (from..(from + BATCH).min(ycsb.records)).map(|n| {
                        let mut doc = vec![0; ycsb.doc_bytes];
                        fill(&mut rng, &mut doc);
                        let mut entry = Entry::new(
                            Arc::default(),
                            [1; 16],
                            Op::Insert,
                            vec![Effect::Put(record_key(n), doc)],
                        );
                        entry.count(7, 1, ycsb.doc_bytes as i64);
                        entry
                    });
                    store.propose(entries.collect()).expect("propose");
                }
            });
        }
    });
}

/// Waits until nothing is left to flush or merge, or not for longer; gives the seconds.
fn settle(store: &Arc<Store>) -> f64 {
    let started = Instant::now();
    let mut quiet = 0;
    while quiet < 3 && started.elapsed() < SETTLED_WITHIN {
        std::thread::sleep(Duration::from_millis(500));
        let s = store.stats();
        let busy = s.pending_compaction_bytes + s.full_memtables;
        let running = s.running_compactions + s.running_flushes;
        quiet = if busy + running == 0 { quiet + 1 } else { 0 };
    }
    started.elapsed().as_secs_f64()
}

/// Nanoseconds of reads and of updates. Small, since each thread has one, and memory is scarce.
struct Times([Histogram<u32>; 2]);

impl Times {
    fn new() -> Times {
        Times(std::array::from_fn(|_| {
            Histogram::new_with_bounds(1000, 60_000_000_000, 2).expect("bounds")
        }))
    }
}

fn update(store: &Arc<Store>, n: u64, rng: &mut Rng) {
    let record_key = record_key(n);
    let old = store.latest().get(&record_key).expect("get");
    let mut doc = old.expect("there").to_vec();
    let at = FIRST_FIELD + rng.below(FIELDS) as usize * FIELD_STRIDE;
    let mut diff = vec![0; DIFF_BYTES];
    fill(rng, &mut diff);
    doc[at..at + FIELD_BYTES].copy_from_slice(&diff[..FIELD_BYTES]);
    let effects = vec![Effect::Put(record_key.clone(), doc)];
    let op = Op::Update { diff, record_key };
    store
        .propose(vec![Entry::new(Arc::default(), [1; 16], op, effects)])
        .expect("propose");
}

fn work(store: &Arc<Store>, ycsb: &Ycsb, read_percent: u64, seed: u64, end: Instant) -> Times {
    let mut times = Times::new();
    let mut rng = Rng::new(seed);
    let mut chooser = Chooser::scrambled(ycsb.records);
    let mut begun = Instant::now();
    while begun < end {
        let n = chooser.next(&mut rng, ycsb.records);
        let reads = rng.below(100) < read_percent;
        if reads {
            let found = store.latest().get(&record_key(n)).expect("get");
            assert_eq!(found.map(|r| r.len()), Some(ycsb.doc_bytes));
        } else {
            update(store, n, &mut rng);
        }
        let now = Instant::now();
        times.0[usize::from(!reads)].saturating_record((now - begun).as_nanos() as u64);
        begun = now;
    }
    times
}

/// Runs all threads for that time: their counts, and the time they really took.
fn run_for(
    store: &Arc<Store>,
    ycsb: &Ycsb,
    phase: &Phase,
    seconds: u64,
    seed: u64,
) -> (Times, f64) {
    let started = Instant::now();
    let end = started + Duration::from_secs(seconds);
    let mut all = Times::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..ycsb.threads)
            .map(|i| {
                let seed = (seed << 32) + i + 1;
                scope.spawn(move || work(store, ycsb, phase.read_percent, seed, end))
            })
            .collect();
        for worker in workers {
            let times = worker.join().expect("a worker");
            for (all, one) in all.0.iter_mut().zip(times.0) {
                all.add(one).expect("same bounds");
            }
        }
    });
    (all, started.elapsed().as_secs_f64())
}

fn measure(store: &Arc<Store>, ycsb: &Ycsb, phase: &Phase, seed: u64) {
    run_for(store, ycsb, phase, ycsb.warmup, seed);
    let cpu_before = cpu(libc::CLOCK_PROCESS_CPUTIME_ID);
    let stolen_before = stolen();
    let (times, wall) = run_for(store, ycsb, phase, ycsb.seconds, seed + 1);
    let spent = cpu(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
    let operations = times.0.iter().map(|h| h.len()).sum::<u64>();
    let latencies: String = ["read", "update"]
        .iter()
        .zip(&times.0)
        .filter(|(_, h)| !h.is_empty())
        .map(|(kind, h)| {
            let us = |q: f64| h.value_at_quantile(q) as f64 / 1000.0;
            format!(
                "\"{kind}_p50_us\": {:.1}, \"{kind}_p99_us\": {:.1}, \"{kind}_max_us\": {:.0}, ",
                us(0.5),
                us(0.99),
                us(1.0)
            )
        })
        .collect();
    println!(
        "{{\"target\": \"engine\", \"scenario\": \"{}\", \"operations\": {operations}, \"seconds\": {wall:.2}, \"rate\": {:.0}, \
         \"cpu_us_per_op\": {:.2}, {latencies}\"stolen_seconds\": {:.2}}}",
        phase.name,
        operations as f64 / wall,
        spent * 1e6 / operations.max(1) as f64,
        (stolen() - stolen_before) as f64 / 100.0,
    );
}

/// Loads the records, waits until the engine is quiet, and runs the phases.
fn run(store: &Arc<Store>, dir: &Path, ycsb: &Ycsb) {
    let started = Instant::now();
    load(store, ycsb);
    let loaded = started.elapsed().as_secs_f64();
    let settled = settle(store);
    println!(
        "{{\"target\": \"engine\", \"scenario\": \"load\", \"operations\": {}, \"seconds\": {loaded:.2}, \"rate\": {:.0}, \
         \"settled_seconds\": {settled:.1}, \"data_bytes\": {}, \"disk_bytes\": {}}}",
        ycsb.records,
        ycsb.records as f64 / loaded,
        store.stats().sst_bytes,
        directory_bytes(dir),
    );
    for (phase, seed) in ycsb.phases.iter().zip((1..).step_by(2)) {
        measure(store, ycsb, phase, seed);
    }
}

fn main() {
    let text = |name: &str| {
        std::env::args().find_map(|a| Some(a.strip_prefix(name)?.strip_prefix('=')?.to_string()))
    };
    let number =
        |name: &str, default: u64| text(name).map_or(default, |n| n.parse().expect("a number"));
    let ycsb = Ycsb {
        records: number("records", 100_000),
        doc_bytes: number("doc", 1168) as usize,
        threads: number("threads", 32),
        seconds: number("seconds", 30),
        warmup: number("warmup", 10),
        phases: Phase::list(&text("phases").expect("phases=NAME:PERCENT,…")),
    };
    let dir = match text("dir") {
        Some(under) => tempfile::tempdir_in(under).expect("directory"),
        None => tempfile::tempdir().expect("directory"),
    };
    let store = Store::open(StoreOptions {
        cache_bytes: (number("cache_mb", 256) as usize) << 20,
        row_percent: number("row_percent", 0) as u8,
        direct_io: number("direct", 0) != 0,
        ..StoreOptions::new(dir.path())
    })
    .expect("open");
    run(&store, dir.path(), &ycsb);
}
