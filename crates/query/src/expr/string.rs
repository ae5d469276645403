//! Operators that build or transform strings.

use super::node::{Call, Computed, EvalCtx, own};
use super::table::{Named, Op};
use crate::arithmetic::convert::f64_to_short_string;
use bson::{MAX_DOC_BYTES, Val, Value, Writer, tag};
use errors::operation::step;
use errors::{Result, bail};
use std::borrow::Cow;

pub(super) const OPS: &[Op] = &[
    Op::variadic("$concat", concat),
    Op::args("$toLower", 1, 1, |c, x| {
        case(c, x, |s| s.to_ascii_lowercase())
    }),
    Op::args("$toUpper", 1, 1, |c, x| {
        case(c, x, |s| s.to_ascii_uppercase())
    }),
    Op::args("$strcasecmp", 2, 2, strcasecmp),
    Op::args("$split", 2, 2, split),
    Op::named("$trim", &TRIM, |c, x| trim(c, x, true, true)),
    Op::named("$ltrim", &TRIM, |c, x| trim(c, x, true, false)),
    Op::named("$rtrim", &TRIM, |c, x| trim(c, x, false, true)),
    Op::named("$replaceOne", &REPLACE, |c, x| replace(c, x, false)),
    Op::named("$replaceAll", &REPLACE, |c, x| replace(c, x, true)),
];

/// A new string; MongoDB makes none of 16 MB or more.
pub(super) fn string<'a>(s: &str) -> Result<Computed<'a>> {
    check_length(s.len())?;
    own(s)
}

pub(super) fn check_length(bytes: usize) -> Result<()> {
    if bytes >= MAX_DOC_BYTES {
        bail!(
            16493,
            "Tried to create string longer than {}MB",
            MAX_DOC_BYTES / 1024 / 1024
        );
    }
    Ok(())
}

fn concat<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let mut out: Vec<u8> = Vec::new();
    for v in c.each_arg(ctx) {
        let v = v?;
        if v.is_nullish() {
            return Ok(Computed::NULL);
        }
        let v = v.or_null();
        if v.tag != tag::STRING {
            bail!(
                16702,
                "$concat only supports strings, not {}",
                v.type_name()
            );
        }
        out.extend_from_slice(v.str_bytes().unwrap_or(&[]));
        check_length(out.len())?;
    }
    Ok(Computed::Owned(Value::str_from_bytes(&out)))
}

/// What `$toLower`, `$substr` and `$strcasecmp` make of a value that is no string.
pub(super) fn coerce<'v>(v: Val<'v>) -> Result<Cow<'v, str>> {
    Ok(match v.tag {
        tag::STRING | tag::SYMBOL | tag::CODE => {
            String::from_utf8_lossy(v.str_bytes().unwrap_or(&[]))
        }
        tag::NULL | tag::UNDEFINED => Cow::Borrowed(""),
        tag::DOUBLE => Cow::Owned(f64_to_short_string(v.as_f64().unwrap_or(0.0))),
        tag::INT32 | tag::INT64 => Cow::Owned(v.to_i64_exact().unwrap_or(0).to_string()),
        tag::DECIMAL128 => Cow::Owned(v.as_decimal().map(|d| d.to_string()).unwrap_or_default()),
        tag::DATE => Cow::Owned(super::date_format::iso(v.as_date().unwrap_or(0))?),
        tag::TIMESTAMP => {
            let t = v.as_timestamp().unwrap_or(0);
            Cow::Owned(super::date_format::timestamp(t))
        }
        _ => bail!(
            16007,
            "can't convert from BSON type {} to String",
            v.type_name()
        ),
    })
}

fn case<'a>(c: &'a Call, ctx: &EvalCtx<'a>, f: fn(&str) -> String) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    string(&f(&coerce(v.or_null())?))
}

fn strcasecmp<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (a, b) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    let (a, b) = (coerce(a.or_null())?, coerce(b.or_null())?);
    let order = a.to_ascii_uppercase().cmp(&b.to_ascii_uppercase());
    own(order as i32)
}

fn split<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (text, separator) = (c.arg(0, ctx)?, c.arg(1, ctx)?);
    if text.is_nullish() || separator.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(s) = text.or_null().as_str() else {
        bail!(
            40085,
            "$split requires an expression that evaluates to a string as a first argument, found: {}",
            text.type_name()
        );
    };
    let Some(by) = separator.or_null().as_str() else {
        bail!(
            10503900,
            "$split requires an expression that evaluates to a string as a second argument, found: {}",
            separator.type_name()
        );
    };
    if by.is_empty() {
        bail!(40087, "$split requires a non-empty separator");
    }
    let mut w = Writer::new_array();
    for part in s.split(by) {
        step()?;
        w.str("", part);
    }
    Ok(Computed::Owned(w.finish_array()))
}

static TRIM: Named = Named {
    fields: &[("input", 50695), ("chars", 0)],
    not_object: 50696,
    unknown: 50694,
};

/// The characters that are trimmed by default: NUL and the white space of Unicode.
const WHITE_SPACE: &[char] = &[
    '\0', ' ', '\t', '\n', '\x0B', '\x0C', '\r', '\u{A0}', '\u{1680}', '\u{2000}', '\u{2001}',
    '\u{2002}', '\u{2003}', '\u{2004}', '\u{2005}', '\u{2006}', '\u{2007}', '\u{2008}', '\u{2009}',
    '\u{200A}',
];

fn trim<'a>(c: &'a Call, ctx: &EvalCtx<'a>, left: bool, right: bool) -> Result<Computed<'a>> {
    let input = c.arg(0, ctx)?;
    if input.is_nullish() {
        return Ok(Computed::NULL);
    }
    let Some(s) = input.or_null().as_str() else {
        bail!(
            50699,
            "{} requires its input to be a string, got {} (of type {}) instead.",
            c.op.name,
            input.or_null(),
            input.type_name()
        );
    };
    let chars = c.arg(1, ctx)?;
    let given: Vec<char>;
    let set = if !c.has(1) {
        WHITE_SPACE
    } else if chars.is_nullish() {
        return Ok(Computed::NULL);
    } else if let Some(t) = chars.or_null().as_str() {
        given = {
            let mut all: Vec<char> = t.chars().collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        &given
    } else {
        bail!(
            50700,
            "{} requires 'chars' to be a string, got {} (of type {}) instead.",
            c.op.name,
            chars.or_null(),
            chars.type_name()
        );
    };
    // There may be as many as the text is long.
    let within = |x: char| match set.len() {
        0..=32 => set.contains(&x),
        _ => set.binary_search(&x).is_ok(),
    };
    let mut t = s;
    if left {
        t = trim_start(t, within)?;
    }
    if right {
        t = trim_end(t, within)?;
    }
    own(t)
}

fn trim_start(text: &str, within: impl Fn(char) -> bool) -> Result<&str> {
    for (at, c) in text.char_indices() {
        step()?;
        if !within(c) {
            return Ok(text.get(at..).unwrap_or(""));
        }
    }
    Ok("")
}

fn trim_end(text: &str, within: impl Fn(char) -> bool) -> Result<&str> {
    for (at, c) in text.char_indices().rev() {
        step()?;
        if !within(c) {
            return Ok(text.get(..at + c.len_utf8()).unwrap_or(""));
        }
    }
    Ok("")
}

static REPLACE: Named = Named {
    fields: &[("input", 51749), ("find", 51748), ("replacement", 51747)],
    not_object: 51751,
    unknown: 51750,
};

fn replace<'a>(c: &'a Call, ctx: &EvalCtx<'a>, all: bool) -> Result<Computed<'a>> {
    let values = [c.arg(0, ctx)?, c.arg(1, ctx)?, c.arg(2, ctx)?];
    for (v, code, field) in [
        (&values[0], 10503904, "input"),
        (&values[1], 10503901, "find"),
        (&values[2], 10503902, "replacement"),
    ] {
        if !v.is_nullish() && v.or_null().tag != tag::STRING {
            return Err(errors::Error::coded(
                code,
                format!(
                    "{} requires that '{field}' be a string, found: {}",
                    c.op.name,
                    v.or_null()
                ),
            )
            .into());
        }
    }
    let [Some(input), Some(find), Some(with)] =
        [0, 1, 2].map(|i: usize| values[i].or_null().as_str())
    else {
        return Ok(Computed::NULL);
    };
    if !all {
        return string(&input.replacen(find, with, 1));
    }
    let mut longer = 0;
    if with.len() > find.len() {
        for _ in input.matches(find) {
            step()?;
            longer += with.len() - find.len();
        }
    }
    check_length(input.len() + longer)?;
    ctx.vars.room_for(input.len() + longer)?;
    let (mut out, mut end) = (String::with_capacity(input.len() + longer), 0);
    for (at, part) in input.match_indices(find) {
        step()?;
        out.push_str(input.get(end..at).unwrap_or(""));
        out.push_str(with);
        end = at + part.len();
    }
    out.push_str(input.get(end..).unwrap_or(""));
    string(&out)
}
