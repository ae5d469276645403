//! MongoDB's total order over values of all types: first the rank of the type, then the value within it.
//! Source: manual, "Comparison/Sort Order"; `BSONElement::compareElements` behaviour for documents: rank, then name, then value.

use crate::{Doc, Val, tag};
use std::cmp::Ordering;

/// Order of two values. Equal means equal to queries and unique indexes: 1, 1.0 and NumberDecimal("1.00") are equal.
pub fn compare(a: Val<'_>, b: Val<'_>) -> Ordering {
    compare_by(a, b, &plain)
}

/// As [`compare`], with another order of strings (and symbols), within documents and arrays too.
pub fn compare_by(a: Val<'_>, b: Val<'_>, strings: &impl StringOrder) -> Ordering {
    let (ra, rb) = (tag::rank(a.tag), tag::rank(b.tag));
    if ra != rb {
        ra.cmp(&rb)
    } else {
        compare_same_rank(a, b, strings)
    }
}

/// The order of the bytes of two strings.
pub trait StringOrder: Fn(&[u8], &[u8]) -> Ordering {}

impl<F: Fn(&[u8], &[u8]) -> Ordering> StringOrder for F {}

fn plain(a: &[u8], b: &[u8]) -> Ordering {
    a.cmp(b)
}

pub fn equal(a: Val<'_>, b: Val<'_>) -> bool {
    // Same type and bytes is equality for every type but NaN's many encodings, which compare equal anyway.
    (a.tag == b.tag && a.bytes == b.bytes) || compare(a, b) == Ordering::Equal
}

/// Order of two documents as values.
pub fn compare_docs(a: Doc<'_>, b: Doc<'_>) -> Ordering {
    compare_elements(a, b, true, &plain)
}

fn compare_elements(a: Doc<'_>, b: Doc<'_>, names: bool, strings: &impl StringOrder) -> Ordering {
    let (mut ia, mut ib) = (a.iter(), b.iter());
    loop {
        match (ia.next_raw(), ib.next_raw()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some((na, va)), Some((nb, vb))) => {
                let mut o = tag::rank(va.tag).cmp(&tag::rank(vb.tag));
                if o == Ordering::Equal && names {
                    o = na.cmp(nb);
                }
                if o == Ordering::Equal {
                    o = compare_same_rank(va, vb, strings);
                }
                if o != Ordering::Equal {
                    return o;
                }
            }
        }
    }
}

fn compare_same_rank(a: Val<'_>, b: Val<'_>, strings: &impl StringOrder) -> Ordering {
    match a.tag {
        tag::DOUBLE | tag::INT32 | tag::INT64 | tag::DECIMAL128 => compare_numbers(a, b),
        tag::STRING | tag::SYMBOL => match (a.str_bytes(), b.str_bytes()) {
            (Some(x), Some(y)) => strings(x, y),
            (x, y) => x.cmp(&y),
        },
        tag::CODE => a.str_bytes().cmp(&b.str_bytes()),
        tag::DOCUMENT => match (Doc::new(a.bytes), Doc::new(b.bytes)) {
            (Some(x), Some(y)) => compare_elements(x, y, true, strings),
            _ => a.bytes.cmp(b.bytes),
        },
        tag::ARRAY => match (Doc::new(a.bytes), Doc::new(b.bytes)) {
            (Some(x), Some(y)) => compare_elements(x, y, false, strings),
            _ => a.bytes.cmp(b.bytes),
        },
        tag::BINARY => match (a.as_binary(), b.as_binary()) {
            (Some((sa, ca)), Some((sb, cb))) => ca
                .len()
                .cmp(&cb.len())
                .then(sa.cmp(&sb))
                .then_with(|| ca.cmp(cb)),
            _ => a.bytes.cmp(b.bytes),
        },
        tag::DATE => a.as_date().cmp(&b.as_date()),
        tag::TIMESTAMP => a.as_timestamp().cmp(&b.as_timestamp()),
        tag::DB_POINTER => a
            .bytes
            .len()
            .cmp(&b.bytes.len())
            .then_with(|| a.bytes.cmp(b.bytes)),
        tag::CODE_WITH_SCOPE => match (a.as_code_with_scope(), b.as_code_with_scope()) {
            (Some((ca, sa)), Some((cb, sb))) => ca.cmp(cb).then_with(|| compare_docs(sa, sb)),
            _ => a.bytes.cmp(b.bytes),
        },
        tag::OBJECT_ID | tag::BOOL | tag::REGEX => a.bytes.cmp(b.bytes),
        _ => Ordering::Equal,
    }
}

/// Order of two numbers of any numeric types by exact value; NaN is below everything and equal to itself.
pub fn compare_numbers(a: Val<'_>, b: Val<'_>) -> Ordering {
    match (a.tag, b.tag) {
        (tag::INT32 | tag::INT64, tag::INT32 | tag::INT64) => {
            a.to_i64_exact().cmp(&b.to_i64_exact())
        }
        (tag::DOUBLE, tag::DOUBLE) | (tag::DOUBLE, tag::INT32) | (tag::INT32, tag::DOUBLE) => {
            cmp_f64(a.to_f64().unwrap_or(0.0), b.to_f64().unwrap_or(0.0))
        }
        (tag::INT64, tag::DOUBLE) => {
            cmp_i64_f64(a.as_i64().unwrap_or(0), b.as_f64().unwrap_or(0.0))
        }
        (tag::DOUBLE, tag::INT64) => {
            cmp_i64_f64(b.as_i64().unwrap_or(0), a.as_f64().unwrap_or(0.0)).reverse()
        }
        (tag::DECIMAL128, tag::DECIMAL128) => match (a.as_decimal(), b.as_decimal()) {
            (Some(x), Some(y)) => x.cmp_value(y),
            _ => Ordering::Equal,
        },
        (tag::DECIMAL128, _) => cmp_decimal(a, b),
        (_, tag::DECIMAL128) => cmp_decimal(b, a).reverse(),
        _ => Ordering::Equal,
    }
}

fn cmp_decimal(d: Val<'_>, n: Val<'_>) -> Ordering {
    let Some(d) = d.as_decimal() else {
        return Ordering::Equal;
    };
    match n.tag {
        tag::DOUBLE => d.cmp_f64(n.as_f64().unwrap_or(0.0)),
        _ => d.cmp_value(crate::Decimal128::from_i64(n.to_i64_exact().unwrap_or(0))),
    }
}

fn cmp_f64(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| (!a.is_nan()).cmp(&!b.is_nan()))
}

fn cmp_i64_f64(i: i64, f: f64) -> Ordering {
    if f.is_nan() {
        return Ordering::Greater;
    }
    if f >= 9223372036854775808.0 {
        return Ordering::Less;
    }
    if f < -9223372036854775808.0 {
        return Ordering::Greater;
    }
    let t = f as i64;
    i.cmp(&t).then_with(|| {
        0.0f64
            .partial_cmp(&(f - t as f64))
            .unwrap_or(Ordering::Equal)
    })
}
