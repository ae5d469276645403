//! The query box: reads alone. A pipeline that would write is refused here, before the server is asked.

use super::{ApiAnswer, ApiFailure, ask, doc_to_json, first_batch, reply_to_json, text};
use crate::http::HttpRequest;
use crate::in_process::ServerConnection;
use bson::{DocBuf, Val, Value as Bson, Writer};
use serde_json::{Map, Value, json};
use std::time::Instant;

const MOST_DOCUMENTS: i64 = 200;
const MOST_MILLIS: i64 = 30_000;
const WRITING: &[&str] = &["$out", "$merge"];

struct ConsoleQuery {
    db: String,
    collection: String,
    command: DocBuf,
    is_pipeline: bool,
}

pub fn run(c: &mut dyn ServerConnection, r: &HttpRequest) -> ApiAnswer {
    let query = read(r, false)?;
    let began = Instant::now();
    let reply = ask(c, &query.db, &query.command)?;
    let micros = began.elapsed().as_micros();
    end_cursor(c, &query, &reply);
    let documents: Vec<Value> = first_batch(&reply).into_iter().map(doc_to_json).collect();
    Ok(json!({"documents": documents, "micros": micros as u64}))
}

/// A pipeline leaves its cursor open where there is more than was asked for.
fn end_cursor(c: &mut dyn ServerConnection, query: &ConsoleQuery, reply: &DocBuf) {
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    let id = cursor
        .and_then(|d| d.get("id")?.to_i64_exact())
        .unwrap_or(0);
    if id != 0 {
        let mut w = Writer::new();
        w.str("killCursors", &query.collection);
        w.value("cursors", bson::array![id]);
        let _ = c.run(&query.db, w.finish().as_doc());
    }
}

pub fn explain(c: &mut dyn ServerConnection, r: &HttpRequest) -> ApiAnswer {
    let query = read(r, true)?;
    let mut w = Writer::new();
    w.doc("explain", query.command.as_doc());
    w.str("verbosity", "executionStats")
        .i64("maxTimeMS", MOST_MILLIS);
    let reply = ask(c, &query.db, &w.finish())?;
    let mut answer = json!({"explain": reply_to_json(&reply)});
    answer["isPipeline"] = query.is_pipeline.into();
    Ok(answer)
}

/// The command that the body describes: a find, or a pipeline.
fn read(r: &HttpRequest, explained: bool) -> Result<ConsoleQuery, ApiFailure> {
    let body = r
        .json()
        .ok_or_else(|| ApiFailure::new(400, "the body is no object"))?;
    let (db, collection) = (text(&body, "db"), text(&body, "collection"));
    if db.is_empty() || collection.is_empty() {
        return Err(ApiFailure::new(400, "db and collection are missing"));
    }
    let query = body.get("limit").and_then(Value::as_i64).unwrap_or(20);
    let limit = query.clamp(1, MOST_DOCUMENTS);
    let pipeline = body.get("pipeline").filter(|p| !p.is_null());
    let mut w = Writer::new();
    match pipeline {
        Some(pipeline) => write_pipeline(&mut w, collection, pipeline, limit)?,
        None => write_find(&mut w, collection, &body, limit)?,
    }
    if !explained {
        w.i64("maxTimeMS", MOST_MILLIS);
    }
    Ok(ConsoleQuery {
        db: db.into(),
        collection: collection.into(),
        command: w.finish(),
        is_pipeline: pipeline.is_some(),
    })
}

fn malformed(what: &str) -> ApiFailure {
    ApiFailure::new(400, format!("{what} makes no sense as Extended JSON"))
}

fn write_pipeline(
    w: &mut Writer,
    collection: &str,
    pipeline: &Value,
    limit: i64,
) -> Result<(), ApiFailure> {
    let Value::Array(stages) = pipeline else {
        return Err(ApiFailure::new(400, "the pipeline is no array"));
    };
    if let Some(writing) = WRITING.iter().find(|name| names(pipeline, name, 0)) {
        return Err(ApiFailure::new(
            403,
            format!("{writing} writes: this page reads alone"),
        ));
    }
    let mut stages = stages.clone();
    stages.push(json!({"$limit": limit}));
    let stages =
        bson::json::to_value(&Value::Array(stages)).ok_or_else(|| malformed("the pipeline"))?;
    w.str("aggregate", collection).value("pipeline", stages);
    w.open_doc("cursor").i64("batchSize", limit).close();
    Ok(())
}

/// Whether a field of this name is anywhere in it.
fn names(value: &Value, name: &str, depth: usize) -> bool {
    match value {
        _ if depth > 200 => true,
        Value::Object(o) => o
            .iter()
            .any(|(n, v)| n == name || names(v, name, depth + 1)),
        Value::Array(a) => a.iter().any(|v| names(v, name, depth + 1)),
        _ => false,
    }
}

fn write_find(
    w: &mut Writer,
    collection: &str,
    body: &Map<String, Value>,
    limit: i64,
) -> Result<(), ApiFailure> {
    w.str("find", collection);
    for name in ["filter", "projection", "sort"] {
        let Some(given) = body.get(name).filter(|v| !v.is_null()) else {
            continue;
        };
        let value: Option<Bson> = given
            .is_object()
            .then(|| bson::json::to_value(given))
            .flatten();
        w.value(name, value.ok_or_else(|| malformed(name))?);
    }
    let skip = body.get("skip").and_then(Value::as_i64).unwrap_or(0);
    w.i64("skip", skip.max(0)).i64("limit", limit);
    w.i64("batchSize", limit).bool("singleBatch", true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http;

    fn query(body: Value) -> Result<Value, u16> {
        let body = body.to_string();
        let text = format!(
            "POST /x HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let request = http::read(&mut text.as_bytes()).unwrap();
        let query = read(&request, true).map_err(|f| f.status)?;
        Ok(doc_to_json(query.command.as_doc()))
    }

    #[test]
    fn commands() {
        let id = json!({"$oid": "6b0a2088397e70e046476a33"});
        let find = json!({"db": "d", "collection": "c", "filter": {"a": id}, "limit": 9999});
        let command = query(find).unwrap();
        assert_eq!(
            (&command["find"], &command["filter"]["a"]),
            (&json!("c"), &id)
        );
        assert_eq!(
            (&command["limit"], &command["batchSize"]),
            (&json!(200), &json!(200))
        );
        let pipeline =
            json!({"db": "d", "collection": "c", "pipeline": [{"$match": {}}], "limit": 3});
        let command = query(pipeline).unwrap();
        assert_eq!(command["pipeline"], json!([{"$match": {}}, {"$limit": 3}]));
    }

    #[test]
    fn what_writes_or_makes_no_sense_is_refused() {
        for (body, status) in [
            (
                json!({"db": "d", "collection": "c", "pipeline": [{"$out": "x"}]}),
                403,
            ),
            (
                json!({"db": "d", "collection": "c", "pipeline": [{"$facet": {"a": [{"$merge": {}}]}}]}),
                403,
            ),
            (json!({"db": "d", "collection": "c", "pipeline": {}}), 400),
            (json!({"db": "d", "collection": "c", "filter": []}), 400),
            (
                json!({"db": "d", "collection": "c", "filter": {"a": {"$oid": "x"}}}),
                400,
            ),
            (json!({"db": "d"}), 400),
            (json!([]), 400),
        ] {
            assert_eq!(query(body.clone()), Err(status), "{body}");
        }
    }
}
