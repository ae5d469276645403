//! The figures of docs/scale-out.md: the same scenes as the tests', at growing sizes.

use crate::metadata::Size;
use crate::rounds::{balancer_round, resolver_round};
use crate::servers::Requests;
use crate::storms::{first_use, looks_at, storm_of_a_failover, storm_of_a_move};
use crate::{Scene, sizes, view};
use cluster_view::collections::sizes_on;
use std::time::{Duration, Instant};

/// A size from the environment.
fn given(name: &str, otherwise: usize) -> usize {
    let set = std::env::var(format!("PANDO_SCALE_{name}")).ok();
    set.and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

/// Sizes from a hundredth of the largest, each ten times the one before.
fn growing(largest: usize) -> Vec<usize> {
    [100, 10, 1].map(|part| (largest / part).max(2)).to_vec()
}

fn shown(asked: Requests) -> String {
    let mb = asked.bytes as f64 / 1e6;
    format!("{:>9} {mb:>11.3} {:>9}", asked.messages, asked.documents)
}

fn head(first: &str) {
    println!(
        "{first:>34} | config: messages, MB, documents | shards: messages, MB, documents | ms"
    );
}

fn round_line(what: &str, scene: &Scene) {
    let began = Instant::now();
    let load = balancer_round(scene);
    let millis = began.elapsed().as_millis();
    println!(
        "{what:>34} | {} | {} | {millis:>6}",
        shown(load.config),
        shown(load.shards)
    );
}

/// What a round would take that asks each shard for the sizes of all collections.
fn by_name(scene: &Scene) {
    let names: Vec<String> = (0..scene.size.collections).map(Size::ns).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for shard in 0..scene.size.shards {
        let sizes = sizes_on(&scene.cluster, &Size::shard_name(shard), &names);
        assert_eq!(sizes.expect("sizes").len(), names.len());
    }
    let what = format!("by name: {}, {}", scene.size.shards, names.len());
    println!("{what:>34} | {:>31} | {} |", "", shown(scene.load().shards));
}

#[test]
#[ignore = "prints figures"]
fn rounds_of_the_balancer() {
    let (shards, collections) = (given("SHARDS", 1000), given("COLLECTIONS", 100_000));
    head("balancer: shards, collections");
    let of = |shards, collections| Size {
        shards,
        collections,
        chunks: 100,
    };
    let by_collections = growing(collections).into_iter().map(|n| (shards / 10, n));
    let by_shards = growing(shards).into_iter().map(|n| (n, collections / 10));
    for (shards, collections) in by_collections
        .chain(by_shards)
        .chain([(shards, collections)])
    {
        let size = of(shards.max(2), collections);
        let scene = Scene::even(size);
        round_line(&format!("idle: {shards}, {collections}"), &scene);
        by_name(&scene);
    }
    let size = of(shards, collections / 10);
    let scene = Scene::even(size);
    *scene.metadata.draining.lock() = Some(shards / 2);
    round_line(&format!("emptied: {shards}, {}", size.collections), &scene);
    // A tenth of the shards is new.
    let new = shards / 10;
    let grown = sizes(size, move |shard, _| if shard < new { 0 } else { 20 });
    let scene = Scene::new(size, 1, grown);
    round_line(
        &format!("a tenth new: {shards}, {}", size.collections),
        &scene,
    );
}

#[test]
#[ignore = "prints figures"]
fn rounds_of_the_resolver() {
    head("resolver: shards");
    for shards in growing(given("SHARDS", 1000)) {
        let scene = Scene::even(Size {
            shards,
            collections: 1,
            chunks: 10,
        });
        let load = resolver_round(&scene);
        println!(
            "{shards:>34} | {} | {} |",
            shown(load.config),
            shown(load.shards)
        );
    }
}

#[test]
#[ignore = "prints figures"]
fn storms() {
    let routers = given("ROUTERS", 500);
    head("a move: routers, chunks");
    for (routers, chunks) in growing(routers)
        .into_iter()
        .map(|n| (n, 1000))
        .chain([(10, 10_000), (10, 100_000)])
    {
        let size = Size {
            shards: 4,
            collections: 1,
            chunks,
        };
        let load = storm_of_a_move(size, routers);
        println!(
            "{:>34} | {} | {} |",
            format!("{routers}, {chunks}"),
            shown(load.config),
            shown(load.shards)
        );
    }
    println!("a failover: routers | config: messages | hello at three members | requests");
    for routers in growing(routers) {
        let (config, hello, requests) = storm_of_a_failover(routers, Duration::from_secs(3));
        println!(
            "{routers:>19} | {:>9} | {:>9} | {:>9}",
            config.messages, hello.messages, requests.messages
        );
    }
}

#[test]
#[ignore = "prints figures"]
fn first_uses() {
    head("first use: collections, chunks");
    for (collections, chunks) in [(10, 100), (100, 100), (1000, 100), (10, 10_000)] {
        let size = Size {
            shards: 4,
            collections,
            chunks,
        };
        let load = first_use(size, collections);
        let what = format!("{collections}, {chunks}");
        println!(
            "{what:>34} | {} | {} |",
            shown(load.config),
            shown(load.shards)
        );
    }
}

/// What a router that has nothing to do asks each member, and how many threads it has for that.
#[test]
#[ignore = "prints figures"]
fn idle_routers() {
    println!("idle router: members | hello a second at each | bytes of one | threads");
    for shards in growing(given("IDLE_SHARDS", 200)) {
        let size = Size {
            shards,
            collections: 1,
            chunks: 10,
        };
        let scene = Scene::new(size, 3, sizes(size, |_, _| 1));
        let router = view(&scene.config);
        let before = threads();
        for n in 0..shards {
            router.shard(&Size::shard_name(n)).expect("a shard");
        }
        std::thread::sleep(Duration::from_secs(2));
        let watching = threads() - before;
        let (each, bytes) = looks_at(&scene.members[1], Duration::from_secs(40));
        // Each watch is a thread here and one of the member that it asks.
        println!(
            "{:>20} | {each:>22.2} | {bytes:>12} | {:>7}",
            3 * shards,
            watching / 2
        );
    }
}

/// The threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count())
}
