//! What all transactions hold together is bounded, and given back when they end.

use bson::{Doc, doc};
use errors::Code;
use executor::{Engine, Lsid, OpCtx, Transaction};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use storage::{Store, StoreOptions};

fn insert(engine: &Arc<Engine>, t: Box<Transaction>, id: i32) -> (Box<Transaction>, Option<Code>) {
    let document = doc! { "_id": id, "fill": "x".repeat(10_000) };
    let mut ctx = OpCtx::worker(engine);
    ctx.join(t);
    let docs: [Doc<'_>; 1] = [document.as_doc()];
    let code = match executor::insert(&mut ctx, "t.c", &docs, true, None) {
        Ok(done) => done.errors.first().map(|(_, e)| e.code),
        Err(stop) => Some(stop.into_error().code),
    };
    (ctx.transaction.take().unwrap(), code)
}

fn begin(engine: &Arc<Engine>, n: u8) -> Box<Transaction> {
    let lsid = Lsid {
        id: [n; 16],
        uid: [0; 32],
    };
    Box::new(Transaction::begin(engine, None, lsid, 1))
}

#[test]
fn memory_is_shared_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(Store::open(StoreOptions::new(dir.path())).unwrap()).unwrap();
    let first = doc! { "_id": -1 };
    executor::insert(
        &mut OpCtx::worker(&engine),
        "t.c",
        &[first.as_doc()],
        true,
        None,
    )
    .unwrap();
    let all = &engine.transactions;
    all.most_held_bytes.store(100_000, Relaxed);
    let mut open = Vec::new();
    let refused = (0..50).find_map(|n| {
        let (t, code) = insert(&engine, begin(&engine, n as u8), n);
        open.push(t);
        code
    });
    // Drivers begin such a one again.
    assert_eq!(refused, Some(Code::WriteConflict));
    assert!(open.len() > 2);
    open.pop();
    assert!(all.held_bytes.load(Relaxed) <= 100_000);
    // Those that are open can end, and others have their room then.
    open.clear();
    assert_eq!(all.held_bytes.load(Relaxed), 0);
    let (t, code) = insert(&engine, begin(&engine, 99), 99);
    assert_eq!(code, None);
    assert!(all.held_bytes.load(Relaxed) > 10_000);
    // A statement that is rolled back gives its bytes back.
    let savepoint = t.savepoint();
    let before = all.held_bytes.load(Relaxed);
    let (mut t, code) = insert(&engine, t, 100);
    assert_eq!(code, None);
    assert!(all.held_bytes.load(Relaxed) > before);
    t.return_to(savepoint);
    assert_eq!(all.held_bytes.load(Relaxed), before);
    drop(t);
    assert_eq!(all.held_bytes.load(Relaxed), 0);
}
