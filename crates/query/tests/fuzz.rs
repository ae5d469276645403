//! Bent filters, updates, expressions and pipelines: whatever they are, parsing and running them ends with a value or an error.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;

use bson::{Doc, DocBuf};
use query::filter::Filter;
use query::index_keys::{KeyPattern, KeySet};
use query::pipeline::{ParseCtx, Pipeline};
use query::projection::Projection;
use query::update::{Update, UpdateCtx};

const FILTERS: &str = include_str!("../../../tests/fuzz/seeds/filters.json");
const UPDATES: &str = include_str!("../../../tests/fuzz/seeds/updates.json");
const PIPELINES: &str = include_str!("../../../tests/fuzz/seeds/pipelines.json");

/// Each seed twice: as text, which bends into other shapes, and as BSON, which bends into other values.
fn seeds(lines: &str) -> Vec<Vec<u8>> {
    lines
        .lines()
        .flat_map(|line| {
            let doc = bson::json::parse(line).expect("a seed is JSON");
            [line.as_bytes().to_vec(), doc.into_vec()]
        })
        .collect()
}

fn read(input: &[u8]) -> Option<DocBuf> {
    match bson::validate(input) {
        Ok(doc) => Some(doc.to_buf()),
        Err(_) => bson::json::parse(std::str::from_utf8(input).ok()?).ok(),
    }
}

fn documents() -> Vec<DocBuf> {
    [
        r#"{"_id": 1, "a": 1, "b": {"c": 3}, "n": 5, "t": [1, 2]}"#,
        r#"{"_id": 2, "a": [{"x": 3, "y": 1, "b": 2}, 7, null], "b": ["x", [1]], "c": [0, {"d": 1}], "g": {"$numberDecimal": "1.5"}}"#,
        r#"{"_id": 3, "a": "aaaaaaaaaaaaaaaaaaaac", "b": null, "d": {"$date": "2024-01-01T00:00:00Z"}, "h": {"$binary": {"base64": "AAEC", "subType": "00"}}}"#,
    ]
    .iter()
    .map(|text| bson::json::parse(text).expect("JSON"))
    .collect()
}

#[test]
fn filters() {
    let docs = documents();
    mutate::fuzz("filters", &seeds(FILTERS), |input| {
        if let Some(doc) = read(input)
            && let Ok(filter) = Filter::parse(doc.as_doc(), &Default::default())
        {
            for d in &docs {
                let _ = filter.matches(d.as_doc());
            }
        }
    });
}

#[test]
fn updates() {
    let (docs, all) = (documents(), Filter::all());
    let vars = Default::default();
    let x = bson::json::parse(r#"{"x.b": {"$gt": 0}}"#).expect("JSON");
    mutate::fuzz("updates", &seeds(UPDATES), |input| {
        let Some(doc) = read(input) else { return };
        let filters = [x.as_doc()];
        for array_filters in [&filters[..], &[]] {
            let u = doc.as_doc().as_val();
            let Ok(update) = Update::parse(u, array_filters, &Default::default()) else {
                continue;
            };
            for d in &docs {
                let ctx = UpdateCtx::new(&vars, 0, 1 << 32);
                if let Ok(Some(applied)) = update.apply(d.as_doc(), &all, &ctx) {
                    bson::validate(applied.doc.as_doc().as_bytes())
                        .expect("an update makes sound BSON");
                }
            }
        }
    });
}

#[test]
fn pipelines() {
    mutate::fuzz("pipelines", &seeds(PIPELINES), |input| {
        if let Some(doc) = read(input)
            && let Some(first) = doc.as_doc().first()
        {
            let ctx = ParseCtx::new("db", Some("coll"), Default::default());
            let _ = Pipeline::parse(first.val, &ctx);
        }
    });
}

#[test]
fn projections_and_index_keys() {
    let docs = documents();
    let mut keys = KeySet::new();
    let lines = concat!(
        r#"{"a": 1, "b.c": {"$slice": [1, 2]}, "n": {"$add": ["$n", 1]}}"#,
        "\n",
        r#"{"a.x": 1, "b": -1}"#,
        "\n",
        r#"{"t": {"$elemMatch": {"$gt": 1}}, "_id": 0}"#,
    );
    mutate::fuzz("projections and index keys", &seeds(lines), |input| {
        let Some(doc) = read(input) else { return };
        let doc: Doc<'_> = doc.as_doc();
        let _ = Projection::parse(doc, None, &Default::default());
        if let Ok(pattern) = KeyPattern::parse(doc) {
            for d in &docs {
                keys.clear();
                let _ = pattern.extract(d.as_doc(), false, &mut keys);
            }
        }
    });
}
