//! Operators over positions in strings, counted in bytes or in code points.

use super::array::int32;
use super::node::{Call, Computed, EvalCtx, own};
use super::string::{coerce, string};
use super::table::Op;
use crate::arithmetic::decimal;
use bson::{Val, tag};
use errors::{Result, bail};

pub(super) const OPS: &[Op] = &[
    Op::args("$strLenBytes", 1, 1, |c, x| length(c, x, 34473, str::len)),
    Op::args("$strLenCP", 1, 1, |c, x| {
        length(c, x, 34471, |s| s.chars().count())
    }),
    Op::args("$indexOfBytes", 2, 4, |c, x| index_of(c, x, false)),
    Op::args("$indexOfCP", 2, 4, |c, x| index_of(c, x, true)),
    Op::args("$substr", 3, 3, substr_bytes),
    Op::args("$substrBytes", 3, 3, substr_bytes),
    Op::args("$substrCP", 3, 3, substr_cp),
];

fn length<'a>(
    c: &'a Call,
    ctx: &EvalCtx<'a>,
    code: i32,
    f: fn(&str) -> usize,
) -> Result<Computed<'a>> {
    let v = c.arg(0, ctx)?;
    match v.or_null().as_str() {
        Some(s) => own(f(s) as i32),
        None => Err(errors::Error::coded(
            code,
            format!(
                "{} requires a string argument, found: {}",
                c.op.name,
                v.type_name()
            ),
        )
        .into()),
    }
}

fn index_of<'a>(c: &'a Call, ctx: &EvalCtx<'a>, code_points: bool) -> Result<Computed<'a>> {
    let name = c.op.name;
    let (first_code, second_code) = if code_points {
        (40093, 40094)
    } else {
        (40091, 40092)
    };
    let text = c.arg(0, ctx)?;
    if text.is_nullish() {
        return Ok(Computed::NULL);
    }
    let not_string = |code: i32, which: &str, v: &Computed<'_>| {
        errors::Error::coded(
            code,
            format!(
                "{name} requires a string as the {which} argument, found: {}",
                v.type_name()
            ),
        )
    };
    let Some(s) = text.or_null().as_str() else {
        return Err(not_string(first_code, "first", &text).into());
    };
    let needle = c.arg(1, ctx)?;
    let Some(n) = needle.or_null().as_str() else {
        return Err(not_string(second_code, "second", &needle).into());
    };
    let bound = |i: usize, what: &str| -> Result<usize> {
        let v = c.arg(i, ctx)?;
        let Some(n) = int32(v.or_null()) else {
            bail!(
                40096,
                "{name} requires an integral {what} index, found a value of type: {}, with value: {}",
                v.type_name(),
                v.or_null()
            );
        };
        usize::try_from(n).map_err(|_| {
            errors::err!(
                40097,
                "{name} requires a nonnegative {what} index, found: {n}"
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
    let at = if code_points {
        find_code_points(s, n, start, end)
    } else {
        find_bytes(s.as_bytes(), n.as_bytes(), start, end)
    };
    own(at.and_then(|i| i32::try_from(i).ok()).unwrap_or(-1))
}

fn find_bytes(s: &[u8], needle: &[u8], start: usize, end: usize) -> Option<usize> {
    let end = end.min(s.len());
    if start > end {
        return None;
    }
    memchr::memmem::find(&s[start..end], needle).map(|i| i + start)
}

fn find_code_points(s: &str, needle: &str, start: usize, end: usize) -> Option<usize> {
    let total = s.chars().count();
    let end = end.min(total);
    if total == 0 && needle.is_empty() && start == 0 {
        return Some(0);
    }
    if start >= end {
        return None;
    }
    let offset = |n: usize| s.char_indices().nth(n).map_or(s.len(), |(i, _)| i);
    let (from, to) = (offset(start), offset(end));
    let at = s.get(from..to)?.find(needle)?;
    Some(start + s.get(from..from + at)?.chars().count())
}

fn substr_bytes<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (text, start, len) = (c.arg(0, ctx)?, c.arg(1, ctx)?, c.arg(2, ctx)?);
    let s = coerce(text.or_null())?;
    let number = |v: &Computed<'_>, code: i32, what: &str| -> Result<i64> {
        let v = v.or_null();
        if !v.is_number() {
            return Err(errors::Error::coded(
                code,
                format!(
                    "{}: {what} must be a numeric type (is BSON type {})",
                    c.op.name,
                    v.type_name()
                ),
            )
            .into());
        }
        whole(v)
    };
    let start = number(&start, 16034, "starting index")?;
    let len = number(&len, 16035, "length")?;
    let Ok(start) = usize::try_from(start) else {
        bail!(
            50752,
            "{}: starting index must be non-negative (got: {start})",
            c.op.name
        );
    };
    let bytes = s.as_bytes();
    if start > 0 && start < bytes.len() && !s.is_char_boundary(start) {
        bail!(
            28656,
            "{}: Invalid range, starting index is a UTF-8 continuation byte.",
            c.op.name
        );
    }
    if start >= bytes.len() {
        return own("");
    }
    // A negative length means the rest.
    let end =
        usize::try_from(len).map_or(bytes.len(), |l| start.saturating_add(l).min(bytes.len()));
    match s.get(start..end) {
        Some(part) => string(part),
        None => bail!(
            28657,
            "{}: Invalid range, ending index is in the middle of a UTF-8 character.",
            c.op.name
        ),
    }
}

/// A double's whole part, and a decimal rounded, half to even, as MongoDB has them. A double that an
/// int64 cannot hold is refused; such a decimal becomes the least int64.
fn whole(v: Val<'_>) -> Result<i64> {
    if let (tag::DOUBLE, Some(f)) = (v.tag, v.as_f64())
        && !(-9223372036854775808.0..9223372036854775808.0).contains(&f)
    {
        bail!(31109, "Can't coerce out of range value {v} to long");
    }
    if let Some(d) = v.as_decimal() {
        return Ok(decimal::to_i64(d, decimal::Round::HalfEven).unwrap_or(i64::MIN));
    }
    Ok(v.to_i64_truncated().unwrap_or(0))
}

fn substr_cp<'a>(c: &'a Call, ctx: &EvalCtx<'a>) -> Result<Computed<'a>> {
    let (text, start, len) = (c.arg(0, ctx)?, c.arg(1, ctx)?, c.arg(2, ctx)?);
    let s = coerce(text.or_null())?;
    let number = |v: &Computed<'_>, code: i32, what: &str| -> Result<i32> {
        let v = v.or_null();
        if !v.is_number() {
            return Err(errors::Error::coded(
                code,
                format!(
                    "$substrCP: {what} must be a numeric type (is BSON type {})",
                    v.type_name()
                ),
            )
            .into());
        }
        int32(v).ok_or_else(|| {
            errors::Error::coded(
                code + 1,
                format!("$substrCP: {what} cannot be represented as a 32-bit integral value: {v}"),
            )
            .into()
        })
    };
    let start = number(&start, 34450, "starting index")?;
    let len = number(&len, 34452, "length")?;
    let Ok(len) = usize::try_from(len) else {
        bail!(34454, "$substrCP: length must be a nonnegative integer.");
    };
    let Ok(start) = usize::try_from(start) else {
        bail!(
            34455,
            "$substrCP: the starting index must be nonnegative integer."
        );
    };
    let part: String = s.chars().skip(start).take(len).collect();
    string(&part)
}
