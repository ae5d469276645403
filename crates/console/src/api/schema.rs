//! What the documents of a collection are like, of a sample: `pandoSchema`, as `pando schema` shows it. Of a sharded
//! collection, which that command does not know at a router, the sample is taken by `$sample` and looked at here, in the
//! same way and with the same answer.

use super::{
    ApiAnswer, ApiFailure, UNAUTHORIZED, aggregate, ask, doc_to_json, first_batch, reply_to_json,
    text,
};
use crate::http::HttpRequest;
use crate::in_process::ServerConnection;
use bson::{Doc, DocBuf, Val, Writer};
use query::shape::{Field, Shape, ShapeLimits};
use serde_json::{Value, json};

const SAMPLE: i64 = 1000;
const MOST_SAMPLE: i64 = 10_000;
const MILLIS: i64 = 20_000;
const BATCH: i32 = 100;
const NOT_FOUND: i64 = 26;

pub fn run(c: &mut dyn ServerConnection, r: &HttpRequest) -> ApiAnswer {
    let body = r
        .json()
        .ok_or_else(|| ApiFailure::new(400, "the body is no object"))?;
    let (db, collection) = (text(&body, "db"), text(&body, "collection"));
    let asked = body.get("sample").and_then(Value::as_i64);
    let sample = asked.unwrap_or(SAMPLE).clamp(1, MOST_SAMPLE);
    let mut w = Writer::new();
    w.str("pandoSchema", collection).i64("sampleSize", sample);
    w.i64("maxTimeMS", MILLIS);
    match ask(c, db, &w.finish()) {
        Ok(reply) => Ok(reply_to_json(&reply)),
        Err(f) if f.is_code(UNAUTHORIZED) || f.is_code(NOT_FOUND) => Err(f),
        Err(_) => sampled(c, db, collection, sample),
    }
}

fn sampled(c: &mut dyn ServerConnection, db: &str, collection: &str, sample: i64) -> ApiAnswer {
    let mut shape = Shape::new(ShapeLimits::default());
    let pipeline = json!([{"$sample": {"size": sample}}]);
    let first = ask(c, db, &aggregate(Some(collection), pipeline, BATCH))?;
    first_batch(&first).into_iter().for_each(|d| shape.add(d));
    let mut id = cursor_of(&first);
    while id != 0 {
        let mut w = Writer::new();
        w.i64("getMore", id).str("collection", collection);
        w.i32("batchSize", BATCH);
        let next = ask(c, db, &w.finish())?;
        let cursor = next.get("cursor").and_then(Val::as_doc);
        let batch = cursor.and_then(|d| d.get("nextBatch")?.as_array());
        let documents = batch.unwrap_or(Doc::EMPTY).values();
        documents.filter_map(Val::as_doc).for_each(|d| shape.add(d));
        id = cursor_of(&next);
    }
    let mut w = Writer::new();
    w.str("listIndexes", collection);
    let indexes = ask(c, db, &w.finish()).ok();
    let indexes = indexes.as_ref().map(first_batch).unwrap_or_default();
    let indexes: Vec<Value> = indexes.into_iter().map(doc_to_json).collect();
    let (looked, truncated) = (shape.documents, shape.truncated);
    let fields = shape.into_fields();
    let fields = fields.iter().map(|f| field(f, looked, &indexes));
    Ok(json!({
        "ns": format!("{db}.{collection}"), "sampled": looked, "complete": looked < sample.unsigned_abs(),
        "truncated": truncated, "fields": fields.collect::<Vec<_>>(),
    }))
}

fn cursor_of(reply: &DocBuf) -> i64 {
    let cursor = reply.get("cursor").and_then(Val::as_doc);
    let id = cursor.and_then(|c| c.get("id")?.to_i64_exact());
    id.unwrap_or(0)
}

/// A share of a whole, to four digits.
fn share(n: u64, of: u64) -> f64 {
    (n as f64 / of.max(1) as f64 * 10_000.0).round() / 10_000.0
}

fn field(f: &Field, looked: u64, indexes: &[Value]) -> Value {
    let mut types = f.types.clone();
    types.sort_by_key(|t| std::cmp::Reverse(t.1));
    let types = types
        .iter()
        .map(|(name, n)| json!({"type": name, "count": n, "share": share(*n, f.values)}));
    let examples = f.examples.iter().map(|e| super::to_json(e.as_val()));
    let path = f.path.replace("[]", "");
    let place = |i: &Value| {
        let position = i["key"]
            .as_object()?
            .keys()
            .position(|name| *name == path)?;
        Some(json!({"name": i["name"], "position": position}))
    };
    let mut out = json!({
        "path": f.path, "documents": f.documents, "share": share(f.documents, looked),
        "types": types.collect::<Vec<_>>(), "examples": examples.collect::<Vec<_>>(),
        "indexes": indexes.iter().filter_map(place).collect::<Vec<_>>(),
    });
    if let Some((least, most, all)) = f.elements {
        let arrays = f.types.iter().find(|(t, _)| *t == "array");
        let arrays = arrays.map_or(1, |(_, n)| *n);
        out["elements"] = json!({"least": least, "most": most, "average": share(all, arrays)});
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{array, doc};

    #[test]
    fn fields_are_told_as_the_command_tells_them() {
        let mut shape = Shape::new(ShapeLimits::default());
        shape.add(doc! {"a": 1, "t": array!["x", "y"]}.as_doc());
        shape.add(doc! {"a": "s"}.as_doc());
        let indexes = [json!({"name": "t_1_a_1", "key": {"t": 1, "a": 1}})];
        let fields = shape.into_fields();
        let all: Vec<Value> = fields.iter().map(|f| field(f, 2, &indexes)).collect();
        assert_eq!(
            all[0]["types"][0],
            json!({"type": "int", "count": 1, "share": 0.5})
        );
        assert_eq!(
            all[0]["indexes"],
            json!([{"name": "t_1_a_1", "position": 1}])
        );
        assert_eq!(
            (&all[1]["share"], &all[1]["elements"]["most"]),
            (&json!(0.5), &json!(2))
        );
    }
}
