//! What a store shows after it was opened again: closed cleanly, dropped without a flush, killed,
//! or cut short.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use storage::{Committed, Direction, Effect, Entry, LogWindow, Op, Store, StoreOptions};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(dir: &Path) -> StoreOptions {
    StoreOptions {
        cache_bytes: 16 << 20,
        ..StoreOptions::new(dir)
    }
}

fn open(dir: &Path) -> Arc<Store> {
    Store::open(options(dir)).unwrap()
}

fn entry(effects: Vec<Effect>) -> Entry {
    Entry::new("db.coll".into(), [9; 16], Op::Noop, effects)
}

fn put(key: &str, value: &str) -> Entry {
    entry(vec![Effect::Put(key.into(), value.into())])
}

fn key(n: u32) -> Vec<u8> {
    let mut key = vec![0, 0, 0, 0, 0, 0, 0, 1];
    key.extend_from_slice(&n.to_be_bytes());
    key
}

fn contents(store: &Arc<Store>) -> Model {
    between(store, &key(0), &[2])
}

fn between(store: &Arc<Store>, low: &[u8], high: &[u8]) -> Model {
    let mut scan = store.view().scan(low, high, Direction::Forward);
    let mut all = Model::new();
    while scan.next().unwrap() {
        all.insert(scan.key().to_vec(), scan.value().to_vec());
    }
    all
}

#[test]
fn a_store_that_does_not_sync_is_there_again_for_one_that_does() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(options(dir.path()).unsynced()).unwrap();
    let written = store.propose(vec![put("a", "1")]).unwrap();
    // Nothing waits for the disk, and all is told to be on it.
    store.wait_durable(written.index).unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.stats().replayed_entries, 1);
    assert_eq!(store.last(), written);
    store.close().unwrap();
    drop(store);
    let store = Store::open(options(dir.path()).unsynced()).unwrap();
    assert_eq!(store.stats().replayed_entries, 0);
    assert_eq!(&*store.view().get(b"a").unwrap().unwrap(), b"1");
}

#[test]
fn a_store_that_was_dropped_replays_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert_eq!(store.last(), Committed::default());
    let first = store.propose(vec![put("a", "1"), put("b", "2")]).unwrap();
    assert_eq!(first.index, 2);
    let second = store
        .propose(vec![
            entry(vec![Effect::Delete(b"a".to_vec())]),
            put("c", "3"),
        ])
        .unwrap();
    assert!(second.ts > first.ts);
    store.wait_durable(second.index).unwrap();
    assert_eq!(store.durable_index(), 4);
    drop(store);

    let store = open(dir.path());
    assert_eq!(store.stats().replayed_entries, 4);
    assert_eq!(store.last(), second);
    let view = store.view();
    assert!(view.get(b"a").unwrap().is_none());
    assert_eq!(&*view.get(b"b").unwrap().unwrap(), b"2");
    assert_eq!(&*view.get(b"c").unwrap().unwrap(), b"3");
    store.close().unwrap();
    drop((store, view));

    let store = open(dir.path());
    assert_eq!(
        store.stats().replayed_entries,
        0,
        "a closed store has nothing to replay"
    );
    let third = store.propose(vec![put("d", "4")]).unwrap();
    assert_eq!(third.index, 5);
    assert!(third.ts > second.ts);
}

/// An entry with several documents, and a record of the session.
fn transaction() -> Entry {
    let mut parts = vec![put("a", "1"), put("b", "2"), put("a", "3")];
    for (n, part) in (1..).zip(&mut parts) {
        part.count(n, 1, 1);
    }
    parts.push(entry(vec![Effect::Delete(b"b".to_vec())]));
    let mut whole = put("session", "done");
    whole.op = Op::Transaction(parts);
    whole
}

#[test]
fn a_transaction_is_applied_in_order_and_replayed_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let check = |store: &Arc<Store>| {
        let wanted = [("a", "3"), ("session", "done")];
        let wanted = wanted.map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec()));
        assert_eq!(between(store, b"a", b"z"), Model::from(wanted));
        assert_eq!([1, 2, 3].map(|tablet| store.counts(tablet)), [(1, 1); 3]);
    };
    assert_eq!(store.propose(vec![transaction()]).unwrap().index, 1);
    check(&store);
    let mut log = store.read_log(1).unwrap();
    let record = log.next().unwrap().unwrap();
    assert_eq!(Entry::decode(record.payload), Some(transaction()));
    assert!(record.wall_millis > 1_600_000_000_000 && record.term == 0);
    drop((log, store));
    let store = open(dir.path());
    assert_eq!(store.stats().replayed_entries, 1);
    check(&store);
}

#[test]
fn a_torn_transaction_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.propose(vec![put("first", "1")]).unwrap();
    let before = std::fs::metadata(segment(dir.path())).unwrap().len();
    store.propose(vec![transaction()]).unwrap();
    drop(store);
    let whole = std::fs::read(segment(dir.path())).unwrap();
    for cut in (before as usize..whole.len()).step_by(23) {
        let torn = tempfile::tempdir().unwrap();
        drop(open(torn.path()));
        std::fs::write(segment(torn.path()), &whole[..cut]).unwrap();
        let store = open(torn.path());
        let wanted = (b"first".to_vec(), b"1".to_vec());
        let found = between(&store, b"a", b"z");
        assert_eq!(found, Model::from([wanted]), "cut at {cut}");
        assert_eq!([1, 2, 3].map(|tablet| store.counts(tablet)), [(0, 0); 3]);
    }
}

fn segment(dir: &Path) -> std::path::PathBuf {
    let mut files = std::fs::read_dir(dir.join("log")).unwrap();
    files.next().unwrap().unwrap().path()
}

/// Writes down what it is told, and reads it at once.
struct Notes {
    latest: storage::View,
    told: std::sync::Mutex<Vec<(Committed, Entry)>>,
}

impl storage::Observer for Notes {
    fn applied(&self, at: Committed, entry: &Entry) {
        for key in entry.plain().flat_map(|e| &e.effects).map(Effect::key) {
            let there = self.latest.get(key).unwrap().is_some();
            assert!(there || key == b"b", "applied before it is told");
        }
        self.told.lock().unwrap().push((at, entry.clone()));
    }
}

#[test]
fn an_observer_is_told_of_what_is_applied_before_its_proposer_returns() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.propose(vec![put("before", "1")]).unwrap();
    let notes = Arc::new(Notes {
        latest: store.latest(),
        told: Default::default(),
    });
    let view = store.observe(notes.clone()).unwrap();
    assert!(view.get(b"before").unwrap().is_some());
    let last = store.propose(vec![put("x", "1"), transaction()]).unwrap();
    let told = std::mem::take(&mut *notes.told.lock().unwrap());
    assert_eq!((told[0].0.index, &told[0].1), (2, &put("x", "1")));
    assert_eq!(told[1..], [(last, transaction())]);
    assert!(view.get(b"x").unwrap().is_none());
    store
        .write_unlogged(&[Effect::Delete(b"x".to_vec())])
        .unwrap();
    assert!(notes.told.lock().unwrap().is_empty());
}

#[test]
fn a_view_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.propose(vec![put("a", "1")]).unwrap();
    let view = store.view();
    let latest = store.latest();
    store.propose(vec![put("a", "2"), put("b", "2")]).unwrap();
    assert_eq!(&*view.get(b"a").unwrap().unwrap(), b"1");
    assert_eq!(&*latest.get(b"a").unwrap().unwrap(), b"2");
    let values = view.get_some(&[b"b", b"a", b"a"]).unwrap();
    let values: Vec<Option<&[u8]>> = values.iter().map(|v| v.as_deref()).collect();
    assert_eq!(values, [None, Some(&b"1"[..]), Some(b"1")]);
    let value = view.get(b"a").unwrap().unwrap();
    let mut scan = view.scan(b"a", b"", Direction::Forward);
    drop((view, latest, store));
    let e = Store::open(options(dir.path())).err().unwrap();
    assert_eq!(
        e.code,
        errors::Code::DBPathInUse,
        "a scan still reads the directory"
    );
    assert!(scan.next().unwrap());
    assert_eq!((scan.key(), scan.value()), (&b"a"[..], &b"1"[..]));
    assert!(!scan.next().unwrap());
    assert_eq!(&*value, b"1", "a value outlives the store");
}

#[test]
fn scans_keep_their_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let entries = (0..100).map(|n| {
        let k = format!("{:02}", n);
        put(&k, &k)
    });
    store.propose(entries.collect()).unwrap();
    for flushed in [false, true] {
        if flushed {
            store.flush().unwrap();
        }
        let all = |low: &str, high: &str, direction| {
            let mut scan = store
                .view()
                .scan(low.as_bytes(), high.as_bytes(), direction);
            let mut keys = Vec::new();
            while scan.next().unwrap() {
                keys.push(String::from_utf8(scan.key().to_vec()).unwrap());
            }
            assert!(!scan.valid() && scan.key().is_empty() && !scan.next().unwrap());
            keys
        };
        assert_eq!(all("97", "", Direction::Forward), ["97", "98", "99"]);
        assert_eq!(all("10", "13", Direction::Forward), ["10", "11", "12"]);
        assert_eq!(all("10", "13", Direction::Backward), ["12", "11", "10"]);
        assert_eq!(all("98", "", Direction::Backward), ["99", "98"]);
        assert_eq!(all("13", "13", Direction::Forward), [""; 0]);
        assert_eq!(all("13", "10", Direction::Backward), [""; 0]);

        let mut scan = store.view().scan(b"10", b"20", Direction::Forward);
        for (target, found) in [("05", "10"), ("15", "15"), ("155", "16"), ("11", "11")] {
            assert!(scan.seek(target.as_bytes()).unwrap());
            assert_eq!(scan.key(), found.as_bytes());
        }
        assert!(scan.next().unwrap());
        assert_eq!(scan.key(), b"12");
        assert!(!scan.seek(b"20").unwrap());
        let mut scan = store.view().scan(b"10", b"20", Direction::Backward);
        for (target, found) in [("50", "19"), ("20", "19"), ("155", "15"), ("10", "10")] {
            assert!(scan.seek(target.as_bytes()).unwrap());
            assert_eq!(scan.key(), found.as_bytes());
        }
        assert!(!scan.next().unwrap());
        assert!(!scan.seek(b"05").unwrap());
    }
}

#[test]
fn a_cache_only_view_hands_over_instead_of_reading_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store
        .propose(
            (0..1000)
                .map(|n| {
                    let k = format!("{n:04}");
                    put(&k, &k.repeat(50))
                })
                .collect(),
        )
        .unwrap();
    store.close().unwrap();
    drop(store);

    let store = open(dir.path());
    let cached = store.view().cached_only();
    assert!(cached.get(b"0500").unwrap_err().is_suspension());
    assert!(
        cached
            .scan(b"05", b"06", Direction::Forward)
            .next()
            .unwrap_err()
            .is_suspension()
    );
    assert!(
        cached
            .get_some(&[b"0500", b"0501"])
            .unwrap_err()
            .is_suspension()
    );
    assert!(cached.anywhere().get(b"0500").unwrap().is_some());
    assert!(cached.get(b"0500").unwrap().is_some());
    assert!(cached.get_some(&[b"0500", b"0501"]).is_ok());
}

#[test]
fn many_keys_give_the_same_in_every_order() {
    let dir = tempfile::tempdir().unwrap();
    let key = |n: u64| {
        [
            &[0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0],
            &n.to_be_bytes()[..],
        ]
        .concat()
    };
    let value = |n: u64| format!("{n:04}").repeat(60).into_bytes();
    let even = (0..2000).map(|n| Effect::Put(key(2 * n), value(2 * n)));
    let store = open(dir.path());
    store.propose(vec![entry(even.collect())]).unwrap();
    store.close().unwrap();
    drop(store);

    let orders: [fn(u64) -> u64; 4] = [
        |n| 1000 + n,
        |n| 1000 - n,
        |n| n * 1_237 % 4000,
        |n| n / 2 * 64,
    ];
    for row_percent in [0, 25] {
        let store = Store::open(StoreOptions {
            row_percent,
            ..options(dir.path())
        })
        .unwrap();
        for (which, order) in orders.into_iter().enumerate() {
            for count in [1, 3, 10, 64] {
                let numbers: Vec<u64> = (0..count).map(order).collect();
                let keys: Vec<Vec<u8>> = numbers.iter().map(|&n| key(n)).collect();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                // From the disk, then out of memory.
                for _ in 0..2 {
                    let found = store.view().get_some(&keys).unwrap();
                    assert_eq!(found.len(), keys.len());
                    for (&n, found) in numbers.iter().zip(&found) {
                        let expected = (n % 2 == 0).then(|| value(n));
                        assert_eq!(found.as_deref(), expected.as_deref(), "{n}, order {which}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_was_flushed_is_still_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let key = |n: u64| {
        [
            &[0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0],
            &n.to_be_bytes()[..],
        ]
        .concat()
    };
    // Twice, so that the first files have moved down a level.
    for round in 0..8 {
        for n in 0..200 {
            let effects = vec![
                Effect::Put(key(round * 1000 + n), vec![b'r'; 1000]),
                Effect::Put(format!("{round}-{n:04}").into(), b"entry".to_vec()),
            ];
            store.propose(vec![entry(effects)]).unwrap();
        }
        store.flush().unwrap();
    }
    let cached = store.latest().cached_only();
    for round in 0..8 {
        for n in (0..200).step_by(7) {
            assert!(cached.get(&key(round * 1000 + n)).unwrap().is_some());
        }
    }
    assert!(cached.get(b"7-0100").unwrap().is_some());
}

#[test]
fn a_checkpoint_is_a_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let at = store.propose(vec![put("a", "1")]).unwrap();
    let copy = dir.path().join("copy");
    store.checkpoint(&copy).unwrap();
    store.propose(vec![put("b", "1")]).unwrap();
    let copied = open(&copy);
    assert_eq!(copied.last(), at);
    assert!(copied.view().get(b"b").unwrap().is_none());
    let next = copied.propose(vec![put("c", "1")]).unwrap();
    assert_eq!(next.index, at.index + 1);
    drop(copied);
    assert_eq!(open(&copy).last(), next);
}

#[test]
fn unlogged_writes_and_range_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let puts: Vec<Effect> = (0..10).map(|n| Effect::Put(key(n), vec![1])).collect();
    store.write_unlogged(&puts).unwrap();
    assert_eq!(contents(&store).len(), 10);
    store
        .propose(vec![entry(vec![
            Effect::DeleteRange(key(2), key(8)),
            Effect::Put(key(3), vec![2]),
        ])])
        .unwrap();
    assert_eq!(contents(&store).len(), 5);
    assert!(store.approximate_size(&key(0), &key(20)) > 0);
}

#[test]
fn the_log_tells_what_happened() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let entries = vec![put("a", "1"), put("b", "2")];
    store.propose(entries.clone()).unwrap();
    let mut reader = store.read_log(1).unwrap();
    for (index, entry) in (1..).zip(entries) {
        let record = reader.next().unwrap().unwrap();
        assert_eq!(record.index, index);
        assert_eq!(Entry::decode(record.payload), Some(entry));
    }
    assert!(reader.next().unwrap().is_none());
    store.propose(vec![put("c", "3")]).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().index, 3);
}

#[test]
fn concurrent_proposals_are_all_applied_and_numbered_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (threads, each) = (8u32, 300u32);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let store = &store;
            scope.spawn(move || {
                for i in 0..each {
                    let n = t * each + i;
                    let at = store
                        .propose(vec![entry(vec![Effect::Put(
                            key(n),
                            n.to_be_bytes().to_vec(),
                        )])])
                        .unwrap();
                    assert!(store.last_index() >= at.index);
                    let seen = store.view().get(&key(n)).unwrap();
                    assert_eq!(seen.as_deref(), Some(&n.to_be_bytes()[..]));
                    if i % 50 == 0 {
                        store.wait_durable(at.index).unwrap();
                        assert!(store.durable_index() >= at.index);
                    }
                }
            });
        }
    });
    assert_eq!(store.last_index(), u64::from(threads * each));
    assert_eq!(contents(&store).len() as u32, threads * each);
    let before = contents(&store);
    drop(store);
    assert_eq!(contents(&open(dir.path())), before);
}

/// Pairs of records that are always written together, by two writers, while readers look at them through
/// snapshots and at the newest state: a snapshot never sees half of a write, and no reader sees less
/// than was acknowledged before it looked.
#[test]
fn records_that_are_kept_in_memory_are_never_stale() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let record = |n: u64| {
        [
            &[0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0],
            &n.to_be_bytes()[..],
        ]
        .concat()
    };
    let number = |v: &[u8]| u64::from_le_bytes(v.try_into().unwrap());
    let acknowledged: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
    let writing = AtomicUsize::new(2);
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (store, acknowledged, writing) = (&store, &acknowledged, &writing);
            scope.spawn(move || {
                for i in 1..8000u64 {
                    let pair = i % 8 * 2 + writer;
                    let value = i.to_le_bytes().to_vec();
                    let mut effects = vec![
                        Effect::Put(record(pair), value.clone()),
                        Effect::Put(record(pair + 100), value),
                    ];
                    if i % 50 == 0 {
                        effects.insert(0, Effect::DeleteRange(record(pair), record(pair + 1)));
                        effects.insert(0, Effect::Put(record(pair), vec![9; 8]));
                    }
                    let mut entries = vec![entry(effects)];
                    // Deleted, and inserted anew: of the latter no cache is told.
                    let gone = [pair, pair + 100].map(|n| Effect::Delete(record(n)));
                    if i % 3 == 0 {
                        entries.insert(0, entry(gone.to_vec()));
                        entries[1].op = Op::Insert;
                    } else if i % 3 == 1 {
                        entries[0].effects.splice(0..0, gone);
                        entries[0].op = Op::Insert;
                    }
                    store.propose(entries).unwrap();
                    acknowledged[pair as usize].store(i, Ordering::SeqCst);
                    if i % 1000 == 0 {
                        store.flush().unwrap();
                    }
                }
                writing.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for reader in 0..2usize {
            let (store, acknowledged, writing) = (&store, &acknowledged, &writing);
            scope.spawn(move || {
                let mut rounds = 0usize;
                let mut old = store.view();
                // On a machine that is busy the writers may be done before a reader had its turn.
                while writing.load(Ordering::SeqCst) > 0 || rounds < 100 {
                    rounds += 1;
                    let pair = (rounds * 7 + reader) % 16;
                    let (a, b) = (record(pair as u64), record(pair as u64 + 100));
                    let at_least = acknowledged[pair].load(Ordering::SeqCst);
                    let latest = store.latest().get(&b).unwrap().map_or(0, |v| number(&v));
                    assert!(latest >= at_least, "{latest} after {at_least}");
                    let view = store.view();
                    if rounds.is_multiple_of(3) {
                        let both = view.get_some(&[&a, &b]).unwrap();
                        assert_eq!(both[0].as_deref(), both[1].as_deref());
                    }
                    for view in [&view, &old] {
                        let first = view.get(&a).unwrap().map(|v| number(&v));
                        std::thread::yield_now();
                        let second = view.get(&b).unwrap().map(|v| number(&v));
                        assert_eq!(first, second);
                    }
                    if rounds.is_multiple_of(20) {
                        old = view;
                    }
                }
            });
        }
    });
}

/// One random group of entries, and the same to the model.
fn random_group(rng: &mut StdRng, model: &mut Model) -> Vec<Entry> {
    let keys = 400;
    (0..rng.random_range(1..8))
        .map(|_| {
            let effects = (0..rng.random_range(0..5))
                .map(|_| match rng.random_range(0..20) {
                    0 => {
                        let (a, b) = (rng.random_range(0..keys), rng.random_range(0..40));
                        let (low, high) = (key(a), key(a + b));
                        model.retain(|k, _| !(low <= *k && *k < high));
                        Effect::DeleteRange(low, high)
                    }
                    1..6 => {
                        let k = key(rng.random_range(0..keys));
                        model.remove(&k);
                        Effect::Delete(k)
                    }
                    _ => {
                        let k = key(rng.random_range(0..keys));
                        let len = rng.random_range(0..2000);
                        let mut value = vec![0; len];
                        rng.fill(&mut value[..]);
                        model.insert(k.clone(), value.clone());
                        Effect::Put(k, value)
                    }
                })
                .collect();
            entry(effects)
        })
        .collect()
}

/// Random writes against a model. A crash is a drop (which flushes no memtable) after which the log's
/// tail that was not durable is cut anywhere, as a loss of power does. The recovered state must be the
/// model after some group, none older than the last durable one; and the store must go on from there.
#[test]
fn random_writes_and_crashes_agree_with_a_model() {
    let seed: u64 = std::env::var("SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| rand::rng().random());
    println!("SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let mut model = Model::new();
    for round in 1..12 {
        let mut store = Store::open(StoreOptions {
            log_segment_bytes: 60_000,
            log_window: LogWindow {
                max_bytes: 100_000,
                ..LogWindow::default()
            },
            sync_interval: std::time::Duration::from_secs(1000),
            ..options(dir)
        })
        .unwrap();
        let mut history = BTreeMap::new();
        history.insert(store.last_index(), model.clone());
        let mut flushed = 0;
        for _ in 0..rng.random_range(1..120) {
            let group = random_group(&mut rng, &mut model);
            let at = store.propose(group).unwrap();
            history.insert(at.index, model.clone());
            match rng.random_range(0..30) {
                0 => {
                    store.flush().unwrap();
                    flushed = at.index;
                }
                1 => store.wait_durable(at.index).unwrap(),
                2 => {
                    drop(store);
                    store = open(dir);
                    assert_eq!(contents(&store), model);
                }
                _ => {}
            }
        }
        let durable = store.durable_index();
        // Where each segment's durable part ends: it is what a reader of the log passes when it has
        // read entry `durable`.
        let last = store.last_index();
        drop(store);
        let mut lost = None;
        if last > durable && rng.random_bool(0.8) {
            lost = Some(cut_behind(&dir.join("log"), durable, &mut rng));
        }
        let store = open(dir);
        let (index, found) = (store.last_index(), contents(&store));
        println!(
            "round {round}: durable {durable}, flushed {flushed}, last {last}, found {index}, cut {lost:?}"
        );
        assert!(index >= durable.max(flushed) && index <= last);
        // Between two groups' ends lie single entries, which the model does not know; the engine
        // may have been ahead.
        if let Some(expected) = history.get(&index) {
            assert_eq!(&found, expected, "round {round}, index {index}");
        }
        drop(store);
        assert_eq!(contents(&open(dir)), found, "opening again changes nothing");
        model = found;
    }
}

/// Cuts the log at a random byte behind entry `durable`; later segments go, as they were never
/// synced.
fn cut_behind(log: &Path, durable: u64, rng: &mut StdRng) -> u64 {
    let mut segments: Vec<_> = std::fs::read_dir(log)
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    segments.sort();
    let first =
        |path: &Path| -> u64 { path.file_stem().unwrap().to_str().unwrap().parse().unwrap() };
    let at = segments.partition_point(|s| first(s) <= durable.max(1)) - 1;
    for later in &segments[at + 1..] {
        std::fs::remove_file(later).unwrap();
    }
    let bytes = std::fs::read(&segments[at]).unwrap();
    // The header of 48 bytes, then frames: length u32, crc u32, index u64.
    let mut offset = 48;
    while offset < bytes.len() {
        let length = u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap());
        let index = u64::from_le_bytes(bytes[offset + 8..offset + 16].try_into().unwrap());
        if index > durable {
            break;
        }
        offset += 8 + length as usize;
    }
    let cut = rng.random_range(offset..=bytes.len()) as u64;
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&segments[at])
        .unwrap();
    file.set_len(cut).unwrap();
    cut
}
