//! The predicates of a conjunction that an index might answer, each with the path it is about.

use bson::{Doc, Val, order};
use query::expr::{Comparison, Order, Vars};
use query::filter::{Node, Test};
use query::path::FieldPath;
use std::borrow::Cow;

/// What must hold for some (or, negated, for no) value on a path.
#[derive(Clone, Debug)]
pub(crate) struct Predicate<'a> {
    pub path: Cow<'a, FieldPath>,
    pub test: &'a Test,
    pub negated: bool,
    /// Which clause of the conjunction it comes from.
    pub clause: usize,
    /// It is the whole clause: bounds that answer it exactly answer the clause.
    pub whole: bool,
    /// Comes from an `$elemMatch`: all predicates of one clause are about one element of one array.
    pub element: bool,
    /// Comes from an `$elemMatch` of values: all predicates of the clause are about one value.
    pub same_value: bool,
    /// Comes from an `$expr`: this is what must hold, and `test` says nothing.
    pub compared: Option<Comparison>,
}

/// A test that no index answers.
static UNKNOWN: Test = Test::Size(0);
static EXISTS: Test = Test::Exists;

/// The clauses of a filter's conjunction.
pub(crate) fn clauses(root: &Node) -> &[Node] {
    match root {
        Node::And(c) => c,
        Node::Const(true) => &[],
        n => std::slice::from_ref(n),
    }
}

pub(crate) fn collect<'a>(clauses: &'a [Node], vars: &Vars) -> Vec<Predicate<'a>> {
    let mut out = Vec::with_capacity(clauses.len());
    for (i, n) in clauses.iter().enumerate() {
        of_clause(n, i, vars, &mut out);
    }
    out
}

fn of_clause<'a>(node: &'a Node, clause: usize, vars: &Vars, out: &mut Vec<Predicate<'a>>) {
    let base = |path: &'a FieldPath, test: &'a Test, negated: bool| Predicate {
        path: Cow::Borrowed(path),
        test,
        negated,
        clause,
        whole: true,
        element: false,
        same_value: false,
        compared: None,
    };
    match node {
        Node::Pred { path, test } => match test {
            Test::ElemMatchObject(inner) => of_element(path, inner, clause, out),
            Test::ElemMatchValue(inner) => of_value(path, inner, clause, out),
            _ => out.push(base(path, test, false)),
        },
        Node::Not(n) => {
            if let Node::Pred { path, test } = &**n
                && !matches!(test, Test::ElemMatchObject(_) | Test::ElemMatchValue(_))
            {
                out.push(base(path, test, true));
            }
        }
        Node::Nor(c) if c.len() == 1 => {
            if let [Node::Pred { path, test }] = &c[..]
                && !matches!(test, Test::ElemMatchObject(_) | Test::ElemMatchValue(_))
            {
                out.push(base(path, test, true));
            }
        }
        Node::Expr(e) => out.extend(e.comparisons(vars).into_iter().map(|c| Predicate {
            path: Cow::Owned(FieldPath::new(&c.path)),
            test: &UNKNOWN,
            negated: false,
            clause,
            whole: false,
            element: false,
            same_value: false,
            compared: Some(c),
        })),
        _ => {}
    }
}

/// `{a: {$elemMatch: {b: 1, c: 2}}}` is about `a.b` and `a.c`.
fn of_element<'a>(path: &FieldPath, inner: &'a Node, clause: usize, out: &mut Vec<Predicate<'a>>) {
    for n in clauses(inner) {
        match n {
            Node::Pred { path: below, test } => match test {
                Test::ElemMatchObject(n) => of_element(&path.join(below), n, clause, out),
                Test::ElemMatchValue(_) => {}
                _ => out.push(Predicate {
                    path: Cow::Owned(path.join(below)),
                    test,
                    negated: false,
                    clause,
                    whole: false,
                    element: true,
                    same_value: false,
                    compared: None,
                }),
            },
            _ => continue,
        }
    }
}

/// `{a: {$elemMatch: {$gt: 1, $lt: 5}}}` is about the elements of `a`.
fn of_value<'a>(path: &FieldPath, inner: &'a Node, clause: usize, out: &mut Vec<Predicate<'a>>) {
    for n in clauses(inner) {
        let (test, negated) = match n {
            Node::Pred { test, .. } => (test, false),
            Node::Not(n) => match &**n {
                Node::Pred { test, .. } => (test, true),
                _ => continue,
            },
            _ => continue,
        };
        if !matches!(test, Test::ElemMatchObject(_) | Test::ElemMatchValue(_)) {
            out.push(Predicate {
                path: Cow::Owned(path.clone()),
                test,
                negated,
                clause,
                whole: false,
                element: false,
                same_value: true,
                compared: None,
            });
        }
    }
}

impl Predicate<'_> {
    /// That there is something on the path (up to a position in an array), without which it cannot
    /// hold.
    pub fn existence<'b>(&self) -> Option<Predicate<'b>> {
        if self.negated || self.compared.is_some() || !excludes_missing(self.test) {
            return None;
        }
        let text = self.path.as_str();
        let numbered = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let before = text.match_indices('.').find(|(at, _)| {
            let rest = text.get(at + 1..).unwrap_or("");
            numbered(rest.split('.').next().unwrap_or(""))
        });
        let path = FieldPath::new(before.map_or(text, |(at, _)| &text[..at]));
        Some(Predicate {
            path: Cow::Owned(path),
            test: &EXISTS,
            negated: false,
            clause: self.clause,
            whole: false,
            element: false,
            same_value: false,
            compared: None,
        })
    }

    /// Holds only for documents that have something other than null at the path.
    pub fn implies_exists(&self) -> bool {
        if let Some(c) = &self.compared {
            let to_null = order::compare(c.value.as_val(), Val::NULL);
            return match c.order {
                Order::Eq | Order::Gte => to_null.is_gt(),
                Order::Gt => to_null.is_ge(),
                Order::In => {
                    let list = c.value.as_val().as_array().unwrap_or(Doc::EMPTY);
                    list.values().all(|v| order::compare(v, Val::NULL).is_gt())
                }
                Order::Lt | Order::Lte => false,
            };
        }
        if self.negated {
            // `a: [1]` has no value at `a.b` that could be null, and none that is there.
            if self.path.is_dotted() {
                return false;
            }
            return match self.test {
                Test::Eq(v) => v.as_val().is_nullish(),
                Test::In(l) => l.contains_null(),
                _ => false,
            };
        }
        excludes_missing(self.test)
    }
}

/// Whether the test fails for a missing field (and so for null, for index keys do not tell them
/// apart).
pub(crate) fn excludes_missing(test: &Test) -> bool {
    !test.matches(None)
}
