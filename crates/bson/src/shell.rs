//! Values as MongoDB prints them in messages and explain output: `{ a: 1, b: "x", c: ObjectId('…') }`.

use crate::{Doc, Val, json, tag};
use std::fmt::Write;

/// A value as error messages print it.
pub fn val(v: Val<'_>) -> String {
    let mut s = String::new();
    write_val(v, &mut s, 0);
    s
}

/// A document as error messages print it.
pub fn doc(d: Doc<'_>) -> String {
    val(d.as_val())
}

fn write_double(f: f64, out: &mut String) -> std::fmt::Result {
    if f.is_nan() {
        write!(out, "nan")
    } else if f.is_infinite() {
        write!(out, "{}inf", if f < 0.0 { "-" } else { "" })
    } else if f.abs() >= 1e16 || (f != 0.0 && f.abs() < 1e-5) {
        write!(out, "{f:e}")
    } else {
        write!(out, "{f:?}")
    }
}

fn write_binary(subtype: u8, bytes: &[u8], out: &mut String) -> std::fmt::Result {
    if subtype == 4 && bytes.len() == 16 {
        let h: String = bytes.iter().map(|x| format!("{x:02x}")).collect();
        write!(
            out,
            "UUID(\"{}-{}-{}-{}-{}\")",
            &h[..8],
            &h[8..12],
            &h[12..16],
            &h[16..20],
            &h[20..]
        )
    } else {
        let h: String = bytes.iter().map(|x| format!("{x:02X}")).collect();
        write!(out, "BinData({subtype}, {h})")
    }
}

fn write_val(v: Val<'_>, out: &mut String, depth: usize) {
    if depth > 2 * crate::MAX_DEPTH {
        out.push_str("...");
        return;
    }
    let _ = match v.tag {
        tag::DOUBLE => write_double(v.as_f64().unwrap_or(0.0), out),
        tag::DECIMAL128 => write!(out, "{}", v.as_decimal().unwrap_or(crate::Decimal128::NAN)),
        tag::STRING => {
            let s = String::from_utf8_lossy(v.str_bytes().unwrap_or(&[])).into_owned();
            write!(out, "\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\""))
        }
        tag::SYMBOL | tag::CODE => write!(
            out,
            "{}",
            String::from_utf8_lossy(v.str_bytes().unwrap_or(&[]))
        ),
        tag::DOCUMENT => {
            let d = Doc::new(v.bytes).unwrap_or(Doc::EMPTY);
            if d.is_empty() {
                out.push_str("{}");
                return;
            }
            out.push_str("{ ");
            for (i, e) in d.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                out.push_str(e.name);
                out.push_str(": ");
                write_val(e.val, out, depth + 1);
            }
            out.push_str(" }");
            Ok(())
        }
        tag::ARRAY => {
            let d = Doc::new(v.bytes).unwrap_or(Doc::EMPTY);
            if d.is_empty() {
                out.push_str("[]");
                return;
            }
            out.push_str("[ ");
            for (i, x) in d.values().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_val(x, out, depth + 1);
            }
            out.push_str(" ]");
            Ok(())
        }
        tag::BINARY => {
            let (subtype, bytes) = v.as_binary().unwrap_or((0, &[]));
            write_binary(subtype, bytes, out)
        }
        tag::UNDEFINED => write!(out, "undefined"),
        tag::OBJECT_ID => write!(
            out,
            "ObjectId('{}')",
            v.as_oid().unwrap_or(crate::ObjectId([0; 12]))
        ),
        tag::DATE => write!(out, "new Date({})", v.as_date().unwrap_or(0)),
        tag::REGEX => {
            let (p, o) = v.as_regex().unwrap_or(("", ""));
            write!(out, "/{p}/{o}")
        }
        tag::TIMESTAMP => {
            let t = v.as_timestamp().unwrap_or(0);
            write!(out, "Timestamp({}, {})", t >> 32, t & 0xFFFF_FFFF)
        }
        tag::MIN_KEY => write!(out, "MinKey"),
        tag::MAX_KEY => write!(out, "MaxKey"),
        _ => write!(out, "{}", json::val_to_string(v)),
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn prints_as_the_shell_does() {
        let d = crate::json::parse(
            r#"{"a": 1, "b": "x\"y", "c": [], "d": {"e": [1.5, null]}, "f": {"$minKey": 1}}"#,
        )
        .unwrap();
        assert_eq!(
            super::doc(d.as_doc()),
            r#"{ a: 1, b: "x\"y", c: [], d: { e: [ 1.5, null ] }, f: MinKey }"#
        );
    }
}
