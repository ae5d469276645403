//! Specifications of stages: the checks that MongoDB's generated parsers make, with their codes and
//! sentences.

use crate::path::FieldPath;
use bson::{Doc, Val, tag};
use errors::{Result, bail, err};

/// Stages whose specification is a document of options, read one by one.
const OF_OPTIONS: [&str; 18] = [
    "$geoNear",
    "$unwind",
    "$bucket",
    "$bucketAuto",
    "$sample",
    "$graphLookup",
    "$setWindowFields",
    "$fill",
    "$densify",
    "$score",
    "$collStats",
    "$currentOp",
    "$listSessions",
    "$listLocalSessions",
    "$planCacheStats",
    "$querySettings",
    "$queryStats",
    "$changeStream",
];

/// Fails where one of these is given an option twice. The others' are read by [`options`], or hold
/// names of the user's.
pub(super) fn check_unique(stage: &str, spec: Val<'_>) -> Result<()> {
    let Some(d) = spec.as_doc().filter(|_| OF_OPTIONS.contains(&stage)) else {
        return Ok(());
    };
    match d.repeated_name() {
        None => Ok(()),
        Some(name) => bail!(40413, "BSON field '{stage}.{name}' is a duplicate field"),
    }
}

/// Takes the named options out of a specification: each known, at most once. Null counts as left
/// out.
pub(super) fn options<'a, const N: usize>(
    stage: &str,
    spec: Doc<'a>,
    names: [&str; N],
) -> Result<[Option<Val<'a>>; N]> {
    let mut out = [None; N];
    let mut seen = [false; N];
    for e in spec.iter() {
        let Some(i) = names.iter().position(|n| *n == e.name) else {
            bail!(
                40415,
                "BSON field '{stage}.{}' is an unknown field.",
                e.name
            );
        };
        if seen[i] {
            bail!(
                40413,
                "BSON field '{stage}.{}' is a duplicate field",
                e.name
            );
        }
        seen[i] = true;
        if e.val.tag != tag::NULL {
            out[i] = Some(e.val);
        }
    }
    Ok(out)
}

pub(super) fn required<'a>(stage: &str, name: &str, v: Option<Val<'a>>) -> Result<Val<'a>> {
    v.ok_or_else(|| {
        err!(
            40414,
            "BSON field '{stage}.{name}' is missing but a required field"
        )
        .into()
    })
}

pub(super) fn wrong_type(stage: &str, name: &str, v: Val<'_>, expected: &str) -> errors::Error {
    err!(
        TypeMismatch,
        "BSON field '{stage}.{name}' is the wrong type '{}', expected type '{expected}'",
        v.type_name()
    )
}

pub(super) fn string<'a>(stage: &str, name: &str, v: Val<'a>) -> Result<&'a str> {
    v.as_str()
        .ok_or_else(|| wrong_type(stage, name, v, "string").into())
}

pub(super) fn object<'a>(stage: &str, name: &str, v: Val<'a>) -> Result<Doc<'a>> {
    v.as_doc()
        .ok_or_else(|| wrong_type(stage, name, v, "object").into())
}

/// A dotted path, checked as aggregation checks it.
pub(super) fn field_path(text: &str) -> Result<FieldPath> {
    crate::expr::ExprPath::parse(text)?;
    Ok(FieldPath::new(text))
}
