//! Decimal128 (IEEE 754-2008, binary integer decimal): taking apart, putting together, exact comparison. Arithmetic lives
//! with the expressions. Text conversion is the `bson` library's.

use num_bigint::BigInt;
use std::cmp::Ordering;

/// The 128 bits as MongoDB stores them. Equality is of bits, not of values: see [`Decimal128::cmp_value`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decimal128(u128);

/// What the bits mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecimalParts {
    /// `(-1)^negative · coefficient · 10^exponent`, coefficient below 10^34, exponent from −6176 to 6111.
    Finite {
        negative: bool,
        coefficient: u128,
        exponent: i32,
    },
    Infinity {
        negative: bool,
    },
    NaN,
}

pub const MAX_COEFFICIENT: u128 = 10u128.pow(34) - 1;
pub const MIN_EXPONENT: i32 = -6176;
pub const MAX_EXPONENT: i32 = 6111;

impl Decimal128 {
    pub const ZERO: Decimal128 = Decimal128((6176u128) << 113);
    pub const NAN: Decimal128 = Decimal128(0x7C00_0000_0000_0000_0000_0000_0000_0000);
    pub const INFINITY: Decimal128 = Decimal128(0x7800_0000_0000_0000_0000_0000_0000_0000);
    pub const NEG_INFINITY: Decimal128 = Decimal128(0xF800_0000_0000_0000_0000_0000_0000_0000);

    pub fn from_le_bytes(b: [u8; 16]) -> Decimal128 {
        Decimal128(u128::from_le_bytes(b))
    }

    pub fn to_le_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    pub fn to_bits(self) -> u128 {
        self.0
    }

    pub fn from_bits(bits: u128) -> Decimal128 {
        Decimal128(bits)
    }

    pub fn parts(self) -> DecimalParts {
        let negative = self.0 >> 127 == 1;
        match (self.0 >> 122) & 0x1F {
            0x1E => return DecimalParts::Infinity { negative },
            0x1F => return DecimalParts::NaN,
            _ => {}
        }
        if (self.0 >> 125) & 3 == 3 {
            // The large-coefficient form holds only values above the maximum: non-canonical, read as zero.
            let exponent = ((self.0 >> 111) & 0x3FFF) as i32 - 6176;
            return DecimalParts::Finite {
                negative,
                coefficient: 0,
                exponent,
            };
        }
        let exponent = ((self.0 >> 113) & 0x3FFF) as i32 - 6176;
        let c = self.0 & ((1u128 << 113) - 1);
        DecimalParts::Finite {
            negative,
            coefficient: if c > MAX_COEFFICIENT { 0 } else { c },
            exponent,
        }
    }

    /// `None` when coefficient or exponent is out of range.
    pub fn from_parts(negative: bool, coefficient: u128, exponent: i32) -> Option<Decimal128> {
        if coefficient > MAX_COEFFICIENT || !(MIN_EXPONENT..=MAX_EXPONENT).contains(&exponent) {
            return None;
        }
        Some(Decimal128(
            u128::from(negative) << 127 | ((exponent + 6176) as u128) << 113 | coefficient,
        ))
    }

    pub fn from_i64(i: i64) -> Decimal128 {
        Decimal128::from_parts(i < 0, u128::from(i.unsigned_abs()), 0).unwrap_or(Decimal128::ZERO)
    }

    pub fn is_nan(self) -> bool {
        self.parts() == DecimalParts::NaN
    }

    pub fn is_infinite(self) -> bool {
        matches!(self.parts(), DecimalParts::Infinity { .. })
    }

    pub fn is_zero(self) -> bool {
        matches!(self.parts(), DecimalParts::Finite { coefficient: 0, .. })
    }

    pub fn is_negative(self) -> bool {
        self.0 >> 127 == 1
    }

    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        match self.parts() {
            DecimalParts::NaN => f64::NAN,
            DecimalParts::Infinity { negative } => {
                if negative {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                }
            }
            DecimalParts::Finite {
                negative,
                coefficient,
                exponent,
            } => {
                let f: f64 = format!("{coefficient}e{exponent}").parse().unwrap_or(0.0);
                if negative { -f } else { f }
            }
        }
    }

    pub fn to_i64_exact(self) -> Option<i64> {
        let DecimalParts::Finite {
            negative,
            mut coefficient,
            mut exponent,
        } = self.parts()
        else {
            return None;
        };
        if coefficient == 0 {
            return Some(0);
        }
        while exponent < 0 {
            if !coefficient.is_multiple_of(10) {
                return None;
            }
            coefficient /= 10;
            exponent += 1;
        }
        while exponent > 0 {
            coefficient = coefficient.checked_mul(10).filter(|c| *c < 1 << 64)?;
            exponent -= 1;
        }
        let i = i128::try_from(coefficient).ok()?;
        i64::try_from(if negative { -i } else { i }).ok()
    }

    /// Fraction cut off, clamped; NaN is 0.
    pub fn to_i64_truncated(self) -> i64 {
        let (negative, mut coefficient, mut exponent) = match self.parts() {
            DecimalParts::NaN => return 0,
            DecimalParts::Infinity { negative } => {
                return if negative { i64::MIN } else { i64::MAX };
            }
            DecimalParts::Finite {
                negative,
                coefficient,
                exponent,
            } => (negative, coefficient, exponent),
        };
        while exponent < 0 && coefficient > 0 {
            coefficient /= 10;
            exponent += 1;
        }
        while exponent > 0 && coefficient > 0 {
            coefficient = coefficient.saturating_mul(10);
            if coefficient > 1 << 65 {
                break;
            }
            exponent -= 1;
        }
        if negative {
            i64::try_from(-(coefficient.min(1 << 66) as i128)).unwrap_or(i64::MIN)
        } else {
            i64::try_from(coefficient).unwrap_or(i64::MAX)
        }
    }

    /// Order by value; NaN is below everything and equal to itself; zeros are equal.
    pub fn cmp_value(self, other: Decimal128) -> Ordering {
        match (self.parts(), other.parts()) {
            (DecimalParts::NaN, DecimalParts::NaN) => Ordering::Equal,
            (DecimalParts::NaN, _) => Ordering::Less,
            (_, DecimalParts::NaN) => Ordering::Greater,
            (DecimalParts::Infinity { negative: a }, DecimalParts::Infinity { negative: b }) => {
                b.cmp(&a)
            }
            (DecimalParts::Infinity { negative }, _) => {
                if negative {
                    Ordering::Less
                } else {
                    Ordering::Greater
                }
            }
            (_, DecimalParts::Infinity { negative }) => {
                if negative {
                    Ordering::Greater
                } else {
                    Ordering::Less
                }
            }
            (
                DecimalParts::Finite {
                    negative: na,
                    coefficient: ca,
                    exponent: ea,
                },
                DecimalParts::Finite {
                    negative: nb,
                    coefficient: cb,
                    exponent: eb,
                },
            ) => {
                let sign = |n: bool, c: u128| {
                    if c == 0 {
                        0
                    } else if n {
                        -1
                    } else {
                        1
                    }
                };
                let (sa, sb) = (sign(na, ca), sign(nb, cb));
                if sa != sb || sa == 0 {
                    return sa.cmp(&sb);
                }
                let magnitude = normalized(ca, ea).cmp(&normalized(cb, eb));
                if na { magnitude.reverse() } else { magnitude }
            }
        }
    }

    /// Order against a finite or infinite double by exact value; NaN is below everything.
    pub fn cmp_f64(self, f: f64) -> Ordering {
        if f.is_nan() || self.is_nan() {
            return (!self.is_nan()).cmp(&!f.is_nan());
        }
        let near = self.to_f64();
        // The nearest double decides unless it is the very one we compare with.
        if near != f || f.is_infinite() && self.is_infinite() {
            return near.partial_cmp(&f).unwrap_or(Ordering::Equal);
        }
        let DecimalParts::Finite {
            negative,
            coefficient,
            exponent,
        } = self.parts()
        else {
            return Ordering::Equal;
        };
        if f.is_infinite() {
            return if f > 0.0 {
                Ordering::Less
            } else {
                Ordering::Greater
            };
        }
        let (mantissa, exp2) = decode_f64(f);
        let (mut a, mut b) = (BigInt::from(coefficient), BigInt::from(mantissa));
        if negative {
            a = -a;
        }
        if exponent >= 0 {
            a *= BigInt::from(10).pow(exponent as u32);
        } else {
            b *= BigInt::from(10).pow(exponent.unsigned_abs());
        }
        if exp2 >= 0 {
            b <<= exp2 as usize;
        } else {
            a <<= exp2.unsigned_abs() as usize;
        }
        a.cmp(&b)
    }

    /// Coefficient scaled to 34 digits and the matching exponent: equal for values of one cohort. Zero gives (i32::MIN, 0).
    pub fn normalized(self) -> Option<(bool, i32, u128)> {
        match self.parts() {
            DecimalParts::Finite {
                negative,
                coefficient,
                exponent,
            } => {
                let (e, c) = normalized(coefficient, exponent);
                Some((negative, e, c))
            }
            _ => None,
        }
    }

    /// The cohort member with that exponent, if the value has one.
    pub fn with_exponent(self, want: i32) -> Option<Decimal128> {
        let DecimalParts::Finite {
            negative,
            mut coefficient,
            mut exponent,
        } = self.parts()
        else {
            return None;
        };
        if coefficient == 0 {
            return Decimal128::from_parts(negative, 0, want);
        }
        while exponent < want && coefficient.is_multiple_of(10) {
            coefficient /= 10;
            exponent += 1;
        }
        while exponent > want && coefficient <= MAX_COEFFICIENT / 10 {
            coefficient *= 10;
            exponent -= 1;
        }
        (exponent == want)
            .then(|| Decimal128::from_parts(negative, coefficient, exponent))
            .flatten()
    }

    /// The decimal that is exactly this double, if 34 digits hold it.
    pub fn from_f64_exact(f: f64) -> Option<Decimal128> {
        if f.is_nan() {
            return Some(Decimal128::NAN);
        }
        if f.is_infinite() {
            return Some(if f > 0.0 {
                Decimal128::INFINITY
            } else {
                Decimal128::NEG_INFINITY
            });
        }
        let (m, e2) = decode_f64(f);
        let (mut big, mut exponent) = (BigInt::from(m.unsigned_abs()), 0);
        if e2 >= 0 {
            big <<= e2 as usize;
        } else {
            // m / 2^k = m · 5^k / 10^k
            let k = e2.unsigned_abs();
            big *= BigInt::from(5).pow(k);
            exponent = e2;
        }
        let ten = BigInt::from(10);
        while big != BigInt::ZERO && &big % &ten == BigInt::ZERO {
            big /= &ten;
            exponent += 1;
        }
        Decimal128::from_parts(f.is_sign_negative(), u128::try_from(big).ok()?, exponent)
    }
}

fn normalized(mut c: u128, mut e: i32) -> (i32, u128) {
    if c == 0 {
        return (i32::MIN, 0);
    }
    while c <= MAX_COEFFICIENT / 10 {
        c *= 10;
        e -= 1;
    }
    (e, c)
}

/// Mantissa (signed) and power of two of a finite double, with trailing zero bits of the mantissa removed.
fn decode_f64(f: f64) -> (i64, i32) {
    let bits = f.to_bits();
    let exp = ((bits >> 52) & 0x7FF) as i32;
    let frac = (bits & ((1 << 52) - 1)) as i64;
    let (mut m, mut e) = if exp == 0 {
        (frac, -1074)
    } else {
        (frac | 1 << 52, exp - 1075)
    };
    while m != 0 && m % 2 == 0 {
        m /= 2;
        e += 1;
    }
    (
        if f.is_sign_negative() { -m } else { m },
        if m == 0 { 0 } else { e },
    )
}

impl std::str::FromStr for Decimal128 {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let d: bson_codec::Decimal128 = s.parse().map_err(|e| format!("{e}"))?;
        Ok(Decimal128::from_le_bytes(d.bytes()))
    }
}

impl std::fmt::Display for Decimal128 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        bson_codec::Decimal128::from_bytes(self.to_le_bytes()).fmt(f)
    }
}

impl std::fmt::Debug for Decimal128 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Decimal128({self})")
    }
}
