//! Several values at once: no more of them than are well held together.

use storage::{Effect, Entry, SOME_BYTES, Store, StoreOptions};

/// The key of a record: tablet 3, space 1, index 0.
fn key(n: u32) -> Vec<u8> {
    let mut key = vec![0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0];
    key.extend_from_slice(&n.to_be_bytes());
    key
}

/// Every third is not there; the lengths rise and fall again.
fn value(n: u32) -> Option<Vec<u8>> {
    let len = match n {
        _ if n % 3 == 2 => return None,
        0..40 => 100,
        40..80 => 60_000,
        80..90 => SOME_BYTES * 2,
        _ => 10,
    };
    Some(vec![n as u8; len])
}

#[test]
fn the_first_of_them_and_then_the_others() {
    for (row_percent, in_order) in [(0, true), (0, false), (50, true), (50, false)] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(StoreOptions {
            cache_bytes: 16 << 20,
            row_percent,
            ..StoreOptions::new(dir.path())
        })
        .unwrap();
        let puts = (0..120).filter_map(|n| Some(Entry::noop(vec![Effect::Put(key(n), value(n)?)])));
        store.propose(puts.collect()).unwrap();
        store.flush().unwrap();
        let asked: Vec<u32> = match in_order {
            true => (0..120).collect(),
            false => (0..120).map(|n| n * 77 % 120).collect(),
        };
        let keys: Vec<Vec<u8>> = asked.iter().map(|n| key(*n)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|k| k.as_slice()).collect();
        // Twice: the second time rows may be cached.
        for _ in 0..2 {
            let view = store.view();
            let mut at = 0;
            while at < keys.len() {
                let some = view.get_some(&keys[at..]).unwrap();
                assert!(!some.is_empty());
                // All but the one that was too much: of those that are cached as rows, and of the
                // others.
                let mut lengths: Vec<usize> = some.iter().flatten().map(|v| v.len()).collect();
                lengths.sort_unstable();
                let usual = lengths.len().saturating_sub(2);
                // Those in order come in batches, of which the first long one is not foreseen.
                let batch = if in_order { 32 * 60_000 } else { 0 };
                assert!(lengths[..usual].iter().sum::<usize>() < SOME_BYTES + batch);
                for (n, found) in asked[at..].iter().zip(&some) {
                    assert_eq!(found.as_deref(), value(*n).as_deref());
                }
                at += some.len();
            }
            let mut seen = Vec::new();
            let each = |at: usize, value: &storage::Slice| {
                seen.push((asked[at], value.to_vec()));
                Ok(seen.len() < 70)
            };
            view.get_each(&keys, each).unwrap();
            let there = asked.iter().filter_map(|n| Some((*n, value(*n)?)));
            assert!(seen.into_iter().eq(there.take(70)));
        }
    }
}
