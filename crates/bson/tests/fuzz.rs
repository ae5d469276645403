//! Bent BSON: validation, and the views over it, the order and the keys, whether it is valid or not.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../../tests/fuzz/targets/bson.rs"]
mod targets;

use bson::{Doc, key};

fn seeds() -> Vec<Vec<u8>> {
    [
        r#"{"a": 1, "b": "text", "c": [1, {"d": null}, [true]], "e": {"$numberDecimal": "1E-3"}, "f": {"$oid": "65a0000000000000000000ff"}}"#,
        r#"{"a": {"$binary": {"base64": "AAEC", "subType": "04"}}, "b": {"$date": "2024-01-01T00:00:00Z"}, "c": {"$timestamp": {"t": 1, "i": 2}}}"#,
        r#"{"a": {"$regularExpression": {"pattern": "^a\u0000", "options": "im"}}, "b": {"$minKey": 1}, "c": {"$maxKey": 1}, "d": {"$code": "x"}}"#,
        r#"{"a": 1.5, "b": {"$numberDouble": "NaN"}, "c": {"$numberLong": "-9223372036854775808"}, "d": "\u00e9\u0000x", "": {"": {}}}"#,
    ]
    .iter()
    .filter_map(|text| bson::json::parse(text).ok())
    .map(|doc| doc.into_vec())
    .collect()
}

#[test]
fn bytes() {
    mutate::fuzz("bson", &seeds(), targets::bytes);
}

#[test]
fn keys() {
    let seeds: Vec<Vec<u8>> = seeds()
        .iter()
        .filter_map(|bytes| Doc::new(bytes))
        .flat_map(|doc| doc.values().map(key::of).collect::<Vec<_>>())
        .collect();
    mutate::fuzz("keys", &seeds, targets::keys);
}

#[test]
fn json() {
    let texts: Vec<Vec<u8>> = seeds()
        .iter()
        .filter_map(|bytes| Some(Doc::new(bytes)?.to_string().into_bytes()))
        .collect();
    mutate::fuzz("json", &texts, targets::json);
}
