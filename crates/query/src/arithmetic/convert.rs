//! Conversions between numbers and text, as `$convert` and its kin do them. Errors are the sentence
//! without its context.

use super::decimal;
use bson::{Decimal128, Val};

/// A double as MongoDB prints it: the shortest digits that give it back, `%g` style.
pub fn f64_to_string(f: f64) -> String {
    if f.is_nan() {
        return "NaN".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    if f == 0.0 {
        return if f.is_sign_negative() { "-0" } else { "0" }.into();
    }
    let scientific = format!("{f:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        format!("{f}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    }
}

/// A double as C++ streams print it: at most six significant digits. What `$toLower` and `$substr`
/// make of a double.
pub fn f64_to_short_string(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.into();
    }
    if f == 0.0 {
        return if f.is_sign_negative() { "-0" } else { "0" }.into();
    }
    let scientific = format!("{f:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |s: &str| {
        if s.contains('.') {
            s.trim_end_matches('0').trim_end_matches('.').to_string()
        } else {
            s.to_string()
        }
    };
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).unwrap_or(0);
        trimmed(&format!("{f:.decimals$}"))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
    }
}

/// A number in an error message: one without a value is printed there as C++ does.
pub fn in_message(v: Val<'_>) -> String {
    match v.to_f64() {
        Some(f) if !f.is_finite() => f64_to_short_string(f),
        _ => v.to_string(),
    }
}

/// Why a number could not be read or converted.
pub type Reason = &'static str;

/// A whole number in base 10 with an optional sign and nothing around it.
pub fn parse_integer(s: &str) -> Result<i64, Reason> {
    let (negative, digits) = match s.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() {
        return Err("No digits");
    }
    let mut n: i64 = 0;
    for &d in digits {
        if !d.is_ascii_digit() {
            return Err("Did not consume whole string.");
        }
        let d = i64::from(d - b'0');
        n = n
            .checked_mul(10)
            .and_then(|n| {
                if negative {
                    n.checked_sub(d)
                } else {
                    n.checked_add(d)
                }
            })
            .ok_or("Overflow")?;
    }
    Ok(n)
}

/// A floating-point number in decimal or hexadecimal notation, an infinity or NaN.
pub fn parse_double(s: &str) -> Result<f64, Reason> {
    if s.is_empty() {
        return Err("Empty string");
    }
    let unsigned = s.trim_start_matches(['+', '-']);
    if s.len() - unsigned.len() > 1 {
        return Err("Did not consume any digits");
    }
    let negative = s.starts_with('-');
    let sign = |f: f64| if negative { -f } else { f };
    let lower = unsigned.get(..8).unwrap_or(unsigned).to_ascii_lowercase();
    match lower.as_str() {
        "inf" | "infinity" if unsigned.len() <= 8 => return Ok(sign(f64::INFINITY)),
        "nan" if unsigned.len() == 3 => return Ok(f64::NAN),
        _ => {}
    }
    if lower.starts_with("0x") {
        return parse_hexadecimal(&unsigned[2..]).map(sign);
    }
    if !unsigned
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'))
    {
        return Err("Did not consume whole string.");
    }
    let f: f64 = unsigned
        .parse()
        .map_err(|_| "Did not consume whole string.")?;
    let mantissa = unsigned.split(['e', 'E']).next().unwrap_or("");
    if f.is_infinite() || f == 0.0 && mantissa.bytes().any(|b| (b'1'..=b'9').contains(&b)) {
        return Err("Out of range");
    }
    Ok(sign(f))
}

/// What follows `0x`: hexadecimal digits with a point, and a binary exponent after `p`.
fn parse_hexadecimal(s: &str) -> Result<f64, Reason> {
    const BAD: Reason = "Did not consume whole string.";
    let (mantissa, exponent) = match s.split_once(['p', 'P']) {
        Some((m, e)) => (m, e.parse::<i32>().map_err(|_| BAD)?),
        None => (s, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(BAD);
    }
    let mut value = 0.0f64;
    for c in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(c.to_digit(16).ok_or(BAD)?);
    }
    let scale = exponent.saturating_sub(4 * i32::try_from(fraction.len()).unwrap_or(i32::MAX));
    let f = value * 2f64.powi(scale);
    if f.is_infinite() {
        Err("Out of range")
    } else {
        Ok(f)
    }
}

/// A decimal in any notation `Decimal128` prints.
pub fn parse_decimal(s: &str) -> Result<Decimal128, Reason> {
    if s.is_empty() {
        return Err("Empty string");
    }
    if s.bytes().any(|b| b.is_ascii_whitespace() || b == b'_') {
        return Err("Failed to parse string to decimal");
    }
    let digits = s.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 && s.bytes().all(|b| matches!(b, b'+' | b'-' | b'.')) {
        return Err("Failed to parse string to decimal");
    }
    if let Ok(d) = s.parse() {
        return Ok(d);
    }
    // More digits than a decimal holds are rounded.
    decimal::parse_rounded(s)
        .filter(|d| digits > 34 && !d.is_infinite() && !d.is_nan())
        .ok_or("Failed to parse string to decimal")
}

const NAN: Reason = "Attempt to convert NaN value to integer type";
const INFINITE: Reason = "Attempt to convert infinity value to integer type";
const OVERFLOW: Reason = "Conversion would overflow target type";

/// A double's whole part.
pub fn f64_to_i64(f: f64) -> Result<i64, Reason> {
    if f.is_nan() {
        return Err(NAN);
    }
    if f.is_infinite() {
        return Err(INFINITE);
    }
    let t = f.trunc();
    if (-9223372036854775808.0..9223372036854775808.0).contains(&t) {
        Ok(t as i64)
    } else {
        Err(OVERFLOW)
    }
}

/// A decimal's whole part.
pub fn decimal_to_i64(d: Decimal128) -> Result<i64, Reason> {
    if d.is_nan() {
        return Err(NAN);
    }
    if d.is_infinite() {
        return Err(INFINITE);
    }
    decimal::to_i64(d, decimal::Round::TowardZero).ok_or(OVERFLOW)
}

/// Refuses what an int32 cannot hold.
pub fn narrow(i: i64) -> Result<i32, Reason> {
    i32::try_from(i).map_err(|_| OVERFLOW)
}

/// The nearest double of a decimal; refuses a decimal out of a double's range.
pub fn decimal_to_f64(d: Decimal128) -> Result<f64, Reason> {
    let f = d.to_f64();
    let lost = f.is_infinite() && !d.is_infinite() || f == 0.0 && !d.is_zero();
    if lost { Err(OVERFLOW) } else { Ok(f) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing() {
        let cases = [
            (0.1, "0.1"),
            (1.0, "1"),
            (1e20, "1e+20"),
            (1.5e-7, "1.5e-07"),
            (-2.5, "-2.5"),
        ];
        for (f, want) in cases {
            assert_eq!(f64_to_string(f), want);
        }
    }

    #[test]
    fn reading() {
        assert_eq!(parse_integer("-0042"), Ok(-42));
        assert!(parse_integer("1.0").is_err());
        assert!(parse_integer("").is_err());
        assert_eq!(parse_integer("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(parse_double("1.5e-3"), Ok(1.5e-3));
        assert_eq!(parse_double("-Infinity"), Ok(f64::NEG_INFINITY));
        assert_eq!(parse_double("+0x1.8p1"), Ok(3.0));
        assert!(parse_double(" 1").is_err());
        assert!(parse_double("1e309").is_err());
        assert!(parse_double("0x1p").is_err());
    }
}
