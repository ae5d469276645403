//! Operators over values: `equals`, `in`, `range`, `near`.

use crate::fields::SpecificationFields;
use crate::operator::{Bounds, Operator};
use crate::paths::plain_paths;
use crate::problem::wrong;
use crate::terms::value_of;
use bson::{Val, Value, tag};
use errors::Result;
use errors::operation::step;

/// A value that `equals` and `in` compare with.
pub(crate) fn value(f: &SpecificationFields<'_>, name: &str, v: Option<Val<'_>>) -> Result<Value> {
    let Some(v) = v else {
        return Err(wrong(format!("\"{}\" is required", f.name(name))));
    };
    match value_of(v) {
        Some(_) => Ok(v.to_value()),
        None => Err(wrong(format!(
            "\"{}\" must be a boolean, objectId, number, string, date, uuid, or null",
            f.name(name)
        ))),
    }
}

pub(crate) fn values(f: &SpecificationFields<'_>) -> Result<Operator> {
    f.string("doesNotAffect")?;
    let paths = plain_paths(f)?;
    let v = f.required("value")?;
    let values = match v.as_array() {
        None => vec![value(f, "value", Some(v))?],
        Some(list) => {
            let mut out = Vec::new();
            for (i, v) in list.values().enumerate() {
                step()?;
                let name = format!("value[{i}]");
                if v.is_nullish() {
                    return Err(wrong(format!("\"{}\" cannot be null", f.name(&name))));
                }
                out.push(value(f, &name, Some(v))?);
            }
            out
        }
    };
    let kinds = values
        .iter()
        .filter_map(|v| value_of(v.as_val()).map(|(kind, _)| kind));
    let mut kinds: Vec<u8> = kinds.collect();
    kinds.dedup();
    if kinds.is_empty() {
        return Err(wrong(format!("\"{}\" cannot be empty", f.name("value"))));
    }
    if kinds.len() > 1 {
        return Err(wrong(format!(
            "\"{}\" must have values of one type",
            f.name("value")
        )));
    }
    Ok(Operator::Values {
        paths,
        values,
        finite: false,
    })
}

/// A bound's kind and its bytes.
fn bound(f: &SpecificationFields<'_>, name: &'static str) -> Result<Option<(u8, Vec<u8>)>> {
    let Some(v) = f.get(name) else {
        return Ok(None);
    };
    let fits = matches!(
        v.tag,
        tag::INT32 | tag::INT64 | tag::DOUBLE | tag::DATE | tag::STRING | tag::OBJECT_ID
    );
    match value_of(v).filter(|_| fits) {
        Some(value) => Ok(Some(value)),
        None => Err(wrong(format!(
            "\"{}\" must be a number, date, string, or objectId",
            f.name(name)
        ))),
    }
}

pub(crate) fn range(f: &SpecificationFields<'_>) -> Result<Operator> {
    let paths = plain_paths(f)?;
    let (gt, gte) = (bound(f, "gt")?, bound(f, "gte")?);
    let (lt, lte) = (bound(f, "lt")?, bound(f, "lte")?);
    f.string("doesNotAffect")?;
    if gt.is_some() && gte.is_some() || lt.is_some() && lte.is_some() {
        return Err(wrong(format!(
            "\"{}\" may have one bound on each side",
            f.at
        )));
    }
    let low = gte.map(|b| (b, true)).or(gt.map(|b| (b, false)));
    let high = lte.map(|b| (b, true)).or(lt.map(|b| (b, false)));
    let kind = match (&low, &high) {
        (None, None) => return Err(wrong(format!("\"{}\" must have a bound", f.at))),
        (Some(((a, _), _)), Some(((b, _), _))) if a != b => {
            return Err(wrong(format!(
                "the bounds of \"{}\" must be of one type",
                f.at
            )));
        }
        (Some(((kind, _), _)), _) | (None, Some(((kind, _), _))) => *kind,
    };
    if let (Some(((_, a), _)), Some(((_, b), _))) = (&low, &high)
        && a > b
    {
        return Err(wrong(format!(
            "the lower bound of \"{}\" is greater than its upper bound",
            f.at
        )));
    }
    if let (Some(((_, a), false)), Some(((_, b), false))) = (&low, &high)
        && a == b
    {
        return Err(wrong(format!(
            "nothing is between the bounds of \"{}\"",
            f.at
        )));
    }
    Ok(Operator::Range {
        paths,
        bounds: Bounds {
            kind,
            low: low.map(|((_, b), inclusive)| (b, inclusive)),
            high: high.map(|((_, b), inclusive)| (b, inclusive)),
        },
    })
}

pub(crate) fn near(f: &SpecificationFields<'_>) -> Result<Operator> {
    let paths = plain_paths(f)?;
    let origin = f.required("origin")?;
    let at = match (origin.as_date(), origin.to_f64()) {
        (Some(millis), _) => Some((crate::terms::kind::DATE, millis as f64)),
        (None, Some(n)) if origin.is_number() && origin.as_decimal().is_none() => {
            Some((crate::terms::kind::NUMBER, n))
        }
        _ if origin.as_doc().is_some() => None,
        _ => {
            return Err(wrong(format!(
                "\"{}\" must be a number, date or point",
                f.name("origin")
            )));
        }
    };
    let pivot = f.required("pivot")?;
    let pivot = pivot
        .to_f64()
        .filter(|_| pivot.is_number() && pivot.as_decimal().is_none());
    let Some(pivot) = pivot else {
        return Err(wrong(format!("\"{}\" must be a number", f.name("pivot"))));
    };
    if !(pivot > 0.0 && pivot.is_finite()) {
        return Err(wrong(format!(
            "\"{}\" must be positive and finite",
            f.name("pivot")
        )));
    }
    Ok(match at {
        Some((kind, origin)) => Operator::Near {
            paths,
            kind,
            origin,
            pivot,
        },
        None => Operator::NearPoint {
            paths,
            near: crate::places::near(f, "origin")?,
            pivot,
        },
    })
}
