//! The part of a filter that speaks only of certain fields: what can be asked of a document of which no more is known.
//!
//! Invariant: a document that the whole filter matches, the part matches too, as long as the fields that it speaks of are there
//! as in the whole document.

use bson::{Doc, DocBuf, Val, Writer};

/// The conditions of a filter, all of which must hold, that speak of nothing but these top-level fields.
pub fn part_on(filter: Doc<'_>, fields: &[&str]) -> DocBuf {
    let mut w = Writer::new();
    for e in filter.iter() {
        match e.name {
            "$and" => {
                let parts = e.val.as_array().unwrap_or(Doc::EMPTY).values();
                let parts = parts.filter_map(|v| v.as_doc()).map(|d| part_on(d, fields));
                let parts: Vec<DocBuf> = parts.filter(|p| !p.as_doc().is_empty()).collect();
                if !parts.is_empty() {
                    w.open_array("$and");
                    parts.iter().for_each(|p| {
                        w.push(p.as_doc().as_val());
                    });
                    w.close();
                }
            }
            name if speaks_only_of(name, e.val, fields) => {
                w.val(name, e.val);
            }
            _ => {}
        }
    }
    w.finish()
}

/// Whether a condition under a name needs no other field.
fn speaks_only_of(name: &str, v: Val<'_>, fields: &[&str]) -> bool {
    match name {
        "$or" | "$nor" | "$and" => {
            let mut parts = v.as_array().unwrap_or(Doc::EMPTY).values();
            parts.all(|part| {
                let part = part.as_doc().unwrap_or(Doc::EMPTY);
                part.iter().all(|e| speaks_only_of(e.name, e.val, fields))
            })
        }
        // What may look at all of the document.
        _ if name.starts_with('$') => false,
        _ => {
            let top = name.split_once('.').map_or(name, |(top, _)| top);
            fields.contains(&top)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_part_of_the_fields() {
        for (filter, part) in [
            (r#"{}"#, r#"{}"#),
            (r#"{"ns.coll":"a","x":1}"#, r#"{"ns.coll":"a"}"#),
            (
                r#"{"op":{"$in":["i"]},"ns":{"db":"a"}}"#,
                r#"{"op":{"$in":["i"]},"ns":{"db":"a"}}"#,
            ),
            (
                r#"{"$and":[{"op":1},{"x":1,"ns":2},{"x":3}]}"#,
                r#"{"$and":[{"op":1},{"ns":2}]}"#,
            ),
            (r#"{"$and":[{"x":1}]}"#, r#"{}"#),
            (
                r#"{"$or":[{"op":1},{"ns.db":2}]}"#,
                r#"{"$or":[{"op":1},{"ns.db":2}]}"#,
            ),
            (r#"{"$or":[{"op":1},{"x":2}]}"#, r#"{}"#),
            (
                r#"{"$nor":[{"op":1,"$or":[{"ns":1}]}]}"#,
                r#"{"$nor":[{"op":1,"$or":[{"ns":1}]}]}"#,
            ),
            (r#"{"$nor":[{"op":1,"x":1}]}"#, r#"{}"#),
            (r#"{"$expr":{"$eq":["$op",1]},"operation":1}"#, r#"{}"#),
        ] {
            let filter = bson::json::parse(filter).unwrap();
            let want = bson::json::parse(part).unwrap();
            assert_eq!(part_on(filter.as_doc(), &["op", "ns"]), want);
        }
    }
}
