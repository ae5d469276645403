//! Decimal128 arithmetic: a bridge between `bson::Decimal128` and libdecnumber (crate `dec`).
//!
//! Basic operations round once, half to even, to 34 digits, with IEEE 754's ideal exponents. The
//! elementary functions work with 50 digits and round once more at the end, so that results are
//! those of a correctly rounding library.

use bson::Decimal128;
use bson::decimal::{DecimalParts, MAX_COEFFICIENT, MAX_EXPONENT, MIN_EXPONENT};
use dec::{Context, Decimal, Rounding};
use num_bigint::BigUint;

/// 72 digits: room for intermediate results.
pub(crate) type Wide = Decimal<24>;
type Cx = Context<Wide>;

const NEGATIVE: u8 = 0x80;
const INFINITE: u8 = 0x40;
const NAN: u8 = 0x20;

/// The digits that functions compute with before the last rounding.
const WORKING_DIGITS: usize = 56;

fn context(digits: usize, rounding: Rounding) -> Cx {
    let mut c = Cx::default();
    // The arguments are constants in the library's range.
    let _ = c.set_precision(digits);
    c.set_rounding(rounding);
    if digits == 34 {
        let _ = c.set_max_exponent(6144);
        let _ = c.set_min_exponent(-6143);
        c.set_clamp(true);
    } else {
        let _ = c.set_max_exponent(900_000);
        let _ = c.set_min_exponent(-900_000);
    }
    c
}

fn standard() -> Cx {
    context(34, Rounding::HalfEven)
}

pub(crate) fn working() -> Cx {
    context(WORKING_DIGITS, Rounding::HalfEven)
}

pub(crate) fn widen(d: Decimal128) -> Wide {
    let mut lsu = [0u16; 24];
    match d.parts() {
        DecimalParts::NaN => {
            let sign = if d.is_negative() { NEGATIVE } else { 0 };
            Wide::from_raw_parts(1, 0, NAN | sign, lsu)
        }
        DecimalParts::Infinity { negative } => {
            Wide::from_raw_parts(1, 0, INFINITE | if negative { NEGATIVE } else { 0 }, lsu)
        }
        DecimalParts::Finite {
            negative,
            mut coefficient,
            exponent,
        } => {
            let digits = coefficient.checked_ilog10().map_or(1, |n| n + 1);
            let mut i = 0;
            while coefficient > 0 {
                lsu[i] = (coefficient % 1000) as u16;
                coefficient /= 1000;
                i += 1;
            }
            Wide::from_raw_parts(digits, exponent, if negative { NEGATIVE } else { 0 }, lsu)
        }
    }
}

/// Rounds to the 34 digits and exponents of Decimal128.
pub(crate) fn narrow(mut w: Wide) -> Decimal128 {
    standard().plus(&mut w);
    exact(&w)
}

/// A number that already fits.
fn exact(w: &Wide) -> Decimal128 {
    let (digits, exponent, bits, lsu) = w.to_raw_parts();
    let negative = bits & NEGATIVE != 0;
    if bits & NAN != 0 || bits & 0x10 != 0 {
        return if negative {
            neg(Decimal128::NAN)
        } else {
            Decimal128::NAN
        };
    }
    if bits & INFINITE != 0 {
        return if negative {
            Decimal128::NEG_INFINITY
        } else {
            Decimal128::INFINITY
        };
    }
    let units = (digits as usize).div_ceil(3).min(12);
    let coefficient = lsu[..units]
        .iter()
        .rev()
        .fold(0u128, |c, &u| c * 1000 + u128::from(u));
    Decimal128::from_parts(negative, coefficient, exponent).unwrap_or(Decimal128::NAN)
}

/// Reads a number of any length, rounded to 34 digits.
pub fn parse_rounded(s: &str) -> Option<Decimal128> {
    standard().parse(s).ok().map(|w| exact(&w))
}

pub fn add(a: Decimal128, b: Decimal128) -> Decimal128 {
    let mut x = widen(a);
    standard().add(&mut x, &widen(b));
    exact(&x)
}

pub fn sub(a: Decimal128, b: Decimal128) -> Decimal128 {
    let mut x = widen(a);
    standard().sub(&mut x, &widen(b));
    exact(&x)
}

pub fn mul(a: Decimal128, b: Decimal128) -> Decimal128 {
    let mut x = widen(a);
    standard().mul(&mut x, &widen(b));
    exact(&x)
}

pub fn div(a: Decimal128, b: Decimal128) -> Decimal128 {
    let mut x = widen(a);
    standard().div(&mut x, &widen(b));
    exact(&x)
}

/// The remainder with the sign of the dividend, exact whatever the exponents (C's `fmod`).
pub fn rem(a: Decimal128, b: Decimal128) -> Decimal128 {
    let (
        DecimalParts::Finite {
            negative,
            coefficient: ca,
            exponent: ea,
        },
        DecimalParts::Finite {
            coefficient: cb,
            exponent: eb,
            ..
        },
    ) = (a.parts(), b.parts())
    else {
        // x mod infinity is x; all else that is not finite is not a number.
        return if b.is_infinite() && !a.is_infinite() && !a.is_nan() {
            a
        } else {
            Decimal128::NAN
        };
    };
    if cb == 0 {
        return Decimal128::NAN;
    }
    let e = ea.min(eb);
    let modulus = BigUint::from(cb) * BigUint::from(10u8).pow((eb - e) as u32);
    let scale = BigUint::from(10u8).modpow(&BigUint::from((ea - e) as u32), &modulus);
    let r = (BigUint::from(ca) * scale) % &modulus;
    let r = match u128::try_from(&r) {
        Ok(r) if r <= MAX_COEFFICIENT => r,
        // The divisor is far larger than the dividend, which is the remainder then.
        _ => return a,
    };
    Decimal128::from_parts(negative, r, e).unwrap_or(Decimal128::NAN)
}

pub fn neg(a: Decimal128) -> Decimal128 {
    Decimal128::from_bits(a.to_bits() ^ (1 << 127))
}

pub fn abs(a: Decimal128) -> Decimal128 {
    Decimal128::from_bits(a.to_bits() & !(1 << 127))
}

pub fn sqrt(a: Decimal128) -> Decimal128 {
    let mut x = widen(a);
    standard().sqrt(&mut x);
    exact(&x)
}

/// How [`quantize`] and [`round_to_integer`] round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Round {
    HalfEven,
    TowardZero,
    Up,
    Down,
}

impl Round {
    fn mode(self) -> Rounding {
        match self {
            Round::HalfEven => Rounding::HalfEven,
            Round::TowardZero => Rounding::Down,
            Round::Up => Rounding::Ceiling,
            Round::Down => Rounding::Floor,
        }
    }
}

/// The value with exactly that exponent; NaN when it does not fit into 34 digits.
pub fn quantize(a: Decimal128, exponent: i32, round: Round) -> Decimal128 {
    let Some(quantum) = Decimal128::from_parts(false, 1, exponent) else {
        return Decimal128::NAN;
    };
    let mut x = widen(a);
    context(34, round.mode()).quantize(&mut x, &widen(quantum));
    exact(&x)
}

/// A whole number with exponent 0, or the value itself when its exponent is larger.
pub fn round_to_integer(a: Decimal128, round: Round) -> Decimal128 {
    let mut x = widen(a);
    context(34, round.mode()).round(&mut x);
    exact(&x)
}

/// As a 64-bit integer, rounded; `None` when out of range or not a number.
pub fn to_i64(a: Decimal128, round: Round) -> Option<i64> {
    round_to_integer(a, round).to_i64_exact()
}

/// The double with 15 significant digits, always 15: MongoDB's conversion of a double.
pub fn from_f64(f: f64) -> Decimal128 {
    from_f64_digits(f, 14)
}

/// The double with up to 34 digits: exact when they suffice.
pub fn from_f64_precise(f: f64) -> Decimal128 {
    if let Some(d) = Decimal128::from_f64_exact(f) {
        return d.with_exponent(0).unwrap_or(d);
    }
    from_f64_digits(f, 33)
}

fn from_f64_digits(f: f64, fraction_digits: usize) -> Decimal128 {
    if f.is_nan() {
        return Decimal128::NAN;
    }
    if f.is_infinite() {
        return if f > 0.0 {
            Decimal128::INFINITY
        } else {
            Decimal128::NEG_INFINITY
        };
    }
    if f == 0.0 {
        return Decimal128::from_parts(f.is_sign_negative(), 0, 0).unwrap_or(Decimal128::ZERO);
    }
    let text = format!("{:.*e}", fraction_digits, f.abs());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let coefficient = mantissa
        .bytes()
        .filter(u8::is_ascii_digit)
        .fold(0u128, |c, b| c * 10 + u128::from(b - b'0'));
    let exponent = exponent.parse::<i32>().unwrap_or(0) - fraction_digits as i32;
    Decimal128::from_parts(f < 0.0, coefficient, exponent).unwrap_or(Decimal128::NAN)
}

/// Trailing zeros of the coefficient removed towards exponent 0, as results of exact functions
/// print.
fn tidy(w: &mut Wide) {
    if w.is_finite() && !w.is_zero() {
        let mut reduced = *w;
        working().reduce(&mut reduced);
        if reduced.exponent() <= 0 && reduced.digits() <= 34 {
            *w = reduced;
        } else if reduced.digits() as i32 + reduced.exponent() <= 34 && reduced.exponent() > 0 {
            let mut c = context(40, Rounding::HalfEven);
            c.rescale(&mut reduced, &Wide::from(0));
            *w = reduced;
        }
    }
}

fn function(a: Decimal128, f: impl FnOnce(&mut Cx, &mut Wide)) -> Decimal128 {
    let (mut c, mut x) = (working(), widen(a));
    f(&mut c, &mut x);
    tidy(&mut x);
    narrow(x)
}

/// A value too small to hold: zero with the least exponent.
fn underflowed(d: Decimal128) -> Decimal128 {
    if d.is_zero() {
        Decimal128::from_parts(false, 0, MIN_EXPONENT).unwrap_or(d)
    } else {
        d
    }
}

pub fn exp(a: Decimal128) -> Decimal128 {
    if a == Decimal128::NEG_INFINITY {
        return Decimal128::ZERO;
    }
    underflowed(function(a, |c, x| c.exp(x)))
}

pub fn ln(a: Decimal128) -> Decimal128 {
    function(a, |c, x| c.ln(x))
}

pub fn log10(a: Decimal128) -> Decimal128 {
    let d = function(a, |c, x| c.log10(x));
    // A whole number is printed as one.
    d.to_i64_exact().map_or(d, Decimal128::from_i64)
}

/// Logarithm of `a` to the base `b`: the quotient of the rounded natural logarithms, as MongoDB
/// computes it.
pub fn log(a: Decimal128, b: Decimal128) -> Decimal128 {
    div(ln(a), ln(b))
}

/// A power, printed with all 34 digits as MongoDB's library gives it.
pub fn pow(a: Decimal128, b: Decimal128) -> Decimal128 {
    let (mut c, mut x) = (working(), widen(a));
    if b.is_zero() && !a.is_nan() {
        return Decimal128::from_i64(1);
    }
    c.pow(&mut x, &widen(b));
    let d = underflowed(narrow(x));
    let DecimalParts::Finite {
        negative,
        mut coefficient,
        mut exponent,
    } = d.parts()
    else {
        return d;
    };
    if coefficient == 0 || a.to_i64_exact() == Some(1) {
        return d;
    }
    while coefficient <= MAX_COEFFICIENT / 10 && exponent > MIN_EXPONENT {
        coefficient *= 10;
        exponent -= 1;
    }
    // That library goes through logarithms, which overflow a little early.
    if exponent == MAX_EXPONENT && coefficient > MAX_COEFFICIENT - 9 {
        return if negative {
            Decimal128::NEG_INFINITY
        } else {
            Decimal128::INFINITY
        };
    }
    Decimal128::from_parts(negative, coefficient, exponent).unwrap_or(d)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn d(s: &str) -> Decimal128 {
        s.parse().unwrap()
    }

    type Binary = fn(Decimal128, Decimal128) -> Decimal128;

    #[test]
    fn binary_operations() {
        let cases: &[(Binary, &str, &str, &str)] = &[
            (add, "1.5", "2.5", "4.0"),
            (
                add,
                "9.999999999999999999999999999999999E+6144",
                "9.999999999999999999999999999999999E+6144",
                "Infinity",
            ),
            (
                sub,
                "9.999999999999999999999999999999999E+6144",
                "9.999999999999999999999999999999999E+6144",
                "0E+6111",
            ),
            (mul, "2.0", "3", "6.0"),
            (div, "1", "3", "0.3333333333333333333333333333333333"),
            (div, "10", "2", "5"),
            (rem, "10", "3", "1"),
            (rem, "-10.5", "3", "-1.5"),
            (rem, "1E+6000", "7", "1"),
            (rem, "5", "Infinity", "5"),
            (pow, "2", "10", "1024.000000000000000000000000000000"),
            (pow, "2", "0.5", "1.414213562373095048801688724209698"),
            (log, "100", "10", "2"),
        ];
        for (f, a, b, want) in cases {
            assert_eq!(f(d(a), d(b)).to_string(), *want, "{a} {b}");
        }
    }

    #[test]
    fn doubles() {
        assert_eq!(from_f64(0.1).to_string(), "0.100000000000000");
        assert_eq!(from_f64(1.0).to_string(), "1.00000000000000");
        assert_eq!(from_f64(-0.0).to_string(), "-0");
        assert_eq!(from_f64_precise(100.0).to_string(), "100");
        assert_eq!(from_f64_precise(1.5).to_string(), "1.5");
        assert_eq!(
            from_f64_precise(0.1).to_string(),
            "0.1000000000000000055511151231257827"
        );
    }

    #[test]
    fn functions() {
        assert_eq!(
            exp(d("1")).to_string(),
            "2.718281828459045235360287471352662"
        );
        assert_eq!(exp(d("0")).to_string(), "1");
        assert_eq!(
            ln(d("10")).to_string(),
            "2.302585092994045684017991454684364"
        );
        assert_eq!(log10(d("1000")).to_string(), "3");
        assert_eq!(
            sqrt(d("2")).to_string(),
            "1.414213562373095048801688724209698"
        );
        assert_eq!(
            quantize(d("2.345"), -2, Round::HalfEven).to_string(),
            "2.34"
        );
    }
}
