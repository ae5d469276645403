//! `$convert` from and to BinData.

use super::convert::{Target, failure, unsupported};
use super::string::check_length;
use bson::{Val, Value, tag};
use errors::{Result, err};

fn required_format<'t>(v: Val<'_>, to: &Target<'t>) -> Result<&'t str> {
    to.format.ok_or_else(|| {
        err!(
            4341115,
            "Format must be specified when converting from '{}' to '{}'",
            v.type_name(),
            tag::name(to.tag)
        )
        .into()
    })
}

pub(super) fn to_string(v: Val<'_>, to: &Target<'_>) -> Result<String> {
    let (subtype, content) = v.as_binary().unwrap_or((0, &[]));
    let is_uuid = subtype == 4 && content.len() == 16;
    // The old binary subtype repeats its length inside.
    let format = match required_format(v, to)? {
        "auto" if is_uuid => "uuid",
        "auto" => "base64",
        f => f,
    };
    Ok(match format {
        "uuid" if is_uuid => {
            let h = hex(content);
            format!(
                "{}-{}-{}-{}-{}",
                &h[..8],
                &h[8..12],
                &h[12..16],
                &h[16..20],
                &h[20..]
            )
        }
        "uuid" => return Err(failure("Input is not in valid UUID format".into()).into()),
        "hex" => hex(content).to_uppercase(),
        "base64" => bson::json::base64(content),
        "base64url" => bson::json::base64(content)
            .trim_end_matches('=')
            .replace('+', "-")
            .replace('/', "_"),
        _ => match std::str::from_utf8(content) {
            Ok(s) => {
                check_length(s.len())?;
                s.to_string()
            }
            Err(_) => {
                return Err(failure("Failed to convert BinData to UTF-8 string".into()).into());
            }
        },
    })
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

fn from_hex(s: &str) -> Option<Vec<u8>> {
    if !s.len().is_multiple_of(2) || !s.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    (0..s.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&s[i..i + 2], 16).ok())
        .collect()
}

pub(super) fn from_value(v: Val<'_>, to: &Target<'_>) -> Result<Value> {
    let mut content = match v.tag {
        tag::BINARY => {
            let (subtype, _) = v.as_binary().unwrap_or((0, &[]));
            if subtype != to.subtype {
                return Err(failure(
                    "Conversions between different BinData subtypes are not supported".into(),
                )
                .into());
            }
            return Ok(v.to_value());
        }
        tag::STRING => {
            let s = v.as_str().unwrap_or("");
            let format = required_format(v, to)?;
            return string_to_binary(s, format, to.subtype);
        }
        tag::INT32 => v.as_i32().unwrap_or(0).to_le_bytes().to_vec(),
        tag::INT64 => v.as_i64().unwrap_or(0).to_le_bytes().to_vec(),
        tag::DOUBLE => v.as_f64().unwrap_or(0.0).to_le_bytes().to_vec(),
        _ => return Err(unsupported(v, to).into()),
    };
    if to.big_endian {
        content.reverse();
    }
    Ok(Value::binary(to.subtype, &content))
}

fn string_to_binary(s: &str, format: &str, subtype: u8) -> Result<Value> {
    let bad = |what: &str| failure(format!("Input is not a valid {what} string: {s}"));
    let is_uuid = s.len() == 36
        && s.bytes()
            .enumerate()
            .all(|(i, b)| (b == b'-') == matches!(i, 8 | 13 | 18 | 23));
    let format = match format {
        "auto" if subtype == 4 && is_uuid => "uuid",
        "auto" => "base64",
        f => f,
    };
    let content = match format {
        "uuid" => {
            if subtype != 4 || !is_uuid {
                return Err(bad("UUID").into());
            }
            from_hex(&s.replace('-', "")).ok_or_else(|| bad("UUID"))?
        }
        _ if subtype == 4 => {
            return Err(failure(
                "Only the UUID string format is allowed with the UUID subtype".into(),
            )
            .into());
        }
        "hex" => from_hex(s).ok_or_else(|| bad("hexadecimal"))?,
        "base64" => from_base64(s, false).ok_or_else(|| bad("base64"))?,
        "base64url" => from_base64(s, true).ok_or_else(|| bad("base64url"))?,
        _ => s.as_bytes().to_vec(),
    };
    Ok(Value::binary(subtype, &content))
}

fn from_base64(s: &str, url: bool) -> Option<Vec<u8>> {
    let body = s.trim_end_matches('=');
    let padding = s.len() - body.len();
    let padded = (body.len() + padding).is_multiple_of(4) && padding <= 2;
    if body.len() % 4 == 1 || !(padded || url && padding == 0) {
        return None;
    }
    let mut out = Vec::with_capacity(body.len() * 3 / 4);
    for group in body.as_bytes().chunks(4) {
        let mut n = 0u32;
        for &b in group {
            let digit = match b {
                b'A'..=b'Z' => b - b'A',
                b'a'..=b'z' => b - b'a' + 26,
                b'0'..=b'9' => b - b'0' + 52,
                b'+' if !url => 62,
                b'/' if !url => 63,
                b'-' if url => 62,
                b'_' if url => 63,
                _ => return None,
            };
            n = n << 6 | u32::from(digit);
        }
        n <<= 6 * (4 - group.len());
        out.extend_from_slice(&n.to_be_bytes()[1..group.len()]);
    }
    Some(out)
}
