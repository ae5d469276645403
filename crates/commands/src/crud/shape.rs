//! The hashes by which explain names the shape of a query.
//!
//! `planCacheShapeHash`: of what the planner looks at, whatever the order of clauses.
//! `queryShapeHash`: of the whole command as it was written, with the types of its literals in
//! their places.

use bson::{Doc, DocBuf, Val, Writer, tag};
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

/// 64 hexadecimal digits for a shape.
pub fn query_shape_hash(shape: Doc<'_>) -> String {
    let text = shape.to_string();
    let mut out = String::with_capacity(64);
    for salt in ["0", "1"] {
        for b in md5::compute(format!("{salt}{text}")).iter() {
            let _ = write!(out, "{b:02X}");
        }
    }
    out
}

/// What a command that finds documents asks for.
pub struct Query<'a> {
    pub ns: &'a str,
    pub command: &'a str,
    /// Of distinct.
    pub key: Option<&'a str>,
    pub filter: &'a Filter,
    pub sort: Option<Doc<'a>>,
    pub projection: Option<Doc<'a>>,
    pub collation: Option<&'a Collation>,
    pub skip: u64,
    pub limit: Option<u64>,
}

fn head(ns: &str, command: &str) -> Writer {
    let mut w = Writer::new();
    w.open_doc("cmdNs")
        .str("db", catalog::db_of(ns))
        .str("coll", catalog::collection_of(ns))
        .close();
    w.str("command", command);
    w
}

/// The shape of a query: the command with placeholders for literals, as `$querySettings` shows it.
pub fn of_query(q: &Query<'_>) -> DocBuf {
    let mut w = head(q.ns, q.command);
    if let Some(c) = q.collation {
        w.doc("collation", c.spec());
    }
    if let Some(k) = q.key {
        w.str("key", k);
    }
    add("filter", q.filter.to_doc().as_doc().as_val(), &mut w);
    for (name, part) in [("sort", q.sort), ("projection", q.projection)] {
        if let Some(d) = part.filter(|d| !d.is_empty()) {
            w.doc(name, d);
        }
    }
    for (name, given) in [("skip", q.skip > 0), ("limit", q.limit.is_some())] {
        if given {
            w.str(name, "?number");
        }
    }
    w.finish()
}

/// The shape of a pipeline as it was written.
pub fn of_pipeline(ns: &str, stages: Val<'_>, collation: Option<&Collation>) -> DocBuf {
    let mut w = head(ns, "aggregate");
    if let Some(c) = collation {
        w.doc("collation", c.spec());
    }
    add("pipeline", stages, &mut w);
    w.finish()
}

fn add(name: &str, v: Val<'_>, w: &mut Writer) {
    match v.tag {
        tag::DOCUMENT => {
            w.open_doc(name);
            for e in v.as_doc().unwrap_or(Doc::EMPTY) {
                if KEPT.contains(&e.name) {
                    w.val(e.name, e.val);
                } else if LITERAL.contains(&e.name) && !holds_paths(e.val) {
                    w.str(e.name, &literal(e.val));
                } else {
                    add(e.name, e.val, w);
                }
            }
            w.close();
        }
        tag::ARRAY => {
            w.open_array(name);
            for v in v.as_array().unwrap_or(Doc::EMPTY).values() {
                add("", v, w);
            }
            w.close();
        }
        tag::STRING if v.as_str().is_some_and(|s| s.starts_with('$')) => {
            w.val(name, v);
        }
        _ => {
            w.str(name, &literal(v));
        }
    }
}

/// Operands of expressions: they name fields.
fn holds_paths(v: Val<'_>) -> bool {
    v.as_array().is_some_and(|a| {
        a.values()
            .any(|v| v.as_doc().is_some() || v.as_str().is_some_and(|s| s.starts_with('$')))
    })
}

fn literal(v: Val<'_>) -> String {
    let kind = |v: Val<'_>| match v.tag {
        t if tag::is_number(t) => "number",
        _ => v.type_name(),
    };
    match v.as_array() {
        None => format!("?{}", kind(v)),
        Some(a) => {
            let mut kinds: Vec<&str> = a.values().map(kind).collect();
            kinds.sort_unstable();
            kinds.dedup();
            format!("?array<{}>", kinds.join("|"))
        }
    }
}
