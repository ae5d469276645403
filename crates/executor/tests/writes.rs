//! Writes through the executor: records, indexes and counts stay in step; a restart finds them
//! again.

use bson::{Doc, DocBuf, doc, json};
use catalog::NewIndex;
use errors::Code;
use executor::{
    DeleteRequest, Engine, FindCursor, FindRequest, OpCtx, ReadRequest, UpdateRequest, WriteGroup,
    build,
};
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::update::Update;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use storage::{Store, StoreOptions};

fn open(dir: &std::path::Path) -> Arc<Engine> {
    Engine::open(Store::open(StoreOptions::new(dir)).unwrap()).unwrap()
}

fn d(text: &str) -> DocBuf {
    json::parse(text).unwrap()
}

fn filter(text: &str) -> Filter {
    Filter::parse(d(text).as_doc(), &ParseEnv::default()).unwrap()
}

fn find(engine: &Arc<Engine>, f: &str) -> Vec<String> {
    let mut ctx = OpCtx::worker(engine);
    let Some(mut c) = FindCursor::open(&mut ctx, "t.c", FindRequest::new(filter(f))).unwrap()
    else {
        return vec![];
    };
    let mut out = vec![];
    while c.next(&mut ctx).unwrap() {
        out.push(c.doc().unwrap().to_string());
    }
    out
}

fn insert(engine: &Arc<Engine>, docs: &[&str]) -> executor::Inserted {
    let docs: Vec<DocBuf> = docs.iter().map(|t| d(t)).collect();
    let docs: Vec<Doc> = docs.iter().map(|d| d.as_doc()).collect();
    executor::insert(&mut OpCtx::worker(engine), "t.c", &docs, true, None).unwrap()
}

fn update(
    engine: &Arc<Engine>,
    f: &str,
    u: &str,
    multi: bool,
    upsert: bool,
) -> errors::Result<executor::Updated> {
    let u = Update::parse(d(u).as_doc().as_val(), &[], &ParseEnv::default()).unwrap();
    let f = filter(f);
    let vars = Arc::new(Vars::default());
    let req = UpdateRequest {
        filter: &f,
        update: &u,
        multi,
        upsert,
        sort: None,
        hint: None,
        vars: &vars,
        now_millis: 0,
        images: false,
    };
    executor::update(&mut OpCtx::worker(engine), "t.c", &req, 0, None)
}

fn index(engine: &Arc<Engine>, key: &str, options: &str) -> errors::Result<()> {
    let mut w = bson::Writer::new();
    let key = d(key);
    let name: Vec<String> = key
        .as_doc()
        .iter()
        .map(|e| format!("{}_{}", e.name, e.val))
        .collect();
    w.i32("v", 2)
        .doc("key", key.as_doc())
        .str("name", &name.join("_"))
        .extend(d(options).as_doc());
    build::create_indexes(
        &mut OpCtx::worker(engine),
        "t.c",
        &[NewIndex { spec: w.finish() }],
    )
}

/// Every index entry belongs to a record and every record has its entries.
fn check(engine: &Arc<Engine>) {
    let c = engine.catalog.get("t.c").unwrap();
    let view = engine.store.view();
    let all = find(engine, "{}");
    assert_eq!(engine.store.counts(c.tablet).0 as usize, all.len());
    for i in &c.indexes {
        let mut want = 0;
        let mut keys = query::index_keys::KeySet::default();
        for text in &all {
            let doc = d(text);
            keys.clear();
            if i.info
                .partial
                .as_ref()
                .is_none_or(|p| p.matches(doc.as_doc()).unwrap())
            {
                i.info
                    .key
                    .extract(doc.as_doc(), i.info.sparse, &mut keys)
                    .unwrap();
            }
            want += keys.len();
        }
        let end = catalog::keyspace::prefix_end(&i.prefix);
        let mut scan = view.scan(&i.prefix, &end, storage::Direction::Forward);
        let mut have = 0;
        while scan.next().unwrap() {
            have += 1;
        }
        assert_eq!(have, want, "entries of {}", i.name());
    }
}

#[test]
fn documents_come_and_go_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    {
        let e = open(dir.path());
        let r = insert(
            &e,
            &[
                r#"{"_id": 1, "a": 1}"#,
                r#"{"a": 2, "_id": 2}"#,
                r#"{"_id": 1}"#,
                r#"{"_id": 3}"#,
            ],
        );
        assert_eq!((r.n, r.errors.len()), (2, 1));
        assert!(
            r.errors[0].1.message.contains("dup key: { _id: 1 }"),
            "{}",
            r.errors[0].1.message
        );
        assert_eq!(
            find(&e, "{}"),
            [r#"{"_id": 1, "a": 1}"#, r#"{"_id": 2, "a": 2}"#]
        );
        index(&e, r#"{"a": 1}"#, r#"{"unique": true}"#).unwrap();
        check(&e);
        let r = insert(&e, &[r#"{"_id": 4, "a": 2}"#]);
        assert_eq!(r.errors[0].1.code, errors::Code::DuplicateKey);
        assert_eq!(
            update(&e, r#"{"_id": 2}"#, r#"{"$set": {"a": 7}}"#, false, false)
                .unwrap()
                .modified,
            1
        );
        assert_eq!(insert(&e, &[r#"{"_id": 4, "a": 2}"#]).n, 1);
        let failed =
            update(&e, r#"{"_id": 4}"#, r#"{"$set": {"a": 1}}"#, false, false).unwrap_err();
        assert!(failed.is(errors::Code::DuplicateKey));
        let u = update(&e, r#"{"a": 9}"#, r#"{"$set": {"b": [1, 2]}}"#, false, true).unwrap();
        assert!(u.upserted.is_some());
        check(&e);
    }
    let e = open(dir.path());
    assert_eq!(find(&e, "{}").len(), 4);
    index(&e, r#"{"b": -1}"#, "{}").unwrap();
    check(&e);
    assert_eq!(e.catalog.get("t.c").unwrap().indexes[1].info.multikey, 1);
    let f = filter(r#"{"a": {"$gte": 7}}"#);
    let req = DeleteRequest {
        filter: &f,
        multi: true,
        sort: None,
        hint: None,
        vars: None,
        images: false,
    };
    assert_eq!(
        executor::delete(&mut OpCtx::worker(&e), "t.c", &req, 0, None)
            .unwrap()
            .n,
        2
    );
    check(&e);
    assert_eq!(
        executor::count(
            &mut OpCtx::worker(&e),
            "t.c",
            &ReadRequest::new(&Filter::all()),
            0,
            0
        )
        .unwrap(),
        2
    );
    assert_eq!(
        executor::count(
            &mut OpCtx::worker(&e),
            "t.c",
            &ReadRequest::new(&filter(r#"{"a": 1}"#)),
            0,
            0
        )
        .unwrap(),
        1
    );
}

#[test]
fn a_loop_commits_its_turn_as_one_group() {
    let dir = tempfile::tempdir().unwrap();
    let e = open(dir.path());
    e.catalog.get_or_create("t.c").unwrap();
    let mut group = WriteGroup::default();
    for i in 0..3 {
        let doc = doc! { "_id": i };
        executor::insert(
            &mut OpCtx::inline(&e, &mut group),
            "t.c",
            &[doc.as_doc()],
            true,
            None,
        )
        .unwrap();
    }
    assert!(find(&e, "{}").is_empty());
    // The same key again: the group is written first, then the duplicate is seen.
    let doc = doc! { "_id": 1 };
    let r = executor::insert(
        &mut OpCtx::inline(&e, &mut group),
        "t.c",
        &[doc.as_doc()],
        true,
        None,
    )
    .unwrap();
    assert_eq!(r.errors.len(), 1);
    assert!(group.commit(&e.store).unwrap() > 0);
    assert_eq!(find(&e, "{}").len(), 3);
}

/// A build whose collection is dropped under it says that it was ended, wherever it was.
#[test]
fn a_build_of_what_is_dropped_meanwhile_is_aborted() {
    let dir = tempfile::tempdir().unwrap();
    let e = open(dir.path());
    let new = [NewIndex {
        spec: doc! {"v": 2, "key": doc! {"a": 1}, "name": "a_1"},
    }];
    let built = build::create_indexes(&mut OpCtx::worker(&e), "t.none", &new);
    assert_eq!(
        built.unwrap_err().into_error().code,
        Code::IndexBuildAborted
    );
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                e.catalog
                    .drop_database("t", &catalog::never_interrupted)
                    .unwrap();
            }
        });
        for round in 0..300 {
            insert(&e, &[r#"{"_id": 1}"#, r#"{"_id": 2}"#]);
            let built = build::create_indexes(&mut OpCtx::worker(&e), "t.c", &new);
            let code = built.err().map(|stop| stop.into_error().code);
            let told = code.is_none_or(|code| code == Code::IndexBuildAborted);
            if !told {
                over.store(true, Ordering::Relaxed);
            }
            assert!(told, "{code:?} in round {round}");
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A text index of a field, after a field `a`.
fn text_index(field: &str) -> DocBuf {
    let weights = d(&format!(r#"{{"{field}": 1}}"#));
    doc! {
        "v": 2, "key": doc! {"a": 1, "_fts": "text", "_ftsx": 1}, "name": "texts", "weights": weights,
        "default_language": "english", "language_override": "language", "textIndexVersion": 3,
    }
}

/// Builds two indexes by one scan, while others write.
#[test]
fn one_scan_fills_several_indexes() {
    const DOCUMENTS: usize = 12_000;
    let dir = tempfile::tempdir().unwrap();
    let e = open(dir.path());
    let docs: Vec<DocBuf> = (0..DOCUMENTS)
        .map(|n| doc! {"_id": n as i64, "a": (n * 7919 % 997) as i64, "b": bson::array![1, n as i64], "t": "x".repeat(200)})
        .collect();
    for some in docs.chunks(1000) {
        let some: Vec<Doc> = some.iter().map(|d| d.as_doc()).collect();
        executor::insert(&mut OpCtx::worker(&e), "t.c", &some, true, None).unwrap();
    }
    let plain = doc! {"v": 2, "key": doc! {"b": 1}, "name": "b"};
    let new = [text_index("t"), plain].map(|spec| NewIndex { spec });
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !over.load(Ordering::Relaxed) {
                let of = format!(r#"{{"_id": {}}}"#, n * 104_729 % DOCUMENTS);
                update(
                    &e,
                    &of,
                    r#"{"$inc": {"a": 1}, "$set": {"b": [2, 3]}}"#,
                    false,
                    false,
                )
                .unwrap();
                n += 1;
            }
        });
        let built = build::create_indexes(&mut OpCtx::worker(&e), "t.c", &new);
        over.store(true, Ordering::Relaxed);
        built.unwrap();
    });
    check(&e);
    // A unique one fails as a whole.
    let failed = index(&e, r#"{"a": -1}"#, r#"{"unique": true}"#).unwrap_err();
    assert!(failed.is(Code::DuplicateKey));
    assert_eq!(e.catalog.get("t.c").unwrap().indexes.len(), 2);
}

/// A member that fills what the primary has finished is not stopped by another index that cannot be built.
#[test]
fn what_is_finished_is_filled_beside_what_will_fail() {
    let dir = tempfile::tempdir().unwrap();
    let e = open(dir.path());
    insert(&e, &[r#"{"a": 1, "b": 1}"#, r#"{"a": [1], "b": [2]}"#]);
    let both = doc! {"v": 2, "key": doc! {"a": 1, "b": 1}, "name": "both"};
    let one = doc! {"v": 2, "key": doc! {"a": 1}, "name": "one"};
    let new = [both, one].map(|spec| NewIndex { spec });
    let interrupt = &catalog::never_interrupted;
    let ids = e
        .catalog
        .add_indexes("t.c", &new, interrupt, |_| Ok(false))
        .unwrap();
    build::catch_up(&e, "t.c", ids[1].0).unwrap();
    assert!(build::catch_up(&e, "t.c", ids[0].0).is_err());
    e.catalog.drop_index("t.c", "both", interrupt).unwrap();
    check(&e);
}

#[test]
fn unique_builds_fail_whole() {
    let dir = tempfile::tempdir().unwrap();
    let e = open(dir.path());
    insert(&e, &[r#"{"a": 1}"#, r#"{"a": 1}"#]);
    let r = index(&e, r#"{"a": 1}"#, r#"{"unique": true}"#).unwrap_err();
    assert!(r.is(errors::Code::DuplicateKey));
    assert!(e.catalog.get("t.c").unwrap().indexes.is_empty());
}

#[test]
fn a_capped_collection_keeps_its_newest_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let ids = |engine: &Arc<Engine>, f: &str| -> Vec<i64> {
        find(engine, f)
            .iter()
            .map(|t| d(t).get("_id").unwrap().to_i64_exact().unwrap())
            .collect()
    };
    {
        let engine = open(dir.path());
        let options = doc! { "capped": true, "size": 1 << 20, "max": 5 };
        engine.catalog.create("t.c", options).unwrap();
        index(&engine, r#"{"x": 1}"#, "{}").unwrap();
        for i in [7, 3, 9] {
            assert_eq!(
                insert(&engine, &[&format!(r#"{{"_id": {i}, "x": 1}}"#)]).n,
                1
            );
        }
        assert_eq!(ids(&engine, "{}"), [7, 3, 9]);
        // Two insertions of one turn of a loop: the second sees what the first has staged.
        let mut group = WriteGroup::default();
        for i in [1, 5, 4] {
            let doc = d(&format!(r#"{{"_id": {i}, "x": 2}}"#));
            let mut ctx = OpCtx::inline(&engine, &mut group);
            let done = executor::insert(&mut ctx, "t.c", &[doc.as_doc()], true, None).unwrap();
            assert_eq!((done.n, done.errors.len()), (1, 0));
        }
        group.commit(&engine.store).unwrap();
        assert_eq!(ids(&engine, "{}"), [3, 9, 1, 5, 4]);
        assert_eq!(ids(&engine, r#"{"x": 1}"#), [3, 9]);
        assert_eq!(
            insert(&engine, &[r#"{"_id": 9.0}"#]).errors[0].1.code.0,
            11000
        );
        assert_eq!(ids(&engine, r#"{"_id": 7}"#), [0i64; 0]);
        update(
            &engine,
            r#"{"_id": 20}"#,
            r#"{"$set": {"x": 3}}"#,
            false,
            true,
        )
        .unwrap();
        assert_eq!(ids(&engine, "{}"), [9, 1, 5, 4, 20]);
        check(&engine);
    }
    let engine = open(dir.path());
    assert_eq!(ids(&engine, "{}"), [9, 1, 5, 4, 20]);
    insert(&engine, &[r#"{"_id": 2}"#, r#"{"_id": 0}"#]);
    assert_eq!(ids(&engine, "{}"), [5, 4, 20, 2, 0]);
    assert_eq!(ids(&engine, r#"{"_id": {"$gte": 4}}"#), [4, 5, 20]);
    let all: Vec<String> = (100..1100).map(|i| format!(r#"{{"_id": {i}}}"#)).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(insert(&engine, &all).n, 1000);
    assert_eq!(ids(&engine, "{}"), [1095, 1096, 1097, 1098, 1099]);
    check(&engine);
}

/// Writes wait for DDL, and DDL for writes, no longer than their operation may take.
#[test]
fn waiting_for_a_collection_ends_with_the_operation() {
    let dir = tempfile::tempdir().unwrap();
    let e = open(dir.path());
    insert(&e, &[r#"{"_id": 1}"#]);
    let coll = e.catalog.get("t.c").unwrap();
    let mut ctx = OpCtx::worker(&e);
    ctx.deadline = Some(std::time::Instant::now());
    let doc = d(r#"{"_id": 2}"#);
    let write = |ctx: &mut OpCtx| {
        executor::insert(ctx, "t.c", &[doc.as_doc()], true, None).and_then(|done| {
            done.errors
                .into_iter()
                .next()
                .map_or(Ok(done.n), |(_, e)| Err(e.into()))
        })
    };
    let frozen = coll.freeze(&catalog::never_interrupted).unwrap();
    assert_eq!(write(&mut ctx).unwrap_err().into_error().code.0, 50);
    drop(frozen);
    assert_eq!(write(&mut OpCtx::worker(&e)).unwrap(), 1);

    let writing = coll.try_write_lock().unwrap();
    assert_eq!(
        ctx.wait_for_writers("t.c").unwrap_err().into_error().code.0,
        50
    );
    // The change's own wait ends too: a write may have begun since it was looked for one.
    let over = || ctx.check();
    let changes: [errors::Result<()>; 4] = [
        e.catalog.drop_collection("t.c", &over).map(drop),
        e.catalog.rename("t.c", "t.d", false, &over),
        e.catalog.note_coll_mod("t.c", &over),
        coll.freeze(&over).map(drop),
    ];
    for change in changes {
        assert_eq!(change.unwrap_err().into_error().code.0, 50);
    }
    assert!(e.catalog.get("t.c").is_some_and(|c| Arc::ptr_eq(&c, &coll)));
    drop(writing);
    ctx.wait_for_writers("t.c").unwrap();
    ctx.wait_for_writers("t.none").unwrap();
    check(&e);
}
