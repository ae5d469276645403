//! The indexes of applications, and what they ask: each query takes the index that was made for it,
//! in whatever order the indexes were made, and reads little more than it gives.
//!
//! The indexes and queries follow what the applications document; the data has their shape.

use bson::{Doc, DocBuf, Writer, json};
use catalog::NewIndex;
use executor::{Engine, FindCursor, FindRequest, OpCtx, UpdateRequest, build};
use planner::Access;
use query::expr::{ParseEnv, Vars};
use query::filter::Filter;
use query::sort::SortPattern;
use query::update::Update;
use std::sync::Arc;
use storage::{Store, StoreOptions};

const NS: &str = "t.c";
const DOCUMENTS: usize = 6000;

/// A query: its filter, its order, its limit, and the index that was made for it.
type SampleQuery = (&'static str, &'static str, u64, &'static str);

struct Application {
    name: &'static str,
    indexes: &'static [&'static str],
    document: fn(usize) -> String,
    queries: &'static [SampleQuery],
}

const APPLICATIONS: &[Application] = &[
    Application {
        name: "NodeBB, sorted sets",
        indexes: &[
            r#"{"_key":1,"score":-1}"#,
            r#"{"_key":1}"#,
            r#"{"_key":1,"value":-1}"#,
            r#"{"expireAt":1}"#,
        ],
        // One set of a third of all, and many small ones.
        document: |i| {
            let key = if i % 3 == 0 { 0 } else { i % 97 };
            format!(
                r#"{{"_id":{i},"_key":"set:{key}","value":"v{i}","score":{}}}"#,
                i * 7 % 5003
            )
        },
        queries: &[
            (
                r#"{"_key":"set:0","value":"v2997"}"#,
                "{}",
                0,
                r#"{"_key":1,"value":-1}"#,
            ),
            (
                r#"{"_key":"set:0","value":{"$in":["v3","v6","v9"]}}"#,
                "{}",
                0,
                r#"{"_key":1,"value":-1}"#,
            ),
            (
                r#"{"_key":"set:0"}"#,
                r#"{"score":-1}"#,
                20,
                r#"{"_key":1,"score":-1}"#,
            ),
            (
                r#"{"_key":"set:0","score":{"$gte":4950}}"#,
                r#"{"score":1}"#,
                0,
                r#"{"_key":1,"score":-1}"#,
            ),
        ],
    },
    Application {
        name: "Payload, jobs",
        indexes: &[
            r#"{"queue":1}"#,
            r#"{"processing":1}"#,
            r#"{"completedAt":1}"#,
            r#"{"hasError":1}"#,
            r#"{"waitUntil":1}"#,
            r#"{"createdAt":1}"#,
            r#"{"taskSlug":1}"#,
        ],
        // Nearly all of them are done.
        document: |i| {
            let done = if i % 200 == 0 {
                "null".into()
            } else {
                i.to_string()
            };
            format!(
                r#"{{"_id":{i},"queue":"default","processing":false,"completedAt":{done},"hasError":false,"waitUntil":null,"createdAt":{i},"taskSlug":"t{}"}}"#,
                i % 5
            )
        },
        queries: &[(
            r#"{"completedAt":null,"hasError":{"$ne":true},"processing":false,"queue":"default"}"#,
            r#"{"createdAt":1}"#,
            10,
            r#"{"completedAt":1}"#,
        )],
    },
    Application {
        name: "Rocket.Chat, messages",
        indexes: &[
            r#"{"rid":1}"#,
            r#"{"rid":1,"ts":1,"_updatedAt":1}"#,
            r#"{"ts":1}"#,
            r#"{"u._id":1}"#,
            r#"{"rid":1,"t":1,"u._id":1}"#,
            r#"{"tmid":1}"#,
        ],
        document: |i| {
            format!(
                r#"{{"_id":{i},"rid":"r{}","ts":{i},"_updatedAt":{i},"u":{{"_id":"u{}"}},"t":"{}","tmid":{}}}"#,
                i % 7 % 5,
                i % 41,
                if i % 50 == 0 { "uj" } else { "" },
                i / 10
            )
        },
        queries: &[
            (
                r#"{"rid":"r0"}"#,
                r#"{"ts":-1}"#,
                50,
                r#"{"rid":1,"ts":1,"_updatedAt":1}"#,
            ),
            (
                r#"{"rid":"r0","ts":{"$gt":5900}}"#,
                r#"{"ts":1}"#,
                0,
                r#"{"rid":1,"ts":1,"_updatedAt":1}"#,
            ),
            (
                r#"{"rid":"r1","t":"uj","u._id":"u9"}"#,
                "{}",
                0,
                r#"{"rid":1,"t":1,"u._id":1}"#,
            ),
            (r#"{"tmid":77,"rid":"r1"}"#, "{}", 0, r#"{"tmid":1}"#),
        ],
    },
    Application {
        name: "Parse, sessions and objects",
        indexes: &[
            r#"{"_session_token":1}"#,
            r#"{"_p_user":1}"#,
            r#"{"expiresAt":1}"#,
            r#"{"_created_at":1}"#,
        ],
        document: |i| {
            format!(
                r#"{{"_id":{i},"_session_token":"s{i}","_p_user":"_User${}","expiresAt":{},"_created_at":{i}}}"#,
                i % 300,
                i % 1000
            )
        },
        queries: &[
            (
                r#"{"_session_token":"s77","expiresAt":{"$gt":3}}"#,
                "{}",
                1,
                r#"{"_session_token":1}"#,
            ),
            (
                r#"{"_p_user":"_User$7","expiresAt":{"$gt":3}}"#,
                "{}",
                0,
                r#"{"_p_user":1}"#,
            ),
            (
                r#"{"expiresAt":{"$gt":3}}"#,
                r#"{"_created_at":-1}"#,
                20,
                r#"{"_created_at":1}"#,
            ),
        ],
    },
    Application {
        name: "Nightscout, entries",
        indexes: &[
            r#"{"type":1}"#,
            r#"{"date":1}"#,
            r#"{"sysTime":1}"#,
            r#"{"type":1,"date":-1,"dateString":1}"#,
            r#"{"sgv":1}"#,
        ],
        document: |i| {
            let kind = if i % 300 == 0 { "cal" } else { "sgv" };
            format!(
                r#"{{"_id":{i},"type":"{kind}","date":{i},"dateString":"d{i}","sysTime":"d{i}","sgv":{}}}"#,
                i * 31 % 300
            )
        },
        queries: &[
            (
                r#"{"type":"cal"}"#,
                r#"{"date":-1}"#,
                1,
                r#"{"type":1,"date":-1,"dateString":1}"#,
            ),
            (
                r#"{"type":"sgv","date":{"$gte":5900}}"#,
                r#"{"date":-1}"#,
                10,
                r#"{"type":1,"date":-1,"dateString":1}"#,
            ),
            (
                r#"{"sysTime":"d77","type":"sgv"}"#,
                "{}",
                0,
                r#"{"sysTime":1}"#,
            ),
        ],
    },
    Application {
        name: "Graylog, index ranges and tokens",
        indexes: &[
            r#"{"index_name":1}"#,
            r#"{"begin":1,"end":1}"#,
            r#"{"username":1}"#,
            r#"{"token_type":1,"token":1}"#,
        ],
        document: |i| {
            format!(
                r#"{{"_id":{i},"index_name":"graylog_{i}","begin":{},"end":{},"username":"u{}","token_type":0,"token":"k{i}"}}"#,
                i * 10,
                i * 10 + 9,
                i % 3
            )
        },
        queries: &[
            (
                r#"{"index_name":"graylog_70","begin":{"$gte":0}}"#,
                "{}",
                0,
                r#"{"index_name":1}"#,
            ),
            (
                r#"{"token_type":0,"token":"k5","username":"u2"}"#,
                "{}",
                0,
                r#"{"token_type":1,"token":1}"#,
            ),
            (
                r#"{"begin":{"$lte":50},"end":{"$gte":45}}"#,
                "{}",
                0,
                r#"{"begin":1,"end":1}"#,
            ),
        ],
    },
];

fn d(text: &str) -> DocBuf {
    json::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn engine(dir: &tempfile::TempDir, app: &Application, turned: bool) -> Arc<Engine> {
    let engine = Engine::open(Store::open(StoreOptions::new(dir.path())).unwrap()).unwrap();
    let docs: Vec<DocBuf> = (0..DOCUMENTS).map(|i| d(&(app.document)(i))).collect();
    for some in docs.chunks(1000) {
        let refs: Vec<Doc> = some.iter().map(|d| d.as_doc()).collect();
        executor::insert(&mut OpCtx::worker(&engine), NS, &refs, true, None).unwrap();
    }
    let mut indexes = app.indexes.to_vec();
    if turned {
        indexes.reverse();
    }
    for key in indexes {
        let mut w = Writer::new();
        w.i32("v", 2).doc("key", d(key).as_doc()).str("name", key);
        let spec = NewIndex { spec: w.finish() };
        build::create_indexes(&mut OpCtx::worker(&engine), NS, &[spec]).unwrap();
    }
    engine
}

/// The index that a query took, what it read, and how many documents it gave.
fn ask(engine: &Arc<Engine>, (filter, sort, limit, _): &SampleQuery) -> (String, u64, u64) {
    let mut ctx = OpCtx::worker(engine);
    let filter = Filter::parse(d(filter).as_doc(), &ParseEnv::default()).unwrap();
    let sort = d(sort);
    let request = FindRequest {
        sort: (!sort.as_doc().is_empty()).then(|| SortPattern::parse(sort.as_doc()).unwrap()),
        limit: Some(*limit).filter(|l| *l > 0),
        ..FindRequest::new(filter)
    };
    let mut cursor = FindCursor::open(&mut ctx, NS, request).unwrap().unwrap();
    let mut given = 0;
    while cursor.next(&mut ctx).unwrap() {
        given += 1;
    }
    let name = match &cursor.plan().access {
        Access::Index(a) => {
            let all = &cursor.collection().usable;
            all.iter().find(|i| i.id == a.index).unwrap().name.clone()
        }
        other => format!("{other:?}"),
    };
    let x = cursor.examined();
    (name, x.keys + x.docs, given)
}

#[test]
fn each_query_takes_the_index_that_was_made_for_it() {
    for app in APPLICATIONS {
        for turned in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let engine = engine(&dir, app, turned);
            for q in app.queries {
                let (index, read, given) = ask(&engine, q);
                assert_eq!(index, q.3, "{}: {q:?}", app.name);
                assert!(given > 0, "{}: {q:?}", app.name);
                assert!(
                    read <= 20 * given + 200,
                    "{}: {q:?}: {read} for {given}",
                    app.name
                );
            }
        }
    }
}

#[test]
fn upserts_into_a_large_set_read_one_entry_each() {
    let app = &APPLICATIONS[0];
    for turned in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(&dir, app, turned);
        let vars = Arc::new(Vars::default());
        for i in 0..200 {
            // Every other one is there already.
            let n = if i % 2 == 0 { i * 3 } else { DOCUMENTS + i };
            let filter = d(&format!(r#"{{"_key":"set:0","value":"v{n}"}}"#));
            let filter = Filter::parse(filter.as_doc(), &ParseEnv::default()).unwrap();
            let change = d(r#"{"$set":{"score":9}}"#);
            let change = Update::parse(change.as_doc().as_val(), &[], &ParseEnv::default());
            let request = UpdateRequest {
                filter: &filter,
                update: &change.unwrap(),
                multi: false,
                upsert: true,
                sort: None,
                hint: None,
                vars: &vars,
                now_millis: 0,
                images: false,
            };
            let mut ctx = OpCtx::worker(&engine);
            let done = executor::update(&mut ctx, NS, &request, 0, None).unwrap();
            assert_eq!(done.matched, u64::from(i % 2 == 0), "{i}");
            let x = ctx.examined();
            let read = x.keys + x.docs + x.planning;
            assert!(read <= 4, "{i}: {read}");
        }
    }
}
