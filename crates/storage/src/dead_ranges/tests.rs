//! Queues, stacks, windows and mass deletes: how many hidden entries scans step over, and that ranges
//! in which nothing lives hide nothing that does, for any view.

use super::known::{MOST_ADJACENT, MOST_RANGES};
use super::*;
use crate::hidden_keys;
use crate::long_steps;
use crate::{Direction, Effect, Scan, Store, StoreOptions, View};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

fn key(n: u64) -> Vec<u8> {
    let mut key = vec![0, 0, 0, 0, 0, 0, 0, 9, 2, 0, 0, 0, 1];
    key.extend_from_slice(&n.to_be_bytes());
    key
}

fn bounds() -> (Vec<u8>, Vec<u8>) {
    let low = key(0)[..PREFIX].to_vec();
    let high = behind_all(&low).unwrap();
    (low, high)
}

fn put(n: u64) -> Effect {
    Effect::Put(key(n), vec![7; 20])
}

fn delete(n: u64) -> Effect {
    Effect::Delete(key(n))
}

fn open(dir: &std::path::Path) -> Arc<Store> {
    open_as(dir, "on")
}

fn open_as(dir: &std::path::Path, mode: &str) -> Arc<Store> {
    let mut options = StoreOptions::new(dir);
    options.cache_bytes = 64 << 20;
    options.engine_options = format!("dead_ranges={mode}");
    Store::open(options).unwrap()
}

fn write(store: &Store, effects: impl IntoIterator<Item = Effect>) {
    let effects: Vec<Effect> = effects.into_iter().collect();
    for part in effects.chunks(1000) {
        store.write_unlogged(part).unwrap();
    }
}

fn number(scan: &Scan) -> u64 {
    u64::from_be_bytes(scan.key()[PREFIX..].try_into().unwrap())
}

/// The hidden keys that `work` steps over on this thread.
fn hidden<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = hidden_keys::on_this_thread();
    let done = work();
    (done, hidden_keys::on_this_thread() - before)
}

fn first(view: &View, direction: Direction) -> Option<u64> {
    let (low, high) = bounds();
    let mut scan = view.scan(&low, &high, direction);
    scan.next().unwrap().then(|| number(&scan))
}

fn all(view: &View) -> Vec<u64> {
    let (low, high) = bounds();
    let mut scan = view.scan(&low, &high, Direction::Forward);
    let mut found = Vec::new();
    while scan.next().unwrap() {
        found.push(number(&scan));
    }
    found
}

/// Waits until `look` gives a few hidden keys only.
fn until_few(most: u64, mut look: impl FnMut()) {
    let begun = Instant::now();
    loop {
        let ((), stepped) = hidden(&mut look);
        if stepped <= most {
            return;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{stepped} of {most}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_quiet_range_that_was_seen_empty_is_dead_until_a_put() {
    let ranges = DeadRanges::default();
    let (low, high) = (key(10), key(20));
    let nothing = |_: &mut dyn FnMut(&[u8])| ();
    drop(ranges.begin(nothing));
    assert_eq!(ranges.ended(), 1);
    // The first look: nothing was quiet. The second, of a state from before that, says nothing.
    ranges.note(&low, &high, 1, 1 << 20);
    drop(ranges.begin(nothing));
    ranges.note(&low, &high, 0, 1 << 20);
    assert_eq!(ranges.dead(), 0);
    ranges.note(&low, &high, 2, 1 << 20);
    assert_eq!(ranges.dead(), 1);
    let found = |seen, backward| ranges.first(&key(0), &key(100), seen, backward);
    let whole = Some((
        low.clone().into_boxed_slice(),
        high.clone().into_boxed_slice(),
    ));
    assert_eq!(found(2, false), whole);
    assert_eq!(found(2, true), whole);
    assert_eq!(found(1, false), None, "a state from before");
    // A write elsewhere, a put at both bounds, and one within.
    let puts = |n: u64| {
        drop(ranges.begin(move |each| each(&key(n))));
        ranges.dead()
    };
    assert_eq!([puts(9), puts(20), puts(500)], [1, 1, 1]);
    assert_eq!(puts(15), 2);
    let left = found(9, false).unwrap();
    assert_eq!((&*left.0, &*left.1), (&*low, &*key(15)));
    let right = found(9, true).unwrap();
    assert_eq!((&*right.0, &*right.1), (&*successor(&key(15)), &*high));
    // A put between two dead ranges does not join them.
    assert_eq!(puts(15), 2);
    for n in 10..20 {
        assert!(n == 15 || ranges.covers(&key(n)));
        puts(n);
        assert!(!ranges.covers(&key(n)));
    }
}

#[test]
fn a_write_that_had_begun_before_a_range_was_quiet_is_waited_for() {
    let ranges = DeadRanges::default();
    let (low, high) = (key(10), key(20));
    // It has told of its keys, and cannot be read yet.
    let under_way = ranges.begin(|each| each(&key(15)));
    ranges.note(&low, &high, ranges.ended(), 100);
    ranges.note(&low, &high, ranges.ended(), 100);
    assert_eq!(ranges.dead(), 0, "its key may be in there");
    drop(under_way);
    ranges.note(&low, &high, ranges.ended(), 100);
    assert_eq!(ranges.dead(), 1);
}

#[test]
fn ranges_and_their_memory_are_bounded() {
    let ranges = DeadRanges::default();
    for n in 0..20_000u64 {
        // Each in an index of its own, half of them next to each other.
        let index = |n: u64| {
            let mut key = key(n % 2 * 10);
            key[9..13].copy_from_slice(&(n as u32 / 2).to_be_bytes());
            key
        };
        let (low, mut high) = (index(n), index(n));
        *high.last_mut().unwrap() += 9;
        ranges.note(&low, &high, 0, 100);
        ranges.note(&low, &high, 0, 100);
        let known = ranges.known.read();
        assert!(known.ranges <= MOST_RANGES && known.bytes <= MOST_BYTES);
        assert!(known.indexes.len() <= MOST_RANGES);
    }
    assert!(ranges.dead() > 1000);
    assert!(ranges.places.lock().len() <= MOST_PLACES);
    for _ in 0..2 * UNUSED_SECONDS {
        ranges.tick();
    }
    assert_eq!(
        (ranges.dead(), ranges.any()),
        (0, false),
        "nobody uses them"
    );
    let known = ranges.known.read();
    assert_eq!((known.ranges, known.bytes, known.indexes.len()), (0, 0, 0));
}

#[test]
fn a_range_that_grows_stays_few_ranges() {
    let ranges = DeadRanges::default();
    let nothing = |_: &mut dyn FnMut(&[u8])| ();
    for n in 0..1000 {
        drop(ranges.begin(nothing));
        for _ in 0..2 {
            ranges.note(&key(n * 10), &key(n * 10 + 10), ranges.ended(), 10);
        }
        assert!(ranges.dead() <= MOST_ADJACENT as u64 + 1);
    }
    let whole = (key(0).into_boxed_slice(), key(10_000).into_boxed_slice());
    assert_eq!(
        ranges.first(&key(0), &key(99_999), 1000, false),
        Some(whole.clone())
    );
    assert_eq!(ranges.first(&key(0), &key(99_999), 1000, true), Some(whole));
    // A state that is a little older uses what it may.
    let (low, high) = ranges.first(&key(0), &key(99_999), 990, false).unwrap();
    assert!(*low == *key(0) && *high > *key(9_800), "{high:?}");
}

#[test]
fn a_queue_steps_over_as_much_after_many_takes_as_after_few() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    write(&store, (0..1000).map(put));
    let ((), stepped) = hidden(|| {
        for n in 0..20_000 {
            let (found, stepped) = hidden(|| first(&store.view(), Direction::Forward));
            assert_eq!(found, Some(n));
            assert!(stepped < 200, "take {n} steps over {stepped}");
            write(&store, [delete(n), put(n + 1000)]);
        }
    });
    assert!(stepped < 20_000 * 40, "{stepped}");
    assert!(store.engine_itself().dead().dead() < 2 * MOST_ADJACENT as u64);
    // A job that comes back to the head, and one that was taken from the end.
    write(&store, [put(77), delete(20_999)]);
    assert_eq!(first(&store.view(), Direction::Forward), Some(77));
    assert_eq!(first(&store.latest(), Direction::Backward), Some(20_998));
    assert_eq!(all(&store.view()).len(), 1000);
}

#[test]
fn a_stack_steps_over_as_much_after_many_takes_as_after_few() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    write(&store, (0..5000).map(put));
    for n in (0..5000).rev() {
        let (found, stepped) = hidden(|| first(&store.latest(), Direction::Backward));
        assert_eq!(found, Some(n));
        assert!(stepped < 200, "take {n} steps over {stepped}");
        write(&store, [delete(n)]);
    }
    until_few(50, || assert!(all(&store.view()).is_empty()));
}

#[test]
fn a_mass_delete_is_found_without_a_query_and_old_views_see_what_was() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    write(&store, (0..30_000).map(put));
    let old = store.view();
    write(&store, (100..29_900).map(delete));
    // Only the maintenance thread has looked so far.
    let dead = || store.engine_itself().dead();
    let begun = Instant::now();
    while dead().dead() == 0 && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    let left: Vec<u64> = (0..100).chain(29_900..30_000).collect();
    let (found, stepped) = hidden(|| all(&store.view()));
    assert_eq!(found, left);
    assert!(stepped < 400, "{stepped}");
    let (low, high) = bounds();
    let view = store.view();
    let ((), stepped) = hidden(|| {
        let mut scan = view.scan(&low, &high, Direction::Backward);
        assert!(scan.seek(&key(20_000)).unwrap());
        assert_eq!(number(&scan), 99);
        let mut scan = view.scan(&key(500), &high, Direction::Forward);
        assert!(scan.next().unwrap());
        assert_eq!(number(&scan), 29_900);
        let mut scan = view.scan(&key(500), &key(20_000), Direction::Backward);
        assert!(!scan.next().unwrap());
        // To and fro over the dead range.
        let mut scan = view.scan(&low, &high, Direction::Forward);
        for (to, found) in [(29_950, 29_950), (50, 50), (7_000, 29_900), (99, 99)] {
            assert!(scan.seek(&key(to)).unwrap());
            assert_eq!(number(&scan), found);
        }
        assert!(scan.next().unwrap());
        assert_eq!(number(&scan), 29_900);
    });
    assert!(stepped < 400, "{stepped}");
    assert_eq!(all(&old).len(), 30_000);
    // A put in the middle is there at once, for new views only.
    write(&store, [put(15_000)]);
    assert_eq!(all(&store.view()).len(), 201);
    assert_eq!(all(&view), left);
    drop((store, view, old));
    // Deleted keys in the files, or in the replayed log, are found again.
    let (store, stepped) = hidden(|| open(dir.path()));
    assert_eq!(stepped, 0);
    until_few(400, || assert!(all(&store.view()).len() <= 30_000));
}

#[test]
fn a_mass_delete_is_found_in_each_index_of_its_documents() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let of = |index: u8, n: u64| {
        let mut key = key(n);
        key[12] = index;
        key
    };
    let keys = |n: u64| [of(1, n), of(2, n)];
    write(
        &store,
        (0..20_000)
            .flat_map(keys)
            .map(|key| Effect::Put(key, vec![7; 20])),
    );
    write(&store, (0..19_900).flat_map(keys).map(Effect::Delete));
    // Only the maintenance thread looks there.
    let dead = store.engine_itself().dead();
    let is_known = |index| {
        [0, 9_000, 19_899]
            .iter()
            .all(|n| dead.covers(&of(index, *n)))
    };
    let begun = Instant::now();
    while !(is_known(1) && is_known(2)) {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
    for index in [1, 2] {
        let ((), stepped) = hidden(|| {
            let high = of(index + 1, 0);
            let mut scan = store
                .view()
                .scan(&of(index, 0), &high[..PREFIX], Direction::Forward);
            assert!(scan.next().unwrap());
            assert_eq!(number(&scan), 19_900);
        });
        assert!(stepped < 200, "index {index}: {stepped}");
    }
}

#[test]
fn a_mass_delete_is_found_within_ten_rounds_of_the_search() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let of = |index: u8, n: u64| {
        let mut key = key(n);
        key[12] = index;
        key
    };
    let keys = |n: u64| (1..=3).map(move |index| of(index, n));
    let puts = (0..50_000).flat_map(keys);
    write(&store, puts.map(|key| Effect::Put(key, vec![7; 20])));
    let dead = store.engine_itself().dead();
    write(&store, (10..49_990).flat_map(keys).map(Effect::Delete));
    // There are ten in a second.
    let deleted = dead.rounds();
    while dead.rounds() < deleted + 10 {
        std::thread::sleep(Duration::from_millis(20));
    }
    for index in 1..=3 {
        let end = of(index + 1, 0);
        for direction in [Direction::Forward, Direction::Backward] {
            let view = store.view();
            let mut scan = view.scan(&of(index, 0), &end[..PREFIX], direction);
            let (found, stepped) = hidden(|| {
                let mut found = 0;
                while scan.next().unwrap() {
                    found += 1;
                }
                found
            });
            assert_eq!(found, 20);
            assert!(stepped < 200, "index {index}: {stepped}");
        }
    }
}

#[test]
fn where_nothing_is_noted_every_scan_steps_over_all() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_as(dir.path(), "off");
    write(&store, (0..20_000).map(put));
    write(&store, (10..19_990).map(delete));
    for _ in 0..3 {
        let view = store.view();
        let (found, stepped) = hidden(|| all(&view).len());
        assert_eq!(found, 20);
        assert!(stepped > 19_000, "{stepped}");
    }
    assert_eq!(store.engine_itself().dead().dead(), 0);
}

#[test]
fn an_unknown_experiment_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = StoreOptions::new(dir.path());
    options.engine_options = "max_open_files=500;dead_ranges=maybe".into();
    let refused = Store::open(options).err().unwrap().to_string();
    assert!(refused.contains("dead_ranges"), "{refused}");
}

/// Random writes, most of them deletes, and scans of several states beside a map for each state.
/// Gives the first difference.
fn differ(seed: u64, rounds: u64, mode: &str) -> Result<u64, String> {
    let dir = tempfile::tempdir().unwrap();
    let store = open_as(dir.path(), mode);
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    const KEYS: u64 = 600;
    let mut model: BTreeMap<u64, ()> = (0..KEYS).map(|n| (n, ())).collect();
    write(&store, (0..KEYS).map(put));
    let mut states: Vec<(View, BTreeMap<u64, ()>)> = Vec::new();
    let mut passed = 0;
    for _ in 0..rounds {
        match random(10) {
            0 | 1 => {
                let from = random(KEYS);
                let run: Vec<u64> = (from..KEYS.min(from + random(200))).collect();
                write(&store, run.iter().map(|n| delete(*n)));
                model.retain(|n, ()| !run.contains(n));
            }
            2 => {
                let n = random(KEYS);
                write(&store, [put(n)]);
                model.insert(n, ());
            }
            3 if random(8) == 0 => {
                write(&store, (0..KEYS).map(put));
                model.extend((0..KEYS).map(|n| (n, ())));
            }
            3 if random(30) == 0 => store.flush().unwrap(),
            4 => states.push((store.view(), model.clone())),
            5 if states.len() > 4 => drop(states.remove(random(4) as usize)),
            _ => {}
        }
        let now = match random(2) {
            0 => (store.view(), model.clone()),
            _ => (store.latest(), model.clone()),
        };
        let old = states.get(random(6) as usize);
        for (view, model) in [Some(&now), old].into_iter().flatten() {
            passed += look(view, model, &mut random)?;
        }
    }
    Ok(passed)
}

/// One scan with random bounds and seeks; how many keys it gave.
fn look(
    view: &View,
    model: &BTreeMap<u64, ()>,
    random: &mut impl FnMut(u64) -> u64,
) -> Result<u64, String> {
    let low = random(300);
    let high = low + 1 + random(600);
    let back = random(2) == 0;
    let direction = if back {
        Direction::Backward
    } else {
        Direction::Forward
    };
    let mut scan = view.scan(&key(low), &key(high), direction);
    let mut at = None;
    let mut given = 0;
    loop {
        let keys = model.range(low..high).map(|(n, ())| *n);
        let (expected, got, what) = match (random(12), at) {
            (0, _) => {
                let to = random(900);
                let expected = match back {
                    true => keys.filter(|n| *n <= to).max(),
                    false => keys.filter(|n| *n >= to).min(),
                };
                (expected, scan.seek(&key(to)), format!("seek {to}"))
            }
            (_, at) => {
                let expected = match (back, at) {
                    (true, Some(at)) => keys.filter(|n| *n < at).max(),
                    (true, None) => keys.max(),
                    (false, Some(at)) => keys.filter(|n| *n > at).min(),
                    (false, None) => keys.min(),
                };
                (expected, scan.next(), "next".to_string())
            }
        };
        let got = got.unwrap().then(|| number(&scan));
        if got != expected {
            return Err(format!(
                "{what} of {low}..{high} {direction:?}: {got:?} for {expected:?}"
            ));
        }
        let Some(got) = got else { return Ok(given) };
        at = Some(got);
        given += 1;
    }
}

#[test]
fn an_old_view_steps_over_what_it_has_found_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    write(&store, (0..20_000).map(put));
    write(&store, (100..19_900).map(delete));
    let old = store.view();
    // Notes from here on are of later states.
    write(&store, [put(50_000)]);
    until_few(400, || assert_eq!(all(&store.view()).len(), 201));
    let left: Vec<u64> = (0..100).chain(19_900..20_000).collect();
    let (found, first_look) = hidden(|| all(&old));
    assert_eq!(found, left);
    assert!(first_look <= 3 * 20_000, "{first_look}");
    // Whatever is written meanwhile, this state stays as it is.
    write(&store, (500..600).map(put));
    let (low, high) = bounds();
    let ((), stepped) = hidden(|| {
        assert_eq!(all(&old), left);
        let mut scan = old.scan(&low, &high, Direction::Backward);
        assert!(scan.seek(&key(550)).unwrap());
        assert_eq!(number(&scan), 99);
        let mut scan = old.scan(&key(550), &high, Direction::Forward);
        assert!(scan.next().unwrap());
        assert_eq!(number(&scan), 19_900);
        assert_eq!(all(&old.clone()), left);
    });
    assert!(stepped < 100, "{stepped}");
    assert_eq!(all(&store.view()).len(), 301);
}

/// A view before which, and behind which, something lives, and between them very much that is newer:
/// nothing can note it.
fn with_much_that_is_newer(store: &Store, newer: u64) -> View {
    write(store, [put(0), put(1_000_000)]);
    let view = store.view();
    write(store, (1..=newer).map(put));
    view
}

#[test]
fn a_long_step_goes_on_where_it_paused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let newer = 5 * long_steps::STEPS + 77;
    let view = with_much_that_is_newer(&store, newer);
    let asked = AtomicU64::new(0);
    let question = |_: Option<Instant>| {
        asked.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let (low, high) = bounds();
    for direction in [Direction::Forward, Direction::Backward] {
        asked.store(0, Ordering::Relaxed);
        let look = || {
            let mut found = Vec::new();
            let mut scan = view.scan(&low, &high, direction);
            while scan.next().unwrap() {
                found.push(number(&scan));
            }
            if direction == Direction::Backward {
                found.reverse();
            }
            // A seek into the middle, and to an end behind which nothing is.
            assert!(scan.seek(&key(700)).unwrap());
            let mut scan = view.scan(&key(1), &key(900_000), direction);
            assert!(!scan.next().unwrap());
            found
        };
        let (found, stepped) = hidden(|| long_steps::asking(None, &question, look));
        assert_eq!(found, [0, 1_000_000]);
        let most = 3 * newer + 100;
        assert!((2 * newer..most).contains(&stepped), "{stepped}");
        assert!(
            (10..20).contains(&asked.load(Ordering::Relaxed)),
            "{asked:?}"
        );
    }
    // One key with many versions is one step.
    let view = store.view();
    for _ in 0..20 {
        write(&store, std::iter::repeat_n((), 1000).map(|()| put(0)));
    }
    let (found, stepped) = hidden(|| first(&view, Direction::Forward));
    assert_eq!(found, Some(0));
    assert!(stepped < 100, "{stepped}");
}

#[test]
fn a_long_step_ends_with_its_operation_and_leaves_an_event_loop() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let view = with_much_that_is_newer(&store, 2 * long_steps::ON_LOOP);
    let (low, high) = bounds();
    for direction in [Direction::Forward, Direction::Backward] {
        let second = |view: &View| {
            let mut scan = view.scan(&low, &high, direction);
            assert!(scan.next().unwrap());
            let second = scan.next();
            assert!(
                second.is_ok() || !scan.next().unwrap(),
                "it gives nothing more"
            );
            second
        };
        let ended = |_: Option<Instant>| Err(errors::err!(Interrupted, "ended"));
        let on = |_: Option<Instant>| Ok(());
        let (done, stepped) = hidden(|| long_steps::asking(None, &ended, || second(&view)));
        assert!(done.unwrap_err().is(errors::Code::Interrupted));
        assert!(stepped < 2 * long_steps::STEPS, "{stepped}");
        let (done, stepped) =
            hidden(|| long_steps::asking(None, &on, || second(&view.cached_only())));
        assert!(done.unwrap_err().is_suspension());
        assert!(stepped < 2 * long_steps::ON_LOOP, "{stepped}");
        // Many short steps are as one long.
        let short = |view: &View| {
            (0..5u64).try_for_each(|n| {
                let low = key(1 + n * 5000);
                let high = key(5000 + n * 5000);
                view.scan(&low, &high, direction).next().map(drop)
            })
        };
        let done = long_steps::asking(None, &on, || short(&view.cached_only()));
        assert!(done.unwrap_err().is_suspension());
        assert!(long_steps::asking(None, &on, || second(&view)).unwrap());
        assert!(second(&view.cached_only()).unwrap(), "nobody asks");
    }
}

#[test]
fn scans_over_dead_ranges_give_what_a_map_gives() {
    for seed in 1..=6 {
        let given = differ(seed, 1500, "on");
        assert!(
            given.as_ref().is_ok_and(|n| *n > 10_000),
            "seed {seed}: {given:?}"
        );
    }
}

#[test]
fn a_write_that_ends_no_range_is_found() {
    let found = (1..=6)
        .filter(|seed| differ(*seed, 1500, "unended").is_err())
        .count();
    assert!(found >= 5, "{found} of 6");
}

#[test]
fn what_is_acknowledged_is_never_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    const KEYS: u64 = 2000;
    const WRITERS: u64 = 3;
    write(&store, (0..KEYS).map(put));
    let over = AtomicBool::new(false);
    let found = AtomicU64::new(0);
    std::thread::scope(|threads| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let store = &store;
                threads.spawn(move || {
                    let mut state = writer + 1;
                    let mut mine = BTreeMap::new();
                    for n in (0..KEYS).filter(|n| n % WRITERS == writer) {
                        mine.insert(n, ());
                    }
                    for round in 0..4000u64 {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(99);
                        let n = ((state >> 33) % (KEYS / WRITERS)) * WRITERS + writer;
                        // Runs of deletes, and a put now and then.
                        if round % 4 == 0 {
                            write(store, [put(n)]);
                            mine.insert(n, ());
                        } else {
                            let run = (n..n + 60 * WRITERS).step_by(WRITERS as usize);
                            let run: Vec<u64> = run.filter(|n| mine.remove(n).is_some()).collect();
                            write(store, run.into_iter().map(delete));
                        }
                        let low = n.saturating_sub(200);
                        let view = if round % 2 == 0 {
                            store.view()
                        } else {
                            store.latest()
                        };
                        let mut scan = view.scan(&key(low), &key(n + 200), Direction::Forward);
                        let mut got = Vec::new();
                        while scan.next().unwrap() {
                            got.push(number(&scan));
                        }
                        got.retain(|n| n % WRITERS == writer);
                        let expected: Vec<u64> = mine.range(low..n + 200).map(|e| *e.0).collect();
                        assert_eq!(got, expected, "writer {writer}, round {round}");
                    }
                })
            })
            .collect();
        for direction in [Direction::Forward, Direction::Backward] {
            let (store, over, found) = (&store, &over, &found);
            threads.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let view = store.view();
                    let (low, high) = bounds();
                    let mut scan = view.scan(&low, &high, direction);
                    while scan.next().unwrap() {}
                    found.fetch_max(store.engine_itself().dead().dead(), Ordering::Relaxed);
                }
            });
        }
        let outcomes: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok));
    });
    assert!(found.load(Ordering::Relaxed) > 0, "there were dead ranges");
}
