//! The hashes by which explain names the shape of a query.
//!
//! `planCacheShapeHash`: of what the planner looks at, whatever the order of clauses. `queryShapeHash`: of the whole command
//! as it was written, with the types of its literals in their places.

use bson::{Doc, Val, tag};
use query::collation::Collation;
use query::filter::Filter;
use std::fmt::Write;

/// Operators whose operands are literals.
const LITERAL: [&str; 13] = [
    "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$all", "$mod", "$size", "$regex",
    "$options",
];
/// Operators and stages whose operands belong to the shape.
const KEPT: [&str; 6] = [
    "$type",
    "$exists",
    "$jsonSchema",
    "$sort",
    "$project",
    "$meta",
];

/// Eight hexadecimal digits.
pub fn plan_cache_hash(
    filter: &Filter,
    sort: Option<Doc<'_>>,
    projection: Option<Doc<'_>>,
    collation: Option<&Collation>,
    stages: &[&str],
) -> String {
    let mut text = filter.shape();
    if let Some(s) = sort {
        let _ = write!(text, "|sort{s}");
    }
    if let Some(p) = projection {
        let mut fields: Vec<String> = p.iter().map(|e| format!("{}:{}", e.name, e.val)).collect();
        fields.sort();
        let _ = write!(text, "|project{}", fields.join(","));
    }
    if let Some(c) = collation {
        let _ = write!(text, "|{}", c.spec());
    }
    let _ = write!(text, "|{}", stages.join(","));
    let digest = md5::compute(&text);
    digest.iter().take(4).fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02X}");
        out
    })
}

/// 64 hexadecimal digits.
pub fn query_shape_hash(text: &str) -> String {
    let mut out = String::with_capacity(64);
    for salt in ["0", "1"] {
        for b in md5::compute(format!("{salt}{text}")).iter() {
            let _ = write!(out, "{b:02X}");
        }
    }
    out
}

/// The shape of a filter, an expression or a stage.
pub fn abstracted(v: Val<'_>) -> String {
    let mut out = String::new();
    add(v, &mut out);
    out
}

fn add(v: Val<'_>, out: &mut String) {
    match v.tag {
        tag::DOCUMENT => {
            out.push('{');
            for e in v.as_doc().unwrap_or(Doc::EMPTY) {
                let _ = write!(out, "{}:", e.name);
                if KEPT.contains(&e.name) {
                    let _ = write!(out, "{}", e.val);
                } else if LITERAL.contains(&e.name) && !holds_paths(e.val) {
                    literal(e.val, out);
                } else {
                    add(e.val, out);
                }
                out.push(',');
            }
            out.push('}');
        }
        tag::ARRAY => {
            out.push('[');
            for e in v.as_array().unwrap_or(Doc::EMPTY).values() {
                add(e, out);
                out.push(',');
            }
            out.push(']');
        }
        tag::STRING if v.as_str().is_some_and(|s| s.starts_with('$')) => {
            let _ = write!(out, "{v}");
        }
        _ => literal(v, out),
    }
}

/// Operands of expressions: they name fields.
fn holds_paths(v: Val<'_>) -> bool {
    v.as_array().is_some_and(|a| {
        a.values()
            .any(|v| v.as_doc().is_some() || v.as_str().is_some_and(|s| s.starts_with('$')))
    })
}

fn literal(v: Val<'_>, out: &mut String) {
    let kind = |v: Val<'_>| match v.tag {
        t if tag::is_number(t) => "number",
        _ => v.type_name(),
    };
    match v.as_array() {
        None => {
            let _ = write!(out, "?{}", kind(v));
        }
        Some(a) => {
            let mut kinds: Vec<&str> = a.values().map(kind).collect();
            kinds.sort_unstable();
            kinds.dedup();
            let _ = write!(out, "?array<{}>", kinds.join("|"));
        }
    }
}
