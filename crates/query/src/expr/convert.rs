//! `$convert`, its short forms `$toInt` and so on, `$type`, `$isNumber`.

use super::boolean::boolean;
use super::node::{Call, Computed, EvalCtx, Node, Prepared, own};
use super::parse::{ParseEnv, Parsed, fields, operand, optional};
use super::string::check_length;
use super::table::{Named, Op};
use super::{convert_binary, date_format, date_parse};
use crate::arithmetic::{Number, convert as text};
use crate::filter::TAGS;
use bson::{ObjectId, Val, Value, tag};
use errors::{Code, Result, bail, err};

pub(super) const OPS: &[Op] = &[
    Op::custom(
        "$convert",
        parse_convert,
        &["input", "to", "onError", "onNull", "format", "byteOrder"],
        convert,
    ),
    Op::custom("$toBool", parse_short, &[], |c, x| short(c, x, tag::BOOL)),
    Op::custom("$toDate", parse_short, &[], |c, x| short(c, x, tag::DATE)),
    Op::custom("$toDecimal", parse_short, &[], |c, x| {
        short(c, x, tag::DECIMAL128)
    }),
    Op::custom("$toDouble", parse_short, &[], |c, x| {
        short(c, x, tag::DOUBLE)
    }),
    Op::custom("$toInt", parse_short, &[], |c, x| short(c, x, tag::INT32)),
    Op::custom("$toLong", parse_short, &[], |c, x| short(c, x, tag::INT64)),
    Op::custom("$toObjectId", parse_short, &[], |c, x| {
        short(c, x, tag::OBJECT_ID)
    }),
    Op::custom("$toString", parse_short, &[], |c, x| {
        short(c, x, tag::STRING)
    }),
    Op::custom("$toUUID", parse_short, &[], to_uuid),
    Op::args("$type", 1, 1, |c, x| own(c.peek(0, x)?.type_name())),
    Op::args("$isNumber", 1, 1, |c, x| {
        boolean(c.peek(0, x)?.or_null().is_number())
    }),
];

fn parse_short(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let one = match arg.as_array() {
        Some(a) if a.count() == 1 => a.values().next().unwrap_or(Val::NULL),
        Some(a) => bail!(
            50723,
            "{} requires a single argument, got {}",
            op.name,
            a.count()
        ),
        None => arg,
    };
    Ok(Parsed::Call(vec![operand(one, env)?], Prepared::None))
}

static CONVERT: Named = Named {
    fields: &[
        ("input", 9),
        ("to", 9),
        ("onError", 0),
        ("onNull", 0),
        ("format", 0),
        ("byteOrder", 0),
    ],
    not_object: 9,
    unknown: 9,
};

/// Arguments: those of `CONVERT`, then the subtype of a `to` that is `{type, subtype}` (whether it
/// was is the last one).
fn parse_convert(op: &'static Op, arg: Val<'_>, env: &ParseEnv) -> Result<Parsed> {
    let f = fields(op, &CONVERT, arg)?;
    let (mut to, mut subtype) = (f[1], None);
    if let Some(d) = f[1].and_then(Val::as_doc)
        && !d.first().is_some_and(|e| e.name.starts_with('$'))
    {
        to = None;
        for e in d.iter() {
            match e.name {
                "type" => to = Some(e.val),
                "subtype" => subtype = Some(e.val),
                _ => {}
            }
        }
        if to.is_none() {
            bail!(
                FailedToParse,
                "$convert's 'to' argument must have a 'type' field if it is an object"
            );
        }
    }
    let mut args = vec![optional(f[0], env)?, optional(to, env)?];
    for v in &f[2..] {
        args.push(optional(*v, env)?);
    }
    args.push(optional(subtype, env)?);
    if f[1] != to {
        args.push(Node::Const(Value::from(true)));
    }
    Ok(Parsed::Call(args, Prepared::None))
}

/// Where and how to convert to.
pub(super) struct Target<'t> {
    pub(super) tag: u8,
    pub(super) format: Option<&'t str>,
    pub(super) big_endian: bool,
    pub(super) subtype: u8,
}

impl Target<'_> {
    fn plain(tag: u8) -> Target<'static> {
        Target {
            tag,
            format: None,
            big_endian: false,
            subtype: 0,
        }
    }
}

fn short<'a>(c: &'a Call, ctx: &EvalCtx<'a>, to: u8) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    if v.is_nullish() {
        return Ok(Computed::NULL);
    }
    let target = Target {
        format: Some("auto"),
        ..Target::plain(to)
    };
    own(to_type(v.or_null(), &target)?)
}

fn to_uuid<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    if v.is_nullish() {
        return Ok(Computed::NULL);
    }
    let target = Target {
        format: Some("uuid"),
        subtype: 4,
        ..Target::plain(tag::BINARY)
    };
    own(to_type(v.or_null(), &target)?)
}

fn convert<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let to = c.arg(1, ctx)?;
    let input = c.arg(0, ctx)?;
    let to = if to.is_nullish() {
        None
    } else {
        Some(type_of(to.or_null())?)
    };
    if input.is_nullish() {
        return if c.has(3) {
            c.arg(3, ctx)
        } else {
            Ok(Computed::NULL)
        };
    }
    let Some(to) = to else {
        if c.has(7) {
            bail!(
                FailedToParse,
                "$convert's 'to' argument must have a 'type' that is a string or number"
            );
        }
        return Ok(Computed::NULL);
    };
    let (format, order, subtype) = (c.arg(4, ctx)?, c.arg(5, ctx)?, c.arg(6, ctx)?);
    let target = Target {
        tag: to,
        format: format_of(format.or_null())?,
        big_endian: big_endian(order.or_null())?,
        subtype: if c.has(6) {
            subtype_of(subtype.or_null())?
        } else {
            0
        },
    };
    match to_type(input.or_null(), &target) {
        Err(e) if e.is(Code::ConversionFailure) && c.has(2) => c.arg(2, ctx),
        other => own(other?),
    }
}

/// The type that `to` names; 0 is `missing`.
fn type_of(v: Val<'_>) -> Result<u8> {
    if let Some(s) = v.as_str() {
        if s == "missing" {
            return Ok(0);
        }
        return TAGS
            .into_iter()
            .find(|t| tag::name(*t) == s)
            .ok_or_else(|| err!(BadValue, "Unknown type name: {s}").into());
    }
    if !v.is_number() {
        bail!(
            FailedToParse,
            "$convert's 'to' argument must be a string or number, but is {}",
            v.type_name()
        );
    }
    let Some(code) = v.to_i64_exact() else {
        bail!(
            FailedToParse,
            "In $convert, numeric 'to' argument is not an integer"
        );
    };
    match code {
        0 => Ok(0),
        -1 => Ok(tag::MIN_KEY),
        255 => bail!(
            FailedToParse,
            "In $convert, numeric value for 'to' does not correspond to a BSON type: {code}"
        ),
        _ => u8::try_from(code)
            .ok()
            .filter(|t| TAGS.contains(t))
            .ok_or_else(|| {
                err!(
                    FailedToParse,
                    "In $convert, numeric value for 'to' does not correspond to a BSON type: {code}"
                )
                .into()
            }),
    }
}

fn format_of(v: Val<'_>) -> Result<Option<&str>> {
    if v.is_nullish() {
        return Ok(None);
    }
    let Some(s) = v.as_str() else {
        bail!(
            4341114,
            "$convert requires that 'format' be a string, found: {}",
            v.type_name()
        );
    };
    if !["base64", "base64url", "hex", "uuid", "auto", "utf8"].contains(&s) {
        bail!(4341125, "Invalid 'format' argument for $convert: {s}");
    }
    Ok(Some(s))
}

fn big_endian(v: Val<'_>) -> Result<bool> {
    if v.is_nullish() {
        return Ok(false);
    }
    match v.as_str() {
        Some("big") => Ok(true),
        Some("little") => Ok(false),
        Some(s) => bail!(9130002, "Invalid 'byteOrder' argument for $convert: {s}"),
        None => bail!(
            9130001,
            "$convert requires that 'byteOrder' be a string, found: {}",
            v.type_name()
        ),
    }
}

fn subtype_of(v: Val<'_>) -> Result<u8> {
    if !v.is_number() {
        bail!(
            4341108,
            "In $convert, 'subtype' must be a number, found: {}",
            v.type_name()
        );
    }
    let Some(i) = v.to_i64_exact() else {
        bail!(
            4341106,
            "In $convert, 'subtype' must be an integer, found: {v}"
        );
    };
    match u8::try_from(i) {
        Ok(s) if s <= 9 || s >= 128 => Ok(s),
        _ => bail!(4341107, "In $convert, invalid 'subtype': {i}"),
    }
}

pub(super) fn failure(message: String) -> errors::Error {
    errors::Error::new(
        Code::ConversionFailure,
        format!("{message} in $convert with no onError value"),
    )
}

fn with_reason<T>(r: Result<T, text::Reason>, v: Val<'_>) -> Result<T> {
    r.map_err(|why| {
        let message = match v.as_str() {
            Some(s) => {
                format!("Failed to parse number '{s}' in $convert with no onError value: {why}")
            }
            None => format!("{why} in $convert with no onError value: {v}"),
        };
        errors::Error::new(Code::ConversionFailure, message).into()
    })
}

/// The text of a number. MongoDB looks for `0x` at the very start and for nothing else: behind a
/// sign, and with a large `X`, hexadecimal digits are read.
fn decimal_text(v: Val<'_>) -> Result<&str> {
    let s = v.as_str().unwrap_or("");
    if s.starts_with("0x") {
        let message = format!("Illegal hexadecimal input in $convert with no onError value: {s}");
        return Err(errors::Error::new(Code::ConversionFailure, message).into());
    }
    Ok(s)
}

fn to_type(v: Val<'_>, to: &Target<'_>) -> Result<Value> {
    if let Some(s) = v.str_bytes() {
        check_length(s.len())?;
    }
    match to.tag {
        tag::BOOL => Ok(Value::from(v.truthy())),
        tag::INT32 => {
            if v.tag == tag::DATE {
                return Err(unsupported(v, to).into());
            }
            let i = with_reason(text::narrow(integer(v, to)?), v)?;
            Ok(Value::from(i))
        }
        tag::INT64 => Ok(Value::from(integer(v, to)?)),
        tag::DOUBLE => double(v, to).map(Value::from),
        tag::DECIMAL128 => decimal(v, to),
        tag::STRING => string(v, to),
        tag::DATE => date(v, to).map(Value::date),
        tag::OBJECT_ID => object_id(v, to),
        tag::BINARY => convert_binary::from_value(v, to),
        _ => Err(unsupported(v, to).into()),
    }
}

pub(super) fn unsupported(v: Val<'_>, to: &Target<'_>) -> errors::Error {
    failure(format!(
        "Unsupported conversion from {} to {}",
        v.type_name(),
        tag::name(to.tag)
    ))
}

fn integer(v: Val<'_>, to: &Target<'_>) -> Result<i64> {
    match v.tag {
        tag::INT32 | tag::INT64 => Ok(v.to_i64_exact().unwrap_or(0)),
        tag::BOOL => Ok(i64::from(v.truthy())),
        tag::DOUBLE => with_reason(text::f64_to_i64(v.as_f64().unwrap_or(f64::NAN)), v),
        tag::DECIMAL128 => match v.as_decimal() {
            Some(d) => with_reason(text::decimal_to_i64(d), v),
            None => Err(unsupported(v, to).into()),
        },
        tag::DATE => Ok(v.as_date().unwrap_or(0)),
        tag::STRING => with_reason(text::parse_integer(decimal_text(v)?), v),
        tag::BINARY => {
            let bytes = little_endian(v, to);
            let i = match bytes[..] {
                [a] => i64::from(a as i8),
                [a, b] => i64::from(i16::from_le_bytes([a, b])),
                [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
                _ => match <[u8; 8]>::try_from(&bytes[..]) {
                    Ok(b) if to.tag == tag::INT64 => i64::from_le_bytes(b),
                    _ => {
                        return Err(failure(format!(
                            "Failed to convert '{v}' to {} because of invalid length: {}",
                            tag::name(to.tag),
                            bytes.len()
                        ))
                        .into());
                    }
                },
            };
            Ok(i)
        }
        _ => Err(unsupported(v, to).into()),
    }
}

/// A binary's content in little-endian order.
fn little_endian(v: Val<'_>, to: &Target<'_>) -> Vec<u8> {
    let mut b = v.as_binary().map_or(Vec::new(), |(_, c)| c.to_vec());
    if to.big_endian {
        b.reverse();
    }
    b
}

fn double(v: Val<'_>, to: &Target<'_>) -> Result<f64> {
    match v.tag {
        tag::DOUBLE | tag::INT32 | tag::INT64 => Ok(v.to_f64().unwrap_or(0.0)),
        tag::BOOL => Ok(if v.truthy() { 1.0 } else { 0.0 }),
        tag::DATE => Ok(v.as_date().unwrap_or(0) as f64),
        tag::DECIMAL128 => match v.as_decimal() {
            Some(d) => with_reason(text::decimal_to_f64(d), v),
            None => Err(unsupported(v, to).into()),
        },
        tag::STRING => with_reason(text::parse_double(decimal_text(v)?), v),
        tag::BINARY => {
            let bytes = little_endian(v, to);
            if let Ok(b) = <[u8; 4]>::try_from(&bytes[..]) {
                Ok(f64::from(f32::from_le_bytes(b)))
            } else if let Ok(b) = <[u8; 8]>::try_from(&bytes[..]) {
                Ok(f64::from_le_bytes(b))
            } else {
                Err(failure(format!(
                    "Failed to convert '{v}' to double because of invalid length: {}",
                    bytes.len()
                ))
                .into())
            }
        }
        _ => Err(unsupported(v, to).into()),
    }
}

fn decimal(v: Val<'_>, to: &Target<'_>) -> Result<Value> {
    let d = match v.tag {
        tag::BOOL => Number::Int(i32::from(v.truthy())).to_decimal(),
        tag::DATE => Number::Long(v.as_date().unwrap_or(0)).to_decimal(),
        tag::STRING => with_reason(text::parse_decimal(decimal_text(v)?), v)?,
        _ => match Number::of(v) {
            Some(n) => n.to_decimal(),
            None => return Err(unsupported(v, to).into()),
        },
    };
    Ok(Value::from(d))
}

fn string(v: Val<'_>, to: &Target<'_>) -> Result<Value> {
    let s = match v.tag {
        tag::STRING => return Ok(v.to_value()),
        tag::BOOL => v.truthy().to_string(),
        tag::DOUBLE => text::f64_to_string(v.as_f64().unwrap_or(0.0)),
        tag::INT32 | tag::INT64 => v.to_i64_exact().unwrap_or(0).to_string(),
        tag::DECIMAL128 => v.as_decimal().map(|d| d.to_string()).unwrap_or_default(),
        tag::OBJECT_ID => v.as_oid().map(|o| o.to_string()).unwrap_or_default(),
        tag::DATE => date_format::iso(v.as_date().unwrap_or(0))?,
        tag::BINARY => convert_binary::to_string(v, to)?,
        _ => return Err(unsupported(v, to).into()),
    };
    if check_length(s.len()).is_err() {
        return Err(failure("The resulting string is too long".into()).into());
    }
    Ok(Value::from(s))
}

fn date(v: Val<'_>, to: &Target<'_>) -> Result<i64> {
    match v.tag {
        tag::DATE => Ok(v.as_date().unwrap_or(0)),
        tag::INT64 | tag::DOUBLE | tag::DECIMAL128 => integer(v, &Target::plain(tag::INT64)),
        tag::TIMESTAMP => Ok((v.as_timestamp().unwrap_or(0) >> 32) as i64 * 1000),
        tag::OBJECT_ID => Ok(v
            .as_oid()
            .map_or(0, |o| i64::from(o.seconds() as i32) * 1000)),
        tag::STRING => date_parse::free_form(v.as_str().unwrap_or(""), None),
        _ => Err(unsupported(v, to).into()),
    }
}

fn object_id(v: Val<'_>, to: &Target<'_>) -> Result<Value> {
    match v.tag {
        tag::OBJECT_ID => Ok(v.to_value()),
        tag::STRING => {
            let s = v.as_str().unwrap_or("");
            ObjectId::parse_hex(s).map(Value::from).ok_or_else(|| {
                errors::Error::new(
                    Code::ConversionFailure,
                    format!(
                        "Failed to parse objectId '{s}' in $convert with no onError value: Invalid string length for parsing to OID, expected 24 but found {}",
                        s.len()
                    ),
                ).into()
            })
        }
        _ => Err(unsupported(v, to).into()),
    }
}
