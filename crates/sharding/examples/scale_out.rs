//! What grows with a cluster, and by how much: fills real routing tables of growing sizes, follows a move, plans
//! for the balancer, and prints bytes, documents and times. For docs/scale-out.md.
//!
//!     cargo run --release -p sharding --example scale_out [chunks, 10000000] [shards, 1000] [collections, 100000]
//!
//! Bytes and documents are the same on each machine. The largest table takes some 5 GB on its way.

use bson::{Doc, DocBuf, ObjectId, doc};
use sharding::balance::{ShardLoad, plan};
use sharding::moving::change_of_owner;
use sharding::zones::Zone;
use sharding::{Chunk, CollectionEntry, Ownership, RoutingTable, ShardKey, Version};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Counts allocated bytes.
struct Counted;
static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is handed on to the system's allocator.
#[allow(unsafe_code, reason = "bytes are counted where they are allocated")]
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

const RANGE_BYTES: u64 = 128 << 20;

/// What something gives, the megabytes that it holds afterwards, and milliseconds.
fn measured<T>(run: impl FnOnce() -> T) -> (T, f64, f64) {
    let (held, began) = (HELD.load(Relaxed), Instant::now());
    let result = run();
    let millis = began.elapsed().as_secs_f64() * 1e3;
    let bytes = HELD.load(Relaxed) as f64 - held as f64;
    (result, bytes / 1e6, millis)
}

fn given(n: usize, otherwise: usize) -> usize {
    let arg = std::env::args().nth(n);
    arg.and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

/// Sizes from the smallest to the largest, each ten times the one before.
fn growing(largest: usize, many: u32) -> impl Iterator<Item = usize> {
    (0..many)
        .rev()
        .map(move |n| (largest / 10_usize.pow(n)).max(1))
}

/// The power with which something grows, from two sizes and its amounts there.
fn exponent(sizes: (usize, usize), amounts: (f64, f64)) -> f64 {
    (amounts.1 / amounts.0).ln() / (sizes.1 as f64 / sizes.0 as f64).ln()
}

fn uuid(n: usize) -> [u8; 16] {
    let mut uuid = [7; 16];
    uuid[..8].copy_from_slice(&(n as u64).to_be_bytes());
    uuid
}

fn entry(n: usize) -> CollectionEntry {
    CollectionEntry {
        ns: format!("shop.collection{n:06}"),
        uuid: uuid(n),
        key: ShardKey::parse(doc! {"customer": 1}.as_doc()).expect("a key"),
        unique: false,
        unsplittable: false,
        epoch: ObjectId([3; 12]),
        timestamp: 9,
        collation: None,
        series: None,
        measured: false,
    }
}

fn shard_name(n: usize) -> String {
    format!("shard{n:04}")
}

/// A document of `config.chunks`: the shards have them in turn.
fn document(key: &ShardKey, n: usize, chunks: usize, shards: usize) -> DocBuf {
    let bound = |n: usize| match n {
        0 => key.global_min(),
        n if n == chunks => key.global_max(),
        n => doc! {"customer": n as i64 * 1000},
    };
    let chunk = Chunk {
        id: ObjectId::generate(),
        min: bound(n),
        max: bound(n + 1),
        shard: shard_name(n % shards).into(),
        lastmod: Version::placement_of(1 + n as u32, 0),
        jumbo: false,
        since: 1,
        turn: 1 + n as u64,
    };
    chunk.to_doc(&uuid(0))
}

fn parse(d: Doc<'_>) -> Chunk {
    Chunk::parse(d).expect("a chunk")
}

/// The table that a router makes of all documents, and their bytes.
fn table(entry: CollectionEntry, chunks: usize, shards: usize) -> (RoutingTable, usize) {
    let mut bytes = 0;
    let mut parsed = Vec::with_capacity(chunks);
    for n in 0..chunks {
        let d = document(&entry.key, n, chunks, shards);
        bytes += d.as_bytes().len();
        parsed.push(parse(d.as_doc()));
    }
    (RoutingTable::new(entry, parsed).expect("a table"), bytes)
}

/// What a router reads when a chunk has moved: its documents, as the configuration set gives them.
fn moved(table: &RoutingTable, to: &str) -> Vec<DocBuf> {
    let chunk = table.chunks().nth(table.len() / 2).expect("a chunk");
    let to: Arc<str> = to.into();
    let bounds = (&chunk.min, &chunk.max);
    let moved = change_of_owner(table, bounds, &to, 1, ObjectId::generate).expect("a move");
    let turn = table.turn() + 1;
    let written = moved.new.into_iter().map(|c| Chunk { turn, ..c });
    written.map(|c| c.to_doc(&table.entry.uuid)).collect()
}

/// Shards that have as much as each other; where `uneven`, a tenth of them has nothing.
fn loads(names: &[String], uneven: bool) -> Vec<ShardLoad<'_>> {
    let empty = names.len() / 10;
    (names.iter().enumerate())
        .map(|(n, shard)| ShardLoad {
            shard,
            bytes: if uneven && n < empty {
                0
            } else {
                100 * RANGE_BYTES
            },
            draining: false,
            zones: Vec::new(),
        })
        .collect()
}

/// A line of the table by chunks; the megabytes of the table and the milliseconds that following a move took.
fn by_chunks(chunks: usize, shards: usize) -> (f64, f64) {
    let ((table, bytes), held, made) = measured(|| table(entry(0), chunks, shards));
    let documents = moved(&table, &shard_name(0));
    let read: usize = documents.iter().map(|d| d.as_bytes().len()).sum();
    let changed: Vec<Chunk> = documents.iter().map(|d| parse(d.as_doc())).collect();
    let (next, new, followed) = measured(|| table.with(changed).expect("a table"));
    let names: Vec<String> = (0..shards).map(shard_name).collect();
    let even = loads(&names, false);
    let ((), _, planned) = measured(|| {
        let moves = plan(&next, Vec::new(), &even, RANGE_BYTES, false).expect("a plan");
        assert!(moves.is_empty());
    });
    let known = Ownership::of(&next, &shard_name(shards / 2));
    println!(
        "{chunks:>10} {:>9.1} {:>6.0} {held:>9.1} {made:>9.0} {:>5} {read:>6} {new:>8.3} {followed:>9.3} {planned:>8.2} {:>8} {:>8.1}",
        bytes as f64 / 1e6,
        bytes as f64 / chunks as f64,
        documents.len(),
        known.owned.len(),
        known.to_doc().as_bytes().len() as f64 / 1e3,
    );
    (held, followed)
}

/// A line of the table by shards: a tenth of them is new and empty.
fn by_shards(shards: usize) -> f64 {
    let (table, _) = table(entry(0), 100 * shards, shards);
    let names: Vec<String> = (0..shards).map(shard_name).collect();
    let uneven = loads(&names, true);
    let (moves, _, planned) = measured(|| {
        let moves = plan(&table, Vec::new(), &uneven, RANGE_BYTES, false).expect("a plan");
        moves.len()
    });
    let zone = |n: usize| Zone {
        name: format!("zone{n:04}"),
        range: {
            let bound = |n: usize| doc! {"customer": n as i64 * 100_000};
            let (min, max) = (bound(n), bound(n + 1));
            table
                .key()
                .range(min.as_doc(), max.as_doc())
                .expect("a range")
        },
    };
    let zones: Vec<Zone> = (1..shards - 1).map(zone).collect();
    let in_zones: Vec<String> = (0..shards).map(|n| format!("zone{n:04}")).collect();
    let zoned: Vec<ShardLoad<'_>> = loads(&names, false)
        .into_iter()
        .zip(&in_zones)
        .map(|(load, zone)| ShardLoad {
            zones: vec![zone],
            ..load
        })
        .collect();
    let (of_zones, _, by_zones) = measured(|| {
        let moves = plan(&table, zones, &zoned, RANGE_BYTES, false).expect("a plan");
        moves.len()
    });
    println!(
        "{shards:>10} {:>10} {moves:>9} {planned:>9.2} {:>9} {of_zones:>9} {by_zones:>9.2}",
        table.len(),
        shards.saturating_sub(2),
    );
    by_zones
}

/// The tables of many collections in one router: bytes of `config.chunks`, megabytes held.
fn by_collections(collections: usize, chunks: usize, shards: usize) -> f64 {
    let mut bytes = 0;
    let (tables, held, _) = measured(|| {
        let one = |n| {
            let (table, read) = table(entry(n), chunks, shards);
            bytes += read;
            table
        };
        (0..collections).map(one).collect::<Vec<_>>()
    });
    black_box(tables.len());
    let read = bytes as f64 / 1e6;
    println!("{collections:>10} {chunks:>10} {read:>10.1} {held:>10.1}");
    held
}

fn main() {
    let (chunks, shards, collections) = (given(1, 10_000_000), given(2, 1000), given(3, 100_000));
    println!(
        "one collection on {shards} shards: config.chunks (MB, bytes each), the table (MB, ms to make),"
    );
    println!(
        "after a move (documents, bytes read, MB new, ms), a plan without work (ms), a shard's ranges (KB)"
    );
    let sizes: Vec<usize> = growing(chunks, 4).collect();
    let figures: Vec<(f64, f64)> = sizes.iter().map(|n| by_chunks(*n, shards)).collect();
    let ends = (sizes[0], sizes[3]);
    let of = |which: fn(&(f64, f64)) -> f64| (which(&figures[0]), which(&figures[3]));
    println!(
        "exponents: memory of the table {:.2}, time after a move {:.2}",
        exponent(ends, of(|f| f.0)),
        exponent(ends, of(|f| f.1))
    );
    println!(
        "\nby shards, 100 chunks each: a tenth is empty (moves, ms); a zone for each (zones, moves, ms)"
    );
    let sizes: Vec<usize> = growing(shards, 3).map(|n| n.max(4)).collect();
    let figures: Vec<f64> = sizes.iter().map(|n| by_shards(*n)).collect();
    let power = exponent((sizes[0], sizes[2]), (figures[0], figures[2]));
    println!("exponent of a plan with zones: {power:.2}");
    println!("\nby collections: chunks of each, config.chunks (MB), tables in a router (MB)");
    let each = (chunks / collections).max(1);
    let sizes: Vec<usize> = growing(collections, 4).collect();
    let figures: Vec<f64> = sizes
        .iter()
        .map(|n| by_collections(*n, each, shards))
        .collect();
    let power = exponent((sizes[0], sizes[3]), (figures[0], figures[3]));
    println!("exponent: {power:.2}");
}
