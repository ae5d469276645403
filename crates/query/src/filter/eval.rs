//! Testing documents and values against a parsed filter.

use super::watch::WorkMeter;
use super::{Collated, InList, Node, Test};
use crate::collation::Collation;
use crate::expr::{COLLATED, EvalCtx, Vars, regex_units};
use crate::path::{FieldPath, Leaf};
use bson::{Doc, Val, Value, order, tag};
use errors::Result;
use std::cmp::Ordering;

/// What making words of a text takes, in times of what going over it does.
const TEXT_WORK: usize = 32;

/// Tests a document. Without variables an `$expr` sees only the system's constants.
pub(super) fn matches(node: &Node, doc: Doc<'_>, watch: &WorkMeter<'_>) -> bool {
    match node {
        Node::Pred { path, test } => pred(path, test, doc, watch),
        Node::And(c) => watch.all(c, |n| matches(n, doc, watch)),
        Node::Or(c) => watch.any(c, |n| matches(n, doc, watch)),
        Node::Nor(c) => !watch.any(c, |n| matches(n, doc, watch)),
        Node::Not(n) => !matches(n, doc, watch),
        Node::Const(b) => *b,
        Node::Expr(e) => {
            let truth = |vars: &Vars| {
                let v = e.evaluate_within(&EvalCtx::new(doc, vars))?;
                Ok(v.as_val().is_some_and(|v| v.truthy()))
            };
            watch.heed(match watch.vars() {
                Some(v) => truth(v),
                None => truth(&Vars::default()),
            })
        }
        Node::Sample(rate) => rand::random::<f64>() < *rate,
        Node::Schema(s) => s.passes(doc, watch),
        Node::Text(t) => {
            let going = || !watch.spent_bytes(TEXT_WORK.saturating_mul(doc.len()));
            (t.matcher.as_ref()).is_some_and(|m| m.matches(doc, &going))
        }
    }
}

/// Tests a value that is not in a document (an array element): predicates with an empty path apply
/// to the value itself, without entering it; others to the document that the value is.
pub(super) fn matches_value(node: &Node, v: Val<'_>, watch: &WorkMeter<'_>) -> bool {
    match node {
        Node::Pred { path, test } if path.is_empty() => {
            !watch.spent(1) && test.passes(Some(v), watch)
        }
        Node::Pred { path, test } => v.as_container().is_some_and(|d| pred(path, test, d, watch)),
        Node::And(c) => watch.all(c, |n| matches_value(n, v, watch)),
        Node::Or(c) => watch.any(c, |n| matches_value(n, v, watch)),
        Node::Nor(c) => !watch.any(c, |n| matches_value(n, v, watch)),
        Node::Not(n) => !matches_value(n, v, watch),
        Node::Const(b) => *b,
        Node::Schema(s) => v.as_doc().is_some_and(|d| s.passes(d, watch)),
        Node::Expr(_) | Node::Sample(_) | Node::Text(_) => false,
    }
}

#[inline]
fn pred(path: &FieldPath, test: &Test, doc: Doc<'_>, watch: &WorkMeter<'_>) -> bool {
    !watch.spent_bytes(doc.len()) && path.visit(doc, test.leaf(), &mut |v, _| test.passes(v, watch))
}

/// `None`: no match; `Some(i)`: matched, and `i` is the array position that the last deciding
/// predicate went through.
pub(super) fn matched_index(
    node: &Node,
    doc: Doc<'_>,
    watch: &WorkMeter<'_>,
) -> Option<Option<u32>> {
    match node {
        Node::Pred { path, test } => {
            if watch.spent_bytes(doc.len()) {
                return None;
            }
            let mut at = None;
            let found = path.visit(doc, test.leaf(), &mut |v, outer| {
                let inner = match (test, v) {
                    (Test::ElemMatchObject(_) | Test::ElemMatchValue(_), Some(v)) => {
                        match test.first_element(v, watch) {
                            None => return false,
                            i => i,
                        }
                    }
                    _ if test.passes(v, watch) => None,
                    _ => return false,
                };
                at = outer.or(inner);
                true
            });
            found.then_some(at)
        }
        Node::And(c) => {
            // MongoDB tests in the order of operators and names, and the last that knows a position
            // says it.
            let mut c: Vec<&Node> = c.iter().collect();
            c.sort_by_key(|n| n.rank());
            let mut at = None;
            for n in c {
                match matched_index(n, doc, watch) {
                    None => return None,
                    Some(i) => at = i.or(at),
                }
            }
            Some(at)
        }
        // A disjunction does not say where it matched, nor does a negation.
        n => matches(n, doc, watch).then_some(None),
    }
}

impl Node {
    /// The place of a clause in MongoDB's order of a conjunction.
    fn rank(&self) -> (u8, &str) {
        match self {
            Node::Pred { path, test } => (test.rank(), path.as_str()),
            Node::And(_) => (0, ""),
            Node::Or(_) => (1, ""),
            Node::Not(n) => (20, n.rank().1),
            Node::Nor(_) => (21, ""),
            Node::Expr(_) | Node::Schema(_) | Node::Sample(_) | Node::Text(_) | Node::Const(_) => {
                (30, "")
            }
        }
    }
}

impl Test {
    fn rank(&self) -> u8 {
        match self {
            Test::ElemMatchObject(_) => 2,
            Test::ElemMatchValue(_) => 3,
            Test::Size(_) => 4,
            Test::Eq(_) => 5,
            Test::Lte(_) => 6,
            Test::Lt(_) => 7,
            Test::Gt(_) => 8,
            Test::Gte(_) => 9,
            Test::Regex(_) => 10,
            Test::Mod { .. } => 11,
            Test::Exists => 12,
            Test::In(_) => 13,
            Test::Bits { .. } => 14,
            Test::Type(_) => 22,
            Test::Geo(_) => 1,
            Test::Near(_) => 0,
            Test::Collated(c) => c.source.rank(),
        }
    }

    /// The test as it was written, whatever its collation.
    pub fn written(&self) -> &Test {
        match self {
            Test::Collated(c) => &c.source,
            t => t,
        }
    }

    /// The test of a list that a user has written, under a collation. To fold many texts takes long;
    /// fails where the operation has to end meanwhile.
    pub(super) fn of_list(list: InList, collation: Option<&Collation>) -> Result<Test> {
        let affected = list.values.iter().any(|v| Collation::affects(v.as_val()));
        let Some(c) = collation.filter(|_| affected) else {
            return Ok(Test::In(list.into()).collate(collation));
        };
        let fold = |v: &Value| {
            errors::operation::step()?;
            Ok(c.fold(v.as_val()))
        };
        let folded = list.values.iter().map(fold).collect::<Result<_>>()?;
        Ok(Test::Collated(Box::new(Collated {
            source: Test::In(list.into()),
            folded: Test::In(InList::new(folded, Vec::new()).into()),
            collation: c.clone(),
        })))
    }

    /// The test under a collation. What holds no string is the same under all.
    pub(crate) fn collate(self, collation: Option<&Collation>) -> Test {
        let Some(c) = collation else { return self };
        let fold = |v: &Value| c.fold(v.as_val());
        let folded = match &self {
            Test::In(l) if l.values.iter().any(|v| Collation::affects(v.as_val())) => {
                Test::In(InList::new(l.values.iter().map(fold).collect(), Vec::new()).into())
            }
            Test::Eq(v) | Test::Lt(v) | Test::Lte(v) | Test::Gt(v) | Test::Gte(v)
                if !Collation::affects(v.as_val()) =>
            {
                return self;
            }
            Test::Eq(v) => Test::Eq(fold(v)),
            Test::Lt(v) => Test::Lt(fold(v)),
            Test::Lte(v) => Test::Lte(fold(v)),
            Test::Gt(v) => Test::Gt(fold(v)),
            Test::Gte(v) => Test::Gte(fold(v)),
            _ => return self,
        };
        Test::Collated(Box::new(Collated {
            source: self,
            folded,
            collation: c.clone(),
        }))
    }

    /// What the test wants of an array at the end of its path.
    #[inline]
    pub fn leaf(&self) -> Leaf {
        match self {
            Test::Size(_) | Test::ElemMatchObject(_) | Test::ElemMatchValue(_) => Leaf::Whole,
            _ => Leaf::Expand,
        }
    }

    /// Tests one value as it is; `None` is a missing field.
    #[inline]
    pub fn matches(&self, v: Option<Val<'_>>) -> bool {
        self.passes(v, &WorkMeter::none())
    }

    #[inline]
    pub(super) fn passes(&self, v: Option<Val<'_>>, watch: &WorkMeter<'_>) -> bool {
        match self {
            Test::Eq(rhs) => {
                let rhs = rhs.as_val();
                match v {
                    Some(v) => order::equal(v, rhs),
                    None => rhs.tag == tag::NULL,
                }
            }
            Test::Lt(rhs) => compare(v, rhs.as_val(), false, |o| o == Ordering::Less),
            Test::Lte(rhs) => compare(v, rhs.as_val(), true, |o| o != Ordering::Greater),
            Test::Gt(rhs) => compare(v, rhs.as_val(), false, |o| o == Ordering::Greater),
            Test::Gte(rhs) => compare(v, rhs.as_val(), true, |o| o != Ordering::Less),
            Test::In(list) => list.passes(v, watch),
            Test::Exists => v.is_some(),
            Test::Type(set) => v.is_some_and(|v| set.contains(v.tag)),
            Test::Regex(re) => v.is_some_and(|v| matches_regex(re, v, watch)),
            Test::Mod { divisor, remainder } => v.is_some_and(|v| {
                integer_part(v).is_some_and(|n| n.wrapping_rem(*divisor) == *remainder)
            }),
            Test::Size(n) => v
                .and_then(|v| v.as_array())
                .is_some_and(|a| a.count() as i64 == *n),
            Test::ElemMatchObject(_) | Test::ElemMatchValue(_) => {
                v.is_some_and(|v| self.first_element(v, watch).is_some())
            }
            Test::Bits { test, mask } => v.is_some_and(|v| mask.test(*test, v)),
            Test::Collated(c) => c.passes(v, watch),
            Test::Geo(g) => v.is_some_and(|v| !watch.spent_bytes(v.bytes.len()) && g.matches(v)),
            Test::Near(_) => true,
        }
    }

    /// For `$elemMatch`: the first element of the array `v` that passes.
    pub(crate) fn matching_element<'a>(&self, v: Val<'a>, vars: &Vars) -> Result<Option<Val<'a>>> {
        let n = WorkMeter::over(Some(vars), |watch| self.first_element(v, watch))?;
        Ok(n.and_then(|n| v.as_array()?.values().nth(n as usize)))
    }

    /// Its position.
    fn first_element(&self, v: Val<'_>, watch: &WorkMeter<'_>) -> Option<u32> {
        let array = v.as_array()?;
        let found = match self {
            Test::ElemMatchObject(n) => array.values().position(|e| {
                let tested = |d| watch.ended() || matches(n, d, watch);
                e.as_container().is_some_and(tested)
            }),
            Test::ElemMatchValue(n) => array
                .values()
                .position(|e| watch.ended() || matches_value(n, e, watch)),
            _ => None,
        };
        found.map(|i| i as u32)
    }
}

/// A comparison holds within one type bracket only. `equal`: whether the operator holds for equal
/// values.
#[inline]
fn compare(
    v: Option<Val<'_>>,
    rhs: Val<'_>,
    equal: bool,
    holds: impl Fn(Ordering) -> bool,
) -> bool {
    if let Some(v) = v
        && tag::rank(v.tag) == tag::rank(rhs.tag)
    {
        if is_nan(rhs) || is_nan(v) {
            return equal && is_nan(rhs) && is_nan(v);
        }
        return holds(order::compare(v, rhs));
    }
    match rhs.tag {
        // Every type lies between MinKey and MaxKey, a missing field too.
        tag::MIN_KEY => holds(Ordering::Greater),
        tag::MAX_KEY => holds(Ordering::Less),
        tag::NULL => equal && v.is_none(),
        _ => false,
    }
}

#[inline]
pub(crate) fn is_nan(v: Val<'_>) -> bool {
    match v.tag {
        tag::DOUBLE => v.as_f64().is_some_and(f64::is_nan),
        tag::DECIMAL128 => v.as_decimal().is_some_and(|d| d.is_nan()),
        _ => false,
    }
}

/// A number without its fraction; `None` for what no i64 holds.
pub(super) fn integer_part(v: Val<'_>) -> Option<i64> {
    match v.tag {
        tag::INT32 => v.as_i32().map(i64::from),
        tag::INT64 => v.as_i64(),
        tag::DOUBLE => {
            let f = v.as_f64()?.trunc();
            (-9223372036854775808.0..9223372036854775808.0)
                .contains(&f)
                .then_some(f as i64)
        }
        tag::DECIMAL128 => {
            let d = v.as_decimal()?;
            let inside = !d.is_nan()
                && d.cmp_f64(9223372036854775808.0).is_lt()
                && d.cmp_f64(-9223372036854775809.0).is_gt();
            inside.then(|| d.to_i64_truncated())
        }
        _ => None,
    }
}

fn matches_regex(re: &super::CompiledRegex, v: Val<'_>, watch: &WorkMeter<'_>) -> bool {
    match v.tag {
        tag::STRING | tag::SYMBOL => v
            .str_bytes()
            .is_some_and(|s| !watch.spent(regex_units(s.len())) && re.matches(s, watch)),
        tag::REGEX => v.as_regex() == Some((re.pattern(), re.options())),
        _ => false,
    }
}

impl Collated {
    fn passes(&self, v: Option<Val<'_>>, watch: &WorkMeter<'_>) -> bool {
        let Some(v) = v else {
            return self.folded.passes(None, watch);
        };
        // The compared form is made anew for each test.
        if watch.spent_bytes(v.bytes.len().saturating_mul(COLLATED)) {
            return false;
        }
        let folded = |v: Val<'_>| self.folded.passes(Some(v), watch);
        if Collation::with(Some(&self.collation), v, folded) {
            return true;
        }
        match &self.source {
            Test::In(l) => l.any_regex(v, watch),
            _ => false,
        }
    }
}

impl InList {
    /// Sorts and removes duplicates.
    pub fn new(mut values: Vec<bson::Value>, regexes: Vec<super::CompiledRegex>) -> InList {
        values.sort_by(|a, b| order::compare(a.as_val(), b.as_val()));
        values.dedup_by(|a, b| order::equal(a.as_val(), b.as_val()));
        InList { values, regexes }
    }

    pub fn contains_null(&self) -> bool {
        self.values.iter().any(|v| v.tag() == tag::NULL)
    }

    #[inline]
    fn passes(&self, v: Option<Val<'_>>, watch: &WorkMeter<'_>) -> bool {
        let Some(v) = v else {
            return self.contains_null();
        };
        let found = if self.values.len() <= 4 {
            self.values.iter().any(|x| order::equal(x.as_val(), v))
        } else {
            self.values
                .binary_search_by(|x| order::compare(x.as_val(), v))
                .is_ok()
        };
        found || self.any_regex(v, watch)
    }

    #[inline]
    fn any_regex(&self, v: Val<'_>, watch: &WorkMeter<'_>) -> bool {
        watch.any(&self.regexes, |re| matches_regex(re, v, watch))
    }
}
