//! Operators that read arrays: elements, positions, parts, order.

use super::node::{COLLATED, Call, Computed, EvalCtx, Prepared, own};
use super::parse::{ParseEnv, Parsed, fields, optional};
use super::path::ExprPath;
use super::table::{Named, Op};
use crate::collation::{self, Collation};
use bson::{Doc, Val, Value, Writer};
use errors::{Result, bail};
use std::cmp::Ordering;

pub(super) const OPS: &[Op] = &[
    Op::args("$arrayElemAt", 2, 2, array_elem_at),
    Op::args("$first", 1, 1, |c, x| end(c, x, false)),
    Op::args("$last", 1, 1, |c, x| end(c, x, true)),
    Op::args("$in", 2, 2, contains),
    Op::args("$indexOfArray", 2, 4, index_of_array),
    Op::args("$isArray", 1, 1, |c, x| {
        super::boolean::boolean(c.peek(0, x)?.or_null().as_array().is_some())
    }),
    Op::args("$size", 1, 1, size),
    Op::args("$slice", 2, 3, slice),
    Op::args("$reverseArray", 1, 1, reverse_array),
    Op::custom("$sortArray", parse_sort_array, &["input"], sort_array),
    Op::named("$firstN", &N_SPEC, first_n),
    Op::named("$lastN", &N_SPEC, last_n),
    Op::named("$minN", &N_SPEC, |c, x| extreme_n(c, x, false)),
    Op::named("$maxN", &N_SPEC, |c, x| extreme_n(c, x, true)),
];

/// An item has a type, a position of one digit, and its NUL.
const LEAST_ITEM_BYTES: usize = 3;

/// A number that is exactly an int32.
pub(super) fn int32(v: Val<'_>) -> Option<i32> {
    v.to_i64_exact().and_then(|i| i32::try_from(i).ok())
}

/// The item at `at`, counted from the end when negative.
fn item(array: Doc<'_>, at: i64) -> Option<Val<'_>> {
    let at = if at < 0 {
        at + i64::try_from(array.count()).ok()?
    } else {
        at
    };
    array.values().nth(usize::try_from(at).ok()?)
}

/// The item of an array that may be borrowed or just computed.
fn item_of<'a>(array: Computed<'a>, at: i64) -> Computed<'a> {
    match array {
        Computed::Ref(v) => Computed::from(v.as_array().and_then(|a| item(a, at))),
        other => other
            .or_null()
            .as_array()
            .and_then(|a| item(a, at))
            .map_or(Computed::Missing, |v| Computed::Owned(v.to_value())),
    }
}

fn array_elem_at<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (array, at) = (c.peek(0, ctx)?, c.arg(1, ctx)?);
    if array.is_nullish() || at.is_nullish() {
        return Ok(Computed::NULL);
    }
    if array.or_null().as_array().is_none() {
        bail!(
            28689,
            "$arrayElemAt's first argument must be an array, but is {}",
            array.type_name()
        );
    }
    let at = at.or_null();
    if !at.is_number() {
        bail!(
            28690,
            "$arrayElemAt's second argument must be a numeric value, but is {}",
            at.type_name()
        );
    }
    let Some(i) = int32(at) else {
        bail!(
            28691,
            "$arrayElemAt's second argument must be representable as a 32-bit integer: {at}"
        );
    };
    let on_the_way = usize::try_from(i).unwrap_or(usize::MAX);
    ctx.vars
        .work_elements(on_the_way.min(array.or_null().bytes.len() / LEAST_ITEM_BYTES))?;
    Ok(item_of(array, i64::from(i)))
}

fn end<'a>(c: &'a Call, ctx: &EvalCtx<'a>, last: bool) -> Result<Computed<'a>> {
    let array = if last {
        c.arg(0, ctx)?
    } else {
        c.peek(0, ctx)?
    };
    if array.is_nullish() {
        return Ok(Computed::NULL);
    }
    if array.or_null().as_array().is_none() {
        bail!(
            28689,
            "{}'s argument must be an array, but is {}",
            c.op.name,
            array.type_name()
        );
    }
    Ok(item_of(array, if last { -1 } else { 0 }))
}

fn contains<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (needle, array) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    let Some(items) = array.or_null().as_array() else {
        bail!(
            40081,
            "$in requires an array as a second argument, found: {}",
            array.type_name()
        );
    };
    let needle = needle.comparable();
    super::boolean::boolean(items.values().any(|v| c.compare(needle, v).is_eq()))
}

fn index_of_array<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let array = c.arg(0, ctx)?;
    if array.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(items) = array.or_null().as_array() else {
        bail!(
            40090,
            "$indexOfArray requires an array as a first argument, found: {}",
            array.type_name()
        );
    };
    let needle = c.arg(1, ctx)?;
    let bound = |i: usize, what: &str| -> Result<usize> {
        let v = c.arg(i, ctx)?;
        let Some(n) = int32(v.or_null()) else {
            bail!(
                9711600,
                "$indexOfArray requires an integral {what} index, found a value of type: {}, with value: {}",
                v.type_name(),
                v.or_null()
            );
        };
        usize::try_from(n).map_err(|_| {
            errors::err!(
                9711601,
                "$indexOfArray requires a nonnegative {what} index, found: {n}"
            )
            .into()
        })
    };
    let start = if c.has(2) { bound(2, "starting")? } else { 0 };
    let end = if c.has(3) {
        bound(3, "ending")?
    } else {
        usize::MAX
    };
    let needle = needle.comparable();
    let at = items
        .values()
        .enumerate()
        .take(end)
        .skip(start)
        .find(|(_, v)| c.compare(needle, *v).is_eq())
        .and_then(|(i, _)| i32::try_from(i).ok());
    own(at.unwrap_or(-1))
}

fn size<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let array = c.arg(0, ctx)?;
    match array.or_null().as_array() {
        Some(a) => own(i32::try_from(a.count()).unwrap_or(i32::MAX)),
        None => bail!(
            17124,
            "The argument to $size must be an array, but was of type: {}",
            array.type_name()
        ),
    }
}

fn slice<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (array, second) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    if array.is_nullish() || second.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(items) = array.or_null().as_array() else {
        bail!(
            28724,
            "First argument to $slice must be an array, but is of type: {}",
            array.type_name()
        );
    };
    let number = |v: &Computed<'_>, which: &str| -> Result<i64> {
        let v = v.or_null();
        if !v.is_number() {
            bail!(
                28725,
                "{which} argument to $slice must be a numeric value, but is of type: {}",
                v.type_name()
            );
        }
        match int32(v) {
            Some(i) => Ok(i64::from(i)),
            None => bail!(
                28726,
                "{which} argument to $slice can't be represented as a 32-bit integer: {v}"
            ),
        }
    };
    let n = number(&second, "Second")?;
    let len = i64::try_from(items.count()).unwrap_or(i64::MAX);
    let (from, count) = if c.args.len() == 2 {
        if n >= 0 {
            (0, n)
        } else {
            ((len + n).max(0), len)
        }
    } else {
        let third = c.arg(2, ctx)?;
        if third.is_nullish() {
            return Ok(Computed::NULL);
        }
        let count = number(&third, "Third")?;
        if count <= 0 {
            bail!(28729, "Third argument to $slice must be positive: {count}");
        }
        (if n >= 0 { n } else { (len + n).max(0) }, count)
    };
    let mut w = Writer::new_array();
    let (skip, take) = (
        usize::try_from(from).unwrap_or(usize::MAX),
        usize::try_from(count).unwrap_or(usize::MAX),
    );
    for v in items.values().skip(skip).take(take) {
        w.push(v);
    }
    Ok(Computed::Owned(w.finish_array()))
}

/// An array of these values.
pub(super) fn array_of<'v>(items: impl IntoIterator<Item = Val<'v>>) -> Value {
    let mut w = Writer::new_array();
    for v in items {
        w.push(v);
    }
    w.finish_array()
}

fn reverse_array<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let array = c.arg(0, ctx)?;
    if array.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(a) = array.or_null().as_array() else {
        bail!(
            34435,
            "The argument to $reverseArray must be an array, but was of type: {}",
            array.type_name()
        );
    };
    let mut items: Vec<Val<'_>> = a.values().collect();
    items.reverse();
    own(array_of(items))
}

/// The order of `$sortArray`, `$topN` and their kin: by whole values or by fields of documents.
#[derive(Clone, Debug)]
pub(crate) struct SortSpec {
    /// As it was written.
    pub(crate) spec: Value,
    /// Paths and whether descending; empty when whole values are compared.
    keys: Vec<(ExprPath, bool)>,
    descending: bool,
    pub(crate) collation: Option<Collation>,
}

impl SortSpec {
    fn parse_sort_array(v: Val<'_>) -> Result<SortSpec> {
        let mut spec = SortSpec {
            spec: v.to_value(),
            keys: Vec::new(),
            descending: false,
            collation: None,
        };
        let direction = |v: Val<'_>| match v.to_i64_exact() {
            Some(1) => Some(false),
            Some(-1) => Some(true),
            _ => None,
        };
        match v.as_doc() {
            Some(d) => {
                if d.is_empty() {
                    bail!(
                        2942505,
                        "$sortArray requires at least one field in 'sortBy' when it is an object"
                    );
                }
                for e in d.iter() {
                    let Some(down) = direction(e.val) else {
                        bail!(
                            2942505,
                            "$sortArray's 'sortBy' fields must be 1 or -1, found: {}",
                            e.val
                        );
                    };
                    spec.keys.push((ExprPath::unchecked(e.name), down));
                }
            }
            None if v.is_number() => match direction(v) {
                Some(down) => spec.descending = down,
                None => bail!(
                    2942506,
                    "$sortArray requires 'sortBy' to be 1, -1 or an object, found: {v}"
                ),
            },
            None => bail!(
                2942507,
                "$sortArray requires 'sortBy' to be 1, -1 or an object, found: {}",
                v.type_name()
            ),
        }
        Ok(spec)
    }

    /// A `sortBy` document of `$top`, `$bottomN` and the like.
    pub(crate) fn parse(d: Doc<'_>) -> Result<SortSpec> {
        let mut keys = Vec::new();
        for e in d.iter() {
            match e.val.to_i64_exact() {
                Some(1) => keys.push((ExprPath::parse(e.name)?, false)),
                Some(-1) => keys.push((ExprPath::parse(e.name)?, true)),
                _ => return Err(sort_direction_error(e.val).into()),
            }
        }
        Ok(SortSpec {
            spec: Value::from(d),
            keys,
            descending: false,
            collation: None,
        })
    }

    pub(crate) fn keys(&self) -> &[(ExprPath, bool)] {
        &self.keys
    }

    fn compare(&self, a: Val<'_>, b: Val<'_>) -> Ordering {
        let compare = |a, b| collation::compare(self.collation.as_ref(), a, b);
        let directed = |o: Ordering, down: bool| if down { o.reverse() } else { o };
        if self.keys.is_empty() {
            return directed(compare(a, b), self.descending);
        }
        for (path, down) in &self.keys {
            let o = compare(at(a, path), at(b, path));
            if o.is_ne() {
                return directed(o, *down);
            }
        }
        Ordering::Equal
    }
}

fn sort_direction_error(v: Val<'_>) -> errors::Error {
    if v.is_number() {
        errors::err!(
            15975,
            "$sort key ordering must be 1 (for ascending) or -1 (for descending)"
        )
    } else {
        errors::err!(
            15974,
            "Illegal key in $sort specification: {v}: key ordering must be specified using a number or {{$meta: 'text'}}"
        )
    }
}

/// The value at a path with array positions as components; null when there is none.
fn at<'a>(v: Val<'a>, path: &ExprPath) -> Val<'a> {
    let mut v = v;
    if v.as_doc().is_none() {
        return Val::NULL;
    }
    for part in path.parts() {
        let next = Doc::new(v.bytes).filter(|_| v.as_doc().is_some() || v.as_array().is_some());
        match next.and_then(|d| d.get(part)) {
            Some(x) => v = x,
            None => return Val::NULL,
        }
    }
    v
}

static SORT_ARRAY: Named = Named {
    fields: &[("input", 2942502), ("sortBy", 2942503)],
    not_object: 2942500,
    unknown: 2942501,
};

fn parse_sort_array(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &SORT_ARRAY, arg)?;
    let mut spec = SortSpec::parse_sort_array(f[1].unwrap_or(Val::NULL))?;
    spec.collation = env.collation().cloned();
    let args = vec![optional(f[0], env)?];
    Ok(Parsed::Call(args, Prepared::Sort(spec)))
}

fn sort_array<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let input = c.arg(0, ctx)?;
    if input.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(items) = input.or_null().as_array() else {
        bail!(
            2942504,
            "The input argument to $sortArray must be an array, but was of type: {}",
            input.type_name()
        );
    };
    let Prepared::Sort(spec) = &c.prepared else {
        return Err(errors::Error::internal("$sortArray without an order").into());
    };
    let bytes = items.len();
    let mut items: Vec<Val<'_>> = items.values().collect();
    let weight = if spec.collation.is_some() {
        COLLATED
    } else {
        1
    };
    ctx.vars
        .work_sort(items.len(), bytes, weight * spec.keys.len().max(1))?;
    items.sort_by(|a, b| spec.compare(*a, *b));
    own(array_of(items))
}

static N_SPEC: Named = Named {
    fields: &[("n", 5787906), ("input", 5787907)],
    not_object: 5787900,
    unknown: 5787901,
};

/// The `n` of `$firstN` and its kin.
pub(crate) fn count_of(op: &str, v: Val<'_>) -> Result<usize> {
    if !v.is_number() {
        bail!(
            5787902,
            "Value for 'n' must be of integral type, but found {v} for {op}"
        );
    }
    let Some(n) = v.to_i64_exact() else {
        bail!(
            5787903,
            "Value for 'n' must be of integral type, but found {v} for {op}"
        );
    };
    match usize::try_from(n) {
        Ok(n) if n > 0 => Ok(n),
        _ => bail!(5787908, "'n' must be greater than 0, found {n} for {op}"),
    }
}

/// The count and the items; `None` when the input is null.
fn n_and_items<'c>(
    c: &Call,
    n: &Computed<'_>,
    input: &'c Computed<'_>,
) -> Result<(usize, Doc<'c>)> {
    let n = count_of(c.op.name, n.or_null())?;
    match input.or_null().as_array() {
        Some(a) => Ok((n, a)),
        None => bail!(
            5788200,
            "Input must be an array, found {} for {}",
            input.type_name(),
            c.op.name
        ),
    }
}

fn first_n<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (n, input) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    let (n, items) = n_and_items(c, &n, &input)?;
    own(array_of(items.values().take(n)))
}

fn last_n<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (n, input) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    let (n, items) = n_and_items(c, &n, &input)?;
    let skip = items.count().saturating_sub(n);
    own(array_of(items.values().skip(skip)))
}

fn extreme_n<'a>(c: &'a Call, ctx: &EvalCtx<'a>, largest: bool) -> Result<Computed<'a>> {
    let (n, input) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    let (n, items) = n_and_items(c, &n, &input)?;
    let bytes = items.len();
    let mut items: Vec<Val<'_>> = items.values().filter(|v| !v.is_nullish()).collect();
    ctx.vars.work_sort(items.len(), bytes, c.weight())?;
    items.sort_by(|a, b| {
        let o = c.compare(*a, *b);
        if largest { o.reverse() } else { o }
    });
    items.truncate(n);
    own(array_of(items))
}
