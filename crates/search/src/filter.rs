//! The filter of a `$vectorSearch`: a query of MongoDB's language over fields of type filter.
//!
//! Source: MongoDB's manual, "$vectorSearch", filter.

use crate::operator::{Bounds, Clause, Operator, ScoreChange};
use crate::problem::wrong;
use crate::terms::{kind, value_of};
use bson::{Doc, Val, Value};
use errors::Result;
use errors::operation::step;

/// How deep a filter may nest.
const MOST_DEPTH: usize = 50;

fn plain(operator: Operator) -> Clause {
    Clause {
        operator,
        score: ScoreChange::None,
    }
}

pub(crate) fn all_of(filter: Vec<Clause>) -> Clause {
    plain(Operator::Compound {
        must: vec![],
        should: vec![],
        must_not: vec![],
        filter,
        least: 0,
    })
}

/// The clause that a filter of one clause is.
pub(crate) fn only_one(mut filter: &Clause) -> &Clause {
    while let Operator::Compound {
        must,
        should,
        must_not,
        filter: all,
        least: 0,
    } = &filter.operator
        && let (true, [one]) = (
            must.is_empty() && should.is_empty() && must_not.is_empty(),
            &all[..],
        )
    {
        filter = one;
    }
    filter
}

fn any_of(should: Vec<Clause>) -> Clause {
    plain(Operator::Compound {
        must: vec![],
        should,
        must_not: vec![],
        filter: vec![],
        least: 1,
    })
}

fn none_of(must_not: Vec<Clause>) -> Clause {
    plain(Operator::Compound {
        must: vec![],
        should: vec![],
        must_not,
        filter: vec![],
        least: 0,
    })
}

/// The clause of a filter; `None`: it lets all documents through.
pub(crate) fn clause_of(d: Doc<'_>) -> Result<Option<Clause>> {
    match d.is_empty() {
        true => Ok(None),
        false => document(d, 0).map(Some),
    }
}

fn document(d: Doc<'_>, depth: usize) -> Result<Clause> {
    if depth > MOST_DEPTH {
        return Err(wrong("the filter is nested too deep"));
    }
    let mut all = Vec::new();
    for e in d.iter() {
        step()?;
        all.push(match e.name {
            "$and" => all_of(list(e.name, e.val, depth)?),
            "$or" => any_of(list(e.name, e.val, depth)?),
            "$nor" => none_of(list(e.name, e.val, depth)?),
            "$expr" | "$jsonSchema" | "$where" | "$sampleRate" => {
                return Err(wrong(format!(
                    "operator not supported in a filter: {}",
                    e.name
                )));
            }
            name if name.starts_with('$') => {
                errors::bail!(BadValue, "unknown top level operator: {name}");
            }
            path => field(path, e.val)?,
        });
    }
    Ok(match all.len() {
        1 => all.remove(0),
        _ => all_of(all),
    })
}

fn list(name: &str, v: Val<'_>, depth: usize) -> Result<Vec<Clause>> {
    let Some(list) = v.as_array().filter(|l| !l.is_empty()) else {
        errors::bail!(BadValue, "{name} argument must be a nonempty array");
    };
    let one = |v: Val<'_>| match v.as_doc() {
        Some(d) => document(d, depth + 1),
        None => errors::bail!(BadValue, "{name} argument's entries must be objects"),
    };
    list.values().map(one).collect()
}

fn field(path: &str, v: Val<'_>) -> Result<Clause> {
    let operators = v
        .as_doc()
        .filter(|d| d.first().is_some_and(|e| e.name.starts_with('$')));
    let Some(operators) = operators else {
        return equal(path, v);
    };
    let mut all = Vec::new();
    for e in operators.iter() {
        step()?;
        all.push(match e.name {
            "$eq" => equal(path, e.val)?,
            "$ne" => none_of(vec![equal(path, e.val)?]),
            "$gt" | "$gte" | "$lt" | "$lte" => compare(path, e.name, e.val)?,
            "$in" => among(path, e.val)?,
            "$nin" => none_of(vec![among(path, e.val)?]),
            "$exists" => {
                let exists = plain(Operator::Exists {
                    path: path.to_string(),
                });
                match e.val.as_bool() {
                    Some(true) => exists,
                    Some(false) => none_of(vec![exists]),
                    None => return Err(wrong("$exists in a filter must be a boolean")),
                }
            }
            "$not" => match e.val.as_doc() {
                Some(_) => none_of(vec![field(path, e.val)?]),
                None => return Err(wrong("$not in a filter needs a document")),
            },
            "$near" | "$nearSphere" | "$geoNear" => errors::bail!(
                5626500,
                "$geoNear, $near, and $nearSphere are not allowed in this context, as these operators require sorting geospatial data."
            ),
            "$comment" => errors::bail!(BadValue, "unknown operator: $comment"),
            "$regex" | "$mod" | "$size" | "$type" | "$all" | "$elemMatch" | "$geoWithin"
            | "$geoIntersects" | "$bitsAllSet" | "$bitsAnySet" | "$bitsAllClear"
            | "$bitsAnyClear" | "$options" => {
                return Err(wrong(format!("operator not supported in a filter: {}", e.name)));
            }
            name => errors::bail!(BadValue, "unknown operator: {name}"),
        });
    }
    Ok(match all.len() {
        1 => all.remove(0),
        _ => all_of(all),
    })
}

fn supported(v: Val<'_>) -> Result<(u8, Vec<u8>)> {
    value_of(v).ok_or_else(|| {
        wrong("a filter's value must be a boolean, objectId, number, string, date, uuid, or null")
    })
}

fn equal(path: &str, v: Val<'_>) -> Result<Clause> {
    supported(v)?;
    Ok(values(path, vec![v.to_value()]))
}

fn values(path: &str, values: Vec<Value>) -> Clause {
    plain(Operator::Values {
        paths: vec![path.to_string()],
        values,
        finite: false,
    })
}

fn compare(path: &str, name: &str, v: Val<'_>) -> Result<Clause> {
    let (kind, bytes) = supported(v)?;
    let bound = Some((bytes, name.len() == 4));
    let (low, high) = match name.starts_with("$gt") {
        true => (bound, None),
        false => (None, bound),
    };
    Ok(plain(Operator::Range {
        paths: vec![path.to_string()],
        bounds: Bounds { kind, low, high },
    }))
}

fn among(path: &str, v: Val<'_>) -> Result<Clause> {
    let Some(list) = v.as_array().filter(|l| !l.is_empty()) else {
        return Err(wrong("$in in a filter needs a non-empty array"));
    };
    let (mut found, mut kinds) = (Vec::new(), Vec::new());
    for v in list.values() {
        step()?;
        kinds.push(supported(v)?.0);
        found.push(v.to_value());
    }
    if kinds.contains(&kind::NULL) || kinds.iter().any(|k| Some(k) != kinds.first()) {
        return Err(wrong("$in in a filter needs values of one type"));
    }
    Ok(values(path, found))
}
