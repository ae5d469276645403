//! BSON, keys and Extended JSON from outside: validation, and the views over bytes, the order and the keys, valid or not.

use bson::{Doc, Val, Value, key, order, tag};
use std::cmp::Ordering;

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
                e.val.to_i64_truncated(),
                e.val.as_regex(),
                e.val.as_code_with_scope(),
                e.val.to_string(),
            );
            1 + inner
                .filter(|_| depth < 200)
                .map_or(0, |d| walk(d, depth + 1))
        })
        .sum()
}

/// A key gives its value back, in either direction: the same in order, and of the same type.
fn round_trip(v: Val<'_>) {
    for descending in [false, true] {
        let (mut bytes, mut types) = (Vec::new(), key::Types::default());
        key::encode(v, descending, &mut bytes, Some(&mut types));
        assert_eq!(key::field_len(&bytes, descending), Some(bytes.len()), "{v}");
        let types = types.finish();
        let back = key::Decoder::new(&bytes, &types).field(descending);
        let back: Value = back.flatten().unwrap_or_else(|| panic!("{v} is lost"));
        assert_eq!(back.tag(), v.tag, "{v} became {back:?}");
        assert_eq!(order::compare(back.as_val(), v), Ordering::Equal, "{v}");
    }
}

/// One document: its values are compared with each other.
pub fn bytes(input: &[u8]) {
    if let Some(unchecked) = Doc::new(input) {
        walk(unchecked, 0);
    }
    let Ok(doc) = bson::validate(input) else {
        return;
    };
    walk(doc, 0);
    let _ = (
        bson::shell::doc(doc),
        bson::json::val_to_string(doc.as_val()),
    );
    let values: Vec<Val<'_>> = doc.values().take(20).collect();
    let keys: Vec<Vec<u8>> = values.iter().map(|v| key::of(*v)).collect();
    for (a, ka) in values.iter().zip(&keys) {
        round_trip(*a);
        for (b, kb) in values.iter().zip(&keys) {
            let there = order::compare(*a, *b);
            assert_eq!(ka.cmp(kb), there, "{a} and {b}");
            assert_eq!(order::compare(*b, *a), there.reverse(), "{a} and {b}");
            assert_eq!(
                order::equal(*a, *b),
                there == Ordering::Equal,
                "{a} and {b}"
            );
        }
    }
    let documents = values.iter().filter(|v| v.tag == tag::DOCUMENT);
    for other in documents.filter_map(|v| v.as_doc()) {
        let there = order::compare_docs(doc, other);
        assert_eq!(there, order::compare_docs(other, doc).reverse());
    }
    assert_eq!(order::compare_docs(doc, doc), Ordering::Equal);
}

/// Bytes of an index, which only a damaged disk bends.
pub fn keys(input: &[u8]) {
    for descending in [false, true] {
        let mut decoder = key::Decoder::new(input, &[]);
        while let Some(_value) = decoder.field(descending) {}
        let mut decoder = key::Decoder::new(input, input);
        while decoder.skip(descending).is_some_and(|raw| !raw.is_empty()) {}
        let _ = key::field_len(input, descending);
    }
}

/// Accepted Extended JSON is sound BSON, and prints.
pub fn json(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(doc) = bson::json::parse(text)
    {
        bson::validate(doc.as_doc().as_bytes()).expect("JSON becomes sound BSON");
        let _ = (bson::shell::doc(doc.as_doc()), doc.as_doc().to_string());
    }
}
