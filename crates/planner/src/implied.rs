//! Whether a filter implies another: what makes a partial index usable.
//!
//! Sound, not complete: "no" may be wrong, "yes" never. A question takes steps in proportion to the
//! nodes of both filters at most.

use crate::choose::size;
use crate::predicate::excludes_missing;
use bson::{Val, order, tag};
use query::collation::Collation;
use query::filter::{Filter, InList, Node, Test, TypeSet};
use std::cell::Cell;

/// The steps that every question may take, and those for each node of both filters.
const FREE_STEPS: usize = 1_000;
const STEPS_PER_NODE: usize = 16;

/// Every document that matches `query` matches `need`.
pub fn implies(query: &Node, need: &Node) -> bool {
    let nodes = size(query).saturating_add(size(need));
    let left = FREE_STEPS.saturating_add(nodes.saturating_mul(STEPS_PER_NODE));
    let question = Question {
        left: Cell::new(left),
    };
    question.implies(query, need)
}

/// One question, which may compare each branch of one filter with each of the other: nested
/// branches make that a product for each level. When its steps are spent the answer is no.
struct Question {
    left: Cell<usize>,
}

impl Question {
    fn may(&self, steps: usize) -> bool {
        let left = self.left.get().checked_sub(steps);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    fn implies(&self, query: &Node, need: &Node) -> bool {
        if !self.may(1) {
            return false;
        }
        match need {
            Node::Const(true) => return true,
            Node::And(c) => return c.iter().all(|n| self.implies(query, n)),
            Node::Or(c) if c.iter().any(|n| self.implies(query, n)) => return true,
            _ => {}
        }
        match query {
            Node::Const(false) => true,
            Node::And(c) => c.iter().any(|n| self.implies(n, need)) || self.same(query, need),
            Node::Or(c) => c.iter().all(|n| self.implies(n, need)),
            Node::Pred { path, test } => match need {
                Node::Pred {
                    path: other,
                    test: needed,
                } if path == other => {
                    let steps = size(query).saturating_add(size(need));
                    self.may(steps) && test_implies(test, needed) || self.same(query, need)
                }
                _ => self.same(query, need),
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
                _ => self.same(query, need),
            },
            _ => self.same(query, need),
        }
    }

    /// Word for word the same.
    fn same(&self, a: &Node, b: &Node) -> bool {
        let text = |n: &Node| Filter::from_node(n.clone()).to_doc();
        !matches!(a, Node::Sample(_))
            && self.may(size(a).saturating_add(size(b)))
            && collations(a) == collations(b)
            && text(a) == text(b)
    }
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
        // A bound that is null finds missing values; below and above the ends is everything.
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

    /// Branches in branches on both sides would multiply with each level.
    #[test]
    fn nested_branches_end_in_few_steps() {
        let nested = |field: &str, levels: usize| {
            (0..levels).fold(format!(r#"{{"{field}":0}}"#), |inner, i| {
                let both = if i % 2 == 0 { "$or" } else { "$and" };
                format!(r#"{{"{both}":[{inner},{{"{field}{i}":1}}]}}"#)
            })
        };
        let f =
            |s: &str| Filter::parse(json::parse(s).unwrap().as_doc(), &Default::default()).unwrap();
        let (q, n) = (f(&nested("a", 60)), f(&nested("b", 60)));
        let left = FREE_STEPS + STEPS_PER_NODE * (size(q.root()) + size(n.root()));
        let question = Question {
            left: Cell::new(left),
        };
        assert!(!question.implies(q.root(), n.root()));
        assert_eq!(question.left.get(), 0, "it is a product without a bound");
        assert!(implies(
            f(&nested("a", 4)).root(),
            f(&nested("a", 4)).root()
        ));
    }

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
            // Below and above the ends is everything, and null also finds missing values.
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

    /// A generator whose seed is its state.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % n as u64) as usize
        }

        fn of(&mut self, list: &[&str]) -> String {
            list[self.below(list.len())].to_string()
        }

        fn value(&mut self) -> String {
            self.of(&[
                "1",
                "2",
                r#"{"$numberLong":"2"}"#,
                "1.5",
                r#"{"$numberDouble":"NaN"}"#,
                r#"{"$numberDecimal":"2"}"#,
                r#""a""#,
                r#""B""#,
                r#"{"$symbol":"a"}"#,
                "null",
                "true",
                "{}",
                r#"{"b":1}"#,
                r#"{"b":"a"}"#,
                "[]",
                "[1]",
                "[[1]]",
                r#"[{"b":1},{"b":[2]}]"#,
                r#"[1,"a",null]"#,
                r#"{"$minKey":1}"#,
                r#"{"$maxKey":1}"#,
                r#"{"$date":{"$numberLong":"1"}}"#,
                r#"{"$timestamp":{"t":1,"i":1}}"#,
                r#"{"$regularExpression":{"pattern":"a","options":""}}"#,
                r#"{"$undefined":true}"#,
            ])
        }

        fn test(&mut self) -> String {
            let v = self.value();
            let types = [
                "2", "16", "18", "1", "3", "4", "10", "6", "8", "11", "14", "-1", "127",
            ];
            match self.below(14) {
                0..3 => format!(r#"{{"$eq":{v}}}"#),
                3 => format!(r#"{{"$gt":{v}}}"#),
                4 => format!(r#"{{"$gte":{v}}}"#),
                5 => format!(r#"{{"$lt":{v}}}"#),
                6 => format!(r#"{{"$lte":{v}}}"#),
                7 => format!(r#"{{"$in":[{v},{}]}}"#, self.value()),
                8 => format!(r#"{{"$ne":{v}}}"#),
                9 => format!(r#"{{"$exists":{}}}"#, self.of(&["true", "false"])),
                10 => format!(r#"{{"$type":[{},{}]}}"#, self.of(&types), self.of(&types)),
                11 => format!(
                    r#"{{"$type":"{}"}}"#,
                    self.of(&["number", "object", "array"])
                ),
                12 => self.of(&[r#"{"$regex":"a"}"#, r#"{"$size":1}"#, r#"{"$mod":[2,1]}"#]),
                _ => format!(r#"{{"$elemMatch":{{"$gte":{v}}}}}"#),
            }
        }

        fn filter(&mut self, depth: usize) -> String {
            let list = |r: &mut Random| format!("{},{}", r.filter(depth + 1), r.filter(depth + 1));
            match self.below(if depth < 2 { 8 } else { 5 }) {
                0..5 => format!(r#"{{"{}":{}}}"#, self.of(&["a", "a", "a.b"]), self.test()),
                5 => format!(r#"{{"$and":[{}]}}"#, list(self)),
                6 => format!(r#"{{"$or":[{}]}}"#, list(self)),
                _ => format!(r#"{{"$nor":[{}]}}"#, list(self)),
            }
        }

        fn document(&mut self) -> String {
            match self.below(8) {
                0 => "{}".into(),
                1 => format!(r#"{{"a":[{},{}]}}"#, self.value(), self.value()),
                2 => format!(r#"{{"a":{{"b":{}}}}}"#, self.value()),
                3 => format!(r#"{{"a":[{{"b":{}}},{}]}}"#, self.value(), self.value()),
                _ => format!(r#"{{"a":{}}}"#, self.value()),
            }
        }
    }

    #[test]
    fn what_is_implied_holds_for_every_document() {
        let mut random = Random(0x5eed_0001);
        let documents: Vec<_> = (0..400)
            .map(|_| json::parse(&random.document()).unwrap())
            .collect();
        let parse = |text: &str, env: &query::expr::ParseEnv| {
            Filter::parse(json::parse(text).unwrap().as_doc(), env)
        };
        let spec = bson::doc! { "locale": "en", "strength": 2 };
        let collated =
            query::expr::ParseEnv::new().collated(Collation::new(spec.as_doc()).unwrap());
        let (mut implied, plain) = (0, query::expr::ParseEnv::new());
        for _ in 0..30_000 {
            let (query, need) = (random.filter(0), random.filter(0));
            let env = |r: &mut Random| if r.below(3) == 0 { &collated } else { &plain };
            let parsed = (
                parse(&query, env(&mut random)),
                parse(&need, env(&mut random)),
            );
            let (Ok(q), Ok(n)) = parsed else { continue };
            if !implies(q.root(), n.root()) {
                continue;
            }
            implied += 1;
            for d in &documents {
                let matches = |f: &Filter| f.matches(d.as_doc()).unwrap();
                assert!(
                    !matches(&q) || matches(&n),
                    "{query} does not imply {need}: {}",
                    d.as_doc()
                );
            }
        }
        assert!(implied > 300, "only {implied}");
    }
}
