//! `$percentile` and `$median`: the specification and the computation, shared by accumulators and
//! expressions.

use crate::expr::{ParseEnv, constant_of};
use bson::{Val, Value, Writer};
use errors::{Result, bail};

/// The fractions of `p`: a constant array of numbers from 0 to 1.
pub(crate) fn parse_p(v: Val<'_>, env: &ParseEnv) -> Result<Vec<f64>> {
    let value = constant_of(v, env)?.unwrap_or(Value::NULL);
    let Some(items) = value.as_val().as_array().filter(|a| !a.is_empty()) else {
        bail!(
            7750301,
            "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: {v}"
        );
    };
    items
        .values()
        .map(|x| match x.to_f64() {
            None => bail!(
                7750302,
                "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: {x}"
            ),
            Some(p) if (0.0..=1.0).contains(&p) => Ok(p),
            Some(_) => bail!(
                7750303,
                "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found: {x}"
            ),
        })
        .collect()
}

pub(crate) fn check_method(v: Val<'_>) -> Result<()> {
    match v.as_str() {
        Some("approximate") => Ok(()),
        Some(_) => bail!(
            BadValue,
            "Currently only 'approximate' can be used as percentile 'method'."
        ),
        None => bail!(
            TypeMismatch,
            "BSON field 'method' is the wrong type '{}', expected type 'string'",
            v.type_name()
        ),
    }
}

/// The values at the fractions `p` (each the least value that so large a part does not exceed);
/// nulls of nothing.
pub(crate) fn compute(numbers: &mut Vec<f64>, p: &[f64]) -> Value {
    numbers.retain(|x| !x.is_nan());
    numbers.sort_unstable_by(f64::total_cmp);
    let mut w = Writer::new_array();
    for p in p {
        let rank = (p * numbers.len() as f64).ceil() as usize;
        match numbers.get(rank.saturating_sub(1)) {
            Some(x) => w.f64("", *x),
            None => w.null(""),
        };
    }
    w.finish_array()
}

/// The only item of an array, for `$median`.
pub(crate) fn single(array: &Value) -> Value {
    array
        .as_val()
        .as_array()
        .and_then(|a| a.values().next())
        .map_or(Value::NULL, Val::to_value)
}
