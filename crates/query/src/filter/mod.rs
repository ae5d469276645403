//! Query predicates: parsed once into an owned tree, tested on document bytes.
//!
//! Invariant: testing a document allocates little if anything (`$expr` aside) and never fails
//! (`$expr` aside). Matching follows MongoDB 8: arrays are traversed, comparisons hold only within
//! one type bracket, a missing field equals null.
//!
//! * [`parse`](Filter::parse): the query document into [`Node`]s, with MongoDB's errors.
//! * `geospatial`: `$geoWithin`, `$geoIntersects`, `$near` and its kin. `eval`: testing. `failure`:
//!   why a document does not match. `render`: back into a document, for explain. `regex`: PCRE2.
//!   `bits`, `types`, `schema`, `text_search`: the operators of those names. `watch`: what a test
//!   has done.

mod bits;
mod eval;
mod failure;
mod geospatial;
mod parse;
mod part;
mod regex;
mod render;
mod schema;
mod schema_failure;
mod shape;
#[cfg(test)]
mod tests;
mod text_search;
mod types;
mod watch;

pub use bits::{BitMask, BitTest};
pub use failure::explain_failure;
pub(crate) use geospatial::not_allowed as near_not_allowed;
pub use geospatial::{GeoTest, NearTest, nearest};
pub use part::part_on;
pub use regex::CompiledRegex;
pub use schema::Schema;
pub use text_search::TextSearch;
pub(crate) use types::TAGS;
pub use types::TypeSet;

use crate::collation::Collation;
use crate::expr::{Expression, ParseEnv, Vars};
use crate::path::FieldPath;
use bson::{Doc, DocBuf, Val, Value};
use errors::{Result, err, operation};
use std::sync::Arc;
use watch::WorkMeter;

/// With at most this many nodes a test goes over its document as often at most, which takes a second for
/// one of 16 MB.
pub(crate) const FEW_NODES: usize = 32;

/// A query document of more bytes asks between the passes over its tree whether its operation is to end.
const LONG: usize = 64 << 10;

/// A parsed query document. Its copies share the tree.
#[derive(Clone, Debug)]
pub struct Filter {
    root: Arc<Node>,
    has_text: bool,
}

/// A node of the predicate tree.
#[derive(Clone, Debug)]
pub enum Node {
    /// Always or never (`{}`, `$alwaysFalse`, `$all: []`, …).
    Const(bool),
    /// Never empty, never nested directly in another `And`.
    And(Vec<Node>),
    Or(Vec<Node>),
    Nor(Vec<Node>),
    Not(Box<Node>),
    /// Some value on the path passes the test. Inside `$elemMatch` of values the path is empty: the
    /// element itself.
    Pred {
        path: FieldPath,
        test: Test,
    },
    Expr(Arc<Expression>),
    /// `$sampleRate`.
    Sample(f64),
    /// `$jsonSchema` on the whole document.
    Schema(Arc<Schema>),
    /// `$text`
    Text(Arc<TextSearch>),
}

/// A test of one value. `$ne`, `$nin` and `$exists: false` are `Not` around a node; `$all` is an
/// `And`.
#[derive(Clone, Debug)]
pub enum Test {
    Eq(Value),
    Lt(Value),
    Lte(Value),
    Gt(Value),
    Gte(Value),
    /// Plans keep what it is part of, and it may be long.
    In(Arc<InList>),
    Exists,
    Type(TypeSet),
    Regex(Box<CompiledRegex>),
    Mod {
        divisor: i64,
        remainder: i64,
    },
    Size(i64),
    /// `$elemMatch` with a query on element documents.
    ElemMatchObject(Box<Node>),
    /// `$elemMatch` with operators on element values: a node whose paths are empty.
    ElemMatchValue(Box<Node>),
    Bits {
        test: BitTest,
        mask: BitMask,
    },
    /// A comparison with strings under a collation.
    Collated(Box<Collated>),
    /// `$geoWithin`, `$geoIntersects`.
    Geo(Arc<GeoTest>),
    /// `$near` and its kin, which say how results are found and ordered: of a document it is always
    /// true.
    Near(Arc<NearTest>),
}

/// A test in the order of a collation.
#[derive(Clone, Debug)]
pub struct Collated {
    /// As it was written: what it prints as.
    pub source: Test,
    /// The same with folded operands and without regular expressions: for folded values.
    pub folded: Test,
    pub collation: Collation,
}

/// The list of `$in`: values in comparison order without duplicates, and regular expressions.
#[derive(Clone, Debug, Default)]
pub struct InList {
    pub values: Vec<Value>,
    pub regexes: Vec<CompiledRegex>,
}

impl Filter {
    pub fn parse(doc: Doc<'_>, env: &ParseEnv) -> Result<Filter> {
        let between_passes = || match doc.len() > LONG {
            true => operation::ask(),
            false => Ok(()),
        };
        let root = parse::parse(doc, env)?;
        between_passes()?;
        geospatial::check_near(&root)?;
        if env.allows_text() {
            text_search::check(&root)?;
        }
        between_passes()?;
        Ok(Filter::from_node(root))
    }

    /// What its results are to be near to.
    pub fn near(&self) -> Option<(&FieldPath, &Arc<NearTest>)> {
        geospatial::near_of(&self.root)
    }

    /// The filter that matches everything.
    pub fn all() -> Filter {
        Filter::from_node(Node::Const(true))
    }

    pub fn from_node(root: Node) -> Filter {
        let has_text = root.text().is_some();
        Filter {
            root: Arc::new(root),
            has_text,
        }
    }

    pub fn root(&self) -> &Node {
        &self.root
    }

    pub fn into_root(self) -> Node {
        Arc::unwrap_or_clone(self.root)
    }

    /// Matches every document.
    pub fn is_trivial(&self) -> bool {
        matches!(*self.root, Node::Const(true))
    }

    /// Matches no document, whatever it is.
    pub fn is_never(&self) -> bool {
        matches!(*self.root, Node::Const(false))
    }

    /// Tests a document. Fails only when an `$expr` does.
    #[inline]
    pub fn matches(&self, doc: Doc<'_>) -> Result<bool> {
        WorkMeter::over(None, |watch| eval::matches(&self.root, doc, watch))
    }

    /// The same with values for variables that `$expr` names, and with the context that may end a long
    /// test.
    #[inline]
    pub fn matches_with(&self, doc: Doc<'_>, vars: &Vars) -> Result<bool> {
        vars.begin_work();
        self.matches_within(doc, vars)
    }

    /// As [`Filter::matches_with`], as a part of something larger that counts its work.
    #[inline]
    pub(crate) fn matches_within(&self, doc: Doc<'_>, vars: &Vars) -> Result<bool> {
        WorkMeter::over(Some(vars), |watch| eval::matches(&self.root, doc, watch))
    }

    /// Tests a single value, for filters whose operators apply to a value itself (`$pull: {a: {$gt:
    /// 3}}`): the node's paths are empty.
    pub fn matches_value(&self, v: Val<'_>) -> bool {
        eval::matches_value(&self.root, v, &WorkMeter::none())
    }

    /// As [`Filter::matches_value`], as a part of something larger that counts its work.
    pub(crate) fn matches_value_within(&self, v: Val<'_>, vars: &Vars) -> Result<bool> {
        WorkMeter::over(Some(vars), |watch| {
            eval::matches_value(&self.root, v, watch)
        })
    }

    /// Parses operators that apply to a value itself: `{$gt: 3, $lt: 5}` (`$pull`, `$elemMatch`).
    pub fn parse_value_operators(ops: Doc<'_>, env: &ParseEnv) -> Result<Filter> {
        let root = parse::parse_value_operators(ops, env)?;
        Ok(Filter::from_node(root))
    }

    /// Whether `$expr` occurs anywhere.
    pub fn has_expr(&self) -> bool {
        self.root.any(&mut |n| matches!(n, Node::Expr(_)))
    }

    /// Whether it runs a script (`$where`, `$function`).
    pub fn has_script(&self) -> bool {
        self.root
            .any(&mut |n| matches!(n, Node::Expr(e) if e.has_script()))
    }

    /// Whether a test needs variables ([`Filter::matches_with`]): an `$expr` reads them, and what
    /// may take long for one document asks by them whether it may go on.
    pub fn wants_vars(&self) -> bool {
        let mut nodes = 0;
        self.root.any(&mut |n| {
            nodes += 1;
            nodes > FEW_NODES
                || match n {
                    Node::Expr(_) | Node::Schema(_) | Node::Text(_) => true,
                    Node::Pred { test, .. } => match test.written() {
                        Test::Regex(_) => true,
                        Test::In(l) => !l.regexes.is_empty(),
                        _ => false,
                    },
                    _ => false,
                }
        })
    }

    /// When the document matches: the array position that a positional `$` stands for, if matching
    /// went through an array. `None` when it does not match.
    pub fn first_matched_index(&self, doc: Doc<'_>, vars: &Vars) -> Result<Option<Option<u32>>> {
        vars.begin_work();
        WorkMeter::over(Some(vars), |watch| {
            eval::matched_index(&self.root, doc, watch)
        })
    }

    /// Fields and values that an upsert takes over from the query. Fails as MongoDB does when two
    /// of them disagree on where they go (NotSingleValueField).
    pub fn equalities(&self) -> Result<Vec<(&FieldPath, Val<'_>)>> {
        let mut out: Vec<(&FieldPath, Val<'_>)> = Vec::new();
        self.root.equalities(&mut out);
        if let Some(i) = first_conflict(&out) {
            let p = out[i].0;
            for q in out.iter().take(i).map(|(q, _)| *q) {
                if p == q {
                    return Err(err!(
                        NotSingleValueField,
                        "cannot infer query fields to set, path '{p}' is matched twice"
                    )
                    .into());
                }
                if p.conflicts_with(q) {
                    let (long, short) = if p.len() > q.len() { (p, q) } else { (q, p) };
                    return Err(err!(
                        NotSingleValueField,
                        "cannot infer query fields to set, both paths '{long}' and '{short}' are matched"
                    ).into());
                }
            }
        }
        Ok(out)
    }

    /// The fields and values of a filter that is equalities, one for each field, and nothing else.
    /// None for any other.
    pub fn nothing_but_equalities(&self) -> Option<Vec<(&FieldPath, Val<'_>)>> {
        let clauses = match self.root() {
            Node::And(c) => c.len(),
            _ => 1,
        };
        // No clause gives more than one where none is nested in another.
        self.equalities().ok().filter(|e| e.len() == clauses)
    }

    /// The same filter where an `$expr` is a constant: that is known without a document.
    pub(crate) fn with_constants(&self) -> Option<Filter> {
        let constant = |n: &Node| match n {
            Node::Expr(e) => e.constant().map(|v| v.as_val().truthy()),
            _ => None,
        };
        if !self.root.any(&mut |n| constant(n).is_some()) {
            return None;
        }
        fn put(node: &Node, constant: &dyn Fn(&Node) -> Option<bool>) -> Node {
            let all = |c: &[Node]| c.iter().map(|n| put(n, constant)).collect();
            match node {
                Node::And(c) => Node::And(all(c)),
                Node::Or(c) => Node::Or(all(c)),
                Node::Nor(c) => Node::Nor(all(c)),
                Node::Not(n) => Node::Not(Box::new(put(n, constant))),
                n => constant(n).map_or_else(|| n.clone(), Node::Const),
            }
        }
        let root = parse::simplify(put(&self.root, &constant));
        Some(Filter::from_node(root))
    }

    /// As MongoDB's explain prints a parsed query.
    pub fn to_doc(&self) -> DocBuf {
        render::render(&self.root)
    }
}

/// The first path that conflicts with one before it.
fn first_conflict(paths: &[(&FieldPath, Val<'_>)]) -> Option<usize> {
    let mut sorted: Vec<usize> = (0..paths.len()).collect();
    sorted.sort_by(|a, b| paths[*a].0.parts().cmp(paths[*b].0.parts()));
    // Those that the path at hand starts with, the longest last; with each, the first of it and
    // those below it on the stack.
    let mut above: Vec<(usize, usize)> = Vec::new();
    let mut found: Option<usize> = None;
    for i in sorted {
        while let Some((last, _)) = above.last()
            && !paths[i].0.starts_with(paths[*last].0)
        {
            above.pop();
        }
        let first = above.last().map(|(_, first)| *first);
        if let Some(first) = first {
            let at = first.max(i);
            found = Some(found.map_or(at, |f| f.min(at)));
        }
        above.push((i, first.map_or(i, |f| f.min(i))));
    }
    found
}

impl Node {
    /// Whether `f` holds for this node or one below it (those inside `$elemMatch` included).
    pub fn any(&self, f: &mut impl FnMut(&Node) -> bool) -> bool {
        if f(self) {
            return true;
        }
        match self {
            Node::And(c) | Node::Or(c) | Node::Nor(c) => c.iter().any(|n| n.any(f)),
            Node::Not(n) => n.any(f),
            Node::Pred {
                test: Test::ElemMatchObject(n) | Test::ElemMatchValue(n),
                ..
            } => n.any(f),
            _ => false,
        }
    }

    /// Whether it may hold for a document the one time and not the other (`$sampleRate`, `$rand`).
    pub fn varies(&self) -> bool {
        self.any(&mut |n| match n {
            Node::Sample(_) => true,
            Node::Expr(e) => e.is_random(),
            _ => false,
        })
    }

    /// A conjunction, flattened and simplified.
    pub fn and(children: Vec<Node>) -> Node {
        let mut out = Vec::with_capacity(children.len());
        for c in children {
            match c {
                Node::And(mut inner) => out.append(&mut inner),
                Node::Const(true) => {}
                c => out.push(c),
            }
        }
        if out.iter().any(|c| matches!(c, Node::Const(false))) {
            return Node::Const(false);
        }
        match out.len() {
            0 => Node::Const(true),
            1 => out.remove(0),
            _ => Node::And(out),
        }
    }

    fn equalities<'a>(&'a self, out: &mut Vec<(&'a FieldPath, Val<'a>)>) {
        match self {
            Node::And(c) => c.iter().for_each(|n| n.equalities(out)),
            Node::Or(c) if c.len() == 1 => c[0].equalities(out),
            Node::Pred { path, test } => match test.written() {
                Test::Eq(v) => out.push((path, v.as_val())),
                Test::In(l) if l.values.len() == 1 && l.regexes.is_empty() => {
                    out.push((path, l.values[0].as_val()))
                }
                _ => {}
            },
            _ => {}
        }
    }
}
