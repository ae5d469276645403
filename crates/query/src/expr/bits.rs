//! `$bitAnd $bitOr $bitXor $bitNot`: over int32 and int64.

use super::node::{Call, Computed, EvalCtx, own};
use super::table::Op;
use crate::arithmetic::Number;
use errors::{Result, bail};

pub(super) const OPS: &[Op] = &[
    Op::variadic("$bitAnd", |c, x| fold(c, x, -1, |a, b| a & b)),
    Op::variadic("$bitOr", |c, x| fold(c, x, 0, |a, b| a | b)),
    Op::variadic("$bitXor", |c, x| fold(c, x, 0, |a, b| a ^ b)),
    Op::args("$bitNot", 1, 1, not),
];

fn fold<'a>(
    c: &'a Call,
    ctx: &EvalCtx<'a>,
    start: i64,
    f: fn(i64, i64) -> i64,
) -> Result<Computed<'a>> {
    let (mut bits, mut long) = (start, false);
    for v in c.each_arg(ctx) {
        let v = v?;
        if v.is_nullish() {
            return Ok(Computed::NULL);
        }
        match Number::of(v.or_null()) {
            Some(Number::Int(i)) => bits = f(bits, i64::from(i)),
            Some(Number::Long(i)) => {
                bits = f(bits, i);
                long = true;
            }
            _ => bail!(
                TypeMismatch,
                "{} only supports int and long operands.",
                c.op.name
            ),
        }
    }
    if long { own(bits) } else { own(bits as i32) }
}

fn not<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    if v.is_nullish() {
        return Ok(Computed::NULL);
    }
    match Number::of(v.or_null()) {
        Some(Number::Int(i)) => own(!i),
        Some(Number::Long(i)) => own(!i),
        _ => bail!(
            28765,
            "$bitNot only supports numeric types, not {}. Only int and long are supported by $bitNot.",
            v.type_name()
        ),
    }
}
