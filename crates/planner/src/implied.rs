//! Whether a filter implies another: what makes a partial index usable.
//!
//! Sound, not complete: "no" may be wrong, "yes" never.

use crate::predicate::excludes_missing;
use bson::{Val, order, tag};
use query::collation::Collation;
use query::filter::{Filter, InList, Node, Test, TypeSet};

/// Every document that matches `query` matches `need`.
pub fn implies(query: &Node, need: &Node) -> bool {
    match need {
        Node::Const(true) => return true,
        Node::And(c) => return c.iter().all(|n| implies(query, n)),
        Node::Or(c) if c.iter().any(|n| implies(query, n)) => return true,
        _ => {}
    }
    match query {
        Node::Const(false) => true,
        Node::And(c) => c.iter().any(|n| implies(n, need)) || same(query, need),
        Node::Or(c) => c.iter().all(|n| implies(n, need)),
        Node::Pred { path, test } => match need {
            Node::Pred {
                path: other,
                test: needed,
            } if path == other => test_implies(test, needed) || same(query, need),
            _ => same(query, need),
        },
        Node::Not(n) => match (&**n, need) {
            (
                Node::Pred { path, test },
                Node::Pred {
                    path: other,
                    test: Test::Exists,
                },
            ) if path == other && !path.is_dotted() => match test {
                Test::Eq(v) => v.tag() == tag::NULL,
                Test::In(l) => l.contains_null(),
                _ => false,
            },
            _ => same(query, need),
        },
        _ => same(query, need),
    }
}

/// Word for word the same.
fn same(a: &Node, b: &Node) -> bool {
    let text = |n: &Node| Filter::from_node(n.clone()).to_doc();
    !matches!(a, Node::Sample(_)) && collations(a) == collations(b) && text(a) == text(b)
}

fn collations(n: &Node) -> Vec<Collation> {
    let mut all = Vec::new();
    n.any(&mut |n| {
        if let Node::Pred {
            test: Test::Collated(c),
            ..
        } = n
        {
            all.push(c.collation.clone());
        }
        false
    });
    all
}

fn test_implies(test: &Test, need: &Test) -> bool {
    match (test, need) {
        (Test::Collated(a), Test::Collated(b)) => {
            a.collation == b.collation && test_implies(&a.folded, &b.folded)
        }
        // Strings that are equal under a collation need not be equal.
        (Test::Collated(a), Test::Exists | Test::Type(_)) => test_implies(&a.folded, need),
        (Test::Collated(_), _) => false,
        // Equal strings are equal under every collation, but their order tells nothing.
        (Test::Eq(_) | Test::In(_), Test::Collated(_)) => equals_imply(test, need),
        (_, Test::Collated(_)) => false,
        (Test::Eq(v), _) => value_implies(v.as_val(), need),
        (Test::In(l), Test::In(m)) if !l.regexes.is_empty() => {
            l.regexes.iter().all(|r| {
                m.regexes
                    .iter()
                    .any(|s| (r.pattern(), r.options()) == (s.pattern(), s.options()))
            }) && values_imply(l, need)
        }
        (Test::In(l), _) => l.regexes.is_empty() && values_imply(l, need),
        (t, Test::Exists) => excludes_missing(t),
        (Test::Gt(a), Test::Gt(b) | Test::Gte(b)) | (Test::Gte(a), Test::Gte(b)) => {
            bounded(a.as_val(), b.as_val(), false)
        }
        (Test::Gte(a), Test::Gt(b)) => bounded(a.as_val(), b.as_val(), true),
        (Test::Lt(a), Test::Lt(b) | Test::Lte(b)) | (Test::Lte(a), Test::Lte(b)) => {
            bounded(b.as_val(), a.as_val(), false)
        }
        (Test::Lte(a), Test::Lt(b)) => bounded(b.as_val(), a.as_val(), true),
        // A bound that is null finds what is not there; below and above the ends is everything.
        (Test::Gt(a) | Test::Gte(a) | Test::Lt(a) | Test::Lte(a), Test::Type(set)) => {
            !is_open(a.as_val()) && covers_rank(*set, a.as_val())
        }
        (Test::Type(a), Test::Type(b)) => a.tags().iter().all(|t| b.contains(*t)),
        (Test::Regex(_), Test::Type(set)) => {
            set.contains(tag::STRING) && set.contains(tag::SYMBOL) && set.contains(tag::REGEX)
        }
        _ => false,
    }
}

fn equals_imply(test: &Test, need: &Test) -> bool {
    match test {
        Test::Eq(v) => value_implies(v.as_val(), need),
        Test::In(l) => l.regexes.is_empty() && values_imply(l, need),
        _ => false,
    }
}

fn values_imply(l: &InList, need: &Test) -> bool {
    l.values.iter().all(|v| value_implies(v.as_val(), need))
}

/// A document with a value equal to `v` on the path matches `need`.
fn value_implies(v: Val<'_>, need: &Test) -> bool {
    match need {
        // Equal values may be of other types of their rank.
        Test::Type(set) => v.tag != tag::NULL && covers_rank(*set, v),
        // Equal to null may mean: not there.
        _ if v.tag == tag::NULL => need.matches(Some(v)) && need.matches(None),
        // Another predicate may not look at an array as a whole.
        _ if v.tag == tag::ARRAY => matches!(need, Test::Exists),
        Test::Size(_) | Test::ElemMatchObject(_) | Test::ElemMatchValue(_) => false,
        _ => need.matches(Some(v)),
    }
}

/// All types that compare with `v` are in the set.
fn covers_rank(set: TypeSet, v: Val<'_>) -> bool {
    (1..=19u8)
        .chain([tag::MIN_KEY, tag::MAX_KEY])
        .filter(|t| tag::name(*t) != "missing" && tag::rank(*t) == tag::rank(v.tag))
        .all(|t| set.contains(t))
}

/// A comparison with it matches values of other types, or none at all.
fn is_open(v: Val<'_>) -> bool {
    matches!(
        v.tag,
        tag::MIN_KEY | tag::MAX_KEY | tag::NULL | tag::UNDEFINED
    )
}

/// `high` is at least (or, `strictly`, above) `low`, both of one type bracket and neither without
/// neighbours.
fn bounded(high: Val<'_>, low: Val<'_>, strictly: bool) -> bool {
    let plain = |v: Val<'_>| {
        let without = is_open(v) || v.tag == tag::ARRAY;
        !(without || v.is_number() && v.to_f64().is_some_and(f64::is_nan))
    };
    let o = order::compare(high, low);
    tag::rank(high.tag) == tag::rank(low.tag)
        && plain(high)
        && plain(low)
        && (o.is_gt() || o.is_eq() && !strictly)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::json;

    #[test]
    fn implications() {
        let f =
            |s: &str| Filter::parse(json::parse(s).unwrap().as_doc(), &Default::default()).unwrap();
        for (q, n, want) in [
            (r#"{"a":5}"#, r#"{"a":{"$exists":true}}"#, true),
            (r#"{"a":null}"#, r#"{"a":{"$exists":true}}"#, false),
            (r#"{"a":{"$ne":null}}"#, r#"{"a":{"$exists":true}}"#, true),
            (r#"{"a":{"$gt":5}}"#, r#"{"a":{"$gt":3}}"#, true),
            (r#"{"a":{"$gt":5}}"#, r#"{"a":{"$gt":5}}"#, true),
            (r#"{"a":{"$gte":5}}"#, r#"{"a":{"$gt":5}}"#, false),
            (r#"{"a":{"$gt":"x"}}"#, r#"{"a":{"$gt":3}}"#, false),
            (r#"{"a":{"$lt":2}}"#, r#"{"a":{"$lte":2}}"#, true),
            (r#"{"a":{"$in":[4,5]}}"#, r#"{"a":{"$gt":3}}"#, true),
            (r#"{"a":{"$in":[2,5]}}"#, r#"{"a":{"$gt":3}}"#, false),
            (r#"{"a":5,"b":1}"#, r#"{"a":{"$gt":3},"b":1}"#, true),
            (r#"{"b":1}"#, r#"{"a":{"$gt":3}}"#, false),
            (
                r#"{"$or":[{"a":5},{"a":{"$gt":8}}]}"#,
                r#"{"a":{"$gt":3}}"#,
                true,
            ),
            (r#"{"a":5}"#, r#"{"a":{"$type":"number"}}"#, true),
            (r#"{"a":5}"#, r#"{"a":{"$type":"int"}}"#, false),
            (r#"{"a":5}"#, r#"{"$or":[{"a":5},{"b":1}]}"#, true),
            // Below and above the ends is everything, and null is also what is not there.
            (
                r#"{"a":{"$gte":{"$minKey":1}}}"#,
                r#"{"a":{"$type":"minKey"}}"#,
                false,
            ),
            (
                r#"{"a":{"$lt":{"$maxKey":1}}}"#,
                r#"{"a":{"$type":"maxKey"}}"#,
                false,
            ),
            (
                r#"{"a":{"$lte":null}}"#,
                r#"{"a":{"$type":["null","undefined"]}}"#,
                false,
            ),
            (r#"{"a":{"$lt":5}}"#, r#"{"a":{"$type":"number"}}"#, true),
        ] {
            assert_eq!(implies(f(q).root(), f(n).root()), want, "{q} => {n}");
        }
    }
}
