//! Where nothing is in doubt, choosing a plan reads nothing: by `_id`, by a unique index that is given
//! whole, by an index whose entries are among those of another's, and where one index serves.

use bson::{Doc, DocBuf, Writer, json};
use catalog::NewIndex;
use executor::{Engine, OpCtx, ReadRequest, build};
use planner::Access;
use query::expr::ParseEnv;
use query::filter::Filter;
use std::sync::Arc;
use storage::{Store, StoreOptions};

const NS: &str = "t.c";
/// The keys of the indexes, and whether they are unique.
const INDEXES: [(&str, bool); 5] = [
    (r#"{"k":1}"#, false),
    (r#"{"k":1,"v":1}"#, false),
    (r#"{"s":1}"#, false),
    (r#"{"t":1,"e":1}"#, true),
    (r#"{"only":1}"#, false),
];

fn d(text: &str) -> DocBuf {
    json::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn engine(dir: &tempfile::TempDir) -> Arc<Engine> {
    let engine = Engine::open(Store::open(StoreOptions::new(dir.path())).unwrap()).unwrap();
    let docs: Vec<DocBuf> = (0..2000)
        .map(|i| {
            d(&format!(
                r#"{{"_id":{i},"k":1,"v":{i},"s":{},"t":{},"e":{i},"only":{i}}}"#,
                i % 3,
                i % 4
            ))
        })
        .collect();
    let refs: Vec<Doc> = docs.iter().map(|d| d.as_doc()).collect();
    executor::insert(&mut OpCtx::worker(&engine), NS, &refs, true, None).unwrap();
    for (key, unique) in INDEXES {
        let mut w = Writer::new();
        w.i32("v", 2).doc("key", d(key).as_doc()).str("name", key);
        if unique {
            w.bool("unique", true);
        }
        let spec = NewIndex { spec: w.finish() };
        build::create_indexes(&mut OpCtx::worker(&engine), NS, &[spec]).unwrap();
    }
    engine
}

/// The chosen plan, and how many entries were counted to choose it.
fn chosen(engine: &Arc<Engine>, text: &str) -> (String, u64) {
    let filter = Filter::parse(d(text).as_doc(), &ParseEnv::default()).unwrap();
    let ctx = OpCtx::worker(engine);
    let (view, coll) = ctx.view(NS);
    let coll = coll.unwrap();
    let choice = ReadRequest::new(&filter)
        .choose(engine, &view, &coll, false)
        .unwrap();
    let name = match &choice.plan.access {
        Access::Index(a) => {
            let mut all = coll.usable.iter();
            all.find(|i| i.id == a.index).unwrap().name.clone()
        }
        Access::Ids(_) => "ids".to_string(),
        other => format!("{other:?}"),
    };
    (name, choice.counted)
}

#[test]
fn nothing_is_counted_where_nothing_is_in_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(&dir);
    for (query, by) in [
        (r#"{"_id":5}"#, "ids"),
        (r#"{"_id":5,"k":1,"s":2}"#, "ids"),
        (r#"{"t":1,"e":5}"#, r#"{"t":1,"e":1}"#),
        (r#"{"t":1,"e":5,"s":2,"k":1}"#, r#"{"t":1,"e":1}"#),
        (r#"{"k":1,"v":5}"#, r#"{"k":1,"v":1}"#),
        (r#"{"only":5,"other":1}"#, r#"{"only":1}"#),
        (r#"{"only":{"$gte":5}}"#, r#"{"only":1}"#),
    ] {
        assert_eq!(chosen(&engine, query), (by.to_string(), 0), "{query}");
    }
    // Else the figure would show nothing.
    assert!(chosen(&engine, r#"{"k":1,"s":2}"#).1 > 0);
}
