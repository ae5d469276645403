//! A later start finds the reserved time in the data files, and the counts of records beside it.

use bson::{Doc, DocBuf, doc};
use catalog::keyspace::{self, META_COUNT, SPACE_META, SYSTEM_TABLET};
use executor::{Engine, OpCtx, reserve_time, reserved_time};
use std::path::Path;
use std::sync::Arc;
use storage::{Effect, Entry, Store, StoreOptions};

const NS: &str = "t.c";

fn open(dir: &Path) -> Arc<Engine> {
    Engine::open(Store::open(StoreOptions::new(dir)).unwrap()).unwrap()
}

fn insert(engine: &Arc<Engine>, ids: std::ops::Range<i32>) {
    let docs: Vec<DocBuf> = ids.map(|n| doc! { "_id": n }).collect();
    let docs: Vec<Doc> = docs.iter().map(|d| d.as_doc()).collect();
    executor::insert(&mut OpCtx::worker(engine), NS, &docs, true, None).unwrap();
}

fn count(engine: &Engine) -> u64 {
    let tablet = engine.catalog.get(NS).unwrap().tablet;
    engine.store.counts(tablet).0
}

#[test]
fn it_is_there_again_when_the_store_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    insert(&engine, 0..5);
    reserve_time(&engine, engine.store.epoch(), 77 << 32).unwrap();
    engine.store.flush().unwrap();
    drop(engine);
    let engine = open(dir.path());
    assert_eq!(reserved_time(&engine.store.view()).unwrap(), 77 << 32);
    assert_eq!(count(&engine), 5);
}

/// Builds before 28 November 2026 stored it under the counts' own prefix.
#[test]
fn where_it_was_stored_before_it_harms_no_counts() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    insert(&engine, 0..5);
    let old = keyspace::prefix(SYSTEM_TABLET, SPACE_META, META_COUNT);
    let put = Effect::Put(old.to_vec(), (9_u64 << 32).to_be_bytes().to_vec());
    engine.store.propose(vec![Entry::noop(vec![put])]).unwrap();
    engine.store.flush().unwrap();
    drop(engine);
    let engine = open(dir.path());
    assert_eq!(reserved_time(&engine.store.view()).unwrap(), 9 << 32);
    insert(&engine, 5..7);
    assert_eq!(count(&engine), 7);
    reserve_time(&engine, engine.store.epoch(), 10 << 32).unwrap();
    assert_eq!(reserved_time(&engine.store.view()).unwrap(), 10 << 32);
}
