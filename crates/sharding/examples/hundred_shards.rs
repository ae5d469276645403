//! What a large cluster costs: fills a real routing table, and measures bytes and times.
//!
//!     cargo run --release -p sharding --example hundred_shards [chunks, 1000000] [shards, 100] [routers, 1000]
//!
//! Under `valgrind --tool=callgrind` times mean nothing; instructions are counted there.

use bson::{Doc, DocBuf, ObjectId, doc};
use sharding::balance::{Load, choose};
use sharding::moving::change_of_owner;
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

const UUID: [u8; 16] = [7; 16];

fn measured<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let (held, began) = (HELD.load(Relaxed), Instant::now());
    let result = run();
    let millis = began.elapsed().as_secs_f64() * 1e3;
    let bytes = HELD.load(Relaxed) as f64 - held as f64;
    println!("{what:<58} {millis:>10.3} ms {:>10.3} MB held", bytes / 1e6);
    result
}

fn given(n: usize, otherwise: usize) -> usize {
    let arg = std::env::args().nth(n);
    arg.and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

fn entry() -> CollectionEntry {
    CollectionEntry {
        ns: "d.c".into(),
        uuid: UUID,
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

/// The documents of `config.chunks`: the shards have them in turn.
fn documents(key: &ShardKey, chunks: usize, shards: usize) -> Vec<DocBuf> {
    let bound = |n: usize| match n {
        0 => key.global_min(),
        n if n == chunks => key.global_max(),
        n => doc! {"customer": n as i64 * 1000},
    };
    let document = |n: usize| {
        let chunk = Chunk {
            id: ObjectId::generate(),
            min: bound(n),
            max: bound(n + 1),
            shard: format!("shard{:03}", n % shards).into(),
            lastmod: Version::placement_of(1 + n as u32, 0),
            jumbo: false,
            since: 1,
            turn: 1 + n as u64,
        };
        chunk.to_doc(&UUID)
    };
    (0..chunks).map(document).collect()
}

fn parse<'d>(all: impl Iterator<Item = Doc<'d>>) -> Vec<Chunk> {
    all.map(|d| Chunk::parse(d).expect("a chunk")).collect()
}

fn look_up(table: &RoutingTable, many: usize) {
    let mut at = 12_345_u64;
    let began = Instant::now();
    for _ in 0..many {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = doc! {"customer": (at >> 34) as i64};
        let place = table.key().place_of(key.as_doc()).expect("a place");
        black_box(table.chunk_at(&place));
    }
    let each = began.elapsed().as_secs_f64() * 1e9 / many as f64;
    println!("{:<58} {each:>10.0} ns", "a document's place and its chunk");
}

fn a_move(table: &RoutingTable, n: usize) -> RoutingTable {
    let chunk = table.chunks().nth(n).expect("a chunk").clone();
    let bounds = (&chunk.min, &chunk.max);
    let to: Arc<str> = "shard000".into();
    let moved = measured("the chunks of a move", || {
        change_of_owner(table, bounds, &to, 1, ObjectId::generate).expect("a move")
    });
    let documents: Vec<DocBuf> = moved.new.iter().map(|c| c.to_doc(&UUID)).collect();
    let bytes: usize = documents.iter().map(|d| d.as_bytes().len()).sum();
    println!("{:<58} {bytes:>10} B", "what a router reads after it");
    measured("a refresh by what has changed", || {
        let changed = parse(documents.iter().map(DocBuf::as_doc));
        table.with(changed).expect("a table")
    })
}

fn main() {
    let (chunks, shards, routers) = (given(1, 1_000_000), given(2, 100), given(3, 1000));
    println!("{chunks} chunks, {shards} shards, {routers} routers");
    let entry = entry();
    let all = documents(&entry.key, chunks, shards);
    let bytes: usize = all.iter().map(|d| d.as_bytes().len()).sum();
    println!("{:<58} {:>10.1} MB", "config.chunks", bytes as f64 / 1e6);
    println!(
        "{:<58} {:>10.1} GB",
        "all routers read it whole once",
        bytes as f64 * routers as f64 / 1e9
    );
    let table = measured("all chunks parsed, and the table", || {
        let parsed = parse(all.iter().map(DocBuf::as_doc));
        RoutingTable::new(entry.clone(), parsed).expect("a table")
    });
    look_up(&table, 1_000_000.min(chunks * 10));
    let next = a_move(&table, chunks / 2 + 1);
    measured("the table before it is forgotten", || drop(table));
    measured("the ranges of a shard", || {
        black_box(next.owned_by("shard001")).len()
    });
    let known = Ownership::of(&next, "shard001");
    let document = known.to_doc();
    println!(
        "{:<58} {:>10.1} KB, {} ranges",
        "what a shard keeps of its part",
        document.as_bytes().len() as f64 / 1e3,
        known.owned.len()
    );
    let told = Ownership {
        seen: known.seen + 1,
        ..known.clone()
    };
    measured("a shard learns of a move", || {
        let told = Ownership::parse(told.to_doc().as_doc()).expect("an ownership");
        black_box(Ownership::learn(Some(&known), &told))
    });
    let names: Vec<String> = (0..shards).map(|n| format!("shard{n:03}")).collect();
    let loads: Vec<Load<'_>> = (names.iter().enumerate())
        .map(|(n, shard)| Load {
            shard,
            bytes: n as u64 * 1_000_000,
            has_ranges: true,
            draining: false,
            may_take: true,
        })
        .collect();
    measured("the balancer chooses donor and recipient", || {
        black_box(choose(&loads, 128 << 20));
    });
    measured("the balancer looks for a chunk of the donor", || {
        black_box(next.chunk_of("shard099", |c| !c.jumbo).is_some());
    });
}
