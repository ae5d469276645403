//! Extended JSON v2: relaxed for people ([`val_to_string`]), both forms accepted ([`parse`]). Not for hot paths.

use crate::{Decimal128, Doc, DocBuf, ObjectId, Val, Value, Writer, tag};
use serde_json::Value as Json;
use std::fmt::Write;

/// Relaxed Extended JSON of a value on one line.
pub fn val_to_string(v: Val<'_>) -> String {
    let mut s = String::new();
    write_val(v, &mut s, 0);
    s
}

fn quoted(s: &str, out: &mut String) {
    out.push_str(&serde_json::to_string(s).unwrap_or_default());
}

fn write_doc(d: Doc<'_>, out: &mut String, depth: usize) {
    out.push('{');
    for (i, e) in d.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        quoted(e.name, out);
        out.push_str(": ");
        write_val(e.val, out, depth + 1);
    }
    out.push('}');
}

fn write_double(f: f64, out: &mut String) -> std::fmt::Result {
    if f.is_nan() {
        write!(out, "{{\"$numberDouble\": \"NaN\"}}")
    } else if f.is_infinite() {
        write!(
            out,
            "{{\"$numberDouble\": \"{}Infinity\"}}",
            if f < 0.0 { "-" } else { "" }
        )
    } else {
        write!(out, "{f:?}")
    }
}

fn write_code(code: &[u8], scope: Doc<'_>, out: &mut String, depth: usize) {
    out.push_str("{\"$code\": ");
    quoted(&String::from_utf8_lossy(code), out);
    out.push_str(", \"$scope\": ");
    write_doc(scope, out, depth + 1);
    out.push('}');
}

fn write_regex(pattern: &str, options: &str, out: &mut String) -> std::fmt::Result {
    out.push_str("{\"$regularExpression\": {\"pattern\": ");
    quoted(pattern, out);
    write!(out, ", \"options\": \"{options}\"}}}}")
}

fn write_val(v: Val<'_>, out: &mut String, depth: usize) {
    if depth > 2 * crate::MAX_DEPTH {
        out.push_str("null");
        return;
    }
    let text = |s: Option<&[u8]>| String::from_utf8_lossy(s.unwrap_or(&[])).into_owned();
    let _ = match v.tag {
        tag::DOUBLE => write_double(v.as_f64().unwrap_or(0.0), out),
        tag::INT32 => write!(out, "{}", v.as_i32().unwrap_or(0)),
        tag::INT64 => write!(out, "{}", v.as_i64().unwrap_or(0)),
        tag::DECIMAL128 => {
            write!(
                out,
                "{{\"$numberDecimal\": \"{}\"}}",
                v.as_decimal().unwrap_or(Decimal128::NAN)
            )
        }
        tag::STRING => {
            quoted(&text(v.str_bytes()), out);
            Ok(())
        }
        tag::SYMBOL | tag::CODE => {
            out.push_str(if v.tag == tag::CODE {
                "{\"$code\": "
            } else {
                "{\"$symbol\": "
            });
            quoted(&text(v.str_bytes()), out);
            out.push('}');
            Ok(())
        }
        tag::DOCUMENT => {
            write_doc(Doc::new(v.bytes).unwrap_or(Doc::EMPTY), out, depth);
            Ok(())
        }
        tag::ARRAY => {
            out.push('[');
            for (i, x) in Doc::new(v.bytes).unwrap_or(Doc::EMPTY).values().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write_val(x, out, depth + 1);
            }
            out.push(']');
            Ok(())
        }
        tag::BINARY => {
            let (t, b) = v.as_binary().unwrap_or((0, &[]));
            write!(
                out,
                "{{\"$binary\": {{\"base64\": \"{}\", \"subType\": \"{t:02x}\"}}}}",
                base64(b)
            )
        }
        tag::OBJECT_ID => write!(
            out,
            "{{\"$oid\": \"{}\"}}",
            v.as_oid().unwrap_or(ObjectId([0; 12]))
        ),
        tag::BOOL => write!(out, "{}", v.truthy()),
        tag::DATE => write!(
            out,
            "{{\"$date\": {{\"$numberLong\": \"{}\"}}}}",
            v.as_date().unwrap_or(0)
        ),
        tag::TIMESTAMP => {
            let t = v.as_timestamp().unwrap_or(0);
            write!(
                out,
                "{{\"$timestamp\": {{\"t\": {}, \"i\": {}}}}}",
                t >> 32,
                t & 0xFFFF_FFFF
            )
        }
        tag::REGEX => {
            let (pattern, options) = v.as_regex().unwrap_or(("", ""));
            write_regex(pattern, options, out)
        }
        tag::MIN_KEY => write!(out, "{{\"$minKey\": 1}}"),
        tag::MAX_KEY => write!(out, "{{\"$maxKey\": 1}}"),
        tag::UNDEFINED => write!(out, "{{\"$undefined\": true}}"),
        tag::CODE_WITH_SCOPE => {
            let (c, s) = v.as_code_with_scope().unwrap_or((&[], Doc::EMPTY));
            write_code(c, s, out, depth);
            Ok(())
        }
        tag::DB_POINTER => write!(out, "{{\"$dbPointer\": \"\"}}"),
        _ => write!(out, "null"),
    };
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Standard base64 with padding.
pub fn base64(b: &[u8]) -> String {
    let mut s = String::with_capacity(b.len().div_ceil(3) * 4);
    for c in b.chunks(3) {
        let n = u32::from(c[0]) << 16
            | u32::from(*c.get(1).unwrap_or(&0)) << 8
            | u32::from(*c.get(2).unwrap_or(&0));
        for i in 0..4 {
            if i <= c.len() {
                s.push(ALPHABET[(n >> (18 - 6 * i)) as usize & 63] as char);
            } else {
                s.push('=');
            }
        }
    }
    s
}

/// The bytes of standard base64; none when it is not that.
pub fn from_base64(s: &str) -> Option<Vec<u8>> {
    let s = s.trim_end_matches('=').as_bytes();
    let mut out = Vec::with_capacity(s.len() * 3 / 4);
    for c in s.chunks(4) {
        let mut n = 0u32;
        for &b in c {
            n = n << 6 | ALPHABET.iter().position(|&a| a == b)? as u32;
        }
        n <<= 6 * (4 - c.len());
        let bytes = n.to_be_bytes();
        out.extend_from_slice(&bytes[1..c.len().max(1)]);
    }
    Some(out)
}

/// Parses a document in Extended JSON (relaxed or canonical). Whole numbers become int32 when they fit, else int64.
pub fn parse(text: &str) -> Result<DocBuf, String> {
    let j: Json = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let v = to_value(&j).ok_or_else(|| format!("not Extended JSON: {text}"))?;
    let doc = v.as_val().as_doc().ok_or("not a document")?;
    // JSON nests deeper than documents may.
    crate::validate(doc.as_bytes()).map_err(|e| e.to_string())?;
    Ok(doc.to_buf())
}

/// Parses any value in Extended JSON.
pub fn parse_value(text: &str) -> Result<Value, String> {
    let j: Json = serde_json::from_str(text).map_err(|e| e.to_string())?;
    to_value(&j).ok_or_else(|| format!("not Extended JSON: {text}"))
}

/// Converts parsed JSON; `None` when a `$`-wrapper is malformed.
pub fn to_value(j: &Json) -> Option<Value> {
    Some(match j {
        Json::Null => Value::NULL,
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match n.as_i64() {
            Some(i) => i32::try_from(i).map_or_else(|_| Value::from(i), Value::from),
            None => Value::from(n.as_f64()?),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(a) => {
            let mut w = Writer::new_array();
            for x in a {
                w.push(to_value(x)?.as_val());
            }
            w.finish_array()
        }
        Json::Object(o) => {
            if let Some(v) = wrapped(o) {
                return v;
            }
            let mut w = Writer::new();
            for (k, x) in o {
                // A name ends at its first zero byte.
                if k.contains('\0') {
                    return None;
                }
                w.val(k, to_value(x)?.as_val());
            }
            Value::from(w.finish())
        }
    })
}

/// `Some` when the object is a type wrapper (then `Some(None)` if it is malformed).
fn wrapped(o: &serde_json::Map<String, Json>) -> Option<Option<Value>> {
    let (k, x) = o.iter().next()?;
    let text = || x.as_str();
    let v = match k.as_str() {
        "$oid" => text().and_then(ObjectId::parse_hex).map(Value::from),
        "$numberInt" => text().and_then(|s| s.parse::<i32>().ok()).map(Value::from),
        "$numberLong" => text().and_then(|s| s.parse::<i64>().ok()).map(Value::from),
        "$numberDouble" => text()
            .and_then(|s| s.replace("Infinity", "inf").parse::<f64>().ok())
            .map(Value::from),
        "$numberDecimal" => text()
            .and_then(|s| s.parse::<Decimal128>().ok())
            .map(Value::from),
        "$date" => match x {
            Json::Number(n) => n.as_i64().map(Value::date),
            Json::Object(n) => n
                .get("$numberLong")?
                .as_str()
                .and_then(|s| s.parse().ok())
                .map(Value::date),
            _ => text().and_then(parse_iso).map(Value::date),
        },
        "$timestamp" => (|| {
            let (t, i) = (x.get("t")?.as_u64()?, x.get("i")?.as_u64()?);
            Some(Value::timestamp(t << 32 | i & 0xFFFF_FFFF))
        })(),
        "$binary" if x.is_object() => (|| {
            let sub = u8::from_str_radix(x.get("subType")?.as_str()?, 16).ok()?;
            Some(Value::binary(
                sub,
                &from_base64(x.get("base64")?.as_str()?)?,
            ))
        })(),
        "$regularExpression" => (|| {
            let (pattern, options) = (x.get("pattern")?.as_str()?, x.get("options")?.as_str()?);
            let ends_early = pattern.contains('\0') || options.contains('\0');
            (!ends_early).then(|| Value::regex(pattern, options))
        })(),
        "$minKey" => Some(Value::from(Val::MIN_KEY)),
        "$maxKey" => Some(Value::from(Val::MAX_KEY)),
        "$undefined" => Some(Value::from(Val::UNDEFINED)),
        "$symbol" => text().map(Value::symbol),
        "$code" if o.len() == 1 => text().map(Value::code),
        _ => return None,
    };
    Some(v)
}

/// Milliseconds since 1970 as `YYYY-MM-DDTHH:MM:SS[.mmm]Z`; nothing past the year 9999.
pub fn iso_date(millis: i64) -> String {
    let date = bson_codec::DateTime::from_millis(millis);
    date.try_to_rfc3339_string().unwrap_or_default()
}

/// `YYYY-MM-DDTHH:MM:SS[.mmm]Z` to milliseconds since 1970.
fn parse_iso(s: &str) -> Option<i64> {
    bson_codec::DateTime::parse_rfc3339_str(s)
        .ok()
        .map(|d| d.timestamp_millis())
}
