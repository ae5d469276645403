//! Followers of the log: each is told of what concerns it, of nothing else, and of nothing that a
//! loss of power takes back; however writers, syncs and followers meet, none waits in vain.

use bson::{Doc, doc};
use executor::{Engine, OpCtx};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;
use storage::{EntryGlance, Store, StoreOptions};

/// In vain: longer than any sync of a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn open(dir: &std::path::Path) -> Arc<Engine> {
    let options = StoreOptions {
        // A waiter has to ask for a sync.
        sync_interval: Duration::from_secs(3600),
        ..StoreOptions::new(dir)
    };
    Engine::open(Store::open(options).unwrap()).unwrap()
}

fn insert(engine: &Arc<Engine>, ns: &str, id: i32) {
    let document = doc! { "_id": id };
    let docs: [Doc<'_>; 1] = [document.as_doc()];
    let done = executor::insert(&mut OpCtx::worker(engine), ns, &docs, true, None).unwrap();
    assert_eq!((done.n, done.errors.len()), (1, 0));
}

fn sync(engine: &Arc<Engine>) {
    let store = &engine.store;
    store.wait_durable(store.last_index()).unwrap();
}

#[test]
fn one_is_told_of_what_concerns_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    insert(&engine, "t.c", 0);
    insert(&engine, "t.d", 0);
    sync(&engine);
    let follower = engine.log_tail.follow("t.c");
    let (told, news) = channel();
    follower.on_news(Box::new(move || told.send(()).unwrap()));
    for i in 1..50 {
        insert(&engine, "t.d", i);
    }
    sync(&engine);
    assert!(!follower.has_news());
    // It is there, but a loss of power might take it back: the one that waits has it synced.
    let before = engine.store.last_index();
    insert(&engine, "t.c", 1);
    insert(&engine, "t.c", 2);
    news.recv_timeout(LONG).unwrap();
    assert!(engine.store.durable_index() > before);
    let mark = follower.take_news().unwrap();
    // What lies before concerns others, and need not be read.
    assert_eq!(mark.index, before + 1);
    assert!(!follower.has_news());
}

#[test]
fn no_waiter_is_forgotten() {
    for others_sync in [false, true] {
        writers_and_followers(300, others_sync);
    }
}

/// `others_sync`: there are syncs that no follower has asked for.
fn writers_and_followers(each: i32, others_sync: bool) {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    for ns in ["a.x", "a.y", "b.x"] {
        insert(&engine, ns, -1);
    }
    let begin = engine.store.log_end();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for ns in ["a.x", "a.y", "b.x"] {
            let engine = &engine;
            scope.spawn(move || (0..each).for_each(|i| insert(engine, ns, i)));
        }
        let (syncing, ended) = (engine.clone(), stop.clone());
        let syncs = scope.spawn(move || {
            while others_sync && !ended.load(SeqCst) {
                sync(&syncing);
                std::thread::yield_now();
            }
        });
        let followers: Vec<_> = [("a.x", 1), ("a", 2), ("", 3), ("b.x", 1), ("b", 1)]
            .into_iter()
            .map(|(name, collections)| {
                let engine = &engine;
                scope.spawn(move || follow(engine, name, begin, collections * each))
            })
            .collect();
        let outcomes: Vec<_> = followers.into_iter().map(|f| f.join()).collect();
        stop.store(true, SeqCst);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        syncs.join().unwrap();
    });
}

/// Reads, as a stream does, what follows on an index, until it has seen so many inserts.
fn follow(engine: &Arc<Engine>, name: &str, begin: u64, mut wanted: i32) {
    let follower = engine.log_tail.follow(name);
    let (told, news) = channel();
    let (mut next, mut caught_up) = (begin + 1, false);
    while wanted > 0 {
        let told = told.clone();
        // The follower may be gone when this is called, after it has seen all.
        follower.on_news(Box::new(move || {
            let _ = told.send(());
        }));
        // A follower that has not read up to the durable index skips nothing.
        if let Some(mark) = follower.take_news()
            && caught_up
        {
            next = next.max(mark.index);
        }
        let durable = engine.store.durable_index();
        let mut reader = engine.store.read_log(next).unwrap();
        while next <= durable && wanted > 0 {
            let record = reader.next().unwrap().unwrap();
            if let Some(EntryGlance::Documents(ns)) = EntryGlance::at(record.payload) {
                let db = ns.split_once('.').map_or("", |(db, _)| db);
                wanted -= i32::from(name.is_empty() || name == ns || name == db);
            }
            next = record.index + 1;
        }
        caught_up = true;
        if wanted > 0 && !follower.has_news() {
            let waited = news.recv_timeout(LONG);
            assert!(waited.is_ok(), "{name} waits in vain for {wanted}");
        }
    }
}
