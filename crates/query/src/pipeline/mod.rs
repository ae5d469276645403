//! Aggregation pipelines.

use crate::expr::ParseEnv;
use crate::transform::Transform;
use bson::{Doc, Val};
use errors::{Result, err};

/// The stages that turn one document into one: `None` for another stage.
pub fn parse_transform(name: &str, spec: Val<'_>, env: &ParseEnv) -> Result<Option<Transform>> {
    let object = |code| -> Result<Doc<'_>> {
        spec.as_doc().ok_or_else(|| {
            errors::Error::coded(
                code,
                format!(
                    "{name} specification must be an object, got {}",
                    spec.type_name()
                ),
            )
        })
    };
    Ok(Some(match name {
        "$project" => Transform::project(object(15969)?, env)?,
        "$addFields" | "$set" => match spec.as_doc() {
            Some(d) => Transform::add_fields(name, d, env)?,
            None => {
                return Err(err!(
                    40272,
                    "{name} specification stage must be an object, got {}",
                    spec.type_name()
                ));
            }
        },
        "$unset" => Transform::unset(spec)?,
        "$replaceRoot" => Transform::replace_root(spec, env)?,
        "$replaceWith" => Transform::replace_with(spec, env)?,
        _ => return Ok(None),
    }))
}

/// Whether MongoDB has a stage of that name.
pub fn is_stage(name: &str) -> bool {
    matches!(
        name,
        "$match"
            | "$group"
            | "$sort"
            | "$limit"
            | "$skip"
            | "$unwind"
            | "$count"
            | "$sortByCount"
            | "$sample"
            | "$lookup"
            | "$out"
            | "$facet"
            | "$bucket"
            | "$bucketAuto"
            | "$unionWith"
            | "$merge"
            | "$graphLookup"
            | "$redact"
            | "$documents"
            | "$densify"
            | "$fill"
            | "$setWindowFields"
            | "$indexStats"
            | "$collStats"
            | "$currentOp"
            | "$listLocalSessions"
            | "$listSessions"
            | "$geoNear"
            | "$planCacheStats"
            | "$changeStream"
    )
}
