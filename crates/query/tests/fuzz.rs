//! Bent filters, updates, expressions and pipelines: whatever they are, parsing and running them
//! ends with a value or an error.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../../tests/fuzz/targets/query.rs"]
mod targets;

const FILTERS: &str = include_str!("../../../tests/fuzz/seeds/filters.json");
const UPDATES: &str = include_str!("../../../tests/fuzz/seeds/updates.json");
const SHAPES: &str = include_str!("../../../tests/fuzz/seeds/shapes.json");
const PIPELINES: &str = include_str!("../../../tests/fuzz/seeds/pipelines.json");

/// Each seed twice: as text, which bends into other shapes, and as BSON, which bends into other
/// values.
fn seeds(lines: &str) -> Vec<Vec<u8>> {
    lines
        .lines()
        .flat_map(|line| {
            let doc = bson::json::parse(line).expect("a seed is JSON");
            [line.as_bytes().to_vec(), doc.into_vec()]
        })
        .collect()
}

#[test]
fn filters() {
    mutate::fuzz("filters", &seeds(FILTERS), targets::filters);
}

#[test]
fn shapes() {
    mutate::fuzz("shapes", &seeds(SHAPES), targets::shapes);
}

#[test]
fn updates() {
    mutate::fuzz("updates", &seeds(UPDATES), targets::updates);
}

#[test]
fn expressions() {
    mutate::fuzz("expressions", &seeds(FILTERS), targets::expressions);
}

#[test]
fn pipelines() {
    mutate::fuzz("pipelines", &seeds(PIPELINES), targets::pipelines);
}

#[test]
fn projections_and_index_keys() {
    let lines = concat!(
        r#"{"a": 1, "b.c": {"$slice": [1, 2]}, "n": {"$add": ["$n", 1]}}"#,
        "\n",
        r#"{"a.x": 1, "b": -1}"#,
        "\n",
        r#"{"t": {"$elemMatch": {"$gt": 1}}, "_id": 0}"#,
    );
    mutate::fuzz(
        "projections",
        &seeds(lines),
        targets::projections_and_index_keys,
    );
}
