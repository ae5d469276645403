//! Which values a predicate can hold for.
//!
//! Bounds are always complete: a document that matches has a key inside. They are exact when,
//! besides, every document with a key inside matches.

use crate::interval::{Interval, complement, union};
use crate::predicate::{Predicate, excludes_missing};
use bson::{ObjectId, Val, Value, doc, tag};
use errors::operation;
use query::collation::Collation;
use query::expr::{Comparison, Order, hash64};
use query::filter::{CompiledRegex, InList, Test, TypeSet};

/// The values of one field, and whether they alone decide the predicate.
#[derive(Clone, Debug)]
pub(crate) struct FieldBounds {
    pub intervals: Vec<Interval>,
    pub exact: bool,
}

/// What of a field's index matters for its bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldKind<'a> {
    /// Some document has an array there.
    pub multikey: bool,
    pub dotted: bool,
    /// A component is a number, which is a name in documents and a position in arrays.
    pub indexed: bool,
    /// Elements of an array that lack all of the index's fields have no entry.
    pub sparse: bool,
    /// The order of the index's strings, which it holds as their sort keys.
    pub collation: Option<&'a Collation>,
}

/// `None`: the index says nothing about the predicate.
pub(crate) fn of(p: &Predicate<'_>, kind: FieldKind<'_>) -> Option<FieldBounds> {
    if let Some(c) = &p.compared {
        return compared(c, kind);
    }
    // `a.0` also looks for a field "0" in the documents of an array: that they lack it shows in no
    // key.
    if kind.indexed && !excludes_missing(p.test) {
        return None;
    }
    if kind.sparse && kind.multikey && !p.negated && !excludes_missing(p.test) {
        return None;
    }
    let mut b = of_test(p.test, kind)?;
    if p.negated {
        // What lies outside is complete only if all that lies inside matches.
        if !sound(p.test, kind) {
            return negated_null_like(p, kind);
        }
        b.intervals = complement(&b.intervals);
        b.exact = b.exact && !kind.multikey;
    }
    if !p.whole || kind.indexed {
        b.exact = false;
    }
    Some(b)
}

/// Of a comparison of `$expr`, which knows no type brackets and sees an array as one value. Its key
/// does not tell whether a field is missing or null, so that it is never exact.
fn compared(c: &Comparison, kind: FieldKind<'_>) -> Option<FieldBounds> {
    if kind.multikey || kind.indexed {
        return None;
    }
    let v = c.value.as_val();
    if Collation::affects(v) && c.collation.as_ref() != kind.collation {
        return None;
    }
    let folded = |v: Val<'_>| Collation::with(kind.collation, v, |v| v.to_value());
    if let (Order::In, Some(list)) = (c.order, v.as_array()) {
        let points = list.values().map(|v| Interval::point(folded(v)));
        return exact(points.collect(), false);
    }
    let v = folded(v);
    let interval = match c.order {
        Order::Eq | Order::In => Interval::point(v),
        // A missing value is less than null.
        Order::Lt if v.tag() == tag::NULL => Interval::new(Val::MIN_KEY.into(), true, v, true),
        Order::Lt => Interval::new(Val::MIN_KEY.into(), true, v, false),
        Order::Lte => Interval::new(Val::MIN_KEY.into(), true, v, true),
        Order::Gt => Interval::new(v, false, Val::MAX_KEY.into(), true),
        Order::Gte => Interval::new(v, true, Val::MAX_KEY.into(), true),
    };
    exact(vec![interval], false)
}

/// `$exists: false`: only documents whose key is null can lack the field.
fn negated_null_like(p: &Predicate<'_>, kind: FieldKind<'_>) -> Option<FieldBounds> {
    match p.test {
        Test::Exists if !kind.multikey => Some(FieldBounds {
            intervals: vec![Interval::point(Value::NULL)],
            exact: false,
        }),
        _ => None,
    }
}

/// Every key inside the test's bounds belongs to a document that matches the test.
fn sound(test: &Test, kind: FieldKind<'_>) -> bool {
    if kind.indexed {
        return false;
    }
    match test {
        Test::Exists => false,
        _ => of_test(test, kind).is_some_and(|b| b.exact),
    }
}

fn exact(intervals: Vec<Interval>, exact: bool) -> Option<FieldBounds> {
    Some(FieldBounds {
        intervals: union(intervals),
        exact,
    })
}

fn of_test(test: &Test, kind: FieldKind<'_>) -> Option<FieldBounds> {
    match test {
        Test::Collated(c) if kind.collation == Some(&c.collation) => {
            let mut b = of_folded(&c.folded, kind)?;
            if let Test::In(l) = &c.source {
                for re in &l.regexes {
                    let r = regex(re, kind);
                    b.intervals.extend(r.intervals);
                    b.exact &= r.exact;
                }
                b.intervals = union(b.intervals);
            }
            Some(b)
        }
        // The strings of the index are in another order.
        Test::Collated(_) => None,
        t if kind.collation.is_some() && compares_strings(t) => None,
        t => of_folded(t, kind),
    }
}

/// Whether strings are among what a test compares with.
fn compares_strings(test: &Test) -> bool {
    match test {
        Test::Eq(v) | Test::Lt(v) | Test::Lte(v) | Test::Gt(v) | Test::Gte(v) => {
            Collation::affects(v.as_val())
        }
        Test::In(l) => l.values.iter().any(|v| Collation::affects(v.as_val())),
        _ => false,
    }
}

/// Bounds of a hashed field: the hashes of the values that the test holds for. A hash may be
/// another value's too.
pub(crate) fn hashed(p: &Predicate<'_>, collation: Option<&Collation>) -> Option<FieldBounds> {
    let point = |v: &Value| {
        let v = v.as_val();
        // Arrays are not in the index, but may be asked for; undefined is what no filter compares
        // with.
        (!matches!(v.tag, tag::ARRAY | tag::UNDEFINED))
            .then(|| Interval::point(Value::from(hash64(v))))
    };
    if let Some(c) = &p.compared {
        let same_strings =
            !Collation::affects(c.value.as_val()) || c.collation.as_ref() == collation;
        let folded = |v: Val<'_>| Collation::with(collation, v, |v| v.to_value());
        let values: Vec<Value> = match (c.order, c.value.as_val().as_array()) {
            _ if !same_strings => return None,
            (Order::In, Some(list)) => list.values().map(folded).collect(),
            (Order::Eq, _) => vec![folded(c.value.as_val())],
            _ => return None,
        };
        return exact(values.iter().map(point).collect::<Option<Vec<_>>>()?, false);
    }
    let test = match p.test {
        _ if p.negated => return None,
        Test::Collated(c) if collation == Some(&c.collation) => match &c.source {
            Test::In(l) if !l.regexes.is_empty() => return None,
            _ => &c.folded,
        },
        Test::Collated(_) => return None,
        t if collation.is_some() && compares_strings(t) => return None,
        t => t,
    };
    let intervals = match test {
        Test::Eq(v) => vec![point(v)?],
        Test::In(l) if l.regexes.is_empty() => {
            l.values.iter().map(point).collect::<Option<Vec<_>>>()?
        }
        _ => return None,
    };
    exact(intervals, false)
}

fn of_folded(test: &Test, kind: FieldKind<'_>) -> Option<FieldBounds> {
    match test {
        Test::Collated(_) => None,
        Test::Eq(v) => equality(v.as_val(), kind),
        Test::In(list) => members(list, kind),
        Test::Lt(v) => comparison(v, false, false, kind),
        Test::Lte(v) => comparison(v, false, true, kind),
        Test::Gt(v) => comparison(v, true, false, kind),
        Test::Gte(v) => comparison(v, true, true, kind),
        Test::Exists => exact(vec![Interval::all()], false),
        Test::Type(set) => of_types(set),
        Test::Regex(re) => Some(regex(re, kind)),
        Test::Mod { .. } => {
            let (low, high, _) = bracket(tag::DOUBLE)?;
            exact(vec![Interval::new(low, true, high, true)], false)
        }
        Test::Size(_)
        | Test::Bits { .. }
        | Test::ElemMatchObject(_)
        | Test::ElemMatchValue(_)
        | Test::Geo(_)
        | Test::Near(_) => None,
    }
}

/// The bounds of `$in`.
fn members(list: &InList, kind: FieldKind<'_>) -> Option<FieldBounds> {
    let (mut all, mut sure) = (Vec::new(), true);
    for v in &list.values {
        // Without bounds for an operation that has to end: planning asks again, and fails.
        operation::step().ok()?;
        let b = equality(v.as_val(), kind)?;
        sure &= b.exact;
        all.extend(b.intervals);
    }
    for re in &list.regexes {
        let b = regex(re, kind);
        sure &= b.exact;
        all.extend(b.intervals);
    }
    exact(all, sure)
}

/// The bounds of `$lt`, `$lte`, `$gt` and `$gte`; `up`: of the latter two.
fn comparison(v: &Value, up: bool, inclusive: bool, kind: FieldKind<'_>) -> Option<FieldBounds> {
    let val = v.as_val();
    match val.tag {
        tag::NULL if inclusive => equality(val, kind),
        tag::NULL => exact(Vec::new(), true),
        // An array compares as a whole, but the index has its elements.
        tag::ARRAY | tag::REGEX | tag::UNDEFINED => None,
        _ if is_nan(val) => match inclusive {
            true => equality(val, kind),
            false => exact(Vec::new(), true),
        },
        // An array as a whole lies between the two as well.
        tag::MIN_KEY | tag::MAX_KEY if kind.multikey => None,
        tag::MIN_KEY | tag::MAX_KEY => {
            let i = if up {
                Interval::new(v.clone(), inclusive, Val::MAX_KEY.into(), true)
            } else {
                Interval::new(Val::MIN_KEY.into(), true, v.clone(), inclusive)
            };
            exact(vec![i], true)
        }
        t => {
            let (low, high, high_inclusive) = bracket(t)?;
            let i = if up {
                Interval::new(v.clone(), inclusive, high, high_inclusive)
            } else {
                Interval::new(low, true, v.clone(), inclusive)
            };
            exact(vec![i], true)
        }
    }
}

/// The bounds of `$type`.
fn of_types(set: &TypeSet) -> Option<FieldBounds> {
    if set.contains(tag::ARRAY) {
        return None;
    }
    let mut all = Vec::new();
    for t in set.tags() {
        all.push(match t {
            tag::NULL | tag::UNDEFINED | tag::MIN_KEY | tag::MAX_KEY => {
                Interval::point(Value::new(t, &[]))
            }
            _ => {
                let (low, high, inclusive) = bracket(t)?;
                if tag::is_number(t) {
                    Interval::new(f64::NAN.into(), true, high, inclusive)
                } else {
                    Interval::new(low, true, high, inclusive)
                }
            }
        });
    }
    let sure = set.tags().iter().all(|t| {
        matches!(
            *t,
            tag::DOCUMENT
                | tag::BINARY
                | tag::OBJECT_ID
                | tag::BOOL
                | tag::DATE
                | tag::TIMESTAMP
                | tag::REGEX
        ) || (tag::is_number(*t)
            && [tag::DOUBLE, tag::INT32, tag::INT64, tag::DECIMAL128]
                .iter()
                .all(|n| set.contains(*n)))
    });
    exact(all, sure)
}

fn equality(v: Val<'_>, kind: FieldKind<'_>) -> Option<FieldBounds> {
    if let Some(items) = v.as_array() {
        // The key is the first element's (an empty array's is undefined), or the array's own when
        // it lies in another.
        let first = items.values().next().unwrap_or(Val::UNDEFINED);
        return exact(
            vec![
                Interval::point(first.to_value()),
                Interval::point(v.to_value()),
            ],
            false,
        );
    }
    // In an array of scalars `a.b` has the key null, but no value that a predicate could be tried
    // on.
    let sure = v.tag != tag::NULL || !(kind.multikey && kind.dotted);
    Some(FieldBounds {
        intervals: vec![Interval::point(v.to_value())],
        exact: sure,
    })
}

fn regex(re: &CompiledRegex, kind: FieldKind<'_>) -> FieldBounds {
    // Sort keys tell nothing about the characters of their strings.
    let (prefix, sure) = match kind.collation {
        Some(_) => (String::new(), false),
        None => re.prefix(),
    };
    let strings = match successor(&prefix) {
        Some(end) => Interval::new(prefix.into(), true, end, false),
        None => Interval::new("".into(), true, doc! {}.into(), false),
    };
    FieldBounds {
        intervals: union(vec![strings, Interval::point(re.to_value())]),
        exact: sure,
    }
}

/// The least string above all that start with `prefix`; its bytes need not be UTF-8.
fn successor(prefix: &str) -> Option<Value> {
    let mut b = prefix.as_bytes().to_vec();
    *b.last_mut()? += 1;
    Some(Value::str_from_bytes(&b))
}

fn is_nan(v: Val<'_>) -> bool {
    v.is_number() && v.to_f64().is_some_and(f64::is_nan)
}

/// The least and the greatest value that a comparison with a value of type `t` can hold for, and
/// whether the latter belongs to them. NaN, which no other number compares with, stays outside.
fn bracket(t: u8) -> Option<(Value, Value, bool)> {
    let zeros = Value::from(ObjectId([0; 12]));
    Some(match t {
        tag::DOUBLE | tag::INT32 | tag::INT64 | tag::DECIMAL128 => {
            (f64::NEG_INFINITY.into(), f64::INFINITY.into(), true)
        }
        tag::STRING | tag::SYMBOL => ("".into(), doc! {}.into(), false),
        tag::DOCUMENT => (doc! {}.into(), Value::array(doc! {}), false),
        tag::BINARY => (Value::binary(0, &[]), zeros, false),
        tag::OBJECT_ID => (zeros, ObjectId([0xFF; 12]).into(), true),
        tag::BOOL => (false.into(), true.into(), true),
        tag::DATE => (Value::date(i64::MIN), Value::date(i64::MAX), true),
        tag::TIMESTAMP => (Value::timestamp(0), Value::timestamp(u64::MAX), true),
        tag::REGEX => {
            let mut first = vec![1, 0, 0, 0, 0];
            first.extend_from_slice(&[0; 12]);
            (
                Value::regex("", ""),
                Value::from_bytes(tag::DB_POINTER, first),
                false,
            )
        }
        tag::CODE => {
            let mut scope = 14i32.to_le_bytes().to_vec();
            scope.extend_from_slice(&[1, 0, 0, 0, 0, 5, 0, 0, 0, 0]);
            (
                Value::code(""),
                Value::from_bytes(tag::CODE_WITH_SCOPE, scope),
                false,
            )
        }
        _ => return None,
    })
}
