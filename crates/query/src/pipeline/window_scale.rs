//! `$minMaxScaler`: where a row's value lies between the least and the greatest of its window.

use super::partition::Partition;
use super::window_function::Function;
use super::window_values::{WindowContext, evaluate};
use crate::arithmetic::{Number, add, decimal, multiply, subtract};
use bson::{Val, Value, order};
use errors::{Result, bail};
use std::ops::Range;

/// The least and the greatest of a frame.
#[derive(Clone, Copy, Default)]
pub(super) struct Extremes(Option<(Number, Number)>);

fn number(v: Val<'_>) -> Result<Number> {
    match Number::of(v) {
        Some(n) => Ok(n),
        None => bail!(
            10487001,
            "'input' argument to $minMaxScaler must evaluate to a numeric type, got: {}",
            v.type_name()
        ),
    }
}

fn less(a: Number, b: Number) -> bool {
    order::compare(a.to_value().as_val(), b.to_value().as_val()).is_lt()
}

fn divide(a: Number, b: Number) -> Number {
    match (a, b) {
        (Number::Decimal(_), _) | (_, Number::Decimal(_)) => {
            Number::Decimal(decimal::div(a.to_decimal(), b.to_decimal()))
        }
        _ => Number::Double(a.to_f64() / b.to_f64()),
    }
}

impl Extremes {
    fn add(&mut self, n: Number) {
        self.0 = Some(match self.0 {
            None => (n, n),
            Some((lo, hi)) => (
                if less(n, lo) { n } else { lo },
                if less(hi, n) { n } else { hi },
            ),
        });
    }

    /// Takes in the rows of a frame.
    pub fn take(
        &mut self,
        function: &Function,
        frame: Range<usize>,
        rows: &mut Partition,
        around: &WindowContext<'_>,
    ) -> Result<()> {
        let Function::MinMaxScaler { input, .. } = function else {
            return Ok(());
        };
        for i in frame.clone() {
            around.vars.check_interrupt(i - frame.start)?;
            self.add(number(evaluate(input, i, rows, around)?.as_val())?);
        }
        Ok(())
    }

    /// The place of a value between `min` and `max`.
    pub fn scale(&self, v: &Value, min: Number, max: Number) -> Result<Value> {
        let x = number(v.as_val())?;
        let (lo, hi) = self.0.unwrap_or((x, x));
        let width = subtract(hi, lo);
        if width.is_zero() {
            return Ok(min.to_value());
        }
        let part = divide(multiply(subtract(x, lo), subtract(max, min)), width);
        Ok(add(min, part).to_value())
    }
}
