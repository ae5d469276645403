//! What of a filter may move before a stage, and in what form.
//!
//! Invariant: a part that moves has, for each document before the stage, the answer that it had for
//! what the stage makes of the document. A part that is implied holds for each document of which
//! the stage makes one that the whole filter matches.

use crate::expr::Expression;
use crate::filter::{Filter, Node, Test};
use crate::path::FieldPath;
use bson::{Val, tag};
use std::sync::Arc;

/// What a stage lets pass.
pub(super) struct StageEffect<'a> {
    /// The path before the stage under which a test finds what it finds behind it under this one.
    pub path: &'a dyn Fn(&FieldPath, &Test) -> Option<FieldPath>,
    /// Whether `$expr` has the same value before the stage. What it says must hold for errors, too:
    /// before a stage that drops documents it would be evaluated for more of them.
    pub expr: &'a dyn Fn(&Expression) -> bool,
    /// Documents are the same before the stage, to their last field.
    pub whole: bool,
}

/// A filter in two parts, both of which must hold.
pub(super) struct Split {
    pub moved: Vec<Node>,
    pub rest: Vec<Node>,
    /// Whether a part that moves is not as it was written.
    pub renamed: bool,
}

/// Conditions that must all hold.
pub(super) fn conjuncts(filter: &Filter) -> &[Node] {
    match filter.root() {
        Node::And(all) => all,
        one => std::slice::from_ref(one),
    }
}

impl Split {
    /// `None` where nothing may move.
    pub fn of(filter: &Filter, passage: &StageEffect<'_>) -> Option<Split> {
        let mut split = Split {
            moved: Vec::new(),
            rest: Vec::new(),
            renamed: false,
        };
        for node in conjuncts(filter) {
            if let Some(moved) = passage.take(node, &mut split.renamed) {
                split.moved.push(moved);
            } else if let Some((moved, rest)) = passage.take_first(node) {
                split.moved.extend(moved);
                split.rest.push(rest);
                split.renamed = true;
            } else {
                split.rest.push(node.clone());
            }
        }
        (!split.moved.is_empty()).then_some(split)
    }
}

impl StageEffect<'_> {
    /// Of an `$expr` with `$and` the first operands that may move, and the rest. One behind another
    /// that stays would be evaluated for more documents, and may fail.
    fn take_first(&self, node: &Node) -> Option<(Vec<Node>, Node)> {
        let Node::Expr(e) = node else {
            return None;
        };
        let moves = |e: &Expression| !e.is_random() && (self.expr)(e);
        let mut taken = None;
        for n in 1.. {
            match e.divided(n) {
                Some((first, rest)) if first.last().is_some_and(moves) => {
                    let first = first.into_iter().map(|e| Node::Expr(Arc::new(e))).collect();
                    taken = Some((first, Node::Expr(Arc::new(rest))));
                }
                _ => break,
            }
        }
        taken
    }

    fn take(&self, node: &Node, renamed: &mut bool) -> Option<Node> {
        let mut all = |list: &[Node]| -> Option<Vec<Node>> {
            list.iter().map(|n| self.take(n, renamed)).collect()
        };
        Some(match node {
            Node::Const(b) => Node::Const(*b),
            Node::And(c) => Node::And(all(c)?),
            Node::Or(c) => Node::Or(all(c)?),
            Node::Nor(c) => Node::Nor(all(c)?),
            Node::Not(n) => Node::Not(Box::new(self.take(n, renamed)?)),
            Node::Pred { path, test } => {
                let before = (self.path)(path, test)?;
                *renamed |= before != *path;
                Node::Pred {
                    path: before,
                    test: test.clone(),
                }
            }
            Node::Expr(e) if !e.is_random() && (self.expr)(e) => node.clone(),
            Node::Schema(_) if self.whole => node.clone(),
            // Chance is asked once for each document, and of texts only the collection knows.
            Node::Expr(_) | Node::Schema(_) | Node::Sample(_) | Node::Text(_) => return None,
        })
    }
}

/// The conditions that `path` gives for tests of a filter, where all of them follow from it;
/// `None` where none does.
pub(super) fn implied(
    filter: &Filter,
    of: &dyn Fn(&FieldPath, &Test) -> Option<FieldPath>,
) -> Option<Node> {
    implied_of(filter.root(), of)
}

fn implied_of(node: &Node, of: &dyn Fn(&FieldPath, &Test) -> Option<FieldPath>) -> Option<Node> {
    match node {
        // Less of a conjunction is asked for less.
        Node::And(c) => {
            let some: Vec<Node> = c.iter().filter_map(|n| implied_of(n, of)).collect();
            (!some.is_empty()).then(|| Node::and(some))
        }
        Node::Or(c) => {
            let all: Option<Vec<Node>> = c.iter().map(|n| implied_of(n, of)).collect();
            all.map(Node::Or)
        }
        Node::Pred { path, test } => Some(Node::Pred {
            path: of(path, test)?,
            test: test.clone(),
        }),
        _ => None,
    }
}

/// Whether values that compare as equal pass the test together: a number of another type, a string
/// that is another only by its case under a collation.
pub(super) fn heeds_order_only(test: &Test) -> bool {
    match test.written() {
        Test::Eq(_) | Test::Lt(_) | Test::Lte(_) | Test::Gt(_) | Test::Gte(_) => true,
        Test::In(list) => list.regexes.is_empty(),
        _ => false,
    }
}

/// Whether a missing field passes as null does.
pub(super) fn missing_is_null(test: &Test) -> bool {
    test.matches(None) == test.matches(Some(Val::NULL))
}

/// Whether only values pass that hold no others: no document, no array, and nothing that is not
/// there.
pub(super) fn wants_scalar(test: &Test) -> bool {
    let scalar = |v: Val<'_>| {
        v.is_number()
            || matches!(
                v.tag,
                tag::STRING | tag::DATE | tag::OBJECT_ID | tag::BOOL | tag::TIMESTAMP
            )
    };
    match test.written() {
        Test::Eq(v) | Test::Lt(v) | Test::Lte(v) | Test::Gt(v) | Test::Gte(v) => scalar(v.as_val()),
        Test::In(list) => list.regexes.is_empty() && list.values.iter().all(|v| scalar(v.as_val())),
        _ => false,
    }
}
