//! Rounds of the balancer and of the resolver: what they ask does not grow with what needs no moves.

use crate::metadata::Size;
use crate::servers::{Requests, take_all};
use crate::{Load, Scene, sizes};
use mover::balancer::Balancer;
use mover::resolver::Resolver;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What a round of the balancer asks, when the shards are known.
pub fn balancer_round(scene: &Scene) -> Load {
    // The shards' addresses are read once.
    let known = scene.cluster.shard(&Size::shard_name(0));
    known.expect("a shard");
    scene.load();
    let mut balancer = Balancer::default();
    balancer.round(&scene.cluster).expect("a round");
    scene.load()
}

pub fn resolver_round(scene: &Scene) -> Load {
    let mut resolver = Resolver::default();
    resolver.look(&scene.cluster).expect("a round");
    scene.load();
    resolver.look(&scene.cluster).expect("a round");
    scene.load()
}

fn size(shards: usize, collections: usize) -> Size {
    Size {
        shards,
        collections,
        chunks: 2 * shards,
    }
}

/// All collections are even and small: each shard is asked once, and no collection is named.
#[test]
fn a_round_without_work_does_not_grow_with_the_collections() {
    let few = balancer_round(&Scene::even(size(4, 20)));
    let many = balancer_round(&Scene::even(size(4, 400)));
    let double = balancer_round(&Scene::even(size(8, 20)));
    assert_eq!(few.shards.messages, 4);
    assert_eq!(many.shards, few.shards);
    assert_eq!(double.shards.messages, 8);
    assert_eq!(double.shards.bytes, 2 * few.shards.bytes);
    // The entries of the collections are read, by cursors; and the shards, settings, zones.
    assert_eq!(many.config.documents - few.config.documents, 380);
    let each = (many.config.bytes - few.config.bytes) / 380;
    assert!(each < 100, "{each} bytes of each collection");
}

/// An older shard is asked for each collection by its name, as it knows it.
#[test]
fn an_older_shard_is_asked_by_name() {
    let scene = Scene::even(size(3, 50));
    scene.shards[1].older.store(true, Relaxed);
    let load = balancer_round(&scene);
    // Two knew at first, the third did not; then all are asked for 50 names.
    assert_eq!(load.shards.messages, 5);
    let names = 3 * 50 * Size::ns(0).len() as u64;
    assert!(load.shards.bytes > names, "{load:?}");
}

/// Of 300 collections one is uneven: it alone is asked for by name, and its chunks alone are read.
#[test]
fn a_round_looks_at_what_is_uneven() {
    let size = size(4, 300);
    let uneven = sizes(size, |shard, collection| match (shard, collection) {
        (0, 7) => 20,
        _ => 1,
    });
    let idle = balancer_round(&Scene::even(size));
    let scene = Scene::new(size, 1, uneven);
    scene.cluster.shard(&Size::shard_name(0)).expect("a shard");
    scene.load();
    let mut balancer = Balancer::default();
    balancer.round(&scene.cluster).expect("a round");
    let asked = take_all(&scene.members);
    assert_eq!(asked["_pandoSizes"].messages, 2 * 4);
    // One move: where its chunk is cut.
    assert_eq!(asked["collStats"].messages, 1);
    assert_eq!(asked["find"].messages, 1);
    let config = scene.config.take_counts();
    let read = config["find"].documents + config["getMore"].documents;
    assert_eq!(read, idle.config.documents + 1 + size.chunks as u64);
}

/// While a shard is emptied, the collections of which it has chunks are looked at, and no others.
#[test]
fn a_round_that_empties_a_shard_looks_at_what_it_has() {
    let size = Size {
        shards: 10,
        collections: 200,
        chunks: 2,
    };
    let on_one = |shard: usize| (0..200).filter(|c| size.chunks_on(*c, shard) > 0).count() as u64;
    assert_eq!(on_one(3), 40);
    let scene = Scene::even(size);
    let idle = balancer_round(&scene);
    *scene.metadata.draining.lock() = Some(3);
    let emptied = balancer_round(&scene);
    let chunks = 2 * on_one(3);
    assert_eq!(
        emptied.config.documents,
        idle.config.documents + on_one(3) + chunks
    );
    // All are asked for the sizes of these in one message; the donor, where each first chunk is cut.
    assert_eq!(emptied.shards.messages, 10 + 10 + 2 * on_one(3));
}

/// A round plans a bounded number of moves, and the next goes on behind it.
#[test]
fn rounds_take_turns_at_the_collections() {
    let size = size(20, 250);
    let scene = Scene::new(
        size,
        1,
        sizes(size, |shard, _| if shard < 10 { 20 } else { 1 }),
    );
    let mut balancer = Balancer::default();
    let mut planned = || {
        scene.load();
        balancer.round(&scene.cluster).expect("a round");
        let asked = take_all(&scene.members);
        // One for each planned move.
        asked["collStats"].messages
    };
    // Ten moves of each collection: 100 collections in a round.
    assert_eq!(planned(), 1000);
    assert_eq!(planned(), 1000);
    assert_eq!(planned(), 1000);
    // The lock of each collection was asked for once in each round that planned moves of it.
    let locks = scene.metadata.locks.lock();
    assert_eq!(locks.len(), 250);
    assert_eq!(locks.values().filter(|asked| **asked == 2).count(), 50);
    assert_eq!(locks.values().sum::<u64>(), 300);
}

/// A shard that has many large collections tells of them in several replies.
#[test]
fn large_collections_are_told_part_by_part() {
    let size = size(2, 40);
    // 20 of them are even, and large.
    let large = sizes(size, |_, collection| 1 + 4 * (collection as u64 % 2));
    let scene = Scene::new(size, 1, large);
    scene.shards[0].at_once.store(7, Relaxed);
    let load = balancer_round(&scene);
    assert_eq!(load.shards.messages, 3 + 1);
}

/// However many collections are uneven, a round asks for the sizes of a bounded number, and the next goes on
/// behind them.
#[test]
fn a_round_asks_for_a_bounded_number_of_sizes() {
    let size = Size {
        shards: 2,
        collections: 3000,
        chunks: 1,
    };
    let scene = Scene::new(size, 1, sizes(size, |_, _| 20));
    for shard in &scene.shards {
        shard.older.store(true, Relaxed);
    }
    scene.cluster.shard(&Size::shard_name(0)).expect("a shard");
    let mut balancer = Balancer::default();
    let names = |messages: u64| messages * Size::ns(0).len() as u64;
    scene.load();
    balancer.round(&scene.cluster).expect("a round");
    let asked = take_all(&scene.members)["_pandoSizes"];
    assert_eq!(asked.messages, 3);
    assert!(
        asked.bytes > names(2 * 2000) && asked.bytes < 3 * names(2 * 2000),
        "{asked:?}"
    );
    let locks = std::mem::take(&mut *scene.metadata.locks.lock());
    balancer.round(&scene.cluster).expect("a round");
    let next = scene.metadata.locks.lock();
    assert!(!locks.is_empty() && next.keys().all(|ns| !locks.contains_key(ns)));
}

/// A shard whose primary is gone holds up neither the resolver nor the balancer.
#[test]
fn a_shard_without_a_primary_holds_no_round_up() {
    let scene = Scene::even(size(5, 10));
    scene.members[2].set_primary(false);
    let began = Instant::now();
    assert_eq!(resolver_round(&scene).shards.messages, 4);
    assert_eq!(balancer_round(&scene).shards.messages, 4);
    // A request for it would wait for 20 seconds.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// The resolver asks each shard once, and reads shards and settings.
#[test]
fn a_round_of_the_resolver_grows_with_the_shards_only() {
    let few = resolver_round(&Scene::even(size(4, 20)));
    let many = resolver_round(&Scene::even(size(4, 400)));
    let double = resolver_round(&Scene::even(size(8, 20)));
    assert_eq!(many, few);
    let of = |asked: Requests| (asked.messages, asked.documents);
    assert_eq!((of(few.config), of(few.shards)), ((2, 4), (4, 0)));
    assert_eq!((of(double.config), of(double.shards)), ((2, 8), (8, 0)));
}
