//! A catalog that is only sent entries beside the one that made them.

use super::*;
use crate::{Catalog, CheckInterrupt, NewIndex};
use bson::{DocBuf, doc};
use parking_lot::Mutex;
use storage::{Store, StoreOptions};

const ANY: CheckInterrupt<'static> = &crate::never_interrupted;

/// Hands every applied entry to another store, as a member of a set is sent them.
struct Sent(Mutex<Vec<Entry>>);

impl Observer for Sent {
    fn applied(&self, _: Committed, entry: &Entry) {
        self.0.lock().push(entry.clone());
    }
}

struct Member {
    _dir: tempfile::TempDir,
    store: Arc<Store>,
    catalog: Catalog,
}

fn member() -> Member {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreOptions {
        cache_bytes: 16 << 20,
        ..StoreOptions::new(dir.path())
    })
    .unwrap();
    let catalog = Catalog::open(store.clone()).unwrap();
    Member {
        _dir: dir,
        store,
        catalog,
    }
}

/// Every collection as its record would be written, by name.
fn shown(snapshot: &Snapshot) -> Vec<String> {
    let text = |c: &Arc<Collection>| record::write(c).as_doc().to_string();
    snapshot.all().map(text).collect()
}

fn index(name: &str, key: DocBuf) -> NewIndex {
    NewIndex {
        spec: doc! { "v": 2, "key": key, "name": name },
    }
}

/// One change of each kind.
fn change_everything(catalog: &Catalog) {
    let create = |ns: &str, options: DocBuf| catalog.create(ns, options).unwrap().unwrap();
    create("a.plain", doc! {});
    create("a.capped", doc! { "capped": true, "size": 4096 });
    create(
        "a.view",
        doc! { "viewOn": "plain", "pipeline": bson::Value::array(doc! {}) },
    );
    create("b.gone", doc! {});
    create("b.target", doc! {});
    create("c.one", doc! {});
    create("c.two", doc! {});
    let new = [index("x", doc! { "x": 1 }), index("y", doc! { "y": -1 })];
    catalog
        .add_indexes("a.plain", &new, ANY, |_| Ok(false))
        .unwrap();
    catalog.finish_build("a.plain", 1, ANY).unwrap();
    catalog.set_multikey("a.plain", 1, 1, true).unwrap();
    catalog.drop_index("a.plain", "y", ANY).unwrap();
    let hidden = doc! { "v": 2, "key": doc! { "x": 1 }, "name": "x", "hidden": true };
    catalog.change_index("a.plain", "x", hidden, ANY).unwrap();
    let options = doc! { "validator": doc! { "x": 1 } };
    catalog.change_options("a.plain", options, ANY).unwrap();
    catalog.rename("a.plain", "b.target", true, ANY).unwrap();
    catalog.drop_collection("b.gone", ANY).unwrap();
    catalog.number_records("c.one", ANY, |_| Ok(true)).unwrap();
    catalog.drop_database("c", ANY).unwrap();
    create("c.again", doc! {});
}

#[test]
fn who_is_sent_the_entries_knows_the_same_catalog() {
    let (first, second) = (member(), member());
    let sent = Arc::new(Sent(Mutex::default()));
    first.store.observe(sent.clone()).unwrap();
    change_everything(&first.catalog);
    for entry in sent.0.lock().drain(..) {
        second.store.propose(vec![entry]).unwrap();
        let stored = Snapshot::read(&second.store.view()).unwrap();
        assert_eq!(shown(&second.catalog.snapshot()), shown(&stored));
    }
    let (ours, theirs) = (first.catalog.snapshot(), second.catalog.snapshot());
    assert_eq!(shown(&theirs), shown(&ours));
    assert_eq!(theirs.databases(), ["a", "b", "c"]);
    let next = |m: &Member| m.catalog.create("d.new", doc! {}).unwrap().unwrap().tablet;
    assert_eq!(next(&second), next(&first));
}

#[test]
fn a_version_keeps_what_is_in_memory() {
    let m = member();
    m.catalog.create("a.c", doc! {}).unwrap();
    m.catalog
        .add_indexes("a.c", &[index("x", doc! { "x": 1 })], ANY, |_| Ok(true))
        .unwrap();
    let before = m.catalog.get("a.c").unwrap();
    before
        .index(1)
        .unwrap()
        .accesses
        .store(7, Ordering::Relaxed);
    m.catalog.rename("a.c", "b.c", false, ANY).unwrap();
    let after = m.catalog.get("b.c").unwrap();
    let accesses = |c: &Collection| c.index(1).unwrap().accesses.load(Ordering::Relaxed);
    assert!(Arc::ptr_eq(&after.lock, &before.lock) && accesses(&after) == 7);
    let hidden = doc! { "v": 2, "key": doc! { "x": 1 }, "name": "x", "hidden": true };
    m.catalog.change_index("b.c", "x", hidden, ANY).unwrap();
    let after = m.catalog.get("b.c").unwrap();
    assert!(Arc::ptr_eq(&after.lock, &before.lock) && accesses(&after) == 0);
}

#[test]
fn a_pending_collection_is_published_by_its_transaction_or_not_at_all() {
    let m = member();
    let begin = |ns: &str| m.catalog.begin_create(ns, doc! {}).unwrap().unwrap();
    let (mut made, create) = begin("a.made");
    let (with_index, indexes) = (m.catalog)
        .add_pending_indexes(made.get(), &[index("x", doc! { "x": 1 })])
        .unwrap();
    made.set(with_index.clone());
    assert!(m.catalog.create("a.made", doc! {}).is_err());
    let (left, _) = begin("a.left");
    let transaction = Entry {
        op: Op::Transaction(vec![create, indexes]),
        ..Entry::noop(vec![])
    };
    m.store.propose(vec![transaction]).unwrap();
    drop((made, left));
    let published = m.catalog.get("a.made").unwrap();
    assert!(Arc::ptr_eq(&published.lock, &with_index.lock));
    assert_eq!(published.indexes.len(), 1);
    assert!(m.catalog.get("a.left").is_none());
    assert!(m.catalog.create("a.left", doc! {}).unwrap().is_some());
}

/// The entry of a transaction that creates collections, and their handles.
fn creating(m: &Member, names: &[String]) -> (Vec<PendingCollection>, Entry) {
    let begin = |ns: &String| m.catalog.begin_create(ns, doc! {}).unwrap().unwrap();
    let (made, parts) = names.iter().map(begin).unzip();
    let entry = Entry {
        op: Op::Transaction(parts),
        ..Entry::noop(vec![])
    };
    (made, entry)
}

/// Commits transactions that create collections, each with a thread that wants the first name all
/// the while. Returns how often it got the name too.
fn names_created_twice(rounds: usize, collections: usize) -> usize {
    let m = member();
    let mut twice = 0;
    for round in 0..rounds {
        let name = |n| format!("a.{round}_{n:03}");
        let names: Vec<String> = (0..collections).map(name).collect();
        let (made, entry) = creating(&m, &names);
        let rival = || {
            loop {
                match m.catalog.begin_create(&names[0], doc! {}) {
                    Err(e) => assert_eq!(e.into_error().code, errors::Code::WriteConflict),
                    Ok(there) => return there.is_some(),
                }
            }
        };
        twice += std::thread::scope(|scope| {
            let rival = scope.spawn(rival);
            m.store.propose(vec![entry]).unwrap();
            drop(made);
            usize::from(rival.join().unwrap())
        });
        assert!(names.iter().all(|ns| m.catalog.get(ns).is_some()));
    }
    twice
}

#[test]
fn a_name_is_not_free_while_the_commit_that_publishes_it_is_applied() {
    // Many collections make the time long between the first of them and the publication.
    assert_eq!(names_created_twice(5, 200), 0);
}

#[test]
fn a_name_is_not_free_between_pending_and_published() {
    assert_eq!(names_created_twice(1000, 1), 0);
}

#[test]
fn a_rename_takes_no_name_that_became_pending_meanwhile() {
    let m = member();
    let from = m.catalog.create("a.from", doc! {}).unwrap().unwrap();
    let writing = from.try_write_lock().unwrap();
    std::thread::scope(|scope| {
        let rename = scope.spawn(|| m.catalog.rename("a.from", "a.to", false, ANY));
        // It waits for the write.
        while from.try_write_lock().is_some() {
            std::thread::yield_now();
        }
        let (made, entry) = creating(&m, &["a.to".to_string()]);
        drop(writing);
        let refused = rename.join().unwrap().unwrap_err();
        assert_eq!(refused.into_error().code, errors::Code::WriteConflict);
        m.store.propose(vec![entry]).unwrap();
        drop(made);
    });
    assert!(m.catalog.get("a.from").is_some() && m.catalog.get("a.to").is_some());
}

#[test]
fn a_name_that_two_collections_have_is_told() {
    let m = member();
    m.catalog.create("a.one", doc! {}).unwrap();
    let two = m.catalog.create("a.two", doc! {}).unwrap().unwrap();
    let told = |m: &Member| Snapshot::doubled_names(&m.store.view()).unwrap();
    assert_eq!(told(&m), [""; 0]);
    // As if a fault had given a second collection the name.
    let mut record = bson::Writer::new();
    for e in record::write(&two).as_doc() {
        match e.name {
            "ns" => record.str("ns", "a.one"),
            name => record.val(name, e.val),
        };
    }
    let key = keyspace::join(&collection_records(), &two.uuid);
    let put = Effect::Put(key, record.finish().into_vec());
    m.store.propose(vec![Entry::noop(vec![put])]).unwrap();
    assert_eq!(told(&m), ["a.one"]);
}
