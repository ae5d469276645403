//! Arithmetic over BSON's four number types with MongoDB's widening rules: int32 overflows into
//! int64, int64 into double (or not at all, for updates), a double meets a decimal as a decimal.

pub mod convert;
pub mod decimal;
mod sum;
pub mod trigonometry;

pub use sum::{DoubleDouble, Sum, Variance};

use bson::{Decimal128, Val, Value, tag};

/// A number out of its BSON bytes.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    Int(i32),
    Long(i64),
    Double(f64),
    Decimal(Decimal128),
}

use Number::{Decimal, Double, Int, Long};

impl Number {
    #[inline]
    pub fn of(v: Val<'_>) -> Option<Number> {
        Some(match v.tag {
            tag::INT32 => Int(v.as_i32()?),
            tag::INT64 => Long(v.as_i64()?),
            tag::DOUBLE => Double(v.as_f64()?),
            tag::DECIMAL128 => Decimal(v.as_decimal()?),
            _ => return None,
        })
    }

    pub fn to_value(self) -> Value {
        match self {
            Int(i) => Value::from(i),
            Long(i) => Value::from(i),
            Double(f) => Value::from(f),
            Decimal(d) => Value::from(d),
        }
    }

    /// An int32 when it fits, else an int64.
    pub fn int_or_long(i: i64) -> Number {
        i32::try_from(i).map_or(Long(i), Int)
    }

    pub fn to_f64(self) -> f64 {
        match self {
            Int(i) => f64::from(i),
            Long(i) => i as f64,
            Double(f) => f,
            Decimal(d) => d.to_f64(),
        }
    }

    /// A double becomes a decimal of 15 digits.
    pub fn to_decimal(self) -> Decimal128 {
        match self {
            Int(i) => Decimal128::from_i64(i64::from(i)),
            Long(i) => Decimal128::from_i64(i),
            Double(f) => decimal::from_f64(f),
            Decimal(d) => d,
        }
    }

    /// The value of an int32 or int64.
    pub fn integer(self) -> Option<i64> {
        match self {
            Int(i) => Some(i64::from(i)),
            Long(i) => Some(i),
            _ => None,
        }
    }

    pub fn is_nan(self) -> bool {
        match self {
            Double(f) => f.is_nan(),
            Decimal(d) => d.is_nan(),
            _ => false,
        }
    }

    pub fn is_zero(self) -> bool {
        match self {
            Int(i) => i == 0,
            Long(i) => i == 0,
            Double(f) => f == 0.0,
            Decimal(d) => d.is_zero(),
        }
    }
}

macro_rules! operation {
    ($name:ident, $checked:ident, $overflowing:ident, $op:tt, $decimal:path, $doc:literal, $doc_checked:literal) => {
        #[doc = $doc]
        pub fn $name(a: Number, b: Number) -> Number {
            $checked(a, b).unwrap_or_else(|| Double(a.to_f64() $op b.to_f64()))
        }

        #[doc = $doc_checked]
        pub fn $checked(a: Number, b: Number) -> Option<Number> {
            Some(match (a, b) {
                (Decimal(_), _) | (_, Decimal(_)) => Decimal($decimal(a.to_decimal(), b.to_decimal())),
                (Double(_), _) | (_, Double(_)) => Double(a.to_f64() $op b.to_f64()),
                (Int(x), Int(y)) => Number::int_or_long(i64::from(x) $op i64::from(y)),
                _ => Long(a.integer()?.$overflowing(b.integer()?)?),
            })
        }
    };
}

operation!(add, add_checked, checked_add, +, decimal::add,
    "Sum; an int64 that overflows becomes a double.",
    "Sum; `None` when an int64 overflows (what `$inc` refuses).");
operation!(subtract, subtract_checked, checked_sub, -, decimal::sub,
    "Difference; an int64 that overflows becomes a double.",
    "Difference; `None` when an int64 overflows.");
operation!(multiply, multiply_checked, checked_mul, *, decimal::mul,
    "Product; an int64 that overflows becomes a double.",
    "Product; `None` when an int64 overflows (what `$mul` refuses).");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening() {
        let v = |n: Number| n.to_value();
        assert_eq!(v(add(Int(i32::MAX), Int(1))), Value::from(2147483648i64));
        assert_eq!(
            v(add(Long(i64::MAX), Int(1))),
            Value::from(9223372036854775808f64)
        );
        assert!(add_checked(Long(i64::MAX), Int(1)).is_none());
        assert_eq!(v(multiply(Int(2), Double(1.5))), Value::from(3.0));
        assert_eq!(v(subtract(Int(1), Long(3))), Value::from(-2i64));
        let half = Decimal("0.5".parse().unwrap());
        assert_eq!(
            v(add(Double(0.1), half)).as_val().to_string(),
            r#"{"$numberDecimal": "0.600000000000000"}"#
        );
    }
}
