//! `$group`'s accumulators as expressions, and operators that look at a value as a whole.

use super::node::{Call, Computed, EvalCtx, Prepared, own};
use super::parse::{ParseEnv, Parsed, fields, operand, optional};
use super::table::{Named, Op};
use crate::accumulator::percentile;
use crate::arithmetic::{Sum, Variance};
use bson::{Doc, Val, Value, tag};
use errors::{Result, bail};

pub(super) const OPS: &[Op] = &[
    Op::variadic("$sum", |c, x| {
        let mut s = Sum::default();
        each(c, x, |v| s.add(v))?;
        own(s.sum())
    }),
    Op::variadic("$avg", |c, x| {
        let mut s = Sum::default();
        each(c, x, |v| s.add_for_average(v))?;
        own(s.average())
    }),
    Op::variadic("$min", |c, x| extreme(c, x, false)),
    Op::variadic("$max", |c, x| extreme(c, x, true)),
    Op::variadic("$stdDevPop", |c, x| deviation(c, x, false)),
    Op::variadic("$stdDevSamp", |c, x| deviation(c, x, true)),
    Op::custom("$median", parse_median, &["input", "method"], percentiles),
    Op::custom(
        "$percentile",
        parse_percentile,
        &["input", "p", "method"],
        percentiles,
    ),
    Op::custom("$rand", parse_rand, &[], |_, _| own(rand::random::<f64>())).varying(),
    Op::args("$bsonSize", 1, 1, bson_size),
    Op::args("$binarySize", 1, 1, binary_size),
    Op::args("$tsSecond", 1, 1, |c, x| timestamp(c, x, |t| t >> 32)),
    Op::args("$tsIncrement", 1, 1, |c, x| {
        timestamp(c, x, |t| t & 0xFFFF_FFFF)
    }),
];

/// The largest value an expression may build on its way, in bytes; results have the smaller limit of
/// documents.
pub const MAX_INTERMEDIATE_BYTES: usize = 128 * 1024 * 1024;

pub(super) fn check_size(bytes: usize) -> Result<()> {
    if bytes > MAX_INTERMEDIATE_BYTES {
        bail!(
            ExceededMemoryLimit,
            "an expression built a value of more than {MAX_INTERMEDIATE_BYTES} bytes"
        );
    }
    Ok(())
}

/// Every operand; of a single operand that is an array, every item.
fn each<'a>(c: &'a Call, ctx: &EvalCtx<'a>, mut f: impl FnMut(Val<'_>)) -> Result<()> {
    if let [only] = &c.args[..] {
        let v = c.read(only, ctx)?;
        match v.or_null().as_array() {
            Some(a) => a.values().for_each(f),
            None => f(v.or_null()),
        }
        return Ok(());
    }
    for v in c.each_arg(ctx) {
        f(v?.or_null());
    }
    Ok(())
}

fn extreme<'a>(c: &'a Call, ctx: &EvalCtx<'a>, largest: bool) -> Result<Computed<'a>> {
    let mut best: Option<Value> = None;
    each(c, ctx, |v| {
        if v.is_nullish() {
            return;
        }
        let better = best.as_ref().is_none_or(|b| {
            let o = c.compare(v, b.as_val());
            if largest { o.is_gt() } else { o.is_lt() }
        });
        if better {
            best = Some(v.to_value());
        }
    })?;
    Ok(Computed::Owned(best.unwrap_or(Value::NULL)))
}

fn deviation<'a>(c: &'a Call, ctx: &EvalCtx<'a>, sample: bool) -> Result<Computed<'a>> {
    let mut s = Variance::default();
    each(c, ctx, |v| s.add(v))?;
    own(s.deviation(sample))
}

pub(crate) static MEDIAN: Named = Named {
    fields: &[("input", 40414), ("method", 40414)],
    not_object: 7436100,
    unknown: 40415,
};

pub(crate) static PERCENTILE: Named = Named {
    fields: &[("input", 40414), ("p", 40414), ("method", 40414)],
    not_object: 7429703,
    unknown: 40415,
};

fn parse_median(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &MEDIAN, arg)?;
    percentile::check_method(f[1].unwrap_or(Val::NULL))?;
    Ok(Parsed::Call(
        vec![optional(f[0], env)?],
        Prepared::Percentiles(vec![0.5]),
    ))
}

fn parse_percentile(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &PERCENTILE, arg)?;
    let p = percentile::parse_p(f[1].unwrap_or(Val::NULL), env)?;
    percentile::check_method(f[2].unwrap_or(Val::NULL))?;
    Ok(Parsed::Call(
        vec![optional(f[0], env)?],
        Prepared::Percentiles(p),
    ))
}

fn percentiles<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let Prepared::Percentiles(p) = &c.prepared else {
        return Err(errors::Error::internal("percentiles without p").into());
    };
    let v = c.arg(0, ctx)?;
    let mut numbers: Vec<f64> = match v.or_null().as_array() {
        Some(a) => a.values().filter_map(Val::to_f64).collect(),
        None => v.or_null().to_f64().into_iter().collect(),
    };
    ctx.vars.work_sort(numbers.len(), 0, 1)?;
    let result = percentile::compute(&mut numbers, p);
    own(if c.op.name == "$median" {
        percentile::single(&result)
    } else {
        result
    })
}

fn parse_rand(_: &'static Op, arg: Val<'_>, _: &ParseEnv) -> Result<Parsed> {
    match arg.as_doc().or_else(|| arg.as_array()) {
        Some(d) if d.is_empty() => Ok(Parsed::Call(Vec::new(), Prepared::None)),
        Some(_) => bail!(3040501, "$rand does not currently accept arguments"),
        None => bail!(
            10065,
            "invalid parameter: expected an object ($rand), found {}",
            arg.type_name()
        ),
    }
}

fn bson_size<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let v = c.peek(0, ctx)?;
    if v.is_nullish() {
        return Ok(Computed::NULL);
    }
    match v.or_null().as_doc() {
        Some(d) => own(d.len() as i32),
        None => bail!(
            31393,
            "$bsonSize requires a document input, found: {}",
            v.type_name()
        ),
    }
}

fn binary_size<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    if v.is_nullish() {
        return Ok(Computed::NULL);
    }
    let val = v.or_null();
    match (val.tag, val.as_binary()) {
        (tag::STRING, _) => own(val.str_bytes().map_or(0, <[u8]>::len) as i32),
        (_, Some((_, content))) => own(content.len() as i32),
        _ => bail!(
            51276,
            "$binarySize requires a string or BinData argument, found: {}",
            v.type_name()
        ),
    }
}

fn timestamp<'a>(c: &'a Call, ctx: &EvalCtx<'a>, part: fn(u64) -> u64) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    if v.is_nullish() {
        return Ok(Computed::NULL);
    }
    match v.or_null().as_timestamp() {
        Some(t) => own(part(t) as i64),
        None => bail!(
            5687301,
            "{} requires a timestamp argument, found: {}",
            c.op.name,
            v.type_name()
        ),
    }
}

/// Parses a constant expression of a specification.
pub(crate) fn constant_of(v: Val<'_>, env: &ParseEnv) -> Result<Option<Value>> {
    let mut n = operand(v, env)?;
    n.fold(env.constants())?;
    if let Some(c) = n.constant() {
        return Ok(Some(c.to_value()));
    }
    // A `let` variable is constant too, but its value is not known yet: it cannot be used here.
    let (vars, _) = super::Vars::for_constants();
    match n {
        super::Node::Array(_) | super::Node::Call(_) => {
            match n.eval(&EvalCtx::new(Doc::EMPTY, &vars)) {
                Ok(v) => Ok(v.into_value()),
                // Here no operation could end it.
                Err(e) if e.is_suspension() => bail!(
                    ExceededMemoryLimit,
                    "a constant expression of a specification takes too much work"
                ),
                Err(e) => Err(e),
            }
        }
        _ => Ok(None),
    }
}
