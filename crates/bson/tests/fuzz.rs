//! Bent BSON: validation, and the views over it, the order and the keys, whether it is valid or not.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;

use bson::{Doc, Val, key, order};
use std::cmp::Ordering;

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

/// Reads everything that there is.
fn walk(doc: Doc<'_>, depth: usize) -> usize {
    doc.iter()
        .take(10_000)
        .map(|e| {
            let inner = e.val.as_doc().or_else(|| e.val.as_array());
            let _ = (
                e.val.as_str(),
                e.val.as_binary(),
                e.val.as_i64(),
                e.val.to_string(),
            );
            1 + inner
                .filter(|_| depth < 200)
                .map_or(0, |d| walk(d, depth + 1))
        })
        .sum()
}

#[test]
fn bytes() {
    let mut before: Option<Vec<u8>> = None;
    mutate::fuzz("bson", &seeds(), |input| {
        if let Some(unchecked) = Doc::new(input) {
            walk(unchecked, 0);
        }
        let Ok(doc) = bson::validate(input) else {
            return;
        };
        walk(doc, 0);
        let values: Vec<Val<'_>> = doc.values().take(20).collect();
        for a in &values {
            for b in &values {
                let (ka, kb) = (key::of(*a), key::of(*b));
                assert_eq!(ka.cmp(&kb), order::compare(*a, *b), "{a} and {b}");
            }
        }
        if let Some(other) = before.as_deref().and_then(Doc::new) {
            let there = order::compare_docs(doc, other);
            assert_eq!(there, order::compare_docs(other, doc).reverse());
        }
        assert_eq!(order::compare_docs(doc, doc), Ordering::Equal);
        before = Some(input.to_vec());
    });
}

#[test]
fn keys() {
    let seeds: Vec<Vec<u8>> = seeds()
        .iter()
        .filter_map(|bytes| Doc::new(bytes))
        .flat_map(|doc| doc.values().map(key::of).collect::<Vec<_>>())
        .collect();
    mutate::fuzz("keys", &seeds, |input| {
        for descending in [false, true] {
            let mut decoder = key::Decoder::new(input, &[]);
            while let Some(_value) = decoder.field(descending) {}
            let mut decoder = key::Decoder::new(input, input);
            while decoder.skip(descending).is_some_and(|raw| !raw.is_empty()) {}
            let _ = key::field_len(input, descending);
        }
    });
}

#[test]
fn json() {
    let texts: Vec<Vec<u8>> = seeds()
        .iter()
        .filter_map(|bytes| Some(Doc::new(bytes)?.to_string().into_bytes()))
        .collect();
    mutate::fuzz("json", &texts, |input| {
        if let Ok(text) = std::str::from_utf8(input)
            && let Ok(doc) = bson::json::parse(text)
        {
            bson::validate(doc.as_doc().as_bytes()).expect("JSON becomes sound BSON");
        }
    });
}
