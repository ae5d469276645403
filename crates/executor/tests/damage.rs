//! A stored record that is no document, or is missing: whatever reads it fails with its namespace
//! and key, and shows no empty document in its place, or fewer documents.

use bson::{Doc, DocBuf, doc, json};
use catalog::{NewIndex, keyspace};
use executor::{Engine, FindCursor, FindRequest, OpCtx, build};
use query::expr::ParseEnv;
use query::filter::Filter;
use query::sort::SortPattern;
use std::sync::Arc;
use storage::{Direction, Effect, Entry, Store, StoreOptions};

fn d(text: &str) -> DocBuf {
    json::parse(text).unwrap()
}

/// Documents with `_id` and `a` from 1 to 3 under an index on `a`; `damage` gives the effect that
/// replaces the first record, by its key and value.
fn damaged(dir: &std::path::Path, damage: impl Fn(&[u8], &[u8]) -> Effect) -> Arc<Engine> {
    let engine = Engine::open(Store::open(StoreOptions::new(dir)).unwrap()).unwrap();
    let docs: Vec<DocBuf> = (1..4).map(|n| doc! { "_id": n, "a": n, "b": n }).collect();
    let docs: Vec<Doc> = docs.iter().map(|d| d.as_doc()).collect();
    let mut ctx = OpCtx::worker(&engine);
    executor::insert(&mut ctx, "t.c", &docs, true, None).unwrap();
    let spec = doc! { "v": 2, "key": doc! { "a": 1 }, "name": "a_1" };
    build::create_indexes(&mut ctx, "t.c", &[NewIndex { spec }]).unwrap();
    let coll = engine.catalog.get("t.c").unwrap();
    let (low, high) = (
        coll.record_prefix,
        keyspace::prefix_end(&coll.record_prefix),
    );
    let mut scan = engine.store.view().scan(&low, &high, Direction::Forward);
    assert!(scan.next().unwrap());
    let written = damage(scan.key(), scan.value());
    (engine.store)
        .propose(vec![Entry::noop(vec![written])])
        .unwrap();
    engine
}

fn find(engine: &Arc<Engine>, filter: &str, sort: Option<&str>) -> errors::Result<usize> {
    let mut ctx = OpCtx::worker(engine);
    let filter = Filter::parse(d(filter).as_doc(), &ParseEnv::default())?;
    let mut request = FindRequest::new(filter);
    request.sort = sort.map(|s| SortPattern::parse(d(s).as_doc()).unwrap());
    let mut cursor = FindCursor::open(&mut ctx, "t.c", request)?.unwrap();
    let mut n = 0;
    while cursor.next(&mut ctx)? {
        cursor.doc()?;
        n += 1;
    }
    Ok(n)
}

#[test]
fn whatever_reads_a_damaged_record_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = damaged(dir.path(), |key, value| {
        Effect::Put(key.to_vec(), value[..7].to_vec())
    });
    for (filter, sort) in [
        ("{}", None),
        (r#"{"b": {"$gt": 0}}"#, None),
        (r#"{"_id": 1}"#, None),
        (r#"{"_id": {"$in": [1, 2]}}"#, None),
        (r#"{"a": {"$gt": 0}}"#, None),
        (r#"{"a": {"$gt": 0}, "b": 1}"#, None),
        (r#"{"$or": [{"a": 1}, {"_id": 2}]}"#, None),
        (r#"{"a": {"$gt": 0}}"#, Some(r#"{"b": 1}"#)),
        ("{}", Some(r#"{"b": 1}"#)),
    ] {
        let failed = find(&engine, filter, sort).expect_err(filter);
        assert!(
            failed
                .failure()
                .unwrap()
                .message
                .ends_with(" of t.c is damaged"),
            "{filter}: {failed}"
        );
    }
    assert_eq!(find(&engine, r#"{"a": {"$gt": 1}}"#, None).unwrap(), 2);
}

#[test]
fn an_index_entry_whose_record_is_missing_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let engine = damaged(dir.path(), |key, _| Effect::Delete(key.to_vec()));
    for (filter, sort) in [
        (r#"{"a": {"$gt": 0}}"#, None),
        (r#"{"a": 1, "b": 1}"#, None),
        (r#"{"a": {"$gt": 0}}"#, Some(r#"{"b": 1}"#)),
    ] {
        let failed = find(&engine, filter, sort).expect_err(filter);
        let error = failed.failure().unwrap();
        assert_eq!(error.code, errors::Code::DataCorruptionDetected);
        assert!(error.message.contains("the index a_1 of t.c"), "{error}");
    }
    assert_eq!(find(&engine, r#"{"a": {"$gt": 1}}"#, None).unwrap(), 2);
}
