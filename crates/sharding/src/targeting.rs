//! From a filter to the ranges of places where documents that match it can be.
//!
//! Invariant: a document that matches has its place inside. Not every document inside needs to match.

use crate::{Place, PlaceRange, ShardKey, intersect, union};
use bson::key;
use planner::{Interval, field_values};
use query::expr::Vars;
use query::filter::{Filter, Node};

/// So many ranges at most come of one conjunction; past it later fields of the key are left out.
const MOST_RANGES: usize = 4096;

/// Where documents that match can be: a set of ranges.
pub fn ranges(filter: &Filter, key: &ShardKey, vars: &Vars) -> Vec<PlaceRange> {
    of_node(filter.root(), key, vars)
}

/// The place of all documents that match, where the filter says it field by field.
pub fn single_place(ranges: &[PlaceRange], key: &ShardKey) -> Option<Place> {
    let [only] = ranges else { return None };
    let mut rest = only.low.as_slice();
    for _ in key.fields() {
        let len = key::field_len(rest, false)?;
        rest = rest.get(len..)?;
    }
    let whole = rest.is_empty() && !only.low.is_empty();
    (whole && key::successor(&only.low) == only.high).then(|| only.low.clone())
}

fn of_node(root: &Node, key: &ShardKey, vars: &Vars) -> Vec<PlaceRange> {
    if let Node::Const(false) = root {
        return Vec::new();
    }
    let mut found = of_conjunction(root, key, vars);
    let clauses = match root {
        Node::And(clauses) => clauses.as_slice(),
        one => std::slice::from_ref(one),
    };
    for clause in clauses {
        match clause {
            Node::Const(false) => return Vec::new(),
            Node::Or(branches) => {
                let any = branches.iter().flat_map(|b| of_node(b, key, vars));
                found = intersect(&found, &union(any.collect()));
            }
            _ => {}
        }
    }
    found
}

fn of_conjunction(root: &Node, key: &ShardKey, vars: &Vars) -> Vec<PlaceRange> {
    let values = field_values(root, key.fields(), vars);
    let mut prefixes: Vec<Vec<u8>> = vec![Vec::new()];
    for (at, intervals) in values.iter().enumerate() {
        if let [all] = intervals.as_slice()
            && all.is_all()
        {
            return under(prefixes);
        }
        if prefixes.len().saturating_mul(intervals.len()) > MOST_RANGES {
            return under(prefixes);
        }
        let last = at + 1 == values.len();
        if last || !intervals.iter().all(Interval::is_point) {
            return within(&prefixes, intervals);
        }
        prefixes = prefixes
            .iter()
            .flat_map(|prefix| intervals.iter().map(|i| i.range(prefix, false).0))
            .collect();
    }
    under(prefixes)
}

/// The places that begin with any of these.
fn under(prefixes: Vec<Vec<u8>>) -> Vec<PlaceRange> {
    let ranges = prefixes.into_iter().map(|low| PlaceRange {
        high: key::successor(&low),
        low,
    });
    union(ranges.collect())
}

fn within(prefixes: &[Vec<u8>], intervals: &[Interval]) -> Vec<PlaceRange> {
    let ranges = prefixes.iter().flat_map(|prefix| {
        intervals.iter().map(|i| {
            let (low, high) = i.range(prefix, false);
            PlaceRange {
                low,
                high: (!high.is_empty()).then_some(high),
            }
        })
    });
    union(ranges.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Doc, DocBuf, Value, Writer, array, doc, json};
    use query::expr::ParseEnv;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn target(key: DocBuf, filter: &str) -> (ShardKey, Vec<PlaceRange>) {
        let key = ShardKey::parse(key.as_doc()).unwrap();
        let filter = json::parse(filter).unwrap();
        let filter = Filter::parse(filter.as_doc(), &ParseEnv::new()).unwrap();
        let found = ranges(&filter, &key, &Vars::new(0));
        (key, found)
    }

    #[test]
    fn one_place() {
        for (key, filter) in [
            (doc! {"a": 1}, r#"{"a": 5, "b": {"$gt": 3}}"#),
            (doc! {"a": 1, "b": 1}, r#"{"b": "x", "a": 5}"#),
            (doc! {"a": "hashed"}, r#"{"$and": [{"a": 5}, {"c": 1}]}"#),
            (doc! {"a": 1}, r#"{"a": null}"#),
            (doc! {"a": 1}, r#"{"$or": [{"a": 5, "b": 1}, {"a": 5}]}"#),
            (doc! {"a": 1}, r#"{"$expr": {"$eq": ["$a", 7]}}"#),
        ] {
            let (key, found) = target(key, filter);
            assert!(single_place(&found, &key).is_some(), "{filter} {found:?}");
        }
        for (key, filter) in [
            (doc! {"a": 1}, "{}"),
            (doc! {"a": 1, "b": 1}, r#"{"a": 5}"#),
            (doc! {"a": 1}, r#"{"a": {"$in": [1, 2]}}"#),
            (doc! {"a": "hashed"}, r#"{"a": {"$gt": 2}}"#),
            (doc! {"a": 1}, r#"{"a": {"$gte": 2, "$lt": 3}}"#),
        ] {
            let (key, found) = target(key, filter);
            assert!(single_place(&found, &key).is_none(), "{filter} {found:?}");
        }
    }

    #[test]
    fn nothing_can_match() {
        let (_, found) = target(doc! {"a": 1}, r#"{"a": {"$gt": 5, "$lt": 3}}"#);
        assert!(found.is_empty());
        let (_, found) = target(doc! {"a": 1}, r#"{"$and": [{"a": 1}, {"a": 2}]}"#);
        assert!(found.is_empty());
    }

    fn scalar(rng: &mut StdRng) -> Value {
        match rng.random_range(0..7) {
            0 => Value::NULL,
            1 => Value::from("x"),
            2 => Value::from(rng.random_range(0..4) as f64 + 0.5),
            3 => doc! {"c": rng.random_range(0..3)}.into(),
            4 => Value::from(rng.random_range(0..2) == 1),
            _ => Value::from(rng.random_range(0..6)),
        }
    }

    fn condition(rng: &mut StdRng, depth: u32) -> DocBuf {
        let field = ["a", "b", "d.e", "z"][rng.random_range(0..4usize)];
        let mut w = Writer::new();
        match rng.random_range(0..if depth == 0 { 7 } else { 10 }) {
            0 | 1 => {
                w.value(field, scalar(rng));
            }
            2 => {
                w.open_doc(field).open_array("$in");
                for _ in 0..rng.random_range(0..4) {
                    w.push_value(scalar(rng));
                }
            }
            3 => {
                let operator = ["$gt", "$gte", "$lt", "$lte", "$ne"][rng.random_range(0..5usize)];
                w.open_doc(field).value(operator, scalar(rng));
            }
            4 => {
                w.open_doc(field)
                    .bool("$exists", rng.random_range(0..2) == 1);
            }
            5 => {
                let operator = ["$gt", "$gte", "$lt", "$lte", "$eq"][rng.random_range(0..5usize)];
                let literal = {
                    let mut l = Writer::new();
                    l.value("$literal", scalar(rng));
                    l.finish()
                };
                w.open_doc("$expr");
                w.value(operator, array![format!("${field}"), literal]);
            }
            6 => {
                w.open_doc(field).open_doc("$not");
                w.value("$gt", rng.random_range(0..5));
            }
            n => {
                w.open_array(["$and", "$or", "$nor"][n as usize - 7]);
                for _ in 0..rng.random_range(1..4) {
                    w.push(condition(rng, depth - 1).as_doc().as_val());
                }
            }
        }
        w.finish()
    }

    fn document(rng: &mut StdRng) -> DocBuf {
        let mut w = Writer::new();
        for field in ["a", "b", "d", "z"] {
            if rng.random_range(0..5) == 0 {
                continue;
            }
            match field {
                "d" => {
                    w.open_doc(field).value("e", scalar(rng)).close();
                }
                _ => {
                    w.value(field, scalar(rng));
                }
            }
        }
        w.finish()
    }

    /// Whatever the filter, a document that matches has its place inside.
    #[test]
    fn never_misses_a_match() {
        let keys = [
            doc! {"a": 1},
            doc! {"a": "hashed"},
            doc! {"a": 1, "b": 1},
            doc! {"a": 1, "b": "hashed", "d.e": 1},
            doc! {"d.e": 1, "a": 1},
        ];
        let (mut narrow, mut matched) = (0, 0);
        for seed in 0..4000 {
            let mut rng = StdRng::seed_from_u64(seed);
            let source = condition(&mut rng, 3);
            let Ok(filter) = Filter::parse(source.as_doc(), &ParseEnv::new()) else {
                continue;
            };
            let docs: Vec<DocBuf> = (0..12).map(|_| document(&mut rng)).collect();
            for key in &keys {
                let key = ShardKey::parse(key.as_doc()).unwrap();
                let found = ranges(&filter, &key, &Vars::new(0));
                narrow += u32::from(found != [PlaceRange::all()]);
                for d in docs.iter().map(DocBuf::as_doc) {
                    if !filter.matches(d).unwrap_or(false) {
                        continue;
                    }
                    matched += 1;
                    let place = key.place_of(d).unwrap();
                    assert!(
                        found.iter().any(|r| r.contains(&place)),
                        "seed {seed}: {source:?} misses {d} by {}",
                        key.pattern()
                    );
                }
            }
        }
        assert!(narrow > 3000 && matched > 10_000, "{narrow} {matched}");
    }

    /// The expression that hides orphans agrees with the order of places.
    #[test]
    fn within_agrees_with_places() {
        let keys = [doc! {"a": 1}, doc! {"a": "hashed"}, doc! {"a": 1, "d.e": 1}];
        for seed in 0..500 {
            let mut rng = StdRng::seed_from_u64(seed);
            for key in &keys {
                let key = ShardKey::parse(key.as_doc()).unwrap();
                let bound = |d: Doc<'_>| key.bound_at(d).unwrap();
                let (mut min, mut max) = (
                    bound(document(&mut rng).as_doc()),
                    bound(document(&mut rng).as_doc()),
                );
                match rng.random_range(0..4) {
                    0 => min = key.global_min(),
                    1 => max = key.global_max(),
                    _ => {}
                }
                // Bounds that are not in order are no range.
                let Ok(range) = key.range(min.as_doc(), max.as_doc()) else {
                    continue;
                };
                let mut w = Writer::new();
                w.doc("$expr", key.within(min.as_doc(), max.as_doc()).as_doc());
                let filter = Filter::parse(w.finish().as_doc(), &ParseEnv::new()).unwrap();
                for _ in 0..10 {
                    let d = document(&mut rng);
                    let place = key.place_of(d.as_doc()).unwrap();
                    assert_eq!(
                        filter.matches(d.as_doc()).unwrap(),
                        range.contains(&place),
                        "seed {seed}: {d:?} in {min:?} … {max:?}"
                    );
                }
            }
        }
    }
}
