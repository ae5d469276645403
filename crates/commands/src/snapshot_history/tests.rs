//! States of real stores: many threads pin and settle the same times beside writers, and a primary
//! follows another.

use super::*;
use bson::doc;
use errors::Code;
use executor::OpCtx;
use std::sync::atomic::{AtomicBool, Ordering};
use storage::{Effect, Entry, Op, Store, StoreOptions};

fn open(dir: &tempfile::TempDir) -> Arc<Engine> {
    Engine::open(Store::open(StoreOptions::new(dir.path())).unwrap()).unwrap()
}

fn insert(engine: &Arc<Engine>, id: i32) {
    let document = doc! { "_id": id };
    let mut ctx = OpCtx::worker(engine);
    executor::insert(&mut ctx, "t.c", &[document.as_doc()], true, None).unwrap();
}

/// Where a prepared transaction is stored that puts `value` at [`SHOWN`].
fn prepare(engine: &Engine, value: u8) -> Vec<u8> {
    let lsid = session::Lsid {
        id: [value; 16],
        uid: [0; 32],
    };
    let put = Effect::Put(SHOWN.to_vec(), vec![value]);
    let part = Entry::new("t.c".into(), [1; 16], Op::Insert, vec![put]);
    let whole = Entry::new(
        Arc::default(),
        [0; 16],
        Op::Transaction(vec![part]),
        Vec::new(),
    );
    let stored = doc! {
        "lsid": doc! {"id": bson::Value::binary(4, &lsid.id), "uid": bson::Value::binary(0, &lsid.uid)},
        "txnNumber": 1i64, "recoveryShard": "s0", "date": bson::Value::date(0),
        "locks": bson::Value::binary(0, &[]), "entry": bson::Value::binary(0, &whole.to_bytes()),
    };
    let key = session::two_phase::prepared_key(&lsid, 1);
    let put = Effect::Put(key.clone(), stored.into_vec());
    engine.store.propose(vec![Entry::noop(vec![put])]).unwrap();
    key
}

/// A key that no collection has.
const SHOWN: &[u8] = b"\0\0\0\0\0\0\x7f\0\x01\0\0\0\0k";

fn code<T>(outcome: Result<T>) -> Option<Code> {
    outcome.err().map(|stop| stop.into_error().code)
}

/// A transaction that was prepared in another primary's pinned state may belong to it.
#[test]
fn a_shard_reads_no_state_that_it_has_not_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir);
    insert(&engine, 1);
    let newest = engine.store.last_ts();
    assert!(SnapshotHistory::new(false).at(&engine, newest).is_ok());
    let of_shard = SnapshotHistory::new(true);
    for at in [newest, newest + 100] {
        assert_eq!(code(of_shard.at(&engine, at)), Some(Code::SnapshotTooOld));
    }
    let pin = |at| of_shard.pin(&engine, engine.store.epoch(), at).unwrap();
    assert!(pin(newest).is_some());
    assert!(of_shard.at(&engine, newest).is_ok());
    insert(&engine, 2);
    // It is pinned, and the log is past it.
    assert!(pin(newest).is_some() && pin(newest + 1).is_none());
}

/// However often it is pinned and settled: a state that was read is read again.
#[test]
fn a_state_that_was_read_does_not_change() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir);
    let keys = [prepare(&engine, 1), prepare(&engine, 2)];
    let (history, stopped) = (SnapshotHistory::new(true), AtomicBool::new(false));
    let router = |n: usize| {
        let (mut pinned, mut seen) = (0, BTreeMap::new());
        while pinned < 200 {
            let at = engine.store.last_ts() + 2;
            let epoch = engine.store.epoch();
            if history.pin(&engine, epoch, at).unwrap().is_none() {
                continue;
            }
            pinned += 1;
            if n.is_multiple_of(2) {
                std::thread::yield_now();
            }
            history.include(at, vec![keys[0].clone()]).unwrap();
            let state = history.at(&engine, at).unwrap();
            assert_eq!(state.view.get(SHOWN).unwrap().as_deref(), Some(&[1][..]));
            seen.insert(at, Arc::as_ptr(&state));
            for (at, first) in &seen {
                let again = history.at(&engine, *at).unwrap();
                assert!(
                    std::ptr::eq(Arc::as_ptr(&again), *first),
                    "{at} is another state"
                );
            }
        }
    };
    std::thread::scope(|s| {
        let routers: Vec<_> = (0..4).map(|n| s.spawn(move || router(n))).collect();
        s.spawn(|| {
            let mut id = 0;
            while !stopped.load(Ordering::Relaxed) {
                insert(&engine, id);
                id += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let ended: Vec<_> = routers.into_iter().map(|r| r.join()).collect();
        stopped.store(true, Ordering::Relaxed);
        assert!(ended.into_iter().all(|r| r.is_ok()));
    });
}

/// The next primary after one that has pinned a state writes nothing at its time, or before.
#[test]
fn a_later_primary_writes_after_what_was_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let mut at = 0;
    for life in 1..4 {
        let engine = open(&dir);
        if at > 0 {
            engine.store.set_term(life).unwrap();
            let history = SnapshotHistory::new(true);
            // Another state than the one that was read there may be it no more.
            assert_eq!(code(history.at(&engine, at)), Some(Code::SnapshotTooOld));
            insert(&engine, life as i32);
            assert!(
                engine.store.last_ts() > at,
                "{} and {at}",
                engine.store.last_ts()
            );
            let epoch = engine.store.epoch();
            assert!(history.pin(&engine, epoch, at).unwrap().is_none());
        }
        // A time that is ahead of this one's clock: another shard's is.
        at = engine.store.last_ts() + (5 << 32);
        let history = SnapshotHistory::new(true);
        let pinned = history.pin(&engine, engine.store.epoch(), at).unwrap();
        assert!(pinned.is_some());
        // It says so once for many.
        let end = engine.store.last_index();
        history.pin(&engine, engine.store.epoch(), at + 1).unwrap();
        assert_eq!(engine.store.last_index(), end);
    }
}
