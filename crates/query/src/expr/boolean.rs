//! `$and $or $not` and the comparisons.

use super::node::{Call, Computed, EvalCtx, own};
use super::table::Op;
use errors::Result;
use std::cmp::Ordering;

pub(super) const OPS: &[Op] = &[
    Op::variadic("$and", and),
    Op::variadic("$or", or),
    Op::args("$not", 1, 1, |c, x| boolean(!c.peek(0, x)?.truthy())),
    Op::args("$cmp", 2, 2, |c, x| own(ordering(c, x)? as i32)),
    Op::args("$eq", 2, 2, |c, x| boolean(ordering(c, x)?.is_eq())),
    Op::args("$ne", 2, 2, |c, x| boolean(ordering(c, x)?.is_ne())),
    Op::args("$gt", 2, 2, |c, x| boolean(ordering(c, x)?.is_gt())),
    Op::args("$gte", 2, 2, |c, x| boolean(ordering(c, x)?.is_ge())),
    Op::args("$lt", 2, 2, |c, x| boolean(ordering(c, x)?.is_lt())),
    Op::args("$lte", 2, 2, |c, x| boolean(ordering(c, x)?.is_le())),
];

#[inline]
pub(super) fn boolean<'a>(b: bool) -> Result<Computed<'a>> {
    Ok(Computed::Ref(if b {
        bson::Val::TRUE
    } else {
        bson::Val::FALSE
    }))
}

fn and<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    for n in &c.args {
        if !n.eval(ctx)?.truthy() {
            return boolean(false);
        }
    }
    boolean(true)
}

fn or<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    for n in &c.args {
        if n.eval(ctx)?.truthy() {
            return boolean(true);
        }
    }
    boolean(false)
}

fn ordering<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Ordering> {
    let (a, b) = (c.peek(0, ctx)?, c.peek(1, ctx)?);
    let (a, b) = (a.comparable(), b.comparable());
    // What one has more than the other decides without being looked at.
    let both = a.bytes.len().min(b.bytes.len());
    ctx.vars.work_bytes(both * c.weight())?;
    Ok(c.compare(a, b))
}
