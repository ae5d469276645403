//! Reads that are noted instead of done, and tried again with what they would have brought.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use storage::{Block, Direction, Effect, Entry, Missing, Store, StoreOptions, View, without};

const RECORDS: u32 = 4000;

/// The key of a record: tablet 3, space 1, index 0.
fn key(n: u32) -> Vec<u8> {
    let mut key = vec![0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0, 0, 0];
    key.extend_from_slice(&n.to_be_bytes());
    key
}

/// Does not compress, so that records lie in blocks of their own.
fn value(n: u32) -> Vec<u8> {
    let mut state = u64::from(n) + 1;
    (0..1000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

fn open(dir: &Path, direct_io: bool) -> Arc<Store> {
    Store::open(StoreOptions {
        cache_bytes: 8 << 20,
        row_percent: 0,
        direct_io,
        ..StoreOptions::new(dir)
    })
    .unwrap()
}

/// A store whose records lie on the disk and not in the cache; with direct I/O not in the page
/// cache either.
fn filled(dir: &Path, direct_io: bool) -> Arc<Store> {
    let store = open(dir, false);
    let puts = (0..RECORDS).map(|n| Entry::noop(vec![Effect::Put(key(n), value(n))]));
    store.propose(puts.collect()).unwrap();
    store.close().unwrap();
    drop(store);
    open(dir, direct_io)
}

/// Does the missing reads, as an event loop has the kernel do them.
fn fetch(missing: &[Missing]) -> Vec<Vec<u8>> {
    missing
        .iter()
        .map(|read| {
            let (offset, len) = read.place();
            let layout = std::alloc::Layout::from_size_align(len, 4096).unwrap();
            // SAFETY: not empty; copied and freed below.
            let buffer =
                unsafe { std::slice::from_raw_parts_mut(std::alloc::alloc_zeroed(layout), len) };
            // SAFETY: the descriptor is open for as long as `read` lives, and not closed here.
            let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(read.fd()) };
            let came = file.read_at(buffer, offset).unwrap();
            std::mem::forget(file);
            let bytes = buffer[..came].to_vec();
            unsafe { std::alloc::dealloc(buffer.as_mut_ptr(), layout) };
            bytes
        })
        .collect()
}

fn lacks_a_read(stop: &errors::Stop) -> bool {
    matches!(stop, errors::Stop::Suspended(errors::Suspension::Read))
}

/// Tries until nothing is missing; what came of it, and how many reads each try lacked.
fn tried<T>(work: impl Fn() -> errors::Result<T>) -> (T, Vec<usize>) {
    let mut lacked = Vec::new();
    let (mut missing, mut bytes): (Vec<Missing>, Vec<Vec<u8>>) = Default::default();
    for _ in 0..20 {
        let blocks: Vec<Block<'_>> = missing
            .iter()
            .zip(&bytes)
            .map(|(m, b)| m.brought(b))
            .collect();
        let (done, more) = without(&blocks, &work);
        match done {
            Ok(done) => return (done, lacked),
            Err(e) => assert!(lacks_a_read(&e), "{e}"),
        }
        assert!(!more.is_empty(), "nothing to read, and yet it fails");
        lacked.push(more.len());
        bytes = fetch(&more);
        missing = more;
    }
    panic!("always something missing: {lacked:?}");
}

fn takes_direct_io(dir: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    const O_DIRECT: i32 = 0o40000;
    let path = dir.join("probe");
    std::fs::write(&path, [0; 4096]).unwrap();
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(O_DIRECT)
        .open(&path);
    std::fs::remove_file(path).unwrap();
    opened.is_ok()
}

#[test]
fn what_is_missing_is_noted_and_then_found_in_what_was_brought() {
    let dir = tempfile::tempdir().unwrap();
    if !takes_direct_io(dir.path()) || !cfg!(target_os = "linux") {
        return;
    }
    let dir = dir.path().join("data");
    let store = filled(&dir, true);
    let view: View = store.view().cached_only();
    // The first needs the file's own index and filter, too.
    let (found, lacked) = tried(|| view.get(&key(7)));
    assert_eq!(found.unwrap().to_vec(), value(7));
    assert!(!lacked.is_empty());
    // It is in the cache now.
    assert!(tried(|| view.get(&key(7))).1.is_empty());
    // Many at once are missed at once, and in any order.
    let keys: Vec<Vec<u8>> = (0..40).map(|n| key((n * 977 + 100) % RECORDS)).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|k| &**k).collect();
    let (found, lacked) = tried(|| view.get_some(&keys));
    for (n, found) in found.iter().enumerate() {
        let n = (n as u32 * 977 + 100) % RECORDS;
        assert_eq!(found.as_deref().unwrap(), value(n));
    }
    assert_eq!(lacked.len(), 1, "{lacked:?}");
    assert!(lacked[0] > 20, "{lacked:?}");
    // An absent key is known without reading, or by reading.
    assert!(tried(|| view.get(&key(RECORDS + 5))).0.is_none());
    // A scan.
    let scanned = |direction| {
        tried(|| {
            let mut scan = view.scan(&key(2000), &key(2040), direction);
            let mut values = Vec::new();
            while scan.next()? {
                values.push(scan.value().to_vec());
            }
            Ok(values)
        })
    };
    let expected: Vec<Vec<u8>> = (2000..2040).map(value).collect();
    assert_eq!(scanned(Direction::Forward).0, expected);
    assert!(scanned(Direction::Backward).0.iter().rev().eq(&expected));
    // Others read as ever, also within.
    let (done, missing) = without(&[], || store.view().get(&key(3333)));
    assert_eq!(done.unwrap().unwrap().to_vec(), value(3333));
    assert!(missing.is_empty());
    // Many at once too, and the missing reads before and after are noted.
    let many: Vec<Vec<u8>> = (0..30).map(|n| key(3400 + n * 577 % 500)).collect();
    let many: Vec<&[u8]> = many.iter().map(|k| &**k).collect();
    let (all, missing) = without(&[], || {
        assert!(lacks_a_read(&view.get(&key(207)).unwrap_err()));
        let all = store.view().get_some(&many);
        assert!(lacks_a_read(&view.get(&key(292)).unwrap_err()));
        all
    });
    assert_eq!((all.unwrap().len(), missing.len()), (30, 2));
    // And outside the view fails as it did.
    assert!(lacks_a_read(&view.get(&key(1234)).unwrap_err()));
}

#[test]
fn what_the_page_cache_has_is_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), false);
    let view = store.view().cached_only();
    // Written a moment ago: the page cache has it, but need not keep it.
    let (found, _) = tried(|| view.get(&key(55)));
    assert_eq!(found.unwrap().to_vec(), value(55));
}

#[test]
fn more_than_there_is_room_for_is_not_noted_by_halves() {
    let dir = tempfile::tempdir().unwrap();
    if !takes_direct_io(dir.path()) || !cfg!(target_os = "linux") {
        return;
    }
    let dir = dir.path().join("data");
    let store = filled(&dir, true);
    // The file's index is in the cache.
    assert!(store.view().get(&key(0)).unwrap().is_some());
    let view = store.view().cached_only();
    let keys: Vec<Vec<u8>> = (0..200).map(|n| key(n * 19 + 40)).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|k| &**k).collect();
    let (done, missing) = without(&[], || view.get_some(&keys));
    assert!(lacks_a_read(&done.unwrap_err()));
    assert!(missing.is_empty(), "{}", missing.len());
}

#[test]
fn who_may_wait_has_many_reads_done_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let rings = uring::Ring::<()>::waited(8).is_some();
    for direct_io in [false, true] {
        if direct_io && !takes_direct_io(dir.path()) {
            continue;
        }
        let store = filled(&dir.path().join(format!("data-{direct_io}")), direct_io);
        let before = store.stats().batched_reads;
        // In no order, a few of them absent and a few asked for twice; more than can be noted at
        // once.
        let asked: Vec<u32> = (0..300)
            .map(|n| (n * 977 + 100) % RECORDS)
            .chain([7, RECORDS + 3, 7, 3999, RECORDS + 9])
            .collect();
        let keys: Vec<Vec<u8>> = asked.iter().map(|n| key(*n)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|k| &**k).collect();
        let view = store.view();
        for _ in 0..2 {
            let mut at = 0;
            while at < keys.len() {
                let some = view.get_some(&keys[at..]).unwrap();
                assert!(!some.is_empty());
                for (n, found) in asked[at..].iter().zip(&some) {
                    let expected = (*n < RECORDS).then(|| value(*n));
                    assert_eq!(found.as_deref(), expected.as_deref(), "{n}");
                }
                at += some.len();
            }
        }
        // A block holds fifteen records, of which a file that lies in the page cache need not be
        // read.
        let handed_over = store.stats().batched_reads - before;
        assert!(!direct_io || !rings || handed_over > 100, "{handed_over}");
        // Those that lie together, first found out and then taken to: nothing else comes of it.
        for start in [0, 1000, 2000, 3000] {
            let keys: Vec<Vec<u8>> = (start..start + 64).map(key).collect();
            let keys: Vec<&[u8]> = keys.iter().map(|k| &**k).collect();
            let some = view.get_some(&keys).unwrap();
            assert_eq!(some.len(), 64);
            for (n, found) in (start..).zip(some) {
                assert_eq!(found.as_deref(), Some(&*value(n)));
            }
        }
    }
}

#[test]
fn a_panic_ends_the_taking_of_notes() {
    let dir = tempfile::tempdir().unwrap();
    let store = filled(dir.path(), false);
    let view = store.view();
    let caught = std::panic::catch_unwind(|| without(&[], || panic!("as asked")));
    assert!(caught.is_err());
    assert_eq!(view.get(&key(9)).unwrap().unwrap().to_vec(), value(9));
    let (found, missing) = without(&[], || view.get(&key(9)));
    assert!(found.unwrap().is_some() && missing.is_empty());
}
