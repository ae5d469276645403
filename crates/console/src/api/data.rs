//! Databases, collections, their documents and indexes.

use super::{ApiAnswer, aggregate, ask, doc_to_json, first_batch, parameter, reply_to_json};
use crate::http::HttpRequest;
use crate::in_process::ServerConnection;
use bson::{Doc, DocBuf, Val, Writer};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Collections of a page: each is asked for its figures.
const PAGE: usize = 50;
const PATIENCE: Duration = Duration::from_secs(10);
const MOST_COLLECTIONS: i32 = 20_000;

pub fn databases(c: &mut dyn ServerConnection) -> ApiAnswer {
    let reply = ask(c, "admin", &super::simple("listDatabases"))?;
    Ok(reply_to_json(&reply))
}

fn collection_stats(c: &mut dyn ServerConnection, db: &str, name: &str) -> Option<DocBuf> {
    let mut w = Writer::new();
    w.str("collStats", name)
        .i64("maxTimeMS", super::VIEW_MILLIS);
    ask(c, db, &w.finish()).ok()
}

/// A page of a database's collections, by a part of the name.
pub fn collections(c: &mut dyn ServerConnection, r: &HttpRequest) -> ApiAnswer {
    let db = parameter(r, "db")?;
    let part = r.parameter("filter").unwrap_or_default().to_lowercase();
    let from = r.parameter("from").and_then(|v| v.parse::<usize>().ok());
    let mut w = Writer::new();
    // A user that may not list all gets those that it may read.
    w.i32("listCollections", 1).bool("nameOnly", true);
    w.bool("authorizedCollections", true);
    w.open_doc("cursor")
        .i32("batchSize", MOST_COLLECTIONS)
        .close();
    let reply = ask(c, &db, &w.finish())?;
    let name = |d: &Doc<'_>| d.get("name").and_then(Val::as_str).map(String::from);
    let mut all: Vec<(String, Value)> = first_batch(&reply)
        .iter()
        .filter_map(|d| Some((name(d)?, doc_to_json(*d))))
        .filter(|(name, _)| name.to_lowercase().contains(&part))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let total = all.len();
    let until = Instant::now() + PATIENCE;
    let page = all.into_iter().skip(from.unwrap_or(0)).take(PAGE);
    let rows: Vec<Value> = page
        .map(|(name, kind)| {
            let mut row = json!({"name": name, "type": kind["type"]});
            // What comes too late comes without figures.
            if Instant::now() < until
                && let Some(stats) = collection_stats(c, &db, &name)
            {
                add_figures(&mut row, &stats);
            }
            row
        })
        .collect();
    Ok(json!({"db": db, "total": total, "page": PAGE, "collections": rows}))
}

fn add_figures(row: &mut Value, stats: &DocBuf) {
    for name in [
        "count",
        "size",
        "storageSize",
        "totalIndexSize",
        "nindexes",
        "avgObjSize",
        "sharded",
        "capped",
    ] {
        if let Some(v) = stats.get(name) {
            row[name] = super::to_json(v);
        }
    }
}

/// One collection: its figures, and its indexes with their size and use.
pub fn collection(c: &mut dyn ServerConnection, r: &HttpRequest) -> ApiAnswer {
    let (db, name) = (parameter(r, "db")?, parameter(r, "collection")?);
    let mut answer = json!({"db": db, "collection": name});
    let stats = collection_stats(c, &db, &name);
    let mut sizes = Value::Null;
    if let Some(stats) = &stats {
        add_figures(&mut answer, stats);
        sizes = stats.get("indexSizes").map_or(Value::Null, super::to_json);
    }
    let mut w = Writer::new();
    w.str("listIndexes", &name);
    let listed = ask(c, &db, &w.finish());
    let used = ask(
        c,
        &db,
        &aggregate(Some(&name), json!([{"$indexStats": {}}]), 1000),
    )
    .ok();
    match listed {
        Ok(listed) => {
            let used = used.as_ref().map(first_batch).unwrap_or_default();
            let all = first_batch(&listed).into_iter().map(doc_to_json);
            let all = all.map(|spec| index(spec, &sizes, &used));
            answer["indexes"] = all.collect();
        }
        Err(f) => answer["indexesError"] = f.message.into(),
    }
    Ok(answer)
}

/// An index with what each shard says of its use.
fn index(spec: Value, sizes: &Value, used: &[Doc<'_>]) -> Value {
    let name = spec["name"].as_str().unwrap_or("").to_string();
    let own = used
        .iter()
        .filter(|u| u.get("name").and_then(Val::as_str) == Some(&name));
    let (mut operations, mut since, mut known) = (0.0, None::<i64>, false);
    for u in own {
        known = true;
        operations += super::number_at(*u, "accesses.ops").unwrap_or(0.0);
        let at = super::number_at(*u, "accesses.since").map(|at| at as i64);
        since = since.max(at);
    }
    let mut out = json!({"name": name, "spec": spec});
    out["size"] = sizes.get(&name).cloned().unwrap_or(Value::Null);
    if known {
        out["operations"] = json!(operations);
        out["sinceMillis"] = json!(since);
        // What keeps values unique, ends documents or is `_id_` is of use without being read.
        let works = ["unique", "expireAfterSeconds"]
            .iter()
            .any(|n| !matches!(spec[*n], Value::Null | Value::Bool(false)));
        out["unused"] = json!(operations == 0.0 && name != "_id_" && !works);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn the_use_of_an_index_is_that_of_all_shards() {
        let used = |name: &str, ops: i64| doc! {"name": name, "accesses": doc! {"ops": ops, "since": bson::Value::date(5)}};
        let all = [
            used("a_1", 2),
            used("a_1", 3),
            used("b_1", 0),
            used("c_1", 0),
        ];
        let all: Vec<_> = all.iter().map(DocBuf::as_doc).collect();
        let sizes = json!({"a_1": 7});
        let a = index(json!({"name": "a_1"}), &sizes, &all);
        assert_eq!(
            (&a["operations"], &a["unused"], &a["size"]),
            (&json!(5.0), &json!(false), &json!(7))
        );
        assert_eq!(
            index(json!({"name": "b_1"}), &sizes, &all)["unused"],
            json!(true)
        );
        let unique = json!({"name": "c_1", "unique": true});
        assert_eq!(index(unique, &sizes, &all)["unused"], json!(false));
        assert_eq!(
            index(json!({"name": "z_1"}), &sizes, &all)["unused"],
            Value::Null
        );
    }
}
