//! Trigonometric and hyperbolic operators.

use super::arithmetic::{count, real, single};
use super::node::{Call, Computed, EvalCtx, own};
use super::table::Op;
use crate::arithmetic::Number::{self, Decimal};
use crate::arithmetic::trigonometry as trig;
use bson::{Decimal128, Value};
use errors::{Result, bail};

pub(super) const OPS: &[Op] = &[
    Op::args("$sin", 1, 1, |c, x| {
        bounded(c, x, f64::sin, trig::sin, FINITE)
    }),
    Op::args("$cos", 1, 1, |c, x| {
        bounded(c, x, f64::cos, trig::cos, FINITE)
    }),
    Op::args("$tan", 1, 1, |c, x| {
        bounded(c, x, f64::tan, trig::tan, FINITE)
    }),
    Op::args("$asin", 1, 1, |c, x| {
        bounded(c, x, f64::asin, trig::asin, UNIT)
    }),
    Op::args("$acos", 1, 1, |c, x| {
        bounded(c, x, f64::acos, trig::acos, UNIT)
    }),
    Op::args("$atan", 1, 1, |c, x| {
        bounded(c, x, f64::atan, trig::atan, ALL)
    }),
    Op::args("$sinh", 1, 1, |c, x| {
        bounded(c, x, f64::sinh, trig::sinh, ALL)
    }),
    Op::args("$cosh", 1, 1, |c, x| {
        bounded(c, x, f64::cosh, trig::cosh, ALL)
    }),
    Op::args("$tanh", 1, 1, |c, x| {
        bounded(c, x, f64::tanh, trig::tanh, ALL)
    }),
    Op::args("$asinh", 1, 1, |c, x| {
        bounded(c, x, f64::asinh, trig::asinh, ALL)
    }),
    Op::args("$acosh", 1, 1, |c, x| {
        bounded(c, x, f64::acosh, trig::acosh, FROM_ONE)
    }),
    Op::args("$atanh", 1, 1, |c, x| {
        bounded(c, x, f64::atanh, trig::atanh, UNIT)
    }),
    Op::args("$atan2", 2, 2, atan2),
    Op::args("$degreesToRadians", 1, 1, |c, x| {
        bounded(
            c,
            x,
            |f| f * (std::f64::consts::PI / 180.0),
            trig::to_radians,
            ALL,
        )
    }),
    Op::args("$radiansToDegrees", 1, 1, |c, x| {
        bounded(
            c,
            x,
            |f| f * (180.0 / std::f64::consts::PI),
            trig::to_degrees,
            ALL,
        )
    }),
];

/// Where a function is defined: bounds, and whether they belong to it.
type Domain = (f64, f64, bool);
const ALL: Domain = (f64::NEG_INFINITY, f64::INFINITY, true);
const FINITE: Domain = (f64::NEG_INFINITY, f64::INFINITY, false);
const UNIT: Domain = (-1.0, 1.0, true);
const FROM_ONE: Domain = (1.0, f64::INFINITY, true);

fn bounded<'a>(
    c: &'a Call,
    ctx: &EvalCtx<'a>,
    f: fn(f64) -> f64,
    d: fn(Decimal128) -> Decimal128,
    (low, high, closed): Domain,
) -> Result<Computed<'a>> {
    single(c, ctx, |c, n| {
        let outside = match n {
            Decimal(x) => {
                let (a, b) = (x.cmp_f64(low), x.cmp_f64(high));
                a.is_lt() || b.is_gt() || !closed && (a.is_eq() || b.is_eq())
            }
            _ => {
                let x = n.to_f64();
                x < low || x > high || !closed && (x == low || x == high)
            }
        };
        if outside && !n.is_nan() {
            let (open, close) = if closed { ('[', ']') } else { ('(', ')') };
            bail!(
                50989,
                "cannot apply {} to {}, value must be in {open}{low},{high}{close}",
                c.op.name,
                n.to_value().as_val()
            );
        }
        Ok(real(n, f, d))
    })
}

fn atan2<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (a, b) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    if a.is_nullish() || b.is_nullish() {
        return Ok(Computed::NULL);
    }
    let (Some(y), Some(x)) = (Number::of(a.or_null()), Number::of(b.or_null())) else {
        let bad = if a.or_null().is_number() { &b } else { &a };
        bail!(
            51044,
            "$atan2 only supports numeric types, not {}",
            bad.type_name()
        );
    };
    count(ctx, [y, x])?;
    own(match (y, x) {
        (Decimal(_), _) | (_, Decimal(_)) => {
            Value::from(trig::atan2(y.to_decimal(), x.to_decimal()))
        }
        _ => Value::from(y.to_f64().atan2(x.to_f64())),
    })
}
