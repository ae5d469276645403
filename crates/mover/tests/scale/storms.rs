//! Many routers at once: what a move, a shard's failover and a start of all of them cost the configuration set.

use crate::metadata::Size;
use crate::servers::{Requests, Server, take_all, total};
use crate::{Load, Scene, sizes, view, view_by};
use bson::doc;
use cluster_view::Cluster;
use cluster_view::metadata::Placement;
use sharding::moving::change_of_owner;
use sharding::{Chunk, Ownership, RoutingTable};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Has each router do the same at once, each in a thread of its own.
pub fn at_once(routers: &[Cluster], run: impl Fn(&Cluster) + Sync) {
    std::thread::scope(|threads| {
        for router in routers {
            let thread = std::thread::Builder::new().stack_size(512 << 10);
            let one = thread.spawn_scoped(threads, || run(router));
            one.expect("a thread");
        }
    });
}

pub fn routers(scene: &Scene, many: usize) -> Vec<Cluster> {
    (0..many).map(|_| view(&scene.config)).collect()
}

/// A read of the first collection at a shard, until router and shard agree.
pub fn read_at(router: &Cluster, shard: usize) {
    read_of(router, 0, shard);
}

pub fn read_of(router: &Cluster, collection: usize, shard: usize) {
    let ns = Size::ns(collection);
    let (_, name) = ns.split_once('.').expect("a collection");
    let find = doc! {"find": name, "$db": "shop"};
    let shard = Size::shard_name(shard);
    let attempt = |placement: Option<&Placement>| {
        router.send(placement.expect("a placement"), &shard, find.as_doc(), &[])
    };
    router.agree(&ns, attempt).expect("an answer");
}

/// What a shard is told when a table is new.
fn teach(scene: &Scene, table: &RoutingTable, shard: usize) {
    scene.shards[shard].learn(&Ownership::of(table, &Size::shard_name(shard)));
}

/// All shards know the first collection as it is at first.
pub fn begin(scene: &Scene) {
    let table = scene.size.table(0);
    (0..scene.size.shards).for_each(|shard| teach(scene, &table, shard));
}

/// A chunk of the first shard goes to the second, in the metadata and at both, as a mover ends a move.
pub fn move_a_chunk(scene: &Scene) {
    let mut changed = scene.metadata.changed.lock();
    let table = changed.remove(&0).unwrap_or_else(|| scene.size.table(0));
    let chunk = table
        .chunk_of(&Size::shard_name(0), |_| true)
        .expect("a chunk");
    let to: Arc<str> = Size::shard_name(1).into();
    let (bounds, id) = ((&chunk.min, &chunk.max), bson::ObjectId::generate);
    let moved = change_of_owner(&table, bounds, &to, 1, id).expect("a move");
    let turn = table.turn() + 1;
    let new = moved.new.into_iter().map(|c| Chunk { turn, ..c }).collect();
    let table = table.with(new).expect("a table");
    (0..2).for_each(|shard| teach(scene, &table, shard));
    changed.insert(0, table);
}

fn size(shards: usize, chunks: usize) -> Size {
    Size {
        shards,
        collections: 1,
        chunks,
    }
}

/// What routers read when a chunk has moved, and each sends a request to the donor and one to the recipient.
pub fn storm_of_a_move(size: Size, many: usize) -> Load {
    let scene = Scene::even(size);
    begin(&scene);
    let routers = routers(&scene, many);
    at_once(&routers, |router| read_at(router, 0));
    move_a_chunk(&scene);
    scene.load();
    at_once(&routers, |router| {
        read_at(router, 0);
        read_at(router, 1);
    });
    scene.load()
}

/// Two reads of the configuration set for each router, of the entry and of two chunks, however many chunks there
/// are and shards.
#[test]
fn a_move_costs_each_router_two_small_reads() {
    for (routers, shards, chunks) in [(3, 2, 50), (12, 2, 50), (3, 6, 50), (3, 2, 3000)] {
        let load = storm_of_a_move(size(shards, chunks), routers);
        assert_eq!(
            load.config.messages,
            2 * routers as u64,
            "{shards} {chunks}"
        );
        // The chunk of the turn that the table had before is read again.
        assert_eq!(
            load.config.documents,
            4 * routers as u64,
            "{shards} {chunks}"
        );
        // The donor refuses once.
        assert_eq!(
            load.shards.messages,
            3 * routers as u64,
            "{shards} {chunks}"
        );
    }
}

/// What is asked when a shard's primary has gone and another is elected while a request of each router is
/// waiting: of the configuration set; `hello` at the shard's members; the requests.
pub fn storm_of_a_failover(many: usize, without: Duration) -> (Requests, Requests, Requests) {
    let only = size(1, 10);
    let scene = Scene::new(only, 3, sizes(only, |_, _| 1));
    begin(&scene);
    let routers = routers(&scene, many);
    at_once(&routers, |router| read_at(router, 0));
    scene.load();
    scene.members[0].set_primary(false);
    let elected = scene.members[1].clone();
    let election = std::thread::spawn(move || {
        std::thread::sleep(without);
        elected.set_primary(true);
    });
    at_once(&routers, |router| read_at(router, 0));
    election.join().expect("an election");
    let asked = take_all(&scene.members);
    let hello = asked.get("hello").copied().unwrap_or_default();
    (total(&scene.config.take_counts()), hello, total(&asked))
}

/// The table is as good as before: only members are asked.
#[test]
fn a_failover_asks_the_configuration_set_nothing() {
    for routers in [2, 8] {
        let (config, hello, requests) = storm_of_a_failover(routers, Duration::from_millis(500));
        assert_eq!(config, Requests::default());
        // Refused once, answered once.
        assert_eq!(requests.messages, 2 * routers as u64);
        // Three members, looked at ever more rarely: after 20 ms, 40, 80, ….
        let each = hello.messages / routers as u64;
        assert!((3..=30).contains(&each), "{each} looks of each router");
    }
}

/// What it costs that a router learns of a number of collections.
pub fn first_use(size: Size, collections: usize) -> Load {
    let scene = Scene::even(size);
    let router = view(&scene.config);
    router.shard(&Size::shard_name(0)).expect("a shard");
    scene.load();
    for n in 0..collections {
        router.placement(&Size::ns(n)).expect("a placement");
    }
    scene.load()
}

/// Two reads for each collection, all chunks once.
#[test]
fn a_router_reads_a_collection_when_it_is_used() {
    let size = Size {
        shards: 4,
        collections: 100,
        chunks: 20,
    };
    let load = first_use(size, 10);
    assert_eq!((load.config.messages, load.config.documents), (20, 10 * 21));
    assert_eq!(load.shards.messages, 0);
}

/// Of a configuration set of three each member answers a part of the reads of first uses, and the primary alone
/// the reads that follow a refusal.
#[test]
fn first_uses_are_read_at_all_members() {
    let few = Size {
        shards: 2,
        collections: 90,
        chunks: 300,
    };
    let scene = Scene::even(few);
    let others = [0, 1].map(|_| Server::start(scene.metadata.clone()));
    others.iter().for_each(|member| member.set_primary(false));
    let members = [scene.config.clone(), others[0].clone(), others[1].clone()];
    let hosts: Vec<&str> = members.iter().map(|m| m.host.as_str()).collect();
    let router = view_by(&hosts);
    let began = Instant::now();
    // All have said what they are.
    while !members.iter().all(|m| m.was_asked()) && began.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    scene.load();
    for n in 0..few.collections {
        router.placement(&Size::ns(n)).expect("a placement");
    }
    let reads = members.each_ref().map(|m| total(&m.take_counts()).messages);
    // An entry, and two batches of chunks each.
    assert_eq!(reads.iter().sum::<u64>(), 3 * 90);
    assert!(reads.iter().all(|n| *n > 3 * 90 / 10), "{reads:?}");
    begin(&scene);
    move_a_chunk(&scene);
    read_of(&router, 0, 0);
    let reads = members.each_ref().map(|m| total(&m.take_counts()).messages);
    // The addresses of shards, the entry, what has changed.
    assert_eq!(reads, [3, 0, 0]);
}

/// A process watches the members of shards that it asks something, and of no others: so shards that join with a few
/// of a thousand shards do not watch three thousand members each.
#[test]
fn a_view_watches_the_shards_that_it_uses() {
    let few = size(6, 10);
    let scene = Scene::new(few, 3, sizes(few, |_, _| 1));
    begin(&scene);
    read_at(&scene.cluster, 2);
    let began = Instant::now();
    let looked = loop {
        let looked: Vec<usize> = (0..18).filter(|n| scene.members[*n].was_asked()).collect();
        if looked.len() == 3 || began.elapsed() > Duration::from_secs(5) {
            break looked;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(looked, [6, 7, 8]);
    // Nor does it tell others of sessions that have ended.
    scene.load();
    let ended = doc! {"endSessions": bson::array![], "$db": "admin"};
    scene.cluster.tell_used_shards(&ended);
    let load = scene.load();
    assert_eq!((load.config.messages, load.shards.messages), (0, 1));
}

/// How often a second one member is looked at by an idle process, and the bytes of a look.
pub fn looks_at(member: &Server, during: Duration) -> (f64, u64) {
    member.take_counts();
    let began = Instant::now();
    std::thread::sleep(during);
    let looks = member
        .take_counts()
        .get("hello")
        .copied()
        .unwrap_or_default();
    let seconds = began.elapsed().as_secs_f64();
    (
        looks.messages as f64 / seconds,
        looks.bytes / looks.messages.max(1),
    )
}
