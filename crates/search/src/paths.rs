//! Where an operator looks.

use crate::fields::SpecificationFields;
use crate::problem::wrong;
use bson::Val;
use errors::Result;
use errors::operation::step;

/// Where an operator looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathSpec {
    Path(String),
    /// A path and one of its other analyzers.
    Multi(String, String),
    /// Every path that matches.
    Wildcard(String),
}

/// The paths of an operator: a string, `{value, multi}`, `{wildcard}`, or a list of those.
pub(crate) fn paths(f: &SpecificationFields<'_>) -> Result<Vec<PathSpec>> {
    let v = f.required("path")?;
    let name = f.name("path");
    let Some(list) = v.as_array() else {
        return Ok(vec![path(&name, v)?]);
    };
    let mut out = Vec::new();
    for (i, v) in list.values().enumerate() {
        step()?;
        out.push(path(&format!("{name}[{i}]"), v)?);
    }
    if out.is_empty() {
        return Err(wrong(format!("\"{name}\" cannot be empty")));
    }
    Ok(out)
}

pub(crate) fn path(name: &str, v: Val<'_>) -> Result<PathSpec> {
    if let Some(s) = v.as_str() {
        return Ok(PathSpec::Path(s.to_string()));
    }
    if v.as_doc().is_none() {
        return Err(wrong(format!("\"{name}\" must be a string or a document")));
    }
    let f = SpecificationFields::of(name, v)?;
    let wildcard = f.string("wildcard")?;
    let value = f.string("value")?;
    let multi = f.string("multi")?;
    f.end()?;
    match (wildcard, value, multi) {
        (Some(w), None, None) => Ok(PathSpec::Wildcard(w.to_string())),
        (None, Some(v), Some(m)) => Ok(PathSpec::Multi(v.to_string(), m.to_string())),
        (None, Some(v), None) => Ok(PathSpec::Path(v.to_string())),
        (None, None, _) => Err(wrong(format!("\"{name}.value\" is required"))),
        _ => Err(wrong(format!(
            "\"{name}\" must have either \"value\" or \"wildcard\""
        ))),
    }
}

/// The paths of an operator that takes strings only.
pub(crate) fn plain_paths(f: &SpecificationFields<'_>) -> Result<Vec<String>> {
    let plain = |p| match p {
        PathSpec::Path(p) => Ok(p),
        _ => Err(wrong(format!("\"{}\" must be a string", f.name("path")))),
    };
    paths(f)?.into_iter().map(plain).collect()
}
