//! The load of a collection with three random secondary indexes, by tenths: what the storage room
//! does with the puts of such a load when nothing stands before it. `scripts/bench-load.sh` sets
//! the server's figures beside these.
//!
//! Every thread proposes batches as a connection would send them and waits for each. Payloads are
//! incompressible unless asked otherwise. A line of JSON comes out; rates are documents a second,
//! `tenths` of the whole load in order.

use crate::process::{cpu, directory_bytes, peak_rss_bytes, stolen, written_bytes};
use crate::{Numbers, index_key, prefix};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use storage::{Effect, Entry, Op, Store};

/// The data to load, and how.
pub struct Load {
    pub docs: u64,
    pub threads: u64,
    pub batch: u64,
    /// Ids that come in no order, as md5 sums do; otherwise they grow, as generated ids do.
    pub md5: bool,
    /// Records under numbers, and ids in an index of their own.
    pub numbered: bool,
    /// Look for each id before it is put, as an insert must.
    pub check: bool,
    pub doc_bytes: usize,
    /// How much of a document is random bytes.
    pub random_percent: usize,
}

/// Reached at each hundredth: seconds since the start.
struct Progress {
    done: AtomicU64,
    finished: AtomicBool,
}

fn record_key(load: &Load, n: u64) -> Vec<u8> {
    let mut key = prefix(1, 0);
    if load.md5 {
        key.push(0x3c);
        let mut numbers = Numbers(n.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let (a, b) = (numbers.next(), numbers.next());
        key.extend_from_slice(format!("{a:016x}{b:016x}").as_bytes());
        key.push(0);
    } else {
        key.push(0x2d);
        key.extend_from_slice(&[0x65, 0, 0, 0]);
        key.extend_from_slice(&n.to_be_bytes());
    }
    key
}

fn entry(load: &Load, n: u64, numbers: &mut Numbers) -> Entry {
    let id = record_key(load, n);
    let record = match load.numbered {
        true => [prefix(1, 0), n.to_be_bytes().to_vec()].concat(),
        false => id.clone(),
    };
    let mut doc = vec![b'x'; load.doc_bytes];
    let random = (load.doc_bytes * load.random_percent / 100).min(load.doc_bytes);
    for chunk in doc[..random].chunks_mut(8) {
        let bytes = numbers.next().to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    let bytes = doc.len() as i64;
    let mut effects = Vec::with_capacity(4);
    for index in 1..=3 {
        let mut key = index_key(index, numbers.next(), 0);
        key.truncate(13 + 1 + 8);
        key.extend_from_slice(record.get(13..).unwrap_or(&[]));
        effects.push(Effect::Put(key, vec![1]));
    }
    if load.numbered {
        let by_id = [prefix(4, 0), id.get(13..).unwrap_or(&[]).to_vec()].concat();
        effects.insert(0, Effect::Put(record, doc));
        effects.insert(0, Effect::Put(by_id, n.to_be_bytes().to_vec()));
    } else {
        effects.insert(0, Effect::Put(record, doc));
    }
    let mut entry = Entry::new(Arc::default(), [1; 16], Op::Insert, effects);
    entry.count(7, 1, bytes);
    entry
}

fn join(numbers: impl IntoIterator<Item = u64>) -> String {
    let all: Vec<String> = numbers.into_iter().map(|n| n.to_string()).collect();
    format!("[{}]", all.join(", "))
}

/// Runs the load and prints its figures.
pub fn run(store: &Arc<Store>, dir: &Path, load: &Load) {
    let progress = Progress {
        done: AtomicU64::new(0),
        finished: AtomicBool::new(false),
    };
    let next = AtomicU64::new(0);
    let (io, cpu_before, stolen_before) = (
        written_bytes(),
        cpu(libc::CLOCK_PROCESS_CPUTIME_ID),
        stolen(),
    );
    let started = Instant::now();
    let mut latencies: Vec<u64> = Vec::new();
    let mut making = 0.0;
    let (mut tenths, mut seconds) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let loaders: Vec<_> = (0..load.threads)
            .map(|_| {
                let (next, progress) = (&next, &progress);
                scope.spawn(move || {
                    let mut latencies = Vec::new();
                    let mut making = 0.0;
                    loop {
                        let from = next.fetch_add(load.batch, Ordering::Relaxed);
                        if from >= load.docs {
                            return (latencies, making);
                        }
                        let before = cpu(libc::CLOCK_THREAD_CPUTIME_ID);
                        let mut numbers = Numbers(from);
                        let count = load.batch.min(load.docs - from);
                        let entries: Vec<Entry> = (from..from + count)
                            .map(|n| entry(load, n, &mut numbers))
                            .collect();
                        making += cpu(libc::CLOCK_THREAD_CPUTIME_ID) - before;
                        let begun = Instant::now();
                        if load.check {
                            let view = store.latest();
                            for entry in &entries {
                                if let Some(Effect::Put(key, _)) = entry.effects.first() {
                                    assert!(!view.exists(key).expect("look"));
                                }
                            }
                        }
                        store.propose(entries).expect("propose");
                        latencies.push(begun.elapsed().as_micros() as u64);
                        progress.done.fetch_add(count, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // The watcher: when each tenth was reached, and how much each second did.
        let watcher = scope.spawn(|| {
            let (mut tenths, mut seconds) = (Vec::new(), Vec::new());
            let (mut last_tenth, mut last_second, mut done_then) = (started, started, 0);
            loop {
                let finished = progress.finished.load(Ordering::Acquire);
                let done = progress.done.load(Ordering::Relaxed);
                while tenths.len() < 10 && done >= (tenths.len() as u64 + 1) * load.docs / 10 {
                    let rate = load.docs as f64 / 10.0 / last_tenth.elapsed().as_secs_f64();
                    tenths.push(rate as u64);
                    last_tenth = Instant::now();
                }
                if last_second.elapsed() >= Duration::from_secs(1) {
                    let rate = (done - done_then) as f64 / last_second.elapsed().as_secs_f64();
                    seconds.push(rate as u64);
                    (last_second, done_then) = (Instant::now(), done);
                }
                if finished {
                    return (tenths, seconds);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        for loader in loaders {
            let (some, cpu) = loader.join().expect("a loader");
            latencies.extend(some);
            making += cpu;
        }
        progress.finished.store(true, Ordering::Release);
        (tenths, seconds) = watcher.join().expect("the watcher");
    });
    let wall = started.elapsed().as_secs_f64();
    let used = cpu(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu_before - making;
    latencies.sort_unstable();
    let at = |share: f64| {
        let i = (latencies.len() as f64 * share) as usize;
        latencies
            .get(i.min(latencies.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0) as f64
            / 1000.0
    };
    let stats = store.stats();
    let per = 1e6 / load.docs as f64;
    println!(
        "{{\"target\": \"engine\", \"docs\": {}, \"ids\": \"{}\", \"check\": {}, \"seconds\": {wall:.2}, \"rate\": {:.0}, \"tenths\": {}, \
         \"each_second\": {}, \"p50_ms\": {:.2}, \"p999_ms\": {:.2}, \"worst_ms\": {:.2}, \"cpu_us_per_doc\": {:.2}, \
         \"making_us_per_doc\": {:.2}, \"written_bytes_per_doc\": {:.0}, \"disk_bytes\": {}, \"peak_rss_bytes\": {}, \
         \"pending_compaction_bytes\": {}, \"stolen_seconds\": {:.2}}}",
        load.docs,
        if load.md5 { "md5" } else { "generated" },
        load.check,
        load.docs as f64 / wall,
        join(tenths),
        join(seconds),
        at(0.5),
        at(0.999),
        at(1.0),
        used * per,
        making * per,
        (written_bytes() - io) as f64 / load.docs as f64,
        directory_bytes(dir),
        peak_rss_bytes(),
        stats.pending_compaction_bytes,
        (stolen() - stolen_before) as f64 / 100.0,
    );
}
