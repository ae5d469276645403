//! Set operators: arrays as sets, equality as in comparisons (1 and 1.0 are one element).

use super::array::array_of;
use super::boolean::boolean;
use super::node::{Call, Computed, EvalCtx, own};
use super::table::Op;
use bson::Val;
use errors::{Result, bail};

pub(super) const OPS: &[Op] = &[
    Op::args("$allElementsTrue", 1, 1, |c, x| {
        elements_true(c, x, 17040, true)
    }),
    Op::args("$anyElementTrue", 1, 1, |c, x| {
        elements_true(c, x, 17041, false)
    }),
    Op::args("$setDifference", 2, 2, difference),
    Op {
        prepare: Some(check_equals),
        ..Op::variadic("$setEquals", equals)
    },
    Op::variadic("$setIntersection", intersection),
    Op::args("$setIsSubset", 2, 2, is_subset),
    Op::variadic("$setUnion", union),
];

fn elements_true<'a>(c: &'a Call, ctx: &EvalCtx<'a>, code: i32, all: bool) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    let Some(a) = v.or_null().as_array() else {
        return Err(errors::Error::coded(
            code,
            format!(
                "{}'s argument must be an array, but is {}",
                c.op.name,
                v.type_name()
            ),
        )
        .into());
    };
    boolean(if all {
        a.values().all(Val::truthy)
    } else {
        a.values().any(Val::truthy)
    })
}

/// The distinct values of an array, sorted; `None` for any other value.
fn sorted<'v>(c: &Call, ctx: &EvalCtx<'_>, v: &'v Computed<'_>) -> Result<Option<Vec<Val<'v>>>> {
    let Some(array) = v.or_null().as_array() else {
        return Ok(None);
    };
    let mut items: Vec<Val<'v>> = array.values().collect();
    ctx.vars.work_sort(items.len(), array.len(), c.weight())?;
    items.sort_by(|a, b| c.compare(*a, *b));
    items.dedup_by(|a, b| c.compare(*a, *b).is_eq());
    Ok(Some(items))
}

fn holds(c: &Call, set: &[Val<'_>], v: Val<'_>) -> bool {
    set.binary_search_by(|x| c.compare(*x, v)).is_ok()
}

fn difference<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (a, b) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    if a.is_nullish() || b.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(left) = a.or_null().as_array() else {
        bail!(
            17048,
            "both operands of $setDifference must be arrays. First argument is of type: {}",
            a.type_name()
        );
    };
    let Some(right) = sorted(c, ctx, &b)? else {
        bail!(
            17049,
            "both operands of $setDifference must be arrays. Second argument is of type: {}",
            b.type_name()
        );
    };
    // In the order of the first array, each value once: the first of those that are equal.
    let mut kept: Vec<(usize, Val<'_>)> = left.values().enumerate().collect();
    let bytes = left.len() + b.or_null().bytes.len();
    ctx.vars
        .work_sort(kept.len() + right.len(), bytes, c.weight())?;
    kept.retain(|(_, v)| !holds(c, &right, *v));
    kept.sort_by(|a, b| c.compare(a.1, b.1));
    kept.dedup_by(|a, b| c.compare(a.1, b.1).is_eq());
    kept.sort_unstable_by_key(|(at, _)| *at);
    own(array_of(kept.into_iter().map(|(_, v)| v)))
}

/// A constant that is no array is refused before there is a document.
fn check_equals(c: &mut Call) -> Result<()> {
    if c.args.len() < 2 {
        bail!(
            17045,
            "$setEquals needs at least two arguments had: {}",
            c.args.len()
        );
    }
    for (i, n) in c.args.iter().enumerate() {
        if let Some(v) = n.constant()
            && v.as_array().is_none()
        {
            bail!(
                5887502,
                "All operands of $setEquals must be arrays. {}-th argument is of type: {}",
                i + 1,
                v.type_name()
            );
        }
    }
    Ok(())
}

fn equals<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let values: Vec<Computed<'_>> = c.each_arg(ctx).collect::<Result<_>>()?;
    let mut sets = Vec::new();
    for (i, v) in values.iter().enumerate() {
        match sorted(c, ctx, v)? {
            Some(s) => sets.push(s),
            None => bail!(
                17044,
                "All operands of $setEquals must be arrays. {}-th argument is of type: {}",
                i + 1,
                v.type_name()
            ),
        }
    }
    let same = |a: &[Val<'_>], b: &[Val<'_>]| {
        a.len() == b.len() && a.iter().zip(b).all(|(x, y)| c.compare(*x, *y).is_eq())
    };
    boolean(sets.windows(2).all(|p| same(&p[0], &p[1])))
}

fn intersection<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let values: Vec<Computed<'_>> = c.each_arg(ctx).collect::<Result<_>>()?;
    let mut common: Option<Vec<Val<'_>>> = None;
    for v in &values {
        if v.is_nullish() {
            return Ok(Computed::NULL);
        }
        let Some(set) = sorted(c, ctx, v)? else {
            bail!(
                17047,
                "All operands of $setIntersection must be arrays. One argument is of type: {}",
                v.type_name()
            );
        };
        match &mut common {
            None => common = Some(set),
            Some(kept) => kept.retain(|x| holds(c, &set, *x)),
        }
    }
    own(array_of(common.unwrap_or_default()))
}

fn is_subset<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (a, b) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    let Some(left) = a.or_null().as_array() else {
        bail!(
            17046,
            "both operands of $setIsSubset must be arrays. First argument is of type: {}",
            a.type_name()
        );
    };
    let Some(right) = sorted(c, ctx, &b)? else {
        bail!(
            17042,
            "both operands of $setIsSubset must be arrays. Second argument is of type: {}",
            b.type_name()
        );
    };
    ctx.vars.work_sort(right.len(), left.len(), c.weight())?;
    boolean(left.values().all(|v| holds(c, &right, v)))
}

fn union<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let values: Vec<Computed<'_>> = c.each_arg(ctx).collect::<Result<_>>()?;
    let mut all: Vec<Val<'_>> = Vec::new();
    for v in &values {
        if v.is_nullish() {
            return Ok(Computed::NULL);
        }
        match v.or_null().as_array() {
            Some(a) => all.extend(a.values()),
            None => bail!(
                17043,
                "All operands of $setUnion must be arrays. One argument is of type: {}",
                v.type_name()
            ),
        }
    }
    let bytes: usize = all.iter().map(|v| v.bytes.len()).sum();
    ctx.vars.work_sort(all.len(), bytes, c.weight())?;
    all.sort_by(|a, b| c.compare(*a, *b));
    all.dedup_by(|a, b| c.compare(*a, *b).is_eq());
    own(array_of(all))
}
