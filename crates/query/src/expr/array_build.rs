//! Operators that build arrays, and those between arrays and documents.

use super::array::int32;
use super::node::{Call, Computed, EvalCtx, Node, Prepared, own};
use super::parse::{ParseEnv, Parsed, fields, operand};
use super::table::{Named, Op};
use super::values::check_size;
use bson::{Doc, Val, Value, Writer, tag};
use errors::{Result, bail};

pub(super) const OPS: &[Op] = &[
    Op::variadic("$concatArrays", concat_arrays),
    Op::args("$range", 2, 3, range),
    Op::custom("$zip", parse_zip, &[], zip),
    Op::args("$arrayToObject", 1, 1, array_to_object),
    Op::args("$objectToArray", 1, 1, object_to_array),
];

fn concat_arrays<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let mut w = Writer::new_array();
    for v in c.each_arg(ctx) {
        let v = v?;
        if v.is_nullish() {
            return Ok(Computed::NULL);
        }
        let Some(a) = v.or_null().as_array() else {
            bail!(
                28664,
                "$concatArrays only supports arrays, not {}",
                v.type_name()
            );
        };
        for x in a.values() {
            w.push(x);
        }
        check_size(w.len())?;
    }
    Ok(Computed::Owned(w.finish_array()))
}

/// What MongoDB lets `$range` use, counting 16 bytes a number.
const RANGE_LIMIT_BYTES: i64 = 100 * 1024 * 1024;

fn range<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let bound = |i: usize, what: &str, type_code: i32| -> Result<i64> {
        let v = c.arg(i, ctx)?;
        if !v.or_null().is_number() {
            return Err(errors::Error::coded(
                type_code,
                format!(
                    "$range requires a numeric {what} value, found value of type: {}",
                    v.type_name()
                ),
            )
            .into());
        }
        int32(v.or_null()).map(i64::from).ok_or_else(|| {
            errors::Error::coded(
                type_code + 1,
                format!(
                    "$range requires a {what} value that can be represented as a 32-bit integer, found value: {}",
                    v.or_null()
                ),
            ).into()
        })
    };
    let start = bound(0, "starting", 34443)?;
    let end = bound(1, "ending", 34445)?;
    let step = if c.has(2) {
        bound(2, "step", 34447)?
    } else {
        1
    };
    if step == 0 {
        bail!(34449, "$range requires a non-zero step value");
    }
    let mut w = Writer::new_array();
    if (end - start).signum() == step.signum() {
        let count = (end - start).abs().div_euclid(step.abs()) + 1;
        if count * 16 > RANGE_LIMIT_BYTES {
            bail!(
                ExceededMemoryLimit,
                "$range would use too much memory ({} bytes) and cannot spill to disk. Memory limit: {RANGE_LIMIT_BYTES} bytes",
                count * 16
            );
        }
        ctx.vars.work_bytes(count as usize * 16)?;
        ctx.vars.room_for(count as usize * 16)?;
        let mut i = start;
        while if step > 0 { i < end } else { i > end } {
            w.i32("", i as i32);
            i += step;
        }
    }
    Ok(Computed::Owned(w.finish_array()))
}

static ZIP: Named = Named {
    fields: &[("inputs", 0), ("useLongestLength", 0), ("defaults", 0)],
    not_object: 34460,
    unknown: 34464,
};

/// Arguments: `useLongestLength` as a constant, the number of inputs' nodes, then as many defaults
/// (or none).
fn parse_zip(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &ZIP, arg)?;
    let list = |v: Val<'_>, code: i32, what: &str| -> Result<Vec<Node>> {
        match v.as_array() {
            Some(a) => a.values().map(|x| operand(x, env)).collect(),
            None => Err(errors::Error::coded(
                code,
                format!(
                    "{what} must be an array of expressions, found {}",
                    v.type_name()
                ),
            )
            .into()),
        }
    };
    let inputs = f[0].map_or(Ok(Vec::new()), |v| list(v, 34461, "inputs"))?;
    let defaults = f[2].map_or(Ok(Vec::new()), |v| list(v, 34462, "defaults"))?;
    let longest = match f[1] {
        None => false,
        Some(v) => match v.as_bool() {
            Some(b) => b,
            None => bail!(
                34463,
                "useLongestLength must be a bool, found {}",
                v.type_name()
            ),
        },
    };
    if inputs.is_empty() {
        bail!(34465, "$zip requires at least one input array");
    }
    if !defaults.is_empty() {
        if !longest {
            bail!(
                34466,
                "cannot specify defaults unless useLongestLength is true"
            );
        }
        if defaults.len() != inputs.len() {
            bail!(34467, "defaults and inputs must have the same length");
        }
    }
    let mut args = vec![
        Node::Const(Value::from(longest)),
        Node::Const(Value::from(inputs.len() as i32)),
    ];
    args.extend(inputs);
    args.extend(defaults);
    Ok(Parsed::Call(args, Prepared::None))
}

fn zip<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let longest = c.arg(0, ctx)?.truthy();
    let count = c.arg(1, ctx)?.or_null().to_i64_exact().unwrap_or(0) as usize;
    let (inputs, defaults) = c.args.get(2..).unwrap_or(&[]).split_at(count);
    let input = |i: usize| c.arg(2 + i, ctx);
    let inputs: Vec<Computed<'_>> = (0..inputs.len()).map(input).collect::<Result<_>>()?;
    let (mut iterators, mut lengths) = (Vec::new(), Vec::new());
    for v in &inputs {
        if v.is_nullish() {
            return Ok(Computed::NULL);
        }
        let Some(a) = v.or_null().as_array() else {
            bail!(
                34468,
                "$zip found a non-array expression in input: {}",
                v.or_null()
            );
        };
        lengths.push(a.count());
        iterators.push(a.values());
    }
    let defaults: Vec<Computed<'_>> = defaults
        .iter()
        .map(|n| n.eval(ctx))
        .collect::<Result<_>>()?;
    let rows = if longest {
        lengths.iter().max()
    } else {
        lengths.iter().min()
    };
    let mut w = Writer::new_array();
    for _ in 0..rows.copied().unwrap_or(0) {
        w.open_array("");
        for (i, it) in iterators.iter_mut().enumerate() {
            let fallback = || defaults.get(i).map_or(Val::NULL, Computed::or_null);
            w.push(it.next().unwrap_or_else(fallback));
        }
        w.close();
        check_size(w.len())?;
    }
    Ok(Computed::Owned(w.finish_array()))
}

fn array_to_object<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let input = c.arg(0, ctx)?;
    if input.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(items) = input.or_null().as_array() else {
        bail!(
            40386,
            "$arrayToObject requires an array input, found: {}",
            input.type_name()
        );
    };
    let pairs_are_arrays = match items.values().next() {
        None => return own(bson::DocBuf::new()),
        Some(v) if v.tag == tag::ARRAY => true,
        Some(v) if v.tag == tag::DOCUMENT => false,
        Some(v) => bail!(
            40398,
            "Unrecognised input type format for $arrayToObject: {}",
            v.type_name()
        ),
    };
    let mut fields: Vec<(&str, Val<'_>)> = Vec::new();
    for v in items.values() {
        let (name, value) = if pairs_are_arrays {
            pair_of_array(v)?
        } else {
            pair_of_document(v)?
        };
        fields.push((name, value));
    }
    own(super::object::document_of(fields))
}

fn pair_of_array<'v>(v: Val<'v>) -> Result<(&'v str, Val<'v>)> {
    let Some(a) = v.as_array() else {
        bail!(
            40396,
            "$arrayToObject requires a consistent input format. Elements must all be arrays or all be objects. Array was detected, now found: {}",
            v.type_name()
        );
    };
    let mut it = a.values();
    let (Some(k), Some(x), None) = (it.next(), it.next(), it.next()) else {
        bail!(
            40397,
            "$arrayToObject requires an array of size 2 arrays,found array of size: {}",
            a.count()
        );
    };
    let Some(name) = k.as_str() else {
        bail!(
            40395,
            "$arrayToObject requires an array of key-value pairs, where the key must be of type string. Found key type: {}",
            k.type_name()
        );
    };
    if name.contains('\0') {
        bail!(4940400, "Key field cannot contain an embedded null byte");
    }
    Ok((name, x))
}

fn pair_of_document<'v>(v: Val<'v>) -> Result<(&'v str, Val<'v>)> {
    let Some(d) = v.as_doc() else {
        bail!(
            40391,
            "$arrayToObject requires a consistent input format. Elements must all be arrays or all be objects. Object was detected, now found: {}",
            v.type_name()
        );
    };
    if d.count() != 2 {
        bail!(
            40392,
            "$arrayToObject requires an object keys of 'k' and 'v'. Found incorrect number of keys:{}",
            d.count()
        );
    }
    let (Some(k), Some(x)) = (d.get("k"), d.get("v")) else {
        bail!(
            40393,
            "$arrayToObject requires an object with keys 'k' and 'v'. Missing either or both keys from: {d}"
        );
    };
    let Some(name) = k.as_str() else {
        bail!(
            40394,
            "$arrayToObject requires an object with keys 'k' and 'v', where the value of 'k' must be of type string. Found type: {}",
            k.type_name()
        );
    };
    if name.contains('\0') {
        bail!(4940401, "Key field cannot contain an embedded null byte");
    }
    Ok((name, x))
}

fn object_to_array<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let input = c.arg(0, ctx)?;
    if input.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(d) = input.or_null().as_doc() else {
        bail!(
            40390,
            "$objectToArray requires a document input, found: {}",
            input.type_name()
        );
    };
    own(pairs(d))
}

/// `[{k: name, v: value}, …]`
fn pairs(d: Doc<'_>) -> Value {
    let mut w = Writer::new_array();
    for e in d.iter() {
        w.open_doc("").str("k", e.name).val("v", e.val).close();
    }
    w.finish_array()
}
