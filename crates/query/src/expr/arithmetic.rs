//! Arithmetic operators.

use super::node::{Call, Computed, EvalCtx, Prepared, own};
use super::parse::{ParseEnv, Parsed, operand};
use super::table::Op;
use crate::arithmetic::decimal::{self, Round};
use crate::arithmetic::{self as number, Number};
use bson::{Decimal128, Val, Value, tag};
use errors::{Error, Result, bail};

use Number::{Decimal, Double, Int, Long};

pub(super) const OPS: &[Op] = &[
    Op::variadic("$add", add),
    Op::variadic("$multiply", multiply),
    Op::args("$subtract", 2, 2, subtract),
    Op::args("$divide", 2, 2, divide),
    Op::args("$mod", 2, 2, modulo),
    Op::args("$pow", 2, 2, pow),
    Op::args("$log", 2, 2, log),
    Op::args("$round", 1, 2, |c, x| rounded(c, x, Round::HalfEven)),
    Op::args("$trunc", 1, 2, |c, x| rounded(c, x, Round::TowardZero)),
    Op::args("$abs", 1, 1, |c, x| single(c, x, abs)),
    Op::args("$ceil", 1, 1, |c, x| {
        single(c, x, |_, n| Ok(integral(n, f64::ceil, Round::Up)))
    }),
    Op::args("$floor", 1, 1, |c, x| {
        single(c, x, |_, n| Ok(integral(n, f64::floor, Round::Down)))
    }),
    Op::args("$exp", 1, 1, |c, x| {
        single(c, x, |_, n| Ok(real(n, f64::exp, decimal::exp)))
    }),
    Op::args("$ln", 1, 1, |c, x| {
        single(c, x, |c, n| {
            positive(c, n, 28766)?;
            Ok(real(nan_as_double(n), f64::ln, decimal::ln))
        })
    }),
    Op::args("$log10", 1, 1, |c, x| {
        single(c, x, |c, n| {
            positive(c, n, 28761)?;
            Ok(real(nan_as_double(n), f64::log10, decimal::log10))
        })
    }),
    Op::args("$sqrt", 1, 1, |c, x| single(c, x, sqrt)),
    Op::custom("$sigmoid", parse_operand, &[], |c, x| {
        single_of(c, x, sigmoid, 14)
    }),
];

/// The argument is the operand, an array too.
fn parse_operand(_: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    Ok(Parsed::Call(vec![operand(arg, env)?], Prepared::None))
}

/// What a function of a decimal counts as work: series of more digits than it has.
const DECIMAL_UNITS: usize = 256;

/// What a division of decimals does: their exponents may lie thousands of digits apart.
const DECIMAL_DIVISION_UNITS: usize = 16;

/// Counts a function of these numbers.
pub(super) fn count<const N: usize>(ctx: &EvalCtx<'_>, of: [Number; N]) -> Result<()> {
    count_as(DECIMAL_UNITS, ctx, of)
}

fn count_as<const N: usize>(units: usize, ctx: &EvalCtx<'_>, of: [Number; N]) -> Result<()> {
    match of.iter().any(|n| matches!(n, Decimal(_))) {
        true => ctx.vars.work(units),
        false => Ok(()),
    }
}

/// Applies `f` to one number; null of null, an error of anything else.
pub(super) fn single<'a>(
    c: &'a Call,
    ctx: &EvalCtx<'a>,
    f: impl Fn(&Call, Number) -> Result<Number>,
) -> Result<Computed<'a>> {
    single_of(c, ctx, f, 28765)
}

fn single_of<'a>(
    c: &'a Call,
    ctx: &EvalCtx<'a>,
    f: impl Fn(&Call, Number) -> Result<Number>,
    code: i32,
) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    if v.is_nullish() {
        return Ok(Computed::NULL);
    }
    match Number::of(v.or_null()) {
        Some(n) => {
            count(ctx, [n])?;
            own(f(c, n)?.to_value())
        }
        None => Err(Error::coded(
            code,
            format!(
                "{} only supports numeric types, not {}",
                c.op.name,
                v.type_name()
            ),
        )
        .into()),
    }
}

/// A function whose result is a double, or a decimal of a decimal.
pub(super) fn real(n: Number, f: fn(f64) -> f64, d: fn(Decimal128) -> Decimal128) -> Number {
    match n {
        Decimal(x) => Decimal(d(x)),
        _ => Double(f(n.to_f64())),
    }
}

fn integral(n: Number, f: fn(f64) -> f64, round: Round) -> Number {
    match n {
        Double(x) => Double(f(x)),
        Decimal(x) => Decimal(decimal::quantize(x, 0, round)),
        _ => n,
    }
}

/// MongoDB's logarithms make a double of a decimal NaN.
fn nan_as_double(n: Number) -> Number {
    if n.is_nan() { Double(f64::NAN) } else { n }
}

fn positive(c: &Call, n: Number, code: i32) -> Result<()> {
    let v = n.to_value();
    let below = n.is_zero() || is_negative(n);
    if below && !n.is_nan() {
        return Err(Error::coded(
            code,
            format!(
                "{}'s argument must be a positive number, but is {}",
                c.op.name,
                v.as_val()
            ),
        )
        .into());
    }
    Ok(())
}

fn is_negative(n: Number) -> bool {
    match n {
        Int(i) => i < 0,
        Long(i) => i < 0,
        Double(f) => f < 0.0,
        Decimal(d) => d.is_negative() && !d.is_zero() && !d.is_nan(),
    }
}

fn abs(_: &Call, n: Number) -> Result<Number> {
    Ok(match n {
        Int(i) => Number::int_or_long(i64::from(i).abs()),
        Long(i64::MIN) => bail!(28680, "can't take $abs of long long min"),
        Long(i) => Long(i.abs()),
        Double(f) => Double(f.abs()),
        Decimal(d) => Decimal(decimal::abs(d)),
    })
}

fn sqrt(_: &Call, n: Number) -> Result<Number> {
    if is_negative(n) {
        bail!(28714, "$sqrt's argument must be greater than or equal to 0");
    }
    Ok(real(n, f64::sqrt, decimal::sqrt))
}

fn sigmoid(_: &Call, n: Number) -> Result<Number> {
    Ok(match n {
        Decimal(d) if d.is_nan() => n,
        Decimal(d) => {
            let one = Decimal128::from_i64(1);
            Decimal(decimal::div(
                one,
                decimal::add(one, decimal::exp(decimal::neg(d))),
            ))
        }
        _ => Double(1.0 / (1.0 + (-n.to_f64()).exp())),
    })
}

fn add<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (mut total, mut date) = (Int(0), None);
    let mut long = false;
    for v in c.each_arg(ctx) {
        let v = v?;
        if v.is_nullish() {
            return Ok(Computed::NULL);
        }
        let v = v.or_null();
        let n = match Number::of(v) {
            Some(n) => n,
            None if v.tag == tag::DATE => {
                if date.is_some() {
                    bail!(16612, "only one date allowed in an $add expression");
                }
                date = v.as_date();
                continue;
            }
            None => bail!(
                TypeMismatch,
                "$add only supports numeric or date types, not {}",
                v.type_name()
            ),
        };
        long |= matches!(n, Long(_));
        // The running total is a long so that only the final result decides between int and long.
        total = number::add(
            match total {
                Int(i) => Long(i64::from(i)),
                t => t,
            },
            n,
        );
    }
    if let Some(ms) = date {
        return match milliseconds(total).and_then(|n| ms.checked_add(n)) {
            Some(ms) => own(Value::date(ms)),
            None => bail!(Overflow, "date overflow in $add"),
        };
    }
    own(match total {
        Long(i) if !long => Number::int_or_long(i).to_value(),
        t => t.to_value(),
    })
}

/// A number of milliseconds, halves away from zero; `None` when an int64 cannot hold it.
fn milliseconds(n: Number) -> Option<i64> {
    match n {
        Int(i) => Some(i64::from(i)),
        Long(i) => Some(i),
        Double(f) => (-9223372036854775808.0..9223372036854775808.0)
            .contains(&f)
            .then(|| f.round() as i64),
        Decimal(d) => decimal::to_i64(d, Round::HalfEven),
    }
}

fn multiply<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (mut product, mut long) = (Long(1), false);
    for v in c.each_arg(ctx) {
        let v = v?;
        if v.is_nullish() {
            return Ok(Computed::NULL);
        }
        let Some(n) = Number::of(v.or_null()) else {
            bail!(
                TypeMismatch,
                "$multiply only supports numeric types, not {}",
                v.type_name()
            );
        };
        long |= matches!(n, Long(_));
        product = number::multiply(product, n);
    }
    own(match product {
        Long(i) if !long => Number::int_or_long(i).to_value(),
        p => p.to_value(),
    })
}

fn subtract<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (a, b) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    if a.is_nullish() || b.is_nullish() {
        return Ok(Computed::NULL);
    }
    let (a, b) = (a.or_null(), b.or_null());
    match (Number::of(a), Number::of(b)) {
        (Some(x), Some(y)) => own(number::subtract(x, y).to_value()),
        (None, Some(y)) if a.tag == tag::DATE => {
            let ms = a.as_date().unwrap_or(0);
            match milliseconds(y).and_then(|n| ms.checked_sub(n)) {
                Some(ms) => own(Value::date(ms)),
                None => bail!(Overflow, "date overflow in $subtract"),
            }
        }
        (None, None) if a.tag == tag::DATE && b.tag == tag::DATE => {
            match a
                .as_date()
                .zip(b.as_date())
                .and_then(|(x, y)| x.checked_sub(y))
            {
                Some(ms) => own(ms),
                None => bail!(Overflow, "overflow in $subtract"),
            }
        }
        _ => bail!(
            TypeMismatch,
            "can't $subtract {} from {}",
            b.type_name(),
            a.type_name()
        ),
    }
}

fn divide<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (a, b) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    match (Number::of(a.or_null()), Number::of(b.or_null())) {
        (Some(x), Some(y)) => {
            if y.is_zero() {
                bail!(BadValue, "can't $divide by zero");
            }
            count_as(DECIMAL_DIVISION_UNITS, ctx, [x, y])?;
            own(match (x, y) {
                (Decimal(_), _) | (_, Decimal(_)) => {
                    Value::from(decimal::div(x.to_decimal(), y.to_decimal()))
                }
                _ => Value::from(x.to_f64() / y.to_f64()),
            })
        }
        _ if a.is_nullish() || b.is_nullish() => Ok(Computed::NULL),
        _ => bail!(
            TypeMismatch,
            "$divide only supports numeric types, not {} and {}",
            a.type_name(),
            b.type_name()
        ),
    }
}

fn modulo<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (a, b) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    match (Number::of(a.or_null()), Number::of(b.or_null())) {
        (Some(x), Some(y)) => {
            count_as(DECIMAL_DIVISION_UNITS, ctx, [x, y])?;
            own(remainder(x, y)?.to_value())
        }
        _ if a.is_nullish() || b.is_nullish() => Ok(Computed::NULL),
        _ => bail!(
            16611,
            "$mod only supports numeric types, not {} and {}",
            a.type_name(),
            b.type_name()
        ),
    }
}

fn remainder(x: Number, y: Number) -> Result<Number> {
    Ok(match (x, y) {
        (Decimal(_), _) | (_, Decimal(_)) => {
            if y.is_zero() {
                bail!(5733415, "can't $mod by zero");
            }
            Decimal(decimal::rem(x.to_decimal(), y.to_decimal()))
        }
        _ if y.is_zero() => bail!(16610, "can't $mod by zero"),
        (Double(_), _) | (_, Double(_)) => Double(x.to_f64() % y.to_f64()),
        (Int(a), Int(b)) => Int(a.wrapping_rem(b)),
        _ => Long(
            x.integer()
                .unwrap_or(0)
                .wrapping_rem(y.integer().unwrap_or(1)),
        ),
    })
}

fn pow<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (a, b) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    if a.is_nullish() || b.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(x) = Number::of(a.or_null()) else {
        bail!(28762, "$pow's base must be numeric, not {}", a.type_name());
    };
    let Some(y) = Number::of(b.or_null()) else {
        bail!(
            28763,
            "$pow's exponent must be numeric, not {}",
            b.type_name()
        );
    };
    if x.is_zero() && is_negative(y) {
        bail!(
            28764,
            "$pow cannot take a base of 0 and a negative exponent"
        );
    }
    count(ctx, [x, y])?;
    own(match (x, y) {
        (Decimal(_), _) | (_, Decimal(_)) => {
            Value::from(decimal::pow(x.to_decimal(), y.to_decimal()))
        }
        (Double(_), _) | (_, Double(_)) => Value::from(x.to_f64().powf(y.to_f64())),
        _ => integer_power(x, y),
    })
}

/// Exact while an int64 holds it, a double beyond and for negative exponents.
fn integer_power(x: Number, y: Number) -> Value {
    let (base, exponent) = (x.integer().unwrap_or(0), y.integer().unwrap_or(0));
    let whole = |i: i64| match (x, y) {
        (Int(_), Int(_)) => Number::int_or_long(i).to_value(),
        _ => Value::from(i),
    };
    match (base, exponent) {
        (1, _) | (0, 0) => return whole(1),
        (0, _) => return whole(0),
        (-1, e) => return whole(if e % 2 == 0 { 1 } else { -1 }),
        _ => {}
    }
    u32::try_from(exponent)
        .ok()
        .and_then(|e| base.checked_pow(e))
        .map_or_else(|| Value::from((base as f64).powf(exponent as f64)), whole)
}

fn log<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (a, b) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    if a.is_nullish() || b.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(x) = Number::of(a.or_null()) else {
        bail!(
            28756,
            "$log's argument must be numeric, not {}",
            a.type_name()
        );
    };
    let Some(y) = Number::of(b.or_null()) else {
        bail!(28757, "$log's base must be numeric, not {}", b.type_name());
    };
    positive(c, x, 28758)?;
    let is_one = bson::order::equal(y.to_value().as_val(), Value::from(1).as_val());
    if (y.is_zero() || is_negative(y) || is_one) && !y.is_nan() {
        bail!(
            28759,
            "$log's base must be a positive number not equal to 1, but is {}",
            b.or_null()
        );
    }
    count(ctx, [x, y])?;
    own(match (x, y) {
        _ if x.is_nan() || y.is_nan() => Value::from(f64::NAN),
        (Decimal(_), _) | (_, Decimal(_)) => {
            Value::from(decimal::log(x.to_decimal(), y.to_decimal()))
        }
        _ => Value::from(x.to_f64().ln() / y.to_f64().ln()),
    })
}

fn rounded<'a>(c: &'a Call, ctx: &EvalCtx<'a>, round: Round) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    let place = if c.has(1) {
        c.arg(1, ctx)?
    } else {
        Computed::Owned(Value::from(0))
    };
    if v.is_nullish() || place.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(n) = Number::of(v.or_null()) else {
        bail!(
            51081,
            "{} only supports numeric types, not {}",
            c.op.name,
            v.type_name()
        );
    };
    let place = precision(c, place.or_null())?;
    if n.is_nan() {
        return own(n.to_value());
    }
    let quantize = |d: Decimal128| {
        let q = decimal::quantize(d, -place, round);
        // More digits than a decimal holds: there is nothing to round.
        if q.is_nan() { d } else { q }
    };
    own(match n {
        Decimal(d) => Value::from(quantize(d)),
        Double(f) if place == 0 => Value::from(match round {
            Round::HalfEven => f.round_ties_even(),
            _ => f.trunc(),
        }),
        Double(f) => {
            let d = decimal::from_f64_precise(f);
            Value::from(if d.is_infinite() {
                f
            } else {
                quantize(d).to_f64()
            })
        }
        _ if place >= 0 => n.to_value(),
        _ => {
            let Some(i) = decimal::to_i64(quantize(n.to_decimal()), Round::TowardZero) else {
                bail!(
                    51080,
                    "invalid conversion from Decimal128 result in {} resulting from arguments: [{}, {place}]",
                    c.op.name,
                    v.or_null()
                );
            };
            match n {
                Int(_) => Number::int_or_long(i).to_value(),
                _ => Value::from(i),
            }
        }
    })
}

fn precision(c: &Call, v: Val<'_>) -> Result<i32> {
    if !v.is_number() {
        bail!(
            16004,
            "can't convert from BSON type {} to long",
            v.type_name()
        );
    }
    let out_of_range = match Number::of(v) {
        Some(Double(f)) => !(-9223372036854775808.0..9223372036854775808.0).contains(&f),
        Some(Decimal(d)) => !d.is_nan() && decimal::to_i64(d, Round::TowardZero).is_none(),
        _ => false,
    };
    if out_of_range {
        bail!(31109, "Can't coerce out of range value {v} to long");
    }
    match v.to_i64_exact() {
        Some(p @ -20..=100) => Ok(p as i32),
        Some(p) => bail!(
            51083,
            "cannot apply {} with precision value {p} value must be in [-20, 100]",
            c.op.name
        ),
        None => bail!(
            51082,
            "precision argument to {} must be a integral value",
            c.op.name
        ),
    }
}
