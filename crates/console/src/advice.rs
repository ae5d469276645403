//! The index that would serve a slow operation, and why: fields that the filter compares for equality, then those that the
//! sort asks for, then those of ranges ([the manual](https://www.mongodb.com/docs/manual/tutorial/equality-sort-range-rule/)).
//!
//! Invariant: pure. It reads the command as it was, and knows no index that there is.

use crate::slow::SlowShape;
use serde_json::{Map, Value, json};

/// An index of more fields is of little more use.
const MOST_FIELDS: usize = 5;

#[derive(Default, Debug, PartialEq)]
struct Fields {
    equality: Vec<String>,
    sort: Vec<(String, i64)>,
    range: Vec<String>,
}

/// What to tell of a shape; null where nothing is to be told.
pub fn of(shape: &SlowShape) -> Value {
    let reason = match (
        shape.scans(),
        shape.sorts_in_memory(),
        shape.reads_in_vain(),
    ) {
        (true, _, true) => "scan",
        (_, true, _) => "sort",
        (_, _, true) => "examined",
        _ => return Value::Null,
    };
    let fields = fields_of(&shape.example);
    let key = key_of(&fields);
    if key.is_empty() || key.keys().eq(["_id"]) {
        return Value::Null;
    }
    let sort: Vec<&String> = fields.sort.iter().map(|(name, _)| name).collect();
    json!({
        "reason": reason, "key": key, "equality": fields.equality, "sort": sort, "range": fields.range,
    })
}

fn key_of(fields: &Fields) -> Map<String, Value> {
    let equal = fields.equality.iter().map(|name| (name, 1));
    let sorted = fields.sort.iter().map(|(name, way)| (name, *way));
    let ranges = fields.range.iter().map(|name| (name, 1));
    let mut key = Map::new();
    for (name, way) in equal.chain(sorted).chain(ranges) {
        if key.len() < MOST_FIELDS && !key.contains_key(name) {
            key.insert(name.clone(), way.into());
        }
    }
    key
}

/// What a command filters and sorts by.
fn fields_of(command: &Value) -> Fields {
    let mut fields = Fields::default();
    for name in ["filter", "query", "q"] {
        if let Some(Value::Object(filter)) = command.get(name) {
            add_filter(&mut fields, filter);
        }
    }
    if let Some(Value::Object(sort)) = command.get("sort") {
        add_sort(&mut fields, sort);
    }
    if let Some(key) = command.get("key").and_then(Value::as_str) {
        fields.range.push(key.into());
    }
    // Stages at the head: what comes behind another one sees other documents.
    for stage in command
        .get("pipeline")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        match (stage.get("$match"), stage.get("$sort")) {
            (Some(Value::Object(filter)), _) => add_filter(&mut fields, filter),
            (_, Some(Value::Object(sort))) => {
                add_sort(&mut fields, sort);
                break;
            }
            _ => break,
        }
    }
    fields.range.retain(|f| !fields.equality.contains(f));
    fields
}

fn add_filter(fields: &mut Fields, filter: &Map<String, Value>) {
    for (name, condition) in filter {
        match (name.as_str(), condition) {
            ("$and", Value::Array(all)) => {
                for part in all.iter().filter_map(Value::as_object) {
                    add_filter(fields, part);
                }
            }
            (name, _) if name.starts_with('$') => {}
            (name, condition) => add_condition(fields, name, condition),
        }
    }
}

fn add_condition(fields: &mut Fields, name: &str, condition: &Value) {
    let operators = condition.as_object().into_iter().flat_map(Map::keys);
    let mut operators = operators.filter(|o| o.starts_with('$')).peekable();
    let first = operators.peek().map(|o| o.as_str());
    let into = match first {
        Some(
            "$gt" | "$gte" | "$lt" | "$lte" | "$ne" | "$nin" | "$regex" | "$exists" | "$type"
            | "$not" | "$mod",
        ) => &mut fields.range,
        Some("$regularExpression") => &mut fields.range,
        // Other kinds of indexes, or none.
        Some(
            "$near" | "$nearSphere" | "$geoWithin" | "$geoIntersects" | "$where" | "$elemMatch"
            | "$size",
        ) => return,
        _ => &mut fields.equality,
    };
    if !into.iter().any(|f| f == name) {
        into.push(name.into());
    }
}

fn add_sort(fields: &mut Fields, sort: &Map<String, Value>) {
    for (name, way) in sort {
        if let Some(way) = way.as_f64()
            && !name.starts_with('$')
            && !fields.sort.iter().any(|(f, _)| f == name)
        {
            fields
                .sort
                .push((name.clone(), if way < 0.0 { -1 } else { 1 }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(command: Value) -> String {
        Value::Object(key_of(&fields_of(&command))).to_string()
    }

    #[test]
    fn equality_sort_range() {
        for (command, expected) in [
            (
                json!({"find": "c", "filter": {"age": {"$gt": 5}, "city": "x"}, "sort": {"name": -1}}),
                r#"{"city":1,"name":-1,"age":1}"#,
            ),
            (
                json!({"find": "c", "filter": {"$and": [{"a": {"$in": [1, 2]}}, {"b": {"$lt": 3}}, {"a": 1}]}}),
                r#"{"a":1,"b":1}"#,
            ),
            (
                json!({"aggregate": "c", "pipeline": [{"$match": {"a": {"$date": 5}}}, {"$sort": {"b": 1}}, {"$match": {"c": 1}}]}),
                r#"{"a":1,"b":1}"#,
            ),
            (
                json!({"aggregate": "c", "pipeline": [{"$group": {}}, {"$match": {"c": 1}}]}),
                "{}",
            ),
            (
                json!({"q": {"a": 1}, "u": {"$set": {"b": 2}}}),
                r#"{"a":1}"#,
            ),
            (
                json!({"distinct": "c", "key": "k", "query": {"a": 1}}),
                r#"{"a":1,"k":1}"#,
            ),
            (
                json!({"find": "c", "filter": {"$or": [{"a": 1}], "g": {"$near": 1}}}),
                "{}",
            ),
            (
                json!({"find": "c", "filter": {"a": {"b": 1}}}),
                r#"{"a":1}"#,
            ),
            (
                json!({"find": "c", "filter": {}, "sort": {"s": {"$meta": "textScore"}}}),
                "{}",
            ),
            (
                json!({"find": "c", "filter": {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}}),
                r#"{"a":1,"b":1,"c":1,"d":1,"e":1}"#,
            ),
        ] {
            assert_eq!(key(command.clone()), expected, "{command}");
        }
    }
}
