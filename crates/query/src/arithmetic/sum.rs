//! Running totals for `$sum`, `$avg` and `$stdDev*`: exact enough that the order of the input does
//! not show.

use super::{Number, decimal};
use bson::{Decimal128, Val, Value, tag};

/// A sum of doubles kept as an unevaluated pair (Knuth's two-sum), 106 bits in all.
#[derive(Clone, Copy, Debug, Default)]
pub struct DoubleDouble {
    sum: f64,
    addend: f64,
    /// The plain sum: what counts once an infinity or NaN came by.
    special: f64,
}

impl DoubleDouble {
    #[inline]
    pub fn add(&mut self, x: f64) {
        self.special += x;
        let s = self.sum + x;
        let b = s - self.sum;
        self.addend += (self.sum - (s - b)) + (x - b);
        self.sum = s;
    }

    #[inline]
    pub fn add_long(&mut self, x: i64) {
        // Two doubles hold 64 bits exactly.
        let high = x / (1 << 32) * (1 << 32);
        self.add((x - high) as f64);
        self.add(high as f64);
    }

    pub fn value(&self) -> f64 {
        let total = self.sum + self.addend;
        if total.is_nan() { self.special } else { total }
    }

    /// The sum as an integer when it is in range.
    pub fn long(&self) -> Option<i64> {
        // Twice the range: sum and addend may each be a little outside of it.
        if !(-2e19..2e19).contains(&self.sum) || !(-2e19..2e19).contains(&self.addend) {
            return None;
        }
        i64::try_from(self.sum as i128 + self.addend as i128).ok()
    }

    pub fn decimal(&self) -> Decimal128 {
        if (self.sum + self.addend).is_finite() {
            decimal::add(
                decimal::from_f64_precise(self.sum),
                decimal::from_f64_precise(self.addend),
            )
        } else {
            decimal::from_f64(self.special)
        }
    }
}

/// The state of `$sum` and `$avg`.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    plain: DoubleDouble,
    decimal: Decimal128,
    /// The widest number type seen: 0 int, 1 long, 2 double, 3 decimal.
    widest: u8,
    count: i64,
}

impl Default for Sum {
    fn default() -> Sum {
        Sum {
            plain: DoubleDouble::default(),
            decimal: Decimal128::ZERO,
            widest: 0,
            count: 0,
        }
    }
}

impl Sum {
    /// Takes in a number; anything else is ignored.
    #[inline]
    pub fn add(&mut self, v: Val<'_>) {
        match Number::of(v) {
            Some(Number::Int(i)) => self.plain.add(f64::from(i)),
            Some(Number::Long(i)) => {
                self.widest = self.widest.max(1);
                self.plain.add_long(i);
            }
            Some(Number::Double(f)) => {
                self.widest = self.widest.max(2);
                self.plain.add(f);
            }
            Some(Number::Decimal(d)) => {
                self.widest = 3;
                self.decimal = decimal::add(self.decimal, d);
            }
            None => return,
        }
        self.count += 1;
    }

    /// Takes in a number for an average, where an int64 counts as the nearest double.
    #[inline]
    pub fn add_for_average(&mut self, v: Val<'_>) {
        match v.as_i64() {
            Some(i) => {
                self.plain.add(i as f64);
                self.count += 1;
            }
            None => self.add(v),
        }
    }

    pub fn sum(&self) -> Value {
        match (self.widest, self.plain.long()) {
            (0, Some(i)) => Number::int_or_long(i).to_value(),
            (1, Some(i)) => Value::from(i),
            (3, _) => Value::from(self.total_decimal()),
            _ => Value::from(self.plain.value()),
        }
    }

    fn total_decimal(&self) -> Decimal128 {
        decimal::add(self.decimal, self.plain.decimal())
    }

    /// Null when there was no number.
    pub fn average(&self) -> Value {
        if self.count == 0 {
            Value::NULL
        } else if self.widest == 3 {
            let n = Decimal128::from_i64(self.count);
            Value::from(decimal::div(self.total_decimal(), n))
        } else {
            Value::from(self.plain.value() / self.count as f64)
        }
    }

    /// Adds another state.
    pub fn merge(&mut self, other: &Sum) {
        self.plain.add(other.plain.sum);
        self.plain.add(other.plain.addend);
        if other.plain.special.is_nan() || other.plain.special.is_infinite() {
            self.plain.special = self.plain.special - other.plain.sum + other.plain.special;
        }
        self.decimal = decimal::add(self.decimal, other.decimal);
        self.widest = self.widest.max(other.widest);
        // States may come from another server.
        self.count = self.count.saturating_add(other.count);
    }

    /// The state as fixed bytes, for spilling.
    pub fn to_bytes(self) -> [u8; 49] {
        let mut b = [0; 49];
        b[..8].copy_from_slice(&self.plain.sum.to_le_bytes());
        b[8..16].copy_from_slice(&self.plain.addend.to_le_bytes());
        b[16..24].copy_from_slice(&self.plain.special.to_le_bytes());
        b[24..40].copy_from_slice(&self.decimal.to_le_bytes());
        b[40..48].copy_from_slice(&self.count.to_le_bytes());
        b[48] = self.widest;
        b
    }

    pub fn from_bytes(b: &[u8]) -> Option<Sum> {
        let f = |at: usize| Some(f64::from_le_bytes(b.get(at..at + 8)?.try_into().ok()?));
        Some(Sum {
            plain: DoubleDouble {
                sum: f(0)?,
                addend: f(8)?,
                special: f(16)?,
            },
            decimal: Decimal128::from_le_bytes(b.get(24..40)?.try_into().ok()?),
            count: i64::from_le_bytes(b.get(40..48)?.try_into().ok()?),
            widest: *b.get(48)?,
        })
    }
}

/// The state of `$stdDevPop` and `$stdDevSamp` (Welford's method).
#[derive(Clone, Copy, Debug, Default)]
pub struct Variance {
    count: i64,
    mean: f64,
    m2: f64,
}

impl Variance {
    /// Takes in a number; anything else is ignored.
    #[inline]
    pub fn add(&mut self, v: Val<'_>) {
        if !tag::is_number(v.tag) {
            return;
        }
        let x = v.to_f64().unwrap_or(f64::NAN);
        self.count += 1;
        let delta = x - self.mean;
        if delta != 0.0 {
            self.mean += delta / self.count as f64;
            self.m2 += delta * (x - self.mean);
        }
    }

    pub fn merge(&mut self, o: &Variance) {
        if o.count == 0 {
            return;
        }
        // The square of a double near the greatest is infinite.
        if self.count == 0 {
            *self = *o;
            return;
        }
        let n = self.count.saturating_add(o.count) as f64;
        let delta = o.mean - self.mean;
        self.m2 += o.m2 + delta * delta * (self.count as f64) * (o.count as f64) / n;
        self.mean = (self.mean * self.count as f64 + o.mean * o.count as f64) / n;
        self.count = self.count.saturating_add(o.count);
    }

    /// Null when there are too few numbers.
    pub fn deviation(&self, sample: bool) -> Value {
        let n = self.count.saturating_sub(i64::from(sample));
        if n <= 0 {
            Value::NULL
        } else {
            let variance = self.m2 / n as f64;
            // An infinite or undefined input has no deviation.
            if variance.is_finite() {
                Value::from(variance.sqrt())
            } else {
                Value::from(f64::NAN)
            }
        }
    }

    pub fn to_bytes(self) -> [u8; 24] {
        let mut b = [0; 24];
        b[..8].copy_from_slice(&self.count.to_le_bytes());
        b[8..16].copy_from_slice(&self.mean.to_le_bytes());
        b[16..].copy_from_slice(&self.m2.to_le_bytes());
        b
    }

    pub fn from_bytes(b: &[u8]) -> Option<Variance> {
        Some(Variance {
            count: i64::from_le_bytes(b.get(..8)?.try_into().ok()?),
            mean: f64::from_le_bytes(b.get(8..16)?.try_into().ok()?),
            m2: f64::from_le_bytes(b.get(16..24)?.try_into().ok()?),
        })
    }
}
