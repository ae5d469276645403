//! Why a document does not match: the `details` of a failed validation, in the shape that MongoDB's
//! manual shows.
//!
//! Runs over the query as it was written, and only after a document has failed: nothing here is
//! fast.

use super::{Filter, schema_failure};
use crate::expr::Vars;
use crate::path::{FieldPath, Leaf};
use bson::{Doc, DocBuf, Elem, Val, Value, Writer, tag};

/// What of `query` the document does not satisfy.
pub fn explain_failure(query: Doc<'_>, doc: Doc<'_>, vars: &Vars) -> DocBuf {
    all(&clauses(query), "$and", doc, vars, false)
}

/// The clauses of a conjunction, each a query of its own: `{a: {$gt: 1, $lt: 5}}` is two.
fn clauses(query: Doc<'_>) -> Vec<DocBuf> {
    let mut out = Vec::new();
    for e in query {
        match operators(e) {
            Some(ops) => {
                for op in ops {
                    // `$regex` and its `$options` are one.
                    if op.name == "$options" {
                        continue;
                    }
                    let mut w = Writer::new();
                    w.open_doc(e.name).val(op.name, op.val);
                    if op.name == "$regex"
                        && let Some(o) = ops.get("$options")
                    {
                        w.val("$options", o);
                    }
                    w.close();
                    out.push(w.finish());
                }
            }
            None => {
                let mut w = Writer::new();
                w.val(e.name, e.val);
                out.push(w.finish());
            }
        }
    }
    out
}

/// The operators on a field, when there are such.
fn operators<'a>(e: Elem<'a>) -> Option<Doc<'a>> {
    if e.name.starts_with('$') {
        return None;
    }
    let d = e.val.as_doc()?;
    d.first().filter(|f| f.name.starts_with('$')).map(|_| d)
}

fn holds(query: Doc<'_>, doc: Doc<'_>, vars: &Vars) -> bool {
    Filter::parse(query, &Default::default())
        .and_then(|f| f.matches_with(doc, vars))
        .unwrap_or(false)
}

/// The clauses that decide against the document: those that fail, or under a negation those that
/// hold.
fn all(clauses: &[DocBuf], name: &str, doc: Doc<'_>, vars: &Vars, negated: bool) -> DocBuf {
    if let [one] = clauses
        && name == "$and"
    {
        return describe(one.as_doc(), doc, vars, negated);
    }
    deciding(name, clauses, doc, vars, negated, |c| {
        describe(c, doc, vars, negated)
    })
}

/// An operator over clauses, with those that decide and what `explain` says of each.
fn deciding(
    name: &str,
    clauses: &[DocBuf],
    doc: Doc<'_>,
    vars: &Vars,
    negated: bool,
    explain: impl Fn(Doc<'_>) -> DocBuf,
) -> DocBuf {
    let mut w = Writer::new();
    w.str("operatorName", name);
    w.open_array(if negated {
        "clausesSatisfied"
    } else {
        "clausesNotSatisfied"
    });
    for (i, c) in clauses.iter().enumerate() {
        if holds(c.as_doc(), doc, vars) == negated {
            w.open_doc("")
                .i32("index", i as i32)
                .doc("details", explain(c.as_doc()).as_doc())
                .close();
        }
    }
    w.close();
    w.finish()
}

fn describe(clause: Doc<'_>, doc: Doc<'_>, vars: &Vars, negated: bool) -> DocBuf {
    let Some(e) = clause.first() else {
        return DocBuf::new();
    };
    let list = || -> Vec<DocBuf> {
        let items = e.val.as_array().unwrap_or(Doc::EMPTY);
        items
            .values()
            .filter_map(|v| v.as_doc())
            .map(|d| d.to_buf())
            .collect()
    };
    let mut w = Writer::new();
    match e.name {
        "$and" | "$or" => return group(e.name, &list(), doc, vars, negated),
        "$nor" => return group(e.name, &list(), doc, vars, !negated),
        "$jsonSchema" => {
            let schema = e.val.as_doc().unwrap_or(Doc::EMPTY);
            w.str("operatorName", e.name);
            schema_failure::titles(schema, &mut w);
            if negated {
                w.str("reason", "schema matched");
            } else {
                w.open_array("schemaRulesNotSatisfied");
                for r in schema_failure::rules(schema, doc.as_val()) {
                    w.push(r.as_doc().as_val());
                }
                w.close();
            }
        }
        "$expr" => {
            w.str("operatorName", e.name).doc("specifiedAs", clause);
            w.str(
                "reason",
                if negated {
                    "expression did match"
                } else {
                    "expression did not match"
                },
            );
            w.bool("expressionResult", negated);
        }
        name if name.starts_with('$') => {
            w.str("operatorName", name).doc("specifiedAs", clause);
        }
        path => {
            let (op, operand) = match operators(e).and_then(Doc::first) {
                Some(op) => (op.name, op.val),
                None if e.val.tag == tag::REGEX => ("$regex", e.val),
                None => ("$eq", e.val),
            };
            if op == "$not" {
                let mut inner = Writer::new();
                inner.val(path, operand);
                let inner = clauses(inner.finish().as_doc());
                w.str("operatorName", "$not");
                let details = all(&inner, "$and", doc, vars, !negated);
                w.doc("details", details.as_doc());
            } else {
                field(&mut w, path, op, clause, doc, negated);
            }
        }
    }
    w.finish()
}

/// `$and`, `$or` and `$nor` as they were written; each of their clauses may be a conjunction
/// itself.
fn group(name: &str, list: &[DocBuf], doc: Doc<'_>, vars: &Vars, negated: bool) -> DocBuf {
    deciding(name, list, doc, vars, negated, |c| {
        all(&clauses(c), "$and", doc, vars, negated)
    })
}

fn field(w: &mut Writer, path: &str, op: &str, clause: Doc<'_>, doc: Doc<'_>, negated: bool) {
    let mut values: Vec<Value> = Vec::new();
    let whole = matches!(op, "$size" | "$elemMatch" | "$all" | "$exists");
    let leaf = if whole { Leaf::Whole } else { Leaf::Expand };
    FieldPath::new(path).visit(doc, leaf, &mut |v, _| {
        values.extend(v.map(Val::to_value));
        false
    });
    w.str("operatorName", op).doc("specifiedAs", clause);
    let exists = matches!(op, "$exists");
    if values.is_empty() && !exists && !negated {
        w.str("reason", "field was missing");
        return;
    }
    // `$ne` and `$nin` fail because something holds.
    let holds = negated != matches!(op, "$ne" | "$nin");
    let reason = match (op, holds) {
        ("$in" | "$nin", false) => "no matching value found in array",
        ("$in" | "$nin", true) => "matching value found in array",
        ("$exists", _) if values.is_empty() => "path does not exist",
        ("$exists", _) => "path does exist",
        ("$type", false) => "type did not match",
        ("$type", true) => "type did match",
        ("$regex", false) => "regular expression did not match",
        ("$regex", true) => "regular expression did match",
        ("$mod", false) => "$mod did not evaluate to expected remainder",
        ("$mod", true) => "$mod did evaluate to expected remainder",
        ("$size", false) => "array length was not equal to given size",
        ("$size", true) => "array length was equal to given size",
        ("$elemMatch", false) => "array did not satisfy the child predicate",
        ("$elemMatch", true) => "array did satisfy the child predicate",
        ("$all", false) => "array did not contain all specified values",
        ("$all", true) => "array did contain all specified values",
        ("$bitsAllSet" | "$bitsAllClear" | "$bitsAnySet" | "$bitsAnyClear", false) => {
            "bitwise operator failed to match"
        }
        ("$bitsAllSet" | "$bitsAllClear" | "$bitsAnySet" | "$bitsAnyClear", true) => {
            "bitwise operator matched successfully"
        }
        (_, false) => "comparison failed",
        (_, true) => "comparison succeeded",
    };
    w.str("reason", reason);
    if exists {
        return;
    }
    considered(w, &values);
    if op == "$type" {
        match values.as_slice() {
            [one] => {
                w.str("consideredType", one.as_val().type_name());
            }
            many => {
                w.open_array("consideredTypes");
                many.iter().for_each(|v| {
                    w.push_value(v.as_val().type_name());
                });
                w.close();
            }
        }
    }
}

fn considered(w: &mut Writer, values: &[Value]) {
    match values {
        [one] => {
            w.val("consideredValue", one.as_val());
        }
        many => {
            w.open_array("consideredValues");
            many.iter().for_each(|v| {
                w.push(v.as_val());
            });
            w.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    #[test]
    fn details() {
        for (query, doc, want) in [
            (
                r#"{"a":{"$gt":5}}"#,
                r#"{"a":3}"#,
                r#"{"operatorName":"$gt","specifiedAs":{"a":{"$gt":5}},"reason":"comparison failed","consideredValue":3}"#,
            ),
            (
                r#"{"a":1,"b":2}"#,
                r#"{"a":1}"#,
                r#"{"operatorName":"$and","clausesNotSatisfied":[{"index":1,"details":{"operatorName":"$eq","specifiedAs":{"b":2},"reason":"field was missing"}}]}"#,
            ),
            (
                r#"{"a":{"$not":{"$gt":5}}}"#,
                r#"{"a":9}"#,
                r#"{"operatorName":"$not","details":{"operatorName":"$gt","specifiedAs":{"a":{"$gt":5}},"reason":"comparison succeeded","consideredValue":9}}"#,
            ),
            (
                r#"{"$or":[{"a":1},{"b":{"$exists":true}}]}"#,
                r#"{"a":[2,3]}"#,
                r#"{"operatorName":"$or","clausesNotSatisfied":[{"index":0,"details":{"operatorName":"$eq","specifiedAs":{"a":1},"reason":"comparison failed","consideredValues":[2,3,[2,3]]}},{"index":1,"details":{"operatorName":"$exists","specifiedAs":{"b":{"$exists":true}},"reason":"path does not exist"}}]}"#,
            ),
            (
                r#"{"a":{"$type":"string"}}"#,
                r#"{"a":1}"#,
                r#"{"operatorName":"$type","specifiedAs":{"a":{"$type":"string"}},"reason":"type did not match","consideredValue":1,"consideredType":"int"}"#,
            ),
            (
                r#"{"$expr":{"$lt":["$a","$b"]}}"#,
                r#"{"a":2,"b":1}"#,
                r#"{"operatorName":"$expr","specifiedAs":{"$expr":{"$lt":["$a","$b"]}},"reason":"expression did not match","expressionResult":false}"#,
            ),
        ] {
            let (q, d) = (json::parse(query).unwrap(), json::parse(doc).unwrap());
            let got = explain_failure(q.as_doc(), d.as_doc(), &Vars::default());
            let want = json::parse(want).unwrap();
            assert_eq!(got.as_doc(), want.as_doc(), "{query} {doc}");
        }
    }
}
