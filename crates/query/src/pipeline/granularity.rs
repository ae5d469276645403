//! The series of preferred numbers to which `$bucketAuto` rounds its boundaries.

use crate::arithmetic::Number;
use bson::{Val, Value};
use errors::{Result, bail};
use std::sync::LazyLock;

#[derive(Clone, Copy, Debug)]
pub(super) enum Granularity {
    PowersOf2,
    /// A series of numbers that goes on at every power of ten.
    Series(&'static [f64]),
}

/// E48, E96 and E192: powers of 10 in equal steps, in three digits.
static FINE: LazyLock<[Vec<f64>; 3]> = LazyLock::new(|| {
    [48, 96, 192].map(|n| {
        (0..n)
            .map(
                |i| match (100.0 * 10f64.powf(f64::from(i) / f64::from(n))).round() {
                    // The one number of the standard that rounding does not give.
                    919.0 => 920.0,
                    x => x,
                },
            )
            .collect()
    })
});

const SERIES: &[(&str, &[f64])] = &[
    ("R5", &[10.0, 16.0, 25.0, 40.0, 63.0]),
    (
        "R10",
        &[
            100.0, 125.0, 160.0, 200.0, 250.0, 315.0, 400.0, 500.0, 630.0, 800.0,
        ],
    ),
    (
        "R20",
        &[
            100.0, 112.0, 125.0, 140.0, 160.0, 180.0, 200.0, 224.0, 250.0, 280.0, 315.0, 355.0,
            400.0, 450.0, 500.0, 560.0, 630.0, 710.0, 800.0, 900.0,
        ],
    ),
    (
        "R40",
        &[
            100.0, 106.0, 112.0, 118.0, 125.0, 132.0, 140.0, 150.0, 160.0, 170.0, 180.0, 190.0,
            200.0, 212.0, 224.0, 236.0, 250.0, 265.0, 280.0, 300.0, 315.0, 355.0, 375.0, 400.0,
            425.0, 450.0, 475.0, 500.0, 530.0, 560.0, 600.0, 630.0, 670.0, 710.0, 750.0, 800.0,
            850.0, 900.0, 950.0,
        ],
    ),
    (
        "R80",
        &[
            103.0, 109.0, 115.0, 122.0, 128.0, 136.0, 145.0, 155.0, 165.0, 175.0, 185.0, 195.0,
            206.0, 218.0, 230.0, 243.0, 258.0, 272.0, 290.0, 307.0, 325.0, 345.0, 365.0, 387.0,
            412.0, 437.0, 462.0, 487.0, 515.0, 545.0, 575.0, 615.0, 650.0, 690.0, 730.0, 775.0,
            825.0, 875.0, 925.0, 975.0,
        ],
    ),
    ("1-2-5", &[10.0, 20.0, 50.0]),
    ("E6", &[10.0, 15.0, 22.0, 33.0, 47.0, 68.0]),
    (
        "E12",
        &[
            10.0, 12.0, 15.0, 18.0, 22.0, 27.0, 33.0, 39.0, 47.0, 56.0, 68.0, 82.0,
        ],
    ),
    (
        "E24",
        &[
            10.0, 11.0, 12.0, 13.0, 15.0, 16.0, 18.0, 20.0, 22.0, 24.0, 27.0, 30.0, 33.0, 36.0,
            39.0, 43.0, 47.0, 51.0, 56.0, 62.0, 68.0, 75.0, 82.0, 91.0,
        ],
    ),
];

pub(super) fn granularity(name: &str) -> Result<Granularity> {
    if name == "POWERSOF2" {
        return Ok(Granularity::PowersOf2);
    }
    let fine = match name {
        "E48" => FINE.first(),
        "E96" => FINE.get(1),
        "E192" => FINE.get(2),
        _ => None,
    };
    if let Some(s) = fine {
        return Ok(Granularity::Series(s));
    }
    match SERIES.iter().find(|(n, _)| *n == name) {
        Some((_, s)) => Ok(Granularity::Series(s)),
        None => bail!(40257, "Unknown rounding granularity '{name}'"),
    }
}

impl Granularity {
    /// The number that a value is, where it can be in a bucket.
    pub fn check(self, v: Val<'_>) -> Result<Number> {
        let Some(n) = Number::of(v) else {
            bail!(
                40258,
                "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a value with type: {}",
                v.type_name()
            );
        };
        if n.is_nan() {
            bail!(
                40259,
                "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a NaN"
            );
        }
        if n.to_f64() < 0.0 {
            bail!(
                40260,
                "$bucketAuto can specify a 'granularity' with non-negative numbers only, but found a negative number: {v}"
            );
        }
        Ok(n)
    }

    /// The next number of the series above (`up`) or below a value.
    pub fn round(self, v: Val<'_>, up: bool) -> Result<Value> {
        let n = self.check(v)?;
        let x = n.to_f64();
        if x == 0.0 || x.is_infinite() {
            return Ok(v.to_value());
        }
        let r = match self {
            Granularity::PowersOf2 => {
                let mut p = 2f64.powi(x.log2().floor() as i32);
                if up {
                    while p <= x {
                        p *= 2.0;
                    }
                } else {
                    while p >= x {
                        p /= 2.0;
                    }
                }
                p
            }
            Granularity::Series(s) => {
                let first = s.first().copied().unwrap_or(10.0);
                let power = (x / first).log10().floor() as i32;
                let scaled = |k: i32| {
                    s.iter().map(move |b| {
                        if k >= 0 {
                            b * 10f64.powi(k)
                        } else {
                            b / 10f64.powi(-k)
                        }
                    })
                };
                let mut all = (power - 1..=power + 1).flat_map(scaled);
                if up {
                    all.find(|b| *b > x).unwrap_or(x)
                } else {
                    all.take_while(|b| *b < x).last().unwrap_or(x)
                }
            }
        };
        Ok(match (self, n) {
            (_, Number::Decimal(_)) => Value::from(crate::arithmetic::decimal::from_f64_precise(r)),
            (Granularity::PowersOf2, Number::Int(_) | Number::Long(_))
                if r.fract() == 0.0 && r < 9.0e18 =>
            {
                Number::int_or_long(r as i64).to_value()
            }
            _ => Value::from(r),
        })
    }
}
